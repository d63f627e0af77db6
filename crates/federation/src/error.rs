//! Errors of a reconcile.

use crate::interpreter::TypeMeta;
use crate::planes::{ApiError, ApiErrorKind};

/// An error that requeues a key with back-off.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A request to a plane failed.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// An object does not match the schema of its kind.
    #[error("failed to read {what}: {source}")]
    Decode {
        /// The object.
        what: String,
        /// The cause.
        source: serde_json::Error,
    },
    /// A kind that the hub does not serve, or that was not discovered yet.
    #[error("failed to find {} {} on the hub: no such kind is served", .0.api_version, .0.kind)]
    UnknownKind(TypeMeta),
    /// Another object must change first; its change requeues the key.
    #[error("waiting: {0}")]
    Waiting(String),
}

impl Error {
    /// The kind of a request error.
    pub fn kind(&self) -> Option<ApiErrorKind> {
        match self {
            Error::Api(error) => Some(error.kind),
            _ => None,
        }
    }
}
