//! Compatibility: exact strings that other tools rely on. They are literals on purpose: a changed constant
//! must not change the test with it.

use polis_api::kube::ResourceExt as _;
use polis_e2e::{
    builders::{deployment, workload},
    manager_process::{ProcessOptions, Role},
    matchers::{binding_of, deployment_named, instance, namespace, policy, workload_named},
    view::NamespaceView,
    world::scenario,
};

use crate::rollout;

#[test]
fn other_tools_find_deployment_policy_and_namespace_on_the_hub_by_name() {
    scenario(async |world| {
        let project = world.project("foreign").await;
        // Values keep upper case; names are in lower case.
        project.deploy(deployment("my-app").to("DFW")).await;
        let hub = world.hub().namespace(&format!("ns-{}", project.uid));

        let copy = hub
            .eventually_has(
                deployment_named("my-app")
                    .labelled("topology.datum.net/city-code", "DFW")
                    .labelled("meta.datumapis.com/upstream-namespace", &project.namespace),
            )
            .await;
        assert_eq!(copy.spec.city_code, "DFW");
        let policy = hub.eventually_has(policy("city-dfw")).await;
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
        let hub_namespace = namespace(&format!("ns-{}", project.uid))
            .labelled("meta.datumapis.com/upstream-cluster-name", &format!("cluster-{}", project.name()))
            .labelled("meta.datumapis.com/upstream-namespace", &project.namespace);
        world.hub().cluster_scope().eventually_has(hub_namespace).await;
    });
}

#[test]
fn other_tools_find_instances_on_every_plane_by_label() {
    scenario(async |world| {
        let project = world.project("foreign").await;
        project.deploy(deployment("my-app").to("dfw")).await;
        rollout::until_running(world, &project, "my-app", "dfw", 1).await;
        let cell = world.cell("dfw").namespace(&format!("ns-{}", project.uid));
        let hub = world.hub().namespace(&format!("ns-{}", project.uid));
        let uid = cell.eventually_has(deployment_named("my-app")).await.uid().unwrap();

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
        let on_cell =
            cell.eventually_has(linked().with_finalizer("compute.datumapis.com/instance-controller")).await;
        assert!(on_cell.spec.controller.is_some_and(|controller| !controller.template_hash.is_empty()));
        for view in [&hub, &project.view()] {
            let copy = view
                .eventually_has(
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
        project
            .view()
            .eventually_has(deployment_named("my-app").with_finalizer("compute.datumapis.com/federator"))
            .await;
    });
}

#[test]
fn conditions_and_reasons_are_stable() {
    scenario(async |world| {
        let project = world.project("foreign").await;
        let web = project.run(workload("web").placed("default", &["dfw"], 1)).await;
        let name = web.until_deployed_to(&["dfw"]).await.remove(0);
        rollout::until_running(world, &project, &name, "dfw", 1).await;
        let project_view = project.view();

        project_view
            .eventually_has(
                instance(&format!("{name}-0"))
                    .with_condition("Programmed", "True", "Programmed")
                    .with_condition("Running", "True", "Running")
                    .with_condition("Ready", "True", "Running")
                    .with_condition("QuotaGranted", "True", "QuotaDisabled"),
            )
            .await;
        let shown = project_view
            .eventually_has(deployment_named(&name).available("True", "StableInstanceFound"))
            .await;
        let replicas = shown.status.unwrap().conditions.into_iter().find(|c| c.type_ == "ReplicasReady");
        assert_eq!(replicas.map(|c| (c.status, c.reason)), Some(("True".into(), "ReplicasAvailable".into())));
        let shown = project_view
            .eventually_has(
                workload_named("web")
                    .available("True", "AvailablePlacementFound")
                    .with_finalizer("compute.datumapis.com/workload-controller"),
            )
            .await;
        let placement = &shown.status.unwrap().placements[0];
        assert_eq!(
            (&*placement.name, &*placement.conditions[0].reason),
            ("default", "AvailableDeploymentFound")
        );
        world.hub().namespace_of(&project).eventually_has(binding_of(&name)).await;
    });
}

#[test]
fn in_mode_single_the_cluster_name_is_single() {
    scenario(async |world| {
        let (plane, _reserved) = world.spare_plane().await;
        let single = world.prepare_process(Role::Single(plane.clone()), ProcessOptions::default()).await;
        single.start().await.unwrap();
        let project = world.namespace(&plane, &format!("single-{}", std::process::id())).await;
        let a = project.deploy(deployment("a").to("dfw")).await;

        let hub_namespace: NamespaceView = world.hub().cluster_scope();
        hub_namespace
            .eventually_has(
                namespace(&project.hub_namespace())
                    .labelled("meta.datumapis.com/upstream-cluster-name", "cluster-single"),
            )
            .await;
        rollout::until_running(world, &project, "a", "dfw", 1).await;
        let copy = instance("a-0")
            .labelled("meta.datumapis.com/upstream-cluster-name", "cluster-single")
            .labelled("meta.datumapis.com/upstream-namespace", &project.namespace);
        world.hub().namespace_of(&project).eventually_has(copy).await;
        a.delete().await;
        rollout::until_clean(world, &project).await;
    });
}
