//! Delivery of objects to members: propagation, drift, conflicts and suspension.

use serde_json::json;

use super::fixture::*;
use super::placement::{mk_crd, mk_own_kind};

pub async fn an_object_reaches_the_clusters_that_its_policy_names(federation: &TestFederation) {
    let shop = federation.namespace().await;
    federation.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    let copy = federation.dfw().arrives(&THING, &shop, "a").await;
    assert_eq!(copy["spec"], json!({"n": 1}));
    federation.ord().lacks(&THING, &shop, "a").await;
}

pub async fn an_object_older_than_its_policy_is_propagated(federation: &TestFederation) {
    let shop = federation.namespace().await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    federation.dfw().arrives(&THING, &shop, "a").await;
}

pub async fn a_change_of_the_object_reaches_the_member(federation: &TestFederation) {
    let shop = federation.delivered(&[]).await;
    federation.hub.change(&THING, &shop, "a", |thing| thing["spec"] = json!({"n": 2, "more": "x"})).await;
    federation.dfw().has(&THING, &shop, "a", |copy| copy["spec"] == json!({"n": 2, "more": "x"})).await;
    federation.hub.change(&THING, &shop, "a", |thing| thing["spec"] = json!({"n": 3})).await;
    federation.dfw().has(&THING, &shop, "a", |copy| copy["spec"] == json!({"n": 3})).await;
}

pub async fn labels_and_annotations_are_propagated_and_removed(federation: &TestFederation) {
    let shop = federation.namespace().await;
    federation.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    let mut thing = labelled(mk_thing(&shop, "a"), "color", "red");
    thing["metadata"]["annotations"] = json!({"note": "x"});
    federation.hub.create(thing).await;
    let copy = federation.dfw().arrives(&THING, &shop, "a").await;
    assert_eq!(
        (&copy["metadata"]["labels"]["color"], &copy["metadata"]["annotations"]["note"]),
        (&json!("red"), &json!("x"))
    );
    federation
        .hub
        .change(&THING, &shop, "a", |thing| {
            thing["metadata"]["labels"].as_object_mut().expect("labels").remove("color");
            thing["metadata"]["annotations"].as_object_mut().expect("annotations").remove("note");
        })
        .await;
    federation
        .dfw()
        .has(&THING, &shop, "a", |copy| {
            copy["metadata"]["labels"].get("color").is_none()
                && copy["metadata"]["annotations"].get("note").is_none()
        })
        .await;
}

