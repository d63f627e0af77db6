//! The status of a Workload.
//!
//! Counters are sums over its deployments, including terminating ones, in total and per placement. Every
//! placement of the spec is listed, sorted by name, even without a deployment; a placement that was removed
//! from the spec is listed until its last deployment is gone. A placement is available when one of its
//! deployments is, the workload when one of its placements is. Otherwise the reason is the worst cause; of
//! equals, that of the first deployment by name. If none is available and one has lost contact (see
//! [`contact`]), `Available` is Unknown. Ready instances are counted only where there is contact.
//!
//! A placement that is available in one city may still lack another. From the first time that the project may
//! not use a city of the placement, the condition `LocationsBound` reports this, and later that all cities
//! may be used again.
//!
//! The conditions of the rollout are those of [`crate::rollout`], over all deployments and over what keeps
//! one from existing: a missing network, or a city that the project may not use.

use std::collections::BTreeMap;
use std::time::Duration;

use polis_api::ObjectExt;
use polis_api::compute::{Workload, WorkloadDeployment, WorkloadPlacementStatus, WorkloadStatus};
use polis_api::conditions::{AVAILABLE, LOCATIONS_BOUND, REFERENCED_DATA_READY};
use polis_api::reasons;

use crate::cities::{Cities, SkippedBinding, skipped_message};
use crate::conditions::{self, ConditionStatus, DesiredCondition};
use crate::ranking::NO_MATCHING_LOCATIONS;
use crate::rollout::{self, Cause, Rollout, RolloutState};
use crate::{Time, canonical, contact, deployments, ranking, teardown};

/// The observed state that the status of a workload is computed from.
#[derive(Clone, Copy, Debug)]
pub struct WorkloadStatusInput<'a> {
    /// Deployments of the namespace; those of other workloads are ignored.
    pub deployments: &'a [WorkloadDeployment],
    /// The cities that the project may use.
    pub cities: &'a Cities,
    /// The LocationBindings that are skipped.
    pub skipped: &'a [SkippedBinding],
    /// Networks of the template that do not exist, as `namespace/name`.
    pub missing_networks: &'a [String],
}

/// The status that a workload should have, or `None` if it is up to date.
pub fn status(workload: &Workload, input: &WorkloadStatusInput, now: &Time) -> Option<WorkloadStatus> {
    let existing = workload.status.clone();
    let generation = workload.metadata.generation;
    let owned = owned(workload, input);
    let placements = placements(workload, &owned);

    let mut status = existing.clone().unwrap_or_default();
    let before = std::mem::take(&mut status.placements);
    let mut placements_available = Vec::new();
    for (name, placement) in &placements {
        let available = placement.available(input);
        let mut entry = WorkloadPlacementStatus { name: name.to_string(), ..Default::default() };
        if let Some(before) = before.iter().find(|before| before.name == *name) {
            entry.conditions = before.conditions.clone();
        }
        conditions::set(&mut entry.conditions, &available, generation, now);
        let known = conditions::find(&entry.conditions, LOCATIONS_BOUND).is_some();
        if let Some(bound) = placement.locations_bound(input).or_else(|| known.then(every_location_bound)) {
            conditions::set(&mut entry.conditions, &bound, generation, now);
        }
        let sums = Sums::over(&placement.deployments);
        entry.replicas = sums.replicas;
        entry.current_replicas = sums.current;
        entry.updated_replicas = Some(sums.updated);
        entry.desired_replicas = sums.desired;
        entry.ready_replicas = sums.ready;
        status.placements.push(entry);
        placements_available.push(available);
    }
    let sums = Sums::over(&owned);
    status.deployments = i32::try_from(owned.len()).unwrap_or(i32::MAX);
    status.replicas = sums.replicas;
    status.replicas_per_city = Some(least_per_city(workload, &owned));
    status.current_replicas = sums.current;
    status.updated_replicas = Some(sums.updated);
    status.desired_replicas = sums.desired;
    status.ready_replicas = sums.ready;
    status.observed_generation = generation;
    let available = available(&owned, &placements_available, input);
    conditions::set(&mut status.conditions, &available, generation, now);
    match referenced_data(&owned) {
        Some(data) => _ = conditions::set(&mut status.conditions, &data, generation, now),
        None => status.conditions.retain(|condition| condition.type_ != REFERENCED_DATA_READY),
    }
    let rollout = rollout_of(workload, &owned, &placements, input, now);
    rollout::apply(&mut status.conditions, &rollout.state, generation, now);

    let unchanged = existing.is_some_and(|existing| canonical::same(&existing, &status));
    (!unchanged).then_some(status)
}

