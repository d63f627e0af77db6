//! The hub copy of a WorkloadDeployment, and the status that the project's deployment gets from it.
//!
//! The copy has the name and the whole spec of the project's deployment, a city label that the propagation
//! policy selects by, and the annotations that the cell reads. An annotation that is removed in the project
//! is removed on the hub. The list of the companions that the deployment needs follows from its template and
//! never from an annotation of the project. Other labels, annotations, owner references and finalizers of the
//! project are not copied, and metadata that Karmada wrote on the hub is kept.
//!
//! The hub namespace is recorded on the project's deployment, together with the finalizer, in one write
//! before the first write on the hub. The finalizer uses only this record, so the record is never changed.
//!
//! The status is copied whole from the one cell that runs the deployment, except the observed generations:
//! they count changes on another plane. The project gets the generation of its own deployment that the cell
//! has acted on, which the source revision tells: a client that compares it with the project's generation
//! waits exactly as long as the cell needs. While contact with the cell is lost, the conditions say so (see
//! [`contact`](crate::contact)).

use polis_api::annotations::{
    EXPECTED_REFERENCED_DATA, FEDERATION_NAMESPACE, REFERENCED_DATA_ERROR, SOURCE_REVISION, SUSPENDED,
    WITHDRAWN_AT,
};
use polis_api::compute::{WorkloadDeployment, WorkloadDeploymentStatus};
use polis_api::conditions::{AVAILABLE, FEDERATED};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polis_api::{ObjectExt, finalizers, labels, reasons};

use crate::conditions::{self, DesiredCondition};
use crate::contact::{self, Contact};
use crate::deployments::InitialMetadata;
use crate::metadata::{self, Map};
use crate::referenced_data::Resolution;
use crate::rollout::{self, Cause, RolloutState};
use crate::tenant::Tenant;
use crate::{Time, canonical, source_revision};

/// Annotations of the project's deployment that are copied to the hub because the cell reads them.
pub const MIRRORED_ANNOTATIONS: [&str; 1] = [SUSPENDED];

/// Annotations of the hub copy that only the federator sets. The mark of a teardown is removed from the
/// copy of a deployment that lives, for example after the hub or the project was restored.
const OWNED_ANNOTATIONS: [&str; 4] =
    [SUSPENDED, EXPECTED_REFERENCED_DATA, REFERENCED_DATA_ERROR, WITHDRAWN_AT];

/// What to do about the hub copy.
#[derive(Clone, Debug, PartialEq)]
pub enum HubCopyAction {
    /// The copy is up to date.
    None,
    /// Create the copy.
    Create(Box<WorkloadDeployment>),
    /// Replace the existing copy; the object carries its resource version.
    Update(Box<WorkloadDeployment>),
    /// An earlier copy of the same name is terminating: retry when it is gone.
    AwaitDeletion,
}

/// Why a deployment cannot be federated. A retry does not help; the spec must change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CityError {
    /// `spec.cityCode` is empty.
    #[error("failed to federate deployment {deployment}: spec.cityCode is empty; name a city")]
    Empty {
        /// Name of the deployment.
        deployment: String,
    },
    /// The city code is not a valid label value.
    #[error(
        "failed to federate deployment {deployment}: city code {city:?} is not a valid label value; use at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends"
    )]
    NoLabel {
        /// Name of the deployment.
        deployment: String,
        /// The city.
        city: String,
    },
}

/// What to do about the record of the hub namespace (annotation and finalizer) on the project's deployment.
#[derive(Clone, Debug, PartialEq)]
pub enum RecordAction {
    /// Finalizer and annotation exist: the hub may be written to.
    None,
    /// Write this object before the first write on the hub.
    Write(Box<WorkloadDeployment>),
    /// The annotation names another namespace, which may hold a copy; an operator has to resolve this.
    Conflict {
        /// The namespace in the annotation.
        recorded: String,
    },
}

/// The hub namespace that is recorded on a project's deployment.
pub fn recorded_namespace(source: &WorkloadDeployment) -> Option<&str> {
    source.annotation(FEDERATION_NAMESPACE).filter(|namespace| !namespace.is_empty())
}

/// The record of the hub namespace as the metadata of a new deployment of a project: a deployment that is
/// created with it needs no further write before the first write on the hub.
pub fn initial_metadata(hub_namespace: &str) -> InitialMetadata {
    InitialMetadata {
        finalizers: vec![finalizers::FEDERATOR.to_owned()],
        annotations: metadata::map([(FEDERATION_NAMESPACE, hub_namespace)]),
    }
}

