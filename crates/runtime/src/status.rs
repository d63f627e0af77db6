//! Computes the status of an Instance from its provider's report.
//!
//! The runtime writes `Programmed`, `Running`, `ContainersReady` of instances with readiness probes, the
//! fingerprint of the running template, and addresses. It never writes `Ready` or `QuotaGranted`: other
//! controllers of the cell derive those. An instance whose first port does not accept connections yet, or
//! whose startup probe has not succeeded, has `Running` False with reason `Starting`, so `Ready` waits for
//! it.

use polis_api::compute::{
    Instance, InstanceControllerStatus, InstanceNetworkInterfaceStatus, InstanceStatus,
    NetworkInterfaceAssignments,
};
use polis_api::conditions::{CONTAINERS_READY, PROGRAMMED, RUNNING};
use polis_api::reasons;
use polis_core::conditions::{self, DesiredCondition};
use polis_core::{Time, template};

use crate::provider::{InstancePhase, ProbeReadiness, RunRefusal, RunReport};

/// The status of an instance after a report.
pub fn status(instance: &Instance, report: &RunReport, now: &Time) -> InstanceStatus {
    let programmed = match &report.programmed {
        Ok(()) => {
            let accepted = "the runtime has accepted the instance";
            let message = report.warning.as_ref().map(|warning| format!("{accepted}; {warning}"));
            DesiredCondition::new_true(
                PROGRAMMED,
                reasons::PROGRAMMED,
                message.unwrap_or_else(|| accepted.to_owned()),
            )
        }
        Err(RunRefusal { reason, message }) => {
            DesiredCondition::new_false(PROGRAMMED, *reason, message.clone())
        }
    };
    let readiness = report.readiness.as_ref().map(containers_ready);
    let conditions: Vec<_> = [programmed, running(&report.phase)].into_iter().chain(readiness).collect();
    let mut status = with_conditions(instance, &conditions, now);
    if report.programmed.is_ok()
        && let Some(hash) = template::instance_hash(instance)
    {
        status.controller = Some(InstanceControllerStatus { observed_template_hash: hash.to_owned() });
    }
    if let Some(address) = &report.address {
        assign(&mut status, instance.spec.network_interfaces.len(), address);
    }
    status
}

/// As [`status`], with only the condition `Running`: the instance is suspended or being deleted.
pub fn with_running(instance: &Instance, running: DesiredCondition, now: &Time) -> InstanceStatus {
    with_conditions(instance, &[running], now)
}

/// The condition `Running` of a phase.
pub fn running(phase: &InstancePhase) -> DesiredCondition {
    match phase {
        InstancePhase::Starting(what) => {
            DesiredCondition::new_false(RUNNING, reasons::STARTING, what.clone())
        }
        InstancePhase::Up(location) => {
            DesiredCondition::new_true(RUNNING, reasons::RUNNING, location.clone())
        }
        InstancePhase::Crashing(what) => {
            DesiredCondition::new_false(RUNNING, reasons::INSTANCE_CRASHING, what.clone())
        }
        InstancePhase::Stopping => {
            DesiredCondition::new_false(RUNNING, reasons::STOPPING, "the instance is being stopped")
        }
        InstancePhase::Stopped => DesiredCondition::new_false(RUNNING, reasons::STOPPED, "no container runs"),
    }
}

fn containers_ready(readiness: &ProbeReadiness) -> DesiredCondition {
    match readiness {
        ProbeReadiness::Ready => DesiredCondition::new_true(
            CONTAINERS_READY,
            reasons::CONTAINERS_READY,
            "all readiness probes succeed",
        ),
        ProbeReadiness::NotReady(why) => {
            DesiredCondition::new_false(CONTAINERS_READY, reasons::CONTAINERS_NOT_READY, why.clone())
        }
    }
}

/// The condition `Running` of a suspended instance.
pub fn suspended() -> DesiredCondition {
    DesiredCondition::new_false(
        RUNNING,
        reasons::SUSPENDED,
        "the instance is suspended: no container runs until it is resumed",
    )
}

fn with_conditions(instance: &Instance, conditions: &[DesiredCondition], now: &Time) -> InstanceStatus {
    let mut status = instance.status.clone().unwrap_or_default();
    for condition in conditions {
        conditions::set(&mut status.conditions, condition, instance.metadata.generation, now);
    }
    status
}

