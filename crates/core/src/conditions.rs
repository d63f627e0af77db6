//! Conditions: how a verdict becomes an entry in a status, and when a status has changed.
//!
//! A condition keeps its transition time while its status stays the same, whatever happens to reason and message.
//! The schema's default conditions carry the year 1970 and keep it while pending: never read a transition time as
//! "how long have we waited".

use std::borrow::Cow;

use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::Time;

/// The longest message that the schema of conditions takes, in bytes.
const LONGEST_MESSAGE: usize = 32_768;

/// The status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truth {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// Nobody can say.
    Unknown,
}

impl Truth {
    /// As the API spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Truth::True => "True",
            Truth::False => "False",
            Truth::Unknown => "Unknown",
        }
    }
}

/// What a condition should say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The condition type.
    pub kind: &'static str,
    /// Its status.
    pub truth: Truth,
    /// One word for programs.
    pub reason: Cow<'static, str>,
    /// A sentence for people. Never parsed by anybody.
    pub message: String,
}

impl Verdict {
    /// The condition holds.
    pub fn yes(kind: &'static str, reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Verdict { kind, truth: Truth::True, reason: reason.into(), message: message.into() }
    }

    /// The condition does not hold.
    pub fn no(kind: &'static str, reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Verdict { kind, truth: Truth::False, reason: reason.into(), message: message.into() }
    }

    /// Nobody can say yet.
    pub fn unknown(
        kind: &'static str,
        reason: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) -> Self {
        Verdict { kind, truth: Truth::Unknown, reason: reason.into(), message: message.into() }
    }
}

/// The condition of a type. The first wins when another writer has left two.
pub fn find<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}

/// Whether the condition is there and True.
pub fn is_true(conditions: &[Condition], kind: &str) -> bool {
    find(conditions, kind).is_some_and(|condition| condition.status == "True")
}

/// Whether the condition is there and False; an Unknown one is neither.
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

/// Puts a verdict into a list of conditions; says whether anything changed.
///
/// The order of the list stays, a new type goes to the end, and of several entries of one type (another writer's
/// slip) one is left.
pub fn set(conditions: &mut Vec<Condition>, verdict: &Verdict, generation: Option<i64>, now: &Time) -> bool {
    let mut entry = Condition {
        type_: verdict.kind.to_owned(),
        status: verdict.truth.as_str().to_owned(),
        reason: verdict.reason.clone().into_owned(),
        message: shortened(&verdict.message).to_owned(),
        observed_generation: generation,
        last_transition_time: now.clone(),
    };
    let Some(place) = conditions.iter().position(|condition| condition.type_ == verdict.kind) else {
        conditions.push(entry);
        return true;
    };
    let current = &conditions[place];
    if current.status == entry.status {
        entry.last_transition_time = current.last_transition_time.clone();
    }
    let changed = *current != entry;
    conditions[place] = entry;
    let before = conditions.len();
    let mut index = 0;
    conditions.retain(|condition| {
        index += 1;
        condition.type_ != verdict.kind || index - 1 == place
    });
    changed || conditions.len() != before
}

fn shortened(message: &str) -> &str {
    if message.len() <= LONGEST_MESSAGE {
        return message;
    }
    let end = (0..=LONGEST_MESSAGE).rev().find(|end| message.is_char_boundary(*end)).unwrap_or(0);
    &message[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, mk_condition};
    use proptest::prelude::*;

    fn list_of(verdict: &Verdict, time: i64) -> Vec<Condition> {
        let mut conditions = Vec::new();
        set(&mut conditions, verdict, Some(1), &at(time));
        conditions
    }

    #[test]
    fn the_transition_time_stays_while_the_status_stays() {
        let mut conditions = list_of(&Verdict::no("Ready", "Pending", ""), 10);
        assert!(set(&mut conditions, &Verdict::no("Ready", "PendingQuota", "no"), Some(1), &at(20)));
        assert_eq!(conditions[0].last_transition_time, at(10));
        assert_eq!(conditions[0].reason, "PendingQuota");
    }

    #[test]
    fn the_transition_time_moves_with_the_status() {
        let mut conditions = list_of(&Verdict::no("Ready", "Pending", ""), 10);
        assert!(set(&mut conditions, &Verdict::yes("Ready", "Running", ""), Some(1), &at(20)));
        assert_eq!(conditions[0].last_transition_time, at(20));
    }

    #[test]
    fn the_same_verdict_later_is_no_change() {
        let mut conditions = list_of(&Verdict::yes("Ready", "Running", ""), 10);
        assert!(!set(&mut conditions, &Verdict::yes("Ready", "Running", ""), Some(1), &at(99)));
    }

    #[test]
    fn a_new_generation_is_a_change() {
        let mut conditions = list_of(&Verdict::yes("Ready", "Running", ""), 10);
        assert!(set(&mut conditions, &Verdict::yes("Ready", "Running", ""), Some(2), &at(20)));
        assert_eq!(conditions[0].observed_generation, Some(2));
    }

    #[test]
    fn conditions_of_others_stay_in_their_place() {
        let mut conditions =
            vec![mk_condition("Programmed", "True", "Programmed"), mk_condition("Ready", "False", "Pending")];
        set(&mut conditions, &Verdict::yes("Ready", "Running", ""), Some(1), &at(20));
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
        assert!(set(&mut conditions, &Verdict::no("Ready", "Pending", ""), None, &at(20)));
        assert_eq!(conditions.iter().map(|c| c.type_.as_str()).collect::<Vec<_>>(), ["Ready", "Other"]);
    }

    #[test]
    fn true_counts_only_for_the_generation_it_was_set_for() {
        let conditions = list_of(&Verdict::yes("QuotaGranted", "QuotaAvailable", ""), 10);
        assert!(is_true_for(&conditions, "QuotaGranted", Some(1)));
        assert!(!is_true_for(&conditions, "QuotaGranted", Some(2)));
        assert!(!is_true_for(&conditions, "QuotaGranted", None));
    }

    #[test]
    fn a_message_beyond_the_limit_is_cut_at_a_letter() {
        let conditions = list_of(&Verdict::no("Ready", "Pending", "ä".repeat(LONGEST_MESSAGE)), 10);
        assert_eq!(conditions[0].message.len(), LONGEST_MESSAGE);
    }

    proptest! {
        #[test]
        fn setting_twice_is_setting_once(
            kinds in prop::collection::vec(prop_oneof![Just("Ready"), Just("Other")], 0..5), truth in 0..3usize
        ) {
            let mut conditions: Vec<_> = kinds.iter().map(|kind| mk_condition(kind, "Unknown", "Pending")).collect();
            let truth = [Truth::True, Truth::False, Truth::Unknown][truth];
            let verdict = Verdict { kind: "Ready", truth, reason: "Why".into(), message: String::new() };
            set(&mut conditions, &verdict, Some(3), &at(5));
            let once = conditions.clone();
            prop_assert!(!set(&mut conditions, &verdict, Some(3), &at(6)));
            prop_assert_eq!(conditions, once);
        }
    }
}
