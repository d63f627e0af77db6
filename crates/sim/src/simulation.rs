//! [`Simulation`]: the API servers and the processes of a run.
//!
//! The platform's API server has the root plane and the planes of the projects, as Milo does; the hub and
//! each cell have an API server of their own. Each process has an engine with the controllers of its role, as
//! in a production installation. A crash drops the engine between two polls of its tasks; what it sent is
//! still processed.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use polis_api::compute::{Instance, WorkloadDeployment};
use polis_api::crds::{self, CrdFile};
use polis_api::k8s_openapi::api::rbac::v1::RoleBinding;
use polis_api::karmada::PropagationPolicy;
use polis_api::quota::{ResourceClaim, ResourceGrant};
use polis_api::{ObjectExt as _, names};
use polis_apiserver::{Error as ServerError, PlaneSpec, Server, project_plane};
use polis_cell::{CellConfig, NetworkMode, QuotaConfig, ResourceRefKind};
use polis_core::cities::TenancyMode;
use polis_core::{conditions, heartbeat};
use polis_engine::{
    Clock, Engine, Handle, MiloProjects, Object, Plane, Preconditions, Random, anchored_clock,
};
use polis_federation::FederationConfig;
use polis_platform::hub_namespaces::HubNamespaceCleanup;
use polis_platform::locations::InitialBindings;
use polis_platform::networks::AddressPool;
use polis_platform::projects::{BoxError, PlaneProvisioner, ProjectOptions};
use polis_platform::quota::{DEFAULT_GRANT, DefaultAllowance, NAMESPACE as QUOTA_NAMESPACE};
use polis_runtime::RuntimeConfig;
use polis_testing::builders::{NETWORK, mk_member, mk_namespace, mk_network, mk_project};
use polis_testing::{PlaneExt as _, create_untyped};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::journal::Journal;
use crate::machines::{GrantCheck, Machines, Slots};
use crate::network::Network;
use crate::plan::{
    FEDERATION, HUB, HandDeleted, LinkFault, MANAGEMENT, PLATFORM, Plan, PlanEvent, cell_process,
};

/// The catalogue of the projects.
const PROJECT_CATALOGUE: &str = "projects";
/// The interpreters of Polis' kinds, which an operator applies to the hub.
const INTERPRETER: &str = include_str!("../../../deploy/components/federation/interpreter.yaml");

/// The CRDs of project planes, the hub and cells; generated once, because that takes longer than a run.
struct Crds {
    project: Vec<CrdFile>,
    hub: Vec<CrdFile>,
    cell: Vec<CrdFile>,
}

fn all_crds() -> &'static Crds {
    static CRDS: OnceLock<Crds> = OnceLock::new();
    CRDS.get_or_init(|| Crds { project: crds::of_project(), hub: crds::of_hub(), cell: crds::of_cell() })
}

/// The API servers and processes of a run. Cheap to clone.
#[derive(Clone)]
pub struct Simulation(Arc<Inner>);

struct Inner {
    plan: Plan,
    clock: Clock,
    random: Random,
    network: Network,
    servers: BTreeMap<String, Server>,
    machines: BTreeMap<String, Machines>,
    processes: Mutex<BTreeMap<String, Process>>,
}

/// A process: its number of starts, and its engine while it runs.
#[derive(Default)]
struct Process {
    starts: u64,
    running: Option<(Handle, JoinHandle<()>)>,
}

/// Checks grants on the planes of the projects.
struct Grants(Server);

