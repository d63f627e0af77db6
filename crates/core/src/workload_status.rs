//! What a workload says about itself.
//!
//! Sums over its deployments, those on their way out included, in total and per placement. Every placement of the spec is
//! listed, sorted by name, even one that no city could be found for; a placement taken out of the spec is listed until
//! its last deployment is gone. A placement is available when one of its deployments is, the workload when one of its
//! placements is. If none is, the worst cause is told: of equals, that of the deployment first by name.
//!
//! A placement that is available in one city may still lack another. Once the project could not use a city of it, the
//! placement says so in a condition of its own, and later that it can again.

use std::collections::BTreeMap;

use polis_api::compute::{Workload, WorkloadDeployment, WorkloadPlacementStatus, WorkloadStatus};
use polis_api::conditions::{AVAILABLE, LOCATIONS_BOUND};
use polis_api::reasons;

use crate::cities::{Cities, Skipped, skipped_in_words};
use crate::conditions::{self, Truth, Verdict};
use crate::ranking::NO_MATCHING_LOCATIONS;
use crate::{Time, canonical, deployments, owner, ranking};

/// What is known about a workload in its project.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Deployments of the namespace; those of others are left out here.
    pub deployments: &'a [WorkloadDeployment],
    /// The cities that the project may use.
    pub cities: &'a Cities,
    /// Its bindings that do not count.
    pub skipped: &'a [Skipped],
    /// Networks that the template names and that do not exist, as `namespace/name`.
    pub missing_networks: &'a [String],
}

/// The status that a workload should have, or `None` when it has it.
pub fn status(workload: &Workload, facts: &Facts, now: &Time) -> Option<WorkloadStatus> {
    let standing = workload.status.clone();
    let generation = workload.metadata.generation;
    let mut mine: Vec<_> = facts.deployments.iter().filter(|d| deployments::belongs(d, workload)).collect();
    mine.sort_by_key(|deployment| owner::name(&deployment.metadata));

    let mut places: BTreeMap<&str, Place> = BTreeMap::new();
    for placement in &workload.spec.placements {
        let place = places.entry(placement.name.as_str()).or_default();
        place.cities.extend(placement.city_codes.iter().map(String::as_str));
    }
    for deployment in &mine {
        places.entry(deployment.spec.placement_name.as_str()).or_default().deployments.push(deployment);
    }

    let mut status = standing.clone().unwrap_or_default();
    let before = std::mem::take(&mut status.placements);
    let mut verdicts = Vec::new();
    for (name, place) in &places {
        let verdict = place.verdict(facts);
        let mut entry = WorkloadPlacementStatus { name: name.to_string(), ..Default::default() };
        if let Some(before) = before.iter().find(|before| before.name == *name) {
            entry.conditions = before.conditions.clone();
        }
        conditions::set(&mut entry.conditions, &verdict, generation, now);
        let known = conditions::find(&entry.conditions, LOCATIONS_BOUND).is_some();
        if let Some(bound) = place.bound(facts).or_else(|| known.then(every_location_bound)) {
            conditions::set(&mut entry.conditions, &bound, generation, now);
        }
        let sums = Sums::over(&place.deployments);
        entry.replicas = sums.replicas;
        entry.current_replicas = sums.current;
        entry.updated_replicas = Some(sums.updated);
        entry.desired_replicas = sums.desired;
        entry.ready_replicas = sums.ready;
        status.placements.push(entry);
        verdicts.push(verdict);
    }
    let sums = Sums::over(&mine);
    status.deployments = i32::try_from(mine.len()).unwrap_or(i32::MAX);
    status.replicas = sums.replicas;
    status.current_replicas = sums.current;
    status.updated_replicas = Some(sums.updated);
    status.desired_replicas = sums.desired;
    status.ready_replicas = sums.ready;
    status.observed_generation = generation;
    conditions::set(&mut status.conditions, &available(&mine, &verdicts, facts), generation, now);

    let unchanged = standing.is_some_and(|standing| canonical::same(&standing, &status));
    (!unchanged).then_some(status)
}

