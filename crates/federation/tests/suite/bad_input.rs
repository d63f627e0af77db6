//! What people write by mistake: named on the right object, and harmless to everything else. Karmada has no word for most
//! of it, so these cases hold on the embedded federation.

use polis_federation::planes::Kind;
use serde_json::{Value, json};

use super::matching::selecting;
use super::status::{SUM, mk_scripts};
use super::world::*;

const EVENT: Kind = Kind::known("v1", "Event", "events", true);
const ADMISSION: &str = "admissionregistration.k8s.io/v1";

/// Waits for an event about an object; its message.
pub(super) async fn told(world: &World, about: (&str, &str), reason: &str) -> String {
    let (kind, name) = about;
    eventually(&format!("{kind} {name} is told {reason}"), || async {
        let (events, _) = world.hub.api.list(&EVENT).await.ok()?;
        let fits = |event: &&Value| {
            event["involvedObject"]["kind"] == kind
                && event["involvedObject"]["name"] == name
                && event["reason"] == reason
        };
        events.iter().find(fits).and_then(|event| event["message"].as_str().map(str::to_owned))
    })
    .await
}

pub async fn a_policy_over_itself_and_its_own_bindings_is_told_so(world: &World) {
    let shop = world.namespace().await;
    let selectors = json!([
        {"apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy"},
        {"apiVersion": "work.karmada.io/v1alpha2", "kind": "ResourceBinding"},
        {"apiVersion": "suite.polis.test/v1", "kind": "Thing"},
    ]);
    world
        .hub
        .create(with(mk_policy(&shop, "greedy", to(&["dfw"])), "/spec/resourceSelectors", selectors))
        .await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.dfw().arrives(&THING, &shop, "a").await;
    let message = told(world, ("PropagationPolicy", "greedy"), "NotPropagatable").await;
    assert!(message.contains("belongs to the federation itself"), "{message}");
    let (bindings, _) = world.hub.api.list(&BINDING).await.expect("a list");
    assert_eq!(bindings.len(), 1, "{bindings:#?}");
}

pub async fn a_policy_over_everything_leaves_the_namespaces_of_the_federation_alone(world: &World) {
    let shop = world.namespace().await;
    let selectors = json!([{"apiVersion": "v1", "kind": "ConfigMap"}]);
    let policy = mk_cluster_policy(&shop, "everything", to(&["dfw"]));
    world.hub.create(with(policy, "/spec/resourceSelectors", selectors)).await;
    let mk_config = |namespace: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": namespace, "name": "a"}});
    world.hub.create(mk_config("karmada-es-dfw")).await;
    world.hub.create(mk_config(&shop)).await;
    world.dfw().arrives(&CONFIG_MAP, &shop, "a").await;
    assert_eq!(world.hub.get(&BINDING, "karmada-es-dfw", "a-configmap").await, None);
    assert_eq!(world.dfw().get(&NAMESPACE, "", "karmada-es-dfw").await, None);
}

pub async fn of_two_policies_over_one_object_the_one_that_gets_nothing_is_told_so(world: &World) {
    let shop = world.namespace().await;
    world.hub.create(mk_policy(&shop, "first", to(&["dfw"]))).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.claimed_by(&THING, &shop, "a", "first").await;
    let better = with(mk_policy(&shop, "second", to(&["ord"])), "/spec/priority", json!(9));
    world.hub.create(better).await;
    let message = told(world, ("PropagationPolicy", "second"), "ClaimedByAnother").await;
    assert!(message.contains(&format!("PropagationPolicy {shop}/first")), "{message}");
    world.claimed_by(&THING, &shop, "a", "first").await;
    assert_eq!(world.ord().get(&THING, &shop, "a").await, None);
}

pub async fn a_cluster_without_labels_gets_what_is_for_everyone_and_the_rest_is_said(world: &World) {
    let shop = world.namespace().await;
    let bare =
        |cluster: &mut Value| drop(cluster["metadata"].as_object_mut().expect("metadata").remove("labels"));
    world.hub.change(&CLUSTER, "", "ord", bare).await;
    world.hub.create(selecting(mk_policy(&shop, "all", json!({})), json!({"name": "a"}))).await;
    let labelled = json!({"clusterAffinity": {"labelSelector": {"matchLabels": {"topology.datum.net/city-code": "ord"}}}});
    world.hub.create(selecting(mk_policy(&shop, "by-label", labelled), json!({"name": "b"}))).await;
    for name in ["a", "b"] {
        world.hub.create(mk_thing(&shop, name)).await;
    }
    world.ord().arrives(&THING, &shop, "a").await;
    let nowhere = |binding: &Value| condition(binding, "Scheduled")["reason"] == "NoClusterFit";
    let binding = world.binding(&shop, "b", nowhere).await;
    let message = condition(&binding, "Scheduled")["message"].to_string();
    assert!(message.contains("did not match the placement cluster affinity"), "{message}");
}

