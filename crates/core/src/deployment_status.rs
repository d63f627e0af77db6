//! The status of a WorkloadDeployment in its cell.
//!
//! Counters of instances (the schema requires all but `updatedReplicas`):
//! - `replicas`: exist; `desiredReplicas`: should exist;
//! - `updatedReplicas`: have the newest template, ready or not;
//! - `currentReplicas`: have the newest template, and their provider has applied it;
//! - `readyReplicas`: are ready.
//!
//! `Available` is True when one instance is ready; otherwise its reason is the worst cause. `ReplicasReady`
//! reports only what blocks replicas from outside (quota), so it is True even while no instance has started.
//! The conditions of the rollout are those of [`crate::rollout`].
//! `Withdrawn` exists only while the project is deleting the deployment (see [`crate::teardown`]).

use std::time::Duration;

use polis_api::compute::{Instance, WorkloadDeployment, WorkloadDeploymentStatus};
use polis_api::conditions::{
    AVAILABLE, PROGRAMMED, QUOTA_GRANTED, READY, REFERENCED_DATA_READY, REPLICAS_READY, WITHDRAWN,
};
use polis_api::{ObjectExt, labels, reasons};

use crate::conditions::{self, DesiredCondition};
use crate::instances::{self, InstanceAction, WaitReason};
use crate::networks::NetworkState;
use crate::referenced_data::{self, DeliveryState};
use crate::rollout::{self, DeploymentRollout, Rollout};
use crate::{Time, canonical, ranking, source_revision, suspension, teardown, template};

/// The observed state that the status of a deployment is computed from.
#[derive(Clone, Copy, Debug)]
pub struct DeploymentStatusInput<'a> {
    /// Instances of the namespace; those of other deployments are ignored.
    pub instances: &'a [Instance],
    /// The state of its networks.
    pub networks: &'a NetworkState,
    /// The state of the config maps and secrets that it refers to.
    pub data: &'a DeliveryState,
    /// Name of the cell.
    pub cell: Option<&'a str>,
    /// The city that the cell serves, if it is known.
    pub city: Option<&'a str>,
    /// The next action on its instances.
    pub action: Option<&'a InstanceAction>,
}

/// The status that a deployment should have, or `None` if it is up to date.
pub fn status(
    deployment: &WorkloadDeployment,
    input: &DeploymentStatusInput,
    now: &Time,
) -> Option<WorkloadDeploymentStatus> {
    let existing = deployment.status.clone();
    let owned = owned(deployment, input);
    let updated = updated(deployment, &owned);

    let mut status = existing.clone().unwrap_or_default();
    status.replicas = count(owned.len());
    status.desired_replicas = count(instances::desired(deployment) as usize);
    status.updated_replicas = Some(count(updated.len()));
    status.current_replicas = count(updated.iter().filter(|instance| is_applied(instance)).count());
    status.ready_replicas = count(owned.iter().filter(|instance| instances::is_ready(instance)).count());
    status.observed_generation = deployment.metadata.generation;
    status.selector = Some(format!("{}={}", labels::WORKLOAD_DEPLOYMENT_UID, deployment.uid()));
    status.suspended = suspension::requested(deployment);
    status.source_revision = source_revision::observed(deployment);
    if let Some(cell) = input.cell {
        status.cell = Some(cell.to_owned());
    }
    let generation = deployment.metadata.generation;
    for condition in [available(deployment, &owned, input), replicas_ready(&owned)] {
        conditions::set(&mut status.conditions, &condition, generation, now);
    }
    match referenced_data::deployment_condition(input.data, &owned) {
        Some(data) => _ = conditions::set(&mut status.conditions, &data, generation, now),
        None => status.conditions.retain(|condition| condition.type_ != REFERENCED_DATA_READY),
    }
    let rollout = rollout_of(deployment, input, &owned, updated.len(), now);
    rollout::apply(&mut status.conditions, &rollout.state, generation, now);
    match teardown::cell_report(deployment, &owned) {
        Some(report) => _ = conditions::set(&mut status.conditions, &report, generation, now),
        None => status.conditions.retain(|condition| condition.type_ != WITHDRAWN),
    }
    let unchanged = existing.is_some_and(|existing| canonical::same(&existing, &status));
    (!unchanged).then_some(status)
}

/// When the status may change although no object does: a rollout without progress becomes stuck then.
pub fn recheck(
    deployment: &WorkloadDeployment,
    input: &DeploymentStatusInput,
    now: &Time,
) -> Option<Duration> {
    let owned = owned(deployment, input);
    rollout_of(deployment, input, &owned, updated(deployment, &owned).len(), now).recheck
}

