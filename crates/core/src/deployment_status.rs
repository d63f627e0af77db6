//! What a deployment says about itself, in its cell.
//!
//! Four counters that the schema requires, and `updatedReplicas`:
//! - `replicas` exist, `desiredReplicas` should;
//! - `updatedReplicas` carry the newest template, ready or not;
//! - `currentReplicas` carry it and their provider has put it to work;
//! - `readyReplicas` are ready.
//!
//! The deployment is available when one instance is ready. If none is, the worst cause is told. `ReplicasReady` is
//! about what holds replicas back from outside (quota), so it is True even while nothing has started.

use polis_api::compute::{Instance, WorkloadDeployment, WorkloadDeploymentStatus};
use polis_api::conditions::{AVAILABLE, PROGRAMMED, QUOTA_GRANTED, READY, REPLICAS_READY};
use polis_api::{labels, reasons};

use crate::conditions::{self, Verdict};
use crate::instances::{self, Step, Until};
use crate::networks::NetworkState;
use crate::{Time, canonical, owner, ranking, suspension, template};

/// What is known about a deployment in its cell.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Instances of the namespace; those of others are left out here.
    pub instances: &'a [Instance],
    /// How far its networks are.
    pub networks: &'a NetworkState,
    /// Name of the cell.
    pub cell: Option<&'a str>,
    /// The city that the cell serves, where the cell knows it.
    pub city: Option<&'a str>,
    /// The step that the instances are at.
    pub step: Option<&'a Step>,
}

/// The status that a deployment should have, or `None` when it has it.
pub fn status(
    deployment: &WorkloadDeployment,
    facts: &Facts,
    now: &Time,
) -> Option<WorkloadDeploymentStatus> {
    let standing = deployment.status.clone();
    let mut ours: Vec<_> =
        facts.instances.iter().filter(|instance| instances::belongs(instance, deployment)).collect();
    ours.sort_by_key(|instance| owner::name(&instance.metadata));
    let hash = template::hash(&deployment.spec.template);
    let updated: Vec<_> = ours
        .iter()
        .filter(|instance| template::is_current(instance, &deployment.spec.template, &hash))
        .collect();

    let mut status = standing.clone().unwrap_or_default();
    status.replicas = count(ours.len());
    status.desired_replicas = count(instances::desired(deployment) as usize);
    status.updated_replicas = Some(count(updated.len()));
    status.current_replicas = count(updated.iter().filter(|instance| at_work(instance)).count());
    status.ready_replicas = count(ours.iter().filter(|instance| instances::is_ready(instance)).count());
    status.observed_generation = deployment.metadata.generation;
    status.selector =
        Some(format!("{}={}", labels::WORKLOAD_DEPLOYMENT_UID, owner::uid(&deployment.metadata)));
    status.suspended = suspension::wish(deployment);
    if let Some(cell) = facts.cell {
        status.cell = Some(cell.to_owned());
    }
    let generation = deployment.metadata.generation;
    for verdict in [available(deployment, &ours, facts), replicas_ready(&ours)] {
        conditions::set(&mut status.conditions, &verdict, generation, now);
    }
    let unchanged = standing.is_some_and(|standing| canonical::same(&standing, &status));
    (!unchanged).then_some(status)
}

/// Lists are bounded far below this by what an API server holds.
fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// Whether the provider has put the instance's own template to work.
fn at_work(instance: &Instance) -> bool {
    let Some(status) = &instance.status else { return false };
    let observed = status.controller.as_ref().map(|controller| controller.observed_template_hash.as_str());
    conditions::is_true(&status.conditions, PROGRAMMED)
        && observed.is_some()
        && observed == template::fingerprint(instance)
}

fn without_quota(ours: &[&Instance]) -> usize {
    let refused = |instance: &&&Instance| {
        instance.status.as_ref().is_some_and(|status| conditions::is_false(&status.conditions, QUOTA_GRANTED))
    };
    ours.iter().filter(refused).count()
}

