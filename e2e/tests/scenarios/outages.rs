//! Outages: something ends in the middle of creating, updating, scaling and deleting, and comes back.
//!
//! Each outage meets four deployments at once, one for each act, and a bystander that nobody touches. Afterwards
//! everything has converged, nothing is lost, left over or run twice, and the bystander still runs on the machine that
//! it was started on.

use std::time::Duration;

use polis_api::compute::{Instance, WorkloadDeployment};
use polis_e2e::{
    draft::deployment,
    planes::Part,
    project::{Deployed, Project},
    provider::Start,
    seek::{deployed, instance},
    staff::Role,
    world::{World, alone, federation_parts},
};

use crate::chain;

/// How long the part stays away: long enough for every controller to notice and to back off a few times.
const AWAY: Duration = Duration::from_secs(6);

/// What ends.
enum Outage {
    Part(Part),
    Process(Role),
    /// The process does not end: it freezes, its connections stay open, and it wakes up in another world.
    Frozen(Role),
}

impl Outage {
    async fn begin(&self, world: &World) {
        match self {
            Outage::Part(part) => world.kill(part).await,
            Outage::Process(role) => world.member(role).kill(),
            Outage::Frozen(role) => world.member(role).pause(),
        }
    }

    async fn end(&self, world: &World) {
        match self {
            Outage::Part(part) => world.restore(part).await,
            Outage::Process(role) => world.member(role).start().await.unwrap(),
            Outage::Frozen(role) => world.member(role).resume(),
        }
    }

    /// Whether a user can act while it lasts.
    fn lets_users_act(&self, project: &Project) -> bool {
        !matches!(self, Outage::Part(Part::Plane(plane)) if plane == project.name())
    }
}

/// One deployment for each act, in one city, as they are before the outage.
struct Cast {
    bystander: Deployed,
    updated: Deployed,
    grown: Deployed,
    shrunk: Deployed,
    deleted: Deployed,
}

impl Cast {
    async fn on_stage(world: &World, project: &Project, prefix: &str, city: &str) -> Cast {
        let put = async |name: &str, replicas: i32| {
            project.deploy(deployment(&format!("{prefix}-{name}")).to(city).replicas(replicas)).await
        };
        let (bystander, updated, grown, shrunk, deleted) = tokio::join!(
            put("bystander", 2),
            put("updated", 1),
            put("grown", 1),
            put("shrunk", 2),
            put("deleted", 1)
        );
        let cast = Cast { bystander, updated, grown, shrunk, deleted };
        for (one, replicas) in [
            (&cast.bystander, 2),
            (&cast.updated, 1),
            (&cast.grown, 1),
            (&cast.shrunk, 2),
            (&cast.deleted, 1),
        ] {
            chain::runs(world, project, &one.name, city, replicas).await;
        }
        cast
    }

    /// Everything at once.
    async fn act(&self, project: &Project, prefix: &str, city: &str) {
        tokio::join!(
            self.updated.run_image("registry.test/app:2"),
            self.grown.scale(3),
            self.shrunk.scale(1),
            self.deleted.delete(),
            async {
                drop(project.deploy(deployment(&format!("{prefix}-created")).to(city).replicas(2)).await)
            },
        );
    }

    /// What must be true when everything is back.
    async fn has_converged(&self, world: &World, project: &Project, prefix: &str, city: &str) {
        let places =
            [world.cell(city).namespace_of(project), world.hub().namespace_of(project), project.here()];
        for place in &places {
            place.has(instance(&self.updated.instance(0)).ready().with_image("registry.test/app:2")).await;
        }
        chain::runs(world, project, &self.updated.name, city, 1).await;
        chain::runs(world, project, &self.grown.name, city, 3).await;
        chain::runs(world, project, &self.shrunk.name, city, 1).await;
        chain::runs(world, project, &format!("{prefix}-created"), city, 2).await;
        chain::runs(world, project, &self.bystander.name, city, 2).await;
        for place in &places {
            place.is_rid_of(deployed(&self.deleted.name)).await;
            place.is_rid_of(instance(&self.deleted.instance(0))).await;
            place.is_rid_of(instance(&self.shrunk.instance(1))).await;
        }
    }
}

/// Every instance name and how often a machine was started for it.
fn starts(world: &World, project: &Project, city: &str) -> Vec<(String, usize)> {
    let all: Vec<Start> = world.provider(city).starts_in(&project.hub_namespace());
    let mut names: Vec<String> = all.iter().map(|start| start.name.clone()).collect();
    names.sort();
    names.dedup();
    names
        .into_iter()
        .map(|name| (name.clone(), all.iter().filter(|start| start.name == name).count()))
        .collect()
}

