//! Configuration of the process provider.

use std::path::PathBuf;
use std::time::Duration;

use super::{AddressMode, RestartBackoff};
use crate::shim::LogRetention;

/// Configuration of the process provider.
#[derive(Clone, Debug)]
pub struct ProcessSettings {
    /// State directory with the instance directories; each cell has its own.
    pub dir: PathBuf,
    /// The binary to start as a shim, usually the running one. It must call [`crate::run_internal_command`]
    /// first in `main`.
    pub binary: PathBuf,
    /// Directory of images and their layers, which all cells of this host share.
    pub images: PathBuf,
    /// How image registries are reached.
    #[cfg(target_os = "linux")]
    pub registries: crate::RegistrySettings,
    /// Bytes that an image may have when it is unpacked.
    pub max_image_bytes: u64,
    /// How instances get their addresses.
    pub addresses: AddressMode,
    /// Restart back-off of failed containers.
    pub restart_backoff: RestartBackoff,
    /// Time between TERM and KILL, for instances that set no `terminationGracePeriodSeconds`.
    pub grace_period: Duration,
    /// The longest `terminationGracePeriodSeconds` that is honoured.
    pub max_grace_period: Duration,
    /// How much output of each container is kept.
    pub log_retention: LogRetention,
    /// Limit of open files of each process.
    pub max_open_files: u64,
    /// Limit of the size of each file that a process writes, in bytes.
    pub max_file_bytes: u64,
    /// Limit of the disk space of all files of a container, in bytes. A container that exceeds it is ended,
    /// and starts again with an empty working directory.
    pub max_disk_bytes: u64,
    /// Limit of the processes and threads of each instance.
    pub max_processes: u64,
    /// Whether `process:` images may run. If so, every user who may create workloads can run any program of
    /// the host that is in a system directory, in its sandbox.
    pub host_programs: bool,
    /// Whether programs run in namespaces and a sandbox, where the kernel supports it.
    pub sandbox: bool,
    /// Paths that sandboxed programs may read and execute, in addition to the system directories. A host
    /// program that an image names by its full path must be in one of these or in a system directory.
    pub readable: Vec<PathBuf>,
    /// Paths with secrets, such as the data directory of Polis: no program may read them or anything below
    /// them, even if they are in a readable directory. The state directory is always private.
    pub private: Vec<PathBuf>,
    /// Search path for host programs, in the form of `PATH`.
    pub path: String,
}

impl ProcessSettings {
    /// The default settings for a city.
    pub fn new(dir: impl Into<PathBuf>, binary: impl Into<PathBuf>, city: &str) -> Self {
        let dir = dir.into();
        ProcessSettings {
            images: dir.with_file_name("images"),
            #[cfg(target_os = "linux")]
            registries: crate::RegistrySettings::default(),
            max_image_bytes: 20 << 30,
            dir,
            binary: binary.into(),
            addresses: AddressMode::for_city(city),
            restart_backoff: RestartBackoff::default(),
            grace_period: Duration::from_secs(10),
            max_grace_period: Duration::from_secs(3600),
            log_retention: LogRetention::default(),
            max_open_files: 65_536,
            max_file_bytes: 10 << 30,
            max_disk_bytes: 10 << 30,
            max_processes: 1024,
            host_programs: false,
            sandbox: true,
            readable: Vec::new(),
            private: Vec::new(),
            path: std::env::var("PATH").unwrap_or_else(|_| "/usr/local/bin:/usr/bin:/bin".to_owned()),
        }
    }
}
