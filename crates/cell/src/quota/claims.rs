//! Claims: one per instance, in the plane of the project that it belongs to.
//!
//! The project is what the labels of the cell's namespace say. A grant is seen by a watch on the claims of this cell, in
//! the projects that have an instance waiting; where that watch cannot be had, the claim is looked at ever less often.
//! In the same projects, and where that is allowed, the buckets are watched: they say when a denied claim is worth making
//! anew, and for whom. Without an answer nothing new starts, and everything that runs goes on.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use polis_api::compute::{GATE_QUOTA, Instance};
use polis_api::conditions::QUOTA_GRANTED;
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::kube::core::response::StatusCause;
use polis_api::quota::{AllowanceBucket, ResourceClaim};
use polis_api::reasons;
use polis_core::conditions::{self, Truth, Verdict};
use polis_core::identity::Identity;
use polis_core::quota::{self, Answer, ClaimStep, Failure, ResourceRefKind, Room, Waiter};
use polis_core::{Time, gates, owner};
use polis_engine::{Class, Clock, Error as EngineError, Exactly, Key, Plane, PlaneSet, Recorder, Tone};

use super::links::Links;
use super::waiting::Waiting;
use crate::Error;
use crate::link::Trouble;
use crate::metrics::{Metrics, Unknown};

/// After this time a claim that is on its way, in or out, is looked at again.
const SOON: Duration = Duration::from_secs(1);
/// What is said while the projects' API does not answer: always the same words, so that they are written once.
const NO_ANSWER: &str = "it does not answer";

/// The claims of a cell's instances.
pub(crate) struct Claims {
    base: Plane,
    watched: PlaneSet,
    waiting: Waiting,
    /// Name of the cell.
    cell: String,
    resource_ref: ResourceRefKind,
    links: Links,
    /// When this process last claimed for an instance: what the pause after a denial is counted from.
    tried: Mutex<BTreeMap<Key, Time>>,
    clock: Clock,
    recorder: Recorder,
    metrics: Metrics,
}

/// A claim as it stands.
struct Standing {
    claim: Option<ResourceClaim>,
    /// Whether its changes are events.
    watched: bool,
}

impl Claims {
    #[allow(clippy::too_many_arguments)] // made in one place, from what that place has
    pub(crate) fn new(
        base: Plane,
        watched: PlaneSet,
        waiting: Waiting,
        cell: String,
        resource_ref: ResourceRefKind,
        clock: Clock,
        recorder: Recorder,
        metrics: Metrics,
    ) -> Self {
        let (links, tried) = (Links::default(), Mutex::default());
        Self { base, watched, waiting, cell, resource_ref, links, tried, clock, recorder, metrics }
    }

    pub(crate) fn planes(&self) -> PlaneSet {
        self.watched.clone()
    }

    pub(crate) fn waiting(&self) -> Waiting {
        self.waiting.clone()
    }

    /// What `QuotaGranted` should say, and when to look again if no event will say so.
    pub(crate) async fn look(
        &self,
        cell: &Plane,
        key: &Key,
        instance: &Instance,
    ) -> (Verdict, Option<Duration>) {
        if let Some(verdict) = let_in_before(instance) {
            self.forget(key);
            self.mend(cell, key, instance).await;
            return (verdict, None);
        }
        let failure = match self.settle(cell, key, instance).await {
            Ok((verdict, again)) => {
                if verdict.reason == reasons::QUOTA_NO_BUDGET {
                    self.metrics.quota_failed("no_budget");
                }
                return (verdict, again);
            }
            Err(failure) => failure,
        };
        self.metrics.quota_failed(word(&failure));
        let again = match failure {
            // Only a change of the namespace's labels, or of the template, helps; both are events.
            Failure::ProjectUnresolvable(_) | Failure::Size(_) => None,
            _ => Some(quota::poll_after(instance, &Time(self.clock.now()))),
        };
        (quota::verdict(Answer::Failed(&failure)), again)
    }

