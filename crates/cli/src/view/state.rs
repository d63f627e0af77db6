//! The state of an instance, a deployment or a workload in one word, with the reason behind it.

use jiff::Timestamp;
use polis_api::compute::Instance;
use polis_api::conditions::READY;
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use polis_core::{conditions, owner};

use super::{Mood, reasons};

/// A state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// One word.
    pub word: &'static str,
    /// How well that is.
    pub mood: Mood,
    /// The reason that the object gives.
    pub reason: String,
    /// The sentence that goes with it.
    pub message: String,
    /// Since when.
    pub since: Option<Timestamp>,
}

/// The state of an instance.
pub fn of_instance(instance: &Instance) -> State {
    let status = instance.status.clone().unwrap_or_default();
    let mut state = judged(&instance.metadata, conditions::find(&status.conditions, READY), "starting");
    if status.suspended == Some(true) && state.word != "stopping" {
        (state.word, state.mood) = ("suspended", Mood::Moving);
    }
    state
}

/// The state of something with one deciding condition. `moving` is the word for not yet.
pub fn judged(meta: &ObjectMeta, condition: Option<&Condition>, moving: &'static str) -> State {
    let (reason, message) = condition.map(|c| (c.reason.clone(), c.message.clone())).unwrap_or_default();
    let since = since(meta, condition);
    let (word, mood) = match condition {
        _ if owner::is_deleting(meta) => ("stopping", Mood::Moving),
        Some(condition) if condition.status == "True" => ("ready", Mood::Good),
        _ if reasons::mood(&reason) == Mood::Stuck => ("blocked", Mood::Stuck),
        _ => (moving, Mood::Moving),
    };
    let since = if word == "stopping" { meta.deletion_timestamp.as_ref().map(|time| time.0) } else { since };
    State { word, mood, reason, message, since }
}

/// Since when a condition is as it is. A condition never changed since the object was made carries the schema's 1970:
/// then it is the object's age that counts.
pub fn since(meta: &ObjectMeta, condition: Option<&Condition>) -> Option<Timestamp> {
    let made = meta.creation_timestamp.as_ref().map(|time| time.0);
    made.max(condition.map(|condition| condition.last_transition_time.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::testing::{at, mk_blocked, mk_instance, mk_ready, mk_starting};

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
    fn a_condition_of_1970_is_as_old_as_its_object() {
        let instance = mk_instance("dfw", 0);
        let mut condition = mk_starting(instance.clone()).status.unwrap().conditions[0].clone();
        condition.last_transition_time.0 = Timestamp::UNIX_EPOCH;
        assert_eq!(
            since(&instance.metadata, Some(&condition)),
            instance.metadata.creation_timestamp.map(|time| time.0)
        );
    }
}
