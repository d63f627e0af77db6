//! City guard: a Cluster does not lose its city label by accident, and a loss is reported.

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
    builders::workload,
    identities::ShippedRoles,
    manager_process::Role,
    matchers::deployment_named,
    project::retry,
    view::TIMEOUT,
    world::{World, disruptive_scenario},
};
use polis_testbed::manifest;
use serde_json::json;

use crate::rollout;

const CITY: &str = "dfw";
const GUARD: &str = "compute-city-guard";

async fn label(world: &World, city: Option<&str>) -> Result<Cluster, kube::Error> {
    let clusters: Api<Cluster> = Api::all(world.hub().recorder.client().clone());
    let patch = Patch::Merge(json!({"metadata": {"labels": {labels::TOPOLOGY_CITY_CODE: city}}}));
    clusters.patch(CITY, &PatchParams::default(), &patch).await
}

async fn annotate(world: &World, allowed: Option<&str>) {
    let clusters: Api<Cluster> = Api::all(world.hub().recorder.client().clone());
    let patch = Patch::Merge(json!({"metadata": {"annotations": {annotations::ALLOW_CITY_CHANGE: allowed}}}));
    retry("annotate the cluster", async || clusters.patch(CITY, &PatchParams::default(), &patch).await).await;
}

/// Deletes the admission policy, as on a hub whose Clusters an aggregated API server serves.
async fn delete_guard(world: &World) {
    let kind =
        GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicyBinding");
    let api: Api<DynamicObject> =
        Api::all_with(world.hub().recorder.client().clone(), &ApiResource::from_gvk(&kind));
    api.delete(GUARD, &DeleteParams::default()).await.unwrap();
}

async fn apply_guard(world: &World) {
    let layout = world.fixture().planes.layout();
    for object in ShippedRoles::default().manifests(layout, &layout.hub).unwrap() {
        if object["metadata"]["name"] == GUARD {
            manifest::apply(world.hub().recorder.client(), &layout.hub, &object).await.unwrap();
        }
    }
}

/// Waits until the check succeeds; `failure` is the message for a timeout.
async fn until(failure: &str, mut check: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !check().await {
        assert!(Instant::now() < deadline, "{failure} after {TIMEOUT:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn lost_labels(world: &World) -> u64 {
    let page = world.process(&Role::Management).metrics().unwrap_or_default();
    let line = page.lines().find_map(|line| line.strip_prefix("polis_compute_city_labels_lost_total "));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

async fn is_reported(world: &World) -> bool {
    let events: Api<Event> = Api::all(world.hub().recorder.client().clone());
    let events = events.list(&Default::default()).await.unwrap();
    events.iter().any(|event| {
        event.reason.as_deref() == Some("CityLabelLost")
            && event.regarding.as_ref().is_some_and(|about| about.name.as_deref() == Some(CITY))
    })
}

#[test]
fn a_city_label_is_removed_only_deliberately_and_its_loss_is_reported() {
    disruptive_scenario(async |world| {
        let project = world.project("guarded").await;
        let web = project.run(workload("web").placed("main", &[CITY], 1)).await;
        let name = web.until_deployed_to(&[CITY]).await.remove(0);
        rollout::until_running(world, &project, &name, CITY, 1).await;
        let cell = world.cell(CITY).namespace_of(&project);
        let before = lost_labels(world);

        // If the hub's admission policies apply to Clusters, the label stays.
        match label(world, None).await {
            Err(kube::Error::Api(refusal)) => {
                assert!(refusal.message.contains("allow-city-change"), "{refusal}");
                cell.consistently_has(deployment_named(&name), polis_e2e::view::quiet_period()).await;
                assert_eq!(lost_labels(world), before);
                // Deliberate removal: allowed, and not reported as a loss.
                annotate(world, Some("true")).await;
                label(world, None).await.unwrap();
                cell.until_gone(deployment_named(&name)).await;
                assert_eq!(lost_labels(world), before, "an announced removal is not a loss");
                label(world, Some(CITY)).await.unwrap();
                rollout::until_running(world, &project, &name, CITY, 1).await;
                annotate(world, None).await;
                delete_guard(world).await;
                until("the label cannot be removed", async || label(world, None).await.is_ok()).await;
            }
            Err(err) => panic!("the hub does not respond: {err}"),
            Ok(_) => {}
        }

        // The label is lost: the cell's objects are deleted, and the loss is reported.
        cell.until_gone(deployment_named(&name)).await;
        until("the loss is not counted", async || lost_labels(world) == before + 1).await;
        until("no event reports the loss", async || is_reported(world).await).await;
        retry("restore the city label", async || label(world, Some(CITY)).await).await;
        rollout::until_running(world, &project, &name, CITY, 1).await;
        apply_guard(world).await;
    });
}
