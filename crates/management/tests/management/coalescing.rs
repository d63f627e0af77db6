//! Status coalescing: insignificant changes are delayed and merged, significant ones are written at once.

use std::time::Duration;

use polis_api::ObjectExt as _;
use polis_api::compute::{Instance, Workload, WorkloadDeployment};
use polis_testing::PlaneExt as _;
use tokio::time::Instant;

use crate::env::{NAMESPACE, TestEnv};

/// Less than the delay of an insignificant change.
const AT_ONCE: Duration = Duration::from_millis(250);

#[tokio::test(start_paused = true)]
async fn insignificant_changes_of_a_deployment_are_merged_into_one_write() {
    let env = TestEnv::running().await;
    env.federate("web", "dfw").await;
    env.idle(Duration::from_secs(10)).await;
    let acme = env.requests_to("acme");
    acme.clear();
    for replicas in 1..=4 {
        env.report("web", |status| status.replicas = replicas).await;
        env.idle(Duration::from_millis(50)).await;
    }
    assert_eq!(acme.log(), [""; 0], "the changes are delayed");
    env.acme()
        .eventually_has((NAMESPACE, "web"), |d: &WorkloadDeployment| {
            d.status.as_ref().is_some_and(|status| status.replicas == 4)
        })
        .await;
    env.idle(Duration::from_secs(10)).await;
    assert_eq!(acme.log(), ["update workloaddeployments/web/status"]);
}

#[tokio::test(start_paused = true)]
async fn a_ready_instance_of_a_deployment_is_written_at_once() {
    let env = TestEnv::running().await;
    env.federate("web", "dfw").await;
    env.idle(Duration::from_secs(10)).await;
    env.report("web", |status| status.replicas = 1).await;
    let start = Instant::now();
    env.report_ready("web", 1).await;
    env.acme()
        .eventually_has((NAMESPACE, "web"), |d: &WorkloadDeployment| {
            d.status.as_ref().is_some_and(|status| status.ready_replicas == 1)
        })
        .await;
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn insignificant_changes_of_an_instance_are_merged_and_readiness_is_written_at_once() {
    let env = TestEnv::running().await;
    let copy = env.federate("web", "dfw").await;
    env.write_back(&copy, 0).await;
    env.acme().eventually_has((NAMESPACE, "web-0"), |_: &Instance| true).await;
    env.idle(Duration::from_secs(10)).await;
    let acme = env.requests_to("acme");
    acme.clear();
    for reason in ["SchedulingGatesPresent", "ProvisioningInstance", "Starting"] {
        env.report_instance("web-0", "Ready", "False", reason).await;
        env.idle(Duration::from_millis(50)).await;
    }
    assert_eq!(acme.logged("update instances"), [""; 0], "the changes are delayed");
    let start = Instant::now();
    env.report_instance("web-0", "Ready", "True", "Running").await;
    env.acme().eventually_has((NAMESPACE, "web-0"), polis_core::instances::is_ready).await;
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    env.idle(Duration::from_secs(10)).await;
    assert_eq!(acme.logged("update instances"), ["update instances/web-0/status"]);
}

#[tokio::test(start_paused = true)]
async fn the_status_of_a_workload_is_written_once_for_the_start_of_its_deployments() {
    let env = TestEnv::running().await;
    env.run("web", &["dfw", "ord"]).await;
    let deployments = env.until_deployed(&["dfw", "ord"]).await;
    env.idle(Duration::from_secs(10)).await;
    let acme = env.requests_to("acme");
    acme.clear();
    for deployment in &deployments {
        let name = deployment.name();
        env.until_copied(name).await;
        env.report(name, |status| (status.replicas, status.desired_replicas) = (1, 1)).await;
    }
    env.acme()
        .eventually_has((NAMESPACE, "web"), |w: &Workload| {
            w.status.as_ref().is_some_and(|status| status.replicas == 2)
        })
        .await;
    env.idle(Duration::from_secs(10)).await;
    assert_eq!(acme.logged("update workloads/"), ["update workloads/web/status"]);
}