async fn survives(world: &World, outage: Outage) {
    let city = "dfw";
    let project = world.project("storm").await;
    let (early, late) =
        tokio::join!(Cast::on_stage(world, &project, "e", city), Cast::on_stage(world, &project, "l", city));
    let before = chain::machines(world, &project, city);

    early.act(&project, "e", city).await;
    outage.begin(world).await;
    let during = outage.lets_users_act(&project);
    if during {
        late.act(&project, "l", city).await;
    }
    tokio::time::sleep(AWAY).await;
    outage.end(world).await;
    if !during {
        late.act(&project, "l", city).await;
    }

    early.has_converged(world, &project, "e", city).await;
    late.has_converged(world, &project, "l", city).await;
    let after = chain::machines(world, &project, city);
    // What nobody changed runs on: the bystanders, and those replicas of the scaled ones that stay.
    for (prefix, cast) in [("e", &early), ("l", &late)] {
        let untouched = [
            cast.bystander.instance(0),
            cast.bystander.instance(1),
            cast.grown.instance(0),
            cast.shrunk.instance(0),
        ];
        for name in untouched {
            let machine = before.iter().find(|(known, _)| *known == name).expect("it ran before");
            assert!(after.contains(machine), "{prefix}: {name} was restarted because of the outage");
        }
    }
    for (name, count) in starts(world, &project, city) {
        let replaced = name.contains("-updated-");
        assert_eq!(count, 1 + usize::from(replaced), "{name} was started {count} times");
    }
    for place in [world.cell(city).namespace_of(&project), world.hub().namespace_of(&project), project.here()]
    {
        assert_eq!(place.all::<WorkloadDeployment>().len(), 10, "{place}");
        assert_eq!(place.all::<Instance>().len(), 18, "{place}");
    }
}

#[test]
fn nothing_is_lost_when_the_hub_goes_away() {
    alone(async |world| {
        let hub = world.stage().planes.layout().hub.clone();
        survives(world, Outage::Part(Part::Plane(hub))).await;
    });
}

#[test]
fn nothing_is_lost_when_the_cell_goes_away() {
    alone(async |world| survives(world, Outage::Part(Part::Plane("dfw".to_owned()))).await);
}

#[test]
fn nothing_is_lost_when_the_plane_of_the_project_goes_away() {
    alone(async |world| {
        let project = world.stage().planes.layout().projects[0].clone();
        survives(world, Outage::Part(Part::Plane(project))).await;
    });
}

#[test]
fn nothing_is_lost_when_the_management_process_dies() {
    alone(async |world| survives(world, Outage::Process(Role::Management)).await);
}

#[test]
fn nothing_is_lost_when_the_process_of_the_cell_dies() {
    alone(async |world| survives(world, Outage::Process(Role::Cell("dfw".to_owned()))).await);
}

#[test]
fn nothing_is_lost_when_the_management_process_freezes_and_wakes_up() {
    alone(async |world| survives(world, Outage::Frozen(Role::Management)).await);
}

#[test]
fn nothing_is_lost_when_the_process_of_the_cell_freezes_and_wakes_up() {
    alone(async |world| survives(world, Outage::Frozen(Role::Cell("dfw".to_owned()))).await);
}

#[test]
fn nothing_is_lost_when_any_part_of_the_federation_dies() {
    for part in federation_parts() {
        alone(async |world| survives(world, Outage::Part(Part::Federation(part))).await);
    }
}

/// A cell goes on by itself: what runs, runs, and a scale-down that has arrived is carried out.
#[test]
fn a_cell_works_on_while_the_hub_is_away() {
    alone(async |world| {
        let project = world.project("island").await;
        project.deploy(deployment("a").to("dfw")).await;
        chain::runs(world, &project, "a", "dfw", 1).await;
        let before = chain::machines(world, &project, "dfw");
        let cell = world.cell("dfw").namespace_of(&project);

        let hub = Part::Plane(world.stage().planes.layout().hub.clone());
        world.kill(&hub).await;
        // A crash of the machine and its return are noticed without the hub.
        let behave = |outcome| {
            let manner = polis_e2e::provider::Manner { outcome, ..Default::default() };
            world.provider("dfw").behave(&project.hub_namespace(), manner);
        };
        behave(polis_e2e::provider::Outcome::Crashes("InstanceCrashing"));
        cell.has(instance("a-0").with("Ready", "False", "InstanceCrashing")).await;
        cell.has(deployed("a").counting(1, 0, 1)).await;
        behave(polis_e2e::provider::Outcome::Runs);
        cell.has(deployed("a").counting(1, 1, 1)).await;
        assert_eq!(chain::machines(world, &project, "dfw"), before);

        world.restore(&hub).await;
        chain::runs(world, &project, "a", "dfw", 1).await;
    });
}