impl GrantCheck for Grants {
    fn missing_grant(&self, instance: &Instance, project: Option<&str>) -> BoxFuture<'_, Option<String>> {
        let claim = names::resource_claim(instance.name());
        let project = project.map(str::to_owned);
        async move {
            let Some(project) = project else { return Some("its project is unknown".to_owned()) };
            if !self.0.has_plane(&project_plane(&project)) {
                return Some(format!("project {project} does not exist"));
            }
            let plane = direct(&self.0, &project, Some(&project));
            let claims = plane.all::<ResourceClaim>().await;
            let Some(found) = claims.iter().find(|found| found.name() == claim) else {
                return Some(format!("its claim {claim} does not exist"));
            };
            let status = found.status.as_ref();
            let granted = status.is_some_and(|status| conditions::is_true(&status.conditions, "Granted"));
            (!granted).then(|| format!("its claim {claim} is not granted"))
        }
        .boxed()
    }
}

/// A plane without the network.
fn direct(server: &Server, name: &str, project: Option<&str>) -> Plane {
    use bytes::Bytes;
    use http_body_util::Full;
    let service = match project {
        Some(project) => server.plane_service(&project_plane(project)),
        None if name == PLATFORM => server.service(),
        None => server.plane_service(name),
    };
    Plane::in_process::<_, Full<Bytes>, _>(name, service)
}

/// Creates and deletes the planes of projects on the platform's server.
struct Provisioner(Server);

impl PlaneProvisioner for Provisioner {
    fn create<'a>(&'a self, project: &'a str) -> BoxFuture<'a, Result<(), BoxError>> {
        async move {
            match self.0.create_plane(PlaneSpec::project(project, PROJECT_CATALOGUE)).await {
                Ok(()) | Err(ServerError::PlaneExists(_)) => {}
                Err(error) => return Err(error.into()),
            }
            let plane = direct(&self.0, project, Some(project));
            match plane.create(&mk_network("default", NETWORK)).await {
                Err(error) if error.is_already_exists() => Ok(()),
                created => created.map(drop).map_err(Into::into),
            }
        }
        .boxed()
    }

    fn delete<'a>(&'a self, project: &'a str) -> BoxFuture<'a, Result<(), BoxError>> {
        async move {
            match self.0.delete_plane(&project_plane(project)).await {
                Ok(()) | Err(ServerError::NoPlane(_)) => Ok(()),
                Err(error) => Err(error.into()),
            }
        }
        .boxed()
    }
}

impl Simulation {
    /// Creates the API servers with their kinds and the objects of the operator. No process runs yet.
    pub async fn create(plan: &Plan, journal: Journal) -> Result<Self> {
        let random = Random::from_seed(plan.seed);
        let clock = anchored_clock("2026-01-01T00:00:00Z".parse().context("the start of time")?);
        let (crashes, crashed) = mpsc::unbounded_channel();
        let network = Network::new(journal.clone(), plan, random.split("network"), crashes);
        let mut servers = BTreeMap::new();
        let hosts = [PLATFORM, HUB].into_iter().chain(plan.cities.iter().map(String::as_str));
        for host in hosts {
            let builder =
                Server::builder().clock(clock.clone()).random(random.split(&format!("server {host}")));
            let server = builder.build().await?;
            if host != PLATFORM {
                server.create_plane(PlaneSpec::standalone(host)).await?;
            }
            servers.insert(host.to_owned(), server);
        }
        let kinds = all_crds();
        for CrdFile { crd, .. } in &kinds.project {
            servers[PLATFORM].install_crd_in("", crd).await?;
            servers[PLATFORM].install_crd(PROJECT_CATALOGUE, crd).await?;
        }
        for CrdFile { crd, .. } in &kinds.hub {
            servers[HUB].install_crd_in(HUB, crd).await?;
        }
        for city in &plan.cities {
            for CrdFile { crd, .. } in &kinds.cell {
                servers[city].install_crd_in(city, crd).await?;
            }
        }
        let slots = Slots::default();
        let grants = Arc::new(Grants(servers[PLATFORM].clone()));
        let machines = plan.cities.iter().map(|city| {
            let random = random.split(&format!("machines {city}"));
            let delay = plan.container_delay;
            let machines = Machines::new(city, journal.clone(), random, delay, slots.clone(), grants.clone());
            (city.clone(), machines)
        });
        let machines = machines.collect();
        let plan = plan.clone();
        let processes = Mutex::default();
        let simulation = Self(Arc::new(Inner { plan, clock, random, network, servers, machines, processes }));
        simulation.apply_bootstrap().await?;
        tokio::spawn(simulation.clone().restart_crashed(crashed));
        Ok(simulation)
    }

