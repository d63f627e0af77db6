//! Crash tests: the process may crash after any of its writes, and the next process reaches the same state
//! without creating anything twice.

use std::collections::BTreeMap;
use std::time::Instant;

use polis_api::ObjectExt as _;
use polis_api::compute::{Workload, WorkloadDeployment};
use polis_api::karmada::PropagationPolicy;
use polis_testing::recorder::{ObjectChange, PlaneRecorder, kinds_of_hub, kinds_of_project};
use polis_testing::{HUB, PlaneExt as _, eventually};

use crate::env::{NAMESPACE, TestEnv};
use crate::resolver::{db, mk_secret, mk_user, until_clean, until_delivered};

/// Runs a scenario with a process that crashes after its n-th write, for every n, and a second process that
/// completes it. Returns the number of crash points.
async fn after_every_write(
    prepare: impl AsyncFn(&mut TestEnv),
    scenario: impl AsyncFn(&TestEnv),
    check: impl AsyncFn(&TestEnv),
) -> usize {
    for crash in 0.. {
        let mut env = TestEnv::new().await;
        prepare(&mut env).await;
        let recorders =
            [env.cluster.record("acme", kinds_of_project()), env.cluster.record(HUB, kinds_of_hub())];
        let log = env.cluster.proxy.requests().clone();
        let fault = log.crash_after_writes(crash, |_| true);
        env.start();
        scenario(&env).await;
        // Until it has crashed or is idle.
        env.idle(std::time::Duration::from_secs(30)).await;
        let crashed = log.is_triggered(fault);
        env.stop().await;
        log.clear_faults();
        env.start();
        check(&env).await;
        recorders.iter().for_each(nothing_was_created_twice);
        if !crashed {
            return crash;
        }
    }
    unreachable!("a scenario has finitely many writes")
}

/// Asserts that no object was created twice under one name while the recorder was running.
fn nothing_was_created_twice(recorder: &PlaneRecorder) {
    let start = Instant::now() - std::time::Duration::from_secs(600);
    let mut created = BTreeMap::new();
    for entry in recorder.journal(start).into_iter().filter(|entry| entry.change == ObjectChange::Added) {
        *created.entry(entry.key.to_string()).or_insert(0) += 1;
    }
    created.retain(|_, count| *count > 1);
    assert!(created.is_empty(), "created twice on {}: {created:?}", recorder.plane);
}

/// Waits until the workload runs in both cities: two deployments with their record, copies and policies.
async fn until_federated(env: &TestEnv) {
    let deployments = env.until_deployed(&["dfw", "ord"]).await;
    for deployment in &deployments {
        env.until_copied(deployment.name()).await;
    }
    env.until_workload("web", |workload| {
        workload.status.as_ref().is_some_and(|s| s.deployments == 2 && s.observed_generation == Some(1))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn creating_a_workload_survives_a_crash_after_every_write() {
    let writes = after_every_write(
        async |_| {},
        async |env| drop(env.run("web", &["dfw", "ord"]).await),
        async |env| {
            until_federated(env).await;
            assert_eq!(env.hub().all::<WorkloadDeployment>().await.len(), 2);
            let policies = env.hub().all::<PropagationPolicy>().await;
            let names: Vec<_> = policies.iter().map(|policy| policy.name()).collect();
            assert_eq!(names, ["city-dfw", "city-ord"]);
        },
    )
    .await;
    assert!(writes >= 8, "finalizer, two deployments, namespace, two policies, two copies: {writes}");
}

#[tokio::test(start_paused = true)]
async fn deleting_a_workload_survives_a_crash_after_every_write() {
    let writes = after_every_write(
        async |env| {
            env.start();
            env.run("web", &["dfw", "ord"]).await;
            until_federated(env).await;
            env.stop().await;
        },
        async |env| env.acme().remove::<Workload>((NAMESPACE, "web")).await,
        async |env| {
            env.acme().eventually_lacks::<Workload>((NAMESPACE, "web")).await;
            assert_eq!(env.acme().all::<WorkloadDeployment>().await, []);
            assert_eq!(env.hub().all::<WorkloadDeployment>().await, []);
            eventually("no policy", async || {
                env.hub().all::<PropagationPolicy>().await.is_empty().then_some(())
            })
            .await;
        },
    )
    .await;
    assert!(writes >= 9, "two deletions, copies, policies and finalizers, and the last finalizer: {writes}");
}

#[tokio::test(start_paused = true)]
async fn copying_a_secret_survives_a_crash_after_every_write() {
    let writes = after_every_write(
        async |_| {},
        async |env| {
            env.acme().create(&mk_secret(NAMESPACE, "db", "password", "one")).await.unwrap();
            env.acme().create(&mk_user("web", "dfw", db())).await.unwrap();
        },
        async |env| drop(until_delivered(env, "web", "one").await),
    )
    .await;
    assert!(writes >= 5, "record, namespace, policy, companion, copy: {writes}");
}

#[tokio::test(start_paused = true)]
async fn removing_a_secret_from_the_hub_survives_a_crash_after_every_write() {
    let writes = after_every_write(
        async |env| {
            env.start();
            env.acme().create(&mk_secret(NAMESPACE, "db", "password", "one")).await.unwrap();
            env.acme().create(&mk_user("web", "dfw", db())).await.unwrap();
            until_delivered(env, "web", "one").await;
            env.stop().await;
        },
        async |env| env.acme().remove::<WorkloadDeployment>((NAMESPACE, "web")).await,
        async |env| {
            env.acme().eventually_lacks::<WorkloadDeployment>((NAMESPACE, "web")).await;
            until_clean(env).await;
        },
    )
    .await;
    assert!(writes >= 3, "copy, policy, companion, finalizer: {writes}");
}
