//! F: deployments travel to the cell of their city, and instances and status come back.

use polis_api::{compute::Instance, kube::ResourceExt as _, labels};
use polis_e2e::{
    draft::{IMAGE, deployment, workload},
    place::quiet,
    provider::{Manner, Outcome},
    seek::{deployed, instance, namespace, policy, worked},
    world::{alone, scenario},
};

use crate::chain;

/// F1.
#[test]
fn a_deployment_is_carried_to_the_hub_with_its_city_its_policy_and_its_identity() {
    scenario(async |world| {
        let project = world.project("shop").await;
        project.deploy(deployment("a").to("dfw")).await;
        let hub = world.hub().namespace_of(&project);

        hub.has(deployed("a").labelled(labels::TOPOLOGY_CITY_CODE, "dfw")).await;
        hub.has(policy("city-dfw").of_city("dfw")).await;
        world
            .hub()
            .whole()
            .has(
                namespace(&project.hub_namespace())
                    .labelled(labels::UPSTREAM_CLUSTER_NAME, &format!("cluster-{}", project.name()))
                    .labelled(labels::UPSTREAM_NAMESPACE, &project.namespace),
            )
            .await;
    });
}

/// F2.
#[test]
fn a_city_policy_lives_as_long_as_its_last_deployment() {
    scenario(async |world| {
        let project = world.project("shop").await;
        let first = project.deploy(deployment("a").to("dfw")).await;
        let second = project.deploy(deployment("b").to("dfw")).await;
        let hub = world.hub().namespace_of(&project);

        hub.has(policy("city-dfw")).await;
        hub.has(deployed("b")).await;
        first.delete().await;
        hub.keeps(policy("city-dfw").staying(), quiet()).await;
        second.delete().await;
        hub.loses(policy("city-dfw")).await;
    });
}

/// F2, while the second is on its way.
#[test]
fn a_deployment_that_leaves_does_not_take_the_policy_from_one_that_comes() {
    scenario(async |world| {
        for round in 0..5 {
            let project = world.project(&format!("shop-{round}")).await;
            let first = project.deploy(deployment("a").to("dfw")).await;
            let hub = world.hub().namespace_of(&project);
            hub.has(policy("city-dfw")).await;
            let ((), second) = tokio::join!(first.delete(), project.deploy(deployment("b").to("dfw")));

            chain::runs(world, &project, "b", "dfw", 1).await;
            hub.has(policy("city-dfw").of_city("dfw").staying()).await;
            second.delete().await;
            hub.is_rid_of(policy("city-dfw")).await;
        }
    });
}

/// F2, when the policy is just going.
#[test]
fn a_policy_on_its_way_out_is_made_anew_for_the_next_deployment() {
    scenario(async |world| {
        let project = world.project("shop").await;
        let hub = world.hub().namespace_of(&project);
        for round in 0..5 {
            let name = format!("a{round}");
            let one = project.deploy(deployment(&name).to("ord")).await;
            hub.has(policy("city-ord").of_city("ord").staying()).await;
            hub.has(deployed(&name)).await;
            one.delete().await;
            // The next one comes at another moment of the old one's departure every time.
            if round % 2 == 1 {
                hub.is_rid_of(deployed(&name)).await;
            }
        }
        project.deploy(deployment("last").to("ord")).await;
        chain::runs(world, &project, "last", "ord", 1).await;
        hub.keeps(policy("city-ord").of_city("ord").staying(), quiet()).await;
    });
}

/// F3.
#[test]
fn a_deployment_runs_in_the_cell_of_its_city_and_in_no_other() {
    scenario(async |world| {
        let project = world.project("shop").await;
        for (name, city, elsewhere) in [("a", "dfw", "ord"), ("b", "ord", "dfw")] {
            project.deploy(deployment(name).to(city)).await;
            chain::runs(world, &project, name, city, 1).await;
            world.cell(elsewhere).namespace_of(&project).lacks(deployed(name), quiet()).await;
        }
    });
}

/// F3, from a workload.
#[test]
fn a_workload_runs_in_every_city_that_it_names() {
    scenario(async |world| {
        let project = world.project("shop").await;
        let web = project.run(workload("web").placed("all", &["dfw", "ord"], 2)).await;

        let names = web.spreads_to(&["dfw", "ord"]).await;
        chain::runs(world, &project, &names[0], "dfw", 2).await;
        chain::runs(world, &project, &names[1], "ord", 2).await;
        project
            .here()
            .has(worked("web").counting(2, 4, 4).available("True", "AvailablePlacementFound"))
            .await;
    });
}

