//! World: everything that a scenario runs in.
//!
//! All scenarios of a test program share one set of planes, one set of processes and one pair of eyes per plane; each
//! gets a [`World`] of its own, which knows the projects that it opened. Most scenarios run side by side, each in
//! namespaces of its own. One that breaks what others stand on runs [`alone`]: where planes cost little, on a stage of its
//! own beside the others, and else on the stage of all while the others wait.

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
use serde_json::json;
use tokio::sync::{OnceCell, RwLock, Semaphore};

use crate::{
    Error,
    draft::NETWORK,
    embedded::Embedded,
    eye::{self, Eye},
    grants::QuotaService,
    identities::Shipped,
    network::NetworkService,
    overlays::Manning,
    place::{self, Place},
    planes::{Layout, Part, Planes},
    project::{Project, insist},
    provider::Provider,
    real::{CITIES, Real},
    released, report,
    staff::{Member, Role, Terms},
    wire::Call,
};

/// What all scenarios share.
pub struct Stage {
    /// The planes.
    pub planes: Arc<dyn Planes>,
    eyes: BTreeMap<String, Arc<Eye>>,
    shipped: Shipped,
    manning: Manning,
    folder: tempfile::TempDir,
    guard: Guard,
    staff: OnceCell<BTreeMap<Role, Arc<Member>>>,
    providers: OnceCell<BTreeMap<String, Provider>>,
    networks: OnceCell<Vec<NetworkService>>,
    grants: OnceCell<Vec<QuotaService>>,
    /// Readers share the stage; a writer has it alone.
    turn: RwLock<()>,
    /// The plane of the platform can stand in for one more project, for one scenario at a time.
    spare: tokio::sync::Mutex<()>,
}

/// What the planes are made of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum On {
    Real,
    Embedded,
    RealCell,
    RealHub,
}

impl On {
    fn wanted() -> Result<On, Error> {
        match std::env::var("POLIS_E2E_ON").as_deref() {
            Err(_) | Ok("real") => Ok(On::Real),
            Ok("embedded") => Ok(On::Embedded),
            Ok("real-cell") => Ok(On::RealCell),
            Ok("real-hub") => Ok(On::RealHub),
            Ok(other) => Err(Error::Unavailable(format!(
                "there are no planes called {other:?}: POLIS_E2E_ON may be real, embedded, real-cell or real-hub"
            ))),
        }
    }

    /// Whether a set of planes is made in less time than a scenario would wait for its turn.
    fn is_cheap(self) -> bool {
        self == On::Embedded
    }
}

/// What one scenario runs in.
pub struct World {
    stage: &'static Stage,
    projects: Mutex<Vec<Project>>,
    hired: Mutex<Vec<Arc<Member>>>,
    began: Instant,
}

/// Longest time one scenario may take: a stuck one must not take the whole suite with it.
const SCENARIO_WITHIN: Duration = Duration::from_secs(900);

static RUNTIME: LazyLock<tokio::runtime::Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("threads can be had")
});
static STAGE: OnceCell<Stage> = OnceCell::const_new();
/// Lone scenarios that have a stage of their own at the same time. Each is as much work as all the others together: more of
/// them would only keep each other waiting.
static LONE_TURNS: Semaphore = Semaphore::const_new(4);
/// Stages that only lone scenarios use, while none is on them.
static LONE_STAGES: Mutex<Vec<&'static Stage>> = Mutex::new(Vec::new());

/// Runs a scenario beside others.
pub fn scenario(play: impl AsyncFnOnce(&World)) {
    RUNTIME.block_on(Box::pin(async {
        let stage = staffed_stage().await;
        let _turn = stage.turn.read().await;
        perform(stage, play).await;
    }));
}

/// Runs a scenario that breaks what others stand on.
pub fn alone(play: impl AsyncFnOnce(&World)) {
    RUNTIME.block_on(Box::pin(async {
        let cheap = On::wanted().is_ok_and(On::is_cheap);
        let _one_of_a_few = LONE_TURNS.acquire().await;
        let stage = if cheap { lone_stage().await } else { staffed_stage().await };
        let _turn = stage.turn.write().await;
        perform(stage, play).await;
        stage.mend().await;
        if cheap {
            LONE_STAGES.lock().expect("nobody panics here").push(stage);
        }
    }));
}

