//! Applies objects to a plane and waits until they are served.

use std::{
    fmt,
    future::Future,
    time::{Duration, Instant},
};

use futures::future::try_join_all;
use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::Value;

use crate::Error;

const FIELD_MANAGER: &str = "polis-testbed";
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Default timeout for a condition on a plane.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(180);

/// Parses the objects of a YAML text with one or more documents.
pub fn read(name: &str, text: &str) -> Result<Vec<Value>, Error> {
    serde_saphyr::from_multiple(text)
        .map_err(|err| Error::Manifest { name: name.to_owned(), why: err.to_string() })
}

/// Applies an object to a plane with server-side apply and `force`. The plural of its kind is derived from
/// its name.
pub async fn apply(client: &Client, plane: &str, object: &Value) -> Result<DynamicObject, Error> {
    let unreadable =
        |why: &str| Error::Manifest { name: object["metadata"]["name"].to_string(), why: why.to_owned() };
    let typed: DynamicObject =
        serde_json::from_value(object.clone()).map_err(|err| unreadable(&err.to_string()))?;
    let types = typed.types.as_ref().ok_or_else(|| unreadable("it has no kind"))?;
    let gvk = GroupVersionKind::try_from(types).map_err(|err| unreadable(&err.to_string()))?;
    let kind = ApiResource::from_gvk(&gvk);
    let name = typed.metadata.name.as_deref().ok_or_else(|| unreadable("it has no name"))?;
    let api: Api<DynamicObject> = match &typed.metadata.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &kind),
        None => Api::all_with(client.clone(), &kind),
    };
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let applied = api.patch(name, &params, &Patch::Apply(object)).await;
    applied.map_err(Error::plane(format!("apply {} {name}", gvk.kind), plane))
}

/// Applies CRDs to a plane and waits until each kind can be listed.
pub async fn apply_crds(client: &Client, plane: &str, crds: &[Value]) -> Result<(), Error> {
    try_join_all(crds.iter().map(|crd| apply(client, plane, crd))).await?;
    try_join_all(crds.iter().map(|crd| served(client, plane, crd))).await?;
    Ok(())
}

async fn served(client: &Client, plane: &str, crd: &Value) -> Result<(), Error> {
    let spec = &crd["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let versions = spec["versions"].as_array().cloned().unwrap_or_default();
    let version =
        versions.iter().find(|version| version["served"] == true).map(|version| text(&version["name"]));
    let (group, plural) = (text(&spec["group"]), text(&spec["names"]["plural"]));
    let path = format!("/apis/{group}/{}/{plural}?limit=1", version.unwrap_or_default());
    until(plane, &format!("{plural}.{group} to be served"), DEFAULT_TIMEOUT, async || {
        let request = http::Request::get(&path).body(Vec::new()).expect("the path is a valid URI");
        retryable(client.request_text(request).await).map(|_| Some(()))
    })
    .await
}

/// The result of one poll: `Ok(None)` and `Err` both mean that the condition is not met yet.
pub type PollResult<T> = Result<Option<T>, String>;

/// Polls until the condition is met or the timeout has passed.
pub async fn until<T, F>(
    plane: &str,
    what: &str,
    within: Duration,
    mut poll: impl FnMut() -> F,
) -> Result<T, Error>
where
    F: Future<Output = PollResult<T>>,
{
    let start = Instant::now();
    loop {
        let last = match poll().await {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => "not yet".to_owned(),
            Err(why) => why,
        };
        if start.elapsed() > within {
            let (what, plane) = (what.to_owned(), plane.to_owned());
            return Err(Error::Timeout { seconds: within.as_secs(), what, plane, last });
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Converts the error of a request into the error of a poll, so that the request is retried.
pub fn retryable<T>(result: Result<T, impl fmt::Display>) -> Result<T, String> {
    result.map_err(|err| err.to_string())
}
