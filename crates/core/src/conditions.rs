//! Status conditions: reading them, and setting a desired condition in a list.
//!
//! A condition keeps its transition time while its status stays the same, even if reason or message
//! change. The schema's default conditions have a transition time of 1970 and keep it while pending: never
//! use a transition time as the start of a wait.

use std::borrow::Cow;

use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::Time;

/// The longest message that the schema of conditions allows, in bytes.
const MAX_MESSAGE: usize = 32_768;

/// The status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    /// The condition is met.
    True,
    /// The condition is not met.
    False,
    /// Whether the condition is met is not known.
    Unknown,
}

impl ConditionStatus {
    /// The value in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            ConditionStatus::True => "True",
            ConditionStatus::False => "False",
            ConditionStatus::Unknown => "Unknown",
        }
    }
}

/// A condition as it should be in a status, without generation and transition time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredCondition {
    /// The condition type.
    pub kind: &'static str,
    /// Its status.
    pub status: ConditionStatus,
    /// The CamelCase reason, for programs.
    pub reason: Cow<'static, str>,
    /// A sentence for users. Programs must not parse it.
    pub message: String,
}

impl DesiredCondition {
    /// A condition with status True.
    pub fn new_true(
        kind: &'static str,
        reason: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) -> Self {
        DesiredCondition {
            kind,
            status: ConditionStatus::True,
            reason: reason.into(),
            message: message.into(),
        }
    }

    /// A condition with status False.
    pub fn new_false(
        kind: &'static str,
        reason: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) -> Self {
        DesiredCondition {
            kind,
            status: ConditionStatus::False,
            reason: reason.into(),
            message: message.into(),
        }
    }

    /// A condition with status Unknown.
    pub fn new_unknown(
        kind: &'static str,
        reason: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) -> Self {
        DesiredCondition {
            kind,
            status: ConditionStatus::Unknown,
            reason: reason.into(),
            message: message.into(),
        }
    }
}

/// The condition of a type; the first one if another writer has left two.
pub fn find<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}

/// Whether the condition exists and is True.
pub fn is_true(conditions: &[Condition], kind: &str) -> bool {
    find(conditions, kind).is_some_and(|condition| condition.status == "True")
}

/// Whether the condition exists and is False; Unknown is neither True nor False.
pub fn is_false(conditions: &[Condition], kind: &str) -> bool {
    find(conditions, kind).is_some_and(|condition| condition.status == "False")
}

/// Whether the condition is True and was set for exactly this generation of the object.
pub fn is_true_for(conditions: &[Condition], kind: &str, generation: Option<i64>) -> bool {
    generation.is_some()
        && find(conditions, kind).is_some_and(|condition| {
            condition.status == "True" && condition.observed_generation == generation
        })
}

/// Sets a condition in a list; returns whether anything changed.
///
/// The order of the list is kept and a new type is appended. Of several entries of one type, which only a
/// faulty writer leaves, the first is kept.
pub fn set(
    conditions: &mut Vec<Condition>,
    desired: &DesiredCondition,
    generation: Option<i64>,
    now: &Time,
) -> bool {
    let mut entry = Condition {
        type_: desired.kind.to_owned(),
        status: desired.status.as_str().to_owned(),
        reason: desired.reason.clone().into_owned(),
        message: truncated(&desired.message).to_owned(),
        observed_generation: generation,
        last_transition_time: now.clone(),
    };
    let Some(position) = conditions.iter().position(|condition| condition.type_ == desired.kind) else {
        conditions.push(entry);
        return true;
    };
    let current = &conditions[position];
    if current.status == entry.status {
        entry.last_transition_time = current.last_transition_time.clone();
    }
    let changed = *current != entry;
    conditions[position] = entry;
    let before = conditions.len();
    let mut index = 0;
    conditions.retain(|condition| {
        index += 1;
        condition.type_ != desired.kind || index - 1 == position
    });
    changed || conditions.len() != before
}

