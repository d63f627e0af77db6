//! The PropagationPolicy of a city: when it exists, and its content.
//!
//! One policy serves every deployment of one city in one hub namespace. It is desired while at least one of
//! them is not being deleted. A terminating policy is never written: Karmada matches nothing with it, and a
//! patch would succeed and then be lost with the policy. When it is gone, a new one is created.
//!
//! The policy has one resource selector, the city label verbatim, and the same label as cluster affinity. Of
//! several cells in a city exactly one is chosen, and Karmada keeps its choice. Karmada's webhook sets
//! defaults (namespace of the selector, tolerations, an id), and operators may suspend a policy: Polis keeps
//! every field that it does not set.
//!
//! Cities whose codes differ only in case share the name of a policy. The first city keeps it and the other
//! gets a [`PolicyAction::CityConflict`], because alternating writes would move instances back and forth
//! forever.

use polis_api::compute::{API_VERSION, WorkloadDeployment};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use polis_api::karmada::{ClusterAffinity, PropagationPolicy, ResourceSelector, SpreadConstraint};
use polis_api::{ObjectExt, labels, names};

use crate::metadata;
use crate::owner::ObjectRef;

/// A deployment of the city, from an uncached read of the hub. A project's deployment that is about to be
/// copied to the hub counts as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Referrer {
    /// Whether it is being deleted.
    pub deleting: bool,
}

/// The existing policy, compared with the desired one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExistingPolicy {
    /// The object, in the version that was read.
    pub object: ObjectRef,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Whether all fields that Polis sets are as desired.
    pub up_to_date: bool,
    /// The city that it serves, if that is not the desired one.
    pub other_city: Option<String>,
}

/// What to do about the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyAction {
    /// There is nothing to do.
    None,
    /// Create the policy.
    Create,
    /// Replace the policy with [`restored`].
    Update,
    /// Delete this version of the policy. If a federator has restored the policy since, the delete fails.
    Delete(ObjectRef),
    /// The policy is desired and terminating: retry when it is gone.
    AwaitDeletion,
    /// Another city, whose code differs only in case, has the name.
    CityConflict {
        /// The city that has the name.
        city: String,
    },
}

/// Plans the policy from the deployments of the city and the existing policy, both from uncached reads.
pub fn plan(referrers: &[Referrer], existing: Option<&ExistingPolicy>) -> PolicyAction {
    let desired = referrers.iter().any(|referrer| !referrer.deleting);
    match (desired, existing) {
        (false, None) => PolicyAction::None,
        (false, Some(policy)) if policy.deleting || policy.other_city.is_some() => PolicyAction::None,
        (false, Some(policy)) => PolicyAction::Delete(policy.object.clone()),
        (true, None) => PolicyAction::Create,
        (true, Some(policy)) if policy.deleting => PolicyAction::AwaitDeletion,
        (true, Some(ExistingPolicy { other_city: Some(city), .. })) => {
            PolicyAction::CityConflict { city: city.clone() }
        }
        (true, Some(policy)) if policy.up_to_date => PolicyAction::None,
        (true, Some(_)) => PolicyAction::Update,
    }
}

/// The desired policy of a city in a hub namespace.
pub fn desired(namespace: &str, city: &str) -> PropagationPolicy {
    let of_city = LabelSelector {
        match_labels: Some(metadata::map([(labels::TOPOLOGY_CITY_CODE, city)])),
        match_expressions: None,
    };
    let mut policy = PropagationPolicy {
        metadata: ObjectMeta {
            name: Some(names::policy(city)),
            namespace: Some(namespace.to_owned()),
            ..Default::default()
        },
        ..Default::default()
    };
    policy.spec.resource_selectors = vec![ResourceSelector {
        api_version: API_VERSION.into(),
        kind: "WorkloadDeployment".into(),
        label_selector: Some(of_city.clone()),
        ..Default::default()
    }];
    // The companions of referenced config maps and secrets are dependencies of the deployments.
    policy.spec.propagate_deps = true;
    policy.spec.placement.cluster_affinity =
        Some(ClusterAffinity { label_selector: Some(of_city), ..Default::default() });
    policy.spec.placement.spread_constraints = vec![SpreadConstraint {
        spread_by_field: Some("cluster".into()),
        min_groups: Some(1),
        max_groups: Some(1),
        ..Default::default()
    }];
    policy
}

