//! Cell access: the rights of a city's cells in a hub namespace.
//!
//! A RoleBinding grants the cells of a city the ClusterRole [`ROLE`] in each hub namespace where the city has
//! deployments. It lives like the [`policy`](crate::policy) of the city, and has its name. A copy of an
//! Instance counts as a deployment does: its cell must be able to delete it, also after its deployment moved
//! to another city.
//!
//! The presence label of the city is removed from the namespace before the RoleBinding is. A cell that is
//! forbidden to read its copy finds there whether the hub has withdrawn its rights, which happens only when
//! no copy is left, or whether they are missing by mistake.

use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::k8s_openapi::api::rbac::v1::{RoleBinding, RoleRef, Subject};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polis_api::{ObjectExt, groups, labels, names};

use crate::metadata;
use crate::owner::ObjectRef;
use crate::policy::{self, ExistingPolicy, PolicyAction, Referrer};

/// The ClusterRole with the rights of a cell in a hub namespace; `deploy/components/rbac/hub` has it.
pub const ROLE: &str = "compute-cell-city";

/// What to do about the RoleBinding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessAction {
    /// There is nothing to do.
    None,
    /// Create the RoleBinding.
    Grant,
    /// Delete this version: its subjects or its role were changed. Its deletion is followed by a grant. An
    /// update would not do, because the role of a RoleBinding is immutable.
    Replace(ObjectRef),
    /// Remove the presence label of the city, then delete this version.
    Withdraw(ObjectRef),
}

/// Plans the RoleBinding of a city from its deployments and its Instances in a hub namespace. To withdraw
/// rights, the caller needs uncached reads.
pub fn plan(
    deployments: &[Referrer],
    copies: usize,
    namespace: &str,
    city: &str,
    existing: Option<&RoleBinding>,
) -> AccessAction {
    let copies = (copies > 0).then_some(Referrer { deleting: false });
    let referrers: Vec<_> = deployments.iter().cloned().chain(copies).collect();
    let desired = desired(namespace, city);
    let existing = existing.map(|existing| ExistingPolicy {
        object: ObjectRef::of(existing),
        deleting: existing.is_deleting(),
        up_to_date: existing.role_ref == desired.role_ref && existing.subjects == desired.subjects,
        other_city: city_of(existing).filter(|other| *other != city).map(str::to_owned),
    });
    match (policy::plan(&referrers, existing.as_ref()), existing) {
        (PolicyAction::Create, _) => AccessAction::Grant,
        (PolicyAction::Update, Some(existing)) => AccessAction::Replace(existing.object),
        (PolicyAction::Delete(object), _) => AccessAction::Withdraw(object),
        _ => AccessAction::None,
    }
}

/// The desired RoleBinding of a city in a hub namespace.
pub fn desired(namespace: &str, city: &str) -> RoleBinding {
    let metadata = ObjectMeta {
        name: Some(names::policy(city)),
        namespace: Some(namespace.to_owned()),
        labels: Some(metadata::map([(labels::TOPOLOGY_CITY_CODE, city)])),
        ..Default::default()
    };
    let api_group = "rbac.authorization.k8s.io".to_owned();
    let group = Subject {
        api_group: Some(api_group.clone()),
        kind: "Group".into(),
        name: groups::cells_of(city),
        namespace: None,
    };
    let role_ref = RoleRef { api_group, kind: "ClusterRole".into(), name: ROLE.into() };
    RoleBinding { metadata, role_ref, subjects: Some(vec![group]) }
}

/// The city of a RoleBinding with the label of [`desired`].
pub fn city_of(binding: &RoleBinding) -> Option<&str> {
    binding.label(labels::TOPOLOGY_CITY_CODE)
}

/// The namespace without the presence label of a city; none if it has none.
pub fn without_presence(namespace: &Namespace, city: &str) -> Option<Namespace> {
    let mut unlabelled = namespace.clone();
    unlabelled.metadata.labels.as_mut()?.remove(&labels::city_presence(city))?;
    Some(unlabelled)
}

