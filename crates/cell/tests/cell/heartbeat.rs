//! Heartbeat: a cell with deployments renews a Lease on the hub once a minute, and makes no other request.

use std::time::Duration;

use polis_api::k8s_openapi::api::coordination::v1::Lease;
use polis_api::names;
use polis_core::heartbeat::{self, Heartbeat, INTERVAL, SILENCE_LIMIT};
use polis_testing::builders::mk_namespace;
use polis_testing::{PlaneExt as _, RequestFault, eventually};

use crate::env::{CELL, LONG, Setup, TestEnv, mk_deployment};

const HOUR: Duration = Duration::from_secs(3600);

impl TestEnv {
    /// A cell with a running instance, and a hub with the namespace of the heartbeats.
    async fn with_heartbeat() -> Self {
        let mut env = TestEnv::new(Setup::default()).await;
        env.at_hub().create(&mk_namespace(heartbeat::NAMESPACE)).await.unwrap();
        env.start();
        env.provider();
        env.deploy(&mk_deployment("web", 1)).await;
        env.until_ready(&["web-0"]).await;
        env.until_heard_within(INTERVAL).await;
        env
    }

    async fn lease(&self) -> Option<Lease> {
        let name = names::heartbeat("dfw", CELL);
        self.at_hub().read((heartbeat::NAMESPACE, name.as_str())).await
    }

    /// Waits until the last heartbeat is at most this old.
    async fn until_heard_within(&self, age: Duration) {
        eventually("a heartbeat", async || {
            let heartbeat = Heartbeat::observe(None, &self.lease().await?, &self.now())?;
            let passed = self.now().0.duration_since(heartbeat.renewed_at).unsigned_abs();
            (passed <= age).then_some(())
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_cell_makes_one_small_write_each_minute_and_no_other_request() {
    let env = TestEnv::with_heartbeat().await;
    env.idle(LONG).await;
    env.cell.clear();
    env.hub.clear();
    env.idle(HOUR).await;
    let heartbeats = env.hub.heartbeats();
    assert!((59..=61).contains(&heartbeats.len()), "{}", heartbeats.len());
    assert!(heartbeats.iter().all(|request| request == "update leases/dfw.dfw-1"), "{heartbeats:?}");
    assert_eq!((env.hub.log(), env.cell.log()), (vec![], vec![]));
    let size = serde_json::to_vec(&env.lease().await.unwrap()).unwrap().len();
    assert!(size < 1024, "{size} bytes");
}

#[tokio::test(start_paused = true)]
async fn a_cell_without_deployments_releases_its_lease_and_makes_no_request() {
    let env = TestEnv::with_heartbeat().await;
    env.undeploy("web").await;
    let released =
        async || env.lease().await.filter(|lease| Heartbeat::observe(None, lease, &env.now()).is_none());
    eventually("the Lease is released", released).await;
    env.hub.clear();
    env.idle(HOUR).await;
    assert_eq!(env.hub.heartbeats(), [""; 0]);
    env.deploy(&mk_deployment("api", 1)).await;
    env.until_heard_within(INTERVAL).await;
}

#[tokio::test(start_paused = true)]
async fn a_cell_is_heard_of_within_seconds_after_the_hub_is_back() {
    for outage in [RequestFault::Refuse, RequestFault::Hang] {
        let env = TestEnv::with_heartbeat().await;
        env.hub.fail(outage);
        env.idle(LONG).await;
        env.hub.restore();
        let back = tokio::time::Instant::now();
        env.until_heard_within(Duration::from_secs(10)).await;
        // A request without an answer is given up after half a minute.
        assert!(back.elapsed() < Duration::from_secs(40), "{outage:?}: {:?}", back.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_process_and_another_writer_do_not_interrupt_the_heartbeat() {
    let mut env = TestEnv::with_heartbeat().await;
    env.stop().await;
    env.start();
    let name = names::heartbeat("dfw", CELL);
    for _ in 0..5 {
        env.idle(INTERVAL).await;
        let annotate = |lease: &mut Lease| {
            lease.metadata.annotations = Some([("by".to_owned(), "hand".to_owned())].into());
        };
        env.at_hub().change((heartbeat::NAMESPACE, name.as_str()), annotate).await;
        env.until_heard_within(2 * INTERVAL).await;
    }
    env.at_hub().remove::<Lease>((heartbeat::NAMESPACE, name.as_str())).await;
    env.until_heard_within(INTERVAL).await;
}

#[tokio::test(start_paused = true)]
async fn a_hub_without_the_namespace_is_asked_once_a_minute_and_the_cell_works() {
    let mut env = TestEnv::running(Setup::default()).await;
    env.provider();
    env.deploy(&mk_deployment("web", 1)).await;
    env.until_ready(&["web-0"]).await;
    env.idle(SILENCE_LIMIT).await;
    env.hub.clear();
    env.idle(HOUR).await;
    let attempts = env.hub.heartbeats().into_iter().filter(|it| it.starts_with("create")).count();
    assert!((59..=61).contains(&attempts), "{attempts}");
    assert_eq!(env.hub.log(), [""; 0]);
}
