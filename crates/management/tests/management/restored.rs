//! A hub that was restored from a backup while the controllers run: the projects win.

use std::time::Duration;

use polis_api::ObjectExt as _;
use polis_api::annotations::SOURCE_REVISION;
use polis_api::compute::{Instance, WorkloadDeployment};
use polis_testing::builders::{mk_hub_namespace, mk_member, mk_template};
use polis_testing::{Cluster, HUB, PlaneExt as _, RequestFault, consistently};

use crate::env::{NAMESPACE, TestEnv};

/// Another hub with older versions takes the place of the hub.
async fn restore(env: &TestEnv, backup: &Cluster) {
    let hub = env.requests_to(HUB);
    hub.fail(RequestFault::Refuse);
    env.cluster.proxy.serve_from(HUB, backup.client(HUB));
    env.idle(Duration::from_secs(30)).await;
    hub.restore();
}

async fn mk_backup() -> Cluster {
    let backup = Cluster::builder().hub().build().await;
    backup.plane(HUB).create(&mk_member("dfw", Some("dfw"))).await.unwrap();
    backup
}

/// More versions than the backup has.
async fn age(env: &TestEnv) {
    for number in 0..30 {
        let namespace = polis_testing::builders::mk_namespace(&format!("other-{number}"));
        env.hub().create(&namespace).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_empty_hub_gets_the_deployments_again_and_projections_stay_meanwhile() {
    let env = TestEnv::running().await;
    let copy = env.federate("web", "dfw").await;
    env.write_back(&copy, 0).await;
    env.acme().eventually_has((NAMESPACE, "web-0"), |_: &Instance| true).await;
    age(&env).await;
    let backup = mk_backup().await;
    restore(&env, &backup).await;

    let name = (env.hub_namespace.as_str(), "web");
    backup.plane(HUB).eventually_has(name, |_: &WorkloadDeployment| true).await;
    assert!(env.metrics().contains("reason=\"restored\""), "{}", env.metrics());
    consistently("the projection stays", Duration::from_secs(180), async || {
        env.acme().read::<Instance>((NAMESPACE, "web-0")).await.is_some()
    })
    .await;
    // No cell writes the copy again: the instance has ended in the meantime.
    env.idle(Duration::from_secs(300)).await;
    env.acme().eventually_lacks::<Instance>((NAMESPACE, "web-0")).await;
}

#[tokio::test(start_paused = true)]
async fn an_older_spec_is_replaced_and_a_copy_without_a_deployment_is_withdrawn() {
    let env = TestEnv::running().await;
    let old = env.federate("web", "dfw").await;
    let edit = |deployment: &mut WorkloadDeployment| deployment.spec.template = mk_template("app:2");
    env.acme().change((NAMESPACE, "web"), edit).await;
    let name = (env.hub_namespace.as_str(), "web");
    env.hub().eventually_has(name, |d: &WorkloadDeployment| d.spec.template == mk_template("app:2")).await;
    age(&env).await;

    let backup = mk_backup().await;
    let hub = backup.plane(HUB);
    hub.create(&mk_hub_namespace(&env.hub_namespace, "acme", NAMESPACE)).await.unwrap();
    for name in ["web", "gone"] {
        let mut copy = old.clone();
        copy.metadata.resource_version = None;
        copy.metadata.name = Some(name.into());
        hub.create(&copy).await.unwrap();
    }
    restore(&env, &backup).await;

    let newest: WorkloadDeployment =
        hub.eventually_has(name, |d: &WorkloadDeployment| d.spec.template == mk_template("app:2")).await;
    let uid = env.deployment("web").await.uid().to_owned();
    assert_eq!(newest.annotation(SOURCE_REVISION), Some(format!("{uid}.2").as_str()));
    hub.eventually_lacks::<WorkloadDeployment>((env.hub_namespace.as_str(), "gone")).await;
}
