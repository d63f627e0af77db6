//! Tenant: the project, and the namespace in it, that a hub or cell namespace belongs to.
//!
//! The only source is the labels of the hub namespace, which only the federator writes. A missing or
//! malformed label is an error: an object of unknown origin is not projected, so it never appears in the
//! wrong project.

use polis_api::ObjectExt;
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polis_api::labels::{UPSTREAM_CLUSTER_NAME, UPSTREAM_NAMESPACE, city_presence};
use polis_api::names::{self, NameError};

use crate::metadata;

/// The origin of the objects in a hub or cell namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// The project's key in project discovery.
    pub project: String,
    /// The namespace in the project.
    pub namespace: String,
    /// The project as it is encoded in labels, for the labels of copies.
    pub cluster_label: String,
}

/// Why the tenant of a namespace cannot be determined. A retry does not help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TenantError {
    /// A label is missing or empty.
    #[error(
        "failed to find the project of namespace {namespace}: label {label} is missing; the federator sets it"
    )]
    Missing {
        /// The hub or cell namespace.
        namespace: String,
        /// The label.
        label: &'static str,
    },
    /// A label does not contain a project.
    #[error("failed to find the project of namespace {namespace}: {source}")]
    Malformed {
        /// The hub or cell namespace.
        namespace: String,
        /// What is wrong with the label.
        source: NameError,
    },
    /// The namespace belongs to another tenant.
    #[error(
        "failed to use hub namespace {namespace}: expected label {expected}, found {found}; find out which client wrote that label"
    )]
    Taken {
        /// The hub namespace.
        namespace: String,
        /// The label that it should have, as `key=value`.
        expected: String,
        /// The label that it has, as `key=value`.
        found: String,
    },
    /// The project's name cannot be encoded in a label.
    #[error(transparent)]
    Name(#[from] NameError),
}

impl Tenant {
    /// The tenant of a project and one of its namespaces.
    pub fn new(project: &str, namespace: &str) -> Result<Self, NameError> {
        let cluster_label = names::cluster_label(project)?;
        let project = names::project_key_of_label(&cluster_label)?;
        Ok(Tenant { project, namespace: namespace.to_owned(), cluster_label })
    }

    /// The tenant of a namespace on the hub or on a cell, from its labels.
    pub fn of(namespace: &Namespace) -> Result<Self, TenantError> {
        let name = namespace.name();
        let read = |label| {
            namespace.label(label).ok_or_else(|| TenantError::Missing { namespace: name.to_owned(), label })
        };
        let cluster_label = read(UPSTREAM_CLUSTER_NAME)?.to_owned();
        let project = names::project_key_of_label(&cluster_label)
            .map_err(|source| TenantError::Malformed { namespace: name.to_owned(), source })?;
        Ok(Tenant { project, namespace: read(UPSTREAM_NAMESPACE)?.to_owned(), cluster_label })
    }

    /// Whether objects of this tenant in a hub namespace may be deleted, from the labels of the namespace:
    /// false if it belongs to another tenant. The name of the namespace is no proof: it has the UID that the
    /// project's plane shows. A namespace that does not exist has nothing to delete. One without the labels
    /// is an error, because its objects may be this tenant's.
    pub fn owns(&self, namespace: Option<&Namespace>) -> Result<bool, TenantError> {
        let Some(namespace) = namespace else { return Ok(true) };
        let other = |(label, value): &(String, String)| {
            namespace.label(label).is_some_and(|found| found != value.as_str())
        };
        if self.labels().into_iter().any(|label| other(&label)) {
            return Ok(false);
        }
        Tenant::of(namespace).map(|tenant| tenant == *self)
    }

    /// The two labels that encode the tenant.
    pub fn labels(&self) -> metadata::Map {
        metadata::map([
            (UPSTREAM_CLUSTER_NAME, self.cluster_label.as_str()),
            (UPSTREAM_NAMESPACE, self.namespace.as_str()),
        ])
    }
}

