//! How far a workload is in each of its cities, and when it has arrived.
//!
//! A city has arrived when exactly the wanted number of instances exists, all of the newest template and all ready.
//! Instances are counted themselves: the counters of a deployment may still speak of the template before, and they carry
//! no generation on the way from the cell to the project.

use polis_api::compute::{Workload, WorkloadDeployment};
use polis_api::conditions::AVAILABLE;
use polis_core::{canonical, conditions, instances, owner, template};

use super::picture::Picture;
use super::state::{self, State};
use super::{Mood, tree};

/// How far one city is.
#[derive(Clone, Debug, PartialEq)]
pub struct CityProgress {
    /// The city, with the placement where that is not `default`.
    pub label: String,
    /// Wanted instances.
    pub wanted: u32,
    /// Instances that are ready and of the newest template.
    pub ready: u32,
    /// Instances that are not wanted any more, or of an older template.
    pub old: u32,
    /// Whether it has arrived.
    pub arrived: bool,
    /// What holds it up, when something does.
    pub held: Option<State>,
}

impl CityProgress {
    /// One line for people.
    pub fn in_words(&self) -> String {
        let message =
            self.held.as_ref().filter(|held| held.mood == Mood::Stuck).map(|held| held.message.as_str());
        match message {
            Some(message) if !message.is_empty() => format!("{}: {message}", self.in_short()),
            _ => self.in_short(),
        }
    }

    /// The line without what the object itself says, which may be long.
    pub fn in_short(&self) -> String {
        let mut words = format!("{}/{} ready", self.ready, self.wanted);
        if self.old > 0 {
            words.push_str(&format!(", {} old", self.old));
        }
        if let Some(held) = &self.held {
            words.push_str(&format!(" ({})", held.reason));
        }
        words
    }

    /// How well it is.
    pub fn mood(&self) -> Mood {
        match &self.held {
            _ if self.arrived => Mood::Good,
            Some(held) => held.mood.max(Mood::Moving),
            None => Mood::Moving,
        }
    }
}

/// How far every city is: those that are wanted, then those that are being left.
pub fn cities(picture: &Picture) -> Vec<CityProgress> {
    let Some(workload) = &picture.workload else { return Vec::new() };
    let wanted = picture.wanted_sites();
    let mut cities: Vec<_> = wanted.iter().map(|site| city(picture, workload, site)).collect();
    for deployment in &picture.deployments {
        let site = (deployment.spec.placement_name.clone(), deployment.spec.city_code.clone());
        if !wanted.contains(&site) {
            let old = picture.instances_of(deployment).count();
            cities.push(CityProgress {
                label: label(&site),
                wanted: 0,
                ready: 0,
                old: u32::try_from(old).unwrap_or(u32::MAX),
                arrived: false,
                held: None,
            });
        }
    }
    cities
}

/// So many instances in so many cities, in words.
pub fn spread(instances: usize, cities: usize) -> String {
    let instances = if instances == 1 { "1 instance".to_owned() } else { format!("{instances} instances") };
    let cities = if cities == 1 { "1 city".to_owned() } else { format!("{cities} cities") };
    format!("{instances} in {cities}")
}

/// Whether the workload is where it should be in every city.
pub fn has_arrived(picture: &Picture) -> bool {
    picture.workload.as_ref().is_some_and(is_observed) && cities(picture).iter().all(|city| city.arrived)
}

/// Whether the workload controller has seen the newest spec. Controllers of others may not say so at all.
fn is_observed(workload: &Workload) -> bool {
    let Some(status) = &workload.status else { return false };
    match status.observed_generation {
        Some(seen) => workload.metadata.generation.is_none_or(|generation| seen >= generation),
        None => !status.conditions.is_empty(),
    }
}

fn city(picture: &Picture, workload: &Workload, site: &(String, String)) -> CityProgress {
    let mut progress = CityProgress {
        label: label(site),
        wanted: wanted(workload, site),
        ready: 0,
        old: 0,
        arrived: false,
        held: None,
    };
    let Some(deployment) = picture.deployment_at(site) else {
        progress.held = Some(tree::missing(picture, site)).filter(|state| !state.reason.is_empty());
        return progress;
    };
    let follows = follows(deployment, workload, site);
    if follows {
        progress.wanted = instances::desired(deployment);
    }
    let hash = template::hash(&workload.spec.template);
    let mut exist = 0;
    for instance in picture.instances_of(deployment) {
        exist += 1;
        let current = template::is_current(instance, &workload.spec.template, &hash)
            && !owner::is_deleting(&instance.metadata);
        match (current, instances::is_ready(instance)) {
            (false, _) => progress.old += 1,
            (true, true) => progress.ready += 1,
            (true, false) => {}
        }
    }
    progress.old += exist_beyond(exist, progress.wanted, progress.old);
    progress.arrived = follows && exist == progress.wanted && progress.ready == progress.wanted;
    if !progress.arrived {
        progress.held = held(picture, deployment);
    }
    progress
}

/// Instances above the wanted number that are not counted as old already.
fn exist_beyond(exist: u32, wanted: u32, old: u32) -> u32 {
    exist.saturating_sub(wanted).saturating_sub(old)
}