/// F4.
#[test]
fn a_new_template_replaces_the_instances_one_after_the_other_on_every_plane() {
    scenario(async |world| {
        let project = world.project("shop").await;
        let a = project.deploy(deployment("a").to("dfw").replicas(2)).await;
        chain::runs(world, &project, "a", "dfw", 2).await;
        let cell = world.cell("dfw").namespace_of(&project);

        a.run_image("registry.test/app:2").await;
        for place in [&cell, &world.hub().namespace_of(&project), &project.here()] {
            for ordinal in 0..2 {
                place.has(instance(&a.instance(ordinal)).ready().with_image("registry.test/app:2")).await;
            }
        }
        chain::runs(world, &project, "a", "dfw", 2).await;
        // One at a time: each of the two machines was started once with the old template and once with the new one.
        let starts = world.provider("dfw").starts_in(&project.hub_namespace());
        assert_eq!(starts.len(), 4, "{starts:?}");
    });
}

/// F4.
#[test]
fn replicas_come_and_go_on_every_plane() {
    scenario(async |world| {
        let project = world.project("shop").await;
        let a = project.deploy(deployment("a").to("dfw")).await;
        chain::runs(world, &project, "a", "dfw", 1).await;
        let first = chain::machines(world, &project, "dfw");
        for replicas in [3, 1] {
            a.scale(replicas).await;
            chain::runs(world, &project, "a", "dfw", replicas).await;
        }
        for place in
            [world.cell("dfw").namespace_of(&project), world.hub().namespace_of(&project), project.here()]
        {
            place.lacks(instance("a-1"), quiet() / 5).await;
            place.lacks(instance("a-2"), quiet() / 5).await;
        }
        assert_eq!(
            chain::machines(world, &project, "dfw"),
            first,
            "the first instance is still the same machine"
        );
    });
}

/// F4.
#[test]
fn a_placement_that_moves_to_another_city_leaves_nothing_in_the_first() {
    scenario(async |world| {
        let project = world.project("shop").await;
        let web = project.run(workload("web").placed("main", &["dfw"], 1)).await;
        let old = web.spreads_to(&["dfw"]).await.remove(0);
        chain::runs(world, &project, &old, "dfw", 1).await;

        web.edit(|spec| spec.placements[0].city_codes = vec!["ord".to_owned()]).await;
        let new = web.spreads_to(&["ord"]).await.remove(0);
        chain::runs(world, &project, &new, "ord", 1).await;
        for place in
            [world.cell("dfw").namespace_of(&project), world.hub().namespace_of(&project), project.here()]
        {
            place.is_rid_of(deployed(&old)).await;
            place.is_rid_of(instance(&format!("{old}-0"))).await;
        }
        world.hub().namespace_of(&project).loses(policy("city-dfw")).await;
    });
}

/// F4: a rollout that cannot succeed is mended by the next one.
#[test]
fn a_broken_template_is_mended_by_a_later_one() {
    scenario(async |world| {
        let project = world.project("shop").await;
        let a = project.deploy(deployment("a").to("dfw")).await;
        chain::runs(world, &project, "a", "dfw", 1).await;

        a.run_image("registry.test/broken:1").await;
        project
            .here()
            .has(instance("a-0").with_image("registry.test/broken:1").with(
                "Ready",
                "False",
                "ImageUnavailable",
            ))
            .await;
        a.run_image("registry.test/app:3").await;
        project.here().has(instance("a-0").with_image("registry.test/app:3").ready()).await;
        chain::runs(world, &project, "a", "dfw", 1).await;
    });
}

/// F5.
#[test]
fn what_happens_to_an_instance_shows_everywhere_without_any_other_event() {
    scenario(async |world| {
        let project = world.project("shop").await;
        let provider = world.provider("dfw");
        let away = Manner { outcome: Outcome::Nothing, ..Manner::default() };
        provider.behave(&project.hub_namespace(), away);
        let web = project.run(workload("web").placed("main", &["dfw"], 1)).await;
        let name = web.spreads_to(&["dfw"]).await.remove(0);
        let first = format!("{name}-0");
        let here = project.here();
        let hub = world.hub().namespace_of(&project);

        here.has(instance(&first).with("Ready", "False", "").with("Programmed", "Unknown", "Pending")).await;
        here.has(deployed(&name).counting(1, 0, 1).available("False", "ProvisioningInstances")).await;
        here.has(worked("web").counting(1, 1, 0).available("False", "")).await;

        provider.behave(&project.hub_namespace(), Manner::default());
        for place in [&hub, &here] {
            place
                .has(
                    instance(&first)
                        .ready()
                        .with("Programmed", "True", "Programmed")
                        .with("Running", "True", "Running"),
                )
                .await;
            place.has(deployed(&name).counting(1, 1, 1).available("True", "StableInstanceFound")).await;
        }
        here.has(worked("web").counting(1, 1, 1).available("True", "AvailablePlacementFound")).await;

        provider.behave(
            &project.hub_namespace(),
            Manner { outcome: Outcome::Crashes("InstanceCrashing"), ..Manner::default() },
        );
        for place in [&hub, &here] {
            place.has(instance(&first).with("Ready", "False", "InstanceCrashing")).await;
            place.has(deployed(&name).counting(1, 0, 1)).await;
        }
        here.has(worked("web").counting(1, 1, 0).available("False", "")).await;
    });
}

