//! Projects: a plane for each, from its first day to its last.

use polis_api::k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use polis_api::milo::Project;
use polis_api::{finalizers, labels};
use polis_core::cities::Ground;
use polis_core::{metadata, owner};
use polis_engine::MiloProjects;

use crate::cells::mk_deployment;
use crate::world::{LONG, World, change, mk_meta, mk_namespace, mk_project, told};

fn mk_kept(name: &str) -> ConfigMap {
    let mut kept = ConfigMap { metadata: mk_meta(Some("default"), name), ..ConfigMap::default() };
    kept.metadata.finalizers = Some(vec!["example.com/keep".into()]);
    kept
}

#[tokio::test(start_paused = true)]
async fn a_project_gets_a_plane_with_its_own_default_namespace() {
    let mut world = World::new(&[]).await;
    world.start_platform();
    let (acme, shop) = (world.open("acme").await, world.open("shop").await);
    let uid = async |plane: &polis_engine::Plane| {
        plane.live().get::<Namespace>("default").await.unwrap().unwrap().metadata.uid
    };
    assert_ne!(uid(&acme).await, uid(&shop).await);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_project_stays_and_serves_until_the_last_finalizer_is_released() {
    let mut world = World::new(&[]).await;
    world.start_platform();
    let acme = world.open("acme").await;
    acme.create(&mk_kept("kept")).await.unwrap();
    world.delete::<Project>(&world.at(""), "acme").await;
    world.has::<ConfigMap>(&acme, ("default", "kept"), |kept| owner::is_deleting(&kept.metadata)).await;
    world.quiet(LONG).await;
    let leaving: Project = world.at("").live().get("acme").await.unwrap().expect("it waits");
    let conditions = leaving.status.unwrap().conditions;
    assert_eq!(told(&conditions, "Ready").unwrap().0, "True", "whoever holds a finalizer must be engaged");
    assert_eq!(told(&conditions, "ResourceCleanup"), Some(("False".into(), "CleanupStarted".into())));

    change::<ConfigMap>(&acme, ("default", "kept"), |kept| kept.metadata.finalizers = None).await;
    world.loses::<Project>(&world.at(""), "acme").await;
    assert!(acme.live().get::<Namespace>("default").await.unwrap().is_none(), "the plane is gone");
}

#[tokio::test(start_paused = true)]
async fn a_platform_that_starts_anew_goes_on_emptying() {
    let mut world = World::new(&[]).await;
    world.start_platform();
    let acme = world.open("acme").await;
    acme.create(&mk_kept("kept")).await.unwrap();
    world.delete::<Project>(&world.at(""), "acme").await;
    world.has::<ConfigMap>(&acme, ("default", "kept"), |kept| owner::is_deleting(&kept.metadata)).await;
    world.stop("platform").await;
    change::<ConfigMap>(&acme, ("default", "kept"), |kept| kept.metadata.finalizers = None).await;
    assert!(world.at("").live().get::<Project>("acme").await.unwrap().is_some());
    world.start_platform();
    world.loses::<Project>(&world.at(""), "acme").await;
}

#[tokio::test(start_paused = true)]
async fn a_project_made_again_under_the_same_name_begins_empty() {
    let mut world = World::new(&[]).await;
    world.start_platform();
    let acme = world.open("acme").await;
    acme.create(&mk_namespace("left-over")).await.unwrap();
    let first: Namespace = acme.live().get("default").await.unwrap().unwrap();
    world.delete::<Project>(&world.at(""), "acme").await;
    world.loses::<Project>(&world.at(""), "acme").await;
    let acme = world.open("acme").await;
    let second: Namespace = acme.live().get("default").await.unwrap().unwrap();
    assert_ne!(first.metadata.uid, second.metadata.uid);
    assert!(acme.live().get::<Namespace>("left-over").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_name_that_cannot_travel_is_refused_in_words_and_the_project_can_go() {
    let mut world = World::new(&[]).await;
    world.start_platform();
    let name = "x".repeat(56);
    world.at("").create(&mk_project(&name)).await.unwrap();
    let refused = world
        .has::<Project>(&world.at(""), &name, |p| {
            let status = p.status.as_ref();
            status.and_then(|s| told(&s.conditions, "Ready")) == Some(("False".into(), "InvalidName".into()))
        })
        .await;
    assert!(!refused.metadata.finalizers.unwrap_or_default().contains(&finalizers::PROJECT.to_owned()));
    world.delete::<Project>(&world.at(""), &name).await;
    world.loses::<Project>(&world.at(""), &name).await;
}

#[tokio::test(start_paused = true)]
async fn what_names_an_unknown_project_is_counted_until_the_project_comes() {
    let mut world = World::new(&["dfw"]).await;
    world.start_platform();
    let (root, hub, clock) = (world.root(), world.at("hub"), world.clock.clone());
    world.start("management", |engine| {
        polis_management::declare(engine, clock, MiloProjects::new(root), Ground::Platform, hub);
    });
    let mut home = mk_namespace("ns-of-nobody");
    home.metadata.labels = Some(metadata::map([
        (labels::UPSTREAM_CLUSTER_NAME, "cluster-late"),
        (labels::UPSTREAM_NAMESPACE, "default"),
    ]));
    world.at("hub").create(&home).await.unwrap();
    world.at("hub").create(&mk_deployment("dfw", "ns-of-nobody", "web", 1)).await.unwrap();
    let counted = |count: &str| {
        let line = format!("polis_compute_hub_objects_unresolved {count}\n");
        world.look_into("management").metrics().contains(&line).then_some(())
    };
    world.until("it is counted", async || counted("1")).await;
    world.quiet(LONG).await;
    world.open("late").await;
    world.until("it is known", async || counted("0")).await;
}
