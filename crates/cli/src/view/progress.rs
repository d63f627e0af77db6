//! Rollout progress of a workload in each of its cities.
//!
//! A city is complete when it has exactly the desired number of instances, all ready and with the newest
//! template. The instances are counted, because the counters in the status of a deployment may be those of
//! the previous template: they have no generation on the way from the cell to the project.

use polis_api::ObjectExt;
use polis_api::compute::{Workload, WorkloadDeployment};
use polis_api::conditions::{AVAILABLE, LOCATIONS_BOUND};
use polis_api::reasons;
use polis_core::{canonical, conditions, deployments, instances, template};

use super::snapshot::{self, WorkloadSnapshot};
use super::state::{self, ObjectState};
use super::{Severity, tree};

/// Rollout progress in one city.
#[derive(Clone, Debug, PartialEq)]
pub struct CityProgress {
    /// The city, with the placement if its name is not `default`.
    pub label: String,
    /// Desired instances.
    pub wanted: u32,
    /// Instances that are ready, of any template.
    pub serving: u32,
    /// Instances that are ready and have the newest template.
    pub ready: u32,
    /// Surplus instances, and instances with an older template.
    pub old: u32,
    /// Whether the rollout is complete.
    pub complete: bool,
    /// The state that prevents completion, if an object reports one.
    pub blocker: Option<ObjectState>,
}

impl CityProgress {
    /// The progress line, with the message of a blocker.
    pub fn line(&self) -> String {
        let message = self
            .blocker
            .as_ref()
            .filter(|blocker| blocker.severity == Severity::Blocked)
            .map(|blocker| blocker.message.as_str());
        match message {
            Some(message) if !message.is_empty() => format!("{}: {message}", self.summary()),
            _ => self.summary(),
        }
    }

    /// The progress line without the message, which may be long.
    pub fn summary(&self) -> String {
        let mut words = match self.old {
            0 => format!("{}/{} ready", self.ready, self.wanted),
            old => {
                let new = self.ready.min(self.wanted);
                format!("{}/{} serving ({new} new, {old} old)", self.serving, self.wanted)
            }
        };
        if let Some(blocker) = &self.blocker {
            words.push_str(&format!(" ({})", blocker.reason));
        }
        words
    }

    /// The severity of the progress line.
    pub fn severity(&self) -> Severity {
        match &self.blocker {
            _ if self.complete => Severity::Ok,
            Some(blocker) => blocker.severity.max(Severity::Progressing),
            None => Severity::Progressing,
        }
    }
}

/// The progress of every city: those of the workload, then those with a deployment that is being deleted.
pub fn cities(snapshot: &WorkloadSnapshot) -> Vec<CityProgress> {
    let Some(workload) = &snapshot.workload else { return Vec::new() };
    let wanted = snapshot.wanted_sites();
    let mut cities: Vec<_> = wanted.iter().map(|site| city(snapshot, workload, site)).collect();
    for deployment in &snapshot.deployments {
        let site = (deployment.spec.placement_name.clone(), deployment.spec.city_code.clone());
        if !wanted.contains(&site) {
            let old = snapshot.instances_of(deployment).count();
            let serving = snapshot.instances_of(deployment).filter(|instance| instances::is_ready(instance));
            cities.push(CityProgress {
                label: label(&site),
                wanted: 0,
                serving: u32::try_from(serving.count()).unwrap_or(u32::MAX),
                ready: 0,
                old: u32::try_from(old).unwrap_or(u32::MAX),
                complete: false,
                blocker: None,
            });
        }
    }
    cities
}

/// Most addresses that are printed after a rollout.
const MAX_URLS: usize = 8;

/// The URLs of the ready instances, for a line each. Ports have no protocol above TCP: all but those named
/// `https` are shown as HTTP.
pub fn urls(snapshot: &WorkloadSnapshot) -> Vec<String> {
    let ready = snapshot.instances.iter().filter(|instance| instances::is_ready(instance));
    let urls: Vec<String> = ready.filter_map(url).collect();
    match urls.len() {
        0..=MAX_URLS => urls,
        many => {
            let rest = format!("… and {} more: see `polis instances`", many - MAX_URLS);
            urls.into_iter().take(MAX_URLS).chain([rest]).collect()
        }
    }
}

/// The URL of an instance with an address and a port.
fn url(instance: &polis_api::compute::Instance) -> Option<String> {
    let (address, port) = snapshot::endpoint(instance)?;
    let scheme = if port.name == "https" { "https" } else { "http" };
    Some(format!("{scheme}://{address}"))
}

