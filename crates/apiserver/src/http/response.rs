//! Answers.

use bytes::Bytes;
use http::{HeaderValue, Response, header};
use serde_json::Value;

use super::{Body, Output};
use crate::status::Failure;

fn build(code: u16, media: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() =
        http::StatusCode::from_u16(code).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

/// JSON that is already bytes.
pub(crate) fn json_bytes(code: u16, bytes: Bytes) -> Response<Body> {
    build(code, "application/json", Body::full(bytes))
}

/// A body of JSON that comes piece by piece.
pub(crate) fn respond_json(code: u16, body: Body) -> Response<Body> {
    build(code, "application/json", body)
}

/// A value, in the form asked for.
pub(crate) fn object(code: u16, value: &Value, output: Output) -> Response<Body> {
    if output.yaml
        && let Ok(text) = serde_saphyr::to_string(value)
    {
        return build(code, "application/yaml", Body::full(text));
    }
    // A Value always serialises: its keys are strings.
    json_bytes(code, serde_json::to_vec(value).unwrap_or_default().into())
}

/// Plain text.
pub(crate) fn plain(code: u16, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = build(code, "text/plain; charset=utf-8", Body::full(text));
    response.headers_mut().insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}

/// A refusal.
pub(crate) fn failure(failure: &Failure) -> Response<Body> {
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
