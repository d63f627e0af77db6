//! What several tests share: a running engine, waiting for a condition, objects.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use polis_api::k8s_openapi::api::core::v1::ConfigMap;
use polis_engine::{Clock, Engine, Error, Handle, Key, Outcome, Plane, Random, Reconciler};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::stand_in::StandIn;

/// An engine at work. Stops when told to, or when dropped.
pub struct Running {
    pub handle: Handle,
    stop: CancellationToken,
    task: Option<tokio::task::JoinHandle<Result<(), Error>>>,
}

impl Running {
    pub fn start(engine: Engine) -> Self {
        let (handle, stop) = (engine.handle(), CancellationToken::new());
        let task = tokio::spawn(engine.run(stop.clone().cancelled_owned()));
        Self { handle, stop, task: Some(task) }
    }

    pub async fn stop(mut self) {
        self.stop.cancel();
        self.task.take().unwrap().await.unwrap().unwrap();
    }

    pub async fn ready(&self) {
        eventually("every plane is engaged", || self.handle.is_ready()).await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// An engine for a paused clock: same seed, same run.
pub fn mk_engine(seed: u64) -> Engine {
    Engine::with(Clock::anchored("2026-01-01T00:00:00Z".parse().unwrap()), Random::from_seed(seed))
}

/// Waits until a condition holds; half an hour on a paused clock, which costs nothing, or one minute on a real one.
pub async fn eventually(what: &str, condition: impl Fn() -> bool) {
    eventually_within(what, Duration::from_secs(60), condition).await;
}

pub async fn eventually_within(what: &str, time: Duration, condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(tokio::time::timeout(time, waiting).await.is_ok(), "not within {time:?}: {what}");
}

/// Notes the keys it is given and does nothing else.
#[derive(Clone, Default)]
pub struct Notebook(pub Arc<Mutex<Vec<String>>>);

impl Notebook {
    pub fn keys(&self) -> Vec<String> {
        self.0.lock().clone()
    }

    pub fn clear(&self) {
        self.0.lock().clear();
    }
}

impl Reconciler for Notebook {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Outcome, Error> {
        self.0.lock().push(key.to_string());
        Ok(Outcome::Settled)
    }
}

/// A reconciler made of a function.
pub struct Doing<F>(pub F);

impl<F, R> Reconciler for Doing<F>
where
    F: Fn(Key) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Outcome, Error>> + Send,
{
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Outcome, Error> {
        (self.0)(key.clone()).await
    }
}

pub fn mk_map(namespace: &str, name: &str, data: &str) -> Value {
    json!({"metadata": {"namespace": namespace, "name": name}, "data": {"value": data}})
}

/// The ConfigMaps that a plane's cache has, as `namespace/name=value`.
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

/// The ConfigMaps that the server has, likewise.
pub fn served(server: &StandIn, plane: &str) -> Vec<String> {
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
