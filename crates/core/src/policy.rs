//! When a city's propagation policy exists.
//!
//! One policy serves every deployment of one city in one hub namespace. It is wanted while at least one of them is not
//! being deleted. A policy that is terminating is never written to: Karmada matches nothing with it, and a patch would
//! succeed and then vanish with it. It is waited for, then made anew.
//!
//! The policy names one selector, the city label verbatim, and the same label as affinity to clusters. Of several cells
//! in a city exactly one is chosen, and Karmada stays with its choice. Karmada's own webhook fills in defaults
//! (namespace of the selector, tolerations, an id), and operators may suspend a policy: what Polis does not state, it
//! leaves as it finds it.
//!
//! Cities that differ only in case share the name of a policy. The first keeps it; the other is contested and told so,
//! because taking turns would move instances back and forth for ever.

use polis_api::compute::{API_VERSION, WorkloadDeployment};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use polis_api::karmada::{ClusterAffinity, PropagationPolicy, ResourceSelector, SpreadConstraint};
use polis_api::{labels, names};

use crate::metadata;
use crate::owner::{self, Exact};

/// One deployment of the city, as read live from the hub. A deployment of the project that is about to arrive there
/// counts as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Whether it is on its way out.
    pub deleting: bool,
}

/// The policy that is there now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The object, in the state that was looked at.
    pub exact: Exact,
    /// Whether it is on its way out.
    pub deleting: bool,
    /// Whether it says what it should.
    pub as_wanted: bool,
    /// The city that it serves, when that is not ours.
    pub other_city: Option<String>,
}

/// What to do about the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Leave,
    /// Make it.
    Create,
    /// Write [`restored`] over it.
    Restore,
    /// Only this very object in this very state: a federator that restored it meanwhile makes the delete fail.
    Remove(Exact),
    /// Terminating while wanted: come back when it is gone.
    AwaitRemoval,
    /// Another city, spelt alike but for case, has the name.
    Contested {
        /// The city that has it.
        city: String,
    },
}

/// What to do, given the deployments of the city and the policy that stands, both read live.
pub fn step(tenants: &[Tenant], standing: Option<&Standing>) -> Step {
    let wanted = tenants.iter().any(|tenant| !tenant.deleting);
    match (wanted, standing) {
        (false, None) => Step::Leave,
        (false, Some(policy)) if policy.deleting || policy.other_city.is_some() => Step::Leave,
        (false, Some(policy)) => Step::Remove(policy.exact.clone()),
        (true, None) => Step::Create,
        (true, Some(policy)) if policy.deleting => Step::AwaitRemoval,
        (true, Some(Standing { other_city: Some(city), .. })) => Step::Contested { city: city.clone() },
        (true, Some(policy)) if policy.as_wanted => Step::Leave,
        (true, Some(_)) => Step::Restore,
    }
}

