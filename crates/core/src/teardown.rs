//! Teardown: how a deployment that its project has deleted leaves the hub and its cells.
//!
//! The finalizer of the project's deployment is removed when nothing of it is left anywhere:
//!
//! 1. The hub copy is *marked* with the time ([`WITHDRAWN_AT`]). The federation carries the mark to the cell,
//!    which deletes all instances and reports the rest in the condition [`WITHDRAWN`].
//! 2. When the cell reports that the instances have ended, the hub copy is deleted.
//! 3. The federation deletes the binding and the Works. A Work exists until its member has accepted the
//!    deletion (Karmada) or has confirmed it (embedded federation).
//!
//! Without a Work nothing reached a cell, and step 1 is left out.
//!
//! A cell whose controllers are stopped does not report. It must not hold a deletion, while a cell whose API
//! server does not answer must: its instances may still run. What the hub knows decides which it is:
//!
//! | Cluster | Work `Applied` | report of the cell | decision |
//! |---|---|---|---|
//! | any | any | ended | delete the copy |
//! | not ready | any | ending or none | wait: `CellUnreachable` |
//! | ready | any | ending for [`ENDING_LIMIT`] | delete the copy, unconfirmed |
//! | ready | any | ending | wait: `InstancesEnding` |
//! | ready | the Work lacks the mark | none for [`ENDING_LIMIT`] | delete the copy, unconfirmed |
//! | ready | the Work lacks the mark | none | wait: `AwaitingHub` |
//! | ready | True, or unknown | none for [`REPORT_LIMIT`] | delete the copy, unconfirmed |
//! | ready | False | none for [`APPLY_LIMIT`] | delete the copy, unconfirmed |
//! | ready | any | none | wait: `AwaitingCell` |
//!
//! The time without a report counts from the mark, from when the Cluster became ready, from when `Applied`
//! changed, or from when the spec of the Work changed, whichever is last: a cell that returns, and a
//! federation, has the whole time again. A Work lacks the mark while the federation is stopped. A Cluster
//! that does not exist, or is being deleted, counts as ready: its Works go with it.
//!
//! A cell that never returns is let go by an explicit act: the annotation `abandon` names its city. The Work
//! stays on the hub, and the federation deletes the copy in the cell when the cell returns.

use std::time::Duration;

use polis_api::ObjectExt;
use polis_api::annotations::{ABANDON, WITHDRAWN_AT};
use polis_api::compute::{Instance, Workload, WorkloadDeployment, WorkloadDeploymentStatus};
use polis_api::conditions::karmada::APPLIED;
use polis_api::conditions::{READY, WITHDRAWN};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use polis_api::k8s_openapi::jiff::Timestamp;
use polis_api::karmada::names::cluster_of_execution_namespace;
use polis_api::karmada::{Cluster, Work};
use polis_api::labels::TOPOLOGY_CITY_CODE;
use polis_api::reasons::{
    AWAITING_CELL, AWAITING_HUB, CELL_UNREACHABLE, HUB_UNREACHABLE, INSTANCES_ENDED, INSTANCES_ENDING,
};

use crate::conditions::{self, DesiredCondition};
use crate::{Time, canonical, metadata};

/// How long a reachable cell may take to report on a mark. Controllers that run report within a second.
pub const REPORT_LIMIT: Duration = Duration::from_secs(10);
/// The same while the federation reports that it cannot apply the mark. Karmada needs up to 40 s to notice
/// that a member does not respond, and as long to apply again after it has returned.
pub const APPLY_LIMIT: Duration = Duration::from_secs(90);
/// How long a cell may report ending instances. Longer than the time that a program gets to stop; a cell
/// whose controllers stop in between must not hold the deletion for ever.
pub const ENDING_LIMIT: Duration = Duration::from_secs(300);
/// A deletion that takes no longer than this is not reported in a condition: that would cost two writes for
/// a state that is gone before a person reads it.
pub const REPORT_AFTER: Duration = Duration::from_secs(2);
/// A deployment that is deleted this soon after its creation may have reached the federation only just now.
pub const YOUNG: Duration = Duration::from_secs(10);
/// The federation may create a Work for a young deployment up to this long after the deletion. Karmada has
/// left such a Work behind, without its binding, in one of 240 cases.
pub const PROPAGATION_TIME: Duration = Duration::from_secs(2);
/// The shortest and the longest interval between two uncached reads of the Works that are left.
const RECHECK: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(10));

