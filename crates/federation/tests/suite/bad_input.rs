//! Invalid input: an event on the right object reports it, and other objects are not affected. Karmada
//! reports most of it nowhere, so these cases run on the embedded federation only.

use polis_engine::ResourceScope::{Cluster, Namespaced};
use serde_json::{Value, json};

use super::fixture::*;
use super::matching::selecting;
use super::status::{SUM, mk_scripts};

const EVENT: Kind = Kind::known("", "v1", "Event", "events", Namespaced);
const ADMISSION: &str = "admissionregistration.k8s.io/v1";

/// Waits for an event about an object and returns its message.
pub(super) async fn await_event(federation: &TestFederation, about: (&str, &str), reason: &str) -> String {
    let (kind, name) = about;
    eventually(&format!("{kind} {name} has an event {reason}"), || async {
        let events = federation.hub.api.list(&EVENT).await.ok()?;
        let fits = |event: &&Value| {
            event["involvedObject"]["kind"] == kind
                && event["involvedObject"]["name"] == name
                && event["reason"] == reason
        };
        events.iter().find(fits).and_then(|event| event["message"].as_str().map(str::to_owned))
    })
    .await
}

pub async fn a_policy_for_kinds_of_the_federation_gets_an_event(federation: &TestFederation) {
    let shop = federation.namespace().await;
    let selectors = json!([
        {"apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy"},
        {"apiVersion": "work.karmada.io/v1alpha2", "kind": "ResourceBinding"},
        {"apiVersion": "suite.polis.test/v1", "kind": "Thing"},
    ]);
    federation
        .hub
        .create(with(mk_policy(&shop, "greedy", to(&["dfw"])), "/spec/resourceSelectors", selectors))
        .await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.dfw().arrives(&THING, &shop, "a").await;
    let message = await_event(federation, ("PropagationPolicy", "greedy"), "NotPropagatable").await;
    assert!(message.contains("belongs to the federation itself"), "{message}");
    let bindings = federation.hub.api.list(&BINDING).await.expect("a list");
    assert_eq!(bindings.len(), 1, "{bindings:#?}");
}

pub async fn a_policy_for_all_objects_skips_the_namespaces_of_the_federation(federation: &TestFederation) {
    let shop = federation.namespace().await;
    let selectors = json!([{"apiVersion": "v1", "kind": "ConfigMap"}]);
    let policy = mk_cluster_policy(&shop, "everything", to(&["dfw"]));
    federation.hub.create(with(policy, "/spec/resourceSelectors", selectors)).await;
    let mk_config = |namespace: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": namespace, "name": "a"}});
    federation.hub.create(mk_config("karmada-es-dfw")).await;
    federation.hub.create(mk_config(&shop)).await;
    federation.dfw().arrives(&CONFIG_MAP, &shop, "a").await;
    assert_eq!(federation.hub.get(&BINDING, "karmada-es-dfw", "a-configmap").await, None);
    assert_eq!(federation.dfw().get(&NAMESPACE, "", "karmada-es-dfw").await, None);
}

pub async fn a_policy_whose_objects_are_claimed_by_another_gets_an_event(federation: &TestFederation) {
    let shop = federation.namespace().await;
    federation.hub.create(mk_policy(&shop, "first", to(&["dfw"]))).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.claimed_by(&THING, &shop, "a", "first").await;
    let better = with(mk_policy(&shop, "second", to(&["ord"])), "/spec/priority", json!(9));
    federation.hub.create(better).await;
    let message = await_event(federation, ("PropagationPolicy", "second"), "ClaimedByAnother").await;
    assert!(message.contains(&format!("PropagationPolicy {shop}/first")), "{message}");
    federation.claimed_by(&THING, &shop, "a", "first").await;
    assert_eq!(federation.ord().get(&THING, &shop, "a").await, None);
}

pub async fn a_cluster_without_labels_matches_no_label_selector(federation: &TestFederation) {
    let shop = federation.namespace().await;
    let bare =
        |cluster: &mut Value| drop(cluster["metadata"].as_object_mut().expect("metadata").remove("labels"));
    federation.hub.change(&CLUSTER, "", "ord", bare).await;
    federation.hub.create(selecting(mk_policy(&shop, "all", json!({})), json!({"name": "a"}))).await;
    let labelled = json!({"clusterAffinity": {"labelSelector": {"matchLabels": {"topology.datum.net/city-code": "ord"}}}});
    federation.hub.create(selecting(mk_policy(&shop, "by-label", labelled), json!({"name": "b"}))).await;
    for name in ["a", "b"] {
        federation.hub.create(mk_thing(&shop, name)).await;
    }
    federation.ord().arrives(&THING, &shop, "a").await;
    let nowhere = |binding: &Value| condition(binding, "Scheduled")["reason"] == "NoClusterFit";
    let binding = federation.binding(&shop, "b", nowhere).await;
    let message = condition(&binding, "Scheduled")["message"].to_string();
    assert!(message.contains("did not match the placement cluster affinity"), "{message}");
}