/// The instances of the deployment, by name.
fn owned<'a>(deployment: &WorkloadDeployment, input: &DeploymentStatusInput<'a>) -> Vec<&'a Instance> {
    let mut owned: Vec<_> =
        input.instances.iter().filter(|instance| instances::belongs(instance, deployment)).collect();
    owned.sort_by_key(|instance| instance.name());
    owned
}

/// Those of the instances that have the newest template.
fn updated<'a>(deployment: &WorkloadDeployment, owned: &[&'a Instance]) -> Vec<&'a Instance> {
    let hash = template::hash(&deployment.spec.template);
    let is_current = |instance: &&Instance| template::is_current(instance, &deployment.spec.template, &hash);
    owned.iter().copied().filter(is_current).collect()
}

fn rollout_of(
    deployment: &WorkloadDeployment,
    input: &DeploymentStatusInput,
    owned: &[&Instance],
    updated: usize,
    now: &Time,
) -> Rollout {
    let outside = outside_causes(deployment, owned, input);
    let existing = deployment.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let input = DeploymentRollout {
        existing,
        generation: deployment.metadata.generation,
        owned,
        updated,
        desired: instances::desired(deployment) as usize,
        outside: &outside,
        suspended: suspension::requested(deployment) == Some(true),
    };
    rollout::of_deployment(&input, now)
}

/// Converts a length; an API server cannot hold enough objects to exceed an `i32`.
fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// Whether the provider has applied the template of the instance.
fn is_applied(instance: &Instance) -> bool {
    let Some(status) = &instance.status else { return false };
    let observed = status.controller.as_ref().map(|controller| controller.observed_template_hash.as_str());
    conditions::is_true(&status.conditions, PROGRAMMED)
        && observed.is_some()
        && observed == template::instance_hash(instance)
}

fn denied_quota(owned: &[&Instance]) -> usize {
    let denied = |instance: &&&Instance| {
        instance.status.as_ref().is_some_and(|status| conditions::is_false(&status.conditions, QUOTA_GRANTED))
    };
    owned.iter().filter(denied).count()
}

fn available(
    deployment: &WorkloadDeployment,
    owned: &[&Instance],
    input: &DeploymentStatusInput,
) -> DesiredCondition {
    let ready = owned.iter().filter(|instance| instances::is_ready(instance)).count();
    if ready > 0 {
        return DesiredCondition::new_true(
            AVAILABLE,
            reasons::STABLE_INSTANCE_FOUND,
            format!("{ready} of {} instances are ready", owned.len()),
        );
    }
    let causes = outside_causes(deployment, owned, input);
    let fallback = (reasons::PROVISIONING_INSTANCES, String::new());
    let (reason, message) = ranking::worst(causes, |(reason, _)| reason).unwrap_or(fallback);
    DesiredCondition::new_false(AVAILABLE, reason, message)
}

/// What holds back the instances, apart from their own states.
fn outside_causes(
    deployment: &WorkloadDeployment,
    owned: &[&Instance],
    input: &DeploymentStatusInput,
) -> Vec<(&'static str, String)> {
    let mut causes = vec![(reasons::PROVISIONING_INSTANCES, not_ready_message(owned, input.action))];
    match input.networks {
        NetworkState::Ready => {}
        NetworkState::Pending(message) => causes.push((reasons::PROVISIONING_NETWORK, message.clone())),
        NetworkState::Unserved(message) => causes.push((reasons::NO_MATCHING_LOCATION, message.clone())),
        NetworkState::Refused(message) => causes.push((reasons::NETWORK_FAILED_TO_CREATE, message.clone())),
    }
    if let Some(why) = input.data.cause() {
        causes.push((reasons::REFERENCED_DATA_NOT_READY, why.message.clone()));
    }
    if denied_quota(owned) > 0 {
        causes.push((
            reasons::QUOTA_NOT_GRANTED,
            format!("quota was denied for {} instances", denied_quota(owned)),
        ));
    }
    if let Some(city) = input.city.filter(|city| *city != deployment.spec.city_code) {
        let message =
            format!("this cell serves city {city}, the deployment is for {}", deployment.spec.city_code);
        causes.push((reasons::CITY_CODE_MISMATCH, message));
    }
    causes
}

/// Why no instance is ready: the reason why the plan waits, else the worst reason of the instances.
fn not_ready_message(owned: &[&Instance], action: Option<&InstanceAction>) -> String {
    match action {
        Some(InstanceAction::Wait { name, reason: WaitReason::NameTooLong }) => {
            return format!(
                "instance name {name} is longer than 63 characters; use a deployment with a shorter name"
            );
        }
        Some(InstanceAction::Wait { name, reason: WaitReason::NameTaken }) => {
            return format!("instance {name} exists and does not belong to this deployment; delete it");
        }
        _ => {}
    }
    let causes = owned.iter().filter_map(|instance| {
        let ready = conditions::find(&instance.status.as_ref()?.conditions, READY)?;
        Some((instance.name(), ready.reason.as_str()))
    });
    match ranking::worst(causes, |(_, reason)| reason) {
        Some((name, reason)) => format!("no instance is ready; {name}: {reason}"),
        None if owned.is_empty() => "no instance exists yet".into(),
        None => "no instance is ready yet".into(),
    }
}

