//! The state of an instance, deployment or workload in one word, from its deciding condition.

use jiff::Timestamp;
use polis_api::compute::{Instance, Workload, WorkloadDeployment};
use polis_api::conditions::{AVAILABLE, READY};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use polis_api::{ObjectExt, labels};
use polis_core::{conditions, contact};

use super::{Severity, age, reasons, snapshot};

/// The word for a state that is not known, because contact with the cell is lost.
const UNKNOWN: &str = "unknown";

/// State of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectState {
    /// The STATE column: `ready`, `starting`, `progressing`, `blocked`, `suspended`, `stopping` or `unknown`.
    pub word: &'static str,
    /// The severity of the state.
    pub severity: Severity,
    /// The reason of the condition.
    pub reason: String,
    /// The message of the condition.
    pub message: String,
    /// Since when.
    pub since: Option<Timestamp>,
}

impl ObjectState {
    /// The text of the STATE column. An unknown state has the age of the last word.
    pub fn label(&self, now: Timestamp) -> String {
        match self.since.filter(|_| self.word == UNKNOWN) {
            Some(since) => format!("{UNKNOWN} for {}", age::since(since, now)),
            None => self.word.to_owned(),
        }
    }
}

/// The state of a deployment with whose cell contact is lost: nothing that the project shows of it is
/// current. It began with the last word.
pub fn of_lost_contact(deployment: &WorkloadDeployment) -> Option<ObjectState> {
    let lost = contact::lost(&deployment.status.as_ref()?.conditions)?;
    (!deployment.is_deleting()).then(|| of_condition(&deployment.metadata, Some(lost), UNKNOWN))
}

/// The state of an instance, which is not known if contact with its cell is lost.
pub fn of_known_instance(instance: &Instance, deployments: &[WorkloadDeployment]) -> ObjectState {
    let deployment = deployments.iter().find(|it| it.name() == snapshot::deployment_of(instance));
    deployment.and_then(of_lost_contact).unwrap_or_else(|| of_instance(instance))
}

/// The state of an instance.
pub fn of_instance(instance: &Instance) -> ObjectState {
    let status = instance.status.clone().unwrap_or_default();
    let mut state = of_condition(&instance.metadata, conditions::find(&status.conditions, READY), "starting");
    if status.suspended == Some(true) && state.word != "stopping" {
        (state.word, state.severity) = ("suspended", Severity::Progressing);
    }
    state
}

/// The state of a workload: the worst of its own and those of its instances. A workload is available with its
/// first ready instance, so it is `progressing` until all are ready, `blocked` if one of them is, and
/// `unknown` if contact with one of its cells is lost.
pub fn of_workload(
    workload: &Workload,
    deployments: &[WorkloadDeployment],
    instances: &[Instance],
) -> ObjectState {
    let status = workload.status.clone().unwrap_or_default();
    let mut own =
        of_condition(&workload.metadata, conditions::find(&status.conditions, AVAILABLE), "starting");
    if own.word == "stopping" || own.word == "blocked" {
        return own;
    }
    let uid = workload.uid();
    let owned = deployments.iter().filter(|deployment| deployment.spec.workload_ref.uid == uid);
    if let Some(lost) = owned.filter_map(of_lost_contact).min_by_key(|lost| lost.since) {
        return lost;
    }
    let mine = instances.iter().filter(|instance| instance.label(labels::WORKLOAD_UID) == Some(uid));
    let blocked = mine.map(of_instance).find(|state| state.severity == Severity::Blocked);
    if let Some(blocked) = blocked {
        return blocked;
    }
    if own.word == "ready" && status.ready_replicas < status.desired_replicas {
        (own.word, own.severity) = ("progressing", Severity::Progressing);
    }
    own
}

/// The state of an object with one deciding condition. `pending` is the word for a state that is expected to
/// change.
pub fn of_condition(meta: &ObjectMeta, condition: Option<&Condition>, pending: &'static str) -> ObjectState {
    let (reason, message) = condition.map(|c| (c.reason.clone(), c.message.clone())).unwrap_or_default();
    let since = since(meta, condition);
    let (word, severity) = match condition {
        _ if meta.deletion_timestamp.is_some() => ("stopping", Severity::Progressing),
        Some(condition) if condition.status == "True" => ("ready", Severity::Ok),
        _ if pending == UNKNOWN => (UNKNOWN, Severity::Blocked),
        _ if reasons::severity(&reason) == Severity::Blocked => ("blocked", Severity::Blocked),
        _ => (pending, Severity::Progressing),
    };
    let since = if word == "stopping" { meta.deletion_timestamp.as_ref().map(|time| time.0) } else { since };
    ObjectState { word, severity, reason, message, since }
}

