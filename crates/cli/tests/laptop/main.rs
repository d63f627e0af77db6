//! Tests of `polis up` with real planes: a real Karmada with real cells, and a real cell as a member of the
//! embedded hub. Instances are processes of this host in both cases.

// The tests of `polis up` use the rest of the module.
#[allow(dead_code)]
#[path = "../up/installation.rs"]
mod installation;

use std::path::Path;

use installation::{Installation, eventually, mk_workload};
use polis_api::compute::{Instance, Workload, WorkloadDeployment};
use polis_api::crds;
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::karmada::{Cluster, ResourceBinding};
use polis_api::kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use polis_api::kube::{Api, Client, ResourceExt as _};
use polis_api::labels::TOPOLOGY_CITY_CODE;
use polis_testbed::{Options, TestCluster, manifest, plane::HUB, suite};
use serde_json::json;

/// A plane of the test bed that is not a member of Karmada.
const LONE_CELL: &str = "syd";

/// A Karmada with two cells, and a plane that is not joined.
async fn cluster() -> &'static TestCluster {
    let mut options = Options::federation(["dfw", "ord"]);
    options.projects = vec![LONE_CELL.to_owned()];
    suite::shared_cluster(options).await.expect("a test cluster")
}

fn file(cluster: &TestCluster, plane: &str) -> String {
    cluster.kubeconfig(plane).expect("a kubeconfig").display().to_string()
}

