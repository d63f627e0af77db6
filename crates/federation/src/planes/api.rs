//! A dynamic client of one plane. Every request has a timeout: a member that hangs must not delay the others.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use http::HeaderValue;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use polis_api::kube::core::WatchEvent;
use polis_api::kube::{self, Client};
use serde::Deserialize;
use serde_json::{Value, json};

use super::ResourceKind;
use crate::interpreter::TypeMeta;
use crate::object::{self, ObjectKey};

/// Timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// `Accept` headers for metadata-only watches and lists.
const METADATA: HeaderValue =
    HeaderValue::from_static("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1");
const METADATA_LIST: HeaderValue =
    HeaderValue::from_static("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1");
/// Objects per page of a list.
const PAGE: usize = 500;

/// The kind of a request error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiErrorKind {
    /// The object, its namespace or its kind does not exist.
    NotFound,
    /// The resource version or UID in the request is out of date.
    Conflict,
    /// An object with this name exists.
    AlreadyExists,
    /// The requested resource version is too old.
    Expired,
    /// Authentication or authorization failed.
    Forbidden,
    /// The request is invalid; a retry cannot succeed.
    Invalid,
    /// The server is unreachable, overloaded or failed.
    Unreachable,
}

/// A failed request.
#[derive(Debug, Clone, thiserror::Error)]
#[error("failed to {action} on {plane}: {message}")]
pub struct ApiError {
    /// The plane.
    pub plane: Arc<str>,
    /// The attempted action.
    pub action: String,
    /// The kind of the error.
    pub kind: ApiErrorKind,
    /// The message of the server or transport.
    pub message: String,
}

/// A client of one plane. Cheap to clone.
#[derive(Clone)]
pub struct Api {
    name: Arc<str>,
    client: Client,
    /// Lists and watches request only the metadata.
    metadata_only: bool,
}

impl Api {
    /// The plane behind a client.
    pub fn new(name: &str, client: Client) -> Self {
        Api { name: name.into(), client, metadata_only: false }
    }

    /// The same plane with metadata-only lists and watches: a CRD is a hundred times as large as its
    /// metadata.
    pub fn metadata_only(&self) -> Self {
        Api { metadata_only: true, ..self.clone() }
    }

