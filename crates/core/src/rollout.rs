//! Rollout: whether an object has what its spec asks for, is getting there, or is stuck.
//!
//! WorkloadDeployments and Workloads report it in the conditions that tools read:
//!
//! | state | `Progressing` | `Degraded` | `Ready` | `Reconciling` | `Stalled` |
//! |---|---|---|---|---|---|
//! | complete | True `RolloutComplete` | False | True | – | – |
//! | in progress | True `RolloutInProgress` | False | False | True | – |
//! | stuck | False, the cause | True, the cause | False, the cause | – | True, the cause |
//! | not known | Unknown, the cause | True, the cause | Unknown, the cause | – | – |
//! | suspended | Unknown `Suspended` | False | False `Suspended` | – | – |
//!
//! `Progressing` has the meaning that it has on a Deployment of Kubernetes; `Ready`, `Reconciling` and
//! `Stalled` are those of kstatus, which Flux and Argo CD follow: `Reconciling` and `Stalled` are absent
//! unless True. `Available` is about service and not about the spec: it stays True while a broken rollout
//! leaves old instances running.
//!
//! A cause that waiting does not resolve makes a rollout stuck at once; otherwise it is stuck when nothing
//! has changed for the deadline of its state. `Reconciling` says since when the current generation is rolled
//! out.

use std::time::Duration;

use polis_api::ObjectExt;
use polis_api::compute::{Instance, WorkloadDeployment};
use polis_api::conditions::{
    AVAILABLE, DEGRADED, FEDERATED, PROGRESSING, READY, RECONCILING, REPLICAS_READY, STALLED, WITHDRAWN,
};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use polis_api::k8s_openapi::jiff::Timestamp;
use polis_api::reasons;

use crate::conditions::{self, DesiredCondition};
use crate::{Time, deadlines, instances, ranking, source_revision};

/// Why a rollout does not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// The reason of a condition.
    pub reason: String,
    /// What is wrong, and where.
    pub message: String,
}

impl Cause {
    /// A cause from a condition; `place` goes before its message.
    pub fn of(place: &str, condition: &Condition) -> Self {
        Cause { reason: condition.reason.clone(), message: placed(place, &condition.message) }
    }

    fn new(reason: &str, message: impl Into<String>) -> Self {
        Cause { reason: reason.to_owned(), message: message.into() }
    }
}

/// The state of a rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RolloutState {
    /// The spec is reached. A loss that does not end what runs may be reported beside it.
    Complete(Option<Cause>),
    /// The spec is not reached yet; the message says how far.
    InProgress(String),
    /// Waiting does not resolve the cause.
    Stuck(Cause),
    /// The state is not known, for example because the cell is silent.
    Unknown(Cause),
    /// The instances exist and do not run, as requested.
    Suspended,
}

/// A state, and when to decide again if nothing changes until then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollout {
    /// The state.
    pub state: RolloutState,
    /// The rest of the deadline.
    pub recheck: Option<Duration>,
}

impl Rollout {
    /// A state that only a change ends.
    pub fn new(state: RolloutState) -> Self {
        Rollout { state, recheck: None }
    }
}

/// The instances of a deployment, and what holds them back.
#[derive(Clone, Copy, Debug)]
pub struct DeploymentRollout<'a> {
    /// The existing status conditions of the deployment.
    pub existing: &'a [Condition],
    /// Generation of the deployment.
    pub generation: Option<i64>,
    /// Its instances.
    pub owned: &'a [&'a Instance],
    /// How many of them have the newest template.
    pub updated: usize,
    /// How many should exist.
    pub desired: usize,
    /// Causes from outside the instances, with reason and message.
    pub outside: &'a [(&'static str, String)],
    /// Whether the deployment is suspended.
    pub suspended: bool,
}

