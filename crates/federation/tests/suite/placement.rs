//! Placement of objects on clusters.

use polis_engine::ResourceScope::Namespaced;
use serde_json::{Value, json};

use super::fixture::*;

/// Sets or removes a label of a Cluster.
async fn label_cluster(federation: &TestFederation, cluster: &str, label: &str, value: Option<&str>) {
    federation
        .hub
        .change(&CLUSTER, "", cluster, |cluster| {
            if !cluster["metadata"]["labels"].is_object() {
                cluster["metadata"]["labels"] = json!({});
            }
            match value {
                Some(value) => cluster["metadata"]["labels"][label] = json!(value),
                None => drop(cluster["metadata"]["labels"].as_object_mut().expect("labels").remove(label)),
            }
        })
        .await;
}

fn by_label(label: &str, value: &str) -> Value {
    json!({"clusterAffinity": {"labelSelector": {"matchLabels": {label: value}}}})
}

pub async fn an_empty_placement_selects_all_clusters(federation: &TestFederation) {
    let shop = federation.namespace().await;
    federation.hub.create(mk_policy(&shop, "p", json!({}))).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.dfw().arrives(&THING, &shop, "a").await;
    federation.ord().arrives(&THING, &shop, "a").await;
    let binding =
        federation.binding(&shop, "a", |binding| condition(binding, "Scheduled")["status"] == "True").await;
    assert_eq!(names(&binding["spec"]["clusters"]).len(), 2);
}

pub async fn an_excluded_cluster_gets_nothing(federation: &TestFederation) {
    let shop = federation.namespace().await;
    federation.hub.create(mk_policy(&shop, "p", json!({"clusterAffinity": {"exclude": ["ord"]}}))).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.dfw().arrives(&THING, &shop, "a").await;
    federation.ord().lacks(&THING, &shop, "a").await;
}

pub async fn placement_follows_the_labels_of_clusters(federation: &TestFederation) {
    let shop = federation.namespace().await;
    let label = format!("suite.polis.test/{shop}");
    federation.hub.create(mk_policy(&shop, "p", by_label(&label, "yes"))).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation
        .binding(&shop, "a", |binding| condition(binding, "Scheduled")["reason"] == "NoClusterFit")
        .await;
    label_cluster(federation, "dfw", &label, Some("yes")).await;
    federation.dfw().arrives(&THING, &shop, "a").await;
    label_cluster(federation, "ord", &label, Some("yes")).await;
    federation.ord().arrives(&THING, &shop, "a").await;
    label_cluster(federation, "dfw", &label, None).await;
    federation.dfw().loses(&THING, &shop, "a").await;
    federation.ord().keeps(&THING, &shop, "a", |_| true).await;
    label_cluster(federation, "ord", &label, None).await;
    federation.ord().loses(&THING, &shop, "a").await;
}

pub async fn no_matching_cluster_is_reported_on_the_binding(federation: &TestFederation) {
    let shop = federation.namespace().await;
    federation.hub.create(mk_policy(&shop, "p", to(&["nowhere"]))).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    let binding =
        federation.binding(&shop, "a", |binding| condition(binding, "Scheduled")["status"] == "False").await;
    assert_eq!(condition(&binding, "Scheduled")["reason"], "NoClusterFit");
    assert!(
        condition(&binding, "Scheduled")["message"]
            .as_str()
            .is_some_and(|message| message.contains("clusters are available"))
    );
}

pub async fn a_changed_placement_moves_the_object(federation: &TestFederation) {
    let shop = federation.delivered(&[]).await;
    federation.hub.change(&POLICY, &shop, "p", |policy| policy["spec"]["placement"] = to(&["ord"])).await;
    federation.ord().arrives(&THING, &shop, "a").await;
    federation.dfw().loses(&THING, &shop, "a").await;
    let binding =
        federation.binding(&shop, "a", |binding| names(&binding["spec"]["clusters"]) == ["ord"]).await;
    let applied: Value = serde_json::from_str(
        binding["metadata"]["annotations"]["policy.karmada.io/applied-placement"]
            .as_str()
            .unwrap_or_default(),
    )
    .expect("JSON");
    assert_eq!(applied["clusterAffinity"]["clusterNames"], json!(["ord"]));
}

