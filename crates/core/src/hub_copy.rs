//! The copy of a deployment on the hub, and the status that comes back.
//!
//! The copy has the name of its deployment, the project's spec whole, the city as a label for the policy to find it,
//! and the annotations that speak to the cell. Absence travels too: an annotation gone in the project goes on the hub.
//! Labels, other annotations, owners and finalizers of the project stay at home, and what Karmada wrote on the hub
//! stays there.
//!
//! Where the copy stands is recorded on the project's deployment, with the finalizer, in one write before the first
//! write on the hub. The finalizer works from that record alone, so the record is never rewritten.
//!
//! Status comes back whole, from the one cell that runs the deployment. Generations do not: they count another plane's
//! changes, and a reader who compared them with the project's would wait for ever.

use polis_api::annotations::{EXPECTED_REFERENCED_DATA, FEDERATION_NAMESPACE, SUSPENDED};
use polis_api::compute::{WorkloadDeployment, WorkloadDeploymentStatus};
use polis_api::conditions::AVAILABLE;
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polis_api::{finalizers, labels, reasons};

use crate::conditions::{self, Verdict};
use crate::identity::Identity;
use crate::metadata::{self, Map};
use crate::{Time, canonical, owner};

/// Annotations of the project's deployment that speak to the cell.
pub const MIRRORED: [&str; 2] = [SUSPENDED, EXPECTED_REFERENCED_DATA];

/// What to do about the hub copy.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// It is as it should be.
    Leave,
    /// Make it.
    Create(Box<WorkloadDeployment>),
    /// Write this over the standing one of the same resource version.
    Update(Box<WorkloadDeployment>),
    /// An earlier copy of the name is on its way out: come back when it is gone.
    AwaitRemoval,
}

/// Why a deployment cannot be federated. Waiting does not help; a change of its spec does.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CityError {
    /// It names no city.
    #[error("failed to federate deployment {deployment}: spec.cityCode is empty; name a city")]
    Empty {
        /// Name of the deployment.
        deployment: String,
    },
    /// The city cannot be a label.
    #[error(
        "failed to federate deployment {deployment}: city code {city:?} is no label value; use at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends"
    )]
    NoLabel {
        /// Name of the deployment.
        deployment: String,
        /// The city.
        city: String,
    },
}

/// What to do about the record of the hub namespace on the project's deployment.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// Finalizer and record are there: the hub may be written to.
    Kept,
    /// Write this first.
    Write(Box<WorkloadDeployment>),
    /// The record names another namespace, where a copy may stand; somebody has to look.
    Contradicted {
        /// The namespace in the record.
        recorded: String,
    },
}

/// The hub namespace that a project's deployment has recorded.
pub fn recorded(source: &WorkloadDeployment) -> Option<&str> {
    metadata::annotation(&source.metadata, FEDERATION_NAMESPACE).filter(|namespace| !namespace.is_empty())
}

/// What to do before the first write on the hub.
pub fn record(source: &WorkloadDeployment, hub_namespace: &str) -> Record {
    if let Some(recorded) = recorded(source).filter(|recorded| *recorded != hub_namespace) {
        return Record::Contradicted { recorded: recorded.to_owned() };
    }
    let mut new = source.clone();
    let mut changed = metadata::add_finalizer(&mut new.metadata, finalizers::FEDERATOR);
    let record = metadata::map([(FEDERATION_NAMESPACE, hub_namespace)]);
    changed |= metadata::merge_annotations(&mut new.metadata, &record, &[]);
    if changed { Record::Write(Box::new(new)) } else { Record::Kept }
}

/// Checks that the city of a deployment can be a label. An empty one would make a policy that matches too much.
pub fn check_city(deployment: &WorkloadDeployment) -> Result<(), CityError> {
    let (city, deployment) = (&deployment.spec.city_code, owner::name(&deployment.metadata).to_owned());
    if city.is_empty() {
        return Err(CityError::Empty { deployment });
    }
    metadata::is_label_value(city).then_some(()).ok_or(CityError::NoLabel { deployment, city: city.clone() })
}