/// The existing policy with the fields that Polis sets corrected; other fields are kept.
pub fn restored(existing: &PropagationPolicy, desired: &PropagationPolicy) -> PropagationPolicy {
    let mut policy = existing.clone();
    let (spec, target) = (&mut policy.spec, &desired.spec);
    if !same_selectors(&spec.resource_selectors, desired) {
        spec.resource_selectors = target.resource_selectors.clone();
    }
    spec.propagate_deps = target.propagate_deps;
    spec.placement.cluster_affinity = target.placement.cluster_affinity.clone();
    spec.placement.cluster_affinities.clear();
    spec.placement.spread_constraints = target.placement.spread_constraints.clone();
    // Preserved copies would keep running in the cell after the deployment is deleted.
    spec.preserve_resources_on_deletion = None;
    policy
}

/// Whether the selectors are as desired. Karmada's webhook sets an empty namespace of a selector to that of
/// the policy, so that namespace counts as empty.
fn same_selectors(existing: &[ResourceSelector], desired: &PropagationPolicy) -> bool {
    let normalised = |selector: &ResourceSelector| {
        let mut selector = selector.clone();
        if selector.namespace == desired.metadata.namespace {
            selector.namespace = None;
        }
        selector
    };
    existing.iter().map(normalised).eq(desired.spec.resource_selectors.iter().map(normalised))
}

impl Referrer {
    /// The referrer of a deployment.
    pub fn of(deployment: &WorkloadDeployment) -> Self {
        Referrer { deleting: deployment.is_deleting() }
    }
}

impl ExistingPolicy {
    /// Compares a policy with the desired one.
    pub fn of(policy: &PropagationPolicy, desired: &PropagationPolicy) -> Self {
        let city = city_of(policy);
        ExistingPolicy {
            object: ObjectRef::of(policy),
            deleting: policy.is_deleting(),
            up_to_date: restored(policy, desired).spec == policy.spec,
            other_city: city.filter(|city| city_of(desired).as_ref() != Some(city)),
        }
    }
}

