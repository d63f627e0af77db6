use super::*;
use serde_json::json;

const API: (&str, &str) = ("example.io/v1", "Thing");

fn mk_cluster(name: &str, city: &str) -> Candidate {
    Candidate {
        name: name.to_owned(),
        labels: [("city".to_owned(), city.to_owned())].into(),
        apis: [(API.0.to_owned(), API.1.to_owned())].into(),
        ..Candidate::default()
    }
}

fn mk_placement(fields: Value) -> Placement {
    serde_json::from_value(fields).expect("a placement")
}

fn at(names: &[&str]) -> Vec<TargetCluster> {
    names.iter().map(|name| TargetCluster { name: (*name).to_owned(), ..TargetCluster::default() }).collect()
}

fn shared(shares: &[(&str, i32)]) -> Vec<TargetCluster> {
    shares
        .iter()
        .map(|(name, n)| TargetCluster {
            name: (*name).to_owned(),
            replicas: Some(*n),
            ..TargetCluster::default()
        })
        .collect()
}

fn chosen(placement: &Placement, request: &PlacementRequest<'_>, clusters: &[Candidate]) -> Vec<String> {
    decide(placement, request, clusters)
        .map(|decision| decision.clusters.into_iter().map(|c| c.name).collect())
        .unwrap_or_default()
}

fn mk_request<'a>() -> PlacementRequest<'a> {
    PlacementRequest { api: API, ..PlacementRequest::default() }
}

