//! How long an instance waits for its quota: from its claim to the moment its gate is dropped.
//!
//! A cell, its hub, a project and the quota stand-in, in one process on the embedded API server, in real time. The peer is
//! what the same decisions would have come to with a cell that looks at its claim every second, as cells without a watch
//! do: for each claim the first such look after the grant was there, and then the same work. Prints a table and writes `target/bench/quota.json`.
//! `POLIS_BENCH_PENDING` sets how many wait at once (1,000), `POLIS_BENCH_SINGLE` how many one after another (100).

// The world of the tests has more words than a benchmark speaks.
#[allow(dead_code)]
#[path = "../../tests/platform/cells.rs"]
mod cells;
#[allow(dead_code)]
#[path = "../../tests/platform/line.rs"]
mod line;
#[allow(dead_code)]
#[path = "../../tests/platform/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use polis_api::compute::Instance;
use polis_api::quota::ResourceClaim;
use polis_core::{conditions, gates, owner};
use polis_engine::{Key, Outcome, Plane, Reconciler, Watch};
use polis_platform::quota::Allowance;
use serde_json::{Value, json};

use world::World;

/// How often a cell without a watch looks at a young claim.
const LOOK: Duration = Duration::from_secs(1);
/// Longest time that anything here may take.
const PATIENCE: Duration = Duration::from_secs(600);

/// When things were first seen.
#[derive(Clone, Default)]
struct Diary(Arc<Mutex<BTreeMap<String, Entry>>>);

#[derive(Clone, Copy, Default)]
struct Entry {
    claimed: Option<Instant>,
    granted: Option<Instant>,
    let_in: Option<Instant>,
}

struct SeesClaims(Plane, Diary);
struct SeesInstances(Plane, Diary);

impl Reconciler for SeesClaims {
    type Error = polis_engine::Error;

    async fn reconcile(&self, key: &Key) -> Result<Outcome, Self::Error> {
        let now = Instant::now();
        if let Some(claim) = self.0.get::<ResourceClaim>(key)? {
            let name = owner::name(&claim.metadata).trim_start_matches("instance-").to_owned();
            let granted =
                claim.status.is_some_and(|status| conditions::is_true(&status.conditions, "Granted"));
            let mut diary = self.1.0.lock();
            let entry = diary.entry(name).or_default();
            entry.claimed.get_or_insert(now);
            if granted {
                entry.granted.get_or_insert(now);
            }
        }
        Ok(Outcome::Settled)
    }
}

impl Reconciler for SeesInstances {
    type Error = polis_engine::Error;

    async fn reconcile(&self, key: &Key) -> Result<Outcome, Self::Error> {
        let now = Instant::now();
        if let Some(instance) = self.0.get::<Instance>(key)?.filter(|i| gates::of(i).is_empty()) {
            self.1
                .0
                .lock()
                .entry(owner::name(&instance.metadata).to_owned())
                .or_default()
                .let_in
                .get_or_insert(now);
        }
        Ok(Outcome::Settled)
    }
}

impl Diary {
    fn look(&self, world: &mut World) {
        let (cell, project) = (world.at("dfw"), world.project("acme"));
        world.start("diary", |engine| {
            let cell = engine.plane("cell", cell, [Watch::of::<Instance>()]);
            engine.controller("instances", &cell, SeesInstances(cell.clone(), self.clone())).on::<Instance>();
            let project = engine.plane("project", project, [Watch::of::<ResourceClaim>()]);
            engine
                .controller("claims", &project, SeesClaims(project.clone(), self.clone()))
                .on::<ResourceClaim>();
        });
    }

