//! The root file system of a container from an image: an overlay of read-only layers and a writable one, with
//! `/proc`, `/sys`, devices, and files such as `/etc/hosts`.
//!
//! An image is hostile input: its `/dev` may be a link to a directory of the host. So nothing is created or
//! mounted in the image before it is the root, where links cannot lead out of it. What comes from the host is
//! opened before.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, mount, mount_remount};
use rustix::process::geteuid;

use super::root::{bind_at, mount_proc, open};

/// Devices that programs expect.
const DEVICES: [&str; 6] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];
/// Parts of `/proc` that change the host.
const READ_ONLY: [&str; 5] = ["/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs"];
/// Parts of `/proc` and `/sys` that tell about the host.
const HIDDEN: [&str; 7] = [
    "/proc/kcore",
    "/proc/keys",
    "/proc/timer_list",
    "/proc/sched_debug",
    "/proc/acpi",
    "/proc/scsi",
    "/sys/firmware",
];

/// Mounts the layers of an image.
pub(super) fn mount_layers(store: &Path, layers: &[String], writable: &Path, at: &Path) -> io::Result<()> {
    // Relative names: the kernel limits the length of the options to a page.
    std::env::set_current_dir(store)?;
    let lower: Vec<&str> = layers.iter().rev().map(String::as_str).collect();
    let escaped =
        |name: &str| writable.join(name).display().to_string().replace('\\', "\\\\").replace(',', "\\,");
    // Attributes of files that only root may set are not available in a user namespace.
    let attributes = if geteuid().is_root() && is_initial_user_namespace() { "" } else { ",userxattr" };
    let options = format!(
        "lowerdir={},upperdir={},workdir={}{attributes}",
        lower.join(":"),
        escaped("upper"),
        escaped("work")
    );
    let options = std::ffi::CString::new(options)?;
    mount("overlay", at, "overlay", MountFlags::NODEV | MountFlags::NOSUID, options.as_c_str())
        .map_err(|error| io::Error::other(format!("failed to mount the layers of an image: {error}")))
}

fn is_initial_user_namespace() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// What a container gets from the host.
pub(super) struct HostFiles(Vec<(OwnedFd, PathBuf, PathBuf)>);

/// Opens the devices, and these files for their paths in the container.
pub(super) fn open_host(files: &[(PathBuf, PathBuf)]) -> io::Result<HostFiles> {
    let devices = DEVICES.iter().map(|path| (PathBuf::from(path), PathBuf::from(path)));
    let mut opened = Vec::new();
    for (source, target) in devices.chain(files.iter().cloned()) {
        if let Some(file) = open(&source)? {
            opened.push((file, source, target));
        }
    }
    Ok(HostFiles(opened))
}

/// Completes the root of a container, in which this process is already.
pub(super) fn furnish(host: &HostFiles, work: &Path) -> io::Result<()> {
    for path in ["/proc", "/dev", "/sys"] {
        if fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_symlink()) {
            return Err(io::Error::other(format!("{path} of the image is a link: it must be a directory")));
        }
    }
    mount_proc(Path::new("/"))?;
    let hardened = MountFlags::NOSUID | MountFlags::NOEXEC;
    let failed =
        |what: &str, error| io::Error::other(format!("failed to mount {what} in a container: {error}"));
    fs::create_dir_all("/dev")?;
    mount("tmpfs", "/dev", "tmpfs", hardened, c"mode=755,size=64k").map_err(|error| failed("/dev", error))?;
    fs::create_dir("/dev/shm")?;
    let shared = hardened | MountFlags::NODEV;
    mount("shm", "/dev/shm", "tmpfs", shared, c"mode=1777,size=64m")
        .map_err(|error| failed("/dev/shm", error))?;
    for (name, target) in [("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")] {
        std::os::unix::fs::symlink(Path::new("/proc/self").join(target), Path::new("/dev").join(name))?;
    }
    // Not required: containers run without it where the kernel refuses.
    if fs::create_dir_all("/sys").is_ok() {
        _ = mount("sysfs", "/sys", "sysfs", shared | MountFlags::RDONLY, None);
    }
    for (file, source, target) in &host.0 {
        if fs::symlink_metadata(target).is_ok_and(|meta| meta.file_type().is_symlink()) {
            fs::remove_file(target)?;
        }
        bind_at(file, source, target, !target.starts_with("/dev"))?;
    }
    for path in READ_ONLY.map(Path::new) {
        if let Some(file) = open(path)? {
            bind_at(&file, path, path, true)?;
        }
    }
    for path in HIDDEN.map(Path::new) {
        if path.is_dir() {
            mount("tmpfs", path, "tmpfs", shared | MountFlags::RDONLY, c"size=0")
                .map_err(|error| failed("a cover", error))?;
        } else if path.exists()
            && let Some(null) = open(Path::new("/dev/null"))?
        {
            bind_at(&null, path, path, true)?;
        }
    }
    mount_remount("/dev", MountFlags::BIND | MountFlags::RDONLY | hardened, "")
        .map_err(|error| failed("/dev", error))?;
    if !work.exists() {
        fs::create_dir_all(work)?;
    }
    Ok(())
}
