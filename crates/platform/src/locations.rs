//! Location controllers: create a Location for each city that has a cell, and LocationBindings in projects.
//!
//! Reads   hub: Cluster · platform: Project, Location · project: LocationBinding
//! Writes  platform: Location · project: LocationBinding
//!
//! A city exists while a member of the hub has its label, even if the member is not ready: a temporary loss
//! of contact must not remove a city. When the last member of a city is deleted, its Location and the managed
//! LocationBindings are deleted. Objects that users created are never changed; a Location that a user created
//! is also bound. The plane provider selects the projects that get bindings: all, or those with a label.
//!
//! A project is watched once it is Ready, and its first Workload may follow at once. So that Ready means
//! usable, [`InitialBindings`] creates the first bindings before.

use std::collections::BTreeSet;

use polis_api::conditions::{AVAILABLE, READY};
use polis_api::karmada::Cluster;
use polis_api::labels::TOPOLOGY_CITY_CODE;
use polis_api::milo::Project;
use polis_api::networking::{
    Location, LocationBinding, LocationBindingSpec, LocationReference, LocationSpec,
};
use polis_api::{ObjectExt, names, reasons};
use polis_core::Time;
use polis_core::conditions::{self, DesiredCondition};
use polis_engine::{
    Action, Clock, Engine, Error as EngineError, Index, Key, ListOptions, Plane, PlaneProvider, PlaneSet,
    Preconditions, Reconciler, Watch,
};

use crate::{Error, is_active, is_managed, key_of_project, managed_metadata};

/// The class of managed Locations.
const CLASS: &str = "datum-managed";
/// Maximum number of initial bindings. With a thousand cities a new project must not wait until all bindings
/// are written.
const MAX_INITIAL_BINDINGS: usize = 20;

/// Registers the controllers with an engine: Locations on `root` for the cities of the hub's members, and
/// LocationBindings in every project that `projects` provides.
pub fn declare(engine: &mut Engine, clock: Clock, root: Plane, hub: Plane, projects: impl PlaneProvider) {
    let root = engine.plane("platform", root, [Watch::of::<Location>(), Watch::of::<Project>()]);
    let hub = engine.plane("hub", hub, [Watch::of::<Cluster>().index(by_city())]);
    let projects = engine.planes("project", projects, [Watch::of::<LocationBinding>()]);

    let here = root.name().clone();
    let locations = LocationController { root: root.clone(), hub: hub.clone(), clock: clock.clone() };
    engine.controller("locations", &root, locations).for_kind::<Location>().watches::<Cluster>(
        &hub,
        move |_, cluster| {
            let city = cluster.label(TOPOLOGY_CITY_CODE);
            Ok(city.map(|city| Key::cluster(here.clone(), &names::location(city))).into_iter().collect())
        },
    );

    let project_planes = projects.clone();
    let bindings = LocationBindingController { root: root.clone(), projects: projects.clone(), clock };
    engine
        .controller("location-bindings", &projects, bindings)
        .watches::<LocationBinding>(&projects, |project, _| Ok(vec![key_of_project(project.name())]))
        .watches::<Project>(&root, |_, project| Ok(vec![key_of_project(&project.name().into())]))
        .watches::<Location>(&root, move |_, _| {
            Ok(project_planes.engaged().iter().map(|project| key_of_project(project.name())).collect())
        });
}

fn by_city() -> Index {
    Index::label(TOPOLOGY_CITY_CODE)
}

/// Reconciles the Locations of the platform.
struct LocationController {
    root: Plane,
    hub: Plane,
    clock: Clock,
}

impl Reconciler for LocationController {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let existing = self.root.get::<Location>(key)?;
        if existing.as_ref().is_some_and(|existing| existing.is_deleting()) {
            return Ok(Action::AwaitChange); // its deletion requeues the key
        }
        if existing.as_ref().is_some_and(|existing| !is_managed(existing)) {
            return Ok(Action::AwaitChange);
        }
        match (city_named(&key.name, &self.hub.list::<Cluster>()?), existing) {
            (Some(city), existing) => self.ensure(existing, &mk_location(&city)).await?,
            (None, Some(existing)) => self.delete(&key.name, &existing).await?,
            (None, None) => {}
        }
        Ok(Action::AwaitChange)
    }
}

impl LocationController {
    async fn ensure(&self, existing: Option<Location>, desired: &Location) -> Result<(), Error> {
        let written = self.root.create_or_update(existing.as_ref(), desired).await?;
        let Some(location) = written.into_object().or(existing) else { return Ok(()) };
        let ready = DesiredCondition::new_true(READY, reasons::CELL_FOUND, "a cell serves this city");
        let (mut status, now) = (location.status.clone().unwrap_or_default(), Time(self.clock.now()));
        conditions::set(&mut status.conditions, &ready, location.metadata.generation, &now);
        self.root.write_status(&location, status).await?;
        Ok(())
    }

