//! Outages: a component fails while deployments are created, updated, scaled and deleted, and is restored.
//!
//! Each outage affects one deployment per operation, and one that is not changed. Afterwards everything has
//! converged, nothing is lost, left over or run twice, and the unchanged deployment still runs its first
//! instances.

use std::time::Duration;

use polis_api::compute::{Instance, WorkloadDeployment};
use polis_e2e::{
    builders::deployment,
    fakes::MachineStart,
    manager_process::Role,
    matchers::{deployment_named, instance},
    planes::PlaneComponent,
    project::{AppliedDeployment, Project},
    world::{World, disruptive_scenario, federation_components},
};

use crate::rollout;

/// Duration of an outage: long enough for every controller to notice it and to back off a few times.
const OUTAGE: Duration = Duration::from_secs(6);

/// The component that fails.
enum Outage {
    Component(PlaneComponent),
    Process(Role),
    /// The process is paused with SIGSTOP: its connections stay open, and it resumes with an outdated cache.
    Paused(Role),
}

impl Outage {
    async fn begin(&self, world: &World) {
        match self {
            Outage::Component(component) => world.kill(component).await,
            Outage::Process(role) => world.process(role).kill(),
            Outage::Paused(role) => world.process(role).pause(),
        }
    }

    async fn end(&self, world: &World) {
        match self {
            Outage::Component(component) => world.restore(component).await,
            Outage::Process(role) => world.process(role).start().await.unwrap(),
            Outage::Paused(role) => world.process(role).resume(),
        }
    }

    /// Whether users can write during the outage.
    fn allows_user_writes(&self, project: &Project) -> bool {
        !matches!(self, Outage::Component(PlaneComponent::ApiServer(plane)) if plane == project.name())
    }
}

/// One deployment per operation, in one city, before the outage.
struct Deployments {
    unchanged: AppliedDeployment,
    updated: AppliedDeployment,
    grown: AppliedDeployment,
    shrunk: AppliedDeployment,
    deleted: AppliedDeployment,
}

impl Deployments {
    async fn create(world: &World, project: &Project, prefix: &str, city: &str) -> Deployments {
        let deploy = async |name: &str, replicas: i32| {
            project.deploy(deployment(&format!("{prefix}-{name}")).to(city).replicas(replicas)).await
        };
        let (unchanged, updated, grown, shrunk, deleted) = tokio::join!(
            deploy("unchanged", 2),
            deploy("updated", 1),
            deploy("grown", 1),
            deploy("shrunk", 2),
            deploy("deleted", 1)
        );
        let deployments = Deployments { unchanged, updated, grown, shrunk, deleted };
        for (one, replicas) in [
            (&deployments.unchanged, 2),
            (&deployments.updated, 1),
            (&deployments.grown, 1),
            (&deployments.shrunk, 2),
            (&deployments.deleted, 1),
        ] {
            rollout::until_running(world, project, &one.name, city, replicas).await;
        }
        deployments
    }