/// One placement: the cities that the spec asks for, and the deployments that exist, sorted by name.
#[derive(Default)]
struct Place<'a> {
    cities: Vec<&'a str>,
    deployments: Vec<&'a WorkloadDeployment>,
}

impl Place<'_> {
    fn verdict(&self, facts: &Facts) -> Verdict {
        let available = self.deployments.iter().filter(|deployment| is_available(deployment)).count();
        if available > 0 {
            let message = format!("{available} of {} deployments are available", self.deployments.len());
            return Verdict::yes(AVAILABLE, reasons::AVAILABLE_DEPLOYMENT_FOUND, message);
        }
        if let Some(message) = self.unserved_in_words(facts) {
            return Verdict::no(AVAILABLE, NO_MATCHING_LOCATIONS, message);
        }
        let message = worst(&self.deployments).map(|cause| cause.in_words()).unwrap_or_default();
        Verdict::no(AVAILABLE, reasons::NO_AVAILABLE_DEPLOYMENTS, message)
    }

    /// What the placement says of cities that may not be used: those without a deployment first, since something is
    /// missing there; none if every city may be used.
    fn bound(&self, facts: &Facts) -> Option<Verdict> {
        if let Some(message) = self.unserved_in_words(facts) {
            return Some(Verdict::no(LOCATIONS_BOUND, NO_MATCHING_LOCATIONS, message));
        }
        let lost = self.closed(facts.cities, true);
        (!lost.is_empty()).then(|| {
            let words = "no longer open to this project; what runs there goes on";
            let message = format!("{words}: {}; {}", lost.join(", "), facts.cities.in_words());
            Verdict::no(LOCATIONS_BOUND, reasons::LOCATION_LOST, message)
        })
    }

    /// The cities that nothing could be made in, the choice that there is, and what may be wrong with it.
    fn unserved_in_words(&self, facts: &Facts) -> Option<String> {
        let unserved = self.closed(facts.cities, false);
        if unserved.is_empty() {
            return None;
        }
        let mut message = format!("no location for {}; {}", unserved.join(", "), facts.cities.in_words());
        if let Some(skipped) = skipped_in_words(facts.skipped) {
            message.push_str("; ");
            message.push_str(&skipped);
        }
        Some(message)
    }

    /// Cities asked for that may not be used, with a deployment or without.
    fn closed(&self, cities: &Cities, deployed: bool) -> Vec<&str> {
        let has = |city: &str| self.deployments.iter().any(|deployment| deployment.spec.city_code == city);
        let is = |city: &&str| !cities.allow(city) && has(city) == deployed;
        let mut closed: Vec<_> = self.cities.iter().copied().filter(is).collect();
        closed.sort();
        closed.dedup();
        closed
    }
}

fn every_location_bound() -> Verdict {
    Verdict::yes(LOCATIONS_BOUND, reasons::EVERY_LOCATION_BOUND, "every city of the placement may be used")
}

/// Why something is not available.
struct Cause {
    who: String,
    reason: String,
    message: String,
}

impl Cause {
    fn in_words(&self) -> String {
        match self.message.as_str() {
            "" => format!("{}: {}", self.who, self.reason),
            message => format!("{}: {}, {message}", self.who, self.reason),
        }
    }
}

fn is_available(deployment: &WorkloadDeployment) -> bool {
    deployment.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, AVAILABLE))
}

/// The worst of what the deployments say; they are sorted by name.
fn worst(deployments: &[&WorkloadDeployment]) -> Option<Cause> {
    let causes = deployments.iter().filter_map(|deployment| {
        let condition = conditions::find(&deployment.status.as_ref()?.conditions, AVAILABLE)?;
        (condition.status != "True").then(|| Cause {
            who: owner::name(&deployment.metadata).to_owned(),
            reason: condition.reason.clone(),
            message: condition.message.clone(),
        })
    });
    ranking::worst(causes, |cause| &cause.reason)
}

