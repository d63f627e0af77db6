//! ResourceClaims: the desired object, the next action, and the resulting `QuotaGranted` condition.

use std::time::Duration;

use polis_api::compute::{Instance, WorkloadDeployment};
use polis_api::conditions::{GRANTED, QUOTA_GRANTED};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use polis_api::k8s_openapi::jiff::SignedDuration;
use polis_api::quota::{
    ALLOCATION_DENIED, ALLOCATION_GRANTED, ConsumerReference, ResourceClaim, ResourceClaimSpec,
    ResourceReference,
};
use polis_api::{ObjectExt, compute, labels, milo, names, reasons};

use super::{QueueDecision, SizeError, instance_size, requests};
use crate::Time;
use crate::conditions::{self, DesiredCondition};
use crate::metadata;
use crate::owner::ObjectRef;
use crate::source_revision;
use crate::tenant::Tenant;

/// The first back-off before a denied claim is created again.
const MIN_BACKOFF: SignedDuration = SignedDuration::from_mins(1);
/// The longest back-off: the longest time between two attempts of a denied instance.
const MAX_BACKOFF: SignedDuration = SignedDuration::from_mins(10);

/// The back-off when the buckets show headroom. It prevents a hot loop if a bucket is wrong.
const HEADROOM_BACKOFF: SignedDuration = SignedDuration::from_secs(2);

/// The kind that `spec.resourceRef` of a claim names. The platform's registrations determine which one is
/// accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResourceRefKind {
    /// The project; current registrations accept this.
    #[default]
    Project,
    /// The instance; earlier registrations accepted this.
    Instance,
}

/// The state of the claim of an instance.
#[derive(Clone, Copy, Debug)]
pub enum ClaimState<'a> {
    /// Quota is not enforced in this installation.
    Disabled,
    /// The claim does not exist yet.
    Missing,
    /// The claim exists.
    Existing(&'a ResourceClaim),
    /// The claim could not be created or read.
    Failed(&'a ClaimError),
}

/// Why a claim could not be created or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// The project's API server cannot be reached or returns an error.
    #[error("the project's API server cannot be reached: {0}")]
    BackendUnavailable(String),
    /// The project does not exist.
    #[error("project {0} does not exist")]
    ProjectNotFound(String),
    /// The namespace does not exist in the project.
    #[error("namespace {0} does not exist in the project")]
    NamespaceNotFound(String),
    /// The platform rejects the claim as forbidden or invalid.
    #[error("the platform rejects the claim: {0}")]
    Misconfigured(String),
    /// The project of the instance cannot be determined.
    #[error("the project of the instance is not known: {0}")]
    ProjectUnresolvable(String),
    /// The template has an invalid size.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// Another cell created the claim of this name.
    #[error("claim {claim} belongs to cell {cell}; that cell deletes it with its instance")]
    OtherCell {
        /// Name of the claim.
        claim: String,
        /// The cell that created it; empty if the claim has no cell label.
        cell: String,
    },
}

/// What to do about the claim of an instance.
#[derive(Clone, Debug, PartialEq)]
pub enum ClaimAction {
    /// The claim exists, pending or granted.
    None,
    /// Create the claim.
    Create,
    /// Delete the claim; a later reconcile creates it again when [`retry_at`] has passed.
    Delete(ObjectRef),
    /// The claim is denied: requeue at this time, or when the project's allowance changes.
    RetryAt(Time),
    /// Older instances were denied and come first: requeue at this time, or when the queue admits the
    /// instance.
    WaitInQueue(Time),
    /// The claim is terminating: create it again when it is gone.
    AwaitDeletion,
    /// The claim belongs to another cell and is left alone.
    Foreign(ClaimError),
}

