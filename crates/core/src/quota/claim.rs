//! Claims: the object, the next step, and the condition it leads to.

use std::time::Duration;

use polis_api::compute::Instance;
use polis_api::conditions::{GRANTED, QUOTA_GRANTED};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polis_api::k8s_openapi::jiff::SignedDuration;
use polis_api::quota::{
    ALLOCATION_DENIED, ALLOCATION_GRANTED, ConsumerReference, ResourceClaim, ResourceClaimSpec,
    ResourceReference,
};
use polis_api::{compute, labels, milo, names, reasons};

use super::{SizeError, Turn, requests, sizes};
use crate::Time;
use crate::conditions::{self, Verdict};
use crate::identity::Identity;
use crate::metadata;
use crate::owner::{self, Exact};

/// The first pause before a denied claim is made anew.
const SHORTEST_PAUSE: SignedDuration = SignedDuration::from_mins(1);
/// The longest pause: a denied instance is never further than this from its next chance.
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_mins(10);

/// The shortest pause, when there is room by now: keeps a bucket that says so wrongly from being asked in a circle.
const SHORTEST_TURN: SignedDuration = SignedDuration::from_secs(2);

/// What a claim says it is for. Which one is right depends on what the platform has registered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResourceRefKind {
    /// The project: what current registrations allow.
    #[default]
    Project,
    /// The instance: what earlier registrations allowed.
    Instance,
}

/// What is known about the claim of an instance.
#[derive(Clone, Copy, Debug)]
pub enum Answer<'a> {
    /// No quota is kept in this installation.
    Disabled,
    /// The claim does not exist yet, or is on its way.
    None,
    /// The claim stands.
    Claim(&'a ResourceClaim),
    /// The claim could not be made or read.
    Failed(&'a Failure),
}

/// Why a claim could not be made or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The project's plane does not answer as it should.
    #[error("the project's plane cannot be reached: {0}")]
    BackendUnavailable(String),
    /// There is no such project.
    #[error("project {0} does not exist")]
    ProjectNotFound(String),
    /// There is no such namespace in the project.
    #[error("namespace {0} does not exist in the project")]
    NamespaceNotFound(String),
    /// The platform refuses claims of this shape.
    #[error("the platform refuses the claim: {0}")]
    Misconfigured(String),
    /// Nothing says which project the instance belongs to.
    #[error("the project is not known: {0}")]
    ProjectUnresolvable(String),
    /// The template asks for a size that makes no sense.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// The claim of this name was made by another cell.
    #[error("claim {claim} belongs to cell {cell}; it goes when the instance there is gone")]
    OtherCell {
        /// Name of the claim.
        claim: String,
        /// The cell that made it; empty when it says none.
        cell: String,
    },
}

/// What to do about the claim of an instance.
#[derive(Clone, Debug, PartialEq)]
pub enum ClaimStep {
    /// It stands, decided or not.
    Leave,
    /// Make it.
    Create,
    /// Give it back; the next pass makes it anew when [`retry_at`] has come.
    Release(Exact),
    /// Denied: come back at this moment, or when the project's allowance changes.
    RetryAt(Time),
    /// Older instances were denied and come first: come back at this moment, or when it is its turn.
    StandInLine(Time),
    /// It is on its way out: make it anew when it is gone.
    AwaitRemoval,
    /// The name is taken by another cell; it is left alone.
    Foreign(Failure),
}

/// The claim of an instance.
pub fn claim(
    instance: &Instance,
    identity: &Identity,
    cell: &str,
    resource_ref: ResourceRefKind,
) -> Result<ResourceClaim, SizeError> {
    let name = owner::name(&instance.metadata);
    let instance_namespace = instance.metadata.namespace.as_deref().unwrap_or_default();
    let resource_ref = match resource_ref {
        ResourceRefKind::Project => ResourceReference {
            api_group: Some(milo::GROUP.into()),
            kind: milo::PROJECT_KIND.into(),
            name: identity.project.clone(),
            ..Default::default()
        },
        ResourceRefKind::Instance => ResourceReference {
            api_group: Some(compute::GROUP.into()),
            kind: "Instance".into(),
            name: name.to_owned(),
            namespace: Some(identity.namespace.clone()),
            ..Default::default()
        },
    };
    let metadata = ObjectMeta {
        name: Some(names::resource_claim(name)),
        namespace: Some(identity.namespace.clone()),
        labels: Some(metadata::map([
            (labels::SOURCE_CLUSTER, cell),
            (labels::INSTANCE_NAMESPACE, instance_namespace),
        ])),
        ..Default::default()
    };
    let spec = ResourceClaimSpec {
        consumer_ref: ConsumerReference {
            api_group: Some(milo::GROUP.into()),
            kind: milo::PROJECT_KIND.into(),
            name: identity.project.clone(),
            ..Default::default()
        },
        requests: requests(sizes(&instance.spec)?),
        resource_ref: Some(resource_ref),
        ..Default::default()
    };
    Ok(ResourceClaim { metadata, spec, status: None })
}

