//! Projects: creation and deletion of their planes.

use polis_api::k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use polis_api::milo::Project;
use polis_api::{ObjectExt, finalizers, labels};
use polis_core::cities::TenancyMode;
use polis_core::metadata;
use polis_engine::MiloProjects;

use polis_testing::builders::{condition, mk_deployment, mk_meta, mk_namespace, mk_project};
use polis_testing::{PlaneExt as _, eventually};

use crate::env::{LONG, TestEnv};

fn mk_finalized(name: &str) -> ConfigMap {
    let mut held = ConfigMap { metadata: mk_meta(Some("default"), name), ..ConfigMap::default() };
    held.metadata.finalizers = Some(vec!["example.com/keep".into()]);
    held
}

#[tokio::test(start_paused = true)]
async fn a_project_gets_a_plane_with_its_own_default_namespace() {
    let mut env = TestEnv::new(&[]).await;
    env.start_platform();
    let (acme, shop) = (env.open("acme").await, env.open("shop").await);
    let uid = async |plane: &polis_engine::Plane| {
        plane.uncached().get::<Namespace>("default").await.unwrap().unwrap().metadata.uid
    };
    assert_ne!(uid(&acme).await, uid(&shop).await);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_project_serves_until_the_last_finalizer_is_removed() {
    let mut env = TestEnv::new(&[]).await;
    env.start_platform();
    let acme = env.open("acme").await;
    acme.create(&mk_finalized("held")).await.unwrap();
    env.at("").remove::<Project>("acme").await;
    acme.eventually_has::<ConfigMap>(("default", "held"), |held| held.is_deleting()).await;
    env.idle(LONG).await;
    let deleting: Project = env.at("").uncached().get("acme").await.unwrap().expect("the deletion waits");
    let conditions = deleting.status.unwrap().conditions;
    assert_eq!(
        condition(&conditions, "Ready").unwrap().0,
        "True",
        "controllers with finalizers must stay engaged"
    );
    assert_eq!(condition(&conditions, "ResourceCleanup"), Some(("False", "CleanupStarted")));

    acme.change::<ConfigMap>(("default", "held"), |held| held.metadata.finalizers = None).await;
    env.at("").eventually_lacks::<Project>("acme").await;
    assert!(acme.uncached().get::<Namespace>("default").await.unwrap().is_none(), "the plane is deleted");
}

#[tokio::test(start_paused = true)]
async fn a_restarted_platform_continues_the_deletion() {
    let mut env = TestEnv::new(&[]).await;
    env.start_platform();
    let acme = env.open("acme").await;
    acme.create(&mk_finalized("held")).await.unwrap();
    env.at("").remove::<Project>("acme").await;
    acme.eventually_has::<ConfigMap>(("default", "held"), |held| held.is_deleting()).await;
    env.stop("platform").await;
    acme.change::<ConfigMap>(("default", "held"), |held| held.metadata.finalizers = None).await;
    assert!(env.at("").uncached().get::<Project>("acme").await.unwrap().is_some());
    env.start_platform();
    env.at("").eventually_lacks::<Project>("acme").await;
}

#[tokio::test(start_paused = true)]
async fn a_recreated_project_is_empty() {
    let mut env = TestEnv::new(&[]).await;
    env.start_platform();
    let acme = env.open("acme").await;
    acme.create(&mk_namespace("left-over")).await.unwrap();
    let first: Namespace = acme.uncached().get("default").await.unwrap().unwrap();
    env.at("").remove::<Project>("acme").await;
    env.at("").eventually_lacks::<Project>("acme").await;
    let acme = env.open("acme").await;
    let second: Namespace = acme.uncached().get("default").await.unwrap().unwrap();
    assert_ne!(first.metadata.uid, second.metadata.uid);
    assert!(acme.uncached().get::<Namespace>("left-over").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_project_with_an_invalid_name_reports_it_and_can_be_deleted() {
    let mut env = TestEnv::new(&[]).await;
    env.start_platform();
    let name = "x".repeat(56);
    env.at("").create(&mk_project(&name)).await.unwrap();
    let rejected = env
        .at("")
        .eventually_has::<Project>(&name, |p| {
            let status = p.status.as_ref();
            status.and_then(|s| condition(&s.conditions, "Ready")) == Some(("False", "InvalidName"))
        })
        .await;
    assert!(!rejected.metadata.finalizers.unwrap_or_default().contains(&finalizers::PROJECT.to_owned()));
    env.at("").remove::<Project>(&name).await;
    env.at("").eventually_lacks::<Project>(&name).await;
}

#[tokio::test(start_paused = true)]
async fn a_hub_namespace_of_an_unknown_project_is_counted_until_the_project_exists() {
    let mut env = TestEnv::new(&["dfw"]).await;
    env.start_platform();
    let (root, hub, clock) = (env.root(), env.at("hub"), env.cluster.clock());
    env.start("management", |engine| {
        polis_management::declare(engine, clock, MiloProjects::new(root), TenancyMode::Milo, hub);
    });
    let mut namespace = mk_namespace("ns-unknown");
    namespace.metadata.labels = Some(metadata::map([
        (labels::UPSTREAM_CLUSTER_NAME, "cluster-late"),
        (labels::UPSTREAM_NAMESPACE, "default"),
    ]));
    env.at("hub").create(&namespace).await.unwrap();
    env.at("hub").create(&mk_deployment("ns-unknown", "web", "dfw", 1)).await.unwrap();
    let counted = |count: &str| {
        let line = format!("polis_compute_hub_objects_unresolved {count}\n");
        env.handle("management").metrics().contains(&line).then_some(())
    };
    eventually("the namespace is counted", async || counted("1")).await;
    env.idle(LONG).await;
    env.open("late").await;
    eventually("the project is known", async || counted("0")).await;
}