/// The rollout of a deployment in its cell.
pub fn of_deployment(input: &DeploymentRollout, now: &Time) -> Rollout {
    let DeploymentRollout { owned, updated, desired, .. } = *input;
    let ready = owned.iter().filter(|instance| instances::is_ready(instance)).count();
    let steady = owned.len() == desired && !owned.iter().any(|instance| instance.is_deleting());
    if steady && ready == desired && updated == desired {
        return Rollout::new(RolloutState::Complete(None));
    }
    if input.suspended && steady {
        return Rollout::new(RolloutState::Suspended);
    }
    let message = progress_message(owned.len(), ready, updated, desired);
    let changed = owned.iter().filter_map(|instance| last_change(instance)).max();
    let clock = ProgressClock::read(input.existing, input.generation, changed, now);
    let mut pending = Vec::new();
    let causes = owned.iter().filter_map(|instance| not_ready(instance));
    let causes = causes.chain(input.outside.iter().map(|(reason, message)| Cause::new(reason, message)));
    let (mut lasting, mut recheck) = (Vec::new(), None::<Duration>);
    for cause in causes {
        let limit = match ranking::needs_action(&cause.reason) {
            true if is_brief(&cause.reason) => deadlines::GRACE,
            true => Duration::ZERO,
            false => {
                pending.push(cause);
                continue;
            }
        };
        match limit.saturating_sub(clock.elapsed_for(&cause.reason)) {
            Duration::ZERO => lasting.push(cause),
            rest => recheck = Some(recheck.map_or(rest, |known: Duration| known.min(rest))),
        }
    }
    if let Some(cause) = ranking::worst(lasting, |cause| &cause.reason) {
        return Rollout::new(RolloutState::Stuck(cause));
    }
    let slowest = pending.iter().max_by_key(|cause| deadlines::of(&cause.reason));
    let limit = slowest.map_or(deadlines::DEFAULT, |cause| deadlines::of(&cause.reason));
    let rest = limit.saturating_sub(clock.elapsed_for(reasons::PROGRESS_DEADLINE_EXCEEDED));
    if rest.is_zero() {
        let waits = slowest.map(|cause| format!("; {}: {}", cause.reason, cause.message)).unwrap_or_default();
        let message = format!("no progress within {} s: {message}{waits}", limit.as_secs());
        let cause = Cause::new(reasons::PROGRESS_DEADLINE_EXCEEDED, message);
        return Rollout::new(RolloutState::Stuck(cause));
    }
    let recheck = Some(recheck.map_or(rest, |known| known.min(rest)));
    Rollout { state: RolloutState::InProgress(message), recheck }
}

/// The state of a deployment of a project, from what its cell has reported.
pub fn of_reported(deployment: &WorkloadDeployment) -> RolloutState {
    let city = deployment.spec.city_code.as_str();
    if deployment.is_deleting() {
        let conditions = deployment.status.as_ref().map_or(&[][..], |status| &status.conditions);
        let blocked = conditions::find(conditions, WITHDRAWN)
            .filter(|withdrawn| withdrawn.status == "False" && ranking::needs_action(&withdrawn.reason));
        return blocked.map_or_else(
            || RolloutState::InProgress(format!("{city}: the deployment is being deleted")),
            |withdrawn| RolloutState::Stuck(Cause::of(city, withdrawn)),
        );
    }
    let Some(status) = deployment.status.as_ref().filter(|status| !status.conditions.is_empty()) else {
        return RolloutState::InProgress(format!("{city}: no cell has reported on the deployment yet"));
    };
    let condition = |kind| conditions::find(&status.conditions, kind);
    let is_false = |kind| condition(kind).filter(|condition| condition.status == "False");
    if let Some(federated) = is_false(FEDERATED) {
        return RolloutState::Stuck(Cause::of(city, federated));
    }
    if let Some(ready) = condition(READY).filter(|ready| ready.status == "Unknown") {
        return RolloutState::Unknown(Cause::of(city, ready));
    }
    if !source_revision::is_observed(deployment) {
        return RolloutState::InProgress(format!("{city}: the cell has not reported on the newest spec yet"));
    }
    if let Some(stalled) = condition(STALLED).filter(|stalled| stalled.status == "True") {
        return RolloutState::Stuck(Cause::of(city, stalled));
    }
    match condition(READY) {
        Some(ready) if ready.status == "True" => RolloutState::Complete(None),
        Some(ready) if ready.reason == reasons::SUSPENDED => RolloutState::Suspended,
        Some(ready) => RolloutState::InProgress(placed(city, &ready.message)),
        // A cell of an earlier version reports no rollout: the counters and the causes decide.
        None => {
            let blocked = [AVAILABLE, REPLICAS_READY].into_iter().filter_map(is_false);
            let blocked = blocked.filter(|condition| ranking::needs_action(&condition.reason));
            if let Some(condition) = ranking::worst(blocked, |condition| &condition.reason) {
                return RolloutState::Stuck(Cause::of(city, condition));
            }
            let updated = status.updated_replicas.unwrap_or(status.current_replicas);
            let counted = [status.replicas, status.ready_replicas, updated];
            match counted.iter().all(|count| *count == status.desired_replicas) {
                true => RolloutState::Complete(None),
                false => RolloutState::InProgress(format!(
                    "{city}: {} of {} instances are ready",
                    status.ready_replicas, status.desired_replicas
                )),
            }
        }
    }
}

