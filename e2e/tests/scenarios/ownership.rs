//! O: owner references and finalizers; nothing is left when an owner is deleted.

use std::time::Instant;

use polis_api::{
    annotations,
    compute::{Instance, WorkloadDeployment},
    conditions::WITHDRAWN,
    finalizers,
    k8s_openapi::api::core::v1::Namespace,
    kube::{
        Api, ResourceExt as _,
        api::{DeleteParams, Patch, PatchParams},
    },
    labels,
    reasons::{CELL_UNREACHABLE, INSTANCES_ENDING},
};
use polis_e2e::{
    builders::{deployment, workload},
    fakes::{MachineOutcome, ProviderBehavior},
    manager_process::Role,
    matchers::{Matcher, deployment_named, instance, namespace, policy, workload_named},
    planes::PlaneComponent,
    project::retry,
    view::quiet_period,
    world::{disruptive_scenario, scenario},
};
use serde_json::json;

use crate::rollout;

/// O1.
#[test]
fn the_hub_namespace_is_recorded_on_the_deployment_before_anything_is_on_the_hub() {
    scenario(async |world| {
        let project = world.project("shop").await;
        project.deploy(deployment("a").to("dfw")).await;
        let recorded = deployment_named("a")
            .with_finalizer(finalizers::FEDERATOR)
            .annotated(annotations::FEDERATION_NAMESPACE, &project.hub_namespace());
        project.view().eventually_has(recorded).await;
        world.hub().namespace_of(&project).eventually_has(deployment_named("a")).await;

        // The first write is on the project and sets both: the deployment never exists with only one of them.
        let writes = world.process(&Role::Management).requests.writes_in(&project.namespaces());
        assert_eq!(writes[0].plane, project.name(), "{writes:?}");
        let recorded =
            |d: &WorkloadDeployment| d.annotations().contains_key(annotations::FEDERATION_NAMESPACE);
        for entry in project.recorder.journal(world.started_at()) {
            if entry.key.kind == "WorkloadDeployment" && entry.key.namespace == project.namespace {
                let version: WorkloadDeployment = serde_json::from_value((*entry.object).clone()).unwrap();
                assert_eq!(
                    recorded(&version),
                    !version.finalizers().is_empty(),
                    "finalizer and annotation are set by one write"
                );
            }
        }
    });
}

