//! The limit of the disk space of a container's files.
//!
//! Quotas need support of the file system, and a file system in memory would count as memory of the
//! instance, so the shim counts. It ends the container when its files exceed the limit. The next count is
//! due when the remaining space could be used up at [`FASTEST_DISK`], so a container exceeds its limit by
//! at most what the disk writes in [`MIN_INTERVAL`]; an idle container is counted only if the free space
//! of its file system has changed.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, fstatvfs, open, openat2, statat};
use rustix::io::Errno;

/// Bytes per second that no disk exceeds.
const FASTEST_DISK: u64 = 2 << 30;
const MIN_INTERVAL: Duration = Duration::from_millis(500);
const MAX_INTERVAL: Duration = Duration::from_secs(10);
/// Files and directories of a container at most: each takes memory of the kernel, and time to count.
const MAX_ENTRIES: u64 = 1_000_000;

/// Waits until the files below a directory exceed the limit; returns why, as the cause of an exit.
pub(crate) async fn exceeded(dir: PathBuf, limit: u64) -> String {
    let (mut used, mut free) = (0, None);
    loop {
        let left = Duration::from_millis(limit.saturating_sub(used) / (FASTEST_DISK / 1000));
        tokio::time::sleep(left.clamp(MIN_INTERVAL, MAX_INTERVAL)).await;
        let Ok(root) = open(&dir, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) else { continue };
        let now = fstatvfs(&root).map(|stat| (stat.f_bfree, stat.f_ffree)).ok();
        if now.is_some() && now == free {
            continue;
        }
        free = now;
        match usage(&root) {
            Ok(Usage { bytes, entries }) if bytes > limit || entries > MAX_ENTRIES => {
                let (used, limit) = (bytes >> 20, limit >> 20);
                return format!(
                    "its files use {used} MiB of disk space in {entries} files; at most {limit} MiB in {MAX_ENTRIES} files are allowed"
                );
            }
            Ok(usage) => used = usage.bytes,
            Err(_) => return "its folders are nested too deeply to be counted".to_owned(),
        }
    }
}

/// Disk space and number of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Usage {
    bytes: u64,
    entries: u64,
}

/// Counts everything below a directory. The program changes it meanwhile: no link is followed, and what
/// disappears is not counted.
fn usage(root: &OwnedFd) -> io::Result<Usage> {
    let mut usage = Usage::default();
    let mut folders = vec![PathBuf::from(".")];
    while let Some(folder) = folders.pop() {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = match openat2(root.as_fd(), &folder, flags, Mode::empty(), resolve) {
            Ok(opened) => opened,
            Err(Errno::NAMETOOLONG) => return Err(Errno::NAMETOOLONG.into()),
            Err(_) => continue,
        };
        for entry in Dir::read_from(&opened)? {
            let Ok(entry) = entry else { break };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let Ok(stat) = statat(&opened, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let bytes = u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
            usage.entries += 1;
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                usage.bytes += bytes;
                folders.push(folder.join(OsStr::from_bytes(name.to_bytes())));
            } else {
                // All links of a file are below the directory.
                #[allow(clippy::useless_conversion, reason = "the type differs between architectures")]
                let links = u64::from(stat.st_nlink);
                usage.bytes += bytes / links.max(1);
            }
        }
        if usage.entries > MAX_ENTRIES {
            return Ok(usage);
        }
    }
    Ok(usage)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_are_counted_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::write(dir.path().join("a/b/file"), vec![1; 1 << 20]).unwrap();
        std::os::unix::fs::symlink("/", dir.path().join("a/root")).unwrap();
        std::fs::hard_link(dir.path().join("a/b/file"), dir.path().join("again")).unwrap();
        let root = open(dir.path(), OFlags::DIRECTORY, Mode::empty()).unwrap();
        let usage = usage(&root).unwrap();
        assert_eq!(usage.entries, 5);
        assert!((1 << 20..2 << 20).contains(&usage.bytes), "{usage:?}");
    }

    #[tokio::test]
    async fn a_directory_over_its_limit_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), vec![1; 2 << 20]).unwrap();
        let why = exceeded(dir.path().to_owned(), 1 << 20).await;
        assert!(why.starts_with("its files use 2 MiB of disk space in 1 files"), "{why}");
    }
}
