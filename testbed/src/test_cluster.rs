//! A test cluster: all components together; start, attach and stop.
//!
//! A test cluster that has an owner process ends when that process ends, even if it is killed. A released one
//! keeps running without an owner; another process attaches to it by its directory.

use std::{
    future::Future,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use futures::future::try_join_all;
use kube::Client;
use polis_api::crds::CrdFile;
use rustix::process::Signal;
use serde_json::Value;

use crate::{
    CellCrds, Error, Options, PlaneKind, ProgressFn, TestPlane, TimingProfile,
    binaries::Binaries,
    cell, disk, etcd,
    guard::Guard,
    hub, manifest, pins,
    pki::{MASTERS, Pki},
    plane::{self, HUB},
    port::Ports,
    process::{ComponentRecord, ComponentSpec, ProcessId, ProcessState, Processes},
    ready,
    state_dir::{ClusterState, StateDir},
};

/// Disk space of one test cluster: logs, certificates, and the data of etcd before its first compaction.
const REQUIRED_MIB: u64 = 500;
/// Attempts to start one component on other ports before its error is returned.
const PORT_TRIES: usize = 5;
/// How long the owner process may take to end after SIGTERM.
const OWNER_EXIT_TIMEOUT: Duration = Duration::from_secs(30);

/// A running test cluster: etcd, kube-apiservers and, with a hub, Karmada.
#[derive(Debug)]
pub struct TestCluster {
    state_dir: StateDir,
    binaries: Binaries,
    pki: Pki,
    processes: Processes,
    state: Mutex<ClusterState>,
    /// Set while this process owns the test cluster.
    guard: Option<Guard>,
}

/// The state of one component.
#[derive(Debug, Clone)]
pub struct Component {
    /// Its arguments, ports and process.
    pub record: ComponentRecord,
    /// Whether it is running.
    pub state: ProcessState,
    /// Its resident memory in KiB, while it runs.
    pub resident_kib: Option<u64>,
    /// Its log.
    pub log: PathBuf,
    /// The last lines of its log.
    pub tail: String,
}

/// Everything that the start of a test cluster needs.
struct Startup<'a> {
    cluster: &'a TestCluster,
    ports: &'a Ports,
    progress: &'a ProgressFn,
    options: &'a Options,
}

impl TestCluster {
    /// Starts a test cluster that this process owns: it ends when this value is dropped or this process ends.
    /// Missing programs are built first, once, which takes minutes.
    pub async fn up(options: Options) -> Result<TestCluster, Error> {
        options.check()?;
        let binaries = Binaries::ensure(&options.progress)?;
        let state_dir = StateDir::claim(options.dir.as_deref())?;
        disk::check(state_dir.dir(), REQUIRED_MIB, "--dir")?;
        let guard = Guard::start()?;
        let state = ClusterState {
            owner: ProcessId::of(std::process::id()),
            group: guard.group(),
            binaries: binaries.dir().to_owned(),
            timing: options.timing,
            ..ClusterState::default()
        };
        state_dir.write(&state)?;
        let cluster = TestCluster {
            pki: Pki::create(&state_dir.pki())?,
            processes: Processes::new(&state_dir, guard.group()),
            binaries,
            state_dir,
            guard: Some(guard),
            state: Mutex::new(state),
        };
        let startup = Startup {
            cluster: &cluster,
            ports: &options.ports,
            progress: &options.progress,
            options: &options,
        };
        let planes = Box::pin(startup.start_all()).await?;
        cluster.update_state(|state| {
            state.ready = true;
            state.planes = planes;
        })?;
        Ok(cluster)
    }

    /// Starts etcd and one kube-apiserver, the plane [`plane::SINGLE_PLANE`], in about four seconds.
    pub async fn single_plane() -> Result<TestCluster, Error> {
        Box::pin(TestCluster::up(Options::single_plane())).await
    }

    /// Attaches to the test cluster that runs in this directory. Its owner does not change.
    pub fn attach(dir: &Path) -> Result<TestCluster, Error> {
        let (state_dir, state) = StateDir::find(dir)?;
        if !state.ready {
            let starting = state.owner.is_some_and(|owner| owner.state() != ProcessState::Dead);
            let dir = state_dir.dir().to_owned();
            return Err(if starting { Error::Busy(dir) } else { Error::Incomplete(dir) });
        }
        Ok(TestCluster {
            binaries: Binaries::at(&state.binaries),
            pki: Pki::open(&state_dir.pki())?,
            processes: Processes::new(&state_dir, state.group),
            state_dir,
            guard: None,
            state: Mutex::new(state),
        })
    }

    /// Keeps the test cluster running without an owner; `down` stops it.
    pub fn release(mut self) -> Result<(), Error> {
        self.update_state(|state| state.owner = None)?;
        if let Some(guard) = self.guard.take() {
            guard.release();
        }
        self.state_dir.unlock();
        Ok(())
    }