    /// Reads an object; `None` if it does not exist.
    pub async fn get(
        &self,
        kind: &ResourceKind,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Value>, ApiError> {
        let path = kind.path_of(namespace, name);
        match self.call("GET", &path, None, || format!("read {} {name}", kind.kind)).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.kind == ApiErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The field managers in the managed fields of an object.
    pub async fn writers(
        &self,
        kind: &ResourceKind,
        namespace: &str,
        name: &str,
    ) -> Result<Vec<String>, ApiError> {
        let action = format!("read {} {name}", kind.kind);
        let request = self.request("GET", &kind.path_of(namespace, name), None, &action)?;
        let object: Value = self.with_timeout(&action, self.client.request(request)).await?;
        let fields = object["metadata"]["managedFields"].as_array().into_iter().flatten();
        let mut writers: Vec<String> =
            fields.filter_map(|entry| Some(entry["manager"].as_str()?.to_owned())).collect();
        writers.sort();
        writers.dedup();
        Ok(writers)
    }

    /// Lists all objects of a kind, with the resource version of the list.
    pub async fn list(&self, kind: &ResourceKind) -> Result<(Vec<Value>, String), ApiError> {
        let action = format!("list {kind}");
        let mut items = Vec::new();
        let mut next = String::new();
        loop {
            let path = format!("{}?limit={PAGE}{next}", kind.path(None));
            let request = self.request("GET", &path, None, &action)?;
            let request = self.with_accept(request, METADATA_LIST);
            let mut page: Value = self.with_timeout(&action, self.client.request(request)).await?;
            if let Some(Value::Array(more)) = page.get_mut("items").map(Value::take) {
                items.extend(more.into_iter().map(|item| normalized(item, kind)));
            }
            match page["metadata"]["continue"].as_str().filter(|token| !token.is_empty()) {
                Some(token) => next = format!("&continue={}", utf8_percent_encode(token, RESERVED)),
                None => {
                    return Ok((
                        items,
                        page["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned(),
                    ));
                }
            }
        }
    }

    /// Watches changes after a resource version.
    pub async fn watch(
        &self,
        kind: &ResourceKind,
        version: &str,
        seconds: u64,
    ) -> Result<impl Stream<Item = Result<WatchEvent<Value>, ApiError>> + Send + use<>, ApiError> {
        let path = format!(
            "{}?watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={version}",
            kind.path(None)
        );
        let action = format!("watch {kind}");
        let request = self.request("GET", &path, None, &action)?;
        let request = self.with_accept(request, METADATA);
        let opened = self.with_timeout(&action, self.client.request_events::<Value>(request)).await?;
        let (api, kind) = (self.clone(), kind.clone());
        Ok(opened.map(move |event| match event {
            Ok(WatchEvent::Added(item)) => Ok(WatchEvent::Added(normalized(item, &kind))),
            Ok(WatchEvent::Modified(item)) => Ok(WatchEvent::Modified(normalized(item, &kind))),
            Ok(WatchEvent::Deleted(item)) => Ok(WatchEvent::Deleted(normalized(item, &kind))),
            Ok(WatchEvent::Error(status)) => Err(api.failed(&action, kube::Error::Api(status))),
            Ok(other) => Ok(other),
            Err(error) => Err(api.failed(&action, error)),
        }))
    }

    /// Creates an object.
    pub async fn create(&self, kind: &ResourceKind, wanted: &Value) -> Result<Value, ApiError> {
        let path = kind.path(wanted["metadata"]["namespace"].as_str());
        self.call("POST", &path, Some(("application/json", wanted)), || {
            format!("create {}", ObjectKey::of(wanted))
        })
        .await
    }

    /// Replaces an object; its resource version must be the current one.
    pub async fn replace(&self, kind: &ResourceKind, wanted: &Value) -> Result<Value, ApiError> {
        let path = kind.path_of(object::meta(wanted, "namespace"), object::meta(wanted, "name"));
        self.call("PUT", &path, Some(("application/json", wanted)), || {
            format!("update {}", ObjectKey::of(wanted))
        })
        .await
    }

    /// Replaces the status of an object; its resource version must be the current one.
    pub async fn replace_status(&self, kind: &ResourceKind, wanted: &Value) -> Result<Value, ApiError> {
        let path = format!(
            "{}/status",
            kind.path_of(object::meta(wanted, "namespace"), object::meta(wanted, "name"))
        );
        self.call("PUT", &path, Some(("application/json", wanted)), || {
            format!("update the status of {}", ObjectKey::of(wanted))
        })
        .await
    }

    /// Applies a JSON merge patch to an object.
    pub async fn patch(
        &self,
        kind: &ResourceKind,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<Value, ApiError> {
        let path = kind.path_of(namespace, name);
        self.call("PATCH", &path, Some(("application/merge-patch+json", patch)), || {
            format!("patch {} {name}", kind.kind)
        })
        .await
    }

    /// Deletes the object with this UID, with background propagation. Returns true if the object no longer
    /// exists, and false if finalizers delay the deletion or the UID belongs to another object.
    pub async fn delete(
        &self,
        kind: &ResourceKind,
        namespace: &str,
        name: &str,
        uid: &str,
    ) -> Result<bool, ApiError> {
        let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background", "preconditions": {"uid": uid}});
        let path = kind.path_of(namespace, name);
        match self
            .call("DELETE", &path, Some(("application/json", &options)), || {
                format!("delete {} {name}", kind.kind)
            })
            .await
        {
            Ok(answer) => Ok(answer["kind"] == "Status"),
            Err(error) if error.kind == ApiErrorKind::NotFound => Ok(true),
            Err(error) if error.kind == ApiErrorKind::Conflict => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Looks up a kind in discovery; `None` if the plane does not serve it.
    pub async fn find_kind(&self, type_meta: &TypeMeta) -> Result<Option<ResourceKind>, ApiError> {
        let found = self.resources(&type_meta.api_version).await?;
        Ok(found.into_iter().find(|served| served.kind == type_meta.kind).map(|served| ResourceKind {
            api_version: type_meta.api_version.clone().into(),
            kind: served.kind.into(),
            plural: served.name.into(),
            namespaced: served.namespaced,
        }))
    }

    /// All served resources, as `apiEnablements` list them: group and version with (plural, kind).
    pub async fn discover(&self) -> Result<Vec<(String, Vec<(String, String)>)>, ApiError> {
        let mut versions = vec!["v1".to_owned()];
        let groups = self.call("GET", "/apis", None, || "list API groups".to_owned()).await?;
        for group in groups["groups"].as_array().into_iter().flatten() {
            let served = group["versions"].as_array().into_iter().flatten();
            versions.extend(served.filter_map(|version| Some(version["groupVersion"].as_str()?.to_owned())));
        }
        let mut all = Vec::new();
        for version in versions {
            let mut resources: Vec<(String, String)> = self
                .resources(&version)
                .await?
                .into_iter()
                .map(|served| (served.name, served.kind))
                .collect();
            resources.sort();
            all.push((version, resources));
        }
        all.sort();
        Ok(all)
    }

    async fn resources(&self, api_version: &str) -> Result<Vec<Served>, ApiError> {
        let answer = self
            .call("GET", &ResourceKind::root(api_version), None, || {
                format!("list the kinds of {api_version}")
            })
            .await;
        let list = match answer {
            Ok(list) => list,
            Err(error) if error.kind == ApiErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let resources: Vec<Served> = serde_json::from_value(list["resources"].clone()).unwrap_or_default();
        Ok(resources.into_iter().filter(|served| !served.name.contains('/')).collect())
    }

    /// Requests `/readyz`, or `/healthz` if the server has no `/readyz`.
    pub async fn probe(&self) -> Result<(), ApiError> {
        match self.text("/readyz").await {
            Err(error) if error.kind == ApiErrorKind::NotFound => self.text("/healthz").await.map(drop),
            answer => answer.map(drop),
        }
    }

    /// The git version of the server.
    pub async fn version(&self) -> Result<String, ApiError> {
        let answer = self.call("GET", "/version", None, || "read the version".to_owned()).await?;
        Ok(answer["gitVersion"].as_str().unwrap_or_default().to_owned())
    }

    async fn text(&self, path: &str) -> Result<String, ApiError> {
        let action = format!("read {path}");
        let request = self.request("GET", path, None, &action)?;
        self.with_timeout(&action, self.client.request_text(request)).await
    }

    async fn call(
        &self,
        method: &str,
        path: &str,
        content: Option<(&str, &Value)>,
        action: impl Fn() -> String,
    ) -> Result<Value, ApiError> {
        let action = action();
        let request = self.request(method, path, content, &action)?;
        let mut answer: Value = self.with_timeout(&action, self.client.request(request)).await?;
        object::remove(&mut answer, &["metadata", "managedFields"]);
        Ok(answer)
    }

    fn request(
        &self,
        method: &str,
        path: &str,
        content: Option<(&str, &Value)>,
        action: &str,
    ) -> Result<http::Request<Vec<u8>>, ApiError> {
        let mut request = http::Request::builder().method(method).uri(path);
        if let Some((sort, _)) = content {
            request = request.header("content-type", sort);
        }
        let body = content.map(|(_, value)| value.to_string().into_bytes()).unwrap_or_default();
        request.body(body).map_err(|error| self.error(action, ApiErrorKind::Invalid, error.to_string()))
    }

    /// Sets the `Accept` header for metadata-only reads; lists and watches use different types.
    fn with_accept(
        &self,
        mut request: http::Request<Vec<u8>>,
        accept: HeaderValue,
    ) -> http::Request<Vec<u8>> {
        if self.metadata_only {
            request.headers_mut().insert(http::header::ACCEPT, accept);
        }
        request
    }

    async fn with_timeout<T>(
        &self,
        action: &str,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, ApiError> {
        match tokio::time::timeout(REQUEST_TIMEOUT, call).await {
            Ok(answer) => answer.map_err(|error| self.failed(action, error)),
            Err(_) => Err(self.error(
                action,
                ApiErrorKind::Unreachable,
                format!("no response within {REQUEST_TIMEOUT:?}"),
            )),
        }
    }

    fn failed(&self, action: &str, error: kube::Error) -> ApiError {
        let kube::Error::Api(status) = error else {
            return self.error(action, ApiErrorKind::Unreachable, chain(&error));
        };
        let kind = match (status.code, status.reason.as_str()) {
            (409, "AlreadyExists") => ApiErrorKind::AlreadyExists,
            (409, _) => ApiErrorKind::Conflict,
            (404, _) => ApiErrorKind::NotFound,
            (410, _) => ApiErrorKind::Expired,
            (401 | 403, _) => ApiErrorKind::Forbidden,
            (400..=499, _) if status.code != 408 && status.code != 429 => ApiErrorKind::Invalid,
            _ => ApiErrorKind::Unreachable,
        };
        self.error(action, kind, format!("{} ({})", status.message, status.reason))
    }

    fn error(&self, action: &str, kind: ApiErrorKind, message: String) -> ApiError {
        ApiError { plane: self.name.clone(), action: action.to_owned(), kind, message }
    }
}

#[derive(Deserialize)]
struct Served {
    name: String,
    kind: String,
    namespaced: bool,
}

/// Adds `apiVersion` and `kind`, which list items lack, and removes the managed fields, which are not used.
fn normalized(mut item: Value, kind: &ResourceKind) -> Value {
    object::remove(&mut item, &["metadata", "managedFields"]);
    if let Some(fields) = item.as_object_mut() {
        fields.insert("apiVersion".to_owned(), Value::String(kind.api_version.to_string()));
        fields.insert("kind".to_owned(), Value::String(kind.kind.to_string()));
    }
    item
}

/// All characters except the unreserved ones of RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The messages of an error and its causes, on one line.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let more = cause.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        next = cause.source();
    }
    text
}
