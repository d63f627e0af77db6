//! Discovery and OpenAPI documents of a plane.
//!
//! Discovery is computed for each request. OpenAPI is computed on the first request after a change of the
//! catalogue: it would be the largest part of a small plane's memory, and controllers request only discovery.

mod discovery;
mod openapi;

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use http::{Response, header, request::Parts};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub(crate) use discovery::Discovery;

use crate::{http::ResponseBody, kinds::Kinds, status::StatusError};

/// The OpenAPI documents of a catalogue.
pub(crate) struct OpenApi {
    /// Version 3, by path (`apis/<group>/<version>`).
    documents: BTreeMap<String, Arc<Document>>,
    index: Value,
    v2: OnceLock<Bytes>,
}

/// An OpenAPI document and its hash, which is its ETag.
struct Document {
    bytes: Bytes,
    hash: String,
}

impl Document {
    fn new(document: &Value) -> Self {
        let bytes = Bytes::from(document.to_string());
        Self { hash: hash(&bytes), bytes }
    }
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02X}")).collect()
}

impl OpenApi {
    pub(crate) fn of(kinds: &Kinds) -> Self {
        let documents = openapi::documents(kinds);
        let paths: serde_json::Map<String, Value> = documents
            .iter()
            .map(|(path, document)| {
                let hash = &document.hash;
                (path.clone(), json!({"serverRelativeURL": format!("/openapi/v3/{path}?hash={hash}")}))
            })
            .collect();
        Self { index: json!({"paths": paths}), documents, v2: OnceLock::new() }
    }

    /// `/openapi/v3`: the paths of the documents.
    pub(crate) fn index(&self) -> &Value {
        &self.index
    }

    /// The OpenAPI v3 document of one group version. A request with the current hash may cache it for ever.
    pub(crate) fn v3(&self, path: &str, parts: &Parts) -> Result<Response<ResponseBody>, StatusError> {
        let document = self.documents.get(path).ok_or_else(StatusError::no_such_path)?;
        let mut response = with_etag(&document.bytes, &document.hash, parts);
        if parts.uri.query().is_some_and(|query| query.contains(document.hash.as_str())) {
            response
                .headers_mut()
                .insert(header::CACHE_CONTROL, http::HeaderValue::from_static("public, immutable"));
        }
        Ok(response)
    }

    /// The OpenAPI v2 document of all groups.
    pub(crate) fn v2(&self, parts: &Parts) -> Response<ResponseBody> {
        let bytes = self.v2.get_or_init(|| {
            let documents =
                self.documents.values().filter_map(|document| serde_json::from_slice(&document.bytes).ok());
            openapi::to_v2(documents).to_string().into()
        });
        with_etag(bytes, &hash(bytes), parts)
    }
}

fn with_etag(bytes: &Bytes, hash: &str, parts: &Parts) -> Response<ResponseBody> {
    let tag = format!("\"{hash}\"");
    let known =
        parts.headers.get(header::IF_NONE_MATCH).is_some_and(|value| value.as_bytes() == tag.as_bytes());
    let mut response = if known {
        crate::http::json_bytes(304, Bytes::new())
    } else {
        crate::http::json_bytes(200, bytes.clone())
    };
    if let Ok(tag) = http::HeaderValue::from_str(&tag) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}
