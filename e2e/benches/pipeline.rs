//! How long a workload is on its way to a running instance that its project sees, and what it costs.
//!
//! Project, hub and cells, with the processes of Polis as they are shipped, on the planes that `POLIS_E2E_ON` names. From
//! the creation of a Workload to the moment its Instance is seen in the project, one after another, ten and a hundred at
//! once; the part between the write on the hub and the object in the cell is the federation's own and stands beside it.
//! Then the requests that a workload costs each plane, and memory and processor time of the manager. Prints a table and
//! writes `target/bench/pipeline.json`. `POLIS_BENCH_SINGLE` sets how many come one after another (20).

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use futures::future::join_all;
use polis_e2e::{
    draft::workload,
    eye::{Change, Note},
    project::Project,
    staff::{Member, Role},
    world::{World, alone},
};
use serde_json::{Value, json};

const CITY: &str = "dfw";
/// Longest time that all of a turn may take.
const PATIENCE: Duration = Duration::from_secs(600);
/// What Polis may add to the federation's own time, in milliseconds at the median.
const ADDS: f64 = 15.0;
/// Requests that a workload may cost a plane.
const REQUESTS: f64 = 12.0;

fn main() {
    alone(async |world| {
        let mut rows = Rows::default();
        let manager = world.member(&Role::Management);
        tokio::time::sleep(Duration::from_secs(5)).await;
        let (idle_from, used) = (Instant::now(), Usage::of(&manager));
        tokio::time::sleep(Duration::from_secs(10)).await;
        rows.add("manager, idle: memory", "MiB", Usage::of(&manager).mebibytes, None);
        rows.add("manager, idle: processor", "%", used.share_since(&manager, idle_from), None);

        let singles = std::env::var("POLIS_BENCH_SINGLE").ok().and_then(|n| n.parse().ok()).unwrap_or(20);
        let project = world.project("bench").await;
        let mut alone = Vec::new();
        for number in 0..singles {
            alone.extend(ways(world, &project, number..number + 1).await);
        }
        rows.ways("one after another", &alone, Some(ADDS));
        for count in [10, 100] {
            let (from, used) = (Instant::now(), Usage::of(&manager));
            let project = world.project("bench").await;
            let all = ways(world, &project, 0..count).await;
            rows.ways(&format!("{count} at once"), &all, None);
            rows.add(
                &format!("manager, {count} at once: memory"),
                "MiB",
                Usage::of(&manager).mebibytes,
                None,
            );
            let share = used.share_since(&manager, from);
            rows.add(&format!("manager, {count} at once: processor"), "%", share, None);
            for (plane, requests) in requests(world, &project, from) {
                let each = requests as f64 / count as f64;
                rows.add(
                    &format!("{count} at once: requests per workload, {plane}"),
                    "requests",
                    each,
                    Some(REQUESTS),
                );
            }
        }
        rows.write();
    });
}

/// The way of one workload, in milliseconds.
struct Way {
    whole: f64,
    federation: f64,
}

/// Runs workloads at once and follows each until its instance shows in the project.
async fn ways(world: &World, project: &Project, numbers: std::ops::Range<usize>) -> Vec<Way> {
    let from = Instant::now();
    let names: Vec<String> = numbers.map(|number| format!("w{number:04}")).collect();
    let began = join_all(names.iter().map(async |name| {
        let began = Instant::now();
        project.run(workload(name).placed("main", &[CITY], 1)).await;
        began
    }))
    .await;
    let here = |notes: &[Note], kind: &str, namespace: &str| -> BTreeMap<String, Instant> {
        let came = notes.iter().filter(|note| {
            note.change == Change::Came && note.key.kind == kind && note.key.namespace == namespace
        });
        // Names begin with that of the workload: w0001-dfw-….
        came.map(|note| (note.key.name.split('-').next().unwrap_or_default().to_owned(), note.at)).collect()
    };
    let shown = loop {
        let shown = here(&project.eye.journal(from), "Instance", &project.namespace);
        if names.iter().all(|name| shown.contains_key(name)) {
            break shown;
        }
        assert!(from.elapsed() < PATIENCE, "{} of {} are there", shown.len(), names.len());
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let home = project.hub_namespace();
    let on_hub = here(&world.hub().eye.journal(from), "WorkloadDeployment", &home);
    let in_cell = here(&world.cell(CITY).eye.journal(from), "WorkloadDeployment", &home);
    let way = |(name, began): (&String, Instant)| Way {
        whole: milliseconds(shown[name] - began),
        federation: milliseconds(in_cell[name].saturating_duration_since(on_hub[name])),
    };
    names.iter().zip(began).map(way).collect()
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Requests of all processes about a project, by plane. Those that came late are made again and count.
fn requests(world: &World, project: &Project, from: Instant) -> BTreeMap<String, usize> {
    let namespaces = project.namespaces();
    let mut by_plane = BTreeMap::new();
    for (_, call) in world.calls_since(from) {
        if call.resource != "events" && call.namespace.as_ref().is_some_and(|ns| namespaces.contains(ns)) {
            *by_plane.entry(call.plane).or_default() += 1;
        }
    }
    by_plane
}

/// What a process has used.
#[derive(Default)]
struct Usage {
    mebibytes: f64,
    seconds: f64,
}

impl Usage {
    fn of(member: &Member) -> Usage {
        let Some(pid) = member.pid() else { return Usage::default() };
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kibibytes = resident.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // After the name, which may hold anything, in brackets: state is field 3, utime and stime are 14 and 15.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
        Usage { mebibytes: kibibytes.unwrap_or(0.0) / 1024.0, seconds: (ticks(11) + ticks(12)) / 100.0 }
    }

    fn share_since(&self, member: &Member, from: Instant) -> f64 {
        100.0 * (Usage::of(member).seconds - self.seconds) / from.elapsed().as_secs_f64()
    }
}

#[derive(Default)]
struct Rows(Vec<Value>);

impl Rows {
    fn add(&mut self, measure: &str, unit: &str, polis: f64, goal: Option<f64>) {
        let polis = (polis * 100.0).round() / 100.0;
        println!(
            "{measure:60} {polis:>10.2} {unit}{}",
            goal.map(|goal| format!("  (goal {goal})")).unwrap_or_default()
        );
        self.0.push(json!({
            "measure": measure, "unit": unit, "polis": polis, "peer": null, "peer_name": "none", "goal": goal, "better": "lower",
        }));
    }

    /// The whole way, the federation's part of it, and the rest.
    fn ways(&mut self, title: &str, ways: &[Way], goal: Option<f64>) {
        let part = |take: fn(&Way) -> f64| -> Vec<f64> {
            let mut all: Vec<f64> = ways.iter().map(take).collect();
            all.sort_by(f64::total_cmp);
            all
        };
        let whole = part(|way| way.whole);
        let federation = part(|way| way.federation);
        let added = part(|way| way.whole - way.federation);
        for (name, share) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)] {
            let at = |all: &[f64]| all[((all.len() - 1) as f64 * share).round() as usize];
            self.add(&format!("{title}: create to projection, {name}"), "ms", at(&whole), None);
            self.add(&format!("{title}: of it the federation's own, {name}"), "ms", at(&federation), None);
            let goal = goal.filter(|_| name == "p50");
            self.add(&format!("{title}: of it Polis, {name}"), "ms", at(&added), goal);
        }
    }

    fn write(&self) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench");
        fs::create_dir_all(&folder).expect("a folder");
        let text = serde_json::to_string_pretty(&self.0).expect("rows are JSON");
        fs::write(folder.join("pipeline.json"), text).expect("a file");
    }
}