/// The ResourceClaim that an instance should have.
///
/// `deployment` is the one of the cell that the instance belongs to. The deployment of the project owns the
/// claim: the garbage collector of the project deletes claims that outlive it, such as those of a cell that
/// was given up, and those for a deployment that does not exist. It does not control the claim and does not
/// wait for it.
pub fn desired_claim(
    instance: &Instance,
    deployment: Option<&WorkloadDeployment>,
    tenant: &Tenant,
    cell: &str,
    resource_ref: ResourceRefKind,
) -> Result<ResourceClaim, SizeError> {
    let name = instance.name();
    let instance_namespace = instance.namespace();
    let resource_ref = match resource_ref {
        ResourceRefKind::Project => ResourceReference {
            api_group: Some(milo::GROUP.into()),
            kind: milo::PROJECT_KIND.into(),
            name: tenant.project.clone(),
            ..Default::default()
        },
        ResourceRefKind::Instance => ResourceReference {
            api_group: Some(compute::GROUP.into()),
            kind: "Instance".into(),
            name: name.to_owned(),
            namespace: Some(tenant.namespace.clone()),
            ..Default::default()
        },
    };
    let mut labels =
        metadata::map([(labels::SOURCE_CLUSTER, cell), (labels::INSTANCE_NAMESPACE, instance_namespace)]);
    // The admission of the project lets a cell claim for Instances of its city only.
    labels.extend(
        instance.label(labels::CITY_CODE).map(|city| (labels::CITY_CODE.to_owned(), city.to_owned())),
    );
    let owner = deployment.and_then(|deployment| {
        Some(OwnerReference {
            api_version: compute::API_VERSION.into(),
            kind: "WorkloadDeployment".into(),
            name: deployment.name().to_owned(),
            uid: source_revision::source_uid(deployment)?.to_owned(),
            ..Default::default()
        })
    });
    let metadata = ObjectMeta {
        name: Some(names::resource_claim(name)),
        namespace: Some(tenant.namespace.clone()),
        labels: Some(labels),
        owner_references: owner.map(|owner| vec![owner]),
        ..Default::default()
    };
    let spec = ResourceClaimSpec {
        consumer_ref: ConsumerReference {
            api_group: Some(milo::GROUP.into()),
            kind: milo::PROJECT_KIND.into(),
            name: tenant.project.clone(),
            ..Default::default()
        },
        requests: requests(instance_size(&instance.spec)?),
        resource_ref: Some(resource_ref),
        ..Default::default()
    };
    Ok(ResourceClaim { metadata, spec, status: None })
}

/// Whether two claims have the same cell label and the same label of the cell's namespace.
pub fn is_from_same_cell(claim: &ResourceClaim, desired: &ResourceClaim) -> bool {
    [labels::SOURCE_CLUSTER, labels::INSTANCE_NAMESPACE].iter().all(|key| {
        let label = claim.label(key);
        label.is_some() && label == desired.label(key)
    })
}

/// Plans the claim of an instance.
///
/// `last_tried` is when this process last created a claim for the instance or delayed it; `None` after a
/// restart, which causes one early attempt. `queue` returns the decision of the project's queue. It is called
/// only if the decision matters, because it may visit every waiting instance.
pub fn plan_claim(
    instance: &Instance,
    desired: &ResourceClaim,
    existing: Option<&ResourceClaim>,
    last_tried: Option<&Time>,
    queue: impl Fn() -> QueueDecision,
    now: &Time,
) -> ClaimAction {
    let due = |tried: Option<&Time>| {
        let at = tried.map(|tried| match queue() {
            QueueDecision::Admit => Time(tried.0.saturating_add(HEADROOM_BACKOFF).unwrap_or(tried.0)),
            _ => retry_at(instance, tried),
        });
        at.filter(|at| at.0 > now.0)
    };
    let Some(existing) = existing else {
        let created = instance.metadata.creation_timestamp.as_ref();
        if was_denied(instance) {
            return due(last_tried).map_or(ClaimAction::Create, ClaimAction::RetryAt);
        }
        return match queue() {
            QueueDecision::Wait => due(created).map_or(ClaimAction::Create, ClaimAction::WaitInQueue),
            _ => ClaimAction::Create,
        };
    };
    if !is_from_same_cell(existing, desired) {
        return ClaimAction::Foreign(ClaimError::OtherCell {
            claim: existing.name().to_owned(),
            cell: existing.label(labels::SOURCE_CLUSTER).unwrap_or_default().to_owned(),
        });
    }
    if existing.is_deleting() {
        return ClaimAction::AwaitDeletion;
    }
    if !is_denied(existing) {
        return ClaimAction::None;
    }
    if holds_allocation(existing) {
        return ClaimAction::Delete(ObjectRef::of(existing));
    }
    let tried = existing.metadata.creation_timestamp.as_ref();
    due(tried).map_or_else(|| ClaimAction::Delete(ObjectRef::of(existing)), ClaimAction::RetryAt)
}