/// A cause that waiting does not resolve, in one city.
#[derive(Clone, Debug, PartialEq)]
pub struct LastingCause {
    /// The city, as in [`CityProgress::label`].
    pub label: String,
    /// The instance that reports it; `None` if the city has no deployment.
    pub instance: Option<String>,
    /// The state with its reason and message.
    pub state: ObjectState,
}

/// The causes that keep the newest spec from being ready and that need an action of a person: an image that
/// cannot be pulled, a city that is not bound, quota that is denied. States of an older spec do not count:
/// the change that is waited for may be the repair.
pub fn lasting_causes(snapshot: &WorkloadSnapshot) -> Vec<LastingCause> {
    let Some(workload) = snapshot.workload.as_ref().filter(|workload| is_observed(workload)) else {
        return Vec::new();
    };
    let is_lasting = |state: &ObjectState| state.severity == Severity::Blocked;
    let mut causes = Vec::new();
    let mut conditions = workload.status.iter().flat_map(|status| &status.conditions);
    let missing_network = conditions.find(|c| c.type_ == AVAILABLE && c.reason == reasons::NETWORK_NOT_FOUND);
    if let Some(condition) = missing_network.filter(|condition| condition.status != "True") {
        let state = state::of_condition(&workload.metadata, Some(condition), "starting");
        return vec![LastingCause { label: workload.name().to_owned(), instance: None, state }];
    }
    for site in snapshot.wanted_sites() {
        let label = label(&site);
        match snapshot.deployment_at(&site) {
            None => {
                let state =
                    [AVAILABLE, LOCATIONS_BOUND].map(|kind| tree::placement_state(snapshot, &site, kind));
                let state = state.into_iter().find(is_lasting);
                causes.extend(state.map(|state| LastingCause { label, instance: None, state }));
            }
            Some(deployment) if is_synced(deployment, workload, &site) => {
                let hash = template::hash(&workload.spec.template);
                let newest = snapshot.instances_of(deployment).filter(|instance| {
                    !instance.is_deleting() && template::is_current(instance, &workload.spec.template, &hash)
                });
                let found = newest
                    .map(|instance| (instance, state::of_instance(instance)))
                    .find(|(_, state)| is_lasting(state));
                causes.extend(found.map(|(instance, state)| LastingCause {
                    label,
                    instance: Some(instance.name().to_owned()),
                    state,
                }));
            }
            Some(_) => {}
        }
    }
    causes
}

/// `4 instances in 2 cities`.
pub fn count_in_cities(instances: usize, cities: usize) -> String {
    let instances = if instances == 1 { "1 instance".to_owned() } else { format!("{instances} instances") };
    let cities = if cities == 1 { "1 city".to_owned() } else { format!("{cities} cities") };
    format!("{instances} in {cities}")
}

/// Whether the rollout is complete in every city.
pub fn is_complete(snapshot: &WorkloadSnapshot) -> bool {
    snapshot.workload.as_ref().is_some_and(is_observed) && cities(snapshot).iter().all(|city| city.complete)
}

/// Whether the workload controller has reconciled the newest spec. Other implementations may not set
/// `observedGeneration`; then any condition counts.
fn is_observed(workload: &Workload) -> bool {
    let Some(status) = &workload.status else { return false };
    match status.observed_generation {
        Some(seen) => workload.metadata.generation.is_none_or(|generation| seen >= generation),
        None => !status.conditions.is_empty(),
    }
}

fn city(snapshot: &WorkloadSnapshot, workload: &Workload, site: &(String, String)) -> CityProgress {
    let mut progress = CityProgress {
        label: label(site),
        wanted: wanted(workload, site),
        serving: 0,
        ready: 0,
        old: 0,
        complete: false,
        blocker: None,
    };
    let Some(deployment) = snapshot.deployment_at(site) else {
        progress.blocker = Some(tree::missing(snapshot, site)).filter(|state| !state.reason.is_empty());
        return progress;
    };
    let is_synced = is_synced(deployment, workload, site);
    if is_synced {
        progress.wanted = instances::desired(deployment);
    }
    let hash = template::hash(&workload.spec.template);
    let mut total = 0;
    for instance in snapshot.instances_of(deployment) {
        total += 1;
        progress.serving += u32::from(instances::is_ready(instance));
        let current =
            template::is_current(instance, &workload.spec.template, &hash) && !instance.is_deleting();
        match (current, instances::is_ready(instance)) {
            (false, _) => progress.old += 1,
            (true, true) => progress.ready += 1,
            (true, false) => {}
        }
    }
    progress.old += surplus(total, progress.wanted, progress.old);
    progress.complete = is_synced && total == progress.wanted && progress.ready == progress.wanted;
    if !progress.complete {
        progress.blocker = blocker(snapshot, deployment);
    }
    progress
}

