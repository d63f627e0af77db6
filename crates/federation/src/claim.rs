//! Claims: the marks by which an object shows whose it is.
//!
//! A claim is exclusive and kept: once marked, an object is only its policy's business, whatever better policy
//! comes later. It ends when the policy goes or no longer matches. What was propagated stays then: the binding
//! loses the marks and is left as it is, until another policy claims the object.

use std::borrow::Borrow;

use polis_api::{annotations, labels};
use serde_json::Value;

use crate::matching::{Policy, choose};
use crate::object;

const LABELS: [&str; 2] = [labels::karmada::POLICY_ID, labels::karmada::CLUSTER_POLICY_ID];
const ANNOTATIONS: [&str; 3] = [
    annotations::karmada::POLICY_NAMESPACE,
    annotations::karmada::POLICY_NAME,
    annotations::karmada::CLUSTER_POLICY_NAME,
];

/// What should happen to the claim of an object.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Claim<'a> {
    /// Nobody claims it, and it bears no mark.
    None,
    /// The marks are no longer true and must go.
    Release,
    /// The marks are true.
    Keep(&'a Policy),
    /// This policy claims it now.
    Take(&'a Policy),
}

/// Decides about the claim of an object.
pub fn decide<'a, P: Borrow<Policy>>(policies: &'a [P], template: &Value) -> Claim<'a> {
    if !object::label(template, labels::karmada::CLAIMED_BY).is_empty() {
        return Claim::None;
    }
    let policies = || policies.iter().map(Borrow::borrow);
    let standing = policies().find(|policy: &&Policy| is_marked_by(template, policy));
    if let Some(policy) = standing.filter(|policy| policy.matches(template).is_some()) {
        return Claim::Keep(policy);
    }
    // A policy without an id cannot be told from its next namesake: it claims once it has one.
    match choose(policies().filter(|policy| !policy.id.is_empty()), template) {
        Some(policy) => Claim::Take(policy),
        None if is_marked(template) => Claim::Release,
        None => Claim::None,
    }
}

/// A policy that has as good a reason to claim an object as its owner, or a better one, and gets nothing.
pub fn rival<'a, P: Borrow<Policy>>(
    policies: &'a [P],
    owner: &Policy,
    template: &Value,
) -> Option<&'a Policy> {
    let rank = owner.rank(template);
    let others = policies.iter().map(Borrow::borrow);
    others
        .filter(|other| (&other.namespace, &other.name) != (&owner.namespace, &owner.name))
        .find(|other| other.rank(template).is_some_and(|other| Some(other) >= rank))
}

/// Whether an object bears the marks of a policy: its id, not only its name.
pub fn is_marked_by(object: &Value, policy: &Policy) -> bool {
    let key = if policy.namespace.is_some() {
        labels::karmada::POLICY_ID
    } else {
        labels::karmada::CLUSTER_POLICY_ID
    };
    !policy.id.is_empty() && object::label(object, key) == policy.id
}

/// Whether an object bears any mark.
pub fn is_marked(object: &Value) -> bool {
    LABELS.iter().any(|key| !object::label(object, key).is_empty())
        || ANNOTATIONS.iter().any(|key| !object::annotation(object, key).is_empty())
}

/// Puts the marks of a policy on an object, in place of any other.
pub fn mark(object: &mut Value, policy: &Policy) {
    unmark(object);
    match &policy.namespace {
        Some(namespace) => {
            object::set_label(object, labels::karmada::POLICY_ID, &policy.id);
            object::set_annotation(object, annotations::karmada::POLICY_NAMESPACE, namespace);
            object::set_annotation(object, annotations::karmada::POLICY_NAME, &policy.name);
        }
        None => {
            object::set_label(object, labels::karmada::CLUSTER_POLICY_ID, &policy.id);
            object::set_annotation(object, annotations::karmada::CLUSTER_POLICY_NAME, &policy.name);
        }
    }
}

/// Takes all marks off an object.
pub fn unmark(object: &mut Value) {
    object::remove_texts(object, "labels", &LABELS);
    object::remove_texts(object, "annotations", &ANNOTATIONS);
}

#[cfg(test)]
mod tests {
    use super::*;
    use polis_api::karmada::{PropagationSpec, ResourceSelector};
    use serde_json::json;

    fn mk_policy(name: &str) -> Policy {
        let selector = ResourceSelector {
            api_version: "v1".to_owned(),
            kind: "ConfigMap".to_owned(),
            ..ResourceSelector::default()
        };
        let spec = PropagationSpec { resource_selectors: vec![selector], ..PropagationSpec::default() };
        Policy {
            namespace: Some("shop".to_owned()),
            name: name.to_owned(),
            id: format!("id-{name}"),
            deleting: false,
            spec,
        }
    }