/// The `QuotaGranted` condition after an action was planned. After a denied claim is deleted, the condition
/// stays False until the claim is created again: the next reconcile reads from it that a back-off applies.
pub fn condition_after(action: &ClaimAction, existing: Option<&ResourceClaim>) -> DesiredCondition {
    match (action, existing) {
        (ClaimAction::Foreign(error), _) => condition(ClaimState::Failed(error)),
        (ClaimAction::Create, _) => condition(ClaimState::Missing),
        (_, Some(existing)) => condition(ClaimState::Existing(existing)),
        (ClaimAction::WaitInQueue(_), _) => DesiredCondition::new_false(
            QUOTA_GRANTED,
            reasons::QUOTA_EXCEEDED,
            "older instances of this project are waiting for quota and come first",
        ),
        (ClaimAction::RetryAt(_), None) => DesiredCondition::new_false(
            QUOTA_GRANTED,
            reasons::QUOTA_EXCEEDED,
            "the claim was denied; it is created again after a back-off",
        ),
        (_, None) => condition(ClaimState::Missing),
    }
}

/// When a denied claim is created again. The back-off is the age that the instance had at its last attempt,
/// within one and ten minutes, so it doubles without a stored counter.
pub fn retry_at(instance: &Instance, last_tried: &Time) -> Time {
    let created = instance.metadata.creation_timestamp.as_ref().unwrap_or(last_tried);
    let waited = last_tried.0.duration_since(created.0);
    Time(last_tried.0.saturating_add(waited.clamp(MIN_BACKOFF, MAX_BACKOFF)).unwrap_or(last_tried.0))
}

/// The poll interval of a pending claim that cannot be watched, by the age of the instance.
pub fn poll_interval(instance: &Instance, now: &Time) -> Duration {
    let created = instance.metadata.creation_timestamp.as_ref().unwrap_or(now);
    match now.0.duration_since(created.0).as_secs() {
        ..60 => Duration::from_secs(1),
        60..300 => Duration::from_secs(15),
        300..600 => Duration::from_secs(60),
        _ => Duration::from_secs(300),
    }
}

/// The instance's `QuotaGranted` condition for the state of its claim.
pub fn condition(state: ClaimState) -> DesiredCondition {
    match state {
        ClaimState::Disabled => DesiredCondition::new_true(
            QUOTA_GRANTED,
            reasons::QUOTA_DISABLED,
            "quota is not enforced in this installation",
        ),
        ClaimState::Missing => DesiredCondition::new_unknown(
            QUOTA_GRANTED,
            reasons::PENDING_EVALUATION,
            "the claim is being created",
        ),
        ClaimState::Existing(claim) => of_claim(claim),
        ClaimState::Failed(error) => of_error(error),
    }
}

fn of_claim(claim: &ResourceClaim) -> DesiredCondition {
    let name = claim.name();
    let conditions = claim.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    match conditions::find(conditions, GRANTED) {
        Some(granted) if granted.status == "True" => DesiredCondition::new_true(
            QUOTA_GRANTED,
            reasons::QUOTA_AVAILABLE,
            format!("claim {name} is granted"),
        ),
        Some(granted) if granted.reason == reasons::VALIDATION_FAILED => {
            DesiredCondition::new_false(QUOTA_GRANTED, reasons::VALIDATION_FAILED, granted.message.clone())
        }
        Some(granted) if is_denied(claim) => {
            DesiredCondition::new_false(QUOTA_GRANTED, reasons::QUOTA_EXCEEDED, granted.message.clone())
        }
        Some(_) => DesiredCondition::new_unknown(
            QUOTA_GRANTED,
            reasons::QUOTA_NO_BUDGET,
            format!("claim {name} is pending; the project may have no budget for it"),
        ),
        None if is_denied(claim) => DesiredCondition::new_false(
            QUOTA_GRANTED,
            reasons::QUOTA_EXCEEDED,
            format!("claim {name} is denied"),
        ),
        None => DesiredCondition::new_unknown(
            QUOTA_GRANTED,
            reasons::PENDING_EVALUATION,
            format!("claim {name} is pending"),
        ),
    }
}

