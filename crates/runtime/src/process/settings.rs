//! How processes are run on this host.

use std::path::PathBuf;
use std::time::Duration;

use super::{Addresses, Restarts};
use crate::shim::Keep;

/// How processes are run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the folders of instances are; one cell, one directory.
    pub dir: PathBuf,
    /// The binary that is a shim when it is started as one: it calls [`crate::inside`] first thing. Usually the one
    /// that runs.
    pub binary: PathBuf,
    /// Where instances get addresses.
    pub addresses: Addresses,
    /// When failed containers are started again.
    pub restarts: Restarts,
    /// Time between TERM and KILL.
    pub grace: Duration,
    /// How much output is kept of each container.
    pub keep: Keep,
    /// Whether `process:` images are run: whoever may deploy here may then run any program of the host, as the user who
    /// runs Polis.
    pub host_programs: bool,
    /// Whether programs are confined where the kernel can do it.
    pub fence: bool,
    /// What programs may read beside the system itself.
    pub readable: Vec<PathBuf>,
    /// Where programs of the host are looked for, as in `PATH`.
    pub path: String,
}

impl Settings {
    /// The usual settings for a city.
    pub fn new(dir: impl Into<PathBuf>, binary: impl Into<PathBuf>, city: &str) -> Self {
        Settings {
            dir: dir.into(),
            binary: binary.into(),
            addresses: Addresses::for_city(city),
            restarts: Restarts::default(),
            grace: Duration::from_secs(10),
            keep: Keep::default(),
            host_programs: true,
            fence: true,
            readable: Vec::new(),
            path: std::env::var("PATH").unwrap_or_else(|_| "/usr/local/bin:/usr/bin:/bin".to_owned()),
        }
    }
}
