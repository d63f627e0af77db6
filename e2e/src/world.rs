//! The world of a scenario: planes, processes under test, fakes and recorders.
//!
//! All scenarios of a test program share one [`Fixture`]: one set of planes, one set of processes, and one
//! recorder per plane. Each scenario gets its own [`World`], which tracks the projects that it opened. Most
//! scenarios run in parallel, each in its own namespaces. A scenario that breaks shared components is a
//! [`disruptive_scenario`]: where planes are cheap it gets its own fixture and runs in parallel too;
//! elsewhere it gets the shared fixture while the others wait.

use std::{
    collections::BTreeMap,
    io::Write as _,
    panic::AssertUnwindSafe,
    sync::{Arc, LazyLock, Mutex},
    time::{Duration, Instant},
};

use futures::{FutureExt as _, future::try_join_all};
use polis_api::{
    k8s_openapi::api::core::v1::Namespace,
    kube::{
        Api, ResourceExt as _,
        api::{DeleteParams, Patch, PatchParams, PostParams},
    },
    labels,
    milo::Project as MiloProject,
    networking::{LocationBinding, Network},
};
use polis_testbed::{guard::Guard, manifest, plane::HUB};
use polis_testing::RunningEngine;
use serde_json::json;
use tokio::sync::{OnceCell, RwLock, Semaphore};

use crate::{
    Error,
    builders::NETWORK,
    embedded::EmbeddedPlanes,
    fakes::{self, FakeProvider},
    identities::ShippedRoles,
    manager_process::{ManagerProcess, ProcessOptions, Role},
    overlays::DeploymentMode,
    planes::{PlaneComponent, PlaneLayout, TestPlanes},
    project::{Project, retry},
    proxy::RecordedRequest,
    real::{CITIES, RealPlanes},
    recorder::{self, PlaneRecorder},
    released, report,
    view::{self, NamespaceView},
};

/// What the scenarios of a test program share.
pub struct Fixture {
    /// The planes.
    pub planes: Arc<dyn TestPlanes>,
    recorders: BTreeMap<String, Arc<PlaneRecorder>>,
    shipped: ShippedRoles,
    deployment_mode: DeploymentMode,
    dir: tempfile::TempDir,
    guard: Guard,
    processes: OnceCell<BTreeMap<Role, Arc<ManagerProcess>>>,
    providers: OnceCell<BTreeMap<String, (FakeProvider, RunningEngine)>>,
    network_services: OnceCell<Vec<RunningEngine>>,
    quota_services: OnceCell<Vec<RunningEngine>>,
    /// Held for reading by scenarios in parallel, for writing by a disruptive one.
    lock: RwLock<()>,
    /// Held by the scenario that uses the platform's plane as one more project.
    spare_plane_lock: tokio::sync::Mutex<()>,
}

/// What the planes run on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PlaneBackend {
    Real,
    Embedded,
    RealCell,
    RealHub,
}

impl PlaneBackend {
    fn from_environment() -> Result<PlaneBackend, Error> {
        match std::env::var("POLIS_E2E_ON").as_deref() {
            Err(_) | Ok("real") => Ok(PlaneBackend::Real),
            Ok("embedded") => Ok(PlaneBackend::Embedded),
            Ok("real-cell") => Ok(PlaneBackend::RealCell),
            Ok("real-hub") => Ok(PlaneBackend::RealHub),
            Ok(other) => Err(Error::Unavailable(format!(
                "unknown planes {other:?}: POLIS_E2E_ON must be real, embedded, real-cell or real-hub"
            ))),
        }
    }

    /// Whether creating a set of planes is faster than waiting for the shared one.
    fn is_cheap(self) -> bool {
        self == PlaneBackend::Embedded
    }
}

/// The environment of one scenario.
pub struct World {
    fixture: &'static Fixture,
    projects: Mutex<Vec<Project>>,
    extra_processes: Mutex<Vec<Arc<ManagerProcess>>>,
    started_at: Instant,
}