/// What the hub has of a deployment that its project has deleted.
#[derive(Clone, Copy, Debug)]
pub struct TeardownInput<'a> {
    /// The hub copy.
    pub copy: Option<&'a WorkloadDeployment>,
    /// Whether a binding of the copy exists.
    pub bound: bool,
    /// The Works of the copy.
    pub works: &'a [Work],
    /// The members of the hub.
    pub clusters: &'a [Cluster],
    /// Whether the deletion no longer waits for the cell.
    pub abandoned: bool,
}

/// The next step of a teardown.
#[derive(Clone, Debug, PartialEq)]
pub enum TeardownAction {
    /// Write the marked hub copy.
    Mark(Box<WorkloadDeployment>),
    /// Delete the hub copy. `unconfirmed` if the cell has not reported that its instances have ended.
    DeleteCopy {
        /// Why the copy is deleted before the cell has confirmed.
        unconfirmed: Option<String>,
    },
    /// Delete the Works that are not being deleted: they have no binding any more, so nothing else deletes
    /// them. Then wait.
    DeleteWorks(Waiting),
    /// Wait.
    Wait(Waiting),
    /// Nothing is left, apart from the Works of abandoned cells: remove the finalizer.
    Done {
        /// Members whose Works are left.
        left_behind: Vec<String>,
    },
}

/// What a teardown waits for.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiting {
    /// The reason of the condition `Withdrawn`.
    pub reason: &'static str,
    /// What is left, and where.
    pub message: String,
    /// When to decide again; none if an event of the hub follows.
    pub recheck: Option<Duration>,
}

impl Waiting {
    /// The condition `Withdrawn` of the project's deployment.
    pub fn condition(&self) -> DesiredCondition {
        DesiredCondition::new_false(WITHDRAWN, self.reason, self.message.clone())
    }

    fn at_most(mut self, recheck: Duration) -> Self {
        self.recheck = Some(self.recheck.map_or(recheck, |known| known.min(recheck)));
        self
    }
}

/// Whether a deployment of a cell has to end its instances.
pub fn requested(deployment: &WorkloadDeployment) -> bool {
    deployment.annotation(WITHDRAWN_AT).is_some()
}

/// Whether the city is among the abandoned ones, by the annotation of the deployment or of its workload.
pub fn is_abandoned(deployment: &WorkloadDeployment, workload: Option<&Workload>) -> bool {
    let names_city = |list: &str| {
        list.split(',').any(|city| city.trim().eq_ignore_ascii_case(deployment.spec.city_code.trim()))
    };
    deployment.annotation(ABANDON).is_some_and(names_city)
        || workload
            .filter(|workload| workload.uid() == deployment.spec.workload_ref.uid && workload.is_deleting())
            .and_then(|workload| workload.annotation(ABANDON))
            .is_some_and(names_city)
}

/// Whether the decision needs the Works of the copy: while the copy is cached and the cell reports in time it
/// does not.
pub fn needs_works(copy: Option<&WorkloadDeployment>, clusters: &[Cluster], now: &Time) -> bool {
    let Some(copy) = copy else { return true };
    let Some(marked) = marked_at(copy) else { return true };
    let of_city =
        |cluster: &&Cluster| cluster.label(TOPOLOGY_CITY_CODE) == Some(copy.spec.city_code.as_str());
    let unready = clusters.iter().filter(of_city).any(|cluster| !is_ready(cluster));
    match report(copy) {
        Report::Ended => false,
        Report::Ending(_) => unready,
        Report::None => unready || elapsed(marked, now) >= REPORT_LIMIT,
    }
}

