//! Everybody who works on the planes: the federation, the controllers of every role, the stand-ins of the platform and
//! the runtimes. Each role has an engine of its own, as it has a process of its own elsewhere.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use polis_api::kube::api::{ObjectMeta, PostParams};
use polis_api::kube::{Api, Client};
use polis_api::networking::Network;
use polis_apiserver::{Error as ServerError, PlaneSpec, Server, project_plane};
use polis_cell::{Cell, Networks, Quota, ResourceRefKind};
use polis_core::cities::Ground;
use polis_engine::{Clock, Engine, Handle, MiloProjects};
use polis_federation::Federation;
use polis_platform::homes::Homes;
use polis_platform::locations::Opening;
use polis_platform::networks::{CITIES, Pool};
use polis_platform::projects::{Beside, BoxError, PlaneMaker};
use polis_platform::quota::Allowance;
use polis_runtime::{Process, Runtime, Settings};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::admission::Doorway;
use super::data::DataDir;
use super::kept::Kept;
use super::planes::{PROJECT_KINDS, Planes, Reached};

/// Who is at work.
pub struct Staff {
    /// Readiness and metrics of each engine, by role.
    pub engines: BTreeMap<String, Handle>,
    /// What runs the instances of each city.
    pub runtimes: BTreeMap<String, Process>,
    tasks: JoinSet<Result<()>>,
    stop: CancellationToken,
}

impl Staff {
    /// Declares everybody. Nobody works yet.
    pub fn hire(planes: &Planes, data: &DataDir, doorway: &Doorway) -> Result<Self> {
        let mut staff = Self {
            engines: BTreeMap::new(),
            runtimes: BTreeMap::new(),
            tasks: JoinSet::new(),
            stop: CancellationToken::new(),
        };
        staff.platform(planes);
        staff.admission(planes, doorway);
        if let Reached::Here(_) = planes.hub {
            staff.federation(planes);
        }
        staff.management(planes);
        let cities: Vec<&str> = planes.cells.iter().map(|(city, _)| city.as_str()).collect();
        for ((city, reached), number) in planes.cells.iter().zip(data.numbers_of(&cities)?) {
            let pool = Pool::loopback(number).with_context(|| {
                format!("city {city} is number {number}, and there are loopback addresses for {CITIES}")
            })?;
            staff.cell(planes, data, city, reached, pool)?;
        }
        Ok(staff)
    }

    fn platform(&mut self, planes: &Planes) {
        let mut engine = Engine::new();
        let clock = Clock::system();
        let root = planes.root("platform");
        let hub = planes.plane(&planes.hub, "platform");
        let maker = Maker { server: planes.server.clone() };
        // A project that says it is ready can be used, and one that is gone has left nothing on the hub.
        let beside = Beside {
            opening: Some(Opening::new(root.clone(), hub.clone())),
            homes: Some(Homes::new(hub.clone())),
        };
        polis_platform::projects::declare(&mut engine, clock.clone(), root.clone(), maker, beside);
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
            Some(Allowance::default()),
        );
        self.run("platform", engine);
    }

    fn admission(&mut self, planes: &Planes, doorway: &Doorway) {
        let mut engine = Engine::new();
        doorway.open(&mut engine, projects(planes, "admission"));
        self.run("admission", engine);
    }

    fn federation(&mut self, planes: &Planes) {
        let mut federation = Federation::builder(planes.client(&planes.hub, "federation"));
        for (city, reached) in &planes.cells {
            federation = federation.member(city, planes.client(reached, "federation"));
        }
        let stop = self.stop.clone();
        let running = federation.build().run(async move { stop.cancelled().await });
        self.tasks.spawn(running.map(Ok));
    }

    fn management(&mut self, planes: &Planes) {
        let mut engine = Engine::new();
        let hub = planes.plane(&planes.hub, "management");
        let projects = projects(planes, "management");
        polis_management::declare(&mut engine, Clock::system(), projects, Ground::Platform, hub);
        self.run("management", engine);
    }

    fn cell(
        &mut self,
        planes: &Planes,
        data: &DataDir,
        city: &str,
        reached: &Reached,
        pool: Pool,
    ) -> Result<()> {
        let mut engine = Engine::new();
        let clock = Clock::system();
        let role = format!("cell-{city}");
        let plane = planes.plane(reached, &role);
        let quota = Quota { projects: planes.root(&role), resource_ref: ResourceRefKind::default() };
        let cell = Cell {
            plane: plane.clone(),
            hub: planes.plane(&planes.hub, &role),
            name: city.to_owned(),
            networks: Networks::WhereServed,
            quota: Some(quota),
        };
        polis_cell::declare(&mut engine, clock.clone(), cell)?;
        polis_platform::networks::declare(&mut engine, clock.clone(), plane.clone(), city, pool);
        let binary = std::env::current_exe().context("the program does not know where it is")?;
        let process = Process::open(Settings::new(data.path("cells").join(city), binary, city))?;
        self.runtimes.insert(city.to_owned(), process.clone());
        let provider = Kept { provider: process, server: planes.server.clone() };
        polis_runtime::declare(&mut engine, clock, Runtime { plane, city: city.to_owned(), provider });
        self.run(&role, engine);
        Ok(())
    }

    fn run(&mut self, role: &str, engine: Engine) {
        self.engines.insert(role.to_owned(), engine.handle());
        let (stop, role) = (self.stop.clone(), role.to_owned());
        self.tasks.spawn(async move {
            let told_to_stop = async move { stop.cancelled().await };
            engine.run(told_to_stop).await.with_context(|| format!("{role} stopped"))
        });
    }

    /// Ends when somebody stopped who was not told to, and says why.
    pub async fn trouble(&mut self) -> anyhow::Error {
        match self.tasks.join_next().await {
            Some(Ok(Err(error))) => error,
            Some(Err(error)) => anyhow::Error::from(error).context("a part of Polis broke off"),
            Some(Ok(Ok(()))) | None => anyhow::anyhow!("a part of Polis stopped by itself"),
        }
    }

    /// Tells everybody to stop, and waits until all have.
    pub async fn dismiss(mut self, keep_instances: bool) -> Result<()> {
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

/// Every project of the platform, as a role reaches it.
fn projects(planes: &Planes, role: &str) -> MiloProjects {
    MiloProjects::new(planes.root(role))
}

/// Makes the planes of projects on the embedded server.
struct Maker {
    server: Server,
}

impl PlaneMaker for Maker {
    fn create<'a>(&'a self, project: &'a str) -> BoxFuture<'a, Result<(), BoxError>> {
        Box::pin(async move {
            match self.server.create_plane(PlaneSpec::project(project, PROJECT_KINDS)).await {
                Ok(()) | Err(ServerError::PlaneExists(_)) => {}
                Err(error) => return Err(error.into()),
            }
            // A project begins with a network, so that the first workload has one to be on.
            let client = Client::new(self.server.project_service(project), "default");
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