/// Whether a claim was made by this cell for this namespace.
pub fn is_of(claim: &ResourceClaim, wanted: &ResourceClaim) -> bool {
    [labels::SOURCE_CLUSTER, labels::INSTANCE_NAMESPACE].iter().all(|key| {
        let label = metadata::label(&claim.metadata, key);
        label.is_some() && label == metadata::label(&wanted.metadata, key)
    })
}

/// What to do about the claim of an instance.
///
/// `last_tried` is when this process last made a claim for the instance, or held it back; `None` after a restart, which
/// costs one early try. `turn` says whether there is room for the instance by now; it is asked only where that matters, because
/// finding out may mean to look at everybody who waits.
pub fn claim_step(
    instance: &Instance,
    wanted: &ResourceClaim,
    standing: Option<&ResourceClaim>,
    last_tried: Option<&Time>,
    turn: impl Fn() -> Turn,
    now: &Time,
) -> ClaimStep {
    let due = |tried: Option<&Time>| {
        let at = tried.map(|tried| match turn() {
            Turn::Open => Time(tried.0.saturating_add(SHORTEST_TURN).unwrap_or(tried.0)),
            _ => retry_at(instance, tried),
        });
        at.filter(|at| at.0 > now.0)
    };
    let Some(standing) = standing else {
        let born = instance.metadata.creation_timestamp.as_ref();
        if is_denied_so_far(instance) {
            return due(last_tried).map_or(ClaimStep::Create, ClaimStep::RetryAt);
        }
        return match turn() {
            Turn::Behind => due(born).map_or(ClaimStep::Create, ClaimStep::StandInLine),
            _ => ClaimStep::Create,
        };
    };
    if !is_of(standing, wanted) {
        return ClaimStep::Foreign(Failure::OtherCell {
            claim: owner::name(&standing.metadata).to_owned(),
            cell: metadata::label(&standing.metadata, labels::SOURCE_CLUSTER).unwrap_or_default().to_owned(),
        });
    }
    if owner::is_deleting(&standing.metadata) {
        return ClaimStep::AwaitRemoval;
    }
    if !is_denied(standing) {
        return ClaimStep::Leave;
    }
    if holds_anything(standing) {
        return ClaimStep::Release(Exact::of(&standing.metadata));
    }
    let tried = standing.metadata.creation_timestamp.as_ref();
    due(tried).map_or_else(|| ClaimStep::Release(Exact::of(&standing.metadata)), ClaimStep::RetryAt)
}

/// What `QuotaGranted` should say after a step has been decided. A claim that was denied and given back goes on being
/// denied until it is made anew: that is how the next pass knows that there is a pause to keep.
pub fn verdict_after(step: &ClaimStep, standing: Option<&ResourceClaim>) -> Verdict {
    match (step, standing) {
        (ClaimStep::Foreign(failure), _) => verdict(Answer::Failed(failure)),
        (ClaimStep::Create, _) => verdict(Answer::None),
        (_, Some(standing)) => verdict(Answer::Claim(standing)),
        (ClaimStep::StandInLine(_), _) => Verdict::no(
            QUOTA_GRANTED,
            reasons::QUOTA_EXCEEDED,
            "older instances of this project wait for quota and come first",
        ),
        (ClaimStep::RetryAt(_), None) => Verdict::no(
            QUOTA_GRANTED,
            reasons::QUOTA_EXCEEDED,
            "the claim was denied; it is made again after a pause",
        ),
        (_, None) => verdict(Answer::None),
    }
}

