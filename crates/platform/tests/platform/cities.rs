//! Cities that a project may use, seen by the workload controller beside the stand-in.

use polis_api::compute::{Workload, WorkloadDeployment};
use polis_api::k8s_openapi::api::events::v1::Event;
use polis_api::karmada::Cluster;
use polis_api::labels::TOPOLOGY_CITY_CODE;
use polis_api::networking::{LocationBinding, Network};
use polis_core::cities::Ground;
use polis_core::conditions;
use polis_engine::{Fixed, MiloProjects, Plane, Query};

use crate::cells::mk_workload;
use crate::world::{LONG, World, mk_meta, told};

/// A platform with project `acme`, its network, and the management controllers at work.
async fn mk_world(cities: &[&str]) -> (World, Plane) {
    let mut world = World::new(cities).await;
    world.start_platform();
    let (root, hub, clock) = (world.root(), world.at("hub"), world.clock.clone());
    world.start("management", |engine| {
        polis_management::declare(engine, clock, MiloProjects::new(root), Ground::Platform, hub);
    });
    let acme = world.open("acme").await;
    acme.create(&Network { metadata: mk_meta(Some("default"), "default"), ..Network::default() })
        .await
        .unwrap();
    for city in cities {
        world.has::<LocationBinding>(&acme, *city, |_| true).await;
    }
    (world, acme)
}

async fn deployed(acme: &Plane) -> Vec<String> {
    let all = acme.live().list::<WorkloadDeployment>(&Query::all()).await.unwrap();
    let mut cities: Vec<String> = all.into_iter().map(|deployment| deployment.spec.city_code).collect();
    cities.sort();
    cities
}

async fn until_deployed(world: &World, acme: &Plane, cities: &[&str]) {
    world
        .until(&format!("deployments in {cities:?}"), async || (deployed(acme).await == cities).then_some(()))
        .await;
}

fn placement_says(workload: &Workload) -> Option<(String, String)> {
    told(&workload.status.as_ref()?.placements.first()?.conditions, "Available")
}

/// What the first placement says of its cities.
fn bound(workload: &Workload) -> Option<(String, String)> {
    told(&workload.status.as_ref()?.placements.first()?.conditions, "LocationsBound")
}

fn message(workload: &Workload) -> &str {
    let placements = &workload.status.as_ref().unwrap().placements;
    &polis_core::conditions::find(&placements[0].conditions, "Available").unwrap().message
}

#[tokio::test(start_paused = true)]
async fn a_city_that_is_not_bound_gets_no_deployment_and_is_named_until_it_is_bound() {
    let (world, acme) = mk_world(&["dfw"]).await;
    acme.create(&mk_workload("web", &["ord"])).await.unwrap();
    let refused = Some(("False".to_owned(), "NoMatchingLocations".to_owned()));
    let workload = world
        .has::<Workload>(&acme, ("default", "web"), |workload| placement_says(workload) == refused)
        .await;
    assert!(message(&workload).contains("dfw"), "the cities that are bound are told: {}", message(&workload));
    world.quiet(LONG).await;
    assert_eq!(deployed(&acme).await, [""; 0]);

    world.join("ord-1", Some("ord")).await;
    until_deployed(&world, &acme, &["ord"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_city_taken_away_keeps_what_runs_there_and_gets_nothing_new() {
    let (world, acme) = mk_world(&["dfw", "ord"]).await;
    acme.create(&mk_workload("web", &["dfw", "ord"])).await.unwrap();
    until_deployed(&world, &acme, &["dfw", "ord"]).await;
    world.delete::<Cluster>(&world.at("hub"), "ord").await;
    world.loses::<LocationBinding>(&acme, "ord").await;
    world
        .until("people are told", async || {
            let events = acme.live().list::<Event>(&Query::all()).await.unwrap();
            events.iter().any(|event| event.reason.as_deref() == Some("LocationLost")).then_some(())
        })
        .await;
    let lost = Some(("False".to_owned(), "LocationLost".to_owned()));
    world.has::<Workload>(&acme, ("default", "web"), |workload| bound(workload) == lost).await;
    acme.create(&mk_workload("late", &["ord"])).await.unwrap();
    world.has::<Workload>(&acme, ("default", "late"), |workload| workload.status.is_some()).await;
    world.quiet(LONG).await;
    assert_eq!(deployed(&acme).await, ["dfw", "ord"], "nothing was removed, and nothing was added");

    world.join("ord-2", Some("ord")).await;
    let again = Some(("True".to_owned(), "EveryLocationBound".to_owned()));
    world.has::<Workload>(&acme, ("default", "web"), |workload| bound(workload) == again).await;
}

#[tokio::test(start_paused = true)]
async fn a_binding_without_a_city_and_a_second_one_of_the_same_city_change_nothing_and_are_told() {
    let (world, acme) = mk_world(&["dfw"]).await;
    let mut blank = LocationBinding { metadata: mk_meta(None, "blank"), ..LocationBinding::default() };
    acme.create(&blank).await.unwrap();
    blank.metadata = mk_meta(None, "dfw-again");
    blank.spec.topology.insert(TOPOLOGY_CITY_CODE.into(), "dfw".into());
    acme.create(&blank).await.unwrap();
    acme.create(&mk_workload("web", &["dfw", "lhr"])).await.unwrap();
    let lacks = Some(("False".to_owned(), "NoMatchingLocations".to_owned()));
    let workload =
        world.has::<Workload>(&acme, ("default", "web"), |workload| bound(workload) == lacks).await;
    let placement = &workload.status.as_ref().unwrap().placements[0];
    let says = conditions::find(&placement.conditions, "LocationsBound").unwrap();
    assert!(says.message.contains("cities bound to this project: dfw; "), "{}", says.message);
    assert!(says.message.ends_with("bindings that do not count: blank names no city"), "{}", says.message);
    until_deployed(&world, &acme, &["dfw"]).await;
}

/// A plane that knows workloads and no bindings, with the management controllers at work on such ground.
async fn mk_without_bindings(ground: Ground) -> (World, Plane) {
    let mut world = World::new(&["bare"]).await;
    for crd in polis_api::crds::compute() {
        world.server.install_crd_in("", &crd.crd).await.unwrap();
    }
    let (single, hub, clock) = (world.at(""), world.at("hub"), world.clock.clone());
    world.start("management", |engine| {
        polis_management::declare(engine, clock, Fixed::new([single]), ground, hub);
    });
    let plane = world.at("");
    plane.create(&mk_workload("web", &["anywhere"])).await.unwrap();
    (world, plane)
}

#[tokio::test(start_paused = true)]
async fn a_bare_cluster_that_serves_no_bindings_allows_every_city() {
    let (world, plane) = mk_without_bindings(Ground::Bare).await;
    until_deployed(&world, &plane, &["anywhere"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_project_of_a_platform_that_serves_no_bindings_may_use_no_city() {
    let (world, plane) = mk_without_bindings(Ground::Platform).await;
    let refused = Some(("False".to_owned(), "NoMatchingLocations".to_owned()));
    let workload = world
        .has::<Workload>(&plane, ("default", "web"), |workload| placement_says(workload) == refused)
        .await;
    assert!(message(&workload).contains("no city is bound"), "{}", message(&workload));
    world.quiet(LONG).await;
    assert_eq!(deployed(&plane).await, [""; 0]);
}