/// Whether the state of a deployment is decided outside its cell: the cell has not reported on the newest
/// spec, or the deployment is being deleted. A cell applies the deadline to what it reports itself.
pub fn awaits_cell(deployment: &WorkloadDeployment) -> bool {
    let conditions = deployment.status.as_ref().map_or(&[][..], |status| &status.conditions);
    deployment.is_deleting() || conditions.is_empty() || !source_revision::is_observed(deployment)
}

/// The state of several rollouts together: the worst of stuck, not known, in progress, suspended, complete.
pub fn combined(states: impl IntoIterator<Item = RolloutState>) -> RolloutState {
    let (mut stuck, mut unknown, mut progress, mut lost) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut suspended, mut complete) = (false, false);
    for state in states {
        match state {
            RolloutState::Stuck(cause) => stuck.push(cause),
            RolloutState::Unknown(cause) => unknown.push(cause),
            RolloutState::InProgress(message) => progress.push(message),
            RolloutState::Suspended => suspended = true,
            RolloutState::Complete(cause) => {
                complete = true;
                lost.extend(cause);
            }
        }
    }
    let worst = |causes| ranking::worst(causes, |cause: &Cause| &cause.reason);
    if let Some(cause) = worst(stuck) {
        return RolloutState::Stuck(cause);
    }
    if let Some(cause) = worst(unknown) {
        return RolloutState::Unknown(cause);
    }
    match progress.is_empty() {
        false => RolloutState::InProgress(joined(&progress)),
        true if suspended && !complete => RolloutState::Suspended,
        true => RolloutState::Complete(worst(lost)),
    }
}

/// Turns a state that is still in progress into a stuck one when it has lasted for the default deadline: for
/// what happens outside a cell, which has no instance that could change meanwhile. `changed` is the newest
/// change that counts as progress.
pub fn with_deadline(
    state: RolloutState,
    existing: &[Condition],
    generation: Option<i64>,
    changed: Option<Timestamp>,
    now: &Time,
) -> Rollout {
    let RolloutState::InProgress(message) = &state else { return Rollout::new(state) };
    let clock = ProgressClock::read(existing, generation, changed, now);
    let rest = deadlines::DEFAULT.saturating_sub(clock.elapsed_for(reasons::PROGRESS_DEADLINE_EXCEEDED));
    if rest.is_zero() {
        let message = format!("no progress within {} s: {message}", deadlines::DEFAULT.as_secs());
        return Rollout::new(RolloutState::Stuck(Cause::new(reasons::PROGRESS_DEADLINE_EXCEEDED, message)));
    }
    Rollout { state, recheck: Some(rest) }
}