/// When a denied instance is due again: the pause is as long as the instance had waited by its last try, within one and
/// ten minutes, so that it doubles without anybody counting.
pub fn retry_at(instance: &Instance, last_tried: &Time) -> Time {
    let born = instance.metadata.creation_timestamp.as_ref().unwrap_or(last_tried);
    let waited = last_tried.0.duration_since(born.0);
    Time(last_tried.0.saturating_add(waited.clamp(SHORTEST_PAUSE, LONGEST_PAUSE)).unwrap_or(last_tried.0))
}

/// How long until a pending claim is looked at again where it cannot be watched, by the age of the instance.
pub fn poll_after(instance: &Instance, now: &Time) -> Duration {
    let born = instance.metadata.creation_timestamp.as_ref().unwrap_or(now);
    match now.0.duration_since(born.0).as_secs() {
        ..60 => Duration::from_secs(1),
        60..300 => Duration::from_secs(15),
        300..600 => Duration::from_secs(60),
        _ => Duration::from_secs(300),
    }
}

/// What the instance's `QuotaGranted` condition should say.
pub fn verdict(answer: Answer) -> Verdict {
    match answer {
        Answer::Disabled => {
            Verdict::yes(QUOTA_GRANTED, reasons::QUOTA_DISABLED, "no quota is kept in this installation")
        }
        Answer::None => {
            Verdict::unknown(QUOTA_GRANTED, reasons::PENDING_EVALUATION, "the claim is being made")
        }
        Answer::Claim(claim) => decided(claim),
        Answer::Failed(failure) => failed(failure),
    }
}

fn decided(claim: &ResourceClaim) -> Verdict {
    let name = owner::name(&claim.metadata);
    let conditions = claim.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    match conditions::find(conditions, GRANTED) {
        Some(granted) if granted.status == "True" => {
            Verdict::yes(QUOTA_GRANTED, reasons::QUOTA_AVAILABLE, format!("claim {name} is granted"))
        }
        Some(granted) if granted.reason == reasons::VALIDATION_FAILED => {
            Verdict::no(QUOTA_GRANTED, reasons::VALIDATION_FAILED, granted.message.clone())
        }
        Some(granted) if is_denied(claim) => {
            Verdict::no(QUOTA_GRANTED, reasons::QUOTA_EXCEEDED, granted.message.clone())
        }
        Some(_) => Verdict::unknown(
            QUOTA_GRANTED,
            reasons::QUOTA_NO_BUDGET,
            format!("claim {name} is not decided; nobody may have a budget for it"),
        ),
        None if is_denied(claim) => {
            Verdict::no(QUOTA_GRANTED, reasons::QUOTA_EXCEEDED, format!("claim {name} is denied"))
        }
        None => Verdict::unknown(
            QUOTA_GRANTED,
            reasons::PENDING_EVALUATION,
            format!("claim {name} is not decided"),
        ),
    }
}

fn failed(failure: &Failure) -> Verdict {
    let reason = match failure {
        Failure::BackendUnavailable(_) => reasons::QUOTA_BACKEND_UNAVAILABLE,
        Failure::ProjectNotFound(_) => reasons::QUOTA_PROJECT_NOT_FOUND,
        Failure::NamespaceNotFound(_) => reasons::QUOTA_NAMESPACE_NOT_FOUND,
        Failure::Misconfigured(_) => reasons::QUOTA_MISCONFIGURED,
        Failure::ProjectUnresolvable(_) => reasons::QUOTA_PROJECT_ID_UNRESOLVABLE,
        Failure::Size(_) => reasons::VALIDATION_FAILED,
        Failure::OtherCell { .. } => {
            return Verdict::unknown(QUOTA_GRANTED, reasons::PENDING_EVALUATION, failure.to_string());
        }
    };
    Verdict::no(QUOTA_GRANTED, reason, failure.to_string())
}

/// Denied on at least one request, which is final; a condition that is False while undecided is not.
fn is_denied(claim: &ResourceClaim) -> bool {
    let Some(status) = &claim.status else { return false };
    let refused = conditions::find(&status.conditions, GRANTED).is_some_and(|granted| {
        granted.status == "False"
            && matches!(granted.reason.as_str(), reasons::QUOTA_EXCEEDED | reasons::VALIDATION_FAILED)
    });
    refused || status.allocations.iter().any(|allocation| allocation.status == ALLOCATION_DENIED)
}

