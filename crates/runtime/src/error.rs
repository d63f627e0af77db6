//! What can go wrong in this room.

use std::io;
use std::path::PathBuf;

use polis_engine::Error as EngineError;

/// A failure of one reconcile, or of the set-up. A reconcile comes back, with growing pauses.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cell could not be read or written.
    // Not transparent: the engine looks for its own error among the causes, and a conflict is no news to it.
    #[error("{0}")]
    Plane(#[from] EngineError),
    /// The directory of the runtime cannot be used.
    #[error(
        "failed to use {} for the processes of instances: {source}; it must be a directory that Polis may write to",
        path.display()
    )]
    Directory {
        /// The directory, or a file in it.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A shim could not be started, or died before it said anything.
    #[error("failed to start container {container} of instance {instance}: {why}")]
    Start {
        /// The container.
        container: String,
        /// UID of the instance.
        instance: String,
        /// What went wrong.
        why: String,
    },
    /// No address is left for an instance.
    #[error(
        "failed to find an address for instance {instance}: all of {pool} are taken; use a larger pool or fewer instances"
    )]
    NoAddress {
        /// UID of the instance.
        instance: String,
        /// The pool.
        pool: String,
    },
    /// The planes cannot keep what they show, so nothing is started or ended because of it.
    #[error("failed to act on instance {instance}: what the cell shows is not kept ({why})")]
    NotKept {
        /// UID of the instance.
        instance: String,
        /// What went wrong.
        why: String,
    },
    /// An object cannot be what it says it is.
    #[error("failed to run instance {instance}: its UID is not usable as the name of a folder")]
    Uid {
        /// The UID.
        instance: String,
    },
}

impl Error {
    pub(crate) fn directory(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::Directory { path, source }
    }
}
