//! Ready: whether an instance is ready, and if not, why.
//!
//! `Ready` is derived, in every branch anew: gates first, then `Programmed`, then `Running`. With gates left, the cause
//! that waiting does not cure is told: a refused network over refused quota over gates alone. Providers of later
//! versions write `Available` instead of `Running`; the schema's default leaves an untouched `Running` beside it, which
//! does not count then.
//!
//! While quota is refused and its gate stands, nobody else speaks for the instance: `Programmed` and `Running` say
//! `PendingQuota`, and go back to the beginning when the refusal ends. An instance without that gate was let in before
//! and is judged by what it does.

use polis_api::compute::{GATE_NETWORK, GATE_QUOTA, Instance, InstanceStatus};
use polis_api::conditions::{AVAILABLE, PROGRAMMED, QUOTA_GRANTED, READY, RUNNING};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use polis_api::reasons;

use crate::conditions::{self, Verdict};
use crate::{Time, gates, ranking};

/// The status of an instance after Polis has had its say, or `None` when nothing changes.
///
/// `quota` is the verdict on its claim, `refusal` the words of the network service when it refused a network.
pub fn status(
    instance: &Instance,
    quota: &Verdict,
    refusal: Option<&str>,
    now: &Time,
) -> Option<InstanceStatus> {
    let mut instance = instance.clone();
    let generation = instance.metadata.generation;
    let list = &mut instance.status.get_or_insert_default().conditions;
    let mut changed = conditions::set(list, quota, generation, now);
    for verdict in on_behalf(&instance) {
        let list = &mut instance.status.get_or_insert_default().conditions;
        changed |= conditions::set(list, &verdict, generation, now);
    }
    // Last, since it reads what was just said.
    let verdict = verdict(&instance, refusal);
    let list = &mut instance.status.get_or_insert_default().conditions;
    changed |= conditions::set(list, &verdict, generation, now);
    instance.status.filter(|_| changed)
}

/// What is said in the provider's place while quota is refused, and taken back afterwards.
fn on_behalf(instance: &Instance) -> Vec<Verdict> {
    let conditions = of(instance);
    let refused = quota_refused(instance, conditions);
    let standing = |kind| conditions::find(conditions, kind);
    let mut verdicts = Vec::new();
    for kind in [PROGRAMMED, RUNNING, AVAILABLE] {
        let said_for = standing(kind).is_some_and(|condition| condition.reason == reasons::PENDING_QUOTA);
        match refused {
            // `Available` is only spoken for where a provider uses it.
            Some(refusal) if kind != AVAILABLE || standing(kind).is_some() => {
                verdicts.push(Verdict::no(kind, reasons::PENDING_QUOTA, refusal.message.clone()));
            }
            None if said_for => verdicts.push(Verdict::unknown(kind, reasons::PENDING, "")),
            _ => {}
        }
    }
    verdicts
}

fn quota_refused<'a>(instance: &Instance, conditions: &'a [Condition]) -> Option<&'a Condition> {
    let quota = conditions::find(conditions, QUOTA_GRANTED)?;
    (quota.status == "False" && gates::has(instance, GATE_QUOTA)).then_some(quota)
}

fn of(instance: &Instance) -> &[Condition] {
    instance.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default()
}

/// The verdict on `Ready`, for an instance whose other conditions are up to date.
pub fn verdict(instance: &Instance, refusal: Option<&str>) -> Verdict {
    let conditions = of(instance);
    if instance.status.as_ref().is_some_and(|status| status.suspended == Some(true)) {
        return Verdict::no(READY, reasons::SUSPENDED, "the instance is suspended");
    }
    if !gates::of(instance).is_empty() {
        return held(instance, conditions, refusal);
    }
    if !conditions::is_true(conditions, PROGRAMMED) {
        return missing(conditions::find(conditions, PROGRAMMED), reasons::PENDING_PROGRAMMING);
    }
    match speaker(conditions) {
        Some(running) if running.status == "True" => {
            Verdict::yes(READY, running.type_.clone(), "the instance runs")
        }
        running => missing(running, reasons::PENDING),
    }
}

/// Gates are left: the worst cause is told.
fn held(instance: &Instance, conditions: &[Condition], refusal: Option<&str>) -> Verdict {
    let names: Vec<&str> = gates::of(instance).iter().map(|gate| gate.name.as_str()).collect();
    let waiting = (reasons::SCHEDULING_GATES_PRESENT, format!("waits for: {}", names.join(", ")));
    let quota =
        quota_refused(instance, conditions).map(|quota| (reasons::PENDING_QUOTA, quota.message.clone()));
    let network = refusal.filter(|_| gates::has(instance, GATE_NETWORK));
    let network = network.map(|words| (reasons::NETWORK_FAILED_TO_CREATE, words.to_owned()));
    let causes = std::iter::once(waiting.clone()).chain(quota).chain(network);
    let (reason, message) = ranking::worst(causes, |(reason, _)| reason).unwrap_or(waiting);
    Verdict::no(READY, reason, message)
}