fn available(deployment: &WorkloadDeployment, ours: &[&Instance], facts: &Facts) -> Verdict {
    let ready = ours.iter().filter(|instance| instances::is_ready(instance)).count();
    if ready > 0 {
        return Verdict::yes(
            AVAILABLE,
            reasons::STABLE_INSTANCE_FOUND,
            format!("{ready} of {} instances are ready", ours.len()),
        );
    }
    let mut causes = vec![(reasons::PROVISIONING_INSTANCES, in_words(ours, facts.step))];
    match facts.networks {
        NetworkState::Ready => {}
        NetworkState::Pending(words) => causes.push((reasons::PROVISIONING_NETWORK, words.clone())),
        NetworkState::Refused(words) => causes.push((reasons::NETWORK_FAILED_TO_CREATE, words.clone())),
    }
    if without_quota(ours) > 0 {
        causes.push((
            reasons::QUOTA_NOT_GRANTED,
            format!("{} instances were refused quota", without_quota(ours)),
        ));
    }
    if let Some(city) = facts.city.filter(|city| *city != deployment.spec.city_code) {
        let words =
            format!("this cell serves city {city}, the deployment is for {}", deployment.spec.city_code);
        causes.push((reasons::CITY_CODE_MISMATCH, words));
    }
    let fallback = (reasons::PROVISIONING_INSTANCES, String::new());
    let (reason, message) = ranking::worst(causes, |(reason, _)| reason).unwrap_or(fallback);
    Verdict::no(AVAILABLE, reason, message)
}

/// Why no instance is ready: what the steps are stuck on, else the worst of the instances' own reasons.
fn in_words(ours: &[&Instance], step: Option<&Step>) -> String {
    match step {
        Some(Step::Wait { name, until: Until::NameFits }) => {
            return format!(
                "instance name {name} is longer than 63 characters; use a deployment with a shorter name"
            );
        }
        Some(Step::Wait { name, until: Until::NameFree }) => {
            return format!("instance {name} exists and belongs to somebody else; remove it");
        }
        _ => {}
    }
    let told = ours.iter().filter_map(|instance| {
        let ready = conditions::find(&instance.status.as_ref()?.conditions, READY)?;
        Some((owner::name(&instance.metadata), ready.reason.as_str()))
    });
    match ranking::worst(told, |(_, reason)| reason) {
        Some((name, reason)) => format!("no instance is ready; {name}: {reason}"),
        None if ours.is_empty() => "no instance exists yet".into(),
        None => "no instance is ready yet".into(),
    }
}