    async fn settle(
        &self,
        cell: &Plane,
        key: &Key,
        instance: &Instance,
    ) -> Result<(Verdict, Option<Duration>), Failure> {
        let identity = self.identity(cell, key)?;
        let wanted = quota::claim(instance, &identity, &self.cell, self.resource_ref)?;
        self.waiting.join(&identity.project, key, waiter(key, instance, &wanted));
        let Standing { claim, watched } = self.standing(&identity, &wanted).await?;
        let now = Time(self.clock.now());
        let tried = self.tried.lock().get(key).cloned();
        let turn = || self.waiting.turn(key, &self.room(&identity.project));
        let step = quota::claim_step(instance, &wanted, claim.as_ref(), tried.as_ref(), turn, &now);
        let verdict = quota::verdict_after(&step, claim.as_ref());
        self.waiting.note(key, verdict.truth == Truth::False);
        let poll = (!watched).then(|| quota::poll_after(instance, &now));
        match step {
            ClaimStep::Leave if verdict.truth == Truth::True => {
                self.forget(key);
                Ok((verdict, None))
            }
            ClaimStep::Leave | ClaimStep::AwaitRemoval => Ok((verdict, poll)),
            ClaimStep::Create => match self.make(key, &identity, &wanted, now).await? {
                Some(made) => Ok((quota::verdict(Answer::Claim(&made)), poll)),
                None => Ok((verdict, Some(SOON))), // made meanwhile, and not seen yet
            },
            ClaimStep::Release(exact) => {
                let born = claim.as_ref().and_then(|claim| claim.metadata.creation_timestamp.clone());
                self.tried.lock().entry(key.clone()).or_insert(born.unwrap_or(now));
                let plane = self.base.of_project(&identity.project);
                let place = (identity.namespace.as_str(), exact.name.as_str());
                let version = Some(exact.resource_version.as_str());
                let released = plane.delete_at::<ResourceClaim>(place, &exact.uid, version);
                self.ask(&identity, released).await?;
                Ok((verdict, Some(SOON)))
            }
            ClaimStep::StandInLine(at) => {
                // It counts as tried when it was born: that is what its pause is measured from.
                let born = instance.metadata.creation_timestamp.clone().unwrap_or(now.clone());
                self.tried.lock().entry(key.clone()).or_insert(born);
                Ok((verdict, Some(until(&at, &now))))
            }
            ClaimStep::RetryAt(at) => Ok((verdict, Some(until(&at, &now)))),
            ClaimStep::Foreign(_) => Ok((verdict, Some(quota::poll_after(instance, &now)))),
        }
    }

    /// Makes the claim of an instance that was let in anew, if somebody has deleted it: what runs should be counted. It is
    /// noticed while the project is watched anyway, and the instance runs on whatever comes of it.
    async fn mend(&self, cell: &Plane, key: &Key, instance: &Instance) {
        let Ok(identity) = self.identity(cell, key) else { return };
        let Ok(wanted) = quota::claim(instance, &identity, &self.cell, self.resource_ref) else { return };
        let place = (identity.namespace.as_str(), owner::name(&wanted.metadata));
        let Ok(watched) = self.watched.named(&identity.project) else { return };
        let missing = watched.serves::<ResourceClaim>().unwrap_or(false)
            && matches!(watched.get::<ResourceClaim>(place), Ok(None));
        if !missing {
            return;
        }
        let plane = self.base.of_project(&identity.project);
        let gone = matches!(self.ask(&identity, plane.live().get::<ResourceClaim>(place)).await, Ok(None));
        if !gone {
            return;
        }
        match self.links.ask(&identity.project, plane.create(&wanted)).await {
            Err(Trouble::Failed(error)) if error.is_already_exists() || is_going(&error) => {
                tracing::debug!(%key, %error, "the claim of a running instance is gone, with what it was in");
            }
            Err(Trouble::Failed(error)) => {
                tracing::warn!(%key, %error, "the claim of a running instance is gone and cannot be made anew");
            }
            Err(Trouble::Away { .. }) | Ok(_) => {} // who does not answer is told of where it is found out
        }
    }

    /// What the project has left, as far as its buckets can be seen.
    fn room(&self, project: &str) -> Room {
        let buckets = self.watched.named(project).and_then(|plane| plane.list::<AllowanceBucket>());
        Room::of(project, &buckets.unwrap_or_default())
    }

    /// Makes the claim. None if one of that name turned up.
    async fn make(
        &self,
        key: &Key,
        identity: &Identity,
        wanted: &ResourceClaim,
        now: Time,
    ) -> Result<Option<ResourceClaim>, Failure> {
        let plane = self.base.of_project(&identity.project);
        match self.links.ask(&identity.project, plane.create(wanted)).await {
            Ok(made) => {
                self.tried.lock().insert(key.clone(), now);
                Ok(Some(made))
            }
            Err(Trouble::Failed(error)) if error.is_already_exists() => Ok(None),
            Err(Trouble::Failed(error)) => Err(why_not_made(&error, identity)),
            Err(trouble) => Err(unavailable(trouble)),
        }
    }

