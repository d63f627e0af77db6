//! HTTP at the edges of the server: what a request says, what an answer carries.

mod accept;
mod body;
mod query;
mod response;

pub(crate) use accept::{OFFERED, Output, Projection};
pub use body::Body;
pub(crate) use body::{Content, decode_object, read};
pub(crate) use query::{DryRun, FieldValidation, Options, pairs};
pub(crate) use response::{failure, json_bytes, object, plain, respond_json};