/// Timeout of a scenario, so that a stuck one does not block the suite.
const SCENARIO_TIMEOUT: Duration = Duration::from_secs(900);

static RUNTIME: LazyLock<tokio::runtime::Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("the runtime starts")
});
static FIXTURE: OnceCell<Fixture> = OnceCell::const_new();
/// Limits disruptive scenarios with their own fixture: each causes as much load as all other scenarios
/// together.
static DISRUPTIVE_SLOTS: Semaphore = Semaphore::const_new(4);
/// Fixtures of disruptive scenarios that are not in use.
static IDLE_FIXTURES: Mutex<Vec<&'static Fixture>> = Mutex::new(Vec::new());

/// Runs a scenario in parallel with others.
pub fn scenario(scenario: impl AsyncFnOnce(&World)) {
    RUNTIME.block_on(Box::pin(async {
        let fixture = running_fixture().await;
        let _lock = fixture.lock.read().await;
        run_scenario(fixture, scenario).await;
    }));
}

/// Runs a scenario that breaks components which others need.
pub fn disruptive_scenario(scenario: impl AsyncFnOnce(&World)) {
    RUNTIME.block_on(Box::pin(async {
        let cheap = PlaneBackend::from_environment().is_ok_and(PlaneBackend::is_cheap);
        let _slot = DISRUPTIVE_SLOTS.acquire().await;
        let fixture = if cheap { exclusive_fixture().await } else { running_fixture().await };
        let _lock = fixture.lock.write().await;
        run_scenario(fixture, scenario).await;
        fixture.restore().await;
        if cheap {
            IDLE_FIXTURES.lock().expect("the lock is not poisoned").push(fixture);
        }
    }));
}

/// Runs a scenario on planes alone: without processes of Polis and without fakes.
pub fn planes_only_scenario(scenario: impl AsyncFnOnce(&World)) {
    RUNTIME.block_on(Box::pin(async {
        let fixture = base_fixture().await;
        assert!(
            fixture.processes.get().is_none(),
            "processes of Polis run in this test program: move the scenario to another one"
        );
        let _lock = fixture.lock.read().await;
        run_scenario(fixture, scenario).await;
    }));
}

/// The components of the federation that can fail separately.
pub fn federation_components() -> Vec<String> {
    RUNTIME.block_on(Box::pin(base_fixture())).planes.federation_components()
}

async fn base_fixture() -> &'static Fixture {
    match FIXTURE.get_or_try_init(|| Box::pin(Fixture::create())).await {
        Ok(fixture) => fixture,
        Err(err) => panic!("failed to create the fixture: {err}"),
    }
}

async fn running_fixture() -> &'static Fixture {
    let fixture = base_fixture().await;
    fixture.processes().await;
    fixture
}

/// A fixture that no other scenario uses. After a failed scenario it is not used again.
async fn exclusive_fixture() -> &'static Fixture {
    let idle = IDLE_FIXTURES.lock().expect("the lock is not poisoned").pop();
    let fixture = match idle {
        Some(fixture) => fixture,
        None => match Box::pin(Fixture::create()).await {
            Ok(fixture) => &*Box::leak(Box::new(fixture)),
            Err(err) => panic!("failed to create another fixture: {err}"),
        },
    };
    fixture.processes().await;
    fixture
}

async fn run_scenario(fixture: &'static Fixture, scenario: impl AsyncFnOnce(&World)) {
    let world = World {
        fixture,
        projects: Mutex::default(),
        extra_processes: Mutex::default(),
        started_at: Instant::now(),
    };
    let running = AssertUnwindSafe(Box::pin(scenario(&world))).catch_unwind();
    let outcome = tokio::time::timeout(SCENARIO_TIMEOUT, running).await;
    world.extra_processes.lock().expect("the lock is not poisoned").clear();
    print_duration(world.started_at.elapsed());
    match outcome {
        Ok(Ok(())) => world.clean_up().await,
        Ok(Err(panic)) => {
            eprintln!("{}", report::render(&world));
            std::panic::resume_unwind(panic);
        }
        Err(_) => {
            eprintln!("{}", report::render(&world));
            panic!("the scenario has not finished within {SCENARIO_TIMEOUT:?}");
        }
    }
}