/// The policy of a city in a hub namespace.
pub fn wanted(namespace: &str, city: &str) -> PropagationPolicy {
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

/// The standing policy with everything put right that Polis states, and everything else as it was.
pub fn restored(standing: &PropagationPolicy, wanted: &PropagationPolicy) -> PropagationPolicy {
    let mut policy = standing.clone();
    let (spec, want) = (&mut policy.spec, &wanted.spec);
    if !same_selectors(&spec.resource_selectors, wanted) {
        spec.resource_selectors = want.resource_selectors.clone();
    }
    spec.placement.cluster_affinity = want.placement.cluster_affinity.clone();
    spec.placement.cluster_affinities.clear();
    spec.placement.spread_constraints = want.placement.spread_constraints.clone();
    // Kept copies would go on running on the cell after the deployment is gone.
    spec.preserve_resources_on_deletion = None;
    policy
}

/// Karmada's webhook fills in the namespace of a selector with that of the policy.
fn same_selectors(standing: &[ResourceSelector], wanted: &PropagationPolicy) -> bool {
    let bare = |selector: &ResourceSelector| {
        let mut selector = selector.clone();
        if selector.namespace == wanted.metadata.namespace {
            selector.namespace = None;
        }
        selector
    };
    standing.iter().map(bare).eq(wanted.spec.resource_selectors.iter().map(bare))
}

impl Tenant {
    /// A deployment as a tenant.
    pub fn of(deployment: &WorkloadDeployment) -> Self {
        Tenant { deleting: owner::is_deleting(&deployment.metadata) }
    }
}

impl Standing {
    /// A policy as it stands, measured against the wanted one.
    pub fn of(policy: &PropagationPolicy, wanted: &PropagationPolicy) -> Self {
        let city = city_of(policy);
        Standing {
            exact: Exact::of(&policy.metadata),
            deleting: owner::is_deleting(&policy.metadata),
            as_wanted: restored(policy, wanted).spec == policy.spec,
            other_city: city.filter(|city| city_of(wanted).as_ref() != Some(city)),
        }
    }
}

/// The city of a policy that has the shape of ours: selector and affinity name the same one.
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

    fn staying() -> Tenant {
        Tenant::of(&mk_deployment("web"))
    }

    fn leaving() -> Tenant {
        Tenant::of(&deleting(mk_deployment("web")))
    }

    /// The policy as Karmada hands it out after its webhook.
    fn mk_policy(city: &str) -> PropagationPolicy {
        let mut policy = wanted("ns-1", city);
        policy.metadata = mk_meta("ns-1", &names::policy(city));
        policy.spec.resource_selectors[0].namespace = Some("ns-1".into());
        policy.spec.priority = Some(0);
        policy.spec.preemption = Some("Never".into());
        policy.spec.conflict_resolution = Some("Abort".into());
        policy.spec.scheduler_name = Some("default-scheduler".into());
        policy.spec.placement.cluster_tolerations = vec![Default::default()];
        policy
    }

    fn standing(policy: &PropagationPolicy) -> Standing {
        Standing::of(policy, &wanted("ns-1", "dfw"))
    }

    #[test]
    fn the_first_deployment_brings_the_policy() {
        assert_eq!(step(&[staying()], None), Step::Create);
    }

    #[test]
    fn the_last_deployment_takes_the_policy_with_it() {
        let standing = standing(&mk_policy("dfw"));
        assert_eq!(step(&[leaving()], Some(&standing)), Step::Remove(standing.exact.clone()));
        assert_eq!(step(&[], Some(&standing)), Step::Remove(standing.exact));
    }

    #[test]
    fn a_deployment_that_leaves_does_not_take_the_policy_from_one_that_stays() {
        assert_eq!(step(&[leaving(), staying()], Some(&standing(&mk_policy("dfw")))), Step::Leave);
    }

    #[test]
    fn a_policy_on_its_way_out_is_waited_for_and_never_written_to() {
        let mut policy = deleting(mk_policy("dfw"));
        assert_eq!(step(&[staying()], Some(&standing(&policy))), Step::AwaitRemoval);
        policy.spec.placement.spread_constraints.clear();
        assert_eq!(step(&[staying()], Some(&standing(&policy))), Step::AwaitRemoval);
        assert_eq!(step(&[leaving()], Some(&standing(&policy))), Step::Leave);
    }

    #[test]
    fn without_tenants_and_without_a_policy_there_is_nothing_to_do() {
        assert_eq!(step(&[], None), Step::Leave);
    }

    #[test]
    fn defaults_of_karmada_are_not_a_difference() {
        assert!(standing(&mk_policy("dfw")).as_wanted);
    }

    #[test]
    fn what_polis_states_is_put_right_and_the_rest_stays() {
        type Damage = fn(&mut PropagationPolicy);
        let damages: [Damage; 6] = [
            |p| p.spec.resource_selectors.clear(),
            |p| p.spec.resource_selectors.push(Default::default()),
            |p| p.spec.resource_selectors[0].name = Some("only-this".into()),
            |p| p.spec.placement.cluster_affinity.as_mut().unwrap().cluster_names = vec!["x".into()],
            |p| p.spec.placement.spread_constraints.clear(),
            |p| p.spec.preserve_resources_on_deletion = Some(true),
        ];
        for damage in damages {
            let mut policy = mk_policy("dfw");
            policy.spec.suspension = Some(Default::default());
            let good = policy.clone();
            damage(&mut policy);
            assert_eq!(step(&[staying()], Some(&standing(&policy))), Step::Restore);
            let new = restored(&policy, &wanted("ns-1", "dfw"));
            assert!(standing(&new).as_wanted);
            assert_eq!(new.spec.suspension, good.spec.suspension);
            assert_eq!(new.spec.placement.cluster_tolerations, good.spec.placement.cluster_tolerations);
            assert_eq!(new.metadata, good.metadata);
        }
    }

    #[test]
    fn a_city_spelt_otherwise_keeps_its_policy() {
        let other = Standing::of(&mk_policy("DFW"), &wanted("ns-1", "dfw"));
        assert_eq!(step(&[staying()], Some(&other)), Step::Contested { city: "DFW".into() });
        assert_eq!(step(&[leaving()], Some(&other)), Step::Leave);
    }

    #[test]
    fn the_policy_is_exactly_what_others_look_for() {
        let policy = wanted("ns-1", "DFW");
        assert_eq!(policy.metadata.name.as_deref(), Some("city-dfw"));
        assert_eq!(
            serde_json::to_value(&policy.spec).unwrap(),
            json!({
                "resourceSelectors": [{
                    "apiVersion": "compute.datumapis.com/v1alpha",
                    "kind": "WorkloadDeployment",
                    "labelSelector": {"matchLabels": {"topology.datum.net/city-code": "DFW"}},
                }],
                "placement": {
                    "clusterAffinity": {"labelSelector": {"matchLabels": {"topology.datum.net/city-code": "DFW"}}},
                    "spreadConstraints": [{"spreadByField": "cluster", "minGroups": 1, "maxGroups": 1}],
                },
            })
        );
    }
}
