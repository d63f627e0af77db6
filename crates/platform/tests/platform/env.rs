//! Test environment: planes of a platform, its hub and its cells, and helpers to start controllers and wait
//! for state.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::OnceLock;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use polis_api::crds::{self, CrdFile};
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use polis_api::k8s_openapi::jiff::Timestamp;
use polis_api::karmada::Cluster;
use polis_api::kube::Client;
use polis_api::kube::client::Body;
use polis_api::labels;
use polis_api::milo::Project;
use polis_apiserver::{Error as ServerError, PlaneSpec, Server, project_plane};
use polis_core::{conditions, metadata};
use polis_engine::{
    Clock, Engine, Handle, MiloProjects, NamespacedName, Object, Plane, Preconditions, Random,
};
use polis_platform::hub_namespaces::HubNamespaceCleanup;
use polis_platform::projects::{BoxError, PlaneProvisioner, ProjectOptions};
use polis_platform::{locations, networks, projects, quota};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::proxy::PlaneProxy;

/// Longer than every back-off and requeue delay of the controllers.
pub const LONG: Duration = Duration::from_secs(12 * 60);
/// The set of CRDs that every project serves.
const CATALOGUE: &str = "projects";

/// All CRDs, built once: deriving their schemas takes longer than most tests.
fn kinds() -> &'static [CrdFile] {
    static KINDS: OnceLock<Vec<CrdFile>> = OnceLock::new();
    KINDS.get_or_init(|| [crds::compute(), crds::platform(), crds::karmada()].concat())
}

fn is(crd: &CrdFile, parts: &[&str]) -> bool {
    let path = crd.path().to_string_lossy().into_owned();
    parts.iter().any(|part| path.contains(part))
}

/// A platform, its hub and its cells. A cell is named after its city.
pub struct TestEnv {
    pub server: Server,
    pub clock: Clock,
    /// The proxy to the platform for all processes except the cells, which have their own.
    pub proxy: PlaneProxy,
    running: BTreeMap<String, Process>,
    /// Clients of a hub and cells that are not embedded.
    external: BTreeMap<String, Client>,
}

/// A running engine.
struct Process {
    handle: Handle,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

struct WallClock(Clock);

impl polis_apiserver::TimeSource for WallClock {
    fn now(&self) -> Timestamp {
        self.0.now()
    }
}

/// Creates and deletes planes of the embedded server.
pub struct Planes(pub Server);

impl PlaneProvisioner for Planes {
    fn create<'a>(&'a self, project: &'a str) -> BoxFuture<'a, Result<(), BoxError>> {
        async move {
            match self.0.create_plane(PlaneSpec::project(project, CATALOGUE)).await {
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
        Self::with_clock(Clock::anchored("2026-01-01T00:00:00Z".parse().unwrap()), cities).await
    }

    /// Like [`TestEnv::new`], with a given clock.
    pub async fn with_clock(clock: Clock, cities: &[&str]) -> Self {
        let server = Server::builder().clock(WallClock(clock.clone())).build().await.unwrap();
        server.create_plane(PlaneSpec::standalone("hub")).await.unwrap();
        for city in cities {
            server.create_plane(PlaneSpec::standalone(*city)).await.unwrap();
        }
        for crd in kinds() {
            if is(crd, &["_projects", "_resourceregistrations", "_locations."]) {
                server.install_crd_in("", &crd.crd).await.unwrap();
            }
            if is(crd, &["compute.datumapis.com", "karmada.io"]) {
                server.install_crd_in("hub", &crd.crd).await.unwrap();
            }
            if is(crd, &["compute.datumapis.com", "networking.datumapis.com"]) {
                for city in cities {
                    server.install_crd_in(city, &crd.crd).await.unwrap();
                }
            }
            let quota = is(crd, &["_resourcegrants", "_resourceclaims", "_allowancebuckets"]);
            if quota || is(crd, &["compute.datumapis.com", "_locationbindings", "_networks."]) {
                server.install_crd(CATALOGUE, &crd.crd).await.unwrap();
            }
        }
        let proxy = PlaneProxy::new(server.service());
        let env = Self { server, clock, proxy, running: BTreeMap::new(), external: BTreeMap::new() };
        for city in cities {
            env.join(city, Some(city)).await;
        }
        env
    }

    /// Registers a member cluster with the hub.
    pub async fn join(&self, name: &str, city: Option<&str>) {
        let mut member = Cluster::default();
        member.metadata.name = Some(name.into());
        member.metadata.labels = city.map(|city| metadata::map([(labels::TOPOLOGY_CITY_CODE, city)]));
        member.spec.sync_mode = "Push".into();
        self.at("hub").create(&member).await.unwrap();
    }

    /// Uses this client for the hub or a cell. Call it before any controller starts.
    #[allow(dead_code, reason = "used by the suite with external planes")]
    pub fn serve_from(&mut self, plane: &str, client: Client) {
        self.external.insert(plane.to_owned(), client);
    }

    /// A plane without the proxy: always reachable and not logged.
    pub fn at(&self, plane: &str) -> Plane {
        if let Some(client) = self.external.get(plane).cloned() {
            let send = move |request: http::Request<Body>| {
                let client = client.clone();
                async move { client.send(request).await }
            };
            return Plane::in_process(plane, tower::service_fn(send));
        }
        Plane::in_process::<_, http_body_util::Full<bytes::Bytes>, _>(plane, self.server.plane_service(plane))
    }

    /// The plane of the platform, through the proxy.
    pub fn root(&self) -> Plane {
        Plane::in_process("platform", self.proxy.clone())
    }

    /// The plane of a project.
    pub fn project(&self, name: &str) -> Plane {
        self.root().of_project(name)
    }

    /// Starts projects and locations without quota, so that a test can start quota later.
    pub fn start_without_quota(&mut self) {
        let (root, hub, clock) = (self.root(), self.at("hub"), self.clock.clone());
        let planes = Planes(self.server.clone());
        self.start("platform", |engine| {
            let options = mk_options(&root, &hub);
            projects::declare(engine, clock.clone(), root.clone(), planes, options);
            locations::declare(engine, clock, root.clone(), hub, MiloProjects::new(root));
        });
    }

    /// Starts the quota controller with a default allowance.
    pub fn start_quota(&mut self, allowance: Option<quota::DefaultAllowance>) {
        let (root, clock) = (self.root(), self.clock.clone());
        self.start("quota", |engine| {
            quota::declare(engine, clock, root.clone(), MiloProjects::new(root), allowance);
        });
    }

    /// Starts all platform controllers in one engine, as `polis up` does.
    pub fn start_platform(&mut self) {
        let (root, hub, clock) = (self.root(), self.at("hub"), self.clock.clone());
        let planes = Planes(self.server.clone());
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
        let mut engine = Engine::with(self.clock.clone(), Random::from_seed(7));
        declare(&mut engine);
        let handle = engine.handle();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            engine.run(async { _ = stopped.await }).await.unwrap();
        });
        self.running.insert(name.to_owned(), Process { handle, stop, task });
    }

