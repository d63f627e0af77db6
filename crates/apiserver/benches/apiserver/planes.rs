//! What planes cost: memory of an idle plane with three watchers in the process, of one with objects, and how long a
//! store full of them takes to open.

use std::{path::Path, process::Stdio, time::Instant};

use futures::{StreamExt, future::BoxFuture, stream};
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, api::PostParams};
use polis_apiserver::{Body, PlaneSpec, Server, Storage};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    child::{resident_kib, this_program},
    rows::Rows,
};

/// Watchers of each plane, as the controllers of a project have them.
const WATCHERS: usize = 3;
/// Objects of each plane, of about 0.9 KiB.
const OBJECTS: usize = 30;
/// Writes under way at once.
const ABREAST: usize = 128;

#[derive(Serialize, Deserialize)]
struct Figures {
    /// KiB with one plane, with all, and with objects in all.
    one: u64,
    idle: u64,
    full: u64,
    /// Seconds to make the planes, and the objects.
    planes: f64,
    objects: f64,
}

/// Measures in processes of their own and adds the rows.
pub(crate) fn measure(rows: &mut Rows, planes: u64) {
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
    rows.alone(&about("memory of an idle plane with 3 watchers"), "KiB", each(figures.idle), Some(16.0));
    rows.alone(&about("memory of a plane with 30 objects of 0.9 KiB"), "KiB", each(figures.full), Some(45.0));
    rows.alone(
        &about("time to make one plane, durable"),
        "ms",
        figures.planes * 1000.0 / planes as f64,
        None,
    );
    let objects = planes * OBJECTS as u64;
    rows.alone(
        "time of one of many durable creates, in process",
        "ms",
        figures.objects * 1000.0 / objects as f64,
        None,
    );
    let opened = ask("open");
    rows.alone(
        &format!("start to ready with {objects} objects"),
        "s",
        opened["seconds"].as_f64().expect("a number"),
        Some(3.0),
    );
}

/// The roles of the child: fill a store, or open it.
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
    let mut watches: Vec<Body> = Vec::new();
    found(server, 0).await;
    watches.extend(follow(server, 0).await);
    let one = resident_kib(pid);
    let began = Instant::now();
    stream::iter(1..planes).for_each_concurrent(ABREAST, |n| found(server, n)).await;
    let planes_took = began.elapsed().as_secs_f64();
    for n in 1..planes {
        watches.extend(follow(server, n).await);
    }
    let idle = resident_kib(pid);
    let began = Instant::now();
    let writes = (0..planes).flat_map(|plane| (0..OBJECTS).map(move |object| (plane, object)));
    stream::iter(writes).for_each_concurrent(ABREAST, |(plane, object)| write(server, plane, object)).await;
    let objects_took = began.elapsed().as_secs_f64();
    // The watchers read, as controllers do: what they have not read is buffered for them.
    for body in &mut watches {
        drain(body).await;
    }
    Figures { one, idle, full: resident_kib(pid), planes: planes_took, objects: objects_took }
}

fn name(plane: u64) -> String {
    format!("p{plane}")
}

fn found(server: &Server, plane: u64) -> BoxFuture<'_, ()> {
    Box::pin(async move {
        server.create_plane(PlaneSpec::project(&name(plane), "projects")).await.expect("a plane");
    })
}

/// Three watches of a plane, from the present.
async fn follow(server: &Server, plane: u64) -> Vec<Body> {
    let service = server.project_service(&name(plane));
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

/// Reads what is there and no further.
async fn drain(body: &mut Body) {
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
        let client = Client::new(server.project_service(&name(plane)), "default");
        let api: Api<ConfigMap> = Api::namespaced(client, "default");
        api.create(&PostParams::default(), &map).await.expect("created");
    })
}
