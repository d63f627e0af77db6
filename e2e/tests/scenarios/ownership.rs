//! O: who owns what, and that nothing is left when its owner goes.

use std::time::Instant;

use polis_api::{
    annotations,
    compute::{Instance, WorkloadDeployment},
    finalizers,
    k8s_openapi::api::core::v1::Namespace,
    kube::{Api, ResourceExt as _, api::DeleteParams},
    labels,
};
use polis_e2e::{
    draft::{deployment, workload},
    place::quiet,
    planes::Part,
    project::insist,
    provider::{Manner, Outcome},
    seek::{deployed, instance, namespace, policy, worked},
    staff::Role,
    world::{alone, scenario},
};

use crate::chain;

/// O1.
#[test]
fn the_hub_namespace_is_recorded_on_the_deployment_before_anything_is_on_the_hub() {
    scenario(async |world| {
        let project = world.project("shop").await;
        project.deploy(deployment("a").to("dfw")).await;
        let recorded = deployed("a")
            .held_by(finalizers::FEDERATOR)
            .annotated(annotations::FEDERATION_NAMESPACE, &project.hub_namespace());
        project.here().has(recorded).await;
        world.hub().namespace_of(&project).has(deployed("a")).await;

        // The first write of all is on the project, and it carries both: the deployment never exists with one of them.
        let writes = world.member(&Role::Management).tap.writes_about(&project.namespaces());
        assert_eq!(writes[0].plane, project.name(), "{writes:?}");
        let noted = |d: &WorkloadDeployment| d.annotations().contains_key(annotations::FEDERATION_NAMESPACE);
        for note in project.eye.journal(world.began()) {
            if note.key.kind == "WorkloadDeployment" && note.key.namespace == project.namespace {
                let then: WorkloadDeployment = serde_json::from_value((*note.object).clone()).unwrap();
                assert_eq!(noted(&then), !then.finalizers().is_empty(), "finalizer and record are one write");
            }
        }
    });
}

/// O2.
#[test]
fn a_hub_copy_belongs_to_the_hub_deployment_and_bears_the_identity_of_its_namespace() {
    scenario(async |world| {
        let project = world.project("shop").await;
        project.deploy(deployment("a").to("dfw")).await;
        chain::runs(world, &project, "a", "dfw", 1).await;
        let hub = world.hub().namespace_of(&project);
        let owner = hub.has(deployed("a")).await.uid().unwrap_or_default();

        let copy = hub
            .has(
                instance("a-0")
                    .owned_by("WorkloadDeployment", "a", &owner)
                    .labelled(labels::UPSTREAM_CLUSTER_NAME, &format!("cluster-{}", project.name()))
                    .labelled(labels::UPSTREAM_NAMESPACE, &project.namespace),
            )
            .await;
        let reference = &copy.owner_references()[0];
        assert_eq!((reference.controller, reference.block_owner_deletion), (Some(true), Some(true)));
    });
}

/// O2, one plane further.
#[test]
fn a_projection_belongs_to_the_deployment_of_its_own_plane() {
    scenario(async |world| {
        let project = world.project("shop").await;
        project.deploy(deployment("a").to("dfw")).await;
        let owner = project.here().has(deployed("a")).await.uid().unwrap_or_default();
        let projection =
            project.here().has(instance("a-0").owned_by("WorkloadDeployment", "a", &owner)).await;
        assert_eq!(projection.owner_references().len(), 1);
    });
}

/// O3.
#[test]
fn copies_go_with_the_hub_deployment_and_do_not_come_back_while_the_cell_goes_on() {
    alone(async |world| {
        let project = world.project("shop").await;
        project.deploy(deployment("a").to("dfw")).await;
        chain::runs(world, &project, "a", "dfw", 1).await;
        let hub = world.hub().namespace_of(&project);
        let cell = world.cell("dfw").namespace_of(&project);
        let machine = cell.has(instance("a-0")).await.uid().unwrap_or_default();

        // Nobody carries deployments to the hub, and nobody carries their end to the cell.
        world.dismiss(&Role::Management).await;
        let carrier = Part::Federation(world.stage().planes.federation_parts().remove(0));
        world.kill(&carrier).await;
        let api = hub.api::<WorkloadDeployment>();
        drop(
            insist("delete the hub deployment", async || api.delete("a", &DeleteParams::default()).await)
                .await,
        );
        hub.is_rid_of(instance("a-0")).await;

        // The cell has something to say about its instance, and says it to nobody.
        let behave = |outcome| {
            world.provider("dfw").behave(&project.hub_namespace(), Manner { outcome, ..Manner::default() })
        };
        behave(Outcome::Crashes("InstanceCrashing"));
        cell.has(instance("a-0").being(&machine).with("Ready", "False", "InstanceCrashing")).await;
        behave(Outcome::Runs);
        cell.has(instance("a-0").being(&machine).ready()).await;
        hub.lacks(instance("a-0"), quiet()).await;

        // With everybody back the deployment is carried again, and the machine is still the same.
        world.restore(&carrier).await;
        world.reinstate(&Role::Management).await;
        hub.has(deployed("a")).await;
        chain::runs(world, &project, "a", "dfw", 1).await;
    });
}

