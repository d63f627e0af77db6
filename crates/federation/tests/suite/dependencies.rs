//! Propagation of dependencies.

use serde_json::{Value, json};

use super::fixture::*;
use super::placement::install_own_kind;

const SCRIPT: &str = "function GetDependencies(obj)
  return {{apiVersion = 'v1', kind = 'ConfigMap', namespace = obj.metadata.namespace, name = obj.spec.needs}}
end";

pub fn mk_config(namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": namespace, "name": name}, "data": {"k": "v"}})
}

/// Creates a kind whose objects depend on a ConfigMap, and a policy with `propagateDeps`.
pub async fn with_dependency(federation: &TestFederation, placement: Value) -> (Kind, String) {
    let shop = federation.namespace().await;
    let (kind, plural) = install_own_kind(federation).await;
    federation
        .hub
        .create(json!({
            "apiVersion": "config.karmada.io/v1alpha1", "kind": "ResourceInterpreterCustomization", "metadata": {"name": plural},
            "spec": {
                "target": {"apiVersion": kind.api_version(), "kind": kind.kind},
                "customizations": {"dependencyInterpretation": {"luaScript": SCRIPT}},
            },
        }))
        .await;
    let selectors = json!([{"apiVersion": kind.api_version(), "kind": kind.kind}]);
    let policy = with(mk_policy(&shop, "p", placement), "/spec/resourceSelectors", selectors);
    federation.hub.create(with(policy, "/spec/propagateDeps", json!(true))).await;
    (kind, shop)
}

pub fn mk_object(kind: &Kind, namespace: &str, name: &str, needs: &str) -> Value {
    json!({"apiVersion": kind.api_version(), "kind": kind.kind, "metadata": {"namespace": namespace, "name": name}, "spec": {"needs": needs}})
}

pub async fn dependencies_are_propagated_with_their_object(federation: &TestFederation) {
    let (kind, shop) = with_dependency(federation, to(&["dfw"])).await;
    federation.hub.create(mk_config(&shop, "settings")).await;
    federation.hub.create(mk_config(&shop, "other")).await;
    federation.hub.api.create(&kind, &mk_object(&kind, &shop, "a", "settings")).await.expect("created");
    federation.dfw().arrives(&CONFIG_MAP, &shop, "settings").await;
    let binding = federation.hub.arrives(&BINDING, &shop, "settings-configmap").await;
    assert_eq!(binding["spec"]["requiredBy"][0]["name"], polis_federation::names::binding(&kind.kind, "a"));
    federation.ord().lacks(&CONFIG_MAP, &shop, "settings").await;
    federation.dfw().lacks(&CONFIG_MAP, &shop, "other").await;
    // It moves with its object.
    federation.hub.change(&POLICY, &shop, "p", |policy| policy["spec"]["placement"] = to(&["ord"])).await;
    federation.ord().arrives(&CONFIG_MAP, &shop, "settings").await;
    federation.dfw().loses(&CONFIG_MAP, &shop, "settings").await;
    // Its own changes are propagated.
    federation.hub.change(&CONFIG_MAP, &shop, "settings", |config| config["data"]["k"] = json!("w")).await;
    federation.ord().has(&CONFIG_MAP, &shop, "settings", |copy| copy["data"]["k"] == "w").await;
}

pub async fn an_unused_dependency_is_removed_from_members(federation: &TestFederation) {
    let (kind, shop) = with_dependency(federation, to(&["dfw"])).await;
    for name in ["one", "two"] {
        federation.hub.create(mk_config(&shop, name)).await;
    }
    federation.hub.api.create(&kind, &mk_object(&kind, &shop, "a", "one")).await.expect("created");
    federation.hub.api.create(&kind, &mk_object(&kind, &shop, "b", "one")).await.expect("created");
    federation.dfw().arrives(&CONFIG_MAP, &shop, "one").await;
    federation
        .hub
        .has(&BINDING, &shop, "one-configmap", |binding| {
            binding["spec"]["requiredBy"].as_array().is_some_and(|all| all.len() == 2)
        })
        .await;
    federation.hub.change(&kind, &shop, "a", |object| object["spec"]["needs"] = json!("two")).await;
    federation.dfw().arrives(&CONFIG_MAP, &shop, "two").await;
    federation.dfw().keeps(&CONFIG_MAP, &shop, "one", |_| true).await;
    federation.hub.delete(&kind, &shop, "b").await;
    federation.dfw().loses(&CONFIG_MAP, &shop, "one").await;
    federation.dfw().keeps(&CONFIG_MAP, &shop, "two", |_| true).await;
    federation.hub.arrives(&CONFIG_MAP, &shop, "one").await;
}

pub async fn a_dependency_can_be_created_after_its_object(federation: &TestFederation) {
    let (kind, shop) = with_dependency(federation, to(&["dfw"])).await;
    federation.hub.api.create(&kind, &mk_object(&kind, &shop, "a", "late")).await.expect("created");
    federation.dfw().arrives(&kind, &shop, "a").await;
    federation.hub.create(mk_config(&shop, "late")).await;
    federation.dfw().arrives(&CONFIG_MAP, &shop, "late").await;
}

pub async fn a_dependency_can_have_its_own_policy(federation: &TestFederation) {
    let (kind, shop) = with_dependency(federation, to(&["dfw"])).await;
    federation.hub.create(mk_config(&shop, "settings")).await;
    let selectors = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "settings"}]);
    let own = with(mk_policy(&shop, "own", to(&["ord"])), "/spec/resourceSelectors", selectors);
    federation.hub.create(own).await;
    federation.ord().arrives(&CONFIG_MAP, &shop, "settings").await;
    federation.hub.api.create(&kind, &mk_object(&kind, &shop, "a", "settings")).await.expect("created");
    federation.dfw().arrives(&CONFIG_MAP, &shop, "settings").await;
    // Without its dependent object it is only on the clusters of its own policy.
    federation.hub.delete(&kind, &shop, "a").await;
    federation.dfw().loses(&CONFIG_MAP, &shop, "settings").await;
    federation.ord().arrives(&CONFIG_MAP, &shop, "settings").await;
}
