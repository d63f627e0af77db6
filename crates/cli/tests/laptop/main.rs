//! `polis up` in front of real planes: a real Karmada with real cells, and a real cell behind the embedded hub. What runs
//! is processes of this machine, whatever the planes are made of.

// Other tests of `polis up` use the rest of it.
#[allow(dead_code)]
#[path = "../up/site.rs"]
mod site;

use std::path::Path;

use polis_api::compute::{Instance, Workload, WorkloadDeployment};
use polis_api::crds;
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::karmada::{Cluster, ResourceBinding};
use polis_api::kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use polis_api::kube::{Api, Client, ResourceExt as _};
use polis_api::labels::TOPOLOGY_CITY_CODE;
use polis_testbed::{Bed, Options, manifest, plane::HUB, suite};
use serde_json::json;
use site::{Site, eventually, mk_workload};

/// A plane of the bed that Karmada knows nothing of.
const LONE_CELL: &str = "syd";

/// A Karmada with two cells, and a plane that is to be a cell.
async fn bed() -> &'static Bed {
    let mut options = Options::federation(["dfw", "ord"]);
    options.projects = vec![LONE_CELL.to_owned()];
    suite::bed(options).await.expect("a bed stands")
}

fn file(bed: &Bed, plane: &str) -> String {
    bed.kubeconfig(plane).expect("a kubeconfig").display().to_string()
}

fn cell(bed: &Bed, city: &str) -> String {
    format!("{city}={}", file(bed, city))
}

fn workloads(client: Client) -> Api<Workload> {
    Api::namespaced(client, "default")
}

async fn count<K>(client: &Client, namespace: &str) -> Option<usize>
where
    K: polis_api::kube::Resource<DynamicType = (), Scope = polis_api::kube::core::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let listed = Api::<K>::namespaced(client.clone(), namespace).list(&ListParams::default()).await;
    Some(listed.ok()?.items.len())
}

/// Where the objects of the default project are on hub and cells.
async fn home(project: &Client) -> String {
    let namespace = Api::<Namespace>::all(project.clone()).get("default").await.expect("a namespace");
    format!("ns-{}", namespace.uid().unwrap_or_default())
}

async fn all_ready(project: &Client, wanted: usize) -> Vec<Instance> {
    let api: Api<Instance> = Api::namespaced(project.clone(), "default");
    eventually("every instance is ready", async || {
        let all = api.list(&ListParams::default()).await.ok()?.items;
        let ready = |instance: &Instance| {
            let mut conditions = instance.status.iter().flat_map(|status| &status.conditions);
            conditions.any(|found| found.type_ == "Ready" && found.status == "True")
        };
        (all.len() == wanted && all.iter().all(ready)).then_some(all)
    })
    .await
}

/// The instance answers where its status says that it is, and knows its city.
async fn answers(instance: &Instance) {
    let status = serde_json::to_value(&instance.status).expect("a status");
    let address = status["networkInterfaces"][0]["assignments"]["networkIP"].as_str().expect("an address");
    let said = site::get(&format!("http://{address}:8080/")).await;
    assert!(said.contains(&instance.name_any()), "{said}");
}