/// Sets the conditions of a state in a list.
pub fn apply(conditions: &mut Vec<Condition>, state: &RolloutState, generation: Option<i64>, now: &Time) {
    // The transition time of `Reconciling` is the start of the rollout: another generation starts anew.
    conditions
        .retain(|condition| condition.type_ != RECONCILING || condition.observed_generation == generation);
    let (marker, desired) = desired(state);
    for condition in &desired {
        conditions::set(conditions, condition, generation, now);
    }
    conditions.retain(|condition| {
        let is_marker = [RECONCILING, STALLED].contains(&condition.type_.as_str());
        !is_marker || Some(condition.type_.as_str()) == marker
    });
}

/// The conditions of a state, and which of `Reconciling` and `Stalled` is among them.
fn desired(state: &RolloutState) -> (Option<&'static str>, Vec<DesiredCondition>) {
    let healthy = || DesiredCondition::new_false(DEGRADED, reasons::AS_EXPECTED, "");
    let degraded =
        |cause: &Cause| DesiredCondition::new_true(DEGRADED, cause.reason.clone(), cause.message.clone());
    match state {
        RolloutState::Complete(lost) => {
            let (reason, message) =
                (reasons::ROLLOUT_COMPLETE, "every instance has the newest spec and is ready");
            let conditions = vec![
                DesiredCondition::new_true(PROGRESSING, reason, message),
                lost.as_ref().map_or_else(healthy, degraded),
                DesiredCondition::new_true(READY, reason, message),
            ];
            (None, conditions)
        }
        RolloutState::InProgress(message) => {
            let reason = reasons::ROLLOUT_IN_PROGRESS;
            let conditions = vec![
                DesiredCondition::new_true(PROGRESSING, reason, message.clone()),
                healthy(),
                DesiredCondition::new_false(READY, reason, message.clone()),
                DesiredCondition::new_true(RECONCILING, reason, message.clone()),
            ];
            (Some(RECONCILING), conditions)
        }
        RolloutState::Stuck(cause) => {
            let (reason, message) = (&cause.reason, &cause.message);
            let conditions = vec![
                DesiredCondition::new_false(PROGRESSING, reason.clone(), message.clone()),
                degraded(cause),
                DesiredCondition::new_false(READY, reason.clone(), message.clone()),
                DesiredCondition::new_true(STALLED, reason.clone(), message.clone()),
            ];
            (Some(STALLED), conditions)
        }
        RolloutState::Unknown(cause) => {
            let unknown =
                |kind| DesiredCondition::new_unknown(kind, cause.reason.clone(), cause.message.clone());
            (None, vec![unknown(PROGRESSING), degraded(cause), unknown(READY)])
        }
        RolloutState::Suspended => {
            let (reason, message) = (reasons::SUSPENDED, "the instances exist and do not run");
            let conditions = vec![
                DesiredCondition::new_unknown(PROGRESSING, reason, message),
                healthy(),
                DesiredCondition::new_false(READY, reason, message),
            ];
            (None, conditions)
        }
    }
}

/// A change of a state that an event reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateEvent {
    /// Whether it is a problem.
    pub warning: bool,
    /// The reason of the event.
    pub reason: String,
    /// The note.
    pub note: String,
}

/// The events about a change of conditions: a rollout that is complete, a degradation, and its end.
pub fn events(before: &[Condition], after: &[Condition]) -> Vec<StateEvent> {
    let state = |conditions: &[Condition], kind| {
        conditions::find(conditions, kind).map(|c| (c.status.clone(), c.reason.clone()))
    };
    let changed = |kind| state(before, kind) != state(after, kind);
    let mut events = Vec::new();
    if let Some(degraded) = conditions::find(after, DEGRADED).filter(|_| changed(DEGRADED)) {
        let (reason, note) = (degraded.reason.clone(), degraded.message.clone());
        if degraded.status == "True" {
            events.push(StateEvent { warning: true, reason, note });
        } else if conditions::is_true(before, DEGRADED) {
            let note = "the cause of the degradation is gone".to_owned();
            events.push(StateEvent { warning: false, reason: reasons::AS_EXPECTED.to_owned(), note });
        }
    }
    if let Some(progress) = conditions::find(after, PROGRESSING).filter(|_| changed(PROGRESSING))
        && progress.reason == reasons::ROLLOUT_COMPLETE
    {
        let (reason, note) = (progress.reason.clone(), progress.message.clone());
        events.push(StateEvent { warning: false, reason, note });
    }
    events
}