/// Prints the duration of a scenario, bypassing the test program's output capture.
fn print_duration(time: Duration) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or_default();
    let _ignored = writeln!(std::io::stderr(), "took {:>5.1} s: {name}", time.as_secs_f64());
}

impl Fixture {
    async fn create() -> Result<Fixture, Error> {
        let deployment_mode = DeploymentMode::from_environment()?;
        let planes = match PlaneBackend::from_environment()? {
            PlaneBackend::Real => RealPlanes::up(deployment_mode).await?,
            PlaneBackend::Embedded => EmbeddedPlanes::up().await?,
            PlaneBackend::RealCell => EmbeddedPlanes::with_real_planes(&[CITIES[0]]).await?,
            PlaneBackend::RealHub => EmbeddedPlanes::with_real_planes(&[HUB]).await?,
        };
        view::set_quiet_period(planes.quiet_period());
        let layout = planes.layout().clone();
        let mut recorders = BTreeMap::new();
        for plane in layout.all() {
            let kinds = match plane {
                plane if plane == layout.hub => recorder::kinds_of_hub(),
                plane if layout.cells.iter().any(|cell| cell == plane) => recorder::kinds_of_cell(),
                _ => recorder::kinds_of_project(),
            };
            let recorder = PlaneRecorder::start(plane, planes.admin(plane).await?, kinds);
            recorders.insert(plane.to_owned(), Arc::new(recorder));
        }
        let fixture = Fixture {
            planes,
            recorders,
            shipped: ShippedRoles::default(),
            deployment_mode,
            dir: tempfile::tempdir().map_err(Error::file("a temporary directory"))?,
            guard: Guard::start()?,
            processes: OnceCell::new(),
            providers: OnceCell::new(),
            network_services: OnceCell::new(),
            quota_services: OnceCell::new(),
            lock: RwLock::new(()),
            spare_plane_lock: tokio::sync::Mutex::new(()),
        };
        fixture.bootstrap(&layout).await?;
        Ok(fixture)
    }

