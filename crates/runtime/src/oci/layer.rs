//! Unpacks a layer into a directory of its own, in the form of a lower directory of an overlay.
//!
//! A layer is hostile input. Each entry is created below an open directory that the kernel has resolved
//! as if the layer's directory were the root, so links and `..` lead nowhere else. Devices are left out.
//! The size of all files and their number are limited, whatever the compressed layer promises.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use flate2::read::MultiGzDecoder;
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, XattrFlags, chownat, fchmod, fsetxattr, linkat,
    mkdirat, mknodat, open, openat, openat2, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};
use tar::{Archive, Entry, EntryType};

use super::ImageError;
use super::reference::Digest;

/// Marks a file of a lower layer that is deleted.
const WHITEOUT: &str = ".wh.";
/// Marks a directory that hides the one of the lower layers.
const OPAQUE: &str = ".wh..wh..opq";
/// Files of a layer at most.
const MAX_ENTRIES: u64 = 1_000_000;

/// Unpacks a compressed or plain layer into an empty directory, and checks the digest of its uncompressed
/// content. `space` is the number of bytes that its files may have; returns what is left of it.
pub(super) fn unpack(layer: File, into: &Path, content: &Digest, space: u64) -> Result<u64, ImageError> {
    let failed = |error: io::Error| ImageError::new(format!("a layer cannot be unpacked: {error}"));
    let root = open(into, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| failed(error.into()))?;
    let stream = decompressed(layer).map_err(failed)?;
    let mut archive = Archive::new(Hashing { stream, hash: Sha256::new() });
    let mut unpacking = Unpacking { root, space, entries: 0, is_root: rustix::process::geteuid().is_root() };
    for entry in archive.entries().map_err(failed)? {
        let mut entry = entry.map_err(failed)?;
        let path = entry.path().map_err(failed)?.into_owned();
        unpacking.entry(&mut entry, &path).map_err(|error| {
            ImageError::new(format!("its file {} cannot be unpacked: {error}", path.display()))
        })?;
    }
    let mut rest = archive.into_inner();
    // The archive may end before its stream.
    io::copy(&mut rest, &mut io::sink()).map_err(failed)?;
    let found = Digest::from_hash(&rest.hash.finalize());
    if found != *content {
        return Err(ImageError::new(format!(
            "a layer has the content {found}, and its configuration names {content}"
        )));
    }
    Ok(unpacking.space)
}

/// The content of a layer, which is compressed with gzip or not at all.
fn decompressed(mut layer: File) -> io::Result<Box<dyn Read>> {
    use std::io::prelude::*;
    let mut magic = [0; 2];
    let length = layer.read(&mut magic)?;
    layer.rewind()?;
    Ok(if length == 2 && magic == [0x1f, 0x8b] {
        Box::new(MultiGzDecoder::new(layer))
    } else {
        Box::new(layer)
    })
}

/// Computes the digest of what is read.
struct Hashing<R> {
    stream: R,
    hash: Sha256,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.stream.read(buffer)?;
        self.hash.update(&buffer[..length]);
        Ok(length)
    }
}

struct Unpacking {
    root: OwnedFd,
    /// Bytes that files may still have.
    space: u64,
    entries: u64,
    is_root: bool,
}

