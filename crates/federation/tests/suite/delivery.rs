//! What a member gets, keeps and gives back.

use serde_json::json;

use super::placement::{mk_definition, mk_own_kind};
use super::world::*;

pub async fn an_object_reaches_the_clusters_that_its_policy_names(world: &World) {
    let shop = world.namespace().await;
    world.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    let copy = world.dfw().arrives(&THING, &shop, "a").await;
    assert_eq!(copy["spec"], json!({"n": 1}));
    world.ord().lacks(&THING, &shop, "a").await;
}

pub async fn an_object_that_was_there_before_its_policy_is_found(world: &World) {
    let shop = world.namespace().await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    world.dfw().arrives(&THING, &shop, "a").await;
}

pub async fn a_change_of_the_object_reaches_the_member(world: &World) {
    let shop = world.delivered(&[]).await;
    world.hub.change(&THING, &shop, "a", |thing| thing["spec"] = json!({"n": 2, "more": "x"})).await;
    world.dfw().has(&THING, &shop, "a", |copy| copy["spec"] == json!({"n": 2, "more": "x"})).await;
    world.hub.change(&THING, &shop, "a", |thing| thing["spec"] = json!({"n": 3})).await;
    world.dfw().has(&THING, &shop, "a", |copy| copy["spec"] == json!({"n": 3})).await;
}

pub async fn labels_and_annotations_travel_and_go_again(world: &World) {
    let shop = world.namespace().await;
    world.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    let mut thing = labelled(mk_thing(&shop, "a"), "color", "red");
    thing["metadata"]["annotations"] = json!({"note": "x"});
    world.hub.create(thing).await;
    let copy = world.dfw().arrives(&THING, &shop, "a").await;
    assert_eq!(
        (&copy["metadata"]["labels"]["color"], &copy["metadata"]["annotations"]["note"]),
        (&json!("red"), &json!("x"))
    );
    world
        .hub
        .change(&THING, &shop, "a", |thing| {
            thing["metadata"]["labels"].as_object_mut().expect("labels").remove("color");
            thing["metadata"]["annotations"].as_object_mut().expect("annotations").remove("note");
        })
        .await;
    world
        .dfw()
        .has(&THING, &shop, "a", |copy| {
            copy["metadata"]["labels"].get("color").is_none()
                && copy["metadata"]["annotations"].get("note").is_none()
        })
        .await;
}

