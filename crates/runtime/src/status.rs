//! What a provider's report means for the status of an instance.
//!
//! A provider writes `Programmed`, `Running`, the fingerprint of the template it has put to work, and addresses. It never
//! writes `Ready` or `QuotaGranted`: those are derived by the cell. An instance that runs and whose first port does not
//! answer yet is `Starting`, so `Ready` waits for the port.

use polis_api::compute::{
    Instance, InstanceControllerStatus, InstanceNetworkInterfaceStatus, InstanceStatus,
    NetworkInterfaceAssignments,
};
use polis_api::conditions::{PROGRAMMED, RUNNING};
use polis_api::reasons;
use polis_core::conditions::{self, Verdict};
use polis_core::{Time, template};

use crate::provider::{Phase, Refusal, Report};

/// The status of an instance after its provider has had its say, or `None` when nothing changes.
pub fn status(instance: &Instance, report: &Report, now: &Time) -> Option<InstanceStatus> {
    let programmed = match &report.programmed {
        Ok(()) => Verdict::yes(PROGRAMMED, reasons::PROGRAMMED, "the runtime has taken the instance over"),
        Err(Refusal { reason, message }) => Verdict::no(PROGRAMMED, *reason, message.clone()),
    };
    let mut status = said(instance, &[programmed, running(&report.phase)], now);
    if report.programmed.is_ok()
        && let Some(hash) = template::fingerprint(instance)
    {
        status.controller = Some(InstanceControllerStatus { observed_template_hash: hash.to_owned() });
    }
    if let Some(address) = &report.address {
        assign(&mut status, instance.spec.network_interfaces.len(), address);
    }
    changed(instance, status)
}

/// As [`status`], for an instance that is suspended or on its way out.
pub fn withdrawn(instance: &Instance, verdict: Verdict, now: &Time) -> Option<InstanceStatus> {
    changed(instance, said(instance, &[verdict], now))
}

/// What `Running` says in a phase.
pub fn running(phase: &Phase) -> Verdict {
    match phase {
        Phase::Starting(what) => Verdict::no(RUNNING, reasons::STARTING, what.clone()),
        Phase::Up(place) => Verdict::yes(RUNNING, reasons::RUNNING, place.clone()),
        Phase::Crashing(what) => Verdict::no(RUNNING, reasons::INSTANCE_CRASHING, what.clone()),
        Phase::Stopping => Verdict::no(RUNNING, reasons::STOPPING, "the instance is being stopped"),
        Phase::Stopped => Verdict::no(RUNNING, reasons::STOPPED, "nothing runs"),
    }
}

/// What `Running` says of an instance that is suspended.
pub fn suspended() -> Verdict {
    Verdict::no(
        RUNNING,
        reasons::SUSPENDED,
        "the instance is suspended: nothing runs until that is taken back",
    )
}

fn said(instance: &Instance, verdicts: &[Verdict], now: &Time) -> InstanceStatus {
    let mut status = instance.status.clone().unwrap_or_default();
    for verdict in verdicts {
        conditions::set(&mut status.conditions, verdict, instance.metadata.generation, now);
    }
    status
}

fn changed(instance: &Instance, status: InstanceStatus) -> Option<InstanceStatus> {
    (instance.status.as_ref() != Some(&status)).then_some(status)
}

/// Gives the first interface its address. There is one entry per interface; what others say stays.
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

    fn mk_report(phase: Phase) -> Report {
        Report { programmed: Ok(()), phase, address: Some("127.20.0.9".into()), again: None }
    }

    fn says(status: &InstanceStatus) -> Vec<(&str, &str, &str)> {
        status.conditions.iter().map(|c| (&*c.type_, &*c.status, &*c.reason)).collect()
    }

    #[test]
    fn what_runs_is_said_once_with_hash_and_address() {
        let mut instance = mk_instance();
        let report = mk_report(Phase::Up("listens".into()));
        let told = status(&instance, &report, &at(5)).unwrap();
        assert_eq!(says(&told), [("Programmed", "True", "Programmed"), ("Running", "True", "Running")]);
        assert_eq!(told.controller.as_ref().unwrap().observed_template_hash, "h1");
        let addresses: Vec<_> = told
            .network_interfaces
            .iter()
            .map(|entry| entry.assignments.as_ref().and_then(|given| given.network_ip.as_deref()))
            .collect();
        assert_eq!(addresses, [Some("127.20.0.9"), None]);
        instance.status = Some(told);
        assert_eq!(status(&instance, &report, &at(9)), None);
    }

    #[test]
    fn every_phase_has_its_word() {
        let table = [
            (Phase::Starting("waits".into()), "False", "Starting"),
            (Phase::Crashing("3 times".into()), "False", "InstanceCrashing"),
            (Phase::Stopping, "False", "Stopping"),
            (Phase::Stopped, "False", "Stopped"),
        ];
        for (phase, truth, reason) in table {
            let told = status(&mk_instance(), &mk_report(phase.clone()), &at(5)).unwrap();
            assert_eq!(says(&told)[1], ("Running", truth, reason), "{phase:?}");
        }
    }

    #[test]
    fn a_refusal_claims_no_hash() {
        let refusal = Refusal { reason: reasons::IMAGE_UNAVAILABLE, message: "use another".into() };
        let told = status(&mk_instance(), &Report::refused(refusal), &at(5)).unwrap();
        assert_eq!(
            says(&told),
            [("Programmed", "False", "ImageUnavailable"), ("Running", "False", "Stopped")]
        );
        assert_eq!(told.controller, None);
        assert!(told.network_interfaces.is_empty());
    }

    #[test]
    fn what_others_said_stays() {
        let mut instance = mk_instance();
        instance.status = Some(said(&instance, &[Verdict::yes("Ready", "Running", "")], &at(1)));
        instance.status.as_mut().unwrap().suspended = Some(false);
        let told = status(&instance, &mk_report(Phase::Stopped), &at(5)).unwrap();
        assert_eq!(told.conditions[0], instance.status.as_ref().unwrap().conditions[0]);
        assert_eq!(told.suspended, Some(false));
    }
}
