//! The file of the audit log, which is rotated by size: `audit.log`, then `audit.log.1` (newest) to
//! `audit.log.<n>`.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

/// Why the audit log cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error(
    "failed to open the audit log {path}: {source}; check the permissions of its directory and the free disk space, or write it elsewhere"
)]
pub struct AuditFileError {
    path: PathBuf,
    source: io::Error,
}

impl AuditFileError {
    pub(super) fn new(path: PathBuf, source: io::Error) -> Self {
        Self { path, source }
    }
}

/// Where the audit log is, and how much of it is kept.
#[derive(Clone, Debug)]
pub struct AuditFile {
    /// The file that is written. It and its older files have mode 0600.
    pub path: PathBuf,
    /// Size in bytes at which the file is rotated.
    pub max_bytes: u64,
    /// Older files to keep.
    pub max_backups: usize,
}

impl AuditFile {
    pub(super) fn open(&self) -> Result<RotatedFile, AuditFileError> {
        let mut file = RotatedFile { config: self.clone(), open: None };
        match file.reopen() {
            // The server starts on a full disk, too: the next append opens the file again.
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {}
            opened => opened.map_err(|source| AuditFileError::new(self.path.clone(), source))?,
        }
        Ok(file)
    }

    /// The path of the `number`-th older file.
    fn backup(&self, number: usize) -> PathBuf {
        let mut name = OsString::from(&self.path);
        name.push(format!(".{number}"));
        name.into()
    }
}

/// The open file.
pub(super) struct RotatedFile {
    config: AuditFile,
    /// The file and its size; `None` after an error: the next append opens it again.
    open: Option<(File, u64)>,
}

impl RotatedFile {
    /// Appends whole lines, in one file.
    pub(super) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.open.is_none() {
            self.reopen()?;
        }
        let length = lines.len() as u64;
        if self.open.as_ref().is_some_and(|(_, size)| *size > 0 && size + length > self.config.max_bytes) {
            self.rotate()?;
        }
        let Some((file, size)) = &mut self.open else { return Ok(()) };
        let written = file.write_all(lines);
        *size += length;
        if written.is_err() {
            self.open = None;
        }
        written
    }

    fn reopen(&mut self) -> io::Result<()> {
        let path = &self.config.path;
        if fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is a link or not a file"));
        }
        let mut file = File::options().read(true).append(true).create(true).mode(0o600).open(path)?;
        let found = file.metadata()?;
        if found.permissions().mode() & 0o077 != 0 {
            file.set_permissions(fs::Permissions::from_mode(0o600))?;
        }
        let mut size = found.len();
        if ends_within_a_line(&file, size)? {
            file.write_all(b"\n")?;
            size += 1;
        }
        self.open = Some((file, size));
        Ok(())
    }

    /// Renames the file and its older ones; the oldest is deleted.
    fn rotate(&mut self) -> io::Result<()> {
        self.open = None;
        let shift = |from: &Path, to: &Path| match fs::rename(from, to) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        for number in (1..self.config.max_backups).rev() {
            shift(&self.config.backup(number), &self.config.backup(number + 1))?;
        }
        match self.config.max_backups {
            0 => fs::remove_file(&self.config.path)?,
            _ => shift(&self.config.path, &self.config.backup(1))?,
        }
        self.reopen()
    }
}

/// Whether the last line is not complete, because the process or the disk ended within it.
fn ends_within_a_line(file: &File, size: u64) -> io::Result<bool> {
    if size == 0 {
        return Ok(false);
    }
    let mut last = [0];
    file.read_exact_at(&mut last, size - 1)?;
    Ok(last != *b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_file(folder: &Path, max_bytes: u64, max_backups: usize) -> AuditFile {
        AuditFile { path: folder.join("audit.log"), max_bytes, max_backups }
    }

    fn text(path: impl AsRef<Path>) -> String {
        fs::read_to_string(path).unwrap_or_default()
    }

    #[test]
    fn a_full_file_is_rotated_and_the_oldest_is_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let file = mk_file(folder.path(), 10, 2);
        let mut log = file.open().unwrap();
        for line in ["one 1\n", "two 2\n", "three\n", "four 4\n", "a line of more than ten bytes\n"] {
            log.append(line.as_bytes()).unwrap();
        }
        assert_eq!(text(&file.path), "a line of more than ten bytes\n");
        assert_eq!([text(file.backup(1)), text(file.backup(2))], ["four 4\n", "three\n"]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
        for path in [file.path.clone(), file.backup(1), file.backup(2)] {
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn without_backups_a_full_file_begins_anew() {
        let folder = tempfile::tempdir().unwrap();
        let file = mk_file(folder.path(), 8, 0);
        let mut log = file.open().unwrap();
        log.append(b"first\n").unwrap();
        log.append(b"second\n").unwrap();
        assert_eq!(text(&file.path), "second\n");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_restart_continues_the_file_on_a_new_line_and_closes_it_to_others() {
        let folder = tempfile::tempdir().unwrap();
        let file = mk_file(folder.path(), 100, 1);
        fs::write(&file.path, "{\"torn").unwrap();
        fs::set_permissions(&file.path, fs::Permissions::from_mode(0o644)).unwrap();
        file.open().unwrap().append(b"{}\n").unwrap();
        assert_eq!(text(&file.path), "{\"torn\n{}\n");
        assert_eq!(fs::metadata(&file.path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_link_is_not_followed_and_the_error_names_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = mk_file(folder.path(), 100, 1);
        std::os::unix::fs::symlink(folder.path().join("other"), &file.path).unwrap();
        let error = file.open().err().unwrap().to_string();
        assert!(error.contains("audit.log") && error.contains("link"), "{error}");
        assert!(!folder.path().join("other").exists());
    }

    #[test]
    fn the_file_is_opened_again_after_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("below");
        fs::create_dir(&below).unwrap();
        let file = mk_file(&below, 4, 1);
        let mut log = file.open().unwrap();
        log.append(b"one\n").unwrap();
        fs::remove_dir_all(&below).unwrap();
        assert!(log.append(b"two\n").is_err());
        fs::create_dir(&below).unwrap();
        log.append(b"three\n").unwrap();
        assert_eq!(text(&file.path), "three\n");
    }
}
