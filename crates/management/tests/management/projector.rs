//! Projector: the projections of instances in their project, and objects that must not be projected.

use polis_api::ObjectExt as _;
use polis_api::compute::{Instance, WorkloadDeployment};
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::labels;
use polis_core::{metadata, owner};
use polis_testing::builders::{
    condition, mk_deployment, mk_hub_namespace, mk_instance, mk_meta, mk_namespace, mk_template,
};
use polis_testing::{PlaneExt as _, RequestFault, consistently, eventually};

use crate::env::{LONG, NAMESPACE, TestEnv};

const PROJECTION: (&str, &str) = (NAMESPACE, "web-0");

/// An environment with deployment `web`, its copy and the instance `web-0`.
async fn mk_env() -> TestEnv {
    let env = TestEnv::running().await;
    let copy = env.federate("web", "dfw").await;
    env.write_back(&copy, 0).await;
    env
}

fn ready(instance: &Instance) -> Option<(&str, &str)> {
    condition(&instance.status.as_ref()?.conditions, "Ready")
}

#[tokio::test(start_paused = true)]
async fn an_instance_of_the_hub_appears_in_its_project() {
    let env = mk_env().await;
    let projection: Instance = env.acme().eventually_has(PROJECTION, |_| true).await;
    let copy: Instance = env.hub().read((env.hub_namespace.as_str(), "web-0")).await.unwrap();
    assert_eq!(projection.spec, copy.spec);
    assert!(owner::is_owned_by(&projection.metadata, env.deployment("web").await.uid()));
    let label = |key| projection.label(key);
    assert_eq!(label(labels::WORKLOAD_DEPLOYMENT_NAME), Some("web"));
    assert_eq!(label(labels::UPSTREAM_NAMESPACE), Some(NAMESPACE));
    assert_eq!(env.globex().all::<Instance>().await, []);
}

#[tokio::test(start_paused = true)]
async fn the_status_of_an_instance_follows_its_copy() {
    let env = mk_env().await;
    env.report_instance("web-0", "Ready", "True", "Running").await;
    env.acme().eventually_has(PROJECTION, |i: &Instance| ready(i) == Some(("True", "Running"))).await;
    env.report_instance("web-0", "Ready", "False", "ImageUnavailable").await;
    env.acme()
        .eventually_has(PROJECTION, |i: &Instance| ready(i) == Some(("False", "ImageUnavailable")))
        .await;
}

#[tokio::test(start_paused = true)]
async fn what_a_user_would_ask_about_an_instance_is_an_event_of_its_projection() {
    let env = mk_env().await;
    for (status, reason) in [
        ("False", "Starting"),
        ("True", "Running"),
        ("False", "InstanceCrashing"),
        ("True", "Running"),
        ("False", "PendingQuota"),
    ] {
        env.report_instance("web-0", "Ready", status, reason).await;
        let shown = |i: &Instance| ready(i) == Some((status, reason));
        env.acme().eventually_has(PROJECTION, shown).await;
    }
    for reason in ["Running", "InstanceCrashing", "PendingQuota"] {
        env.acme().eventually_event("web-0", reason).await;
    }
    let events = env.acme().events_of("web-0").await;
    let reasons: Vec<_> = events.iter().filter_map(|event| event.reason.as_deref()).collect();
    assert!(!reasons.contains(&"Starting"), "{reasons:?}");
    let running = reasons.iter().filter(|reason| **reason == "Running").count();
    assert_eq!(running, 1, "a repetition joins the series of the first: {reasons:?}");
}

