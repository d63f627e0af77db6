//! The planes of a test in one process: projects, a hub and cells on one embedded API server in memory, and
//! the engines that run on them.
//!
//! Time is tokio's: with `#[tokio::test(start_paused = true)]` minutes of waiting take no time, and the
//! result does not depend on the speed of the machine.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use polis_api::crds::{self, CrdFile};
use polis_api::kube::Client;
use polis_apiserver::{Builder as ServerBuilder, PlaneSpec, Server};
use polis_core::Time;
use polis_engine::{Clock, Engine, Handle, Plane, Random, anchored_clock};

use crate::builders::mk_member;
use crate::engine::RunningEngine;
use crate::proxy::Proxy;
use crate::recorder::{PlaneRecorder, RecordedKind};

/// The name of the hub's plane.
pub const HUB: &str = "hub";
/// The set of CRDs that every project serves.
pub const PROJECT_CATALOGUE: &str = "projects";

/// All CRDs, built once: deriving their schemas takes longer than most tests.
fn all_crds() -> &'static [CrdFile] {
    static CRDS: OnceLock<Vec<CrdFile>> = OnceLock::new();
    CRDS.get_or_init(|| [crds::compute(), crds::platform(), crds::karmada()].concat())
}

/// The planes of a test. Dropping it stops its engines.
pub struct Cluster {
    server: Server,
    clock: Clock,
    /// The proxy of the engines that have none of their own.
    pub proxy: Proxy,
    direct: Proxy,
    engines: BTreeMap<String, RunningEngine>,
}

/// Says which planes a [`Cluster`] has.
pub struct ClusterBuilder {
    server: ServerBuilder,
    clock: Clock,
    platform: bool,
    projects: Vec<String>,
    hub: bool,
    cells: Vec<String>,
    unserved: Vec<&'static str>,
    pods: bool,
}

impl ClusterBuilder {
    /// Serves the kinds of a platform on the root plane: Project, Location and ResourceRegistration.
    pub fn platform(mut self) -> Self {
        self.platform = true;
        self
    }

    /// Adds the plane of a project.
    pub fn project(mut self, name: &str) -> Self {
        self.projects.push(name.to_owned());
        self
    }

    /// Adds the hub.
    pub fn hub(mut self) -> Self {
        self.hub = true;
        self
    }

    /// Adds a cell, named like its city and, if there is a hub, registered there as a member.
    pub fn cell(mut self, city: &str) -> Self {
        self.cells.push(city.to_owned());
        self
    }

    /// Makes the cells store Pods, for controllers that create them.
    pub fn pods(mut self) -> Self {
        self.pods = true;
        self
    }

    /// Leaves out the kinds of an API group, or the kind of a plural, on all planes.
    pub fn without(mut self, group_or_plural: &'static str) -> Self {
        self.unserved.push(group_or_plural);
        self
    }

    /// Sets the clock of the server and of the engines. Without it, time begins at the start of 2026 and
    /// passes with tokio's clock.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Changes the options of the server.
    pub fn server(mut self, change: impl FnOnce(ServerBuilder) -> ServerBuilder) -> Self {
        self.server = change(self.server);
        self
    }

    /// Creates the planes with their CRDs. No controller runs yet.
    pub async fn build(self) -> Cluster {
        let server = self.server.clock(self.clock.clone()).build().await.expect("a server");
        let served = all_crds().iter().filter(|file| {
            let names = [&file.crd["spec"]["group"], &file.crd["spec"]["names"]["plural"]];
            !names.iter().any(|name| self.unserved.iter().any(|unserved| **name == *unserved))
        });
        let standalone = self.cells.iter().map(String::as_str).chain(self.hub.then_some(HUB));
        for plane in standalone {
            server.create_plane(PlaneSpec::standalone(plane)).await.expect("a plane");
        }
        for cell in self.cells.iter().filter(|_| self.pods) {
            server.store_pods(cell).await.expect("a cell");
        }
        for CrdFile { crd, .. } in served {
            let group = crd["spec"]["group"].as_str().unwrap_or_default();
            let plural = crd["spec"]["names"]["plural"].as_str().unwrap_or_default();
            let compute = group == polis_api::compute::GROUP;
            if self.platform && matches!(plural, "projects" | "locations" | "resourceregistrations") {
                server.install_crd_in("", crd).await.expect("a CRD");
            }
            let of_quota = matches!(plural, "resourcegrants" | "resourceclaims" | "allowancebuckets");
            if compute || of_quota || matches!(plural, "locationbindings" | "networks") {
                server.install_crd(PROJECT_CATALOGUE, crd).await.expect("a CRD");
            }
            if self.hub && (compute || group.ends_with("karmada.io")) {
                server.install_crd_in(HUB, crd).await.expect("a CRD");
            }
            if compute || group == polis_api::networking::GROUP {
                for cell in &self.cells {
                    server.install_crd_in(cell, crd).await.expect("a CRD");
                }
            }
        }
        for project in &self.projects {
            let plane = PlaneSpec::project(project, PROJECT_CATALOGUE);
            server.create_plane(plane).await.expect("a plane");
        }
        let proxy = Proxy::new(server.clone());
        let direct = proxy.unrecorded();
        let cluster = Cluster { server, clock: self.clock, proxy, direct, engines: BTreeMap::new() };
        for city in self.cells.iter().filter(|_| self.hub) {
            cluster.plane(HUB).create(&mk_member(city, Some(city))).await.expect("a member");
        }
        cluster
    }
}

impl Cluster {
    /// A cluster without planes except the root.
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder {
            server: Server::builder(),
            clock: anchored_clock("2026-01-01T00:00:00Z".parse().expect("a timestamp")),
            platform: false,
            projects: Vec::new(),
            hub: false,
            cells: Vec::new(),
            pods: false,
            unserved: Vec::new(),
        }
    }

    /// The API server.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// The clock of the server and the engines.
    pub fn clock(&self) -> Clock {
        self.clock.clone()
    }

    /// The current time of the clock, as objects have it.
    pub fn now(&self) -> Time {
        Time(self.clock.now())
    }

    /// A plane for the test itself: always reachable and not recorded. The root is
    /// [`PLATFORM`](crate::PLATFORM).
    pub fn plane(&self, name: &str) -> Plane {
        self.direct.plane(name)
    }

    /// Records the objects of a plane from now on.
    pub fn record(&self, plane: &str, kinds: Vec<RecordedKind>) -> PlaneRecorder {
        PlaneRecorder::start(plane, self.direct.client(plane, None), kinds)
    }

    /// A client of a plane as the administrator, for the test itself.
    pub fn client(&self, plane: &str) -> Client {
        self.direct.client(plane, None)
    }

    /// Starts an engine under a name.
    pub fn start(&mut self, name: &str, declare: impl FnOnce(&mut Engine)) {
        let mut engine = Engine::with(self.clock.clone(), Random::from_seed(7));
        declare(&mut engine);
        let replaced = self.engines.insert(name.to_owned(), RunningEngine::spawn(engine));
        assert!(replaced.is_none(), "engine {name} runs already");
    }

    /// Stops an engine and waits until its reconciles end.
    pub async fn stop(&mut self, name: &str) {
        self.engines.remove(name).expect("the engine runs").stop().await;
    }

    /// The handle of a running engine.
    pub fn handle(&self, name: &str) -> Handle {
        self.engines[name].handle.clone()
    }
}
