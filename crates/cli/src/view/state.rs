//! The state of an instance, deployment or workload in one word, from its deciding condition.

use jiff::Timestamp;
use polis_api::compute::{Instance, Workload};
use polis_api::conditions::{AVAILABLE, READY};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use polis_api::{ObjectExt, labels};
use polis_core::conditions;

use super::{Severity, reasons};

/// State of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectState {
    /// The STATE column: `ready`, `starting`, `progressing`, `blocked`, `suspended` or `stopping`.
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
/// first ready instance, so it is `progressing` until all are ready, and `blocked` if one of them is.
pub fn of_workload(workload: &Workload, instances: &[Instance]) -> ObjectState {
    let status = workload.status.clone().unwrap_or_default();
    let mut own =
        of_condition(&workload.metadata, conditions::find(&status.conditions, AVAILABLE), "starting");
    if own.word == "stopping" || own.word == "blocked" {
        return own;
    }
    let uid = workload.uid();
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
    use crate::view::testing::{at, mk_blocked, mk_instance, mk_ready, mk_starting, mk_workload};

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
        assert_eq!(of_workload(&workload, &[ready.clone(), starting]).word, "progressing");
        let crashing = mk_blocked(mk_instance("dfw", 1), "InstanceCrashing", "exit 1");
        let state = of_workload(&workload, &[ready.clone(), crashing.clone()]);
        assert_eq!((state.word, state.reason.as_str()), ("blocked", "InstanceCrashing"));
        workload.status.as_mut().unwrap().ready_replicas = 2;
        assert_eq!(of_workload(&workload, &[ready]).word, "ready");
        workload.metadata.uid = Some("another".into());
        assert_eq!(of_workload(&workload, &[crashing]).word, "ready", "the instance of another workload");
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
