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

/// Creates a kind whose objects depend on what a script says, and a policy with `propagateDeps` for the
/// object `a`.
async fn with_script(federation: &TestFederation, script: &str, placement: Value) -> (Kind, String) {
    let shop = federation.namespace().await;
    let (kind, plural) = install_own_kind(federation).await;
    federation.hub.create(mk_script(&kind, &plural, script)).await;
    federation.hub.create(mk_policy_of(&kind, &shop, "p", "a", placement)).await;
    (kind, shop)
}

fn mk_script(kind: &Kind, name: &str, script: &str) -> Value {
    json!({
        "apiVersion": "config.karmada.io/v1alpha1", "kind": "ResourceInterpreterCustomization", "metadata": {"name": name},
        "spec": {
            "target": {"apiVersion": kind.api_version(), "kind": kind.kind},
            "customizations": {"dependencyInterpretation": {"luaScript": script}},
        },
    })
}

/// A policy with `propagateDeps` for one object.
fn mk_policy_of(kind: &Kind, namespace: &str, name: &str, object: &str, placement: Value) -> Value {
    let selectors = json!([{"apiVersion": kind.api_version(), "kind": kind.kind, "name": object}]);
    let policy = with(mk_policy(namespace, name, placement), "/spec/resourceSelectors", selectors);
    with(policy, "/spec/propagateDeps", json!(true))
}

fn mk_secret(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": namespace, "name": name},
        "type": "kubernetes.io/basic-auth", "data": {"username": "YW5u", "password": "eA=="},
    })
}

pub async fn dependents_in_two_clusters_share_a_dependency(federation: &TestFederation) {
    let (kind, shop) = with_script(federation, SCRIPT, to(&["dfw"])).await;
    federation.hub.create(mk_policy_of(&kind, &shop, "q", "b", to(&["ord"]))).await;
    federation.hub.create(mk_config(&shop, "settings")).await;
    for name in ["a", "b"] {
        federation.hub.api.create(&kind, &mk_object(&kind, &shop, name, "settings")).await.expect("created");
    }
    federation.dfw().arrives(&CONFIG_MAP, &shop, "settings").await;
    federation.ord().arrives(&CONFIG_MAP, &shop, "settings").await;
    federation.hub.delete(&kind, &shop, "a").await;
    federation.dfw().loses(&CONFIG_MAP, &shop, "settings").await;
    federation.ord().keeps(&CONFIG_MAP, &shop, "settings", |_| true).await;
    federation.hub.delete(&kind, &shop, "b").await;
    federation.ord().loses(&CONFIG_MAP, &shop, "settings").await;
    federation.hub.arrives(&CONFIG_MAP, &shop, "settings").await;
}

pub async fn a_secret_can_be_a_dependency(federation: &TestFederation) {
    let script = SCRIPT.replace("ConfigMap", "Secret");
    let (kind, shop) = with_script(federation, &script, to(&["dfw"])).await;
    federation.hub.create(mk_secret(&shop, "db")).await;
    federation.hub.create(mk_secret(&shop, "other")).await;
    federation.hub.api.create(&kind, &mk_object(&kind, &shop, "a", "db")).await.expect("created");
    let copy = federation.dfw().arrives(&SECRET, &shop, "db").await;
    assert_eq!(
        (&copy["type"], &copy["data"]["username"]),
        (&json!("kubernetes.io/basic-auth"), &json!("YW5u"))
    );
    federation.ord().lacks(&SECRET, &shop, "db").await;
    federation.dfw().lacks(&SECRET, &shop, "other").await;
}

pub async fn a_deleted_dependency_is_removed_and_comes_back_with_its_next_creation(
    federation: &TestFederation,
) {
    let (kind, shop) = with_script(federation, SCRIPT, to(&["dfw"])).await;
    federation.hub.create(mk_config(&shop, "settings")).await;
    federation.hub.api.create(&kind, &mk_object(&kind, &shop, "a", "settings")).await.expect("created");
    federation.dfw().arrives(&CONFIG_MAP, &shop, "settings").await;
    federation.hub.delete(&CONFIG_MAP, &shop, "settings").await;
    federation.dfw().loses(&CONFIG_MAP, &shop, "settings").await;
    let again = with(mk_config(&shop, "settings"), "/data/k", json!("again"));
    federation.hub.create(again).await;
    federation.dfw().has(&CONFIG_MAP, &shop, "settings", |copy| copy["data"]["k"] == "again").await;
}