    /// Stops an engine.
    pub async fn stop(&mut self, name: &str) {
        let Process { stop, task, .. } = self.running.remove(name).expect("the engine runs");
        _ = stop.send(());
        task.await.unwrap();
    }

    /// The handle of a running engine.
    pub fn handle(&self, name: &str) -> Handle {
        self.running[name].handle.clone()
    }

    /// Starts the network controllers of a city's cell.
    pub fn start_networks(&mut self, city: &str, pool: networks::AddressPool) {
        let (cell, clock) = (self.at(city), self.clock.clone());
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
        self.until(&format!("project {name} ready"), async || {
            let project = self.at("").uncached().get::<Project>(name).await.unwrap()?;
            conditions::is_true(&project.status?.conditions, "Ready").then_some(())
        })
        .await;
    }

    /// Waits until an object exists and matches.
    pub async fn has<'p, K: Object>(
        &self,
        plane: &Plane,
        name: impl Into<NamespacedName<'p>>,
        matches: impl Fn(&K) -> bool,
    ) -> K {
        let name = name.into();
        let what = format!("{name} on {}", plane.name());
        self.until(&what, async || {
            plane.uncached().get::<K>(name).await.unwrap().filter(|object| matches(object))
        })
        .await
    }

    /// Waits until an object does not exist.
    pub async fn loses<'p, K: Object>(&self, plane: &Plane, name: impl Into<NamespacedName<'p>>) {
        let name = name.into();
        let what = format!("no {name} on {}", plane.name());
        self.until(&what, async || plane.uncached().get::<K>(name).await.unwrap().is_none().then_some(()))
            .await;
    }

    /// Deletes an existing object.
    pub async fn delete<'p, K: Object>(&self, plane: &Plane, name: impl Into<NamespacedName<'p>>) {
        let object = plane.uncached().get::<K>(name).await.unwrap().expect("the object exists");
        plane.delete(&object, Preconditions::Uid).await.unwrap();
    }

    /// Waits until the check returns a value, for at most 15 minutes: longer than any back-off of the
    /// controllers.
    pub async fn until<T, F: Future<Output = Option<T>>>(
        &self,
        what: &str,
        mut check: impl FnMut() -> F,
    ) -> T {
        let deadline = Instant::now() + Duration::from_secs(15 * 60);
        loop {
            if let Some(found) = check().await {
                return found;
            }
            assert!(Instant::now() < deadline, "timed out waiting for {what}");
            sleep(Duration::from_millis(250)).await;
        }
    }

    /// Advances the clock.
    pub async fn idle(&self, time: Duration) {
        sleep(time).await;
    }
}

/// Updates an object; retries on conflict.
pub async fn change<'p, K: Object>(
    plane: &Plane,
    name: impl Into<NamespacedName<'p>>,
    change: impl Fn(&mut K),
) {
    let name = name.into();
    loop {
        let current = plane.uncached().get::<K>(name).await.unwrap().expect("the object exists");
        let mut desired = current.clone();
        change(&mut desired);
        match plane.update(&current, &desired).await {
            Err(error) if error.is_conflict() => {}
            done => {
                done.unwrap();
                return;
            }
        }
    }
}

/// The options with initial bindings and hub namespace cleanup.
pub fn mk_options(root: &Plane, hub: &Plane) -> ProjectOptions {
    ProjectOptions {
        initial_bindings: Some(locations::InitialBindings::new(root.clone(), hub.clone())),
        hub_namespaces: Some(HubNamespaceCleanup::new(hub.clone())),
    }
}

pub fn mk_project(name: &str) -> Project {
    Project { metadata: mk_meta(None, name), ..Project::default() }
}

pub fn mk_namespace(name: &str) -> Namespace {
    Namespace { metadata: mk_meta(None, name), ..Namespace::default() }
}

pub fn mk_meta(namespace: Option<&str>, name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.into()), namespace: namespace.map(str::to_owned), ..ObjectMeta::default() }
}

/// Status and reason of a condition.
pub fn condition(conditions: &[Condition], kind: &str) -> Option<(String, String)> {
    conditions::find(conditions, kind).map(|c| (c.status.clone(), c.reason.clone()))
}
