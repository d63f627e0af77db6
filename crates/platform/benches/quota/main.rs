//! Benchmark of the quota latency: from the claim of an instance until its gate is removed.
//!
//! A cell, its hub, a project and the quota controller run in one process on the embedded API server, in real
//! time. The peer is computed: the same decisions with a cell that polls its claim every second, as cells
//! without a watch do. For each claim it takes the first poll after the grant and adds the same remaining
//! work. Prints a table and writes `target/bench/quota.json`. `POLIS_BENCH_PENDING` sets how many instances
//! wait concurrently (1,000), `POLIS_BENCH_SINGLE` how many one after another (100).

// Shared with the tests, which use more of it.
#[allow(dead_code)]
#[path = "../../tests/platform/cells.rs"]
mod cells;
#[allow(dead_code)]
#[path = "../../tests/platform/env.rs"]
mod env;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use polis_api::ObjectExt;
use polis_api::compute::Instance;
use polis_api::quota::ResourceClaim;
use polis_core::{conditions, gates};
use polis_engine::{Action, Key, Plane, Reconciler, Watch};
use polis_platform::quota::DefaultAllowance;
use polis_testing::bench::{BenchTable, percentile};

use env::TestEnv;

/// Poll interval of a cell without a watch for a new claim.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of each wait.
const WAIT_TIMEOUT: Duration = Duration::from_secs(600);

/// The first observation of each step, by instance.
#[derive(Clone, Default)]
struct Timeline(Arc<Mutex<BTreeMap<String, Timestamps>>>);

#[derive(Clone, Copy, Default)]
struct Timestamps {
    claimed: Option<Instant>,
    granted: Option<Instant>,
    admitted: Option<Instant>,
}

struct ClaimObserver(Plane, Timeline);
struct InstanceObserver(Plane, Timeline);

impl Reconciler for ClaimObserver {
    type Error = polis_engine::Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Self::Error> {
        let now = Instant::now();
        if let Some(claim) = self.0.get::<ResourceClaim>(key)? {
            let name = claim.name().trim_start_matches("instance-").to_owned();
            let granted =
                claim.status.is_some_and(|status| conditions::is_true(&status.conditions, "Granted"));
            let mut timeline = self.1.0.lock();
            let entry = timeline.entry(name).or_default();
            entry.claimed.get_or_insert(now);
            if granted {
                entry.granted.get_or_insert(now);
            }
        }
        Ok(Action::AwaitChange)
    }
}

impl Reconciler for InstanceObserver {
    type Error = polis_engine::Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Self::Error> {
        let now = Instant::now();
        if let Some(instance) = self.0.get::<Instance>(key)?.filter(|i| gates::of(i).is_empty()) {
            self.1.0.lock().entry(instance.name().to_owned()).or_default().admitted.get_or_insert(now);
        }
        Ok(Action::AwaitChange)
    }
}

impl Timeline {
    fn observe(&self, env: &mut TestEnv) {
        let (cell, project) = (env.at("dfw"), env.project("acme"));
        env.start("timeline", |engine| {
            let cell = engine.plane("cell", cell, [Watch::of::<Instance>()]);
            engine
                .controller("instances", &cell, InstanceObserver(cell.clone(), self.clone()))
                .for_kind::<Instance>();
            let project = engine.plane("project", project, [Watch::of::<ResourceClaim>()]);
            engine
                .controller("claims", &project, ClaimObserver(project.clone(), self.clone()))
                .for_kind::<ResourceClaim>();
        });
    }

    async fn until(&self, what: &str, mut done: impl FnMut(&BTreeMap<String, Timestamps>) -> bool) {
        let deadline = Instant::now() + WAIT_TIMEOUT;
        while !done(&self.0.lock()) {
            assert!(Instant::now() < deadline, "timed out waiting for {what}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// The latency of each instance in milliseconds, from its claim or from `since`: measured, and computed
    /// for polling.
    fn waits(&self, since: Option<Instant>) -> (Vec<f64>, Vec<f64>) {
        let (mut measured, mut polled) = (Vec::new(), Vec::new());
        for entry in self.0.lock().values() {
            let (Some(claimed), Some(granted), Some(admitted)) =
                (entry.claimed, entry.granted, entry.admitted)
            else {
                continue; // admitted before the observation started
            };
            let from = since.unwrap_or(claimed);
            let admitted = admitted.max(granted); // two watches deliver in any order
            let polls = (granted - claimed).as_secs() + 1;
            let poll = claimed + POLL_INTERVAL * u32::try_from(polls).unwrap_or(u32::MAX);
            measured.push((admitted - from).as_secs_f64() * 1000.0);
            polled.push((poll + (admitted - granted) - from).as_secs_f64() * 1000.0);
        }
        measured.sort_by(f64::total_cmp);
        polled.sort_by(f64::total_cmp);
        (measured, polled)
    }
}

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn plenty() -> Option<DefaultAllowance> {
    Some(DefaultAllowance { instances: 1 << 20, millicores: 1 << 40, mebibytes: 1 << 40 })
}

async fn mk_env() -> (TestEnv, String, Timeline) {
    let mut env = TestEnv::new(&["dfw"]).await;
    env.start_without_quota();
    env.open("acme").await;
    let hub_namespace = env.hub_namespace("acme", &["dfw"]).await;
    env.start_cell("dfw");
    let timeline = Timeline::default();
    timeline.observe(&mut env);
    (env, hub_namespace, timeline)
}

/// Instances one after another, each after the previous one is admitted.
async fn one_by_one(count: usize) -> (Vec<f64>, Vec<f64>) {
    let (mut env, hub_namespace, timeline) = mk_env().await;
    env.start_quota(plenty());
    for number in 0..count {
        env.deploy("dfw", &hub_namespace, &format!("w{number}"), 1).await;
        let name = format!("w{number}-0");
        let admitted = |timeline: &BTreeMap<String, Timestamps>| {
            timeline.get(&name).is_some_and(|entry| entry.admitted.is_some() && entry.granted.is_some())
        };
        timeline.until(&name, admitted).await;
    }
    timeline.waits(None)
}

/// Instances that are all pending when the quota controller starts.
async fn all_at_once(count: usize) -> (Vec<f64>, Vec<f64>) {
    let (mut env, hub_namespace, timeline) = mk_env().await;
    for number in 0..count {
        env.deploy("dfw", &hub_namespace, &format!("w{number}"), 1).await;
    }
    let claimed = |timeline: &BTreeMap<String, Timestamps>| {
        timeline.values().filter(|entry| entry.claimed.is_some()).count() == count
    };
    timeline.until("all claims", claimed).await;
    let since = Instant::now();
    env.start_quota(plenty());
    let admitted = |timeline: &BTreeMap<String, Timestamps>| {
        timeline.values().filter(|entry| entry.admitted.is_some() && entry.granted.is_some()).count() == count
    };
    timeline.until("all instances admitted", admitted).await;
    timeline.waits(Some(since))
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
    let mut table = BenchTable::default();
    for (measure, (watched, polled), goal) in cases {
        for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
            table
                .add(format!("{measure}, {name}"), "ms", percentile(&watched, share))
                .peer(percentile(&polled, share), "the same decisions, polled every second")
                .goal(goal);
        }
    }
    table.finish("quota");
}