/// O2.
#[test]
fn a_hub_copy_is_owned_by_the_hub_deployment_and_has_the_labels_of_its_namespace() {
    scenario(async |world| {
        let project = world.project("shop").await;
        project.deploy(deployment("a").to("dfw")).await;
        rollout::until_running(world, &project, "a", "dfw", 1).await;
        let hub = world.hub().namespace_of(&project);
        let owner = hub.eventually_has(deployment_named("a")).await.uid().unwrap_or_default();

        let copy = hub
            .eventually_has(
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

/// O2, for projections.
#[test]
fn a_projection_is_owned_by_the_deployment_on_its_plane() {
    scenario(async |world| {
        let project = world.project("shop").await;
        project.deploy(deployment("a").to("dfw")).await;
        let owner = project.view().eventually_has(deployment_named("a")).await.uid().unwrap_or_default();
        let projection =
            project.view().eventually_has(instance("a-0").owned_by("WorkloadDeployment", "a", &owner)).await;
        assert_eq!(projection.owner_references().len(), 1);
    });
}

/// O3.
#[test]
fn hub_copies_are_deleted_with_the_hub_deployment_and_stay_deleted_while_the_cell_runs() {
    disruptive_scenario(async |world| {
        let project = world.project("shop").await;
        project.deploy(deployment("a").to("dfw")).await;
        rollout::until_running(world, &project, "a", "dfw", 1).await;
        let hub = world.hub().namespace_of(&project);
        let cell = world.cell("dfw").namespace_of(&project);
        let machine = cell.eventually_has(instance("a-0")).await.uid().unwrap_or_default();

        // Neither the deployment nor its deletion propagates now.
        world.stop_role(&Role::Management).await;
        let component = PlaneComponent::Federation(world.fixture().planes.federation_components().remove(0));
        world.kill(&component).await;
        let api = hub.api::<WorkloadDeployment>();
        drop(
            retry("delete the hub deployment", async || api.delete("a", &DeleteParams::default()).await)
                .await,
        );
        hub.until_gone(instance("a-0")).await;

        // The status of the cell's instance changes, and no copy is created for it.
        let set_outcome = |outcome| {
            world.provider("dfw").set_behavior(
                &project.hub_namespace(),
                ProviderBehavior { outcome, ..ProviderBehavior::default() },
            )
        };
        set_outcome(MachineOutcome::Crashes("InstanceCrashing"));
        cell.eventually_has(instance("a-0").with_uid(&machine).with_condition(
            "Ready",
            "False",
            "InstanceCrashing",
        ))
        .await;
        set_outcome(MachineOutcome::Runs);
        cell.eventually_has(instance("a-0").with_uid(&machine).ready()).await;
        hub.consistently_lacks(instance("a-0"), quiet_period()).await;

        // After the restart the deployment is federated again, with the same machine.
        world.restore(&component).await;
        world.restore_role(&Role::Management).await;
        hub.eventually_has(deployment_named("a")).await;
        rollout::until_running(world, &project, "a", "dfw", 1).await;
    });
}

/// O4.
#[test]
fn a_deletion_completes_without_the_cell_and_the_cell_cleans_up_when_it_returns() {
    disruptive_scenario(async |world| {
        let project = world.project("shop").await;
        let a = project.deploy(deployment("a").to("dfw").replicas(2)).await;
        rollout::until_running(world, &project, "a", "dfw", 2).await;

        let cell = Role::Cell("dfw".to_owned());
        world.stop_role(&cell).await;
        a.delete().await;
        project.view().eventually_empty_of(&["WorkloadDeployment", "Instance"]).await;
        world
            .hub()
            .namespace_of(&project)
            .eventually_empty_of(&["WorkloadDeployment", "Instance", "PropagationPolicy"])
            .await;

        world.restore_role(&cell).await;
        rollout::until_clean(world, &project).await;
    });
}

/// A deployment that is being deleted, and waits for this reason.
fn waiting(name: &str, reason: &'static str) -> Matcher<WorkloadDeployment> {
    deployment_named(name).that(reason, move |deployment| {
        let conditions = deployment.status.as_ref().map(|status| &*status.conditions).unwrap_or_default();
        let withdrawn = conditions.iter().find(|condition| condition.type_ == WITHDRAWN);
        deployment.metadata.deletion_timestamp.is_some()
            && withdrawn.is_some_and(|withdrawn| withdrawn.reason == reason)
    })
}

/// O9: the instances of a cell that does not respond may still run.
#[test]
fn a_deletion_waits_for_an_unreachable_cell_and_completes_when_it_returns() {
    disruptive_scenario(async |world| {
        let project = world.project("shop").await;
        let a = project.deploy(deployment("a").to("dfw").replicas(2)).await;
        rollout::until_running(world, &project, "a", "dfw", 2).await;

        let cell = PlaneComponent::ApiServer("dfw".to_owned());
        world.kill(&cell).await;
        a.delete().await;
        project.view().eventually_has(waiting("a", CELL_UNREACHABLE)).await;
        project.view().consistently_has(waiting("a", CELL_UNREACHABLE), quiet_period()).await;

        world.restore(&cell).await;
        rollout::until_clean(world, &project).await;
    });
}

/// O9: an abandoned cell does not hold the deletion, and what returns with it is deleted.
#[test]
fn an_abandoned_cell_is_cleaned_up_when_it_returns() {
    disruptive_scenario(async |world| {
        let project = world.project("shop").await;
        let a = project.deploy(deployment("a").to("dfw")).await;
        rollout::until_running(world, &project, "a", "dfw", 1).await;

        let cell = PlaneComponent::ApiServer("dfw".to_owned());
        world.kill(&cell).await;
        a.delete().await;
        project.view().eventually_has(waiting("a", CELL_UNREACHABLE)).await;
        a.merge(json!({"metadata": {"annotations": {annotations::ABANDON: "dfw"}}})).await;
        project.view().until_gone(deployment_named("a")).await;

        world.restore(&cell).await;
        rollout::until_clean(world, &project).await;
    });
}

/// O10.
#[test]
fn a_deployment_is_gone_only_after_its_instances_have_ended() {
    scenario(async |world| {
        let project = world.project("shop").await;
        let a = project.deploy(deployment("a").to("dfw").replicas(2)).await;
        rollout::until_running(world, &project, "a", "dfw", 2).await;
        let cell = world.cell("dfw").namespace_of(&project);
        let held = Patch::Merge(
            json!({"metadata": {"finalizers": [finalizers::INSTANCE, "example.com/stops-slowly"]}}),
        );
        let instances = cell.api::<Instance>();
        retry("hold an instance", async || instances.patch("a-1", &PatchParams::default(), &held).await)
            .await;

        a.delete().await;
        project.view().eventually_has(waiting("a", INSTANCES_ENDING)).await;
        cell.until_gone(instance("a-0")).await;
        project.view().consistently_has(waiting("a", INSTANCES_ENDING), quiet_period()).await;

        let released = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        retry("release it", async || instances.patch("a-1", &PatchParams::default(), &released).await).await;
        rollout::until_clean(world, &project).await;
    });
}

/// O5.
#[test]
fn a_project_namespace_can_be_deleted_with_everything_in_it() {
    scenario(async |world| {
        let project = world.project("shop").await;
        let web = project.run(workload("web").placed("main", &["dfw"], 1)).await;
        let name = web.until_deployed_to(&["dfw"]).await.remove(0);
        rollout::until_running(world, &project, &name, "dfw", 1).await;

        let api: Api<Namespace> = Api::all(project.recorder.client().clone());
        drop(
            retry("delete the namespace", async || {
                api.delete(&project.namespace, &DeleteParams::default()).await
            })
            .await,
        );
        let cluster_scope =
            polis_e2e::view::NamespaceView { recorder: project.recorder.clone(), namespace: String::new() };
        cluster_scope.until_gone(namespace(&project.namespace)).await;
        rollout::until_clean(world, &project).await;
    });
}

/// O6.
#[test]
fn a_deleted_workload_leaves_nothing_on_any_plane() {
    scenario(async |world| {
        let project = world.project("shop").await;
        let big = workload("big").placed("one", &["dfw", "ord"], 3).placed("two", &["dfw"], 3);
        let big = project.run(big).await;
        project.view().eventually_has(workload_named("big").with_counts(3, 9, 9)).await;

        big.delete().await;
        rollout::until_clean(world, &project).await;
    });
}

/// O7.
#[test]
fn a_deletion_waits_for_an_unreachable_hub_and_reports_it() {
    disruptive_scenario(async |world| {
        let project = world.project("shop").await;
        let a = project.deploy(deployment("a").to("dfw")).await;
        rollout::until_running(world, &project, "a", "dfw", 1).await;

        let hub = PlaneComponent::ApiServer(world.fixture().planes.layout().hub.clone());
        world.kill(&hub).await;
        a.delete().await;
        let deleting = deployment_named("a")
            .with_finalizer(finalizers::FEDERATOR)
            .that("is being deleted", |d| d.metadata.deletion_timestamp.is_some());
        project.view().eventually_has(deleting.clone()).await;
        crate::bad_input::until_problem_reported(&project.view(), "WorkloadDeployment", "a").await;
        project.view().consistently_has(deleting, quiet_period()).await;

        world.restore(&hub).await;
        rollout::until_clean(world, &project).await;
    });
}

/// O8.
#[test]
fn a_workload_recreated_at_once_is_not_confused_with_the_old_one() {
    scenario(async |world| {
        let project = world.project("shop").await;
        let old = project.run(workload("web").placed("main", &["dfw", "ord"], 2)).await;
        let before = old.until_deployed_to(&["dfw", "ord"]).await;
        rollout::until_running(world, &project, &before[0], "dfw", 2).await;

        old.delete().await;
        project.view().until_gone(workload_named("web").with_uid(&old.uid)).await;
        let new = project
            .run(workload("web").placed("main", &["dfw", "ord"], 1).image("registry.test/new:1"))
            .await;
        let after = new.until_deployed_to(&["dfw", "ord"]).await;
        rollout::until_running(world, &project, &after[0], "dfw", 1).await;
        rollout::until_running(world, &project, &after[1], "ord", 1).await;
        assert!(before.iter().all(|name| !after.contains(name)), "{before:?} and {after:?} share a name");
        for name in &before {
            for view in
                [world.cell("dfw").namespace_of(&project), world.hub().namespace_of(&project), project.view()]
            {
                view.until_gone(deployment_named(name)).await;
                view.until_gone(instance(&format!("{name}-0"))).await;
            }
        }
        project.view().eventually_has(workload_named("web").with_uid(&new.uid).with_counts(2, 2, 2)).await;
    });
}

/// O8 for a deployment without a workload: its name is the same on every plane.
#[test]
fn a_deployment_recreated_at_once_gets_new_machines() {
    scenario(async |world| {
        let project = world.project("shop").await;
        let old = project.deploy(deployment("a").to("dfw")).await;
        rollout::until_running(world, &project, "a", "dfw", 1).await;
        let first = rollout::instance_uids(world, &project, "dfw");
        let uid = project.view().eventually_has(deployment_named("a")).await.uid().unwrap_or_default();

        old.delete().await;
        project.view().until_gone(deployment_named("a").with_uid(&uid)).await;
        let at = Instant::now();
        project.deploy(deployment("a").to("dfw").image("registry.test/new:1")).await;
        for view in
            [world.cell("dfw").namespace_of(&project), world.hub().namespace_of(&project), project.view()]
        {
            view.eventually_has(instance("a-0").ready().with_image("registry.test/new:1")).await;
        }
        rollout::until_running(world, &project, "a", "dfw", 1).await;
        assert_ne!(rollout::instance_uids(world, &project, "dfw"), first);
        assert!(at.elapsed() < polis_e2e::view::TIMEOUT);
        let copies = world.hub().namespace_of(&project).all::<Instance>();
        assert_eq!(copies.len(), 1);
        world
            .hub()
            .namespace_of(&project)
            .eventually_has(policy("city-dfw").of_city("dfw").not_deleting())
            .await;
    });
}