/// Plans the teardown of a project's deployment that is being deleted.
pub fn plan(source: &WorkloadDeployment, input: &TeardownInput, now: &Time) -> TeardownAction {
    match input.copy {
        Some(copy) if copy.is_deleting() => TeardownAction::Wait(Waiting {
            reason: AWAITING_HUB,
            message: format!(
                "the hub is deleting its copy, which has the finalizers {}",
                finalizers(copy).join(", ")
            ),
            recheck: None, // the deletion requeues the key
        }),
        Some(copy) => plan_copy(copy, input, now),
        None => plan_rest(source, input, now),
    }
}

/// The members with Works of the copy that leave the federation: their Cluster is missing or being deleted,
/// and the federation drops the Works without the member.
pub fn leaving<'a>(works: &'a [Work], clusters: &[Cluster]) -> Vec<&'a str> {
    let leaves = |name: &&str| {
        clusters.iter().find(|cluster| cluster.name() == *name).is_none_or(ObjectExt::is_deleting)
    };
    works.iter().filter_map(|work| cluster_of_execution_namespace(work.namespace())).filter(leaves).collect()
}

/// What a deletion waits for while requests to the hub fail.
pub fn hub_unreachable(error: &dyn std::fmt::Display) -> Waiting {
    let message = format!("the hub does not respond, so its copy may still be there: {error}");
    Waiting { reason: HUB_UNREACHABLE, message, recheck: None }
}

/// How long until a deletion that waits is reported in a condition; none if that is due now.
pub fn report_after(source: &WorkloadDeployment, now: &Time) -> Option<Duration> {
    let deleted = source.metadata.deletion_timestamp.as_ref()?;
    Some(REPORT_AFTER.saturating_sub(elapsed(deleted.0, now))).filter(|left| !left.is_zero())
}

/// The status of a project's deployment that waits for its teardown: the counters that the hub copy has,
/// and the condition. None if it is up to date.
pub fn status(
    source: &WorkloadDeployment,
    copy: Option<&WorkloadDeployment>,
    waiting: &Waiting,
    now: &Time,
) -> Option<WorkloadDeploymentStatus> {
    let existing = source.status.clone().unwrap_or_default();
    let mut status = copy.and_then(|copy| copy.status.clone()).unwrap_or_else(|| existing.clone());
    status.observed_generation = None;
    status.conditions.retain(|condition| condition.type_ != WITHDRAWN);
    for condition in &mut status.conditions {
        condition.observed_generation = None;
    }
    status.conditions.extend(conditions::find(&existing.conditions, WITHDRAWN).cloned());
    conditions::set(&mut status.conditions, &waiting.condition(), None, now);
    (!canonical::same(&existing, &status)).then_some(status)
}

/// The condition of a Workload that is being deleted: what its deployments wait for. None while no
/// deployment reports anything.
pub fn of_workload(deployments: &[WorkloadDeployment]) -> Option<DesiredCondition> {
    let mut waiting: Vec<_> = deployments
        .iter()
        .filter_map(|deployment| {
            let withdrawn = conditions::find(&deployment.status.as_ref()?.conditions, WITHDRAWN)?;
            (withdrawn.status != "True").then_some((deployment.name(), withdrawn))
        })
        .collect();
    waiting.sort_by_key(|(name, _)| *name);
    // A cell or hub that does not respond needs a person; the others pass.
    let needs_a_person = |reason: &str| matches!(reason, CELL_UNREACHABLE | HUB_UNREACHABLE);
    let worst = waiting.iter().find(|(_, it)| needs_a_person(&it.reason)).or(waiting.first())?;
    let message: Vec<_> = waiting.iter().map(|(_, withdrawn)| withdrawn.message.as_str()).collect();
    Some(DesiredCondition::new_false(WITHDRAWN, worst.1.reason.clone(), message.join("; ")))
}

/// The condition by which a cell reports on a marked deployment; none without a mark. `left` are the
/// instances of the deployment that exist, from an uncached read if there are none.
pub fn cell_report(deployment: &WorkloadDeployment, left: &[&Instance]) -> Option<DesiredCondition> {
    if !requested(deployment) {
        return None;
    }
    if left.is_empty() {
        return Some(DesiredCondition::new_true(WITHDRAWN, INSTANCES_ENDED, "every instance has ended"));
    }
    let message = match left {
        [only] => format!("1 instance is ending: {}", only.name()),
        [first, .., last] => {
            format!("{} instances are ending: {} to {}", left.len(), first.name(), last.name())
        }
        [] => unreachable!("the list is not empty"),
    };
    Some(DesiredCondition::new_false(WITHDRAWN, INSTANCES_ENDING, message))
}

