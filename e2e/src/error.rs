//! Errors of the test harness. A failed scenario panics instead.

use std::path::PathBuf;

/// An error of the test harness.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The test bed failed.
    #[error("failed to use the test bed: {0}")]
    TestCluster(#[from] polis_testbed::Error),
    /// A proxy failed to start.
    #[error("failed to start a proxy: {0}")]
    Proxy(Box<dyn std::error::Error + Send + Sync>),
    /// A request to a plane failed.
    #[error("failed to {what} on plane {plane}: {source}")]
    Plane {
        /// The operation.
        what: String,
        /// The plane.
        plane: String,
        /// The error.
        source: Box<polis_api::kube::Error>,
    },
    /// A process failed to start, or exited.
    #[error("failed to run {role}: {why}; the last lines of {log}:\n{tail}")]
    Role {
        /// The process.
        role: String,
        /// The reason.
        why: String,
        /// Path of its log.
        log: PathBuf,
        /// The last lines of the log.
        tail: String,
    },
    /// The binary under test does not exist.
    #[error("failed to find the polis binary at {0}: build it with `cargo build -p polis`, or set POLIS_BIN")]
    NoProgram(PathBuf),
    /// Reading or writing a file failed.
    #[error("failed to use {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The error.
        source: std::io::Error,
    },
    /// The request is not possible here, with the reason.
    #[error("{0}")]
    Unavailable(String),
}

impl Error {
    pub(crate) fn proxy(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Error::Proxy(source.into())
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
