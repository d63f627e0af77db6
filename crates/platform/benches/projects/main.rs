//! A thousand projects on one platform: how soon they are seen and served, what one costs, whether a bad one slows the
//! others, and whether anything is left of those that went.
//!
//! Projects, hub, federation, a cell and all controllers run in one process on the embedded API server, in real time. Each
//! project has a workload that goes the whole way. What a project costs a manager is measured in managers that are
//! processes of their own. There is no peer in this repository; the flood is measured beside the calm before it. Prints a table and writes `target/bench/projects.json`. `POLIS_BENCH_PROJECTS` sets how many (1,000),
//! `POLIS_BENCH_CHURNED` how many of them come and go (200), `POLIS_BENCH_MINUTES` for how long (5), and
//! `POLIS_BENCH_FLOOD` how much the bad one has (10,000 objects).

// The world of the tests has more words than a benchmark speaks.
#[allow(dead_code)]
#[path = "../../tests/platform/cells.rs"]
mod cells;
#[allow(dead_code)]
#[path = "../../tests/platform/line.rs"]
mod line;
mod manager;
#[allow(dead_code)]
#[path = "../../tests/platform/many.rs"]
mod many;
mod rows;
#[allow(dead_code)]
#[path = "../../tests/platform/world.rs"]
mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use polis_api::compute::Workload;
use polis_api::milo::Project;
use polis_engine::Plane;

use cells::mk_workload;
use manager::Door;
use many::{Town, tenant};
use rows::Rows;
use world::change;

/// The allocator of the program, since a manager is measured here.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Projects that are opened at once.
const BATCH: usize = 50;
/// Rounds of churn after which everything has happened to every project.
const CYCLE: usize = 5;
/// Scale-ups that are timed, calm and beside the flood.
const PROBES: usize = 60;

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Milliseconds from a change of scale to the moment that the project sees all of it, sorted, for one project after
/// another.
async fn probe(town: &mut Town, names: &[String]) -> Vec<f64> {
    let mut times = Vec::new();
    for name in names {
        let started = Instant::now();
        town.scale(name, 3 - town.tenants[name].replicas).await;
        while !town.is_served(name).await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        times.push(started.elapsed().as_secs_f64() * 1000.0);
    }
    times.sort_by(f64::total_cmp);
    times
}

fn percentile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * share).round() as usize).copied().unwrap_or_default()
}

/// Edits junk without a pause until it is told to stop; tells how often.
async fn edit(junk: Plane, count: usize, stop: Arc<AtomicBool>) -> usize {
    let mut edits = 0;
    while !stop.load(Ordering::Relaxed) {
        let name = format!("junk-{}", edits % count);
        let other = |workload: &mut Workload| {
            let settings = &mut workload.spec.placements[0].scale_settings;
            settings.min_replicas = 3 - settings.min_replicas;
        };
        change::<Workload>(&junk, ("default", name.as_str()), other).await;
        edits += 1;
    }
    edits
}

async fn run() {
    let count = number("POLIS_BENCH_PROJECTS", 1000);
    let (churned, minutes) = (number("POLIS_BENCH_CHURNED", 200), number("POLIS_BENCH_MINUTES", 5));
    let junk = number("POLIS_BENCH_FLOOD", 10_000);
    let mut rows = Rows::default();
    let mut town = Town::new(&["dfw"]).await;
    let names: Vec<String> = (0..count).map(tenant).collect();

    // What a project costs a manager, with nothing in it and then with a workload. The one that it is compared with has a
    // single project, so that all of its code is in memory.
    let door = Door::open(&town.world.server).await;
    let started = Instant::now();
    for batch in names.chunks(BATCH) {
        town.found(batch).await;
    }
    rows.add(&format!("{count} projects made and ready"), "s", started.elapsed().as_secs_f64(), None, None);
    let mark = |project: &mut Project| {
        project.metadata.labels.get_or_insert_default().insert("bench".into(), "one".into());
    };
    change::<Project>(&town.world.at(""), names[0].as_str(), mark).await;
    let one = door.measure(Some("bench=one")).await;
    let idle = door.measure(None).await;
    assert_eq!((one.engaged, idle.engaged), (1, count));
    let each = |all: f64| (all - one.resident) / (count - 1) as f64;
    rows.add("a manager with one idle project", "KiB", one.resident, None, None);
    rows.add("an idle project in a manager", "KiB", each(idle.resident), None, Some(10.0));

    let started = Instant::now();
    for batch in names.chunks(BATCH) {
        town.furnish(batch).await;
    }
    town.served(&names).await;
    rows.add(&format!("{count} workloads made and served"), "s", started.elapsed().as_secs_f64(), None, None);
    town.is_tidy().await;
    let busy = door.measure(None).await;
    assert_eq!(busy.engaged, count);
    rows.add(&format!("{count} projects engaged"), "s", busy.time, None, Some(10.0));
    rows.add("a project with a workload in a manager", "KiB", each(busy.resident), None, None);

    let probed = &names[..PROBES.min(count)];
    let calm = probe(&mut town, probed).await;
    let bad = tenant(count);
    town.open([bad.clone()]).await;
    let plane = town.plane(&bad);
    let workloads: Vec<Workload> =
        (0..junk).map(|number| mk_workload(&format!("junk-{number}"), &["nowhere"])).collect();
    for batch in workloads.chunks(BATCH) {
        join_all(batch.iter().map(|workload| plane.create(workload))).await;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let hot = tokio::spawn(edit(plane, junk, stop.clone()));
    let flooded = probe(&mut town, probed).await;
    stop.store(true, Ordering::Relaxed);
    let edits = hot.await.expect("no panic");
    for (word, share) in [("p50", 0.5), ("p99", 0.99)] {
        let beside = Some((percentile(&calm, share), "the same without the flood"));
        let measure = format!("scaled and served beside {junk} objects and {edits} edits, {word}");
        rows.add(&measure, "ms", percentile(&flooded, share), beside, None);
    }
    town.close(std::slice::from_ref(&bad)).await;
    town.tenants.remove(&bad);

    // Whoever tells of things has a task from the first thing on: everything has happened once before tasks are counted.
    let group = &names[..churned.min(count)];
    for round in 0..CYCLE {
        town.churn(group, round).await;
    }
    town.served(&names).await;
    let tasks = town.rests().await;
    let (started, mut rounds) = (Instant::now(), 0);
    while started.elapsed() < Duration::from_secs(60 * minutes as u64) {
        town.churn(group, rounds).await;
        rounds += 1;
    }
    town.served(&names).await;
    println!("{rounds} rounds over {} projects in {:.0?}", group.len(), started.elapsed());
    town.is_tidy().await;
    let grown = town.rests().await as f64 - tasks as f64;
    rows.add(&format!("tasks more than before, after {rounds} rounds"), "tasks", grown, None, Some(0.0));

    let started = Instant::now();
    town.close(group).await;
    let took = started.elapsed().as_secs_f64();
    rows.add(&format!("{} projects with workloads deleted", group.len()), "s", took, None, None);
    let gone: Vec<String> = group.to_vec();
    town.tenants.retain(|name, _| !gone.contains(name));
    town.is_tidy().await;
    println!("nothing is left of them on hub and cell");
    rows.write();
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.get(1).is_some_and(|role| role == manager::ROLE) {
        return manager::run(&arguments[2..]);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(run());
}
