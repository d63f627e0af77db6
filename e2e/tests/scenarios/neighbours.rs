//! Neighbours: several cells in one city, of which each deployment runs in exactly one, and stays there.

use polis_api::{
    annotations,
    compute::WorkloadDeployment,
    karmada::Cluster,
    kube::{
        Api,
        api::{DeleteParams, Patch, PatchParams},
    },
    labels,
    networking::Location,
};
use polis_e2e::{
    draft::deployment,
    place::quiet,
    project::{Project, insist},
    seek::{deployed, instance},
    staff::{Role, Terms},
    world::{World, alone},
};
use polis_testbed::manifest;
use serde_json::{Value, json};

use crate::chain;

/// The city, which is also the name of its first cell.
const CITY: &str = "dfw";
/// The cell of another city, which moves here for a while.
const SECOND: &str = "ord";

async fn change(world: &World, cluster: &str, patch: Value) {
    let clusters: Api<Cluster> = Api::all(world.hub().eye.client().clone());
    let patch = Patch::Merge(patch);
    insist("change the cluster", async || clusters.patch(cluster, &PatchParams::default(), &patch).await)
        .await;
}

async fn move_second_cell(world: &World, city: &str) {
    let allowed = |word: Value| json!({"metadata": {"annotations": {annotations::ALLOW_CITY_CHANGE: word}}});
    change(world, SECOND, allowed("true".into())).await;
    change(world, SECOND, json!({"metadata": {"labels": {labels::TOPOLOGY_CITY_CODE: city}}})).await;
    change(world, SECOND, allowed(Value::Null)).await;
}

/// The second cell moves to the city, with its location and a credential for the city.
async fn open_second_cell(world: &World) {
    world.member(&Role::Cell(SECOND.to_owned())).kill();
    let location = json!({
        "apiVersion": "networking.datumapis.com/v1alpha", "kind": "Location", "metadata": {"name": CITY},
        "spec": {"locationClassName": "datum-managed", "topology": {labels::TOPOLOGY_CITY_CODE: CITY}},
    });
    manifest::apply(world.cell(SECOND).eye.client(), SECOND, &location).await.unwrap();
    let terms = Terms { replica: 1, city: Some(CITY.to_owned()), ..Terms::default() };
    world.hire(Role::Cell(SECOND.to_owned()), terms).await.start().await.unwrap();
    move_second_cell(world, CITY).await;
}

async fn close_second_cell(world: &World) {
    move_second_cell(world, SECOND).await;
    let locations: Api<Location> = Api::all(world.cell(SECOND).eye.client().clone());
    let params = DeleteParams::default();
    drop(insist("close the location", async || locations.delete(CITY, &params).await).await);
}

/// Waits until it runs in this cell, says so in the project, and is in no other cell.
async fn runs_in(world: &World, project: &Project, name: &str, cell: &str, replicas: i32) {
    chain::runs(world, project, name, cell, replicas).await;
    project.here().has(deployed(name).in_cell(cell)).await;
    for other in [CITY, SECOND].into_iter().filter(|other| *other != cell) {
        let there = world.cell(other).namespace_of(project);
        tokio::join!(
            there.lacks(deployed(name), quiet()),
            there.lacks(instance(&format!("{name}-0")), quiet())
        );
    }
}

#[test]
fn of_two_cells_in_one_city_exactly_one_runs_a_deployment_and_keeps_it() {
    alone(async |world| {
        let project = world.project("twins").await;
        let first = project.deploy(deployment("first").to(CITY).replicas(2)).await;
        chain::runs(world, &project, "first", CITY, 2).await;
        let old = chain::machines(world, &project, CITY);

        open_second_cell(world).await;
        // What is new goes to one of them, whichever.
        let new = project.deploy(deployment("new").to(CITY)).await;
        let cell = project
            .here()
            .settles::<WorkloadDeployment, _>("a cell that runs what is new", |all| {
                let new = all.into_iter().find(|one| one.metadata.name.as_deref() == Some("new"))?;
                new.status?.cell
            })
            .await;
        assert!([CITY, SECOND].contains(&&*cell), "{cell}");
        // The first is full: what comes now goes to the second.
        change(world, CITY, json!({"spec": {"taints": [{"key": "full", "effect": "NoSchedule"}]}})).await;
        let late = project.deploy(deployment("late").to(CITY)).await;
        tokio::join!(
            runs_in(world, &project, "first", CITY, 2),
            runs_in(world, &project, "new", &cell, 1),
            runs_in(world, &project, "late", SECOND, 1),
        );
        let moved = chain::machines(world, &project, SECOND);

        // There is room again, and everything is scaled: nobody moves, and nothing starts anew.
        change(world, CITY, json!({"spec": {"taints": null}})).await;
        first.scale(3).await;
        late.scale(2).await;
        tokio::join!(
            runs_in(world, &project, "first", CITY, 3),
            runs_in(world, &project, "new", &cell, 1),
            runs_in(world, &project, "late", SECOND, 2),
        );
        for (cell, before) in [(CITY, old), (SECOND, moved)] {
            let now = chain::machines(world, &project, cell);
            let lost: Vec<_> = before.iter().filter(|machine| !now.contains(machine)).collect();
            assert!(lost.is_empty(), "{lost:?} in {cell} run on other machines now: {now:?}");
        }

        for one in [first, new, late] {
            one.delete().await;
        }
        chain::is_clean(world, &project).await;
        close_second_cell(world).await;
    });
}