/// What to do about the copy of `source` in the hub namespace.
pub fn step(
    source: &WorkloadDeployment,
    hub_namespace: &str,
    identity: &Identity,
    standing: Option<&WorkloadDeployment>,
) -> Result<Step, CityError> {
    check_city(source)?;
    let (labels, annotations) = (copy_labels(source, identity), mirrored(source));
    let Some(standing) = standing else {
        let metadata = ObjectMeta {
            name: source.metadata.name.clone(),
            namespace: Some(hub_namespace.to_owned()),
            labels: Some(labels),
            annotations: Some(annotations).filter(|map| !map.is_empty()),
            ..Default::default()
        };
        return Ok(Step::Create(Box::new(WorkloadDeployment {
            metadata,
            spec: source.spec.clone(),
            status: None,
        })));
    };
    if owner::is_deleting(&standing.metadata) {
        return Ok(Step::AwaitRemoval);
    }
    let mut new = standing.clone();
    let mut changed = !canonical::same(&source.spec, &standing.spec);
    if changed {
        new.spec = source.spec.clone();
    }
    changed |= metadata::merge_labels(&mut new.metadata, &labels, &[]);
    changed |= metadata::merge_annotations(&mut new.metadata, &annotations, &MIRRORED);
    Ok(if changed { Step::Update(Box::new(new)) } else { Step::Leave })
}

/// The status that the project should show, given the hub copy; `None` when it shows it already or there is none yet.
pub fn status_back(
    source: &WorkloadDeployment,
    copy: &WorkloadDeployment,
) -> Option<WorkloadDeploymentStatus> {
    let mut status = copy.status.clone()?;
    status.observed_generation = None;
    for condition in &mut status.conditions {
        condition.observed_generation = None;
    }
    let standing = source.status.as_ref();
    (!standing.is_some_and(|standing| canonical::same(standing, &status))).then_some(status)
}

/// The status of a deployment that no cell has spoken for, in a city that no cell serves; `None` when it says so
/// already. The first word of a cell takes its place.
pub fn unserved(source: &WorkloadDeployment, now: &Time) -> Option<WorkloadDeploymentStatus> {
    let mut status = source.status.clone().unwrap_or_default();
    let message = format!("no cell serves city {}; the deployment waits for one", source.spec.city_code);
    let verdict = Verdict::no(AVAILABLE, reasons::NO_MATCHING_LOCATION, message);
    conditions::set(&mut status.conditions, &verdict, source.metadata.generation, now).then_some(status)
}

fn copy_labels(source: &WorkloadDeployment, identity: &Identity) -> Map {
    metadata::map([
        (labels::TOPOLOGY_CITY_CODE, source.spec.city_code.as_str()),
        (labels::UPSTREAM_NAMESPACE, identity.namespace.as_str()),
    ])
}

