//! Which policy an object belongs to.
//!
//! Any PropagationPolicy of the object's namespace comes before any ClusterPropagationPolicy. Among policies of one
//! sort the higher priority wins, then the closer match (by name, by labels, everything of the kind), then the
//! alphabetically smaller name. A policy on its way out matches nothing.

use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use polis_api::karmada::{ClusterPropagationPolicy, PropagationPolicy, PropagationSpec, ResourceSelector};
use polis_api::kube::core::{Selector, SelectorExt};
use polis_api::labels;
use serde_json::Value;

use crate::{names, object};

/// A policy of either sort.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// The namespace of a PropagationPolicy; none for a ClusterPropagationPolicy.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// Its permanent id; empty while it has none.
    pub id: String,
    /// Whether it is on its way out.
    pub deleting: bool,
    /// What it says.
    pub spec: PropagationSpec,
}

impl From<PropagationPolicy> for Policy {
    fn from(policy: PropagationPolicy) -> Self {
        Policy {
            id: policy
                .metadata
                .labels
                .as_ref()
                .and_then(|all| all.get(labels::karmada::POLICY_ID))
                .cloned()
                .unwrap_or_default(),
            namespace: Some(policy.metadata.namespace.unwrap_or_default()),
            name: policy.metadata.name.unwrap_or_default(),
            deleting: policy.metadata.deletion_timestamp.is_some(),
            spec: policy.spec,
        }
    }
}

impl From<ClusterPropagationPolicy> for Policy {
    fn from(policy: ClusterPropagationPolicy) -> Self {
        Policy {
            id: policy
                .metadata
                .labels
                .as_ref()
                .and_then(|all| all.get(labels::karmada::CLUSTER_POLICY_ID))
                .cloned()
                .unwrap_or_default(),
            namespace: None,
            name: policy.metadata.name.unwrap_or_default(),
            deleting: policy.metadata.deletion_timestamp.is_some(),
            spec: policy.spec.0,
        }
    }
}

/// How closely a selector describes an object; the closer, the greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Closeness {
    /// Everything of the kind.
    Kind,
    /// Objects with certain labels.
    Labels,
    /// This very name.
    Name,
}

impl Policy {
    /// How closely the policy describes an object; nothing if it does not, or is on its way out.
    pub fn matches(&self, template: &Value) -> Option<Closeness> {
        if self.deleting {
            return None;
        }
        if self.namespace.as_deref().is_some_and(|namespace| namespace != object::meta(template, "namespace"))
        {
            return None;
        }
        self.spec.resource_selectors.iter().filter_map(|selector| closeness(selector, template)).max()
    }

    /// How good a reason the policy has to claim an object, the name apart; nothing if it has none.
    pub fn rank(&self, template: &Value) -> Option<(bool, i32, Closeness)> {
        let closeness = self.matches(template)?;
        Some((self.namespace.is_some(), self.spec.priority.unwrap_or(0), closeness))
    }

    /// Whether a selector speaks of the kind at all, whatever the object.
    pub fn mentions(&self, api_version: &str, kind: &str) -> bool {
        self.spec
            .resource_selectors
            .iter()
            .any(|selector| selector.api_version == api_version && selector.kind == kind)
    }
}

fn closeness(selector: &ResourceSelector, template: &Value) -> Option<Closeness> {
    let elsewhere = selector
        .namespace
        .as_deref()
        .is_some_and(|wanted| !wanted.is_empty() && wanted != object::meta(template, "namespace"));
    if template["apiVersion"] != *selector.api_version || template["kind"] != *selector.kind || elsewhere {
        return None;
    }
    // A name makes the labels irrelevant: Karmada ignores the selector then.
    if let Some(name) = selector.name.as_deref().filter(|name| !name.is_empty()) {
        return (name == object::meta(template, "name")).then_some(Closeness::Name);
    }
    match &selector.label_selector {
        None => Some(Closeness::Kind),
        Some(wanted) => selects(wanted, template).then_some(Closeness::Labels),
    }
}