/// Instances above the desired number that are not yet counted as old.
fn surplus(total: u32, wanted: u32, old: u32) -> u32 {
    total.saturating_sub(wanted).saturating_sub(old)
}

fn wanted(workload: &Workload, site: &(String, String)) -> u32 {
    let placement = workload.spec.placements.iter().find(|placement| placement.name == site.0);
    let settings = placement.map(|placement| deployments::scale_settings(&workload.spec, placement));
    settings.and_then(|settings| u32::try_from(settings.min_replicas).ok()).unwrap_or(0)
}

/// Whether the deployment has the scale and the template of the workload.
fn is_synced(deployment: &WorkloadDeployment, workload: &Workload, site: &(String, String)) -> bool {
    let placement = workload.spec.placements.iter().find(|placement| placement.name == site.0);
    !deployment.is_deleting()
        && placement.is_some_and(|placement| {
            let wanted = deployments::scale_settings(&workload.spec, placement);
            canonical::same(&wanted, &deployment.spec.scale_settings)
        })
        && template::hash(&deployment.spec.template) == template::hash(&workload.spec.template)
}

/// The state that prevents completion: of the first blocked instance, otherwise of the deployment, otherwise
/// of the first instance that is not ready.
fn blocker(snapshot: &WorkloadSnapshot, deployment: &WorkloadDeployment) -> Option<ObjectState> {
    let states: Vec<_> = snapshot.instances_of(deployment).map(state::of_instance).collect();
    let blocked = states.iter().find(|state| state.severity == Severity::Blocked).cloned();
    let own = deployment.status.as_ref().and_then(|status| conditions::find(&status.conditions, AVAILABLE));
    let own = own
        .filter(|condition| condition.status != "True")
        .map(|condition| state::of_condition(&deployment.metadata, Some(condition), "starting"));
    let pending =
        states.into_iter().find(|state| state.severity == Severity::Progressing && !state.reason.is_empty());
    blocked.or(own).or(pending)
}