pub async fn without_propagate_deps_a_dependency_stays_on_the_hub(federation: &TestFederation) {
    let (kind, shop) = with_script(federation, SCRIPT, to(&["dfw"])).await;
    federation.hub.change(&POLICY, &shop, "p", |policy| policy["spec"]["propagateDeps"] = json!(false)).await;
    federation.hub.create(mk_config(&shop, "settings")).await;
    federation.hub.api.create(&kind, &mk_object(&kind, &shop, "a", "settings")).await.expect("created");
    federation.dfw().arrives(&kind, &shop, "a").await;
    federation.dfw().lacks(&CONFIG_MAP, &shop, "settings").await;
}

pub async fn propagate_deps_can_be_switched_on_and_off(federation: &TestFederation) {
    let (kind, shop) = with_script(federation, SCRIPT, to(&["dfw"])).await;
    federation.hub.create(mk_config(&shop, "settings")).await;
    federation.hub.api.create(&kind, &mk_object(&kind, &shop, "a", "settings")).await.expect("created");
    federation.dfw().arrives(&CONFIG_MAP, &shop, "settings").await;
    federation.hub.change(&POLICY, &shop, "p", |policy| policy["spec"]["propagateDeps"] = json!(false)).await;
    federation.dfw().loses(&CONFIG_MAP, &shop, "settings").await;
    federation.dfw().keeps(&kind, &shop, "a", |_| true).await;
    federation.hub.change(&POLICY, &shop, "p", |policy| policy["spec"]["propagateDeps"] = json!(true)).await;
    federation.dfw().arrives(&CONFIG_MAP, &shop, "settings").await;
}

pub async fn an_object_can_have_several_dependencies(federation: &TestFederation) {
    let script = "function GetDependencies(obj)
      local found = {}
      for name in string.gmatch(obj.spec.needs, '[^,]+') do
        table.insert(found, {apiVersion = 'v1', kind = 'ConfigMap', namespace = obj.metadata.namespace, name = name})
        table.insert(found, {apiVersion = 'v1', kind = 'Secret', namespace = obj.metadata.namespace, name = name})
      end
      return found
    end";
    let (kind, shop) = with_script(federation, script, to(&["dfw"])).await;
    for name in ["one", "two"] {
        federation.hub.create(mk_config(&shop, name)).await;
        federation.hub.create(mk_secret(&shop, name)).await;
    }
    federation.hub.api.create(&kind, &mk_object(&kind, &shop, "a", "one,two")).await.expect("created");
    for name in ["one", "two"] {
        federation.dfw().arrives(&CONFIG_MAP, &shop, name).await;
        federation.dfw().arrives(&SECRET, &shop, name).await;
    }
    federation.hub.change(&kind, &shop, "a", |object| object["spec"]["needs"] = json!("two")).await;
    federation.dfw().loses(&CONFIG_MAP, &shop, "one").await;
    federation.dfw().loses(&SECRET, &shop, "one").await;
    federation.dfw().keeps(&SECRET, &shop, "two", |_| true).await;
}

pub async fn an_object_without_dependencies_can_get_one(federation: &TestFederation) {
    let script = "function GetDependencies(obj)
      if obj.spec.needs == '' then
        return {}
      end
      return {{apiVersion = 'v1', kind = 'ConfigMap', namespace = obj.metadata.namespace, name = obj.spec.needs}}
    end";
    let (kind, shop) = with_script(federation, script, to(&["dfw"])).await;
    federation.hub.create(mk_config(&shop, "settings")).await;
    federation.hub.api.create(&kind, &mk_object(&kind, &shop, "a", "")).await.expect("created");
    federation.dfw().arrives(&kind, &shop, "a").await;
    federation.dfw().lacks(&CONFIG_MAP, &shop, "settings").await;
    federation.hub.change(&kind, &shop, "a", |object| object["spec"]["needs"] = json!("settings")).await;
    federation.dfw().arrives(&CONFIG_MAP, &shop, "settings").await;
    federation.hub.change(&kind, &shop, "a", |object| object["spec"]["needs"] = json!("")).await;
    federation.dfw().loses(&CONFIG_MAP, &shop, "settings").await;
}

pub async fn an_object_and_its_dependency_can_be_deleted_together(federation: &TestFederation) {
    let (kind, shop) = with_script(federation, SCRIPT, to(&["dfw"])).await;
    federation.hub.create(mk_config(&shop, "settings")).await;
    federation.hub.api.create(&kind, &mk_object(&kind, &shop, "a", "settings")).await.expect("created");
    federation.dfw().arrives(&CONFIG_MAP, &shop, "settings").await;
    federation.hub.delete(&CONFIG_MAP, &shop, "settings").await;
    federation.hub.delete(&kind, &shop, "a").await;
    federation.dfw().loses(&CONFIG_MAP, &shop, "settings").await;
    federation.dfw().loses(&kind, &shop, "a").await;
    federation.hub.loses(&BINDING, &shop, "settings-configmap").await;
}

