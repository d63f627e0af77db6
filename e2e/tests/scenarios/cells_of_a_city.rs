//! Several cells in one city: each deployment runs in exactly one of them, and stays there.

use polis_api::{
    ObjectExt, annotations,
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
    builders::deployment,
    manager_process::{ProcessOptions, Role},
    matchers::{deployment_named, instance},
    project::{Project, retry},
    view::quiet_period,
    world::{World, disruptive_scenario},
};
use polis_testbed::manifest;
use serde_json::{Value, json};

use crate::rollout;

/// The city, and the name of its first cell.
const CITY: &str = "dfw";
/// The cell of another city. The scenario moves it to this city and back.
const SECOND: &str = "ord";

async fn change(world: &World, cluster: &str, patch: Value) {
    let clusters: Api<Cluster> = Api::all(world.hub().recorder.client().clone());
    let patch = Patch::Merge(patch);
    retry("change the cluster", async || clusters.patch(cluster, &PatchParams::default(), &patch).await)
        .await;
}

async fn move_second_cell(world: &World, city: &str) {
    let allowed =
        |value: Value| json!({"metadata": {"annotations": {annotations::ALLOW_CITY_CHANGE: value}}});
    change(world, SECOND, allowed("true".into())).await;
    change(world, SECOND, json!({"metadata": {"labels": {labels::TOPOLOGY_CITY_CODE: city}}})).await;
    change(world, SECOND, allowed(Value::Null)).await;
}

/// Moves the second cell to the city, with its location and a credential for the city.
async fn open_second_cell(world: &World) {
    world.process(&Role::Cell(SECOND.to_owned())).kill();
    let location = json!({
        "apiVersion": "networking.datumapis.com/v1alpha", "kind": "Location", "metadata": {"name": CITY},
        "spec": {"locationClassName": "datum-managed", "topology": {labels::TOPOLOGY_CITY_CODE: CITY}},
    });
    manifest::apply(world.cell(SECOND).recorder.client(), SECOND, &location).await.unwrap();
    let options = ProcessOptions { replica: 1, city: Some(CITY.to_owned()), ..ProcessOptions::default() };
    world.prepare_process(Role::Cell(SECOND.to_owned()), options).await.start().await.unwrap();
    move_second_cell(world, CITY).await;
}

async fn close_second_cell(world: &World) {
    move_second_cell(world, SECOND).await;
    let locations: Api<Location> = Api::all(world.cell(SECOND).recorder.client().clone());
    let params = DeleteParams::default();
    drop(retry("delete the location", async || locations.delete(CITY, &params).await).await);
}

/// Waits until the deployment runs in this cell, reports it in the project, and is in no other cell.
async fn runs_in(world: &World, project: &Project, name: &str, cell: &str, replicas: i32) {
    rollout::until_running(world, project, name, cell, replicas).await;
    project.view().eventually_has(deployment_named(name).in_cell(cell)).await;
    for other in [CITY, SECOND].into_iter().filter(|other| *other != cell) {
        let view = world.cell(other).namespace_of(project);
        tokio::join!(
            view.consistently_lacks(deployment_named(name), quiet_period()),
            view.consistently_lacks(instance(&format!("{name}-0")), quiet_period())
        );
    }
}

#[test]
fn exactly_one_of_two_cells_in_a_city_runs_a_deployment_and_keeps_it() {
    disruptive_scenario(async |world| {
        let project = world.project("twins").await;
        let first = project.deploy(deployment("first").to(CITY).replicas(2)).await;
        rollout::until_running(world, &project, "first", CITY, 2).await;
        let old = rollout::instance_uids(world, &project, CITY);

        open_second_cell(world).await;
        // A new deployment is scheduled to one of the two cells.
        let new = project.deploy(deployment("new").to(CITY)).await;
        let cell = project
            .view()
            .eventually::<WorkloadDeployment, _>("a cell for the new deployment", |all| {
                let new = all.into_iter().find(|one| one.name() == "new")?;
                new.status?.cell
            })
            .await;
        assert!([CITY, SECOND].contains(&&*cell), "{cell}");
        // The first cell is full: new deployments are scheduled to the second.
        change(world, CITY, json!({"spec": {"taints": [{"key": "full", "effect": "NoSchedule"}]}})).await;
        let late = project.deploy(deployment("late").to(CITY)).await;
        tokio::join!(
            runs_in(world, &project, "first", CITY, 2),
            runs_in(world, &project, "new", &cell, 1),
            runs_in(world, &project, "late", SECOND, 1),
        );
        let moved = rollout::instance_uids(world, &project, SECOND);

        // The first cell has capacity again, and everything is scaled: nothing moves, and nothing restarts.
        change(world, CITY, json!({"spec": {"taints": null}})).await;
        first.scale(3).await;
        late.scale(2).await;
        tokio::join!(
            runs_in(world, &project, "first", CITY, 3),
            runs_in(world, &project, "new", &cell, 1),
            runs_in(world, &project, "late", SECOND, 2),
        );
        for (cell, before) in [(CITY, old), (SECOND, moved)] {
            let now = rollout::instance_uids(world, &project, cell);
            let lost: Vec<_> = before.iter().filter(|machine| !now.contains(machine)).collect();
            assert!(lost.is_empty(), "{lost:?} in {cell} were recreated: {now:?}");
        }

        for one in [first, new, late] {
            one.delete().await;
        }
        rollout::until_clean(world, &project).await;
        close_second_cell(world).await;
    });
}