pub async fn a_script_for_an_unserved_kind_gets_an_event(federation: &TestFederation) {
    let kind = super::placement::mk_own_kind();
    federation.hub.create(mk_scripts(&kind, json!({"statusAggregation": {"luaScript": SUM}}))).await;
    let about = ("ResourceInterpreterCustomization", kind.plural.as_ref());
    let message = await_event(federation, about, "KindNotServed").await;
    assert!(message.contains(kind.kind.as_ref()), "{message}");
    federation.hub.delete(&SCRIPTS, "", &kind.plural).await;
}

/// The member accepts smaller objects than the hub; an admission policy simulates the limit.
pub async fn an_object_too_large_for_a_member_is_reported_and_retried_after_a_change(
    federation: &TestFederation,
) {
    let shop = federation.namespace().await;
    let rule = json!({"apiGroups": ["suite.polis.test"], "apiVersions": ["*"], "resources": ["things"], "operations": ["CREATE", "UPDATE"]});
    let kind = |kind: &'static str, plural: &'static str| {
        Kind::known("admissionregistration.k8s.io", "v1", kind, plural, Cluster)
    };
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
    federation.dfw().api.create(&policies, &limit).await.expect("created");
    let everywhere = json!({
        "apiVersion": ADMISSION, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "size"},
        "spec": {"policyName": "size", "validationActions": ["Deny"]},
    });
    let bindings = kind("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings");
    federation.dfw().api.create(&bindings, &everywhere).await.expect("created");
    eventually("the admission policy of the member is active", || async {
        let probe = with(mk_thing("default", "probe"), "/spec/text", json!("x".repeat(2000)));
        let refused = federation.dfw().api.create(&THING, &probe).await.err();
        if refused.is_none() {
            federation.dfw().delete(&THING, "default", "probe").await;
        }
        refused
    })
    .await;

    federation.hub.create(mk_policy(&shop, "p", json!({}))).await;
    federation.hub.create(with(mk_thing(&shop, "a"), "/spec/text", json!("x".repeat(2000)))).await;
    federation.ord().arrives(&THING, &shop, "a").await;
    let reported = |binding: &Value| binding["status"]["aggregatedStatus"][0]["appliedMessage"].is_string();
    let binding = federation.binding(&shop, "a", reported).await;
    let item = &binding["status"]["aggregatedStatus"][0];
    assert_eq!((&item["clusterName"], &item["applied"]), (&json!("dfw"), &json!(null)), "{binding:#?}");
    assert!(item["appliedMessage"].to_string().contains("the limit is 1000"), "{item}");
    let work = polis_federation::names::work("Thing", &shop, "a");
    assert!(await_event(federation, ("Work", &work), "SyncFailed").await.contains("the limit is 1000"));

    federation.hub.change(&THING, &shop, "a", |thing| thing["spec"]["text"] = json!("short")).await;
    federation.dfw().has(&THING, &shop, "a", |copy| copy["spec"]["text"] == "short").await;
    federation.binding(&shop, "a", |binding| condition(binding, "FullyApplied")["status"] == "True").await;
}

/// An object of the maximum size has no space for the claim of its policy; a slightly smaller one has no
/// space for its Work, which is larger than the object.
pub async fn an_object_too_large_for_a_work_is_reported(federation: &TestFederation) {
    let shop = federation.namespace().await;
    federation.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    let mk_large =
        |name: &str, size: usize| with(mk_thing(&shop, name), "/spec/text", json!("x".repeat(size)));
    let mut size = 1536 << 10;
    while federation.hub.api.create(&THING, &mk_large("full", size)).await.is_err() {
        size -= 100;
    }
    let message = await_event(federation, ("Thing", "full"), "ApplyPolicyFailed").await;
    assert!(message.contains("too large"), "{message}");

    federation.hub.create(mk_large("nearly", size - 1200)).await;
    for about in [("Thing", "nearly"), ("ResourceBinding", "nearly-thing")] {
        let message = await_event(federation, about, "SyncWorkFailed").await;
        assert!(message.contains("too large"), "{message}");
    }
    federation
        .binding(&shop, "nearly", |binding| condition(binding, "FullyApplied")["status"] == "False")
        .await;
    // Neither delays objects of normal size.
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.dfw().arrives(&THING, &shop, "a").await;
}
