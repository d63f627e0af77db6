//! City guard: the label of a city is not lost by accident, and never in silence.

use std::time::{Duration, Instant};

use polis_api::{
    annotations,
    k8s_openapi::api::events::v1::Event,
    karmada::Cluster,
    kube::{
        self, Api,
        api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams},
    },
    labels,
};
use polis_e2e::{
    draft::workload,
    identities::Shipped,
    place::DEADLINE,
    project::insist,
    seek::deployed,
    staff::Role,
    world::{World, alone},
};
use polis_testbed::manifest;
use serde_json::json;

use crate::chain;

const CITY: &str = "dfw";
const GUARD: &str = "compute-city-guard";

async fn label(world: &World, city: Option<&str>) -> Result<Cluster, kube::Error> {
    let clusters: Api<Cluster> = Api::all(world.hub().eye.client().clone());
    let patch = Patch::Merge(json!({"metadata": {"labels": {labels::TOPOLOGY_CITY_CODE: city}}}));
    clusters.patch(CITY, &PatchParams::default(), &patch).await
}

async fn annotate(world: &World, allowed: Option<&str>) {
    let clusters: Api<Cluster> = Api::all(world.hub().eye.client().clone());
    let patch = Patch::Merge(json!({"metadata": {"annotations": {annotations::ALLOW_CITY_CHANGE: allowed}}}));
    insist("annotate the cluster", async || clusters.patch(CITY, &PatchParams::default(), &patch).await)
        .await;
}

/// Takes the admission policy away, as on a hub whose Clusters an aggregated server serves.
async fn lift_guard(world: &World) {
    let kind =
        GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicyBinding");
    let api: Api<DynamicObject> =
        Api::all_with(world.hub().eye.client().clone(), &ApiResource::from_gvk(&kind));
    api.delete(GUARD, &DeleteParams::default()).await.unwrap();
}

async fn set_guard(world: &World) {
    let layout = world.stage().planes.layout();
    for object in Shipped::default().manifests(layout, &layout.hub).unwrap() {
        if object["metadata"]["name"] == GUARD {
            manifest::apply(world.hub().eye.client(), &layout.hub, &object).await.unwrap();
        }
    }
}

/// Waits until it is so.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !is_so().await {
        assert!(Instant::now() < deadline, "{what} after {DEADLINE:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn lost(world: &World) -> u64 {
    let page = world.member(&Role::Management).metrics().unwrap_or_default();
    let line = page.lines().find_map(|line| line.strip_prefix("polis_compute_city_labels_lost_total "));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

async fn told(world: &World) -> bool {
    let events: Api<Event> = Api::all(world.hub().eye.client().clone());
    let events = events.list(&Default::default()).await.unwrap();
    events.iter().any(|event| {
        event.reason.as_deref() == Some("CityLabelLost")
            && event.regarding.as_ref().is_some_and(|about| about.name.as_deref() == Some(CITY))
    })
}

#[test]
fn a_city_is_kept_unless_it_is_given_up_on_purpose_and_its_loss_is_loud() {
    alone(async |world| {
        let project = world.project("guarded").await;
        let web = project.run(workload("web").placed("main", &[CITY], 1)).await;
        let name = web.spreads_to(&[CITY]).await.remove(0);
        chain::runs(world, &project, &name, CITY, 1).await;
        let cell = world.cell(CITY).namespace_of(&project);
        let before = lost(world);

        // Where the hub admits Clusters itself, the label stays.
        match label(world, None).await {
            Err(kube::Error::Api(refusal)) => {
                assert!(refusal.message.contains("allow-city-change"), "{refusal}");
                cell.keeps(deployed(&name), polis_e2e::place::quiet()).await;
                assert_eq!(lost(world), before);
                // Given up on purpose: allowed, and nobody is alarmed.
                annotate(world, Some("true")).await;
                label(world, None).await.unwrap();
                cell.is_rid_of(deployed(&name)).await;
                assert_eq!(lost(world), before, "what was announced is no loss");
                label(world, Some(CITY)).await.unwrap();
                chain::runs(world, &project, &name, CITY, 1).await;
                annotate(world, None).await;
                lift_guard(world).await;
                until("the label cannot be taken", async || label(world, None).await.is_ok()).await;
            }
            Err(err) => panic!("the hub does not answer: {err}"),
            Ok(_) => {}
        }

        // Lost: everything goes, and everybody hears of it.
        cell.is_rid_of(deployed(&name)).await;
        until("the loss is not counted", async || lost(world) == before + 1).await;
        until("no event tells of the loss", async || told(world).await).await;
        insist("give the city back", async || label(world, Some(CITY)).await).await;
        chain::runs(world, &project, &name, CITY, 1).await;
        set_guard(world).await;
    });
}