pub async fn a_deleted_copy_of_a_dependency_is_created_again(federation: &TestFederation) {
    let (kind, shop) = with_script(federation, SCRIPT, to(&["dfw"])).await;
    federation.hub.create(mk_config(&shop, "settings")).await;
    federation.hub.api.create(&kind, &mk_object(&kind, &shop, "a", "settings")).await.expect("created");
    let first = federation.dfw().arrives(&CONFIG_MAP, &shop, "settings").await;
    federation.dfw().delete(&CONFIG_MAP, &shop, "settings").await;
    let uid = first["metadata"]["uid"].clone();
    federation.dfw().has(&CONFIG_MAP, &shop, "settings", |copy| copy["metadata"]["uid"] != uid).await;
}

pub async fn drift_of_a_dependency_is_corrected(federation: &TestFederation) {
    let (kind, shop) = with_script(federation, SCRIPT, to(&["dfw"])).await;
    federation.hub.create(mk_config(&shop, "settings")).await;
    federation.hub.api.create(&kind, &mk_object(&kind, &shop, "a", "settings")).await.expect("created");
    federation.dfw().arrives(&CONFIG_MAP, &shop, "settings").await;
    federation.dfw().change(&CONFIG_MAP, &shop, "settings", |copy| copy["data"]["k"] = json!("drift")).await;
    federation.dfw().has(&CONFIG_MAP, &shop, "settings", |copy| copy["data"]["k"] == "v").await;
}

pub async fn labels_and_annotations_of_a_dependency_are_propagated(federation: &TestFederation) {
    let (kind, shop) = with_script(federation, SCRIPT, to(&["dfw"])).await;
    let config = with(mk_config(&shop, "settings"), "/metadata/labels", json!({"mark": "true"}));
    federation.hub.create(with(config, "/metadata/annotations", json!({"hash": "1"}))).await;
    federation.hub.api.create(&kind, &mk_object(&kind, &shop, "a", "settings")).await.expect("created");
    let copy = federation.dfw().arrives(&CONFIG_MAP, &shop, "settings").await;
    assert_eq!(
        (&copy["metadata"]["labels"]["mark"], &copy["metadata"]["annotations"]["hash"]),
        (&json!("true"), &json!("1"))
    );
    let change = |config: &mut Value| config["metadata"]["annotations"]["hash"] = json!("2");
    federation.hub.change(&CONFIG_MAP, &shop, "settings", change).await;
    federation
        .dfw()
        .has(&CONFIG_MAP, &shop, "settings", |copy| copy["metadata"]["annotations"]["hash"] == "2")
        .await;
}

/// The script that Polis ships for WorkloadDeployments.
pub async fn the_shipped_script_reads_the_list_of_companions(federation: &TestFederation) {
    let shipped = include_str!("../../../../deploy/components/federation/interpreter.yaml");
    let shipped: Value = serde_saphyr::from_str(shipped).expect("YAML");
    let script = shipped["spec"]["customizations"]["dependencyInterpretation"]["luaScript"].as_str();
    let (kind, shop) = with_script(federation, script.expect("a script"), to(&["dfw"])).await;
    federation.hub.create(mk_config(&shop, "data-settings-1")).await;
    federation.hub.create(mk_secret(&shop, "data-db-2")).await;
    federation.hub.create(mk_secret(&shop, "other")).await;
    let listed =
        r#"["ConfigMap/data-settings-1@ab","Secret/data-db-2@cd","Secret/other@ef","Role/data-x-3@ab"]"#;
    let annotations = json!({"compute.datumapis.com/expected-referenced-data": listed});
    let object = with(mk_object(&kind, &shop, "a", ""), "/metadata/annotations", annotations);
    federation.hub.api.create(&kind, &object).await.expect("created");
    federation.dfw().arrives(&CONFIG_MAP, &shop, "data-settings-1").await;
    federation.dfw().arrives(&SECRET, &shop, "data-db-2").await;
    federation.dfw().lacks(&SECRET, &shop, "other").await;
    let clear = |object: &mut Value| {
        object["metadata"]["annotations"]["compute.datumapis.com/expected-referenced-data"] = json!("[]");
    };
    federation.hub.change(&kind, &shop, "a", clear).await;
    federation.dfw().loses(&SECRET, &shop, "data-db-2").await;
    federation.dfw().loses(&CONFIG_MAP, &shop, "data-settings-1").await;
}