    /// Deletes a Location if an uncached list of the hub's members does not contain its city.
    async fn delete(&self, name: &str, existing: &Location) -> Result<(), Error> {
        let members =
            self.hub.uncached().list::<Cluster>(&ListOptions::all().labels(TOPOLOGY_CITY_CODE)).await?;
        if city_named(name, &members).is_none() {
            self.root.delete(existing, Preconditions::UidAndResourceVersion).await?;
        }
        Ok(())
    }
}

/// The city whose location has this name, if a member serves it.
fn city_named(name: &str, members: &[Cluster]) -> Option<String> {
    let cities = members.iter().filter_map(|member| member.label(TOPOLOGY_CITY_CODE));
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
    Location { metadata: managed_metadata(None, &names::location(city)), spec, status: None }
}

/// Reconciles the LocationBindings of each project as a whole.
struct LocationBindingController {
    root: Plane,
    projects: PlaneSet,
    clock: Clock,
}

/// An action on one LocationBinding.
#[derive(Debug, PartialEq)]
enum BindingAction {
    /// Create or update it.
    Ensure(Box<LocationBinding>),
    /// Delete it: its Location is deleted.
    Delete(String),
}

impl Reconciler for LocationBindingController {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let project = self.projects.plane(key)?;
        if !project.serves::<LocationBinding>()? || !is_active(&self.root, &key.plane)? {
            return Ok(Action::AwaitChange);
        }
        let existing = project.list::<LocationBinding>()?;
        for action in plan(&self.root.list::<Location>()?, &existing) {
            let of = |name: &str| existing.iter().find(|binding| binding.name() == name);
            match action {
                BindingAction::Ensure(desired) => {
                    let existing = of(desired.name());
                    self.ensure(&project, existing, &desired).await?
                }
                BindingAction::Delete(name) => {
                    let deleted = self.root.uncached().get::<Location>(name.as_str()).await?.is_none();
                    if let Some(binding) = of(&name).filter(|_| deleted) {
                        project.delete(binding, Preconditions::UidAndResourceVersion).await?;
                    }
                }
            }
        }
        Ok(Action::AwaitChange)
    }
}

impl LocationBindingController {
    /// Creates or updates the binding and sets it Available.
    async fn ensure(
        &self,
        project: &Plane,
        existing: Option<&LocationBinding>,
        desired: &LocationBinding,
    ) -> Result<(), Error> {
        let written = project.create_or_update(existing, desired).await?;
        let Some(binding) = written.into_object().or(existing.cloned()) else { return Ok(()) };
        let available = DesiredCondition::new_true(AVAILABLE, reasons::CELL_FOUND, "a cell serves this city");
        let (mut status, now) = (binding.status.clone().unwrap_or_default(), Time(self.clock.now()));
        conditions::set(&mut status.conditions, &available, binding.metadata.generation, &now);
        project.write_status(&binding, status).await?;
        Ok(())
    }
}

/// Creates the LocationBindings of a new project with uncached reads, before its plane is watched.
#[derive(Clone, Debug)]
pub struct InitialBindings {
    root: Plane,
    hub: Plane,
    labels: Option<String>,
}

impl InitialBindings {
    /// Initial bindings for all projects of the platform `root`, in the cities of the hub's members.
    pub fn new(root: Plane, hub: Plane) -> Self {
        Self { root, hub, labels: None }
    }