pub async fn one_of_several_clusters_is_selected_and_stays_selected(federation: &TestFederation) {
    let shop = federation.namespace().await;
    let label = format!("suite.polis.test/{shop}");
    label_cluster(federation, "ord", &label, Some("yes")).await;
    let mut placement = by_label(&label, "yes");
    placement["spreadConstraints"] = json!([{"spreadByField": "cluster", "minGroups": 1, "maxGroups": 1}]);
    federation.hub.create(mk_policy(&shop, "p", placement)).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.ord().arrives(&THING, &shop, "a").await;
    // `dfw` sorts before `ord`, but the object stays on its cluster.
    label_cluster(federation, "dfw", &label, Some("yes")).await;
    federation.hub.change(&THING, &shop, "a", |thing| thing["spec"]["n"] = json!(2)).await;
    federation.ord().has(&THING, &shop, "a", |copy| copy["spec"]["n"] == 2).await;
    federation.dfw().lacks(&THING, &shop, "a").await;
    // A new object goes to the first cluster by name.
    federation.hub.create(mk_thing(&shop, "b")).await;
    federation.dfw().arrives(&THING, &shop, "b").await;
    federation.ord().lacks(&THING, &shop, "b").await;
    // Without the label, the object moves.
    label_cluster(federation, "ord", &label, None).await;
    federation.dfw().arrives(&THING, &shop, "a").await;
    federation.ord().loses(&THING, &shop, "a").await;
}

async fn set_taints(federation: &TestFederation, cluster: &str, key: &str, on: bool) {
    federation
        .hub
        .change(&CLUSTER, "", cluster, |cluster| {
            let mut taints = cluster["spec"]["taints"].as_array().cloned().unwrap_or_default();
            taints.retain(|taint| taint["key"] != key);
            if on {
                taints.push(json!({"key": key, "value": "x", "effect": "NoSchedule"}));
            }
            cluster["spec"]["taints"] = json!(taints);
        })
        .await;
}

pub async fn a_tainted_cluster_gets_nothing_new_and_keeps_what_it_has(federation: &TestFederation) {
    let shop = federation.namespace().await;
    // The key is unique to this case; the runner also runs taint cases alone.
    let key = format!("suite.polis.test/{shop}");
    federation.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    federation.hub.create(mk_thing(&shop, "before")).await;
    federation.dfw().arrives(&THING, &shop, "before").await;
    set_taints(federation, "dfw", &key, true).await;
    federation.hub.create(mk_thing(&shop, "after")).await;
    federation.binding(&shop, "after", |binding| condition(binding, "Scheduled")["status"] == "False").await;
    federation.dfw().lacks(&THING, &shop, "after").await;
    federation.dfw().keeps(&THING, &shop, "before", |_| true).await;
    let mut tolerant = to(&["dfw"]);
    tolerant["clusterTolerations"] = json!([{"key": key, "operator": "Exists"}]);
    federation.hub.change(&POLICY, &shop, "p", |policy| policy["spec"]["placement"] = tolerant.clone()).await;
    federation.dfw().arrives(&THING, &shop, "after").await;
    set_taints(federation, "dfw", &key, false).await;
}

pub async fn removing_a_taint_schedules_waiting_objects(federation: &TestFederation) {
    let shop = federation.namespace().await;
    let key = format!("suite.polis.test/{shop}");
    set_taints(federation, "ord", &key, true).await;
    federation.hub.create(mk_policy(&shop, "p", to(&["ord"]))).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.binding(&shop, "a", |binding| condition(binding, "Scheduled")["status"] == "False").await;
    set_taints(federation, "ord", &key, false).await;
    federation.ord().arrives(&THING, &shop, "a").await;
}

