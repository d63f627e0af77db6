//! F: deployments are federated to the cell of their city, and instances and status come back.

use polis_api::{compute::Instance, kube::ResourceExt as _, labels};
use polis_e2e::{
    builders::{IMAGE, deployment, workload},
    fakes::{MachineOutcome, ProviderBehavior},
    matchers::{deployment_named, instance, namespace, policy, workload_named},
    view::quiet_period,
    world::{disruptive_scenario, scenario},
};

use crate::rollout;

/// F1.
#[test]
fn a_deployment_is_copied_to_the_hub_with_its_city_policy_and_namespace_labels() {
    scenario(async |world| {
        let project = world.project("shop").await;
        project.deploy(deployment("a").to("dfw")).await;
        let hub = world.hub().namespace_of(&project);

        hub.eventually_has(deployment_named("a").labelled(labels::TOPOLOGY_CITY_CODE, "dfw")).await;
        hub.eventually_has(policy("city-dfw").of_city("dfw")).await;
        world
            .hub()
            .cluster_scope()
            .eventually_has(
                namespace(&project.hub_namespace())
                    .labelled(labels::UPSTREAM_CLUSTER_NAME, &format!("cluster-{}", project.name()))
                    .labelled(labels::UPSTREAM_NAMESPACE, &project.namespace),
            )
            .await;
    });
}

/// F2.
#[test]
fn a_city_policy_exists_as_long_as_its_last_deployment() {
    scenario(async |world| {
        let project = world.project("shop").await;
        let first = project.deploy(deployment("a").to("dfw")).await;
        let second = project.deploy(deployment("b").to("dfw")).await;
        let hub = world.hub().namespace_of(&project);

        hub.eventually_has(policy("city-dfw")).await;
        hub.eventually_has(deployment_named("b")).await;
        first.delete().await;
        hub.consistently_has(policy("city-dfw").not_deleting(), quiet_period()).await;
        second.delete().await;
        hub.eventually_lacks(policy("city-dfw")).await;
    });
}

/// F2, while the second deployment is being created.
#[test]
fn deleting_a_deployment_keeps_the_policy_for_one_being_created() {
    scenario(async |world| {
        for round in 0..5 {
            let project = world.project(&format!("shop-{round}")).await;
            let first = project.deploy(deployment("a").to("dfw")).await;
            let hub = world.hub().namespace_of(&project);
            hub.eventually_has(policy("city-dfw")).await;
            let ((), second) = tokio::join!(first.delete(), project.deploy(deployment("b").to("dfw")));

            rollout::until_running(world, &project, "b", "dfw", 1).await;
            hub.eventually_has(policy("city-dfw").of_city("dfw").not_deleting()).await;
            second.delete().await;
            hub.until_gone(policy("city-dfw")).await;
        }
    });
}

/// F2, while the policy is being deleted.
#[test]
fn a_terminating_policy_is_recreated_for_the_next_deployment() {
    scenario(async |world| {
        let project = world.project("shop").await;
        let hub = world.hub().namespace_of(&project);
        for round in 0..5 {
            let name = format!("a{round}");
            let one = project.deploy(deployment(&name).to("ord")).await;
            hub.eventually_has(policy("city-ord").of_city("ord").not_deleting()).await;
            hub.eventually_has(deployment_named(&name)).await;
            one.delete().await;
            // Each round creates the next deployment at another point of the deletion.
            if round % 2 == 1 {
                hub.until_gone(deployment_named(&name)).await;
            }
        }
        project.deploy(deployment("last").to("ord")).await;
        rollout::until_running(world, &project, "last", "ord", 1).await;
        hub.consistently_has(policy("city-ord").of_city("ord").not_deleting(), quiet_period()).await;
    });
}

