//! Upgrades: what the last release wrote is kept whole by the kinds of today and taken over by today's manager.
//!
//! `released/` has one object of each kind as the last release left it. At a release, and only then,
//! `POLIS_WRITE_RELEASED=1 cargo xtask e2e --filter upgrade::` records them anew. The other direction, today's manager on
//! planes with the kinds of the last release, is the whole suite with `cargo xtask e2e --kinds released`.

use std::{fs, path::PathBuf};

use polis_api::kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use polis_e2e::{
    draft::{deployment, workload},
    project::{Project, insist},
    seek::{deployed, instance, worked},
    world::{World, scenario},
};
use serde_json::{Value, json};

use crate::chain;

const KINDS: [&str; 3] = ["Workload", "WorkloadDeployment", "Instance"];

fn file(kind: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios/released");
    folder.join(format!("{}.json", kind.to_lowercase()))
}

fn api(project: &Project, kind: &str) -> Api<DynamicObject> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("compute.datumapis.com", "v1alpha", kind));
    Api::namespaced_with(project.eye.client().clone(), &project.namespace, &kind)
}

/// Runs something and writes down what is there of each kind, without what is of this one run.
async fn record(world: &World) {
    let project = world.project("recorded").await;
    project.run(workload("web").placed("main", &["dfw"], 1)).await;
    project.deploy(deployment("a").to("dfw")).await;
    chain::runs(world, &project, "a", "dfw", 1).await;
    project.here().has(worked("web").counting(1, 1, 1)).await;
    for (kind, name) in [("Workload", "web"), ("WorkloadDeployment", "a"), ("Instance", "a-0")] {
        let there = api(&project, kind).get(name).await.unwrap();
        let labels = there.metadata.labels.clone().unwrap_or_default();
        let kept = json!({"apiVersion": "compute.datumapis.com/v1alpha", "kind": kind,
            "metadata": {"name": name, "labels": labels},
            "spec": there.data["spec"], "status": there.data["status"]});
        fs::create_dir_all(file(kind).parent().unwrap()).unwrap();
        fs::write(file(kind), serde_json::to_string_pretty(&kept).unwrap() + "\n").unwrap();
    }
}

#[test]
fn objects_of_the_last_release_are_kept_whole_and_taken_over() {
    scenario(async |world| {
        if std::env::var("POLIS_WRITE_RELEASED").is_ok() {
            return record(world).await;
        }
        // On a plane that is no project yet: what is written is what is kept.
        let (plane, _mine) = world.spare_plane().await;
        let stage = world.stage();
        let project = world.namespace(&plane, &format!("released-{}", std::process::id())).await;
        for kind in KINDS {
            let recorded: Value = serde_json::from_str(&fs::read_to_string(file(kind)).unwrap()).unwrap();
            let object: DynamicObject = serde_json::from_value(recorded.clone()).unwrap();
            let name = object.metadata.name.clone().unwrap();
            let api = api(&project, kind);
            let params =
                PostParams { field_manager: Some("last-release".to_owned()), ..PostParams::default() };
            insist("write what the last release wrote", async || api.create(&params, &object).await).await;
            let status = Patch::Merge(json!({"status": recorded["status"]}));
            let merge = PatchParams::default();
            insist("and its status", async || api.patch_status(&name, &merge, &status).await).await;
            let kept = api.get(&name).await.unwrap();
            assert_eq!(kept.data["spec"], recorded["spec"], "{kind}");
            assert_eq!(kept.data["status"], recorded["status"], "{kind}");
        }

        // The projection that nobody made here goes; the deployment is carried out as if today's had written it.
        stage.open_project(&plane).await.unwrap();
        project.here().has(deployed("a").staying()).await;
        chain::runs(world, &project, "a", "dfw", 1).await;
        project.here().has(instance("a-0").ready()).await;
        project.here().has(worked("web").counting(1, 1, 1)).await;
        for name in ["a", "web"] {
            let kind = if name == "a" { "WorkloadDeployment" } else { "Workload" };
            let recorded: Value = serde_json::from_str(&fs::read_to_string(file(kind)).unwrap()).unwrap();
            let kept = api(&project, kind).get(name).await.unwrap();
            assert_eq!(kept.data["spec"], recorded["spec"], "{kind} is not rewritten");
        }
        stage.close_project(&plane).await.unwrap();
    });
}
