//! `polis up` in figures, as its user meets it: start, memory, how soon an instance shows, workloads a second, and many
//! projects and cells in one process. Beside it, in the same run, a real Karmada where one can be had.
//!
//! Prints a table and writes `target/bench/up.json`. Workloads of the pipeline's figures have an image that cannot be
//! had, so that everything happens but the start of processes, which would measure the host. Numbers to set:
//! `POLIS_BENCH_WORKLOADS` (3,000), `POLIS_BENCH_PROJECTS` (10,000), `POLIS_BENCH_CELLS` (1,000), `POLIS_BENCH_PEER` (200
//! objects for Karmada); 0 leaves a part out.

mod eye;
mod karmada;
mod rows;
mod site;

use std::path::Path;
use std::time::{Duration, Instant};

use futures::future::join_all;
use polis_api::compute::{Instance, Workload};
use polis_api::kube::api::{ListParams, PostParams};
use polis_api::kube::{Api, ResourceExt as _};
use polis_api::labels;
use polis_api::milo::Project;
use serde_json::json;

use eye::Eye;
use rows::{HIGHER, LOWER, Rows};
use site::{Site, eventually};

const CITIES: [&str; 3] = ["dfw", "ord", "lhr"];
/// Starts of which the median counts.
const STARTS: usize = 5;
/// Until memory is looked at: the first resyncs and all that a start leaves behind are over.
const REST: Duration = Duration::from_secs(10);
/// Workloads one after the other.
const SINGLE: usize = 100;
/// The same as real processes.
const PROCESSES: usize = 20;
/// Projects that the many workloads are spread over, and writers at once.
const TENANTS: usize = 20;
const WRITERS: usize = 64;
/// Projects beside many cells.
const FEW: usize = 20;
/// Objects for Karmada, one after the other and at once.
const PEER_SINGLE: usize = 20;
const PEER_MANY: usize = 200;

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn percentile(figures: &mut [f64], share: f64) -> f64 {
    figures.sort_by(f64::total_cmp);
    let last = figures.len().saturating_sub(1);
    figures.get((last as f64 * share).round() as usize).copied().unwrap_or_default()
}

fn median(figures: &mut [f64]) -> f64 {
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
    let run = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    run.block_on(measure());
}

async fn measure() {
    let mut rows = Rows::default();
    let peer = match number("POLIS_BENCH_PEER", PEER_MANY) {
        0 => None,
        many => karmada::measure(PEER_SINGLE, many).await,
    };
    starts(&mut rows).await;
    let folder = tempfile::tempdir().expect("a folder");
    let site = Site::start(folder.path(), &CITIES.join(",")).await;
    tokio::time::sleep(REST).await;
    rows.alone("idle memory, three cities", "MiB", site.resident(), Some(40.0), LOWER);
    one_by_one(&mut rows, &site, peer.as_ref()).await;
    let workloads = number("POLIS_BENCH_WORKLOADS", 3000);
    if workloads > 0 {
        all_at_once(&mut rows, &site, workloads, peer.as_ref()).await;
    }
    drop(site);
    let (projects, cells) = (number("POLIS_BENCH_PROJECTS", 10_000), number("POLIS_BENCH_CELLS", 1000));
    if cells > 0 {
        let cities: Vec<String> = (0..cells).map(|number| format!("c{number}")).collect();
        crowd(&mut rows, FEW, &cities.join(",")).await;
    }
    if projects > 0 {
        crowd(&mut rows, projects, &CITIES.join(",")).await;
    }
    rows.finish("up");
}

async fn starts(rows: &mut Rows) {
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for _ in 0..STARTS {
        let folder = tempfile::tempdir().expect("a folder");
        let start = async |data: &Path| milliseconds(Site::start(data, &CITIES.join(",")).await.took);
        first.push(start(folder.path()).await);
        second.push(start(folder.path()).await);
    }
    rows.alone("start to ready, new directory", "ms", median(&mut first), Some(1000.0), LOWER);
    rows.alone("start to ready, second time", "ms", median(&mut second), Some(1000.0), LOWER);
}