fn replicas_ready(ours: &[&Instance]) -> Verdict {
    match without_quota(ours) {
        0 => Verdict::yes(REPLICAS_READY, reasons::REPLICAS_AVAILABLE, ""),
        refused => Verdict::no(
            REPLICAS_READY,
            reasons::QUOTA_EXCEEDED,
            format!("{refused} instances were refused quota"),
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
    use polis_api::annotations::SUSPENDED;

    const READY_NETWORKS: NetworkState = NetworkState::Ready;

    fn facts(instances: &[Instance]) -> Facts<'_> {
        Facts { instances, networks: &READY_NETWORKS, cell: Some("dfw-1"), city: None, step: None }
    }

    fn status_of(deployment: &WorkloadDeployment, facts: Facts) -> WorkloadDeploymentStatus {
        status(deployment, &facts, &at(5)).unwrap()
    }

    fn told<'a>(status: &'a WorkloadDeploymentStatus, kind: &str) -> (&'a str, &'a str) {
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
    fn counters_count_what_they_say() {
        let deployment = mk_deployment_of("web", 4);
        let mut old = ready(mk_instance(&deployment, 0));
        old.spec.controller.as_mut().unwrap().template_hash = "0123456789abcdef".into();
        let mut unseen = ready(mk_instance(&deployment, 2));
        unseen.status.as_mut().unwrap().controller = None;
        let instances = [old, ready(mk_instance(&deployment, 1)), unseen];
        let status = status_of(&deployment, facts(&instances));
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
    fn an_instance_of_another_implementation_counts_by_its_own_fingerprint() {
        let deployment = mk_deployment("web");
        let mut adopted = mk_instance(&deployment, 0);
        adopted.spec.controller.as_mut().unwrap().template_hash = "6b7c9d4f".into();
        let status = status_of(&deployment, facts(&[ready(adopted)]));
        assert_eq!((status.updated_replicas, status.current_replicas), (Some(1), 1));
    }

    #[test]
    fn instances_of_others_are_not_counted() {
        let mut theirs = ready(mk_instance(&mk_deployment("web"), 0));
        theirs.metadata.owner_references.as_mut().unwrap()[0].uid = "uid-stranger".into();
        assert_eq!(status_of(&mk_deployment("web"), facts(&[theirs])).replicas, 0);
    }

    #[test]
    fn one_ready_instance_makes_it_available() {
        let deployment = mk_deployment_of("web", 2);
        let status = status_of(&deployment, facts(&[ready(mk_instance(&deployment, 0)), mk_denied(1)]));
        assert_eq!(told(&status, "Available"), ("True", "StableInstanceFound"));
        assert_eq!(told(&status, "ReplicasReady"), ("False", "QuotaExceeded"));
    }

    #[test]
    fn without_a_ready_instance_the_worst_cause_is_told() {
        let (pending, refused) = (NetworkState::Pending("soon".into()), NetworkState::Refused("no".into()));
        let (starting, denied) = ([mk_instance(&mk_deployment("web"), 0)], [mk_denied(0)]);
        let all = Facts { networks: &refused, city: Some("ord"), ..facts(&denied) };
        let table = [
            (facts(&[]), "ProvisioningInstances"),
            (facts(&starting), "ProvisioningInstances"),
            (Facts { networks: &pending, ..facts(&starting) }, "ProvisioningNetwork"),
            (Facts { networks: &pending, ..facts(&denied) }, "QuotaNotGranted"),
            (Facts { networks: &refused, ..facts(&denied) }, "NetworkFailedToCreate"),
            (all, "CityCodeMismatch"),
        ];
        for (facts, reason) in table {
            let status = status_of(&mk_deployment("web"), facts);
            assert_eq!(told(&status, "Available"), ("False", reason));
        }
    }

    #[test]
    fn the_message_names_what_stands_in_the_way() {
        let crashing = with_conditions(
            mk_instance(&mk_deployment("web"), 0),
            vec![mk_condition("Ready", "False", "InstanceCrashing")],
        );
        let status = status_of(&mk_deployment("web"), facts(&[crashing]));
        assert_eq!(status.conditions[0].message, "no instance is ready; web-0: InstanceCrashing");
        let step = Step::Wait { name: "web-0".into(), until: Until::NameFree };
        let status = status_of(&mk_deployment("web"), Facts { step: Some(&step), ..facts(&[]) });
        assert_eq!(
            status.conditions[0].message,
            "instance web-0 exists and belongs to somebody else; remove it"
        );
    }

    #[test]
    fn replicas_are_ready_when_nothing_outside_holds_them_back() {
        let status = status_of(&mk_deployment("web"), facts(&[]));
        assert_eq!(told(&status, "ReplicasReady"), ("True", "ReplicasAvailable"));
    }

    #[test]
    fn cell_selector_and_generation_are_told() {
        let mut deployment = mk_deployment("web");
        deployment.metadata.generation = Some(3);
        let status = status_of(&deployment, facts(&[]));
        assert_eq!(status.cell.as_deref(), Some("dfw-1"));
        assert_eq!(status.selector.as_deref(), Some("compute.datumapis.com/workload-deployment-uid=uid-web"));
        assert_eq!(status.observed_generation, Some(3));
        assert!(status.conditions.iter().all(|condition| condition.observed_generation == Some(3)));
    }

    #[test]
    fn suspension_is_told_when_it_was_asked_for() {
        let mut deployment = mk_deployment("web");
        assert_eq!(status_of(&deployment, facts(&[])).suspended, None);
        deployment.metadata.annotations = Some(metadata::map([(SUSPENDED, "true")]));
        assert_eq!(status_of(&deployment, facts(&[])).suspended, Some(true));
    }

    #[test]
    fn a_deployment_on_its_way_out_wants_nothing() {
        assert_eq!(status_of(&deleting(mk_deployment_of("web", 3)), facts(&[])).desired_replicas, 0);
    }

    #[test]
    fn a_status_that_is_right_is_not_written_again() {
        let mut deployment = mk_deployment_of("web", 2);
        let instances = [ready(mk_instance(&deployment, 0)), mk_denied(1)];
        deployment.status = status(&deployment, &facts(&instances), &at(5));
        assert_eq!(status(&deployment, &facts(&instances), &at(99)), None);
        let reversed: Vec<_> = instances.iter().rev().cloned().collect();
        assert_eq!(status(&deployment, &facts(&reversed), &at(99)), None);
        deployment.spec.template = mk_template("app:2");
        assert!(status(&deployment, &facts(&instances), &at(99)).is_some());
    }
}
