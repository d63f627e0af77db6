//! The request that the runtime sends to a shim over standard input. It may hold secrets, so it is never
//! written to disk.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::state::Termination;
use crate::check::NetworkCheck;
use crate::isolation::cgroup::Cgroup;
#[cfg(target_os = "linux")]
use crate::isolation::{identity::Identity, network::Network, root::Root};

/// Starts one run of a container.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LaunchRequest {
    /// Number of failed runs before this one.
    pub(crate) restarts: u32,
    /// Number of failed runs directly before this one.
    #[serde(rename = "streak")]
    pub(crate) consecutive_failures: u32,
    /// How the previous run ended, if it failed.
    #[serde(rename = "before")]
    pub(crate) last_termination: Option<Termination>,
    /// Fingerprint of the instance template.
    pub(crate) template: String,
    /// Time between TERM and KILL.
    #[serde(rename = "grace")]
    pub(crate) grace_period: Duration,
    /// How much output is kept.
    #[serde(rename = "keep")]
    pub(crate) log_retention: LogRetention,
    /// The control group of the instance.
    #[serde(default)]
    pub(crate) cgroup: Option<Cgroup>,
    /// The signal that asks the program to stop; TERM if none.
    #[serde(default)]
    pub(crate) stop_signal: Option<i32>,
    /// What runs before the program is asked to stop.
    #[serde(default)]
    pub(crate) pre_stop: Option<PreStop>,
    /// The program to start.
    pub(crate) launch: LaunchSpec,
}

/// A hook that runs before a program is asked to stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum PreStop {
    Exec(Vec<String>),
    Check(NetworkCheck),
    Sleep(Duration),
}

/// How much of a container's output is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogRetention {
    /// Size limit of a log file, in bytes.
    #[serde(rename = "bytes")]
    pub max_file_bytes: u64,
    /// Number of log files including the current one; at least one.
    #[serde(rename = "files")]
    pub max_files: u32,
}

impl Default for LogRetention {
    /// 30 MiB per container: three files of 10 MiB.
    fn default() -> Self {
        LogRetention { max_file_bytes: 10 << 20, max_files: 3 }
    }
}

/// The program that the launcher executes, with its environment, limits and sandbox.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LaunchSpec {
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) work: PathBuf,
    pub(crate) limits: Limits,
    /// The directory of its files, and the limit of their disk space in bytes.
    #[serde(default)]
    pub(crate) disk: Option<(PathBuf, u64)>,
    #[serde(rename = "fence")]
    pub(crate) sandbox: Option<Sandbox>,
    /// Namespaces of its own; `None` if the program runs in those of the host.
    #[cfg(target_os = "linux")]
    #[serde(default)]
    pub(crate) namespaces: Option<Namespaces>,
}

/// What a container has in its own namespaces.
#[cfg(target_os = "linux")]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Namespaces {
    pub(crate) hostname: String,
    pub(crate) root: Root,
    pub(crate) network: Network,
    /// User and group of the program; those of Polis if none.
    pub(crate) identity: Option<Identity>,
    /// User and group that the user of Polis has in its user namespace, if it is not root.
    #[serde(default)]
    pub(crate) inside: Option<(u32, u32)>,
}

/// Resource limits of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Limits {
    /// Private writable memory, in bytes (`RLIMIT_DATA`). The address space is not limited: Go, Java and
    /// other runtimes reserve far more of it than they use.
    pub(crate) memory: Option<u64>,
    /// Open files (`RLIMIT_NOFILE`).
    pub(crate) files: u64,
    /// Size of a written file, in bytes (`RLIMIT_FSIZE`).
    pub(crate) file_size: Option<u64>,
    /// Processes and threads of the user (`RLIMIT_NPROC`), for a user that only this instance has.
    #[serde(default)]
    pub(crate) processes: Option<u64>,
}

/// The host files that a process may access, enforced by Landlock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sandbox {
    /// Paths that may be read and executed, recursively.
    pub(crate) read: Vec<PathBuf>,
    /// Paths with full access, recursively.
    pub(crate) write: Vec<PathBuf>,
}