/// Sets the address of the first interface. The status has one entry per interface; other fields stay.
fn assign(status: &mut InstanceStatus, interfaces: usize, address: &str) {
    let entries = &mut status.network_interfaces;
    if entries.len() < interfaces {
        entries.resize(interfaces, InstanceNetworkInterfaceStatus::default());
    }
    if let Some(first) = entries.first_mut() {
        first.assignments.get_or_insert_with(NetworkInterfaceAssignments::default).network_ip =
            Some(address.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use polis_api::compute::{InstanceController, InstanceNetworkInterface};
    use polis_api::k8s_openapi::jiff::Timestamp;

    fn at(second: i64) -> Time {
        Time(Timestamp::from_second(second).unwrap())
    }

    fn mk_instance() -> Instance {
        let mut instance = Instance::default();
        instance.metadata.generation = Some(2);
        instance.spec.network_interfaces = vec![InstanceNetworkInterface::default(); 2];
        instance.spec.controller =
            Some(InstanceController { template_hash: "h1".into(), scheduling_gates: Vec::new() });
        instance
    }

    fn mk_report(phase: InstancePhase) -> RunReport {
        let address = Some("127.20.0.9".into());
        RunReport { programmed: Ok(()), warning: None, readiness: None, phase, address, requeue_after: None }
    }

    fn conditions_of(status: &InstanceStatus) -> Vec<(&str, &str, &str)> {
        status.conditions.iter().map(|c| (&*c.type_, &*c.status, &*c.reason)).collect()
    }

    #[test]
    fn a_running_instance_is_reported_once_with_hash_and_address() {
        let mut instance = mk_instance();
        let report = mk_report(InstancePhase::Up("listens".into()));
        let updated = status(&instance, &report, &at(5));
        assert_eq!(
            conditions_of(&updated),
            [("Programmed", "True", "Programmed"), ("Running", "True", "Running")]
        );
        assert_eq!(updated.controller.as_ref().unwrap().observed_template_hash, "h1");
        let addresses: Vec<_> = updated
            .network_interfaces
            .iter()
            .map(|entry| entry.assignments.as_ref().and_then(|given| given.network_ip.as_deref()))
            .collect();
        assert_eq!(addresses, [Some("127.20.0.9"), None]);
        instance.status = Some(updated.clone());
        assert_eq!(status(&instance, &report, &at(9)), updated);
    }

    #[test]
    fn every_phase_has_a_reason() {
        let table = [
            (InstancePhase::Starting("waits".into()), "False", "Starting"),
            (InstancePhase::Crashing("3 times".into()), "False", "InstanceCrashing"),
            (InstancePhase::Stopping, "False", "Stopping"),
            (InstancePhase::Stopped, "False", "Stopped"),
        ];
        for (phase, truth, reason) in table {
            let updated = status(&mk_instance(), &mk_report(phase.clone()), &at(5));
            assert_eq!(conditions_of(&updated)[1], ("Running", truth, reason), "{phase:?}");
        }
    }

    #[test]
    fn readiness_is_a_condition_of_its_own_where_probes_exist() {
        for (readiness, truth, reason) in [
            (ProbeReadiness::Ready, "True", "ContainersReady"),
            (ProbeReadiness::NotReady("container app: HTTP 503".into()), "False", "ContainersNotReady"),
        ] {
            let report =
                RunReport { readiness: Some(readiness), ..mk_report(InstancePhase::Up("up".into())) };
            let updated = status(&mk_instance(), &report, &at(5));
            assert_eq!(conditions_of(&updated)[2], ("ContainersReady", truth, reason));
        }
    }

    #[test]
    fn a_host_without_isolation_is_named_in_the_message_of_programmed() {
        let report =
            RunReport { warning: Some("no Landlock".to_owned()), ..mk_report(InstancePhase::Stopped) };
        let updated = status(&mk_instance(), &report, &at(5));
        assert_eq!(updated.conditions[0].message, "the runtime has accepted the instance; no Landlock");
    }

    #[test]
    fn a_refusal_reports_no_hash() {
        let refusal = RunRefusal { reason: reasons::IMAGE_UNAVAILABLE, message: "use another".into() };
        let updated = status(&mk_instance(), &RunReport::refused(refusal), &at(5));
        assert_eq!(
            conditions_of(&updated),
            [("Programmed", "False", "ImageUnavailable"), ("Running", "False", "Stopped")]
        );
        assert_eq!(updated.controller, None);
        assert!(updated.network_interfaces.is_empty());
    }

    #[test]
    fn conditions_of_other_controllers_stay() {
        let mut instance = mk_instance();
        instance.status =
            Some(with_conditions(&instance, &[DesiredCondition::new_true("Ready", "Running", "")], &at(1)));
        instance.status.as_mut().unwrap().suspended = Some(false);
        let updated = status(&instance, &mk_report(InstancePhase::Stopped), &at(5));
        assert_eq!(updated.conditions[0], instance.status.as_ref().unwrap().conditions[0]);
        assert_eq!(updated.suspended, Some(false));
    }
}
