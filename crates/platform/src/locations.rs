//! Locations: a place for each city that has a cell, and the permission of projects to use it.
//!
//! Reads   hub: Cluster · platform: Project
//! Writes  platform: Location · projects: LocationBinding
//!
//! A city is there while a member of the hub carries its label, well or not: losing contact with a cell for a while is
//! no reason to take a city from anybody. When the last member of a city is gone, so are its Location and the bindings
//! that were made here. What people made is never touched, and a Location that they made is bound as well. Which
//! projects get bindings is the choice of whoever provides them: all, or those with a label.
//!
//! A project is watched once it is Ready, and its first workload may come the moment after. So that Ready means usable,
//! the bindings that it begins with are made before ([`Opening`]).

use std::collections::BTreeSet;

use polis_api::conditions::{AVAILABLE, READY};
use polis_api::karmada::Cluster;
use polis_api::labels::TOPOLOGY_CITY_CODE;
use polis_api::milo::Project;
use polis_api::networking::{
    Location, LocationBinding, LocationBindingSpec, LocationReference, LocationSpec,
};
use polis_api::{names, reasons};
use polis_core::conditions::{self, Verdict};
use polis_core::{Time, metadata, owner};
use polis_engine::{
    Clock, Engine, Error as EngineError, Exactly, Index, Key, Outcome, Plane, PlaneSet, Provider, Query,
    Reconciler, Watch,
};

use crate::{Error, is_made_here, key_of_project, made_here, stays};

/// The class of the locations that are made here.
const CLASS: &str = "datum-managed";
/// The most bindings that a project begins with. A laptop has a few cities; where there are a thousand, a new project does
/// not wait until all of them are written.
const AT_ONCE: usize = 20;

/// Declares the stand-in on an engine: Locations on `root` for the cities of the hub's members, and bindings in every
/// project that is provided.
pub fn declare(engine: &mut Engine, clock: Clock, root: Plane, hub: Plane, projects: impl Provider) {
    let root = engine.plane("platform", root, [Watch::of::<Location>(), Watch::of::<Project>()]);
    let hub = engine.plane("hub", hub, [Watch::of::<Cluster>().index(by_city())]);
    let projects = engine.planes("project", projects, [Watch::of::<LocationBinding>()]);

    let here = root.name().clone();
    let locations = Locations { root: root.clone(), hub: hub.clone(), clock: clock.clone() };
    engine.controller("locations", &root, locations).on::<Location>().maps::<Cluster>(
        &hub,
        move |_, cluster| {
            let city = metadata::label(&cluster.metadata, TOPOLOGY_CITY_CODE);
            Ok(city.map(|city| Key::cluster(here.clone(), &names::location(city))).into_iter().collect())
        },
    );

    let known = projects.clone();
    let bindings = Bindings { root: root.clone(), projects: projects.clone(), clock };
    engine
        .controller("location-bindings", &projects, bindings)
        .maps::<LocationBinding>(&projects, |project, _| Ok(vec![key_of_project(project.name())]))
        .maps::<Project>(&root, |_, project| Ok(vec![key_of_project(&owner::name(&project.metadata).into())]))
        .maps::<Location>(&root, move |_, _| {
            Ok(known.engaged().iter().map(|project| key_of_project(project.name())).collect())
        });
}

fn by_city() -> Index {
    Index::label(TOPOLOGY_CITY_CODE)
}

/// Keeps the Locations of the platform.
struct Locations {
    root: Plane,
    hub: Plane,
    clock: Clock,
}

impl Reconciler for Locations {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Outcome, Error> {
        let standing = self.root.get::<Location>(key)?;
        if standing.as_ref().is_some_and(|standing| owner::is_deleting(&standing.metadata)) {
            return Ok(Outcome::Settled); // its last event brings the key back
        }
        if standing.as_ref().is_some_and(|standing| !is_made_here(&standing.metadata)) {
            return Ok(Outcome::Settled);
        }
        match (city_named(&key.name, &self.hub.list::<Cluster>()?), standing) {
            (Some(city), standing) => self.settle(standing, &mk_location(&city)).await?,
            (None, Some(standing)) => self.remove(&key.name, &standing).await?,
            (None, None) => {}
        }
        Ok(Outcome::Settled)
    }
}

impl Locations {
    async fn settle(&self, standing: Option<Location>, wanted: &Location) -> Result<(), Error> {
        let written = self.root.create_or_update(standing.as_ref(), wanted).await?;
        let Some(location) = written.into_object().or(standing) else { return Ok(()) };
        let mut said = location.clone();
        let ready = Verdict::yes(READY, reasons::CELL_FOUND, "a cell serves this city");
        let conditions = &mut said.status.get_or_insert_default().conditions;
        conditions::set(conditions, &ready, location.metadata.generation, &Time(self.clock.now()));
        self.root.update_status(&location, &said).await?;
        Ok(())
    }