fn wanted(workload: &Workload, site: &(String, String)) -> u32 {
    let placement = workload.spec.placements.iter().find(|placement| placement.name == site.0);
    placement.and_then(|placement| u32::try_from(placement.scale_settings.min_replicas).ok()).unwrap_or(0)
}

/// Whether the deployment already says what the workload says.
fn follows(deployment: &WorkloadDeployment, workload: &Workload, site: &(String, String)) -> bool {
    let placement = workload.spec.placements.iter().find(|placement| placement.name == site.0);
    !owner::is_deleting(&deployment.metadata)
        && placement.is_some_and(|p| canonical::same(&p.scale_settings, &deployment.spec.scale_settings))
        && template::hash(&deployment.spec.template) == template::hash(&workload.spec.template)
}

/// The worst that holds a city up: its first blocked instance, else what the deployment says, else the first instance.
fn held(picture: &Picture, deployment: &WorkloadDeployment) -> Option<State> {
    let states: Vec<_> = picture.instances_of(deployment).map(state::of_instance).collect();
    let blocked = states.iter().find(|state| state.mood == Mood::Stuck).cloned();
    let own = deployment.status.as_ref().and_then(|status| conditions::find(&status.conditions, AVAILABLE));
    let own = own
        .filter(|condition| condition.status != "True")
        .map(|condition| state::judged(&deployment.metadata, Some(condition), "starting"));
    let moving = states.into_iter().find(|state| state.mood == Mood::Moving && !state.reason.is_empty());
    blocked.or(own).or(moving)
}

fn label((placement, city): &(String, String)) -> String {
    if placement == "default" { city.clone() } else { format!("{city} ({placement})") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::testing::{mk_blocked, mk_instance, mk_picture, mk_starting};

    fn words(picture: &Picture) -> Vec<String> {
        cities(picture).iter().map(|city| format!("{} {}", city.label, city.in_words())).collect()
    }

    #[test]
    fn one_is_told_as_one() {
        assert_eq!(spread(1, 1), "1 instance in 1 city");
        assert_eq!(spread(4, 2), "4 instances in 2 cities");
        assert_eq!(spread(0, 1), "0 instances in 1 city");
    }

    #[test]
    fn a_workload_with_all_its_instances_ready_has_arrived() {
        let picture = mk_picture(&["dfw", "ord"], 2);
        assert!(has_arrived(&picture));
        assert_eq!(words(&picture), ["dfw 2/2 ready", "ord 2/2 ready"]);
    }

    #[test]
    fn a_change_that_the_controller_has_not_seen_has_not_arrived() {
        let mut picture = mk_picture(&["dfw"], 1);
        picture.workload.as_mut().unwrap().metadata.generation = Some(2);
        assert!(!has_arrived(&picture));
    }

    #[test]
    fn ready_instances_of_the_template_before_do_not_count() {
        let mut picture = mk_picture(&["dfw"], 2);
        let workload = picture.workload.as_mut().unwrap();
        let sandbox = workload.spec.template.spec.runtime.sandbox.as_mut().unwrap();
        sandbox.containers[0].image = "polis.local/sleep".into();
        picture.deployments[0].spec.template = workload.spec.template.clone();
        assert!(!has_arrived(&picture));
        assert_eq!(words(&picture), ["dfw 0/2 ready, 2 old"]);
    }

    #[test]
    fn a_deployment_that_still_has_the_scale_before_has_not_arrived() {
        let mut picture = mk_picture(&["dfw"], 2);
        picture.workload.as_mut().unwrap().spec.placements[0].scale_settings.min_replicas = 3;
        assert!(!has_arrived(&picture));
    }

    #[test]
    fn an_instance_too_many_is_waited_for() {
        let mut picture = mk_picture(&["dfw"], 1);
        picture.instances.push(crate::view::testing::mk_ready(mk_instance("dfw", 1)));
        assert!(!has_arrived(&picture));
        assert_eq!(words(&picture), ["dfw 2/1 ready, 1 old"]);
    }

    #[test]
    fn a_city_that_was_taken_out_is_waited_for_until_it_is_gone() {
        let mut picture = mk_picture(&["dfw", "ord"], 1);
        picture.workload.as_mut().unwrap().spec.placements[0].city_codes.pop();
        assert!(!has_arrived(&picture));
        assert_eq!(words(&picture), ["dfw 1/1 ready", "ord 0/0 ready, 1 old"]);
        picture.deployments.pop();
        picture.instances.pop();
        assert!(has_arrived(&picture));
    }

    #[test]
    fn nothing_wanted_is_arrived_when_nothing_is_left() {
        let mut picture = mk_picture(&["dfw"], 0);
        assert!(has_arrived(&picture));
        picture.instances.push(mk_starting(mk_instance("dfw", 0)));
        assert!(!has_arrived(&picture));
    }

    #[test]
    fn a_blocked_instance_speaks_for_its_city() {
        let mut picture = mk_picture(&["dfw"], 2);
        picture.instances[1] = mk_blocked(mk_instance("dfw", 1), "PendingQuota", "2 of 2 instances used");
        assert_eq!(words(&picture), ["dfw 1/2 ready (PendingQuota): 2 of 2 instances used"]);
        assert_eq!(cities(&picture)[0].mood(), Mood::Stuck);
    }
}
