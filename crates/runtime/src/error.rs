//! The error type of this crate.

use std::io;
use std::path::PathBuf;

use polis_engine::Error as EngineError;

/// An error of a reconcile, which is retried with back-off, or of the set-up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Reading or writing the cell failed.
    // Not transparent: the engine searches the error sources for its own type, and does not log conflicts as
    // errors.
    #[error("{0}")]
    Plane(#[from] EngineError),
    /// The state directory is not usable.
    #[error(
        "failed to use {} for instance processes: {source}; it must be a directory that Polis can write to",
        path.display()
    )]
    Directory {
        /// The directory, or a file in it.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A shim failed to start, or exited before its reply.
    #[error("failed to start container {container} of instance {instance}: {why}")]
    Start {
        /// The container.
        container: String,
        /// UID of the instance.
        instance: String,
        /// The reason.
        why: String,
    },
    /// The address pool is exhausted.
    #[error(
        "failed to allocate an address for instance {instance}: all of {pool} are taken; use a larger pool or fewer instances"
    )]
    NoAddress {
        /// UID of the instance.
        instance: String,
        /// The pool.
        pool: String,
    },
    /// The cell's store could not make its state durable, so the provider does not act on it.
    #[error("failed to act on instance {instance}: the state of the cell is not durable: {why}")]
    NotDurable {
        /// UID of the instance.
        instance: String,
        /// The reason.
        why: String,
    },
    /// The UID of an instance is invalid.
    #[error("failed to run instance {instance}: its UID is not usable as a directory name")]
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