/// Not ready because a condition does not hold; its reason is passed on unless it says nothing.
fn missing(condition: Option<&Condition>, otherwise: &'static str) -> Verdict {
    match condition {
        Some(condition) if condition.reason != reasons::PENDING => {
            Verdict::no(READY, condition.reason.clone(), condition.message.clone())
        }
        _ => Verdict::no(READY, otherwise, ""),
    }
}

/// The condition by which the provider says that the instance runs. One that nobody has touched does not count beside
/// one that somebody has; of two, the one that does not hold.
fn speaker(conditions: &[Condition]) -> Option<&Condition> {
    let mut spoken: Vec<_> =
        [RUNNING, AVAILABLE].iter().filter_map(|kind| conditions::find(conditions, kind)).collect();
    spoken.sort_by_key(|condition| match (condition.status.as_str(), condition.reason.as_str()) {
        ("Unknown", reasons::PENDING) => 2,
        ("True", _) => 1,
        _ => 0,
    });
    spoken.first().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conditions::Truth;
    use crate::quota::{self, Answer, Failure};
    use crate::testing::{at, mk_condition, mk_deployment, mk_gates, mk_instance, with_conditions};
    use proptest::prelude::*;

    fn mk_gated(gates: &[&str], conditions: &[(&str, &str, &str)]) -> Instance {
        let mut instance = mk_instance(&mk_deployment("web"), 0);
        instance.spec.controller.as_mut().unwrap().scheduling_gates = mk_gates(gates);
        with_conditions(
            instance,
            conditions.iter().map(|(kind, status, reason)| mk_condition(kind, status, reason)).collect(),
        )
    }

    fn told(instance: &Instance, refusal: Option<&str>) -> (Truth, String) {
        let ready = verdict(instance, refusal);
        (ready.truth, ready.reason.into_owned())
    }

    /// Type, status and reason of a condition.
    type Said = (&'static str, &'static str, &'static str);

    const PROGRAMMED_TRUE: Said = ("Programmed", "True", "Programmed");
    const DENIED: Said = ("QuotaGranted", "False", "QuotaExceeded");
    const UNTOUCHED: Said = ("Running", "Unknown", "Pending");

    #[test]
    fn ready_follows_gates_then_programmed_then_running() {
        let table: &[(&[&str], &[Said], Truth, &str)] = &[
            (&["Network", "Quota"], &[], Truth::False, "SchedulingGatesPresent"),
            (&["Network", "Quota"], &[DENIED], Truth::False, "PendingQuota"),
            (&["ReferencedData"], &[DENIED], Truth::False, "SchedulingGatesPresent"),
            (
                &["Quota"],
                &[PROGRAMMED_TRUE, ("Running", "True", "Running"), ("Ready", "True", "Running")],
                Truth::False,
                "SchedulingGatesPresent",
            ),
            (&[], &[], Truth::False, "PendingProgramming"),
            (&[], &[("Programmed", "Unknown", "Pending")], Truth::False, "PendingProgramming"),
            (&[], &[("Programmed", "False", "ProgrammingInProgress")], Truth::False, "ProgrammingInProgress"),
            (&[], &[("Programmed", "False", "ImageUnavailable")], Truth::False, "ImageUnavailable"),
            (&[], &[PROGRAMMED_TRUE], Truth::False, "Pending"),
            (&[], &[PROGRAMMED_TRUE, UNTOUCHED], Truth::False, "Pending"),
            (&[], &[PROGRAMMED_TRUE, ("Running", "False", "Starting")], Truth::False, "Starting"),
            (&[], &[PROGRAMMED_TRUE, ("Running", "True", "Running")], Truth::True, "Running"),
        ];
        for (gates, conditions, truth, reason) in table {
            assert_eq!(
                told(&mk_gated(gates, conditions), None),
                (*truth, reason.to_string()),
                "{gates:?} {conditions:?}"
            );
        }
    }

    #[test]
    fn a_provider_may_say_available_instead_of_running() {
        let table: &[(&[Said], Truth, &str)] = &[
            (&[PROGRAMMED_TRUE, UNTOUCHED, ("Available", "True", "Available")], Truth::True, "Available"),
            (&[PROGRAMMED_TRUE, ("Available", "True", "Available")], Truth::True, "Available"),
            (
                &[PROGRAMMED_TRUE, UNTOUCHED, ("Available", "False", "InstanceCrashing")],
                Truth::False,
                "InstanceCrashing",
            ),
            (
                &[PROGRAMMED_TRUE, ("Running", "True", "Running"), ("Available", "False", "Stopped")],
                Truth::False,
                "Stopped",
            ),
        ];
        for (conditions, truth, reason) in table {
            assert_eq!(
                told(&mk_gated(&[], conditions), None),
                (*truth, reason.to_string()),
                "{conditions:?}"
            );
        }
    }

    #[test]
    fn a_refused_network_outranks_refused_quota_while_its_gate_stands() {
        let failed = (Truth::False, "NetworkFailedToCreate".to_owned());
        assert_eq!(told(&mk_gated(&["Network", "Quota"], &[DENIED]), Some("no")), failed);
        assert_eq!(told(&mk_gated(&["Quota"], &[DENIED]), Some("no")).1, "PendingQuota");
    }

    #[test]
    fn a_suspended_instance_is_not_ready() {
        let mut instance = mk_gated(&[], &[PROGRAMMED_TRUE, ("Running", "True", "Running")]);
        instance.status.as_mut().unwrap().suspended = Some(true);
        assert_eq!(told(&instance, None), (Truth::False, "Suspended".to_owned()));
    }

    #[test]
    fn an_instance_without_controller_notes_has_no_gates() {
        let mut instance = mk_gated(&[], &[PROGRAMMED_TRUE, ("Running", "True", "Running")]);
        instance.spec.controller = None;
        assert_eq!(told(&instance, None).0, Truth::True);
    }

    #[test]
    fn refused_quota_speaks_for_the_provider_until_it_ends() {
        let denied = quota::verdict(Answer::Failed(&Failure::BackendUnavailable("down".into())));
        let mut instance = mk_gated(&["Quota"], &[UNTOUCHED]);
        instance.status = status(&instance, &denied, None, &at(5));
        let reason = |instance: &Instance, kind| {
            conditions::find(&instance.status.as_ref().unwrap().conditions, kind).unwrap().reason.clone()
        };
        for kind in ["Programmed", "Running", "Ready"] {
            assert_eq!(reason(&instance, kind), "PendingQuota", "{kind}");
        }
        instance.status = status(&instance, &quota::verdict(Answer::Disabled), None, &at(6));
        for kind in ["Programmed", "Running"] {
            assert_eq!(reason(&instance, kind), "Pending", "{kind}");
        }
        assert_eq!(reason(&instance, "Ready"), "SchedulingGatesPresent");
    }

    #[test]
    fn an_instance_that_was_let_in_stays_ready_when_quota_is_refused_later() {
        let conditions = [PROGRAMMED_TRUE, ("Running", "True", "Running"), DENIED];
        let instance = mk_gated(&[], &conditions);
        assert_eq!(told(&instance, None).0, Truth::True);
        assert_eq!(on_behalf(&instance), []);
    }

    #[test]
    fn conditions_carry_the_generation_they_were_set_for() {
        let mut instance = mk_gated(&["Quota"], &[]);
        instance.metadata.generation = Some(4);
        let status = status(&instance, &quota::verdict(Answer::Disabled), None, &at(5)).unwrap();
        assert!(status.conditions.iter().all(|condition| condition.observed_generation == Some(4)));
    }

    fn any_conditions() -> impl Strategy<Value = Vec<Condition>> {
        let kind = prop_oneof![
            Just("Programmed"),
            Just("Running"),
            Just("Available"),
            Just("Ready"),
            Just("QuotaGranted")
        ];
        let status = prop_oneof![Just("True"), Just("False"), Just("Unknown")];
        let reason = prop_oneof![Just("Pending"), Just("PendingQuota"), Just("Starting"), Just("Running")];
        prop::collection::vec((kind, status, reason).prop_map(|(k, s, r)| mk_condition(k, s, r)), 0..7)
    }

    proptest! {
        #[test]
        fn the_status_settles_in_one_pass(conditions in any_conditions(), gates in 0..4usize, quota in 0..3usize, refused: bool) {
            let gates: &[&str] = [&[][..], &["Quota"], &["Network"], &["Network", "Quota"]][gates];
            let mut instance = with_conditions(mk_gated(gates, &[]), conditions);
            let down = Failure::BackendUnavailable("down".into());
            let quota = quota::verdict([Answer::Disabled, Answer::None, Answer::Failed(&down)][quota]);
            let refusal = refused.then_some("no");
            if let Some(status) = status(&instance, &quota, refusal, &at(5)) {
                instance.status = Some(status);
            }
            prop_assert_eq!(status(&instance, &quota, refusal, &at(6)), None);
        }

        #[test]
        fn an_instance_with_a_gate_is_never_ready(conditions in any_conditions(), refused: bool) {
            let instance = with_conditions(mk_gated(&["Network"], &[]), conditions);
            prop_assert_eq!(told(&instance, refused.then_some("no")).0, Truth::False);
        }
    }
}
