//! Contact: whether the hub has heard of the cell of a deployment, and what lost contact does to a status.
//!
//! There is evidence of two kinds: the [`heartbeat`] of the cell's controllers, and the condition `Ready` of
//! the Cluster, by which the federation says whether it reaches the API server of the cell. Each is enough:
//! without the controllers the copies of the Instances are not current, and without the API server the status
//! of the deployment is not. Of a cell without a heartbeat, of an earlier version, only the Cluster counts.
//!
//! The status of a deployment whose cell is silent keeps what the cell has reported last. Its conditions are
//! Unknown since the last word. So they are a function of the evidence: nothing is written while it stays.

use std::time::Duration;

use polis_api::ObjectExt;
use polis_api::compute::{WorkloadDeployment, WorkloadDeploymentStatus};
use polis_api::conditions::{AVAILABLE, READY};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use polis_api::k8s_openapi::jiff::Timestamp;
use polis_api::karmada::Cluster;
use polis_api::reasons::{CELL_SILENT, HUB_UNREACHABLE};

use crate::conditions::{self, DesiredCondition};
use crate::heartbeat::{self, Heartbeat, SILENCE_LIMIT};
use crate::rollout::{self, Cause, RolloutState};
use crate::{Time, canonical};

/// After the hub was away, or after a start, a heartbeat may be old only because none could arrive. Every
/// cell renews its Lease within this time.
pub const RENEWAL_WINDOW: Duration = Duration::from_secs(70);

/// Contact that is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Silence {
    /// The reason of the conditions.
    pub reason: &'static str,
    /// What is silent.
    pub message: String,
    /// The time of the last word.
    pub since: Timestamp,
}

/// The contact with the cell of a deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contact {
    /// What is known of the cell is current.
    Heard {
        /// When to decide again if no evidence arrives until then; none if new evidence decides.
        recheck: Option<Duration>,
    },
    /// It is not.
    Silent(Silence),
}

/// What is known of the cells of the city of a deployment.
#[derive(Clone, Copy, Debug)]
pub struct ContactEvidence<'a> {
    /// The heartbeats of the cells of the city.
    pub heartbeats: &'a [Heartbeat],
    /// The members of the city.
    pub clusters: &'a [Cluster],
    /// Since when heartbeats can arrive; none while they cannot, because the hub does not respond.
    pub listening_since: Option<Timestamp>,
}

/// How long a heartbeat may still last; zero if its cell is silent. None while that is not known.
pub fn time_left(heartbeat: &Heartbeat, listening_since: Option<Timestamp>, now: &Time) -> Option<Duration> {
    let left = left(heartbeat.heard_at, now);
    let complete = listening_since.is_some_and(|since| elapsed(since, now) >= RENEWAL_WINDOW);
    (!left.is_zero() || complete).then_some(left)
}

/// Decides on the contact with the cell of a deployment. `copy` is its hub copy, which names the cell, and
/// `source` the deployment of the project: while heartbeats cannot tell, it keeps its state.
pub fn with_cell(
    source: &WorkloadDeployment,
    copy: Option<&WorkloadDeployment>,
    evidence: &ContactEvidence,
    now: &Time,
) -> Contact {
    let cell = copy.and_then(|copy| copy.status.as_ref()?.cell.as_deref());
    match heartbeat_contact(source, cell, evidence, now) {
        Contact::Heard { .. } => cluster_contact(&source.spec.city_code, cell, evidence.clusters, now),
        silent => silent,
    }
}

/// The contact by the heartbeats: a controller tells when that of a cell ends, so nothing is checked again.
fn heartbeat_contact(
    source: &WorkloadDeployment,
    cell: Option<&str>,
    evidence: &ContactEvidence,
    now: &Time,
) -> Contact {
    let heard = Contact::Heard { recheck: None };
    let of_cell = |it: &&Heartbeat| cell.is_none_or(|cell| it.cell == cell);
    let candidates: Vec<_> = evidence.heartbeats.iter().filter(of_cell).collect();
    // Without a cell that has reported, each of the city may be the one.
    let Some(last) = candidates.iter().max_by_key(|heartbeat| heartbeat.heard_at) else { return heard };
    let conditions = source.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let was_silent = lost(conditions).is_some_and(|ready| ready.reason == CELL_SILENT);
    match time_left(last, evidence.listening_since, now) {
        Some(left) if !left.is_zero() => heard,
        None if !was_silent => heard,
        _ => {
            let since = last.heard_at.min(last.renewed_at);
            let message = format!(
                "nothing has been heard of the controllers of cell {} since {}; the numbers are of that time",
                last.cell,
                shown(since)
            );
            Contact::Silent(Silence { reason: CELL_SILENT, message, since })
        }
    }
}

