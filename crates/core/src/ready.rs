//! The `Ready` condition of an instance.
//!
//! `Ready` is always derived from the other state, in this order: suspension, gates, `Programmed`, `Running`,
//! and `ContainersReady`, which a provider writes for containers with readiness probes.
//! With gates left, the reason is the cause that waiting does not resolve: a rejected network before missing
//! data before denied quota before gates alone. Providers of later versions write `Available` instead of
//! `Running`; the schema default then leaves an untouched `Running` in the status, which is ignored.
//!
//! While quota is denied and the `Quota` gate exists, Polis sets `Programmed` and `Running` to
//! `PendingQuota`, and resets them to `Pending` when the denial ends. An instance without that gate was
//! admitted before; its readiness depends on its provider only.

use polis_api::compute::{GATE_NETWORK, GATE_QUOTA, GATE_REFERENCED_DATA, Instance, InstanceStatus};
use polis_api::conditions::{
    AVAILABLE, CONTAINERS_READY, PROGRAMMED, QUOTA_GRANTED, READY, REFERENCED_DATA_READY, RUNNING,
};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use polis_api::reasons;

use crate::conditions::{self, DesiredCondition};
use crate::{Time, gates, ranking};

/// The status of an instance with all conditions that Polis sets, or `None` when nothing changes.
///
/// `quota` is the `QuotaGranted` condition of its claim, `data` the condition of the config maps and secrets
/// that it refers to, `refusal` the message of the network service if it rejected a network.
pub fn status(
    instance: &Instance,
    quota: &DesiredCondition,
    data: Option<&DesiredCondition>,
    refusal: Option<&str>,
    now: &Time,
) -> Option<InstanceStatus> {
    let mut instance = instance.clone();
    let generation = instance.metadata.generation;
    let list = &mut instance.status.get_or_insert_default().conditions;
    let mut changed = conditions::set(list, quota, generation, now);
    if let Some(data) = data {
        changed |= conditions::set(list, data, generation, now);
    }
    for condition in provider_conditions(&instance) {
        let list = &mut instance.status.get_or_insert_default().conditions;
        changed |= conditions::set(list, &condition, generation, now);
    }
    // Last, since it depends on the conditions set above.
    let ready = condition(&instance, refusal);
    let list = &mut instance.status.get_or_insert_default().conditions;
    changed |= conditions::set(list, &ready, generation, now);
    instance.status.filter(|_| changed)
}

/// Conditions of the provider that Polis sets while quota is denied, and resets afterwards.
fn provider_conditions(instance: &Instance) -> Vec<DesiredCondition> {
    let conditions = of(instance);
    let denied = quota_denied(instance, conditions);
    let existing = |kind| conditions::find(conditions, kind);
    let mut desired = Vec::new();
    for kind in [PROGRAMMED, RUNNING, AVAILABLE] {
        let set_by_polis = existing(kind).is_some_and(|condition| condition.reason == reasons::PENDING_QUOTA);
        match denied {
            // `Available` is set only if the provider uses it.
            Some(quota) if kind != AVAILABLE || existing(kind).is_some() => {
                desired.push(DesiredCondition::new_false(
                    kind,
                    reasons::PENDING_QUOTA,
                    quota.message.clone(),
                ));
            }
            None if set_by_polis => desired.push(DesiredCondition::new_unknown(kind, reasons::PENDING, "")),
            _ => {}
        }
    }
    desired
}

fn quota_denied<'a>(instance: &Instance, conditions: &'a [Condition]) -> Option<&'a Condition> {
    let quota = conditions::find(conditions, QUOTA_GRANTED)?;
    (quota.status == "False" && gates::has(instance, GATE_QUOTA)).then_some(quota)
}

fn of(instance: &Instance) -> &[Condition] {
    instance.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default()
}