pub async fn hub_only_fields_are_not_propagated(federation: &TestFederation) {
    let shop = federation.namespace().await;
    let owner = federation.hub.create(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": shop, "name": "owner"}})).await;
    let mut thing = mk_thing(&shop, "a");
    thing["metadata"]["finalizers"] = json!(["suite.polis.test/hub"]);
    thing["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}]);
    let made = federation.hub.create(thing).await;
    federation.hub.set_status(&THING, &shop, "a", json!({"ready": true})).await;
    federation.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    let copy = federation.dfw().arrives(&THING, &shop, "a").await;
    for field in ["finalizers", "ownerReferences"] {
        assert_eq!(copy["metadata"].get(field), None, "{field}");
    }
    assert_eq!(copy.get("status"), None);
    assert_ne!(copy["metadata"]["uid"], made["metadata"]["uid"]);
    federation.hub.change(&THING, &shop, "a", |thing| thing["metadata"]["finalizers"] = json!([])).await;
}

pub async fn a_copy_has_the_metadata_of_its_origin(federation: &TestFederation) {
    let shop = federation.namespace().await;
    federation.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    let thing = federation.hub.create(mk_thing(&shop, "a")).await;
    let copy = federation.dfw().arrives(&THING, &shop, "a").await;
    let (labels, marks) = (&copy["metadata"]["labels"], &copy["metadata"]["annotations"]);
    let work = polis_federation::names::work("Thing", &shop, "a");
    assert_eq!(labels["karmada.io/managed"], "true");
    assert_eq!(marks["work.karmada.io/name"], work.as_str());
    assert_eq!(marks["work.karmada.io/namespace"], "karmada-es-dfw");
    assert_eq!(marks["resourcebinding.karmada.io/name"], "a-thing");
    assert_eq!(marks["resourcebinding.karmada.io/namespace"], shop.as_str());
    assert_eq!(marks["resourcetemplate.karmada.io/uid"], thing["metadata"]["uid"]);
    assert!(labels["resourcebinding.karmada.io/permanent-id"].is_string());
    assert!(labels["work.karmada.io/permanent-id"].is_string());
    let work = federation.hub.arrives(&WORK, "karmada-es-dfw", &work).await;
    assert_eq!(work["spec"]["workload"]["manifests"].as_array().map(Vec::len), Some(1));
    assert_eq!(work["metadata"]["finalizers"], json!(["karmada.io/execution-controller"]));
}

pub async fn a_deleted_copy_is_created_again(federation: &TestFederation) {
    let shop = federation.namespace().await;
    federation.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    let first = federation.dfw().arrives(&THING, &shop, "a").await;
    federation.dfw().delete(&THING, &shop, "a").await;
    federation
        .dfw()
        .has(&THING, &shop, "a", |copy| copy["metadata"]["uid"] != first["metadata"]["uid"])
        .await;
}

pub async fn drift_is_corrected(federation: &TestFederation) {
    let shop = federation.delivered(&[]).await;
    federation.dfw().change(&THING, &shop, "a", |copy| copy["spec"]["n"] = json!(99)).await;
    federation.dfw().has(&THING, &shop, "a", |copy| copy["spec"]["n"] == 1).await;
}

pub async fn metadata_added_by_the_member_is_kept(federation: &TestFederation) {
    let shop = federation.delivered(&[]).await;
    federation
        .dfw()
        .change(&THING, &shop, "a", |copy| {
            copy["metadata"]["labels"]["member"] = json!("own");
            copy["metadata"]["annotations"]["member"] = json!("own");
            copy["metadata"]["finalizers"] = json!(["suite.polis.test/member"]);
        })
        .await;
    federation.hub.change(&THING, &shop, "a", |thing| thing["spec"]["n"] = json!(2)).await;
    let copy = federation.dfw().has(&THING, &shop, "a", |copy| copy["spec"]["n"] == 2).await;
    assert_eq!(copy["metadata"]["labels"]["member"], "own");
    assert_eq!(copy["metadata"]["annotations"]["member"], "own");
    assert_eq!(copy["metadata"]["finalizers"], json!(["suite.polis.test/member"]));
    federation.dfw().change(&THING, &shop, "a", |copy| copy["metadata"]["finalizers"] = json!([])).await;
}

pub async fn the_status_of_the_member_survives_an_update(federation: &TestFederation) {
    let shop = federation.delivered(&[]).await;
    federation.dfw().set_status(&THING, &shop, "a", json!({"ready": 1})).await;
    federation.hub.change(&THING, &shop, "a", |thing| thing["spec"]["n"] = json!(2)).await;
    let copy = federation.dfw().has(&THING, &shop, "a", |copy| copy["spec"]["n"] == 2).await;
    assert_eq!(copy["status"], json!({"ready": 1}));
}

pub async fn a_config_map_is_propagated(federation: &TestFederation) {
    let shop = federation.namespace().await;
    let policy = mk_policy(&shop, "p", to(&["ord"]));
    federation
        .hub
        .create(with(
            policy,
            "/spec/resourceSelectors",
            json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "settings"}]),
        ))
        .await;
    federation.hub.create(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": shop, "name": "settings"}, "data": {"k": "v"}})).await;
    federation.ord().has(&CONFIG_MAP, &shop, "settings", |copy| copy["data"]["k"] == "v").await;
    federation.hub.change(&CONFIG_MAP, &shop, "settings", |object| object["data"] = json!({"k": "w"})).await;
    federation.ord().has(&CONFIG_MAP, &shop, "settings", |copy| copy["data"] == json!({"k": "w"})).await;
    federation
        .ord()
        .change(&CONFIG_MAP, &shop, "settings", |copy| copy["data"] = json!({"k": "edited"}))
        .await;
    federation.ord().has(&CONFIG_MAP, &shop, "settings", |copy| copy["data"] == json!({"k": "w"})).await;
}

pub async fn a_cluster_scoped_object_has_a_cluster_binding(federation: &TestFederation) {
    let name = unique("place");
    let policy = json!({
        "apiVersion": "policy.karmada.io/v1alpha1", "kind": "ClusterPropagationPolicy", "metadata": {"name": name},
        "spec": {"resourceSelectors": [{"apiVersion": "suite.polis.test/v1", "kind": "Place", "name": name}], "placement": to(&["dfw"])},
    });
    federation.hub.create(policy).await;
    federation.hub.create(json!({"apiVersion": "suite.polis.test/v1", "kind": "Place", "metadata": {"name": name}, "spec": {"n": 1}})).await;
    let copy = federation.dfw().arrives(&PLACE, "", &name).await;
    let binding = federation.hub.arrives(&CLUSTER_BINDING, "", &format!("{name}-place")).await;
    assert_eq!(names(&binding["spec"]["clusters"]), ["dfw"]);
    assert_eq!(
        copy["metadata"]["annotations"]["clusterresourcebinding.karmada.io/name"],
        format!("{name}-place")
    );
    federation.claimed_by(&PLACE, "", &name, &name).await;
    federation.hub.delete(&PLACE, "", &name).await;
    federation.dfw().loses(&PLACE, "", &name).await;
    federation.hub.delete(&CLUSTER_POLICY, "", &name).await;
}

