//! Deletion of objects, bindings and Works.

use serde_json::json;

use super::fixture::*;

fn work(namespace: &str, name: &str) -> String {
    polis_federation::names::work("Thing", namespace, name)
}

pub async fn the_copies_of_a_deleted_object_are_deleted(federation: &TestFederation) {
    let shop = federation.namespace().await;
    federation.hub.create(mk_policy(&shop, "p", json!({}))).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.dfw().arrives(&THING, &shop, "a").await;
    federation.ord().arrives(&THING, &shop, "a").await;
    federation.hub.delete(&THING, &shop, "a").await;
    federation.dfw().loses(&THING, &shop, "a").await;
    federation.ord().loses(&THING, &shop, "a").await;
    federation.hub.loses(&BINDING, &shop, "a-thing").await;
    federation.hub.loses(&WORK, "karmada-es-dfw", &work(&shop, "a")).await;
}

pub async fn a_recreated_object_is_a_new_object_on_all_members(federation: &TestFederation) {
    let shop = federation.delivered(&[]).await;
    federation.hub.delete(&THING, &shop, "a").await;
    let again = federation.hub.create(with(mk_thing(&shop, "a"), "/spec/n", json!(2))).await;
    let uid = again["metadata"]["uid"].clone();
    federation
        .dfw()
        .has(&THING, &shop, "a", |copy| {
            copy["metadata"]["annotations"]["resourcetemplate.karmada.io/uid"] == uid
                && copy["spec"]["n"] == 2
        })
        .await;
    federation
        .binding(&shop, "a", |binding| {
            binding["spec"]["resource"]["uid"] == uid
                && condition(binding, "FullyApplied")["status"] == "True"
        })
        .await;
}

pub async fn a_policy_can_preserve_copies(federation: &TestFederation) {
    let shop = federation.delivered(&[("/spec/preserveResourcesOnDeletion", json!(true))]).await;
    federation.hub.delete(&THING, &shop, "a").await;
    federation.hub.loses(&WORK, "karmada-es-dfw", &work(&shop, "a")).await;
    let copy = federation
        .dfw()
        .has(&THING, &shop, "a", |copy| copy["metadata"]["labels"].get("karmada.io/managed").is_none())
        .await;
    assert_eq!(copy["metadata"]["annotations"].get("work.karmada.io/name"), None);
    federation.dfw().keeps(&THING, &shop, "a", |_| true).await;
}

/// Embedded only: in Karmada the Work is never deleted if the preserved copy no longer exists.
pub async fn a_missing_preserved_copy_does_not_block_the_deletion(federation: &TestFederation) {
    let shop = federation.delivered(&[("/spec/preserveResourcesOnDeletion", json!(true))]).await;
    federation
        .hub
        .change(&POLICY, &shop, "p", |policy| policy["spec"]["suspension"] = json!({"dispatching": true}))
        .await;
    federation
        .hub
        .has(&WORK, "karmada-es-dfw", &work(&shop, "a"), |work| {
            condition(work, "Dispatching")["status"] == "False"
        })
        .await;
    federation.dfw().delete(&THING, &shop, "a").await;
    federation.dfw().loses(&THING, &shop, "a").await;
    federation.hub.delete(&THING, &shop, "a").await;
    federation.hub.loses(&WORK, "karmada-es-dfw", &work(&shop, "a")).await;
}

/// Embedded only: Karmada deletes the Work as soon as the deletion of the copy is accepted.
pub async fn the_deletion_of_a_copy_is_awaited(federation: &TestFederation) {
    let shop = federation.delivered(&[]).await;
    federation
        .dfw()
        .change(&THING, &shop, "a", |copy| copy["metadata"]["finalizers"] = json!(["suite.polis.test/slow"]))
        .await;
    federation.hub.delete(&THING, &shop, "a").await;
    federation.dfw().has(&THING, &shop, "a", |copy| copy["metadata"]["deletionTimestamp"].is_string()).await;
    federation
        .hub
        .keeps(&WORK, "karmada-es-dfw", &work(&shop, "a"), |work| {
            work["metadata"]["deletionTimestamp"].is_string()
        })
        .await;
    federation.dfw().change(&THING, &shop, "a", |copy| copy["metadata"]["finalizers"] = json!([])).await;
    federation.dfw().loses(&THING, &shop, "a").await;
    federation.hub.loses(&WORK, "karmada-es-dfw", &work(&shop, "a")).await;
}

