//! The world of these tests, and the words to speak about it.

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
use polis_engine::{Clock, Engine, Exactly, Handle, MiloProjects, Object, Place, Plane, Random};
use polis_platform::homes::Homes;
use polis_platform::projects::{Beside, BoxError, PlaneMaker};
use polis_platform::{locations, networks, projects, quota};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::line::Line;

/// Longer than every pause that the controllers keep on purpose.
pub const LONG: Duration = Duration::from_secs(12 * 60);
/// The catalogue of kinds that every project has.
const CATALOGUE: &str = "projects";

/// All kinds, once: deriving their schemas takes longer than most tests.
fn kinds() -> &'static [CrdFile] {
    static KINDS: OnceLock<Vec<CrdFile>> = OnceLock::new();
    KINDS.get_or_init(|| [crds::compute(), crds::platform(), crds::karmada()].concat())
}

fn is(crd: &CrdFile, parts: &[&str]) -> bool {
    let path = crd.path().to_string_lossy().into_owned();
    parts.iter().any(|part| path.contains(part))
}

/// A platform, its hub and its cells, which are named by their cities.
pub struct World {
    pub server: Server,
    pub clock: Clock,
    /// The line to the platform of all processes but the cells, which have lines of their own.
    pub line: Line,
    running: BTreeMap<String, Process>,
    /// Hub and cells that are somebody else's.
    real: BTreeMap<String, Client>,
}

/// A process of controllers.
struct Process {
    handle: Handle,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

struct WallClock(Clock);

impl polis_apiserver::Clock for WallClock {
    fn now(&self) -> Timestamp {
        self.0.now()
    }
}

/// Makes planes on the embedded server.
pub struct Planes(pub Server);

impl PlaneMaker for Planes {
    fn create<'a>(&'a self, project: &'a str) -> BoxFuture<'a, Result<(), BoxError>> {
        async move {
            match self.0.create_plane(PlaneSpec::project(project, CATALOGUE)).await {
                Err(ServerError::PlaneExists(_)) => Ok(()),
                made => made.map_err(BoxError::from),
            }
        }
        .boxed()
    }

    fn delete<'a>(&'a self, project: &'a str) -> BoxFuture<'a, Result<(), BoxError>> {
        async move {
            match self.0.delete_plane(&project_plane(project)).await {
                Err(ServerError::NoPlane(_)) => Ok(()),
                gone => gone.map_err(BoxError::from),
            }
        }
        .boxed()
    }
}

impl World {
    /// Planes and kinds: a platform, a hub, and a cell for each city. Nothing runs yet.
    pub async fn new(cities: &[&str]) -> Self {
        Self::at_time(Clock::anchored("2026-01-01T00:00:00Z".parse().unwrap()), cities).await
    }

