//! PATCH formats, applied to an object as pure functions.
//!
//! | content type | function |
//! |---|---|
//! | `application/json-patch+json` | [`json::patch`] |
//! | `application/merge-patch+json` | [`merge::patch`] |
//! | `application/strategic-merge-patch+json` | [`strategic::patch`], built-in kinds only |
//!
//! Server-side apply is in [`crate::apply`]. The caller prunes, defaults and validates the result of a patch
//! like any other write.

pub mod json;
pub mod merge;
pub mod strategic;

/// A patch that cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// The patch is malformed: 400.
    #[error("{0}")]
    Malformed(String),
    /// The patch does not apply to the object: 422 without details. Clients get a fixed message; the text is
    /// for logs.
    #[error("{0}")]
    Unfit(String),
    /// The patch has too many operations: 413.
    #[error("{0}")]
    TooLarge(String),
    /// The patch is inconsistent. Kubernetes answers with 500 and this text.
    #[error("{0}")]
    Contradiction(String),
}

impl PatchError {
    /// The status code.
    pub fn code(&self) -> u16 {
        match self {
            Self::Malformed(_) => 400,
            Self::Unfit(_) => 422,
            Self::TooLarge(_) => 413,
            Self::Contradiction(_) => 500,
        }
    }

    /// The reason; empty if Kubernetes gives none.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "BadRequest",
            Self::Unfit(_) => "Invalid",
            Self::TooLarge(_) => "RequestEntityTooLarge",
            Self::Contradiction(_) => "",
        }
    }

    /// The message for the client.
    pub fn message(&self) -> String {
        match self {
            Self::Unfit(_) => "the server rejected our request due to an error in our request".to_owned(),
            other => other.to_string(),
        }
    }
}
