//! How things end.

use serde_json::json;

use super::world::*;

fn work(namespace: &str, name: &str) -> String {
    polis_federation::names::work("Thing", namespace, name)
}

pub async fn a_deleted_object_takes_its_copies_with_it(world: &World) {
    let shop = world.namespace().await;
    world.hub.create(mk_policy(&shop, "p", json!({}))).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.dfw().arrives(&THING, &shop, "a").await;
    world.ord().arrives(&THING, &shop, "a").await;
    world.hub.delete(&THING, &shop, "a").await;
    world.dfw().loses(&THING, &shop, "a").await;
    world.ord().loses(&THING, &shop, "a").await;
    world.hub.loses(&BINDING, &shop, "a-thing").await;
    world.hub.loses(&WORK, "karmada-es-dfw", &work(&shop, "a")).await;
}

pub async fn an_object_made_anew_at_once_is_a_new_object_everywhere(world: &World) {
    let shop = world.delivered(&[]).await;
    world.hub.delete(&THING, &shop, "a").await;
    let again = world.hub.create(with(mk_thing(&shop, "a"), "/spec/n", json!(2))).await;
    let uid = again["metadata"]["uid"].clone();
    world
        .dfw()
        .has(&THING, &shop, "a", |copy| {
            copy["metadata"]["annotations"]["resourcetemplate.karmada.io/uid"] == uid
                && copy["spec"]["n"] == 2
        })
        .await;
    world
        .binding(&shop, "a", |binding| {
            binding["spec"]["resource"]["uid"] == uid
                && condition(binding, "FullyApplied")["status"] == "True"
        })
        .await;
}

pub async fn a_member_may_keep_its_copy(world: &World) {
    let shop = world.delivered(&[("/spec/preserveResourcesOnDeletion", json!(true))]).await;
    world.hub.delete(&THING, &shop, "a").await;
    world.hub.loses(&WORK, "karmada-es-dfw", &work(&shop, "a")).await;
    let copy = world
        .dfw()
        .has(&THING, &shop, "a", |copy| copy["metadata"]["labels"].get("karmada.io/managed").is_none())
        .await;
    assert_eq!(copy["metadata"]["annotations"].get("work.karmada.io/name"), None);
    world.dfw().keeps(&THING, &shop, "a", |_| true).await;
}

/// Better than Karmada, where the Work hangs when the copy that is to be kept is gone already.
pub async fn a_copy_to_be_kept_that_is_gone_holds_nothing_up(world: &World) {
    let shop = world.delivered(&[("/spec/preserveResourcesOnDeletion", json!(true))]).await;
    world
        .hub
        .change(&POLICY, &shop, "p", |policy| policy["spec"]["suspension"] = json!({"dispatching": true}))
        .await;
    world
        .hub
        .has(&WORK, "karmada-es-dfw", &work(&shop, "a"), |work| {
            condition(work, "Dispatching")["status"] == "False"
        })
        .await;
    world.dfw().delete(&THING, &shop, "a").await;
    world.dfw().loses(&THING, &shop, "a").await;
    world.hub.delete(&THING, &shop, "a").await;
    world.hub.loses(&WORK, "karmada-es-dfw", &work(&shop, "a")).await;
}

/// Better than Karmada, which forgets a copy as soon as its deletion is accepted.
pub async fn a_copy_that_takes_time_to_go_is_waited_for(world: &World) {
    let shop = world.delivered(&[]).await;
    world
        .dfw()
        .change(&THING, &shop, "a", |copy| copy["metadata"]["finalizers"] = json!(["suite.polis.test/slow"]))
        .await;
    world.hub.delete(&THING, &shop, "a").await;
    world.dfw().has(&THING, &shop, "a", |copy| copy["metadata"]["deletionTimestamp"].is_string()).await;
    world
        .hub
        .keeps(&WORK, "karmada-es-dfw", &work(&shop, "a"), |work| {
            work["metadata"]["deletionTimestamp"].is_string()
        })
        .await;
    world.dfw().change(&THING, &shop, "a", |copy| copy["metadata"]["finalizers"] = json!([])).await;
    world.dfw().loses(&THING, &shop, "a").await;
    world.hub.loses(&WORK, "karmada-es-dfw", &work(&shop, "a")).await;
}