    /// Creates what an operator creates once: the controllers' namespace, location bindings, projects.
    async fn bootstrap(&self, layout: &PlaneLayout) -> Result<(), Error> {
        if std::env::var("POLIS_E2E_KINDS").is_ok_and(|kinds| kinds == "released") {
            for plane in layout.all() {
                let crds = released::crds(layout, plane)?;
                manifest::apply_crds(self.recorders[plane].client(), plane, &crds).await?;
            }
        }
        for plane in layout.all() {
            let client = self.recorders[plane].client();
            let system =
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "compute-system"}});
            manifest::apply(client, plane, &system).await?;
        }
        for project in layout.projects.iter().chain([&layout.platform]) {
            let api: Api<LocationBinding> = Api::all(self.recorders[project].client().clone());
            for city in &layout.cells {
                let binding = json!({
                    "apiVersion": "networking.datumapis.com/v1alpha", "kind": "LocationBinding",
                    "metadata": {"name": city},
                    "spec": {"locationRef": {"name": city}, "topology": {labels::TOPOLOGY_CITY_CODE: city}},
                });
                let params = PatchParams::apply("polis-e2e").force();
                let applied = api.patch(city, &params, &Patch::Apply(binding)).await;
                applied.map_err(Error::plane("apply a location binding", project))?;
            }
        }
        for project in &layout.projects {
            self.open_project(project).await?;
        }
        Ok(())
    }

    /// Creates a Project on the platform and marks it ready.
    pub async fn open_project(&self, project: &str) -> Result<(), Error> {
        let platform = self.planes.layout().platform.clone();
        let api: Api<MiloProject> = Api::all(self.recorders[&platform].client().clone());
        let project_object = json!({
            "apiVersion": "resourcemanager.miloapis.com/v1alpha1", "kind": "Project", "metadata": {"name": project},
            "spec": {"ownerRef": {"kind": "Organization", "name": "suite"}},
        });
        let params = PatchParams::apply("polis-e2e").force();
        let applied = api.patch(project, &params, &Patch::Apply(&project_object)).await;
        applied.map_err(Error::plane("apply a project", &platform))?;
        let ready = json!({
            "apiVersion": "resourcemanager.miloapis.com/v1alpha1", "kind": "Project",
            "status": {"conditions": [{
                "type": "Ready", "status": "True", "reason": "Ready", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]},
        });
        let applied = api.patch_status(project, &params, &Patch::Apply(&ready)).await;
        applied.map_err(Error::plane("apply the status of a project", &platform))?;
        Ok(())
    }

    /// Deletes a Project from the platform. The objects on its plane stay.
    pub async fn close_project(&self, project: &str) -> Result<(), Error> {
        let platform = self.planes.layout().platform.clone();
        let api: Api<MiloProject> = Api::all(self.recorders[&platform].client().clone());
        let deleted = api.delete(project, &DeleteParams::default()).await;
        deleted.map(drop).map_err(Error::plane("delete a project", &platform))
    }

    /// Applies the shipped roles, and starts one process per role and one fake provider and network service
    /// per cell, on the first call.
    async fn processes(&self) -> &BTreeMap<Role, Arc<ManagerProcess>> {
        let started = self.processes.get_or_try_init(|| Box::pin(self.start_processes())).await;
        let processes = started.unwrap_or_else(|err| panic!("failed to start the processes: {err}"));
        let start_providers = async || {
            let cells = &self.planes.layout().cells;
            cells.iter().map(|city| (city.clone(), fakes::start_provider(&self.recorders[city]))).collect()
        };
        self.providers.get_or_init(start_providers).await;
        processes
    }

    async fn start_processes(&self) -> Result<BTreeMap<Role, Arc<ManagerProcess>>, Error> {
        let layout = self.planes.layout();
        let cells = (0..).zip(&layout.cells);
        let services =
            cells.map(|(number, city)| fakes::start_network_service(&self.recorders[city], city, number));
        let services = services.collect();
        self.network_services.get_or_init(async || services).await;
        for plane in layout.all() {
            for object in self.manifests(plane)? {
                manifest::apply(self.recorders[plane].client(), plane, &object).await?;
            }
        }
        if self.deployment_mode != DeploymentMode::Plain {
            return self.start_deployments().await;
        }
        let roles: Vec<Role> =
            [Role::Management].into_iter().chain(layout.cells.iter().cloned().map(Role::Cell)).collect();
        let started = try_join_all(roles.into_iter().map(async |role| {
            let process = self.prepare_process(role.clone(), ProcessOptions::default()).await?;
            process.start().await?;
            Ok::<_, Error>((role, Arc::new(process)))
        }));
        Ok(started.await?.into_iter().collect())
    }

    /// Where processes and their permissions come from.
    pub fn deployment_mode(&self) -> DeploymentMode {
        self.deployment_mode
    }

    /// The manifests that are applied to a plane before the processes start.
    pub fn manifests(&self, plane: &str) -> Result<Vec<serde_json::Value>, Error> {
        let layout = self.planes.layout();
        match self.deployment_mode {
            DeploymentMode::Plain => self.shipped.manifests(layout, plane),
            rendered => Ok(rendered.manifests(layout, plane)),
        }
    }

    /// Starts the Deployments of the overlays, and a fake quota service per project: shipped cells enforce
    /// quota.
    async fn start_deployments(&self) -> Result<BTreeMap<Role, Arc<ManagerProcess>>, Error> {
        let layout = self.planes.layout();
        let projects = layout.projects.iter().chain([&layout.platform]);
        let services = projects.map(|project| fakes::start_quota_service(&self.recorders[project])).collect();
        self.quota_services.get_or_init(async || services).await;
        let deployments = self.deployment_mode.deployments(layout);
        let started = try_join_all(deployments.iter().map(async |deployment| {
            let (planes, dir) = (&*self.planes, self.dir.path());
            let process =
                ManagerProcess::from_deployment(planes, &self.shipped, dir, &self.guard, deployment).await?;
            process.start().await?;
            let process = Arc::new(process);
            Ok::<_, Error>(
                deployment.roles.iter().map(|role| (role.clone(), process.clone())).collect::<Vec<_>>(),
            )
        }));
        Ok(started.await?.into_iter().flatten().collect())
    }

    async fn prepare_process(&self, role: Role, options: ProcessOptions) -> Result<ManagerProcess, Error> {
        ManagerProcess::prepare(&*self.planes, &self.shipped, self.dir.path(), &self.guard, role, options)
            .await
    }

    /// Restores all components after a disruptive scenario.
    async fn restore(&self) {
        for plane in self.planes.layout().all() {
            self.planes
                .restore(PlaneComponent::ApiServer(plane.to_owned()))
                .await
                .unwrap_or_else(|err| panic!("{err}"));
        }
        for component in self.planes.federation_components() {
            self.planes
                .restore(PlaneComponent::Federation(component))
                .await
                .unwrap_or_else(|err| panic!("{err}"));
        }
        for process in self.processes().await.values() {
            process.requests.clear_faults();
            process.resume();
            process.restore_roles().await.unwrap_or_else(|err| panic!("{err}"));
        }
    }
}