fn label((placement, city): &(String, String)) -> String {
    if placement == "default" { city.clone() } else { format!("{city} ({placement})") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::testing::{mk_blocked, mk_condition, mk_instance, mk_snapshot, mk_starting};

    fn words(snapshot: &WorkloadSnapshot) -> Vec<String> {
        cities(snapshot).iter().map(|city| format!("{} {}", city.label, city.line())).collect()
    }

    #[test]
    fn a_rollout_ends_with_the_urls_of_the_first_instances() {
        assert_eq!(urls(&mk_snapshot(&["dfw"], 1)), ["http://127.1.0.1:8080"]);
        let many = urls(&mk_snapshot(&["dfw", "ord"], 5));
        assert_eq!((many.len(), many[8].as_str()), (9, "… and 2 more: see `polis instances`"));
        let mut snapshot = mk_snapshot(&["dfw"], 1);
        let runtime = &mut snapshot.instances[0].spec.runtime;
        runtime.sandbox.as_mut().unwrap().containers[0].ports.clear();
        assert!(urls(&snapshot).is_empty(), "an instance without ports serves nothing");
    }

    fn lasting(snapshot: &WorkloadSnapshot) -> Vec<(String, String)> {
        lasting_causes(snapshot).into_iter().map(|cause| (cause.label, cause.state.reason)).collect()
    }

    #[test]
    fn a_blocked_instance_of_the_newest_template_is_a_lasting_cause() {
        let mut snapshot = mk_snapshot(&["dfw", "ord"], 1);
        assert_eq!(lasting(&snapshot), []);
        snapshot.instances[1] = mk_blocked(mk_instance("ord", 0), "ImageUnavailable", "no registry");
        assert_eq!(lasting(&snapshot), [("ord".to_owned(), "ImageUnavailable".to_owned())]);
        snapshot.instances[1] = mk_starting(mk_instance("ord", 0));
        assert_eq!(lasting(&snapshot), [], "waiting may resolve it");
    }

    #[test]
    fn a_blocked_instance_of_an_older_spec_is_not_a_lasting_cause() {
        let mut snapshot = mk_snapshot(&["dfw"], 1);
        snapshot.instances[0] = mk_blocked(mk_instance("dfw", 0), "ImageUnavailable", "no registry");
        let mut repaired = snapshot.clone();
        let template = &mut repaired.workload.as_mut().unwrap().spec.template;
        template.spec.runtime.sandbox.as_mut().unwrap().containers[0].image = "polis.local/sleep".into();
        assert_eq!(lasting(&repaired), [], "the deployment has not the new template yet");
        repaired.deployments[0].spec.template = repaired.workload.as_ref().unwrap().spec.template.clone();
        assert_eq!(lasting(&repaired), [], "the instance has the old template");
        snapshot.workload.as_mut().unwrap().metadata.generation = Some(2);
        assert_eq!(lasting(&snapshot), [], "the workload controller has not seen the newest spec");
    }

    #[test]
    fn a_city_that_is_not_bound_is_a_lasting_cause() {
        let mut snapshot = mk_snapshot(&["dfw"], 1);
        let workload = snapshot.workload.as_mut().unwrap();
        workload.spec.placements[0].city_codes.push("xyz".into());
        let status = workload.status.as_mut().unwrap();
        status.placements = vec![Default::default()];
        status.placements[0].name = "default".into();
        status.placements[0].conditions =
            vec![mk_condition("Available", "False", "NoMatchingLocations", "no location serves xyz", 3)];
        assert_eq!(lasting(&snapshot), [("xyz".to_owned(), "NoMatchingLocations".to_owned())]);
    }

    #[test]
    fn the_count_uses_singular_and_plural() {
        assert_eq!(count_in_cities(1, 1), "1 instance in 1 city");
        assert_eq!(count_in_cities(4, 2), "4 instances in 2 cities");
        assert_eq!(count_in_cities(0, 1), "0 instances in 1 city");
    }

    #[test]
    fn a_workload_with_all_instances_ready_is_complete() {
        let snapshot = mk_snapshot(&["dfw", "ord"], 2);
        assert!(is_complete(&snapshot));
        assert_eq!(words(&snapshot), ["dfw 2/2 ready", "ord 2/2 ready"]);
    }

    #[test]
    fn a_generation_that_is_not_observed_is_not_complete() {
        let mut snapshot = mk_snapshot(&["dfw"], 1);
        snapshot.workload.as_mut().unwrap().metadata.generation = Some(2);
        assert!(!is_complete(&snapshot));
    }

    #[test]
    fn ready_instances_of_the_previous_template_do_not_count() {
        let mut snapshot = mk_snapshot(&["dfw"], 2);
        let workload = snapshot.workload.as_mut().unwrap();
        let sandbox = workload.spec.template.spec.runtime.sandbox.as_mut().unwrap();
        sandbox.containers[0].image = "polis.local/sleep".into();
        snapshot.deployments[0].spec.template = workload.spec.template.clone();
        assert!(!is_complete(&snapshot));
        assert_eq!(words(&snapshot), ["dfw 2/2 serving (0 new, 2 old)"]);
    }

    #[test]
    fn a_deployment_with_the_previous_scale_is_not_complete() {
        let mut snapshot = mk_snapshot(&["dfw"], 2);
        snapshot.workload.as_mut().unwrap().spec.placements[0].scale_settings.min_replicas = 3;
        assert!(!is_complete(&snapshot));
    }

    #[test]
    fn a_surplus_instance_is_not_complete() {
        let mut snapshot = mk_snapshot(&["dfw"], 1);
        snapshot.instances.push(crate::view::testing::mk_ready(mk_instance("dfw", 1)));
        assert!(!is_complete(&snapshot));
        assert_eq!(words(&snapshot), ["dfw 2/1 serving (1 new, 1 old)"]);
    }

    #[test]
    fn a_removed_city_is_not_complete_until_its_deployment_is_gone() {
        let mut snapshot = mk_snapshot(&["dfw", "ord"], 1);
        snapshot.workload.as_mut().unwrap().spec.placements[0].city_codes.pop();
        assert!(!is_complete(&snapshot));
        assert_eq!(words(&snapshot), ["dfw 1/1 ready", "ord 1/0 serving (0 new, 1 old)"]);
        snapshot.deployments.pop();
        snapshot.instances.pop();
        assert!(is_complete(&snapshot));
    }

    #[test]
    fn zero_replicas_are_complete_when_no_instance_is_left() {
        let mut snapshot = mk_snapshot(&["dfw"], 0);
        assert!(is_complete(&snapshot));
        snapshot.instances.push(mk_starting(mk_instance("dfw", 0)));
        assert!(!is_complete(&snapshot));
    }

    #[test]
    fn a_blocked_instance_is_the_blocker_of_its_city() {
        let mut snapshot = mk_snapshot(&["dfw"], 2);
        snapshot.instances[1] = mk_blocked(mk_instance("dfw", 1), "PendingQuota", "2 of 2 instances used");
        assert_eq!(words(&snapshot), ["dfw 1/2 ready (PendingQuota): 2 of 2 instances used"]);
        assert_eq!(cities(&snapshot)[0].severity(), Severity::Blocked);
    }
}
