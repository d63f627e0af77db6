//! Identity: which project a hub namespace belongs to.
//!
//! The labels of the hub namespace, which only the federator writes, are the one source. What cannot be read there is
//! an error, never a guess: an object of unknown origin stays invisible, it never shows up in another project.

use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polis_api::labels::{UPSTREAM_CLUSTER_NAME, UPSTREAM_NAMESPACE, city_presence};
use polis_api::names::{self, NameError};

use crate::{metadata, owner};

/// Where the objects of a hub or cell namespace come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The project, as project discovery knows it.
    pub project: String,
    /// The namespace in the project.
    pub namespace: String,
    /// The project as labels spell it, for labels of copies.
    pub cluster_label: String,
}

/// Why the origin of a namespace is not known. None of these goes away by trying again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
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
    /// A label holds no project.
    #[error("failed to find the project of namespace {namespace}: {source}")]
    Malformed {
        /// The hub or cell namespace.
        namespace: String,
        /// What is wrong with the label.
        source: NameError,
    },
    /// The namespace is that of somebody else.
    #[error(
        "failed to use hub namespace {namespace}: it should carry {wanted} and carries {found}; find out who wrote that label"
    )]
    Taken {
        /// The hub namespace.
        namespace: String,
        /// The label that it should carry.
        wanted: String,
        /// The label that it carries.
        found: String,
    },
    /// The project cannot be named in a label.
    #[error(transparent)]
    Name(#[from] NameError),
}

impl Identity {
    /// Of a project and one of its namespaces.
    pub fn new(project: &str, namespace: &str) -> Result<Self, NameError> {
        let cluster_label = names::cluster_label(project)?;
        let project = names::project_key_of_label(&cluster_label)?;
        Ok(Identity { project, namespace: namespace.to_owned(), cluster_label })
    }

    /// Of a namespace on the hub or on a cell.
    pub fn of(namespace: &Namespace) -> Result<Self, IdentityError> {
        let name = owner::name(&namespace.metadata);
        let read = |label| {
            metadata::label(&namespace.metadata, label)
                .ok_or_else(|| IdentityError::Missing { namespace: name.to_owned(), label })
        };
        let cluster_label = read(UPSTREAM_CLUSTER_NAME)?.to_owned();
        let project = names::project_key_of_label(&cluster_label)
            .map_err(|source| IdentityError::Malformed { namespace: name.to_owned(), source })?;
        Ok(Identity { project, namespace: read(UPSTREAM_NAMESPACE)?.to_owned(), cluster_label })
    }

    /// The two labels that carry it.
    pub fn labels(&self) -> metadata::Map {
        metadata::map([
            (UPSTREAM_CLUSTER_NAME, self.cluster_label.as_str()),
            (UPSTREAM_NAMESPACE, self.namespace.as_str()),
        ])
    }
}

/// What to do about the hub namespace of a deployment.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// It is as it should be.
    Leave,
    /// Make it.
    Create(Box<Namespace>),
    /// Write these labels; those of others are kept in them.
    Relabel(Box<Namespace>),
    /// It is on its way out: nothing can be made in it until it is gone.
    AwaitRemoval,
}

/// The hub namespace `name` for a deployment in a city. Presence labels of cities are added and never taken away: a
/// cell may still have copies to remove there.
pub fn step(
    name: &str,
    identity: &Identity,
    city: &str,
    standing: Option<&Namespace>,
) -> Result<Step, IdentityError> {
    let mut wanted = identity.labels();
    wanted.insert(city_presence(city), "true".into());
    let Some(standing) = standing else {
        let metadata = ObjectMeta { name: Some(name.to_owned()), labels: Some(wanted), ..Default::default() };
        return Ok(Step::Create(Box::new(Namespace { metadata, ..Default::default() })));
    };
    for (label, value) in identity.labels() {
        match metadata::label(&standing.metadata, &label) {
            Some(found) if found != value => {
                let (namespace, found) = (name.to_owned(), format!("{label}={found}"));
                return Err(IdentityError::Taken { namespace, wanted: format!("{label}={value}"), found });
            }
            _ => {}
        }
    }
    if owner::is_deleting(&standing.metadata) {
        return Ok(Step::AwaitRemoval);
    }
    let mut labelled = standing.clone();
    Ok(match metadata::merge_labels(&mut labelled.metadata, &wanted, &[]) {
        true => Step::Relabel(Box::new(labelled)),
        false => Step::Leave,
    })
}