pub async fn what_belongs_to_the_hub_stays_there(world: &World) {
    let shop = world.namespace().await;
    let owner = world.hub.create(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": shop, "name": "owner"}})).await;
    let mut thing = mk_thing(&shop, "a");
    thing["metadata"]["finalizers"] = json!(["suite.polis.test/hub"]);
    thing["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}]);
    let made = world.hub.create(thing).await;
    world.hub.set_status(&THING, &shop, "a", json!({"ready": true})).await;
    world.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    let copy = world.dfw().arrives(&THING, &shop, "a").await;
    for field in ["finalizers", "ownerReferences"] {
        assert_eq!(copy["metadata"].get(field), None, "{field}");
    }
    assert_eq!(copy.get("status"), None);
    assert_ne!(copy["metadata"]["uid"], made["metadata"]["uid"]);
    world.hub.change(&THING, &shop, "a", |thing| thing["metadata"]["finalizers"] = json!([])).await;
}

pub async fn a_copy_bears_the_marks_of_its_way(world: &World) {
    let shop = world.namespace().await;
    world.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    let thing = world.hub.create(mk_thing(&shop, "a")).await;
    let copy = world.dfw().arrives(&THING, &shop, "a").await;
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
    let work = world.hub.arrives(&WORK, "karmada-es-dfw", &work).await;
    assert_eq!(work["spec"]["workload"]["manifests"].as_array().map(Vec::len), Some(1));
    assert_eq!(work["metadata"]["finalizers"], json!(["karmada.io/execution-controller"]));
}

pub async fn a_copy_deleted_by_hand_comes_back(world: &World) {
    let shop = world.namespace().await;
    world.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    let first = world.dfw().arrives(&THING, &shop, "a").await;
    world.dfw().delete(&THING, &shop, "a").await;
    world.dfw().has(&THING, &shop, "a", |copy| copy["metadata"]["uid"] != first["metadata"]["uid"]).await;
}

pub async fn a_hand_edit_is_undone(world: &World) {
    let shop = world.delivered(&[]).await;
    world.dfw().change(&THING, &shop, "a", |copy| copy["spec"]["n"] = json!(99)).await;
    world.dfw().has(&THING, &shop, "a", |copy| copy["spec"]["n"] == 1).await;
}

pub async fn what_the_member_adds_is_kept(world: &World) {
    let shop = world.delivered(&[]).await;
    world
        .dfw()
        .change(&THING, &shop, "a", |copy| {
            copy["metadata"]["labels"]["member"] = json!("own");
            copy["metadata"]["annotations"]["member"] = json!("own");
            copy["metadata"]["finalizers"] = json!(["suite.polis.test/member"]);
        })
        .await;
    world.hub.change(&THING, &shop, "a", |thing| thing["spec"]["n"] = json!(2)).await;
    let copy = world.dfw().has(&THING, &shop, "a", |copy| copy["spec"]["n"] == 2).await;
    assert_eq!(copy["metadata"]["labels"]["member"], "own");
    assert_eq!(copy["metadata"]["annotations"]["member"], "own");
    assert_eq!(copy["metadata"]["finalizers"], json!(["suite.polis.test/member"]));
    world.dfw().change(&THING, &shop, "a", |copy| copy["metadata"]["finalizers"] = json!([])).await;
}

pub async fn the_status_of_the_member_survives_an_update(world: &World) {
    let shop = world.delivered(&[]).await;
    world.dfw().set_status(&THING, &shop, "a", json!({"ready": 1})).await;
    world.hub.change(&THING, &shop, "a", |thing| thing["spec"]["n"] = json!(2)).await;
    let copy = world.dfw().has(&THING, &shop, "a", |copy| copy["spec"]["n"] == 2).await;
    assert_eq!(copy["status"], json!({"ready": 1}));
}

pub async fn a_config_map_travels_like_any_other_object(world: &World) {
    let shop = world.namespace().await;
    let policy = mk_policy(&shop, "p", to(&["ord"]));
    world
        .hub
        .create(with(
            policy,
            "/spec/resourceSelectors",
            json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "settings"}]),
        ))
        .await;
    world.hub.create(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": shop, "name": "settings"}, "data": {"k": "v"}})).await;
    world.ord().has(&CONFIG_MAP, &shop, "settings", |copy| copy["data"]["k"] == "v").await;
    world.hub.change(&CONFIG_MAP, &shop, "settings", |object| object["data"] = json!({"k": "w"})).await;
    world.ord().has(&CONFIG_MAP, &shop, "settings", |copy| copy["data"] == json!({"k": "w"})).await;
    world.ord().change(&CONFIG_MAP, &shop, "settings", |copy| copy["data"] = json!({"k": "edited"})).await;
    world.ord().has(&CONFIG_MAP, &shop, "settings", |copy| copy["data"] == json!({"k": "w"})).await;
}

pub async fn an_object_without_a_namespace_has_a_binding_of_its_own_sort(world: &World) {
    let name = unique("place");
    let policy = json!({
        "apiVersion": "policy.karmada.io/v1alpha1", "kind": "ClusterPropagationPolicy", "metadata": {"name": name},
        "spec": {"resourceSelectors": [{"apiVersion": "suite.polis.test/v1", "kind": "Place", "name": name}], "placement": to(&["dfw"])},
    });
    world.hub.create(policy).await;
    world.hub.create(json!({"apiVersion": "suite.polis.test/v1", "kind": "Place", "metadata": {"name": name}, "spec": {"n": 1}})).await;
    let copy = world.dfw().arrives(&PLACE, "", &name).await;
    let binding = world.hub.arrives(&CLUSTER_BINDING, "", &format!("{name}-place")).await;
    assert_eq!(names(&binding["spec"]["clusters"]), ["dfw"]);
    assert_eq!(
        copy["metadata"]["annotations"]["clusterresourcebinding.karmada.io/name"],
        format!("{name}-place")
    );
    world.claimed_by(&PLACE, "", &name, &name).await;
    world.hub.delete(&PLACE, "", &name).await;
    world.dfw().loses(&PLACE, "", &name).await;
    world.hub.delete(&CLUSTER_POLICY, "", &name).await;
}

