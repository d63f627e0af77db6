//! A controller under random faults: it converges, and the same seed gives the same run to the byte.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use polis_api::k8s_openapi::api::core::v1::{ConfigMap, Secret};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use polis_engine::{Action, Error, Index, Key, Plane, Preconditions, Random, Reconciler, Watch};
use serde_json::Value;
use tokio::time::Instant;

use crate::fake_apiserver::FakeApiServer;
use crate::harness::{Running, cached, mk_engine, mk_map, served};

/// A controller that copies each ConfigMap to a Secret that the ConfigMap owns.
struct Copier {
    plane: Plane,
    trace: Trace,
}

/// A log of all reconciles, with their time.
#[derive(Clone)]
struct Trace {
    start: Instant,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Trace {
    fn record(&self, line: String) {
        self.lines.lock().push(format!("{:?} {line}", self.start.elapsed()));
    }
}

impl Reconciler for Copier {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let result = self.copy(key).await;
        self.trace.record(format!("{key} {result:?}"));
        result
    }
}

impl Copier {
    async fn copy(&self, key: &Key) -> Result<Action, Error> {
        let Some(map) = self.plane.get::<ConfigMap>(key)? else {
            // The cache may be stale: delete the copy only if an uncached read confirms the deletion.
            if self.plane.uncached().get::<ConfigMap>(key).await?.is_none()
                && let Some(copy) = self.plane.uncached().get::<Secret>(key).await?
            {
                self.plane.delete(&copy, Preconditions::Uid).await?;
            }
            return Ok(Action::AwaitChange);
        };
        let mut desired = Secret { string_data: None, ..Secret::default() };
        desired.metadata.namespace = map.metadata.namespace.clone();
        desired.metadata.name = map.metadata.name.clone();
        desired.metadata.annotations = map.data.clone();
        desired.metadata.owner_references = Some(vec![OwnerReference {
            api_version: "v1".into(),
            kind: "ConfigMap".into(),
            name: key.name.to_string(),
            uid: map.metadata.uid.clone().unwrap_or_default(),
            ..OwnerReference::default()
        }]);
        let copy = self.plane.get::<Secret>(key)?;
        self.plane.create_or_update(copy.as_ref(), &desired).await?;
        Ok(Action::AwaitChange)
    }
}

/// Runs the controller for twenty minutes under faults and user changes, ends the faults, and returns trace
/// and server.
async fn run(seed: u64) -> (Vec<String>, FakeApiServer) {
    let server = FakeApiServer::with_default_kinds();
    server.streaming(seed.is_multiple_of(2));
    server.page(4);
    let trace = Trace { start: Instant::now(), lines: Arc::default() };
    let mut engine = mk_engine(seed);
    engine.workers(4);
    let watches = [Watch::of::<ConfigMap>(), Watch::of::<Secret>().index(Index::Owner)];
    let plane = engine.plane("plane", server.plane("main"), watches);
    engine
        .controller("copier", &plane, Copier { plane: plane.clone(), trace: trace.clone() })
        .for_kind::<ConfigMap>()
        .watches::<Secret>(&plane, |plane, secret| {
            let meta = &secret.metadata;
            Ok(vec![Key::new(
                plane.name().as_str(),
                meta.namespace.as_deref().unwrap_or(""),
                meta.name.as_deref().unwrap_or(""),
            )])
        });
    let running = Running::spawn(engine);
    server.chaos(seed, 0.2);
    let users = Random::from_seed(seed).split("users");
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(users.next() % 24_000)).await;
        let name = format!("m{}", users.next() % 12);
        match users.next() % 4 {
            0 => server.remove("", "v1", "configmaps", &format!("shop/{name}")),
            1 => server.remove("", "v1", "secrets", &format!("shop/{name}")),
            _ => drop(server.put("", "v1", "configmaps", mk_map("shop", &name, &users.next().to_string()))),
        }
    }
    server.clear_faults();
    tokio::time::sleep(Duration::from_secs(15 * 60)).await;

    assert_eq!(cached(&plane), served(&server, ""), "seed {seed}: the cache equals the server");
    let content = |value: &Value, field: &str| value[field].as_object().cloned().unwrap_or_default();
    let maps = server.objects("", "v1", "configmaps");
    let copies = server.objects("", "v1", "secrets");
    assert_eq!(
        maps.keys().collect::<Vec<_>>(),
        copies.keys().collect::<Vec<_>>(),
        "seed {seed}: a copy of each and no more"
    );
    for (id, map) in &maps {
        assert_eq!(
            content(map, "data"),
            content(&copies[id]["metadata"], "annotations"),
            "seed {seed}: {id}"
        );
        assert_eq!(
            copies[id]["metadata"]["ownerReferences"][0]["uid"], map["metadata"]["uid"],
            "seed {seed}: {id}"
        );
    }
    let before = server.requests();
    tokio::time::sleep(Duration::from_secs(10 * 60)).await;
    assert_eq!(server.requests(), before, "seed {seed}: an idle engine sends no requests");
    running.stop().await;
    let mut lines = trace.lines.lock().clone();
    lines.extend(server.log());
    (lines, server)
}

fn on_a_paused_clock<T>(work: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(work)
}

#[test]
fn a_controller_converges_under_faults_from_every_seed() {
    let seeds: u64 = std::env::var("POLIS_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(60);
    for seed in 0..seeds {
        on_a_paused_clock(run(seed));
    }
}

#[test]
fn the_same_seed_gives_the_same_run_to_the_byte() {
    for seed in [3, 4] {
        // Each run has its own thread, so that no thread-local state is shared.
        let runs: Vec<_> = (0..2)
            .map(|_| std::thread::spawn(move || on_a_paused_clock(run(seed)).0).join().unwrap())
            .collect();
        assert!(runs[0].len() > 300, "the run is too short to compare: {} lines", runs[0].len());
        for (line, (first, second)) in runs[0].iter().zip(&runs[1]).enumerate() {
            assert_eq!(first, second, "seed {seed}, line {line}");
        }
        assert_eq!(runs[0].len(), runs[1].len());
    }
    let other = on_a_paused_clock(run(5)).0;
    assert_ne!(other, on_a_paused_clock(run(7)).0, "different seeds give different runs");
}
