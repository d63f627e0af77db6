//! Quota: one claim per instance in its project, and the effect of each decision.

use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::k8s_openapi::api::events::v1::Event;
use polis_api::quota::{RequestAllocation, ResourceClaim};
use polis_api::{ObjectExt, finalizers, labels};
use polis_core::metadata;
use polis_engine::{ListOptions, Preconditions};
use polis_testing::builders::mk_condition;
use polis_testing::{PlaneExt as _, RequestFault, eventually};

use crate::env::{
    CELL, LONG, NAMESPACE, Setup, TestEnv, condition, gates, mk_deployment, mk_namespace_labelled,
};

const WITH_QUOTA: Setup =
    Setup { quota: true, networks: false, networks_off: false, instance_finalizers: &[] };
const CLAIM: (&str, &str) = ("shop", "instance-web-0");

async fn claim(env: &TestEnv) -> ResourceClaim {
    eventually("the claim", async || env.at_project().uncached().get::<ResourceClaim>(CLAIM).await.unwrap())
        .await
}

async fn claims(env: &TestEnv) -> Vec<ResourceClaim> {
    env.at_project().uncached().list(&ListOptions::all()).await.unwrap()
}

/// Writes the decision of the project's quota controller.
async fn decide(env: &TestEnv, status: &'static str, reason: &'static str, allocations: &[&str]) {
    let now = env.now();
    env.at_project()
        .change_status::<ResourceClaim>(CLAIM, |claim| {
            let state = claim.status.get_or_insert_default();
            state.conditions = vec![mk_condition("Granted", status, reason, &now)];
            state.allocations = claim
                .spec
                .requests
                .iter()
                .zip(allocations)
                .map(|(request, decision)| RequestAllocation {
                    resource_type: request.resource_type.clone(),
                    status: decision.to_string(),
                    ..RequestAllocation::default()
                })
                .collect();
        })
        .await;
}

