//! Reserve: disk space that the store holds for its own end.
//!
//! A file of [`SIZE`] bytes lies beside the store. When the disk is full, the store deletes it, writes what it
//! has accepted and closes the file in good order; the space that is left lets the next start open the store
//! and shrink it. A start makes the file again if the disk has space for it.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use rustix::fs::{FallocateFlags, fallocate};

/// Bytes of the reserve: a few batches of the largest size, and the repair of the file.
pub(super) const SIZE: u64 = 32 << 20;

/// The reserve of a store.
#[derive(Clone, Debug)]
pub(super) struct Reserve(PathBuf);

impl Reserve {
    /// The reserve of the store at this path: `store.reserve` for `store.redb`.
    pub(super) fn beside(store: &Path) -> Self {
        Self(store.with_extension("reserve"))
    }

    /// Allocates the reserve. Without the space for it the store works, but ends less cleanly.
    pub(super) fn fill(&self) {
        if let Err(error) = self.try_fill() {
            self.release();
            tracing::warn!(path = %self.0.display(), %error, "failed to reserve disk space for the end of the store; free space on its disk");
        }
    }

    fn try_fill(&self) -> io::Result<()> {
        if self.0.symlink_metadata().is_ok_and(|found| found.is_file() && found.len() == SIZE) {
            return Ok(());
        }
        self.release();
        let file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&self.0)?;
        fallocate(&file, FallocateFlags::empty(), 0, SIZE)?;
        Ok(())
    }

    /// Frees the reserve. Returns false if there was none.
    pub(super) fn release(&self) -> bool {
        std::fs::remove_file(&self.0).is_ok()
    }
}

/// Whether an error says that the disk, or the disk quota of the user, is full.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn the_reserve_takes_its_space_on_the_disk_until_it_is_released() {
        let folder = tempfile::tempdir().expect("a folder");
        let reserve = Reserve::beside(&folder.path().join("store.redb"));
        reserve.fill();
        reserve.fill();
        let found = std::fs::metadata(folder.path().join("store.reserve")).expect("a file");
        assert_eq!((found.len(), found.mode() & 0o777), (SIZE, 0o600));
        assert!(found.blocks() * 512 >= SIZE, "{} blocks are allocated", found.blocks());
        assert!(reserve.release() && !reserve.release());
    }
}