fn selects(selector: &LabelSelector, template: &Value) -> bool {
    matches_labels(selector, &object::labels(template))
}

/// Whether labels fit a selector; one that makes no sense fits nothing.
pub(crate) fn matches_labels(
    selector: &LabelSelector,
    labels: &std::collections::BTreeMap<String, String>,
) -> bool {
    Selector::try_from(selector.clone()).is_ok_and(|selector| selector.matches(labels))
}

/// The policy that an unclaimed object belongs to.
pub fn choose<'a>(policies: impl IntoIterator<Item = &'a Policy>, template: &Value) -> Option<&'a Policy> {
    policies
        .into_iter()
        .filter_map(|policy| Some((policy.rank(template)?, policy)))
        .max_by(|(rank_a, a), (rank_b, b)| rank_a.cmp(rank_b).then_with(|| b.name.cmp(&a.name)))
        .map(|(_, policy)| policy)
}

/// Whether objects of a kind may be propagated at all. What the federation itself is made of may not: a policy over
/// everything would otherwise send bindings and works to members, and bindings of bindings without end.
pub fn is_propagatable(api_version: &str, kind: &str) -> bool {
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    let ours = group == "karmada.io" || group.ends_with(".karmada.io");
    let noise = matches!(group, "events.k8s.io" | "coordination.k8s.io")
        || (group.is_empty() && matches!(kind, "Event" | "Node"));
    !ours && !noise
}

