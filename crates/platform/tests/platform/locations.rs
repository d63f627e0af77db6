//! Locations: a place for each city that has a cell, bound into projects.

use polis_api::karmada::Cluster;
use polis_api::labels::TOPOLOGY_CITY_CODE;
use polis_api::networking::{Location, LocationBinding};
use polis_core::cities::Cities;
use polis_core::metadata;
use polis_engine::{MiloProjects, Plane, Query};
use polis_platform::locations::{self, Opening};
use polis_platform::projects::{self, Beside};

use crate::world::{LONG, Planes, World, change, mk_meta, mk_project};

async fn cities(project: &Plane) -> Cities {
    Cities::bound(&project.live().list::<LocationBinding>(&Query::all()).await.unwrap()).0
}

#[tokio::test(start_paused = true)]
async fn a_city_is_open_to_every_project_while_it_has_a_cell() {
    let mut world = World::new(&["dfw"]).await;
    world.start_platform();
    let acme = world.open("acme").await;
    world.has::<LocationBinding>(&acme, "dfw", |binding| binding.status.is_some()).await;
    world.join("ord-1", Some("ord")).await;
    world.has::<LocationBinding>(&acme, "ord", |binding| binding.status.is_some()).await;
    assert!(cities(&acme).await.allow("dfw") && cities(&acme).await.allow("ord"));
    assert!(!cities(&acme).await.allow("lhr"));
    let late = world.open("late").await;
    world.has::<LocationBinding>(&late, "ord", |binding| binding.status.is_some()).await;

    world.join("ord-2", Some("ord")).await;
    world.delete::<Cluster>(&world.at("hub"), "ord-1").await;
    world.quiet(LONG).await;
    assert!(cities(&acme).await.allow("ord"), "another cell serves it");
    world.delete::<Cluster>(&world.at("hub"), "ord-2").await;
    world.loses::<LocationBinding>(&acme, "ord").await;
    world.loses::<LocationBinding>(&late, "ord").await;
    world.loses::<Location>(&world.at(""), "ord").await;
    assert!(cities(&acme).await.allow("dfw"));
}

/// Projects are opened so, and nobody watches their bindings: what they have they began with.
fn start_projects(world: &mut World, opening: impl FnOnce(Opening) -> Opening) {
    let (root, hub, clock) = (world.root(), world.at("hub"), world.clock.clone());
    let opening = Some(opening(Opening::new(root.clone(), hub)));
    let planes = Planes(world.server.clone());
    world.start("projects", |engine| {
        projects::declare(engine, clock, root, planes, Beside { opening, homes: None })
    });
}

#[tokio::test(start_paused = true)]
async fn a_project_that_says_it_is_ready_may_use_every_city_that_there_is() {
    let mut world = World::new(&["dfw", "ord"]).await;
    start_projects(&mut world, |opening| opening);
    let acme = world.open("acme").await;
    assert!(cities(&acme).await.allow("dfw") && cities(&acme).await.allow("ord"));
}

#[tokio::test(start_paused = true)]
async fn cities_are_for_the_projects_with_a_label_where_it_is_so_chosen() {
    let mut world = World::new(&["dfw"]).await;
    let (root, hub, clock) = (world.root(), world.at("hub"), world.clock.clone());
    start_projects(&mut world, |opening| opening.labels("tier=paid"));
    world.start("locations", |engine| {
        let paid = MiloProjects::new(root.clone()).labels("tier=paid");
        locations::declare(engine, clock, root, hub, paid);
    });
    let mut paid = mk_project("paid");
    paid.metadata.labels = Some(metadata::map([("tier", "paid")]));
    world.at("").create(&paid).await.unwrap();
    world.ready("paid").await;
    assert!(cities(&world.project("paid")).await.allow("dfw"), "from the first day");
    let free = world.open("free").await;
    world.join("ord", Some("ord")).await;
    world.has::<LocationBinding>(&world.project("paid"), "ord", |_| true).await;
    world.quiet(LONG).await;
    assert_eq!(free.live().list::<LocationBinding>(&Query::all()).await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn what_people_made_is_left_alone_and_what_they_broke_is_mended() {
    let mut world = World::new(&["dfw"]).await;
    world.start_platform();
    let acme = world.open("acme").await;
    world.has::<LocationBinding>(&acme, "dfw", |_| true).await;
    let mut by_hand = LocationBinding { metadata: mk_meta(None, "lhr"), ..LocationBinding::default() };
    by_hand.spec.topology.insert(TOPOLOGY_CITY_CODE.into(), "lhr".into());
    let by_hand = acme.create(&by_hand).await.unwrap();
    change::<LocationBinding>(&acme, "dfw", |binding| binding.spec.topology.clear()).await;
    world.has::<LocationBinding>(&acme, "dfw", |binding| !binding.spec.topology.is_empty()).await;
    world.delete::<LocationBinding>(&acme, "dfw").await;
    world.has::<LocationBinding>(&acme, "dfw", |_| true).await;
    world.quiet(LONG).await;
    assert_eq!(acme.live().get::<LocationBinding>("lhr").await.unwrap(), Some(by_hand));
}

#[tokio::test(start_paused = true)]
async fn a_member_without_a_city_makes_no_location() {
    let mut world = World::new(&[]).await;
    world.start_platform();
    world.join("nowhere", None).await;
    world.open("acme").await;
    world.quiet(LONG).await;
    assert_eq!(world.at("").live().list::<Location>(&Query::all()).await.unwrap(), []);
}
