//! Disk space that the file of a store holds in reserve, so that other files cannot take it.
//!
//! The blocks of the file are allocated, and [`RESERVE`] beyond its end. So a disk that something else fills
//! up stops neither the writes into the present file nor its next growth, nor the next start. While the
//! reserve cannot be allocated, the store reports that it is short of space, and the API server admits only
//! writes that free space and those of the platform.
//!
//! A file system without `fallocate` has no reserve: there a full disk stops the store.

use std::{
    fs::File,
    io,
    path::Path,
    sync::atomic::{AtomicU8, Ordering},
};

/// Bytes beyond the end of the file: more than the platform writes while an operator frees space.
const RESERVE: u64 = 32 << 20;

/// The state of a reserve.
const HELD: u8 = 0;
const SHORT: u8 = 1;
const UNSUPPORTED: u8 = 2;

/// The reserve of one file.
pub(super) struct DiskReserve {
    file: File,
    state: AtomicU8,
}

impl DiskReserve {
    /// Allocates the reserve of an existing file, as far as the disk has space.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let reserve =
            Self { file: File::options().read(true).write(true).open(path)?, state: AtomicU8::new(HELD) };
        reserve.ensure();
        Ok(reserve)
    }

    /// Allocates what is missing: after the file has grown, or the disk has space again.
    pub(super) fn ensure(&self) {
        let before = self.state.load(Ordering::Relaxed);
        if before == UNSUPPORTED {
            return;
        }
        let state = match self.allocate() {
            Ok(()) => HELD,
            Err(error)
                if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) =>
            {
                SHORT
            }
            Err(_) => UNSUPPORTED,
        };
        if self.state.swap(state, Ordering::Relaxed) == state {
            return;
        }
        match state {
            SHORT => tracing::error!(
                "the disk of the store is full: the API server admits only writes that free space until {} MiB are free; free disk space",
                RESERVE >> 20
            ),
            HELD => tracing::info!("the disk of the store has space again"),
            _ => {}
        }
    }

    /// Whether the reserve could not be allocated. Tries again, so a disk with space again is noticed.
    pub(super) fn is_short(&self) -> bool {
        if self.state.load(Ordering::Relaxed) == SHORT {
            self.ensure();
        }
        self.state.load(Ordering::Relaxed) == SHORT
    }

    #[cfg(target_os = "linux")]
    fn allocate(&self) -> io::Result<()> {
        use std::os::unix::fs::MetadataExt as _;
        let found = self.file.metadata()?;
        let wanted = found.len() + RESERVE;
        if found.blocks() * 512 >= wanted {
            return Ok(());
        }
        Ok(rustix::fs::fallocate(&self.file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, wanted)?)
    }

    #[cfg(not(target_os = "linux"))]
    fn allocate(&self) -> io::Result<()> {
        let _ = &self.file;
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn the_blocks_of_the_file_and_of_the_reserve_are_allocated_and_its_length_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        std::fs::write(&path, "content").expect("written");
        let reserve = DiskReserve::of(&path).expect("a reserve");
        if reserve.state.load(Ordering::Relaxed) == UNSUPPORTED {
            eprintln!("skipped: this file system has no fallocate");
            return;
        }
        let found = || std::fs::metadata(&path).expect("a file");
        assert!(found().blocks() * 512 >= RESERVE && found().len() == 7, "{:?}", found());
        // A sparse file that grows, as that of redb does.
        File::options().write(true).open(&path).and_then(|file| file.set_len(8 << 20)).expect("longer");
        reserve.ensure();
        assert!(found().blocks() * 512 >= (8 << 20) + RESERVE, "{:?}", found());
        assert!(!reserve.is_short());
    }
}