/// F3.
#[test]
fn a_deployment_runs_in_the_cell_of_its_city_and_in_no_other() {
    scenario(async |world| {
        let project = world.project("shop").await;
        for (name, city, other_city) in [("a", "dfw", "ord"), ("b", "ord", "dfw")] {
            project.deploy(deployment(name).to(city)).await;
            rollout::until_running(world, &project, name, city, 1).await;
            world
                .cell(other_city)
                .namespace_of(&project)
                .consistently_lacks(deployment_named(name), quiet_period())
                .await;
        }
    });
}

/// F3, from a workload.
#[test]
fn a_workload_runs_in_every_city_that_it_names() {
    scenario(async |world| {
        let project = world.project("shop").await;
        let web = project.run(workload("web").placed("all", &["dfw", "ord"], 2)).await;

        let names = web.until_deployed_to(&["dfw", "ord"]).await;
        rollout::until_running(world, &project, &names[0], "dfw", 2).await;
        rollout::until_running(world, &project, &names[1], "ord", 2).await;
        project
            .view()
            .eventually_has(
                workload_named("web").with_counts(2, 4, 4).available("True", "AvailablePlacementFound"),
            )
            .await;
    });
}

/// F4.
#[test]
fn a_new_template_replaces_the_instances_one_by_one_on_every_plane() {
    scenario(async |world| {
        let project = world.project("shop").await;
        let a = project.deploy(deployment("a").to("dfw").replicas(2)).await;
        rollout::until_running(world, &project, "a", "dfw", 2).await;
        let cell = world.cell("dfw").namespace_of(&project);

        a.run_image("registry.test/app:2").await;
        for view in [&cell, &world.hub().namespace_of(&project), &project.view()] {
            for ordinal in 0..2 {
                view.eventually_has(instance(&a.instance(ordinal)).ready().with_image("registry.test/app:2"))
                    .await;
            }
        }
        rollout::until_running(world, &project, "a", "dfw", 2).await;
        // One by one: each of the two instances was started once with the old template and once with the new
        // one.
        let starts = world.provider("dfw").starts_in(&project.hub_namespace());
        assert_eq!(starts.len(), 4, "{starts:?}");
    });
}

/// F4.
#[test]
fn replicas_are_scaled_on_every_plane() {
    scenario(async |world| {
        let project = world.project("shop").await;
        let a = project.deploy(deployment("a").to("dfw")).await;
        rollout::until_running(world, &project, "a", "dfw", 1).await;
        let first = rollout::instance_uids(world, &project, "dfw");
        for replicas in [3, 1] {
            a.scale(replicas).await;
            rollout::until_running(world, &project, "a", "dfw", replicas).await;
        }
        for view in
            [world.cell("dfw").namespace_of(&project), world.hub().namespace_of(&project), project.view()]
        {
            view.consistently_lacks(instance("a-1"), quiet_period() / 5).await;
            view.consistently_lacks(instance("a-2"), quiet_period() / 5).await;
        }
        assert_eq!(
            rollout::instance_uids(world, &project, "dfw"),
            first,
            "the first instance was not recreated"
        );
    });
}

/// F4.
#[test]
fn a_placement_that_moves_to_another_city_leaves_nothing_in_the_first() {
    scenario(async |world| {
        let project = world.project("shop").await;
        let web = project.run(workload("web").placed("main", &["dfw"], 1)).await;
        let old = web.until_deployed_to(&["dfw"]).await.remove(0);
        rollout::until_running(world, &project, &old, "dfw", 1).await;

        web.edit(|spec| spec.placements[0].city_codes = vec!["ord".to_owned()]).await;
        let new = web.until_deployed_to(&["ord"]).await.remove(0);
        rollout::until_running(world, &project, &new, "ord", 1).await;
        for view in
            [world.cell("dfw").namespace_of(&project), world.hub().namespace_of(&project), project.view()]
        {
            view.until_gone(deployment_named(&old)).await;
            view.until_gone(instance(&format!("{old}-0"))).await;
        }
        world.hub().namespace_of(&project).eventually_lacks(policy("city-dfw")).await;
    });
}