/// The contact by the Cluster of the cell: the one with its name, or all of the city.
fn cluster_contact(city: &str, cell: Option<&str>, clusters: &[Cluster], now: &Time) -> Contact {
    let named = clusters.iter().find(|cluster| Some(cluster.name()) == cell);
    let candidates: Vec<&Cluster> = named.map_or_else(|| clusters.iter().collect(), |named| vec![named]);
    let unready = |cluster: &&Cluster| {
        let ready = conditions::find(&cluster.status.as_ref()?.conditions, READY)?;
        (ready.status != "True" && !cluster.is_deleting()).then_some(ready.last_transition_time.0)
    };
    let since: Option<Vec<Timestamp>> = candidates.iter().map(unready).collect();
    // The city has contact as long as one of its members may be the cell and is ready.
    let Some(since) = since.and_then(|since| since.into_iter().max()) else {
        return Contact::Heard { recheck: None };
    };
    match left(since, now) {
        Duration::ZERO => {
            let cells: Vec<_> = candidates.iter().map(|cluster| cluster.name()).collect();
            let message = format!(
                "the hub has not reached cell {} of city {city} since {}; the numbers are of that time",
                cells.join(", "),
                shown(since)
            );
            Contact::Silent(Silence { reason: CELL_SILENT, message, since })
        }
        left => Contact::Heard { recheck: Some(left) },
    }
}

/// The silence of a hub that does not respond.
pub fn hub_silence(since: Timestamp) -> Silence {
    let message = format!(
        "the hub has not responded since {}; the numbers are of that time and changes wait",
        shown(since)
    );
    Silence { reason: HUB_UNREACHABLE, message, since }
}

/// Makes the conditions of a status Unknown. The numbers stay: they are what is known.
pub fn apply(status: &mut WorkloadDeploymentStatus, silence: &Silence, generation: Option<i64>) {
    let Silence { reason, message, since } = silence;
    let since = Time(*since);
    let available = DesiredCondition::new_unknown(AVAILABLE, *reason, message.clone());
    conditions::set(&mut status.conditions, &available, generation, &since);
    let cause = Cause { reason: (*reason).to_owned(), message: message.clone() };
    rollout::apply(&mut status.conditions, &RolloutState::Unknown(cause), generation, &since);
}

/// The status of a project's deployment while the hub does not respond; none if it is up to date.
pub fn without_hub(source: &WorkloadDeployment, since: Timestamp) -> Option<WorkloadDeploymentStatus> {
    let existing = source.status.clone().unwrap_or_default();
    let known = lost(&existing.conditions).filter(|ready| ready.reason == HUB_UNREACHABLE);
    if known.is_some_and(|ready| ready.last_transition_time.0 <= since) {
        return None; // an earlier process has written it
    }
    let mut status = existing.clone();
    apply(&mut status, &hub_silence(since), existing.observed_generation);
    (!canonical::same(&existing, &status)).then_some(status)
}

/// The status of a project's deployment with contact again, before its cell has reported anything; none if it
/// says nothing of lost contact.
pub fn regained(source: &WorkloadDeployment) -> Option<WorkloadDeploymentStatus> {
    let mut status = source.status.clone()?;
    lost(&status.conditions)?;
    status.conditions.retain(|condition| ![CELL_SILENT, HUB_UNREACHABLE].contains(&&*condition.reason));
    Some(status)
}

/// The condition `Ready` of an object whose state is not known because contact is lost.
pub fn lost(conditions: &[Condition]) -> Option<&Condition> {
    conditions::find(conditions, READY)
        .filter(|ready| ready.status == "Unknown" && [CELL_SILENT, HUB_UNREACHABLE].contains(&&*ready.reason))
}