fn mirrored(source: &WorkloadDeployment) -> Map {
    let present =
        |key: &&str| Some((key.to_string(), metadata::annotation(&source.metadata, key)?.to_owned()));
    MIRRORED.iter().filter_map(present).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::mk_identity;
    use crate::metadata::map;
    use crate::testing::{deleting, mk_condition, mk_deployment, mk_meta, mk_template};

    fn mk_copy(source: &WorkloadDeployment) -> WorkloadDeployment {
        let Ok(Step::Create(mut copy)) = step(source, "ns-1", &mk_identity(), None) else { panic!() };
        let made = std::mem::take(&mut copy.metadata);
        copy.metadata =
            ObjectMeta { labels: made.labels, annotations: made.annotations, ..mk_meta("ns-1", "web") };
        *copy
    }

    fn after(source: &WorkloadDeployment, copy: &WorkloadDeployment) -> Step {
        step(source, "ns-1", &mk_identity(), Some(copy)).unwrap()
    }

    #[test]
    fn the_copy_has_spec_city_and_origin_and_nothing_else_of_the_project() {
        let mut source = mk_deployment("web");
        source.metadata.labels = Some(map([("private", "yes")]));
        source.metadata.annotations = Some(map([("note", "mine"), (SUSPENDED, "true")]));
        source.metadata.finalizers = Some(vec!["compute.datumapis.com/federator".into()]);
        let Ok(Step::Create(copy)) = step(&source, "ns-9", &mk_identity(), None) else { panic!() };
        assert_eq!(copy.spec, source.spec);
        assert_eq!(
            copy.metadata,
            ObjectMeta {
                name: Some("web".into()),
                namespace: Some("ns-9".into()),
                labels: Some(map([
                    ("topology.datum.net/city-code", "dfw"),
                    ("meta.datumapis.com/upstream-namespace", "shop")
                ])),
                annotations: Some(map([(SUSPENDED, "true")])),
                ..Default::default()
            }
        );
    }

    #[test]
    fn a_copy_that_is_right_is_left_alone_whatever_karmada_wrote() {
        let source = mk_deployment("web");
        let mut copy = mk_copy(&source);
        copy.metadata
            .labels
            .as_mut()
            .unwrap()
            .insert("propagationpolicy.karmada.io/permanent-id".into(), "x".into());
        copy.metadata.annotations = Some(map([("propagationpolicy.karmada.io/name", "city-dfw")]));
        assert_eq!(after(&source, &copy), Step::Leave);
    }

    #[test]
    fn a_changed_spec_replaces_the_copys_and_keeps_foreign_metadata() {
        let mut source = mk_deployment("web");
        let mut copy = mk_copy(&source);
        copy.metadata.annotations = Some(map([("propagationpolicy.karmada.io/name", "city-dfw")]));
        source.spec.template = mk_template("app:2");
        let Step::Update(new) = after(&source, &copy) else { panic!() };
        assert_eq!(new.spec, source.spec);
        assert_eq!(new.metadata, copy.metadata);
    }

    #[test]
    fn an_annotation_that_goes_in_the_project_goes_on_the_hub() {
        let mut source = mk_deployment("web");
        source.metadata.annotations = Some(map([(SUSPENDED, "true")]));
        let copy = mk_copy(&source);
        source.metadata.annotations = None;
        let Step::Update(new) = after(&source, &copy) else { panic!() };
        assert_eq!(new.metadata.annotations, None);
    }

    #[test]
    fn a_city_label_edited_by_hand_is_put_right() {
        let source = mk_deployment("web");
        let mut copy = mk_copy(&source);
        copy.metadata.labels.as_mut().unwrap().insert(labels::TOPOLOGY_CITY_CODE.into(), "ord".into());
        assert!(matches!(after(&source, &copy), Step::Update(_)));
    }

    #[test]
    fn a_copy_on_its_way_out_is_waited_for() {
        let source = mk_deployment("web");
        assert_eq!(after(&source, &deleting(mk_copy(&source))), Step::AwaitRemoval);
    }

    #[test]
    fn a_deployment_without_a_city_or_with_an_impossible_one_is_refused() {
        for city in ["", "new york", "-dfw", "dfw.", "Zürich", &"x".repeat(64)] {
            let mut source = mk_deployment("web");
            source.spec.city_code = city.into();
            assert!(step(&source, "ns-1", &mk_identity(), None).is_err(), "{city}");
        }
    }

    #[test]
    fn finalizer_and_record_are_one_write_and_then_kept() {
        let Record::Write(written) = record(&mk_deployment("web"), "ns-1") else { panic!() };
        assert_eq!(recorded(&written), Some("ns-1"));
        assert!(metadata::has_finalizer(&written.metadata, "compute.datumapis.com/federator"));
        assert_eq!(record(&written, "ns-1"), Record::Kept);
    }

    #[test]
    fn a_record_of_another_namespace_is_never_rewritten() {
        let Record::Write(written) = record(&mk_deployment("web"), "ns-1") else { panic!() };
        assert_eq!(record(&written, "ns-2"), Record::Contradicted { recorded: "ns-1".into() });
    }

    #[test]
    fn status_comes_back_whole_and_once() {
        let mut source = mk_deployment("web");
        let mut copy = mk_copy(&source);
        copy.status = Some(WorkloadDeploymentStatus {
            replicas: 2,
            cell: Some("dfw-1".into()),
            observed_generation: Some(9),
            conditions: vec![mk_condition("Available", "True", "StableInstanceFound")],
            ..Default::default()
        });
        copy.status.as_mut().unwrap().conditions[0].observed_generation = Some(9);
        source.status = status_back(&source, &copy);
        let status = source.status.as_ref().unwrap();
        assert_eq!((status.replicas, status.cell.as_deref()), (2, Some("dfw-1")));
        assert_eq!((status.observed_generation, status.conditions[0].observed_generation), (None, None));
        assert_eq!(status_back(&source, &copy), None);
    }

    #[test]
    fn no_status_on_the_hub_changes_nothing_in_the_project() {
        let mut source = mk_deployment("web");
        let copy = mk_copy(&source);
        source.status = Some(WorkloadDeploymentStatus { replicas: 1, ..Default::default() });
        assert_eq!(status_back(&source, &copy), None);
    }

    #[test]
    fn a_city_that_no_cell_serves_is_told_once() {
        let now = crate::testing::at(0);
        let mut source = mk_deployment("web");
        let status = unserved(&source, &now).expect("there is something to say");
        assert_eq!(status.conditions[0].reason, "NoMatchingLocation");
        source.status = Some(status);
        assert_eq!(unserved(&source, &now), None);
    }
}
