//! The peer: a real Karmada with one member, which carries objects from its hub to the member and does nothing else.

use std::time::Instant;

use futures::future::join_all;
use polis_api::k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use polis_api::kube::api::{DynamicObject, PostParams};
use polis_api::kube::core::{ApiResource, GroupVersionKind};
use polis_api::kube::{Api, ResourceExt as _};
use polis_testbed::{Bed, Options};
use serde_json::json;

use crate::eye::Eye;
use crate::{median, milliseconds};

/// Under this name the peer stands in the table.
pub(crate) const NAME: &str = "Karmada 1.18.2, hub to member alone";
const HOME: &str = "bench";

/// What the peer reached.
pub(crate) struct Figures {
    /// From an object on the hub to its copy on the member, p50 in milliseconds, one after the other.
    pub(crate) latency: f64,
    /// Objects a second, many at once.
    pub(crate) rate: f64,
}

/// Measures it; none if it cannot be had here.
pub(crate) async fn measure(single: usize, many: usize) -> Option<Figures> {
    let bed = match Bed::up(Options::federation(["dfw"])).await {
        Ok(bed) => bed,
        Err(error) => {
            println!("no peer: {error}");
            return None;
        }
    };
    let hub = bed.client("hub").await.expect("a client");
    let namespace: Namespace =
        serde_json::from_value(json!({"metadata": {"name": HOME}})).expect("a namespace");
    Api::all(hub.clone()).create(&PostParams::default(), &namespace).await.expect("a namespace");
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
    let policies: Api<DynamicObject> = Api::namespaced_with(hub.clone(), HOME, &kind);
    policies.create(&PostParams::default(), &policy).await.expect("a policy");

    let ours = |map: &ConfigMap| map.labels().contains_key("app").then(|| map.name_any());
    let eye = Eye::on::<ConfigMap>(bed.client("dfw").await.expect("a client"), ours).await;
    let maps: Api<ConfigMap> = Api::namespaced(hub, HOME);
    let create = async |name: String| {
        let map = json!({"metadata": {"name": name, "labels": {"app": "bench"}}, "data": {"text": "x".repeat(900)}});
        let map: ConfigMap = serde_json::from_value(map).expect("a map");
        maps.create(&PostParams::default(), &map).await.expect("a map");
    };
    create("first".to_owned()).await;
    eye.one("first").await; // the namespace of the member is made on the way
    let mut waits = Vec::new();
    for number in 0..single {
        let name = format!("single-{number}");
        let began = Instant::now();
        create(name.clone()).await;
        waits.push(milliseconds(eye.one(&name).await - began));
    }
    let began = Instant::now();
    join_all((0..many).map(|number| create(format!("many-{number}")))).await;
    let last = eye.all(1 + single + many).await;
    Some(Figures { latency: median(&mut waits), rate: many as f64 / (last - began).as_secs_f64() })
}