async fn one_by_one(rows: &mut Rows, site: &Site, peer: Option<&karmada::Figures>) {
    site.give_plenty("default").await;
    let client = site.client(Some("default"));
    let api: Api<Workload> = Api::namespaced(client.clone(), "default");
    let waits = async |count: usize, prefix: &str, image: &str, name: fn(&Instance) -> Option<String>| {
        let eye = Eye::on::<Instance>(client.clone(), name).await;
        let mut waits = Vec::new();
        for number in 0..count {
            let workload = mk_workload(&format!("{prefix}-{number}"), CITIES[number % CITIES.len()], image);
            let began = Instant::now();
            api.create(&PostParams::default(), &workload).await.expect("a workload");
            waits.push(milliseconds(eye.one(&workload.name_any()).await - began));
        }
        waits
    };
    let mut seen = waits(SINGLE, "single", "bench.invalid/none", shown).await;
    let mut ran = waits(PROCESSES, "process", "polis.local/hello", ready).await;
    let figures = (peer.map(|peer| peer.latency), peer.map(|_| karmada::NAME));
    let measure = "create a Workload → its instance shows in the project, p50";
    rows.beside(measure, "ms", median(&mut seen), figures, Some(15.0), LOWER);
    rows.alone("the same, p99", "ms", percentile(&mut seen, 0.99), None, LOWER);
    rows.alone("create a Workload → its process is ready, p50", "ms", median(&mut ran), None, LOWER);
}

async fn all_at_once(rows: &mut Rows, site: &Site, workloads: usize, peer: Option<&karmada::Figures>) {
    let platform = site.client(None);
    let tenants: Vec<String> = (0..TENANTS).map(|number| format!("tenant-{number}")).collect();
    let mut eyes = Vec::new();
    for tenant in &tenants {
        site.create_project(&platform, tenant).await;
        site.give_plenty(tenant).await;
        site.until_usable(tenant, &CITIES).await;
        eyes.push(Eye::on::<Instance>(site.client(Some(tenant)), granted).await);
    }
    let apis: Vec<Api<Workload>> =
        tenants.iter().map(|tenant| Api::namespaced(site.client(Some(tenant)), "default")).collect();
    let began = Instant::now();
    join_all((0..WRITERS).map(async |writer| {
        for number in (writer..workloads).step_by(WRITERS) {
            let city = CITIES[number % CITIES.len()];
            let workload = mk_workload(&format!("many-{number}"), city, "bench.invalid/none");
            apis[number % TENANTS].create(&PostParams::default(), &workload).await.expect("a workload");
        }
    }))
    .await;
    let taken = began.elapsed();
    let mut last = began;
    for (tenant, eye) in eyes.iter().enumerate() {
        let count = (tenant..workloads).step_by(TENANTS).count();
        last = last.max(eye.all(count).await);
    }
    let rate = |time: Duration| workloads as f64 / time.as_secs_f64();
    let figures = (peer.map(|peer| peer.rate), peer.map(|_| karmada::NAME));
    let measure = format!("{workloads} workloads at once, until all show with their quota");
    rows.beside(&measure, "1/s", rate(last - began), figures, Some(500.0), HIGHER);
    rows.alone("the same, until all are taken", "1/s", rate(taken), None, HIGHER);
    rows.alone("memory with them", "MiB", site.resident(), None, LOWER);
}

/// Many projects or many cells in one process. Not both: the platform's stand-in binds every city to every project, which
/// would be ten million bindings.
async fn crowd(rows: &mut Rows, projects: usize, cities: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let cells = cities.split(',').count();
    let site = Site::start(folder.path(), cities).await;
    rows.alone(&format!("start to ready, {cells} cells"), "s", site.took.as_secs_f64(), None, LOWER);
    tokio::time::sleep(REST).await;
    let alone = site.resident();
    rows.alone(&format!("memory, {cells} cells"), "MiB", alone, None, LOWER);
    let platform = site.client(None);
    let began = Instant::now();
    let platform = &platform;
    let site = &site;
    join_all((0..WRITERS).map(async |writer| {
        for number in (writer..projects).step_by(WRITERS) {
            site.create_project(platform, &format!("p{number}")).await;
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
    rows.alone(&measure, "s", took, None, LOWER);
    tokio::time::sleep(REST).await;
    rows.alone("memory with them", "MiB", site.resident(), None, LOWER);
    let each = (site.resident() - alone) * 1024.0 / projects as f64;
    rows.alone("memory for each project", "KiB", each, None, LOWER);
}