fn of_error(error: &ClaimError) -> DesiredCondition {
    let reason = match error {
        ClaimError::BackendUnavailable(_) => reasons::QUOTA_BACKEND_UNAVAILABLE,
        ClaimError::ProjectNotFound(_) => reasons::QUOTA_PROJECT_NOT_FOUND,
        ClaimError::NamespaceNotFound(_) => reasons::QUOTA_NAMESPACE_NOT_FOUND,
        ClaimError::Misconfigured(_) => reasons::QUOTA_MISCONFIGURED,
        ClaimError::ProjectUnresolvable(_) => reasons::QUOTA_PROJECT_ID_UNRESOLVABLE,
        ClaimError::Size(_) => reasons::VALIDATION_FAILED,
        ClaimError::OtherCell { .. } => {
            return DesiredCondition::new_unknown(
                QUOTA_GRANTED,
                reasons::PENDING_EVALUATION,
                error.to_string(),
            );
        }
    };
    DesiredCondition::new_false(QUOTA_GRANTED, reason, error.to_string())
}

/// Whether at least one request is denied, which is final. A `Granted` condition that is False for another
/// reason is not a denial.
fn is_denied(claim: &ResourceClaim) -> bool {
    let Some(status) = &claim.status else { return false };
    let denied = conditions::find(&status.conditions, GRANTED).is_some_and(|granted| {
        granted.status == "False"
            && matches!(granted.reason.as_str(), reasons::QUOTA_EXCEEDED | reasons::VALIDATION_FAILED)
    });
    denied || status.allocations.iter().any(|allocation| allocation.status == ALLOCATION_DENIED)
}

fn holds_allocation(claim: &ResourceClaim) -> bool {
    claim
        .status
        .iter()
        .flat_map(|status| &status.allocations)
        .any(|allocation| allocation.status == ALLOCATION_GRANTED)
}