pub async fn a_crd_and_its_changes_are_propagated(federation: &TestFederation) {
    let definition = mk_crd(&mk_own_kind());
    let name = definition["metadata"]["name"].as_str().expect("a name").to_owned();
    let policy = json!({
        "apiVersion": "policy.karmada.io/v1alpha1", "kind": "ClusterPropagationPolicy", "metadata": {"name": name},
        "spec": {"resourceSelectors": [{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "name": name}], "placement": to(&["dfw"])},
    });
    federation.hub.create(policy).await;
    federation.hub.create(definition).await;
    federation.dfw().arrives(&CRD, "", &name).await;
    let description = "/spec/versions/0/schema/openAPIV3Schema/description";
    federation
        .hub
        .change(&CRD, "", &name, |definition| {
            *definition = with(definition.take(), description, json!("changed later"))
        })
        .await;
    federation
        .dfw()
        .has(&CRD, "", &name, |copy| copy.pointer(description) == Some(&json!("changed later")))
        .await;
    federation.hub.delete(&CLUSTER_POLICY, "", &name).await;
}

pub async fn an_unmanaged_object_of_the_member_is_not_overwritten(federation: &TestFederation) {
    let shop = federation.namespace().await;
    federation.dfw().arrives(&NAMESPACE, "", &shop).await;
    federation.dfw().create(with(mk_thing(&shop, "a"), "/spec/n", json!(7))).await;
    federation.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    let binding = federation
        .binding(&shop, "a", |binding| binding["status"]["aggregatedStatus"][0]["appliedMessage"].is_string())
        .await;
    assert_eq!(condition(&binding, "FullyApplied")["status"], "False");
    federation.dfw().keeps(&THING, &shop, "a", |thing| thing["spec"]["n"] == 7).await;
    federation.hub.delete(&THING, &shop, "a").await;
    federation.hub.loses(&WORK, "karmada-es-dfw", &polis_federation::names::work("Thing", &shop, "a")).await;
    federation.dfw().keeps(&THING, &shop, "a", |thing| thing["spec"]["n"] == 7).await;
}

pub async fn a_policy_may_overwrite_an_unmanaged_object(federation: &TestFederation) {
    let shop = federation.namespace().await;
    federation.dfw().arrives(&NAMESPACE, "", &shop).await;
    federation.dfw().create(with(mk_thing(&shop, "a"), "/spec/n", json!(7))).await;
    federation
        .hub
        .create(with(mk_policy(&shop, "p", to(&["dfw"])), "/spec/conflictResolution", json!("Overwrite")))
        .await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.dfw().has(&THING, &shop, "a", |thing| thing["spec"]["n"] == 1).await;
}

pub async fn the_conflict_resolution_of_the_object_has_precedence(federation: &TestFederation) {
    let shop = federation.namespace().await;
    federation.dfw().arrives(&NAMESPACE, "", &shop).await;
    federation.dfw().create(with(mk_thing(&shop, "a"), "/spec/n", json!(7))).await;
    federation.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    let mut thing = mk_thing(&shop, "a");
    thing["metadata"]["annotations"] = json!({"work.karmada.io/conflict-resolution": "overwrite"});
    federation.hub.create(thing).await;
    federation.dfw().has(&THING, &shop, "a", |thing| thing["spec"]["n"] == 1).await;
}

pub async fn a_suspended_object_gets_no_changes_until_it_is_resumed(federation: &TestFederation) {
    let shop = federation.delivered(&[]).await;
    federation
        .hub
        .change(&POLICY, &shop, "p", |policy| policy["spec"]["suspension"] = json!({"dispatching": true}))
        .await;
    let work = polis_federation::names::work("Thing", &shop, "a");
    federation
        .hub
        .has(&WORK, "karmada-es-dfw", &work, |work| {
            work["spec"]["suspendDispatching"] == true && condition(work, "Dispatching")["status"] == "False"
        })
        .await;
    federation.hub.change(&THING, &shop, "a", |thing| thing["spec"]["n"] = json!(2)).await;
    federation.dfw().keeps(&THING, &shop, "a", |copy| copy["spec"]["n"] == 1).await;
    // Status is still collected.
    federation.dfw().set_status(&THING, &shop, "a", json!({"ready": 5})).await;
    federation
        .binding(&shop, "a", |binding| binding["status"]["aggregatedStatus"][0]["status"]["ready"] == 5)
        .await;
    federation.hub.change(&POLICY, &shop, "p", |policy| policy["spec"]["suspension"] = json!({})).await;
    federation.dfw().has(&THING, &shop, "a", |copy| copy["spec"]["n"] == 2).await;
}

