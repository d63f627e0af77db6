//! Benchmark of admission reviews without access reviews.
//!
//! A change of the scale of a Workload is validated against the cities of its project. Prints a table and
//! writes `target/bench/admission.json`. There is no peer in this repository.

use std::time::{Duration, Instant};

use polis_admission::{ProjectResolver, VALIDATE_PATH, Webhook};
use polis_api::crds;
use polis_api::kube::Client;
use polis_api::kube::api::{Api, PostParams};
use polis_api::networking::LocationBinding;
use polis_apiserver::{PlaneSpec, Server};
use polis_engine::{Engine, FixedPlanes, Plane, Watch};
use polis_testing::bench::{BenchTable, percentile};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// Reviews per measurement.
const REVIEWS: usize = 10_000;
/// Concurrent reviews.
const CONCURRENCY: usize = 16;
/// Cities that the project may use.
const CITIES: usize = 50;
/// Target for the 99th percentile, in milliseconds.
const GOAL: f64 = 5.0;

#[tokio::main]
async fn main() {
    let server = Server::builder().build().await.expect("a server");
    server.create_plane(PlaneSpec::standalone("shop")).await.expect("a plane");
    let kind =
        crds::platform().into_iter().find(|file| file.crd["spec"]["names"]["plural"] == "locationbindings");
    server.install_crd_in("shop", &kind.expect("a kind").crd).await.expect("a definition");
    let bindings = Api::<LocationBinding>::all(Client::new(server.plane_service("shop"), "default"));
    for city in 0..CITIES {
        let city = format!("city-{city}");
        let object = json!({"metadata": {"name": city}, "spec": {"locationRef": {"name": city}, "topology": {"topology.datum.net/city-code": city}}});
        let object = serde_json::from_value(object).expect("a binding");
        bindings.create(&PostParams::default(), &object).await.expect("a binding");
    }
    let mut engine = Engine::new();
    let plane =
        Plane::in_process::<_, http_body_util::Full<bytes::Bytes>, _>("shop", server.plane_service("shop"));
    let planes = engine.planes("project", FixedPlanes::new([plane]), [Watch::of::<LocationBinding>()]);
    let handle = engine.handle();
    let webhook = Webhook::new(ProjectResolver::single(planes, "shop"), &handle.registry());
    let stop = CancellationToken::new();
    let running = tokio::spawn(engine.run(stop.clone().cancelled_owned()));
    while !handle.is_ready() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    let mut table = BenchTable::default();
    for (measure, containers, reviews, concurrency) in [
        ("one at a time, 3 containers", 3, REVIEWS, 1),
        ("sixteen at a time, 3 containers", 3, REVIEWS, CONCURRENCY),
        ("one at a time, 1,000 containers", 1000, REVIEWS / 20, 1),
    ] {
        let review = mk_review(containers).to_string();
        let times = run(&webhook, &review, reviews, concurrency).await;
        for (name, share, goal) in
            [("p50", 0.5, None), ("p99", 0.99, Some(GOAL).filter(|_| containers < 1000))]
        {
            table.add(format!("review, {measure}, {name}"), "ms", percentile(&times, share)).goal(goal);
        }
    }
    stop.cancel();
    running.await.expect("ends").expect("no error");
    table.finish("admission");
}

/// The times of this many answers, in milliseconds.
async fn run(webhook: &Webhook, review: &str, reviews: usize, concurrency: usize) -> Vec<f64> {
    let worker = |reviews: usize| {
        let (webhook, review) = (webhook.clone(), review.to_owned());
        tokio::spawn(async move {
            let mut times = Vec::with_capacity(reviews);
            for _ in 0..reviews {
                let started = Instant::now();
                let response = webhook.review(VALIDATE_PATH, review.as_bytes()).await.expect("a response");
                times.push(started.elapsed().as_secs_f64() * 1000.0);
                assert!(response.windows(14).any(|part| part == b"\"allowed\":true"), "{response:?}");
                tokio::task::yield_now().await;
            }
            times
        })
    };
    worker(reviews / 10).await.expect("warmed up");
    let workers: Vec<_> = (0..concurrency).map(|_| worker(reviews / concurrency)).collect();
    let mut times = Vec::new();
    for worker in workers {
        times.extend(worker.await.expect("no panic"));
    }
    times
}

/// A change of scale of a workload with this many containers, each with a volume and ports.
fn mk_review(containers: usize) -> Value {
    let volumes: Vec<Value> = (0..containers)
        .map(|n| json!({"name": format!("v-{n}"), "configMap": {"name": "settings"}}))
        .collect();
    let containers: Vec<Value> = (0..containers)
        .map(|n| {
            json!({"name": format!("c-{n}"), "image": "registry.example.com/team/app:1.2.3", "env": [{"name": "PORT", "value": "8080"}],
                "ports": [{"name": "http", "port": 8080}], "volumeAttachments": [{"name": format!("v-{n}"), "mountPath": "/etc/app"}]})
        })
        .collect();
    let workload = |replicas: i32| {
        json!({"apiVersion": "compute.datumapis.com/v1alpha", "kind": "Workload", "metadata": {"name": "web", "namespace": "default"}, "spec": {
            "template": {"spec": {"volumes": volumes, "networkInterfaces": [{"network": {"name": "blue"}}],
                "runtime": {"resources": {"instanceType": "datumcloud/d1-standard-2"}, "sandbox": {"containers": containers}}}},
            "placements": [{"name": "default", "cityCodes": (0..10).map(|city| format!("city-{city}")).collect::<Vec<_>>(), "scaleSettings": {"minReplicas": replicas}}]}})
    };
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "q-1", "operation": "UPDATE", "namespace": "default", "name": "web", "object": workload(2), "oldObject": workload(1),
        "resource": {"group": "compute.datumapis.com", "version": "v1alpha", "resource": "workloads"}, "userInfo": {"username": "ada"}}})
}