    /// Stops the test cluster in this directory: all of its processes, and no others.
    pub fn down(dir: &Path) -> Result<(), Error> {
        let (mut state_dir, state) = StateDir::find(dir)?;
        if let Some(owner) = state.owner {
            stop_owner(&owner)?;
        }
        if !state_dir.dir().exists() {
            return Ok(()); // the owner removed it
        }
        state_dir.relock()?;
        Processes::new(&state_dir, 0).kill_all()?;
        state_dir.clear()
    }

    /// The state directory.
    pub fn dir(&self) -> &Path {
        self.state_dir.dir()
    }

    /// All planes.
    pub fn planes(&self) -> Vec<TestPlane> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).planes.clone()
    }

    /// The plane with this name.
    pub fn plane(&self, name: &str) -> Result<TestPlane, Error> {
        let planes = self.planes();
        let known = || planes.iter().map(|plane| plane.name.as_str()).collect::<Vec<_>>().join(", ");
        let found = planes.iter().find(|plane| plane.name == name).cloned();
        found.ok_or_else(|| Error::UnknownPlane { name: name.to_owned(), known: known() })
    }

    /// The path of the admin kubeconfig of a plane.
    pub fn kubeconfig(&self, plane: &str) -> Result<PathBuf, Error> {
        Ok(self.state_dir.kubeconfig(&self.plane(plane)?.name))
    }

    /// A kubeconfig for a user with at most two groups on a plane.
    pub fn kubeconfig_for(&self, plane: &str, user: &str, groups: &[&str]) -> Result<String, Error> {
        self.pki.kubeconfig(&self.plane(plane)?.server, user, groups)
    }

    /// An admin client of a plane.
    pub async fn client(&self, plane: &str) -> Result<Client, Error> {
        self.client_for(plane, "admin", &[MASTERS]).await
    }

    /// A client for a user with at most two groups on a plane.
    pub async fn client_for(&self, plane: &str, user: &str, groups: &[&str]) -> Result<Client, Error> {
        ready::client(&self.pki, &self.plane(plane)?.server, user, groups).await
    }

    /// A kubectl command for a plane, as admin; the caller adds the arguments.
    pub fn kubectl(&self, plane: &str) -> Result<Command, Error> {
        let mut command = Command::new(self.binaries.path(pins::KUBECTL));
        command.env("KUBECONFIG", self.kubeconfig(plane)?);
        Ok(command)
    }

    /// All components, by name.
    pub fn components(&self) -> Result<Vec<Component>, Error> {
        self.processes.reap();
        let describe = |record: ComponentRecord| Component {
            state: record.process.state(),
            resident_kib: record.process.resident_kib(),
            log: self.processes.log(&record),
            tail: self.processes.tail(&record),
            record,
        };
        Ok(self.processes.records()?.into_iter().map(describe).collect())
    }

    /// The component with this name.
    pub fn component(&self, name: &str) -> Result<Component, Error> {
        self.processes.record(name)?;
        let found = self.components()?.into_iter().find(|component| component.record.spec.name == name);
        found.ok_or_else(|| Error::UnknownComponent { name: name.to_owned(), known: String::new() })
    }

    /// Waits until any component exits; the error names it and holds the last lines of its log.
    pub async fn first_exit(&self) -> Error {
        loop {
            match self.processes.first_exited() {
                Ok(None) => tokio::time::sleep(Duration::from_millis(500)).await,
                Ok(Some(exited)) => return self.processes.exit_error(&exited),
                Err(err) => return err,
            }
        }
    }

    /// Kills a component (SIGKILL) and waits until it has exited.
    pub fn kill(&self, component: &str) -> Result<(), Error> {
        self.processes.kill(component)
    }

    /// Stops a component (SIGTERM) and waits until it has exited.
    pub fn stop(&self, component: &str) -> Result<(), Error> {
        self.processes.stop(component)
    }

    /// Pauses a component (SIGSTOP): its connections stay open, and it does not respond.
    pub fn pause(&self, component: &str) -> Result<(), Error> {
        self.processes.pause(component)
    }

    /// Resumes a paused component (SIGCONT).
    pub fn resume(&self, component: &str) -> Result<(), Error> {
        self.processes.resume(component)
    }

    /// Starts an exited component with its previous arguments and waits until it is ready.
    pub async fn start(&self, component: &str) -> Result<(), Error> {
        let record = self.processes.record(component)?;
        if record.process.state() != ProcessState::Dead {
            return Ok(());
        }
        let record = self.processes.start(&record.spec)?;
        let quiet: ProgressFn = std::sync::Arc::new(|line| tracing::debug!("{line}"));
        ready::wait(&self.processes, &self.pki, &record, &quiet).await.map(|_| ())
    }

    /// Kills a component and starts it again.
    pub async fn restart(&self, component: &str) -> Result<(), Error> {
        self.kill(component)?;
        self.start(component).await
    }

    fn update_state(&self, change: impl FnOnce(&mut ClusterState)) -> Result<(), Error> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        self.state_dir.write(&state)
    }
}