    async fn apply_bootstrap(&self) -> Result<()> {
        let hub = self.plane(HUB);
        let client = hub.kube_client();
        for object in serde_saphyr::from_multiple::<Value>(INTERPRETER)? {
            create_untyped(&client, &object).await;
        }
        hub.create(&mk_namespace(heartbeat::NAMESPACE)).await?;
        for city in &self.0.plan.cities {
            hub.create(&mk_member(city, Some(city))).await?;
        }
        let root = self.plane(PLATFORM);
        for project in &self.0.plan.projects {
            root.create(&mk_project(project)).await?;
        }
        Ok(())
    }

    /// The network.
    pub fn network(&self) -> &Network {
        &self.0.network
    }

    /// The journal.
    pub fn journal(&self) -> &Journal {
        self.0.network.journal()
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.0.plan
    }

    /// A plane without the network, for users and checks: the platform, the hub, a cell or a project.
    pub fn plane(&self, name: &str) -> Plane {
        match self.0.servers.get(name) {
            Some(server) => direct(server, name, None),
            None => direct(&self.0.servers[PLATFORM], name, Some(name)),
        }
    }

    /// Whether a project has a plane.
    pub fn has_project(&self, project: &str) -> bool {
        self.0.servers[PLATFORM].has_plane(&project_plane(project))
    }

    /// The containers of a city.
    pub fn machines(&self, city: &str) -> &Machines {
        &self.0.machines[city]
    }

    /// Starts all processes.
    pub fn start_all(&self) -> Result<()> {
        self.0.plan.processes().iter().try_for_each(|process| self.start(process))
    }

    /// Whether all processes run and have listed all that they watch.
    pub fn is_ready(&self) -> bool {
        let processes = self.0.processes.lock();
        let ready = |process: &Process| process.running.as_ref().is_some_and(|(handle, _)| handle.is_ready());
        processes.len() == self.0.plan.processes().len() && processes.values().all(ready)
    }

    /// Why processes are not ready.
    pub fn readiness(&self) -> String {
        let processes = self.0.processes.lock();
        let state = |(name, process): (&String, &Process)| match &process.running {
            None => format!("{name} is down"),
            Some((handle, _)) => format!("{name}: {:?}", handle.readiness()),
        };
        processes.iter().map(state).collect::<Vec<_>>().join("; ")
    }

    /// Starts a process, unless it runs.
    pub fn start(&self, process: &str) -> Result<()> {
        let run = {
            let mut processes = self.0.processes.lock();
            let entry = processes.entry(process.to_owned()).or_default();
            if entry.running.is_some() {
                return Ok(());
            }
            entry.starts += 1;
            entry.starts
        };
        let random = self.0.random.split(&format!("process {process} {run}"));
        let mut engine = Engine::with(self.0.clock.clone(), random.clone());
        self.declare(process, run, &mut engine, &random)?;
        self.0.network.connect(process, run);
        let handle = engine.handle();
        let (journal, name) = (self.journal().clone(), process.to_owned());
        let task = tokio::spawn(async move {
            if let Err(error) = engine.run(std::future::pending()).await {
                journal.tell(format!("{name} ended: {error}"));
            }
        });
        self.0.processes.lock().entry(process.to_owned()).or_default().running = Some((handle, task));
        self.journal().tell(format!("{process} starts (run {run})"));
        Ok(())
    }

