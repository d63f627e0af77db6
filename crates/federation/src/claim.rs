//! Claims: the labels and annotations that record which policy an object belongs to.
//!
//! A claim is exclusive and stable: a claimed object stays with its policy even if a policy with a higher
//! rank is created later. A claim ends when the policy is deleted or no longer selects the object. The object
//! then stays propagated: the binding loses the claim and is otherwise unchanged, until another policy claims
//! the object.

use std::borrow::Borrow;

use polis_api::{annotations, labels};
use serde_json::Value;

use crate::matching::{AnyPolicy, choose};
use crate::object;

const LABELS: [&str; 2] = [labels::karmada::POLICY_ID, labels::karmada::CLUSTER_POLICY_ID];
const ANNOTATIONS: [&str; 3] = [
    annotations::karmada::POLICY_NAMESPACE,
    annotations::karmada::POLICY_NAME,
    annotations::karmada::CLUSTER_POLICY_NAME,
];

/// The decision about the claim of an object.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Claim<'a> {
    /// No policy claims it, and it has no claim.
    None,
    /// The claim is out of date and must be removed.
    Release,
    /// The claim of this policy is valid.
    Existing(&'a AnyPolicy),
    /// This policy claims the object now.
    New(&'a AnyPolicy),
}

/// Decides the claim of an object.
pub fn decide<'a, P: Borrow<AnyPolicy>>(policies: &'a [P], template: &Value) -> Claim<'a> {
    if !object::label(template, labels::karmada::CLAIMED_BY).is_empty() {
        return Claim::None;
    }
    let policies = || policies.iter().map(Borrow::borrow);
    let existing = policies().find(|policy: &&AnyPolicy| is_claimed_by(template, policy));
    if let Some(policy) = existing.filter(|policy| policy.matches(template).is_some()) {
        return Claim::Existing(policy);
    }
    // Without an id a policy cannot be distinguished from a later one with the same name: it waits for its
    // id.
    match choose(policies().filter(|policy| !policy.id.is_empty()), template) {
        Some(policy) => Claim::New(policy),
        None if is_claimed(template) => Claim::Release,
        None => Claim::None,
    }
}

/// A policy with the same rank as the owner or a higher one, which does not get the object.
pub fn rival<'a, P: Borrow<AnyPolicy>>(
    policies: &'a [P],
    owner: &AnyPolicy,
    template: &Value,
) -> Option<&'a AnyPolicy> {
    let rank = owner.rank(template);
    let others = policies.iter().map(Borrow::borrow);
    others
        .filter(|other| (&other.namespace, &other.name) != (&owner.namespace, &owner.name))
        .find(|other| other.rank(template).is_some_and(|other| Some(other) >= rank))
}

/// Whether an object has the claim of a policy, by its id.
pub fn is_claimed_by(object: &Value, policy: &AnyPolicy) -> bool {
    let key = if policy.namespace.is_some() {
        labels::karmada::POLICY_ID
    } else {
        labels::karmada::CLUSTER_POLICY_ID
    };
    !policy.id.is_empty() && object::label(object, key) == policy.id
}

/// Whether an object has any claim.
pub fn is_claimed(object: &Value) -> bool {
    LABELS.iter().any(|key| !object::label(object, key).is_empty())
        || ANNOTATIONS.iter().any(|key| !object::annotation(object, key).is_empty())
}