pub async fn a_single_member_can_be_suspended(federation: &TestFederation) {
    let shop = federation.namespace().await;
    let policy = mk_policy(&shop, "p", to(&["dfw", "ord"]));
    federation.hub.create(policy).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.ord().arrives(&THING, &shop, "a").await;
    federation.dfw().arrives(&THING, &shop, "a").await;
    let suspension = json!({"dispatchingOnClusters": {"clusterNames": ["ord"]}});
    federation
        .hub
        .change(&POLICY, &shop, "p", |policy| policy["spec"]["suspension"] = suspension.clone())
        .await;
    let work = polis_federation::names::work("Thing", &shop, "a");
    federation
        .hub
        .has(&WORK, "karmada-es-ord", &work, |work| work["spec"]["suspendDispatching"] == true)
        .await;
    federation.hub.change(&THING, &shop, "a", |thing| thing["spec"]["n"] = json!(2)).await;
    federation.dfw().has(&THING, &shop, "a", |copy| copy["spec"]["n"] == 2).await;
    federation.ord().keeps(&THING, &shop, "a", |copy| copy["spec"]["n"] == 1).await;
}

pub async fn a_suspended_object_can_still_be_deleted(federation: &TestFederation) {
    let shop = federation.delivered(&[]).await;
    federation
        .hub
        .change(&POLICY, &shop, "p", |policy| policy["spec"]["suspension"] = json!({"dispatching": true}))
        .await;
    let work = polis_federation::names::work("Thing", &shop, "a");
    federation
        .hub
        .has(&WORK, "karmada-es-dfw", &work, |work| work["spec"]["suspendDispatching"] == true)
        .await;
    federation.hub.delete(&THING, &shop, "a").await;
    federation.dfw().loses(&THING, &shop, "a").await;
}

pub async fn a_work_reports_dispatching_and_applied(federation: &TestFederation) {
    let shop = federation.namespace().await;
    federation.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    let name = polis_federation::names::work("Thing", &shop, "a");
    let taken = |work: &serde_json::Value| {
        condition(work, "Applied")["status"] == "True" && condition(work, "Dispatching")["status"] == "True"
    };
    let work = federation.hub.has(&WORK, "karmada-es-dfw", &name, taken).await;
    let manifest = &work["spec"]["workload"]["manifests"][0];
    assert_eq!((&manifest["kind"], &manifest["metadata"]["name"]), (&json!("Thing"), &json!("a")));
    assert_eq!(work["metadata"]["annotations"]["resourcebinding.karmada.io/name"], "a-thing");
    assert!(work["metadata"]["labels"]["work.karmada.io/permanent-id"].is_string());
}

pub async fn an_object_created_suspended_is_not_propagated_until_it_is_resumed(federation: &TestFederation) {
    let shop = federation.namespace().await;
    let policy = mk_policy(&shop, "p", to(&["dfw"]));
    federation.hub.create(with(policy, "/spec/suspension", json!({"dispatching": true}))).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    let work = polis_federation::names::work("Thing", &shop, "a");
    federation
        .hub
        .has(&WORK, "karmada-es-dfw", &work, |work| condition(work, "Dispatching")["status"] == "False")
        .await;
    assert_eq!(federation.dfw().get(&THING, &shop, "a").await, None);
    federation.hub.change(&POLICY, &shop, "p", |policy| policy["spec"]["suspension"] = json!(null)).await;
    federation.dfw().arrives(&THING, &shop, "a").await;
}

pub async fn drift_of_a_propagated_label_is_corrected(federation: &TestFederation) {
    let shop = federation.namespace().await;
    federation.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    federation.hub.create(labelled(mk_thing(&shop, "a"), "color", "red")).await;
    federation.dfw().arrives(&THING, &shop, "a").await;
    federation
        .dfw()
        .change(&THING, &shop, "a", |copy| copy["metadata"]["labels"]["color"] = json!("blue"))
        .await;
    federation.dfw().has(&THING, &shop, "a", |copy| copy["metadata"]["labels"]["color"] == "red").await;
}

