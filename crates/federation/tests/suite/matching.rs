//! Whose an object is.

use serde_json::json;

use super::world::*;

pub fn selecting(policy: serde_json::Value, selector: serde_json::Value) -> serde_json::Value {
    let mut selector = selector;
    selector["apiVersion"] = json!("suite.polis.test/v1");
    selector["kind"] = json!("Thing");
    with(policy, "/spec/resourceSelectors", json!([selector]))
}

pub async fn a_claimed_object_and_its_binding_show_whose_they_are(world: &World) {
    let shop = world.namespace().await;
    world.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    let policy = world
        .hub
        .has(&POLICY, &shop, "p", |policy| {
            policy["metadata"]["labels"]["propagationpolicy.karmada.io/permanent-id"].is_string()
        })
        .await;
    assert_eq!(policy["metadata"]["finalizers"], json!(["karmada.io/propagation-policy-controller"]));
    assert_eq!(policy["spec"]["resourceSelectors"][0]["namespace"], shop.as_str());
    let id = &policy["metadata"]["labels"]["propagationpolicy.karmada.io/permanent-id"];
    let thing = world.claimed_by(&THING, &shop, "a", "p").await;
    let binding = world.binding(&shop, "a", |binding| !binding["spec"]["clusters"].is_null()).await;
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

pub async fn a_selector_by_name_takes_only_that_name(world: &World) {
    let shop = world.namespace().await;
    world.hub.create(selecting(mk_policy(&shop, "p", to(&["dfw"])), json!({"name": "a"}))).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.hub.create(mk_thing(&shop, "b")).await;
    world.dfw().arrives(&THING, &shop, "a").await;
    world.dfw().lacks(&THING, &shop, "b").await;
}

pub async fn a_selector_by_label_follows_the_label(world: &World) {
    let shop = world.namespace().await;
    world
        .hub
        .create(selecting(
            mk_policy(&shop, "p", to(&["dfw"])),
            json!({"labelSelector": {"matchLabels": {"go": "yes"}}}),
        ))
        .await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.dfw().lacks(&THING, &shop, "a").await;
    world.hub.change(&THING, &shop, "a", |thing| thing["metadata"]["labels"] = json!({"go": "yes"})).await;
    world.dfw().arrives(&THING, &shop, "a").await;
}

pub async fn a_policy_of_another_namespace_has_no_say(world: &World) {
    let (shop, other) = (world.namespace().await, world.namespace().await);
    world.hub.create(mk_policy(&other, "p", to(&["dfw"]))).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.dfw().lacks(&THING, &shop, "a").await;
}

pub async fn a_policy_of_the_namespace_comes_before_one_of_the_hub(world: &World) {
    let shop = world.namespace().await;
    let cluster_policy = unique("everyone");
    world
        .hub
        .create(with(mk_cluster_policy(&shop, &cluster_policy, to(&["ord"])), "/spec/priority", json!(100)))
        .await;
    world.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    settled_policies(world, &shop, &["p"]).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.claimed_by(&THING, &shop, "a", "p").await;
    world.hub.delete(&CLUSTER_POLICY, "", &cluster_policy).await;
}

/// Waits until policies are known to the federation, so that the order of arrival plays no part.
async fn settled_policies(world: &World, namespace: &str, policies: &[&str]) {
    for policy in policies {
        world.hub.has(&POLICY, namespace, policy, |policy| policy["metadata"]["finalizers"].is_array()).await;
    }
}

pub async fn the_higher_priority_wins(world: &World) {
    let shop = world.namespace().await;
    world.hub.create(selecting(mk_policy(&shop, "close", to(&["ord"])), json!({"name": "a"}))).await;
    world.hub.create(with(mk_policy(&shop, "urgent", to(&["dfw"])), "/spec/priority", json!(5))).await;
    settled_policies(world, &shop, &["close", "urgent"]).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.claimed_by(&THING, &shop, "a", "urgent").await;
}

pub async fn the_closer_match_wins_among_equals(world: &World) {
    let shop = world.namespace().await;
    world.hub.create(mk_policy(&shop, "a-all", to(&["ord"]))).await;
    world
        .hub
        .create(selecting(
            mk_policy(&shop, "b-label", to(&["ord"])),
            json!({"labelSelector": {"matchLabels": {"l": "1"}}}),
        ))
        .await;
    world.hub.create(selecting(mk_policy(&shop, "c-name", to(&["dfw"])), json!({"name": "a"}))).await;
    settled_policies(world, &shop, &["a-all", "b-label", "c-name"]).await;
    world.hub.create(labelled(mk_thing(&shop, "a"), "l", "1")).await;
    world.claimed_by(&THING, &shop, "a", "c-name").await;
    world.hub.create(labelled(mk_thing(&shop, "b"), "l", "1")).await;
    world.claimed_by(&THING, &shop, "b", "b-label").await;
}

pub async fn the_alphabet_decides_among_the_rest(world: &World) {
    let shop = world.namespace().await;
    world.hub.create(mk_policy(&shop, "b", to(&["ord"]))).await;
    world.hub.create(mk_policy(&shop, "a", to(&["dfw"]))).await;
    settled_policies(world, &shop, &["a", "b"]).await;
    world.hub.create(mk_thing(&shop, "x")).await;
    world.claimed_by(&THING, &shop, "x", "a").await;
}

pub async fn a_claim_is_kept_against_a_better_policy(world: &World) {
    let shop = world.namespace().await;
    world.hub.create(mk_policy(&shop, "first", to(&["dfw"]))).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.dfw().arrives(&THING, &shop, "a").await;
    world.hub.create(with(mk_policy(&shop, "better", to(&["ord"])), "/spec/priority", json!(9))).await;
    world.hub.change(&THING, &shop, "a", |thing| thing["spec"]["n"] = json!(2)).await;
    world.dfw().has(&THING, &shop, "a", |copy| copy["spec"]["n"] == 2).await;
    world.ord().lacks(&THING, &shop, "a").await;
    world.claimed_by(&THING, &shop, "a", "first").await;
}

pub async fn what_a_deleted_policy_had_propagated_stays(world: &World) {
    let shop = world.delivered(&[]).await;
    world.hub.delete(&POLICY, &shop, "p").await;
    world.hub.loses(&POLICY, &shop, "p").await;
    let unmarked = |object: &serde_json::Value| {
        object["metadata"]["labels"].get("propagationpolicy.karmada.io/permanent-id").is_none()
            && object["metadata"]["annotations"].get("propagationpolicy.karmada.io/name").is_none()
    };
    world.hub.has(&THING, &shop, "a", unmarked).await;
    world.binding(&shop, "a", unmarked).await;
    world.dfw().keeps(&THING, &shop, "a", |_| true).await;
}

pub async fn another_policy_may_take_over_from_a_deleted_one(world: &World) {
    let shop = world.namespace().await;
    world.hub.create(mk_policy(&shop, "old", to(&["dfw"]))).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.dfw().arrives(&THING, &shop, "a").await;
    world.hub.delete(&POLICY, &shop, "old").await;
    world.hub.loses(&POLICY, &shop, "old").await;
    world.hub.create(mk_policy(&shop, "new", to(&["ord"]))).await;
    world.claimed_by(&THING, &shop, "a", "new").await;
    world.ord().arrives(&THING, &shop, "a").await;
    world.dfw().loses(&THING, &shop, "a").await;
}

pub async fn a_policy_that_no_longer_selects_an_object_lets_it_go(world: &World) {
    let shop = world.namespace().await;
    world.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.claimed_by(&THING, &shop, "a", "p").await;
    world.dfw().arrives(&THING, &shop, "a").await;
    world
        .hub
        .change(&POLICY, &shop, "p", |policy| policy["spec"]["resourceSelectors"][0]["name"] = json!("other"))
        .await;
    world
        .hub
        .has(&THING, &shop, "a", |thing| {
            thing["metadata"]["annotations"].get("propagationpolicy.karmada.io/name").is_none()
        })
        .await;
    world.dfw().keeps(&THING, &shop, "a", |_| true).await;
}

pub async fn a_selector_added_to_a_policy_is_heard(world: &World) {
    let shop = world.namespace().await;
    world.hub.create(selecting(mk_policy(&shop, "p", to(&["dfw"])), json!({"name": "a"}))).await;
    world.hub.create(mk_thing(&shop, "b")).await;
    world.hub.has(&POLICY, &shop, "p", |policy| policy["metadata"]["finalizers"].is_array()).await;
    let more = json!({"apiVersion": "suite.polis.test/v1", "kind": "Thing", "namespace": shop, "name": "b"});
    world
        .hub
        .change(&POLICY, &shop, "p", |policy| {
            policy["spec"]["resourceSelectors"].as_array_mut().expect("selectors").push(more.clone())
        })
        .await;
    world.dfw().arrives(&THING, &shop, "b").await;
}

pub async fn a_policy_over_what_the_federation_is_made_of_does_nothing(world: &World) {
    let shop = world.namespace().await;
    let name = unique("greedy");
    let selectors = json!([
        {"apiVersion": "work.karmada.io/v1alpha2", "kind": "ResourceBinding", "namespace": shop},
        {"apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy", "namespace": shop},
        {"apiVersion": "suite.polis.test/v1", "kind": "Thing", "namespace": shop},
    ]);
    world
        .hub
        .create(with(mk_cluster_policy(&shop, &name, to(&["dfw"])), "/spec/resourceSelectors", selectors))
        .await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.dfw().arrives(&THING, &shop, "a").await;
    world.hub.lacks(&BINDING, &shop, "a-thing-resourcebinding").await;
    world.hub.delete(&CLUSTER_POLICY, "", &name).await;
}

pub async fn a_policy_of_the_hub_claims_objects_of_a_namespace(world: &World) {
    let shop = world.namespace().await;
    let name = unique("everyone");
    world.hub.create(mk_cluster_policy(&shop, &name, to(&["dfw"]))).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    let thing = world.claimed_by(&THING, &shop, "a", &name).await;
    assert!(thing["metadata"]["labels"]["clusterpropagationpolicy.karmada.io/permanent-id"].is_string());
    world.dfw().arrives(&THING, &shop, "a").await;
    world.hub.delete(&CLUSTER_POLICY, "", &name).await;
    world.hub.loses(&CLUSTER_POLICY, "", &name).await;
    world.dfw().keeps(&THING, &shop, "a", |_| true).await;
}

pub async fn a_name_in_a_selector_outranks_its_labels(world: &World) {
    let shop = world.namespace().await;
    let selector = json!({"name": "a", "labelSelector": {"matchLabels": {"go": "yes"}}});
    world.hub.create(selecting(mk_policy(&shop, "p", to(&["dfw"])), selector)).await;
    settled_policies(world, &shop, &["p"]).await;
    world.hub.create(labelled(mk_thing(&shop, "b"), "go", "yes")).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.dfw().arrives(&THING, &shop, "a").await;
    assert_eq!(world.dfw().get(&THING, &shop, "b").await, None);
    assert_eq!(world.hub.get(&BINDING, &shop, "b-thing").await, None);
}

pub async fn a_selector_may_hold_expressions_over_labels(world: &World) {
    let shop = world.namespace().await;
    let expressions = json!([
        {"key": "tier", "operator": "In", "values": ["front", "back"]},
        {"key": "old", "operator": "DoesNotExist"},
    ]);
    let selector = json!({"labelSelector": {"matchExpressions": expressions}});
    world.hub.create(selecting(mk_policy(&shop, "p", to(&["dfw"])), selector)).await;
    settled_policies(world, &shop, &["p"]).await;
    world.hub.create(labelled(labelled(mk_thing(&shop, "old"), "tier", "front"), "old", "1")).await;
    world.hub.create(labelled(mk_thing(&shop, "other"), "tier", "side")).await;
    world.hub.create(labelled(mk_thing(&shop, "fits"), "tier", "back")).await;
    world.dfw().arrives(&THING, &shop, "fits").await;
    for name in ["old", "other"] {
        assert_eq!(world.hub.get(&BINDING, &shop, &format!("{name}-thing")).await, None, "{name}");
    }
}

pub async fn one_policy_may_select_several_kinds(world: &World) {
    let shop = world.namespace().await;
    let selectors = json!([
        {"apiVersion": "suite.polis.test/v1", "kind": "Thing"},
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "a"},
    ]);
    world.hub.create(with(mk_policy(&shop, "p", to(&["dfw"])), "/spec/resourceSelectors", selectors)).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.hub.create(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": shop, "name": "a"}, "data": {"k": "v"}})).await;
    world.dfw().arrives(&THING, &shop, "a").await;
    world.dfw().arrives(&CONFIG_MAP, &shop, "a").await;
    // Objects of one name and of two kinds have a binding each.
    world.hub.arrives(&BINDING, &shop, "a-thing").await;
    world.hub.arrives(&BINDING, &shop, "a-configmap").await;
}

pub async fn policies_of_a_namespace_keep_to_their_own_objects(world: &World) {
    let shop = world.namespace().await;
    world.hub.create(selecting(mk_policy(&shop, "pa", to(&["dfw"])), json!({"name": "a"}))).await;
    world.hub.create(selecting(mk_policy(&shop, "pb", to(&["ord"])), json!({"name": "b"}))).await;
    for name in ["a", "b"] {
        world.hub.create(mk_thing(&shop, name)).await;
    }
    world.claimed_by(&THING, &shop, "a", "pa").await;
    world.claimed_by(&THING, &shop, "b", "pb").await;
    world.dfw().arrives(&THING, &shop, "a").await;
    world.ord().arrives(&THING, &shop, "b").await;
    // The end of one policy is nothing to the objects of the other.
    world.hub.delete(&POLICY, &shop, "pa").await;
    world.hub.loses(&POLICY, &shop, "pa").await;
    world.hub.change(&THING, &shop, "b", |thing| thing["spec"]["n"] = json!(2)).await;
    world.ord().has(&THING, &shop, "b", |copy| copy["spec"]["n"] == 2).await;
    world.claimed_by(&THING, &shop, "b", "pb").await;
}

pub async fn a_lazy_policy_waits_until_the_object_changes(world: &World) {
    let shop = world.namespace().await;
    let policy = with(mk_policy(&shop, "p", to(&["dfw"])), "/spec/activationPreference", json!("Lazy"));
    world.hub.create(policy).await;
    settled_policies(world, &shop, &["p"]).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.dfw().arrives(&THING, &shop, "a").await;
    world.hub.change(&POLICY, &shop, "p", |policy| policy["spec"]["placement"] = to(&["ord"])).await;
    world.ord().lacks(&THING, &shop, "a").await;
    world.hub.change(&THING, &shop, "a", |thing| thing["spec"]["n"] = json!(2)).await;
    world.ord().has(&THING, &shop, "a", |copy| copy["spec"]["n"] == 2).await;
    world.dfw().loses(&THING, &shop, "a").await;
}