async fn relabel_cell(env: &TestEnv, pairs: &[(&str, &str)]) {
    let cell = env.at_cell();
    let current: Namespace = cell.uncached().get(NAMESPACE).await.unwrap().unwrap();
    let mut desired = current.clone();
    desired.metadata.labels = mk_namespace_labelled(pairs).metadata.labels;
    cell.update(&current, &desired).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_instance_starts_once_its_claim_is_granted() {
    let mut env = TestEnv::running(WITH_QUOTA).await;
    env.provider();
    env.deploy(&mk_deployment("web", 1)).await;
    let claim = claim(&env).await;
    let amounts: Vec<_> = claim.spec.requests.iter().map(|r| (r.resource_type.as_str(), r.amount)).collect();
    assert_eq!(
        amounts,
        [
            ("compute.datumapis.com/instances", 1),
            ("compute.datumapis.com/vcpus", 1000),
            ("compute.datumapis.com/memory", 2048)
        ]
    );
    assert_eq!(claim.spec.consumer_ref.name, "acme");
    assert_eq!(claim.label(labels::SOURCE_CLUSTER), Some(CELL));
    let pending = eventually("pending quota", async || {
        env.instance("web-0")
            .await
            .filter(|i| condition(i, "QuotaGranted").is_some_and(|(status, _)| status == "Unknown"))
    })
    .await;
    assert_eq!(gates(&pending), ["Quota"]);
    assert!(pending.has_finalizer(finalizers::QUOTA_CLAIM));

    decide(&env, "True", "QuotaAvailable", &["Granted", "Granted", "Granted"]).await;
    env.until_ready(&["web-0"]).await;
    let running = env.instance("web-0").await.unwrap();
    assert_eq!(condition(&running, "QuotaGranted"), Some(("True", "QuotaAvailable")));
    assert!(env.metrics().contains("compute_quota_enforcement_enabled 1"));
}

#[tokio::test(start_paused = true)]
async fn a_watch_delivers_the_grant_and_a_project_without_pending_instances_is_not_watched() {
    let env = TestEnv::running(WITH_QUOTA).await;
    env.deploy(&mk_deployment("web", 1)).await;
    claim(&env).await;
    env.idle(LONG).await;
    env.project.clear();
    env.idle(LONG).await;
    assert_eq!(env.project.log(), [""; 0]); // pending, without polling
    decide(&env, "True", "QuotaAvailable", &["Granted"; 3]).await;
    env.until_condition("web-0", "Ready", "False", "PendingProgramming").await;
    env.idle(LONG).await;
    assert_eq!(env.project.log(), [""; 0]);
    let engaged = "polis_planes{set=\"claims\",state=\"engaged\"} 0";
    assert!(env.metrics().contains(engaged), "{}", env.metrics());
}

#[tokio::test(start_paused = true)]
async fn a_grant_is_found_by_polling_where_claims_cannot_be_watched() {
    let env = TestEnv::running(WITH_QUOTA).await;
    env.project.inject(RequestFault::Status(http::StatusCode::NOT_FOUND), |request| {
        request.resource == "resourceclaims" && request.name.is_none() && !request.verb.is_write()
    });
    env.deploy(&mk_deployment("web", 1)).await;
    claim(&env).await;
    env.idle(LONG).await;
    decide(&env, "True", "QuotaAvailable", &["Granted"; 3]).await;
    env.until_condition("web-0", "Ready", "False", "PendingProgramming").await;
    let polls = env.project.logged("get resourceclaims/instance-web-0").len();
    // Every second for a minute, then with growing intervals; and once before the create.
    assert!((2..200).contains(&polls), "{polls} polls");
    env.idle(LONG).await;
    env.project.clear();
    env.idle(LONG).await;
    assert_eq!(env.project.logged("get resourceclaims/"), [""; 0], "no polling after the grant");
}

#[tokio::test(start_paused = true)]
async fn the_claim_is_deleted_with_its_instance() {
    let env = TestEnv::running(WITH_QUOTA).await;
    env.deploy(&mk_deployment("web", 1)).await;
    claim(&env).await;
    decide(&env, "True", "QuotaAvailable", &["Granted"; 3]).await;
    env.until_condition("web-0", "Ready", "False", "PendingProgramming").await;
    env.undeploy("web").await;
    env.until_empty().await;
    assert_eq!(claims(&env).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_pending_instance_that_is_deleted_leaves_no_claim() {
    let env = TestEnv::running(WITH_QUOTA).await;
    env.deploy(&mk_deployment("web", 1)).await;
    claim(&env).await;
    env.undeploy("web").await;
    env.until_empty().await;
    assert_eq!(claims(&env).await, []);
    env.idle(LONG).await;
    assert_eq!(claims(&env).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_denied_instance_reports_it_and_claims_again() {
    let mut env = TestEnv::running(WITH_QUOTA).await;
    env.provider();
    env.deploy(&mk_deployment("web", 1)).await;
    let first = claim(&env).await;
    decide(&env, "False", "QuotaExceeded", &["Denied"; 3]).await;
    let denied = env.until_condition("web-0", "QuotaGranted", "False", "QuotaExceeded").await;
    for kind in ["Ready", "Programmed", "Running"] {
        assert_eq!(condition(&denied, kind), Some(("False", "PendingQuota")), "{kind}");
    }
    assert_eq!(gates(&denied), ["Quota"]);
    eventually("the condition on the deployment", async || {
        let status = env.deployment("web").await?.status?;
        polis_core::conditions::is_false(&status.conditions, "ReplicasReady").then_some(())
    })
    .await;
    // A denied claim is final, so it is deleted and created again after a back-off.
    eventually("another claim", async || {
        let claim = env.at_project().uncached().get::<ResourceClaim>(CLAIM).await.unwrap()?;
        (claim.metadata.uid != first.metadata.uid).then_some(())
    })
    .await;
    decide(&env, "True", "QuotaAvailable", &["Granted"; 3]).await;
    env.until_ready(&["web-0"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_denied_claim_that_holds_a_part_is_deleted_at_once_and_retried_later() {
    let env = TestEnv::running(WITH_QUOTA).await;
    env.deploy(&mk_deployment("web", 1)).await;
    claim(&env).await;
    let claimed_at = tokio::time::Instant::now();
    decide(&env, "False", "QuotaExceeded", &["Granted", "Denied", "Granted"]).await;
    eventually("the claim is deleted", async || claims(&env).await.is_empty().then_some(())).await;
    assert!(claimed_at.elapsed().as_secs() < 10);
    env.until_condition("web-0", "QuotaGranted", "False", "QuotaExceeded").await;
    claim(&env).await;
    assert!(claimed_at.elapsed().as_secs() >= 50, "{:?}", claimed_at.elapsed());
}

#[tokio::test(start_paused = true)]
async fn without_a_decision_no_new_instance_starts_and_running_ones_continue() {
    let mut env = TestEnv::running(WITH_QUOTA).await;
    env.provider();
    env.deploy(&mk_deployment("web", 1)).await;
    claim(&env).await;
    decide(&env, "True", "QuotaAvailable", &["Granted"; 3]).await;
    env.until_ready(&["web-0"]).await;
    for outage in [RequestFault::Refuse, RequestFault::Hang] {
        env.project.fail(outage);
        env.change("web", |deployment| deployment.spec.scale_settings.min_replicas = 2).await;
        let pending = env.until_condition("web-1", "QuotaGranted", "False", "QuotaBackendUnavailable").await;
        assert_eq!(gates(&pending), ["Quota"]);
        env.until_ready(&["web-0"]).await;
        env.project.restore();
        eventually("the claim of web-1", async || {
            env.at_project().uncached().get::<ResourceClaim>(("shop", "instance-web-1")).await.unwrap()
        })
        .await;
        eventually("the failure is gone", async || {
            env.instance("web-1")
                .await
                .filter(|i| condition(i, "QuotaGranted").is_some_and(|(status, _)| status == "Unknown"))
        })
        .await;
        env.change("web", |deployment| deployment.spec.scale_settings.min_replicas = 1).await;
        eventually("web-1 deleted", async || env.instance("web-1").await.is_none().then_some(())).await;
    }
    assert!(env.metrics().contains("compute_quota_eval_failures_total{reason=\"backend_unavailable\"}"));
}

#[tokio::test(start_paused = true)]
async fn a_deleted_instance_waits_for_an_unreachable_project_to_delete_its_claim() {
    let env = TestEnv::running(WITH_QUOTA).await;
    env.deploy(&mk_deployment("web", 1)).await;
    claim(&env).await;
    env.project.fail(RequestFault::Refuse);
    env.undeploy("web").await;
    eventually("the hub copy is deleted anyway", async || env.copies().await.is_empty().then_some(())).await;
    env.idle(LONG).await;
    assert!(env.instance("web-0").await.is_some());
    env.project.restore();
    env.until_empty().await;
    assert_eq!(claims(&env).await, []);
}

#[tokio::test(start_paused = true)]
async fn an_instance_of_an_unknown_project_reports_it_claims_nothing_and_can_be_deleted() {
    let env = TestEnv::running(WITH_QUOTA).await;
    relabel_cell(&env, &[]).await;
    env.deploy(&mk_deployment("web", 1)).await;
    env.until_condition("web-0", "QuotaGranted", "False", "QuotaProjectIDUnresolvable").await;
    assert!(env.metrics().contains("compute_instances_unresolved{what=\"project\"} 1"));
    assert_eq!(env.project.log(), [""; 0]);
    env.undeploy("web").await;
    env.until_empty().await;
    eventually("an event", async || {
        let events = env.at_cell().uncached().list::<Event>(&ListOptions::all()).await.unwrap();
        events.iter().any(|event| event.reason.as_deref() == Some("QuotaClaimOrphaned")).then_some(())
    })
    .await;
    assert!(env.metrics().contains("compute_quota_claim_orphaned_total 1"));
    assert!(env.metrics().contains("compute_instances_unresolved{what=\"project\"} 0"));
}

#[tokio::test(start_paused = true)]
async fn an_instance_claims_once_its_namespace_is_labelled() {
    let env = TestEnv::running(WITH_QUOTA).await;
    relabel_cell(&env, &[]).await;
    env.deploy(&mk_deployment("web", 1)).await;
    env.until_condition("web-0", "QuotaGranted", "False", "QuotaProjectIDUnresolvable").await;
    relabel_cell(
        &env,
        &[(labels::UPSTREAM_CLUSTER_NAME, "cluster-acme"), (labels::UPSTREAM_NAMESPACE, "shop")],
    )
    .await;
    claim(&env).await;
}

#[tokio::test(start_paused = true)]
async fn a_missing_project_or_namespace_is_the_reason() {
    let env = TestEnv::running(WITH_QUOTA).await;
    relabel_cell(
        &env,
        &[(labels::UPSTREAM_CLUSTER_NAME, "cluster-missing"), (labels::UPSTREAM_NAMESPACE, "shop")],
    )
    .await;
    env.deploy(&mk_deployment("web", 1)).await;
    env.until_condition("web-0", "QuotaGranted", "False", "QuotaProjectNotFound").await;
    relabel_cell(
        &env,
        &[(labels::UPSTREAM_CLUSTER_NAME, "cluster-acme"), (labels::UPSTREAM_NAMESPACE, "nowhere")],
    )
    .await;
    env.until_condition("web-0", "QuotaGranted", "False", "QuotaNamespaceNotFound").await;
}

#[tokio::test(start_paused = true)]
async fn a_pending_claim_that_is_deleted_is_created_again() {
    let env = TestEnv::running(WITH_QUOTA).await;
    env.deploy(&mk_deployment("web", 1)).await;
    let first = claim(&env).await;
    env.idle(LONG).await;
    env.at_project().delete(&first, Preconditions::Uid).await.unwrap();
    eventually("another claim", async || {
        let claim = env.at_project().uncached().get::<ResourceClaim>(CLAIM).await.unwrap()?;
        (claim.metadata.uid != first.metadata.uid).then_some(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_of_another_cell_is_left_unchanged() {
    let env = TestEnv::running(WITH_QUOTA).await;
    let mut theirs = ResourceClaim::default();
    theirs.metadata.name = Some(CLAIM.1.into());
    theirs.metadata.namespace = Some(CLAIM.0.into());
    theirs.metadata.labels =
        Some(metadata::map([(labels::SOURCE_CLUSTER, "dfw-2"), (labels::INSTANCE_NAMESPACE, NAMESPACE)]));
    theirs.spec.consumer_ref.kind = "Project".into();
    theirs.spec.consumer_ref.name = "acme".into();
    let theirs = env.at_project().create(&theirs).await.unwrap();
    env.deploy(&mk_deployment("web", 1)).await;
    let pending = eventually("pending evaluation", async || {
        let instance = env.instance("web-0").await?;
        condition(&instance, "QuotaGranted")
            .is_some_and(|(_, reason)| reason == "PendingEvaluation")
            .then_some(instance)
    })
    .await;
    assert_eq!(gates(&pending), ["Quota"]);
    env.undeploy("web").await;
    env.until_empty().await;
    assert_eq!(claims(&env).await, [theirs]);
}

#[tokio::test(start_paused = true)]
async fn a_cell_that_restarts_between_claim_and_grant_continues() {
    let mut env = TestEnv::running(WITH_QUOTA).await;
    env.deploy(&mk_deployment("web", 1)).await;
    let first = claim(&env).await;
    env.stop().await;
    decide(&env, "True", "QuotaAvailable", &["Granted"; 3]).await;
    env.start();
    env.until_condition("web-0", "Ready", "False", "PendingProgramming").await;
    assert_eq!(claim(&env).await.metadata.uid, first.metadata.uid);
}
