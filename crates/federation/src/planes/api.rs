//! Reads and writes on one plane. Every answer comes within a time limit: a member that hangs must not hold the others up.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use http::HeaderValue;
use polis_api::kube::core::WatchEvent;
use polis_api::kube::{self, Client};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Kind;
use crate::interpreter::Target;
use crate::object::{self, Identity};

/// A call that is not answered within this time is given up.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// How the metadata of objects alone is asked for, in a watch and in a list.
const METADATA: HeaderValue =
    HeaderValue::from_static("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1");
const METADATA_LIST: HeaderValue =
    HeaderValue::from_static("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1");
/// Objects per page of a list.
const PAGE: usize = 500;

/// What sort of failure it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The object, its namespace or its kind is not there.
    NotFound,
    /// Someone else was faster.
    Conflict,
    /// One of that name is there already.
    AlreadyExists,
    /// The history that was asked for is gone.
    Expired,
    /// We may not.
    Forbidden,
    /// The server will never agree.
    Invalid,
    /// The server was not reached, or could not answer.
    Unreachable,
}

/// A call that failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("failed to {action} on {plane}: {message}")]
pub struct ApiError {
    /// The plane.
    pub plane: Arc<str>,
    /// What was attempted.
    pub action: String,
    /// What sort of failure it is.
    pub fault: Fault,
    /// What the server said.
    pub message: String,
}

/// One plane. Cheap to clone.
#[derive(Clone)]
pub struct Api {
    name: Arc<str>,
    client: Client,
    /// Lists and watches ask for the metadata of objects alone.
    metadata_only: bool,
}

impl Api {
    /// A plane behind a client.
    pub fn new(name: &str, client: Client) -> Self {
        Api { name: name.into(), client, metadata_only: false }
    }

    /// The same plane, for whoever lists and watches only to know that something changed: a definition is a hundred times
    /// as large as its metadata.
    pub fn metadata_only(&self) -> Self {
        Api { metadata_only: true, ..self.clone() }
    }