/// When the status may change although no object does: a rollout without progress becomes stuck then.
pub fn recheck(workload: &Workload, input: &WorkloadStatusInput, now: &Time) -> Option<Duration> {
    let owned = owned(workload, input);
    rollout_of(workload, &owned, &placements(workload, &owned), input, now).recheck
}

/// The deployments of the workload, by name.
fn owned<'a>(workload: &Workload, input: &WorkloadStatusInput<'a>) -> Vec<&'a WorkloadDeployment> {
    let mut owned: Vec<_> = input.deployments.iter().filter(|d| deployments::belongs(d, workload)).collect();
    owned.sort_by_key(|deployment| deployment.name());
    owned
}

fn placements<'a>(
    workload: &'a Workload,
    owned: &[&'a WorkloadDeployment],
) -> BTreeMap<&'a str, ObservedPlacement<'a>> {
    let mut placements: BTreeMap<&str, ObservedPlacement> = BTreeMap::new();
    for placement in &workload.spec.placements {
        let observed = placements.entry(placement.name.as_str()).or_default();
        observed.cities.extend(placement.city_codes.iter().map(String::as_str));
    }
    for deployment in owned {
        placements.entry(deployment.spec.placement_name.as_str()).or_default().deployments.push(deployment);
    }
    placements
}

/// The rollout of all deployments together.
fn rollout_of(
    workload: &Workload,
    owned: &[&WorkloadDeployment],
    placements: &BTreeMap<&str, ObservedPlacement>,
    input: &WorkloadStatusInput,
    now: &Time,
) -> Rollout {
    let mut states = Vec::new();
    if let Some(message) = missing_networks_message(input) {
        let reason = reasons::NETWORK_NOT_FOUND.to_owned();
        states.push(RolloutState::Stuck(Cause { reason, message }));
    }
    for bound in placements.values().filter_map(|placement| placement.locations_bound(input)) {
        let lost = bound.reason == reasons::LOCATION_LOST;
        let cause = Cause { reason: bound.reason.into_owned(), message: bound.message };
        states.push(if lost { RolloutState::Complete(Some(cause)) } else { RolloutState::Stuck(cause) });
    }
    let missing = placements.values().flat_map(|placement| placement.missing(input.cities));
    let mut waiting: Vec<_> = missing
        .map(|city| RolloutState::InProgress(format!("{city}: the deployment has not been created yet")))
        .collect();
    for deployment in owned {
        let state = rollout::of_reported(deployment);
        if rollout::awaits_cell(deployment) { waiting.push(state) } else { states.push(state) }
    }
    let existing = workload.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let generation = workload.metadata.generation;
    let changes = owned.iter().flat_map(|deployment| {
        let meta = &deployment.metadata;
        [&meta.creation_timestamp, &meta.deletion_timestamp].into_iter().flatten().map(|time| time.0)
    });
    let waiting =
        rollout::with_deadline(rollout::combined(waiting), existing, generation, changes.max(), now);
    Rollout { state: rollout::combined(states.into_iter().chain([waiting.state])), recheck: waiting.recheck }
}

/// The status of a workload that is being deleted: as [`status`], with the condition `Withdrawn`. None if it
/// is up to date, and while no deployment reports what it waits for.
pub fn of_deleted(workload: &Workload, input: &WorkloadStatusInput, now: &Time) -> Option<WorkloadStatus> {
    let owned: Vec<_> =
        input.deployments.iter().filter(|d| deployments::belongs(d, workload)).cloned().collect();
    let withdrawn = teardown::of_workload(&owned)?;
    let existing = workload.status.clone().unwrap_or_default();
    let mut desired = status(workload, input, now).unwrap_or_else(|| existing.clone());
    conditions::set(&mut desired.conditions, &withdrawn, workload.metadata.generation, now);
    (!canonical::same(&existing, &desired)).then_some(desired)
}

/// One placement: the cities of the spec, and the existing deployments sorted by name.
#[derive(Default)]
struct ObservedPlacement<'a> {
    cities: Vec<&'a str>,
    deployments: Vec<&'a WorkloadDeployment>,
}

