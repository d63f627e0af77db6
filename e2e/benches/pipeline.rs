//! Latency and cost of the pipeline, from a Workload to the projection of its Instance.
//!
//! Project, hub and cells, with the shipped processes, on the planes of `POLIS_E2E_ON`. Measures the time
//! from the creation of a Workload to its Instance in the project: one after another, ten at once and a
//! hundred at once. The time between the write on the hub and the object in the cell belongs to the
//! federation and is listed separately. Then the requests per workload and plane, and memory and CPU of the
//! manager. Prints a table and writes `target/bench/pipeline.json`. `POLIS_BENCH_SINGLE` sets the number of
//! sequential workloads (20).

use std::{
    collections::BTreeMap,
    fs,
    time::{Duration, Instant},
};

use futures::future::join_all;
use polis_e2e::{
    builders::workload,
    manager_process::{ManagerProcess, Role},
    project::Project,
    recorder::{ObjectChange, RecordedChange},
    world::{World, disruptive_scenario},
};
use polis_testing::bench::{BenchTable, percentile};

const CITY: &str = "dfw";
/// Timeout of a batch.
const BATCH_TIMEOUT: Duration = Duration::from_secs(600);
/// Goal for the latency without the federation's part, in milliseconds, p50.
const LATENCY_GOAL: f64 = 15.0;
/// Goal for the requests per workload and plane.
const REQUESTS_GOAL: f64 = 12.0;

fn main() {
    disruptive_scenario(async |world| {
        let mut table = BenchTable::default();
        let manager = world.process(&Role::Management);
        tokio::time::sleep(Duration::from_secs(5)).await;
        let (idle_from, used) = (Instant::now(), Usage::of(&manager));
        tokio::time::sleep(Duration::from_secs(10)).await;
        table.add("manager, idle: memory", "MiB", Usage::of(&manager).mebibytes);
        table.add("manager, idle: processor", "%", used.share_since(&manager, idle_from));

        let singles = std::env::var("POLIS_BENCH_SINGLE").ok().and_then(|n| n.parse().ok()).unwrap_or(20);
        let project = world.project("bench").await;
        let mut sequential = Vec::new();
        for number in 0..singles {
            sequential.extend(latencies(world, &project, number..number + 1).await);
        }
        add_latencies(&mut table, "one after another", &sequential, Some(LATENCY_GOAL));
        for count in [10, 100] {
            let (from, used) = (Instant::now(), Usage::of(&manager));
            let project = world.project("bench").await;
            let all = latencies(world, &project, 0..count).await;
            add_latencies(&mut table, &format!("{count} at once"), &all, None);
            table.add(format!("manager, {count} at once: memory"), "MiB", Usage::of(&manager).mebibytes);
            let share = used.share_since(&manager, from);
            table.add(format!("manager, {count} at once: processor"), "%", share);
            for (plane, requests) in requests(world, &project, from) {
                let each = requests as f64 / count as f64;
                table
                    .add(format!("{count} at once: requests per workload, {plane}"), "requests", each)
                    .goal(REQUESTS_GOAL);
            }
        }
        table.finish("pipeline");
    });
}

/// The latency of one workload, in milliseconds.
struct Latency {
    whole: f64,
    federation: f64,
}

/// Creates workloads at once and waits for the projection of each instance.
async fn latencies(world: &World, project: &Project, numbers: std::ops::Range<usize>) -> Vec<Latency> {
    let from = Instant::now();
    let names: Vec<String> = numbers.map(|number| format!("w{number:04}")).collect();
    let started = join_all(names.iter().map(async |name| {
        let started = Instant::now();
        project.run(workload(name).placed("main", &[CITY], 1)).await;
        started
    }))
    .await;
    let added = |entries: &[RecordedChange], kind: &str, namespace: &str| -> BTreeMap<String, Instant> {
        let added = entries.iter().filter(|entry| {
            entry.change == ObjectChange::Added && entry.key.kind == kind && entry.key.namespace == namespace
        });
        // Names start with the name of the workload: w0001-dfw-….
        added
            .map(|entry| (entry.key.name.split('-').next().unwrap_or_default().to_owned(), entry.at))
            .collect()
    };
    let projected = loop {
        let projected = added(&project.recorder.journal(from), "Instance", &project.namespace);
        if names.iter().all(|name| projected.contains_key(name)) {
            break projected;
        }
        assert!(from.elapsed() < BATCH_TIMEOUT, "{} of {} are projected", projected.len(), names.len());
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let hub_namespace = project.hub_namespace();
    let on_hub = added(&world.hub().recorder.journal(from), "WorkloadDeployment", &hub_namespace);
    let in_cell = added(&world.cell(CITY).recorder.journal(from), "WorkloadDeployment", &hub_namespace);
    let latency = |(name, started): (&String, Instant)| Latency {
        whole: milliseconds(projected[name] - started),
        federation: milliseconds(in_cell[name].saturating_duration_since(on_hub[name])),
    };
    names.iter().zip(started).map(latency).collect()
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Requests of all processes for a project, by plane, including conflicts.
fn requests(world: &World, project: &Project, from: Instant) -> BTreeMap<String, usize> {
    let namespaces = project.namespaces();
    let mut by_plane = BTreeMap::new();
    for (_, request) in world.requests_since(from) {
        if request.resource != "events"
            && request.namespace.as_ref().is_some_and(|ns| namespaces.contains(ns))
        {
            *by_plane.entry(request.plane).or_default() += 1;
        }
    }
    by_plane
}

/// Memory and CPU time of a process.
#[derive(Default)]
struct Usage {
    mebibytes: f64,
    seconds: f64,
}

impl Usage {
    fn of(process: &ManagerProcess) -> Usage {
        let Some(pid) = process.pid() else { return Usage::default() };
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kibibytes = resident.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The fields after the program name in parentheses: state is field 3, utime and stime are 14 and 15.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
        Usage { mebibytes: kibibytes.unwrap_or(0.0) / 1024.0, seconds: (ticks(11) + ticks(12)) / 100.0 }
    }

    fn share_since(&self, process: &ManagerProcess, from: Instant) -> f64 {
        100.0 * (Usage::of(process).seconds - self.seconds) / from.elapsed().as_secs_f64()
    }
}

/// Adds the whole latency, the federation's part of it, and the rest.
fn add_latencies(table: &mut BenchTable, title: &str, latencies: &[Latency], goal: Option<f64>) {
    let part = |take: fn(&Latency) -> f64| -> Vec<f64> { latencies.iter().map(take).collect() };
    let whole = part(|latency| latency.whole);
    let federation = part(|latency| latency.federation);
    let polis = part(|latency| latency.whole - latency.federation);
    for (name, share) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)] {
        table.add(format!("{title}: create to projection, {name}"), "ms", percentile(&whole, share));
        table.add(
            format!("{title}: of it the federation's own, {name}"),
            "ms",
            percentile(&federation, share),
        );
        let goal = goal.filter(|_| name == "p50");
        table.add(format!("{title}: of it Polis, {name}"), "ms", percentile(&polis, share)).goal(goal);
    }
}