#[tokio::test(start_paused = true)]
async fn a_changed_projection_is_restored() {
    let env = mk_env().await;
    let original: Instance = env.acme().eventually_has(PROJECTION, |_| true).await;
    env.acme()
        .change::<Instance>(PROJECTION, |projection| {
            projection.metadata.labels.as_mut().unwrap().remove(labels::CITY_CODE);
            projection.spec.runtime.sandbox.as_mut().unwrap().containers[0].image = "other".into();
        })
        .await;
    env.acme()
        .eventually_has(PROJECTION, |found: &Instance| {
            found.spec == original.spec && found.metadata.labels == original.metadata.labels
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn an_object_of_a_user_blocks_the_projection_and_stays() {
    let env = TestEnv::running().await;
    let copy = env.federate("web", "dfw").await;
    let mut own = Instance::new("web-0", mk_template("mine:1").spec);
    own.metadata = mk_meta(Some(NAMESPACE), "web-0");
    let own = env.acme().create(&own).await.unwrap();
    env.write_back(&copy, 0).await;
    env.acme().eventually_event("web-0", "ProjectionBlocked").await;
    env.idle(LONG).await;
    assert_eq!(env.acme().read::<Instance>(PROJECTION).await.unwrap().spec, own.spec);

    env.acme().remove::<Instance>(PROJECTION).await;
    env.acme().eventually_has(PROJECTION, |found: &Instance| found.metadata.uid != own.metadata.uid).await;
}

#[tokio::test(start_paused = true)]
async fn an_object_of_a_user_is_not_deleted_with_a_copy() {
    let env = TestEnv::running().await;
    let own = Instance { metadata: mk_meta(Some(NAMESPACE), "web-0"), ..mk_instance_of_a_user() };
    env.acme().create(&own).await.unwrap();
    consistently("the object stays", LONG, async || env.acme().read::<Instance>(PROJECTION).await.is_some())
        .await;
    assert_eq!(env.requests_to("acme").logged("delete"), [""; 0]);
}

fn mk_instance_of_a_user() -> Instance {
    Instance::new("web-0", mk_template("mine:1").spec)
}

#[tokio::test(start_paused = true)]
async fn a_projection_goes_with_its_copy() {
    let env = mk_env().await;
    env.acme().eventually_has(PROJECTION, |_: &Instance| true).await;
    env.hub().remove::<Instance>((env.hub_namespace.as_str(), "web-0")).await;
    env.acme().eventually_lacks::<Instance>(PROJECTION).await;
    assert_eq!(env.requests_to("hub").logged("get instances/web-0").len(), 1, "an uncached read confirms it");
}

#[tokio::test(start_paused = true)]
async fn a_projection_stays_while_the_hub_is_away() {
    let env = mk_env().await;
    let before: Instance = env.acme().eventually_has(PROJECTION, |_| true).await;
    let hub = env.requests_to("hub");
    hub.fail(RequestFault::Refuse);
    env.hub().remove::<Instance>((env.hub_namespace.as_str(), "web-0")).await;
    consistently("the projection stays", LONG, async || {
        env.acme()
            .read::<Instance>(PROJECTION)
            .await
            .is_some_and(|now| now.metadata.uid == before.metadata.uid)
    })
    .await;
    hub.restore();
    env.acme().eventually_lacks::<Instance>(PROJECTION).await;
}

#[tokio::test(start_paused = true)]
async fn an_instance_waits_for_its_deployment() {
    let env = TestEnv::running().await;
    env.hub().create(&mk_hub_namespace(&env.hub_namespace, "acme", NAMESPACE)).await.unwrap();
    let orphan = mk_instance(&mk_deployment(&env.hub_namespace, "web", "dfw", 1), 0);
    env.hub().create(&orphan).await.unwrap();
    consistently("nothing is projected", LONG, async || env.acme().all::<Instance>().await.is_empty()).await;
    env.deploy("web", "dfw").await;
    env.acme().eventually_has(PROJECTION, |_: &Instance| true).await;
}

#[tokio::test(start_paused = true)]
async fn an_instance_of_an_unknown_project_stays_invisible_and_is_reported() {
    let env = TestEnv::running().await;
    env.hub().create(&mk_namespace("ns-unlabelled")).await.unwrap();
    let deployment = mk_deployment("ns-unlabelled", "web", "dfw", 1);
    env.hub().create(&mk_instance(&deployment, 0)).await.unwrap();
    let note = env.hub().eventually_event("web-0", "ProjectUnknown").await;
    assert!(note.contains("ns-unlabelled"), "{note}");
    let counted = |count: &str| {
        env.metrics().lines().any(|line| line == format!("polis_compute_hub_objects_unresolved {count}"))
    };
    assert!(counted("1"));
    env.idle(LONG).await;
    assert_eq!((env.acme().all::<Instance>().await, env.globex().all::<Instance>().await), (vec![], vec![]));
    assert_eq!(env.hub().events_of("web-0").await.len(), 1, "it is reported once");
    env.hub().remove::<Instance>(("ns-unlabelled", "web-0")).await;
    eventually("the count goes down", async || counted("0").then_some(())).await;
}

#[tokio::test(start_paused = true)]
async fn an_instance_is_never_projected_into_the_project_of_a_changed_label() {
    let env = mk_env().await;
    env.acme().eventually_has(PROJECTION, |_: &Instance| true).await;
    // Another client changes the labels of the hub namespace of acme to those of globex.
    let relabel = |namespace: &mut Namespace| {
        let labels = mk_hub_namespace("any", "globex", NAMESPACE).metadata.labels.unwrap();
        metadata::merge_labels(&mut namespace.metadata, &labels, &[]);
    };
    env.globex().create(&mk_deployment(NAMESPACE, "web", "dfw", 1)).await.unwrap();
    env.hub().change::<Namespace>(&env.hub_namespace, relabel).await;
    consistently("globex has no instance", LONG, async || env.globex().all::<Instance>().await.is_empty())
        .await;
}

#[tokio::test(start_paused = true)]
async fn the_projections_of_a_deleted_deployment_go() {
    let env = mk_env().await;
    env.acme().eventually_has(PROJECTION, |_: &Instance| true).await;
    env.acme().remove::<WorkloadDeployment>((NAMESPACE, "web")).await;
    env.acme().eventually_lacks::<Instance>(PROJECTION).await;
    env.acme().eventually_lacks::<WorkloadDeployment>((NAMESPACE, "web")).await;
    assert_eq!(env.hub().all::<Instance>().await, []);
}
