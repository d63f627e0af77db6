//! Waits for the end of a rollout or a clean-up on all planes.

use polis_api::{
    compute::{Instance, WorkloadDeployment},
    kube::ResourceExt as _,
};
use polis_e2e::{
    matchers::{deployment_named, instance},
    project::Project,
    world::World,
};

/// Waits until a deployment runs this many instances in its city, and every plane shows it.
pub(crate) async fn until_running(world: &World, project: &Project, name: &str, city: &str, replicas: i32) {
    let view = project.view();
    let hub = world.hub().namespace_of(project);
    let cell = world.cell(city).namespace_of(project);
    for ordinal in 0..replicas {
        let named = format!("{name}-{ordinal}");
        cell.eventually_has(instance(&named).ready()).await;
        hub.eventually_has(instance(&named).ready()).await;
        view.eventually_has(instance(&named).ready()).await;
    }
    let converged = || {
        deployment_named(name)
            .not_deleting()
            .with_counts(replicas, replicas, replicas)
            .available("True", "StableInstanceFound")
    };
    cell.eventually_has(converged()).await;
    hub.eventually_has(converged()).await;
    view.eventually_has(converged()).await;
    for view in [&cell, &hub, &view] {
        view.eventually::<Instance, _>(&format!("exactly {replicas} instances of {name}"), |all| {
            let own = all.iter().filter(|i| {
                i.labels().get("compute.datumapis.com/workload-deployment-name").is_some_and(|n| n == name)
            });
            (own.count() == replicas as usize).then_some(())
        })
        .await;
    }
}

/// Waits until no object derived from the project's workloads is left on any plane, and none is created
/// again.
pub(crate) async fn until_clean(world: &World, project: &Project) {
    let derived = ["Workload", "WorkloadDeployment", "Instance", "ResourceClaim"];
    let view = project.view();
    let hub = world.hub().namespace_of(project);
    let on_hub = ["WorkloadDeployment", "Instance", "PropagationPolicy", "ResourceBinding"];
    let in_cells =
        ["WorkloadDeployment", "Instance", "NetworkBinding", "NetworkContext", "SubnetClaim", "Subnet"];
    let cells: Vec<_> = world.cities().iter().map(|city| world.cell(city).namespace_of(project)).collect();
    let cells = futures::future::join_all(cells.iter().map(|cell| cell.eventually_empty_of(&in_cells)));
    let ((), (), _) =
        tokio::join!(view.eventually_empty_of(&derived), hub.eventually_empty_of(&on_hub), cells);
    let works = works_of(world, project);
    assert!(works.is_empty(), "Works are left on the hub: {works:?}");
}

/// The Works on the hub with objects of the project other than its namespace.
fn works_of(world: &World, project: &Project) -> Vec<String> {
    let mut left = Vec::new();
    for (key, work) in world.hub().recorder.all("Work") {
        for manifest in
            work.pointer("/spec/workload/manifests").and_then(|all| all.as_array()).into_iter().flatten()
        {
            if manifest["metadata"]["namespace"].as_str() == Some(&*project.hub_namespace()) {
                left.push(format!(
                    "{}/{} with {} {}",
                    key.namespace, key.name, manifest["kind"], manifest["metadata"]["name"]
                ));
            }
        }
    }
    left
}

/// Name and uid of each instance of a project in a cell.
pub(crate) fn instance_uids(world: &World, project: &Project, city: &str) -> Vec<(String, String)> {
    let instances = world.cell(city).namespace_of(project).all::<Instance>();
    instances.into_iter().map(|i| (i.name_any(), i.uid().unwrap_or_default())).collect()
}

/// The deployment in the project.
pub(crate) async fn deployment(world: &World, project: &Project, name: &str) -> WorkloadDeployment {
    let _ = world;
    project.view().eventually_has(deployment_named(name)).await
}