/// Whether objects of a namespace may be propagated. Karmada leaves its own namespaces and `kube-*` alone.
pub fn is_propagatable_namespace(namespace: &str) -> bool {
    !names::is_reserved_namespace(namespace) && !namespace.starts_with("kube-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn mk_selector(fields: Value) -> ResourceSelector {
        let mut selector = json!({"apiVersion": "example.io/v1", "kind": "Thing"});
        for (key, value) in fields.as_object().into_iter().flatten() {
            selector[key] = value.clone();
        }
        serde_json::from_value(selector).expect("a selector")
    }

    fn mk_policy(name: &str, selector: Value) -> Policy {
        let spec =
            PropagationSpec { resource_selectors: vec![mk_selector(selector)], ..PropagationSpec::default() };
        Policy {
            namespace: Some("shop".to_owned()),
            name: name.to_owned(),
            id: format!("id-{name}"),
            deleting: false,
            spec,
        }
    }

    fn mk_cluster_policy(name: &str, selector: Value) -> Policy {
        Policy { namespace: None, ..mk_policy(name, selector) }
    }

    fn with_priority(mut policy: Policy, priority: i32) -> Policy {
        policy.spec.priority = Some(priority);
        policy
    }

    fn mk_thing() -> Value {
        json!({"apiVersion": "example.io/v1", "kind": "Thing", "metadata": {"name": "a", "namespace": "shop", "labels": {"city": "dfw"}}})
    }

    #[test]
    fn selectors_match_by_kind_labels_and_name() {
        let city = json!({"labelSelector": {"matchLabels": {"city": "dfw"}}});
        for (selector, expected) in [
            (json!({}), Some(Closeness::Kind)),
            (city.clone(), Some(Closeness::Labels)),
            (json!({"name": "a"}), Some(Closeness::Name)),
            (json!({"name": "b"}), None),
            (json!({"labelSelector": {"matchLabels": {"city": "ord"}}}), None),
            (
                json!({"labelSelector": {"matchExpressions": [{"key": "city", "operator": "In", "values": ["ord", "dfw"]}]}}),
                Some(Closeness::Labels),
            ),
            (json!({"labelSelector": {"matchExpressions": [{"key": "city", "operator": "Near"}]}}), None),
            // Name and labels together: the name alone decides.
            (json!({"name": "a", "labelSelector": {"matchLabels": {"city": "ord"}}}), Some(Closeness::Name)),
            (json!({"namespace": "other"}), None),
            (json!({"namespace": "shop"}), Some(Closeness::Kind)),
            (json!({"kind": "Other"}), None),
            (json!({"apiVersion": "example.io/v2"}), None),
        ] {
            assert_eq!(mk_cluster_policy("p", selector.clone()).matches(&mk_thing()), expected, "{selector}");
        }
    }

    #[test]
    fn a_policy_of_another_namespace_matches_nothing() {
        let mut policy = mk_policy("p", json!({}));
        policy.namespace = Some("other".to_owned());
        assert_eq!(policy.matches(&mk_thing()), None);
    }

    #[test]
    fn a_policy_on_its_way_out_matches_nothing() {
        let policy = Policy { deleting: true, ..mk_policy("p", json!({})) };
        assert_eq!(choose([&policy], &mk_thing()), None);
    }

    #[test]
    fn the_order_of_choice_is_sort_priority_closeness_name() {
        let all = mk_policy("b-all", json!({}));
        let by_name = mk_policy("z-name", json!({"name": "a"}));
        let by_label = mk_policy("y-label", json!({"labelSelector": {"matchLabels": {"city": "dfw"}}}));
        let urgent = with_priority(mk_policy("x-urgent", json!({})), 5);
        let urgent_cluster = with_priority(mk_cluster_policy("a-cluster", json!({"name": "a"})), 100);
        let twin = mk_policy("a-all", json!({}));
        for (policies, expected) in [
            (vec![&urgent_cluster, &all], "b-all"),
            (vec![&all, &by_name, &urgent], "x-urgent"),
            (vec![&all, &by_label, &by_name], "z-name"),
            (vec![&all, &by_label], "y-label"),
            (vec![&all, &twin], "a-all"),
            (vec![&urgent_cluster], "a-cluster"),
        ] {
            assert_eq!(choose(policies, &mk_thing()).map(|policy| policy.name.as_str()), Some(expected));
        }
    }

    #[test]
    fn a_policy_with_several_selectors_counts_its_closest() {
        let mut policy = mk_policy("p", json!({}));
        policy.spec.resource_selectors.push(mk_selector(json!({"name": "a"})));
        assert_eq!(policy.matches(&mk_thing()), Some(Closeness::Name));
    }

    #[test]
    fn what_the_federation_is_made_of_is_never_propagated() {
        for (api_version, kind) in [
            ("work.karmada.io/v1alpha2", "ResourceBinding"),
            ("policy.karmada.io/v1alpha1", "PropagationPolicy"),
            ("cluster.karmada.io/v1alpha1", "Cluster"),
            ("v1", "Event"),
            ("coordination.k8s.io/v1", "Lease"),
        ] {
            assert!(!is_propagatable(api_version, kind), "{api_version} {kind}");
        }
        assert!(is_propagatable("compute.datumapis.com/v1alpha", "WorkloadDeployment"));
        assert!(is_propagatable("v1", "ConfigMap"));
        assert!(!is_propagatable_namespace("kube-system"));
        assert!(is_propagatable_namespace("ns-1"));
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(256))]
        #[test]
        fn the_choice_does_not_depend_on_the_order_of_policies(picks in proptest::collection::vec((0..3_i32, 0..3_usize, "[a-c]{1,2}", proptest::bool::ANY), 1..6), turn in 0..6_usize) {
            let selectors = [json!({}), json!({"name": "a"}), json!({"labelSelector": {"matchLabels": {"city": "dfw"}}})];
            let mut policies: Vec<Policy> = picks.iter().map(|(priority, selector, name, cluster)| {
                let policy = if *cluster { mk_cluster_policy(name, selectors[*selector].clone()) } else { mk_policy(name, selectors[*selector].clone()) };
                with_priority(policy, *priority)
            }).collect();
            // Two policies of one sort never share a name.
            policies.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
            policies.dedup_by(|a, b| a.namespace == b.namespace && a.name == b.name);
            let first = choose(&policies, &mk_thing()).cloned();
            let middle = turn % policies.len();
            policies.rotate_left(middle);
            proptest::prop_assert_eq!(choose(&policies, &mk_thing()).cloned(), first);
        }
    }
}
