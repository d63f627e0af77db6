//! The root file system of a container, in a mount namespace of its own.
//!
//! A program of the host gets the system directories of the host, read-only, its working directory, a few
//! devices, and a `/proc` with only its own processes. Nothing else of the host exists for it. The kernel
//! removes all mounts with the last process of the container.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, StatVfsMountFlags, fstat, openat2, statvfs};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind_recursive, mount_change,
    mount_remount, unmount,
};
use rustix::process::pivot_root;
use serde::{Deserialize, Serialize};

use super::namespaces;

/// Where a root file system comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Root {
    /// Directories and files of the host, without links in their paths.
    Host {
        read: Vec<PathBuf>,
        write: Vec<PathBuf>,
        /// Symbolic links of the host: path and target.
        links: Vec<(PathBuf, PathBuf)>,
    },
    /// The layers of an image, with a writable layer on top.
    Image {
        /// The directory of all layers.
        store: PathBuf,
        /// Names of the layers, lowest first.
        layers: Vec<String>,
        /// The directory of the writable layer.
        writable: PathBuf,
        /// Files of the host, and their paths in the container.
        files: Vec<(PathBuf, PathBuf)>,
        /// The working directory, which is created if the image lacks it.
        work: PathBuf,
    },
}

/// Enters a mount namespace with this root. `at` is an empty directory of the host.
pub(crate) fn enter(root: &Root, at: &Path) -> io::Result<()> {
    let step = |what: &str, done: Result<(), Errno>| {
        done.map_err(|error| io::Error::other(format!("failed to {what} in a mount namespace: {error}")))
    };
    namespaces::enter_mount_namespace()?;
    // Mounts of this namespace do not appear on the host.
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    step("separate mounts", mount_change("/", private))?;
    match root {
        Root::Host { read, write, links } => {
            let flags = MountFlags::NOSUID | MountFlags::NODEV;
            step("mount a root", mount("tmpfs", at, "tmpfs", flags, c"mode=755,size=1m"))?;
            mount_proc(at)?;
            bind_host(at, read, write, links)?;
            let read_only = MountFlags::BIND | MountFlags::RDONLY | flags;
            step("protect the root", mount_remount(at, read_only, ""))?;
            change_root(at)?;
        }
        Root::Image { store, layers, writable, files, work } => {
            super::image_root::mount_layers(store, layers, writable, at)?;
            let open = super::image_root::open_host(files)?;
            change_root(at)?;
            super::image_root::furnish(&open, work)?;
        }
    }
    step("remove the old root", unmount(".", UnmountFlags::DETACH))?;
    std::env::set_current_dir("/")
}

/// Makes a mounted directory the root. The old root is stacked on it, as the current directory.
fn change_root(at: &Path) -> io::Result<()> {
    std::env::set_current_dir(at)?;
    pivot_root(".", ".")
        .map_err(|error| io::Error::other(format!("failed to change the root of a container: {error}")))
}

/// Mounts a `/proc` with the processes of the container.
pub(super) fn mount_proc(root: &Path) -> io::Result<()> {
    let proc = root.join("proc");
    fs::create_dir_all(&proc)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", &proc, "proc", flags, None)
        .map_err(|error| io::Error::other(format!("failed to mount /proc for a container: {error}")))
}

fn bind_host(
    root: &Path,
    read: &[PathBuf],
    write: &[PathBuf],
    links: &[(PathBuf, PathBuf)],
) -> io::Result<()> {
    let mut paths: Vec<(&PathBuf, bool)> =
        read.iter().map(|path| (path, true)).chain(write.iter().map(|path| (path, false))).collect();
    // Directories before what is in them.
    paths.sort();
    let mut parent: Option<&PathBuf> = None;
    for (path, read_only) in paths {
        let included = read_only && parent.is_some_and(|parent| path.starts_with(parent));
        if included || path.starts_with("/proc") {
            continue;
        }
        bind(root, path, read_only)?;
        if read_only {
            parent = Some(path);
        }
    }
    for (link, target) in links {
        let Ok(link) = link.strip_prefix("/") else { continue };
        let link = root.join(link);
        if let Some(folder) = link.parent() {
            fs::create_dir_all(folder)?;
        }
        match std::os::unix::fs::symlink(target, &link) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Mounts a path of the host at the same path below the root. A path that has disappeared, or become a link,
/// is left out.
fn bind(root: &Path, path: &Path, read_only: bool) -> io::Result<()> {
    let Some(source) = open(path)? else { return Ok(()) };
    let Ok(relative) = path.strip_prefix("/") else { return Ok(()) };
    bind_at(&source, path, &root.join(relative), read_only)
}

/// Mounts an open path of the host.
pub(super) fn bind_at(source: &OwnedFd, path: &Path, target: &Path, read_only: bool) -> io::Result<()> {
    let failed = |error: Errno| {
        io::Error::other(format!("failed to mount {} into a container: {error}", path.display()))
    };
    let kind = FileType::from_raw_mode(fstat(source)?.st_mode);
    if kind == FileType::Directory {
        fs::create_dir_all(target)?;
    } else {
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder)?;
        }
        // Files of `/proc` exist, and may not be opened.
        if fs::symlink_metadata(target).is_err() {
            fs::File::options().create_new(true).write(true).open(target)?;
        }
    }
    mount_bind_recursive(format!("/proc/self/fd/{}", source.as_raw_fd()), target).map_err(failed)?;
    let mut flags = MountFlags::BIND | MountFlags::NOSUID | kept_flags(target)?;
    if read_only {
        flags |= MountFlags::RDONLY;
    }
    if kind != FileType::CharacterDevice {
        flags |= MountFlags::NODEV;
    }
    mount_remount(target, flags, "").map_err(failed)
}

/// The flags of a mount that a user namespace may not remove.
fn kept_flags(mounted: &Path) -> io::Result<MountFlags> {
    let given = statvfs(mounted)?.f_flag;
    let pairs = [
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ];
    Ok(pairs.into_iter().filter(|(flag, _)| given.contains(*flag)).map(|(_, flag)| flag).collect())
}

/// Opens a path without following links; `None` if it does not exist.
pub(super) fn open(path: &Path) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    match openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
        Ok(file) => Ok(Some(file)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS | Errno::LOOP) => Ok(None),
        Err(error) => {
            Err(io::Error::other(format!("failed to open {} for a container: {error}", path.display())))
        }
    }
}