impl ObservedPlacement<'_> {
    fn available(&self, input: &WorkloadStatusInput) -> DesiredCondition {
        let available = self.deployments.iter().filter(|deployment| is_available(deployment)).count();
        if available > 0 {
            let message = format!("{available} of {} deployments are available", self.deployments.len());
            return DesiredCondition::new_true(AVAILABLE, reasons::AVAILABLE_DEPLOYMENT_FOUND, message);
        }
        if let Some(message) = self.unbound_message(input) {
            return DesiredCondition::new_false(AVAILABLE, NO_MATCHING_LOCATIONS, message);
        }
        if let Some(unknown) = self.deployments.iter().find_map(|deployment| out_of_contact(deployment)) {
            return unknown;
        }
        let message = worst(&self.deployments).map(|cause| cause.message()).unwrap_or_default();
        DesiredCondition::new_false(AVAILABLE, reasons::NO_AVAILABLE_DEPLOYMENTS, message)
    }

    /// The `LocationsBound` condition if a city may not be used, else `None`. Cities without a deployment are
    /// reported first, because instances are missing there.
    fn locations_bound(&self, input: &WorkloadStatusInput) -> Option<DesiredCondition> {
        if let Some(message) = self.unbound_message(input) {
            return Some(DesiredCondition::new_false(LOCATIONS_BOUND, NO_MATCHING_LOCATIONS, message));
        }
        let lost = self.forbidden(input.cities, true);
        (!lost.is_empty()).then(|| {
            let message = format!(
                "no longer bound to this project, existing instances keep running: {}; {}",
                lost.join(", "),
                input.cities.describe()
            );
            DesiredCondition::new_false(LOCATIONS_BOUND, reasons::LOCATION_LOST, message)
        })
    }

    /// The message that names the cities without binding and deployment, the allowed cities and the skipped
    /// bindings.
    fn unbound_message(&self, input: &WorkloadStatusInput) -> Option<String> {
        let unbound = self.forbidden(input.cities, false);
        if unbound.is_empty() {
            return None;
        }
        let mut message = format!("no location for {}; {}", unbound.join(", "), input.cities.describe());
        if let Some(skipped) = skipped_message(input.skipped) {
            message.push_str("; ");
            message.push_str(&skipped);
        }
        Some(message)
    }

    /// Cities of the spec that may be used and have no deployment yet.
    fn missing(&self, cities: &Cities) -> Vec<&str> {
        let has = |city: &str| self.deployments.iter().any(|deployment| deployment.spec.city_code == city);
        self.cities.iter().copied().filter(|city| cities.allows(city) && !has(city)).collect()
    }

    /// Cities of the spec that may not be used, either those with a deployment or those without.
    fn forbidden(&self, cities: &Cities, deployed: bool) -> Vec<&str> {
        let has = |city: &str| self.deployments.iter().any(|deployment| deployment.spec.city_code == city);
        let is = |city: &&str| !cities.allows(city) && has(city) == deployed;
        let mut forbidden: Vec<_> = self.cities.iter().copied().filter(is).collect();
        forbidden.sort();
        forbidden.dedup();
        forbidden
    }
}

fn every_location_bound() -> DesiredCondition {
    DesiredCondition::new_true(
        LOCATIONS_BOUND,
        reasons::EVERY_LOCATION_BOUND,
        "every city of the placement may be used",
    )
}

fn missing_networks_message(input: &WorkloadStatusInput) -> Option<String> {
    let mut missing = input.missing_networks.to_vec();
    missing.sort();
    missing.dedup();
    (!missing.is_empty()).then(|| format!("networks that do not exist: {}", missing.join(", ")))
}

/// Why a deployment is not available.
struct UnavailableDeployment {
    deployment: String,
    reason: String,
    message: String,
}

impl UnavailableDeployment {
    fn message(&self) -> String {
        match self.message.as_str() {
            "" => format!("{}: {}", self.deployment, self.reason),
            message => format!("{}: {}, {message}", self.deployment, self.reason),
        }
    }
}

/// The condition of a deployment with which contact is lost.
fn out_of_contact(deployment: &WorkloadDeployment) -> Option<DesiredCondition> {
    let ready = contact::lost(&deployment.status.as_ref()?.conditions)?;
    let message = format!("{}: {}", deployment.name(), ready.message);
    Some(DesiredCondition::new_unknown(AVAILABLE, ready.reason.clone(), message))
}

