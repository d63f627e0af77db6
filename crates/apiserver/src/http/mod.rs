//! HTTP: content negotiation, query options, request and response bodies.

mod accept;
mod body;
mod query;
mod response;

pub(crate) use accept::{OFFERED, Output, Projection};
pub use body::ResponseBody;
pub(crate) use body::{BODY_MAX, Content, decode_object, read};
pub(crate) use query::{DryRun, FieldValidation, Options, pairs};
pub(crate) use response::{failure, json_bytes, object, plain, respond_json};
