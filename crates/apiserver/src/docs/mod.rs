//! What a plane says about itself: discovery and OpenAPI, made once per change of its catalogue.

mod discovery;
mod openapi;

use std::{collections::BTreeMap, sync::OnceLock};

use bytes::Bytes;
use http::{Response, header, request::Parts};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{http::Body, kinds::Kinds, status::Failure};

/// All documents of a catalogue.
pub(crate) struct Docs {
    groups: Value,
    by_group: BTreeMap<String, Value>,
    /// By group and version.
    resources: BTreeMap<(String, String), Value>,
    aggregated_core: Bytes,
    aggregated_groups: Bytes,
    /// OpenAPI v3 documents by path (`apis/<group>/<version>`) with their hashes.
    v3: BTreeMap<String, (Bytes, String)>,
    v3_index: Value,
    v2: OnceLock<Bytes>,
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02X}")).collect()
}

impl Docs {
    pub(crate) fn new(kinds: &Kinds) -> Self {
        let discovery = discovery::Discovery::of(kinds);
        let v3: BTreeMap<String, (Bytes, String)> = openapi::documents(kinds)
            .into_iter()
            .map(|(path, document)| {
                let bytes = Bytes::from(serde_json::to_vec(&document).unwrap_or_default());
                let hash = hash(&bytes);
                (path, (bytes, hash))
            })
            .collect();
        let paths: serde_json::Map<String, Value> = v3
            .iter()
            .map(|(path, (_, hash))| {
                (path.clone(), json!({"serverRelativeURL": format!("/openapi/v3/{path}?hash={hash}")}))
            })
            .collect();
        Self {
            groups: discovery.groups(),
            by_group: discovery.by_group(),
            resources: discovery.resources(),
            aggregated_core: discovery.aggregated(true).to_string().into(),
            aggregated_groups: discovery.aggregated(false).to_string().into(),
            v3_index: json!({"paths": paths}),
            v3,
            v2: OnceLock::new(),
        }
    }

    /// `/`: the paths that lead somewhere.
    pub(crate) fn paths(&self) -> Value {
        let mut paths: Vec<String> = [
            "/api",
            "/api/v1",
            "/apis",
            "/healthz",
            "/livez",
            "/openapi/v2",
            "/openapi/v3",
            "/readyz",
            "/version",
        ]
        .map(str::to_owned)
        .to_vec();
        for ((group, version), _) in self.resources.iter().filter(|((group, _), _)| !group.is_empty()) {
            paths.push(format!("/apis/{group}"));
            paths.push(format!("/apis/{group}/{version}"));
        }
        paths.sort();
        paths.dedup();
        json!({"paths": paths})
    }

    pub(crate) fn groups(&self) -> &Value {
        &self.groups
    }

    pub(crate) fn group(&self, group: &str) -> Option<&Value> {
        self.by_group.get(group)
    }

    pub(crate) fn resources(&self, group: &str, version: &str) -> Option<&Value> {
        self.resources.get(&(group.to_owned(), version.to_owned()))
    }

    pub(crate) fn aggregated_core(&self) -> &Bytes {
        &self.aggregated_core
    }

    pub(crate) fn aggregated_groups(&self) -> &Bytes {
        &self.aggregated_groups
    }

    pub(crate) fn openapi_index(&self) -> &Value {
        &self.v3_index
    }

    /// One group's OpenAPI v3 document. With the right hash in the query it may be kept for ever.
    pub(crate) fn openapi_v3(&self, path: &str, parts: &Parts) -> Result<Response<Body>, Failure> {
        let (bytes, hash) = self.v3.get(path).ok_or_else(Failure::no_such_path)?;
        let mut response = with_etag(bytes, hash, parts);
        if parts.uri.query().is_some_and(|query| query.contains(hash.as_str())) {
            response
                .headers_mut()
                .insert(header::CACHE_CONTROL, http::HeaderValue::from_static("public, immutable"));
        }
        Ok(response)
    }

    /// The OpenAPI v2 document of everything.
    pub(crate) fn openapi_v2(&self, parts: &Parts) -> Result<Response<Body>, Failure> {
        let bytes = self.v2.get_or_init(|| {
            let documents = self.v3.values().filter_map(|(bytes, _)| serde_json::from_slice(bytes).ok());
            openapi::version_two(documents).to_string().into()
        });
        Ok(with_etag(bytes, &hash(bytes), parts))
    }
}

fn with_etag(bytes: &Bytes, hash: &str, parts: &Parts) -> Response<Body> {
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