/// F4: a later rollout replaces a failing one.
#[test]
fn a_failing_template_is_replaced_by_a_later_one() {
    scenario(async |world| {
        let project = world.project("shop").await;
        let a = project.deploy(deployment("a").to("dfw")).await;
        rollout::until_running(world, &project, "a", "dfw", 1).await;

        a.run_image("registry.test/broken:1").await;
        project
            .view()
            .eventually_has(instance("a-0").with_image("registry.test/broken:1").with_condition(
                "Ready",
                "False",
                "ImageUnavailable",
            ))
            .await;
        a.run_image("registry.test/app:3").await;
        project.view().eventually_has(instance("a-0").with_image("registry.test/app:3").ready()).await;
        rollout::until_running(world, &project, "a", "dfw", 1).await;
    });
}

/// F5.
#[test]
fn status_changes_of_an_instance_reach_every_plane_without_other_events() {
    scenario(async |world| {
        let project = world.project("shop").await;
        let provider = world.provider("dfw");
        let absent = ProviderBehavior { outcome: MachineOutcome::Absent, ..ProviderBehavior::default() };
        provider.set_behavior(&project.hub_namespace(), absent);
        let web = project.run(workload("web").placed("main", &["dfw"], 1)).await;
        let name = web.until_deployed_to(&["dfw"]).await.remove(0);
        let first = format!("{name}-0");
        let project_view = project.view();
        let hub = world.hub().namespace_of(&project);

        project_view
            .eventually_has(instance(&first).with_condition("Ready", "False", "").with_condition(
                "Programmed",
                "Unknown",
                "Pending",
            ))
            .await;
        project_view
            .eventually_has(
                deployment_named(&name).with_counts(1, 0, 1).available("False", "ProvisioningInstances"),
            )
            .await;
        project_view.eventually_has(workload_named("web").with_counts(1, 1, 0).available("False", "")).await;

        provider.set_behavior(&project.hub_namespace(), ProviderBehavior::default());
        for view in [&hub, &project_view] {
            view.eventually_has(
                instance(&first)
                    .ready()
                    .with_condition("Programmed", "True", "Programmed")
                    .with_condition("Running", "True", "Running"),
            )
            .await;
            view.eventually_has(
                deployment_named(&name).with_counts(1, 1, 1).available("True", "StableInstanceFound"),
            )
            .await;
        }
        project_view
            .eventually_has(
                workload_named("web").with_counts(1, 1, 1).available("True", "AvailablePlacementFound"),
            )
            .await;

        provider.set_behavior(
            &project.hub_namespace(),
            ProviderBehavior {
                outcome: MachineOutcome::Crashes("InstanceCrashing"),
                ..ProviderBehavior::default()
            },
        );
        for view in [&hub, &project_view] {
            view.eventually_has(instance(&first).with_condition("Ready", "False", "InstanceCrashing")).await;
            view.eventually_has(deployment_named(&name).with_counts(1, 0, 1)).await;
        }
        project_view.eventually_has(workload_named("web").with_counts(1, 1, 0).available("False", "")).await;
    });
}

/// F5, with the condition of later providers.
#[test]
fn a_provider_may_report_available_instead_of_running() {
    scenario(async |world| {
        let project = world.project("shop").await;
        world.provider("ord").set_behavior(
            &project.hub_namespace(),
            ProviderBehavior { running_condition: "Available", ..ProviderBehavior::default() },
        );
        project.deploy(deployment("a").to("ord")).await;

        rollout::until_running(world, &project, "a", "ord", 1).await;
        project
            .view()
            .eventually_has(instance("a-0").with_condition("Available", "True", "Available").ready())
            .await;
    });
}

/// F5, with a provider that is slow and has a finalizer.
#[test]
fn a_slow_provider_with_a_finalizer_is_awaited() {
    scenario(async |world| {
        let project = world.project("shop").await;
        let slow = ProviderBehavior {
            delay: std::time::Duration::from_secs(2),
            adds_finalizer: true,
            ..ProviderBehavior::default()
        };
        world.provider("dfw").set_behavior(&project.hub_namespace(), slow);
        let a = project.deploy(deployment("a").to("dfw").replicas(2)).await;
        let cell = world.cell("dfw").namespace_of(&project);

        cell.eventually_has(instance("a-0").with_finalizer(polis_e2e::fakes::FINALIZER)).await;
        rollout::until_running(world, &project, "a", "dfw", 2).await;
        a.delete().await;
        rollout::until_clean(world, &project).await;
    });
}