    /// The same, in a time that others have, too.
    pub async fn at_time(clock: Clock, cities: &[&str]) -> Self {
        let server = Server::builder().clock(WallClock(clock.clone())).build().await.unwrap();
        server.create_plane(PlaneSpec::own("hub")).await.unwrap();
        for city in cities {
            server.create_plane(PlaneSpec::own(*city)).await.unwrap();
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
        let line = Line::new(server.service());
        let world = Self { server, clock, line, running: BTreeMap::new(), real: BTreeMap::new() };
        for city in cities {
            world.join(city, Some(city)).await;
        }
        world
    }

    /// A member joins the hub.
    pub async fn join(&self, name: &str, city: Option<&str>) {
        let mut member = Cluster::default();
        member.metadata.name = Some(name.into());
        member.metadata.labels = city.map(|city| metadata::map([(labels::TOPOLOGY_CITY_CODE, city)]));
        member.spec.sync_mode = "Push".into();
        self.at("hub").create(&member).await.unwrap();
    }

    /// The hub, or a cell, is behind this client. Said before anybody works there.
    #[allow(dead_code, reason = "for the suite with real planes")]
    pub fn lead(&mut self, plane: &str, client: Client) {
        self.real.insert(plane.to_owned(), client);
    }

    /// A plane, as the test sees it: neither cut nor counted.
    pub fn at(&self, plane: &str) -> Plane {
        if let Some(client) = self.real.get(plane).cloned() {
            let send = move |request: http::Request<Body>| {
                let client = client.clone();
                async move { client.send(request).await }
            };
            return Plane::in_process(plane, tower::service_fn(send));
        }
        Plane::in_process::<_, http_body_util::Full<bytes::Bytes>, _>(plane, self.server.plane_service(plane))
    }

    /// The plane of the platform, behind which the projects are.
    pub fn root(&self) -> Plane {
        Plane::in_process("platform", self.line.clone())
    }

    /// The plane of a project.
    pub fn project(&self, name: &str) -> Plane {
        self.root().of_project(name)
    }

    /// Projects and locations run in one process, quota in another, so that it can be late.
    pub fn start_but_quota(&mut self) {
        let (root, hub, clock) = (self.root(), self.at("hub"), self.clock.clone());
        let planes = Planes(self.server.clone());
        self.start("platform", |engine| {
            let beside = mk_beside(&root, &hub);
            projects::declare(engine, clock.clone(), root.clone(), planes, beside);
            locations::declare(engine, clock, root.clone(), hub, MiloProjects::new(root));
        });
    }

    /// The quota of all projects, which begin with so much.
    pub fn start_quota(&mut self, allowance: Option<quota::Allowance>) {
        let (root, clock) = (self.root(), self.clock.clone());
        self.start("quota", |engine| {
            quota::declare(engine, clock, root.clone(), MiloProjects::new(root), allowance);
        });
    }

    /// All stand-ins run in one process, as on a laptop.
    pub fn start_platform(&mut self) {
        let (root, hub, clock) = (self.root(), self.at("hub"), self.clock.clone());
        let planes = Planes(self.server.clone());
        self.start("platform", |engine| {
            let beside = mk_beside(&root, &hub);
            projects::declare(engine, clock.clone(), root.clone(), planes, beside);
            locations::declare(engine, clock.clone(), root.clone(), hub, MiloProjects::new(root.clone()));
            let allowance = Some(quota::Allowance::default());
            quota::declare(engine, clock, root.clone(), MiloProjects::new(root), allowance);
        });
    }

    /// A process of controllers.
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

    /// The process ends.
    pub async fn stop(&mut self, name: &str) {
        let Process { stop, task, .. } = self.running.remove(name).expect("it runs");
        _ = stop.send(());
        task.await.unwrap();
    }

    /// A look into a process that runs.
    pub fn look_into(&self, name: &str) -> Handle {
        self.running[name].handle.clone()
    }

    /// The network stand-in of a city's cell.
    pub fn start_networks(&mut self, city: &str, pool: networks::Pool) {
        let (cell, clock) = (self.at(city), self.clock.clone());
        self.start(&format!("networks-{city}"), |engine| networks::declare(engine, clock, cell, city, pool));
    }

    /// Opens a project and waits until it is ready.
    pub async fn open(&self, name: &str) -> Plane {
        self.at("").create(&mk_project(name)).await.unwrap();
        self.ready(name).await;
        self.project(name)
    }

    /// Waits until a project is ready.
    pub async fn ready(&self, name: &str) {
        self.until(&format!("project {name} ready"), async || {
            let project = self.at("").live().get::<Project>(name).await.unwrap()?;
            conditions::is_true(&project.status?.conditions, "Ready").then_some(())
        })
        .await;
    }

    /// Waits until an object is there and as it should be.
    pub async fn has<'p, K: Object>(
        &self,
        plane: &Plane,
        place: impl Into<Place<'p>>,
        right: impl Fn(&K) -> bool,
    ) -> K {
        let place = place.into();
        let what = format!("{place} on {}", plane.name());
        self.until(&what, async || plane.live().get::<K>(place).await.unwrap().filter(|object| right(object)))
            .await
    }

    /// Waits until an object is gone.
    pub async fn loses<'p, K: Object>(&self, plane: &Plane, place: impl Into<Place<'p>>) {
        let place = place.into();
        let what = format!("no {place} on {}", plane.name());
        self.until(&what, async || plane.live().get::<K>(place).await.unwrap().is_none().then_some(())).await;
    }

    /// Deletes an object that is there.
    pub async fn delete<'p, K: Object>(&self, plane: &Plane, place: impl Into<Place<'p>>) {
        let object = plane.live().get::<K>(place).await.unwrap().expect("it is there");
        plane.delete(&object, Exactly::Object).await.unwrap();
    }

    /// Waits, a quarter of an hour of the paused clock at most: longer than any pause that is kept on purpose.
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
            assert!(Instant::now() < deadline, "gave up waiting for {what}");
            sleep(Duration::from_millis(250)).await;
        }
    }

    /// Lets time pass in which nothing happens that has to.
    pub async fn quiet(&self, time: Duration) {
        sleep(time).await;
    }
}

/// Changes an object, again and again until nobody else was faster.
pub async fn change<'p, K: Object>(plane: &Plane, place: impl Into<Place<'p>>, change: impl Fn(&mut K)) {
    let place = place.into();
    loop {
        let current = plane.live().get::<K>(place).await.unwrap().expect("it is there");
        let mut wanted = current.clone();
        change(&mut wanted);
        match plane.update(&current, &wanted).await {
            Err(error) if error.is_conflict() => {}
            done => {
                done.unwrap();
                return;
            }
        }
    }
}

/// All that projects have beside their planes.
pub fn mk_beside(root: &Plane, hub: &Plane) -> Beside {
    Beside {
        opening: Some(locations::Opening::new(root.clone(), hub.clone())),
        homes: Some(Homes::new(hub.clone())),
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
pub fn told(conditions: &[Condition], kind: &str) -> Option<(String, String)> {
    conditions::find(conditions, kind).map(|c| (c.status.clone(), c.reason.clone()))
}
