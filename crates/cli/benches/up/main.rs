//! Benchmark of `polis up`: start, memory, latency until an instance is shown, workloads per second, and many
//! projects and cells in one process. A real Karmada is measured in the same run if the test bed can start.
//!
//! Prints a table and writes `target/bench/up.json`. The workloads that measure the pipeline have an
//! unavailable image: all steps are made except the start of processes, which would measure the host.
//! Variables: `POLIS_BENCH_WORKLOADS` (3,000), `POLIS_BENCH_PROJECTS` (10,000), `POLIS_BENCH_CELLS` (1,000),
//! `POLIS_BENCH_PEER` (200 objects for Karmada); 0 skips a part.

mod installation;
mod karmada;
mod recorder;

use std::path::Path;
use std::time::{Duration, Instant};

use futures::future::join_all;
use polis_api::compute::{Instance, Workload};
use polis_api::kube::api::{ListParams, PostParams};
use polis_api::kube::{Api, ResourceExt as _};
use polis_api::labels;
use polis_api::milo::Project;
use polis_testing::bench::{BenchTable, percentile};
use serde_json::json;

use installation::{Installation, eventually};
use recorder::Recorder;

const CITIES: [&str; 3] = ["dfw", "ord", "lhr"];
/// Number of starts; the table has their median.
const STARTS: usize = 5;
/// Wait before memory is measured, until the initial syncs are over.
const IDLE_TIME: Duration = Duration::from_secs(10);
/// Workloads created one at a time.
const SINGLE: usize = 100;
/// Workloads created one at a time, with processes.
const PROCESSES: usize = 20;
/// Projects of the workloads that are created at once.
const TENANTS: usize = 20;
/// Concurrent writers.
const WRITERS: usize = 64;
/// Projects in the measurement with many cells.
const PROJECTS_WITH_MANY_CELLS: usize = 20;
/// Objects for Karmada, created one at a time.
const PEER_SINGLE: usize = 20;
/// Objects for Karmada, created at once.
const PEER_MANY: usize = 200;

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn median(figures: &[f64]) -> f64 {
    percentile(figures, 0.5)
}

fn mk_workload(name: &str, city: &str, image: &str) -> Workload {
    serde_json::from_value(json!({
        "apiVersion": "compute.datumapis.com/v1alpha", "kind": "Workload", "metadata": {"name": name},
        "spec": {
            "template": {"spec": {
                "runtime": {
                    "resources": {"instanceType": "datumcloud/d1-standard-2"},
                    "sandbox": {"containers": [{"name": "app", "image": image, "ports": [{"name": "http", "port": 8080}]}]},
                },
                "networkInterfaces": [{"network": {"name": "default"}}],
            }},
            "placements": [{"name": "main", "cityCodes": [city], "scaleSettings": {"minReplicas": 1}}],
        },
    }))
    .expect("a workload")
}

fn has(instance: &Instance, condition: &str) -> bool {
    let conditions = instance.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|found| found.type_ == condition && found.status == "True")
}

/// The workload of an instance that the project shows.
fn shown(instance: &Instance) -> Option<String> {
    instance.labels().get(labels::WORKLOAD_NAME).cloned()
}

fn granted(instance: &Instance) -> Option<String> {
    shown(instance).filter(|_| has(instance, "QuotaGranted"))
}

fn ready(instance: &Instance) -> Option<String> {
    shown(instance).filter(|_| has(instance, "Ready"))
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(measure());
}

async fn measure() {
    let mut table = BenchTable::default();
    let peer = match number("POLIS_BENCH_PEER", PEER_MANY) {
        0 => None,
        many => karmada::measure(PEER_SINGLE, many).await,
    };
    starts(&mut table).await;
    let folder = tempfile::tempdir().expect("a folder");
    let installation = Installation::start(folder.path(), &CITIES.join(",")).await;
    tokio::time::sleep(IDLE_TIME).await;
    table.add("idle memory, three cities", "MiB", installation.resident()).goal(40.0);
    one_by_one(&mut table, &installation, peer.as_ref()).await;
    let workloads = number("POLIS_BENCH_WORKLOADS", 3000);
    if workloads > 0 {
        all_at_once(&mut table, &installation, workloads, peer.as_ref()).await;
    }
    drop(installation);
    let (projects, cells) = (number("POLIS_BENCH_PROJECTS", 10_000), number("POLIS_BENCH_CELLS", 1000));
    if cells > 0 {
        let cities: Vec<String> = (0..cells).map(|number| format!("c{number}")).collect();
        many_planes(&mut table, PROJECTS_WITH_MANY_CELLS, &cities.join(",")).await;
    }
    if projects > 0 {
        many_planes(&mut table, projects, &CITIES.join(",")).await;
    }
    table.finish("up");
}

async fn starts(table: &mut BenchTable) {
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for _ in 0..STARTS {
        let folder = tempfile::tempdir().expect("a folder");
        let start = async |data: &Path| milliseconds(Installation::start(data, &CITIES.join(",")).await.took);
        first.push(start(folder.path()).await);
        second.push(start(folder.path()).await);
    }
    table.add("start to ready, new directory", "ms", median(&first)).goal(1000.0);
    table.add("start to ready, second time", "ms", median(&second)).goal(1000.0);
}