fn available(mine: &[&WorkloadDeployment], placements: &[Verdict], facts: &Facts) -> Verdict {
    if !facts.missing_networks.is_empty() {
        let mut missing = facts.missing_networks.to_vec();
        missing.sort();
        missing.dedup();
        let message = format!("networks that do not exist: {}", missing.join(", "));
        return Verdict::no(AVAILABLE, reasons::NETWORK_NOT_FOUND, message);
    }
    let available = placements.iter().filter(|verdict| verdict.truth == Truth::True).count();
    if available > 0 {
        let message = format!("{available} of {} placements are available", placements.len());
        return Verdict::yes(AVAILABLE, reasons::AVAILABLE_PLACEMENT_FOUND, message);
    }
    let unserved = placements.iter().find(|verdict| verdict.reason == NO_MATCHING_LOCATIONS);
    let unserved = unserved.map(|verdict| (NO_MATCHING_LOCATIONS.to_owned(), verdict.message.clone()));
    let cause = worst(mine).map(|cause| (cause.reason.clone(), cause.in_words()));
    match ranking::worst(cause.into_iter().chain(unserved), |(reason, _)| reason) {
        Some((reason, message)) if ranking::rank(&reason) > 0 => Verdict::no(AVAILABLE, reason, message),
        _ => Verdict::no(AVAILABLE, reasons::NO_AVAILABLE_PLACEMENTS, ""),
    }
}