pub async fn a_script_for_a_kind_that_nobody_has_is_named(world: &World) {
    let kind = super::placement::mk_own_kind();
    world.hub.create(mk_scripts(&kind, json!({"statusAggregation": {"luaScript": SUM}}))).await;
    let about = ("ResourceInterpreterCustomization", kind.plural.as_ref());
    let message = told(world, about, "KindNotServed").await;
    assert!(message.contains(kind.kind.as_ref()), "{message}");
    world.hub.delete(&SCRIPTS, "", &kind.plural).await;
}

/// A member takes less than the hub: as an API server does that is set so, by a policy of its admission here.
pub async fn an_object_that_is_too_large_for_the_member_is_said_and_heals_with_the_object(world: &World) {
    let shop = world.namespace().await;
    let rule = json!({"apiGroups": ["suite.polis.test"], "apiVersions": ["*"], "resources": ["things"], "operations": ["CREATE", "UPDATE"]});
    let kind = |kind: &'static str, plural: &'static str| Kind::known(ADMISSION, kind, plural, false);
    let limit = json!({
        "apiVersion": ADMISSION, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "size"},
        "spec": {
            "failurePolicy": "Fail", "matchConstraints": {"resourceRules": [rule]},
            "validations": [{
                "expression": "!has(object.spec.text) || size(object.spec.text) < 1000",
                "message": "the limit is 1000", "reason": "RequestEntityTooLarge",
            }],
        },
    });
    let policies = kind("ValidatingAdmissionPolicy", "validatingadmissionpolicies");
    world.dfw().api.create(&policies, &limit).await.expect("created");
    let everywhere = json!({
        "apiVersion": ADMISSION, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "size"},
        "spec": {"policyName": "size", "validationActions": ["Deny"]},
    });
    let bindings = kind("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings");
    world.dfw().api.create(&bindings, &everywhere).await.expect("created");
    eventually("the member knows its limit", || async {
        let probe = with(mk_thing("default", "probe"), "/spec/text", json!("x".repeat(2000)));
        let refused = world.dfw().api.create(&THING, &probe).await.err();
        if refused.is_none() {
            world.dfw().delete(&THING, "default", "probe").await;
        }
        refused
    })
    .await;

    world.hub.create(mk_policy(&shop, "p", json!({}))).await;
    world.hub.create(with(mk_thing(&shop, "a"), "/spec/text", json!("x".repeat(2000)))).await;
    world.ord().arrives(&THING, &shop, "a").await;
    let said = |binding: &Value| binding["status"]["aggregatedStatus"][0]["appliedMessage"].is_string();
    let binding = world.binding(&shop, "a", said).await;
    let item = &binding["status"]["aggregatedStatus"][0];
    assert_eq!((&item["clusterName"], &item["applied"]), (&json!("dfw"), &json!(null)), "{binding:#?}");
    assert!(item["appliedMessage"].to_string().contains("the limit is 1000"), "{item}");
    let work = polis_federation::names::work("Thing", &shop, "a");
    assert!(told(world, ("Work", &work), "SyncFailed").await.contains("the limit is 1000"));

    world.hub.change(&THING, &shop, "a", |thing| thing["spec"]["text"] = json!("short")).await;
    world.dfw().has(&THING, &shop, "a", |copy| copy["spec"]["text"] == "short").await;
    world.binding(&shop, "a", |binding| condition(binding, "FullyApplied")["status"] == "True").await;
}

/// An object that fills the hub to the last byte leaves no room for the marks of its policy; one with a little less
/// leaves none for its Work, which carries it and more.
pub async fn an_object_that_is_too_large_to_be_carried_is_said(world: &World) {
    let shop = world.namespace().await;
    world.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    let mk_large =
        |name: &str, size: usize| with(mk_thing(&shop, name), "/spec/text", json!("x".repeat(size)));
    let mut size = 1536 << 10;
    while world.hub.api.create(&THING, &mk_large("full", size)).await.is_err() {
        size -= 100;
    }
    let message = told(world, ("Thing", "full"), "ApplyPolicyFailed").await;
    assert!(message.contains("too large"), "{message}");

    world.hub.create(mk_large("nearly", size - 1200)).await;
    for about in [("Thing", "nearly"), ("ResourceBinding", "nearly-thing")] {
        let message = told(world, about, "SyncWorkFailed").await;
        assert!(message.contains("too large"), "{message}");
    }
    world.binding(&shop, "nearly", |binding| condition(binding, "FullyApplied")["status"] == "False").await;
    // Neither holds up what has a normal size.
    world.hub.create(mk_thing(&shop, "a")).await;
    world.dfw().arrives(&THING, &shop, "a").await;
}