/// Since when a condition has its status. A condition that never changed has the year 1970 of the schema;
/// then the creation time of the object counts.
pub fn since(meta: &ObjectMeta, condition: Option<&Condition>) -> Option<Timestamp> {
    let made = meta.creation_timestamp.as_ref().map(|time| time.0);
    made.max(condition.map(|condition| condition.last_transition_time.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::testing::{
        at, mk_blocked, mk_deployment, mk_instance, mk_ready, mk_silent, mk_starting, mk_workload, now,
    };

    #[test]
    fn an_instance_is_ready_starting_blocked_suspended_or_stopping() {
        let mut suspended = mk_ready(mk_instance("dfw", 0));
        suspended.status.as_mut().unwrap().suspended = Some(true);
        let mut stopping = mk_ready(mk_instance("dfw", 0));
        stopping.metadata.deletion_timestamp = Some(at(50));
        let table = [
            (mk_instance("dfw", 0), "starting"),
            (mk_starting(mk_instance("dfw", 0)), "starting"),
            (mk_ready(mk_instance("dfw", 0)), "ready"),
            (mk_blocked(mk_instance("dfw", 0), "ImageUnavailable", "no"), "blocked"),
            (suspended, "suspended"),
            (stopping, "stopping"),
        ];
        for (instance, word) in table {
            assert_eq!(of_instance(&instance).word, word, "{instance:?}");
        }
    }

    #[test]
    fn a_workload_is_as_bad_as_its_worst_instance() {
        let mut workload = mk_workload(&["dfw"], 2);
        let status = workload.status.as_mut().unwrap();
        (status.ready_replicas, status.desired_replicas) = (1, 2);
        let (ready, starting) = (mk_ready(mk_instance("dfw", 0)), mk_starting(mk_instance("dfw", 1)));
        assert_eq!(of_workload(&workload, &[], &[ready.clone(), starting]).word, "progressing");
        let crashing = mk_blocked(mk_instance("dfw", 1), "InstanceCrashing", "exit 1");
        let state = of_workload(&workload, &[], &[ready.clone(), crashing.clone()]);
        assert_eq!((state.word, state.reason.as_str()), ("blocked", "InstanceCrashing"));
        workload.status.as_mut().unwrap().ready_replicas = 2;
        assert_eq!(of_workload(&workload, &[], &[ready]).word, "ready");
        workload.metadata.uid = Some("another".into());
        assert_eq!(
            of_workload(&workload, &[], &[crashing]).word,
            "ready",
            "the instance of another workload"
        );
    }

    #[test]
    fn a_state_without_contact_is_unknown_since_the_last_word() {
        let silent = mk_silent(mk_deployment("dfw", 1), 60);
        let (workload, instance) = (mk_workload(&["dfw"], 1), mk_ready(mk_instance("dfw", 0)));
        let (silent, instances) = ([silent], [instance]);
        for state in [of_known_instance(&instances[0], &silent), of_workload(&workload, &silent, &instances)]
        {
            assert_eq!(
                (state.word, state.severity, state.reason.as_str()),
                ("unknown", Severity::Blocked, "CellSilent")
            );
            assert_eq!(state.label(now(300)), "unknown for 4m");
        }
        let heard = [mk_deployment("dfw", 1)];
        assert_eq!(of_known_instance(&instances[0], &heard).label(now(300)), "ready");
    }

    #[test]
    fn a_condition_of_1970_has_the_age_of_its_object() {
        let instance = mk_instance("dfw", 0);
        let mut condition = mk_starting(instance.clone()).status.unwrap().conditions[0].clone();
        condition.last_transition_time.0 = Timestamp::UNIX_EPOCH;
        assert_eq!(
            since(&instance.metadata, Some(&condition)),
            instance.metadata.creation_timestamp.map(|time| time.0)
        );
    }
}