/// Runs a scenario of planes alone: no process of Polis acts, and no provider.
pub fn unstaffed(play: impl AsyncFnOnce(&World)) {
    RUNTIME.block_on(Box::pin(async {
        let stage = bare_stage().await;
        assert!(
            stage.staff.get().is_none(),
            "processes of Polis run in this test program: put the scenario elsewhere"
        );
        let _turn = stage.turn.read().await;
        perform(stage, play).await;
    }));
}

/// The parts of the federation that can break on their own. Scenarios about each of them run one after the other.
pub fn federation_parts() -> Vec<String> {
    RUNTIME.block_on(Box::pin(bare_stage())).planes.federation_parts()
}

async fn bare_stage() -> &'static Stage {
    match STAGE.get_or_try_init(|| Box::pin(Stage::set())).await {
        Ok(stage) => stage,
        Err(err) => panic!("the stage cannot be set: {err}"),
    }
}

async fn staffed_stage() -> &'static Stage {
    let stage = bare_stage().await;
    stage.staff().await;
    stage
}

/// A stage that nobody else is on. One on which a scenario failed does not come back.
async fn lone_stage() -> &'static Stage {
    let idle = LONE_STAGES.lock().expect("nobody panics here").pop();
    let stage = match idle {
        Some(stage) => stage,
        None => match Box::pin(Stage::set()).await {
            Ok(stage) => &*Box::leak(Box::new(stage)),
            Err(err) => panic!("a stage of its own cannot be set: {err}"),
        },
    };
    stage.staff().await;
    stage
}

async fn perform(stage: &'static Stage, play: impl AsyncFnOnce(&World)) {
    let world = World { stage, projects: Mutex::default(), hired: Mutex::default(), began: Instant::now() };
    let playing = AssertUnwindSafe(Box::pin(play(&world))).catch_unwind();
    let outcome = tokio::time::timeout(SCENARIO_WITHIN, playing).await;
    world.hired.lock().expect("no scenario runs now").clear();
    took(world.began.elapsed());
    match outcome {
        Ok(Ok(())) => world.leave().await,
        Ok(Err(panic)) => {
            eprintln!("{}", report::of(&world));
            std::panic::resume_unwind(panic);
        }
        Err(_) => {
            eprintln!("{}", report::of(&world));
            panic!("the scenario did not end within {SCENARIO_WITHIN:?}");
        }
    }
}

/// Says how long a scenario took, past the capture of the test program: whoever waits for a suite wants to know on what.
fn took(time: Duration) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or_default();
    let _nobody_listens = writeln!(std::io::stderr(), "took {:>5.1} s: {name}", time.as_secs_f64());
}

impl Stage {
    async fn set() -> Result<Stage, Error> {
        let manning = Manning::wanted()?;
        let planes = match On::wanted()? {
            On::Real => Real::up(manning).await?,
            On::Embedded => Embedded::up().await?,
            On::RealCell => Embedded::beside(&[CITIES[0]]).await?,
            On::RealHub => Embedded::beside(&[HUB]).await?,
        };
        place::set_quiet(planes.quiet());
        let layout = planes.layout().clone();
        let mut eyes = BTreeMap::new();
        for plane in layout.all() {
            let kinds = match plane {
                plane if plane == layout.hub => eye::kinds_of_hub(),
                plane if layout.cells.iter().any(|cell| cell == plane) => eye::kinds_of_cell(),
                _ => eye::kinds_of_project(),
            };
            let eye = Eye::open(plane, planes.admin(plane).await?, kinds);
            eyes.insert(plane.to_owned(), Arc::new(eye));
        }
        let stage = Stage {
            planes,
            eyes,
            shipped: Shipped::default(),
            manning,
            folder: tempfile::tempdir().map_err(Error::file("a temporary directory"))?,
            guard: Guard::start()?,
            staff: OnceCell::new(),
            providers: OnceCell::new(),
            networks: OnceCell::new(),
            grants: OnceCell::new(),
            turn: RwLock::new(()),
            spare: tokio::sync::Mutex::new(()),
        };
        stage.furnish(&layout).await?;
        Ok(stage)
    }

