//! Supervisor of the components of `polis up`: the federation, the controllers of every role, the platform
//! stand-ins and the runtimes. Each role has its own engine, as it has its own process in a production
//! installation.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use futures::future::BoxFuture;
use polis_api::kube::api::{ObjectMeta, PostParams};
use polis_api::kube::{Api, Client};
use polis_api::networking::Network;
use polis_apiserver::{Error as ServerError, PlaneSpec, Server, project_plane};
use polis_cell::{CellConfig, NetworkMode, QuotaConfig, ResourceRefKind};
use polis_core::cities::TenancyMode;
use polis_engine::{Clock, Engine, Handle, MiloProjects};
use polis_federation::FederationConfig;
use polis_platform::hub_namespaces::HubNamespaceCleanup;
use polis_platform::locations::InitialBindings;
use polis_platform::networks::{AddressPool, MAX_LOOPBACK_CITIES};
use polis_platform::projects::{BoxError, PlaneProvisioner, ProjectOptions};
use polis_platform::quota::DefaultAllowance;
use polis_runtime::{ProcessProvider, ProcessSettings, RuntimeConfig};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::admission::InProcessWebhooks;
use super::data::DataDir;
use super::durable::DurableProvider;
use super::flags::Flags;
use super::planes::{PROJECT_KINDS, PlaneBackend, Planes};

/// The running components.
pub struct Supervisor {
    /// Readiness and metrics of each engine, by role.
    pub engines: BTreeMap<String, Handle>,
    /// The process provider of each city.
    pub runtimes: BTreeMap<String, ProcessProvider>,
    tasks: JoinSet<Result<()>>,
    stop: CancellationToken,
}

impl Supervisor {
    /// Declares the controllers of every role and spawns their engines.
    pub fn start(
        planes: &Planes,
        flags: &Flags,
        data: &DataDir,
        webhooks: &InProcessWebhooks,
    ) -> Result<Self> {
        let mut supervisor = Self {
            engines: BTreeMap::new(),
            runtimes: BTreeMap::new(),
            tasks: JoinSet::new(),
            stop: CancellationToken::new(),
        };
        supervisor.platform(planes);
        supervisor.admission(planes, webhooks);
        if let PlaneBackend::Embedded(_) = planes.hub {
            supervisor.federation(planes);
        }
        supervisor.management(planes);
        let cities: Vec<&str> = planes.cells.iter().map(|(city, _)| city.as_str()).collect();
        for ((city, backend), number) in planes.cells.iter().zip(data.numbers_of(&cities)?) {
            let pool = AddressPool::loopback(number).with_context(|| {
                format!("city {city} has number {number}, and this machine has loopback addresses for {MAX_LOOPBACK_CITIES} cities")
            })?;
            let settings = process_settings(flags, data, city)?;
            supervisor.cell(planes, settings, city, backend, pool.searched_from(data.address_seed()))?;
        }
        Ok(supervisor)
    }

    fn platform(&mut self, planes: &Planes) {
        let mut engine = Engine::new();
        let clock = Clock::system();
        let root = planes.root("platform");
        let hub = planes.plane(&planes.hub, "platform");
        let provisioner = EmbeddedPlaneProvisioner { server: planes.server.clone() };
        // A Ready project accepts workloads, and a deleted project has no namespaces left on the hub.
        let options = ProjectOptions {
            initial_bindings: Some(InitialBindings::new(root.clone(), hub.clone())),
            hub_namespaces: Some(HubNamespaceCleanup::new(hub.clone())),
        };
        polis_platform::projects::declare(&mut engine, clock.clone(), root.clone(), provisioner, options);
        polis_platform::locations::declare(
            &mut engine,
            clock.clone(),
            root.clone(),
            hub,
            projects(planes, "platform"),
        );
        polis_platform::quota::declare(
            &mut engine,
            clock,
            root,
            projects(planes, "platform"),
            Some(DefaultAllowance::default()),
        );
        self.run("platform", engine);
    }

    fn admission(&mut self, planes: &Planes, webhooks: &InProcessWebhooks) {
        let mut engine = Engine::new();
        webhooks.connect(&mut engine, projects(planes, "admission"));
        self.run("admission", engine);
    }

    fn federation(&mut self, planes: &Planes) {
        let mut engine = Engine::new();
        let mut config = FederationConfig::new(planes.plane(&planes.hub, "federation"));
        for (city, backend) in &planes.cells {
            config = config.member(city, planes.plane(backend, "federation"));
        }
        polis_federation::declare(&mut engine, Clock::system(), config);
        self.run("federation", engine);
    }

    fn management(&mut self, planes: &Planes) {
        let mut engine = Engine::new();
        let hub = planes.plane(&planes.hub, "management");
        let projects = projects(planes, "management");
        polis_management::declare(&mut engine, Clock::system(), projects, TenancyMode::Milo, hub);
        self.run("management", engine);
    }

