//! Status of members on bindings and hub objects.

use serde_json::{Value, json};

use super::fixture::*;
use super::placement::install_own_kind;

pub fn mk_scripts(kind: &Kind, rules: Value) -> Value {
    json!({
        "apiVersion": "config.karmada.io/v1alpha1", "kind": "ResourceInterpreterCustomization", "metadata": {"name": kind.plural},
        "spec": {"target": {"apiVersion": kind.api_version(), "kind": kind.kind}, "customizations": rules},
    })
}

/// Creates an object of a new kind and propagates it to both members.
async fn spread_object(federation: &TestFederation, rules: Option<Value>) -> (Kind, String, String) {
    let shop = federation.namespace().await;
    let (kind, _) = install_own_kind(federation).await;
    if let Some(rules) = rules {
        federation.hub.create(mk_scripts(&kind, rules)).await;
    }
    let selectors = json!([{"apiVersion": kind.api_version(), "kind": kind.kind}]);
    federation.hub.create(with(mk_policy(&shop, "p", json!({})), "/spec/resourceSelectors", selectors)).await;
    let object = json!({"apiVersion": kind.api_version(), "kind": kind.kind, "metadata": {"namespace": shop, "name": "a"}, "spec": {"n": 1}});
    federation.hub.api.create(&kind, &object).await.expect("created");
    federation.dfw().arrives(&kind, &shop, "a").await;
    federation.ord().arrives(&kind, &shop, "a").await;
    let binding = polis_federation::names::binding(&kind.kind, "a");
    (kind, shop, binding)
}

pub async fn a_binding_reports_the_status_of_each_member(federation: &TestFederation) {
    let (kind, shop, binding) = spread_object(federation, None).await;
    federation.dfw().set_status(&kind, &shop, "a", json!({"ready": 1})).await;
    federation.ord().set_status(&kind, &shop, "a", json!({"ready": 2})).await;
    let reported = |binding: &Value| {
        let items = &binding["status"]["aggregatedStatus"];
        items[0]["clusterName"] == "dfw"
            && items[0]["status"]["ready"] == 1
            && items[1]["status"]["ready"] == 2
    };
    let binding = federation.hub.has(&BINDING, &shop, &binding, reported).await;
    assert_eq!(binding["status"]["aggregatedStatus"][0]["applied"], true);
    assert_eq!(binding["status"]["aggregatedStatus"][0]["health"], "Healthy");
    assert_eq!(condition(&binding, "FullyApplied")["status"], "True");
    assert_eq!(condition(&binding, "Scheduled")["status"], "True");
}

pub async fn without_a_script_the_hub_object_gets_no_status(federation: &TestFederation) {
    let (kind, shop, binding) = spread_object(federation, None).await;
    federation.dfw().set_status(&kind, &shop, "a", json!({"ready": 1})).await;
    federation
        .hub
        .has(&BINDING, &shop, &binding, |binding| {
            binding["status"]["aggregatedStatus"][0]["status"]["ready"] == 1
        })
        .await;
    federation.hub.keeps(&kind, &shop, "a", |object| object.get("status").is_none()).await;
}

pub const SUM: &str = "function AggregateStatus(desired, items)
  local total = 0
  for i = 1, #items do
    if items[i].status ~= nil and items[i].status.ready ~= nil then total = total + items[i].status.ready end
  end
  desired.status = {ready = total}
  return desired
end";

pub async fn a_script_aggregates_the_status_of_the_members(federation: &TestFederation) {
    let (kind, shop, _) =
        spread_object(federation, Some(json!({"statusAggregation": {"luaScript": SUM}}))).await;
    federation.dfw().set_status(&kind, &shop, "a", json!({"ready": 1})).await;
    federation.hub.has(&kind, &shop, "a", |object| object["status"]["ready"] == 1).await;
    federation.ord().set_status(&kind, &shop, "a", json!({"ready": 2})).await;
    federation.hub.has(&kind, &shop, "a", |object| object["status"]["ready"] == 3).await;
    federation.dfw().set_status(&kind, &shop, "a", json!({"ready": 5})).await;
    federation.hub.has(&kind, &shop, "a", |object| object["status"]["ready"] == 7).await;
}

