//! The cost of planes: memory of an idle plane with three watchers and of one with objects, and the time to
//! open a store with many planes.

use std::{path::Path, process::Stdio, time::Instant};

use futures::{StreamExt, future::BoxFuture, stream};
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, api::PostParams};
use polis_apiserver::{PlaneSpec, ResponseBody, Server, Storage, project_plane};
use polis_testing::bench::BenchTable;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::child::{resident_kib, this_program};

/// Watchers of each plane, as the controllers of a project have.
const WATCHERS: usize = 3;
/// Objects of each plane, of about 0.9 KiB.
const OBJECTS: usize = 30;
/// Concurrent writes.
const CONCURRENCY: usize = 128;

#[derive(Serialize, Deserialize)]
struct Figures {
    /// KiB with one plane, with all planes, and with all planes full of objects.
    one: u64,
    idle: u64,
    full: u64,
    /// Seconds to create the planes, and the objects.
    planes: f64,
    objects: f64,
}

/// Measures in child processes and adds the results.
pub(crate) fn measure(table: &mut BenchTable, planes: u64) {
    let folder = tempfile::tempdir().expect("a folder");
    let ask = |role: &str| -> Value {
        let output =
            this_program(&["planes", role, &folder.path().display().to_string(), &planes.to_string()])
                .stderr(Stdio::inherit())
                .output()
                .expect("a process");
        assert!(output.status.success(), "planes {role} failed: {}", output.status);
        serde_json::from_slice(&output.stdout).expect("figures")
    };
    let figures: Figures = serde_json::from_value(ask("fill")).expect("figures");
    let each = |kib: u64| (kib - figures.one) as f64 / (planes - 1) as f64;
    let about = |what: &str| format!("{what}, {planes} planes");
    table.add(about("memory of an idle plane with 3 watchers"), "KiB", each(figures.idle)).goal(16.0);
    table.add(about("memory of a plane with 30 objects of 0.9 KiB"), "KiB", each(figures.full)).goal(45.0);
    table.add(about("time to make one plane, durable"), "ms", figures.planes * 1000.0 / planes as f64);
    let objects = planes * OBJECTS as u64;
    table.add(
        "time of one of many durable creates, in process",
        "ms",
        figures.objects * 1000.0 / objects as f64,
    );
    let opened = ask("open");
    table
        .add(
            format!("start to ready with {objects} objects"),
            "s",
            opened["seconds"].as_f64().expect("a number"),
        )
        .goal(3.0);
}

/// The entry point of the child process: fills a store, or opens it.
pub(crate) async fn run(arguments: &[String]) {
    let (folder, planes): (&Path, u64) = (arguments[1].as_ref(), arguments[2].parse().expect("a number"));
    let open = || Server::builder().storage(Storage::Redb(folder.join("store.redb"))).build();
    if arguments[0] == "open" {
        let began = Instant::now();
        let server = open().await.expect("a server");
        let seconds = began.elapsed().as_secs_f64();
        assert!(server.planes().len() as u64 > planes);
        println!("{}", json!({"seconds": seconds}));
        return;
    }
    let server = open().await.expect("a server");
    println!("{}", serde_json::to_string(&fill(&server, planes).await).expect("plain data"));
}

async fn fill(server: &Server, planes: u64) -> Figures {
    let pid = std::process::id();
    let mut watches: Vec<ResponseBody> = Vec::new();
    create_plane(server, 0).await;
    watches.extend(watch(server, 0).await);
    let one = resident_kib(pid);
    let began = Instant::now();
    stream::iter(1..planes).for_each_concurrent(CONCURRENCY, |n| create_plane(server, n)).await;
    let planes_took = began.elapsed().as_secs_f64();
    for n in 1..planes {
        watches.extend(watch(server, n).await);
    }
    let idle = resident_kib(pid);
    let began = Instant::now();
    let writes = (0..planes).flat_map(|plane| (0..OBJECTS).map(move |object| (plane, object)));
    stream::iter(writes)
        .for_each_concurrent(CONCURRENCY, |(plane, object)| write(server, plane, object))
        .await;
    let objects_took = began.elapsed().as_secs_f64();
    // The watchers read their events, as controllers do.
    for body in &mut watches {
        drain(body).await;
    }
    Figures { one, idle, full: resident_kib(pid), planes: planes_took, objects: objects_took }
}

fn name(plane: u64) -> String {
    format!("p{plane}")
}

fn create_plane(server: &Server, plane: u64) -> BoxFuture<'_, ()> {
    Box::pin(async move {
        server.create_plane(PlaneSpec::project(&name(plane), "projects")).await.expect("a plane");
    })
}

/// Starts three watches of a plane.
async fn watch(server: &Server, plane: u64) -> Vec<ResponseBody> {
    let service = server.plane_service(&project_plane(&name(plane)));
    let mut bodies = Vec::with_capacity(WATCHERS);
    for plural in ["configmaps", "secrets", "serviceaccounts"] {
        let request = http::Request::get(format!("/api/v1/{plural}?watch=1&allowWatchBookmarks=true"))
            .body(http_body_util::Empty::new())
            .expect("a request");
        let response = service.handle(request).await;
        assert_eq!(response.status(), 200);
        bodies.push(response.into_body());
    }
    bodies
}

/// Reads the available frames without waiting.
async fn drain(body: &mut ResponseBody) {
    while let Ok(Some(frame)) = tokio::time::timeout(std::time::Duration::ZERO, body.frame()).await {
        frame.expect("a frame");
    }
}

fn write(server: &Server, plane: u64, object: usize) -> BoxFuture<'_, ()> {
    Box::pin(async move {
        let map: ConfigMap = serde_json::from_value(json!({
            "metadata": {"name": format!("o{object}"), "labels": {"app": "bench"}},
            "data": {"text": format!("{plane:0>300}{object:0>200}")},
        }))
        .expect("a map");
        let client = Client::new(server.plane_service(&project_plane(&name(plane))), "default");
        let api: Api<ConfigMap> = Api::namespaced(client, "default");
        api.create(&PostParams::default(), &map).await.expect("created");
    })
}