    /// Does once what an operator does: namespaces of the controllers, the places that projects may use, projects.
    async fn furnish(&self, layout: &Layout) -> Result<(), Error> {
        if std::env::var("POLIS_E2E_KINDS").is_ok_and(|kinds| kinds == "released") {
            for plane in layout.all() {
                let kinds = released::kinds(layout, plane)?;
                manifest::apply_crds(self.eyes[plane].client(), plane, &kinds).await?;
            }
        }
        for plane in layout.all() {
            let client = self.eyes[plane].client();
            let system =
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "compute-system"}});
            manifest::apply(client, plane, &system).await?;
        }
        for project in layout.projects.iter().chain([&layout.platform]) {
            let api: Api<LocationBinding> = Api::all(self.eyes[project].client().clone());
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

    /// Makes the platform say that a project is ready.
    pub async fn open_project(&self, project: &str) -> Result<(), Error> {
        let platform = self.planes.layout().platform.clone();
        let api: Api<MiloProject> = Api::all(self.eyes[&platform].client().clone());
        let wanted = json!({
            "apiVersion": "resourcemanager.miloapis.com/v1alpha1", "kind": "Project", "metadata": {"name": project},
            "spec": {"ownerRef": {"kind": "Organization", "name": "suite"}},
        });
        let params = PatchParams::apply("polis-e2e").force();
        let applied = api.patch(project, &params, &Patch::Apply(&wanted)).await;
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

    /// Takes a project off the platform. What is on its plane stays.
    pub async fn close_project(&self, project: &str) -> Result<(), Error> {
        let platform = self.planes.layout().platform.clone();
        let api: Api<MiloProject> = Api::all(self.eyes[&platform].client().clone());
        let deleted = api.delete(project, &DeleteParams::default()).await;
        deleted.map(drop).map_err(Error::plane("delete a project", &platform))
    }

    /// Grants the roles that we ship, and puts one process of each to work, and in each cell a provider and a network
    /// service.
    async fn staff(&self) -> &BTreeMap<Role, Arc<Member>> {
        let staffed = self.staff.get_or_try_init(|| Box::pin(self.employ())).await;
        let staff = staffed.unwrap_or_else(|err| panic!("the staff cannot be put to work: {err}"));
        let at_work = async || {
            let cells = &self.planes.layout().cells;
            cells.iter().map(|city| (city.clone(), Provider::at_work(self.eyes[city].clone()))).collect()
        };
        self.providers.get_or_init(at_work).await;
        staff
    }

    async fn employ(&self) -> Result<BTreeMap<Role, Arc<Member>>, Error> {
        let layout = self.planes.layout();
        let services = layout.cells.iter().map(|city| NetworkService::at_work(self.eyes[city].clone(), city));
        let services = try_join_all(services).await?;
        self.networks.get_or_init(async || services).await;
        for plane in layout.all() {
            for object in self.manifests(plane)? {
                manifest::apply(self.eyes[plane].client(), plane, &object).await?;
            }
        }
        if self.manning != Manning::Plain {
            return self.employ_pods().await;
        }
        let roles: Vec<Role> =
            [Role::Management].into_iter().chain(layout.cells.iter().cloned().map(Role::Cell)).collect();
        let employed = try_join_all(roles.into_iter().map(async |role| {
            let member = self.hire(role.clone(), Terms::default()).await?;
            member.start().await?;
            Ok::<_, Error>((role, Arc::new(member)))
        }));
        Ok(employed.await?.into_iter().collect())
    }

    /// Where processes and their rights come from.
    pub fn manning(&self) -> Manning {
        self.manning
    }

    /// What was applied to a plane before the staff came.
    pub fn manifests(&self, plane: &str) -> Result<Vec<serde_json::Value>, Error> {
        let layout = self.planes.layout();
        match self.manning {
            Manning::Plain => self.shipped.manifests(layout, plane),
            rendered => Ok(rendered.manifests(layout, plane)),
        }
    }

    /// Puts the Deployments of the overlays to work, and in each project a quota service: cells are shipped with quota.
    async fn employ_pods(&self) -> Result<BTreeMap<Role, Arc<Member>>, Error> {
        let layout = self.planes.layout();
        let projects = layout.projects.iter().chain([&layout.platform]);
        let services = projects.map(|project| QuotaService::at_work(self.eyes[project].clone())).collect();
        self.grants.get_or_init(async || services).await;
        let posts = self.manning.posts(layout);
        let employed = try_join_all(posts.iter().map(async |post| {
            let (planes, folder) = (&*self.planes, self.folder.path());
            let member = Member::post(planes, &self.shipped, folder, &self.guard, post).await?;
            member.start().await?;
            let member = Arc::new(member);
            Ok::<_, Error>(post.roles.iter().map(|role| (role.clone(), member.clone())).collect::<Vec<_>>())
        }));
        Ok(employed.await?.into_iter().flatten().collect())
    }

    async fn hire(&self, role: Role, terms: Terms) -> Result<Member, Error> {
        Member::hire(&*self.planes, &self.shipped, self.folder.path(), &self.guard, role, terms).await
    }

    /// After a scenario that breaks things: everything is there again.
    async fn mend(&self) {
        for plane in self.planes.layout().all() {
            self.planes.restore(Part::Plane(plane.to_owned())).await.unwrap_or_else(|err| panic!("{err}"));
        }
        for part in self.planes.federation_parts() {
            self.planes.restore(Part::Federation(part)).await.unwrap_or_else(|err| panic!("{err}"));
        }
        for member in self.staff().await.values() {
            member.tap.mend();
            member.resume();
            member.reinstate().await.unwrap_or_else(|err| panic!("{err}"));
        }
    }
}

impl World {
    /// A new namespace in the first project, with the network that drafts use. Its name begins with `name`.
    pub async fn project(&self, name: &str) -> Project {
        let plane = self.stage.planes.layout().projects[0].clone();
        let unique = &uuid()[..8];
        self.namespace(&plane, &format!("{name}-{unique}")).await
    }

    /// A namespace of the same name in the second project.
    pub async fn twin_of(&self, project: &Project) -> Project {
        let plane = self.stage.planes.layout().projects[1].clone();
        self.namespace(&plane, &project.namespace).await
    }

    /// A plane that is no project yet, for this scenario alone until the guard is dropped.
    pub async fn spare_plane(&self) -> (String, tokio::sync::MutexGuard<'static, ()>) {
        (self.stage.planes.layout().platform.clone(), self.stage.spare.lock().await)
    }

    /// A new namespace on a plane of a project, with the network that drafts use.
    pub async fn namespace(&self, plane: &str, name: &str) -> Project {
        let eye = self.eye(plane);
        let api: Api<Namespace> = Api::all(eye.client().clone());
        let wanted = Namespace { metadata: meta(name), ..Default::default() };
        let made =
            insist("create the namespace", async || api.create(&PostParams::default(), &wanted).await).await;
        let project = Project { eye, namespace: name.to_owned(), uid: made.uid().unwrap_or_default() };
        let network = Network { metadata: meta(NETWORK), ..Default::default() };
        let api = project.here().api::<Network>();
        insist("create the network", async || api.create(&PostParams::default(), &network).await).await;
        self.projects.lock().expect("no scenario panics here").push(project.clone());
        project
    }

    /// The federation hub.
    pub fn hub(&self) -> Side {
        Side { eye: self.eye(&self.stage.planes.layout().hub) }
    }

    /// The cell of a city.
    pub fn cell(&self, city: &str) -> Side {
        Side { eye: self.eye(city) }
    }

    /// The cities that have a cell.
    pub fn cities(&self) -> &[String] {
        &self.stage.planes.layout().cells
    }

    /// The provider of a city.
    pub fn provider(&self, city: &str) -> &Provider {
        &self.stage.providers.get().expect("staffed scenarios have providers")[city]
    }

    /// The process of a role.
    pub fn member(&self, role: &Role) -> Arc<Member> {
        self.stage.staff.get().expect("staffed scenarios have a staff")[role].clone()
    }

    /// Ends the process of a role, without notice. One that plays other roles as well goes on with those.
    pub async fn dismiss(&self, role: &Role) {
        self.member(role).dismiss(role).await.unwrap_or_else(|err| panic!("{err}"));
    }

    /// Brings the role back.
    pub async fn reinstate(&self, role: &Role) {
        self.member(role).reinstate().await.unwrap_or_else(|err| panic!("{err}"));
    }

    /// All processes that every scenario has, each once.
    pub fn staff(&self) -> Vec<Arc<Member>> {
        let mut staff: Vec<Arc<Member>> = Vec::new();
        for member in self.stage.staff.get().into_iter().flat_map(BTreeMap::values) {
            if !staff.iter().any(|known| Arc::ptr_eq(known, member)) {
                staff.push(member.clone());
            }
        }
        staff
    }

    /// Hires one more process for this scenario; it ends with it. It does not run yet.
    pub async fn hire(&self, role: Role, terms: Terms) -> Arc<Member> {
        let member = Arc::new(self.stage.hire(role, terms).await.unwrap_or_else(|err| panic!("{err}")));
        self.hired.lock().expect("no scenario panics here").push(member.clone());
        member
    }

    /// What all scenarios share.
    pub fn stage(&self) -> &'static Stage {
        self.stage
    }

    /// The eye on a plane.
    pub fn eye(&self, plane: &str) -> Arc<Eye> {
        self.stage.eyes[plane].clone()
    }

    /// All eyes.
    pub fn eyes(&self) -> impl Iterator<Item = &Arc<Eye>> {
        self.stage.eyes.values()
    }

    /// The projects that this scenario has opened.
    pub fn projects(&self) -> Vec<Project> {
        self.projects.lock().expect("no scenario panics here").clone()
    }

    /// When this scenario began.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// Every request that the processes of all roles have made since then.
    pub fn calls_since(&self, since: Instant) -> Vec<(Role, Call)> {
        let of = |member: Arc<Member>| {
            let role = member.role.clone();
            member.tap.since(since).into_iter().map(move |call| (role.clone(), call))
        };
        self.staff().into_iter().flat_map(of).collect()
    }

    /// Ends a part of what the planes are made of.
    pub async fn kill(&self, part: &Part) {
        self.stage.planes.kill(part.clone()).await.unwrap_or_else(|err| panic!("{err}"));
    }

    /// Brings it back.
    pub async fn restore(&self, part: &Part) {
        self.stage.planes.restore(part.clone()).await.unwrap_or_else(|err| panic!("{err}"));
    }

    /// Takes the namespaces of this scenario away, so that later ones meet a small world. Nothing waits for it.
    async fn leave(&self) {
        for project in self.projects() {
            let api: Api<Namespace> = Api::all(project.eye.client().clone());
            let _the_next_scenario_does_not_care =
                api.delete(&project.namespace, &DeleteParams::default()).await;
        }
    }
}

/// A plane behind the projects: the hub or a cell.
#[derive(Clone)]
pub struct Side {
    /// Looks at it.
    pub eye: Arc<Eye>,
}

impl Side {
    /// The namespace there that belongs to a namespace of a project.
    pub fn namespace_of(&self, project: &Project) -> Place {
        self.namespace(&project.hub_namespace())
    }

    /// A namespace there.
    pub fn namespace(&self, name: &str) -> Place {
        Place { eye: self.eye.clone(), namespace: name.to_owned() }
    }

    /// What has no namespace there.
    pub fn whole(&self) -> Place {
        self.namespace("")
    }
}

pub(crate) fn meta(name: &str) -> polis_api::kube::api::ObjectMeta {
    polis_api::kube::api::ObjectMeta { name: Some(name.to_owned()), ..Default::default() }
}

fn uuid() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}
