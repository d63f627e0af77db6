//! Compatibility: exact strings that tools of others look for. They are spelt out here on purpose: a constant that
//! changes must not take the promise with it.

use polis_api::kube::ResourceExt as _;
use polis_e2e::{
    draft::{deployment, workload},
    place::Place,
    seek::{binding_of, deployed, instance, namespace, policy, worked},
    staff::{Role, Terms},
    world::scenario,
};

use crate::chain;

#[test]
fn a_foreign_tool_finds_deployment_policy_and_namespace_on_the_hub_by_their_known_names() {
    scenario(async |world| {
        let project = world.project("foreign").await;
        // Upper case is kept where it is a value and lowered where it is a name.
        project.deploy(deployment("my-app").to("DFW")).await;
        let hub = world.hub().namespace(&format!("ns-{}", project.uid));

        let copy = hub
            .has(
                deployed("my-app")
                    .labelled("topology.datum.net/city-code", "DFW")
                    .labelled("meta.datumapis.com/upstream-namespace", &project.namespace),
            )
            .await;
        assert_eq!(copy.spec.city_code, "DFW");
        let policy = hub.has(policy("city-dfw")).await;
        let selectors = serde_json::to_value(&policy.spec.resource_selectors).unwrap();
        assert_eq!(selectors.as_array().unwrap().len(), 1);
        assert_eq!(selectors[0]["apiVersion"], "compute.datumapis.com/v1alpha");
        assert_eq!(selectors[0]["kind"], "WorkloadDeployment");
        assert_eq!(
            selectors[0]["labelSelector"]["matchLabels"],
            serde_json::json!({"topology.datum.net/city-code": "DFW"})
        );
        let placement = serde_json::to_value(&policy.spec.placement).unwrap();
        assert_eq!(
            placement["clusterAffinity"]["labelSelector"]["matchLabels"],
            serde_json::json!({"topology.datum.net/city-code": "DFW"})
        );
        let home = namespace(&format!("ns-{}", project.uid))
            .labelled("meta.datumapis.com/upstream-cluster-name", &format!("cluster-{}", project.name()))
            .labelled("meta.datumapis.com/upstream-namespace", &project.namespace);
        world.hub().whole().has(home).await;
    });
}

#[test]
fn a_foreign_tool_finds_instances_on_every_plane_by_their_known_labels() {
    scenario(async |world| {
        let project = world.project("foreign").await;
        project.deploy(deployment("my-app").to("dfw")).await;
        chain::runs(world, &project, "my-app", "dfw", 1).await;
        let cell = world.cell("dfw").namespace(&format!("ns-{}", project.uid));
        let hub = world.hub().namespace(&format!("ns-{}", project.uid));
        let uid = cell.has(deployed("my-app")).await.uid().unwrap();

        let linked = || {
            instance("my-app-0")
                .labelled("compute.datumapis.com/workload-uid", "0f0f0f0f-0000-4000-8000-000000000001")
                .labelled("compute.datumapis.com/workload-deployment-uid", &uid)
                .labelled("compute.datumapis.com/workload-deployment-name", "my-app")
                .labelled("compute.datumapis.com/workload-name", "made-up")
                .labelled("compute.datumapis.com/placement-name", "default")
                .labelled("compute.datumapis.com/city-code", "dfw")
                .labelled("compute.datumapis.com/instance-index", "0")
        };
        let on_cell = cell.has(linked().held_by("compute.datumapis.com/instance-controller")).await;
        assert!(on_cell.spec.controller.is_some_and(|controller| !controller.template_hash.is_empty()));
        for place in [&hub, &project.here()] {
            let copy = place
                .has(
                    linked()
                        .labelled(
                            "meta.datumapis.com/upstream-cluster-name",
                            &format!("cluster-{}", project.name()),
                        )
                        .labelled("meta.datumapis.com/upstream-namespace", &project.namespace),
                )
                .await;
            assert_eq!(copy.finalizers(), Vec::<String>::new(), "finalizers are not copied");
        }
        project.here().has(deployed("my-app").held_by("compute.datumapis.com/federator")).await;
    });
}

#[test]
fn conditions_and_reasons_are_the_known_ones() {
    scenario(async |world| {
        let project = world.project("foreign").await;
        let web = project.run(workload("web").placed("default", &["dfw"], 1)).await;
        let name = web.spreads_to(&["dfw"]).await.remove(0);
        chain::runs(world, &project, &name, "dfw", 1).await;
        let here = project.here();

        here.has(
            instance(&format!("{name}-0"))
                .with("Programmed", "True", "Programmed")
                .with("Running", "True", "Running")
                .with("Ready", "True", "Running")
                .with("QuotaGranted", "True", "QuotaDisabled"),
        )
        .await;
        let shown = here.has(deployed(&name).available("True", "StableInstanceFound")).await;
        let replicas = shown.status.unwrap().conditions.into_iter().find(|c| c.type_ == "ReplicasReady");
        assert_eq!(replicas.map(|c| (c.status, c.reason)), Some(("True".into(), "ReplicasAvailable".into())));
        let shown = here
            .has(
                worked("web")
                    .available("True", "AvailablePlacementFound")
                    .held_by("compute.datumapis.com/workload-controller"),
            )
            .await;
        let placement = &shown.status.unwrap().placements[0];
        assert_eq!(
            (&*placement.name, &*placement.conditions[0].reason),
            ("default", "AvailableDeploymentFound")
        );
        world.hub().namespace_of(&project).has(binding_of(&name)).await;
    });
}

#[test]
fn in_mode_single_the_cluster_is_called_single() {
    scenario(async |world| {
        let (plane, _mine) = world.spare_plane().await;
        let single = world.hire(Role::Single(plane.clone()), Terms::default()).await;
        single.start().await.unwrap();
        let project = world.namespace(&plane, &format!("single-{}", std::process::id())).await;
        let a = project.deploy(deployment("a").to("dfw")).await;

        let home: Place = world.hub().whole();
        home.has(
            namespace(&project.hub_namespace())
                .labelled("meta.datumapis.com/upstream-cluster-name", "cluster-single"),
        )
        .await;
        chain::runs(world, &project, "a", "dfw", 1).await;
        let copy = instance("a-0")
            .labelled("meta.datumapis.com/upstream-cluster-name", "cluster-single")
            .labelled("meta.datumapis.com/upstream-namespace", &project.namespace);
        world.hub().namespace_of(&project).has(copy).await;
        a.delete().await;
        chain::is_clean(world, &project).await;
    });
}