/// F6.
#[test]
fn two_projects_with_the_same_names_are_independent() {
    scenario(async |world| {
        let one = world.project("shop").await;
        let other = world.twin_of(&one).await;
        let a = one.deploy(deployment("a").to("dfw")).await;
        other.deploy(deployment("a").to("dfw").replicas(2).image("registry.test/other:1")).await;

        rollout::until_running(world, &one, "a", "dfw", 1).await;
        rollout::until_running(world, &other, "a", "dfw", 2).await;
        one.view().eventually_has(instance("a-0").with_image(IMAGE)).await;
        other.view().eventually_has(instance("a-0").with_image("registry.test/other:1")).await;
        one.view().consistently_lacks(instance("a-1"), quiet_period() / 5).await;
        assert_ne!(one.hub_namespace(), other.hub_namespace());

        a.delete().await;
        rollout::until_clean(world, &one).await;
        rollout::until_running(world, &other, "a", "dfw", 2).await;
    });
}

/// F7.
#[test]
fn a_project_opened_late_or_reopened_is_served_without_a_restart() {
    scenario(async |world| {
        let (plane, _reserved) = world.spare_plane().await;
        let fixture = world.fixture();
        let project = world.namespace(&plane, &format!("late-{}", std::process::id())).await;
        let a = project.deploy(deployment("a").to("dfw")).await;
        world
            .hub()
            .namespace_of(&project)
            .consistently_lacks(deployment_named("a"), quiet_period() / 5)
            .await;

        fixture.open_project(&plane).await.unwrap();
        rollout::until_running(world, &project, "a", "dfw", 1).await;
        let before = rollout::instance_uids(world, &project, "dfw");

        fixture.close_project(&plane).await.unwrap();
        world
            .hub()
            .namespace_of(&project)
            .consistently_has(deployment_named("a").not_deleting(), quiet_period())
            .await;
        a.scale(2).await;
        fixture.open_project(&plane).await.unwrap();
        rollout::until_running(world, &project, "a", "dfw", 2).await;
        let after = rollout::instance_uids(world, &project, "dfw");
        assert!(before.iter().all(|machine| after.contains(machine)), "{before:?} must be in {after:?}");

        a.delete().await;
        rollout::until_clean(world, &project).await;
        fixture.close_project(&plane).await.unwrap();
    });
}

/// A restarted controller converges from the observed state, without memory of earlier events.
#[test]
fn changes_made_while_the_controllers_are_down_are_reconciled() {
    disruptive_scenario(async |world| {
        let project = world.project("shop").await;
        let a = project.deploy(deployment("a").to("dfw")).await;
        let b = project.deploy(deployment("b").to("ord")).await;
        rollout::until_running(world, &project, "a", "dfw", 1).await;
        rollout::until_running(world, &project, "b", "ord", 1).await;

        for process in world.processes() {
            process.kill();
        }
        a.scale(2).await;
        b.delete().await;
        let c = project.deploy(deployment("c").to("ord")).await;
        for process in world.processes() {
            process.start().await.unwrap();
        }
        rollout::until_running(world, &project, "a", "dfw", 2).await;
        rollout::until_running(world, &project, &c.name, "ord", 1).await;
        for view in
            [world.cell("ord").namespace_of(&project), world.hub().namespace_of(&project), project.view()]
        {
            view.until_gone(deployment_named("b")).await;
            view.until_gone(instance("b-0")).await;
        }
        let left = world.cell("ord").namespace_of(&project).all::<Instance>();
        assert_eq!(left.iter().map(|i| i.name_any()).collect::<Vec<_>>(), ["c-0"]);
    });
}