    /// The object, or nothing if the server says that it is not there.
    pub async fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Result<Option<Value>, ApiError> {
        let path = kind.path_of(namespace, name);
        match self.call("GET", &path, None, || format!("read {} {name}", kind.kind)).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.fault == Fault::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Who wrote an object, as its managed fields tell.
    pub async fn writers(&self, kind: &Kind, namespace: &str, name: &str) -> Result<Vec<String>, ApiError> {
        let action = format!("read {} {name}", kind.kind);
        let request = self.request("GET", &kind.path_of(namespace, name), None, &action)?;
        let object: Value = self.within(&action, self.client.request(request)).await?;
        let fields = object["metadata"]["managedFields"].as_array().into_iter().flatten();
        let mut writers: Vec<String> =
            fields.filter_map(|entry| Some(entry["manager"].as_str()?.to_owned())).collect();
        writers.sort();
        writers.dedup();
        Ok(writers)
    }

    /// All objects of a kind, and the version of the list.
    pub async fn list(&self, kind: &Kind) -> Result<(Vec<Value>, String), ApiError> {
        let action = format!("list {kind}");
        let mut items = Vec::new();
        let mut next = String::new();
        loop {
            let path = format!("{}?limit={PAGE}{next}", kind.path(None));
            let request = self.request("GET", &path, None, &action)?;
            let request = self.narrowed(request, METADATA_LIST);
            let mut page: Value = self.within(&action, self.client.request(request)).await?;
            if let Some(Value::Array(more)) = page.get_mut("items").map(Value::take) {
                items.extend(more.into_iter().map(|item| named(item, kind)));
            }
            match page["metadata"]["continue"].as_str().filter(|token| !token.is_empty()) {
                Some(token) => next = format!("&continue={}", escape(token)),
                None => {
                    return Ok((
                        items,
                        page["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned(),
                    ));
                }
            }
        }
    }

    /// Changes after a version.
    pub async fn watch(
        &self,
        kind: &Kind,
        version: &str,
        seconds: u64,
    ) -> Result<impl Stream<Item = Result<WatchEvent<Value>, ApiError>> + Send + use<>, ApiError> {
        let path = format!(
            "{}?watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={version}",
            kind.path(None)
        );
        let action = format!("watch {kind}");
        let request = self.request("GET", &path, None, &action)?;
        let request = self.narrowed(request, METADATA);
        let opened = self.within(&action, self.client.request_events::<Value>(request)).await?;
        let (api, kind) = (self.clone(), kind.clone());
        Ok(opened.map(move |event| match event {
            Ok(WatchEvent::Added(item)) => Ok(WatchEvent::Added(named(item, &kind))),
            Ok(WatchEvent::Modified(item)) => Ok(WatchEvent::Modified(named(item, &kind))),
            Ok(WatchEvent::Deleted(item)) => Ok(WatchEvent::Deleted(named(item, &kind))),
            Ok(WatchEvent::Error(status)) => Err(api.failed(&action, kube::Error::Api(status))),
            Ok(other) => Ok(other),
            Err(error) => Err(api.failed(&action, error)),
        }))
    }

    /// Creates an object.
    pub async fn create(&self, kind: &Kind, wanted: &Value) -> Result<Value, ApiError> {
        let path = kind.path(wanted["metadata"]["namespace"].as_str());
        self.call("POST", &path, Some(("application/json", wanted)), || {
            format!("create {}", Identity::of(wanted))
        })
        .await
    }

    /// Replaces an object; the resource version in it must be the one that is there.
    pub async fn replace(&self, kind: &Kind, wanted: &Value) -> Result<Value, ApiError> {
        let path = kind.path_of(object::meta(wanted, "namespace"), object::meta(wanted, "name"));
        self.call("PUT", &path, Some(("application/json", wanted)), || {
            format!("update {}", Identity::of(wanted))
        })
        .await
    }

    /// Replaces the status of an object; the resource version in it must be the one that is there.
    pub async fn replace_status(&self, kind: &Kind, wanted: &Value) -> Result<Value, ApiError> {
        let path = format!(
            "{}/status",
            kind.path_of(object::meta(wanted, "namespace"), object::meta(wanted, "name"))
        );
        self.call("PUT", &path, Some(("application/json", wanted)), || {
            format!("update the status of {}", Identity::of(wanted))
        })
        .await
    }

    /// Lays a merge patch over an object.
    pub async fn patch(
        &self,
        kind: &Kind,
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

    /// Deletes exactly the object with this UID, in the background. One that is gone already is deleted; so is one of the
    /// same name that came after it, as far as this call is concerned. True where the server says that it is gone; one
    /// with finalizers may stay a while, and then the answer is the object itself.
    pub async fn delete(
        &self,
        kind: &Kind,
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
            Err(error) if error.fault == Fault::NotFound => Ok(true),
            Err(error) if error.fault == Fault::Conflict => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Looks a kind up in discovery; nothing if the plane does not serve it.
    pub async fn find_kind(&self, target: &Target) -> Result<Option<Kind>, ApiError> {
        let found = self.resources(&target.api_version).await?;
        Ok(found.into_iter().find(|served| served.kind == target.kind).map(|served| Kind {
            api_version: target.api_version.clone().into(),
            kind: served.kind.into(),
            plural: served.name.into(),
            namespaced: served.namespaced,
        }))
    }

    /// Everything that the plane serves, as `apiEnablements` say it: group and version with (plural, kind).
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
            .call("GET", &Kind::root(api_version), None, || format!("list the kinds of {api_version}"))
            .await;
        let list = match answer {
            Ok(list) => list,
            Err(error) if error.fault == Fault::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let resources: Vec<Served> = serde_json::from_value(list["resources"].clone()).unwrap_or_default();
        Ok(resources.into_iter().filter(|served| !served.name.contains('/')).collect())
    }

    /// Whether the server says that it is ready, or why not.
    pub async fn probe(&self) -> Result<(), ApiError> {
        match self.text("/readyz").await {
            Err(error) if error.fault == Fault::NotFound => self.text("/healthz").await.map(drop),
            answer => answer.map(drop),
        }
    }

    /// The version of the server, for people.
    pub async fn version(&self) -> Result<String, ApiError> {
        let answer = self.call("GET", "/version", None, || "read the version".to_owned()).await?;
        Ok(answer["gitVersion"].as_str().unwrap_or_default().to_owned())
    }

    async fn text(&self, path: &str) -> Result<String, ApiError> {
        let action = format!("read {path}");
        let request = self.request("GET", path, None, &action)?;
        self.within(&action, self.client.request_text(request)).await
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
        let mut answer: Value = self.within(&action, self.client.request(request)).await?;
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
        request.body(body).map_err(|error| self.error(action, Fault::Invalid, error.to_string()))
    }

    /// Asks for metadata alone, where that is all this plane is read for. A list and what it lists have names of their own.
    fn narrowed(&self, mut request: http::Request<Vec<u8>>, form: HeaderValue) -> http::Request<Vec<u8>> {
        if self.metadata_only {
            request.headers_mut().insert(http::header::ACCEPT, form);
        }
        request
    }

    async fn within<T>(
        &self,
        action: &str,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, ApiError> {
        match tokio::time::timeout(ANSWER_WITHIN, call).await {
            Ok(answer) => answer.map_err(|error| self.failed(action, error)),
            Err(_) => {
                Err(self.error(action, Fault::Unreachable, format!("no answer within {ANSWER_WITHIN:?}")))
            }
        }
    }

    fn failed(&self, action: &str, error: kube::Error) -> ApiError {
        let kube::Error::Api(status) = error else {
            return self.error(action, Fault::Unreachable, chain(&error));
        };
        let fault = match (status.code, status.reason.as_str()) {
            (409, "AlreadyExists") => Fault::AlreadyExists,
            (409, _) => Fault::Conflict,
            (404, _) => Fault::NotFound,
            (410, _) => Fault::Expired,
            (401 | 403, _) => Fault::Forbidden,
            (400..=499, _) if status.code != 408 && status.code != 429 => Fault::Invalid,
            _ => Fault::Unreachable,
        };
        self.error(action, fault, format!("{} ({})", status.message, status.reason))
    }

    fn error(&self, action: &str, fault: Fault, message: String) -> ApiError {
        ApiError { plane: self.name.clone(), action: action.to_owned(), fault, message }
    }
}

#[derive(Deserialize)]
struct Served {
    name: String,
    kind: String,
    namespaced: bool,
}

/// Lists leave out what each item is; managed fields are nobody's business here.
fn named(mut item: Value, kind: &Kind) -> Value {
    object::remove(&mut item, &["metadata", "managedFields"]);
    if let Some(fields) = item.as_object_mut() {
        fields.insert("apiVersion".to_owned(), Value::String(kind.api_version.to_string()));
        fields.insert("kind".to_owned(), Value::String(kind.kind.to_string()));
    }
    item
}

fn escape(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

/// An error with its causes, on one line.
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
