//! Propagation of a WorkloadDeployment by Karmada: from the hub to the cell of its city, its status back to
//! the hub, and its deletion.

use k8s_openapi::api::{authentication::v1::SelfSubjectReview, core::v1::Secret};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
    core::DynamicObject,
};
use polis_api::compute::{WorkloadDeployment, WorkloadDeploymentSpec};
use polis_testbed::{CellCrds, Options, TestCluster, cell::clusters, plane::HUB, suite};
use serde_json::{Value, json};

use federation::{Federation, mk_deployment, mk_status};

mod federation;

async fn cluster() -> &'static TestCluster {
    suite::shared_cluster(Options::federation(["dfw", "ord"])).await.expect("a test cluster")
}

/// Patches fields of a deployment.
async fn change(api: &Api<WorkloadDeployment>, name: &str, change: Value) {
    api.patch(name, &PatchParams::default(), &Patch::Merge(&change)).await.expect("the patch is accepted");
}

/// Number of Works for a cell that carry objects of this namespace.
async fn works(cluster: &TestCluster, cell: &str, namespace: &str) -> usize {
    let kind = kube::core::GroupVersionKind::gvk("work.karmada.io", "v1alpha1", "Work");
    let kind = kube::core::ApiResource::from_gvk(&kind);
    let hub = cluster.client(HUB).await.expect("a client");
    let api: Api<DynamicObject> = Api::namespaced_with(hub, &format!("karmada-es-{cell}"), &kind);
    let all = api.list(&ListParams::default()).await.expect("works");
    let in_namespace = |work: &&DynamicObject| {
        let manifest = &work.data["spec"]["workload"]["manifests"][0];
        manifest["kind"] == "WorkloadDeployment" && manifest["metadata"]["namespace"] == namespace
    };
    all.iter().filter(in_namespace).count()
}

#[tokio::test]
async fn a_deployment_reaches_the_cell_of_its_city_and_no_other() {
    let cluster = cluster().await;
    let ns = Federation::new(cluster, "reaches-its-city", &["dfw", "ord"]).await;

    ns.create(&mk_deployment("web-dfw", "dfw")).await;

    let arrived = ns.reaches("dfw", "web-dfw").await;
    assert_eq!(arrived.spec, ns.hub().get("web-dfw").await.unwrap().spec);
    // Karmada records its decision for all cells before it creates Works: there is no Work for ord.
    assert_eq!(works(cluster, "dfw", "reaches-its-city").await, 1);
    assert_eq!(works(cluster, "ord", "reaches-its-city").await, 0);
    assert!(ns.cell("ord").await.get_opt("web-dfw").await.unwrap().is_none());
}

#[tokio::test]
async fn a_status_written_in_the_cell_reaches_the_hub_unchanged() {
    let cluster = cluster().await;
    let ns = Federation::new(cluster, "status-comes-back", &["dfw"]).await;
    ns.create(&mk_deployment("web-dfw", "dfw")).await;
    ns.reaches("dfw", "web-dfw").await;

    for ready in [0, 1] {
        let written = mk_status(ready);
        ns.report("dfw", "web-dfw", &written).await;
        let is = |status: &Option<_>| status.as_ref() == Some(&written);
        ns.becomes(HUB, "web-dfw", "to have the status of the cell", |deployment| is(&deployment.status))
            .await;
    }
}

#[tokio::test]
async fn a_change_on_the_hub_keeps_the_replicas_set_in_the_cell() {
    let cluster = cluster().await;
    let ns = Federation::new(cluster, "replicas-are-kept", &["dfw"]).await;
    ns.create(&mk_deployment("web-dfw", "dfw")).await;
    ns.reaches("dfw", "web-dfw").await;
    change(&ns.cell("dfw").await, "web-dfw", json!({"spec": {"replicas": 5}})).await;

    change(&ns.hub(), "web-dfw", json!({"spec": {"scaleSettings": {"minReplicas": 3}}})).await;

    let changed = |spec: &WorkloadDeploymentSpec| spec.scale_settings.min_replicas == 3;
    let copy = ns.becomes("dfw", "web-dfw", "to have changed", |deployment| changed(&deployment.spec)).await;
    assert_eq!(copy.spec.replicas, Some(5));
    assert_eq!(ns.hub().get("web-dfw").await.unwrap().spec.replicas, None);
}