/// What to do about the hub namespace of a deployment.
#[derive(Clone, Debug, PartialEq)]
pub enum NamespaceAction {
    /// The namespace is up to date.
    None,
    /// Create the namespace.
    Create(Box<Namespace>),
    /// Write the labels of this namespace; labels of other writers are kept.
    Relabel(Box<Namespace>),
    /// The namespace is terminating: nothing can be created in it until it is gone.
    AwaitDeletion,
}

/// Plans the hub namespace `name` for a deployment in a city. City presence labels are only added: they are
/// removed with the rights of the city's cells (see [`cell_access`](crate::cell_access)).
pub fn plan_namespace(
    name: &str,
    tenant: &Tenant,
    city: &str,
    existing: Option<&Namespace>,
) -> Result<NamespaceAction, TenantError> {
    let mut desired = tenant.labels();
    desired.insert(city_presence(city), "true".into());
    let Some(existing) = existing else {
        let metadata =
            ObjectMeta { name: Some(name.to_owned()), labels: Some(desired), ..Default::default() };
        return Ok(NamespaceAction::Create(Box::new(Namespace { metadata, ..Default::default() })));
    };
    for (label, value) in tenant.labels() {
        match existing.label(&label) {
            Some(found) if found != value => {
                let (namespace, found) = (name.to_owned(), format!("{label}={found}"));
                return Err(TenantError::Taken { namespace, expected: format!("{label}={value}"), found });
            }
            _ => {}
        }
    }
    if existing.is_deleting() {
        return Ok(NamespaceAction::AwaitDeletion);
    }
    let mut labelled = existing.clone();
    Ok(match metadata::merge_labels(&mut labelled.metadata, &desired, &[]) {
        true => NamespaceAction::Relabel(Box::new(labelled)),
        false => NamespaceAction::None,
    })
}

