//! Significant status changes: those that are copied to another plane without delay.
//!
//! Between two significant states an object passes through several others: a gate is removed, a counter
//! changes, a reason is replaced. A controller that copies a status writes a significant change at once and
//! coalesces the others, so that the start of an instance costs one write instead of five. The states that
//! are never written lasted too briefly to be useful.

use polis_api::compute::{InstanceStatus, WorkloadDeploymentStatus, WorkloadStatus};
use polis_api::conditions::{AVAILABLE, READY, WITHDRAWN};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::{conditions, contact};

/// Whether an instance becomes ready or stops being ready.
pub fn of_instance(before: Option<&InstanceStatus>, after: &InstanceStatus) -> bool {
    changed(before.map(|status| &*status.conditions), &after.conditions, READY)
}

/// Whether the availability of a deployment, its number of ready instances, the state of its teardown or the
/// contact with its cell changes.
pub fn of_deployment(before: Option<&WorkloadDeploymentStatus>, after: &WorkloadDeploymentStatus) -> bool {
    let withdrawn = |conditions: &[Condition]| {
        conditions::find(conditions, WITHDRAWN).map(|condition| condition.status.clone())
    };
    changed(before.map(|status| &*status.conditions), &after.conditions, AVAILABLE)
        || before.and_then(|status| withdrawn(&status.conditions)) != withdrawn(&after.conditions)
        || before.map_or(0, |status| status.ready_replicas) != after.ready_replicas
        || contact_changed(before.map(|status| &*status.conditions), &after.conditions)
}

/// Whether the availability of a workload, its number of ready instances or the contact with its cells
/// changes.
pub fn of_workload(before: Option<&WorkloadStatus>, after: &WorkloadStatus) -> bool {
    changed(before.map(|status| &*status.conditions), &after.conditions, AVAILABLE)
        || contact_changed(before.map(|status| &*status.conditions), &after.conditions)
        || before.map_or(0, |status| status.ready_replicas) != after.ready_replicas
}

fn contact_changed(before: Option<&[Condition]>, after: &[Condition]) -> bool {
    contact::lost(before.unwrap_or_default()) != contact::lost(after)
}

fn changed(before: Option<&[Condition]>, after: &[Condition], kind: &str) -> bool {
    before.is_some_and(|before| conditions::is_true(before, kind)) != conditions::is_true(after, kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::mk_condition;

    fn mk_instance(status: &str, reason: &str) -> InstanceStatus {
        InstanceStatus { conditions: vec![mk_condition(READY, status, reason)], ..Default::default() }
    }

    #[test]
    fn an_instance_changes_significantly_when_it_becomes_ready_or_stops_being_ready() {
        let (waits, starts) =
            (mk_instance("False", "SchedulingGatesPresent"), mk_instance("Unknown", "Pending"));
        let runs = mk_instance("True", "Ready");
        assert!(!of_instance(None, &waits));
        assert!(!of_instance(Some(&waits), &starts));
        assert!(of_instance(Some(&starts), &runs));
        assert!(of_instance(None, &runs));
        assert!(of_instance(Some(&runs), &waits));
    }

    #[test]
    fn a_deployment_changes_significantly_with_every_instance_that_becomes_ready() {
        let mk = |available: &str, replicas: i32, ready: i32| WorkloadDeploymentStatus {
            replicas,
            ready_replicas: ready,
            conditions: vec![mk_condition(AVAILABLE, available, "x")],
            ..Default::default()
        };
        assert!(!of_deployment(None, &mk("False", 0, 0)));
        assert!(!of_deployment(Some(&mk("False", 0, 0)), &mk("False", 1, 0)));
        assert!(of_deployment(Some(&mk("False", 1, 0)), &mk("True", 1, 1)));
        assert!(!of_deployment(Some(&mk("True", 1, 1)), &mk("True", 2, 1)));
        assert!(of_deployment(Some(&mk("True", 2, 1)), &mk("True", 2, 2)));
        let mut ending = mk("False", 1, 0);
        ending.conditions.push(mk_condition(WITHDRAWN, "False", "InstancesEnding"));
        assert!(of_deployment(Some(&mk("False", 1, 0)), &ending), "the cell reports on a teardown");
        assert!(!of_deployment(Some(&ending), &ending.clone()));
    }

    #[test]
    fn lost_contact_is_significant_even_if_nothing_was_available() {
        let mk = |status: &str, reason: &str| WorkloadStatus {
            conditions: vec![mk_condition(READY, status, reason)],
            ..Default::default()
        };
        let (starting, silent) = (mk("False", "RolloutInProgress"), mk("Unknown", "CellSilent"));
        assert!(of_workload(Some(&starting), &silent));
        assert!(of_workload(Some(&silent), &starting));
        assert!(!of_workload(Some(&silent), &silent));
    }

    #[test]
    fn a_workload_changes_significantly_with_its_availability_or_ready_count() {
        let mk = |available: &str, deployments: i32, ready: i32| WorkloadStatus {
            deployments,
            ready_replicas: ready,
            conditions: vec![mk_condition(AVAILABLE, available, "x")],
            ..Default::default()
        };
        assert!(!of_workload(None, &mk("False", 1, 0)));
        assert!(of_workload(Some(&mk("False", 1, 0)), &mk("True", 1, 1)));
        assert!(!of_workload(Some(&mk("True", 1, 1)), &mk("True", 2, 1)));
    }
}