/// The city of a policy with the structure of [`desired`]: selector and affinity name the same city.
pub fn city_of(policy: &PropagationPolicy) -> Option<String> {
    let city =
        |selector: &LabelSelector| selector.match_labels.as_ref()?.get(labels::TOPOLOGY_CITY_CODE).cloned();
    let [selector] = policy.spec.resource_selectors.as_slice() else { return None };
    let selected = city(selector.label_selector.as_ref()?)?;
    let affine = city(policy.spec.placement.cluster_affinity.as_ref()?.label_selector.as_ref()?)?;
    (selected == affine).then_some(selected)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{deleting, mk_deployment, mk_meta};
    use serde_json::json;

    fn active() -> Referrer {
        Referrer::of(&mk_deployment("web"))
    }

    fn terminating() -> Referrer {
        Referrer::of(&deleting(mk_deployment("web")))
    }

    /// The policy with the defaults that Karmada's webhook sets.
    fn mk_policy(city: &str) -> PropagationPolicy {
        let mut policy = desired("ns-1", city);
        policy.metadata = mk_meta("ns-1", &names::policy(city));
        policy.spec.resource_selectors[0].namespace = Some("ns-1".into());
        policy.spec.priority = Some(0);
        policy.spec.preemption = Some("Never".into());
        policy.spec.conflict_resolution = Some("Abort".into());
        policy.spec.scheduler_name = Some("default-scheduler".into());
        policy.spec.placement.cluster_tolerations = vec![Default::default()];
        policy
    }

    fn existing(policy: &PropagationPolicy) -> ExistingPolicy {
        ExistingPolicy::of(policy, &desired("ns-1", "dfw"))
    }

    #[test]
    fn the_first_deployment_creates_the_policy() {
        assert_eq!(plan(&[active()], None), PolicyAction::Create);
    }

    #[test]
    fn the_policy_is_deleted_with_the_last_deployment() {
        let existing = existing(&mk_policy("dfw"));
        assert_eq!(plan(&[terminating()], Some(&existing)), PolicyAction::Delete(existing.object.clone()));
        assert_eq!(plan(&[], Some(&existing)), PolicyAction::Delete(existing.object));
    }

    #[test]
    fn a_policy_is_kept_while_one_of_its_deployments_is_not_terminating() {
        assert_eq!(plan(&[terminating(), active()], Some(&existing(&mk_policy("dfw")))), PolicyAction::None);
    }

    #[test]
    fn a_terminating_policy_is_awaited_and_never_written() {
        let mut policy = deleting(mk_policy("dfw"));
        assert_eq!(plan(&[active()], Some(&existing(&policy))), PolicyAction::AwaitDeletion);
        policy.spec.placement.spread_constraints.clear();
        assert_eq!(plan(&[active()], Some(&existing(&policy))), PolicyAction::AwaitDeletion);
        assert_eq!(plan(&[terminating()], Some(&existing(&policy))), PolicyAction::None);
    }

    #[test]
    fn without_deployments_and_without_a_policy_there_is_nothing_to_do() {
        assert_eq!(plan(&[], None), PolicyAction::None);
    }

    #[test]
    fn defaults_of_karmada_are_not_a_difference() {
        assert!(existing(&mk_policy("dfw")).up_to_date);
    }

    #[test]
    fn fields_that_polis_sets_are_corrected_and_others_are_kept() {
        type Edit = fn(&mut PropagationPolicy);
        let edits: [Edit; 7] = [
            |p| p.spec.resource_selectors.clear(),
            |p| p.spec.resource_selectors.push(Default::default()),
            |p| p.spec.resource_selectors[0].name = Some("only-this".into()),
            |p| p.spec.placement.cluster_affinity.as_mut().unwrap().cluster_names = vec!["x".into()],
            |p| p.spec.placement.spread_constraints.clear(),
            |p| p.spec.preserve_resources_on_deletion = Some(true),
            |p| p.spec.propagate_deps = false,
        ];
        for edit in edits {
            let mut policy = mk_policy("dfw");
            policy.spec.suspension = Some(Default::default());
            let good = policy.clone();
            edit(&mut policy);
            assert_eq!(plan(&[active()], Some(&existing(&policy))), PolicyAction::Update);
            let new = restored(&policy, &desired("ns-1", "dfw"));
            assert!(existing(&new).up_to_date);
            assert_eq!(new.spec.suspension, good.spec.suspension);
            assert_eq!(new.spec.placement.cluster_tolerations, good.spec.placement.cluster_tolerations);
            assert_eq!(new.metadata, good.metadata);
        }
    }

    #[test]
    fn a_city_that_differs_only_in_case_keeps_its_policy() {
        let other = ExistingPolicy::of(&mk_policy("DFW"), &desired("ns-1", "dfw"));
        assert_eq!(plan(&[active()], Some(&other)), PolicyAction::CityConflict { city: "DFW".into() });
        assert_eq!(plan(&[terminating()], Some(&other)), PolicyAction::None);
    }

    #[test]
    fn the_policy_has_the_fields_that_karmada_expects() {
        let policy = desired("ns-1", "DFW");
        assert_eq!(policy.metadata.name.as_deref(), Some("city-dfw"));
        assert_eq!(
            serde_json::to_value(&policy.spec).unwrap(),
            json!({
                "resourceSelectors": [{
                    "apiVersion": "compute.datumapis.com/v1alpha",
                    "kind": "WorkloadDeployment",
                    "labelSelector": {"matchLabels": {"topology.datum.net/city-code": "DFW"}},
                }],
                "propagateDeps": true,
                "placement": {
                    "clusterAffinity": {"labelSelector": {"matchLabels": {"topology.datum.net/city-code": "DFW"}}},
                    "spreadConstraints": [{"spreadByField": "cluster", "minGroups": 1, "maxGroups": 1}],
                },
            })
        );
    }
}
