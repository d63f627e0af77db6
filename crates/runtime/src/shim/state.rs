//! The state file of a shim: how the current or last run of its container went. The shim replaces it
//! atomically.

use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The state file, in the container's directory.
const STATE_FILE: &str = "state.json";
/// The lock file, locked while the shim runs.
const LOCK_FILE: &str = "shim.lock";

/// One run of a container, as in the state file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShimState {
    /// Process id of the shim.
    pub shim: i32,
    /// Process id of the program.
    pub pid: i32,
    /// Number of failed runs before this one.
    pub restarts: u32,
    /// Number of failed runs directly before this one.
    #[serde(rename = "streak")]
    pub consecutive_failures: u32,
    /// How the previous run ended, if it failed.
    #[serde(rename = "before")]
    pub last_termination: Option<Termination>,
    /// Fingerprint of the instance template that this run was started from.
    pub template: String,
    /// Start time of the program.
    pub started: Timestamp,
    /// Start time of the run before this one; none for the first run, and in files of earlier versions.
    #[serde(default)]
    pub previous_started: Option<Timestamp>,
    /// Time from the request to stop until the container is killed; none in files of earlier versions.
    #[serde(default)]
    pub grace_period: Option<Duration>,
    /// How this run ended; none while it runs.
    #[serde(rename = "ending")]
    pub termination: Option<Termination>,
}

/// The end of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Termination {
    /// End time.
    pub at: Timestamp,
    /// Why it ended.
    #[serde(rename = "how")]
    pub cause: TerminationCause,
}

/// Why a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TerminationCause {
    /// The program exited with this code.
    Exit(i32),
    /// A signal killed the program.
    Signal(i32),
    /// The program could not be started, with the reason.
    Failed(String),
    /// The kernel killed a process because the instance used all of its memory; how the program ended.
    OutOfMemory(String),
    /// The shim ended it because its files exceeded their limit, with the details.
    DiskLimit(String),
    /// The runtime stopped it because a probe failed, with the details.
    Unhealthy(String),
    /// The runtime stopped it.
    Stopped,
    /// The shim was killed before it recorded the exit.
    Lost,
}

impl fmt::Display for TerminationCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TerminationCause::Exit(code) => write!(f, "exit code {code}"),
            TerminationCause::Signal(signal) => write!(f, "killed by signal {signal}"),
            TerminationCause::Failed(why) => write!(f, "failed to start: {why}"),
            TerminationCause::OutOfMemory(how) => write!(f, "out of memory: {how}"),
            TerminationCause::DiskLimit(why) => write!(f, "out of disk space: {why}"),
            TerminationCause::Unhealthy(why) => write!(f, "unhealthy: {why}"),
            TerminationCause::Stopped => f.write_str("stopped"),
            TerminationCause::Lost => f.write_str("its shim was killed"),
        }
    }
}

impl ShimState {
    /// Reads the state file of a container; `None` if no run is recorded. An unreadable file counts as none:
    /// the file is replaced atomically, so only another version of Polis can have written it.
    pub(crate) fn read(container_dir: &Path) -> io::Result<Option<ShimState>> {
        match fs::read(container_dir.join(STATE_FILE)) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn write(&self, container_dir: &Path) -> io::Result<()> {
        replace_file(&container_dir.join(STATE_FILE), &serde_json::to_vec(self)?)
    }

    /// The time of the last run that has ended: this one, or the one before it while this one runs. The end
    /// of the range is the start of the current run. None if no run has ended.
    pub(crate) fn ended_run(&self) -> Option<(Timestamp, Option<Timestamp>)> {
        match (&self.termination, self.previous_started) {
            (Some(_), _) => Some((self.started, None)),
            (None, Some(previous)) => Some((previous, Some(self.started))),
            (None, None) => None,
        }
    }
}

/// Why the runtime stops a container, for the shim that it asks to do so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StopReason {
    /// The probe that failed.
    pub(crate) unhealthy: String,
    /// Time until the container is killed; that of the launch request if none.
    pub(crate) grace_period: Option<Duration>,
}

/// The file with the reason, in the container's directory; absent for an ordinary stop.
const STOP_FILE: &str = "stop.json";

impl StopReason {
    /// The reason of the current stop. A file that cannot be read counts as none.
    pub(super) fn read(container_dir: &Path) -> Option<StopReason> {
        serde_json::from_slice(&fs::read(container_dir.join(STOP_FILE)).ok()?).ok()
    }

    pub(crate) fn write(&self, container_dir: &Path) -> io::Result<()> {
        replace_file(&container_dir.join(STOP_FILE), &serde_json::to_vec(self)?)
    }

    /// Removes the reason of an earlier stop.
    pub(super) fn clear(container_dir: &Path) -> io::Result<()> {
        match fs::remove_file(container_dir.join(STOP_FILE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// Replaces a file atomically: a reader gets the old content or the new. On a full disk an existing file is
/// overwritten in one write, padded with spaces, which needs no space: a program that ends is recorded, and
/// so can be deleted.
pub(crate) fn replace_file(path: &Path, content: &[u8]) -> io::Result<()> {
    let temp = path.with_extension("new");
    match fs::write(&temp, content).and_then(|()| fs::rename(&temp, path)) {
        Err(error) if error.kind() == io::ErrorKind::StorageFull && path.is_file() => {
            _ = fs::remove_file(&temp);
            overwrite(path, content)
        }
        replaced => replaced,
    }
}

fn overwrite(path: &Path, content: &[u8]) -> io::Result<()> {
    let file = File::options().write(true).open(path)?;
    let mut padded = content.to_vec();
    padded.resize(content.len().max(usize::try_from(file.metadata()?.len()).unwrap_or(0)), b' ');
    file.write_all_at(&padded, 0)
}

/// Locks a container for one shim until the file is dropped or the process exits; `None` while another
/// process holds the lock.
pub(crate) fn try_lock(container_dir: &Path) -> io::Result<Option<File>> {
    let file =
        File::options().create(true).truncate(false).write(true).open(container_dir.join(LOCK_FILE))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_overwritten_in_place_by_shorter_and_longer_content() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        fs::write(&path, "[1, 2, 3]").unwrap();
        for content in ["[4]", "[5, 6, 7, 8, 9, 10]"] {
            overwrite(&path, content.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap().trim_end(), content);
        }
    }
}