/// The `Ready` condition of an instance whose other conditions are up to date.
pub fn condition(instance: &Instance, refusal: Option<&str>) -> DesiredCondition {
    let conditions = of(instance);
    if instance.status.as_ref().is_some_and(|status| status.suspended == Some(true)) {
        return DesiredCondition::new_false(READY, reasons::SUSPENDED, "the instance is suspended");
    }
    if !gates::of(instance).is_empty() {
        return gated(instance, conditions, refusal);
    }
    if !conditions::is_true(conditions, PROGRAMMED) {
        return not_ready(conditions::find(conditions, PROGRAMMED), reasons::PENDING_PROGRAMMING);
    }
    match running_condition(conditions) {
        Some(running) if running.status == "True" => {
            if let Some(containers) = conditions::find(conditions, CONTAINERS_READY)
                && containers.status != "True"
            {
                return not_ready(Some(containers), reasons::CONTAINERS_NOT_READY);
            }
            DesiredCondition::new_true(READY, running.type_.clone(), "the instance is running")
        }
        running => not_ready(running, reasons::PENDING),
    }
}

/// `Ready` of an instance with gates: the worst cause.
fn gated(instance: &Instance, conditions: &[Condition], refusal: Option<&str>) -> DesiredCondition {
    let names: Vec<&str> = gates::of(instance).iter().map(|gate| gate.name.as_str()).collect();
    let waiting =
        (reasons::SCHEDULING_GATES_PRESENT, format!("waiting for scheduling gates: {}", names.join(", ")));
    let quota =
        quota_denied(instance, conditions).map(|quota| (reasons::PENDING_QUOTA, quota.message.clone()));
    let network = refusal.filter(|_| gates::has(instance, GATE_NETWORK));
    let network = network.map(|message| (reasons::NETWORK_FAILED_TO_CREATE, message.to_owned()));
    let data = conditions::find(conditions, REFERENCED_DATA_READY);
    let data = data.filter(|data| data.status == "False" && gates::has(instance, GATE_REFERENCED_DATA));
    let cause = |(reason, message): (&str, String)| (reason.to_owned(), message);
    let causes = std::iter::once(waiting.clone()).chain(quota).chain(network).map(cause);
    let causes = causes.chain(data.map(|data| (data.reason.clone(), data.message.clone())));
    let (reason, message) = ranking::worst(causes, |(reason, _)| reason).unwrap_or_else(|| cause(waiting));
    DesiredCondition::new_false(READY, reason, message)
}

/// `Ready` is False because a condition is not True; takes over its reason unless that is only `Pending`.
fn not_ready(condition: Option<&Condition>, otherwise: &'static str) -> DesiredCondition {
    match condition {
        Some(condition) if condition.reason != reasons::PENDING => {
            DesiredCondition::new_false(READY, condition.reason.clone(), condition.message.clone())
        }
        _ => DesiredCondition::new_false(READY, otherwise, ""),
    }
}

