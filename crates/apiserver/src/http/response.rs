//! Builds responses.

use bytes::Bytes;
use http::{HeaderValue, Response, header};
use serde_json::Value;

use super::{Output, ResponseBody};
use crate::status::StatusError;

fn build(code: u16, media: &'static str, body: ResponseBody) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    *response.status_mut() =
        http::StatusCode::from_u16(code).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

/// A response of encoded JSON.
pub(crate) fn json_bytes(code: u16, bytes: Bytes) -> Response<ResponseBody> {
    build(code, "application/json", ResponseBody::full(bytes))
}

/// A response with a streamed JSON body.
pub(crate) fn respond_json(code: u16, body: ResponseBody) -> Response<ResponseBody> {
    build(code, "application/json", body)
}

/// A response of a value, as JSON or YAML.
pub(crate) fn object(code: u16, value: &Value, output: Output) -> Response<ResponseBody> {
    if output.yaml
        && let Ok(text) = serde_saphyr::to_string(value)
    {
        return build(code, "application/yaml", ResponseBody::full(text));
    }
    // A Value always serialises: its keys are strings.
    json_bytes(code, serde_json::to_vec(value).unwrap_or_default().into())
}

/// A response of plain text.
pub(crate) fn plain(code: u16, text: impl Into<Bytes>) -> Response<ResponseBody> {
    let mut response = build(code, "text/plain; charset=utf-8", ResponseBody::full(text));
    response.headers_mut().insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}

/// The response of an error: a `Status` object or plain text.
pub(crate) fn failure(failure: &StatusError) -> Response<ResponseBody> {
    if failure.is_plain() {
        return plain(failure.code, failure.message.clone());
    }
    let mut response =
        json_bytes(failure.code, serde_json::to_vec(&failure.status()).unwrap_or_default().into());
    if let Some(seconds) = failure.retry_after() {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}