    /// Restricts the bindings to projects that match the label selector. Use the same selector as the plane
    /// provider.
    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.labels = Some(selector.into());
        self
    }

    /// Creates the missing bindings of a project. Does nothing if the plane does not serve the kind.
    pub(crate) async fn create(&self, project: &str) -> Result<(), EngineError> {
        if !self.selects(project).await? {
            return Ok(());
        }
        let plane = self.root.of_project(project);
        let existing = match plane.uncached().list::<LocationBinding>(&ListOptions::all()).await {
            Err(error) if error.is_not_found() => return Ok(()),
            existing => existing?,
        };
        let locations = self.root.uncached().list::<Location>(&ListOptions::all()).await?;
        let members =
            self.hub.uncached().list::<Cluster>(&ListOptions::all().labels(TOPOLOGY_CITY_CODE)).await?;
        // Only missing bindings are created here. The controller updates, deletes and sets conditions once
        // the project is watched.
        let missing =
            plan(&with_cities_of(locations, &members), &existing).into_iter().filter_map(|action| {
                let BindingAction::Ensure(desired) = action else { return None };
                (!existing.iter().any(|binding| binding.metadata.name == desired.metadata.name))
                    .then_some(desired)
            });
        for desired in missing.take(MAX_INITIAL_BINDINGS) {
            match plane.create(&*desired).await {
                Err(error) if !error.is_already_exists() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    async fn selects(&self, project: &str) -> Result<bool, EngineError> {
        let Some(labels) = &self.labels else { return Ok(true) };
        let options = ListOptions::all().labels(labels.as_str()).fields(format!("metadata.name={project}"));
        Ok(!self.root.uncached().list::<Project>(&options).await?.is_empty())
    }
}

/// The existing Locations, and those of cities whose Location is not created yet.
fn with_cities_of(mut locations: Vec<Location>, members: &[Cluster]) -> Vec<Location> {
    for city in members.iter().filter_map(|member| member.label(TOPOLOGY_CITY_CODE)) {
        let name = names::location(city);
        if !locations.iter().any(|location| location.name() == name) {
            locations.push(mk_location(city));
        }
    }
    locations
}

/// Plans the bindings of a project for the existing Locations. A Location that is being deleted or has no
/// city is not bound. The name of a user's own binding stays with it.
fn plan(locations: &[Location], existing: &[LocationBinding]) -> Vec<BindingAction> {
    let has_city = |location: &&Location| {
        location.spec.topology.get(TOPOLOGY_CITY_CODE).is_some_and(|city| !city.is_empty())
            && !location.is_deleting()
    };
    let bindable: Vec<&Location> = locations.iter().filter(has_city).collect();
    let names: BTreeSet<&str> = bindable.iter().map(|location| location.name()).collect();
    let taken = |name: &str| {
        let binding = existing.iter().find(|binding| binding.name() == name);
        binding.is_some_and(|b| !is_managed(b) || b.is_deleting())
    };
    let desired = bindable.iter().filter(|location| !taken(location.name()));
    let mut actions: Vec<BindingAction> =
        desired.map(|location| BindingAction::Ensure(Box::new(mk_binding(location)))).collect();
    let ours = existing.iter().filter(|b| is_managed(*b) && !b.is_deleting());
    let orphaned = ours.map(|b| b.name()).filter(|name| !names.contains(name));
    actions.extend(orphaned.map(|name| BindingAction::Delete(name.to_owned())));
    actions
}

/// The LocationBinding of a Location.
fn mk_binding(location: &Location) -> LocationBinding {
    let name = location.name();
    let spec = LocationBindingSpec {
        location_ref: LocationReference { name: name.to_owned(), ..Default::default() },
        location_class_name: location.spec.location_class_name.clone(),
        display_name: location.spec.display_name.clone(),
        topology: location.spec.topology.clone(),
        ..Default::default()
    };
    LocationBinding { metadata: managed_metadata(None, name), spec, status: None }
}

#[cfg(test)]
mod tests {
    use polis_core::metadata;

    use super::*;

    fn mk_cluster(name: &str, city: Option<&str>) -> Cluster {
        let mut cluster = Cluster::default();
        cluster.metadata.name = Some(name.into());
        cluster.metadata.labels = city.map(|city| metadata::map([(TOPOLOGY_CITY_CODE, city)]));
        cluster
    }

    #[test]
    fn a_city_exists_while_a_member_has_its_label() {
        let members = [mk_cluster("a", Some("dfw")), mk_cluster("b", Some("DFW")), mk_cluster("c", None)];
        assert_eq!(city_named("dfw", &members), Some("dfw".into()));
        assert_eq!(city_named(&names::location("DFW"), &members), Some("DFW".into()));
        assert_eq!(city_named("ord", &members), None);
    }

    #[test]
    fn a_city_without_a_location_yet_counts_once() {
        let members =
            [mk_cluster("a", Some("dfw")), mk_cluster("b", Some("ord")), mk_cluster("c", Some("ord"))];
        let all = with_cities_of(vec![mk_location("dfw")], &members);
        assert_eq!(all, [mk_location("dfw"), mk_location("ord")]);
    }

    #[test]
    fn every_location_with_a_city_is_bound() {
        let mut without_city = mk_location("nowhere");
        without_city.spec.topology.clear();
        let actions = plan(&[mk_location("dfw"), without_city], &[]);
        assert_eq!(actions, [BindingAction::Ensure(Box::new(mk_binding(&mk_location("dfw"))))]);
    }

    #[test]
    fn a_managed_binding_is_deleted_with_its_location_and_a_users_binding_stays() {
        let mut users_own = mk_binding(&mk_location("lhr"));
        users_own.metadata.labels = None;
        let existing = [mk_binding(&mk_location("ord")), users_own];
        assert_eq!(plan(&[], &existing), [BindingAction::Delete("ord".into())]);
    }

    #[test]
    fn a_users_binding_is_left_unchanged() {
        let mut users_own = mk_binding(&mk_location("dfw"));
        users_own.metadata.labels = None;
        assert_eq!(plan(&[mk_location("dfw")], &[users_own]), []);
    }
}