pub async fn a_definition_travels_like_any_other_object_and_so_does_its_change(world: &World) {
    let definition = mk_definition(&mk_own_kind());
    let name = definition["metadata"]["name"].as_str().expect("a name").to_owned();
    let policy = json!({
        "apiVersion": "policy.karmada.io/v1alpha1", "kind": "ClusterPropagationPolicy", "metadata": {"name": name},
        "spec": {"resourceSelectors": [{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "name": name}], "placement": to(&["dfw"])},
    });
    world.hub.create(policy).await;
    world.hub.create(definition).await;
    world.dfw().arrives(&CRD, "", &name).await;
    let description = "/spec/versions/0/schema/openAPIV3Schema/description";
    world
        .hub
        .change(&CRD, "", &name, |definition| {
            *definition = with(definition.take(), description, json!("said later"))
        })
        .await;
    world.dfw().has(&CRD, "", &name, |copy| copy.pointer(description) == Some(&json!("said later"))).await;
    world.hub.delete(&CLUSTER_POLICY, "", &name).await;
}

pub async fn an_object_that_the_member_already_has_is_left_alone(world: &World) {
    let shop = world.namespace().await;
    world.dfw().arrives(&NAMESPACE, "", &shop).await;
    world.dfw().create(with(mk_thing(&shop, "a"), "/spec/n", json!(7))).await;
    world.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    let binding = world
        .binding(&shop, "a", |binding| binding["status"]["aggregatedStatus"][0]["appliedMessage"].is_string())
        .await;
    assert_eq!(condition(&binding, "FullyApplied")["status"], "False");
    world.dfw().keeps(&THING, &shop, "a", |thing| thing["spec"]["n"] == 7).await;
    world.hub.delete(&THING, &shop, "a").await;
    world.hub.loses(&WORK, "karmada-es-dfw", &polis_federation::names::work("Thing", &shop, "a")).await;
    world.dfw().keeps(&THING, &shop, "a", |thing| thing["spec"]["n"] == 7).await;
}

pub async fn a_policy_may_take_over_what_the_member_already_has(world: &World) {
    let shop = world.namespace().await;
    world.dfw().arrives(&NAMESPACE, "", &shop).await;
    world.dfw().create(with(mk_thing(&shop, "a"), "/spec/n", json!(7))).await;
    world
        .hub
        .create(with(mk_policy(&shop, "p", to(&["dfw"])), "/spec/conflictResolution", json!("Overwrite")))
        .await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.dfw().has(&THING, &shop, "a", |thing| thing["spec"]["n"] == 1).await;
}

pub async fn the_wish_of_the_object_about_conflicts_outranks_the_policy(world: &World) {
    let shop = world.namespace().await;
    world.dfw().arrives(&NAMESPACE, "", &shop).await;
    world.dfw().create(with(mk_thing(&shop, "a"), "/spec/n", json!(7))).await;
    world.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    let mut thing = mk_thing(&shop, "a");
    thing["metadata"]["annotations"] = json!({"work.karmada.io/conflict-resolution": "overwrite"});
    world.hub.create(thing).await;
    world.dfw().has(&THING, &shop, "a", |thing| thing["spec"]["n"] == 1).await;
}

pub async fn a_suspended_object_gets_no_changes_until_it_is_released(world: &World) {
    let shop = world.delivered(&[]).await;
    world
        .hub
        .change(&POLICY, &shop, "p", |policy| policy["spec"]["suspension"] = json!({"dispatching": true}))
        .await;
    let work = polis_federation::names::work("Thing", &shop, "a");
    world
        .hub
        .has(&WORK, "karmada-es-dfw", &work, |work| {
            work["spec"]["suspendDispatching"] == true && condition(work, "Dispatching")["status"] == "False"
        })
        .await;
    world.hub.change(&THING, &shop, "a", |thing| thing["spec"]["n"] = json!(2)).await;
    world.dfw().keeps(&THING, &shop, "a", |copy| copy["spec"]["n"] == 1).await;
    // Status goes on being collected.
    world.dfw().set_status(&THING, &shop, "a", json!({"ready": 5})).await;
    world
        .binding(&shop, "a", |binding| binding["status"]["aggregatedStatus"][0]["status"]["ready"] == 5)
        .await;
    world.hub.change(&POLICY, &shop, "p", |policy| policy["spec"]["suspension"] = json!({})).await;
    world.dfw().has(&THING, &shop, "a", |copy| copy["spec"]["n"] == 2).await;
}