    fn cell(
        &mut self,
        planes: &Planes,
        settings: ProcessSettings,
        city: &str,
        backend: &PlaneBackend,
        pool: AddressPool,
    ) -> Result<()> {
        let mut engine = Engine::new();
        let clock = Clock::system();
        let role = format!("cell-{city}");
        // One cache for all controllers of the cell: what one of them writes, the others read.
        let networks = NetworkMode::WhenServed;
        let watches = [
            polis_cell::watches(networks, true),
            polis_platform::networks::watches(),
            polis_runtime::watches(),
        ];
        let plane = engine.plane("cell", planes.plane(backend, &role), watches.concat());
        let quota = QuotaConfig { projects: planes.root(&role), resource_ref: ResourceRefKind::default() };
        let cell = CellConfig {
            plane: plane.clone(),
            hub: planes.plane(&planes.hub, &role),
            name: city.to_owned(),
            networks,
            quota: Some(quota),
            instance_finalizers: polis_runtime::instance_finalizers(),
        };
        polis_cell::declare(&mut engine, clock.clone(), cell)?;
        polis_platform::networks::declare(&mut engine, clock.clone(), plane.clone(), city, pool);
        let process = ProcessProvider::open(settings)?;
        self.runtimes.insert(city.to_owned(), process.clone());
        let provider = DurableProvider { provider: process, server: planes.server.clone() };
        polis_runtime::declare(&mut engine, clock, RuntimeConfig { plane, city: city.to_owned(), provider });
        self.run(&role, engine);
        Ok(())
    }

    fn run(&mut self, role: &str, engine: Engine) {
        self.engines.insert(role.to_owned(), engine.handle());
        let (stop, role) = (self.stop.clone(), role.to_owned());
        self.tasks.spawn(async move {
            let shutdown_signal = async move { stop.cancelled().await };
            engine.run(shutdown_signal).await.with_context(|| format!("{role} stopped"))
        });
    }

    /// Waits until a component stops without a shutdown, and returns its error.
    pub async fn failure(&mut self) -> anyhow::Error {
        match self.tasks.join_next().await {
            Some(Ok(Err(error))) => error,
            Some(Err(error)) => anyhow::Error::from(error).context("a component task panicked"),
            Some(Ok(Ok(()))) | None => anyhow::anyhow!("a component stopped without an error"),
        }
    }

    /// Stops all components and waits for them; stops the instances too unless `keep_instances`.
    pub async fn shut_down(mut self, keep_instances: bool) -> Result<()> {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
        if !keep_instances {
            for runtime in self.runtimes.values() {
                runtime.stop_all().await?;
            }
        }
        Ok(())
    }
}

/// Configuration of the process provider of a city.
fn process_settings(flags: &Flags, data: &DataDir, city: &str) -> Result<ProcessSettings> {
    let binary = std::env::current_exe().context("failed to find the path of this program")?;
    let mut settings = ProcessSettings::new(data.path("cells").join(city), binary, city);
    settings.host_programs = flags.allow_host_processes;
    settings.images = data.path("images");
    settings.readable = flags.allow_read.clone();
    settings.private = flags.private_files().chain([data.folder().to_owned()]).collect();
    Ok(settings)
}

/// The projects of the platform, for a role.
fn projects(planes: &Planes, role: &str) -> MiloProjects {
    MiloProjects::new(planes.root(role))
}

/// Creates and deletes the planes of projects on the embedded API server.
struct EmbeddedPlaneProvisioner {
    server: Server,
}

impl PlaneProvisioner for EmbeddedPlaneProvisioner {
    fn create<'a>(&'a self, project: &'a str) -> BoxFuture<'a, Result<(), BoxError>> {
        Box::pin(async move {
            match self.server.create_plane(PlaneSpec::project(project, PROJECT_KINDS)).await {
                Ok(()) | Err(ServerError::PlaneExists(_)) => {}
                Err(error) => return Err(error.into()),
            }
            // A new project has a network, which the first workload can use.
            let client = Client::new(self.server.plane_service(&project_plane(project)), "default");
            let network = Network {
                metadata: ObjectMeta { name: Some("default".to_owned()), ..ObjectMeta::default() },
                ..Network::default()
            };
            let made =
                Api::<Network>::namespaced(client, "default").create(&PostParams::default(), &network).await;
            match made {
                Err(polis_api::kube::Error::Api(refusal)) if refusal.is_already_exists() => Ok(()),
                other => other.map(drop).map_err(Into::into),
            }
        })
    }

    fn delete<'a>(&'a self, project: &'a str) -> BoxFuture<'a, Result<(), BoxError>> {
        Box::pin(async move {
            match self.server.delete_plane(&project_plane(project)).await {
                Ok(()) | Err(ServerError::NoPlane(_)) => Ok(()),
                Err(error) => Err(error.into()),
            }
        })
    }
}