/// The hub copy exists: its instances end first.
fn plan_copy(copy: &WorkloadDeployment, input: &TeardownInput, now: &Time) -> TeardownAction {
    let delete = |unconfirmed: Option<String>| TeardownAction::DeleteCopy { unconfirmed };
    let Some(marked) = marked_at(copy) else {
        if input.works.is_empty() || input.abandoned {
            return delete(None);
        }
        let mut marked = copy.clone();
        let mark = metadata::map([(WITHDRAWN_AT, now.0.to_string().as_str())]);
        metadata::merge_annotations(&mut marked.metadata, &mark, &[]);
        return TeardownAction::Mark(Box::new(marked));
    };
    let report = report(copy);
    if input.abandoned || matches!(report, Report::Ended) {
        return delete(None);
    }
    let members: Vec<Member> = input.works.iter().map(|work| Member::of(work, input.clusters)).collect();
    if let Some(member) = members.iter().find(|member| member.unready) {
        return TeardownAction::Wait(member.unreachable().at_most(RECHECK.1));
    }
    let city = &copy.spec.city_code;
    let (since, limit, waiting) = match report {
        Report::Ending(condition) => {
            let message = format!("{city}: {}", condition.message);
            (Some(condition.last_transition_time.0), ENDING_LIMIT, (INSTANCES_ENDING, message))
        }
        _ if members.iter().any(|member| member.marked == Some(false)) => {
            let message = "the federation has not brought the deletion to the cell yet".to_owned();
            (None, ENDING_LIMIT, (AWAITING_HUB, message))
        }
        _ => {
            let applied = members.iter().all(|member| member.applied != Some(false));
            let since = members.iter().filter_map(|member| member.since).max();
            let limit = if applied { REPORT_LIMIT } else { APPLY_LIMIT };
            (since, limit, (AWAITING_CELL, format!("{city}: the cell has not reported on its instances yet")))
        }
    };
    let left = limit.saturating_sub(elapsed(since.map_or(marked, |since| since.max(marked)), now));
    if left.is_zero() {
        return delete(Some(format!("{}; the deletion continues without it", waiting.1)));
    }
    let (reason, message) = waiting;
    // Works are not watched.
    let recheck = if reason == AWAITING_HUB { left.min(RECHECK.1) } else { left };
    TeardownAction::Wait(Waiting { reason, message, recheck: Some(recheck) })
}

/// The hub copy is gone: its binding and Works follow.
fn plan_rest(source: &WorkloadDeployment, input: &TeardownInput, now: &Time) -> TeardownAction {
    let members: Vec<Member> = input.works.iter().map(|work| Member::of(work, input.clusters)).collect();
    if input.abandoned {
        let left_behind = members.into_iter().map(|member| member.name).collect();
        return TeardownAction::Done { left_behind };
    }
    let deleted = source.metadata.deletion_timestamp.as_ref().map_or(now.0, |time| time.0);
    let since = elapsed(deleted, now);
    let recheck = (since / 4).clamp(RECHECK.0, RECHECK.1);
    if input.bound {
        let message = "the federation has not deleted its binding on the hub yet".to_owned();
        return TeardownAction::Wait(Waiting { reason: AWAITING_HUB, message, recheck: Some(recheck) });
    }
    let Some(member) = members.iter().find(|member| member.unready).or(members.first()) else {
        let created = source.metadata.creation_timestamp.as_ref().map_or(deleted, |time| time.0);
        let young = Timestamp::duration_since(deleted, created).unsigned_abs() < YOUNG;
        return match young && since < PROPAGATION_TIME {
            true => TeardownAction::Wait(Waiting {
                reason: AWAITING_HUB,
                message: "the federation may still be propagating it".to_owned(),
                recheck: Some(PROPAGATION_TIME - since),
            }),
            false => TeardownAction::Done { left_behind: Vec::new() },
        };
    };
    let waiting = match member.unready {
        true => member.unreachable(),
        false => Waiting {
            reason: AWAITING_CELL,
            message: format!("cell {} has not confirmed the deletion yet", member.name),
            recheck: None,
        },
    }
    .at_most(recheck);
    match input.works.iter().all(ObjectExt::is_deleting) {
        true => TeardownAction::Wait(waiting),
        false => TeardownAction::DeleteWorks(waiting),
    }
}

