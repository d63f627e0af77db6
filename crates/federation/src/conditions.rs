//! Conditions: sets the desired condition and keeps the transition time.

use jiff::Timestamp;
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// A desired condition, without its transition time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionUpdate {
    /// Condition type.
    pub kind: &'static str,
    /// `True`, `False` or `Unknown`.
    pub status: &'static str,
    /// Reason, in CamelCase.
    pub reason: &'static str,
    /// Message.
    pub message: String,
}

impl ConditionUpdate {
    /// A condition with status `True` or `False`.
    pub fn new(kind: &'static str, holds: bool, reason: &'static str, message: impl Into<String>) -> Self {
        ConditionUpdate {
            kind,
            status: if holds { "True" } else { "False" },
            reason,
            message: message.into(),
        }
    }

    /// A condition with status `Unknown`.
    pub fn unknown(kind: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        ConditionUpdate { kind, status: "Unknown", reason, message: message.into() }
    }
}

/// Sets a condition in a list. The transition time changes only with the status.
pub fn set(conditions: &mut Vec<Condition>, desired: ConditionUpdate, now: Timestamp) {
    let existing = conditions.iter_mut().find(|condition| condition.type_ == desired.kind);
    match existing {
        Some(condition) => {
            if condition.status != desired.status {
                condition.status = desired.status.to_owned();
                condition.last_transition_time = seconds(now);
            }
            condition.reason = desired.reason.to_owned();
            condition.message = desired.message;
        }
        None => conditions.push(Condition {
            type_: desired.kind.to_owned(),
            status: desired.status.to_owned(),
            reason: desired.reason.to_owned(),
            message: desired.message,
            last_transition_time: seconds(now),
            observed_generation: None,
        }),
    }
}

/// The status of a condition; `None` if it is not set.
pub fn status<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a str> {
    conditions.iter().find(|condition| condition.type_ == kind).map(|condition| condition.status.as_str())
}

/// Kubernetes stores times in whole seconds; a fraction would differ from the stored value.
fn seconds(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transition_time_changes_only_with_the_status() {
        let (early, late) =
            (Timestamp::from_second(100).expect("time"), Timestamp::from_second(200).expect("time"));
        let mut conditions = Vec::new();
        set(&mut conditions, ConditionUpdate::new("Ready", true, "Fine", "a"), early);
        set(&mut conditions, ConditionUpdate::new("Ready", true, "Better", "b"), late);
        assert_eq!((conditions[0].last_transition_time.0, conditions[0].reason.as_str()), (early, "Better"));
        set(&mut conditions, ConditionUpdate::new("Ready", false, "Broken", "c"), late);
        assert_eq!(conditions[0].last_transition_time.0, late);
        assert_eq!(conditions.len(), 1);
    }
}