/// Whether the hub has withdrawn the rights of a city's cells in a namespace, from an uncached read of the
/// namespace: then it has no copy of an Instance of the city.
pub fn is_withdrawn(namespace: Option<&Namespace>, city: &str) -> bool {
    namespace.is_none_or(|namespace| namespace.label(&labels::city_presence(city)).is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::mk_meta;

    const LIVE: Referrer = Referrer { deleting: false };
    const DELETING: Referrer = Referrer { deleting: true };

    fn mk_binding(city: &str) -> RoleBinding {
        let mut binding = desired("ns-1", city);
        let labels = binding.metadata.labels.take();
        binding.metadata = ObjectMeta { labels, ..mk_meta("ns-1", &names::policy(city)) };
        binding
    }

    fn mk_namespace(cities: &[&str]) -> Namespace {
        let labels = cities.iter().map(|city| (labels::city_presence(city), "true".to_owned())).collect();
        let metadata = ObjectMeta { labels: Some(labels), ..mk_meta("", "ns-1") };
        Namespace { metadata, ..Default::default() }
    }

    #[test]
    fn the_rights_live_as_long_as_deployments_and_copies_of_the_city() {
        let binding = mk_binding("DFW");
        let withdraw = AccessAction::Withdraw(ObjectRef::of(&binding));
        let cases: [(&[Referrer], usize, Option<&RoleBinding>, AccessAction); 9] = [
            (&[], 0, None, AccessAction::None),
            (&[DELETING], 0, None, AccessAction::None),
            (&[LIVE], 0, None, AccessAction::Grant),
            (&[DELETING, LIVE], 3, None, AccessAction::Grant),
            (&[LIVE], 0, Some(&binding), AccessAction::None),
            (&[DELETING], 1, Some(&binding), AccessAction::None),
            (&[], 1, Some(&binding), AccessAction::None),
            (&[DELETING], 0, Some(&binding), withdraw.clone()),
            (&[], 0, Some(&binding), withdraw),
        ];
        for (deployments, copies, existing, expected) in cases {
            let planned = plan(deployments, copies, "ns-1", "DFW", existing);
            assert_eq!(planned, expected, "{deployments:?}, {copies} copies");
        }
    }

    #[test]
    fn a_changed_binding_is_replaced() {
        let edits: [fn(&mut RoleBinding); 3] = [
            |binding| binding.role_ref.name = "cluster-admin".into(),
            |binding| binding.subjects = None,
            |binding| binding.subjects.as_mut().unwrap()[0].name = groups::cells_of("ord"),
        ];
        for edit in edits {
            let mut binding = mk_binding("DFW");
            edit(&mut binding);
            let replace = AccessAction::Replace(ObjectRef::of(&binding));
            assert_eq!(plan(&[LIVE], 0, "ns-1", "DFW", Some(&binding)), replace);
        }
    }

    #[test]
    fn a_city_that_differs_only_in_case_keeps_its_binding() {
        let other = mk_binding("dfw");
        assert_eq!(plan(&[LIVE], 0, "ns-1", "DFW", Some(&other)), AccessAction::None);
        assert_eq!(plan(&[], 0, "ns-1", "DFW", Some(&other)), AccessAction::None);
    }

    #[test]
    fn the_binding_grants_the_shipped_role_to_the_group_of_the_city() {
        let binding = desired("ns-1", "New York");
        assert_eq!(binding.metadata.name.as_deref(), Some("city-new-york"));
        assert_eq!(binding.role_ref.name, ROLE);
        let subjects = binding.subjects.unwrap();
        assert_eq!(subjects.len(), 1);
        assert_eq!(
            (&*subjects[0].kind, &*subjects[0].name),
            ("Group", "compute.datumapis.com:city:New York")
        );
        assert_eq!(groups::city_of(&subjects[0].name), Some("New York"));
    }

    #[test]
    fn the_presence_label_shows_whether_the_rights_were_withdrawn() {
        let namespace = mk_namespace(&["DFW", "ord"]);
        assert!(!is_withdrawn(Some(&namespace), "DFW"));
        let unlabelled = without_presence(&namespace, "DFW").unwrap();
        assert!(is_withdrawn(Some(&unlabelled), "DFW"));
        assert!(!is_withdrawn(Some(&unlabelled), "ord"), "the labels of other cities stay");
        assert_eq!(without_presence(&unlabelled, "DFW"), None);
        assert!(is_withdrawn(None, "ord"), "the namespace is gone");
    }
}
