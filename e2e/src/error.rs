//! What can go wrong with the harness itself. What goes wrong in a scenario is a failed assertion.

use std::path::PathBuf;

/// Why the harness cannot do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The test bed failed.
    #[error("failed to use the test bed: {0}")]
    Bed(#[from] polis_testbed::Error),
    /// A wire could not be laid.
    #[error("failed to lay a wire: {0}")]
    Wire(Box<dyn std::error::Error + Send + Sync>),
    /// A plane refused or did not answer.
    #[error("failed to {what} on plane {plane}: {source}")]
    Plane {
        /// What was tried.
        what: String,
        /// Where.
        plane: String,
        /// What came back.
        source: Box<polis_api::kube::Error>,
    },
    /// The process of a role did not start, or ended by itself.
    #[error("failed to run {role}: {why}; the last lines of {log}:\n{tail}")]
    Role {
        /// The role.
        role: String,
        /// Why.
        why: String,
        /// Its log.
        log: PathBuf,
        /// The end of the log.
        tail: String,
    },
    /// The program of the roles is not there.
    #[error(
        "failed to find the program of the controllers at {0}: build it with `cargo build -p polis`, or name it in POLIS_BIN"
    )]
    NoProgram(PathBuf),
    /// A file cannot be read or written.
    #[error("failed to use {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// What was asked for is not to be had here.
    #[error("{0}")]
    Unavailable(String),
}

impl Error {
    pub(crate) fn wire(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Error::Wire(source.into())
    }

    pub(crate) fn plane(
        what: impl Into<String>,
        plane: &str,
    ) -> impl FnOnce(polis_api::kube::Error) -> Error {
        let (what, plane) = (what.into(), plane.to_owned());
        move |source| Error::Plane { what, plane, source: Box::new(source) }
    }

    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.into();
        move |source| Error::File { path, source }
    }
}
