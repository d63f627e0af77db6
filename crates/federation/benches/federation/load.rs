//! The load on a federation and its measurements, independent of the implementation.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use parking_lot::Mutex;
use polis_api::kube::Client;
use polis_api::kube::core::WatchEvent;
use polis_engine::ResourceScope::{Cluster, Namespaced};
use polis_engine::{Error, Kind, Plane};
use polis_testing::bench::percentile;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

pub(crate) static CONFIG_MAP: Kind = Kind::known("", "v1", "ConfigMap", "configmaps", Namespaced);
pub(crate) static NAMESPACE: Kind = Kind::known("", "v1", "Namespace", "namespaces", Cluster);
pub(crate) static POLICY: Kind =
    Kind::known("policy.karmada.io", "v1alpha1", "PropagationPolicy", "propagationpolicies", Namespaced);
/// The namespace of all objects.
pub(crate) const SHOP: &str = "shop";
/// Timeout of a wait.
pub(crate) const WAIT_TIMEOUT: Duration = Duration::from_secs(1800);
/// Concurrent writes to the hub in a burst.
const WRITERS: usize = 16;
/// Delay between single objects; longer than either federation needs for one.
const GAP: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) rate: f64,
    pub(crate) requests: f64,
    pub(crate) change: f64,
    pub(crate) idle: f64,
}

/// The number of requests of a federation.
pub(crate) trait Counts {
    /// Requests per object that the benchmark itself makes.
    const OURS: f64;

    fn requests(&self) -> impl Future<Output = f64>;
}

/// A client of one plane.
#[derive(Clone)]
pub(crate) struct Api {
    client: Client,
    plane: Plane,
}

impl Api {
    pub(crate) fn new(name: &str, client: Client) -> Self {
        Self { plane: Plane::from_kube_client(name, client.clone()), client }
    }

    pub(crate) async fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Result<Option<Value>, Error> {
        self.plane.untyped(kind).read((namespace, name)).await
    }

    pub(crate) async fn create(&self, kind: &Kind, object: &Value) -> Result<(), Error> {
        self.plane.untyped(kind).create(object).await.map(drop)
    }

    pub(crate) async fn replace(&self, kind: &Kind, object: &Value) -> Result<(), Error> {
        self.plane.untyped(kind).update(object).await.map(drop)
    }

    fn request(path: &str) -> http::Request<Vec<u8>> {
        http::Request::get(path).body(Vec::new()).expect("a request")
    }
}

/// A typical object of half a kilobyte.
pub(crate) fn mk_object(name: &str, text: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": SHOP, "name": name, "labels": {"bench": "yes"}},
        "data": {"text": text, "more": "x".repeat(400)},
    })
}

pub(crate) fn mk_policy(placement: Value) -> Value {
    let selector =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "labelSelector": {"matchLabels": {"bench": "yes"}}});
    json!({
        "apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy", "metadata": {"namespace": SHOP, "name": "p"},
        "spec": {"resourceSelectors": [selector], "placement": placement},
    })
}

/// The observed objects of the namespace on a member: the time of the last change, and the text.
type Observed = BTreeMap<String, (Instant, Value)>;

/// A watch on a member. It stores little per object, so that its own memory does not affect the measurement.
pub(crate) struct Arrivals {
    observed: Arc<Mutex<Observed>>,
    changed: Arc<Notify>,
    watch: JoinHandle<()>,
}

impl Drop for Arrivals {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl Arrivals {
    pub(crate) async fn on(member: &Api) -> Self {
        let (observed, changed) = (Arc::new(Mutex::new(Observed::new())), Arc::new(Notify::new()));
        let path = "/api/v1/configmaps";
        let list: Value = member.client.request(Api::request(path)).await.expect("a list");
        for item in list["items"].as_array().into_iter().flatten() {
            record(&observed, item, true);
        }
        let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        let path = format!("{path}?watch=true&timeoutSeconds=3600&resourceVersion={version}");
        let (client, objects, notify) = (member.client.clone(), observed.clone(), changed.clone());
        let watch = tokio::spawn(async move {
            let watched = client.request_events::<Value>(Api::request(&path)).await.expect("a watch");
            let mut events = std::pin::pin!(watched);
            while let Some(event) = events.next().await {
                match event.expect("an event") {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                        record(&objects, &object, true)
                    }
                    WatchEvent::Deleted(object) => record(&objects, &object, false),
                    _ => continue,
                }
                notify.notify_one();
            }
        });
        Self { observed, changed, watch }
    }

