//! The load of both servers: sequential requests for latency, concurrent ones for throughput.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use futures::{StreamExt, future::join_all, stream::FuturesUnordered};
use http::Request;
use http_body_util::BodyExt;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, WatchEvent, WatchParams},
    client::Body,
};
use polis_testing::bench::percentile;
use serde_json::{Value, json};

/// Concurrent clients of the throughput measurement.
pub(crate) const CLIENTS: usize = 64;
/// Connections that the clients share. kube-apiserver allows 100 streams per connection.
pub(crate) const CONNECTIONS: usize = 12;
/// Watchers of one collection.
pub(crate) const WATCHERS: usize = 1000;
/// Requests of the latency measurement.
const ALONE: usize = 300;
/// Writes of the fan-out measurement.
const SPREADS: usize = 20;
/// Objects in the listed namespace.
const LISTED: usize = 500;

const KINDS: &str = "/apis/bench.example.com/v1/namespaces";

/// Latency in milliseconds, and requests per second.
pub(crate) struct Verb {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) rate: f64,
}

pub(crate) struct Figures {
    pub(crate) verbs: BTreeMap<&'static str, Verb>,
    /// Milliseconds from a write until the last watcher has its event, p50.
    pub(crate) fan_out: f64,
}

pub(crate) struct Load {
    clients: Vec<Client>,
    serial: AtomicU64,
}

fn mk_definition() -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "things.bench.example.com"}, "spec": {
        "group": "bench.example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
        "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}}, "schema": {"openAPIV3Schema": {"type": "object", "properties": {
            "spec": {"type": "object", "properties": {"n": {"type": "integer"}, "text": {"type": "string"}, "on": {"type": "boolean", "default": true}}},
            "status": {"type": "object", "properties": {"n": {"type": "integer"}}}}}}}]}})
}

/// An object of about 0.9 KiB as stored.
fn mk_thing(name: &str, n: u64) -> Value {
    json!({"apiVersion": "bench.example.com/v1", "kind": "Thing", "metadata": {"name": name, "labels": {"app": "bench"}}, "spec": {"n": n, "text": format!("{n:0>400}")}})
}

impl Load {
    /// Creates the CRD and the namespaces, and waits until the kind is served.
    pub(crate) async fn new(clients: Vec<Client>) -> Self {
        let load = Self { clients, serial: AtomicU64::new(0) };
        let post = |path: &str, body: &Value| load.request("POST", path.to_owned(), body.clone());
        post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &mk_definition()).await;
        for namespace in ["bench", "listed", "watched"] {
            let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
            post("/api/v1/namespaces", &object).await;
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        while load.request("POST", format!("{KINDS}/bench/things"), mk_thing("first", 0)).await != 201 {
            assert!(Instant::now() < deadline, "the kind is not served");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        for n in 0..LISTED as u64 {
            let thing = mk_thing(&format!("t{n}"), n);
            assert_eq!(load.request("POST", format!("{KINDS}/listed/things"), thing).await, 201);
        }
        load
    }

    /// Sends one request and reads the whole response.
    async fn request(&self, method: &str, path: String, body: Value) -> u16 {
        let n = self.serial.fetch_add(1, Ordering::Relaxed);
        let client = &self.clients[n as usize % self.clients.len()];
        let content = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content)
            .body(Body::from(body))
            .expect("a request");
        let response = client.send(request).await.expect("a response");
        let code = response.status().as_u16();
        response.into_body().collect().await.expect("a body");
        code
    }

    /// One request of a verb. `who` separates the objects of concurrent clients.
    async fn once(&self, verb: &str, who: usize) {
        let n = self.serial.fetch_add(1, Ordering::Relaxed);
        let all = format!("{KINDS}/bench/things");
        let own = format!("{all}/w{who}");
        let code = match verb {
            "create" => self.request("POST", all, mk_thing(&format!("c{n}"), n)).await,
            "update" => self.request("PATCH", own, json!({"spec": {"n": n}})).await,
            "status" => self.request("PATCH", format!("{own}/status"), json!({"status": {"n": n}})).await,
            "get" => self.request("GET", own, Value::Null).await,
            _ => self.request("GET", format!("{KINDS}/listed/things"), Value::Null).await,
        };
        assert!(code < 300, "{verb} got {code}");
    }

    pub(crate) async fn run(self, seconds: Duration) -> Figures {
        for who in 0..CLIENTS {
            let thing = mk_thing(&format!("w{who}"), 0);
            assert_eq!(self.request("POST", format!("{KINDS}/bench/things"), thing).await, 201);
        }
        let mut verbs = BTreeMap::new();
        for verb in ["create", "update", "status", "get", "list of 500"] {
            let alone = if verb == "list of 500" { ALONE / 3 } else { ALONE };
            let mut latencies = Vec::with_capacity(alone);
            for _ in 0..alone {
                let began = Instant::now();
                self.once(verb, 0).await;
                latencies.push(began.elapsed().as_secs_f64() * 1000.0);
            }
            let end = Instant::now() + seconds;
            let began = Instant::now();
            let counts = join_all((0..CLIENTS).map(async |who| {
                let mut count = 0_u64;
                while Instant::now() < end {
                    self.once(verb, who).await;
                    count += 1;
                }
                count
            }))
            .await;
            let rate = counts.iter().sum::<u64>() as f64 / began.elapsed().as_secs_f64();
            verbs.insert(
                verb,
                Verb { p50: percentile(&latencies, 0.5), p99: percentile(&latencies, 0.99), rate },
            );
        }
        Figures { verbs, fan_out: self.fan_out().await }
    }

    async fn fan_out(&self) -> f64 {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("bench.example.com", "v1", "Thing"));
        let thing = mk_thing("seen", 0);
        assert_eq!(self.request("POST", format!("{KINDS}/watched/things"), thing).await, 201);
        let every = WatchParams::default();
        let watches = join_all((0..WATCHERS).map(async |n| {
            let client = self.clients[n % self.clients.len()].clone();
            let api: Api<DynamicObject> = Api::namespaced_with(client, "watched", &resource);
            let mut events = api.watch(&every, "0").await.expect("a watch").boxed();
            // The existing object: the watch is established.
            events.next().await.expect("an event").expect("an event");
            events
        }))
        .await;
        let mut watches = watches;
        let mut spreads = Vec::new();
        for n in 1..=SPREADS as u64 {
            let began = Instant::now();
            let write =
                self.request("PATCH", format!("{KINDS}/watched/things/seen"), json!({"spec": {"n": n}}));
            let mut arrivals: FuturesUnordered<_> = watches
                .iter_mut()
                .map(async |events| {
                    loop {
                        match events.next().await {
                            Some(Ok(WatchEvent::Modified(thing))) => {
                                break assert_eq!(thing.data["spec"]["n"], n);
                            }
                            Some(Ok(WatchEvent::Bookmark(_))) => {}
                            other => panic!("a watch got {other:?}"),
                        }
                    }
                })
                .collect();
            let (code, ()) = tokio::join!(write, async { while arrivals.next().await.is_some() {} });
            assert_eq!(code, 200);
            spreads.push(began.elapsed().as_secs_f64() * 1000.0);
        }
        percentile(&spreads, 0.5)
    }
}
