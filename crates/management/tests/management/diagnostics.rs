//! Diagnostics: hub namespaces of unknown projects, and project planes without LocationBinding.

use polis_api::compute::{Workload, WorkloadDeployment};
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_core::cities::TenancyMode;
use polis_testing::builders::{NETWORK, condition, mk_deployment, mk_hub_namespace, mk_network};
use polis_testing::{Cluster, PlaneExt as _, eventually};

use crate::env::{LONG, NAMESPACE, TestEnv};

#[tokio::test(start_paused = true)]
async fn a_hub_namespace_of_an_unknown_project_is_reported_once_and_left_unchanged() {
    let env = TestEnv::running().await;
    let namespace = mk_hub_namespace("ns-unknown", "initech", NAMESPACE);
    let namespace = env.hub().create(&namespace).await.unwrap();
    env.hub().create(&mk_deployment("ns-unknown", "web", "dfw", 1)).await.unwrap();
    let note = env.hub().eventually_event("ns-unknown", "ProjectUnknown").await;
    assert!(note.contains("initech"), "{note}");
    env.idle(LONG).await;
    let events = env.hub().events_of("ns-unknown").await;
    assert_eq!(events.len(), 1);
    assert_eq!(env.hub().read::<Namespace>("ns-unknown").await, Some(namespace));
    assert!(env.hub().read::<WorkloadDeployment>(("ns-unknown", "web")).await.is_some());
    let counted = |line: &str| env.metrics().lines().any(|found| found == line).then_some(());
    assert!(counted("polis_compute_hub_objects_unresolved 1").is_some());

    env.hub().remove::<WorkloadDeployment>(("ns-unknown", "web")).await;
    eventually("an empty namespace does not count", async || {
        counted("polis_compute_hub_objects_unresolved 0")
    })
    .await;
}

/// An environment whose project does not serve LocationBinding.
async fn mk_env_without_bindings(tenancy: TenancyMode) -> TestEnv {
    let builder = Cluster::builder().project("acme").project("globex").hub().without("locationbindings");
    let cluster = builder.build().await;
    cluster.plane("acme").create(&mk_network(NAMESPACE, NETWORK)).await.unwrap();
    let mut env = TestEnv::with(cluster, tenancy).await;
    env.start();
    env
}

#[tokio::test(start_paused = true)]
async fn a_single_plane_without_the_kind_of_bindings_may_use_every_city() {
    let env = mk_env_without_bindings(TenancyMode::Single).await;
    env.run("web", &["lhr"]).await;
    env.until_deployed(&["lhr"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_project_of_a_platform_without_the_kind_of_bindings_may_use_no_city() {
    let env = mk_env_without_bindings(TenancyMode::Milo).await;
    env.run("web", &["dfw"]).await;
    let unbound = |workload: &Workload| {
        let status = workload.status.as_ref()?;
        condition(&status.conditions, "Available").map(|(_, reason)| reason.to_owned())
    };
    let found = env.until_workload("web", |workload| unbound(workload).is_some()).await;
    assert_eq!(unbound(&found).as_deref(), Some("NoMatchingLocations"));
    env.idle(LONG).await;
    env.until_deployed(&[]).await;
}
