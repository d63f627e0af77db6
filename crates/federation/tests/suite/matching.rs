//! Policy matching and claims.

use serde_json::json;

use super::fixture::*;

pub fn selecting(policy: serde_json::Value, selector: serde_json::Value) -> serde_json::Value {
    let mut selector = selector;
    selector["apiVersion"] = json!("suite.polis.test/v1");
    selector["kind"] = json!("Thing");
    with(policy, "/spec/resourceSelectors", json!([selector]))
}

pub async fn a_claimed_object_and_its_binding_name_their_policy(federation: &TestFederation) {
    let shop = federation.namespace().await;
    federation.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    let policy = federation
        .hub
        .has(&POLICY, &shop, "p", |policy| {
            policy["metadata"]["labels"]["propagationpolicy.karmada.io/permanent-id"].is_string()
        })
        .await;
    assert_eq!(policy["metadata"]["finalizers"], json!(["karmada.io/propagation-policy-controller"]));
    assert_eq!(policy["spec"]["resourceSelectors"][0]["namespace"], shop.as_str());
    let id = &policy["metadata"]["labels"]["propagationpolicy.karmada.io/permanent-id"];
    let thing = federation.claimed_by(&THING, &shop, "a", "p").await;
    let binding = federation.binding(&shop, "a", |binding| !binding["spec"]["clusters"].is_null()).await;
    for object in [&thing, &binding] {
        assert_eq!(&object["metadata"]["labels"]["propagationpolicy.karmada.io/permanent-id"], id);
        assert_eq!(
            object["metadata"]["annotations"]["propagationpolicy.karmada.io/namespace"],
            shop.as_str()
        );
        assert_eq!(object["metadata"]["annotations"]["propagationpolicy.karmada.io/name"], "p");
    }
    assert!(binding["metadata"]["labels"]["resourcebinding.karmada.io/permanent-id"].is_string());
    assert_eq!(binding["metadata"]["finalizers"], json!(["karmada.io/binding-controller"]));
    let owner = &binding["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["uid"], &owner["controller"]), (&thing["metadata"]["uid"], &json!(true)));
    assert_eq!(binding["spec"]["resource"]["name"], "a");
}

pub async fn a_selector_by_name_selects_only_that_name(federation: &TestFederation) {
    let shop = federation.namespace().await;
    federation.hub.create(selecting(mk_policy(&shop, "p", to(&["dfw"])), json!({"name": "a"}))).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.hub.create(mk_thing(&shop, "b")).await;
    federation.dfw().arrives(&THING, &shop, "a").await;
    federation.dfw().lacks(&THING, &shop, "b").await;
}

pub async fn a_selector_by_label_follows_the_label(federation: &TestFederation) {
    let shop = federation.namespace().await;
    federation
        .hub
        .create(selecting(
            mk_policy(&shop, "p", to(&["dfw"])),
            json!({"labelSelector": {"matchLabels": {"go": "yes"}}}),
        ))
        .await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.dfw().lacks(&THING, &shop, "a").await;
    federation
        .hub
        .change(&THING, &shop, "a", |thing| thing["metadata"]["labels"] = json!({"go": "yes"}))
        .await;
    federation.dfw().arrives(&THING, &shop, "a").await;
}

pub async fn a_policy_of_another_namespace_is_ignored(federation: &TestFederation) {
    let (shop, other) = (federation.namespace().await, federation.namespace().await);
    federation.hub.create(mk_policy(&other, "p", to(&["dfw"]))).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.dfw().lacks(&THING, &shop, "a").await;
}

pub async fn a_namespaced_policy_has_precedence_over_a_cluster_policy(federation: &TestFederation) {
    let shop = federation.namespace().await;
    let cluster_policy = unique("everyone");
    federation
        .hub
        .create(with(mk_cluster_policy(&shop, &cluster_policy, to(&["ord"])), "/spec/priority", json!(100)))
        .await;
    federation.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    await_policies(federation, &shop, &["p"]).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.claimed_by(&THING, &shop, "a", "p").await;
    federation.hub.delete(&CLUSTER_POLICY, "", &cluster_policy).await;
}

/// Waits until the federation has processed the policies, so that the order of their creation does not
/// matter.
async fn await_policies(federation: &TestFederation, namespace: &str, policies: &[&str]) {
    for policy in policies {
        federation
            .hub
            .has(&POLICY, namespace, policy, |policy| policy["metadata"]["finalizers"].is_array())
            .await;
    }
}

pub async fn the_higher_priority_wins(federation: &TestFederation) {
    let shop = federation.namespace().await;
    federation.hub.create(selecting(mk_policy(&shop, "close", to(&["ord"])), json!({"name": "a"}))).await;
    federation.hub.create(with(mk_policy(&shop, "urgent", to(&["dfw"])), "/spec/priority", json!(5))).await;
    await_policies(federation, &shop, &["close", "urgent"]).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.claimed_by(&THING, &shop, "a", "urgent").await;
}

pub async fn the_more_specific_selector_wins_at_equal_priority(federation: &TestFederation) {
    let shop = federation.namespace().await;
    federation.hub.create(mk_policy(&shop, "a-all", to(&["ord"]))).await;
    federation
        .hub
        .create(selecting(
            mk_policy(&shop, "b-label", to(&["ord"])),
            json!({"labelSelector": {"matchLabels": {"l": "1"}}}),
        ))
        .await;
    federation.hub.create(selecting(mk_policy(&shop, "c-name", to(&["dfw"])), json!({"name": "a"}))).await;
    await_policies(federation, &shop, &["a-all", "b-label", "c-name"]).await;
    federation.hub.create(labelled(mk_thing(&shop, "a"), "l", "1")).await;
    federation.claimed_by(&THING, &shop, "a", "c-name").await;
    federation.hub.create(labelled(mk_thing(&shop, "b"), "l", "1")).await;
    federation.claimed_by(&THING, &shop, "b", "b-label").await;
}

pub async fn the_smaller_name_wins_otherwise(federation: &TestFederation) {
    let shop = federation.namespace().await;
    federation.hub.create(mk_policy(&shop, "b", to(&["ord"]))).await;
    federation.hub.create(mk_policy(&shop, "a", to(&["dfw"]))).await;
    await_policies(federation, &shop, &["a", "b"]).await;
    federation.hub.create(mk_thing(&shop, "x")).await;
    federation.claimed_by(&THING, &shop, "x", "a").await;
}

pub async fn a_claim_is_kept_against_a_policy_with_a_higher_rank(federation: &TestFederation) {
    let shop = federation.namespace().await;
    federation.hub.create(mk_policy(&shop, "first", to(&["dfw"]))).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.dfw().arrives(&THING, &shop, "a").await;
    federation.hub.create(with(mk_policy(&shop, "better", to(&["ord"])), "/spec/priority", json!(9))).await;
    federation.hub.change(&THING, &shop, "a", |thing| thing["spec"]["n"] = json!(2)).await;
    federation.dfw().has(&THING, &shop, "a", |copy| copy["spec"]["n"] == 2).await;
    federation.ord().lacks(&THING, &shop, "a").await;
    federation.claimed_by(&THING, &shop, "a", "first").await;
}

pub async fn objects_of_a_deleted_policy_stay_propagated(federation: &TestFederation) {
    let shop = federation.delivered(&[]).await;
    federation.hub.delete(&POLICY, &shop, "p").await;
    federation.hub.loses(&POLICY, &shop, "p").await;
    let unmarked = |object: &serde_json::Value| {
        object["metadata"]["labels"].get("propagationpolicy.karmada.io/permanent-id").is_none()
            && object["metadata"]["annotations"].get("propagationpolicy.karmada.io/name").is_none()
    };
    federation.hub.has(&THING, &shop, "a", unmarked).await;
    federation.binding(&shop, "a", unmarked).await;
    federation.dfw().keeps(&THING, &shop, "a", |_| true).await;
}

pub async fn another_policy_can_claim_the_objects_of_a_deleted_policy(federation: &TestFederation) {
    let shop = federation.namespace().await;
    federation.hub.create(mk_policy(&shop, "old", to(&["dfw"]))).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.dfw().arrives(&THING, &shop, "a").await;
    federation.hub.delete(&POLICY, &shop, "old").await;
    federation.hub.loses(&POLICY, &shop, "old").await;
    federation.hub.create(mk_policy(&shop, "new", to(&["ord"]))).await;
    federation.claimed_by(&THING, &shop, "a", "new").await;
    federation.ord().arrives(&THING, &shop, "a").await;
    federation.dfw().loses(&THING, &shop, "a").await;
}

pub async fn a_policy_that_no_longer_selects_an_object_releases_it(federation: &TestFederation) {
    let shop = federation.namespace().await;
    federation.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.claimed_by(&THING, &shop, "a", "p").await;
    federation.dfw().arrives(&THING, &shop, "a").await;
    federation
        .hub
        .change(&POLICY, &shop, "p", |policy| policy["spec"]["resourceSelectors"][0]["name"] = json!("other"))
        .await;
    federation
        .hub
        .has(&THING, &shop, "a", |thing| {
            thing["metadata"]["annotations"].get("propagationpolicy.karmada.io/name").is_none()
        })
        .await;
    federation.dfw().keeps(&THING, &shop, "a", |_| true).await;
}

pub async fn a_selector_added_to_a_policy_takes_effect(federation: &TestFederation) {
    let shop = federation.namespace().await;
    federation.hub.create(selecting(mk_policy(&shop, "p", to(&["dfw"])), json!({"name": "a"}))).await;
    federation.hub.create(mk_thing(&shop, "b")).await;
    federation.hub.has(&POLICY, &shop, "p", |policy| policy["metadata"]["finalizers"].is_array()).await;
    let more = json!({"apiVersion": "suite.polis.test/v1", "kind": "Thing", "namespace": shop, "name": "b"});
    federation
        .hub
        .change(&POLICY, &shop, "p", |policy| {
            policy["spec"]["resourceSelectors"].as_array_mut().expect("selectors").push(more.clone())
        })
        .await;
    federation.dfw().arrives(&THING, &shop, "b").await;
}

pub async fn kinds_of_the_federation_are_not_propagated(federation: &TestFederation) {
    let shop = federation.namespace().await;
    let name = unique("greedy");
    let selectors = json!([
        {"apiVersion": "work.karmada.io/v1alpha2", "kind": "ResourceBinding", "namespace": shop},
        {"apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy", "namespace": shop},
        {"apiVersion": "suite.polis.test/v1", "kind": "Thing", "namespace": shop},
    ]);
    federation
        .hub
        .create(with(mk_cluster_policy(&shop, &name, to(&["dfw"])), "/spec/resourceSelectors", selectors))
        .await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.dfw().arrives(&THING, &shop, "a").await;
    federation.hub.lacks(&BINDING, &shop, "a-thing-resourcebinding").await;
    federation.hub.delete(&CLUSTER_POLICY, "", &name).await;
}

pub async fn a_cluster_policy_claims_namespaced_objects(federation: &TestFederation) {
    let shop = federation.namespace().await;
    let name = unique("everyone");
    federation.hub.create(mk_cluster_policy(&shop, &name, to(&["dfw"]))).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    let thing = federation.claimed_by(&THING, &shop, "a", &name).await;
    assert!(thing["metadata"]["labels"]["clusterpropagationpolicy.karmada.io/permanent-id"].is_string());
    federation.dfw().arrives(&THING, &shop, "a").await;
    federation.hub.delete(&CLUSTER_POLICY, "", &name).await;
    federation.hub.loses(&CLUSTER_POLICY, "", &name).await;
    federation.dfw().keeps(&THING, &shop, "a", |_| true).await;
}

pub async fn a_selector_with_a_name_ignores_its_labels(federation: &TestFederation) {
    let shop = federation.namespace().await;
    let selector = json!({"name": "a", "labelSelector": {"matchLabels": {"go": "yes"}}});
    federation.hub.create(selecting(mk_policy(&shop, "p", to(&["dfw"])), selector)).await;
    await_policies(federation, &shop, &["p"]).await;
    federation.hub.create(labelled(mk_thing(&shop, "b"), "go", "yes")).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.dfw().arrives(&THING, &shop, "a").await;
    assert_eq!(federation.dfw().get(&THING, &shop, "b").await, None);
    assert_eq!(federation.hub.get(&BINDING, &shop, "b-thing").await, None);
}

pub async fn a_selector_supports_match_expressions(federation: &TestFederation) {
    let shop = federation.namespace().await;
    let expressions = json!([
        {"key": "tier", "operator": "In", "values": ["front", "back"]},
        {"key": "old", "operator": "DoesNotExist"},
    ]);
    let selector = json!({"labelSelector": {"matchExpressions": expressions}});
    federation.hub.create(selecting(mk_policy(&shop, "p", to(&["dfw"])), selector)).await;
    await_policies(federation, &shop, &["p"]).await;
    federation.hub.create(labelled(labelled(mk_thing(&shop, "old"), "tier", "front"), "old", "1")).await;
    federation.hub.create(labelled(mk_thing(&shop, "other"), "tier", "side")).await;
    federation.hub.create(labelled(mk_thing(&shop, "fits"), "tier", "back")).await;
    federation.dfw().arrives(&THING, &shop, "fits").await;
    for name in ["old", "other"] {
        assert_eq!(federation.hub.get(&BINDING, &shop, &format!("{name}-thing")).await, None, "{name}");
    }
}

pub async fn a_policy_can_select_several_kinds(federation: &TestFederation) {
    let shop = federation.namespace().await;
    let selectors = json!([
        {"apiVersion": "suite.polis.test/v1", "kind": "Thing"},
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "a"},
    ]);
    federation
        .hub
        .create(with(mk_policy(&shop, "p", to(&["dfw"])), "/spec/resourceSelectors", selectors))
        .await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.hub.create(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": shop, "name": "a"}, "data": {"k": "v"}})).await;
    federation.dfw().arrives(&THING, &shop, "a").await;
    federation.dfw().arrives(&CONFIG_MAP, &shop, "a").await;
    // Two kinds with the same object name have a binding each.
    federation.hub.arrives(&BINDING, &shop, "a-thing").await;
    federation.hub.arrives(&BINDING, &shop, "a-configmap").await;
}

pub async fn policies_of_a_namespace_are_independent(federation: &TestFederation) {
    let shop = federation.namespace().await;
    federation.hub.create(selecting(mk_policy(&shop, "pa", to(&["dfw"])), json!({"name": "a"}))).await;
    federation.hub.create(selecting(mk_policy(&shop, "pb", to(&["ord"])), json!({"name": "b"}))).await;
    for name in ["a", "b"] {
        federation.hub.create(mk_thing(&shop, name)).await;
    }
    federation.claimed_by(&THING, &shop, "a", "pa").await;
    federation.claimed_by(&THING, &shop, "b", "pb").await;
    federation.dfw().arrives(&THING, &shop, "a").await;
    federation.ord().arrives(&THING, &shop, "b").await;
    // The deletion of one policy does not affect the objects of the other.
    federation.hub.delete(&POLICY, &shop, "pa").await;
    federation.hub.loses(&POLICY, &shop, "pa").await;
    federation.hub.change(&THING, &shop, "b", |thing| thing["spec"]["n"] = json!(2)).await;
    federation.ord().has(&THING, &shop, "b", |copy| copy["spec"]["n"] == 2).await;
    federation.claimed_by(&THING, &shop, "b", "pb").await;
}

pub async fn a_lazy_policy_waits_until_the_object_changes(federation: &TestFederation) {
    let shop = federation.namespace().await;
    let policy = with(mk_policy(&shop, "p", to(&["dfw"])), "/spec/activationPreference", json!("Lazy"));
    federation.hub.create(policy).await;
    await_policies(federation, &shop, &["p"]).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.dfw().arrives(&THING, &shop, "a").await;
    federation.hub.change(&POLICY, &shop, "p", |policy| policy["spec"]["placement"] = to(&["ord"])).await;
    federation.ord().lacks(&THING, &shop, "a").await;
    federation.hub.change(&THING, &shop, "a", |thing| thing["spec"]["n"] = json!(2)).await;
    federation.ord().has(&THING, &shop, "a", |copy| copy["spec"]["n"] == 2).await;
    federation.dfw().loses(&THING, &shop, "a").await;
}