#[cfg(test)]
pub(crate) fn mk_identity() -> Identity {
    Identity::new("acme", "shop").unwrap()
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
    fn the_labels_name_project_and_namespace() {
        let identity = Identity::of(&mk_namespace(&[
            (UPSTREAM_CLUSTER_NAME, "cluster-acme"),
            (UPSTREAM_NAMESPACE, "shop"),
        ]));
        assert_eq!(identity.unwrap(), mk_identity());
    }

    #[test]
    fn only_the_last_segment_of_a_project_path_is_its_key() {
        for (label, project) in
            [("cluster-datum-cloud", "datum-cloud"), ("cluster-_test-project-abc", "test-project-abc")]
        {
            let identity =
                Identity::of(&mk_namespace(&[(UPSTREAM_CLUSTER_NAME, label), (UPSTREAM_NAMESPACE, "shop")]));
            let identity = identity.unwrap();
            assert_eq!((identity.project.as_str(), identity.cluster_label.as_str()), (project, label));
        }
    }

    #[test]
    fn a_missing_or_empty_label_is_an_error_and_never_a_guess() {
        for labels in [vec![], vec![(UPSTREAM_CLUSTER_NAME, ""), (UPSTREAM_NAMESPACE, "shop")]] {
            let error = Identity::of(&mk_namespace(&labels)).unwrap_err();
            assert_eq!(
                error,
                IdentityError::Missing { namespace: "ns-1".into(), label: UPSTREAM_CLUSTER_NAME }
            );
        }
        let error = Identity::of(&mk_namespace(&[(UPSTREAM_CLUSTER_NAME, "cluster-acme")])).unwrap_err();
        assert_eq!(error, IdentityError::Missing { namespace: "ns-1".into(), label: UPSTREAM_NAMESPACE });
    }

    #[test]
    fn a_label_that_holds_no_project_is_an_error() {
        for label in ["acme", "cluster-", "cluster-_"] {
            let found =
                Identity::of(&mk_namespace(&[(UPSTREAM_CLUSTER_NAME, label), (UPSTREAM_NAMESPACE, "shop")]));
            assert!(matches!(found, Err(IdentityError::Malformed { .. })), "{label}");
        }
    }

    #[test]
    fn the_namespace_is_made_with_identity_and_city() {
        let Ok(Step::Create(made)) = step("ns-1", &mk_identity(), "DFW", None) else { panic!() };
        let labels = made.metadata.labels.unwrap();
        assert_eq!(labels[UPSTREAM_CLUSTER_NAME], "cluster-acme");
        assert_eq!(labels[UPSTREAM_NAMESPACE], "shop");
        assert_eq!(labels["city.compute.datumapis.com/dfw"], "true");
    }

    #[test]
    fn a_second_city_is_added_and_other_labels_stay() {
        let mut standing = mk_namespace(&[("team", "blue"), ("city.compute.datumapis.com/dfw", "true")]);
        standing.metadata.labels.as_mut().unwrap().extend(mk_identity().labels());
        assert_eq!(step("ns-1", &mk_identity(), "dfw", Some(&standing)), Ok(Step::Leave));
        let Ok(Step::Relabel(new)) = step("ns-1", &mk_identity(), "ord", Some(&standing)) else { panic!() };
        let labels = new.metadata.labels.unwrap();
        assert_eq!(labels.len(), 5);
        assert_eq!(labels["team"], "blue");
    }

    #[test]
    fn a_namespace_without_labels_is_labelled() {
        assert!(matches!(
            step("ns-1", &mk_identity(), "dfw", Some(&mk_namespace(&[]))),
            Ok(Step::Relabel(_))
        ));
    }

    #[test]
    fn a_namespace_of_another_project_is_never_relabelled() {
        let other = mk_namespace(&[(UPSTREAM_CLUSTER_NAME, "cluster-other")]);
        let error = step("ns-1", &mk_identity(), "dfw", Some(&other)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "failed to use hub namespace ns-1: it should carry meta.datumapis.com/upstream-cluster-name=cluster-acme and carries \
             meta.datumapis.com/upstream-cluster-name=cluster-other; find out who wrote that label"
        );
    }

    #[test]
    fn a_namespace_on_its_way_out_is_waited_for() {
        let standing = deleting(mk_namespace(&[]));
        assert_eq!(step("ns-1", &mk_identity(), "dfw", Some(&standing)), Ok(Step::AwaitRemoval));
    }
}
