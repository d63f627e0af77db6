//! Request budget: the number of requests per workload and plane.

use std::collections::BTreeMap;

use polis_e2e::{
    builders::workload,
    manager_process::Role,
    matchers::workload_named,
    proxy::RecordedRequest,
    world::{World, disruptive_scenario},
};

use crate::rollout;

/// Requests per plane for a workload with one instance, of all roles: 8 to 10 to the cell, 9 to the hub, 7 or
/// 8 to the project. Events and conflicts are not counted: their number depends on the machine.
const PER_PLANE: usize = 11;
/// Requests per plane for each further instance, which starts when the one before is ready: 4 or 5.
const PER_INSTANCE: usize = 5;

/// Requests of the processes for a project, by plane.
fn requests_by_plane(world: &World, namespaces: &[String]) -> BTreeMap<String, Vec<String>> {
    let about =
        |request: &RecordedRequest| request.namespace.as_ref().is_some_and(|ns| namespaces.contains(ns));
    let mut requests_by_plane: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (role, request) in world.requests_since(world.started_at()) {
        // A cell opens one watch for each hub namespace, however many workloads are in it.
        if about(&request) && request.resource != "events" && !request.conflicted && !request.is_informer() {
            let line = format!(
                "{role} {:?} {} {}",
                request.verb,
                request.resource,
                request.name.unwrap_or_default()
            );
            requests_by_plane.entry(request.plane).or_default().push(line);
        }
    }
    requests_by_plane
}

async fn assert_costs(world: &World, replicas: i32) {
    let project = world.project("budget").await;
    let web = project.run(workload("web").placed("main", &["dfw"], replicas)).await;
    let name = web.until_deployed_to(&["dfw"]).await.remove(0);
    rollout::until_running(world, &project, &name, "dfw", replicas).await;
    project.view().eventually_has(workload_named("web").with_counts(1, replicas, replicas)).await;
    tokio::time::sleep(polis_e2e::view::quiet_period()).await;

    let most = PER_PLANE + PER_INSTANCE * (replicas as usize - 1);
    let requests_by_plane = requests_by_plane(world, &project.namespaces());
    for (plane, lines) in &requests_by_plane {
        println!("{replicas} replicas, {plane}: {} requests", lines.len());
        assert!(lines.len() <= most, "{} requests to {plane}, more than {most}: {lines:#?}", lines.len());
    }
    let management = world.process(&Role::Management).requests.writes_in(&project.namespaces()).len();
    println!("{replicas} replicas: {management} writes of the management role");
}

#[test]
fn a_workload_with_one_instance_costs_at_most_eleven_requests_per_plane() {
    disruptive_scenario(async |world| assert_costs(world, 1).await);
}

#[test]
fn each_further_instance_costs_at_most_five_requests_per_plane() {
    disruptive_scenario(async |world| assert_costs(world, 2).await);
}
