//! The whole chain from a deployment in a project to its running instances and back, as one question.

use polis_api::{
    compute::{Instance, WorkloadDeployment},
    kube::ResourceExt as _,
};
use polis_e2e::{
    project::Project,
    seek::{deployed, instance},
    world::World,
};

/// Waits until a deployment runs so many instances in its city, and every plane says so.
pub(crate) async fn runs(world: &World, project: &Project, name: &str, city: &str, replicas: i32) {
    let here = project.here();
    let hub = world.hub().namespace_of(project);
    let cell = world.cell(city).namespace_of(project);
    for ordinal in 0..replicas {
        let named = format!("{name}-{ordinal}");
        cell.has(instance(&named).ready()).await;
        hub.has(instance(&named).ready()).await;
        here.has(instance(&named).ready()).await;
    }
    let told = || {
        deployed(name)
            .staying()
            .counting(replicas, replicas, replicas)
            .available("True", "StableInstanceFound")
    };
    cell.has(told()).await;
    hub.has(told()).await;
    here.has(told()).await;
    for place in [&cell, &hub, &here] {
        place
            .settles::<Instance, _>(&format!("exactly {replicas} instances of {name}"), |all| {
                let mine = all.iter().filter(|i| {
                    i.labels()
                        .get("compute.datumapis.com/workload-deployment-name")
                        .is_some_and(|n| n == name)
                });
                (mine.count() == replicas as usize).then_some(())
            })
            .await;
    }
}

/// Waits until nothing that was derived from the project's workloads is left on any plane, and nothing comes back.
pub(crate) async fn is_clean(world: &World, project: &Project) {
    let derived = ["Workload", "WorkloadDeployment", "Instance", "ResourceClaim"];
    let here = project.here();
    let hub = world.hub().namespace_of(project);
    let on_hub = ["WorkloadDeployment", "Instance", "PropagationPolicy", "ResourceBinding"];
    let in_cells =
        ["WorkloadDeployment", "Instance", "NetworkBinding", "NetworkContext", "SubnetClaim", "Subnet"];
    let cells: Vec<_> = world.cities().iter().map(|city| world.cell(city).namespace_of(project)).collect();
    let cells = futures::future::join_all(cells.iter().map(|cell| cell.is_clear_of(&in_cells)));
    let ((), (), _) = tokio::join!(here.is_clear_of(&derived), hub.is_clear_of(&on_hub), cells);
    let works = works_of(world, project);
    assert!(works.is_empty(), "works are left on the hub: {works:?}");
}

/// The works on the hub that carry anything of the project but its namespace.
fn works_of(world: &World, project: &Project) -> Vec<String> {
    let mut left = Vec::new();
    for (key, work) in world.hub().eye.all("Work") {
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

/// The uid that each instance of a deployment has in its cell now, by name.
pub(crate) fn machines(world: &World, project: &Project, city: &str) -> Vec<(String, String)> {
    let instances = world.cell(city).namespace_of(project).all::<Instance>();
    instances.into_iter().map(|i| (i.name_any(), i.uid().unwrap_or_default())).collect()
}

/// The deployment, as it is on a plane now.
pub(crate) async fn read(world: &World, project: &Project, name: &str) -> WorkloadDeployment {
    let _ = world;
    project.here().has(deployed(name)).await
}