pub async fn the_status_of_the_hub_object_is_not_propagated(federation: &TestFederation) {
    let (kind, shop, _) =
        spread_object(federation, Some(json!({"statusAggregation": {"luaScript": SUM}}))).await;
    federation.dfw().set_status(&kind, &shop, "a", json!({"ready": 1})).await;
    federation.hub.has(&kind, &shop, "a", |object| object["status"]["ready"] == 1).await;
    federation.ord().keeps(&kind, &shop, "a", |copy| copy.get("status").is_none()).await;
}

pub async fn a_script_selects_the_reflected_status(federation: &TestFederation) {
    let reflect = "function ReflectStatus(obj) local s = {} if obj.status ~= nil then s.ready = obj.status.ready end s.seen = true return s end";
    let (kind, shop, binding) =
        spread_object(federation, Some(json!({"statusReflection": {"luaScript": reflect}}))).await;
    federation.dfw().set_status(&kind, &shop, "a", json!({"ready": 1, "secret": "no"})).await;
    federation
        .hub
        .has(&BINDING, &shop, &binding, |binding| {
            binding["status"]["aggregatedStatus"][0]["status"] == json!({"ready": 1, "seen": true})
        })
        .await;
}

pub async fn a_script_interprets_the_health_of_a_copy(federation: &TestFederation) {
    let health = "function InterpretHealth(obj) return obj.status ~= nil and obj.status.ready == 1 end";
    let (kind, shop, binding) =
        spread_object(federation, Some(json!({"healthInterpretation": {"luaScript": health}}))).await;
    federation.dfw().set_status(&kind, &shop, "a", json!({"ready": 1})).await;
    federation.ord().set_status(&kind, &shop, "a", json!({"ready": 0})).await;
    let reported = |binding: &Value| {
        let items = &binding["status"]["aggregatedStatus"];
        items[0]["health"] == "Healthy" && items[1]["health"] == "Unhealthy"
    };
    federation.hub.has(&BINDING, &shop, &binding, reported).await;
}

pub async fn a_script_retains_fields_of_the_member(federation: &TestFederation) {
    let retain =
        "function Retain(desired, observed) desired.spec.paused = observed.spec.paused return desired end";
    let (kind, shop, _) = spread_object(federation, Some(json!({"retention": {"luaScript": retain}}))).await;
    federation.dfw().change(&kind, &shop, "a", |copy| copy["spec"]["paused"] = json!(true)).await;
    federation.hub.change(&kind, &shop, "a", |object| object["spec"]["n"] = json!(2)).await;
    let copy = federation.dfw().has(&kind, &shop, "a", |copy| copy["spec"]["n"] == 2).await;
    assert_eq!(copy["spec"]["paused"], true);
    federation.dfw().keeps(&kind, &shop, "a", |copy| copy["spec"]["paused"] == true).await;
}

const MIRROR: &str = "function AggregateStatus(desired, items)
  for i = 1, #items do
    if items[i].status ~= nil then desired.status = items[i].status end
  end
  return desired
end";

/// Embedded only: Karmada drops empty lists and maps.
pub async fn empty_lists_and_maps_survive_status_aggregation(federation: &TestFederation) {
    let (kind, shop, _) =
        spread_object(federation, Some(json!({"statusAggregation": {"luaScript": MIRROR}}))).await;
    let status = json!({"ready": 1, "conditions": [], "nested": {"map": {}, "list": []}});
    federation.dfw().set_status(&kind, &shop, "a", status.clone()).await;
    federation.hub.has(&kind, &shop, "a", |object| object["status"] == status).await;
}