fn is_available(deployment: &WorkloadDeployment) -> bool {
    deployment.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, AVAILABLE))
}

/// The worst cause of deployments that are sorted by name.
fn worst(deployments: &[&WorkloadDeployment]) -> Option<UnavailableDeployment> {
    let causes = deployments.iter().filter_map(|deployment| {
        let condition = conditions::find(&deployment.status.as_ref()?.conditions, AVAILABLE)?;
        (condition.status != "True").then(|| UnavailableDeployment {
            deployment: deployment.name().to_owned(),
            reason: condition.reason.clone(),
            message: condition.message.clone(),
        })
    });
    ranking::worst(causes, |cause| &cause.reason)
}

fn available(
    owned: &[&WorkloadDeployment],
    placements: &[DesiredCondition],
    input: &WorkloadStatusInput,
) -> DesiredCondition {
    if let Some(message) = missing_networks_message(input) {
        return DesiredCondition::new_false(AVAILABLE, reasons::NETWORK_NOT_FOUND, message);
    }
    let available = placements.iter().filter(|available| available.status == ConditionStatus::True).count();
    if available > 0 {
        let message = format!("{available} of {} placements are available", placements.len());
        return DesiredCondition::new_true(AVAILABLE, reasons::AVAILABLE_PLACEMENT_FOUND, message);
    }
    if let Some(unknown) = placements.iter().find(|it| it.status == ConditionStatus::Unknown) {
        return unknown.clone();
    }
    let unbound = placements.iter().find(|available| available.reason == NO_MATCHING_LOCATIONS);
    let unbound = unbound.map(|available| (NO_MATCHING_LOCATIONS.to_owned(), available.message.clone()));
    let cause = worst(owned).map(|cause| (cause.reason.clone(), cause.message()));
    match ranking::worst(cause.into_iter().chain(unbound), |(reason, _)| reason) {
        Some((reason, message)) if ranking::rank(&reason) > 0 => {
            DesiredCondition::new_false(AVAILABLE, reason, message)
        }
        _ => DesiredCondition::new_false(AVAILABLE, reasons::NO_AVAILABLE_PLACEMENTS, ""),
    }
}

/// The worst `ReferencedDataReady` of the deployments, True if all that have one are True.
fn referenced_data(owned: &[&WorkloadDeployment]) -> Option<DesiredCondition> {
    let of = |deployment: &&&WorkloadDeployment| {
        let status = deployment.status.as_ref()?;
        Some((
            deployment.name().to_owned(),
            conditions::find(&status.conditions, REFERENCED_DATA_READY)?.clone(),
        ))
    };
    let reported: Vec<_> = owned.iter().filter_map(|deployment| of(&deployment)).collect();
    let missing = reported.iter().filter(|(_, condition)| condition.status != "True");
    match ranking::worst(missing, |(_, condition)| &condition.reason) {
        Some((deployment, condition)) => Some(DesiredCondition::new_false(
            REFERENCED_DATA_READY,
            condition.reason.clone(),
            format!("{deployment}: {}", condition.message),
        )),
        None if reported.is_empty() => None,
        None => Some(DesiredCondition::new_true(REFERENCED_DATA_READY, reasons::READY, "")),
    }
}

/// The number of instances in the city that has the fewest. A city without a deployment has none.
fn least_per_city(workload: &Workload, owned: &[&WorkloadDeployment]) -> i32 {
    let sites = workload.spec.placements.iter().flat_map(|placement| {
        placement.city_codes.iter().map(|city| (placement.name.as_str(), city.as_str()))
    });
    let at = |site: (&str, &str)| {
        let deployment =
            owned.iter().find(|d| (d.spec.placement_name.as_str(), d.spec.city_code.as_str()) == site);
        deployment.and_then(|deployment| deployment.status.as_ref()).map_or(0, |status| status.replicas)
    };
    sites.map(at).min().unwrap_or(0)
}

/// Counters summed over deployments; saturating, since another writer may have set huge numbers.
#[derive(Default)]
struct Sums {
    replicas: i32,
    current: i32,
    updated: i32,
    desired: i32,
    ready: i32,
}