pub async fn affinity_groups_are_tried_in_order(federation: &TestFederation) {
    let shop = federation.namespace().await;
    let placement = json!({"clusterAffinities": [
        {"affinityName": "first", "clusterNames": ["nowhere"]},
        {"affinityName": "second", "clusterNames": ["ord"]},
    ]});
    federation.hub.create(mk_policy(&shop, "p", placement)).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.ord().arrives(&THING, &shop, "a").await;
    federation
        .binding(&shop, "a", |binding| binding["status"]["schedulerObservingAffinityName"] == "second")
        .await;
}

pub async fn too_few_clusters_for_the_spread_is_reported_on_the_binding(federation: &TestFederation) {
    let shop = federation.namespace().await;
    let mut placement = to(&["dfw"]);
    placement["spreadConstraints"] = json!([{"spreadByField": "cluster", "minGroups": 2, "maxGroups": 2}]);
    federation.hub.create(mk_policy(&shop, "p", placement)).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.binding(&shop, "a", |binding| condition(binding, "Scheduled")["status"] == "False").await;
    federation.dfw().lacks(&THING, &shop, "a").await;
}

pub async fn a_field_selector_selects_clusters(federation: &TestFederation) {
    let shop = federation.namespace().await;
    federation.hub.change(&CLUSTER, "", "ord", |cluster| cluster["spec"]["provider"] = json!(shop)).await;
    let fields = json!({"matchExpressions": [{"key": "provider", "operator": "In", "values": [shop]}]});
    federation.hub.create(mk_policy(&shop, "p", json!({"clusterAffinity": {"fieldSelector": fields}}))).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.ord().arrives(&THING, &shop, "a").await;
    let binding = federation.binding(&shop, "a", |binding| binding["spec"]["clusters"].is_array()).await;
    assert_eq!(names(&binding["spec"]["clusters"]), ["ord"]);
}

pub async fn an_exclusion_has_precedence_over_a_name(federation: &TestFederation) {
    let shop = federation.namespace().await;
    let affinity = json!({"clusterNames": ["dfw", "ord"], "exclude": ["dfw"]});
    federation.hub.create(mk_policy(&shop, "p", json!({"clusterAffinity": affinity}))).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.ord().arrives(&THING, &shop, "a").await;
    let binding = federation.binding(&shop, "a", |binding| binding["spec"]["clusters"].is_array()).await;
    assert_eq!(names(&binding["spec"]["clusters"]), ["ord"]);
}

pub async fn clusters_must_match_by_name_and_by_label(federation: &TestFederation) {
    let shop = federation.namespace().await;
    let label = format!("suite.polis.test/{shop}");
    for member in ["dfw", "ord"] {
        label_cluster(federation, member, &label, Some(member)).await;
    }
    let labels = json!({"matchExpressions": [{"key": label, "operator": "Exists"}]});
    let affinity = json!({"clusterNames": ["ord", "nowhere"], "labelSelector": labels});
    federation.hub.create(mk_policy(&shop, "p", json!({"clusterAffinity": affinity}))).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.ord().arrives(&THING, &shop, "a").await;
    let binding = federation.binding(&shop, "a", |binding| binding["spec"]["clusters"].is_array()).await;
    assert_eq!(names(&binding["spec"]["clusters"]), ["ord"]);
    for member in ["dfw", "ord"] {
        label_cluster(federation, member, &label, None).await;
    }
    federation.ord().loses(&THING, &shop, "a").await;
}

pub async fn adding_a_cluster_does_not_change_the_first_copy(federation: &TestFederation) {
    let shop = federation.namespace().await;
    federation.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    let first = federation.dfw().arrives(&THING, &shop, "a").await;
    federation
        .hub
        .change(&POLICY, &shop, "p", |policy| policy["spec"]["placement"] = to(&["dfw", "ord"]))
        .await;
    federation.ord().arrives(&THING, &shop, "a").await;
    let still = federation.dfw().arrives(&THING, &shop, "a").await;
    assert_eq!(still["metadata"]["uid"], first["metadata"]["uid"]);
    // Removing a cluster deletes only its own copy.
    federation.hub.change(&POLICY, &shop, "p", |policy| policy["spec"]["placement"] = to(&["dfw"])).await;
    federation.ord().loses(&THING, &shop, "a").await;
    let still = federation.dfw().arrives(&THING, &shop, "a").await;
    assert_eq!(still["metadata"]["uid"], first["metadata"]["uid"]);
}

