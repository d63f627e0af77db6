//! Conditions: facts with the time at which they last changed.

use jiff::Timestamp;
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// A condition as it should be; the list keeps the time of the last change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// Condition type.
    pub kind: &'static str,
    /// `True`, `False` or `Unknown`.
    pub status: &'static str,
    /// One word.
    pub reason: &'static str,
    /// The story.
    pub message: String,
}

impl Fact {
    /// A condition that holds, or does not.
    pub fn new(kind: &'static str, holds: bool, reason: &'static str, message: impl Into<String>) -> Self {
        Fact { kind, status: if holds { "True" } else { "False" }, reason, message: message.into() }
    }

    /// A condition that nobody knows about.
    pub fn unknown(kind: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Fact { kind, status: "Unknown", reason, message: message.into() }
    }
}

/// Puts a fact into a list of conditions. The time moves only when the status does.
pub fn set(conditions: &mut Vec<Condition>, fact: Fact, now: Timestamp) {
    let standing = conditions.iter_mut().find(|condition| condition.type_ == fact.kind);
    match standing {
        Some(condition) => {
            if condition.status != fact.status {
                condition.status = fact.status.to_owned();
                condition.last_transition_time = seconds(now);
            }
            condition.reason = fact.reason.to_owned();
            condition.message = fact.message;
        }
        None => conditions.push(Condition {
            type_: fact.kind.to_owned(),
            status: fact.status.to_owned(),
            reason: fact.reason.to_owned(),
            message: fact.message,
            last_transition_time: seconds(now),
            observed_generation: None,
        }),
    }
}

/// The status of a condition; none where nobody said anything.
pub fn status<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a str> {
    conditions.iter().find(|condition| condition.type_ == kind).map(|condition| condition.status.as_str())
}

/// Kubernetes writes times in whole seconds; a fraction would make every comparison with what was read fail.
fn seconds(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_moves_only_with_the_status() {
        let (early, late) =
            (Timestamp::from_second(100).expect("time"), Timestamp::from_second(200).expect("time"));
        let mut conditions = Vec::new();
        set(&mut conditions, Fact::new("Ready", true, "Fine", "a"), early);
        set(&mut conditions, Fact::new("Ready", true, "Better", "b"), late);
        assert_eq!((conditions[0].last_transition_time.0, conditions[0].reason.as_str()), (early, "Better"));
        set(&mut conditions, Fact::new("Ready", false, "Broken", "c"), late);
        assert_eq!(conditions[0].last_transition_time.0, late);
        assert_eq!(conditions.len(), 1);
    }
}