    /// The claim as the watch has seen it, or else as the project has it.
    async fn standing(&self, identity: &Identity, wanted: &ResourceClaim) -> Result<Standing, Failure> {
        let place = (identity.namespace.as_str(), owner::name(&wanted.metadata));
        let engaged = self.watched.named(&identity.project).ok();
        let watched = engaged.as_ref().is_some_and(|plane| plane.serves::<ResourceClaim>().unwrap_or(false));
        if let Some(plane) = engaged.filter(|_| watched)
            && let Ok(Some(claim)) = plane.get::<ResourceClaim>(place)
        {
            return Ok(Standing { claim: Some(claim), watched });
        }
        let plane = self.base.of_project(&identity.project);
        let claim = self.ask(identity, plane.live().get::<ResourceClaim>(place)).await?;
        Ok(Standing { claim, watched })
    }

    /// Gives back the claim of an instance that goes. None once it is gone, or if nobody can say where it is.
    pub(crate) async fn give_back(
        &self,
        cell: &Plane,
        key: &Key,
        instance: &Instance,
    ) -> Result<Option<Duration>, Error> {
        let identity = match self.identity(cell, key) {
            Ok(identity) => identity,
            Err(failure) => {
                super::orphaned(&self.recorder, &self.metrics, cell, instance, &failure.to_string());
                return Ok(None);
            }
        };
        let Ok(wanted) = quota::claim(instance, &identity, &self.cell, self.resource_ref) else {
            return Ok(None); // nothing was ever claimed for such a size
        };
        let trouble = match self.remove(&identity, &wanted).await {
            Ok(gone) => return Ok((!gone).then_some(SOON)),
            Err(trouble) => trouble,
        };
        let note = format!(
            "The instance is kept until its quota claim can be given back in project {}",
            identity.project
        );
        self.recorder.record(cell, instance, Tone::Warning, "QuotaUnreachable", "Claim", &note);
        match trouble {
            Trouble::Away { again, .. } => Ok(Some(again)),
            Trouble::Failed(source) => Err(Error::Claim { instance: key.to_string(), source }),
        }
    }

    /// True once the claim is gone, or if it is none of ours.
    async fn remove(&self, identity: &Identity, wanted: &ResourceClaim) -> Result<bool, Trouble> {
        let plane = self.base.of_project(&identity.project);
        let place = (identity.namespace.as_str(), owner::name(&wanted.metadata));
        let standing = self.links.ask(&identity.project, plane.live().get::<ResourceClaim>(place)).await?;
        let Some(claim) = standing.filter(|claim| quota::is_of(claim, wanted)) else { return Ok(true) };
        if !owner::is_deleting(&claim.metadata) {
            self.links.ask(&identity.project, plane.delete(&claim, Exactly::Object)).await?;
        }
        Ok(claim.metadata.finalizers.is_none_or(|finalizers| finalizers.is_empty()))
    }

    /// Nobody waits for this instance's claim any more.
    pub(crate) fn forget(&self, key: &Key) {
        self.waiting.leave(key);
        self.tried.lock().remove(key);
        self.metrics.resolved(Unknown::Project, key);
    }

    /// The project of the instance, by the labels of its namespace in the cell.
    fn identity(&self, cell: &Plane, key: &Key) -> Result<Identity, Failure> {
        let unresolvable = |why: String| {
            if self.metrics.unresolved(Unknown::Project, key) {
                tracing::error!(%key, %why, "the instance cannot claim quota until this is put right");
            }
            Failure::ProjectUnresolvable(why)
        };
        let namespace =
            cell.get::<Namespace>(key.namespace()).map_err(|error| unresolvable(error.to_string()))?;
        let namespace =
            namespace.ok_or_else(|| unresolvable(format!("namespace {} is not seen", key.namespace())))?;
        let identity = Identity::of(&namespace).map_err(|error| unresolvable(error.to_string()))?;
        self.metrics.resolved(Unknown::Project, key);
        Ok(identity)
    }

    async fn ask<T>(
        &self,
        identity: &Identity,
        question: impl Future<Output = Result<T, EngineError>>,
    ) -> Result<T, Failure> {
        self.links.ask(&identity.project, question).await.map_err(unavailable)
    }
}

/// The grant of an instance that was let in: a ticket, not a rent. While the gate stands, only the claim counts.
fn let_in_before(instance: &Instance) -> Option<Verdict> {
    let granted = conditions::find(&instance.status.as_ref()?.conditions, QUOTA_GRANTED)?;
    let by_claim = granted.status == "True" && granted.reason == reasons::QUOTA_AVAILABLE;
    (by_claim && !gates::has(instance, GATE_QUOTA))
        .then(|| Verdict::yes(QUOTA_GRANTED, reasons::QUOTA_AVAILABLE, granted.message.clone()))
}

/// How long until then.
fn until(at: &Time, now: &Time) -> Duration {
    Duration::try_from(at.0.duration_since(now.0)).unwrap_or(SOON)
}

