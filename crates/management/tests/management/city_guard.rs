//! City guard: members that lose their city label, and members that are not ready.

use polis_api::annotations::ALLOW_CITY_CHANGE;
use polis_api::karmada::Cluster;
use polis_core::metadata;
use polis_testing::builders::mk_condition;
use polis_testing::{PlaneExt as _, eventually};

use crate::env::{LONG, TestEnv};

async fn until_metric(env: &TestEnv, line: &str) {
    eventually(line, async || env.metrics().lines().any(|found| found == line).then_some(())).await;
}

#[tokio::test(start_paused = true)]
async fn a_member_that_loses_its_city_is_reported() {
    let env = TestEnv::running().await;
    env.idle(LONG).await;
    env.hub().change::<Cluster>("dfw", |member| member.metadata.labels = None).await;
    let note = env.hub().eventually_event("dfw", "CityLabelLost").await;
    assert!(note.contains("city-code=dfw"), "{note}");
    until_metric(&env, "polis_compute_city_labels_lost_total 1").await;
}

#[tokio::test(start_paused = true)]
async fn a_permitted_change_of_the_city_is_not_reported() {
    let env = TestEnv::running().await;
    env.idle(LONG).await;
    env.hub()
        .change::<Cluster>("dfw", |member| {
            member.metadata.labels = None;
            member.metadata.annotations = Some(metadata::map([(ALLOW_CITY_CHANGE, "true")]));
        })
        .await;
    env.idle(LONG).await;
    assert_eq!(env.hub().events_of("dfw").await, []);
    until_metric(&env, "polis_compute_city_labels_lost_total 0").await;
}

#[tokio::test(start_paused = true)]
async fn members_with_a_city_that_are_not_ready_are_counted() {
    let env = TestEnv::running().await;
    until_metric(&env, "polis_compute_cells_unheard 2").await;
    let ready = mk_condition("Ready", "True", "ClusterReady", &env.cluster.now());
    env.hub()
        .change_status::<Cluster>("dfw", |member| {
            member.status.get_or_insert_default().conditions = vec![ready.clone()];
        })
        .await;
    until_metric(&env, "polis_compute_cells_unheard 1").await;
    env.hub().remove::<Cluster>("ord").await;
    until_metric(&env, "polis_compute_cells_unheard 0").await;
}
