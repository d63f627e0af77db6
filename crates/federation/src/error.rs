//! What can go wrong in a controller.

use crate::interpreter::Target;
use crate::planes::{ApiError, Fault};

/// A failure that puts a key back into the queue.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A plane refused or did not answer.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// An object does not have the shape of its kind.
    #[error("failed to read {what}: {source}")]
    Decode {
        /// The object.
        what: String,
        /// What does not fit.
        source: serde_json::Error,
    },
    /// A kind that the hub does not serve, or that was not looked up yet.
    #[error("failed to find {} {} on the hub: no such kind is served", .0.api_version, .0.kind)]
    UnknownKind(Target),
    /// Something must go first; the key comes again when it has.
    #[error("waiting: {0}")]
    Waiting(String),
}

impl Error {
    /// What sort of failure a plane answered with.
    pub fn fault(&self) -> Option<Fault> {
        match self {
            Error::Api(error) => Some(error.fault),
            _ => None,
        }
    }
}
