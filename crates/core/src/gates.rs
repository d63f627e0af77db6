//! Gates: when an instance may start.
//!
//! An instance is born with gates and no provider touches it while one is left. Each gate is dropped by the one who
//! knows: `Network` when the networks of the deployment are ready, `Quota` when the grant was seen for the instance as
//! it is now. A condition that is True for an older generation proves nothing about this one. Gates of others are
//! left alone.

use polis_api::compute::{GATE_NETWORK, GATE_QUOTA, Instance, SchedulingGate};
use polis_api::conditions::QUOTA_GRANTED;

use crate::conditions;
use crate::networks::NetworkState;

/// The gates that are left on an instance.
pub fn of(instance: &Instance) -> &[SchedulingGate] {
    instance
        .spec
        .controller
        .as_ref()
        .map(|controller| controller.scheduling_gates.as_slice())
        .unwrap_or_default()
}

/// Whether an instance carries a gate.
pub fn has(instance: &Instance, gate: &str) -> bool {
    of(instance).iter().any(|standing| standing.name == gate)
}

/// The instance without its `Quota` gate, when the grant holds for this generation; `None` when there is nothing to
/// drop. Ask again in the pass that wrote the condition: nobody else will call.
pub fn quota_dropped(instance: &Instance) -> Option<Instance> {
    let conditions = instance.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    conditions::is_true_for(conditions, QUOTA_GRANTED, instance.metadata.generation)
        .then(|| without(instance, GATE_QUOTA))
        .flatten()
}

/// The instance without its `Network` gate, when the networks are ready; `None` when there is nothing to drop.
pub fn network_dropped(instance: &Instance, networks: &NetworkState) -> Option<Instance> {
    matches!(networks, NetworkState::Ready).then(|| without(instance, GATE_NETWORK)).flatten()
}

fn without(instance: &Instance, gate: &str) -> Option<Instance> {
    if !has(instance, gate) {
        return None;
    }
    let mut instance = instance.clone();
    instance.spec.controller.as_mut()?.scheduling_gates.retain(|standing| standing.name != gate);
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
    fn a_grant_for_this_generation_drops_the_quota_gate_and_no_other() {
        let after = quota_dropped(&granted("True", Some(1))).unwrap();
        assert_eq!(of(&after), mk_gates(&["Network"]));
    }

    #[test]
    fn a_grant_for_an_older_generation_drops_nothing() {
        let mut instance = granted("True", Some(1));
        instance.metadata.generation = Some(2);
        assert_eq!(quota_dropped(&instance), None);
    }

    #[test]
    fn a_grant_that_names_no_generation_drops_nothing() {
        assert_eq!(quota_dropped(&granted("True", None)), None);
    }

    #[test]
    fn a_refusal_or_silence_drops_nothing() {
        assert_eq!(quota_dropped(&granted("False", Some(1))), None);
        assert_eq!(quota_dropped(&granted("Unknown", Some(1))), None);
        assert_eq!(quota_dropped(&mk_instance(&mk_deployment("web"), 0)), None);
    }

    #[test]
    fn ready_networks_drop_the_network_gate() {
        let instance = mk_instance(&mk_deployment("web"), 0);
        assert_eq!(of(&network_dropped(&instance, &NetworkState::Ready).unwrap()), mk_gates(&["Quota"]));
        assert_eq!(network_dropped(&instance, &NetworkState::Pending("soon".into())), None);
        assert_eq!(network_dropped(&instance, &NetworkState::Refused("no".into())), None);
    }

    #[test]
    fn a_gate_that_is_gone_is_not_dropped_again() {
        let mut instance = granted("True", Some(1));
        instance.spec.controller.as_mut().unwrap().scheduling_gates = mk_gates(&["ReferencedData"]);
        assert_eq!(quota_dropped(&instance), None);
        assert_eq!(network_dropped(&instance, &NetworkState::Ready), None);
        instance.spec.controller = None;
        assert_eq!(quota_dropped(&instance), None);
    }

    #[test]
    fn the_fingerprint_stays_when_gates_go() {
        let before = granted("True", Some(1));
        let after = quota_dropped(&before).unwrap();
        assert_eq!(
            after.spec.controller.unwrap().template_hash,
            before.spec.controller.unwrap().template_hash
        );
    }
}