#[test]
fn all_selectors_of_an_affinity_must_match() {
    let mut dfw = mk_cluster("dfw-1", "dfw");
    dfw.provider = Some("datum".to_owned());
    dfw.region = Some("us-south".to_owned());
    dfw.zones = vec!["a".to_owned(), "b".to_owned()];
    let clusters = [dfw, mk_cluster("ord-1", "ord")];
    for (affinity, expected) in [
        (json!(null), &["dfw-1", "ord-1"][..]),
        (json!({}), &["dfw-1", "ord-1"]),
        (json!({"clusterNames": ["ord-1", "nowhere"]}), &["ord-1"]),
        (json!({"exclude": ["ord-1"]}), &["dfw-1"]),
        (json!({"clusterNames": ["ord-1"], "exclude": ["ord-1"]}), &[]),
        (json!({"labelSelector": {"matchLabels": {"city": "dfw"}}}), &["dfw-1"]),
        (json!({"labelSelector": {"matchLabels": {"city": "dfw"}}, "clusterNames": ["ord-1"]}), &[]),
        (
            json!({"fieldSelector": {"matchExpressions": [{"key": "provider", "operator": "In", "values": ["datum"]}]}}),
            &["dfw-1"],
        ),
        (
            json!({"fieldSelector": {"matchExpressions": [{"key": "provider", "operator": "NotIn", "values": ["datum"]}]}}),
            &["ord-1"],
        ),
        (
            json!({"fieldSelector": {"matchExpressions": [{"key": "region", "operator": "In", "values": ["us-south"]}]}}),
            &["dfw-1"],
        ),
        (
            json!({"fieldSelector": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b", "c"]}]}}),
            &["dfw-1"],
        ),
        (
            json!({"fieldSelector": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}}),
            &[],
        ),
        (
            json!({"fieldSelector": {"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}}),
            &["ord-1"],
        ),
        (
            json!({"fieldSelector": {"matchExpressions": [{"key": "planet", "operator": "In", "values": ["earth"]}]}}),
            &[],
        ),
    ] {
        let placement = mk_placement(json!({"clusterAffinity": affinity}));
        assert_eq!(chosen(&placement, &mk_request(), &clusters), expected, "{affinity}");
    }
}

#[test]
fn a_cluster_without_labels_matches_no_label() {
    let placement =
        mk_placement(json!({"clusterAffinity": {"labelSelector": {"matchLabels": {"city": "dfw"}}}}));
    let bare = Candidate { labels: BTreeMap::new(), ..mk_cluster("x", "dfw") };
    assert_eq!(chosen(&placement, &mk_request(), &[bare]), [""; 0]);
}

#[test]
fn a_tainted_cluster_gets_nothing_new_and_keeps_what_it_has() {
    let mut tainted = mk_cluster("dfw-1", "dfw");
    tainted.taints = vec![Taint {
        key: "cluster.karmada.io/not-ready".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    }];
    let clusters = [tainted, mk_cluster("dfw-2", "dfw")];
    let anywhere = mk_placement(json!({}));
    assert_eq!(chosen(&anywhere, &mk_request(), &clusters), ["dfw-2"]);
    let here = at(&["dfw-1"]);
    assert_eq!(
        chosen(&anywhere, &PlacementRequest { current: &here, ..mk_request() }, &clusters),
        ["dfw-1", "dfw-2"]
    );
    for (toleration, expected) in [
        (json!({"key": "cluster.karmada.io/not-ready", "operator": "Exists"}), true),
        (json!({"operator": "Exists"}), true),
        (json!({"key": "cluster.karmada.io/not-ready", "operator": "Exists", "effect": "NoExecute"}), false),
        (json!({"key": "cluster.karmada.io/not-ready", "value": "x"}), false),
        (json!({"key": "cluster.karmada.io/not-ready"}), true),
    ] {
        let placement = mk_placement(json!({"clusterTolerations": [toleration]}));
        assert_eq!(chosen(&placement, &mk_request(), &clusters[..1]) == ["dfw-1"], expected, "{toleration}");
    }
}

#[test]
fn prefer_no_schedule_does_not_exclude_a_cluster() {
    let mut cluster = mk_cluster("dfw-1", "dfw");
    cluster.taints =
        vec![Taint { key: "x".to_owned(), effect: "PreferNoSchedule".to_owned(), ..Taint::default() }];
    assert_eq!(chosen(&mk_placement(json!({})), &mk_request(), &[cluster]), ["dfw-1"]);
}

#[test]
fn an_object_waits_for_its_api_and_stays_if_the_api_disappears() {
    let without_api = Candidate { apis: BTreeSet::new(), ..mk_cluster("dfw-1", "dfw") };
    let refused = decide(&mk_placement(json!({})), &mk_request(), std::slice::from_ref(&without_api))
        .expect_err("no API");
    assert_eq!(refused.reason(), "NoClusterFit");
    assert_eq!(refused.to_string(), "0/1 clusters are available: 1 cluster(s) did not have the API resource");
    let here = at(&["dfw-1"]);
    assert_eq!(
        chosen(
            &mk_placement(json!({})),
            &PlacementRequest { current: &here, ..mk_request() },
            &[without_api]
        ),
        ["dfw-1"]
    );
}

#[test]
fn a_terminating_cluster_is_never_selected() {
    let leaving = Candidate { deleting: true, ..mk_cluster("dfw-1", "dfw") };
    let here = at(&["dfw-1"]);
    assert!(
        decide(&mk_placement(json!({})), &PlacementRequest { current: &here, ..mk_request() }, &[leaving])
            .is_err()
    );
}

#[test]
fn a_cluster_that_loses_its_label_loses_the_object() {
    let placement =
        mk_placement(json!({"clusterAffinity": {"labelSelector": {"matchLabels": {"city": "dfw"}}}}));
    let here = at(&["dfw-1"]);
    let moved = [mk_cluster("dfw-1", "ord"), mk_cluster("dfw-2", "dfw")];
    assert_eq!(chosen(&placement, &PlacementRequest { current: &here, ..mk_request() }, &moved), ["dfw-2"]);
}

#[test]
fn one_of_several_clusters_is_the_first_by_name_and_stays_selected() {
    let one = mk_placement(
        json!({"spreadConstraints": [{"spreadByField": "cluster", "minGroups": 1, "maxGroups": 1}]}),
    );
    let both = [mk_cluster("b", "dfw"), mk_cluster("a", "dfw")];
    assert_eq!(chosen(&one, &mk_request(), &both), ["a"]);
    let here = at(&["b"]);
    assert_eq!(chosen(&one, &PlacementRequest { current: &here, ..mk_request() }, &both), ["b"]);
}

#[test]
fn too_few_clusters_for_the_spread_is_unschedulable() {
    let two = mk_placement(
        json!({"spreadConstraints": [{"spreadByField": "cluster", "minGroups": 2, "maxGroups": 3}]}),
    );
    let refused = decide(&two, &mk_request(), &[mk_cluster("a", "dfw")]).expect_err("too few");
    assert_eq!(refused.reason(), "Unschedulable");
    let four: Vec<_> = ["a", "b", "c", "d"].iter().map(|name| mk_cluster(name, "dfw")).collect();
    assert_eq!(chosen(&two, &mk_request(), &four), ["a", "b", "c"]);
}

#[test]
fn an_unsupported_spread_field_is_named_in_the_error() {
    let by_region = mk_placement(json!({"spreadConstraints": [{"spreadByField": "region", "minGroups": 1}]}));
    let refused = decide(&by_region, &mk_request(), &[mk_cluster("a", "dfw")]).expect_err("not supported");
    assert!(refused.to_string().contains("region"));
}

#[test]
fn affinity_groups_are_tried_in_order_and_stay_selected() {
    let ordered = mk_placement(json!({"clusterAffinities": [
        {"affinityName": "first", "labelSelector": {"matchLabels": {"city": "dfw"}}},
        {"affinityName": "second", "labelSelector": {"matchLabels": {"city": "ord"}}},
    ]}));
    let both = [mk_cluster("d", "dfw"), mk_cluster("o", "ord")];
    let decision = decide(&ordered, &mk_request(), &both).expect("a decision");
    assert_eq!((decision.affinity.as_deref(), decision.clusters), (Some("first"), at(&["d"])));
    let decision = decide(&ordered, &mk_request(), &both[1..]).expect("a decision");
    assert_eq!((decision.affinity.as_deref(), decision.clusters), (Some("second"), at(&["o"])));
    let here = at(&["o"]);
    let later = PlacementRequest { current: &here, affinity: "second", ..mk_request() };
    assert_eq!(decide(&ordered, &later, &both).expect("a decision").affinity.as_deref(), Some("second"));
    let anew = PlacementRequest { placement_changed: true, ..later };
    assert_eq!(decide(&ordered, &anew, &both).expect("a decision").affinity.as_deref(), Some("first"));
}

#[test]
fn duplicated_replicas_are_not_divided() {
    let placement = mk_placement(json!({"replicaScheduling": {"replicaSchedulingType": "Duplicated"}}));
    let request = PlacementRequest { replicas: Some(3), ..mk_request() };
    let decision =
        decide(&placement, &request, &[mk_cluster("a", "x"), mk_cluster("b", "x")]).expect("a decision");
    assert_eq!(decision.clusters, shared(&[("a", 3), ("b", 3)]));
}

fn mk_weighted(a: i64, b: i64) -> Placement {
    mk_placement(json!({"replicaScheduling": {
        "replicaSchedulingType": "Divided", "replicaDivisionPreference": "Weighted",
        "weightPreference": {"staticWeightList": [
            {"targetCluster": {"clusterNames": ["a"]}, "weight": a},
            {"targetCluster": {"clusterNames": ["b"]}, "weight": b},
        ]},
    }}))
}

#[test]
fn divided_replicas_follow_static_weights() {
    let clusters = [mk_cluster("a", "x"), mk_cluster("b", "x"), mk_cluster("c", "x")];
    let request = PlacementRequest { replicas: Some(9), ..mk_request() };
    assert_eq!(
        decide(&mk_weighted(1, 2), &request, &clusters).expect("a decision").clusters,
        shared(&[("a", 3), ("b", 6)])
    );
    // A cluster without replicas is not a target.
    let one = PlacementRequest { replicas: Some(1), ..mk_request() };
    assert_eq!(
        decide(&mk_weighted(1, 9), &one, &clusters).expect("a decision").clusters,
        shared(&[("b", 1)])
    );
    let even = mk_placement(
        json!({"replicaScheduling": {"replicaSchedulingType": "Divided", "replicaDivisionPreference": "Weighted"}}),
    );
    assert_eq!(
        decide(&even, &PlacementRequest { replicas: Some(6), ..mk_request() }, &clusters)
            .expect("a decision")
            .clusters,
        shared(&[("a", 2), ("b", 2), ("c", 2)])
    );
}

#[test]
fn divided_replicas_stay_until_the_request_changes_or_a_cluster_is_deleted() {
    let clusters = [mk_cluster("a", "x"), mk_cluster("b", "x")];
    let here = shared(&[("a", 4)]);
    let existing = PlacementRequest { replicas: Some(4), current: &here, ..mk_request() };
    assert_eq!(decide(&mk_weighted(1, 1), &existing, &clusters).expect("a decision").clusters, here);
    for changed in [
        PlacementRequest { replicas: Some(2), ..existing.clone() },
        PlacementRequest { placement_changed: true, ..existing.clone() },
    ] {
        assert_ne!(decide(&mk_weighted(1, 1), &changed, &clusters).expect("a decision").clusters, here);
    }
    let leaving = [Candidate { deleting: true, ..mk_cluster("a", "x") }, mk_cluster("b", "x")];
    assert_eq!(
        decide(&mk_weighted(1, 1), &existing, &leaving).expect("a decision").clusters,
        shared(&[("b", 4)])
    );
}

#[test]
fn an_object_without_replicas_goes_to_all_clusters() {
    assert_eq!(
        chosen(&mk_weighted(1, 0), &mk_request(), &[mk_cluster("a", "x"), mk_cluster("b", "x")]),
        ["a", "b"]
    );
}

#[test]
fn strategies_that_need_free_capacity_are_rejected_with_an_alternative() {
    for preference in [
        json!({"replicaDivisionPreference": "Aggregated"}),
        json!({"weightPreference": {"dynamicWeight": "AvailableReplicas"}}),
    ] {
        let mut scheduling = preference.clone();
        scheduling["replicaSchedulingType"] = json!("Divided");
        let placement = mk_placement(json!({"replicaScheduling": scheduling}));
        let refused = decide(
            &placement,
            &PlacementRequest { replicas: Some(2), ..mk_request() },
            &[mk_cluster("a", "x")],
        )
        .expect_err("refused");
        assert!(refused.to_string().contains("static weights"), "{preference}");
    }
}

#[test]
fn an_invalid_cluster_selector_matches_nothing() {
    let placement = mk_placement(
        json!({"clusterAffinity": {"labelSelector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}}),
    );
    assert_eq!(chosen(&placement, &mk_request(), &[mk_cluster("a", "x")]), [""; 0]);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(256))]

    #[test]
    fn selected_clusters_stay_selected(count in 1..6_usize, most in 1..4_i64, turn in 0..6_usize) {
        let placement = mk_placement(json!({"spreadConstraints": [{"spreadByField": "cluster", "minGroups": 1, "maxGroups": most}]}));
        let mut clusters: Vec<_> = (0..count).map(|n| mk_cluster(&format!("c{n}"), "dfw")).collect();
        let first = decide(&placement, &mk_request(), &clusters).expect("a decision").clusters;
        clusters.rotate_left(turn % count);
        clusters.push(mk_cluster("a-newcomer", "dfw"));
        let again = PlacementRequest { current: &first, ..mk_request() };
        let second = decide(&placement, &again, &clusters).expect("a decision").clusters;
        proptest::prop_assert!(first.iter().all(|target| second.contains(target)));
    }

    #[test]
    fn replicas_are_never_lost_or_invented(replicas in 1..50_i32, a in 1..9_i64, b in 1..9_i64) {
        let request = PlacementRequest { replicas: Some(replicas), ..mk_request() };
        let decision = decide(&mk_weighted(a, b), &request, &[mk_cluster("a", "x"), mk_cluster("b", "x")]).expect("a decision");
        proptest::prop_assert_eq!(decision.clusters.iter().filter_map(|target| target.replicas).sum::<i32>(), replicas);
    }
}