/// Plans the record of the hub namespace, which must exist before the first write on the hub.
pub fn plan_record(source: &WorkloadDeployment, hub_namespace: &str) -> RecordAction {
    if let Some(recorded) = recorded_namespace(source).filter(|recorded| *recorded != hub_namespace) {
        return RecordAction::Conflict { recorded: recorded.to_owned() };
    }
    let mut new = source.clone();
    let InitialMetadata { finalizers, annotations } = initial_metadata(hub_namespace);
    let mut changed = metadata::merge_annotations(&mut new.metadata, &annotations, &[]);
    for finalizer in &finalizers {
        changed |= metadata::add_finalizer(&mut new.metadata, finalizer);
    }
    if changed { RecordAction::Write(Box::new(new)) } else { RecordAction::None }
}

/// Checks that the city of a deployment is a valid label value. An empty one would make the policy match too
/// much.
pub fn check_city(deployment: &WorkloadDeployment) -> Result<(), CityError> {
    let (city, deployment) = (&deployment.spec.city_code, deployment.name().to_owned());
    if city.is_empty() {
        return Err(CityError::Empty { deployment });
    }
    metadata::is_label_value(city).then_some(()).ok_or(CityError::NoLabel { deployment, city: city.clone() })
}

/// Plans the copy of `source` in the hub namespace. `data` has the companions that it needs.
pub fn plan(
    source: &WorkloadDeployment,
    hub_namespace: &str,
    tenant: &Tenant,
    data: &Resolution,
    existing: Option<&WorkloadDeployment>,
) -> Result<HubCopyAction, CityError> {
    check_city(source)?;
    let (labels, mut annotations) = (copy_labels(source, tenant), mirrored(source));
    annotations.extend(data.annotations());
    let spec_changed = existing.is_none_or(|existing| !canonical::same(&source.spec, &existing.spec));
    if let Some(revision) = source_revision::of_copy(source, existing, spec_changed) {
        annotations.insert(SOURCE_REVISION.to_owned(), revision);
    }
    let Some(existing) = existing else {
        let metadata = ObjectMeta {
            name: source.metadata.name.clone(),
            namespace: Some(hub_namespace.to_owned()),
            labels: Some(labels),
            annotations: Some(annotations).filter(|map| !map.is_empty()),
            ..Default::default()
        };
        return Ok(HubCopyAction::Create(Box::new(WorkloadDeployment {
            metadata,
            spec: source.spec.clone(),
            status: None,
        })));
    };
    if existing.is_deleting() {
        return Ok(HubCopyAction::AwaitDeletion);
    }
    let mut new = existing.clone();
    let mut changed = spec_changed;
    if changed {
        new.spec = source.spec.clone();
    }
    changed |= metadata::merge_labels(&mut new.metadata, &labels, &[]);
    changed |= metadata::merge_annotations(&mut new.metadata, &annotations, &OWNED_ANNOTATIONS);
    Ok(if changed { HubCopyAction::Update(Box::new(new)) } else { HubCopyAction::None })
}

/// The status that the project's deployment gets from the hub copy; `None` if it is up to date or the copy
/// has none.
pub fn project_status(
    source: &WorkloadDeployment,
    copy: &WorkloadDeployment,
    contact: &Contact,
) -> Option<WorkloadDeploymentStatus> {
    let mut status = copy.status.clone()?;
    let observed = source_revision::observed_generation(source, status.source_revision.as_deref());
    status.observed_generation = observed;
    for condition in &mut status.conditions {
        condition.observed_generation = observed;
    }
    if let Contact::Silent(silence) = contact {
        contact::apply(&mut status, silence, observed);
    }
    let existing = source.status.as_ref();
    (!existing.is_some_and(|existing| canonical::same(existing, &status))).then_some(status)
}

/// The status of a deployment without a reported status: its cell has not answered yet. `None` if it is up to
/// date.
pub fn unreported_status(source: &WorkloadDeployment, contact: &Contact) -> Option<WorkloadDeploymentStatus> {
    let Contact::Silent(silence) = contact else { return contact::regained(source) };
    let mut status = source.status.clone().unwrap_or_default();
    contact::apply(&mut status, silence, source.metadata.generation);
    (!source.status.as_ref().is_some_and(|existing| canonical::same(existing, &status))).then_some(status)
}