impl Unpacking {
    fn entry(&mut self, entry: &mut Entry<'_, impl Read>, path: &Path) -> io::Result<()> {
        self.entries += 1;
        if self.entries > MAX_ENTRIES {
            return Err(io::Error::other(format!("the layer has more than {MAX_ENTRIES} files")));
        }
        let Some(path) = inside(path)? else { return Ok(()) }; // the root itself
        let Some(name) = path.file_name() else { return Ok(()) };
        let folder = self.folder(path.parent().unwrap_or(Path::new("")))?;
        if let Some(hidden) = name.as_bytes().strip_prefix(WHITEOUT.as_bytes()) {
            return self.whiteout(&folder, name, OsStr::from_bytes(hidden));
        }
        let kind = entry.header().entry_type();
        let mode = Mode::from_raw_mode(entry.header().mode()? & 0o7777);
        match kind {
            EntryType::Directory => match mkdirat(&folder, name, Mode::RWXU) {
                Err(Errno::EXIST) if is_directory(&folder, name) => {}
                Err(Errno::EXIST) => {
                    unlinkat(&folder, name, AtFlags::empty())?;
                    mkdirat(&folder, name, Mode::RWXU)?;
                }
                done => done?,
            },
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                remove(&folder, name)?;
                self.file(entry, &folder, name)?;
            }
            EntryType::Symlink => {
                remove(&folder, name)?;
                let target = entry.link_name()?.ok_or(io::ErrorKind::InvalidData)?;
                symlinkat(target.as_os_str(), &folder, name)?;
            }
            EntryType::Link => {
                let target = entry.link_name()?.ok_or(io::ErrorKind::InvalidData)?.into_owned();
                remove(&folder, name)?;
                return self.hard_link(&target, &folder, name);
            }
            EntryType::Fifo => {
                remove(&folder, name)?;
                mknodat(&folder, name, FileType::Fifo, Mode::RWXU, 0)?;
            }
            _ => return Ok(()), // devices
        }
        if self.is_root {
            let owner = |id: u64| u32::try_from(id).map_err(|_| io::Error::from(io::ErrorKind::InvalidData));
            // Archives without owners belong to root.
            let (user, group) = (entry.header().uid().unwrap_or(0), entry.header().gid().unwrap_or(0));
            let (user, group) = (owner(user)?, owner(group)?);
            let (user, group) = (Some(Uid::from_raw(user)), Some(Gid::from_raw(group)));
            chownat(&folder, name, user, group, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        if matches!(kind, EntryType::Symlink | EntryType::Fifo) {
            return Ok(());
        }
        // After the owner, whose change removes set-user-ID bits. Without root, Polis must be able to delete
        // what it has unpacked.
        let readable = if self.is_root { Mode::empty() } else { Mode::RUSR | Mode::WUSR };
        let enterable =
            if !self.is_root && kind == EntryType::Directory { Mode::XUSR } else { Mode::empty() };
        let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
        fchmod(openat(&folder, name, flags, Mode::empty())?, mode | readable | enterable)?;
        Ok(())
    }

    fn file(&mut self, entry: &mut Entry<'_, impl Read>, folder: &OwnedFd, name: &OsStr) -> io::Result<()> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
        let mut file = File::from(openat(folder, name, flags, Mode::RUSR | Mode::WUSR)?);
        let copied = io::copy(&mut entry.take(self.space + 1), &mut file)?;
        file.flush()?;
        self.space = self.space.checked_sub(copied).ok_or_else(|| {
            io::Error::other("the image is larger than this host allows when it is unpacked")
        })?;
        Ok(())
    }

    /// Links to a file of the same layer. A file of a lower layer is not here; such layers are not made by
    /// any known tool.
    fn hard_link(&self, target: &Path, folder: &OwnedFd, name: &OsStr) -> io::Result<()> {
        let target = inside(target)?.ok_or(io::ErrorKind::InvalidData)?;
        let file = target.file_name().ok_or(io::ErrorKind::InvalidData)?;
        let from = self.folder(target.parent().unwrap_or(Path::new("")))?;
        Ok(linkat(&from, file, folder, name, AtFlags::empty())?)
    }

    /// Hides what lower layers have.
    fn whiteout(&self, folder: &OwnedFd, name: &OsStr, hidden: &OsStr) -> io::Result<()> {
        if name == OPAQUE {
            let attribute = if self.is_root { "trusted.overlay.opaque" } else { "user.overlay.opaque" };
            return Ok(fsetxattr(folder, attribute, b"y", XattrFlags::empty())?);
        }
        if hidden.is_empty() || hidden == "." || hidden == ".." {
            return Err(io::ErrorKind::InvalidData.into());
        }
        remove(folder, hidden)?;
        Ok(mknodat(folder, hidden, FileType::CharacterDevice, Mode::empty(), 0)?)
    }

    /// Opens a directory of the layer. Missing ones are created.
    fn folder(&self, path: &Path) -> io::Result<OwnedFd> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = |path: &Path| {
            let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
            openat2(&self.root, path, flags, Mode::empty(), resolve)
        };
        match open(path) {
            Err(Errno::NOENT) => {
                let parent = self.folder(path.parent().unwrap_or(Path::new("")))?;
                let name = path.file_name().ok_or(io::ErrorKind::InvalidData)?;
                mkdirat(&parent, name, Mode::from_raw_mode(0o755))?;
                Ok(open(path)?)
            }
            opened => Ok(opened?),
        }
    }
}

/// A path relative to the root of the layer; `None` for the root. A path that leaves the root is refused.
fn inside(path: &Path) -> io::Result<Option<PathBuf>> {
    let mut relative = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => relative.push(name),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err(io::Error::other("the path leaves the root of the layer"));
            }
        }
    }
    Ok((!relative.as_os_str().is_empty()).then_some(relative))
}