impl World {
    /// A new namespace in the first project, with the network of the builders. Its name starts with `name`.
    pub async fn project(&self, name: &str) -> Project {
        let plane = self.fixture.planes.layout().projects[0].clone();
        let unique = &uuid()[..8];
        self.namespace(&plane, &format!("{name}-{unique}")).await
    }

    /// A namespace of the same name in the second project.
    pub async fn twin_of(&self, project: &Project) -> Project {
        let plane = self.fixture.planes.layout().projects[1].clone();
        self.namespace(&plane, &project.namespace).await
    }

    /// A plane that is not a project yet, reserved for this scenario until the guard is dropped.
    pub async fn spare_plane(&self) -> (String, tokio::sync::MutexGuard<'static, ()>) {
        (self.fixture.planes.layout().platform.clone(), self.fixture.spare_plane_lock.lock().await)
    }

    /// A new namespace on a project's plane, with the network of the builders.
    pub async fn namespace(&self, plane: &str, name: &str) -> Project {
        let recorder = self.recorder(plane);
        let api: Api<Namespace> = Api::all(recorder.client().clone());
        let namespace = Namespace { metadata: meta(name), ..Default::default() };
        let created =
            retry("create the namespace", async || api.create(&PostParams::default(), &namespace).await)
                .await;
        let project =
            Project { recorder, namespace: name.to_owned(), uid: created.uid().unwrap_or_default() };
        let network = Network { metadata: meta(NETWORK), ..Default::default() };
        let api = project.view().api::<Network>();
        retry("create the network", async || api.create(&PostParams::default(), &network).await).await;
        self.projects.lock().expect("the lock is not poisoned").push(project.clone());
        project
    }

    /// The federation hub.
    pub fn hub(&self) -> PlaneView {
        PlaneView { recorder: self.recorder(&self.fixture.planes.layout().hub) }
    }

    /// The cell of a city.
    pub fn cell(&self, city: &str) -> PlaneView {
        PlaneView { recorder: self.recorder(city) }
    }

    /// The cities that have a cell.
    pub fn cities(&self) -> &[String] {
        &self.fixture.planes.layout().cells
    }

    /// The fake provider of a city.
    pub fn provider(&self, city: &str) -> &FakeProvider {
        &self.fixture.providers.get().expect("the fixture runs providers")[city].0
    }

    /// The process of a role.
    pub fn process(&self, role: &Role) -> Arc<ManagerProcess> {
        self.fixture.processes.get().expect("the fixture runs processes")[role].clone()
    }

