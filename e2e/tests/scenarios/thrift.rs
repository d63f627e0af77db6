//! Thrift: what one workload costs each plane in requests.

use std::collections::BTreeMap;

use polis_e2e::{
    draft::workload,
    seek::worked,
    staff::Role,
    wire::Call,
    world::{World, alone},
};

use crate::chain;

/// Requests that one workload of one instance may cost a plane, all roles together. Events are said beside it, and one
/// that comes late is made again: how many do depends on the machine.
const PER_PLANE: usize = 12;
/// And each further instance of it, which comes when the one before is ready.
const PER_INSTANCE: usize = 6;

/// What the processes asked of each plane about a project until it stood still.
fn asked(world: &World, namespaces: &[String]) -> BTreeMap<String, Vec<String>> {
    let about = |call: &Call| call.namespace.as_ref().is_some_and(|ns| namespaces.contains(ns));
    let mut asked: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (role, call) in world.calls_since(world.began()) {
        if about(&call) && call.resource != "events" && !call.late {
            let line = format!("{role} {:?} {} {}", call.verb, call.resource, call.name.unwrap_or_default());
            asked.entry(call.plane).or_default().push(line);
        }
    }
    asked
}

async fn costs(world: &World, replicas: i32) {
    let project = world.project("thrift").await;
    let web = project.run(workload("web").placed("main", &["dfw"], replicas)).await;
    let name = web.spreads_to(&["dfw"]).await.remove(0);
    chain::runs(world, &project, &name, "dfw", replicas).await;
    project.here().has(worked("web").counting(1, replicas, replicas)).await;
    tokio::time::sleep(polis_e2e::place::quiet()).await;

    let most = PER_PLANE + PER_INSTANCE * (replicas as usize - 1);
    let asked = asked(world, &project.namespaces());
    for (plane, calls) in &asked {
        println!("{replicas} replicas, {plane}: {} requests", calls.len());
        assert!(calls.len() <= most, "{} requests to {plane}, more than {most}: {calls:#?}", calls.len());
    }
    let management = world.member(&Role::Management).tap.writes_about(&project.namespaces()).len();
    println!("{replicas} replicas: {management} writes of the management role");
}

#[test]
fn a_workload_of_one_instance_costs_each_plane_twelve_requests_at_most() {
    alone(async |world| costs(world, 1).await);
}

#[test]
fn each_further_instance_costs_each_plane_six_requests_at_most() {
    alone(async |world| costs(world, 2).await);
}