/// O4.
#[test]
fn a_deletion_completes_without_the_cell_and_the_cell_follows_when_it_returns() {
    alone(async |world| {
        let project = world.project("shop").await;
        let a = project.deploy(deployment("a").to("dfw").replicas(2)).await;
        chain::runs(world, &project, "a", "dfw", 2).await;

        let cell = Role::Cell("dfw".to_owned());
        world.dismiss(&cell).await;
        a.delete().await;
        project.here().is_clear_of(&["WorkloadDeployment", "Instance"]).await;
        world
            .hub()
            .namespace_of(&project)
            .is_clear_of(&["WorkloadDeployment", "Instance", "PropagationPolicy"])
            .await;

        world.reinstate(&cell).await;
        chain::is_clean(world, &project).await;
    });
}

/// O5.
#[test]
fn a_project_namespace_can_be_deleted_with_everything_in_it() {
    scenario(async |world| {
        let project = world.project("shop").await;
        let web = project.run(workload("web").placed("main", &["dfw"], 1)).await;
        let name = web.spreads_to(&["dfw"]).await.remove(0);
        chain::runs(world, &project, &name, "dfw", 1).await;

        let api: Api<Namespace> = Api::all(project.eye.client().clone());
        drop(
            insist("delete the namespace", async || {
                api.delete(&project.namespace, &DeleteParams::default()).await
            })
            .await,
        );
        let whole = polis_e2e::place::Place { eye: project.eye.clone(), namespace: String::new() };
        whole.is_rid_of(namespace(&project.namespace)).await;
        chain::is_clean(world, &project).await;
    });
}

/// O6.
#[test]
fn a_deleted_workload_leaves_nothing_on_any_plane() {
    scenario(async |world| {
        let project = world.project("shop").await;
        let big = workload("big").placed("one", &["dfw", "ord"], 3).placed("two", &["dfw"], 3);
        let big = project.run(big).await;
        project.here().has(worked("big").counting(3, 9, 9)).await;

        big.delete().await;
        chain::is_clean(world, &project).await;
    });
}

/// O7.
#[test]
fn a_deletion_waits_for_a_hub_that_is_away_and_says_so() {
    alone(async |world| {
        let project = world.project("shop").await;
        let a = project.deploy(deployment("a").to("dfw")).await;
        chain::runs(world, &project, "a", "dfw", 1).await;

        let hub = Part::Plane(world.stage().planes.layout().hub.clone());
        world.kill(&hub).await;
        a.delete().await;
        let leaving = deployed("a")
            .held_by(finalizers::FEDERATOR)
            .that("is being deleted", |d| d.metadata.deletion_timestamp.is_some());
        project.here().has(leaving.clone()).await;
        crate::bad_input::is_told(&project.here(), "WorkloadDeployment", "a").await;
        project.here().keeps(leaving, quiet()).await;

        world.restore(&hub).await;
        chain::is_clean(world, &project).await;
    });
}

/// O8.
#[test]
fn a_workload_recreated_at_once_is_not_confused_with_the_old_one() {
    scenario(async |world| {
        let project = world.project("shop").await;
        let old = project.run(workload("web").placed("main", &["dfw", "ord"], 2)).await;
        let before = old.spreads_to(&["dfw", "ord"]).await;
        chain::runs(world, &project, &before[0], "dfw", 2).await;

        old.delete().await;
        project.here().is_rid_of(worked("web").being(&old.uid)).await;
        let new = project
            .run(workload("web").placed("main", &["dfw", "ord"], 1).image("registry.test/new:1"))
            .await;
        let after = new.spreads_to(&["dfw", "ord"]).await;
        chain::runs(world, &project, &after[0], "dfw", 1).await;
        chain::runs(world, &project, &after[1], "ord", 1).await;
        assert!(before.iter().all(|name| !after.contains(name)), "{before:?} and {after:?} share a name");
        for name in &before {
            for place in
                [world.cell("dfw").namespace_of(&project), world.hub().namespace_of(&project), project.here()]
            {
                place.is_rid_of(deployed(name)).await;
                place.is_rid_of(instance(&format!("{name}-0"))).await;
            }
        }
        project.here().has(worked("web").being(&new.uid).counting(2, 2, 2)).await;
    });
}

/// O8 for a deployment applied by hand: there the name is the same on every plane.
#[test]
fn a_deployment_recreated_at_once_gets_machines_of_its_own() {
    scenario(async |world| {
        let project = world.project("shop").await;
        let old = project.deploy(deployment("a").to("dfw")).await;
        chain::runs(world, &project, "a", "dfw", 1).await;
        let first = chain::machines(world, &project, "dfw");
        let uid = project.here().has(deployed("a")).await.uid().unwrap_or_default();

        old.delete().await;
        project.here().is_rid_of(deployed("a").being(&uid)).await;
        let at = Instant::now();
        project.deploy(deployment("a").to("dfw").image("registry.test/new:1")).await;
        for place in
            [world.cell("dfw").namespace_of(&project), world.hub().namespace_of(&project), project.here()]
        {
            place.has(instance("a-0").ready().with_image("registry.test/new:1")).await;
        }
        chain::runs(world, &project, "a", "dfw", 1).await;
        assert_ne!(chain::machines(world, &project, "dfw"), first);
        assert!(at.elapsed() < polis_e2e::place::DEADLINE);
        let copies = world.hub().namespace_of(&project).all::<Instance>();
        assert_eq!(copies.len(), 1);
        world.hub().namespace_of(&project).has(policy("city-dfw").of_city("dfw").staying()).await;
    });
}