    async fn until(&self, what: &str, mut done: impl FnMut(&BTreeMap<String, Entry>) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done(&self.0.lock()) {
            assert!(Instant::now() < deadline, "gave up waiting for {what}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Milliseconds that each waited, from its claim or from `since`: as it was, and as it would have been by looking.
    fn waits(&self, since: Option<Instant>) -> (Vec<f64>, Vec<f64>) {
        let (mut seen, mut looked) = (Vec::new(), Vec::new());
        for entry in self.0.lock().values() {
            let (Some(claimed), Some(granted), Some(let_in)) = (entry.claimed, entry.granted, entry.let_in)
            else {
                continue; // let in before this diary was opened
            };
            let from = since.unwrap_or(claimed);
            let let_in = let_in.max(granted); // two watches may tell of them in either order
            let looks = (granted - claimed).as_secs() + 1;
            let look = claimed + LOOK * u32::try_from(looks).unwrap_or(u32::MAX);
            seen.push((let_in - from).as_secs_f64() * 1000.0);
            looked.push((look + (let_in - granted) - from).as_secs_f64() * 1000.0);
        }
        seen.sort_by(f64::total_cmp);
        looked.sort_by(f64::total_cmp);
        (seen, looked)
    }
}

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn plenty() -> Option<Allowance> {
    Some(Allowance { instances: 1 << 20, millicores: 1 << 40, mebibytes: 1 << 40 })
}

async fn mk_world() -> (World, String, Diary) {
    let mut world = World::new(&["dfw"]).await;
    world.start_but_quota();
    world.open("acme").await;
    let home = world.home("acme", &["dfw"]).await;
    world.start_cell("dfw");
    let diary = Diary::default();
    diary.look(&mut world);
    (world, home, diary)
}

/// Instances that come one after another, each when the one before is let in.
async fn one_by_one(count: usize) -> (Vec<f64>, Vec<f64>) {
    let (mut world, home, diary) = mk_world().await;
    world.start_quota(plenty());
    for number in 0..count {
        world.deploy("dfw", &home, &format!("w{number}"), 1).await;
        let name = format!("w{number}-0");
        let let_in = |diary: &BTreeMap<String, Entry>| {
            diary.get(&name).is_some_and(|entry| entry.let_in.is_some() && entry.granted.is_some())
        };
        diary.until(&name, let_in).await;
    }
    diary.waits(None)
}

/// Instances that all wait when the quota service begins to decide.
async fn all_at_once(count: usize) -> (Vec<f64>, Vec<f64>) {
    let (mut world, home, diary) = mk_world().await;
    for number in 0..count {
        world.deploy("dfw", &home, &format!("w{number}"), 1).await;
    }
    let claimed = |diary: &BTreeMap<String, Entry>| {
        diary.values().filter(|entry| entry.claimed.is_some()).count() == count
    };
    diary.until("all claims", claimed).await;
    let since = Instant::now();
    world.start_quota(plenty());
    let let_in = |diary: &BTreeMap<String, Entry>| {
        diary.values().filter(|entry| entry.let_in.is_some() && entry.granted.is_some()).count() == count
    };
    diary.until("all to be let in", let_in).await;
    diary.waits(Some(since))
}

fn percentile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * share).round() as usize).copied().unwrap_or_default()
}

fn main() {
    let (single, pending) = (number("POLIS_BENCH_SINGLE", 100), number("POLIS_BENCH_PENDING", 1000));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let cases = [
        ("claim → gate dropped, 1 pending".to_owned(), runtime.block_on(one_by_one(single)), Some(100.0)),
        (
            format!("quota service starts → gate dropped, {pending} pending"),
            runtime.block_on(all_at_once(pending)),
            None,
        ),
    ];
    let mut rows: Vec<Value> = Vec::new();
    println!("{:60} {:>10} {:>10}", "measure", "polis ms", "peer ms");
    for (measure, (seen, looked), goal) in cases {
        for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
            let (polis, peer) = (percentile(&seen, share), percentile(&looked, share));
            println!("{:60} {polis:>10.1} {peer:>10.1}", format!("{measure}, {name}"));
            rows.push(json!({
                "measure": format!("{measure}, {name}"), "unit": "ms", "polis": polis, "peer": peer,
                "peer_name": "the same decisions, looked at every second", "goal": goal, "better": "lower",
            }));
        }
    }
    // Three levels up from `release/deps/quota-…`.
    let program = std::env::current_exe().expect("this program");
    let folder = program.ancestors().nth(3).expect("built by cargo").join("bench");
    std::fs::create_dir_all(&folder).expect("a folder for the figures");
    let text = serde_json::to_string_pretty(&rows).expect("plain JSON");
    std::fs::write(folder.join("quota.json"), text + "\n").expect("the figures can be written");
}
