//! Scheduling gates: when an instance may start.
//!
//! An instance is created with gates, and no provider starts it while it has one. The cell removes `Network`
//! when the networks of the deployment are ready, and `Quota` when `QuotaGranted` is True for the current
//! generation of the instance. A condition that is True for an older generation does not count. Other gates
//! are never removed.

use polis_api::compute::{GATE_NETWORK, GATE_QUOTA, Instance, SchedulingGate};
use polis_api::conditions::QUOTA_GRANTED;

use crate::conditions;
use crate::networks::NetworkState;

/// The gates of an instance.
pub fn of(instance: &Instance) -> &[SchedulingGate] {
    instance
        .spec
        .controller
        .as_ref()
        .map(|controller| controller.scheduling_gates.as_slice())
        .unwrap_or_default()
}

/// Whether an instance has a gate.
pub fn has(instance: &Instance, gate: &str) -> bool {
    of(instance).iter().any(|existing| existing.name == gate)
}

/// The instance without its `Quota` gate, if quota is granted for its generation; `None` if there is nothing
/// to remove. Call it again in the reconcile that wrote the condition: no later event triggers another one.
pub fn without_quota_gate(instance: &Instance) -> Option<Instance> {
    let conditions = instance.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    conditions::is_true_for(conditions, QUOTA_GRANTED, instance.metadata.generation)
        .then(|| without(instance, GATE_QUOTA))
        .flatten()
}

/// The instance without its `Network` gate, if the networks are ready; `None` if there is nothing to remove.
pub fn without_network_gate(instance: &Instance, networks: &NetworkState) -> Option<Instance> {
    matches!(networks, NetworkState::Ready).then(|| without(instance, GATE_NETWORK)).flatten()
}

fn without(instance: &Instance, gate: &str) -> Option<Instance> {
    if !has(instance, gate) {
        return None;
    }
    let mut instance = instance.clone();
    instance.spec.controller.as_mut()?.scheduling_gates.retain(|existing| existing.name != gate);
    Some(instance)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{mk_condition, mk_deployment, mk_gates, mk_instance, with_conditions};

    fn granted(status: &str, generation: Option<i64>) -> Instance {
        let mut condition = mk_condition("QuotaGranted", status, "QuotaAvailable");
        condition.observed_generation = generation;
        with_conditions(mk_instance(&mk_deployment("web"), 0), vec![condition])
    }

    #[test]
    fn a_grant_for_this_generation_removes_the_quota_gate_and_no_other() {
        let after = without_quota_gate(&granted("True", Some(1))).unwrap();
        assert_eq!(of(&after), mk_gates(&["Network"]));
    }

    #[test]
    fn a_grant_for_an_older_generation_removes_nothing() {
        let mut instance = granted("True", Some(1));
        instance.metadata.generation = Some(2);
        assert_eq!(without_quota_gate(&instance), None);
    }

    #[test]
    fn a_grant_without_a_generation_removes_nothing() {
        assert_eq!(without_quota_gate(&granted("True", None)), None);
    }

    #[test]
    fn denied_and_undecided_quota_remove_nothing() {
        assert_eq!(without_quota_gate(&granted("False", Some(1))), None);
        assert_eq!(without_quota_gate(&granted("Unknown", Some(1))), None);
        assert_eq!(without_quota_gate(&mk_instance(&mk_deployment("web"), 0)), None);
    }

    #[test]
    fn ready_networks_remove_the_network_gate() {
        let instance = mk_instance(&mk_deployment("web"), 0);
        assert_eq!(of(&without_network_gate(&instance, &NetworkState::Ready).unwrap()), mk_gates(&["Quota"]));
        assert_eq!(without_network_gate(&instance, &NetworkState::Pending("soon".into())), None);
        assert_eq!(without_network_gate(&instance, &NetworkState::Refused("no".into())), None);
    }

    #[test]
    fn a_gate_that_is_gone_is_not_removed_again() {
        let mut instance = granted("True", Some(1));
        instance.spec.controller.as_mut().unwrap().scheduling_gates = mk_gates(&["ReferencedData"]);
        assert_eq!(without_quota_gate(&instance), None);
        assert_eq!(without_network_gate(&instance, &NetworkState::Ready), None);
        instance.spec.controller = None;
        assert_eq!(without_quota_gate(&instance), None);
    }

    #[test]
    fn removing_a_gate_keeps_the_template_hash() {
        let before = granted("True", Some(1));
        let after = without_quota_gate(&before).unwrap();
        assert_eq!(
            after.spec.controller.unwrap().template_hash,
            before.spec.controller.unwrap().template_hash
        );
    }
}
