//! Fairness, counted in turns and not in time: what a project that floods costs the others.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use polis_api::k8s_openapi::api::core::v1::ConfigMap;
use polis_engine::{Error, Key, MiloProjects, Outcome, PlaneSet, Reconciler, Watch};
use serde_json::json;
use tokio::task::yield_now;

use crate::desk::{Running, mk_engine, mk_map};
use crate::stand_in::StandIn;

const MILO: &str = "resourcemanager.miloapis.com/v1alpha1";
const LOUD: &str = "loud";
const CALM: [&str; 5] = ["calm-0", "calm-1", "calm-2", "calm-3", "calm-4"];
/// Objects of the loud project.
const FLOOD: usize = 3_000;
/// Every so many-th of them is garbage.
const GARBAGE: usize = 50;
/// Edits after which the loud project gives up, so that a test which fails also ends.
const EDITS: usize = 5 * FLOOD;
/// Passes over the loud project while all others get one: the one at work, its turn among theirs, and those that go by
/// while the change is on its way through the watches.
const BOUND: usize = 2 * (CALM.len() + 1);

fn mk_platform() -> StandIn {
    let server = StandIn::usual();
    server.serve(MILO, "projects", "Project");
    for name in CALM.iter().chain([&LOUD]) {
        let status = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        server.put("", MILO, "projects", json!({"metadata": {"name": name}, "status": status}));
    }
    server
}

/// Works on what it is given; each pass over the loud project edits it once more.
struct Works {
    server: StandIn,
    /// As often as this.
    edits: usize,
    projects: Arc<Mutex<Option<PlaneSet>>>,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    loud: AtomicUsize,
    calm: Mutex<BTreeSet<String>>,
}

impl Reconciler for Works {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Outcome, Error> {
        if key.plane.as_str() != LOUD {
            self.seen.calm.lock().insert(key.plane.to_string());
            return Ok(Outcome::Settled);
        }
        let pass = self.seen.loud.fetch_add(1, Ordering::SeqCst);
        if pass < self.edits {
            let (name, value) = (format!("junk-{}", pass * 7 % FLOOD), pass.to_string());
            self.server.put(LOUD, "v1", "configmaps", mk_junk(&name, &value));
        }
        let projects = self.projects.lock().clone().expect("told before it works");
        projects.plane(key)?.get::<ConfigMap>(key)?;
        Ok(Outcome::Settled)
    }
}

fn mk_junk(name: &str, value: &str) -> serde_json::Value {
    let mut junk = mk_map("default", name, value);
    let number: usize = name.trim_start_matches("junk-").parse().expect("a number");
    if number.is_multiple_of(GARBAGE) {
        junk["data"] = json!(["no", "map"]);
    }
    junk
}

/// An engine with one worker, and how far it has come.
fn mk_running(server: &StandIn, edits: usize) -> (Running, Arc<Seen>) {
    let mut engine = mk_engine(1);
    engine.workers(1);
    let projects =
        engine.planes("projects", MiloProjects::new(server.plane("root")), [Watch::of::<ConfigMap>()]);
    let (told, seen) = (Arc::new(Mutex::new(Some(projects.clone()))), Arc::default());
    let works = Works { server: server.clone(), edits, projects: told, seen: Arc::clone(&seen) };
    engine.controller("works", &projects, works).on::<ConfigMap>();
    (Running::start(engine), seen)
}

/// Waits in turns of the runtime: a paused clock stands still while anybody has work.
async fn until(condition: impl Fn() -> bool) {
    while !condition() {
        yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_project_that_floods_costs_the_others_a_few_turns_each() {
    let server = mk_platform();
    for number in 0..FLOOD {
        server.put(LOUD, "v1", "configmaps", mk_junk(&format!("junk-{number}"), "new"));
    }
    let (running, seen) = mk_running(&server, EDITS);
    until(|| running.handle.is_ready() && seen.loud.load(Ordering::SeqCst) > 100).await;
    for round in 0..50 {
        seen.calm.lock().clear();
        let before = seen.loud.load(Ordering::SeqCst);
        for name in CALM {
            server.put(name, "v1", "configmaps", mk_map("default", "only", &round.to_string()));
        }
        until(|| seen.calm.lock().len() == CALM.len()).await;
        let passed = seen.loud.load(Ordering::SeqCst) - before;
        assert!(passed <= BOUND, "round {round}: {passed} passes over the loud project went before");
    }
    assert!(seen.loud.load(Ordering::SeqCst) < EDITS, "it was loud to the end");
}

#[tokio::test(start_paused = true)]
async fn a_long_queue_leaves_the_thread_to_others() {
    let (server, keys) = (mk_platform(), 1000);
    for number in 0..keys {
        server.put(LOUD, "v1", "configmaps", mk_map("default", &format!("junk-{number}"), "new"));
    }
    let (_running, seen) = mk_running(&server, 0);
    // Another task, which comes to its turn again and again.
    let mut turns = 0;
    while seen.loud.load(Ordering::SeqCst) < keys {
        turns += usize::from(seen.loud.load(Ordering::SeqCst) > 0);
        yield_now().await;
    }
    assert!(turns + 1 >= keys, "{turns} turns of another task beside {keys} passes");
}
