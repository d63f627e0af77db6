//! The hub: shown what the cell has, and not needed for it.

use std::time::Duration;

use polis_api::compute::{Instance, WorkloadDeployment};
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polis_api::{finalizers, labels};
use polis_core::{metadata, owner};
use polis_engine::Exactly;

use crate::line::State;
use crate::world::{
    CELL, HOME, LONG, Setup, World, change_on, mk_deployment, mk_home, mk_template, names, uids,
};

#[tokio::test(start_paused = true)]
async fn a_copy_is_owned_by_the_hubs_deployment_and_says_where_it_comes_from() {
    let mut world = World::running(Setup::default()).await;
    world.provider();
    world.deploy(&mk_deployment("web", 1)).await;
    world.until_ready(&["web-0"]).await;
    let (copy, instance) = (world.copy("web-0").await.unwrap(), world.instance("web-0").await.unwrap());
    let hub_owner: WorkloadDeployment = world.at_hub().live().get((HOME, "web")).await.unwrap().unwrap();
    assert!(owner::is_controlled_by(&copy.metadata, owner::uid(&hub_owner.metadata)));
    let label = |key| metadata::label(&copy.metadata, key);
    assert_eq!(label(labels::UPSTREAM_CLUSTER_NAME), Some("cluster-acme"));
    assert_eq!(label(labels::UPSTREAM_NAMESPACE), Some("shop"));
    assert_eq!(label(labels::SOURCE_CLUSTER), Some(CELL));
    assert_eq!(copy.spec, instance.spec);
    assert_eq!(copy.metadata.finalizers, None);
}

#[tokio::test(start_paused = true)]
async fn a_gated_instance_is_shown_too() {
    let world = World::running(Setup { networks: true, ..Setup::default() }).await;
    world.deploy(&mk_deployment("web", 1)).await;
    let copy = world
        .until("the copy of a waiting instance", async || {
            world.copy("web-0").await.filter(|copy| copy.status.is_some())
        })
        .await;
    assert!(polis_core::gates::has(&copy, "Network"));
}