    /// Kills the process of a role. A process with several roles restarts without this one.
    pub async fn stop_role(&self, role: &Role) {
        self.process(role).stop_role(role).await.unwrap_or_else(|err| panic!("{err}"));
    }

    /// Restarts the role.
    pub async fn restore_role(&self, role: &Role) {
        self.process(role).restore_roles().await.unwrap_or_else(|err| panic!("{err}"));
    }

    /// The shared processes, each once.
    pub fn processes(&self) -> Vec<Arc<ManagerProcess>> {
        let mut processes: Vec<Arc<ManagerProcess>> = Vec::new();
        for process in self.fixture.processes.get().into_iter().flat_map(BTreeMap::values) {
            if !processes.iter().any(|known| Arc::ptr_eq(known, process)) {
                processes.push(process.clone());
            }
        }
        processes
    }

    /// Prepares another process for this scenario, without starting it. It ends with the scenario.
    pub async fn prepare_process(&self, role: Role, options: ProcessOptions) -> Arc<ManagerProcess> {
        let process =
            Arc::new(self.fixture.prepare_process(role, options).await.unwrap_or_else(|err| panic!("{err}")));
        self.extra_processes.lock().expect("the lock is not poisoned").push(process.clone());
        process
    }

    /// The shared fixture.
    pub fn fixture(&self) -> &'static Fixture {
        self.fixture
    }

    /// The recorder of a plane.
    pub fn recorder(&self, plane: &str) -> Arc<PlaneRecorder> {
        self.fixture.recorders[plane].clone()
    }

    /// All recorders.
    pub fn recorders(&self) -> impl Iterator<Item = &Arc<PlaneRecorder>> {
        self.fixture.recorders.values()
    }

    /// The projects of this scenario.
    pub fn projects(&self) -> Vec<Project> {
        self.projects.lock().expect("the lock is not poisoned").clone()
    }

    /// When this scenario started.
    pub fn started_at(&self) -> Instant {
        self.started_at
    }

    /// All requests of the shared processes since then.
    pub fn requests_since(&self, since: Instant) -> Vec<(Role, RecordedRequest)> {
        let requests_of = |process: Arc<ManagerProcess>| {
            let role = process.role.clone();
            process.requests.since(since).into_iter().map(move |request| (role.clone(), request))
        };
        self.processes().into_iter().flat_map(requests_of).collect()
    }

    /// Kills a component of the planes.
    pub async fn kill(&self, component: &PlaneComponent) {
        self.fixture.planes.kill(component.clone()).await.unwrap_or_else(|err| panic!("{err}"));
    }

    /// Restarts a component of the planes.
    pub async fn restore(&self, component: &PlaneComponent) {
        self.fixture.planes.restore(component.clone()).await.unwrap_or_else(|err| panic!("{err}"));
    }

    /// Deletes the namespaces of this scenario without waiting, so that the planes stay small.
    async fn clean_up(&self) {
        for project in self.projects() {
            let api: Api<Namespace> = Api::all(project.recorder.client().clone());
            let _ignored = api.delete(&project.namespace, &DeleteParams::default()).await;
        }
    }
}

/// The hub or a cell.
#[derive(Clone)]
pub struct PlaneView {
    /// Records the plane.
    pub recorder: Arc<PlaneRecorder>,
}

impl PlaneView {
    /// The namespace that belongs to a project's namespace.
    pub fn namespace_of(&self, project: &Project) -> NamespaceView {
        self.namespace(&project.hub_namespace())
    }

    /// A namespace by its name.
    pub fn namespace(&self, name: &str) -> NamespaceView {
        NamespaceView { recorder: self.recorder.clone(), namespace: name.to_owned() }
    }

    /// Cluster-scoped objects.
    pub fn cluster_scope(&self) -> NamespaceView {
        self.namespace("")
    }
}

pub(crate) fn meta(name: &str) -> polis_api::kube::api::ObjectMeta {
    polis_api::kube::api::ObjectMeta { name: Some(name.to_owned()), ..Default::default() }
}

fn uuid() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}
