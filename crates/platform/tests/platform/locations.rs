//! Locations: a Location for each city that has a cell, bound into projects.

use polis_api::karmada::Cluster;
use polis_api::labels::TOPOLOGY_CITY_CODE;
use polis_api::networking::{Location, LocationBinding};
use polis_core::cities::Cities;
use polis_core::metadata;
use polis_engine::{ListOptions, MiloProjects, Plane};
use polis_platform::locations::{self, InitialBindings};
use polis_platform::projects::{self, ProjectOptions};

use polis_testing::PlaneExt as _;
use polis_testing::builders::{mk_meta, mk_project};

use crate::env::{LONG, Planes, TestEnv};

async fn cities(project: &Plane) -> Cities {
    Cities::bound(&project.uncached().list::<LocationBinding>(&ListOptions::all()).await.unwrap()).0
}

#[tokio::test(start_paused = true)]
async fn a_city_is_bound_to_every_project_while_it_has_a_cell() {
    let mut env = TestEnv::new(&["dfw"]).await;
    env.start_platform();
    let acme = env.open("acme").await;
    acme.eventually_has::<LocationBinding>("dfw", |binding| binding.status.is_some()).await;
    env.join("ord-1", Some("ord")).await;
    acme.eventually_has::<LocationBinding>("ord", |binding| binding.status.is_some()).await;
    assert!(cities(&acme).await.allows("dfw") && cities(&acme).await.allows("ord"));
    assert!(!cities(&acme).await.allows("lhr"));
    let late = env.open("late").await;
    late.eventually_has::<LocationBinding>("ord", |binding| binding.status.is_some()).await;

    env.join("ord-2", Some("ord")).await;
    env.at("hub").remove::<Cluster>("ord-1").await;
    env.idle(LONG).await;
    assert!(cities(&acme).await.allows("ord"), "another cell serves it");
    env.at("hub").remove::<Cluster>("ord-2").await;
    acme.eventually_lacks::<LocationBinding>("ord").await;
    late.eventually_lacks::<LocationBinding>("ord").await;
    env.at("").eventually_lacks::<Location>("ord").await;
    assert!(cities(&acme).await.allows("dfw"));
}

/// Starts the project controller without the location controllers, so that projects have only their initial
/// bindings.
fn start_projects(env: &mut TestEnv, configure: impl FnOnce(InitialBindings) -> InitialBindings) {
    let (root, hub, clock) = (env.root(), env.at("hub"), env.cluster.clock());
    let initial_bindings = Some(configure(InitialBindings::new(root.clone(), hub)));
    let planes = Planes(env.cluster.server().clone());
    env.start("projects", |engine| {
        projects::declare(
            engine,
            clock,
            root,
            planes,
            ProjectOptions { initial_bindings, hub_namespaces: None },
        )
    });
}

#[tokio::test(start_paused = true)]
async fn a_ready_project_is_bound_to_every_city() {
    let mut env = TestEnv::new(&["dfw", "ord"]).await;
    start_projects(&mut env, |bindings| bindings);
    let acme = env.open("acme").await;
    assert!(cities(&acme).await.allows("dfw") && cities(&acme).await.allows("ord"));
}

#[tokio::test(start_paused = true)]
async fn a_label_selector_restricts_the_projects_that_get_bindings() {
    let mut env = TestEnv::new(&["dfw"]).await;
    let (root, hub, clock) = (env.root(), env.at("hub"), env.cluster.clock());
    start_projects(&mut env, |bindings| bindings.labels("tier=paid"));
    env.start("locations", |engine| {
        let paid = MiloProjects::new(root.clone()).labels("tier=paid");
        locations::declare(engine, clock, root, hub, paid);
    });
    let mut paid = mk_project("paid");
    paid.metadata.labels = Some(metadata::map([("tier", "paid")]));
    env.at("").create(&paid).await.unwrap();
    env.ready("paid").await;
    assert!(cities(&env.project("paid")).await.allows("dfw"), "an initial binding");
    let free = env.open("free").await;
    env.join("ord", Some("ord")).await;
    env.project("paid").eventually_has::<LocationBinding>("ord", |_| true).await;
    env.idle(LONG).await;
    assert_eq!(free.uncached().list::<LocationBinding>(&ListOptions::all()).await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_users_binding_is_left_unchanged_and_a_changed_managed_binding_is_restored() {
    let mut env = TestEnv::new(&["dfw"]).await;
    env.start_platform();
    let acme = env.open("acme").await;
    acme.eventually_has::<LocationBinding>("dfw", |_| true).await;
    let mut users_own = LocationBinding { metadata: mk_meta(None, "lhr"), ..LocationBinding::default() };
    users_own.spec.topology.insert(TOPOLOGY_CITY_CODE.into(), "lhr".into());
    let users_own = acme.create(&users_own).await.unwrap();
    acme.change::<LocationBinding>("dfw", |binding| binding.spec.topology.clear()).await;
    acme.eventually_has::<LocationBinding>("dfw", |binding| !binding.spec.topology.is_empty()).await;
    acme.remove::<LocationBinding>("dfw").await;
    acme.eventually_has::<LocationBinding>("dfw", |_| true).await;
    env.idle(LONG).await;
    assert_eq!(acme.uncached().get::<LocationBinding>("lhr").await.unwrap(), Some(users_own));
}

#[tokio::test(start_paused = true)]
async fn a_member_without_a_city_gets_no_location() {
    let mut env = TestEnv::new(&[]).await;
    env.start_platform();
    env.join("nowhere", None).await;
    env.open("acme").await;
    env.idle(LONG).await;
    assert_eq!(env.at("").uncached().list::<Location>(&ListOptions::all()).await.unwrap(), []);
}
