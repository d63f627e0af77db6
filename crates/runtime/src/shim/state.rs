//! What a shim notes about its run, for whoever comes after: one file, written by the shim alone and replaced whole.

use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Name of the file in the folder of the container.
const STATE: &str = "state.json";
/// Name of the file that the shim holds a lock on for as long as it lives.
const LOCK: &str = "shim.lock";

/// One run of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Process id of the shim.
    pub shim: i32,
    /// Process id of the program.
    pub pid: i32,
    /// Runs that failed before this one, ever.
    pub restarts: u32,
    /// Of these, the last ones in a row.
    pub streak: u32,
    /// How the run before ended, if it failed.
    pub before: Option<Ending>,
    /// Fingerprint of the template that was started.
    pub template: String,
    /// When the program was started.
    pub started: Timestamp,
    /// How it ended, once it has.
    pub ending: Option<Ending>,
}

/// The end of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// When.
    pub at: Timestamp,
    /// How.
    pub how: How,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum How {
    /// The program ended by itself, with this code.
    Exit(i32),
    /// The program was killed by this signal.
    Signal(i32),
    /// The program could not be started.
    Failed(String),
    /// It was told to stop.
    Stopped,
    /// The shim is gone and has left no word.
    Lost,
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            How::Exit(code) => write!(f, "exit code {code}"),
            How::Signal(signal) => write!(f, "killed by signal {signal}"),
            How::Failed(why) => write!(f, "it could not be started: {why}"),
            How::Stopped => f.write_str("stopped"),
            How::Lost => f.write_str("its shim was killed"),
        }
    }
}

impl State {
    /// The last word in the folder of a container; none if nothing ever ran there. A file that cannot be understood is
    /// as good as none: it is replaced whole, so only another version can have written it.
    pub(crate) fn read(folder: &Path) -> io::Result<Option<State>> {
        match fs::read(folder.join(STATE)) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn write(&self, folder: &Path) -> io::Result<()> {
        replace(&folder.join(STATE), &serde_json::to_vec(self)?)
    }
}

/// Writes a file so that a reader sees the old content or the new, and nothing in between.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let draft = path.with_extension("new");
    fs::write(&draft, content)?;
    fs::rename(&draft, path)
}

/// The right to be the shim of a container, held until it is dropped or the process ends. None while another has it.
pub(crate) fn hold(folder: &Path) -> io::Result<Option<File>> {
    let file = File::options().create(true).truncate(false).write(true).open(folder.join(LOCK))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}
