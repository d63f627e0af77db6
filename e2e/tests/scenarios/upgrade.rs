//! Upgrades: the current CRDs keep the objects of the last release unchanged, and the current manager adopts
//! them.
//!
//! `released/` has one object of each kind as the last release wrote it. At a release, and only then, record
//! them again with `POLIS_WRITE_RELEASED=1 cargo xtask e2e --filter upgrade::`. The other direction, the
//! current manager on planes with the CRDs of the last release, is the whole suite with `cargo xtask e2e
//! --kinds released`.

use std::{fs, path::PathBuf};

use polis_api::kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use polis_e2e::{
    builders::{deployment, workload},
    matchers::{deployment_named, instance, workload_named},
    project::{Project, retry},
    world::{World, scenario},
};
use serde_json::{Value, json};

use crate::rollout;

const KINDS: [&str; 3] = ["Workload", "WorkloadDeployment", "Instance"];

fn file(kind: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios/released");
    dir.join(format!("{}.json", kind.to_lowercase()))
}

fn api(project: &Project, kind: &str) -> Api<DynamicObject> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("compute.datumapis.com", "v1alpha", kind));
    Api::namespaced_with(project.recorder.client().clone(), &project.namespace, &kind)
}

/// Runs a workload and records one object of each kind, without identities.
async fn record(world: &World) {
    let project = world.project("recorded").await;
    project.run(workload("web").placed("main", &["dfw"], 1)).await;
    project.deploy(deployment("a").to("dfw")).await;
    rollout::until_running(world, &project, "a", "dfw", 1).await;
    project.view().eventually_has(workload_named("web").with_counts(1, 1, 1)).await;
    for (kind, name) in [("Workload", "web"), ("WorkloadDeployment", "a"), ("Instance", "a-0")] {
        let current = api(&project, kind).get(name).await.unwrap();
        let labels = current.metadata.labels.clone().unwrap_or_default();
        let stored = json!({"apiVersion": "compute.datumapis.com/v1alpha", "kind": kind,
            "metadata": {"name": name, "labels": labels},
            "spec": current.data["spec"], "status": current.data["status"]});
        fs::create_dir_all(file(kind).parent().unwrap()).unwrap();
        fs::write(file(kind), serde_json::to_string_pretty(&stored).unwrap() + "\n").unwrap();
    }
}

#[test]
fn objects_of_the_last_release_are_kept_unchanged_and_adopted() {
    scenario(async |world| {
        if std::env::var("POLIS_WRITE_RELEASED").is_ok() {
            return record(world).await;
        }
        // On a plane that is not a project yet: no controller changes the objects.
        let (plane, _reserved) = world.spare_plane().await;
        let fixture = world.fixture();
        let project = world.namespace(&plane, &format!("released-{}", std::process::id())).await;
        for kind in KINDS {
            let recorded: Value = serde_json::from_str(&fs::read_to_string(file(kind)).unwrap()).unwrap();
            let object: DynamicObject = serde_json::from_value(recorded.clone()).unwrap();
            let name = object.metadata.name.clone().unwrap();
            let api = api(&project, kind);
            let params =
                PostParams { field_manager: Some("last-release".to_owned()), ..PostParams::default() };
            retry("create the object of the last release", async || api.create(&params, &object).await).await;
            let status = Patch::Merge(json!({"status": recorded["status"]}));
            let merge = PatchParams::default();
            retry("set its status", async || api.patch_status(&name, &merge, &status).await).await;
            let stored = api.get(&name).await.unwrap();
            assert_eq!(stored.data["spec"], recorded["spec"], "{kind}");
            assert_eq!(stored.data["status"], recorded["status"], "{kind}");
        }

        // The projection without a hub copy is deleted; the deployment runs as if the current version had
        // created it.
        fixture.open_project(&plane).await.unwrap();
        project.view().eventually_has(deployment_named("a").not_deleting()).await;
        rollout::until_running(world, &project, "a", "dfw", 1).await;
        project.view().eventually_has(instance("a-0").ready()).await;
        project.view().eventually_has(workload_named("web").with_counts(1, 1, 1)).await;
        for name in ["a", "web"] {
            let kind = if name == "a" { "WorkloadDeployment" } else { "Workload" };
            let recorded: Value = serde_json::from_str(&fs::read_to_string(file(kind)).unwrap()).unwrap();
            let stored = api(&project, kind).get(name).await.unwrap();
            assert_eq!(stored.data["spec"], recorded["spec"], "{kind} is not rewritten");
        }
        fixture.close_project(&plane).await.unwrap();
    });
}