/// The place of an instance among those that wait for its project.
fn waiter(key: &Key, instance: &Instance, wanted: &ResourceClaim) -> Waiter {
    let status = instance.status.as_ref();
    Waiter {
        born: instance.metadata.creation_timestamp.clone(),
        name: format!("{}/{}", key.namespace(), key.name),
        needs: wanted.spec.requests.clone(),
        denied: status.is_some_and(|status| conditions::is_false(&status.conditions, QUOTA_GRANTED)),
    }
}

fn unavailable(trouble: Trouble) -> Failure {
    match trouble {
        Trouble::Away { why, .. } => {
            if let Some(why) = why {
                tracing::warn!(%why, "the projects' API does not answer; new instances wait for quota");
            }
            Failure::BackendUnavailable(NO_ANSWER.into())
        }
        Trouble::Failed(error) => Failure::BackendUnavailable(error.to_string()),
    }
}

/// Whether the answer means that the project, or the namespace there, is about to go: then its claims go as well, and the
/// instances will follow.
fn is_going(error: &EngineError) -> bool {
    let terminating = |cause: &StatusCause| cause.reason == "NamespaceTerminating";
    match error {
        EngineError::Refused { status, .. } => {
            error.is_not_found()
                || status.details.as_ref().is_some_and(|details| details.causes.iter().any(terminating))
        }
        _ => false,
    }
}

fn why_not_made(error: &EngineError, identity: &Identity) -> Failure {
    let about = match error {
        EngineError::Refused { status, .. } => status.details.as_ref().map(|details| details.kind.as_str()),
        _ => None,
    };
    match (error.class(), about) {
        (Class::NotFound, Some("namespaces" | "Namespace" | "namespace")) => {
            Failure::NamespaceNotFound(identity.namespace.clone())
        }
        (Class::NotFound, _) => Failure::ProjectNotFound(identity.project.clone()),
        (Class::Forbidden | Class::Invalid, _) => Failure::Misconfigured(error.to_string()),
        _ => Failure::BackendUnavailable(error.to_string()),
    }
}

/// The word for a failure in metrics.
fn word(failure: &Failure) -> &'static str {
    match failure {
        Failure::BackendUnavailable(_) => "backend_unavailable",
        Failure::ProjectNotFound(_) => "project_not_found",
        Failure::NamespaceNotFound(_) => "namespace_not_found",
        Failure::Misconfigured(_) => "misconfigured",
        Failure::ProjectUnresolvable(_) => "project_id_unresolvable",
        Failure::Size(_) => "size_invalid",
        Failure::OtherCell { .. } => "other_cell",
    }
}

#[cfg(test)]
mod tests {
    use polis_api::kube::core::Status;
    use polis_api::kube::core::response::StatusDetails;

    use super::*;

    fn mk_refusal(code: u16, reason: &str, cause: Option<&str>) -> EngineError {
        let cause = cause.map(|reason| StatusCause {
            reason: reason.into(),
            message: String::new(),
            field: String::new(),
        });
        let details = StatusDetails {
            name: "instance-web-0".into(),
            group: "quota.miloapis.com".into(),
            kind: "resourceclaims".into(),
            uid: String::new(),
            causes: cause.into_iter().collect(),
            retry_after_seconds: 0,
        };
        let status = Status { code, reason: reason.into(), details: Some(details), ..Status::default() };
        EngineError::Refused { plane: "acme".into(), action: "create".into(), status: Box::new(status) }
    }

    #[test]
    fn every_failure_is_counted_under_a_reason_that_is_always_on_the_page() {
        let named = |name: &str| name.to_owned();
        for failure in [
            Failure::BackendUnavailable(named("acme")),
            Failure::ProjectNotFound(named("acme")),
            Failure::NamespaceNotFound(named("shop")),
            Failure::Misconfigured(named("so")),
            Failure::ProjectUnresolvable(named("so")),
            Failure::OtherCell { claim: named("web"), cell: named("ord") },
        ] {
            assert!(crate::metrics::QUOTA_REASONS.contains(&word(&failure)), "{failure}");
        }
    }

    #[test]
    fn a_claim_that_goes_with_its_project_is_no_surprise() {
        for (code, reason, cause, going) in [
            (404, "NotFound", None, true),
            (403, "Forbidden", Some("NamespaceTerminating"), true),
            (403, "Forbidden", None, false),
            (422, "Invalid", Some("FieldValueInvalid"), false),
        ] {
            assert_eq!(is_going(&mk_refusal(code, reason, cause)), going, "{code} {cause:?}");
        }
    }
}
