//! Scheduling gates: when an instance may start.
//!
//! An instance is created with gates, and no provider starts it while it has one. The cell removes `Network`
//! when the networks of the deployment are ready, `ReferencedData` when the cell has the config maps and
//! secrets that the deployment refers to, and `Quota` when `QuotaGranted` is True for the current generation
//! of the instance. A condition that is True for an older generation does not count. Other gates are never
//! removed.

use polis_api::compute::{GATE_NETWORK, GATE_QUOTA, GATE_REFERENCED_DATA, Instance, SchedulingGate};
use polis_api::conditions::QUOTA_GRANTED;

use crate::conditions;
use crate::networks::NetworkState;
use crate::referenced_data::DeliveryState;

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
        .then(|| without(instance, |gate| gate == GATE_QUOTA))
        .flatten()
}

/// The gates that the deployment controller has to close: those of networks and data that are not ready.
pub fn of_deployment(networks: &NetworkState, data: &DeliveryState) -> Vec<&'static str> {
    let network = (*networks != NetworkState::Ready).then_some(GATE_NETWORK);
    let data = (!data.is_ready()).then_some(GATE_REFERENCED_DATA);
    network.into_iter().chain(data).collect()
}

/// The instance without those of its gates `Network` and `ReferencedData` that are not closed; `None` if
/// there is nothing to remove.
pub fn without_open_gates(instance: &Instance, closed: &[&'static str]) -> Option<Instance> {
    let open = |gate: &str| [GATE_NETWORK, GATE_REFERENCED_DATA].contains(&gate) && !closed.contains(&gate);
    without(instance, open)
}

fn without(instance: &Instance, removed: impl Fn(&str) -> bool) -> Option<Instance> {
    if !of(instance).iter().any(|gate| removed(&gate.name)) {
        return None;
    }
    let mut instance = instance.clone();
    instance.spec.controller.as_mut()?.scheduling_gates.retain(|gate| !removed(&gate.name));
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
        let after = |networks: NetworkState| {
            without_open_gates(&instance, &of_deployment(&networks, &DeliveryState::Unused))
        };
        assert_eq!(of(&after(NetworkState::Ready).unwrap()), mk_gates(&["Quota"]));
        assert_eq!(after(NetworkState::Pending("soon".into())), None);
        assert_eq!(after(NetworkState::Refused("no".into())), None);
    }

    #[test]
    fn delivered_data_removes_its_gate_and_no_other() {
        let mut instance = mk_instance(&mk_deployment("web"), 0);
        let gates = mk_gates(&["Network", "Quota", "ReferencedData", "Other"]);
        instance.spec.controller.as_mut().unwrap().scheduling_gates = gates;
        let networks = NetworkState::Pending("soon".into());
        let why = crate::referenced_data::Failure { reason: "Resolving".into(), message: String::new() };
        let left = |data| {
            let closed = of_deployment(&networks, &data);
            without_open_gates(&instance, &closed).map(|after| of(&after).to_vec())
        };
        for data in [DeliveryState::Ready, DeliveryState::Unused] {
            assert_eq!(left(data), Some(mk_gates(&["Network", "Quota", "Other"])));
        }
        for data in [DeliveryState::Pending(why.clone()), DeliveryState::Failed(why.clone())] {
            assert_eq!(left(data), None);
        }
    }

    #[test]
    fn a_gate_that_is_gone_is_not_removed_again() {
        let mut instance = granted("True", Some(1));
        instance.spec.controller.as_mut().unwrap().scheduling_gates = mk_gates(&["ReferencedData"]);
        assert_eq!(without_quota_gate(&instance), None);
        let closed = [GATE_REFERENCED_DATA];
        assert_eq!(without_open_gates(&instance, &closed), None);
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