pub async fn a_binding_reports_its_scheduled_generation(federation: &TestFederation) {
    let shop = federation.namespace().await;
    federation.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    let placed = |binding: &Value| {
        binding["status"]["schedulerObservedGeneration"] == binding["metadata"]["generation"]
            && binding["status"]["lastScheduledTime"].is_string()
            && condition(binding, "Scheduled")["status"] == "True"
    };
    let binding = federation.binding(&shop, "a", placed).await;
    assert_eq!(condition(&binding, "Scheduled")["reason"], "Success");
    assert_eq!(binding["spec"]["schedulerName"], "default-scheduler");
}

pub async fn a_tainted_cluster_gets_objects_that_tolerate_the_taint(federation: &TestFederation) {
    let shop = federation.namespace().await;
    let key = format!("suite.polis.test/{shop}");
    set_taints(federation, "ord", &key, true).await;
    let mut tolerant = to(&["ord"]);
    tolerant["clusterTolerations"] =
        json!([{"key": key, "operator": "Equal", "value": "x", "effect": "NoSchedule"}]);
    federation.hub.create(mk_policy(&shop, "p", tolerant)).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.ord().arrives(&THING, &shop, "a").await;
    set_taints(federation, "ord", &key, false).await;
}

/// Creates a kind with replicas, defined by scripts, and a policy for it.
async fn with_replicas(federation: &TestFederation, placement: Value) -> (Kind, String) {
    let shop = federation.namespace().await;
    let (kind, plural) = install_own_kind(federation).await;
    let scripts = json!({
        "apiVersion": "config.karmada.io/v1alpha1", "kind": "ResourceInterpreterCustomization", "metadata": {"name": plural},
        "spec": {
            "target": {"apiVersion": "suite.polis.test/v1", "kind": kind.kind},
            "customizations": {
                "replicaResource": {"luaScript": "function GetReplicas(obj) return obj.spec.size, nil end"},
                "replicaRevision": {"luaScript": "function ReviseReplica(obj, n) obj.spec.size = n return obj end"},
            },
        },
    });
    federation.hub.create(scripts).await;
    let selectors = json!([{"apiVersion": "suite.polis.test/v1", "kind": kind.kind}]);
    federation.hub.create(with(mk_policy(&shop, "p", placement), "/spec/resourceSelectors", selectors)).await;
    (kind, shop)
}

fn mk_replicated(kind: &Kind, namespace: &str, size: u32) -> Value {
    json!({"apiVersion": "suite.polis.test/v1", "kind": kind.kind, "metadata": {"namespace": namespace, "name": "a"}, "spec": {"size": size}})
}

pub async fn duplicated_replicas_are_equal_on_all_members(federation: &TestFederation) {
    let (kind, shop) = with_replicas(federation, to(&["dfw", "ord"])).await;
    federation.hub.api.create(&kind, &mk_replicated(&kind, &shop, 4)).await.expect("created");
    for member in [federation.dfw(), federation.ord()] {
        member.has(&kind, &shop, "a", |copy| copy["spec"]["size"] == 4).await;
    }
    let name = polis_federation::names::binding(&kind.kind, "a");
    let binding =
        federation.hub.has(&BINDING, &shop, &name, |binding| binding["spec"]["replicas"] == 4).await;
    let counts: Vec<&Value> = binding["spec"]["clusters"]
        .as_array()
        .expect("clusters")
        .iter()
        .map(|one| &one["replicas"])
        .collect();
    assert_eq!(counts, [&json!(4), &json!(4)]);
    federation.hub.change(&kind, &shop, "a", |object| object["spec"]["size"] = json!(6)).await;
    for member in [federation.dfw(), federation.ord()] {
        member.has(&kind, &shop, "a", |copy| copy["spec"]["size"] == 6).await;
    }
}

