//! Test environment: planes of a platform, its hub and its cells, and the controllers of the platform.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use polis_api::milo::Project;
use polis_apiserver::{Error as ServerError, PlaneSpec, Server, project_plane};
use polis_core::conditions;
use polis_engine::{Clock, Engine, Handle, MiloProjects, Plane, anchored_clock};
use polis_platform::hub_namespaces::HubNamespaceCleanup;
use polis_platform::projects::{BoxError, PlaneProvisioner, ProjectOptions};
use polis_platform::{locations, networks, projects, quota};
use polis_testing::builders::{mk_member, mk_project};
use polis_testing::{Cluster, HUB, PLATFORM, PROJECT_CATALOGUE, PlaneExt as _, Proxy};

/// Longer than every back-off and requeue delay of the controllers.
pub const LONG: Duration = Duration::from_secs(12 * 60);
/// Name prefix of the projects whose requests must not name each other.
pub const TENANT: &str = "tenant-";

/// A platform, its hub and its cells. A cell is named after its city.
pub struct TestEnv {
    pub cluster: Cluster,
    /// The proxy to the platform for all processes except the cells, which have their own.
    pub proxy: Proxy,
    /// The requests so far that named a tenant on the plane of another.
    pub leaks: Arc<Mutex<Vec<String>>>,
}

/// Creates and deletes planes of the embedded server.
pub struct Planes(pub Server);

impl PlaneProvisioner for Planes {
    fn create<'a>(&'a self, project: &'a str) -> BoxFuture<'a, Result<(), BoxError>> {
        async move {
            match self.0.create_plane(PlaneSpec::project(project, PROJECT_CATALOGUE)).await {
                Err(ServerError::PlaneExists(_)) => Ok(()),
                created => created.map_err(BoxError::from),
            }
        }
        .boxed()
    }

    fn delete<'a>(&'a self, project: &'a str) -> BoxFuture<'a, Result<(), BoxError>> {
        async move {
            match self.0.delete_plane(&project_plane(project)).await {
                Err(ServerError::NoPlane(_)) => Ok(()),
                deleted => deleted.map_err(BoxError::from),
            }
        }
        .boxed()
    }
}

impl TestEnv {
    /// Creates planes and CRDs: a platform, a hub, and a cell for each city. No controller runs yet.
    pub async fn new(cities: &[&str]) -> Self {
        Self::with_clock(anchored_clock("2026-01-01T00:00:00Z".parse().unwrap()), cities).await
    }

    /// Like [`TestEnv::new`], with a given clock.
    pub async fn with_clock(clock: Clock, cities: &[&str]) -> Self {
        let builder = Cluster::builder().clock(clock).platform().hub();
        let cluster = cities.iter().fold(builder, |builder, city| builder.cell(city)).build().await;
        let leaks = Arc::<Mutex<Vec<String>>>::default();
        let found = leaks.clone();
        let proxy = cluster.proxy.unrecorded().intercepted(move |request, body| {
            let named = String::from_utf8_lossy(&body);
            if request.plane != PLATFORM && tenants(&named).iter().any(|tenant| *tenant != request.plane) {
                found.lock().push(format!("{}: {request}: {named}", request.plane));
            }
            std::future::ready(None)
        });
        Self { cluster, proxy, leaks }
    }

    /// Registers a member cluster with the hub.
    pub async fn join(&self, name: &str, city: Option<&str>) {
        self.at(HUB).create(&mk_member(name, city)).await.unwrap();
    }

    /// A plane without the proxy: always reachable.
    pub fn at(&self, plane: &str) -> Plane {
        self.cluster.plane(plane)
    }

    /// The plane of the platform, through the proxy.
    pub fn root(&self) -> Plane {
        self.proxy.plane(PLATFORM)
    }

    /// The plane of a project, through the proxy.
    pub fn project(&self, name: &str) -> Plane {
        self.root().of_project(name)
    }

    /// Starts projects and locations without quota, so that a test can start quota later.
    pub fn start_without_quota(&mut self) {
        let (root, hub, clock) = (self.root(), self.at("hub"), self.cluster.clock());
        let planes = Planes(self.cluster.server().clone());
        self.start("platform", |engine| {
            let options = mk_options(&root, &hub);
            projects::declare(engine, clock.clone(), root.clone(), planes, options);
            locations::declare(engine, clock, root.clone(), hub, MiloProjects::new(root));
        });
    }

    /// Starts the quota controller with a default allowance.
    pub fn start_quota(&mut self, allowance: Option<quota::DefaultAllowance>) {
        let (root, clock) = (self.root(), self.cluster.clock());
        self.start("quota", |engine| {
            quota::declare(engine, clock, root.clone(), MiloProjects::new(root), allowance);
        });
    }

    /// Starts all platform controllers in one engine, as `polis up` does.
    pub fn start_platform(&mut self) {
        let (root, hub, clock) = (self.root(), self.at("hub"), self.cluster.clock());
        let planes = Planes(self.cluster.server().clone());
        self.start("platform", |engine| {
            let options = mk_options(&root, &hub);
            projects::declare(engine, clock.clone(), root.clone(), planes, options);
            locations::declare(engine, clock.clone(), root.clone(), hub, MiloProjects::new(root.clone()));
            let allowance = Some(quota::DefaultAllowance::default());
            quota::declare(engine, clock, root.clone(), MiloProjects::new(root), allowance);
        });
    }

    /// Starts an engine.
    pub fn start(&mut self, name: &str, declare: impl FnOnce(&mut Engine)) {
        self.cluster.start(name, declare);
    }

    /// Stops an engine.
    pub async fn stop(&mut self, name: &str) {
        self.cluster.stop(name).await;
    }

    /// The handle of a running engine.
    pub fn handle(&self, name: &str) -> Handle {
        self.cluster.handle(name)
    }

    /// Starts the network controllers of a city's cell.
    pub fn start_networks(&mut self, city: &str, pool: networks::AddressPool) {
        let (cell, clock) = (self.at(city), self.cluster.clock());
        self.start(&format!("networks-{city}"), |engine| networks::declare(engine, clock, cell, city, pool));
    }

    /// Creates a project and waits until it is ready.
    pub async fn open(&self, name: &str) -> Plane {
        self.at("").create(&mk_project(name)).await.unwrap();
        self.ready(name).await;
        self.project(name)
    }

    /// Waits until a project is ready.
    pub async fn ready(&self, name: &str) {
        let is_ready = |project: &Project| {
            project.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, "Ready"))
        };
        self.at("").eventually_has::<Project>(name, is_ready).await;
    }

    /// Lets time pass.
    pub async fn idle(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

/// The options with initial bindings and hub namespace cleanup.
pub fn mk_options(root: &Plane, hub: &Plane) -> ProjectOptions {
    ProjectOptions {
        initial_bindings: Some(locations::InitialBindings::new(root.clone(), hub.clone())),
        hub_namespaces: Some(HubNamespaceCleanup::new(hub.clone())),
    }
}

/// The tenants that a text names.
pub fn tenants(text: &str) -> BTreeSet<&str> {
    let digits = |rest: &str| rest.bytes().take_while(u8::is_ascii_digit).count();
    let all = text.match_indices(TENANT).map(|(at, word)| {
        let end = at + word.len() + digits(&text[at + word.len()..]);
        &text[at..end]
    });
    all.collect()
}