#[tokio::test]
async fn drift_in_a_cell_is_corrected() {
    let cluster = cluster().await;
    let ns = Federation::new(cluster, "put-right-again", &["dfw"]).await;
    ns.create(&mk_deployment("web-dfw", "dfw")).await;
    let arrived = ns.reaches("dfw", "web-dfw").await;

    change(&ns.cell("dfw").await, "web-dfw", json!({"spec": {"placementName": "elsewhere"}})).await;

    let as_before = |deployment: &WorkloadDeployment| deployment.spec == arrived.spec;
    ns.becomes("dfw", "web-dfw", "to be as before", as_before).await;
}

#[tokio::test]
async fn deleting_a_deployment_on_the_hub_removes_it_from_the_cell() {
    let cluster = cluster().await;
    let ns = Federation::new(cluster, "deleted-everywhere", &["dfw"]).await;
    ns.create(&mk_deployment("web-dfw", "dfw")).await;
    ns.create(&mk_deployment("stays", "dfw")).await;
    ns.reaches("dfw", "web-dfw").await;
    ns.reaches("dfw", "stays").await;

    ns.delete("web-dfw").await;

    ns.leaves("dfw", "web-dfw").await;
    ns.leaves(HUB, "web-dfw").await;
    assert!(ns.cell("dfw").await.get_opt("stays").await.unwrap().is_some());
}

#[tokio::test]
async fn a_client_has_its_user_and_groups_and_no_admin_permissions() {
    let cluster = cluster().await;
    let groups = ["compute.datumapis.com:cells", "compute.datumapis.com:city:dfw"];
    let cell = cluster.client_for(HUB, "cell-dfw", &groups).await.unwrap();

    let reviews: Api<SelfSubjectReview> = Api::all(cell.clone());
    let review = reviews.create(&Default::default(), &SelfSubjectReview::default()).await.unwrap();
    let user = review.status.unwrap().user_info.unwrap();
    assert_eq!(user.username.as_deref(), Some("cell-dfw"));
    let actual = user.groups.unwrap();
    assert!(groups.iter().all(|group| actual.iter().any(|other| other == group)), "{actual:?}");

    let secrets: Api<Secret> = Api::namespaced(cell, "karmada-cluster");
    match secrets.list(&ListParams::default()).await {
        Err(kube::Error::Api(status)) => assert_eq!(status.code, 403, "{}", status.message),
        other => panic!("a cell can read the credentials of all cells: {other:?}"),
    }
}

/// As in production: the policy on the hub installs the CRDs in the cells.
#[tokio::test]
async fn a_policy_propagates_the_crds_before_deployments() {
    let options =
        Options { cell_crds: CellCrds::Propagated, ..Options::federation(["dfw"]).with_projects(0) };
    let cluster = Box::pin(TestCluster::up(options)).await.expect("a test cluster");
    let hub = cluster.client(HUB).await.unwrap();

    let ns = Federation::new(&cluster, "by-policy", &["dfw"]).await;
    ns.create(&mk_deployment("web-dfw", "dfw")).await;
    ns.reaches("dfw", "web-dfw").await;
    ns.report("dfw", "web-dfw", &mk_status(1)).await;
    ns.becomes(HUB, "web-dfw", "to have a status", |deployment| deployment.status == Some(mk_status(1)))
        .await;

    let member = cluster.client("dfw").await.unwrap();
    let crds: Api<
        k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    > = Api::all(member);
    let crd = crds.get("workloaddeployments.compute.datumapis.com").await.unwrap();
    assert_eq!(
        crd.metadata.labels.unwrap_or_default().get("karmada.io/managed").map(String::as_str),
        Some("true")
    );
    let cluster = clusters(&hub).get("dfw").await.unwrap();
    let labels = cluster.metadata.labels.unwrap_or_default();
    assert_eq!(labels.get(polis_api::labels::TOPOLOGY_CITY_CODE).map(String::as_str), Some("dfw"));
}
