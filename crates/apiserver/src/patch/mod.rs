//! Patches: what becomes of an object when a part of it is sent.
//!
//! | content type | function |
//! |---|---|
//! | `application/json-patch+json` | [`json::patch`] |
//! | `application/merge-patch+json` | [`merge::patch`] |
//! | `application/strategic-merge-patch+json` | [`strategic::patch`], built-in kinds only |
//!
//! Apply is no patch but a claim of ownership: see [`crate::apply`]. The result of a patch is still to be shaped and
//! judged like any other write.

use serde_json::Value;

pub mod json;
pub mod merge;
pub mod strategic;

/// Why a patch has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// It is no patch of its kind: 400.
    #[error("{0}")]
    Malformed(String),
    /// It does not fit the object: 422 without details. The text is for the log; clients get a fixed sentence.
    #[error("{0}")]
    Unfit(String),
    /// It asks for too much: 413.
    #[error("{0}")]
    TooLarge(String),
    /// It contradicts itself in a way that Kubernetes answers with 500 and the text.
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

    /// The reason; empty where Kubernetes gives none.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "BadRequest",
            Self::Unfit(_) => "Invalid",
            Self::TooLarge(_) => "RequestEntityTooLarge",
            Self::Contradiction(_) => "",
        }
    }

    /// The message that a client gets.
    pub fn message(&self) -> String {
        match self {
            Self::Unfit(_) => "the server rejected our request due to an error in our request".to_owned(),
            other => other.to_string(),
        }
    }
}

fn go_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
