//! Fairness between projects: how many reconciles of a busy project run before a key of an idle project.
//! Counted in reconciles, not in time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use polis_api::k8s_openapi::api::core::v1::ConfigMap;
use polis_engine::{Action, Error, Key, MiloProjects, PlaneSet, Reconciler, Watch};
use serde_json::json;
use tokio::task::yield_now;

use crate::fake_apiserver::FakeApiServer;
use crate::harness::{Running, mk_engine, mk_map};

const MILO: &str = "resourcemanager.miloapis.com/v1alpha1";
const BUSY: &str = "noisy";
const IDLE: [&str; 5] = ["idle-0", "idle-1", "idle-2", "idle-3", "idle-4"];
/// Number of objects of the busy project.
const FLOOD: usize = 3_000;
/// Every n-th of them cannot be decoded.
const UNDECODABLE: usize = 50;
/// Maximum number of edits of the busy project, so that a failing test also ends.
const MAX_EDITS: usize = 5 * FLOOD;
/// Maximum number of reconciles of the busy project while each other project has one: the running one, its
/// turn among the others, and those that run while the change arrives through the watch.
const BOUND: usize = 2 * (IDLE.len() + 1);

fn mk_platform() -> FakeApiServer {
    let server = FakeApiServer::with_default_kinds();
    server.serve(MILO, "projects", "Project");
    for name in IDLE.iter().chain([&BUSY]) {
        let status = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        server.put("", MILO, "projects", json!({"metadata": {"name": name}, "status": status}));
    }
    server
}

/// A reconciler that edits an object of the busy project on each reconcile of it.
struct EditingReconciler {
    server: FakeApiServer,
    /// Maximum number of edits.
    edits: usize,
    projects: Arc<Mutex<Option<PlaneSet>>>,
    counts: Arc<ReconcileCounts>,
}

#[derive(Default)]
struct ReconcileCounts {
    busy: AtomicUsize,
    idle: Mutex<BTreeSet<String>>,
}

impl Reconciler for EditingReconciler {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        if key.plane.as_str() != BUSY {
            self.counts.idle.lock().insert(key.plane.to_string());
            return Ok(Action::AwaitChange);
        }
        let count = self.counts.busy.fetch_add(1, Ordering::SeqCst);
        if count < self.edits {
            let (name, value) = (format!("item-{}", count * 7 % FLOOD), count.to_string());
            self.server.put(BUSY, "v1", "configmaps", mk_item(&name, &value));
        }
        let projects = self.projects.lock().clone().expect("set before the engine runs");
        projects.plane(key)?.get::<ConfigMap>(key)?;
        Ok(Action::AwaitChange)
    }
}

fn mk_item(name: &str, value: &str) -> serde_json::Value {
    let mut item = mk_map("default", name, value);
    let number: usize = name.trim_start_matches("item-").parse().expect("a number");
    if number.is_multiple_of(UNDECODABLE) {
        item["data"] = json!(["no", "map"]);
    }
    item
}

/// A running engine with one worker, and its reconcile counts.
fn mk_running(server: &FakeApiServer, edits: usize) -> (Running, Arc<ReconcileCounts>) {
    let mut engine = mk_engine(1);
    engine.workers(1);
    let projects =
        engine.planes("projects", MiloProjects::new(server.plane("root")), [Watch::of::<ConfigMap>()]);
    let (project_set, counts) = (Arc::new(Mutex::new(Some(projects.clone()))), Arc::default());
    let reconciler = EditingReconciler {
        server: server.clone(),
        edits,
        projects: project_set,
        counts: Arc::clone(&counts),
    };
    engine.controller("works", &projects, reconciler).for_kind::<ConfigMap>();
    (Running::spawn(engine), counts)
}

/// Polls a condition after each turn of the runtime. A paused clock does not advance while a task is
/// runnable, so no timer.
async fn until(condition: impl Fn() -> bool) {
    while !condition() {
        yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_busy_project_delays_the_others_by_a_few_reconciles() {
    let server = mk_platform();
    for number in 0..FLOOD {
        server.put(BUSY, "v1", "configmaps", mk_item(&format!("item-{number}"), "new"));
    }
    let (running, counts) = mk_running(&server, MAX_EDITS);
    until(|| running.handle.is_ready() && counts.busy.load(Ordering::SeqCst) > 100).await;
    for round in 0..50 {
        counts.idle.lock().clear();
        let before = counts.busy.load(Ordering::SeqCst);
        for name in IDLE {
            server.put(name, "v1", "configmaps", mk_map("default", "only", &round.to_string()));
        }
        until(|| counts.idle.lock().len() == IDLE.len()).await;
        let reconciles = counts.busy.load(Ordering::SeqCst) - before;
        assert!(reconciles <= BOUND, "round {round}: {reconciles} reconciles of the busy project ran before");
    }
    assert!(counts.busy.load(Ordering::SeqCst) < MAX_EDITS, "the busy project ran out of edits");
}

#[tokio::test(start_paused = true)]
async fn a_long_queue_does_not_block_other_tasks() {
    let (server, keys) = (mk_platform(), 1000);
    for number in 0..keys {
        server.put(BUSY, "v1", "configmaps", mk_map("default", &format!("item-{number}"), "new"));
    }
    let (_running, counts) = mk_running(&server, 0);
    // The test task counts how often it runs.
    let mut turns = 0;
    while counts.busy.load(Ordering::SeqCst) < keys {
        turns += usize::from(counts.busy.load(Ordering::SeqCst) > 0);
        yield_now().await;
    }
    assert!(turns + 1 >= keys, "the other task ran {turns} times during {keys} reconciles");
}