async fn one_by_one(table: &mut BenchTable, installation: &Installation, peer: Option<&karmada::Figures>) {
    installation.raise_quota("default").await;
    let client = installation.client(Some("default"));
    let api: Api<Workload> = Api::namespaced(client.clone(), "default");
    let waits = async |count: usize, prefix: &str, image: &str, name: fn(&Instance) -> Option<String>| {
        let recorder = Recorder::on::<Instance>(client.clone(), name).await;
        let mut waits = Vec::new();
        for number in 0..count {
            let workload = mk_workload(&format!("{prefix}-{number}"), CITIES[number % CITIES.len()], image);
            let began = Instant::now();
            api.create(&PostParams::default(), &workload).await.expect("creates the workload");
            waits.push(milliseconds(recorder.one(&workload.name_any()).await - began));
        }
        waits
    };
    let shown_after = waits(SINGLE, "single", "bench.invalid/none", shown).await;
    let ready_after = waits(PROCESSES, "process", "polis.local/hello", ready).await;
    let measure = "create a Workload → its instance shows in the project, p50";
    table
        .add(measure, "ms", median(&shown_after))
        .peer(peer.map(|peer| peer.latency), karmada::NAME)
        .goal(15.0);
    table.add("the same, p99", "ms", percentile(&shown_after, 0.99));
    table.add("create a Workload → its process is ready, p50", "ms", median(&ready_after));
}

async fn all_at_once(
    table: &mut BenchTable,
    installation: &Installation,
    workloads: usize,
    peer: Option<&karmada::Figures>,
) {
    let platform = installation.client(None);
    let tenants: Vec<String> = (0..TENANTS).map(|number| format!("tenant-{number}")).collect();
    let mut recorders = Vec::new();
    for tenant in &tenants {
        installation.create_project(&platform, tenant).await;
        installation.raise_quota(tenant).await;
        installation.until_usable(tenant, &CITIES).await;
        recorders.push(Recorder::on::<Instance>(installation.client(Some(tenant)), granted).await);
    }
    let apis: Vec<Api<Workload>> =
        tenants.iter().map(|tenant| Api::namespaced(installation.client(Some(tenant)), "default")).collect();
    let began = Instant::now();
    join_all((0..WRITERS).map(async |writer| {
        for number in (writer..workloads).step_by(WRITERS) {
            let city = CITIES[number % CITIES.len()];
            let workload = mk_workload(&format!("many-{number}"), city, "bench.invalid/none");
            apis[number % TENANTS]
                .create(&PostParams::default(), &workload)
                .await
                .expect("creates the workload");
        }
    }))
    .await;
    let taken = began.elapsed();
    let mut last = began;
    for (tenant, recorder) in recorders.iter().enumerate() {
        let count = (tenant..workloads).step_by(TENANTS).count();
        last = last.max(recorder.all(count).await);
    }
    let rate = |time: Duration| workloads as f64 / time.as_secs_f64();
    let measure = format!("{workloads} workloads at once, until all show with their quota");
    table
        .add(measure, "1/s", rate(last - began))
        .peer(peer.map(|peer| peer.rate), karmada::NAME)
        .goal(500.0)
        .higher_is_better();
    table.add("the same, until all are taken", "1/s", rate(taken)).higher_is_better();
    table.add("memory with them", "MiB", installation.resident());
}

/// Measures many projects or many cells in one process. Not both: the local platform binds every city to
/// every project, which would be ten million bindings.
async fn many_planes(table: &mut BenchTable, projects: usize, cities: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let cells = cities.split(',').count();
    let installation = Installation::start(folder.path(), cities).await;
    table.add(format!("start to ready, {cells} cells"), "s", installation.took.as_secs_f64());
    tokio::time::sleep(IDLE_TIME).await;
    let alone = installation.resident();
    table.add(format!("memory, {cells} cells"), "MiB", alone);
    let platform = installation.client(None);
    let began = Instant::now();
    let platform = &platform;
    let installation = &installation;
    join_all((0..WRITERS).map(async |writer| {
        for number in (writer..projects).step_by(WRITERS) {
            installation.create_project(platform, &format!("p{number}")).await;
        }
    }))
    .await;
    let all: Api<Project> = Api::all(platform.clone());
    eventually("every project is ready", async || {
        let all = all.list(&ListParams::default()).await.ok()?;
        let is_ready = |project: &&Project| {
            let conditions = project.status.iter().flat_map(|status| &status.conditions);
            conditions.into_iter().any(|found| found.type_ == "Ready" && found.status == "True")
        };
        (all.iter().filter(is_ready).count() > projects).then_some(())
    })
    .await;
    let took = began.elapsed().as_secs_f64();
    let measure = format!("{projects} projects more with {cells} cities each, until all are ready");
    table.add(measure, "s", took);
    tokio::time::sleep(IDLE_TIME).await;
    table.add("memory with them", "MiB", installation.resident());
    let each = (installation.resident() - alone) * 1024.0 / projects as f64;
    table.add("memory for each project", "KiB", each);
}