    /// Takes a Location away once the hub itself says that no member has its city.
    async fn remove(&self, name: &str, standing: &Location) -> Result<(), Error> {
        let members = self.hub.live().list::<Cluster>(&Query::all().labels(TOPOLOGY_CITY_CODE)).await?;
        if city_named(name, &members).is_none() {
            self.root.delete(standing, Exactly::State).await?;
        }
        Ok(())
    }
}

/// The city whose location has this name, if a member serves it.
fn city_named(name: &str, members: &[Cluster]) -> Option<String> {
    let cities = members.iter().filter_map(|member| metadata::label(&member.metadata, TOPOLOGY_CITY_CODE));
    cities.filter(|city| names::location(city) == name).map(str::to_owned).next()
}

/// The location of a city.
pub(crate) fn mk_location(city: &str) -> Location {
    let spec = LocationSpec {
        location_class_name: Some(CLASS.into()),
        display_name: Some(city.to_owned()),
        topology: [(TOPOLOGY_CITY_CODE.to_owned(), city.to_owned())].into(),
        ..Default::default()
    };
    Location { metadata: made_here(None, &names::location(city)), spec, status: None }
}

/// Keeps the bindings of projects.
struct Bindings {
    root: Plane,
    projects: PlaneSet,
    clock: Clock,
}

/// One thing to do about the bindings of a project.
#[derive(Debug, PartialEq)]
enum Step {
    /// Make it, or bring it to this.
    Settle(Box<LocationBinding>),
    /// Its location is gone.
    Remove(String),
}

impl Reconciler for Bindings {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Outcome, Error> {
        let project = self.projects.plane(key)?;
        if !project.serves::<LocationBinding>()? || !stays(&self.root, &key.plane)? {
            return Ok(Outcome::Settled);
        }
        let standing = project.list::<LocationBinding>()?;
        for step in steps(&self.root.list::<Location>()?, &standing) {
            let of = |name: &str| standing.iter().find(|binding| owner::name(&binding.metadata) == name);
            match step {
                Step::Settle(wanted) => {
                    let standing = of(owner::name(&wanted.metadata));
                    self.settle(&project, standing, &wanted).await?
                }
                Step::Remove(name) => {
                    let gone = self.root.live().get::<Location>(name.as_str()).await?.is_none();
                    if let Some(binding) = of(&name).filter(|_| gone) {
                        project.delete(binding, Exactly::State).await?;
                    }
                }
            }
        }
        Ok(Outcome::Settled)
    }
}

impl Bindings {
    /// The binding is there, and says that it can be used.
    async fn settle(
        &self,
        project: &Plane,
        standing: Option<&LocationBinding>,
        wanted: &LocationBinding,
    ) -> Result<(), Error> {
        let written = project.create_or_update(standing, wanted).await?;
        let Some(binding) = written.into_object().or(standing.cloned()) else { return Ok(()) };
        let mut said = binding.clone();
        let available = Verdict::yes(AVAILABLE, reasons::CELL_FOUND, "a cell serves this city");
        let conditions = &mut said.status.get_or_insert_default().conditions;
        conditions::set(conditions, &available, binding.metadata.generation, &Time(self.clock.now()));
        project.update_status(&binding, &said).await?;
        Ok(())
    }
}

/// What a project begins with: a binding for every city that there is. Made on live reads, before anybody watches it.
#[derive(Clone, Debug)]
pub struct Opening {
    root: Plane,
    hub: Plane,
    labels: Option<String>,
}

impl Opening {
    /// For all projects of the platform behind `root`, in the cities of the hub's members.
    pub fn new(root: Plane, hub: Plane) -> Self {
        Self { root, hub, labels: None }
    }