pub async fn one_member_alone_may_be_suspended(world: &World) {
    let shop = world.namespace().await;
    let policy = mk_policy(&shop, "p", to(&["dfw", "ord"]));
    world.hub.create(policy).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.ord().arrives(&THING, &shop, "a").await;
    world.dfw().arrives(&THING, &shop, "a").await;
    let suspension = json!({"dispatchingOnClusters": {"clusterNames": ["ord"]}});
    world.hub.change(&POLICY, &shop, "p", |policy| policy["spec"]["suspension"] = suspension.clone()).await;
    let work = polis_federation::names::work("Thing", &shop, "a");
    world.hub.has(&WORK, "karmada-es-ord", &work, |work| work["spec"]["suspendDispatching"] == true).await;
    world.hub.change(&THING, &shop, "a", |thing| thing["spec"]["n"] = json!(2)).await;
    world.dfw().has(&THING, &shop, "a", |copy| copy["spec"]["n"] == 2).await;
    world.ord().keeps(&THING, &shop, "a", |copy| copy["spec"]["n"] == 1).await;
}

pub async fn a_suspended_object_can_still_be_deleted(world: &World) {
    let shop = world.delivered(&[]).await;
    world
        .hub
        .change(&POLICY, &shop, "p", |policy| policy["spec"]["suspension"] = json!({"dispatching": true}))
        .await;
    let work = polis_federation::names::work("Thing", &shop, "a");
    world.hub.has(&WORK, "karmada-es-dfw", &work, |work| work["spec"]["suspendDispatching"] == true).await;
    world.hub.delete(&THING, &shop, "a").await;
    world.dfw().loses(&THING, &shop, "a").await;
}

pub async fn a_work_says_that_its_object_was_sent_and_taken(world: &World) {
    let shop = world.namespace().await;
    world.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    let name = polis_federation::names::work("Thing", &shop, "a");
    let taken = |work: &serde_json::Value| {
        condition(work, "Applied")["status"] == "True" && condition(work, "Dispatching")["status"] == "True"
    };
    let work = world.hub.has(&WORK, "karmada-es-dfw", &name, taken).await;
    let manifest = &work["spec"]["workload"]["manifests"][0];
    assert_eq!((&manifest["kind"], &manifest["metadata"]["name"]), (&json!("Thing"), &json!("a")));
    assert_eq!(work["metadata"]["annotations"]["resourcebinding.karmada.io/name"], "a-thing");
    assert!(work["metadata"]["labels"]["work.karmada.io/permanent-id"].is_string());
}

pub async fn an_object_suspended_from_the_start_reaches_nobody_until_it_is_released(world: &World) {
    let shop = world.namespace().await;
    let policy = mk_policy(&shop, "p", to(&["dfw"]));
    world.hub.create(with(policy, "/spec/suspension", json!({"dispatching": true}))).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    let work = polis_federation::names::work("Thing", &shop, "a");
    world
        .hub
        .has(&WORK, "karmada-es-dfw", &work, |work| condition(work, "Dispatching")["status"] == "False")
        .await;
    assert_eq!(world.dfw().get(&THING, &shop, "a").await, None);
    world.hub.change(&POLICY, &shop, "p", |policy| policy["spec"]["suspension"] = json!(null)).await;
    world.dfw().arrives(&THING, &shop, "a").await;
}

pub async fn a_label_of_the_hub_that_a_hand_changed_is_put_back(world: &World) {
    let shop = world.namespace().await;
    world.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    world.hub.create(labelled(mk_thing(&shop, "a"), "color", "red")).await;
    world.dfw().arrives(&THING, &shop, "a").await;
    world.dfw().change(&THING, &shop, "a", |copy| copy["metadata"]["labels"]["color"] = json!("blue")).await;
    world.dfw().has(&THING, &shop, "a", |copy| copy["metadata"]["labels"]["color"] == "red").await;
}