    fn mk_config_map() -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "shop"}})
    }

    fn marked_by(policy: &Policy) -> Value {
        let mut object = mk_config_map();
        mark(&mut object, policy);
        object
    }

    #[test]
    fn an_unclaimed_object_is_taken_by_the_best_policy() {
        let policies = [mk_policy("b"), mk_policy("a")];
        assert_eq!(decide(&policies, &mk_config_map()), Claim::Take(&policies[1]));
        assert_eq!(decide::<Policy>(&[], &mk_config_map()), Claim::None);
    }

    #[test]
    fn a_claim_is_kept_against_a_better_policy() {
        let mut better = mk_policy("a");
        better.spec.priority = Some(9);
        let policies = [mk_policy("b"), better];
        assert_eq!(decide(&policies, &marked_by(&policies[0])), Claim::Keep(&policies[0]));
    }

    #[test]
    fn a_claim_of_a_cluster_policy_is_kept_against_a_policy_of_the_namespace() {
        let cluster = Policy { namespace: None, ..mk_policy("c") };
        let policies = [cluster, mk_policy("a")];
        assert_eq!(decide(&policies, &marked_by(&policies[0])), Claim::Keep(&policies[0]));
    }

    #[test]
    fn a_rival_has_as_good_a_reason_and_gets_nothing() {
        let (a, b) = (mk_policy("a"), mk_policy("b"));
        let better =
            Policy { spec: PropagationSpec { priority: Some(9), ..b.spec.clone() }, ..mk_policy("better") };
        let cluster = Policy { namespace: None, ..mk_policy("c") };
        let object = mk_config_map();
        assert_eq!(rival(&[a.clone(), b.clone()], &a, &object), Some(&b));
        assert_eq!(rival(&[b.clone(), better.clone()], &b, &object), Some(&better));
        assert_eq!(rival(&[b.clone(), better.clone()], &better, &object), None, "the order is clear");
        assert_eq!(rival(&[a.clone(), cluster.clone()], &a, &object), None, "the order is clear");
        assert_eq!(rival(&[cluster.clone(), a.clone()], &cluster, &object), Some(&a), "it came too late");
    }

    #[test]
    fn a_claim_ends_with_its_policy() {
        let gone = mk_policy("gone");
        assert_eq!(decide::<Policy>(&[], &marked_by(&gone)), Claim::Release);
        let leaving = [Policy { deleting: true, ..gone.clone() }];
        assert_eq!(decide(&leaving, &marked_by(&gone)), Claim::Release);
        let other = [mk_policy("other")];
        assert_eq!(decide(&other, &marked_by(&gone)), Claim::Take(&other[0]));
    }

    #[test]
    fn a_namesake_of_the_policy_must_claim_anew() {
        let old = mk_policy("p");
        let new = [Policy { id: "another".to_owned(), ..mk_policy("p") }];
        assert_eq!(decide(&new, &marked_by(&old)), Claim::Take(&new[0]));
    }

    #[test]
    fn a_claim_ends_when_the_selectors_no_longer_match() {
        let mut policy = mk_policy("p");
        policy.spec.resource_selectors[0].name = Some("other".to_owned());
        assert_eq!(decide(&[policy.clone()], &marked_by(&policy)), Claim::Release);
    }

    #[test]
    fn a_policy_without_an_id_waits() {
        assert_eq!(decide(&[Policy { id: String::new(), ..mk_policy("p") }], &mk_config_map()), Claim::None);
    }

    #[test]
    fn an_object_that_something_else_owns_is_left_alone() {
        let mut object = mk_config_map();
        object::set_label(&mut object, labels::karmada::CLAIMED_BY, "someone");
        assert_eq!(decide(&[mk_policy("p")], &object), Claim::None);
    }

    #[test]
    fn marks_come_and_go_without_a_trace() {
        let mut object = marked_by(&mk_policy("p"));
        assert!(is_marked_by(&object, &mk_policy("p")));
        mark(&mut object, &Policy { namespace: None, ..mk_policy("c") });
        assert_eq!(object::label(&object, labels::karmada::POLICY_ID), "");
        assert_eq!(object::annotation(&object, annotations::karmada::CLUSTER_POLICY_NAME), "c");
        unmark(&mut object);
        assert_eq!(object, mk_config_map());
    }
}
