//! Bootstrap manifests of the planes: the resource interpreters of Polis' kinds, the guard of the city
//! labels, the namespace of the heartbeats, the Clusters of the federation, the Projects. In a production
//! installation the operator applies them.

use anyhow::{Context, Result};
use polis_api::compute::Workload;
use polis_api::kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use polis_api::kube::core::{ApiResource, GroupVersionKind};
use polis_api::kube::{Api, Client};
use polis_api::labels;
use polis_apiserver::project_plane;
use polis_core::heartbeat;
use serde_json::{Value, json};

use super::planes::{PlaneBackend, Planes};

/// The shipped manifests of a hub: the ResourceInterpreterCustomizations of Polis' kinds, and the policy that
/// a city label is not lost by accident.
const HUB: [&str; 2] = [
    include_str!("../../../../deploy/components/federation/interpreter.yaml"),
    include_str!("../../../../deploy/components/federation/city-guard.yaml"),
];
/// Field manager of the bootstrap manifests.
const FIELD_MANAGER: &str = "polis-up";

/// Applies all bootstrap manifests. Objects that already have this content do not change.
pub async fn apply_all(planes: &Planes, projects: &[String]) -> Result<()> {
    if let PlaneBackend::Embedded(_) = planes.hub {
        let hub = planes.client(&planes.hub, FIELD_MANAGER);
        apply(&hub, &heartbeats()).await?;
        for text in HUB {
            for object in serde_saphyr::from_multiple::<Value>(text)? {
                apply(&hub, &object).await?;
            }
        }
        for (city, _) in &planes.cells {
            apply(&hub, &member(city)).await?;
        }
    }
    let root = planes.root_client(FIELD_MANAGER);
    for project in projects {
        apply(&root, &mk_project(project)).await?;
    }
    Ok(())
}

/// The namespace of the cells' heartbeats.
fn heartbeats() -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": heartbeat::NAMESPACE}})
}

fn member(city: &str) -> Value {
    json!({
        "apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster",
        "metadata": {"name": city, "labels": {labels::TOPOLOGY_CITY_CODE: city}},
        "spec": {"syncMode": "Push"},
    })
}

fn mk_project(name: &str) -> Value {
    json!({
        "apiVersion": "resourcemanager.miloapis.com/v1alpha1", "kind": "Project",
        "metadata": {"name": name},
        "spec": {"ownerRef": {"kind": "Organization", "name": "local"}},
    })
}

/// Creates a workload in these cities as a dry run. It succeeds when the plane of the project, its
/// LocationBindings and the admission webhooks are ready; the error is the message of the server.
pub async fn dry_run_workload(planes: &Planes, project: &str, cities: &[String]) -> Result<(), String> {
    let probe = json!({
        "apiVersion": "compute.datumapis.com/v1alpha", "kind": "Workload", "metadata": {"name": "probe"},
        "spec": {
            "template": {"spec": {
                "runtime": {
                    "resources": {"instanceType": "datumcloud/d1-standard-2"},
                    "sandbox": {"containers": [{"name": "probe", "image": "polis.local/sleep"}]},
                },
                "networkInterfaces": [{"network": {"name": "default"}}],
            }},
            "placements": [{"name": "all", "cityCodes": cities, "scaleSettings": {"minReplicas": 1}}],
        },
    });
    let probe: Workload = serde_json::from_value(probe).map_err(|error| error.to_string())?;
    let client = Client::new(planes.server.plane_service(&project_plane(project)), "default");
    let asked = PostParams { dry_run: true, ..PostParams::default() };
    let taken = Api::<Workload>::namespaced(client, "default").create(&asked, &probe).await;
    taken.map(drop).map_err(|refusal| refusal.to_string())
}

/// Applies an object with server-side apply and force.
pub async fn apply(client: &Client, object: &Value) -> Result<()> {
    let typed: DynamicObject = serde_json::from_value(object.clone())?;
    let types = typed.types.as_ref().context("the manifest has no kind")?;
    let kind = ApiResource::from_gvk(&GroupVersionKind::try_from(types)?);
    let name = typed.metadata.name.as_deref().context("the manifest has no name")?;
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let applied = api.patch(name, &params, &Patch::Apply(object)).await;
    applied.map(drop).with_context(|| format!("failed to apply {} {name}", kind.kind))
}
