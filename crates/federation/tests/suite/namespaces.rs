//! Namespaces travel by themselves.

use serde_json::json;

use super::world::*;

pub async fn a_namespace_reaches_every_member_with_its_labels(world: &World) {
    let name = unique("shop");
    world.hub.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"team": "x"}}})).await;
    for member in [world.dfw(), world.ord()] {
        let copy = member.has(&NAMESPACE, "", &name, |copy| copy["metadata"]["labels"]["team"] == "x").await;
        assert_eq!(copy["metadata"]["labels"]["karmada.io/managed"], "true");
    }
    world
        .hub
        .change(&NAMESPACE, "", &name, |namespace| namespace["metadata"]["labels"] = json!({"team": "y"}))
        .await;
    world.dfw().has(&NAMESPACE, "", &name, |copy| copy["metadata"]["labels"]["team"] == "y").await;
}

pub async fn a_namespace_may_ask_to_stay(world: &World) {
    let name = unique("stay");
    world.hub.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"namespace.karmada.io/skip-auto-propagation": "true"}}})).await;
    world.dfw().lacks(&NAMESPACE, "", &name).await;
}

pub async fn a_deleted_namespace_goes_from_members(world: &World) {
    let name = world.namespace().await;
    world.dfw().arrives(&NAMESPACE, "", &name).await;
    world.hub.delete(&NAMESPACE, "", &name).await;
    world.hub.loses(&NAMESPACE, "", &name).await;
    world.dfw().loses(&NAMESPACE, "", &name).await;
}

pub async fn what_a_namespace_held_goes_with_it(world: &World) {
    let name = world.namespace().await;
    world.hub.create(mk_policy(&name, "p", to(&["dfw"]))).await;
    world.hub.create(mk_thing(&name, "a")).await;
    world.dfw().arrives(&THING, &name, "a").await;
    world.hub.delete(&NAMESPACE, "", &name).await;
    world.hub.loses(&NAMESPACE, "", &name).await;
    world.dfw().loses(&NAMESPACE, "", &name).await;
    world.hub.loses(&WORK, "karmada-es-dfw", &polis_federation::names::work("Thing", &name, "a")).await;
}

pub async fn namespaces_of_the_federation_stay_at_home(world: &World) {
    world.hub.arrives(&NAMESPACE, "", "karmada-es-dfw").await;
    world.dfw().lacks(&NAMESPACE, "", "karmada-es-dfw").await;
    let name = unique("kube-own");
    world.hub.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).await;
    world.dfw().lacks(&NAMESPACE, "", &name).await;
}

pub async fn a_namespace_that_a_member_has_already_is_shared(world: &World) {
    let name = unique("both");
    world.dfw().create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"mine": "1"}}})).await;
    world.hub.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"team": "x"}}})).await;
    world.hub.create(mk_policy(&name, "p", to(&["dfw"]))).await;
    world.hub.create(mk_thing(&name, "a")).await;
    world.dfw().arrives(&THING, &name, "a").await;
    world.dfw().has(&NAMESPACE, "", &name, |copy| copy["metadata"]["labels"]["mine"] == "1").await;
}