pub async fn a_secret_travels_with_its_sort_and_its_bytes(world: &World) {
    let shop = world.namespace().await;
    let selectors = json!([{"apiVersion": "v1", "kind": "Secret", "name": "key"}]);
    world.hub.create(with(mk_policy(&shop, "p", to(&["ord"])), "/spec/resourceSelectors", selectors)).await;
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": shop, "name": "key"},
        "type": "suite.polis.test/key", "data": {"k": "AP8="},
    });
    world.hub.create(secret).await;
    let copy = world.ord().arrives(&SECRET, &shop, "key").await;
    assert_eq!((&copy["type"], &copy["data"]), (&json!("suite.polis.test/key"), &json!({"k": "AP8="})));
    world.hub.change(&SECRET, &shop, "key", |secret| secret["data"] = json!({"l": "AQ=="})).await;
    world.ord().has(&SECRET, &shop, "key", |copy| copy["data"] == json!({"l": "AQ=="})).await;
}

pub async fn a_name_may_be_long_and_have_dots(world: &World) {
    let shop = world.namespace().await;
    let name = format!("a.{}.b", "x".repeat(120));
    world.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    world.hub.create(mk_thing(&shop, &name)).await;
    let copy = world.dfw().arrives(&THING, &shop, &name).await;
    let work = polis_federation::names::work("Thing", &shop, &name);
    assert_eq!(copy["metadata"]["annotations"]["work.karmada.io/name"], work.as_str());
    world.binding(&shop, &name, |binding| names(&binding["spec"]["clusters"]) == ["dfw"]).await;
    world.hub.delete(&THING, &shop, &name).await;
    world.dfw().loses(&THING, &shop, &name).await;
}

pub async fn every_sort_of_value_travels_unharmed(world: &World) {
    let shop = world.namespace().await;
    world.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    let spec = json!({
        "text": "Größe \u{2192} \"7\"\n", "empty": "", "big": 9_007_199_254_740_991_i64, "less": -1, "part": 0.25,
        "yes": true, "no": false, "list": [], "map": {}, "nested": [{"a": [1, [2]]}, {"b": {"c": {}}}],
    });
    world.hub.create(with(mk_thing(&shop, "a"), "/spec", spec.clone())).await;
    let copy = world.dfw().arrives(&THING, &shop, "a").await;
    assert_eq!(copy["spec"], spec);
}

pub async fn what_a_member_refuses_is_said_and_heals_with_the_object(world: &World) {
    let shop = world.namespace().await;
    let kind = super::placement::mk_own_kind();
    super::placement::install(&world.hub, &kind).await;
    // The member is stricter than the hub.
    let mut strict = super::placement::mk_definition(&kind);
    let schema = &mut strict["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    schema["properties"] = json!({"n": {"type": "integer", "maximum": 5}});
    for member in [world.dfw(), world.ord()] {
        member.create(strict.clone()).await;
    }
    let enabled =
        |cluster: &serde_json::Value| cluster["status"]["apiEnablements"].to_string().contains(&*kind.plural);
    for member in ["dfw", "ord"] {
        world.hub.has(&CLUSTER, "", member, enabled).await;
    }
    let selectors = json!([{"apiVersion": kind.api_version, "kind": kind.kind}]);
    world.hub.create(with(mk_policy(&shop, "p", to(&["dfw"])), "/spec/resourceSelectors", selectors)).await;
    let object = json!({
        "apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"namespace": shop, "name": "a"}, "spec": {"n": 9},
    });
    world.hub.api.create(&kind, &object).await.expect("created");
    let binding = polis_federation::names::binding(&kind.kind, "a");
    let refused = |binding: &serde_json::Value| {
        let said = &binding["status"]["aggregatedStatus"][0];
        said["appliedMessage"].as_str().is_some_and(|message| message.contains("less than or equal to 5"))
    };
    let told = world.hub.has(&BINDING, &shop, &binding, refused).await;
    assert_eq!(condition(&told, "FullyApplied")["status"], "False");
    world.hub.change(&kind, &shop, "a", |object| object["spec"]["n"] = json!(3)).await;
    world.dfw().has(&kind, &shop, "a", |copy| copy["spec"]["n"] == 3).await;
    let healed = |binding: &serde_json::Value| condition(binding, "FullyApplied")["status"] == "True";
    world.hub.has(&BINDING, &shop, &binding, healed).await;
}
