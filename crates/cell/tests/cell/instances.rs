//! Instances of a deployment: made, kept, replaced and let go.

use std::time::Duration;

use polis_api::compute::{Instance, WorkloadDeployment};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polis_api::{annotations, finalizers, labels};
use polis_core::{metadata, owner};
use polis_engine::Exactly;

use crate::world::{
    HOME, LONG, Setup, World, change_on, gates, mk_deployment, mk_template, names, says, uids,
};

#[tokio::test(start_paused = true)]
async fn an_instance_is_born_complete_and_its_gate_opens_in_the_pass_that_grants() {
    let world = World::running(Setup::default()).await;
    world.deploy(&mk_deployment("web", 1)).await;
    let instance = world.until_says("web-0", "Ready", "False", "PendingProgramming").await;

    assert_eq!(says(&instance, "QuotaGranted"), Some(("True".into(), "QuotaDisabled".into())));
    assert_eq!(gates(&instance), [""; 0]);
    assert_eq!(instance.metadata.finalizers, Some(vec![finalizers::INSTANCE.into()]));
    // Made once; status, then gate, then the status of the new generation: nothing in between.
    let writes = world.cell.log().into_iter().filter(|entry| entry.contains("instances")).collect::<Vec<_>>();
    assert_eq!(
        writes,
        ["POST instances", "PUT instances/web-0/status", "PUT instances/web-0", "PUT instances/web-0/status"]
    );
    assert!(world.metrics().contains("compute_quota_enforcement_enabled 0"));
}

#[tokio::test(start_paused = true)]
async fn the_deployment_says_how_it_is_and_where() {
    let mut world = World::running(Setup::default()).await;
    world.provider();
    world.deploy(&mk_deployment("web", 2)).await;
    world.until_ready(&["web-0", "web-1"]).await;
    let status = world
        .until("both counted", async || {
            world.deployment("web").await?.status.filter(|status| status.ready_replicas == 2)
        })
        .await;
    assert_eq!((status.replicas, status.desired_replicas, status.current_replicas), (2, 2, 2));
    assert_eq!(status.cell.as_deref(), Some("dfw-1"));
    assert_eq!(status.observed_generation, Some(1));
    assert!(polis_core::conditions::is_true(&status.conditions, "Available"));
}