/// Embedded only: in Karmada a new script takes effect on the next event of each object.
pub async fn a_new_script_is_applied_to_existing_objects(federation: &TestFederation) {
    let (kind, shop, binding) = spread_object(federation, None).await;
    federation.dfw().set_status(&kind, &shop, "a", json!({"ready": 4})).await;
    federation
        .hub
        .has(&BINDING, &shop, &binding, |binding| {
            binding["status"]["aggregatedStatus"][0]["status"]["ready"] == 4
        })
        .await;
    federation.hub.create(mk_scripts(&kind, json!({"statusAggregation": {"luaScript": SUM}}))).await;
    federation.hub.has(&kind, &shop, "a", |object| object["status"]["ready"] == 4).await;
    let doubled = SUM.replace("ready = total", "ready = total * 2");
    federation
        .hub
        .change(&SCRIPTS, "", &kind.plural, |scripts| {
            scripts["spec"]["customizations"]["statusAggregation"]["luaScript"] = json!(doubled)
        })
        .await;
    federation.hub.has(&kind, &shop, "a", |object| object["status"]["ready"] == 8).await;
}

/// Embedded only: Karmada does not report a failing script.
pub async fn a_failing_script_is_reported_and_stops_nothing_else(federation: &TestFederation) {
    let broken = "function AggregateStatus(desired, items) error('no idea') end";
    let (kind, shop, binding) =
        spread_object(federation, Some(json!({"statusAggregation": {"luaScript": broken}}))).await;
    let reported = |binding: &Value| {
        let interpreted = condition(binding, "Interpreted");
        interpreted["status"] == "False"
            && interpreted["message"].as_str().is_some_and(|message| message.contains("no idea"))
    };
    federation.hub.has(&BINDING, &shop, &binding, reported).await;
    federation.hub.change(&kind, &shop, "a", |object| object["spec"]["n"] = json!(2)).await;
    federation.dfw().has(&kind, &shop, "a", |copy| copy["spec"]["n"] == 2).await;
    federation.dfw().set_status(&kind, &shop, "a", json!({"ready": 1})).await;
    federation
        .hub
        .has(&BINDING, &shop, &binding, |binding| {
            binding["status"]["aggregatedStatus"][0]["status"]["ready"] == 1
        })
        .await;
    federation
        .hub
        .change(&SCRIPTS, "", &kind.plural, |scripts| {
            scripts["spec"]["customizations"]["statusAggregation"]["luaScript"] = json!(SUM)
        })
        .await;
    federation
        .hub
        .has(&BINDING, &shop, &binding, |binding| condition(binding, "Interpreted")["status"] == "True")
        .await;
    federation.hub.has(&kind, &shop, "a", |object| object["status"]["ready"] == 1).await;
}

/// Embedded only: Karmada waits a second for each call of such a script and does not report it.
pub async fn an_endless_script_is_stopped_and_reported(federation: &TestFederation) {
    let endless = "function AggregateStatus(desired, items) while true do end end";
    let (_, shop, binding) =
        spread_object(federation, Some(json!({"statusAggregation": {"luaScript": endless}}))).await;
    federation
        .hub
        .has(&BINDING, &shop, &binding, |binding| {
            condition(binding, "Interpreted")["message"]
                .as_str()
                .is_some_and(|message| message.contains("endless"))
        })
        .await;
}

pub async fn the_status_of_a_former_member_is_removed(federation: &TestFederation) {
    let shop = federation.namespace().await;
    federation.hub.create(mk_policy(&shop, "p", to(&["dfw", "ord"]))).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    let reported = |binding: &Value| {
        let items = binding["status"]["aggregatedStatus"].as_array().into_iter().flatten();
        items.map(|item| item["clusterName"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    federation.binding(&shop, "a", |binding| reported(binding) == ["dfw", "ord"]).await;
    federation.hub.change(&POLICY, &shop, "p", |policy| policy["spec"]["placement"] = to(&["ord"])).await;
    let binding = federation.binding(&shop, "a", |binding| reported(binding) == ["ord"]).await;
    assert_eq!(condition(&binding, "FullyApplied")["status"], "True");
}

pub async fn a_script_for_an_unserved_kind_has_no_side_effects(federation: &TestFederation) {
    let shop = federation.namespace().await;
    let kind = super::placement::mk_own_kind();
    federation.hub.create(mk_scripts(&kind, json!({"statusAggregation": {"luaScript": SUM}}))).await;
    federation.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.dfw().arrives(&THING, &shop, "a").await;
    federation.hub.delete(&SCRIPTS, "", &kind.plural).await;
    federation.hub.loses(&SCRIPTS, "", &kind.plural).await;
}