    /// Only for the projects whose labels match the selector: the same that their provider has.
    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.labels = Some(selector.into());
        self
    }

    /// Makes the bindings that a project lacks. A plane that does not serve the kind needs none.
    pub(crate) async fn bind(&self, project: &str) -> Result<(), EngineError> {
        if !self.is_for(project).await? {
            return Ok(());
        }
        let plane = self.root.of_project(project);
        let standing = match plane.live().list::<LocationBinding>(&Query::all()).await {
            Err(error) if error.is_not_found() => return Ok(()),
            standing => standing?,
        };
        let locations = self.root.live().list::<Location>(&Query::all()).await?;
        let members = self.hub.live().list::<Cluster>(&Query::all().labels(TOPOLOGY_CITY_CODE)).await?;
        // What stands, and what is too much, is seen to once the project is watched; so is what a binding says of itself.
        let missing = steps(&with_cities_of(locations, &members), &standing).into_iter().filter_map(|step| {
            let Step::Settle(wanted) = step else { return None };
            (!standing.iter().any(|binding| binding.metadata.name == wanted.metadata.name)).then_some(wanted)
        });
        for wanted in missing.take(AT_ONCE) {
            match plane.create(&*wanted).await {
                Err(error) if !error.is_already_exists() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    async fn is_for(&self, project: &str) -> Result<bool, EngineError> {
        let Some(labels) = &self.labels else { return Ok(true) };
        let query = Query::all().labels(labels.as_str()).fields(format!("metadata.name={project}"));
        Ok(!self.root.live().list::<Project>(&query).await?.is_empty())
    }
}

/// The locations that there are, and those of cities whose location is only about to be made.
fn with_cities_of(mut locations: Vec<Location>, members: &[Cluster]) -> Vec<Location> {
    for city in members.iter().filter_map(|member| metadata::label(&member.metadata, TOPOLOGY_CITY_CODE)) {
        let name = names::location(city);
        if !locations.iter().any(|location| owner::name(&location.metadata) == name) {
            locations.push(mk_location(city));
        }
    }
    locations
}

/// What the bindings of a project need, given the locations that there are. A location that goes or has no city is
/// not bound; a binding that people made keeps its name to itself.
fn steps(locations: &[Location], standing: &[LocationBinding]) -> Vec<Step> {
    let has_city = |location: &&Location| {
        location.spec.topology.get(TOPOLOGY_CITY_CODE).is_some_and(|city| !city.is_empty())
            && !owner::is_deleting(&location.metadata)
    };
    let offered: Vec<&Location> = locations.iter().filter(has_city).collect();
    let names: BTreeSet<&str> = offered.iter().map(|location| owner::name(&location.metadata)).collect();
    let taken = |name: &str| {
        let binding = standing.iter().find(|binding| owner::name(&binding.metadata) == name);
        binding.is_some_and(|b| !is_made_here(&b.metadata) || owner::is_deleting(&b.metadata))
    };
    let wanted = offered.iter().filter(|location| !taken(owner::name(&location.metadata)));
    let mut steps: Vec<Step> = wanted.map(|location| Step::Settle(Box::new(mk_binding(location)))).collect();
    let ours = standing.iter().filter(|b| is_made_here(&b.metadata) && !owner::is_deleting(&b.metadata));
    let orphaned = ours.map(|b| owner::name(&b.metadata)).filter(|name| !names.contains(name));
    steps.extend(orphaned.map(|name| Step::Remove(name.to_owned())));
    steps
}

/// The permission to use a location.
fn mk_binding(location: &Location) -> LocationBinding {
    let name = owner::name(&location.metadata);
    let spec = LocationBindingSpec {
        location_ref: LocationReference { name: name.to_owned(), ..Default::default() },
        location_class_name: location.spec.location_class_name.clone(),
        display_name: location.spec.display_name.clone(),
        topology: location.spec.topology.clone(),
        ..Default::default()
    };
    LocationBinding { metadata: made_here(None, name), spec, status: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_cluster(name: &str, city: Option<&str>) -> Cluster {
        let mut cluster = Cluster::default();
        cluster.metadata.name = Some(name.into());
        cluster.metadata.labels = city.map(|city| metadata::map([(TOPOLOGY_CITY_CODE, city)]));
        cluster
    }

    #[test]
    fn a_city_is_there_while_a_member_carries_its_label() {
        let members = [mk_cluster("a", Some("dfw")), mk_cluster("b", Some("DFW")), mk_cluster("c", None)];
        assert_eq!(city_named("dfw", &members), Some("dfw".into()));
        assert_eq!(city_named(&names::location("DFW"), &members), Some("DFW".into()));
        assert_eq!(city_named("ord", &members), None);
    }

    #[test]
    fn a_city_whose_location_is_only_about_to_be_made_counts_once() {
        let members =
            [mk_cluster("a", Some("dfw")), mk_cluster("b", Some("ord")), mk_cluster("c", Some("ord"))];
        let all = with_cities_of(vec![mk_location("dfw")], &members);
        assert_eq!(all, [mk_location("dfw"), mk_location("ord")]);
    }

    #[test]
    fn every_location_with_a_city_is_bound() {
        let mut bare = mk_location("nowhere");
        bare.spec.topology.clear();
        let steps = steps(&[mk_location("dfw"), bare], &[]);
        assert_eq!(steps, [Step::Settle(Box::new(mk_binding(&mk_location("dfw"))))]);
    }

    #[test]
    fn a_binding_goes_with_its_location_and_one_that_people_made_stays() {
        let mut by_hand = mk_binding(&mk_location("lhr"));
        by_hand.metadata.labels = None;
        let standing = [mk_binding(&mk_location("ord")), by_hand];
        assert_eq!(steps(&[], &standing), [Step::Remove("ord".into())]);
    }

    #[test]
    fn a_binding_that_people_made_is_left_as_it_is() {
        let mut by_hand = mk_binding(&mk_location("dfw"));
        by_hand.metadata.labels = None;
        assert_eq!(steps(&[mk_location("dfw")], &[by_hand]), []);
    }
}