impl Sums {
    fn over(deployments: &[&WorkloadDeployment]) -> Self {
        let mut sums = Sums::default();
        for status in deployments.iter().filter_map(|deployment| deployment.status.as_ref()) {
            sums.replicas = sums.replicas.saturating_add(status.replicas);
            sums.current = sums.current.saturating_add(status.current_replicas);
            sums.updated = sums.updated.saturating_add(status.updated_replicas.unwrap_or_default());
            sums.desired = sums.desired.saturating_add(status.desired_replicas);
            if contact::lost(&status.conditions).is_none() {
                sums.ready = sums.ready.saturating_add(status.ready_replicas);
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cities::{SkipReason, mk_cities};
    use crate::testing::{at, mk_condition, mk_deployment, mk_placement, mk_workload};
    use polis_api::compute::{WorkloadDeploymentStatus, WorkloadReference};
    use proptest::prelude::*;

    /// A deployment of workload `web` with two instances, of which some are ready.
    fn mk_of(name: &str, placement: &str, city: &str, status: &str, reason: &str) -> WorkloadDeployment {
        let mut deployment = mk_deployment(name);
        deployment.spec.workload_ref = WorkloadReference { name: "web".into(), uid: "uid-web".into() };
        deployment.spec.placement_name = placement.into();
        deployment.spec.city_code = city.into();
        deployment.status = Some(WorkloadDeploymentStatus {
            replicas: 2,
            current_replicas: 2,
            updated_replicas: Some(2),
            desired_replicas: 3,
            ready_replicas: if status == "True" { 1 } else { 0 },
            conditions: vec![mk_condition("Available", status, reason)],
            ..Default::default()
        });
        deployment
    }

    fn status_of(workload: &Workload, deployments: &[WorkloadDeployment], cities: &[&str]) -> WorkloadStatus {
        let input = WorkloadStatusInput {
            deployments,
            cities: &mk_cities(cities),
            skipped: &[],
            missing_networks: &[],
        };
        status(workload, &input, &at(5)).unwrap()
    }

    fn available_of(
        conditions: &[polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition],
    ) -> (&str, &str) {
        let condition = conditions::find(conditions, "Available").unwrap();
        (condition.status.as_str(), condition.reason.as_str())
    }

    #[test]
    fn counters_are_sums_in_total_and_per_placement() {
        let mut workload = mk_workload("web", &["dfw"]);
        workload.spec.placements.push(mk_placement("edge", &["ord"]));
        let status = status_of(
            &workload,
            &[
                mk_of("b", "edge", "ord", "False", "ProvisioningInstances"),
                mk_of("a", "default", "dfw", "True", "StableInstanceFound"),
            ],
            &["dfw", "ord"],
        );
        assert_eq!(
            (
                status.deployments,
                status.replicas,
                status.current_replicas,
                status.updated_replicas,
                status.desired_replicas,
                status.ready_replicas
            ),
            (2, 4, 4, Some(4), 6, 1)
        );
        let names: Vec<_> =
            status.placements.iter().map(|p| (p.name.as_str(), p.replicas, p.ready_replicas)).collect();
        assert_eq!(names, [("default", 2, 1), ("edge", 2, 0)]);
        assert_eq!(available_of(&status.placements[0].conditions), ("True", "AvailableDeploymentFound"));
        assert_eq!(available_of(&status.placements[1].conditions), ("False", "NoAvailableDeployments"));
        assert_eq!(available_of(&status.conditions), ("True", "AvailablePlacementFound"));
    }

    #[test]
    fn every_placement_is_listed_even_without_a_deployment() {
        let mut workload = mk_workload("web", &["dfw"]);
        workload.spec.placements.insert(0, mk_placement("zone", &["ord"]));
        let status = status_of(&workload, &[], &["dfw", "ord"]);
        let names: Vec<_> = status.placements.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["default", "zone"]);
        assert_eq!(available_of(&status.conditions), ("False", "NoAvailablePlacements"));
    }

    #[test]
    fn a_removed_placement_is_listed_until_its_last_deployment_is_gone() {
        let deployments = [mk_of("a", "old", "dfw", "True", "StableInstanceFound")];
        let status = status_of(&mk_workload("web", &["dfw"]), &deployments, &["dfw"]);
        let names: Vec<_> = status.placements.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["default", "old"]);
        assert_eq!(status.deployments, 1);
    }

    #[test]
    fn the_number_per_city_is_that_of_the_city_with_the_fewest_instances() {
        let workload = mk_workload("web", &["dfw", "ord"]);
        let mut deployments = [
            mk_of("a", "default", "dfw", "True", "StableInstanceFound"),
            mk_of("b", "default", "ord", "True", "StableInstanceFound"),
        ];
        assert_eq!(status_of(&workload, &deployments[..1], &["dfw", "ord"]).replicas_per_city, Some(0));
        deployments[1].status.as_mut().unwrap().replicas = 5;
        let status = status_of(&workload, &deployments, &["dfw", "ord"]);
        assert_eq!((status.replicas, status.replicas_per_city), (7, Some(2)));
    }

    #[test]
    fn the_worst_reason_of_all_deployments_is_reported() {
        let workload = mk_workload("web", &["dfw", "ord"]);
        let reason_of = |one: &str, other: &str| {
            let deployments =
                [mk_of("b", "default", "dfw", "False", one), mk_of("a", "default", "ord", "Unknown", other)];
            available_of(&status_of(&workload, &deployments, &["dfw", "ord"]).conditions).1.to_owned()
        };
        assert_eq!(reason_of("ProvisioningInstances", "QuotaNotGranted"), "QuotaNotGranted");
        assert_eq!(reason_of("NetworkFailedToCreate", "QuotaNotGranted"), "NetworkFailedToCreate");
        assert_eq!(reason_of("PendingQuota", "QuotaNotGranted"), "QuotaNotGranted"); // "a" comes first
        assert_eq!(reason_of("Unranked", "Other"), "NoAvailablePlacements");
    }

    #[test]
    fn ready_instances_count_only_where_there_is_contact() {
        let workload = mk_workload("web", &["dfw", "ord"]);
        let mut silent = mk_of("a", "default", "dfw", "Unknown", "CellSilent");
        let known = silent.status.as_mut().unwrap();
        known.ready_replicas = 2;
        known.conditions.push(mk_condition("Ready", "Unknown", "CellSilent"));
        let heard = mk_of("b", "default", "ord", "True", "StableInstanceFound");
        let both = status_of(&workload, &[silent.clone(), heard], &["dfw", "ord"]);
        assert_eq!((both.replicas, both.ready_replicas), (4, 1));
        assert_eq!(available_of(&both.conditions), ("True", "AvailablePlacementFound"));
        let ready = conditions::find(&both.conditions, "Ready").unwrap();
        assert_eq!((&*ready.status, &*ready.reason), ("Unknown", "CellSilent"));
        let alone = status_of(&mk_workload("web", &["dfw"]), &[silent], &["dfw"]);
        assert_eq!(alone.ready_replicas, 0);
        assert_eq!(available_of(&alone.conditions), ("Unknown", "CellSilent"));
        assert_eq!(available_of(&alone.placements[0].conditions), ("Unknown", "CellSilent"));
    }

    #[test]
    fn an_unbound_city_is_reported_with_the_bound_ones() {
        let status = status_of(&mk_workload("web", &["lhr"]), &[], &["ord", "dfw"]);
        let condition = conditions::find(&status.placements[0].conditions, "Available").unwrap();
        assert_eq!(condition.reason, "NoMatchingLocations");
        assert_eq!(condition.message, "no location for lhr; cities bound to this project: dfw, ord");
        assert_eq!(available_of(&status.conditions), ("False", "NoMatchingLocations"));
    }

    /// Status, reason and message of `LocationsBound` of the only placement.
    fn bound(status: &WorkloadStatus) -> Option<(&str, &str, &str)> {
        let condition = conditions::find(&status.placements[0].conditions, "LocationsBound")?;
        Some((&condition.status, &condition.reason, &condition.message))
    }

    #[test]
    fn a_deployment_in_a_lost_city_still_counts_and_the_placement_reports_the_loss() {
        let deployments = [mk_of("a", "default", "dfw", "True", "StableInstanceFound")];
        let mut workload = mk_workload("web", &["dfw"]);
        assert_eq!(bound(&status_of(&workload, &deployments, &["dfw"])), None, "no city was lost");
        let lost = status_of(&workload, &deployments, &["ord"]);
        assert_eq!(available_of(&lost.conditions), ("True", "AvailablePlacementFound"));
        let message = "no longer bound to this project, existing instances keep running: dfw; cities bound to this project: ord";
        assert_eq!(bound(&lost), Some(("False", "LocationLost", message)));
        workload.status = Some(lost);
        let bound_again = status_of(&workload, &deployments, &["dfw"]);
        let message = "every city of the placement may be used";
        assert_eq!(bound(&bound_again), Some(("True", "EveryLocationBound", message)));
    }

    #[test]
    fn a_placement_that_is_available_in_one_city_still_reports_that_it_lacks_another() {
        let deployments = [mk_of("a", "default", "dfw", "True", "StableInstanceFound")];
        let status = status_of(&mk_workload("web", &["dfw", "lhr"]), &deployments, &["dfw"]);
        assert_eq!(available_of(&status.placements[0].conditions), ("True", "AvailableDeploymentFound"));
        let message = "no location for lhr; cities bound to this project: dfw";
        assert_eq!(bound(&status), Some(("False", "NoMatchingLocations", message)));
    }

    #[test]
    fn skipped_bindings_are_reported_with_the_unbound_city() {
        let skipped = [SkippedBinding { binding: "lhr-1".into(), reason: SkipReason::NoCity }];
        let input = WorkloadStatusInput {
            deployments: &[],
            cities: &mk_cities(&[]),
            skipped: &skipped,
            missing_networks: &[],
        };
        let status = status(&mk_workload("web", &["lhr"]), &input, &at(5)).unwrap();
        let condition = conditions::find(&status.placements[0].conditions, "Available").unwrap();
        assert_eq!(
            condition.message,
            "no location for lhr; no city is bound to this project; ignored LocationBindings: lhr-1 names no city"
        );
    }

    #[test]
    fn missing_networks_are_reported() {
        let workload = mk_workload("web", &["dfw"]);
        let missing = ["shop/b".to_owned(), "nets/a".to_owned()];
        let input = WorkloadStatusInput {
            deployments: &[],
            cities: &Cities::Any,
            skipped: &[],
            missing_networks: &missing,
        };
        let status = status(&workload, &input, &at(5)).unwrap();
        assert_eq!(available_of(&status.conditions), ("False", "NetworkNotFound"));
        assert_eq!(status.conditions[0].message, "networks that do not exist: nets/a, shop/b");
    }

    #[test]
    fn deployments_of_other_workloads_do_not_count() {
        let mut other = mk_of("a", "default", "dfw", "True", "StableInstanceFound");
        other.spec.workload_ref.uid = "uid-other".into();
        assert_eq!(status_of(&mk_workload("web", &["dfw"]), &[other], &["dfw"]).deployments, 0);
    }

    #[test]
    fn conditions_carry_the_generation_and_the_gateway_is_kept() {
        let mut workload = mk_workload("web", &["dfw"]);
        workload.metadata.generation = Some(6);
        workload.status.get_or_insert_default().gateway = Some(Default::default());
        let status = status_of(&workload, &[], &["dfw"]);
        assert_eq!(status.observed_generation, Some(6));
        assert_eq!(status.placements[0].conditions[0].observed_generation, Some(6));
        assert!(status.gateway.is_some());
    }

    fn rollout(status: &WorkloadStatus) -> Vec<(&str, &str, &str)> {
        let kinds = ["Progressing", "Degraded", "Ready", "Reconciling", "Stalled"];
        let found = kinds.iter().filter_map(|kind| conditions::find(&status.conditions, kind));
        found.map(|c| (c.type_.as_str(), c.status.as_str(), c.reason.as_str())).collect()
    }

    #[test]
    fn a_broken_rollout_is_stalled_although_the_workload_is_available() {
        let workload = mk_workload("web", &["dfw"]);
        let mut deployment = mk_of("a", "default", "dfw", "True", "StableInstanceFound");
        let stalled = mk_condition("Stalled", "True", "ImageUnavailable");
        deployment.status.as_mut().unwrap().conditions.push(stalled);
        let status = status_of(&workload, &[deployment], &["dfw"]);
        assert_eq!(available_of(&status.conditions), ("True", "AvailablePlacementFound"));
        let expected = [
            ("Progressing", "False", "ImageUnavailable"),
            ("Degraded", "True", "ImageUnavailable"),
            ("Ready", "False", "ImageUnavailable"),
            ("Stalled", "True", "ImageUnavailable"),
        ];
        assert_eq!(rollout(&status), expected);
        let message = &conditions::find(&status.conditions, "Degraded").unwrap().message;
        assert_eq!(message, "dfw", "the city is named");
    }

    #[test]
    fn a_missing_network_and_an_unbound_city_are_stalled_at_once() {
        let missing = ["shop/b".to_owned()];
        let (any, bound) = (Cities::Any, mk_cities(&["dfw"]));
        let of = |cities, missing_networks| WorkloadStatusInput {
            deployments: &[],
            cities,
            skipped: &[],
            missing_networks,
        };
        let table = [(of(&any, &missing[..]), "NetworkNotFound"), (of(&bound, &[]), "NoMatchingLocations")];
        for (input, reason) in table {
            let status = status(&mk_workload("web", &["lhr"]), &input, &at(5)).unwrap();
            assert!(rollout(&status).contains(&("Stalled", "True", reason)), "{status:?}");
        }
    }

    #[test]
    fn a_city_that_is_lost_while_it_runs_degrades_a_complete_rollout() {
        let mut deployment = mk_of("a", "default", "dfw", "True", "StableInstanceFound");
        deployment.status.as_mut().unwrap().conditions.push(mk_condition("Ready", "True", "RolloutComplete"));
        let status = status_of(&mk_workload("web", &["dfw"]), &[deployment], &["ord"]);
        let expected = [
            ("Progressing", "True", "RolloutComplete"),
            ("Degraded", "True", "LocationLost"),
            ("Ready", "True", "RolloutComplete"),
        ];
        assert_eq!(rollout(&status), expected);
    }

    #[test]
    fn a_deployment_that_no_cell_reports_on_is_stuck_after_the_deadline() {
        let mut workload = mk_workload("web", &["dfw"]);
        let mut deployment = mk_of("a", "default", "dfw", "True", "StableInstanceFound");
        deployment.status = None;
        let deployments = [deployment];
        let input = WorkloadStatusInput {
            deployments: &deployments,
            cities: &Cities::Any,
            skipped: &[],
            missing_networks: &[],
        };
        workload.status = status(&workload, &input, &at(200));
        assert!(rollout(workload.status.as_ref().unwrap()).contains(&(
            "Reconciling",
            "True",
            "RolloutInProgress"
        )));
        assert_eq!(recheck(&workload, &input, &at(230)), Some(Duration::from_secs(90)));
        let stuck = status(&workload, &input, &at(320)).unwrap();
        assert!(rollout(&stuck).contains(&("Stalled", "True", "ProgressDeadlineExceeded")), "{stuck:?}");
        workload.status = Some(stuck);
        assert_eq!(status(&workload, &input, &at(900)), None, "it stays stuck");
        workload.metadata.generation = Some(2);
        let again = status(&workload, &input, &at(901)).unwrap();
        assert!(
            rollout(&again).contains(&("Reconciling", "True", "RolloutInProgress")),
            "a new spec is a new start"
        );
    }

    fn any_deployments() -> impl Strategy<Value = Vec<WorkloadDeployment>> {
        let placement = prop_oneof![Just("default"), Just("old"), Just("a")];
        let state = prop_oneof![
            Just(("True", "StableInstanceFound")),
            Just(("False", "QuotaNotGranted")),
            Just(("False", "ProvisioningNetwork"))
        ];
        let one = ("[a-f]", placement, prop_oneof![Just("dfw"), Just("ord")], state);
        prop::collection::vec(one, 0..6)
            .prop_map(|all| all.iter().map(|(n, p, c, (s, r))| mk_of(n, p, c, s, r)).collect())
    }

    proptest! {
        #[test]
        fn a_second_reconcile_changes_nothing(deployments in any_deployments(), bound: bool) {
            let mut workload = mk_workload("web", &["dfw", "ord"]);
            workload.spec.placements.push(mk_placement("a", &["lhr"]));
            let cities = mk_cities(if bound { &["dfw", "lhr"] } else { &[] });
            let input =
                WorkloadStatusInput { deployments: &deployments, cities: &cities, skipped: &[], missing_networks: &[] };
            workload.status = status(&workload, &input, &at(5));
            prop_assert_eq!(status(&workload, &input, &at(9)), None);
        }
    }
}