#[cfg(test)]
pub(crate) fn mk_tenant() -> Tenant {
    Tenant::new("acme", "shop").unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::map;
    use crate::testing::{deleting, mk_meta};

    fn mk_namespace(labels: &[(&str, &str)]) -> Namespace {
        let metadata = ObjectMeta { labels: Some(map(labels.iter().copied())), ..mk_meta("", "ns-1") };
        Namespace { metadata, ..Default::default() }
    }

    #[test]
    fn the_tenant_is_read_from_the_labels() {
        let tenant = Tenant::of(&mk_namespace(&[
            (UPSTREAM_CLUSTER_NAME, "cluster-acme"),
            (UPSTREAM_NAMESPACE, "shop"),
        ]));
        assert_eq!(tenant.unwrap(), mk_tenant());
    }

    #[test]
    fn the_key_of_a_project_is_the_last_segment_of_its_path() {
        for (label, project) in
            [("cluster-datum-cloud", "datum-cloud"), ("cluster-_test-project-abc", "test-project-abc")]
        {
            let tenant =
                Tenant::of(&mk_namespace(&[(UPSTREAM_CLUSTER_NAME, label), (UPSTREAM_NAMESPACE, "shop")]));
            let tenant = tenant.unwrap();
            assert_eq!((tenant.project.as_str(), tenant.cluster_label.as_str()), (project, label));
        }
    }

    #[test]
    fn a_missing_or_empty_label_is_an_error() {
        for labels in [vec![], vec![(UPSTREAM_CLUSTER_NAME, ""), (UPSTREAM_NAMESPACE, "shop")]] {
            let error = Tenant::of(&mk_namespace(&labels)).unwrap_err();
            assert_eq!(
                error,
                TenantError::Missing { namespace: "ns-1".into(), label: UPSTREAM_CLUSTER_NAME }
            );
        }
        let error = Tenant::of(&mk_namespace(&[(UPSTREAM_CLUSTER_NAME, "cluster-acme")])).unwrap_err();
        assert_eq!(error, TenantError::Missing { namespace: "ns-1".into(), label: UPSTREAM_NAMESPACE });
    }

    #[test]
    fn a_label_without_a_project_is_an_error() {
        for label in ["acme", "cluster-", "cluster-_"] {
            let found =
                Tenant::of(&mk_namespace(&[(UPSTREAM_CLUSTER_NAME, label), (UPSTREAM_NAMESPACE, "shop")]));
            assert!(matches!(found, Err(TenantError::Malformed { .. })), "{label}");
        }
    }

    #[test]
    fn nothing_is_deleted_in_a_namespace_of_another_tenant_or_of_none() {
        let (project, namespace) = ((UPSTREAM_CLUSTER_NAME, "cluster-acme"), (UPSTREAM_NAMESPACE, "shop"));
        let (other_project, other_namespace) =
            ((UPSTREAM_CLUSTER_NAME, "cluster-globex"), (UPSTREAM_NAMESPACE, "bank"));
        let owns = |labels: &[_]| mk_tenant().owns(Some(&mk_namespace(labels)));
        assert_eq!(mk_tenant().owns(None), Ok(true));
        assert_eq!(owns(&[project, namespace]), Ok(true));
        for foreign in
            [[other_project, namespace], [project, other_namespace], [other_project, other_namespace]]
        {
            assert_eq!(owns(&foreign), Ok(false), "{foreign:?}");
        }
        for unlabelled in [&[][..], &[project], &[namespace]] {
            assert!(matches!(owns(unlabelled), Err(TenantError::Missing { .. })), "{unlabelled:?}");
        }
    }

    #[test]
    fn the_namespace_is_created_with_tenant_and_city_labels() {
        let Ok(NamespaceAction::Create(made)) = plan_namespace("ns-1", &mk_tenant(), "DFW", None) else {
            panic!()
        };
        let labels = made.metadata.labels.unwrap();
        assert_eq!(labels[UPSTREAM_CLUSTER_NAME], "cluster-acme");
        assert_eq!(labels[UPSTREAM_NAMESPACE], "shop");
        assert_eq!(labels["city.compute.datumapis.com/dfw"], "true");
    }

    #[test]
    fn a_second_city_is_added_and_other_labels_are_kept() {
        let mut existing = mk_namespace(&[("team", "blue"), ("city.compute.datumapis.com/dfw", "true")]);
        existing.metadata.labels.as_mut().unwrap().extend(mk_tenant().labels());
        assert_eq!(plan_namespace("ns-1", &mk_tenant(), "dfw", Some(&existing)), Ok(NamespaceAction::None));
        let Ok(NamespaceAction::Relabel(new)) = plan_namespace("ns-1", &mk_tenant(), "ord", Some(&existing))
        else {
            panic!()
        };
        let labels = new.metadata.labels.unwrap();
        assert_eq!(labels.len(), 5);
        assert_eq!(labels["team"], "blue");
    }

    #[test]
    fn a_namespace_without_labels_is_labelled() {
        assert!(matches!(
            plan_namespace("ns-1", &mk_tenant(), "dfw", Some(&mk_namespace(&[]))),
            Ok(NamespaceAction::Relabel(_))
        ));
    }

    #[test]
    fn a_namespace_of_another_project_is_never_relabelled() {
        let other = mk_namespace(&[(UPSTREAM_CLUSTER_NAME, "cluster-other")]);
        let error = plan_namespace("ns-1", &mk_tenant(), "dfw", Some(&other)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "failed to use hub namespace ns-1: expected label meta.datumapis.com/upstream-cluster-name=cluster-acme, found \
             meta.datumapis.com/upstream-cluster-name=cluster-other; find out which client wrote that label"
        );
    }

    #[test]
    fn a_terminating_namespace_is_awaited() {
        let existing = deleting(mk_namespace(&[]));
        assert_eq!(
            plan_namespace("ns-1", &mk_tenant(), "dfw", Some(&existing)),
            Ok(NamespaceAction::AwaitDeletion)
        );
    }
}