/// Sums over deployments. Absurd numbers of a foreign writer stop at the largest that fits.
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
            sums.ready = sums.ready.saturating_add(status.ready_replicas);
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cities::{Unusable, mk_cities};
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
        let facts = Facts { deployments, cities: &mk_cities(cities), skipped: &[], missing_networks: &[] };
        status(workload, &facts, &at(5)).unwrap()
    }

    fn told(
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
        assert_eq!(told(&status.placements[0].conditions), ("True", "AvailableDeploymentFound"));
        assert_eq!(told(&status.placements[1].conditions), ("False", "NoAvailableDeployments"));
        assert_eq!(told(&status.conditions), ("True", "AvailablePlacementFound"));
    }

    #[test]
    fn every_placement_is_listed_even_without_a_deployment() {
        let mut workload = mk_workload("web", &["dfw"]);
        workload.spec.placements.insert(0, mk_placement("zone", &["ord"]));
        let status = status_of(&workload, &[], &["dfw", "ord"]);
        let names: Vec<_> = status.placements.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["default", "zone"]);
        assert_eq!(told(&status.conditions), ("False", "NoAvailablePlacements"));
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
    fn the_worst_reason_of_all_deployments_is_told() {
        let workload = mk_workload("web", &["dfw", "ord"]);
        let told_of = |one: &str, other: &str| {
            let deployments =
                [mk_of("b", "default", "dfw", "False", one), mk_of("a", "default", "ord", "Unknown", other)];
            told(&status_of(&workload, &deployments, &["dfw", "ord"]).conditions).1.to_owned()
        };
        assert_eq!(told_of("ProvisioningInstances", "QuotaNotGranted"), "QuotaNotGranted");
        assert_eq!(told_of("NetworkFailedToCreate", "QuotaNotGranted"), "NetworkFailedToCreate");
        assert_eq!(told_of("PendingQuota", "QuotaNotGranted"), "QuotaNotGranted"); // "a" comes first
        assert_eq!(told_of("Unheard", "Of"), "NoAvailablePlacements");
    }

    #[test]
    fn a_city_nobody_bound_is_told_with_those_that_are() {
        let status = status_of(&mk_workload("web", &["lhr"]), &[], &["ord", "dfw"]);
        let condition = conditions::find(&status.placements[0].conditions, "Available").unwrap();
        assert_eq!(condition.reason, "NoMatchingLocations");
        assert_eq!(condition.message, "no location for lhr; cities bound to this project: dfw, ord");
        assert_eq!(told(&status.conditions), ("False", "NoMatchingLocations"));
    }

    /// What the one placement says of its cities: status, reason and message.
    fn bound(status: &WorkloadStatus) -> Option<(&str, &str, &str)> {
        let condition = conditions::find(&status.placements[0].conditions, "LocationsBound")?;
        Some((&condition.status, &condition.reason, &condition.message))
    }

    #[test]
    fn a_deployment_in_a_city_that_was_lost_goes_on_counting_and_the_placement_says_that_it_was() {
        let deployments = [mk_of("a", "default", "dfw", "True", "StableInstanceFound")];
        let mut workload = mk_workload("web", &["dfw"]);
        assert_eq!(bound(&status_of(&workload, &deployments, &["dfw"])), None, "nothing was ever lost");
        let lost = status_of(&workload, &deployments, &["ord"]);
        assert_eq!(told(&lost.conditions), ("True", "AvailablePlacementFound"));
        let words =
            "no longer open to this project; what runs there goes on: dfw; cities bound to this project: ord";
        assert_eq!(bound(&lost), Some(("False", "LocationLost", words)));
        workload.status = Some(lost);
        let mended = status_of(&workload, &deployments, &["dfw"]);
        let words = "every city of the placement may be used";
        assert_eq!(bound(&mended), Some(("True", "EveryLocationBound", words)));
    }

    #[test]
    fn a_placement_that_is_available_in_one_city_still_says_that_it_lacks_another() {
        let deployments = [mk_of("a", "default", "dfw", "True", "StableInstanceFound")];
        let status = status_of(&mk_workload("web", &["dfw", "lhr"]), &deployments, &["dfw"]);
        assert_eq!(told(&status.placements[0].conditions), ("True", "AvailableDeploymentFound"));
        let words = "no location for lhr; cities bound to this project: dfw";
        assert_eq!(bound(&status), Some(("False", "NoMatchingLocations", words)));
    }

    #[test]
    fn bindings_that_do_not_count_are_told_beside_the_city_that_nobody_bound() {
        let skipped = [Skipped { binding: "lhr-1".into(), why: Unusable::NoCity }];
        let facts =
            Facts { deployments: &[], cities: &mk_cities(&[]), skipped: &skipped, missing_networks: &[] };
        let status = status(&mk_workload("web", &["lhr"]), &facts, &at(5)).unwrap();
        let condition = conditions::find(&status.placements[0].conditions, "Available").unwrap();
        assert_eq!(
            condition.message,
            "no location for lhr; no city is bound to this project; bindings that do not count: lhr-1 names no city"
        );
    }

    #[test]
    fn missing_networks_are_named() {
        let workload = mk_workload("web", &["dfw"]);
        let missing = ["shop/b".to_owned(), "nets/a".to_owned()];
        let facts =
            Facts { deployments: &[], cities: &Cities::Any, skipped: &[], missing_networks: &missing };
        let status = status(&workload, &facts, &at(5)).unwrap();
        assert_eq!(told(&status.conditions), ("False", "NetworkNotFound"));
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
        fn the_status_settles_in_one_pass_in_whatever_order(deployments in any_deployments(), bound: bool) {
            let mut workload = mk_workload("web", &["dfw", "ord"]);
            workload.spec.placements.push(mk_placement("a", &["lhr"]));
            let cities = mk_cities(if bound { &["dfw", "lhr"] } else { &[] });
            let facts =
                Facts { deployments: &deployments, cities: &cities, skipped: &[], missing_networks: &[] };
            workload.status = status(&workload, &facts, &at(5));
            prop_assert_eq!(status(&workload, &facts, &at(9)), None);
        }
    }
}