/// A time for a message, in whole seconds.
fn shown(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn left(since: Timestamp, now: &Time) -> Duration {
    SILENCE_LIMIT.saturating_sub(elapsed(since, now))
}

/// The time since then; zero for a time in the future.
fn elapsed(since: Timestamp, now: &Time) -> Duration {
    Duration::try_from(now.0.duration_since(since)).unwrap_or_default()
}

const _: () =
    assert!(RENEWAL_WINDOW.as_secs() > heartbeat::INTERVAL.as_secs(), "every cell renews once meanwhile");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, deleting, mk_condition, mk_deployment};
    use polis_api::karmada::ClusterStatus;

    fn mk_heartbeat(cell: &str, heard_at: i64) -> Heartbeat {
        let heard_at = at(heard_at).0;
        Heartbeat { city: "dfw".into(), cell: cell.into(), renewed_at: heard_at, heard_at }
    }

    fn mk_cluster(name: &str, ready: &str, since: i64) -> Cluster {
        let mut condition = mk_condition(READY, ready, "x");
        condition.last_transition_time = at(since);
        let mut cluster = Cluster::default();
        cluster.metadata.name = Some(name.into());
        cluster.status = Some(ClusterStatus { conditions: vec![condition], ..Default::default() });
        cluster
    }

    fn mk_copy(cell: Option<&str>) -> WorkloadDeployment {
        let mut copy = mk_deployment("web");
        let cell = cell.map(str::to_owned);
        copy.status = Some(WorkloadDeploymentStatus { cell, ready_replicas: 3, ..Default::default() });
        copy
    }

    fn mk_silent_source() -> WorkloadDeployment {
        let mut source = mk_deployment("web");
        let conditions = vec![mk_condition(READY, "Unknown", CELL_SILENT)];
        source.status = Some(WorkloadDeploymentStatus { conditions, ..Default::default() });
        source
    }

    /// `-` with contact, `N` with contact and a check in N seconds, `silent N` since second N.
    fn decide(cell: Option<&str>, heartbeats: &[Heartbeat], clusters: &[Cluster], now: i64) -> String {
        let evidence = ContactEvidence { heartbeats, clusters, listening_since: Some(at(0).0) };
        shown_contact(&with_cell(&mk_deployment("web"), Some(&mk_copy(cell)), &evidence, &at(now)))
    }

    fn shown_contact(contact: &Contact) -> String {
        match contact {
            Contact::Heard { recheck: None } => "-".into(),
            Contact::Heard { recheck: Some(left) } => left.as_secs().to_string(),
            Contact::Silent(silence) => format!("silent {}", silence.since.as_second()),
        }
    }

    /// What is seen, the cell of the deployment, heartbeats, Clusters, the time, and the expected contact.
    type Case<'a> = (&'a str, Option<&'a str>, &'a [Heartbeat], &'a [Cluster], i64, &'a str);

    #[test]
    fn a_cell_is_silent_without_a_heartbeat_or_a_ready_cluster_for_the_limit() {
        let beat = |at| vec![mk_heartbeat("dfw-1", at)];
        let other = vec![mk_heartbeat("dfw-2", 100)];
        let both = vec![mk_heartbeat("dfw-1", 1000), mk_heartbeat("dfw-2", 1100)];
        let cluster = |name, ready, since| vec![mk_cluster(name, ready, since)];
        let two = vec![mk_cluster("a", "False", 100), mk_cluster("b", "True", 100)];
        let two_down = vec![mk_cluster("a", "False", 100), mk_cluster("b", "Unknown", 900)];
        let gone = vec![deleting(mk_cluster("dfw-1", "False", 100))];
        let table: &[Case<'_>] = &[
            ("no evidence", Some("dfw-1"), &[], &[], 9999, "-"),
            ("a heartbeat in time", Some("dfw-1"), &beat(1000), &[], 1149, "-"),
            ("a missing heartbeat", Some("dfw-1"), &beat(1000), &[], 1150, "silent 1000"),
            ("the heartbeat of another cell", Some("dfw-1"), &other, &[], 9999, "-"),
            ("no cell has reported; one of two is heard", None, &both, &[], 1200, "-"),
            ("no cell has reported; both are silent", None, &both, &[], 1300, "silent 1100"),
            ("a ready Cluster", Some("dfw-1"), &[], &cluster("dfw-1", "True", 0), 9999, "-"),
            ("a Cluster without a status", Some("dfw-1"), &[], &[Cluster::default()], 9999, "-"),
            (
                "a Cluster that is away for a moment",
                Some("dfw-1"),
                &[],
                &cluster("dfw-1", "False", 1000),
                1100,
                "50",
            ),
            (
                "a Cluster that is away",
                Some("dfw-1"),
                &[],
                &cluster("dfw-1", "False", 1000),
                1150,
                "silent 1000",
            ),
            (
                "a Cluster that is not known",
                Some("dfw-1"),
                &[],
                &cluster("dfw-1", "Unknown", 1000),
                1150,
                "silent 1000",
            ),
            (
                "a Cluster of another name",
                Some("dfw-1"),
                &[],
                &cluster("member", "False", 1000),
                1150,
                "silent 1000",
            ),
            ("one Cluster of the city is ready", Some("dfw-1"), &[], &two, 9999, "-"),
            ("the cell's Cluster of two", Some("a"), &[], &two, 9999, "silent 100"),
            ("no Cluster of the city is ready", None, &[], &two_down, 1050, "silent 900"),
            ("a Cluster that leaves", Some("dfw-1"), &[], &gone, 9999, "-"),
            (
                "heartbeats without the API server",
                Some("a"),
                &[mk_heartbeat("a", 9990)],
                &two,
                9999,
                "silent 100",
            ),
            (
                "the API server without heartbeats",
                Some("b"),
                &[mk_heartbeat("b", 100)],
                &two,
                9999,
                "silent 100",
            ),
        ];
        for (what, cell, heartbeats, clusters, now, expected) in table {
            assert_eq!(decide(*cell, heartbeats, clusters, *now), *expected, "{what}");
        }
    }

    #[test]
    fn an_old_heartbeat_decides_only_when_newer_ones_could_have_arrived() {
        let heartbeats = [mk_heartbeat("dfw-1", 1000)];
        for (what, listening_since, was_silent, expected) in [
            ("the hub is away", None, false, "-"),
            ("the hub is away, the cell was silent before", None, true, "silent 1000"),
            ("the hub has just returned", Some(4950), false, "-"),
            ("the process has just started", Some(4950), true, "silent 1000"),
            ("the hub has been back for long enough", Some(4930), false, "silent 1000"),
        ] {
            let source = if was_silent { mk_silent_source() } else { mk_deployment("web") };
            let listening_since = listening_since.map(|since| at(since).0);
            let evidence = ContactEvidence { heartbeats: &heartbeats, clusters: &[], listening_since };
            let contact = with_cell(&source, Some(&mk_copy(Some("dfw-1"))), &evidence, &at(5000));
            assert_eq!(shown_contact(&contact), expected, "{what}");
        }
    }

    #[test]
    fn lost_contact_makes_the_conditions_unknown_and_keeps_the_numbers() {
        let mut status = mk_copy(Some("dfw-1")).status.unwrap();
        status.conditions = vec![mk_condition(AVAILABLE, "True", "x"), mk_condition(READY, "True", "x")];
        let silence = Silence { reason: CELL_SILENT, message: "m".into(), since: at(50).0 };
        apply(&mut status, &silence, Some(4));
        let (mut once, since) = (status.clone(), at(50));
        for (kind, expected) in
            [(AVAILABLE, "Unknown"), (READY, "Unknown"), ("Progressing", "Unknown"), ("Degraded", "True")]
        {
            let condition = conditions::find(&status.conditions, kind).unwrap();
            assert_eq!((&*condition.status, &*condition.reason), (expected, CELL_SILENT), "{kind}");
            assert_eq!(condition.last_transition_time, since, "{kind}");
        }
        assert_eq!(status.ready_replicas, 3);
        apply(&mut once, &silence, Some(4));
        assert_eq!(once, status, "the same evidence gives the same status");
        assert_eq!(lost(&status.conditions).unwrap().reason, CELL_SILENT);
    }

    #[test]
    fn a_deployment_says_once_that_the_hub_is_away_and_forgets_it_with_contact() {
        let mut source = mk_deployment("web");
        source.status = Some(without_hub(&source, at(100).0).unwrap());
        assert_eq!(lost(&source.status.as_ref().unwrap().conditions).unwrap().reason, HUB_UNREACHABLE);
        assert_eq!(without_hub(&source, at(100).0), None);
        assert_eq!(without_hub(&source, at(900).0), None, "another process found out later");
        let regained_status = regained(&source).unwrap();
        assert_eq!(regained_status.conditions, []);
        source.status = Some(regained_status);
        assert_eq!(regained(&source), None);
    }
}
