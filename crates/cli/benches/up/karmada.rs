//! The peer: a real Karmada with one member. It only propagates objects from the hub to the member.

use std::time::Instant;

use futures::future::join_all;
use polis_api::k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use polis_api::kube::api::{DynamicObject, PostParams};
use polis_api::kube::core::{ApiResource, GroupVersionKind};
use polis_api::kube::{Api, ResourceExt as _};
use polis_testbed::{Options, TestCluster};
use serde_json::json;

use crate::recorder::Recorder;
use crate::{median, milliseconds};

/// Name of the peer in the table.
pub(crate) const NAME: &str = "Karmada 1.18.2, hub to member alone";
const NAMESPACE: &str = "bench";

/// Measurements of the peer.
pub(crate) struct Figures {
    /// Milliseconds from the creation of an object on the hub to its copy on the member: p50, one at a time.
    pub(crate) latency: f64,
    /// Objects per second, many at once.
    pub(crate) rate: f64,
}

/// Measures Karmada; `None` if the test bed cannot start.
pub(crate) async fn measure(single: usize, many: usize) -> Option<Figures> {
    let cluster = match TestCluster::up(Options::federation(["dfw"])).await {
        Ok(cluster) => cluster,
        Err(error) => {
            println!("no peer: {error}");
            return None;
        }
    };
    let hub = cluster.client("hub").await.expect("a client");
    let namespace: Namespace =
        serde_json::from_value(json!({"metadata": {"name": NAMESPACE}})).expect("a namespace");
    Api::all(hub.clone()).create(&PostParams::default(), &namespace).await.expect("creates the namespace");
    let policy = json!({
        "apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy", "metadata": {"name": "all"},
        "spec": {
            "resourceSelectors": [{"apiVersion": "v1", "kind": "ConfigMap", "labelSelector": {"matchLabels": {"app": "bench"}}}],
            "placement": {"clusterAffinity": {"clusterNames": ["dfw"]}},
        },
    });
    let kind =
        ApiResource::from_gvk(&GroupVersionKind::gvk("policy.karmada.io", "v1alpha1", "PropagationPolicy"));
    let policy: DynamicObject = serde_json::from_value(policy).expect("a policy");
    let policies: Api<DynamicObject> = Api::namespaced_with(hub.clone(), NAMESPACE, &kind);
    policies.create(&PostParams::default(), &policy).await.expect("creates the policy");

    let ours = |map: &ConfigMap| map.labels().contains_key("app").then(|| map.name_any());
    let recorder = Recorder::on::<ConfigMap>(cluster.client("dfw").await.expect("a client"), ours).await;
    let maps: Api<ConfigMap> = Api::namespaced(hub, NAMESPACE);
    let create = async |name: String| {
        let map = json!({"metadata": {"name": name, "labels": {"app": "bench"}}, "data": {"text": "x".repeat(900)}});
        let map: ConfigMap = serde_json::from_value(map).expect("a config map");
        maps.create(&PostParams::default(), &map).await.expect("creates the config map");
    };
    create("first".to_owned()).await;
    recorder.one("first").await; // this creates the namespace on the member
    let mut waits = Vec::new();
    for number in 0..single {
        let name = format!("single-{number}");
        let began = Instant::now();
        create(name.clone()).await;
        waits.push(milliseconds(recorder.one(&name).await - began));
    }
    let began = Instant::now();
    join_all((0..many).map(|number| create(format!("many-{number}")))).await;
    let last = recorder.all(1 + single + many).await;
    Some(Figures { latency: median(&waits), rate: many as f64 / (last - began).as_secs_f64() })
}