pub async fn a_finalizer_on_the_hub_object_delays_the_deletion_of_copies(federation: &TestFederation) {
    let shop = federation.namespace().await;
    federation.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    let mut thing = mk_thing(&shop, "a");
    thing["metadata"]["finalizers"] = json!(["suite.polis.test/hub"]);
    federation.hub.create(thing).await;
    federation.dfw().arrives(&THING, &shop, "a").await;
    federation.hub.delete(&THING, &shop, "a").await;
    federation
        .dfw()
        .keeps(&THING, &shop, "a", |copy| copy["metadata"].get("deletionTimestamp").is_none())
        .await;
    federation.hub.change(&THING, &shop, "a", |thing| thing["metadata"]["finalizers"] = json!([])).await;
    federation.dfw().loses(&THING, &shop, "a").await;
}

/// Embedded only: Karmada does not create a deleted binding again until its object changes.
pub async fn a_deleted_binding_is_created_again(federation: &TestFederation) {
    let shop = federation.delivered(&[]).await;
    let first = federation.binding(&shop, "a", |_| true).await;
    federation.hub.delete(&BINDING, &shop, "a-thing").await;
    federation
        .binding(&shop, "a", |binding| {
            binding["metadata"]["uid"] != first["metadata"]["uid"]
                && condition(binding, "FullyApplied")["status"] == "True"
        })
        .await;
    federation.dfw().arrives(&THING, &shop, "a").await;
}

/// Embedded only: Karmada does not create a deleted Work again until its binding changes.
pub async fn a_deleted_work_is_created_again(federation: &TestFederation) {
    let shop = federation.delivered(&[]).await;
    let first = federation.hub.arrives(&WORK, "karmada-es-dfw", &work(&shop, "a")).await;
    federation.hub.delete(&WORK, "karmada-es-dfw", &work(&shop, "a")).await;
    federation
        .hub
        .has(&WORK, "karmada-es-dfw", &work(&shop, "a"), |work| {
            work["metadata"]["uid"] != first["metadata"]["uid"]
                && condition(work, "Applied")["status"] == "True"
        })
        .await;
    federation.dfw().arrives(&THING, &shop, "a").await;
}

pub async fn a_deletion_does_not_affect_other_objects(federation: &TestFederation) {
    let shop = federation.namespace().await;
    federation.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    for name in ["a", "b"] {
        federation.hub.create(mk_thing(&shop, name)).await;
        federation.dfw().arrives(&THING, &shop, name).await;
    }
    let kept = federation.dfw().arrives(&THING, &shop, "b").await;
    federation.hub.delete(&THING, &shop, "a").await;
    federation.dfw().loses(&THING, &shop, "a").await;
    federation.hub.loses(&BINDING, &shop, "a-thing").await;
    federation.hub.change(&THING, &shop, "b", |thing| thing["spec"]["n"] = json!(2)).await;
    let copy = federation.dfw().has(&THING, &shop, "b", |copy| copy["spec"]["n"] == 2).await;
    assert_eq!(copy["metadata"]["uid"], kept["metadata"]["uid"]);
}

pub async fn copies_can_be_preserved_by_a_later_policy_change(federation: &TestFederation) {
    let shop = federation.delivered(&[]).await;
    federation
        .hub
        .change(&POLICY, &shop, "p", |policy| policy["spec"]["preserveResourcesOnDeletion"] = json!(true))
        .await;
    federation
        .hub
        .has(&WORK, "karmada-es-dfw", &work(&shop, "a"), |work| {
            work["spec"]["preserveResourcesOnDeletion"] == true
        })
        .await;
    federation.hub.delete(&THING, &shop, "a").await;
    federation.hub.loses(&WORK, "karmada-es-dfw", &work(&shop, "a")).await;
    let kept = federation
        .dfw()
        .has(&THING, &shop, "a", |copy| copy["metadata"]["labels"].get("karmada.io/managed").is_none())
        .await;
    assert_eq!(kept["spec"], json!({"n": 1}));
}

pub async fn an_object_and_its_policy_can_be_deleted_together(federation: &TestFederation) {
    let shop = federation.delivered(&[]).await;
    federation.hub.delete(&THING, &shop, "a").await;
    federation.hub.delete(&POLICY, &shop, "p").await;
    federation.hub.loses(&POLICY, &shop, "p").await;
    federation.dfw().loses(&THING, &shop, "a").await;
    federation.hub.loses(&BINDING, &shop, "a-thing").await;
    federation.hub.loses(&WORK, "karmada-es-dfw", &work(&shop, "a")).await;
}