/// Sets the claim of a policy on an object, replacing any other.
pub fn set_claim(object: &mut Value, policy: &AnyPolicy) {
    clear_claim(object);
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

/// Removes the claim from an object.
pub fn clear_claim(object: &mut Value) {
    object::remove_keys(object, "labels", &LABELS);
    object::remove_keys(object, "annotations", &ANNOTATIONS);
}

#[cfg(test)]
mod tests {
    use super::*;
    use polis_api::karmada::{PropagationSpec, ResourceSelector};
    use serde_json::json;

    fn mk_policy(name: &str) -> AnyPolicy {
        let selector = ResourceSelector {
            api_version: "v1".to_owned(),
            kind: "ConfigMap".to_owned(),
            ..ResourceSelector::default()
        };
        let spec = PropagationSpec { resource_selectors: vec![selector], ..PropagationSpec::default() };
        AnyPolicy {
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

    fn mk_claimed_by(policy: &AnyPolicy) -> Value {
        let mut object = mk_config_map();
        set_claim(&mut object, policy);
        object
    }

    #[test]
    fn an_unclaimed_object_is_claimed_by_the_policy_with_the_highest_rank() {
        let policies = [mk_policy("b"), mk_policy("a")];
        assert_eq!(decide(&policies, &mk_config_map()), Claim::New(&policies[1]));
        assert_eq!(decide::<AnyPolicy>(&[], &mk_config_map()), Claim::None);
    }

    #[test]
    fn a_claim_is_kept_against_a_policy_with_a_higher_rank() {
        let mut better = mk_policy("a");
        better.spec.priority = Some(9);
        let policies = [mk_policy("b"), better];
        assert_eq!(decide(&policies, &mk_claimed_by(&policies[0])), Claim::Existing(&policies[0]));
    }

    #[test]
    fn a_claim_of_a_cluster_policy_is_kept_against_a_namespaced_policy() {
        let cluster = AnyPolicy { namespace: None, ..mk_policy("c") };
        let policies = [cluster, mk_policy("a")];
        assert_eq!(decide(&policies, &mk_claimed_by(&policies[0])), Claim::Existing(&policies[0]));
    }

    #[test]
    fn a_rival_has_the_same_or_a_higher_rank() {
        let (a, b) = (mk_policy("a"), mk_policy("b"));
        let better = AnyPolicy {
            spec: PropagationSpec { priority: Some(9), ..b.spec.clone() },
            ..mk_policy("better")
        };
        let cluster = AnyPolicy { namespace: None, ..mk_policy("c") };
        let object = mk_config_map();
        assert_eq!(rival(&[a.clone(), b.clone()], &a, &object), Some(&b));
        assert_eq!(rival(&[b.clone(), better.clone()], &b, &object), Some(&better));
        assert_eq!(
            rival(&[b.clone(), better.clone()], &better, &object),
            None,
            "the owner has a higher rank"
        );
        assert_eq!(rival(&[a.clone(), cluster.clone()], &a, &object), None, "the owner has a higher rank");
        assert_eq!(
            rival(&[cluster.clone(), a.clone()], &cluster, &object),
            Some(&a),
            "the claim was made first"
        );
    }

    #[test]
    fn a_claim_ends_with_its_policy() {
        let deleted = mk_policy("deleted");
        assert_eq!(decide::<AnyPolicy>(&[], &mk_claimed_by(&deleted)), Claim::Release);
        let leaving = [AnyPolicy { deleting: true, ..deleted.clone() }];
        assert_eq!(decide(&leaving, &mk_claimed_by(&deleted)), Claim::Release);
        let other = [mk_policy("other")];
        assert_eq!(decide(&other, &mk_claimed_by(&deleted)), Claim::New(&other[0]));
    }

    #[test]
    fn a_new_policy_with_the_same_name_must_claim_again() {
        let old = mk_policy("p");
        let new = [AnyPolicy { id: "another".to_owned(), ..mk_policy("p") }];
        assert_eq!(decide(&new, &mk_claimed_by(&old)), Claim::New(&new[0]));
    }

    #[test]
    fn a_claim_ends_when_the_selectors_no_longer_match() {
        let mut policy = mk_policy("p");
        policy.spec.resource_selectors[0].name = Some("other".to_owned());
        assert_eq!(decide(&[policy.clone()], &mk_claimed_by(&policy)), Claim::Release);
    }

    #[test]
    fn a_policy_without_an_id_waits() {
        assert_eq!(
            decide(&[AnyPolicy { id: String::new(), ..mk_policy("p") }], &mk_config_map()),
            Claim::None
        );
    }

    #[test]
    fn an_object_claimed_by_another_controller_is_ignored() {
        let mut object = mk_config_map();
        object::set_label(&mut object, labels::karmada::CLAIMED_BY, "someone");
        assert_eq!(decide(&[mk_policy("p")], &object), Claim::None);
    }

    #[test]
    fn clearing_a_claim_restores_the_object() {
        let mut object = mk_claimed_by(&mk_policy("p"));
        assert!(is_claimed_by(&object, &mk_policy("p")));
        set_claim(&mut object, &AnyPolicy { namespace: None, ..mk_policy("c") });
        assert_eq!(object::label(&object, labels::karmada::POLICY_ID), "");
        assert_eq!(object::annotation(&object, annotations::karmada::CLUSTER_POLICY_NAME), "c");
        clear_claim(&mut object);
        assert_eq!(object, mk_config_map());
    }
}
