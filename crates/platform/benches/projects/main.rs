//! Benchmark of a thousand projects on one platform: time until they are engaged and served, memory per
//! project, the effect of a flooding project on the others, and leaks after churn.
//!
//! Projects, hub, federation, a cell and all controllers run in one process on the embedded API server, in
//! real time. Each project has a workload that takes the whole path. The memory of a manager is measured in
//! separate processes. There is no peer in this repository; latency with the flood is compared with latency
//! without it. Prints a table and writes `target/bench/projects.json`. `POLIS_BENCH_PROJECTS` sets the number
//! of projects (1,000), `POLIS_BENCH_CHURNED` the number that are created and deleted (200),
//! `POLIS_BENCH_MINUTES` for how long (5), and `POLIS_BENCH_FLOOD` the number of objects in the flooding
//! project (10,000).

// Shared with the tests, which use more of it.
#[allow(dead_code)]
#[path = "../../tests/platform/cells.rs"]
mod cells;
#[allow(dead_code)]
#[path = "../../tests/platform/env.rs"]
mod env;
mod manager;
#[allow(dead_code)]
#[path = "../../tests/platform/many_projects.rs"]
mod many_projects;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use polis_api::compute::Workload;
use polis_api::milo::Project;
use polis_engine::Plane;

use manager::ServedPlanes;
use many_projects::{TestPlatform, tenant};
use polis_testing::PlaneExt as _;
use polis_testing::bench::{BenchTable, percentile};
use polis_testing::builders::mk_workload;

/// The allocator of the product, because the memory of a manager is measured here.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Projects that are created concurrently.
const BATCH: usize = 50;
/// Rounds of churn after which every project has been in every group.
const CYCLE: usize = 5;
/// Scale-ups that are timed, without and with the flood.
const PROBES: usize = 60;

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Milliseconds from a change of scale until all instances are projected, sorted, for one project after
/// another.
async fn probe(platform: &mut TestPlatform, names: &[String]) -> Vec<f64> {
    let mut times = Vec::new();
    for name in names {
        let started = Instant::now();
        platform.scale(name, 3 - platform.tenants[name].replicas).await;
        while !platform.is_served(name).await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        times.push(started.elapsed().as_secs_f64() * 1000.0);
    }
    times
}

/// Edits workloads without a pause until `stop` is set. Returns the number of edits.
async fn edit(junk: Plane, count: usize, stop: Arc<AtomicBool>) -> usize {
    let mut edits = 0;
    while !stop.load(Ordering::Relaxed) {
        let name = format!("junk-{}", edits % count);
        let change_replicas = |workload: &mut Workload| {
            let settings = &mut workload.spec.placements[0].scale_settings;
            settings.min_replicas = 3 - settings.min_replicas;
        };
        junk.change::<Workload>(("default", name.as_str()), change_replicas).await;
        edits += 1;
    }
    edits
}

async fn run() {
    let count = number("POLIS_BENCH_PROJECTS", 1000);
    let (churned, minutes) = (number("POLIS_BENCH_CHURNED", 200), number("POLIS_BENCH_MINUTES", 5));
    let junk = number("POLIS_BENCH_FLOOD", 10_000);
    let mut table = BenchTable::default();
    let mut platform = TestPlatform::new(&["dfw"]).await;
    let names: Vec<String> = (0..count).map(tenant).collect();

    // Memory per project in a manager, first without and then with a workload. The baseline has a single
    // project, so that all code is loaded.
    let planes = ServedPlanes::serve(platform.env.cluster.server()).await;
    let started = Instant::now();
    for batch in names.chunks(BATCH) {
        platform.create_projects(batch).await;
    }
    table.add(format!("{count} projects created and ready"), "s", started.elapsed().as_secs_f64());
    let mark = |project: &mut Project| {
        project.metadata.labels.get_or_insert_default().insert("bench".into(), "one".into());
    };
    platform.env.at("").change::<Project>(names[0].as_str(), mark).await;
    let one = planes.measure(Some("bench=one")).await;
    let idle = planes.measure(None).await;
    assert_eq!((one.engaged, idle.engaged), (1, count));
    let each = |all: f64| (all - one.resident) / (count - 1) as f64;
    table.add("a manager with one idle project", "KiB", one.resident);
    table.add("an idle project in a manager", "KiB", each(idle.resident)).goal(10.0);

    let started = Instant::now();
    for batch in names.chunks(BATCH) {
        platform.create_workloads(batch).await;
    }
    platform.served(&names).await;
    table.add(format!("{count} workloads created and served"), "s", started.elapsed().as_secs_f64());
    platform.check_no_leaks().await;
    let busy = planes.measure(None).await;
    assert_eq!(busy.engaged, count);
    table.add(format!("{count} projects engaged"), "s", busy.time).goal(10.0);
    table.add("a project with a workload in a manager", "KiB", each(busy.resident));

    let probed = &names[..PROBES.min(count)];
    let baseline = probe(&mut platform, probed).await;
    let flooding = tenant(count);
    platform.open([flooding.clone()]).await;
    let plane = platform.plane(&flooding);
    let workloads: Vec<Workload> =
        (0..junk).map(|number| mk_workload("default", &format!("junk-{number}"), &["nowhere"])).collect();
    for batch in workloads.chunks(BATCH) {
        join_all(batch.iter().map(|workload| plane.create(workload))).await;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let editing = tokio::spawn(edit(plane, junk, stop.clone()));
    let flooded = probe(&mut platform, probed).await;
    stop.store(true, Ordering::Relaxed);
    let edits = editing.await.expect("no panic");
    for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
        let measure = format!("scaled and served beside {junk} objects and {edits} edits, {name}");
        table
            .add(measure, "ms", percentile(&flooded, share))
            .peer(percentile(&baseline, share), "the same without the flood");
    }
    platform.close(std::slice::from_ref(&flooding)).await;
    platform.tenants.remove(&flooding);

    // Some tasks start with the first event, so one full cycle runs before the tasks are counted.
    let group = &names[..churned.min(count)];
    for round in 0..CYCLE {
        platform.churn(group, round).await;
    }
    platform.served(&names).await;
    let tasks = platform.check_quiescence().await;
    let (started, mut rounds) = (Instant::now(), 0);
    while started.elapsed() < Duration::from_secs(60 * minutes as u64) {
        platform.churn(group, rounds).await;
        rounds += 1;
    }
    platform.served(&names).await;
    println!("{rounds} rounds over {} projects in {:.0?}", group.len(), started.elapsed());
    platform.check_no_leaks().await;
    let grown = platform.check_quiescence().await as f64 - tasks as f64;
    table.add(format!("tasks more than before, after {rounds} rounds"), "tasks", grown).goal(0.0);

    let started = Instant::now();
    platform.close(group).await;
    let took = started.elapsed().as_secs_f64();
    table.add(format!("{} projects with workloads deleted", group.len()), "s", took);
    let deleted: Vec<String> = group.to_vec();
    platform.tenants.retain(|name, _| !deleted.contains(name));
    platform.check_no_leaks().await;
    println!("no objects of deleted projects on hub and cell");
    table.finish("projects");
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.get(1).is_some_and(|role| role == manager::ROLE) {
        return manager::run(&arguments[2..]);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(run());
}
