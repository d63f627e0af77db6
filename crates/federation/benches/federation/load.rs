//! What is done to a federation, whoever it is, and what comes of it.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use parking_lot::Mutex;
use polis_api::kube::core::WatchEvent;
use polis_federation::planes::{Api, Kind};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

pub(crate) const CONFIG_MAP: Kind = Kind::known("v1", "ConfigMap", "configmaps", true);
pub(crate) const NAMESPACE: Kind = Kind::known("v1", "Namespace", "namespaces", false);
pub(crate) const POLICY: Kind =
    Kind::known("policy.karmada.io/v1alpha1", "PropagationPolicy", "propagationpolicies", true);
/// Where everything happens.
pub(crate) const SHOP: &str = "shop";
/// Longest time that anything here may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1800);
/// Writes to the hub at once in a burst.
const WRITERS: usize = 16;
/// Pause between objects that come one after another: longer than either federation has work for.
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

/// How many requests a federation has made so far.
pub(crate) trait Counts {
    /// Requests per object among them that are the benchmark's own.
    const OURS: f64;

    fn requests(&self) -> impl Future<Output = f64>;
}

/// Half a kilobyte, as objects of this kind tend to have.
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

/// What was seen of the objects of the shop on a member: when each last changed, and its text.
type Seen = BTreeMap<String, (Instant, Value)>;

/// A pair of eyes on a member. It keeps little of what it sees, so that what is measured is not its own memory.
pub(crate) struct Arrivals {
    seen: Arc<Mutex<Seen>>,
    changed: Arc<Notify>,
    eye: JoinHandle<()>,
}

impl Drop for Arrivals {
    fn drop(&mut self) {
        self.eye.abort();
    }
}

impl Arrivals {
    pub(crate) async fn on(member: &Api) -> Self {
        let (seen, changed) = (Arc::new(Mutex::new(Seen::new())), Arc::new(Notify::new()));
        let (items, version) = member.list(&CONFIG_MAP).await.expect("a list");
        for item in &items {
            note(&seen, item, true);
        }
        let (member, notes, tell) = (member.clone(), seen.clone(), changed.clone());
        let eye = tokio::spawn(async move {
            let watched = member.watch(&CONFIG_MAP, &version, 3600).await.expect("a watch");
            let mut events = std::pin::pin!(watched);
            while let Some(event) = events.next().await {
                match event.expect("an event") {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => note(&notes, &object, true),
                    WatchEvent::Deleted(object) => note(&notes, &object, false),
                    _ => continue,
                }
                tell.notify_one();
            }
        });
        Self { seen, changed, eye }
    }

    /// Waits until what was seen is as it should be.
    pub(crate) async fn until(&self, holds: impl Fn(&Seen) -> bool) {
        let wait = async {
            while !holds(&self.seen.lock()) {
                self.changed.notified().await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.expect("the federation gets there");
    }

    pub(crate) async fn arrival(&self, name: &str) -> Instant {
        self.until(|seen| seen.contains_key(name)).await;
        self.seen.lock()[name].0
    }
}

fn note(seen: &Mutex<Seen>, object: &Value, there: bool) {
    if object["metadata"]["namespace"] != SHOP {
        return;
    }
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    match there {
        true => drop(seen.lock().insert(name, (Instant::now(), object["data"]["text"].clone()))),
        false => drop(seen.lock().remove(&name)),
    }
}

/// Makes many objects at once.
pub(crate) async fn burst(hub: &Api, base: &str, count: usize) {
    futures::stream::iter(0..count)
        .for_each_concurrent(WRITERS, |n| async move {
            let object = mk_object(&format!("{base}-{n}"), "first");
            hub.create(&CONFIG_MAP, &object).await.unwrap_or_else(|error| panic!("{error}"));
        })
        .await;
}

/// Gives an object another text: reads it and writes it.
pub(crate) async fn change(hub: &Api, name: &str) {
    let mut object = hub.get(&CONFIG_MAP, SHOP, name).await.expect("an answer").expect("the object");
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
    settled(counts).await;

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
    settled(counts).await;
    // What would have been asked anyway is not the objects' doing.
    let anyway = idle / 10.0 * begun.elapsed().as_secs_f64();
    let requests = (counts.requests().await - before - anyway) / single as f64 - C::OURS;
    waits.sort_by(f64::total_cmp);

    let (before, begun) = (counts.requests().await, Instant::now());
    for n in 0..single {
        let name = format!("one-{n}");
        change(hub, &name).await;
        arrivals.until(|seen| seen[&name].1 == "second").await;
    }
    settled(counts).await;
    let anyway = idle / 10.0 * begun.elapsed().as_secs_f64();
    let change = (counts.requests().await - before - anyway) / single as f64 - 2.0 * C::OURS;

    let begun = Instant::now();
    burst(hub, "burst", many).await;
    arrivals.until(|seen| seen.len() > single + many).await;
    let rate = many as f64 / begun.elapsed().as_secs_f64();
    Figures { p50: waits[waits.len() / 2], p99: waits[waits.len() * 99 / 100], rate, requests, change, idle }
}

/// Waits until a federation makes hardly any requests.
async fn settled(counts: &impl Counts) {
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