/// The status of a deployment without a reported status, in a city that no cell serves; `None` if it is up to
/// date. The first status that a cell reports replaces it.
pub fn unserved_status(source: &WorkloadDeployment, now: &Time) -> Option<WorkloadDeploymentStatus> {
    let mut status = source.status.clone().unwrap_or_default();
    let message = format!("no cell serves city {}; the deployment waits for one", source.spec.city_code);
    let available = DesiredCondition::new_false(AVAILABLE, reasons::NO_MATCHING_LOCATION, message);
    set_stuck(source, &mut status, &available, now).then_some(status)
}

/// Sets a condition that is the cause why the rollout is stuck; returns whether the status changes.
fn set_stuck(
    source: &WorkloadDeployment,
    status: &mut WorkloadDeploymentStatus,
    cause: &DesiredCondition,
    now: &Time,
) -> bool {
    let generation = source.metadata.generation;
    status.observed_generation = generation;
    conditions::set(&mut status.conditions, cause, generation, now);
    let stuck = Cause { reason: cause.reason.clone().into_owned(), message: cause.message.clone() };
    rollout::apply(&mut status.conditions, &RolloutState::Stuck(stuck), generation, now);
    !source.status.as_ref().is_some_and(|existing| canonical::same(existing, status))
}

/// The status of a deployment that the hub does not take, for this reason; `None` if it is up to date. The
/// next status of the hub copy replaces it.
pub fn unfederated_status(
    source: &WorkloadDeployment,
    reason: &'static str,
    why: &str,
    now: &Time,
) -> Option<WorkloadDeploymentStatus> {
    let mut status = source.status.clone().unwrap_or_default();
    let federated = DesiredCondition::new_false(FEDERATED, reason, why);
    set_stuck(source, &mut status, &federated, now).then_some(status)
}

fn copy_labels(source: &WorkloadDeployment, tenant: &Tenant) -> Map {
    metadata::map([
        (labels::TOPOLOGY_CITY_CODE, source.spec.city_code.as_str()),
        (labels::UPSTREAM_NAMESPACE, tenant.namespace.as_str()),
    ])
}

