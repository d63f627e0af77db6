//! Lives that a federation may end in at any write. Each says how it must end, whatever happened on the way.

use std::pin::Pin;

use serde_json::{Value, json};

use crate::suite::dependencies::{mk_config, mk_object, needy};
use crate::suite::world::*;

/// What happens in a world, from the first write to the end that is always the same.
pub type Life = for<'a> fn(&'a World) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// All but the plain life of an object.
pub const OTHERS: [(&str, Life); 4] = [
    ("a member that leaves", of_a_member_that_leaves),
    ("what an object needs", of_what_an_object_needs),
    ("an object that is held back", of_an_object_that_is_held_back),
    ("a copy that is kept", of_a_copy_that_is_kept),
];

fn work(namespace: &str, name: &str) -> String {
    polis_federation::names::work("Thing", namespace, name)
}

fn is_unmarked(object: &Value) -> bool {
    object["metadata"]["annotations"].get("propagationpolicy.karmada.io/name").is_none()
}

/// Nothing is left of an object, anywhere.
async fn nothing_is_left(world: &World, namespace: &str, name: &str) {
    world.hub.loses(&BINDING, namespace, &format!("{name}-thing")).await;
    for member in ["dfw", "ord"] {
        world.hub.loses(&WORK, &format!("karmada-es-{member}"), &work(namespace, name)).await;
        world.member(member).loses(&THING, namespace, name).await;
    }
}

/// Made, changed, moved, deleted; its policy as well.
pub fn of_an_object(world: &World) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
    Box::pin(async move {
        let shop = world.namespace().await;
        world.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
        world.hub.create(mk_thing(&shop, "a")).await;
        world.hub.create(mk_thing(&shop, "stays")).await;
        world.dfw().arrives(&THING, &shop, "a").await;
        world.hub.change(&THING, &shop, "a", |thing| thing["spec"]["n"] = json!(2)).await;
        world.dfw().has(&THING, &shop, "a", |copy| copy["spec"]["n"] == 2).await;
        world.hub.change(&POLICY, &shop, "p", |policy| policy["spec"]["placement"] = to(&["ord"])).await;
        world.ord().has(&THING, &shop, "a", |copy| copy["spec"]["n"] == 2).await;
        world.dfw().loses(&THING, &shop, "a").await;
        world.hub.delete(&THING, &shop, "a").await;
        world.ord().loses(&THING, &shop, "a").await;
        world.hub.delete(&POLICY, &shop, "p").await;
        world.hub.loses(&POLICY, &shop, "p").await;

        nothing_is_left(world, &shop, "a").await;
        world.ord().arrives(&THING, &shop, "stays").await;
        world.dfw().loses(&THING, &shop, "stays").await;
        world.hub.has(&THING, &shop, "stays", is_unmarked).await;
        let released =
            |binding: &Value| is_unmarked(binding) && names(&binding["spec"]["clusters"]) == ["ord"];
        world.binding(&shop, "stays", released).await;
    })
}

/// It is drained of what it had; what else there is stays.
fn of_a_member_that_leaves(world: &World) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
    Box::pin(async move {
        let shop = world.namespace().await;
        world.hub.create(mk_policy(&shop, "p", json!({}))).await;
        for name in ["a", "b"] {
            world.hub.create(mk_thing(&shop, name)).await;
            world.ord().arrives(&THING, &shop, name).await;
        }
        world.hub.delete(&CLUSTER, "", "ord").await;
        world.hub.loses(&CLUSTER, "", "ord").await;
        world.hub.delete(&THING, &shop, "b").await;

        nothing_is_left(world, &shop, "b").await;
        world.hub.loses(&NAMESPACE, "", "karmada-es-ord").await;
        world.ord().loses(&THING, &shop, "a").await;
        world.dfw().arrives(&THING, &shop, "a").await;
        world.binding(&shop, "a", |binding| names(&binding["spec"]["clusters"]) == ["dfw"]).await;
    })
}

/// It goes along, moves along and is taken back; on the hub it stays.
fn of_what_an_object_needs(world: &World) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
    Box::pin(async move {
        let (kind, shop) = needy(world, to(&["dfw"])).await;
        world.hub.create(mk_config(&shop, "settings")).await;
        world.hub.api.create(&kind, &mk_object(&kind, &shop, "a", "settings")).await.expect("created");
        world.dfw().arrives(&CONFIG_MAP, &shop, "settings").await;
        world.hub.change(&POLICY, &shop, "p", |policy| policy["spec"]["placement"] = to(&["ord"])).await;
        world.ord().arrives(&CONFIG_MAP, &shop, "settings").await;
        world.hub.delete(&kind, &shop, "a").await;

        world.hub.loses(&BINDING, &shop, &polis_federation::names::binding(&kind.kind, "a")).await;
        world.hub.loses(&BINDING, &shop, "settings-configmap").await;
        for member in [world.dfw(), world.ord()] {
            member.loses(&kind, &shop, "a").await;
            member.loses(&CONFIG_MAP, &shop, "settings").await;
        }
        world.hub.arrives(&CONFIG_MAP, &shop, "settings").await;
    })
}

/// Held back from the start, let go, held back again and deleted.
fn of_an_object_that_is_held_back(world: &World) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
    Box::pin(async move {
        let shop = world.namespace().await;
        let suspend = async |on: bool| {
            let change = move |policy: &mut Value| policy["spec"]["suspension"] = json!({"dispatching": on});
            world.hub.change(&POLICY, &shop, "p", change).await;
            let heard = move |work: &Value| work["spec"]["suspendDispatching"] == on;
            world.hub.has(&WORK, "karmada-es-dfw", &work(&shop, "a"), heard).await;
        };
        let policy = mk_policy(&shop, "p", to(&["dfw"]));
        world.hub.create(with(policy, "/spec/suspension", json!({"dispatching": true}))).await;
        world.hub.create(mk_thing(&shop, "a")).await;
        let held = |work: &Value| condition(work, "Dispatching")["status"] == "False";
        world.hub.has(&WORK, "karmada-es-dfw", &work(&shop, "a"), held).await;
        assert_eq!(world.dfw().get(&THING, &shop, "a").await, None);
        suspend(false).await;
        world.dfw().arrives(&THING, &shop, "a").await;
        suspend(true).await;
        world.hub.change(&THING, &shop, "a", |thing| thing["spec"]["n"] = json!(2)).await;
        world.hub.delete(&THING, &shop, "a").await;

        nothing_is_left(world, &shop, "a").await;
    })
}

/// The hub lets it go, the member keeps it, and it bears no mark of us any more.
fn of_a_copy_that_is_kept(world: &World) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
    Box::pin(async move {
        let shop = world.namespace().await;
        let policy = mk_policy(&shop, "p", to(&["dfw", "ord"]));
        world.hub.create(with(policy, "/spec/preserveResourcesOnDeletion", json!(true))).await;
        world.hub.create(mk_thing(&shop, "a")).await;
        for member in [world.dfw(), world.ord()] {
            member.arrives(&THING, &shop, "a").await;
        }
        world.hub.delete(&THING, &shop, "a").await;

        world.hub.loses(&BINDING, &shop, "a-thing").await;
        for member in ["dfw", "ord"] {
            world.hub.loses(&WORK, &format!("karmada-es-{member}"), &work(&shop, "a")).await;
            let free = |copy: &Value| {
                copy["metadata"]["labels"].get("karmada.io/managed").is_none()
                    && copy["metadata"].get("deletionTimestamp").is_none()
            };
            world.member(member).has(&THING, &shop, "a", free).await;
        }
    })
}
