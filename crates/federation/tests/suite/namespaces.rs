//! Propagation of Namespaces.

use serde_json::json;

use super::fixture::*;

pub async fn a_namespace_reaches_every_member_with_its_labels(federation: &TestFederation) {
    let name = unique("shop");
    federation.hub.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"team": "x"}}})).await;
    for member in [federation.dfw(), federation.ord()] {
        let copy = member.has(&NAMESPACE, "", &name, |copy| copy["metadata"]["labels"]["team"] == "x").await;
        assert_eq!(copy["metadata"]["labels"]["karmada.io/managed"], "true");
    }
    federation
        .hub
        .change(&NAMESPACE, "", &name, |namespace| namespace["metadata"]["labels"] = json!({"team": "y"}))
        .await;
    federation.dfw().has(&NAMESPACE, "", &name, |copy| copy["metadata"]["labels"]["team"] == "y").await;
}

pub async fn a_namespace_can_opt_out_of_propagation(federation: &TestFederation) {
    let name = unique("stay");
    federation.hub.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"namespace.karmada.io/skip-auto-propagation": "true"}}})).await;
    federation.dfw().lacks(&NAMESPACE, "", &name).await;
}

pub async fn a_deleted_namespace_is_deleted_on_members(federation: &TestFederation) {
    let name = federation.namespace().await;
    federation.dfw().arrives(&NAMESPACE, "", &name).await;
    federation.hub.delete(&NAMESPACE, "", &name).await;
    federation.hub.loses(&NAMESPACE, "", &name).await;
    federation.dfw().loses(&NAMESPACE, "", &name).await;
}

pub async fn the_objects_of_a_deleted_namespace_are_deleted(federation: &TestFederation) {
    let name = federation.namespace().await;
    federation.hub.create(mk_policy(&name, "p", to(&["dfw"]))).await;
    federation.hub.create(mk_thing(&name, "a")).await;
    federation.dfw().arrives(&THING, &name, "a").await;
    federation.hub.delete(&NAMESPACE, "", &name).await;
    federation.hub.loses(&NAMESPACE, "", &name).await;
    federation.dfw().loses(&NAMESPACE, "", &name).await;
    federation.hub.loses(&WORK, "karmada-es-dfw", &polis_federation::names::work("Thing", &name, "a")).await;
}

pub async fn namespaces_of_the_federation_are_not_propagated(federation: &TestFederation) {
    federation.hub.arrives(&NAMESPACE, "", "karmada-es-dfw").await;
    federation.dfw().lacks(&NAMESPACE, "", "karmada-es-dfw").await;
    let name = unique("kube-own");
    federation.hub.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).await;
    federation.dfw().lacks(&NAMESPACE, "", &name).await;
}

pub async fn an_existing_namespace_of_a_member_is_taken_over(federation: &TestFederation) {
    let name = unique("both");
    federation.dfw().create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"mine": "1"}}})).await;
    federation.hub.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"team": "x"}}})).await;
    federation.hub.create(mk_policy(&name, "p", to(&["dfw"]))).await;
    federation.hub.create(mk_thing(&name, "a")).await;
    federation.dfw().arrives(&THING, &name, "a").await;
    federation.dfw().has(&NAMESPACE, "", &name, |copy| copy["metadata"]["labels"]["mine"] == "1").await;
}
