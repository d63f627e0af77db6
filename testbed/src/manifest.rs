//! Objects put on a plane, and waiting until they serve.

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
const PAUSE: Duration = Duration::from_millis(50);
/// Time for a plane to do what it was asked.
pub const WITHIN: Duration = Duration::from_secs(180);

/// Objects of a YAML text that may hold several documents.
pub fn read(name: &str, text: &str) -> Result<Vec<Value>, Error> {
    serde_saphyr::from_multiple(text)
        .map_err(|err| Error::Manifest { name: name.to_owned(), why: err.to_string() })
}

/// Puts an object on a plane, whatever is there already. The name of the kind in paths is guessed, as its plural.
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

/// Puts kinds on a plane and waits until each can be listed.
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
    until(plane, &format!("{plural}.{group} to be served"), WITHIN, async || {
        let request = http::Request::get(&path).body(Vec::new()).expect("a path of plain words");
        seen(client.request_text(request).await).map(|_| Some(()))
    })
    .await
}

/// What was seen last, when a condition is not true yet.
pub type Seen<T> = Result<Option<T>, String>;

/// Asks again and again until there is an answer. `Ok(None)` and `Err` both mean: not yet.
pub async fn until<T, F>(
    plane: &str,
    what: &str,
    within: Duration,
    mut look: impl FnMut() -> F,
) -> Result<T, Error>
where
    F: Future<Output = Seen<T>>,
{
    let start = Instant::now();
    loop {
        let last = match look().await {
            Ok(Some(answer)) => return Ok(answer),
            Ok(None) => "not yet".to_owned(),
            Err(why) => why,
        };
        if start.elapsed() > within {
            let (what, plane) = (what.to_owned(), plane.to_owned());
            return Err(Error::Waited { seconds: within.as_secs(), what, plane, last });
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The reading of an answer from a plane: an error is what was seen last.
pub fn seen<T>(answer: Result<T, impl fmt::Display>) -> Result<T, String> {
    answer.map_err(|err| err.to_string())
}