/// The member that a Work belongs to.
struct Member {
    name: String,
    /// Its Cluster says that it is not ready, or does not know.
    unready: bool,
    /// Whether the member has the object; none if that is not known.
    applied: Option<bool>,
    /// Whether the Work has the mark; none if it has no copy of the deployment.
    marked: Option<bool>,
    /// When its readiness, `Applied` or the spec of its Work changed last.
    since: Option<Timestamp>,
}

impl Member {
    fn of(work: &Work, clusters: &[Cluster]) -> Member {
        let name = cluster_of_execution_namespace(work.namespace()).unwrap_or(work.namespace());
        let cluster = clusters.iter().find(|cluster| cluster.name() == name);
        let ready = cluster.and_then(ready_condition);
        let applied = work.status.as_ref().and_then(|status| conditions::find(&status.conditions, APPLIED));
        Member {
            name: name.to_owned(),
            unready: cluster.is_some_and(|cluster| !is_ready(cluster)),
            applied: applied.map(|applied| applied.status != "False"),
            marked: has_mark(work),
            since: [ready, applied]
                .into_iter()
                .flatten()
                .map(|it| it.last_transition_time.0)
                .chain(spec_changed_at(work))
                .max(),
        }
    }

    fn unreachable(&self) -> Waiting {
        Waiting {
            reason: CELL_UNREACHABLE,
            message: format!("cell {} does not respond to the hub; its instances may still run", self.name),
            recheck: None,
        }
    }
}

/// Whether the copy of the deployment in a Work has the mark.
fn has_mark(work: &Work) -> Option<bool> {
    let manifests = &work.spec.workload.manifests;
    let copy = manifests.iter().find(|manifest| manifest["kind"] == "WorkloadDeployment")?;
    Some(copy["metadata"]["annotations"][WITHDRAWN_AT].is_string())
}

/// The last write to a Work, apart from its status.
fn spec_changed_at(work: &Work) -> Option<Timestamp> {
    let writes = work.metadata.managed_fields.iter().flatten();
    let of_spec = writes.filter(|write| write.subresource.as_deref().unwrap_or_default() != "status");
    of_spec.filter_map(|write| Some(write.time.as_ref()?.0)).max()
}

/// What the cell reports about the instances of a marked copy.
enum Report<'a> {
    None,
    Ending(&'a Condition),
    Ended,
}

fn report(copy: &WorkloadDeployment) -> Report<'_> {
    let reported = copy.status.as_ref().and_then(|status| conditions::find(&status.conditions, WITHDRAWN));
    match reported {
        None => Report::None,
        Some(condition) if condition.status == "True" => Report::Ended,
        Some(condition) => Report::Ending(condition),
    }
}

/// When the copy was marked. A mark that is no time counts from 1970, so its limits have passed.
fn marked_at(copy: &WorkloadDeployment) -> Option<Timestamp> {
    copy.annotation(WITHDRAWN_AT).map(|at| at.parse().unwrap_or(Timestamp::UNIX_EPOCH))
}

/// A Cluster that is being deleted takes its Works along, ready or not.
fn is_ready(cluster: &Cluster) -> bool {
    cluster.is_deleting() || ready_condition(cluster).is_none_or(|ready| ready.status == "True")
}

fn ready_condition(cluster: &Cluster) -> Option<&Condition> {
    cluster.status.as_ref().and_then(|status| conditions::find(&status.conditions, READY))
}

fn finalizers(copy: &WorkloadDeployment) -> &[String] {
    copy.metadata.finalizers.as_deref().unwrap_or_default()
}

/// The time since then; zero for a time in the future.
fn elapsed(since: Timestamp, now: &Time) -> Duration {
    Duration::try_from(now.0.duration_since(since)).unwrap_or_default()
}

#[cfg(test)]
mod tests;