fn was_denied(instance: &Instance) -> bool {
    instance.status.as_ref().is_some_and(|status| conditions::is_false(&status.conditions, QUOTA_GRANTED))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conditions::ConditionStatus;
    use crate::tenant::mk_tenant;
    use crate::testing::{
        at, deleting, mk_condition, mk_deployment, mk_instance, mk_template, with_conditions, with_limits,
    };
    use polis_api::quota::{RequestAllocation, ResourceClaimStatus};

    fn mk_waiting() -> Instance {
        mk_instance(&mk_deployment("web"), 0) // created at second 100
    }

    fn mk_denied_instance() -> Instance {
        with_conditions(mk_waiting(), vec![mk_condition("QuotaGranted", "False", "QuotaExceeded")])
    }

    fn mk_claim() -> ResourceClaim {
        desired_claim(&mk_waiting(), None, &mk_tenant(), "dfw-1", ResourceRefKind::Project).unwrap()
    }

    fn mk_existing(status: &str, reason: &str, allocations: &[&str]) -> ResourceClaim {
        let mut claim = mk_claim();
        claim.metadata.uid = Some("uid-claim".into());
        claim.metadata.resource_version = Some("3".into());
        claim.metadata.creation_timestamp = Some(at(100));
        let allocation =
            |status: &&str| RequestAllocation { status: status.to_string(), ..Default::default() };
        claim.status = Some(ResourceClaimStatus {
            conditions: vec![mk_condition("Granted", status, reason)],
            allocations: allocations.iter().map(allocation).collect(),
            ..Default::default()
        });
        claim
    }

    fn plan(existing: Option<&ResourceClaim>, now: i64) -> ClaimAction {
        plan_claim(&mk_waiting(), &mk_claim(), existing, None, || QueueDecision::Unknown, &at(now))
    }

    #[test]
    fn the_claim_has_the_fields_that_the_platform_expects() {
        let claim = mk_claim();
        assert_eq!(claim.metadata.name.as_deref(), Some("instance-web-0"));
        assert_eq!(claim.metadata.namespace.as_deref(), Some("shop"));
        assert_eq!(
            claim.metadata.labels,
            Some(metadata::map([
                ("compute.datumapis.com/source-cluster", "dfw-1"),
                ("compute.datumapis.com/instance-namespace", "ns-1"),
                ("compute.datumapis.com/city-code", "dfw")
            ]))
        );
        assert_eq!(
            serde_json::to_value(&claim.spec).unwrap(),
            serde_json::json!({
                "consumerRef": {"apiGroup": "resourcemanager.miloapis.com", "kind": "Project", "name": "acme"},
                "resourceRef": {"apiGroup": "resourcemanager.miloapis.com", "kind": "Project", "name": "acme"},
                "requests": [
                    {"resourceType": "compute.datumapis.com/instances", "amount": 1},
                    {"resourceType": "compute.datumapis.com/vcpus", "amount": 1000},
                    {"resourceType": "compute.datumapis.com/memory", "amount": 2048},
                ],
            })
        );
    }

    #[test]
    fn the_deployment_of_the_project_owns_the_claim() {
        let mut deployment = mk_deployment("web");
        let of = |deployment: &WorkloadDeployment| {
            let (instance, tenant) = (mk_waiting(), mk_tenant());
            let claim =
                desired_claim(&instance, Some(deployment), &tenant, "dfw-1", ResourceRefKind::Project);
            claim.unwrap().metadata.owner_references
        };
        assert_eq!(of(&deployment), None, "the UID in the project is not known");
        deployment.metadata.annotations =
            Some(metadata::map([(polis_api::annotations::SOURCE_REVISION, "uid-in-the-project.3")]));
        let owners = of(&deployment).unwrap();
        let [owner] = owners.as_slice() else { panic!("{owners:?}") };
        assert_eq!((owner.name.as_str(), owner.uid.as_str()), ("web", "uid-in-the-project"));
        assert_eq!((owner.controller, owner.block_owner_deletion), (None, None));
    }

    #[test]
    fn the_claim_can_reference_the_instance() {
        let claim =
            desired_claim(&mk_waiting(), None, &mk_tenant(), "dfw-1", ResourceRefKind::Instance).unwrap();
        let reference = claim.spec.resource_ref.unwrap();
        assert_eq!((reference.kind.as_str(), reference.name.as_str()), ("Instance", "web-0"));
    }

    #[test]
    fn every_claim_state_has_its_reason() {
        let table = [
            (condition(ClaimState::Disabled), ConditionStatus::True, "QuotaDisabled"),
            (condition(ClaimState::Missing), ConditionStatus::Unknown, "PendingEvaluation"),
            (condition(ClaimState::Existing(&mk_claim())), ConditionStatus::Unknown, "PendingEvaluation"),
            (
                condition(ClaimState::Existing(&mk_existing("True", "QuotaAvailable", &[]))),
                ConditionStatus::True,
                "QuotaAvailable",
            ),
            (
                condition(ClaimState::Existing(&mk_existing("False", "QuotaExceeded", &[]))),
                ConditionStatus::False,
                "QuotaExceeded",
            ),
            (
                condition(ClaimState::Existing(&mk_existing("False", "ValidationFailed", &[]))),
                ConditionStatus::False,
                "ValidationFailed",
            ),
            (
                condition(ClaimState::Existing(&mk_existing("False", "PendingEvaluation", &[]))),
                ConditionStatus::Unknown,
                "QuotaNoBudget",
            ),
            (
                condition(ClaimState::Existing(&mk_existing("False", "PendingEvaluation", &["Denied"]))),
                ConditionStatus::False,
                "QuotaExceeded",
            ),
        ];
        for (condition, expected, reason) in table {
            assert_eq!((condition.status, &*condition.reason), (expected, reason));
        }
    }

    #[test]
    fn every_error_has_its_reason() {
        let size = super::super::SizeError { resource: "cpu", amount: "-1".into() };
        for (error, expected, reason) in [
            (
                ClaimError::BackendUnavailable("timeout".into()),
                ConditionStatus::False,
                "QuotaBackendUnavailable",
            ),
            (ClaimError::ProjectNotFound("acme".into()), ConditionStatus::False, "QuotaProjectNotFound"),
            (ClaimError::NamespaceNotFound("shop".into()), ConditionStatus::False, "QuotaNamespaceNotFound"),
            (ClaimError::Misconfigured("no".into()), ConditionStatus::False, "QuotaMisconfigured"),
            (
                ClaimError::ProjectUnresolvable("?".into()),
                ConditionStatus::False,
                "QuotaProjectIDUnresolvable",
            ),
            (ClaimError::Size(size), ConditionStatus::False, "ValidationFailed"),
            (
                ClaimError::OtherCell { claim: "c".into(), cell: "ord-1".into() },
                ConditionStatus::Unknown,
                "PendingEvaluation",
            ),
        ] {
            let condition = condition(ClaimState::Failed(&error));
            assert_eq!((condition.status, &*condition.reason), (expected, reason));
        }
    }

    #[test]
    fn a_new_instance_creates_its_claim_at_once() {
        assert_eq!(plan(None, 100), ClaimAction::Create);
    }

    #[test]
    fn a_pending_or_granted_claim_is_left_alone() {
        assert_eq!(plan(Some(&mk_claim()), 100), ClaimAction::None);
        assert_eq!(plan(Some(&mk_existing("True", "QuotaAvailable", &["Granted"])), 9999), ClaimAction::None);
    }

    #[test]
    fn a_denied_claim_is_deleted_after_the_back_off() {
        let denied = mk_existing("False", "QuotaExceeded", &["Denied"]);
        assert_eq!(plan(Some(&denied), 130), ClaimAction::RetryAt(at(160)));
        assert_eq!(plan(Some(&denied), 160), ClaimAction::Delete(ObjectRef::of(&denied)));
    }

    #[test]
    fn a_denied_claim_that_holds_an_allocation_is_deleted_at_once() {
        let denied = mk_existing("False", "QuotaExceeded", &["Granted", "Denied"]);
        assert_eq!(plan(Some(&denied), 101), ClaimAction::Delete(ObjectRef::of(&denied)));
    }

    #[test]
    fn a_deleted_claim_is_created_again_only_after_the_back_off() {
        let (denied, desired) = (mk_denied_instance(), mk_claim());
        let plan = |decision, now| plan_claim(&denied, &desired, None, Some(&at(100)), || decision, &at(now));
        assert_eq!(plan(QueueDecision::NoHeadroom, 130), ClaimAction::RetryAt(at(160)));
        assert_eq!(plan(QueueDecision::NoHeadroom, 160), ClaimAction::Create);
        assert_eq!(plan(QueueDecision::Admit, 130), ClaimAction::Create);
        assert_eq!(
            plan_claim(&denied, &desired, None, None, || QueueDecision::Unknown, &at(130)),
            ClaimAction::Create
        );
    }

    #[test]
    fn the_condition_stays_denied_after_the_claim_is_deleted() {
        let denied = mk_existing("False", "QuotaExceeded", &["Granted", "Denied"]);
        let delete = ClaimAction::Delete(ObjectRef::of(&denied));
        let table = [
            (condition_after(&ClaimAction::Create, None), ConditionStatus::Unknown, "PendingEvaluation"),
            (condition_after(&delete, Some(&denied)), ConditionStatus::False, "QuotaExceeded"),
            (
                condition_after(&ClaimAction::AwaitDeletion, Some(&denied)),
                ConditionStatus::False,
                "QuotaExceeded",
            ),
            (condition_after(&ClaimAction::RetryAt(at(9)), None), ConditionStatus::False, "QuotaExceeded"),
            (
                condition_after(&ClaimAction::RetryAt(at(9)), Some(&denied)),
                ConditionStatus::False,
                "QuotaExceeded",
            ),
            (
                condition_after(&ClaimAction::None, Some(&mk_claim())),
                ConditionStatus::Unknown,
                "PendingEvaluation",
            ),
        ];
        for (condition, expected, reason) in table {
            assert_eq!((condition.status, &*condition.reason), (expected, reason));
        }
    }

    /// Simulates one reconcile per second for an hour; every claim is denied at once. Counts the created
    /// claims.
    #[test]
    fn an_instance_that_is_always_denied_backs_off() {
        let (mut instance, desired) = (mk_waiting(), mk_claim());
        let (mut existing, mut last, mut created) = (None::<ResourceClaim>, None, 0);
        for second in 100..3700 {
            let now = at(second);
            let plan = plan_claim(
                &instance,
                &desired,
                existing.as_ref(),
                last.as_ref(),
                || QueueDecision::Unknown,
                &now,
            );
            let condition = condition_after(&plan, existing.as_ref());
            conditions::set(
                &mut instance.status.get_or_insert_default().conditions,
                &condition,
                Some(1),
                &now,
            );
            match plan {
                ClaimAction::Create => {
                    let mut claim = mk_existing("False", "QuotaExceeded", &["Granted", "Denied"]);
                    claim.metadata.creation_timestamp = Some(now.clone());
                    (existing, last, created) = (Some(claim), Some(now), created + 1);
                }
                ClaimAction::Delete(_) => existing = None,
                _ => {}
            }
        }
        assert_eq!(created, 10); // at 0, 1, 2, 4, 8 and 16 minutes, then every 10
    }

    #[test]
    fn headroom_shortens_the_back_off_to_two_seconds() {
        let denied = mk_existing("False", "QuotaExceeded", &["Denied"]);
        let plan = |decision, now| {
            plan_claim(&mk_waiting(), &mk_claim(), Some(&denied), None, || decision, &at(now))
        };
        assert_eq!(plan(QueueDecision::Admit, 101), ClaimAction::RetryAt(at(102)));
        assert_eq!(plan(QueueDecision::Admit, 102), ClaimAction::Delete(ObjectRef::of(&denied)));
        for decision in [QueueDecision::Unknown, QueueDecision::NoHeadroom, QueueDecision::Wait] {
            assert_eq!(plan(decision, 102), ClaimAction::RetryAt(at(160)), "{decision:?}");
        }
    }

    #[test]
    fn a_new_instance_waits_behind_older_denied_ones_for_at_most_a_minute() {
        let plan = |decision, now| plan_claim(&mk_waiting(), &mk_claim(), None, None, || decision, &at(now));
        for decision in [QueueDecision::Unknown, QueueDecision::Admit, QueueDecision::NoHeadroom] {
            assert_eq!(plan(decision, 101), ClaimAction::Create, "{decision:?}");
        }
        assert_eq!(plan(QueueDecision::Wait, 101), ClaimAction::WaitInQueue(at(160)));
        assert_eq!(plan(QueueDecision::Wait, 160), ClaimAction::Create);
        let condition = condition_after(&ClaimAction::WaitInQueue(at(160)), None);
        assert_eq!((condition.status, &*condition.reason), (ConditionStatus::False, "QuotaExceeded"));
    }

    #[test]
    fn the_back_off_doubles_from_one_to_ten_minutes() {
        let (instance, mut tried, mut pauses) = (mk_waiting(), at(100), Vec::new());
        for _ in 0..7 {
            let next = retry_at(&instance, &tried);
            pauses.push(next.0.duration_since(tried.0).as_secs());
            tried = next;
        }
        assert_eq!(pauses, [60, 60, 120, 240, 480, 600, 600]);
    }

    #[test]
    fn a_terminating_claim_is_awaited() {
        assert_eq!(plan(Some(&deleting(mk_claim())), 100), ClaimAction::AwaitDeletion);
    }

    #[test]
    fn a_claim_of_another_cell_or_without_labels_is_left_alone() {
        let mut other = mk_claim();
        other.metadata.labels.as_mut().unwrap().insert(labels::SOURCE_CLUSTER.into(), "ord-1".into());
        let error = ClaimError::OtherCell { claim: "instance-web-0".into(), cell: "ord-1".into() };
        assert_eq!(plan(Some(&other), 100), ClaimAction::Foreign(error));
        other.metadata.labels = None;
        assert!(matches!(plan(Some(&other), 100), ClaimAction::Foreign(_)));
    }

    #[test]
    fn a_pending_claim_is_polled_less_and_less_often() {
        for (age, interval) in [(0, 1), (59, 1), (60, 15), (299, 15), (300, 60), (600, 300), (99999, 300)] {
            assert_eq!(poll_interval(&mk_waiting(), &at(100 + age)), Duration::from_secs(interval), "{age}");
        }
    }

    #[test]
    fn an_invalid_size_is_an_error() {
        let mut instance = mk_waiting();
        instance.spec = with_limits(mk_template("app:1"), &[("cpu", "-1"), ("memory", "1Gi")]).spec;
        assert!(desired_claim(&instance, None, &mk_tenant(), "dfw-1", ResourceRefKind::Project).is_err());
    }
}