fn holds_anything(claim: &ResourceClaim) -> bool {
    claim
        .status
        .iter()
        .flat_map(|status| &status.allocations)
        .any(|allocation| allocation.status == ALLOCATION_GRANTED)
}

fn is_denied_so_far(instance: &Instance) -> bool {
    instance.status.as_ref().is_some_and(|status| conditions::is_false(&status.conditions, QUOTA_GRANTED))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conditions::Truth;
    use crate::identity::mk_identity;
    use crate::testing::{
        at, deleting, mk_condition, mk_deployment, mk_instance, mk_template, with_conditions, with_limits,
    };
    use polis_api::quota::{RequestAllocation, ResourceClaimStatus};

    fn mk_waiting() -> Instance {
        mk_instance(&mk_deployment("web"), 0) // born at second 100
    }

    fn mk_denied_instance() -> Instance {
        with_conditions(mk_waiting(), vec![mk_condition("QuotaGranted", "False", "QuotaExceeded")])
    }

    fn mk_claim() -> ResourceClaim {
        claim(&mk_waiting(), &mk_identity(), "dfw-1", ResourceRefKind::Project).unwrap()
    }

    fn mk_standing(status: &str, reason: &str, allocations: &[&str]) -> ResourceClaim {
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

    fn step(standing: Option<&ResourceClaim>, now: i64) -> ClaimStep {
        claim_step(&mk_waiting(), &mk_claim(), standing, None, || Turn::Unknown, &at(now))
    }

    #[test]
    fn the_claim_is_exactly_what_the_platform_expects() {
        let claim = mk_claim();
        assert_eq!(claim.metadata.name.as_deref(), Some("instance-web-0"));
        assert_eq!(claim.metadata.namespace.as_deref(), Some("shop"));
        assert_eq!(
            claim.metadata.labels,
            Some(metadata::map([
                ("compute.datumapis.com/source-cluster", "dfw-1"),
                ("compute.datumapis.com/instance-namespace", "ns-1")
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
    fn the_claim_can_be_for_the_instance() {
        let claim = claim(&mk_waiting(), &mk_identity(), "dfw-1", ResourceRefKind::Instance).unwrap();
        let reference = claim.spec.resource_ref.unwrap();
        assert_eq!((reference.kind.as_str(), reference.name.as_str()), ("Instance", "web-0"));
    }

    #[test]
    fn every_answer_has_its_reason() {
        let table = [
            (verdict(Answer::Disabled), Truth::True, "QuotaDisabled"),
            (verdict(Answer::None), Truth::Unknown, "PendingEvaluation"),
            (verdict(Answer::Claim(&mk_claim())), Truth::Unknown, "PendingEvaluation"),
            (
                verdict(Answer::Claim(&mk_standing("True", "QuotaAvailable", &[]))),
                Truth::True,
                "QuotaAvailable",
            ),
            (
                verdict(Answer::Claim(&mk_standing("False", "QuotaExceeded", &[]))),
                Truth::False,
                "QuotaExceeded",
            ),
            (
                verdict(Answer::Claim(&mk_standing("False", "ValidationFailed", &[]))),
                Truth::False,
                "ValidationFailed",
            ),
            (
                verdict(Answer::Claim(&mk_standing("False", "PendingEvaluation", &[]))),
                Truth::Unknown,
                "QuotaNoBudget",
            ),
            (
                verdict(Answer::Claim(&mk_standing("False", "PendingEvaluation", &["Denied"]))),
                Truth::False,
                "QuotaExceeded",
            ),
        ];
        for (verdict, truth, reason) in table {
            assert_eq!((verdict.truth, &*verdict.reason), (truth, reason));
        }
    }

    #[test]
    fn every_failure_has_its_reason() {
        let size = super::super::SizeError { resource: "cpu", amount: "-1".into() };
        for (failure, truth, reason) in [
            (Failure::BackendUnavailable("timeout".into()), Truth::False, "QuotaBackendUnavailable"),
            (Failure::ProjectNotFound("acme".into()), Truth::False, "QuotaProjectNotFound"),
            (Failure::NamespaceNotFound("shop".into()), Truth::False, "QuotaNamespaceNotFound"),
            (Failure::Misconfigured("no".into()), Truth::False, "QuotaMisconfigured"),
            (Failure::ProjectUnresolvable("?".into()), Truth::False, "QuotaProjectIDUnresolvable"),
            (Failure::Size(size), Truth::False, "ValidationFailed"),
            (
                Failure::OtherCell { claim: "c".into(), cell: "ord-1".into() },
                Truth::Unknown,
                "PendingEvaluation",
            ),
        ] {
            let verdict = verdict(Answer::Failed(&failure));
            assert_eq!((verdict.truth, &*verdict.reason), (truth, reason));
        }
    }

    #[test]
    fn a_new_instance_claims_at_once() {
        assert_eq!(step(None, 100), ClaimStep::Create);
    }

    #[test]
    fn a_pending_or_granted_claim_is_left_alone() {
        assert_eq!(step(Some(&mk_claim()), 100), ClaimStep::Leave);
        assert_eq!(step(Some(&mk_standing("True", "QuotaAvailable", &["Granted"])), 9999), ClaimStep::Leave);
    }

    #[test]
    fn a_denied_claim_is_given_back_after_a_pause() {
        let denied = mk_standing("False", "QuotaExceeded", &["Denied"]);
        assert_eq!(step(Some(&denied), 130), ClaimStep::RetryAt(at(160)));
        assert_eq!(step(Some(&denied), 160), ClaimStep::Release(Exact::of(&denied.metadata)));
    }

    #[test]
    fn a_denied_claim_that_holds_something_is_given_back_at_once() {
        let denied = mk_standing("False", "QuotaExceeded", &["Granted", "Denied"]);
        assert_eq!(step(Some(&denied), 101), ClaimStep::Release(Exact::of(&denied.metadata)));
    }

    #[test]
    fn a_claim_given_back_is_made_anew_only_after_the_pause() {
        let (denied, wanted) = (mk_denied_instance(), mk_claim());
        let step = |turn, now| claim_step(&denied, &wanted, None, Some(&at(100)), || turn, &at(now));
        assert_eq!(step(Turn::Full, 130), ClaimStep::RetryAt(at(160)));
        assert_eq!(step(Turn::Full, 160), ClaimStep::Create);
        assert_eq!(step(Turn::Open, 130), ClaimStep::Create);
        assert_eq!(claim_step(&denied, &wanted, None, None, || Turn::Unknown, &at(130)), ClaimStep::Create);
    }

    #[test]
    fn an_instance_whose_claim_was_given_back_says_that_it_was_denied() {
        let denied = mk_standing("False", "QuotaExceeded", &["Granted", "Denied"]);
        let release = ClaimStep::Release(Exact::of(&denied.metadata));
        let table = [
            (verdict_after(&ClaimStep::Create, None), Truth::Unknown, "PendingEvaluation"),
            (verdict_after(&release, Some(&denied)), Truth::False, "QuotaExceeded"),
            (verdict_after(&ClaimStep::AwaitRemoval, Some(&denied)), Truth::False, "QuotaExceeded"),
            (verdict_after(&ClaimStep::RetryAt(at(9)), None), Truth::False, "QuotaExceeded"),
            (verdict_after(&ClaimStep::RetryAt(at(9)), Some(&denied)), Truth::False, "QuotaExceeded"),
            (verdict_after(&ClaimStep::Leave, Some(&mk_claim())), Truth::Unknown, "PendingEvaluation"),
        ];
        for (verdict, truth, reason) in table {
            assert_eq!((verdict.truth, &*verdict.reason), (truth, reason));
        }
    }

    /// Plays the loop: every claim is denied at once. Counts the claims made within an hour of passes every second.
    #[test]
    fn an_instance_that_is_always_denied_does_not_storm_the_project() {
        let (mut instance, wanted) = (mk_waiting(), mk_claim());
        let (mut standing, mut last, mut made) = (None::<ResourceClaim>, None, 0);
        for second in 100..3700 {
            let now = at(second);
            let step =
                claim_step(&instance, &wanted, standing.as_ref(), last.as_ref(), || Turn::Unknown, &now);
            let verdict = verdict_after(&step, standing.as_ref());
            conditions::set(&mut instance.status.get_or_insert_default().conditions, &verdict, Some(1), &now);
            match step {
                ClaimStep::Create => {
                    let mut claim = mk_standing("False", "QuotaExceeded", &["Granted", "Denied"]);
                    claim.metadata.creation_timestamp = Some(now.clone());
                    (standing, last, made) = (Some(claim), Some(now), made + 1);
                }
                ClaimStep::Release(_) => standing = None,
                _ => {}
            }
        }
        assert_eq!(made, 10); // at 0, 1, 2, 4, 8 and 16 minutes, then every 10
    }

    #[test]
    fn room_ends_the_pause_but_for_a_moment_that_keeps_it_from_going_in_a_circle() {
        let denied = mk_standing("False", "QuotaExceeded", &["Denied"]);
        let step = |turn, now| claim_step(&mk_waiting(), &mk_claim(), Some(&denied), None, || turn, &at(now));
        assert_eq!(step(Turn::Open, 101), ClaimStep::RetryAt(at(102)));
        assert_eq!(step(Turn::Open, 102), ClaimStep::Release(Exact::of(&denied.metadata)));
        for turn in [Turn::Unknown, Turn::Full, Turn::Behind] {
            assert_eq!(step(turn, 102), ClaimStep::RetryAt(at(160)), "{turn:?}");
        }
    }

    #[test]
    fn a_new_instance_stands_behind_older_ones_that_were_denied_for_a_minute_at_most() {
        let step = |turn, now| claim_step(&mk_waiting(), &mk_claim(), None, None, || turn, &at(now));
        for turn in [Turn::Unknown, Turn::Open, Turn::Full] {
            assert_eq!(step(turn, 101), ClaimStep::Create, "{turn:?}");
        }
        assert_eq!(step(Turn::Behind, 101), ClaimStep::StandInLine(at(160)));
        assert_eq!(step(Turn::Behind, 160), ClaimStep::Create);
        let verdict = verdict_after(&ClaimStep::StandInLine(at(160)), None);
        assert_eq!((verdict.truth, &*verdict.reason), (Truth::False, "QuotaExceeded"));
    }

    #[test]
    fn the_pause_doubles_from_one_to_ten_minutes() {
        let (instance, mut tried, mut pauses) = (mk_waiting(), at(100), Vec::new());
        for _ in 0..7 {
            let next = retry_at(&instance, &tried);
            pauses.push(next.0.duration_since(tried.0).as_secs());
            tried = next;
        }
        assert_eq!(pauses, [60, 60, 120, 240, 480, 600, 600]);
    }

    #[test]
    fn a_claim_on_its_way_out_is_waited_for() {
        assert_eq!(step(Some(&deleting(mk_claim())), 100), ClaimStep::AwaitRemoval);
    }

    #[test]
    fn a_claim_of_another_cell_or_without_labels_is_left_alone() {
        let mut other = mk_claim();
        other.metadata.labels.as_mut().unwrap().insert(labels::SOURCE_CLUSTER.into(), "ord-1".into());
        let failure = Failure::OtherCell { claim: "instance-web-0".into(), cell: "ord-1".into() };
        assert_eq!(step(Some(&other), 100), ClaimStep::Foreign(failure));
        other.metadata.labels = None;
        assert!(matches!(step(Some(&other), 100), ClaimStep::Foreign(_)));
    }

    #[test]
    fn a_pending_claim_is_polled_less_and_less_often() {
        for (age, pause) in [(0, 1), (59, 1), (60, 15), (299, 15), (300, 60), (600, 300), (99999, 300)] {
            assert_eq!(poll_after(&mk_waiting(), &at(100 + age)), Duration::from_secs(pause), "{age}");
        }
    }

    #[test]
    fn a_size_without_sense_makes_no_claim() {
        let mut instance = mk_waiting();
        instance.spec = with_limits(mk_template("app:1"), &[("cpu", "-1"), ("memory", "1Gi")]).spec;
        assert!(claim(&instance, &mk_identity(), "dfw-1", ResourceRefKind::Project).is_err());
    }
}