    /// Ends a process at once, and starts it again later.
    pub fn crash(&self, process: &str, down: Duration) {
        self.0.network.disconnect(process);
        let running = self.0.processes.lock().get_mut(process).and_then(|entry| entry.running.take());
        let Some((_, task)) = running else { return };
        task.abort();
        let (simulation, process) = (self.clone(), process.to_owned());
        tokio::spawn(async move {
            // The state of the process is dropped before it starts again.
            _ = task.await;
            tokio::time::sleep(down).await;
            simulation.start(&process).expect("a process that started once starts again");
        });
    }

    /// Crashes the processes that have reached their crash points.
    async fn restart_crashed(self, mut crashed: mpsc::UnboundedReceiver<(String, Duration)>) {
        while let Some((process, down)) = crashed.recv().await {
            self.crash(&process, down);
        }
    }

    /// Makes a fault of a plan happen. Users' actions are those of [`crate::users`].
    pub fn inject(&self, action: &PlanEvent) {
        match action {
            PlanEvent::Crash { process, down } => self.crash(process, *down),
            PlanEvent::CrashAfterWrites { process, writes, down } => {
                self.0.network.crash_after_writes(process, *writes, *down);
            }
            PlanEvent::LinkFailure { process, host, fault, lasts } => {
                self.fail(process, std::slice::from_ref(host), *fault, *lasts)
            }
            PlanEvent::Freeze { process, lasts } => {
                let hosts: Vec<String> = self.0.servers.keys().cloned().collect();
                self.fail(process, &hosts, LinkFault::Silent, *lasts);
            }
            PlanEvent::ContainerCrash { city } => self.0.machines[city].crash_one(),
            PlanEvent::User(..) | PlanEvent::Quota { .. } | PlanEvent::HandDeletion(_) => {}
        }
    }

    fn fail(&self, process: &str, hosts: &[String], fault: LinkFault, lasts: Duration) {
        let network = &self.0.network;
        let faults: Vec<u64> = hosts.iter().map(|host| network.fail(process, host, fault)).collect();
        let (network, process) = (network.clone(), process.to_owned());
        tokio::spawn(async move {
            tokio::time::sleep(lasts).await;
            faults.iter().for_each(|fault| network.mend(*fault));
            network.journal().tell(format!("links of {process} work again ({fault:?} ended)"));
        });
    }

    /// Changes the instances that the default grant of a project allows.
    pub async fn set_quota(&self, project: &str, instances: i64) {
        let name = (QUOTA_NAMESPACE, DEFAULT_GRANT);
        let plane = self.plane(project);
        if plane.read::<ResourceGrant>(name).await.is_none() {
            return;
        }
        plane
            .change::<ResourceGrant>(name, |grant| {
                for allowance in &mut grant.spec.allowances {
                    if allowance.resource_type == polis_api::quota::RESOURCE_INSTANCES {
                        allowance.buckets.iter_mut().for_each(|bucket| bucket.amount = instances);
                    }
                }
            })
            .await;
    }

    /// Deletes an object by hand, if there is one.
    pub async fn delete_by_hand(&self, what: HandDeleted) {
        let hub = self.plane(HUB);
        let projects = || self.0.plan.projects.iter().map(|project| self.plane(project)).collect();
        let cells = || self.0.plan.cities.iter().map(|city| self.plane(city)).collect();
        match what {
            HandDeleted::Deployment => self.delete_one::<WorkloadDeployment>(projects()).await,
            HandDeleted::Projection => self.delete_one::<Instance>(projects()).await,
            HandDeleted::HubCopy => self.delete_one::<WorkloadDeployment>(vec![hub]).await,
            HandDeleted::WriteBack => self.delete_one::<Instance>(vec![hub]).await,
            HandDeleted::Policy => self.delete_one::<PropagationPolicy>(vec![hub]).await,
            HandDeleted::Rights => self.delete_one::<RoleBinding>(vec![hub]).await,
            HandDeleted::CellCopy => self.delete_one::<WorkloadDeployment>(cells()).await,
            HandDeleted::Instance => self.delete_one::<Instance>(cells()).await,
        }
    }