    /// Waits until the observed objects meet the condition.
    pub(crate) async fn until(&self, holds: impl Fn(&Observed) -> bool) {
        let wait = async {
            while !holds(&self.observed.lock()) {
                self.changed.notified().await;
            }
        };
        tokio::time::timeout(WAIT_TIMEOUT, wait).await.expect("the condition is met in time");
    }

    pub(crate) async fn arrival(&self, name: &str) -> Instant {
        self.until(|observed| observed.contains_key(name)).await;
        self.observed.lock()[name].0
    }
}

fn record(observed: &Mutex<Observed>, object: &Value, exists: bool) {
    if object["metadata"]["namespace"] != SHOP {
        return;
    }
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    match exists {
        true => drop(observed.lock().insert(name, (Instant::now(), object["data"]["text"].clone()))),
        false => drop(observed.lock().remove(&name)),
    }
}

/// Creates many objects concurrently.
pub(crate) async fn burst(hub: &Api, base: &str, count: usize) {
    futures::stream::iter(0..count)
        .for_each_concurrent(WRITERS, |n| async move {
            let object = mk_object(&format!("{base}-{n}"), "first");
            hub.create(&CONFIG_MAP, &object).await.unwrap_or_else(|error| panic!("{error}"));
        })
        .await;
}

/// Changes the text of an object: one read and one write.
pub(crate) async fn change(hub: &Api, name: &str) {
    let mut object = hub.get(&CONFIG_MAP, SHOP, name).await.expect("a response").expect("the object");
    object["data"] = mk_object(name, "second")["data"].clone();
    hub.replace(&CONFIG_MAP, &object).await.expect("changed");
}

pub(crate) async fn measure<C: Counts>(
    hub: &Api,
    member: &Api,
    counts: &C,
    single: usize,
    many: usize,
) -> Figures {
    let arrivals = Arrivals::on(member).await;
    hub.create(&CONFIG_MAP, &mk_object("first", "first")).await.expect("created");
    arrivals.arrival("first").await;
    await_quiescence(counts).await;

    let before = counts.requests().await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let idle = counts.requests().await - before;

    let (before, begun) = (counts.requests().await, Instant::now());
    let mut waits = Vec::new();
    for n in 0..single {
        let name = format!("one-{n}");
        let written = Instant::now();
        hub.create(&CONFIG_MAP, &mk_object(&name, "first")).await.expect("created");
        waits.push((arrivals.arrival(&name).await - written).as_secs_f64() * 1000.0);
        tokio::time::sleep(GAP).await;
    }
    await_quiescence(counts).await;
    // Requests of the idle federation are subtracted.
    let idle_requests = idle / 10.0 * begun.elapsed().as_secs_f64();
    let requests = (counts.requests().await - before - idle_requests) / single as f64 - C::OURS;

    let (before, begun) = (counts.requests().await, Instant::now());
    for n in 0..single {
        let name = format!("one-{n}");
        change(hub, &name).await;
        arrivals.until(|observed| observed[&name].1 == "second").await;
    }
    await_quiescence(counts).await;
    let idle_requests = idle / 10.0 * begun.elapsed().as_secs_f64();
    let change = (counts.requests().await - before - idle_requests) / single as f64 - 2.0 * C::OURS;

    let begun = Instant::now();
    burst(hub, "burst", many).await;
    arrivals.until(|observed| observed.len() > single + many).await;
    let rate = many as f64 / begun.elapsed().as_secs_f64();
    Figures { p50: percentile(&waits, 0.5), p99: percentile(&waits, 0.99), rate, requests, change, idle }
}

/// Waits until a federation makes fewer than 10 requests in 2 s.
async fn await_quiescence(counts: &impl Counts) {
    let mut before = counts.requests().await;
    loop {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let now = counts.requests().await;
        if now - before < 10.0 {
            return;
        }
        before = now;
    }
}