pub async fn a_finalizer_on_the_hub_holds_the_copies_too(world: &World) {
    let shop = world.namespace().await;
    world.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    let mut thing = mk_thing(&shop, "a");
    thing["metadata"]["finalizers"] = json!(["suite.polis.test/hub"]);
    world.hub.create(thing).await;
    world.dfw().arrives(&THING, &shop, "a").await;
    world.hub.delete(&THING, &shop, "a").await;
    world.dfw().keeps(&THING, &shop, "a", |copy| copy["metadata"].get("deletionTimestamp").is_none()).await;
    world.hub.change(&THING, &shop, "a", |thing| thing["metadata"]["finalizers"] = json!([])).await;
    world.dfw().loses(&THING, &shop, "a").await;
}

/// Better than Karmada, where a deleted binding stays away until its object changes.
pub async fn a_deleted_binding_comes_back_with_its_copies(world: &World) {
    let shop = world.delivered(&[]).await;
    let first = world.binding(&shop, "a", |_| true).await;
    world.hub.delete(&BINDING, &shop, "a-thing").await;
    world
        .binding(&shop, "a", |binding| {
            binding["metadata"]["uid"] != first["metadata"]["uid"]
                && condition(binding, "FullyApplied")["status"] == "True"
        })
        .await;
    world.dfw().arrives(&THING, &shop, "a").await;
}

/// Better than Karmada, where a deleted Work stays away until its binding changes.
pub async fn a_work_deleted_by_hand_comes_back(world: &World) {
    let shop = world.delivered(&[]).await;
    let first = world.hub.arrives(&WORK, "karmada-es-dfw", &work(&shop, "a")).await;
    world.hub.delete(&WORK, "karmada-es-dfw", &work(&shop, "a")).await;
    world
        .hub
        .has(&WORK, "karmada-es-dfw", &work(&shop, "a"), |work| {
            work["metadata"]["uid"] != first["metadata"]["uid"]
                && condition(work, "Applied")["status"] == "True"
        })
        .await;
    world.dfw().arrives(&THING, &shop, "a").await;
}

pub async fn the_end_of_one_object_leaves_its_neighbours(world: &World) {
    let shop = world.namespace().await;
    world.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    for name in ["a", "b"] {
        world.hub.create(mk_thing(&shop, name)).await;
        world.dfw().arrives(&THING, &shop, name).await;
    }
    let kept = world.dfw().arrives(&THING, &shop, "b").await;
    world.hub.delete(&THING, &shop, "a").await;
    world.dfw().loses(&THING, &shop, "a").await;
    world.hub.loses(&BINDING, &shop, "a-thing").await;
    world.hub.change(&THING, &shop, "b", |thing| thing["spec"]["n"] = json!(2)).await;
    let copy = world.dfw().has(&THING, &shop, "b", |copy| copy["spec"]["n"] == 2).await;
    assert_eq!(copy["metadata"]["uid"], kept["metadata"]["uid"]);
}

pub async fn a_policy_may_ask_later_that_members_keep_their_copies(world: &World) {
    let shop = world.delivered(&[]).await;
    world
        .hub
        .change(&POLICY, &shop, "p", |policy| policy["spec"]["preserveResourcesOnDeletion"] = json!(true))
        .await;
    world
        .hub
        .has(&WORK, "karmada-es-dfw", &work(&shop, "a"), |work| {
            work["spec"]["preserveResourcesOnDeletion"] == true
        })
        .await;
    world.hub.delete(&THING, &shop, "a").await;
    world.hub.loses(&WORK, "karmada-es-dfw", &work(&shop, "a")).await;
    let kept = world
        .dfw()
        .has(&THING, &shop, "a", |copy| copy["metadata"]["labels"].get("karmada.io/managed").is_none())
        .await;
    assert_eq!(kept["spec"], json!({"n": 1}));
}

pub async fn an_object_and_its_policy_may_go_together(world: &World) {
    let shop = world.delivered(&[]).await;
    world.hub.delete(&THING, &shop, "a").await;
    world.hub.delete(&POLICY, &shop, "p").await;
    world.hub.loses(&POLICY, &shop, "p").await;
    world.dfw().loses(&THING, &shop, "a").await;
    world.hub.loses(&BINDING, &shop, "a-thing").await;
    world.hub.loses(&WORK, "karmada-es-dfw", &work(&shop, "a")).await;
}
