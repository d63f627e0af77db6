//! What a shim is told, over its standard input. It may hold secrets, so it is never a file.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::state::Ending;

/// One run of one container.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    /// Runs that failed before this one, ever.
    pub(crate) restarts: u32,
    /// Of these, the last ones in a row.
    pub(crate) streak: u32,
    /// How the run before ended, if it failed.
    pub(crate) before: Option<Ending>,
    /// Fingerprint of the template.
    pub(crate) template: String,
    /// Time between TERM and KILL.
    pub(crate) grace: Duration,
    /// How much output is kept.
    pub(crate) keep: Keep,
    /// What is started, and how.
    pub(crate) launch: Launch,
}

/// How much of a container's output is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keep {
    /// Longest file, in bytes.
    pub bytes: u64,
    /// Files, the one that is written included; at least one.
    pub files: u32,
}

impl Default for Keep {
    /// 30 MiB per container: three files of 10 MiB.
    fn default() -> Self {
        Keep { bytes: 10 << 20, files: 3 }
    }
}

/// What the launcher turns into.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Launch {
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) work: PathBuf,
    pub(crate) limits: Limits,
    pub(crate) fence: Option<Fence>,
}

/// Limits of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Limits {
    /// Writable memory of its own, in bytes (`RLIMIT_DATA`). Not the address space: Go, Java and others reserve far
    /// more of that than they ever use.
    pub(crate) memory: Option<u64>,
    /// Open files.
    pub(crate) files: u64,
}

/// What a process may touch of the host's files, where the kernel can enforce it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fence {
    /// Read and execute, with everything beneath.
    pub(crate) read: Vec<PathBuf>,
    /// Everything, with everything beneath.
    pub(crate) write: Vec<PathBuf>,
}