#[tokio::test(start_paused = true)]
async fn one_instance_takes_few_requests_on_the_hub() {
    let mut world = World::running(Setup::default()).await;
    world.provider();
    world.deploy(&mk_deployment("web", 1)).await;
    world.until_ready(&["web-0"]).await;
    let log = world.hub.log();
    assert_eq!(
        log[..4],
        ["GET workloaddeployments/web", "GET namespace", "POST instances", "PUT instances/web-0/status"]
    );
    assert!(log.len() <= 9, "{log:?}");
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_the_watch_has_not_shown_yet_is_not_looked_for() {
    let mut world = World::new(Setup::default()).await;
    world.hub.watch_late("instances", Duration::from_secs(2));
    world.start();
    world.deploy(&mk_deployment("web", 1)).await;
    world.until("it is shown", async || world.copy("web-0").await).await;
    // The instance starts and becomes ready while the watch is still silent about its copy.
    world.provider();
    world.until_ready(&["web-0"]).await;
    world
        .until("the copy is ready", async || {
            world.copy("web-0").await.filter(polis_core::instances::is_ready)
        })
        .await;
    assert_eq!(world.hub.logged("POST instances"), ["POST instances"]);
    assert_eq!(world.hub.logged("GET workloaddeployments").len(), 1, "{:?}", world.hub.log());
    assert_eq!(world.hub.logged("GET instances").len(), 0, "{:?}", world.hub.log());
}

#[tokio::test(start_paused = true)]
async fn a_cell_does_its_work_while_the_hub_is_away_and_tells_it_afterwards() {
    for outage in [State::Cut, State::Silent] {
        let mut world = World::running(Setup::default()).await;
        world.provider();
        world.deploy(&mk_deployment("web", 1)).await;
        world.until_ready(&["web-0"]).await;
        let first = uids(&world.instances().await);

        world.hub.set(outage);
        world.deploy(&mk_deployment("api", 2)).await;
        for name in ["api-0", "api-1"] {
            world.until_says(name, "Ready", "True", "Running").await;
        }
        world.quiet(LONG).await;
        assert_eq!(names(&world.copies().await), ["web-0"], "{outage:?}");

        world.hub.set(State::Up);
        world.until_ready(&["web-0", "api-0", "api-1"]).await;
        assert_eq!(uids(&[world.instance("web-0").await.unwrap()]), first);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cell_that_starts_while_the_hub_is_away_works() {
    let mut world = World::new(Setup::default()).await;
    world.hub.set(State::Cut);
    world.start();
    world.provider();
    world.deploy(&mk_deployment("web", 1)).await;
    world.until_says("web-0", "Ready", "True", "Running").await;
    world.hub.set(State::Up);
    world.until_ready(&["web-0"]).await;
}

#[tokio::test(start_paused = true)]
async fn losing_and_regaining_the_hub_changes_nothing_in_the_cell() {
    let mut world = World::running(Setup::default()).await;
    world.provider();
    world.deploy(&mk_deployment("web", 3)).await;
    world.until_ready(&["web-0", "web-1", "web-2"]).await;
    world.quiet(LONG).await;
    let before = world.instances().await;
    world.cell.clear();
    world.hub.clear();
    world.hub.set(State::Cut);
    world.quiet(LONG).await;
    world.hub.set(State::Up);
    world.quiet(LONG).await;
    assert_eq!(world.instances().await, before);
    assert_eq!((world.cell.log(), world.hub.log()), (vec![], vec![]));
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_goes_waits_for_the_hub_to_forget_it() {
    let mut world = World::running(Setup::default()).await;
    world.provider();
    world.deploy(&mk_deployment("web", 2)).await;
    world.until_ready(&["web-0", "web-1"]).await;
    world.hub.set(State::Cut);
    world.change("web", |deployment| deployment.spec.scale_settings.min_replicas = 1).await;
    world
        .until("a word about it", async || {
            world.events("web-1").await.contains(&"HubUnreachable".to_owned()).then_some(())
        })
        .await;
    world.quiet(LONG).await;
    let held = world.instance("web-1").await.unwrap();
    assert!(metadata::has_finalizer(&held.metadata, finalizers::INSTANCE));
    world.hub.set(State::Up);
    world
        .until("both gone", async || {
            (world.instance("web-1").await.is_none() && world.copy("web-1").await.is_none()).then_some(())
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn what_the_hub_has_given_up_is_never_brought_back() {
    let mut world = World::running(Setup::default()).await;
    world.provider();
    world.deploy(&mk_deployment("web", 2)).await;
    world.until_ready(&["web-0", "web-1"]).await;
    let hub_owner: WorkloadDeployment = world.at_hub().live().get((HOME, "web")).await.unwrap().unwrap();
    world.at_hub().delete(&hub_owner, Exactly::Object).await.unwrap();
    world.until("copies collected", async || world.copies().await.is_empty().then_some(())).await;
    world.hub.clear();
    // The cell goes on: a change of an instance makes it look at the hub, and find nothing to write.
    change_on::<Instance>(&world.at_cell(), "web-0", |instance| {
        instance.metadata.annotations = Some(metadata::map([("touched", "yes")]));
    })
    .await;
    world.until("a look at the hub", async || (!world.hub.logged("GET").is_empty()).then_some(())).await;
    world.quiet(LONG).await;
    assert!(world.copies().await.is_empty());
    assert!(world.hub.log().iter().all(|entry| entry.starts_with("GET")), "{:?}", world.hub.census());
    // And once the hub has the deployment again, its instances are shown again.
    world.at_hub().create(&mk_deployment("web", 2)).await.unwrap();
    world.until_ready(&["web-0", "web-1"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_somebody_deletes_is_made_again() {
    let mut world = World::running(Setup::default()).await;
    world.provider();
    world.deploy(&mk_deployment("web", 1)).await;
    world.until_ready(&["web-0"]).await;
    let copy = world.copy("web-0").await.unwrap();
    world.at_hub().delete(&copy, Exactly::Object).await.unwrap();
    world
        .until("another copy", async || {
            world.copy("web-0").await.filter(|again| again.metadata.uid != copy.metadata.uid)
        })
        .await;
    world.until_ready(&["web-0"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_somebody_changes_is_put_right_and_foreign_labels_stay() {
    let mut world = World::running(Setup::default()).await;
    world.provider();
    world.deploy(&mk_deployment("web", 1)).await;
    world.until_ready(&["web-0"]).await;
    change_on::<Instance>(&world.at_hub(), "web-0", |copy| {
        let labels = copy.metadata.labels.get_or_insert_default();
        labels.insert(labels::CITY_CODE.into(), "ord".into());
        labels.insert("karmada.io/theirs".into(), "1".into());
    })
    .await;
    let copy = world
        .until("the right city", async || {
            let copy = world.copy("web-0").await?;
            (metadata::label(&copy.metadata, labels::CITY_CODE) == Some("dfw")).then_some(copy)
        })
        .await;
    assert_eq!(metadata::label(&copy.metadata, "karmada.io/theirs"), Some("1"));
}

async fn relabel_hub(world: &World, pairs: &[(&str, &str)]) {
    let hub = world.at_hub();
    let current: Namespace = hub.live().get(HOME).await.unwrap().unwrap();
    let mut wanted = current.clone();
    wanted.metadata.labels = mk_home(pairs).metadata.labels;
    hub.update(&current, &wanted).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_instance_of_unknown_origin_stays_invisible_and_is_told_once() {
    let mut world = World::running(Setup::default()).await;
    relabel_hub(&world, &[(labels::UPSTREAM_NAMESPACE, "shop")]).await;
    world.provider();
    world.deploy(&mk_deployment("web", 1)).await;
    world.until_says("web-0", "Ready", "True", "Running").await;
    world
        .until("a word about it", async || {
            world.events("web-0").await.contains(&"NotShownOnHub".to_owned()).then_some(())
        })
        .await;
    world.quiet(LONG).await;
    assert!(world.copies().await.is_empty());
    assert!(world.metrics().contains("compute_instances_unresolved{what=\"origin\"} 1"));
    assert_eq!(world.events("web-0").await.iter().filter(|reason| *reason == "NotShownOnHub").count(), 1);
    assert!(world.hub.log().iter().all(|entry| entry.starts_with("GET")), "{:?}", world.hub.census());
    // Put right, it shows, and the gauge is back to nothing.
    relabel_hub(
        &world,
        &[(labels::UPSTREAM_CLUSTER_NAME, "cluster-acme"), (labels::UPSTREAM_NAMESPACE, "shop")],
    )
    .await;
    world.until_ready(&["web-0"]).await;
    assert!(world.metrics().contains("compute_instances_unresolved{what=\"origin\"} 0"));
}

#[tokio::test(start_paused = true)]
async fn an_instance_without_labels_is_reported_and_can_go() {
    let world = World::running(Setup::default()).await;
    let metadata =
        ObjectMeta { name: Some("lone".into()), namespace: Some(HOME.into()), ..ObjectMeta::default() };
    let lone = Instance { metadata, spec: mk_template("app:1").spec, status: None };
    world.at_cell().create(&lone).await.unwrap();
    world
        .until("a word about it", async || {
            world.events("lone").await.contains(&"NotShownOnHub".to_owned()).then_some(())
        })
        .await;
    assert!(world.copies().await.is_empty());
    let lone = world.instance("lone").await.unwrap();
    world.at_cell().delete(&lone, Exactly::Object).await.unwrap();
    world.until("it is gone", async || world.instance("lone").await.is_none().then_some(())).await;
    assert!(world.metrics().contains("compute_instances_unresolved{what=\"origin\"} 0"));
}

fn mk_copy(hub_owner: &WorkloadDeployment, cell: Option<&str>) -> Instance {
    let metadata = ObjectMeta {
        name: Some("web-0".into()),
        namespace: Some(HOME.into()),
        labels: cell.map(|cell| metadata::map([(labels::SOURCE_CLUSTER, cell)])),
        owner_references: Some(vec![owner::controller_reference(hub_owner)]),
        ..ObjectMeta::default()
    };
    Instance { metadata, spec: mk_template("theirs:1").spec, status: None }
}

#[tokio::test(start_paused = true)]
async fn an_instance_of_somebody_else_on_the_hub_is_left_alone() {
    let mut world = World::running(Setup::default()).await;
    world.provider();
    let other = world.at_hub().create(&mk_deployment("other", 1)).await.unwrap();
    let theirs = world.at_hub().create(&mk_copy(&other, None)).await.unwrap();
    world.deploy(&mk_deployment("web", 1)).await;
    world
        .until("a word about it", async || {
            world.events("web-0").await.contains(&"NotShownOnHub".to_owned()).then_some(())
        })
        .await;
    world.quiet(LONG).await;
    assert_eq!(world.copy("web-0").await.unwrap(), theirs);
    // Not even when ours goes.
    world.undeploy("web").await;
    world.until("ours gone", async || world.instances().await.is_empty().then_some(())).await;
    assert_eq!(world.copy("web-0").await.unwrap(), theirs);
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_nobody_owns_on_the_hub_is_left_alone_whatever_its_name_and_cell_say() {
    for cell in [None, Some(CELL)] {
        let mut world = World::running(Setup::default()).await;
        world.provider();
        let mut stranger = mk_copy(&mk_deployment("web", 1), cell);
        stranger.metadata.owner_references = None;
        let stranger = world.at_hub().create(&stranger).await.unwrap();
        world.deploy(&mk_deployment("web", 1)).await;
        world
            .until("a word about it", async || {
                world.events("web-0").await.contains(&"NotShownOnHub".to_owned()).then_some(())
            })
            .await;
        world.until_says("web-0", "Ready", "True", "Running").await;
        world.quiet(LONG).await;
        assert_eq!(world.copy("web-0").await.unwrap(), stranger, "{cell:?}");
        assert!(world.metrics().contains("compute_instances_unresolved{what=\"copy\"} 1"));
        // Once its owner has taken it away, ours shows.
        world.at_hub().delete(&stranger, Exactly::Object).await.unwrap();
        world.until_ready(&["web-0"]).await;
        assert!(world.metrics().contains("compute_instances_unresolved{what=\"copy\"} 0"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_deployment_that_moves_in_from_another_cell_takes_its_copies_over_when_the_hub_says_so() {
    let mut world = World::running(Setup::default()).await;
    world.provider();
    let hub_owner = world.at_hub().create(&mk_deployment("web", 1)).await.unwrap();
    world.at_hub().create(&mk_copy(&hub_owner, Some("dfw-2"))).await.unwrap();
    world.at_cell().create(&mk_deployment("web", 1)).await.unwrap();
    world.until_says("web-0", "Ready", "True", "Running").await;
    world.quiet(LONG).await;
    let source = async || {
        metadata::label(&world.copy("web-0").await?.metadata, labels::SOURCE_CLUSTER).map(str::to_owned)
    };
    assert_eq!(source().await.as_deref(), Some("dfw-2"));

    crate::world::change_status::<WorkloadDeployment>(&world.at_hub(), (HOME, "web"), |deployment| {
        deployment.status.get_or_insert_default().cell = Some(CELL.into());
    })
    .await;
    world.until_ready(&["web-0"]).await;
    assert_eq!(source().await.as_deref(), Some(CELL));
}