fn cell(cluster: &TestCluster, city: &str) -> String {
    format!("{city}={}", file(cluster, city))
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

/// The hub namespace of namespace `default` of the default project.
async fn hub_namespace(project: &Client) -> String {
    let namespace = Api::<Namespace>::all(project.clone()).get("default").await.expect("a namespace");
    format!("ns-{}", namespace.uid().unwrap_or_default())
}

async fn wait_until_ready(project: &Client, expected: usize) -> Vec<Instance> {
    let api: Api<Instance> = Api::namespaced(project.clone(), "default");
    eventually("every instance is ready", async || {
        let all = api.list(&ListParams::default()).await.ok()?.items;
        let ready = |instance: &Instance| {
            let mut conditions = instance.status.iter().flat_map(|status| &status.conditions);
            conditions.any(|found| found.type_ == "Ready" && found.status == "True")
        };
        (all.len() == expected && all.iter().all(ready)).then_some(all)
    })
    .await
}

/// Asserts that the instance serves requests at the address in its status.
async fn assert_serves(instance: &Instance) {
    let status = serde_json::to_value(&instance.status).expect("a status");
    let address = status["networkInterfaces"][0]["assignments"]["networkIP"].as_str().expect("an address");
    let output = installation::get(&format!("http://{address}:8080/")).await;
    assert!(output.contains(&instance.name_any()), "{output}");
}

async fn delete_and_wait_until_gone(
    installation: &Installation,
    name: &str,
    hub_namespace: &str,
    planes: &[(&str, Client)],
) {
    let project = workloads(installation.client("polis-default").await);
    project.delete(name, &DeleteParams::default()).await.expect("deletes the workload");
    eventually("the workload is gone", async || project.get_opt(name).await.ok()?.is_none().then_some(()))
        .await;
    for (plane, client) in planes {
        eventually(&format!("{plane} is clean"), async || {
            let left = count::<WorkloadDeployment>(client, hub_namespace).await?
                + count::<Instance>(client, hub_namespace).await?;
            (left == 0).then_some(())
        })
        .await;
    }
    eventually("no process is left", async || installation.shims().is_empty().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workload_runs_through_a_real_karmada_and_survives_a_kill_of_polis_up() {
    let cluster = cluster().await;
    let folder = tempfile::tempdir().expect("a temporary directory");
    let data = folder.path().display().to_string();
    let (hub_file, dfw, ord) = (file(cluster, HUB), cell(cluster, "dfw"), cell(cluster, "ord"));
    let args = ["--data-dir", &data, "--federation-kubeconfig", &hub_file, "--cell", &dfw, "--cell", &ord];
    let mut installation = Installation::start(&args).await;
    let project = installation.client("polis-default").await;
    let workload = mk_workload("hello", &["dfw", "ord"], 1);
    workloads(project.clone()).create(&PostParams::default(), &workload).await.expect("creates the workload");
    let before = wait_until_ready(&project, 2).await;
    for instance in &before {
        assert_serves(instance).await;
    }

    let (hub_namespace, hub) = (hub_namespace(&project).await, cluster.client(HUB).await.expect("the hub"));
    assert_eq!(count::<WorkloadDeployment>(&hub, &hub_namespace).await, Some(2));
    assert_eq!(count::<ResourceBinding>(&hub, &hub_namespace).await, Some(2), "Karmada has scheduled them");
    let mut planes = vec![("hub", hub)];
    for city in ["dfw", "ord"] {
        let client = cluster.client(city).await.expect("a cell");
        assert_eq!(count::<Instance>(&client, &hub_namespace).await, Some(1), "{city}");
        planes.push((city, client));
    }

    let running = installation.shims();
    installation.kill();
    assert_eq!(
        Installation::shims_in(folder.path()),
        running,
        "instances outlive the process that started them"
    );
    let installation = Installation::start(&args).await;
    let project = installation.client("polis-default").await;
    let uids = |all: &[Instance]| all.iter().map(|instance| instance.uid()).collect::<Vec<_>>();
    assert_eq!(uids(&wait_until_ready(&project, 2).await), uids(&before));
    assert_eq!(installation.shims(), running, "adopted, not started again");

    let scale =
        json!([{"op": "replace", "path": "/spec/placements/0/scaleSettings/minReplicas", "value": 2}]);
    let scale: Patch<()> = Patch::Json(serde_json::from_value(scale).expect("a patch"));
    workloads(project.clone())
        .patch("hello", &PatchParams::default(), &scale)
        .await
        .expect("scales the workload");
    wait_until_ready(&project, 4).await;
    delete_and_wait_until_gone(&installation, "hello", &hub_namespace, &planes).await;
    installation.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_cell_is_a_member_of_the_embedded_hub_beside_an_embedded_cell() {
    let cluster = cluster().await;
    let real = cluster.client(LONE_CELL).await.expect("a plane");
    let kinds: Vec<_> = crds::of_cell().into_iter().map(|file| file.crd).collect();
    manifest::apply_crds(&real, LONE_CELL, &kinds).await.expect("installs the kinds of a cell");
    let installation =
        Installation::start(&["--ephemeral", "--cities", "ord", "--cell", &cell(cluster, LONE_CELL)]).await;
    let project = installation.client("polis-default").await;
    let workload = mk_workload("hello", &["ord", LONE_CELL], 1);
    workloads(project.clone()).create(&PostParams::default(), &workload).await.expect("creates the workload");
    for instance in wait_until_ready(&project, 2).await {
        assert_serves(&instance).await;
    }
    let hub_namespace = hub_namespace(&project).await;
    assert_eq!(count::<Instance>(&real, &hub_namespace).await, Some(1));
    assert_eq!(
        count::<Instance>(&installation.client("polis-cell-ord").await, &hub_namespace).await,
        Some(1)
    );
    delete_and_wait_until_gone(&installation, "hello", &hub_namespace, &[(LONE_CELL, real)]).await;
    installation.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_city_without_a_member_on_the_real_hub_waits_for_its_label_and_delays_no_other() {
    let cluster = cluster().await;
    let lone = cluster.client(LONE_CELL).await.expect("a plane");
    let kinds: Vec<_> = crds::of_cell().into_iter().map(|file| file.crd).collect();
    manifest::apply_crds(&lone, LONE_CELL, &kinds).await.expect("installs the kinds of a cell");
    let hub = Api::<Cluster>::all(cluster.client(HUB).await.expect("the hub"));
    let members = hub.list(&ListParams::default()).await.expect("members");
    assert!(
        !members.iter().any(|member| member.labels().get(TOPOLOGY_CITY_CODE).is_some_and(|c| c == LONE_CELL))
    );
    let (hub_file, dfw, lone) = (file(cluster, HUB), cell(cluster, "dfw"), cell(cluster, LONE_CELL));
    let installation = Installation::start(&[
        "--ephemeral",
        "--federation-kubeconfig",
        &hub_file,
        "--cell",
        &dfw,
        "--cell",
        &lone,
    ])
    .await;
    assert!(installation.summary.contains("topology.datum.net/city-code=syd"), "{}", installation.summary);
    let project = workloads(installation.client("polis-default").await);
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    project
        .create(&dry_run, &mk_workload("hello", &["dfw"], 1))
        .await
        .expect("a city with a member accepts the workload");
    let refused =
        project.create(&dry_run, &mk_workload("hello", &[LONE_CELL], 1)).await.unwrap_err().to_string();
    assert!(refused.contains("cityCodes"), "{refused}");
    installation.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_or_unreachable_kubeconfig_is_an_error_that_names_the_file() {
    let cluster = cluster().await;
    let dfw = cell(cluster, "dfw");
    let output =
        Installation::start_error(&["--ephemeral", "--federation-kubeconfig", "/nowhere", "--cell", &dfw])
            .await;
    assert!(output.contains("/nowhere") && output.trim().lines().count() == 1, "{output}");
    let folder = tempfile::tempdir().expect("a temporary directory");
    let unreachable = write_unreachable(folder.path(), &file(cluster, "dfw"));
    let output = Installation::start_error(&["--ephemeral", "--cell", &format!("dfw={unreachable}")]).await;
    assert!(output.contains(&unreachable) && output.trim().lines().count() == 1, "{output}");
}

/// Writes a copy of the kubeconfig with port 1, where no server listens.
fn write_unreachable(folder: &Path, kubeconfig: &str) -> String {
    let text = std::fs::read_to_string(kubeconfig).expect("a kubeconfig");
    let port = |line: &str| line.rsplit(':').next().unwrap_or_default().trim_matches(['"', '\'']).to_owned();
    let current = text.lines().find(|line| line.trim().starts_with("server:")).map(port).expect("a server");
    let file = folder.join("unreachable.kubeconfig");
    std::fs::write(&file, text.replace(&format!(":{current}"), ":1")).expect("writes the file");
    file.display().to_string()
}
