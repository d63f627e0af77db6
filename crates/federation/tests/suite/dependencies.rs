//! What an object needs goes along.

use serde_json::{Value, json};

use super::placement::own_kind;
use super::world::*;

const SCRIPT: &str = "function GetDependencies(obj)
  return {{apiVersion = 'v1', kind = 'ConfigMap', namespace = obj.metadata.namespace, name = obj.spec.needs}}
end";

pub fn mk_config(namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": namespace, "name": name}, "data": {"k": "v"}})
}

/// A kind whose objects need a ConfigMap, and a policy that takes it along.
pub async fn needy(world: &World, placement: Value) -> (polis_federation::planes::Kind, String) {
    let shop = world.namespace().await;
    let (kind, plural) = own_kind(world).await;
    world
        .hub
        .create(json!({
            "apiVersion": "config.karmada.io/v1alpha1", "kind": "ResourceInterpreterCustomization", "metadata": {"name": plural},
            "spec": {
                "target": {"apiVersion": kind.api_version, "kind": kind.kind},
                "customizations": {"dependencyInterpretation": {"luaScript": SCRIPT}},
            },
        }))
        .await;
    let selectors = json!([{"apiVersion": kind.api_version, "kind": kind.kind}]);
    let policy = with(mk_policy(&shop, "p", placement), "/spec/resourceSelectors", selectors);
    world.hub.create(with(policy, "/spec/propagateDeps", json!(true))).await;
    (kind, shop)
}

pub fn mk_object(kind: &polis_federation::planes::Kind, namespace: &str, name: &str, needs: &str) -> Value {
    json!({"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"namespace": namespace, "name": name}, "spec": {"needs": needs}})
}

pub async fn what_an_object_needs_goes_where_it_goes(world: &World) {
    let (kind, shop) = needy(world, to(&["dfw"])).await;
    world.hub.create(mk_config(&shop, "settings")).await;
    world.hub.create(mk_config(&shop, "other")).await;
    world.hub.api.create(&kind, &mk_object(&kind, &shop, "a", "settings")).await.expect("created");
    world.dfw().arrives(&CONFIG_MAP, &shop, "settings").await;
    let binding = world.hub.arrives(&BINDING, &shop, "settings-configmap").await;
    assert_eq!(binding["spec"]["requiredBy"][0]["name"], polis_federation::names::binding(&kind.kind, "a"));
    world.ord().lacks(&CONFIG_MAP, &shop, "settings").await;
    world.dfw().lacks(&CONFIG_MAP, &shop, "other").await;
    // It moves along.
    world.hub.change(&POLICY, &shop, "p", |policy| policy["spec"]["placement"] = to(&["ord"])).await;
    world.ord().arrives(&CONFIG_MAP, &shop, "settings").await;
    world.dfw().loses(&CONFIG_MAP, &shop, "settings").await;
    // Its own changes travel.
    world.hub.change(&CONFIG_MAP, &shop, "settings", |config| config["data"]["k"] = json!("w")).await;
    world.ord().has(&CONFIG_MAP, &shop, "settings", |copy| copy["data"]["k"] == "w").await;
}

pub async fn what_nobody_needs_any_more_goes_from_members(world: &World) {
    let (kind, shop) = needy(world, to(&["dfw"])).await;
    for name in ["one", "two"] {
        world.hub.create(mk_config(&shop, name)).await;
    }
    world.hub.api.create(&kind, &mk_object(&kind, &shop, "a", "one")).await.expect("created");
    world.hub.api.create(&kind, &mk_object(&kind, &shop, "b", "one")).await.expect("created");
    world.dfw().arrives(&CONFIG_MAP, &shop, "one").await;
    world
        .hub
        .has(&BINDING, &shop, "one-configmap", |binding| {
            binding["spec"]["requiredBy"].as_array().is_some_and(|all| all.len() == 2)
        })
        .await;
    world.hub.change(&kind, &shop, "a", |object| object["spec"]["needs"] = json!("two")).await;
    world.dfw().arrives(&CONFIG_MAP, &shop, "two").await;
    world.dfw().keeps(&CONFIG_MAP, &shop, "one", |_| true).await;
    world.hub.delete(&kind, &shop, "b").await;
    world.dfw().loses(&CONFIG_MAP, &shop, "one").await;
    world.dfw().keeps(&CONFIG_MAP, &shop, "two", |_| true).await;
    world.hub.arrives(&CONFIG_MAP, &shop, "one").await;
}

pub async fn what_an_object_needs_may_come_later(world: &World) {
    let (kind, shop) = needy(world, to(&["dfw"])).await;
    world.hub.api.create(&kind, &mk_object(&kind, &shop, "a", "late")).await.expect("created");
    world.dfw().arrives(&kind, &shop, "a").await;
    world.hub.create(mk_config(&shop, "late")).await;
    world.dfw().arrives(&CONFIG_MAP, &shop, "late").await;
}

pub async fn what_an_object_needs_may_have_a_policy_of_its_own(world: &World) {
    let (kind, shop) = needy(world, to(&["dfw"])).await;
    world.hub.create(mk_config(&shop, "settings")).await;
    let selectors = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "settings"}]);
    let own = with(mk_policy(&shop, "own", to(&["ord"])), "/spec/resourceSelectors", selectors);
    world.hub.create(own).await;
    world.ord().arrives(&CONFIG_MAP, &shop, "settings").await;
    world.hub.api.create(&kind, &mk_object(&kind, &shop, "a", "settings")).await.expect("created");
    world.dfw().arrives(&CONFIG_MAP, &shop, "settings").await;
    // It is needed no more, and goes back to where its own policy wants it.
    world.hub.delete(&kind, &shop, "a").await;
    world.dfw().loses(&CONFIG_MAP, &shop, "settings").await;
    world.ord().arrives(&CONFIG_MAP, &shop, "settings").await;
}