#[tokio::test(start_paused = true)]
async fn instances_come_one_by_one_each_after_the_one_before_is_ready() {
    let mut world = World::running(Setup::default()).await;
    world.deploy(&mk_deployment("web", 3)).await;
    world.until_says("web-0", "Ready", "False", "PendingProgramming").await;
    world.quiet(LONG).await;
    assert_eq!(names(&world.instances().await), ["web-0"]);
    world.provider();
    world.until_ready(&["web-0", "web-1", "web-2"]).await;
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_the_watch_has_not_shown_yet_is_not_made_again() {
    let mut world = World::new(Setup::default()).await;
    world.cell.watch_late("instances", Duration::from_secs(2));
    world.start();
    world.provider();
    world.deploy(&mk_deployment("web", 1)).await;
    world.until("it is made", async || world.instance("web-0").await).await;
    // Something else about the deployment, while the watch is still silent about its instance.
    world
        .change("web", |deployment| {
            deployment.metadata.annotations = Some(metadata::map([("note", "again")]));
        })
        .await;
    world.until_ready(&["web-0"]).await;
    assert_eq!(world.cell.logged("POST instances"), ["POST instances"]);
}

#[tokio::test(start_paused = true)]
async fn a_provider_may_say_available_instead_of_running() {
    let mut world = World::running(Setup::default()).await;
    world.provider_saying("Available");
    world.deploy(&mk_deployment("web", 2)).await;
    world.until_ready(&["web-0", "web-1"]).await;
}

#[tokio::test(start_paused = true)]
async fn scaling_down_takes_the_highest_first_and_one_at_a_time() {
    let mut world = World::running(Setup::default()).await;
    world.provider();
    world.deploy(&mk_deployment("web", 3)).await;
    world.until_ready(&["web-0", "web-1", "web-2"]).await;
    world.cell.clear();
    world.change("web", |deployment| deployment.spec.scale_settings.min_replicas = 1).await;
    world.until("one left", async || (names(&world.instances().await) == ["web-0"]).then_some(())).await;
    world.until("one copy left", async || (names(&world.copies().await) == ["web-0"]).then_some(())).await;
    // Each is deleted and released before the next is deleted.
    let of_instances = |entry: &String| {
        entry.contains("instances/") && !entry.contains("status") && !entry.contains("events")
    };
    let log: Vec<_> = world.cell.log().into_iter().filter(of_instances).collect();
    assert_eq!(
        log,
        ["DELETE instances/web-2", "PUT instances/web-2", "DELETE instances/web-1", "PUT instances/web-1"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_new_template_replaces_instances_one_by_one_from_the_highest() {
    let mut world = World::running(Setup::default()).await;
    world.provider();
    world.deploy(&mk_deployment("web", 2)).await;
    world.until_ready(&["web-0", "web-1"]).await;
    let before = uids(&world.instances().await);
    world.cell.clear();
    world.change("web", |deployment| deployment.spec.template = mk_template("app:2")).await;
    world.until_rolled_out("web", 2).await;
    let after = uids(&world.instances().await);
    assert!(before.iter().all(|uid| !after.contains(uid)));
    let made_or_gone = |entry: &String| entry.starts_with("DELETE") || *entry == "POST instances";
    let log: Vec<_> = world.cell.log().into_iter().filter(made_or_gone).collect();
    assert_eq!(log, ["DELETE instances/web-1", "POST instances", "DELETE instances/web-0", "POST instances"]);
}

#[tokio::test(start_paused = true)]
async fn a_rollout_that_never_gets_ready_is_mended_by_the_next_template() {
    let mut world = World::running(Setup::default()).await;
    world.deploy(&mk_deployment("web", 1)).await;
    world.until_says("web-0", "Ready", "False", "PendingProgramming").await;
    world.change("web", |deployment| deployment.spec.template = mk_template("app:2")).await;
    world.provider();
    world.until_rolled_out("web", 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_deployment_that_goes_takes_everything_along() {
    let mut world = World::running(Setup::default()).await;
    world.provider();
    world.deploy(&mk_deployment("web", 2)).await;
    world.until_ready(&["web-0", "web-1"]).await;
    world.undeploy("web").await;
    world.until_empty().await;
    world.quiet(LONG).await;
    world.until_empty().await;
}

#[tokio::test(start_paused = true)]
async fn a_deployment_made_anew_waits_for_the_instances_of_its_namesake() {
    let mut world = World::running(Setup::default()).await;
    world.deploy(&mk_deployment("web", 1)).await;
    world.until_says("web-0", "Ready", "False", "PendingProgramming").await;
    // The machine takes its time to stop.
    change_on::<Instance>(&world.at_cell(), "web-0", |instance| {
        metadata::add_finalizer(&mut instance.metadata, "provider.example/machine");
    })
    .await;
    let old = world.instance("web-0").await.unwrap().metadata.uid;
    world.undeploy("web").await;
    world
        .until("the old on its way out", async || {
            world.instance("web-0").await.filter(|i| owner::is_deleting(&i.metadata))
        })
        .await;
    world.deploy(&mk_deployment("web", 1)).await;
    world.quiet(LONG).await;
    assert_eq!(world.instance("web-0").await.unwrap().metadata.uid, old);

    change_on::<Instance>(&world.at_cell(), "web-0", |instance| {
        metadata::remove_finalizer(&mut instance.metadata, "provider.example/machine");
    })
    .await;
    world.provider();
    world.until_ready(&["web-0"]).await;
    assert_ne!(world.instance("web-0").await.unwrap().metadata.uid, old);
}

#[tokio::test(start_paused = true)]
async fn an_instance_by_hand_in_the_place_of_ours_is_reported_and_left_alone() {
    let world = World::running(Setup::default()).await;
    let metadata =
        ObjectMeta { name: Some("web-0".into()), namespace: Some(HOME.into()), ..ObjectMeta::default() };
    let foreign = Instance { metadata, spec: mk_template("theirs:1").spec, status: None };
    let made = world.at_cell().create(&foreign).await.unwrap();
    world.deploy(&mk_deployment("web", 1)).await;
    world
        .until("a word about it", async || {
            world.events("web").await.contains(&"InstanceNotOurs".to_owned()).then_some(())
        })
        .await;
    world.quiet(LONG).await;
    let standing = world.instance("web-0").await.unwrap();
    assert_eq!((standing.metadata.uid, standing.spec), (made.metadata.uid, made.spec));
    // Once it is gone, ours takes the place.
    world.at_cell().delete(&world.instance("web-0").await.unwrap(), Exactly::Object).await.unwrap();
    world
        .until("ours in its place", async || {
            let instance = world.instance("web-0").await?;
            metadata::label(&instance.metadata, labels::WORKLOAD_DEPLOYMENT_NAME).map(|_| ())
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn labels_that_somebody_took_away_come_back() {
    let world = World::running(Setup::default()).await;
    world.deploy(&mk_deployment("web", 1)).await;
    world.until_says("web-0", "Ready", "False", "PendingProgramming").await;
    change_on::<Instance>(&world.at_cell(), "web-0", |instance| instance.metadata.labels = None).await;
    world
        .until("all labels", async || {
            let labels = world.instance("web-0").await?.metadata.labels?;
            polis_core::instances::LINKING_LABELS
                .iter()
                .all(|label| labels.contains_key(*label))
                .then_some(())
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_deployment_with_the_finalizer_of_others_is_taken_apart_and_released() {
    let world = World::running(Setup::default()).await;
    world.deploy(&mk_deployment("web", 2)).await;
    world.until_says("web-0", "Ready", "False", "PendingProgramming").await;
    world
        .change("web", |deployment| {
            _ = metadata::add_finalizer(&mut deployment.metadata, finalizers::DEPLOYMENT)
        })
        .await;
    world.undeploy("web").await;
    world.until_empty().await;
    world.until("the deployment gone", async || world.deployment("web").await.is_none().then_some(())).await;
}

#[tokio::test(start_paused = true)]
async fn a_wish_to_suspend_reaches_the_instances_and_so_does_its_end() {
    let mut world = World::running(Setup::default()).await;
    world.provider();
    world.deploy(&mk_deployment("web", 1)).await;
    world.until_ready(&["web-0"]).await;
    let wish = |value: &'static str| {
        move |deployment: &mut WorkloadDeployment| {
            deployment.metadata.annotations = Some(metadata::map([(annotations::SUSPENDED, value)]));
        }
    };
    world.change("web", wish("true")).await;
    world.until_says("web-0", "Ready", "False", "Suspended").await;
    world.change("web", wish("false")).await;
    world.until_ready(&["web-0"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_settled_cell_writes_nothing_and_reads_nothing() {
    let mut world = World::running(Setup::default()).await;
    world.provider();
    world.deploy(&mk_deployment("web", 3)).await;
    world.until_ready(&["web-0", "web-1", "web-2"]).await;
    world.no_provider();
    world.quiet(LONG).await;
    world.cell.clear();
    world.hub.clear();
    world.quiet(LONG).await;
    assert_eq!((world.cell.log(), world.hub.log()), (vec![], vec![]));
    // Neither does a process that starts anew into a settled cell.
    world.stop().await;
    world.start();
    world.quiet(LONG).await;
    assert_eq!((world.cell.log(), world.hub.log()), (vec![], vec![]));
}
