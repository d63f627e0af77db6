//! How long an answer takes that asks nobody for access.
//!
//! A change of the scale of a workload, judged against the cities of its project: everything but the access reviews. Prints
//! a table and writes `target/bench/admission.json`. There is no peer in this repository.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use polis_admission::{Projects, VALIDATE, Webhook};
use polis_api::crds;
use polis_api::kube::Client;
use polis_api::kube::api::{Api, PostParams};
use polis_api::networking::LocationBinding;
use polis_apiserver::{PlaneSpec, Server};
use polis_engine::{Engine, Fixed, Plane, Watch};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// Answers per measurement.
const ANSWERS: usize = 10_000;
/// Reviews under way at once in the crowd.
const CROWD: usize = 16;
/// Cities that the project may use.
const CITIES: usize = 50;
/// What an answer may take at the 99th percentile, in milliseconds.
const GOAL: f64 = 5.0;

#[tokio::main]
async fn main() {
    let server = Server::builder().build().await.expect("a server");
    server.create_plane(PlaneSpec::own("shop")).await.expect("a plane");
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
    let planes = engine.planes("project", Fixed::new([plane]), [Watch::of::<LocationBinding>()]);
    let handle = engine.handle();
    let webhook = Webhook::new(Projects::single(planes, "shop"), &handle.registry());
    let stop = CancellationToken::new();
    let running = tokio::spawn(engine.run(stop.clone().cancelled_owned()));
    while !handle.is_ready() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    let mut rows = Vec::new();
    for (measure, containers, answers, crowd) in [
        ("one at a time, 3 containers", 3, ANSWERS, 1),
        ("sixteen at a time, 3 containers", 3, ANSWERS, CROWD),
        ("one at a time, 1,000 containers", 1000, ANSWERS / 20, 1),
    ] {
        let review = mk_review(containers).to_string();
        let times = run(&webhook, &review, answers, crowd).await;
        for (percent, goal) in [(50, None), (99, Some(GOAL).filter(|_| containers < 1000))] {
            let took = times[times.len() * percent / 100].as_secs_f64() * 1000.0;
            let measure = format!("answer, {measure}, p{percent}");
            println!(
                "{measure:48} {took:9.3} ms   goal {}",
                goal.map_or("-".to_owned(), |goal: f64| goal.to_string())
            );
            rows.push(json!({"measure": measure, "unit": "ms", "polis": (took * 1000.0).round() / 1000.0, "peer": null, "peer_name": null, "goal": goal, "better": "lower"}));
        }
    }
    stop.cancel();
    running.await.expect("ends").expect("well");
    let folder = target().join("bench");
    std::fs::create_dir_all(&folder).expect("target/bench");
    let file = folder.join("admission.json");
    std::fs::write(&file, serde_json::to_string_pretty(&rows).expect("plain data")).expect("written");
}

/// The times of so many answers, sorted.
async fn run(webhook: &Webhook, review: &str, answers: usize, crowd: usize) -> Vec<Duration> {
    let clerk = |answers: usize| {
        let (webhook, review) = (webhook.clone(), review.to_owned());
        tokio::spawn(async move {
            let mut times = Vec::with_capacity(answers);
            for _ in 0..answers {
                let started = Instant::now();
                let answer = webhook.answer(VALIDATE, review.as_bytes()).await.expect("an answer");
                times.push(started.elapsed());
                assert!(answer.windows(14).any(|part| part == b"\"allowed\":true"), "{answer:?}");
                tokio::task::yield_now().await;
            }
            times
        })
    };
    clerk(answers / 10).await.expect("warmed up");
    let clerks: Vec<_> = (0..crowd).map(|_| clerk(answers / crowd)).collect();
    let mut times = Vec::new();
    for clerk in clerks {
        times.extend(clerk.await.expect("no panic"));
    }
    times.sort();
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

/// The target directory that this binary was built in: three levels up (`release/deps/admission-…`).
fn target() -> PathBuf {
    let program = std::env::current_exe().expect("this program");
    program.ancestors().nth(3).expect("built by cargo").to_path_buf()
}
