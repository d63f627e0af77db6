//! What members say, and where it can be read.

use serde_json::{Value, json};

use super::placement::own_kind;
use super::world::*;

pub fn mk_scripts(kind: &polis_federation::planes::Kind, rules: Value) -> Value {
    json!({
        "apiVersion": "config.karmada.io/v1alpha1", "kind": "ResourceInterpreterCustomization", "metadata": {"name": kind.plural},
        "spec": {"target": {"apiVersion": kind.api_version, "kind": kind.kind}, "customizations": rules},
    })
}

/// An object of a kind of its own, on both members, with a policy that sends it there.
async fn spread_object(
    world: &World,
    rules: Option<Value>,
) -> (polis_federation::planes::Kind, String, String) {
    let shop = world.namespace().await;
    let (kind, _) = own_kind(world).await;
    if let Some(rules) = rules {
        world.hub.create(mk_scripts(&kind, rules)).await;
    }
    let selectors = json!([{"apiVersion": kind.api_version, "kind": kind.kind}]);
    world.hub.create(with(mk_policy(&shop, "p", json!({})), "/spec/resourceSelectors", selectors)).await;
    let object = json!({"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"namespace": shop, "name": "a"}, "spec": {"n": 1}});
    world.hub.api.create(&kind, &object).await.expect("created");
    world.dfw().arrives(&kind, &shop, "a").await;
    world.ord().arrives(&kind, &shop, "a").await;
    let binding = polis_federation::names::binding(&kind.kind, "a");
    (kind, shop, binding)
}

pub async fn a_binding_tells_what_each_member_says(world: &World) {
    let (kind, shop, binding) = spread_object(world, None).await;
    world.dfw().set_status(&kind, &shop, "a", json!({"ready": 1})).await;
    world.ord().set_status(&kind, &shop, "a", json!({"ready": 2})).await;
    let told = |binding: &Value| {
        let items = &binding["status"]["aggregatedStatus"];
        items[0]["clusterName"] == "dfw"
            && items[0]["status"]["ready"] == 1
            && items[1]["status"]["ready"] == 2
    };
    let binding = world.hub.has(&BINDING, &shop, &binding, told).await;
    assert_eq!(binding["status"]["aggregatedStatus"][0]["applied"], true);
    assert_eq!(binding["status"]["aggregatedStatus"][0]["health"], "Healthy");
    assert_eq!(condition(&binding, "FullyApplied")["status"], "True");
    assert_eq!(condition(&binding, "Scheduled")["status"], "True");
}

pub async fn without_a_script_the_object_itself_says_nothing(world: &World) {
    let (kind, shop, binding) = spread_object(world, None).await;
    world.dfw().set_status(&kind, &shop, "a", json!({"ready": 1})).await;
    world
        .hub
        .has(&BINDING, &shop, &binding, |binding| {
            binding["status"]["aggregatedStatus"][0]["status"]["ready"] == 1
        })
        .await;
    world.hub.keeps(&kind, &shop, "a", |object| object.get("status").is_none()).await;
}

pub const SUM: &str = "function AggregateStatus(desired, items)
  local total = 0
  for i = 1, #items do
    if items[i].status ~= nil and items[i].status.ready ~= nil then total = total + items[i].status.ready end
  end
  desired.status = {ready = total}
  return desired
end";

pub async fn a_script_adds_the_members_up_and_follows_them(world: &World) {
    let (kind, shop, _) = spread_object(world, Some(json!({"statusAggregation": {"luaScript": SUM}}))).await;
    world.dfw().set_status(&kind, &shop, "a", json!({"ready": 1})).await;
    world.hub.has(&kind, &shop, "a", |object| object["status"]["ready"] == 1).await;
    world.ord().set_status(&kind, &shop, "a", json!({"ready": 2})).await;
    world.hub.has(&kind, &shop, "a", |object| object["status"]["ready"] == 3).await;
    world.dfw().set_status(&kind, &shop, "a", json!({"ready": 5})).await;
    world.hub.has(&kind, &shop, "a", |object| object["status"]["ready"] == 7).await;
}

pub async fn a_status_on_the_hub_does_not_come_to_members(world: &World) {
    let (kind, shop, _) = spread_object(world, Some(json!({"statusAggregation": {"luaScript": SUM}}))).await;
    world.dfw().set_status(&kind, &shop, "a", json!({"ready": 1})).await;
    world.hub.has(&kind, &shop, "a", |object| object["status"]["ready"] == 1).await;
    world.ord().keeps(&kind, &shop, "a", |copy| copy.get("status").is_none()).await;
}

pub async fn a_script_chooses_what_is_carried_back(world: &World) {
    let reflect = "function ReflectStatus(obj) local s = {} if obj.status ~= nil then s.ready = obj.status.ready end s.seen = true return s end";
    let (kind, shop, binding) =
        spread_object(world, Some(json!({"statusReflection": {"luaScript": reflect}}))).await;
    world.dfw().set_status(&kind, &shop, "a", json!({"ready": 1, "secret": "no"})).await;
    world
        .hub
        .has(&BINDING, &shop, &binding, |binding| {
            binding["status"]["aggregatedStatus"][0]["status"] == json!({"ready": 1, "seen": true})
        })
        .await;
}

pub async fn a_script_tells_whether_a_copy_is_well(world: &World) {
    let health = "function InterpretHealth(obj) return obj.status ~= nil and obj.status.ready == 1 end";
    let (kind, shop, binding) =
        spread_object(world, Some(json!({"healthInterpretation": {"luaScript": health}}))).await;
    world.dfw().set_status(&kind, &shop, "a", json!({"ready": 1})).await;
    world.ord().set_status(&kind, &shop, "a", json!({"ready": 0})).await;
    let told = |binding: &Value| {
        let items = &binding["status"]["aggregatedStatus"];
        items[0]["health"] == "Healthy" && items[1]["health"] == "Unhealthy"
    };
    world.hub.has(&BINDING, &shop, &binding, told).await;
}

pub async fn a_script_keeps_what_the_member_decides(world: &World) {
    let retain =
        "function Retain(desired, observed) desired.spec.paused = observed.spec.paused return desired end";
    let (kind, shop, _) = spread_object(world, Some(json!({"retention": {"luaScript": retain}}))).await;
    world.dfw().change(&kind, &shop, "a", |copy| copy["spec"]["paused"] = json!(true)).await;
    world.hub.change(&kind, &shop, "a", |object| object["spec"]["n"] = json!(2)).await;
    let copy = world.dfw().has(&kind, &shop, "a", |copy| copy["spec"]["n"] == 2).await;
    assert_eq!(copy["spec"]["paused"], true);
    world.dfw().keeps(&kind, &shop, "a", |copy| copy["spec"]["paused"] == true).await;
}

const MIRROR: &str = "function AggregateStatus(desired, items)
  for i = 1, #items do
    if items[i].status ~= nil then desired.status = items[i].status end
  end
  return desired
end";

/// Better than Karmada, where lists and maps that are empty vanish on the way.
pub async fn the_whole_status_of_a_member_comes_to_the_hub_with_its_empty_lists(world: &World) {
    let (kind, shop, _) =
        spread_object(world, Some(json!({"statusAggregation": {"luaScript": MIRROR}}))).await;
    let status = json!({"ready": 1, "conditions": [], "nested": {"map": {}, "list": []}});
    world.dfw().set_status(&kind, &shop, "a", status.clone()).await;
    world.hub.has(&kind, &shop, "a", |object| object["status"] == status).await;
}

/// Better than Karmada, where a script has no effect before the next event of each object.
pub async fn a_script_that_comes_later_is_applied_to_what_is_there(world: &World) {
    let (kind, shop, binding) = spread_object(world, None).await;
    world.dfw().set_status(&kind, &shop, "a", json!({"ready": 4})).await;
    world
        .hub
        .has(&BINDING, &shop, &binding, |binding| {
            binding["status"]["aggregatedStatus"][0]["status"]["ready"] == 4
        })
        .await;
    world.hub.create(mk_scripts(&kind, json!({"statusAggregation": {"luaScript": SUM}}))).await;
    world.hub.has(&kind, &shop, "a", |object| object["status"]["ready"] == 4).await;
    let doubled = SUM.replace("ready = total", "ready = total * 2");
    world
        .hub
        .change(&SCRIPTS, "", &kind.plural, |scripts| {
            scripts["spec"]["customizations"]["statusAggregation"]["luaScript"] = json!(doubled)
        })
        .await;
    world.hub.has(&kind, &shop, "a", |object| object["status"]["ready"] == 8).await;
}

/// Better than Karmada, where a script that fails is silent.
pub async fn a_script_that_fails_is_named_and_stops_nothing_else(world: &World) {
    let broken = "function AggregateStatus(desired, items) error('no idea') end";
    let (kind, shop, binding) =
        spread_object(world, Some(json!({"statusAggregation": {"luaScript": broken}}))).await;
    let said = |binding: &Value| {
        let interpreted = condition(binding, "Interpreted");
        interpreted["status"] == "False"
            && interpreted["message"].as_str().is_some_and(|message| message.contains("no idea"))
    };
    world.hub.has(&BINDING, &shop, &binding, said).await;
    world.hub.change(&kind, &shop, "a", |object| object["spec"]["n"] = json!(2)).await;
    world.dfw().has(&kind, &shop, "a", |copy| copy["spec"]["n"] == 2).await;
    world.dfw().set_status(&kind, &shop, "a", json!({"ready": 1})).await;
    world
        .hub
        .has(&BINDING, &shop, &binding, |binding| {
            binding["status"]["aggregatedStatus"][0]["status"]["ready"] == 1
        })
        .await;
    world
        .hub
        .change(&SCRIPTS, "", &kind.plural, |scripts| {
            scripts["spec"]["customizations"]["statusAggregation"]["luaScript"] = json!(SUM)
        })
        .await;
    world
        .hub
        .has(&BINDING, &shop, &binding, |binding| condition(binding, "Interpreted")["status"] == "True")
        .await;
    world.hub.has(&kind, &shop, "a", |object| object["status"]["ready"] == 1).await;
}

/// Better than Karmada, which waits a second for each call of such a script and says nothing.
pub async fn a_script_that_never_ends_is_stopped_and_named(world: &World) {
    let endless = "function AggregateStatus(desired, items) while true do end end";
    let (_, shop, binding) =
        spread_object(world, Some(json!({"statusAggregation": {"luaScript": endless}}))).await;
    world
        .hub
        .has(&BINDING, &shop, &binding, |binding| {
            condition(binding, "Interpreted")["message"]
                .as_str()
                .is_some_and(|message| message.contains("endless"))
        })
        .await;
}

pub async fn a_member_that_an_object_has_left_is_no_longer_told_of(world: &World) {
    let shop = world.namespace().await;
    world.hub.create(mk_policy(&shop, "p", to(&["dfw", "ord"]))).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    let told = |binding: &Value| {
        let items = binding["status"]["aggregatedStatus"].as_array().into_iter().flatten();
        items.map(|item| item["clusterName"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    world.binding(&shop, "a", |binding| told(binding) == ["dfw", "ord"]).await;
    world.hub.change(&POLICY, &shop, "p", |policy| policy["spec"]["placement"] = to(&["ord"])).await;
    let binding = world.binding(&shop, "a", |binding| told(binding) == ["ord"]).await;
    assert_eq!(condition(&binding, "FullyApplied")["status"], "True");
}

pub async fn a_script_for_a_kind_that_nobody_has_harms_nothing(world: &World) {
    let shop = world.namespace().await;
    let kind = super::placement::mk_own_kind();
    world.hub.create(mk_scripts(&kind, json!({"statusAggregation": {"luaScript": SUM}}))).await;
    world.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.dfw().arrives(&THING, &shop, "a").await;
    world.hub.delete(&SCRIPTS, "", &kind.plural).await;
    world.hub.loses(&SCRIPTS, "", &kind.plural).await;
}
