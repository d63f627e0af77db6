//! The cities that a project may use, with the workload controller and the local platform.

use polis_api::compute::{Workload, WorkloadDeployment};
use polis_api::k8s_openapi::api::events::v1::Event;
use polis_api::karmada::Cluster;
use polis_api::labels::TOPOLOGY_CITY_CODE;
use polis_api::networking::LocationBinding;
use polis_core::cities::TenancyMode;
use polis_core::conditions;
use polis_engine::{FixedPlanes, ListOptions, MiloProjects, Plane};

use polis_testing::builders::{NETWORK, condition, mk_meta, mk_network, mk_workload};
use polis_testing::{PlaneExt as _, eventually};

use crate::env::{LONG, TestEnv};

/// A platform with project `acme`, its network, and running management controllers.
async fn mk_env(cities: &[&str]) -> (TestEnv, Plane) {
    let mut env = TestEnv::new(cities).await;
    env.start_platform();
    let (root, hub, clock) = (env.root(), env.at("hub"), env.cluster.clock());
    env.start("management", |engine| {
        polis_management::declare(engine, clock, MiloProjects::new(root), TenancyMode::Milo, hub);
    });
    let acme = env.open("acme").await;
    acme.create(&mk_network("default", NETWORK)).await.unwrap();
    for city in cities {
        acme.eventually_has::<LocationBinding>(*city, |_| true).await;
    }
    (env, acme)
}

async fn deployed(acme: &Plane) -> Vec<String> {
    let all = acme.uncached().list::<WorkloadDeployment>(&ListOptions::all()).await.unwrap();
    let mut cities: Vec<String> = all.into_iter().map(|deployment| deployment.spec.city_code).collect();
    cities.sort();
    cities
}

async fn until_deployed(acme: &Plane, cities: &[&str]) {
    eventually(&format!("deployments in {cities:?}"), async || {
        (deployed(acme).await == cities).then_some(())
    })
    .await;
}

fn placement_available(workload: &Workload) -> Option<(&str, &str)> {
    condition(&workload.status.as_ref()?.placements.first()?.conditions, "Available")
}

/// The `LocationsBound` condition of the first placement.
fn locations_bound(workload: &Workload) -> Option<(&str, &str)> {
    condition(&workload.status.as_ref()?.placements.first()?.conditions, "LocationsBound")
}

fn message(workload: &Workload) -> &str {
    let placements = &workload.status.as_ref().unwrap().placements;
    &polis_core::conditions::find(&placements[0].conditions, "Available").unwrap().message
}

#[tokio::test(start_paused = true)]
async fn a_city_that_is_not_bound_gets_no_deployment_and_is_named_until_it_is_bound() {
    let (env, acme) = mk_env(&["dfw"]).await;
    acme.create(&mk_workload("default", "web", &["ord"])).await.unwrap();
    let unmatched = Some(("False", "NoMatchingLocations"));
    let workload = acme
        .eventually_has::<Workload>(("default", "web"), |workload| placement_available(workload) == unmatched)
        .await;
    assert!(message(&workload).contains("dfw"), "the bound cities are named: {}", message(&workload));
    env.idle(LONG).await;
    assert_eq!(deployed(&acme).await, [""; 0]);

    env.join("ord-1", Some("ord")).await;
    until_deployed(&acme, &["ord"]).await;
}

#[tokio::test(start_paused = true)]
async fn an_unbound_city_keeps_its_deployments_and_gets_no_new_ones() {
    let (env, acme) = mk_env(&["dfw", "ord"]).await;
    acme.create(&mk_workload("default", "web", &["dfw", "ord"])).await.unwrap();
    until_deployed(&acme, &["dfw", "ord"]).await;
    env.at("hub").remove::<Cluster>("ord").await;
    acme.eventually_lacks::<LocationBinding>("ord").await;
    eventually("an event", async || {
        let events = acme.uncached().list::<Event>(&ListOptions::all()).await.unwrap();
        events.iter().any(|event| event.reason.as_deref() == Some("LocationLost")).then_some(())
    })
    .await;
    let lost = Some(("False", "LocationLost"));
    acme.eventually_has::<Workload>(("default", "web"), |workload| locations_bound(workload) == lost).await;
    acme.create(&mk_workload("default", "late", &["ord"])).await.unwrap();
    acme.eventually_has::<Workload>(("default", "late"), |workload| workload.status.is_some()).await;
    env.idle(LONG).await;
    assert_eq!(deployed(&acme).await, ["dfw", "ord"], "nothing was deleted or added");

    env.join("ord-2", Some("ord")).await;
    let bound_again = Some(("True", "EveryLocationBound"));
    acme.eventually_has::<Workload>(("default", "web"), |workload| locations_bound(workload) == bound_again)
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_binding_without_a_city_is_reported_and_a_duplicate_changes_nothing() {
    let (_env, acme) = mk_env(&["dfw"]).await;
    let mut blank = LocationBinding { metadata: mk_meta(None, "blank"), ..LocationBinding::default() };
    acme.create(&blank).await.unwrap();
    blank.metadata = mk_meta(None, "dfw-again");
    blank.spec.topology.insert(TOPOLOGY_CITY_CODE.into(), "dfw".into());
    acme.create(&blank).await.unwrap();
    acme.create(&mk_workload("default", "web", &["dfw", "lhr"])).await.unwrap();
    let lacks = Some(("False", "NoMatchingLocations"));
    let workload = acme
        .eventually_has::<Workload>(("default", "web"), |workload| locations_bound(workload) == lacks)
        .await;
    let placement = &workload.status.as_ref().unwrap().placements[0];
    let condition = conditions::find(&placement.conditions, "LocationsBound").unwrap();
    assert!(condition.message.contains("cities bound to this project: dfw; "), "{}", condition.message);
    assert!(
        condition.message.ends_with("ignored LocationBindings: blank names no city"),
        "{}",
        condition.message
    );
    until_deployed(&acme, &["dfw"]).await;
}

/// A plane without the LocationBinding CRD, with running management controllers.
async fn mk_without_bindings(tenancy: TenancyMode) -> (TestEnv, Plane) {
    let mut env = TestEnv::new(&["bare"]).await;
    for crd in polis_api::crds::compute() {
        env.cluster.server().install_crd_in("", &crd.crd).await.unwrap();
    }
    let (single, hub, clock) = (env.at(""), env.at("hub"), env.cluster.clock());
    env.start("management", |engine| {
        polis_management::declare(engine, clock, FixedPlanes::new([single]), tenancy, hub);
    });
    let plane = env.at("");
    plane.create(&mk_workload("default", "web", &["anywhere"])).await.unwrap();
    (env, plane)
}

#[tokio::test(start_paused = true)]
async fn a_single_cluster_without_the_binding_crd_allows_every_city() {
    let (_env, plane) = mk_without_bindings(TenancyMode::Single).await;
    until_deployed(&plane, &["anywhere"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_project_without_the_binding_crd_may_use_no_city() {
    let (env, plane) = mk_without_bindings(TenancyMode::Milo).await;
    let unmatched = Some(("False", "NoMatchingLocations"));
    let workload = plane
        .eventually_has::<Workload>(("default", "web"), |workload| placement_available(workload) == unmatched)
        .await;
    assert!(message(&workload).contains("no city is bound"), "{}", message(&workload));
    env.idle(LONG).await;
    assert_eq!(deployed(&plane).await, [""; 0]);
}