async fn delete_and_see_that_nothing_is_left(site: &Site, name: &str, home: &str, planes: &[(&str, Client)]) {
    let project = workloads(site.client("polis-default").await);
    project.delete(name, &DeleteParams::default()).await.expect("a workload that goes");
    eventually("the workload is gone", async || project.get_opt(name).await.ok()?.is_none().then_some(()))
        .await;
    for (plane, client) in planes {
        eventually(&format!("{plane} is clean"), async || {
            let left =
                count::<WorkloadDeployment>(client, home).await? + count::<Instance>(client, home).await?;
            (left == 0).then_some(())
        })
        .await;
    }
    eventually("no process is left", async || site.shims().is_empty().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workload_goes_through_a_real_karmada_and_lives_through_a_kill_of_the_laptop() {
    let bed = bed().await;
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().display().to_string();
    let (hub_file, dfw, ord) = (file(bed, HUB), cell(bed, "dfw"), cell(bed, "ord"));
    let args = ["--data-dir", &data, "--federation-kubeconfig", &hub_file, "--cell", &dfw, "--cell", &ord];
    let mut site = Site::start(&args).await;
    let project = site.client("polis-default").await;
    let workload = mk_workload("hello", &["dfw", "ord"], 1);
    workloads(project.clone())
        .create(&PostParams::default(), &workload)
        .await
        .expect("a workload that is taken");
    let before = all_ready(&project, 2).await;
    for instance in &before {
        answers(instance).await;
    }

    let (home, hub) = (home(&project).await, bed.client(HUB).await.expect("the hub"));
    assert_eq!(count::<WorkloadDeployment>(&hub, &home).await, Some(2));
    assert_eq!(count::<ResourceBinding>(&hub, &home).await, Some(2), "it was Karmada that took them there");
    let mut planes = vec![("hub", hub)];
    for city in ["dfw", "ord"] {
        let client = bed.client(city).await.expect("a cell");
        assert_eq!(count::<Instance>(&client, &home).await, Some(1), "{city}");
        planes.push((city, client));
    }

    let running = site.shims();
    site.kill();
    assert_eq!(Site::shims_in(folder.path()), running, "instances outlive the process that started them");
    let site = Site::start(&args).await;
    let project = site.client("polis-default").await;
    let uids = |all: &[Instance]| all.iter().map(|instance| instance.uid()).collect::<Vec<_>>();
    assert_eq!(uids(&all_ready(&project, 2).await), uids(&before));
    assert_eq!(site.shims(), running, "adopted, not started again");

    let scale =
        json!([{"op": "replace", "path": "/spec/placements/0/scaleSettings/minReplicas", "value": 2}]);
    let scale: Patch<()> = Patch::Json(serde_json::from_value(scale).expect("a patch"));
    workloads(project.clone()).patch("hello", &PatchParams::default(), &scale).await.expect("it is scaled");
    all_ready(&project, 4).await;
    delete_and_see_that_nothing_is_left(&site, "hello", &home, &planes).await;
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_cell_behind_the_embedded_hub_is_a_city_like_the_embedded_ones() {
    let bed = bed().await;
    let real = bed.client(LONE_CELL).await.expect("a plane");
    let kinds: Vec<_> = crds::of_cell().into_iter().map(|file| file.crd).collect();
    manifest::apply_crds(&real, LONE_CELL, &kinds).await.expect("kinds of a cell");
    let site = Site::start(&["--ephemeral", "--cities", "ord", "--cell", &cell(bed, LONE_CELL)]).await;
    let project = site.client("polis-default").await;
    let workload = mk_workload("hello", &["ord", LONE_CELL], 1);
    workloads(project.clone())
        .create(&PostParams::default(), &workload)
        .await
        .expect("a workload that is taken");
    for instance in all_ready(&project, 2).await {
        answers(&instance).await;
    }
    let home = home(&project).await;
    assert_eq!(count::<Instance>(&real, &home).await, Some(1));
    assert_eq!(count::<Instance>(&site.client("polis-cell-ord").await, &home).await, Some(1));
    delete_and_see_that_nothing_is_left(&site, "hello", &home, &[(LONE_CELL, real)]).await;
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_city_that_the_real_hub_has_no_member_for_waits_for_its_label_and_holds_up_no_other() {
    let bed = bed().await;
    let lone = bed.client(LONE_CELL).await.expect("a plane");
    let kinds: Vec<_> = crds::of_cell().into_iter().map(|file| file.crd).collect();
    manifest::apply_crds(&lone, LONE_CELL, &kinds).await.expect("kinds of a cell");
    let hub = Api::<Cluster>::all(bed.client(HUB).await.expect("the hub"));
    let members = hub.list(&ListParams::default()).await.expect("members");
    assert!(
        !members.iter().any(|member| member.labels().get(TOPOLOGY_CITY_CODE).is_some_and(|c| c == LONE_CELL))
    );
    let (hub_file, dfw, lone) = (file(bed, HUB), cell(bed, "dfw"), cell(bed, LONE_CELL));
    let site =
        Site::start(&["--ephemeral", "--federation-kubeconfig", &hub_file, "--cell", &dfw, "--cell", &lone])
            .await;
    assert!(site.summary.contains("topology.datum.net/city-code=syd"), "{}", site.summary);
    let project = workloads(site.client("polis-default").await);
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    project
        .create(&dry, &mk_workload("hello", &["dfw"], 1))
        .await
        .expect("the city that has a member is served");
    let refused = project.create(&dry, &mk_workload("hello", &[LONE_CELL], 1)).await.unwrap_err().to_string();
    assert!(refused.contains("cityCodes"), "{refused}");
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn real_planes_that_cannot_be_used_are_told_with_their_file() {
    let bed = bed().await;
    let dfw = cell(bed, "dfw");
    let told = Site::refused(&["--ephemeral", "--federation-kubeconfig", "/nowhere", "--cell", &dfw]).await;
    assert!(told.contains("/nowhere") && told.trim().lines().count() == 1, "{told}");
    let folder = tempfile::tempdir().expect("a folder");
    let away = write_away(folder.path(), &file(bed, "dfw"));
    let told = Site::refused(&["--ephemeral", "--cell", &format!("dfw={away}")]).await;
    assert!(told.contains(&away) && told.trim().lines().count() == 1, "{told}");
}

/// The same kubeconfig, with a port on which nobody listens.
fn write_away(folder: &Path, kubeconfig: &str) -> String {
    let text = std::fs::read_to_string(kubeconfig).expect("a kubeconfig");
    let port = |line: &str| line.rsplit(':').next().unwrap_or_default().trim_matches(['"', '\'']).to_owned();
    let listened = text.lines().find(|line| line.trim().starts_with("server:")).map(port).expect("a server");
    let file = folder.join("away.kubeconfig");
    std::fs::write(&file, text.replace(&format!(":{listened}"), ":1")).expect("written");
    file.display().to_string()
}