/// The first messages of many, so that a workload in a hundred cities has a condition of one line.
fn joined(messages: &[String]) -> String {
    const MAX_NAMED: usize = 3;
    let named = messages.iter().take(MAX_NAMED).cloned().collect::<Vec<_>>().join("; ");
    match messages.len().saturating_sub(MAX_NAMED) {
        0 => named,
        more => format!("{named}; and {more} more"),
    }
}

fn progress_message(existing: usize, ready: usize, updated: usize, desired: usize) -> String {
    match existing > desired {
        true => format!("{} instances are ending", existing - desired),
        false => format!(
            "{ready} of {desired} instances are ready, {updated} of {desired} have the newest template"
        ),
    }
}

/// Whether the cause often ends by itself within seconds.
fn is_brief(reason: &str) -> bool {
    [reasons::PENDING_QUOTA, reasons::QUOTA_NOT_GRANTED, reasons::NO_MATCHING_LOCATION].contains(&reason)
}

/// The reason of an instance that is not ready.
fn not_ready(instance: &Instance) -> Option<Cause> {
    let ready = conditions::find(&instance.status.as_ref()?.conditions, READY)?;
    (ready.status != "True").then(|| Cause::of(instance.name(), ready))
}

/// The newest change of an instance: its creation, its deletion, or the transition of a condition.
fn last_change(instance: &Instance) -> Option<Timestamp> {
    let meta = &instance.metadata;
    let conditions = instance.status.iter().flat_map(|status| &status.conditions);
    let transitions = conditions.map(|condition| condition.last_transition_time.0);
    let own = [&meta.creation_timestamp, &meta.deletion_timestamp];
    own.into_iter().flatten().map(|time| time.0).chain(transitions).max()
}

/// How long a rollout has made no progress.
struct ProgressClock<'a> {
    elapsed: Duration,
    /// The reason for which this generation is stuck already, while nothing has changed since.
    stuck: Option<&'a str>,
}

impl<'a> ProgressClock<'a> {
    fn read(
        existing: &'a [Condition],
        generation: Option<i64>,
        changed: Option<Timestamp>,
        now: &Time,
    ) -> Self {
        let marker = |kind| {
            conditions::find(existing, kind)
                .filter(|condition| condition.status == "True" && condition.observed_generation == generation)
        };
        // Without the marker the rollout starts now. Instances of long ago are no progress of it.
        let started = marker(RECONCILING).map_or(now.0, |reconciling| reconciling.last_transition_time.0);
        let last = changed.map_or(started, |changed| changed.max(started));
        let elapsed = now.0.duration_since(last).try_into().unwrap_or(Duration::ZERO);
        let unchanged =
            |stalled: &&Condition| changed.is_none_or(|changed| changed < stalled.last_transition_time.0);
        let stuck = marker(STALLED).filter(unchanged).map(|stalled| stalled.reason.as_str());
        ProgressClock { elapsed, stuck }
    }

    /// The time without progress that counts for a reason. A rollout that is stuck for it stays so.
    fn elapsed_for(&self, reason: &str) -> Duration {
        if self.stuck == Some(reason) { Duration::MAX } else { self.elapsed }
    }
}

fn placed(place: &str, message: &str) -> String {
    match message {
        "" => place.to_owned(),
        message => format!("{place}: {message}"),
    }
}

#[cfg(test)]
mod tests;
