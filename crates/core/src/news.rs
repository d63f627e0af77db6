//! News: a change of status that somebody waits for.
//!
//! Between two states that matter an object passes several that do not: a gate opens, a counter moves, a reason gives way
//! to the next. Whoever carries a status to another plane writes news at once, and lets the rest wait for a moment, so
//! that a step of an instance costs one write and not five. What is left out this way is only what nobody could have
//! read in time.

use polis_api::compute::{InstanceStatus, WorkloadDeploymentStatus, WorkloadStatus};
use polis_api::conditions::{AVAILABLE, READY};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::conditions;

/// Of an instance: it becomes ready, or is no longer.
pub fn of_instance(before: Option<&InstanceStatus>, after: &InstanceStatus) -> bool {
    turned(before.map(|status| &*status.conditions), &after.conditions, READY)
}

/// Of a deployment: it becomes available or is no longer, or another number of its instances is ready.
pub fn of_deployment(before: Option<&WorkloadDeploymentStatus>, after: &WorkloadDeploymentStatus) -> bool {
    turned(before.map(|status| &*status.conditions), &after.conditions, AVAILABLE)
        || before.map_or(0, |status| status.ready_replicas) != after.ready_replicas
}

/// Of a workload: the same, over all of its deployments.
pub fn of_workload(before: Option<&WorkloadStatus>, after: &WorkloadStatus) -> bool {
    turned(before.map(|status| &*status.conditions), &after.conditions, AVAILABLE)
        || before.map_or(0, |status| status.ready_replicas) != after.ready_replicas
}

fn turned(before: Option<&[Condition]>, after: &[Condition], kind: &str) -> bool {
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
    fn an_instance_is_news_when_it_becomes_ready_and_when_it_no_longer_is() {
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
    fn a_deployment_is_news_with_every_instance_that_becomes_ready() {
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
    }

    #[test]
    fn a_workload_is_news_when_its_availability_or_its_ready_count_turns() {
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