/// The condition by which the provider reports that the instance runs: `Running` or `Available`. One that the
/// provider has set is preferred to a schema default; of two that are set, the one that is not True.
fn running_condition(conditions: &[Condition]) -> Option<&Condition> {
    let mut found: Vec<_> =
        [RUNNING, AVAILABLE].iter().filter_map(|kind| conditions::find(conditions, kind)).collect();
    found.sort_by_key(|condition| match (condition.status.as_str(), condition.reason.as_str()) {
        ("Unknown", reasons::PENDING) => 2,
        ("True", _) => 1,
        _ => 0,
    });
    found.first().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conditions::ConditionStatus;
    use crate::quota::{self, ClaimError, ClaimState};
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

    fn ready(instance: &Instance, refusal: Option<&str>) -> (ConditionStatus, String) {
        let ready = condition(instance, refusal);
        (ready.status, ready.reason.into_owned())
    }

    /// Type, status and reason of a condition.
    type Set = (&'static str, &'static str, &'static str);

    const PROGRAMMED_TRUE: Set = ("Programmed", "True", "Programmed");
    const RUNNING_TRUE: Set = ("Running", "True", "Running");
    const DENIED: Set = ("QuotaGranted", "False", "QuotaExceeded");
    const UNTOUCHED: Set = ("Running", "Unknown", "Pending");

    #[test]
    fn ready_follows_gates_then_programmed_then_running() {
        let table: &[(&[&str], &[Set], ConditionStatus, &str)] = &[
            (&["Network", "Quota"], &[], ConditionStatus::False, "SchedulingGatesPresent"),
            (&["Network", "Quota"], &[DENIED], ConditionStatus::False, "PendingQuota"),
            (&["ReferencedData"], &[DENIED], ConditionStatus::False, "SchedulingGatesPresent"),
            (
                &["Quota"],
                &[PROGRAMMED_TRUE, ("Running", "True", "Running"), ("Ready", "True", "Running")],
                ConditionStatus::False,
                "SchedulingGatesPresent",
            ),
            (&[], &[], ConditionStatus::False, "PendingProgramming"),
            (&[], &[("Programmed", "Unknown", "Pending")], ConditionStatus::False, "PendingProgramming"),
            (
                &[],
                &[("Programmed", "False", "ProgrammingInProgress")],
                ConditionStatus::False,
                "ProgrammingInProgress",
            ),
            (&[], &[("Programmed", "False", "ImageUnavailable")], ConditionStatus::False, "ImageUnavailable"),
            (&[], &[PROGRAMMED_TRUE], ConditionStatus::False, "Pending"),
            (&[], &[PROGRAMMED_TRUE, UNTOUCHED], ConditionStatus::False, "Pending"),
            (&[], &[PROGRAMMED_TRUE, ("Running", "False", "Starting")], ConditionStatus::False, "Starting"),
            (&[], &[PROGRAMMED_TRUE, ("Running", "True", "Running")], ConditionStatus::True, "Running"),
            (
                &[],
                &[PROGRAMMED_TRUE, RUNNING_TRUE, ("ContainersReady", "False", "ContainersNotReady")],
                ConditionStatus::False,
                "ContainersNotReady",
            ),
            (
                &[],
                &[PROGRAMMED_TRUE, RUNNING_TRUE, ("ContainersReady", "True", "ContainersReady")],
                ConditionStatus::True,
                "Running",
            ),
            (
                &[],
                &[
                    PROGRAMMED_TRUE,
                    ("Running", "False", "InstanceCrashing"),
                    ("ContainersReady", "True", "ContainersReady"),
                ],
                ConditionStatus::False,
                "InstanceCrashing",
            ),
        ];
        for (gates, conditions, expected, reason) in table {
            assert_eq!(
                ready(&mk_gated(gates, conditions), None),
                (*expected, reason.to_string()),
                "{gates:?} {conditions:?}"
            );
        }
    }

    #[test]
    fn a_provider_may_set_available_instead_of_running() {
        let table: &[(&[Set], ConditionStatus, &str)] = &[
            (
                &[PROGRAMMED_TRUE, UNTOUCHED, ("Available", "True", "Available")],
                ConditionStatus::True,
                "Available",
            ),
            (&[PROGRAMMED_TRUE, ("Available", "True", "Available")], ConditionStatus::True, "Available"),
            (
                &[PROGRAMMED_TRUE, UNTOUCHED, ("Available", "False", "InstanceCrashing")],
                ConditionStatus::False,
                "InstanceCrashing",
            ),
            (
                &[PROGRAMMED_TRUE, ("Running", "True", "Running"), ("Available", "False", "Stopped")],
                ConditionStatus::False,
                "Stopped",
            ),
        ];
        for (conditions, expected, reason) in table {
            assert_eq!(
                ready(&mk_gated(&[], conditions), None),
                (*expected, reason.to_string()),
                "{conditions:?}"
            );
        }
    }

    #[test]
    fn a_rejected_network_outranks_denied_quota_while_its_gate_exists() {
        let failed = (ConditionStatus::False, "NetworkFailedToCreate".to_owned());
        assert_eq!(ready(&mk_gated(&["Network", "Quota"], &[DENIED]), Some("no")), failed);
        assert_eq!(ready(&mk_gated(&["Quota"], &[DENIED]), Some("no")).1, "PendingQuota");
    }

    #[test]
    fn missing_data_outranks_denied_quota_while_its_gate_exists() {
        for (reason, gates, expected) in [
            ("SourceNotFound", &["Quota", "ReferencedData"][..], "SourceNotFound"),
            ("AwaitingPropagation", &["Quota", "ReferencedData"], "AwaitingPropagation"),
            ("SourceNotFound", &["Quota"], "PendingQuota"),
        ] {
            let missing = ("ReferencedDataReady", "False", reason);
            assert_eq!(ready(&mk_gated(gates, &[DENIED, missing]), None).1, expected, "{reason} {gates:?}");
        }
        let delivered = ("ReferencedDataReady", "True", "Ready");
        assert_eq!(ready(&mk_gated(&["ReferencedData"], &[delivered]), None).1, "SchedulingGatesPresent");
    }

    #[test]
    fn a_suspended_instance_is_not_ready() {
        let mut instance = mk_gated(&[], &[PROGRAMMED_TRUE, ("Running", "True", "Running")]);
        instance.status.as_mut().unwrap().suspended = Some(true);
        assert_eq!(ready(&instance, None), (ConditionStatus::False, "Suspended".to_owned()));
    }

    #[test]
    fn an_instance_without_spec_controller_has_no_gates() {
        let mut instance = mk_gated(&[], &[PROGRAMMED_TRUE, ("Running", "True", "Running")]);
        instance.spec.controller = None;
        assert_eq!(ready(&instance, None).0, ConditionStatus::True);
    }

    #[test]
    fn denied_quota_sets_the_conditions_of_the_provider_until_it_ends() {
        let denied = quota::condition(ClaimState::Failed(&ClaimError::BackendUnavailable("down".into())));
        let mut instance = mk_gated(&["Quota"], &[UNTOUCHED]);
        instance.status = status(&instance, &denied, None, None, &at(5));
        let reason = |instance: &Instance, kind| {
            conditions::find(&instance.status.as_ref().unwrap().conditions, kind).unwrap().reason.clone()
        };
        for kind in ["Programmed", "Running", "Ready"] {
            assert_eq!(reason(&instance, kind), "PendingQuota", "{kind}");
        }
        instance.status = status(&instance, &quota::condition(ClaimState::Disabled), None, None, &at(6));
        for kind in ["Programmed", "Running"] {
            assert_eq!(reason(&instance, kind), "Pending", "{kind}");
        }
        assert_eq!(reason(&instance, "Ready"), "SchedulingGatesPresent");
    }

    #[test]
    fn an_admitted_instance_stays_ready_when_quota_is_denied_later() {
        let conditions = [PROGRAMMED_TRUE, ("Running", "True", "Running"), DENIED];
        let instance = mk_gated(&[], &conditions);
        assert_eq!(ready(&instance, None).0, ConditionStatus::True);
        assert_eq!(provider_conditions(&instance), []);
    }

    #[test]
    fn conditions_carry_the_generation_they_were_set_for() {
        let mut instance = mk_gated(&["Quota"], &[]);
        instance.metadata.generation = Some(4);
        let status = status(&instance, &quota::condition(ClaimState::Disabled), None, None, &at(5)).unwrap();
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
        fn a_second_reconcile_changes_nothing(
            conditions in any_conditions(), gates in 0..4usize, quota in 0..3usize, refused: bool
        ) {
            let gates: &[&str] = [&[][..], &["Quota"], &["Network"], &["Network", "Quota"]][gates];
            let mut instance = with_conditions(mk_gated(gates, &[]), conditions);
            let down = ClaimError::BackendUnavailable("down".into());
            let quota = quota::condition([ClaimState::Disabled, ClaimState::Missing, ClaimState::Failed(&down)][quota]);
            let refusal = refused.then_some("no");
            if let Some(status) = status(&instance, &quota, None, refusal, &at(5)) {
                instance.status = Some(status);
            }
            prop_assert_eq!(status(&instance, &quota, None, refusal, &at(6)), None);
        }

        #[test]
        fn an_instance_with_a_gate_is_never_ready(conditions in any_conditions(), refused: bool) {
            let instance = with_conditions(mk_gated(&["Network"], &[]), conditions);
            prop_assert_eq!(ready(&instance, refused.then_some("no")).0, ConditionStatus::False);
        }
    }
}