pub async fn a_secret_is_propagated_with_its_type_and_data(federation: &TestFederation) {
    let shop = federation.namespace().await;
    let selectors = json!([{"apiVersion": "v1", "kind": "Secret", "name": "key"}]);
    federation
        .hub
        .create(with(mk_policy(&shop, "p", to(&["ord"])), "/spec/resourceSelectors", selectors))
        .await;
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": shop, "name": "key"},
        "type": "suite.polis.test/key", "data": {"k": "AP8="},
    });
    federation.hub.create(secret).await;
    let copy = federation.ord().arrives(&SECRET, &shop, "key").await;
    assert_eq!((&copy["type"], &copy["data"]), (&json!("suite.polis.test/key"), &json!({"k": "AP8="})));
    federation.hub.change(&SECRET, &shop, "key", |secret| secret["data"] = json!({"l": "AQ=="})).await;
    federation.ord().has(&SECRET, &shop, "key", |copy| copy["data"] == json!({"l": "AQ=="})).await;
}

pub async fn a_long_name_with_dots_is_supported(federation: &TestFederation) {
    let shop = federation.namespace().await;
    let name = format!("a.{}.b", "x".repeat(120));
    federation.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    federation.hub.create(mk_thing(&shop, &name)).await;
    let copy = federation.dfw().arrives(&THING, &shop, &name).await;
    let work = polis_federation::names::work("Thing", &shop, &name);
    assert_eq!(copy["metadata"]["annotations"]["work.karmada.io/name"], work.as_str());
    federation.binding(&shop, &name, |binding| names(&binding["spec"]["clusters"]) == ["dfw"]).await;
    federation.hub.delete(&THING, &shop, &name).await;
    federation.dfw().loses(&THING, &shop, &name).await;
}

pub async fn all_json_types_are_propagated_unchanged(federation: &TestFederation) {
    let shop = federation.namespace().await;
    federation.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    let spec = json!({
        "text": "Größe \u{2192} \"7\"\n", "empty": "", "big": 9_007_199_254_740_991_i64, "less": -1, "part": 0.25,
        "yes": true, "no": false, "list": [], "map": {}, "nested": [{"a": [1, [2]]}, {"b": {"c": {}}}],
    });
    federation.hub.create(with(mk_thing(&shop, "a"), "/spec", spec.clone())).await;
    let copy = federation.dfw().arrives(&THING, &shop, "a").await;
    assert_eq!(copy["spec"], spec);
}

pub async fn an_object_rejected_by_a_member_is_reported_and_retried_after_a_change(
    federation: &TestFederation,
) {
    let shop = federation.namespace().await;
    let kind = super::placement::mk_own_kind();
    super::placement::install(&federation.hub, &kind).await;
    // The schema of the member is stricter than that of the hub.
    let mut strict = super::placement::mk_crd(&kind);
    let schema = &mut strict["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    schema["properties"] = json!({"n": {"type": "integer", "maximum": 5}});
    for member in [federation.dfw(), federation.ord()] {
        member.create(strict.clone()).await;
    }
    let enabled =
        |cluster: &serde_json::Value| cluster["status"]["apiEnablements"].to_string().contains(&*kind.plural);
    for member in ["dfw", "ord"] {
        federation.hub.has(&CLUSTER, "", member, enabled).await;
    }
    let selectors = json!([{"apiVersion": kind.api_version(), "kind": kind.kind}]);
    federation
        .hub
        .create(with(mk_policy(&shop, "p", to(&["dfw"])), "/spec/resourceSelectors", selectors))
        .await;
    let object = json!({
        "apiVersion": kind.api_version(), "kind": kind.kind, "metadata": {"namespace": shop, "name": "a"}, "spec": {"n": 9},
    });
    federation.hub.api.create(&kind, &object).await.expect("created");
    let binding = polis_federation::names::binding(&kind.kind, "a");
    let refused = |binding: &serde_json::Value| {
        let item = &binding["status"]["aggregatedStatus"][0];
        item["appliedMessage"].as_str().is_some_and(|message| message.contains("less than or equal to 5"))
    };
    let binding_status = federation.hub.has(&BINDING, &shop, &binding, refused).await;
    assert_eq!(condition(&binding_status, "FullyApplied")["status"], "False");
    federation.hub.change(&kind, &shop, "a", |object| object["spec"]["n"] = json!(3)).await;
    federation.dfw().has(&kind, &shop, "a", |copy| copy["spec"]["n"] == 3).await;
    let healed = |binding: &serde_json::Value| condition(binding, "FullyApplied")["status"] == "True";
    federation.hub.has(&BINDING, &shop, &binding, healed).await;
}