impl Drop for TestCluster {
    /// Stops the test cluster if this process owns it. After a failed test the directory is kept for its
    /// logs; the next test cluster removes it.
    fn drop(&mut self) {
        let Some(guard) = self.guard.take() else { return };
        drop(guard);
        // A component that another process restarted is in a process group of its own.
        let ended = self.processes.kill_all();
        self.processes.reap();
        if std::thread::panicking() {
            eprintln!("the logs of the test cluster are in {}", self.state_dir.dir().join("log").display());
            return;
        }
        if let Err(err) = ended.and_then(|()| self.state_dir.clear()) {
            tracing::warn!("{err}");
        }
    }
}

fn stop_owner(owner: &ProcessId) -> Result<(), Error> {
    let name = "the owner of the test cluster".to_owned();
    let signalled = owner.signal(Signal::TERM);
    signalled.map_err(|cause| Error::Signal { name: name.clone(), cause })?;
    let deadline = Instant::now() + OWNER_EXIT_TIMEOUT;
    while owner.state() != ProcessState::Dead {
        if Instant::now() > deadline {
            return Err(Error::Unkillable { name, pid: owner.pid, seconds: OWNER_EXIT_TIMEOUT.as_secs() });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

impl Startup<'_> {
    async fn start_all(&self) -> Result<Vec<TestPlane>, Error> {
        let (cluster, options) = (self.cluster, self.options);
        let ports = self
            .launch(etcd::PORTS, |ports| Ok(etcd::spec(&cluster.binaries, &cluster.state_dir, ports)))
            .await?;
        let etcd = etcd::url(&ports);
        let projects = try_join_all(options.projects.iter().map(|name| self.project(name, &etcd)));
        let cells = try_join_all(options.cells.iter().map(|city| self.cell(city, &etcd)));
        let hub = async { if options.hub { self.hub(&etcd).await.map(Some) } else { Ok(None) } };
        let (projects, cells, hub) = tokio::try_join!(projects, cells, hub)?;
        if let Some(hub) = &hub {
            self.federate(hub, &cells).await?;
        }
        Ok(projects.into_iter().chain(hub).chain(cells).collect())
    }

    async fn project(&self, name: &str, etcd: &str) -> Result<TestPlane, Error> {
        let plane = self.plane(name, PlaneKind::Project, etcd).await?;
        let crds = async {
            self.crds(&plane, polis_api::crds::of_project().into_iter().map(|file| file.crd).collect()).await
        };
        tokio::try_join!(self.controllers(&plane), crds)?;
        Ok(plane)
    }

    async fn cell(&self, city: &str, etcd: &str) -> Result<TestPlane, Error> {
        let plane = self.plane(&city.to_lowercase(), PlaneKind::Cell { city: city.to_owned() }, etcd).await?;
        let crds = async {
            let preinstalled = self.options.cell_crds == CellCrds::Preinstalled;
            let ours = |file: &CrdFile| file.folder == polis_api::crds::COMPUTE_FOLDER;
            let crds = polis_api::crds::of_cell().into_iter().filter(|file| preinstalled || !ours(file));
            self.crds(&plane, crds.map(|file| file.crd).collect()).await
        };
        tokio::try_join!(self.controllers(&plane), crds)?;
        Ok(plane)
    }

    async fn hub(&self, etcd: &str) -> Result<TestPlane, Error> {
        let cluster = self.cluster;
        let plane = self.plane(HUB, PlaneKind::Hub, etcd).await?;
        let client = self.client(&plane).await?;
        hub::create_namespaces(&client).await?;
        let crds = async {
            let ours = polis_api::crds::compute().into_iter().map(|file| file.crd);
            manifest::apply_crds(&client, HUB, &cluster.binaries.karmada_crds()?).await?;
            self.crds(&plane, ours.collect()).await
        };
        let clusters = async {
            let port = self
                .launch_one(|port| {
                    hub::aggregated_apiserver(&cluster.binaries, &cluster.state_dir, &cluster.pki, etcd, port)
                })
                .await?;
            hub::register_clusters(&client, &cluster.pki, port).await
        };
        let webhook = async {
            self.launch_one(|port| hub::webhook(&cluster.binaries, &cluster.state_dir, &cluster.pki, port))
                .await
        };
        let ((), (), (), webhook) = tokio::try_join!(self.controllers(&plane), crds, clusters, webhook)?;
        hub::register_webhook(&client, &cluster.binaries, &cluster.pki, webhook).await?;
        if self.options.crds {
            hub::install_interpreter(&client).await?;
        }
        Ok(plane)
    }

    /// Starts Karmada's controllers and scheduler, joins the cells, and labels each with its city.
    async fn federate(&self, hub_plane: &TestPlane, cells: &[TestPlane]) -> Result<(), Error> {
        let (cluster, timing): (&TestCluster, TimingProfile) = (self.cluster, self.options.timing);
        let client = self.client(hub_plane).await?;
        let controllers = self
            .launch_one(|port| hub::controller_manager(&cluster.binaries, &cluster.state_dir, timing, port));
        let scheduler =
            self.launch_one(|port| hub::scheduler(&cluster.binaries, &cluster.state_dir, timing, port));
        let joining = try_join_all(cells.iter().map(|cell| cell::join(&client, &cluster.pki, cell)));
        tokio::try_join!(controllers, scheduler, joining)?;
        if self.options.crds && self.options.cell_crds == CellCrds::Propagated {
            hub::install_crds_to_cells(&client).await?;
        }
        try_join_all(cells.iter().map(|plane| self.admit(&client, plane))).await?;
        Ok(())
    }

    async fn admit(&self, hub: &Client, cell: &TestPlane) -> Result<(), Error> {
        let start = Instant::now();
        cell::await_member(hub, cell, self.options.crds).await?;
        if let PlaneKind::Cell { city } = &cell.kind {
            cell::label(hub, cell, city).await?;
        }
        (self.progress)(&format!(
            "  {:<34} joined after {:.1} s",
            format!("cell {}", cell.name),
            start.elapsed().as_secs_f64()
        ));
        Ok(())
    }

    async fn plane(&self, name: &str, kind: PlaneKind, etcd: &str) -> Result<TestPlane, Error> {
        let cluster = self.cluster;
        let ports = self
            .launch(1, |ports| {
                let mut spec =
                    plane::apiserver(&cluster.binaries, &cluster.pki, name, &kind, etcd, ports[0])?;
                spec.args.extend(
                    self.options.enforce_owner_references.then(|| plane::ENFORCE_OWNER_REFERENCES.to_owned()),
                );
                Ok(spec)
            })
            .await?;
        let plane = TestPlane { name: name.to_owned(), kind, server: plane::server(ports[0]) };
        let kubeconfig = cluster.pki.kubeconfig(&plane.server, "admin", &[MASTERS])?;
        crate::state_dir::write_atomically(&cluster.state_dir.kubeconfig(name), kubeconfig.as_bytes())?;
        Ok(plane)
    }

    async fn controllers(&self, plane: &TestPlane) -> Result<(), Error> {
        let cluster = self.cluster;
        if self.options.controllers {
            self.launch_one(|port| {
                plane::controller_manager(
                    &cluster.binaries,
                    &cluster.state_dir,
                    &cluster.pki,
                    &plane.name,
                    port,
                )
            })
            .await?;
        }
        Ok(())
    }

    async fn crds(&self, plane: &TestPlane, crds: Vec<Value>) -> Result<(), Error> {
        if !self.options.crds {
            return Ok(());
        }
        manifest::apply_crds(&self.client(plane).await?, &plane.name, &crds).await
    }

    async fn client(&self, plane: &TestPlane) -> Result<Client, Error> {
        ready::client(&self.cluster.pki, &plane.server, "admin", &[MASTERS]).await
    }

    async fn launch_one(&self, spec: impl Fn(u16) -> ComponentSpec) -> Result<u16, Error> {
        Ok(self.launch(1, |ports| Ok(spec(ports[0]))).await?[0])
    }

    /// Starts a component on free ports and waits until it is ready. If another process takes a port in
    /// between, the component is started again on other ports.
    fn launch(
        &self,
        ports: usize,
        spec: impl Fn(&[u16]) -> Result<ComponentSpec, Error>,
    ) -> impl Future<Output = Result<Vec<u16>, Error>> {
        let processes = &self.cluster.processes;
        async move {
            let mut tries = 0;
            loop {
                tries += 1;
                let ports = (0..ports).map(|_| self.ports.choose()).collect::<Result<Vec<u16>, Error>>()?;
                let spec = spec(&ports)?;
                let record = processes.start(&spec)?;
                match ready::wait(processes, &self.cluster.pki, &record, self.progress).await {
                    Ok(took) => {
                        (self.progress)(&format!(
                            "  {:<34} ready after {:.1} s",
                            spec.name,
                            took.as_secs_f64()
                        ));
                        return Ok(ports);
                    }
                    Err(taken @ Error::PortTaken { .. }) if tries < PORT_TRIES => {
                        (self.progress)(&format!("  {taken}: trying another"));
                        processes.kill(&spec.name)?;
                    }
                    Err(err) => return Err(err),
                }
            }
        }
    }
}
