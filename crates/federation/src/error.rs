//! Errors of a reconcile.

use polis_engine::ErrorClass;

use crate::interpreter::TypeMeta;

/// An error that requeues a key with back-off.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A request to a plane failed, or a cached object cannot be read.
    #[error(transparent)]
    Plane(#[from] polis_engine::Error),
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
    /// The class of a request error.
    pub fn class(&self) -> Option<ErrorClass> {
        match self {
            Error::Plane(error) => Some(error.class()),
            _ => None,
        }
    }

    /// Whether a retry of a rejected request cannot succeed.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self.class(), Some(ErrorClass::Invalid | ErrorClass::Forbidden))
    }
}