fn truncated(message: &str) -> &str {
    if message.len() <= MAX_MESSAGE {
        return message;
    }
    let end = (0..=MAX_MESSAGE).rev().find(|end| message.is_char_boundary(*end)).unwrap_or(0);
    &message[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, mk_condition};
    use proptest::prelude::*;

    fn list_of(desired: &DesiredCondition, time: i64) -> Vec<Condition> {
        let mut conditions = Vec::new();
        set(&mut conditions, desired, Some(1), &at(time));
        conditions
    }

    #[test]
    fn the_transition_time_stays_while_the_status_stays() {
        let mut conditions = list_of(&DesiredCondition::new_false("Ready", "Pending", ""), 10);
        assert!(set(
            &mut conditions,
            &DesiredCondition::new_false("Ready", "PendingQuota", "no"),
            Some(1),
            &at(20)
        ));
        assert_eq!(conditions[0].last_transition_time, at(10));
        assert_eq!(conditions[0].reason, "PendingQuota");
    }

    #[test]
    fn the_transition_time_changes_with_the_status() {
        let mut conditions = list_of(&DesiredCondition::new_false("Ready", "Pending", ""), 10);
        assert!(set(&mut conditions, &DesiredCondition::new_true("Ready", "Running", ""), Some(1), &at(20)));
        assert_eq!(conditions[0].last_transition_time, at(20));
    }

    #[test]
    fn the_same_condition_later_is_no_change() {
        let mut conditions = list_of(&DesiredCondition::new_true("Ready", "Running", ""), 10);
        assert!(!set(&mut conditions, &DesiredCondition::new_true("Ready", "Running", ""), Some(1), &at(99)));
    }

    #[test]
    fn a_new_generation_is_a_change() {
        let mut conditions = list_of(&DesiredCondition::new_true("Ready", "Running", ""), 10);
        assert!(set(&mut conditions, &DesiredCondition::new_true("Ready", "Running", ""), Some(2), &at(20)));
        assert_eq!(conditions[0].observed_generation, Some(2));
    }

    #[test]
    fn other_conditions_keep_their_position() {
        let mut conditions =
            vec![mk_condition("Programmed", "True", "Programmed"), mk_condition("Ready", "False", "Pending")];
        set(&mut conditions, &DesiredCondition::new_true("Ready", "Running", ""), Some(1), &at(20));
        assert_eq!(conditions[0], mk_condition("Programmed", "True", "Programmed"));
        assert_eq!(conditions.len(), 2);
    }

    #[test]
    fn two_entries_of_one_type_become_one() {
        let mut conditions = vec![
            mk_condition("Ready", "False", "Pending"),
            mk_condition("Other", "True", "Yes"),
            mk_condition("Ready", "True", "Running"),
        ];
        assert!(set(&mut conditions, &DesiredCondition::new_false("Ready", "Pending", ""), None, &at(20)));
        assert_eq!(conditions.iter().map(|c| c.type_.as_str()).collect::<Vec<_>>(), ["Ready", "Other"]);
    }

    #[test]
    fn a_true_condition_counts_only_for_its_generation() {
        let conditions = list_of(&DesiredCondition::new_true("QuotaGranted", "QuotaAvailable", ""), 10);
        assert!(is_true_for(&conditions, "QuotaGranted", Some(1)));
        assert!(!is_true_for(&conditions, "QuotaGranted", Some(2)));
        assert!(!is_true_for(&conditions, "QuotaGranted", None));
    }

    #[test]
    fn a_message_beyond_the_limit_is_truncated_at_a_character() {
        let conditions =
            list_of(&DesiredCondition::new_false("Ready", "Pending", "ä".repeat(MAX_MESSAGE)), 10);
        assert_eq!(conditions[0].message.len(), MAX_MESSAGE);
    }

    proptest! {
        #[test]
        fn setting_a_condition_is_idempotent(
            kinds in prop::collection::vec(prop_oneof![Just("Ready"), Just("Other")], 0..5), status in 0..3usize
        ) {
            let mut conditions: Vec<_> = kinds.iter().map(|kind| mk_condition(kind, "Unknown", "Pending")).collect();
            let status = [ConditionStatus::True, ConditionStatus::False, ConditionStatus::Unknown][status];
            let desired = DesiredCondition { kind: "Ready", status, reason: "Why".into(), message: String::new() };
            set(&mut conditions, &desired, Some(3), &at(5));
            let once = conditions.clone();
            prop_assert!(!set(&mut conditions, &desired, Some(3), &at(6)));
            prop_assert_eq!(conditions, once);
        }
    }
}
