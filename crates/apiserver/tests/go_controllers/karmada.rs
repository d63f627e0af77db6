//! An embedded plane as a push member of Karmada.

use std::time::Duration;

use base64::{Engine, prelude::BASE64_STANDARD};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
};
use polis_apiserver::EnabledControllers;
use polis_testbed::{Options, TestCluster, cell::clusters, manifest, plane::HUB};
use serde_json::{Value, json};

use crate::{
    common::mk_client,
    test_server::{PLANE, TOKEN, TestServer},
};

/// Timeout of each expectation, long enough for a loaded machine.
const WITHIN: Duration = Duration::from_secs(90);
const NAMESPACE: &str = "shop";

fn api(client: &Client, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::namespaced_with(client.clone(), NAMESPACE, &resource)
}

/// Waits until an object satisfies the predicate.
async fn becomes(plane: &str, api: &Api<DynamicObject>, name: &str, is: impl Fn(&Value) -> bool) {
    let check = async || {
        let found = manifest::retryable(api.get_opt(name).await)?;
        let found = found.map_or(Value::Null, |object| serde_json::to_value(object).unwrap_or_default());
        if is(&found) { Ok(Some(())) } else { Err(found.to_string()) }
    };
    let what = format!("the expected state of {name}");
    manifest::until(plane, &what, WITHIN, check).await.unwrap_or_else(|error| panic!("{error}"));
}

async fn join(hub: &Client, member: &TestServer) {
    let encode = |text: &str| BASE64_STANDARD.encode(text);
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": PLANE, "namespace": "karmada-cluster"},
        "data": {"token": encode(TOKEN), "caBundle": encode(member.socket.authority.pem())},
    });
    let cluster = json!({
        "apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": PLANE},
        "spec": {"syncMode": "Push", "apiEndpoint": member.endpoint(), "secretRef": {"namespace": "karmada-cluster", "name": PLANE}},
    });
    for object in [secret, cluster] {
        manifest::apply(hub, HUB, &object).await.expect("a member");
    }
    let ready = |cluster: &Value| {
        let conditions = cluster["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True")
            && cluster["status"]["apiEnablements"].to_string().contains("WorkloadDeployment")
    };
    becomes(HUB, &clusters(hub), PLANE, ready).await;
}

fn mk_policy() -> Value {
    json!({
        "apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy",
        "metadata": {"name": "to-the-member", "namespace": NAMESPACE},
        "spec": {
            "resourceSelectors": [
                {"apiVersion": "v1", "kind": "ConfigMap"},
                {"apiVersion": "compute.datumapis.com/v1alpha", "kind": "WorkloadDeployment"},
            ],
            "placement": {"clusterAffinity": {"clusterNames": [PLANE]}},
        },
    })
}

fn mk_deployment() -> Value {
    json!({
        "apiVersion": "compute.datumapis.com/v1alpha", "kind": "WorkloadDeployment",
        "metadata": {"name": "web", "namespace": NAMESPACE},
        "spec": {
            "workloadRef": {"name": "web", "uid": "1f0c7f5e-2f0d-4b57-8a51-0c6f7d8f3a11"},
            "placementName": "default", "cityCode": "dfw", "scaleSettings": {"minReplicas": 2},
            "template": {"spec": {
                "runtime": {"resources": {"instanceType": "datumcloud/d1-standard-2"}, "sandbox": {"containers": [{"name": "web", "image": "example.test/web:1"}]}},
                "networkInterfaces": [{"network": {"name": "default"}}],
            }},
        },
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn karmada_propagates_to_an_embedded_member_collects_its_status_and_deletes() {
    let member = TestServer::new(EnabledControllers::default()).await;
    for file in polis_api::crds::of_cell() {
        member.server.install_crd_in(PLANE, &file.crd).await.expect("a definition");
    }
    let here = mk_client(&member.server, PLANE);
    let cluster =
        Box::pin(TestCluster::up(Options::federation([]).with_projects(0))).await.expect("a test bed");
    let hub = cluster.client(HUB).await.expect("a client of the hub");
    join(&hub, &member).await;

    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings", "namespace": NAMESPACE}, "data": {"a": "b"}});
    for object in [&namespace, &mk_policy(), &map] {
        manifest::apply(&hub, HUB, object).await.expect("the hub takes it");
    }
    let deployments = |client: &Client| api(client, "compute.datumapis.com", "v1alpha", "WorkloadDeployment");
    let maps = |client: &Client| api(client, "", "v1", "ConfigMap");
    let deployment = serde_json::from_value(mk_deployment()).expect("a deployment");
    deployments(&hub).create(&PostParams::default(), &deployment).await.expect("the hub takes it");

    // Karmada propagates objects and their changes.
    becomes(PLANE, &maps(&here), "settings", |map| map["data"]["a"] == "b").await;
    becomes(PLANE, &deployments(&here), "web", |found| found["spec"]["cityCode"] == "dfw").await;
    let change = Patch::Merge(json!({"data": {"a": "c"}}));
    maps(&hub).patch("settings", &PatchParams::default(), &change).await.expect("a change");
    becomes(PLANE, &maps(&here), "settings", |map| map["data"]["a"] == "c").await;

    // Karmada reverts changes on the member.
    let change = Patch::Merge(json!({"data": {"a": "by hand"}}));
    maps(&here).patch("settings", &PatchParams::default(), &change).await.expect("a change");
    becomes(PLANE, &maps(&here), "settings", |map| map["data"]["a"] == "c").await;

    // Karmada collects the status.
    let status = Patch::Merge(
        json!({"status": {"replicas": 2, "readyReplicas": 1, "currentReplicas": 2, "desiredReplicas": 2}}),
    );
    deployments(&here).patch_status("web", &PatchParams::default(), &status).await.expect("a status");
    becomes(HUB, &deployments(&hub), "web", |found| found["status"]["readyReplicas"] == 1).await;

    // Karmada deletes the objects on the member.
    deployments(&hub).delete("web", &DeleteParams::default()).await.expect("a delete");
    maps(&hub).delete("settings", &DeleteParams::default()).await.expect("a delete");
    becomes(PLANE, &deployments(&here), "web", Value::is_null).await;
    becomes(PLANE, &maps(&here), "settings", Value::is_null).await;
}
