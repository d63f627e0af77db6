//! What an operator would put on the planes: the interpreter of our kinds, the members of the federation, the projects.

use anyhow::{Context, Result};
use polis_api::compute::Workload;
use polis_api::kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use polis_api::kube::core::{ApiResource, GroupVersionKind};
use polis_api::kube::{Api, Client};
use polis_api::labels;
use serde_json::{Value, json};

use super::planes::{Planes, Reached};

/// What the federation must know of our kinds.
const INTERPRETER: &str = include_str!("../../../../deploy/components/federation/interpreter.yaml");
/// Who writes these objects.
const WRITER: &str = "polis-up";

/// Puts everything in place. What stands already is left as it is.
pub async fn place(planes: &Planes, projects: &[String]) -> Result<()> {
    if let Reached::Here(_) = planes.hub {
        let hub = planes.client(&planes.hub, WRITER);
        for object in serde_saphyr::from_multiple::<Value>(INTERPRETER)? {
            apply(&hub, &object).await?;
        }
        for (city, _) in &planes.cells {
            apply(&hub, &member(city)).await?;
        }
    }
    let root = planes.root_client(WRITER);
    for project in projects {
        apply(&root, &mk_project(project)).await?;
    }
    Ok(())
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

/// Whether a workload in these cities would be taken now: the plane of the project, its bindings and admission say so. None
/// is made. An error says why not.
pub async fn would_run(planes: &Planes, project: &str, cities: &[String]) -> Result<(), String> {
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
    let client = Client::new(planes.server.project_service(project), "default");
    let asked = PostParams { dry_run: true, ..PostParams::default() };
    let taken = Api::<Workload>::namespaced(client, "default").create(&asked, &probe).await;
    taken.map(drop).map_err(|refusal| refusal.to_string())
}

/// Puts an object in place, whatever stands there.
pub async fn apply(client: &Client, object: &Value) -> Result<()> {
    let typed: DynamicObject = serde_json::from_value(object.clone())?;
    let types = typed.types.as_ref().context("an object without a kind")?;
    let kind = ApiResource::from_gvk(&GroupVersionKind::try_from(types)?);
    let name = typed.metadata.name.as_deref().context("an object without a name")?;
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
    let params = PatchParams::apply(WRITER).force();
    let applied = api.patch(name, &params, &Patch::Apply(object)).await;
    applied.map(drop).with_context(|| format!("cannot put {} {name} in place", kind.kind))
}