/// F5, with a provider that speaks as later ones do.
#[test]
fn a_provider_that_says_available_instead_of_running_is_understood() {
    scenario(async |world| {
        let project = world.project("shop").await;
        world
            .provider("ord")
            .behave(&project.hub_namespace(), Manner { word: "Available", ..Manner::default() });
        project.deploy(deployment("a").to("ord")).await;

        chain::runs(world, &project, "a", "ord", 1).await;
        project.here().has(instance("a-0").with("Available", "True", "Available").ready()).await;
    });
}

/// F5, with a provider that takes its time and holds what it has.
#[test]
fn a_slow_provider_that_holds_its_machines_is_waited_for() {
    scenario(async |world| {
        let project = world.project("shop").await;
        let slow = Manner { takes: std::time::Duration::from_secs(2), holds: true, ..Manner::default() };
        world.provider("dfw").behave(&project.hub_namespace(), slow);
        let a = project.deploy(deployment("a").to("dfw").replicas(2)).await;
        let cell = world.cell("dfw").namespace_of(&project);

        cell.has(instance("a-0").held_by(polis_e2e::provider::FINALIZER)).await;
        chain::runs(world, &project, "a", "dfw", 2).await;
        a.delete().await;
        chain::is_clean(world, &project).await;
    });
}

/// F6.
#[test]
fn two_projects_with_the_same_names_never_meet() {
    scenario(async |world| {
        let one = world.project("shop").await;
        let other = world.twin_of(&one).await;
        let a = one.deploy(deployment("a").to("dfw")).await;
        other.deploy(deployment("a").to("dfw").replicas(2).image("registry.test/other:1")).await;

        chain::runs(world, &one, "a", "dfw", 1).await;
        chain::runs(world, &other, "a", "dfw", 2).await;
        one.here().has(instance("a-0").with_image(IMAGE)).await;
        other.here().has(instance("a-0").with_image("registry.test/other:1")).await;
        one.here().lacks(instance("a-1"), quiet() / 5).await;
        assert_ne!(one.hub_namespace(), other.hub_namespace());

        a.delete().await;
        chain::is_clean(world, &one).await;
        chain::runs(world, &other, "a", "dfw", 2).await;
    });
}

/// F7.
#[test]
fn a_project_that_comes_late_or_goes_and_returns_is_served_without_a_restart() {
    scenario(async |world| {
        let (plane, _mine) = world.spare_plane().await;
        let stage = world.stage();
        let project = world.namespace(&plane, &format!("late-{}", std::process::id())).await;
        let a = project.deploy(deployment("a").to("dfw")).await;
        world.hub().namespace_of(&project).lacks(deployed("a"), quiet() / 5).await;

        stage.open_project(&plane).await.unwrap();
        chain::runs(world, &project, "a", "dfw", 1).await;
        let before = chain::machines(world, &project, "dfw");

        stage.close_project(&plane).await.unwrap();
        world.hub().namespace_of(&project).keeps(deployed("a").staying(), quiet()).await;
        a.scale(2).await;
        stage.open_project(&plane).await.unwrap();
        chain::runs(world, &project, "a", "dfw", 2).await;
        let after = chain::machines(world, &project, "dfw");
        assert!(before.iter().all(|machine| after.contains(machine)), "{before:?} must go on in {after:?}");

        a.delete().await;
        chain::is_clean(world, &project).await;
        stage.close_project(&plane).await.unwrap();
    });
}

/// A controller that was away converges by what it finds, not by what it remembers.
#[test]
fn a_change_made_while_nobody_was_looking_is_found() {
    alone(async |world| {
        let project = world.project("shop").await;
        let a = project.deploy(deployment("a").to("dfw")).await;
        let b = project.deploy(deployment("b").to("ord")).await;
        chain::runs(world, &project, "a", "dfw", 1).await;
        chain::runs(world, &project, "b", "ord", 1).await;

        for member in world.staff() {
            member.kill();
        }
        a.scale(2).await;
        b.delete().await;
        let c = project.deploy(deployment("c").to("ord")).await;
        for member in world.staff() {
            member.start().await.unwrap();
        }
        chain::runs(world, &project, "a", "dfw", 2).await;
        chain::runs(world, &project, &c.name, "ord", 1).await;
        for place in
            [world.cell("ord").namespace_of(&project), world.hub().namespace_of(&project), project.here()]
        {
            place.is_rid_of(deployed("b")).await;
            place.is_rid_of(instance("b-0")).await;
        }
        let left = world.cell("ord").namespace_of(&project).all::<Instance>();
        assert_eq!(left.iter().map(|i| i.name_any()).collect::<Vec<_>>(), ["c-0"]);
    });
}
