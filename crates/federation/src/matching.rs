//! Policy matching: which policy an object belongs to.
//!
//! A PropagationPolicy of the object's namespace has precedence over a ClusterPropagationPolicy. Among
//! policies of one kind the order is: higher priority, more specific selector (name, labels, whole kind),
//! smaller name. A policy that is being deleted matches nothing.

use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use polis_api::karmada::{ClusterPropagationPolicy, PropagationPolicy, PropagationSpec, ResourceSelector};
use polis_api::kube::core::{Selector, SelectorExt};
use polis_api::labels;
use serde_json::Value;

use crate::{names, object};

/// A PropagationPolicy or ClusterPropagationPolicy.
#[derive(Debug, Clone, PartialEq)]
pub struct AnyPolicy {
    /// The namespace of a PropagationPolicy; `None` for a ClusterPropagationPolicy.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// Its permanent id; empty until it is set.
    pub id: String,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Its spec.
    pub spec: PropagationSpec,
}

impl From<PropagationPolicy> for AnyPolicy {
    fn from(policy: PropagationPolicy) -> Self {
        AnyPolicy {
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

impl From<ClusterPropagationPolicy> for AnyPolicy {
    fn from(policy: ClusterPropagationPolicy) -> Self {
        AnyPolicy {
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

/// How specific a selector is; a more specific one is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Specificity {
    /// All objects of the kind.
    Kind,
    /// Objects with matching labels.
    Labels,
    /// The object with this name.
    Name,
}

impl AnyPolicy {
    /// The specificity of the best matching selector; `None` if no selector matches or the policy is being
    /// deleted.
    pub fn matches(&self, template: &Value) -> Option<Specificity> {
        if self.deleting {
            return None;
        }
        if self.namespace.as_deref().is_some_and(|namespace| namespace != object::meta(template, "namespace"))
        {
            return None;
        }
        self.spec.resource_selectors.iter().filter_map(|selector| specificity(selector, template)).max()
    }

    /// The precedence of the policy for an object, without its name; `None` if it does not match.
    pub fn rank(&self, template: &Value) -> Option<(bool, i32, Specificity)> {
        let specificity = self.matches(template)?;
        Some((self.namespace.is_some(), self.spec.priority.unwrap_or(0), specificity))
    }

    /// Whether any selector names the kind.
    pub fn mentions(&self, api_version: &str, kind: &str) -> bool {
        self.spec
            .resource_selectors
            .iter()
            .any(|selector| selector.api_version == api_version && selector.kind == kind)
    }
}

fn specificity(selector: &ResourceSelector, template: &Value) -> Option<Specificity> {
    let other_namespace = selector
        .namespace
        .as_deref()
        .is_some_and(|wanted| !wanted.is_empty() && wanted != object::meta(template, "namespace"));
    if template["apiVersion"] != *selector.api_version
        || template["kind"] != *selector.kind
        || other_namespace
    {
        return None;
    }
    // With a name, Karmada ignores the label selector.
    if let Some(name) = selector.name.as_deref().filter(|name| !name.is_empty()) {
        return (name == object::meta(template, "name")).then_some(Specificity::Name);
    }
    match &selector.label_selector {
        None => Some(Specificity::Kind),
        Some(wanted) => selects(wanted, template).then_some(Specificity::Labels),
    }
}

fn selects(selector: &LabelSelector, template: &Value) -> bool {
    matches_labels(selector, &object::labels(template))
}

/// Whether labels match a selector; an invalid selector matches nothing.
pub(crate) fn matches_labels(
    selector: &LabelSelector,
    labels: &std::collections::BTreeMap<String, String>,
) -> bool {
    Selector::try_from(selector.clone()).is_ok_and(|selector| selector.matches(labels))
}

/// The policy with the highest precedence for an unclaimed object.
pub fn choose<'a>(
    policies: impl IntoIterator<Item = &'a AnyPolicy>,
    template: &Value,
) -> Option<&'a AnyPolicy> {
    policies
        .into_iter()
        .filter_map(|policy| Some((policy.rank(template)?, policy)))
        .max_by(|(rank_a, a), (rank_b, b)| rank_a.cmp(rank_b).then_with(|| b.name.cmp(&a.name)))
        .map(|(_, policy)| policy)
}

/// Whether objects of a kind may be propagated. Kinds of the federation itself may not: a policy over all
/// kinds would otherwise propagate bindings and Works, and create bindings of bindings without end.
pub fn is_propagatable(api_version: &str, kind: &str) -> bool {
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    let ours = group == "karmada.io" || group.ends_with(".karmada.io");
    let noise = matches!(group, "events.k8s.io" | "coordination.k8s.io")
        || (group.is_empty() && matches!(kind, "Event" | "Node"));
    !ours && !noise
}

/// Whether objects of a namespace may be propagated. As in Karmada, its own namespaces and `kube-*` are
/// excluded.
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

    fn mk_policy(name: &str, selector: Value) -> AnyPolicy {
        let spec =
            PropagationSpec { resource_selectors: vec![mk_selector(selector)], ..PropagationSpec::default() };
        AnyPolicy {
            namespace: Some("shop".to_owned()),
            name: name.to_owned(),
            id: format!("id-{name}"),
            deleting: false,
            spec,
        }
    }

    fn mk_cluster_policy(name: &str, selector: Value) -> AnyPolicy {
        AnyPolicy { namespace: None, ..mk_policy(name, selector) }
    }

    fn with_priority(mut policy: AnyPolicy, priority: i32) -> AnyPolicy {
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
            (json!({}), Some(Specificity::Kind)),
            (city.clone(), Some(Specificity::Labels)),
            (json!({"name": "a"}), Some(Specificity::Name)),
            (json!({"name": "b"}), None),
            (json!({"labelSelector": {"matchLabels": {"city": "ord"}}}), None),
            (
                json!({"labelSelector": {"matchExpressions": [{"key": "city", "operator": "In", "values": ["ord", "dfw"]}]}}),
                Some(Specificity::Labels),
            ),
            (json!({"labelSelector": {"matchExpressions": [{"key": "city", "operator": "Near"}]}}), None),
            // With a name, the labels are ignored.
            (
                json!({"name": "a", "labelSelector": {"matchLabels": {"city": "ord"}}}),
                Some(Specificity::Name),
            ),
            (json!({"namespace": "other"}), None),
            (json!({"namespace": "shop"}), Some(Specificity::Kind)),
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
    fn a_terminating_policy_matches_nothing() {
        let policy = AnyPolicy { deleting: true, ..mk_policy("p", json!({})) };
        assert_eq!(choose([&policy], &mk_thing()), None);
    }

    #[test]
    fn precedence_is_kind_priority_specificity_name() {
        let all = mk_policy("b-all", json!({}));
        let by_name = mk_policy("z-name", json!({"name": "a"}));
        let by_label = mk_policy("y-label", json!({"labelSelector": {"matchLabels": {"city": "dfw"}}}));
        let urgent = with_priority(mk_policy("x-urgent", json!({})), 5);
        let urgent_cluster = with_priority(mk_cluster_policy("a-cluster", json!({"name": "a"})), 100);
        let duplicate = mk_policy("a-all", json!({}));
        for (policies, expected) in [
            (vec![&urgent_cluster, &all], "b-all"),
            (vec![&all, &by_name, &urgent], "x-urgent"),
            (vec![&all, &by_label, &by_name], "z-name"),
            (vec![&all, &by_label], "y-label"),
            (vec![&all, &duplicate], "a-all"),
            (vec![&urgent_cluster], "a-cluster"),
        ] {
            assert_eq!(choose(policies, &mk_thing()).map(|policy| policy.name.as_str()), Some(expected));
        }
    }

    #[test]
    fn the_most_specific_selector_of_a_policy_counts() {
        let mut policy = mk_policy("p", json!({}));
        policy.spec.resource_selectors.push(mk_selector(json!({"name": "a"})));
        assert_eq!(policy.matches(&mk_thing()), Some(Specificity::Name));
    }

    #[test]
    fn kinds_of_the_federation_are_never_propagated() {
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
            let mut policies: Vec<AnyPolicy> = picks.iter().map(|(priority, selector, name, cluster)| {
                let policy = if *cluster { mk_cluster_policy(name, selectors[*selector].clone()) } else { mk_policy(name, selectors[*selector].clone()) };
                with_priority(policy, *priority)
            }).collect();
            // Two policies of one kind never have the same name.
            policies.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
            policies.dedup_by(|a, b| a.namespace == b.namespace && a.name == b.name);
            let first = choose(&policies, &mk_thing()).cloned();
            let middle = turn % policies.len();
            policies.rotate_left(middle);
            proptest::prop_assert_eq!(choose(&policies, &mk_thing()).cloned(), first);
        }
    }
}