fn mirrored(source: &WorkloadDeployment) -> Map {
    let present = |key: &&str| Some((key.to_string(), source.annotation(key)?.to_owned()));
    MIRRORED_ANNOTATIONS.iter().filter_map(present).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contact::Silence;
    use crate::metadata::map;
    use crate::tenant::mk_tenant;
    use crate::testing::{at, deleting, mk_condition, mk_deployment, mk_meta, mk_template};

    const HEARD: Contact = Contact::Heard { recheck: None };

    fn mk_copy(source: &WorkloadDeployment) -> WorkloadDeployment {
        let Ok(HubCopyAction::Create(mut copy)) =
            plan(source, "ns-1", &mk_tenant(), &Resolution::default(), None)
        else {
            panic!()
        };
        let made = std::mem::take(&mut copy.metadata);
        copy.metadata =
            ObjectMeta { labels: made.labels, annotations: made.annotations, ..mk_meta("ns-1", "web") };
        *copy
    }

    fn after(source: &WorkloadDeployment, copy: &WorkloadDeployment) -> HubCopyAction {
        plan(source, "ns-1", &mk_tenant(), &Resolution::default(), Some(copy)).unwrap()
    }

    #[test]
    fn the_copy_has_spec_city_label_and_upstream_namespace_and_no_other_metadata() {
        let mut source = mk_deployment("web");
        source.metadata.labels = Some(map([("private", "yes")]));
        source.metadata.annotations = Some(map([("note", "mine"), (SUSPENDED, "true")]));
        source.metadata.finalizers = Some(vec!["compute.datumapis.com/federator".into()]);
        let Ok(HubCopyAction::Create(copy)) =
            plan(&source, "ns-9", &mk_tenant(), &Resolution::default(), None)
        else {
            panic!()
        };
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
                annotations: Some(map([(SUSPENDED, "true"), (SOURCE_REVISION, "uid-web.1")])),
                ..Default::default()
            }
        );
    }

    #[test]
    fn metadata_that_karmada_wrote_needs_no_update() {
        let source = mk_deployment("web");
        let mut copy = mk_copy(&source);
        copy.metadata
            .labels
            .as_mut()
            .unwrap()
            .insert("propagationpolicy.karmada.io/permanent-id".into(), "x".into());
        let marks = [("propagationpolicy.karmada.io/name", "city-dfw"), (SOURCE_REVISION, "uid-web.1")];
        copy.metadata.annotations = Some(map(marks));
        assert_eq!(after(&source, &copy), HubCopyAction::None);
    }

    #[test]
    fn a_changed_spec_is_copied_and_foreign_metadata_is_kept() {
        let mut source = mk_deployment("web");
        let mut copy = mk_copy(&source);
        let marks = [("propagationpolicy.karmada.io/name", "city-dfw"), (SOURCE_REVISION, "uid-web.1")];
        copy.metadata.annotations = Some(map(marks));
        source.spec.template = mk_template("app:2");
        let HubCopyAction::Update(new) = after(&source, &copy) else { panic!() };
        assert_eq!(new.spec, source.spec);
        assert_eq!(new.metadata, copy.metadata);
    }

    #[test]
    fn an_annotation_removed_in_the_project_is_removed_on_the_hub() {
        let mut source = mk_deployment("web");
        source.metadata.annotations = Some(map([(SUSPENDED, "true")]));
        let copy = mk_copy(&source);
        source.metadata.annotations = None;
        let HubCopyAction::Update(new) = after(&source, &copy) else { panic!() };
        assert_eq!(new.metadata.annotations, Some(map([(SOURCE_REVISION, "uid-web.1")])));
    }

    #[test]
    fn the_list_of_companions_follows_from_the_template_alone() {
        let mut source = mk_deployment("web");
        let forged = [(EXPECTED_REFERENCED_DATA, r#"["Secret/other@0"]"#), (REFERENCED_DATA_ERROR, "{}")];
        source.metadata.annotations = Some(map(forged));
        let copy = mk_copy(&source);
        assert_eq!(copy.metadata.annotations, Some(map([(SOURCE_REVISION, "uid-web.1")])));
        let expected = vec!["Secret/data-db-1@ab".to_owned()];
        let data = Resolution { has_references: true, expected, ..Resolution::default() };
        let listed = plan(&source, "ns-1", &mk_tenant(), &data, Some(&copy)).unwrap();
        let HubCopyAction::Update(listed) = listed else { panic!() };
        assert_eq!(listed.annotation(EXPECTED_REFERENCED_DATA), Some(r#"["Secret/data-db-1@ab"]"#));
        let HubCopyAction::Update(new) = after(&source, &listed) else { panic!() };
        assert_eq!(new.metadata.annotations, copy.metadata.annotations, "no reference is left");
    }

    #[test]
    fn the_mark_of_a_teardown_is_removed_from_the_copy_of_a_living_deployment() {
        let mut source = mk_deployment("web");
        let mut copy = mk_copy(&source);
        copy.metadata.annotations = Some(map([(WITHDRAWN_AT, "2026-01-01T00:00:00Z"), ("karmada", "x")]));
        // A user of the project cannot set it.
        source.metadata.annotations = Some(map([(WITHDRAWN_AT, "2026-01-01T00:00:00Z")]));
        let HubCopyAction::Update(new) = after(&source, &copy) else { panic!() };
        assert_eq!(new.metadata.annotations, Some(map([("karmada", "x"), (SOURCE_REVISION, "uid-web.1")])));
    }

    #[test]
    fn a_city_label_edited_by_hand_is_corrected() {
        let source = mk_deployment("web");
        let mut copy = mk_copy(&source);
        copy.metadata.labels.as_mut().unwrap().insert(labels::TOPOLOGY_CITY_CODE.into(), "ord".into());
        assert!(matches!(after(&source, &copy), HubCopyAction::Update(_)));
    }

    #[test]
    fn a_terminating_copy_is_awaited() {
        let source = mk_deployment("web");
        assert_eq!(after(&source, &deleting(mk_copy(&source))), HubCopyAction::AwaitDeletion);
    }

    #[test]
    fn an_empty_or_invalid_city_is_rejected() {
        for city in ["", "new york", "-dfw", "dfw.", "Zürich", &"x".repeat(64)] {
            let mut source = mk_deployment("web");
            source.spec.city_code = city.into();
            assert!(plan(&source, "ns-1", &mk_tenant(), &Resolution::default(), None).is_err(), "{city}");
        }
    }

    #[test]
    fn finalizer_and_annotation_are_one_write_and_not_repeated() {
        let RecordAction::Write(written) = plan_record(&mk_deployment("web"), "ns-1") else { panic!() };
        assert_eq!(recorded_namespace(&written), Some("ns-1"));
        assert!(written.has_finalizer("compute.datumapis.com/federator"));
        assert_eq!(plan_record(&written, "ns-1"), RecordAction::None);
    }

    #[test]
    fn a_deployment_that_is_created_with_the_record_needs_no_write() {
        let mut created = mk_deployment("web");
        let InitialMetadata { finalizers, annotations } = initial_metadata("ns-1");
        created.metadata.finalizers = Some(finalizers);
        created.metadata.annotations = Some(annotations);
        assert_eq!(plan_record(&created, "ns-1"), RecordAction::None);
        assert_eq!(recorded_namespace(&created), Some("ns-1"));
    }

    #[test]
    fn a_record_of_another_namespace_is_never_changed() {
        let RecordAction::Write(written) = plan_record(&mk_deployment("web"), "ns-1") else { panic!() };
        assert_eq!(plan_record(&written, "ns-2"), RecordAction::Conflict { recorded: "ns-1".into() });
    }

    #[test]
    fn the_status_is_copied_once_without_generations() {
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
        source.status = project_status(&source, &copy, &HEARD);
        let status = source.status.as_ref().unwrap();
        assert_eq!((status.replicas, status.cell.as_deref()), (2, Some("dfw-1")));
        assert_eq!((status.observed_generation, status.conditions[0].observed_generation), (None, None));
        assert_eq!(project_status(&source, &copy, &HEARD), None);
    }

    #[test]
    fn the_observed_generation_is_that_of_the_project_which_the_cell_has_acted_on() {
        let mut source = mk_deployment("web");
        source.metadata.generation = Some(4);
        let mut copy = mk_copy(&source);
        let observed = |copy: &WorkloadDeployment| {
            let status = project_status(&source, copy, &HEARD).unwrap();
            (status.observed_generation, status.conditions[0].observed_generation)
        };
        for (revision, expected) in
            [("uid-web.3", Some(3)), ("uid-web.4", Some(4)), ("uid-web.9", Some(4)), ("uid-old.4", None)]
        {
            copy.status = Some(WorkloadDeploymentStatus {
                observed_generation: Some(9),
                source_revision: Some(revision.into()),
                conditions: vec![mk_condition("Available", "True", "StableInstanceFound")],
                ..Default::default()
            });
            assert_eq!(observed(&copy), (expected, expected), "{revision}");
        }
    }

    #[test]
    fn a_copy_without_status_changes_nothing_in_the_project() {
        let mut source = mk_deployment("web");
        let copy = mk_copy(&source);
        source.status = Some(WorkloadDeploymentStatus { replicas: 1, ..Default::default() });
        assert_eq!(project_status(&source, &copy, &HEARD), None);
    }

    #[test]
    fn a_city_that_no_cell_serves_is_reported_once() {
        let now = crate::testing::at(0);
        let mut source = mk_deployment("web");
        let status = unserved_status(&source, &now).expect("the condition is new");
        assert_eq!(status.conditions[0].reason, "NoMatchingLocation");
        source.status = Some(status);
        assert_eq!(unserved_status(&source, &now), None);
    }

    #[test]
    fn a_silent_cell_makes_the_projected_conditions_unknown_until_it_is_heard_of_again() {
        let mut source = mk_deployment("web");
        let mut copy = mk_copy(&source);
        let conditions = vec![mk_condition("Available", "True", "x"), mk_condition("Ready", "True", "x")];
        copy.status = Some(WorkloadDeploymentStatus { ready_replicas: 2, conditions, ..Default::default() });
        let silence = Silence { reason: reasons::CELL_SILENT, message: "m".into(), since: at(50).0 };
        let silent = Contact::Silent(silence);
        source.status = project_status(&source, &copy, &silent);
        let status = source.status.clone().unwrap();
        assert_eq!((contact::lost(&status.conditions).is_some(), status.ready_replicas), (true, 2));
        assert_eq!(project_status(&source, &copy, &silent), None, "it is written once");
        let again = project_status(&source, &copy, &HEARD).unwrap();
        assert_eq!(again, copy.status.unwrap());
    }

    #[test]
    fn a_deployment_without_a_report_says_that_its_cell_is_silent_until_contact_is_regained() {
        let mut source = mk_deployment("web");
        let silence = Silence { reason: reasons::CELL_SILENT, message: "m".into(), since: at(50).0 };
        let silent = Contact::Silent(silence);
        assert_eq!(unreported_status(&source, &HEARD), None);
        source.status = unreported_status(&source, &silent);
        assert!(source.status.is_some());
        assert_eq!(unreported_status(&source, &silent), None, "it is written once");
        assert_eq!(unreported_status(&source, &HEARD).unwrap().conditions, []);
    }
}