fn replicas_ready(owned: &[&Instance]) -> DesiredCondition {
    match denied_quota(owned) {
        0 => DesiredCondition::new_true(REPLICAS_READY, reasons::REPLICAS_AVAILABLE, ""),
        denied => DesiredCondition::new_false(
            REPLICAS_READY,
            reasons::QUOTA_EXCEEDED,
            format!("quota was denied for {denied} instances"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata;
    use crate::testing::{
        at, deleting, mk_condition, mk_deployment, mk_deployment_of, mk_instance, mk_template, ready,
        with_conditions,
    };
    use polis_api::annotations::{SUSPENDED, WITHDRAWN_AT};

    const READY_NETWORKS: NetworkState = NetworkState::Ready;
    const NO_DATA: DeliveryState = DeliveryState::Unused;

    fn input(instances: &[Instance]) -> DeploymentStatusInput<'_> {
        DeploymentStatusInput {
            instances,
            networks: &READY_NETWORKS,
            data: &NO_DATA,
            cell: Some("dfw-1"),
            city: None,
            action: None,
        }
    }

    fn status_of(deployment: &WorkloadDeployment, input: DeploymentStatusInput) -> WorkloadDeploymentStatus {
        status(deployment, &input, &at(5)).unwrap()
    }

    fn condition<'a>(status: &'a WorkloadDeploymentStatus, kind: &str) -> (&'a str, &'a str) {
        let condition = conditions::find(&status.conditions, kind).unwrap();
        (condition.status.as_str(), condition.reason.as_str())
    }

    fn mk_denied(ordinal: u32) -> Instance {
        with_conditions(
            mk_instance(&mk_deployment("web"), ordinal),
            vec![mk_condition("QuotaGranted", "False", "QuotaExceeded")],
        )
    }

    #[test]
    fn counters_count_existing_updated_current_and_ready_instances() {
        let deployment = mk_deployment_of("web", 4);
        let mut old = ready(mk_instance(&deployment, 0));
        old.spec.controller.as_mut().unwrap().template_hash = "0123456789abcdef".into();
        let mut unobserved = ready(mk_instance(&deployment, 2));
        unobserved.status.as_mut().unwrap().controller = None;
        let instances = [old, ready(mk_instance(&deployment, 1)), unobserved];
        let status = status_of(&deployment, input(&instances));
        assert_eq!(
            (
                status.replicas,
                status.desired_replicas,
                status.updated_replicas,
                status.current_replicas,
                status.ready_replicas
            ),
            (3, 4, Some(2), 1, 3)
        );
    }

    #[test]
    fn an_instance_of_another_implementation_counts_by_its_own_template_hash() {
        let deployment = mk_deployment("web");
        let mut adopted = mk_instance(&deployment, 0);
        adopted.spec.controller.as_mut().unwrap().template_hash = "6b7c9d4f".into();
        let status = status_of(&deployment, input(&[ready(adopted)]));
        assert_eq!((status.updated_replicas, status.current_replicas), (Some(1), 1));
    }

    #[test]
    fn instances_of_other_deployments_are_not_counted() {
        let mut other = ready(mk_instance(&mk_deployment("web"), 0));
        other.metadata.owner_references.as_mut().unwrap()[0].uid = "uid-other".into();
        assert_eq!(status_of(&mk_deployment("web"), input(&[other])).replicas, 0);
    }

    #[test]
    fn one_ready_instance_makes_the_deployment_available() {
        let deployment = mk_deployment_of("web", 2);
        let status = status_of(&deployment, input(&[ready(mk_instance(&deployment, 0)), mk_denied(1)]));
        assert_eq!(condition(&status, "Available"), ("True", "StableInstanceFound"));
        assert_eq!(condition(&status, "ReplicasReady"), ("False", "QuotaExceeded"));
    }

    #[test]
    fn without_a_ready_instance_the_worst_cause_is_reported() {
        let (pending, refused) = (NetworkState::Pending("soon".into()), NetworkState::Refused("no".into()));
        let (starting, denied) = ([mk_instance(&mk_deployment("web"), 0)], [mk_denied(0)]);
        let all = DeploymentStatusInput { networks: &refused, city: Some("ord"), ..input(&denied) };
        let table = [
            (input(&[]), "ProvisioningInstances"),
            (input(&starting), "ProvisioningInstances"),
            (DeploymentStatusInput { networks: &pending, ..input(&starting) }, "ProvisioningNetwork"),
            (DeploymentStatusInput { networks: &pending, ..input(&denied) }, "QuotaNotGranted"),
            (DeploymentStatusInput { networks: &refused, ..input(&denied) }, "NetworkFailedToCreate"),
            (all, "CityCodeMismatch"),
        ];
        for (input, reason) in table {
            let status = status_of(&mk_deployment("web"), input);
            assert_eq!(condition(&status, "Available"), ("False", reason));
        }
    }

    #[test]
    fn the_message_names_the_blocking_instance() {
        let crashing = with_conditions(
            mk_instance(&mk_deployment("web"), 0),
            vec![mk_condition("Ready", "False", "InstanceCrashing")],
        );
        let status = status_of(&mk_deployment("web"), input(&[crashing]));
        assert_eq!(status.conditions[0].message, "no instance is ready; web-0: InstanceCrashing");
        let action = InstanceAction::Wait { name: "web-0".into(), reason: WaitReason::NameTaken };
        let status =
            status_of(&mk_deployment("web"), DeploymentStatusInput { action: Some(&action), ..input(&[]) });
        assert_eq!(
            status.conditions[0].message,
            "instance web-0 exists and does not belong to this deployment; delete it"
        );
    }

    #[test]
    fn replicas_are_ready_when_no_quota_is_denied() {
        let status = status_of(&mk_deployment("web"), input(&[]));
        assert_eq!(condition(&status, "ReplicasReady"), ("True", "ReplicasAvailable"));
    }

    #[test]
    fn cell_selector_and_generation_are_reported() {
        let mut deployment = mk_deployment("web");
        deployment.metadata.generation = Some(3);
        let status = status_of(&deployment, input(&[]));
        assert_eq!(status.cell.as_deref(), Some("dfw-1"));
        assert_eq!(status.selector.as_deref(), Some("compute.datumapis.com/workload-deployment-uid=uid-web"));
        assert_eq!(status.observed_generation, Some(3));
        assert!(status.conditions.iter().all(|condition| condition.observed_generation == Some(3)));
    }

    #[test]
    fn suspension_is_reported_when_it_is_requested() {
        let mut deployment = mk_deployment("web");
        assert_eq!(status_of(&deployment, input(&[])).suspended, None);
        deployment.metadata.annotations = Some(metadata::map([(SUSPENDED, "true")]));
        assert_eq!(status_of(&deployment, input(&[])).suspended, Some(true));
    }

    #[test]
    fn a_terminating_deployment_desires_no_replicas() {
        assert_eq!(status_of(&deleting(mk_deployment_of("web", 3)), input(&[])).desired_replicas, 0);
    }

    #[test]
    fn a_withdrawn_deployment_reports_the_instances_that_are_left_until_it_lives_again() {
        let mut deployment = mk_deployment_of("web", 2);
        deployment.metadata.annotations = Some(metadata::map([(WITHDRAWN_AT, "2026-01-01T00:00:00Z")]));
        let instances = [mk_instance(&deployment, 0), mk_instance(&deployment, 1)];
        let status = status_of(&deployment, input(&instances));
        assert_eq!((status.replicas, status.desired_replicas), (2, 0));
        assert_eq!(condition(&status, "Withdrawn"), ("False", "InstancesEnding"));
        let message = &conditions::find(&status.conditions, "Withdrawn").unwrap().message;
        assert_eq!(message, "2 instances are ending: web-0 to web-1");
        deployment.status = Some(status);
        let status = status_of(&deployment, input(&[]));
        assert_eq!(condition(&status, "Withdrawn"), ("True", "InstancesEnded"));
        deployment.status = Some(status);
        deployment.metadata.annotations = None;
        assert_eq!(conditions::find(&status_of(&deployment, input(&[])).conditions, "Withdrawn"), None);
    }

    #[test]
    fn an_unchanged_status_is_not_written_again() {
        let mut deployment = mk_deployment_of("web", 2);
        let instances = [ready(mk_instance(&deployment, 0)), mk_denied(1)];
        deployment.status = status(&deployment, &input(&instances), &at(5));
        assert_eq!(status(&deployment, &input(&instances), &at(99)), None);
        let reversed: Vec<_> = instances.iter().rev().cloned().collect();
        assert_eq!(status(&deployment, &input(&reversed), &at(99)), None);
        deployment.spec.template = mk_template("app:2");
        assert!(status(&deployment, &input(&instances), &at(99)).is_some());
    }
}