    /// Runs all operations at once.
    async fn run_operations(&self, project: &Project, prefix: &str, city: &str) {
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

    /// Waits for the expected state after the outage.
    async fn until_converged(&self, world: &World, project: &Project, prefix: &str, city: &str) {
        let views =
            [world.cell(city).namespace_of(project), world.hub().namespace_of(project), project.view()];
        for view in &views {
            view.eventually_has(
                instance(&self.updated.instance(0)).ready().with_image("registry.test/app:2"),
            )
            .await;
        }
        rollout::until_running(world, project, &self.updated.name, city, 1).await;
        rollout::until_running(world, project, &self.grown.name, city, 3).await;
        rollout::until_running(world, project, &self.shrunk.name, city, 1).await;
        rollout::until_running(world, project, &format!("{prefix}-created"), city, 2).await;
        rollout::until_running(world, project, &self.unchanged.name, city, 2).await;
        for view in &views {
            view.until_gone(deployment_named(&self.deleted.name)).await;
            view.until_gone(instance(&self.deleted.instance(0))).await;
            view.until_gone(instance(&self.shrunk.instance(1))).await;
        }
    }
}

/// The number of starts per instance name.
fn starts(world: &World, project: &Project, city: &str) -> Vec<(String, usize)> {
    let all: Vec<MachineStart> = world.provider(city).starts_in(&project.hub_namespace());
    let mut names: Vec<String> = all.iter().map(|start| start.name.clone()).collect();
    names.sort();
    names.dedup();
    names
        .into_iter()
        .map(|name| (name.clone(), all.iter().filter(|start| start.name == name).count()))
        .collect()
}

async fn nothing_is_lost_in(world: &World, outage: Outage) {
    let city = "dfw";
    let project = world.project("outage").await;
    let (early, late) = tokio::join!(
        Deployments::create(world, &project, "e", city),
        Deployments::create(world, &project, "l", city)
    );
    let before = rollout::instance_uids(world, &project, city);

    early.run_operations(&project, "e", city).await;
    outage.begin(world).await;
    let during = outage.allows_user_writes(&project);
    if during {
        late.run_operations(&project, "l", city).await;
    }
    tokio::time::sleep(OUTAGE).await;
    outage.end(world).await;
    if !during {
        late.run_operations(&project, "l", city).await;
    }

    early.until_converged(world, &project, "e", city).await;
    late.until_converged(world, &project, "l", city).await;
    let after = rollout::instance_uids(world, &project, city);
    // These instances keep running: those of unchanged deployments, and the remaining replicas of scaled
    // ones.
    for (prefix, deployments) in [("e", &early), ("l", &late)] {
        let kept = [
            deployments.unchanged.instance(0),
            deployments.unchanged.instance(1),
            deployments.grown.instance(0),
            deployments.shrunk.instance(0),
        ];
        for name in kept {
            let machine = before.iter().find(|(known, _)| *known == name).expect("it ran before");
            assert!(after.contains(machine), "{prefix}: {name} was restarted because of the outage");
        }
    }
    for (name, count) in starts(world, &project, city) {
        let replaced = name.contains("-updated-");
        assert_eq!(count, 1 + usize::from(replaced), "{name} was started {count} times");
    }
    for view in [world.cell(city).namespace_of(&project), world.hub().namespace_of(&project), project.view()]
    {
        assert_eq!(view.all::<WorkloadDeployment>().len(), 10, "{view}");
        assert_eq!(view.all::<Instance>().len(), 18, "{view}");
    }
}

#[test]
fn nothing_is_lost_when_the_hub_is_down() {
    disruptive_scenario(async |world| {
        let hub = world.fixture().planes.layout().hub.clone();
        nothing_is_lost_in(world, Outage::Component(PlaneComponent::ApiServer(hub))).await;
    });
}

#[test]
fn nothing_is_lost_when_the_cell_is_down() {
    disruptive_scenario(async |world| {
        nothing_is_lost_in(world, Outage::Component(PlaneComponent::ApiServer("dfw".to_owned()))).await
    });
}

#[test]
fn nothing_is_lost_when_the_plane_of_the_project_is_down() {
    disruptive_scenario(async |world| {
        let project = world.fixture().planes.layout().projects[0].clone();
        nothing_is_lost_in(world, Outage::Component(PlaneComponent::ApiServer(project))).await;
    });
}

#[test]
fn nothing_is_lost_when_the_management_process_is_killed() {
    disruptive_scenario(async |world| nothing_is_lost_in(world, Outage::Process(Role::Management)).await);
}

#[test]
fn nothing_is_lost_when_the_process_of_the_cell_is_killed() {
    disruptive_scenario(async |world| {
        nothing_is_lost_in(world, Outage::Process(Role::Cell("dfw".to_owned()))).await
    });
}

#[test]
fn nothing_is_lost_when_the_management_process_is_paused_and_resumed() {
    disruptive_scenario(async |world| nothing_is_lost_in(world, Outage::Paused(Role::Management)).await);
}

#[test]
fn nothing_is_lost_when_the_process_of_the_cell_is_paused_and_resumed() {
    disruptive_scenario(async |world| {
        nothing_is_lost_in(world, Outage::Paused(Role::Cell("dfw".to_owned()))).await
    });
}

#[test]
fn nothing_is_lost_when_any_component_of_the_federation_is_killed() {
    for component in federation_components() {
        disruptive_scenario(async |world| {
            nothing_is_lost_in(world, Outage::Component(PlaneComponent::Federation(component))).await
        });
    }
}

/// A cell keeps working without the hub: its instances run, and their status is updated.
#[test]
fn a_cell_keeps_working_while_the_hub_is_down() {
    disruptive_scenario(async |world| {
        let project = world.project("hub-down").await;
        project.deploy(deployment("a").to("dfw")).await;
        rollout::until_running(world, &project, "a", "dfw", 1).await;
        let before = rollout::instance_uids(world, &project, "dfw");
        let cell = world.cell("dfw").namespace_of(&project);

        let hub = PlaneComponent::ApiServer(world.fixture().planes.layout().hub.clone());
        world.kill(&hub).await;
        // The cell reports a crash of the machine and its recovery without the hub.
        let set_outcome = |outcome| {
            let behavior = polis_e2e::fakes::ProviderBehavior { outcome, ..Default::default() };
            world.provider("dfw").set_behavior(&project.hub_namespace(), behavior);
        };
        set_outcome(polis_e2e::fakes::MachineOutcome::Crashes("InstanceCrashing"));
        cell.eventually_has(instance("a-0").with_condition("Ready", "False", "InstanceCrashing")).await;
        cell.eventually_has(deployment_named("a").with_counts(1, 0, 1)).await;
        set_outcome(polis_e2e::fakes::MachineOutcome::Runs);
        cell.eventually_has(deployment_named("a").with_counts(1, 1, 1)).await;
        assert_eq!(rollout::instance_uids(world, &project, "dfw"), before);

        world.restore(&hub).await;
        rollout::until_running(world, &project, "a", "dfw", 1).await;
    });
}