fn is_directory(folder: &OwnedFd, name: &OsStr) -> bool {
    statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// Removes what an earlier entry of the layer has created under this name. A directory must be empty.
fn remove(folder: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match unlinkat(folder, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => Ok(unlinkat(folder, name, AtFlags::REMOVEDIR)?),
        Err(Errno::NOENT) => Ok(()),
        done => Ok(done?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};

    /// An entry: path, type, link target or content.
    type File<'a> = (&'a str, EntryType, &'a str);

    fn tar(files: &[File<'_>]) -> Vec<u8> {
        let mut archive = tar::Builder::new(Vec::new());
        for (path, kind, content) in files {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(if *kind == EntryType::Directory { 0o755 } else { 0o4755 });
            header.set_size(0);
            // Not through `set_path`, which refuses what these tests are about.
            header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
            if matches!(kind, EntryType::Symlink | EntryType::Link) {
                header.as_gnu_mut().unwrap().linkname[..content.len()].copy_from_slice(content.as_bytes());
                header.set_cksum();
                archive.append(&header, io::empty()).unwrap();
            } else {
                header.set_size(content.len() as u64);
                header.set_cksum();
                archive.append(&header, content.as_bytes()).unwrap();
            }
        }
        archive.into_inner().unwrap()
    }

    fn unpacked(files: &[File<'_>], space: u64) -> (tempfile::TempDir, Result<u64, String>) {
        let dir = tempfile::tempdir().unwrap();
        let bytes = tar(files);
        std::fs::write(dir.path().join("layer.tar"), &bytes).unwrap();
        let root = dir.path().join("a/b/root");
        std::fs::create_dir_all(&root).unwrap();
        let file = std::fs::File::open(dir.path().join("layer.tar")).unwrap();
        let done = unpack(file, &root, &Digest::of(&bytes), space).map_err(|error| error.to_string());
        (dir, done)
    }

    #[test]
    fn files_links_and_modes_are_unpacked() {
        let files = [
            ("bin/", EntryType::Directory, ""),
            ("bin/app", EntryType::Regular, "program"),
            ("bin/link", EntryType::Symlink, "/bin/app"),
            ("bin/hard", EntryType::Link, "bin/app"),
            ("pipe", EntryType::Fifo, ""),
            ("deep/er/file", EntryType::Regular, "x"),
            ("dev/sda", EntryType::Block, ""),
        ];
        let (dir, done) = unpacked(&files, 1 << 20);
        assert_eq!(done, Ok((1 << 20) - 8));
        let root = dir.path().join("a/b/root");
        let app = std::fs::metadata(root.join("bin/app")).unwrap();
        assert_eq!((app.permissions().mode() & 0o7777, app.nlink()), (0o4755, 2));
        assert_eq!(std::fs::read_link(root.join("bin/link")).unwrap(), Path::new("/bin/app"));
        assert!(std::fs::metadata(root.join("pipe")).unwrap().file_type().is_fifo());
        assert!(!root.join("dev/sda").exists(), "devices are left out");
    }

    #[test]
    fn no_entry_leaves_the_root() {
        let table: &[&[File<'_>]] = &[
            &[("../escape", EntryType::Regular, "x")],
            &[("x/../../escape", EntryType::Regular, "x")],
            &[("up", EntryType::Symlink, "../.."), ("up/escape", EntryType::Regular, "x")],
            &[("abs", EntryType::Symlink, "/"), ("abs/escape", EntryType::Regular, "x")],
            &[("hard", EntryType::Link, "../../../layer.tar")],
            &[("proc", EntryType::Symlink, "/proc/self/root"), ("proc/escape", EntryType::Regular, "x")],
        ];
        for files in table {
            let (dir, _) = unpacked(files, 1 << 20);
            for folder in ["", "a", "a/b"] {
                assert!(!dir.path().join(folder).join("escape").exists(), "{files:?}");
            }
            assert!(!Path::new("/escape").exists(), "{files:?}");
            assert!(!dir.path().join("a/b/root/hard").exists(), "{files:?}");
        }
    }

    #[test]
    fn a_layer_bomb_and_a_lying_digest_are_refused() {
        let (_dir, done) = unpacked(&[("big", EntryType::Regular, "more than ten bytes")], 10);
        assert!(done.unwrap_err().contains("larger than this host allows"));
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("layer"), tar(&[])).unwrap();
        std::fs::create_dir(dir.path().join("root")).unwrap();
        let file = std::fs::File::open(dir.path().join("layer")).unwrap();
        let lie = Digest::of(b"something else");
        assert!(
            unpack(file, &dir.path().join("root"), &lie, 100)
                .unwrap_err()
                .to_string()
                .contains("has the content")
        );
    }

    #[test]
    fn whiteouts_become_those_of_an_overlay() {
        let (dir, done) = unpacked(&[("etc/.wh.passwd", EntryType::Regular, "")], 100);
        done.unwrap();
        let hidden = std::fs::symlink_metadata(dir.path().join("a/b/root/etc/passwd")).unwrap();
        assert!(hidden.file_type().is_char_device() && hidden.rdev() == 0);
    }
}