pub async fn replicas_are_divided_by_static_weights(federation: &TestFederation) {
    let mut placement = to(&["dfw", "ord"]);
    placement["replicaScheduling"] = json!({
        "replicaSchedulingType": "Divided", "replicaDivisionPreference": "Weighted",
        "weightPreference": {"staticWeightList": [
            {"targetCluster": {"clusterNames": ["dfw"]}, "weight": 1}, {"targetCluster": {"clusterNames": ["ord"]}, "weight": 2},
        ]},
    });
    let (kind, shop) = with_replicas(federation, placement).await;
    federation.hub.api.create(&kind, &mk_replicated(&kind, &shop, 9)).await.expect("created");
    federation.dfw().has(&kind, &shop, "a", |copy| copy["spec"]["size"] == 3).await;
    federation.ord().has(&kind, &shop, "a", |copy| copy["spec"]["size"] == 6).await;
    federation.hub.change(&kind, &shop, "a", |object| object["spec"]["size"] = json!(3)).await;
    federation.dfw().has(&kind, &shop, "a", |copy| copy["spec"]["size"] == 1).await;
    federation.ord().has(&kind, &shop, "a", |copy| copy["spec"]["size"] == 2).await;
}

/// Installs a new kind on the hub and both members.
pub async fn install_own_kind(federation: &TestFederation) -> (Kind, String) {
    let kind = mk_own_kind();
    for plane in [&federation.hub, federation.dfw(), federation.ord()] {
        install(plane, &kind).await;
    }
    let enabled = |cluster: &Value| cluster["status"]["apiEnablements"].to_string().contains(&*kind.plural);
    for member in ["dfw", "ord"] {
        federation.hub.has(&CLUSTER, "", member, enabled).await;
    }
    let plural = kind.plural.to_string();
    (kind, plural)
}

pub fn mk_own_kind() -> Kind {
    let name = unique("own").replace('-', "x");
    Kind {
        group: "suite.polis.test".into(),
        version: "v1".into(),
        kind: format!("O{}", &name[1..]).into(),
        plural: format!("{name}s").into(),
        scope: Namespaced,
    }
}

pub async fn install(plane: &Plane, kind: &Kind) {
    plane.create(mk_crd(kind)).await;
    eventually(&format!("{kind} is served by {}", plane.name), || async {
        plane.api.serves(kind).await.then_some(())
    })
    .await;
}

pub fn mk_crd(kind: &Kind) -> Value {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": format!("{}.suite.polis.test", kind.plural)},
        "spec": {
            "group": "suite.polis.test", "scope": if kind.scope == Namespaced { "Namespaced" } else { "Cluster" },
            "names": {"kind": kind.kind, "plural": kind.plural, "singular": kind.kind.to_lowercase(), "listKind": format!("{}List", kind.kind)},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": open, "status": open}}},
            }],
        },
    })
}

/// Embedded only: Karmada schedules such a binding only after a change of its object or of a cluster's
/// labels.
pub async fn an_object_is_scheduled_when_its_api_appears(federation: &TestFederation) {
    let shop = federation.namespace().await;
    let kind = mk_own_kind();
    install(&federation.hub, &kind).await;
    install(federation.dfw(), &kind).await;
    let selectors = json!([{"apiVersion": "suite.polis.test/v1", "kind": kind.kind}]);
    federation.hub.create(with(mk_policy(&shop, "p", json!({})), "/spec/resourceSelectors", selectors)).await;
    let object = json!({"apiVersion": "suite.polis.test/v1", "kind": kind.kind, "metadata": {"namespace": shop, "name": "a"}, "spec": {"n": 1}});
    federation.hub.api.create(&kind, &object).await.expect("created");
    federation.dfw().arrives(&kind, &shop, "a").await;
    let binding_name = polis_federation::names::binding(&kind.kind, "a");
    federation
        .hub
        .has(&BINDING, &shop, &binding_name, |binding| names(&binding["spec"]["clusters"]) == ["dfw"])
        .await;
    install(federation.ord(), &kind).await;
    federation.ord().arrives(&kind, &shop, "a").await;
}
