//! Test harness: waiting for a condition, test reconcilers and objects.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use polis_api::k8s_openapi::api::core::v1::ConfigMap;
use polis_engine::{Action, Engine, Error, Key, Plane, Random, Reconciler, anchored_clock};
pub use polis_testing::RunningEngine as Running;
use serde_json::{Value, json};

use crate::fake_apiserver::FakeApiServer;

/// An engine for a paused clock, reproducible from the seed.
pub fn mk_engine(seed: u64) -> Engine {
    Engine::with(anchored_clock("2026-01-01T00:00:00Z".parse().unwrap()), Random::from_seed(seed))
}

/// Waits until a condition holds.
pub async fn eventually(expected: &str, condition: impl Fn() -> bool) {
    polis_testing::eventually(expected, async || condition().then_some(())).await;
}

/// Waits until a condition holds, for this time at most.
pub async fn eventually_within(expected: &str, time: Duration, condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(tokio::time::timeout(time, waiting).await.is_ok(), "not within {time:?}: {expected}");
}

/// A reconciler that only records its keys.
#[derive(Clone, Default)]
pub struct KeyRecorder(pub Arc<Mutex<Vec<String>>>);

impl KeyRecorder {
    pub fn keys(&self) -> Vec<String> {
        self.0.lock().clone()
    }

    pub fn clear(&self) {
        self.0.lock().clear();
    }
}

impl Reconciler for KeyRecorder {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        self.0.lock().push(key.to_string());
        Ok(Action::AwaitChange)
    }
}

/// A reconciler that calls a function.
pub struct FnReconciler<F>(pub F);

impl<F, R> Reconciler for FnReconciler<F>
where
    F: Fn(Key) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Action, Error>> + Send,
{
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        (self.0)(key.clone()).await
    }
}

pub fn mk_map(namespace: &str, name: &str, data: &str) -> Value {
    json!({"metadata": {"namespace": namespace, "name": name}, "data": {"value": data}})
}

/// The cached ConfigMaps of a plane, as `namespace/name=value`.
pub fn cached(plane: &Plane) -> Vec<String> {
    let maps = plane.list::<ConfigMap>().unwrap();
    let mut lines: Vec<String> = maps
        .iter()
        .map(|map| {
            let meta = &map.metadata;
            let value = map.data.as_ref().and_then(|data| data.get("value")).cloned().unwrap_or_default();
            let version = meta.resource_version.as_deref().unwrap_or_default();
            format!(
                "{}/{}={value}@{version}",
                meta.namespace.as_deref().unwrap_or_default(),
                meta.name.as_deref().unwrap_or_default()
            )
        })
        .collect();
    lines.sort();
    lines
}

/// The ConfigMaps of the server, in the same form.
pub fn served(server: &FakeApiServer, plane: &str) -> Vec<String> {
    let mut lines: Vec<String> = server
        .objects(plane, "v1", "configmaps")
        .iter()
        .map(|(id, object)| {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            format!(
                "{id}={}@{}",
                text(&object["data"]["value"]),
                text(&object["metadata"]["resourceVersion"])
            )
        })
        .collect();
    lines.sort();
    lines
}