    /// Deletes the first object of a kind on the first plane that has one.
    async fn delete_one<K: Object>(&self, planes: Vec<Plane>) {
        for plane in planes {
            let objects = plane.all::<K>().await;
            if let Some(object) = objects.iter().find(|object| object.meta().deletion_timestamp.is_none()) {
                self.journal().tell(format!("{} on {} is deleted", object.name(), plane.name()));
                plane.delete(object, Preconditions::Uid).await.expect("the plane responds");
                return;
            }
        }
    }

    /// A plane as a process reaches it.
    fn of(&self, process: &str, run: u64, host: &str) -> Plane {
        let server = &self.0.servers[host];
        let service = if host == PLATFORM { server.service() } else { server.plane_service(host) };
        self.0.network.plane(process, run, host, host, service)
    }

    /// Declares the controllers of a process, as `polis up` does.
    fn declare(&self, process: &str, run: u64, engine: &mut Engine, random: &Random) -> Result<()> {
        let clock = self.0.clock.clone();
        let plane = |host: &str| self.of(process, run, host);
        match process {
            PLATFORM => {
                let (root, hub) = (plane(PLATFORM), plane(HUB));
                let options = ProjectOptions {
                    initial_bindings: Some(InitialBindings::new(root.clone(), hub.clone())),
                    hub_namespaces: Some(HubNamespaceCleanup::new(hub.clone())),
                };
                let provisioner = Provisioner(self.0.servers[PLATFORM].clone());
                polis_platform::projects::declare(engine, clock.clone(), root.clone(), provisioner, options);
                let projects = || MiloProjects::new(root.clone());
                polis_platform::locations::declare(engine, clock.clone(), root.clone(), hub, projects());
                let allowance = DefaultAllowance {
                    instances: self.0.plan.quota,
                    millicores: 1_000_000,
                    mebibytes: 100_000_000,
                };
                polis_platform::quota::declare(engine, clock, root.clone(), projects(), Some(allowance));
            }
            FEDERATION => {
                let mut config = FederationConfig::new(plane(HUB));
                config.random = random.split("federation");
                for city in &self.0.plan.cities {
                    config = config.member(city, plane(city));
                }
                polis_federation::declare(engine, clock, config);
            }
            MANAGEMENT => {
                let projects = MiloProjects::new(plane(PLATFORM));
                polis_management::declare(engine, clock, projects, TenancyMode::Milo, plane(HUB));
            }
            cell => {
                let cities = &self.0.plan.cities;
                let number = cities.iter().position(|city| cell_process(city) == cell);
                let number = number.with_context(|| format!("process {cell} has no city"))?;
                self.declare_cell(engine, number, &plane)?;
            }
        }
        Ok(())
    }

    fn declare_cell(&self, engine: &mut Engine, number: usize, plane: &dyn Fn(&str) -> Plane) -> Result<()> {
        let (city, clock) = (&self.0.plan.cities[number], self.0.clock.clone());
        let networks = NetworkMode::WhenServed;
        let watches = [
            polis_cell::watches(networks, true),
            polis_platform::networks::watches(),
            polis_runtime::watches(),
        ];
        let cell = engine.plane("cell", plane(city), watches.concat());
        let quota = QuotaConfig { projects: plane(PLATFORM), resource_ref: ResourceRefKind::default() };
        let config = CellConfig {
            plane: cell.clone(),
            hub: plane(HUB),
            name: city.clone(),
            networks,
            quota: Some(quota),
            instance_finalizers: polis_runtime::instance_finalizers(),
        };
        polis_cell::declare(engine, clock.clone(), config)?;
        let pool = AddressPool::loopback(number as u16).context("an address pool")?;
        polis_platform::networks::declare(engine, clock.clone(), cell.clone(), city, pool);
        let provider = self.0.machines[city].clone();
        polis_runtime::declare(engine, clock, RuntimeConfig { plane: cell, city: city.clone(), provider });
        Ok(())
    }
}
