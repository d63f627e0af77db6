//! Which clusters an object goes to.

use serde_json::{Value, json};

use super::world::*;

/// A label that only this case sets on clusters.
async fn mark_cluster(world: &World, cluster: &str, label: &str, value: Option<&str>) {
    world
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

pub async fn an_empty_placement_means_everywhere(world: &World) {
    let shop = world.namespace().await;
    world.hub.create(mk_policy(&shop, "p", json!({}))).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.dfw().arrives(&THING, &shop, "a").await;
    world.ord().arrives(&THING, &shop, "a").await;
    let binding =
        world.binding(&shop, "a", |binding| condition(binding, "Scheduled")["status"] == "True").await;
    assert_eq!(names(&binding["spec"]["clusters"]).len(), 2);
}

pub async fn an_excluded_cluster_gets_nothing(world: &World) {
    let shop = world.namespace().await;
    world.hub.create(mk_policy(&shop, "p", json!({"clusterAffinity": {"exclude": ["ord"]}}))).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.dfw().arrives(&THING, &shop, "a").await;
    world.ord().lacks(&THING, &shop, "a").await;
}

pub async fn an_object_follows_the_labels_of_clusters(world: &World) {
    let shop = world.namespace().await;
    let label = format!("suite.polis.test/{shop}");
    world.hub.create(mk_policy(&shop, "p", by_label(&label, "yes"))).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.binding(&shop, "a", |binding| condition(binding, "Scheduled")["reason"] == "NoClusterFit").await;
    mark_cluster(world, "dfw", &label, Some("yes")).await;
    world.dfw().arrives(&THING, &shop, "a").await;
    mark_cluster(world, "ord", &label, Some("yes")).await;
    world.ord().arrives(&THING, &shop, "a").await;
    mark_cluster(world, "dfw", &label, None).await;
    world.dfw().loses(&THING, &shop, "a").await;
    world.ord().keeps(&THING, &shop, "a", |_| true).await;
    mark_cluster(world, "ord", &label, None).await;
    world.ord().loses(&THING, &shop, "a").await;
}

pub async fn nothing_that_fits_is_said_on_the_binding(world: &World) {
    let shop = world.namespace().await;
    world.hub.create(mk_policy(&shop, "p", to(&["nowhere"]))).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    let binding =
        world.binding(&shop, "a", |binding| condition(binding, "Scheduled")["status"] == "False").await;
    assert_eq!(condition(&binding, "Scheduled")["reason"], "NoClusterFit");
    assert!(
        condition(&binding, "Scheduled")["message"]
            .as_str()
            .is_some_and(|message| message.contains("clusters are available"))
    );
}

pub async fn a_changed_placement_moves_the_object(world: &World) {
    let shop = world.delivered(&[]).await;
    world.hub.change(&POLICY, &shop, "p", |policy| policy["spec"]["placement"] = to(&["ord"])).await;
    world.ord().arrives(&THING, &shop, "a").await;
    world.dfw().loses(&THING, &shop, "a").await;
    let binding = world.binding(&shop, "a", |binding| names(&binding["spec"]["clusters"]) == ["ord"]).await;
    let applied: Value = serde_json::from_str(
        binding["metadata"]["annotations"]["policy.karmada.io/applied-placement"]
            .as_str()
            .unwrap_or_default(),
    )
    .expect("JSON");
    assert_eq!(applied["clusterAffinity"]["clusterNames"], json!(["ord"]));
}

pub async fn one_of_several_clusters_is_chosen_and_stays_chosen(world: &World) {
    let shop = world.namespace().await;
    let label = format!("suite.polis.test/{shop}");
    mark_cluster(world, "ord", &label, Some("yes")).await;
    let mut placement = by_label(&label, "yes");
    placement["spreadConstraints"] = json!([{"spreadByField": "cluster", "minGroups": 1, "maxGroups": 1}]);
    world.hub.create(mk_policy(&shop, "p", placement)).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.ord().arrives(&THING, &shop, "a").await;
    // `dfw` comes before `ord` in the alphabet, but the object is where it is.
    mark_cluster(world, "dfw", &label, Some("yes")).await;
    world.hub.change(&THING, &shop, "a", |thing| thing["spec"]["n"] = json!(2)).await;
    world.ord().has(&THING, &shop, "a", |copy| copy["spec"]["n"] == 2).await;
    world.dfw().lacks(&THING, &shop, "a").await;
    // A new one goes by the alphabet.
    world.hub.create(mk_thing(&shop, "b")).await;
    world.dfw().arrives(&THING, &shop, "b").await;
    world.ord().lacks(&THING, &shop, "b").await;
    // The label gone, it moves.
    mark_cluster(world, "ord", &label, None).await;
    world.dfw().arrives(&THING, &shop, "a").await;
    world.ord().loses(&THING, &shop, "a").await;
}

async fn set_taints(world: &World, cluster: &str, key: &str, on: bool) {
    world
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

pub async fn a_tainted_cluster_gets_nothing_new_and_keeps_what_it_has(world: &World) {
    let shop = world.namespace().await;
    // Only policies that do not tolerate it see this taint: others in this world may run beside us.
    let key = format!("suite.polis.test/{shop}");
    world.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    world.hub.create(mk_thing(&shop, "before")).await;
    world.dfw().arrives(&THING, &shop, "before").await;
    set_taints(world, "dfw", &key, true).await;
    world.hub.create(mk_thing(&shop, "after")).await;
    world.binding(&shop, "after", |binding| condition(binding, "Scheduled")["status"] == "False").await;
    world.dfw().lacks(&THING, &shop, "after").await;
    world.dfw().keeps(&THING, &shop, "before", |_| true).await;
    let mut tolerant = to(&["dfw"]);
    tolerant["clusterTolerations"] = json!([{"key": key, "operator": "Exists"}]);
    world.hub.change(&POLICY, &shop, "p", |policy| policy["spec"]["placement"] = tolerant.clone()).await;
    world.dfw().arrives(&THING, &shop, "after").await;
    set_taints(world, "dfw", &key, false).await;
}

pub async fn a_taint_that_goes_lets_waiting_objects_in(world: &World) {
    let shop = world.namespace().await;
    let key = format!("suite.polis.test/{shop}");
    set_taints(world, "ord", &key, true).await;
    world.hub.create(mk_policy(&shop, "p", to(&["ord"]))).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.binding(&shop, "a", |binding| condition(binding, "Scheduled")["status"] == "False").await;
    set_taints(world, "ord", &key, false).await;
    world.ord().arrives(&THING, &shop, "a").await;
}

pub async fn groups_of_clusters_are_tried_in_order(world: &World) {
    let shop = world.namespace().await;
    let placement = json!({"clusterAffinities": [
        {"affinityName": "first", "clusterNames": ["nowhere"]},
        {"affinityName": "second", "clusterNames": ["ord"]},
    ]});
    world.hub.create(mk_policy(&shop, "p", placement)).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.ord().arrives(&THING, &shop, "a").await;
    world
        .binding(&shop, "a", |binding| binding["status"]["schedulerObservingAffinityName"] == "second")
        .await;
}

pub async fn a_wish_for_more_clusters_than_fit_is_said_on_the_binding(world: &World) {
    let shop = world.namespace().await;
    let mut placement = to(&["dfw"]);
    placement["spreadConstraints"] = json!([{"spreadByField": "cluster", "minGroups": 2, "maxGroups": 2}]);
    world.hub.create(mk_policy(&shop, "p", placement)).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.binding(&shop, "a", |binding| condition(binding, "Scheduled")["status"] == "False").await;
    world.dfw().lacks(&THING, &shop, "a").await;
}

pub async fn a_field_of_clusters_chooses_among_them(world: &World) {
    let shop = world.namespace().await;
    world.hub.change(&CLUSTER, "", "ord", |cluster| cluster["spec"]["provider"] = json!(shop)).await;
    let fields = json!({"matchExpressions": [{"key": "provider", "operator": "In", "values": [shop]}]});
    world.hub.create(mk_policy(&shop, "p", json!({"clusterAffinity": {"fieldSelector": fields}}))).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.ord().arrives(&THING, &shop, "a").await;
    let binding = world.binding(&shop, "a", |binding| binding["spec"]["clusters"].is_array()).await;
    assert_eq!(names(&binding["spec"]["clusters"]), ["ord"]);
}

pub async fn an_exclusion_outranks_a_name(world: &World) {
    let shop = world.namespace().await;
    let affinity = json!({"clusterNames": ["dfw", "ord"], "exclude": ["dfw"]});
    world.hub.create(mk_policy(&shop, "p", json!({"clusterAffinity": affinity}))).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.ord().arrives(&THING, &shop, "a").await;
    let binding = world.binding(&shop, "a", |binding| binding["spec"]["clusters"].is_array()).await;
    assert_eq!(names(&binding["spec"]["clusters"]), ["ord"]);
}

pub async fn clusters_must_fit_by_name_and_by_label(world: &World) {
    let shop = world.namespace().await;
    let label = format!("suite.polis.test/{shop}");
    for member in ["dfw", "ord"] {
        mark_cluster(world, member, &label, Some(member)).await;
    }
    let labels = json!({"matchExpressions": [{"key": label, "operator": "Exists"}]});
    let affinity = json!({"clusterNames": ["ord", "nowhere"], "labelSelector": labels});
    world.hub.create(mk_policy(&shop, "p", json!({"clusterAffinity": affinity}))).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.ord().arrives(&THING, &shop, "a").await;
    let binding = world.binding(&shop, "a", |binding| binding["spec"]["clusters"].is_array()).await;
    assert_eq!(names(&binding["spec"]["clusters"]), ["ord"]);
    for member in ["dfw", "ord"] {
        mark_cluster(world, member, &label, None).await;
    }
    world.ord().loses(&THING, &shop, "a").await;
}

pub async fn a_cluster_that_is_added_leaves_the_first_copy_as_it_is(world: &World) {
    let shop = world.namespace().await;
    world.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    let first = world.dfw().arrives(&THING, &shop, "a").await;
    world.hub.change(&POLICY, &shop, "p", |policy| policy["spec"]["placement"] = to(&["dfw", "ord"])).await;
    world.ord().arrives(&THING, &shop, "a").await;
    let still = world.dfw().arrives(&THING, &shop, "a").await;
    assert_eq!(still["metadata"]["uid"], first["metadata"]["uid"]);
    // And one that is taken away takes only its own copy along.
    world.hub.change(&POLICY, &shop, "p", |policy| policy["spec"]["placement"] = to(&["dfw"])).await;
    world.ord().loses(&THING, &shop, "a").await;
    let still = world.dfw().arrives(&THING, &shop, "a").await;
    assert_eq!(still["metadata"]["uid"], first["metadata"]["uid"]);
}

pub async fn a_binding_tells_which_of_its_states_was_placed(world: &World) {
    let shop = world.namespace().await;
    world.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    let placed = |binding: &Value| {
        binding["status"]["schedulerObservedGeneration"] == binding["metadata"]["generation"]
            && binding["status"]["lastScheduledTime"].is_string()
            && condition(binding, "Scheduled")["status"] == "True"
    };
    let binding = world.binding(&shop, "a", placed).await;
    assert_eq!(condition(&binding, "Scheduled")["reason"], "Success");
    assert_eq!(binding["spec"]["schedulerName"], "default-scheduler");
}

pub async fn a_tainted_cluster_takes_what_tolerates_it(world: &World) {
    let shop = world.namespace().await;
    let key = format!("suite.polis.test/{shop}");
    set_taints(world, "ord", &key, true).await;
    let mut tolerant = to(&["ord"]);
    tolerant["clusterTolerations"] =
        json!([{"key": key, "operator": "Equal", "value": "x", "effect": "NoSchedule"}]);
    world.hub.create(mk_policy(&shop, "p", tolerant)).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.ord().arrives(&THING, &shop, "a").await;
    set_taints(world, "ord", &key, false).await;
}

/// A kind whose objects have a size, which scripts read and write; and a policy over it.
async fn sized(world: &World, placement: Value) -> (polis_federation::planes::Kind, String) {
    let shop = world.namespace().await;
    let (kind, plural) = own_kind(world).await;
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
    world.hub.create(scripts).await;
    let selectors = json!([{"apiVersion": "suite.polis.test/v1", "kind": kind.kind}]);
    world.hub.create(with(mk_policy(&shop, "p", placement), "/spec/resourceSelectors", selectors)).await;
    (kind, shop)
}

fn mk_sized(kind: &polis_federation::planes::Kind, namespace: &str, size: u32) -> Value {
    json!({"apiVersion": "suite.polis.test/v1", "kind": kind.kind, "metadata": {"namespace": namespace, "name": "a"}, "spec": {"size": size}})
}

pub async fn replicas_that_are_not_divided_are_the_same_everywhere(world: &World) {
    let (kind, shop) = sized(world, to(&["dfw", "ord"])).await;
    world.hub.api.create(&kind, &mk_sized(&kind, &shop, 4)).await.expect("created");
    for member in [world.dfw(), world.ord()] {
        member.has(&kind, &shop, "a", |copy| copy["spec"]["size"] == 4).await;
    }
    let name = polis_federation::names::binding(&kind.kind, "a");
    let binding = world.hub.has(&BINDING, &shop, &name, |binding| binding["spec"]["replicas"] == 4).await;
    let counts: Vec<&Value> = binding["spec"]["clusters"]
        .as_array()
        .expect("clusters")
        .iter()
        .map(|one| &one["replicas"])
        .collect();
    assert_eq!(counts, [&json!(4), &json!(4)]);
    world.hub.change(&kind, &shop, "a", |object| object["spec"]["size"] = json!(6)).await;
    for member in [world.dfw(), world.ord()] {
        member.has(&kind, &shop, "a", |copy| copy["spec"]["size"] == 6).await;
    }
}

pub async fn replicas_are_shared_out_by_static_weights(world: &World) {
    let mut placement = to(&["dfw", "ord"]);
    placement["replicaScheduling"] = json!({
        "replicaSchedulingType": "Divided", "replicaDivisionPreference": "Weighted",
        "weightPreference": {"staticWeightList": [
            {"targetCluster": {"clusterNames": ["dfw"]}, "weight": 1}, {"targetCluster": {"clusterNames": ["ord"]}, "weight": 2},
        ]},
    });
    let (kind, shop) = sized(world, placement).await;
    world.hub.api.create(&kind, &mk_sized(&kind, &shop, 9)).await.expect("created");
    world.dfw().has(&kind, &shop, "a", |copy| copy["spec"]["size"] == 3).await;
    world.ord().has(&kind, &shop, "a", |copy| copy["spec"]["size"] == 6).await;
    world.hub.change(&kind, &shop, "a", |object| object["spec"]["size"] = json!(3)).await;
    world.dfw().has(&kind, &shop, "a", |copy| copy["spec"]["size"] == 1).await;
    world.ord().has(&kind, &shop, "a", |copy| copy["spec"]["size"] == 2).await;
}

/// A kind that only this case uses, on the hub and both members.
pub async fn own_kind(world: &World) -> (polis_federation::planes::Kind, String) {
    let kind = mk_own_kind();
    for plane in [&world.hub, world.dfw(), world.ord()] {
        install(plane, &kind).await;
    }
    let enabled = |cluster: &Value| cluster["status"]["apiEnablements"].to_string().contains(&*kind.plural);
    for member in ["dfw", "ord"] {
        world.hub.has(&CLUSTER, "", member, enabled).await;
    }
    let plural = kind.plural.to_string();
    (kind, plural)
}

pub fn mk_own_kind() -> polis_federation::planes::Kind {
    let name = unique("own").replace('-', "x");
    polis_federation::planes::Kind {
        api_version: "suite.polis.test/v1".into(),
        kind: format!("O{}", &name[1..]).into(),
        plural: format!("{name}s").into(),
        namespaced: true,
    }
}

pub async fn install(plane: &Plane, kind: &polis_federation::planes::Kind) {
    plane.create(mk_definition(kind)).await;
    eventually(&format!("{kind} is served by {}", plane.name), || async {
        plane
            .api
            .find_kind(&polis_federation::interpreter::Target {
                api_version: kind.api_version.to_string(),
                kind: kind.kind.to_string(),
            })
            .await
            .ok()?
    })
    .await;
}

pub fn mk_definition(kind: &polis_federation::planes::Kind) -> Value {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": format!("{}.suite.polis.test", kind.plural)},
        "spec": {
            "group": "suite.polis.test", "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
            "names": {"kind": kind.kind, "plural": kind.plural, "singular": kind.kind.to_lowercase(), "listKind": format!("{}List", kind.kind)},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": open, "status": open}}},
            }],
        },
    })
}

/// Better than Karmada, which places such a binding only after its object or a cluster's labels change.
pub async fn an_object_waits_for_its_api_and_is_placed_when_the_api_appears(world: &World) {
    let shop = world.namespace().await;
    let kind = mk_own_kind();
    install(&world.hub, &kind).await;
    install(world.dfw(), &kind).await;
    let selectors = json!([{"apiVersion": "suite.polis.test/v1", "kind": kind.kind}]);
    world.hub.create(with(mk_policy(&shop, "p", json!({})), "/spec/resourceSelectors", selectors)).await;
    let object = json!({"apiVersion": "suite.polis.test/v1", "kind": kind.kind, "metadata": {"namespace": shop, "name": "a"}, "spec": {"n": 1}});
    world.hub.api.create(&kind, &object).await.expect("created");
    world.dfw().arrives(&kind, &shop, "a").await;
    let binding_name = polis_federation::names::binding(&kind.kind, "a");
    world
        .hub
        .has(&BINDING, &shop, &binding_name, |binding| names(&binding["spec"]["clusters"]) == ["dfw"])
        .await;
    install(world.ord(), &kind).await;
    world.ord().arrives(&kind, &shop, "a").await;
}
