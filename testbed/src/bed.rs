//! The bed: all components together, up, shared and down.
//!
//! A bed that is owned ends with its owner, whatever happens to it. A bed that is released lives on, and is
//! found again by its directory.

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
    CellCrds, Error, Kind, Options, Plane, Say, Tempo,
    binaries::Binaries,
    cell, disk, etcd,
    guard::Guard,
    home::{Home, State},
    hub, manifest, pins,
    pki::{MASTERS, Pki},
    plane::{self, HUB},
    port::Ports,
    process::{Condition, Identity, Processes, Record, Spec},
    ready,
};

/// What a bed writes: logs, certificates, and the data of etcd before its first compaction.
const ROOM_MIB: u64 = 500;
/// Ports that are tried for a component before something else must be wrong.
const PORT_TRIES: usize = 5;
/// How long the owner of a bed may take to end it when asked.
const OWNER_ENDS_WITHIN: Duration = Duration::from_secs(30);

/// A bed of real engines.
#[derive(Debug)]
pub struct Bed {
    home: Home,
    binaries: Binaries,
    pki: Pki,
    processes: Processes,
    state: Mutex<State>,
    /// There while this process owns the bed.
    guard: Option<Guard>,
}

/// What a component is doing.
#[derive(Debug, Clone)]
pub struct Component {
    /// How it was started, and as which process.
    pub record: Record,
    /// Whether it runs.
    pub condition: Condition,
    /// Its resident memory in KiB, while it runs.
    pub resident_kib: Option<u64>,
    /// Its log.
    pub log: PathBuf,
    /// The last lines of its log.
    pub tail: String,
}

/// What is shared while a bed is raised.
struct Raising<'a> {
    bed: &'a Bed,
    ports: &'a Ports,
    say: &'a Say,
    options: &'a Options,
}

impl Bed {
    /// Starts a bed and owns it: it ends when this value is dropped or this process ends. The programs are
    /// built first where they are missing, which takes minutes, once.
    pub async fn up(options: Options) -> Result<Bed, Error> {
        options.check()?;
        let binaries = Binaries::ensure(&options.say)?;
        let home = Home::claim(options.dir.as_deref())?;
        disk::check(home.dir(), ROOM_MIB, "--dir")?;
        let guard = Guard::start()?;
        let state = State {
            owner: Identity::of(std::process::id()),
            group: guard.group(),
            binaries: binaries.dir().to_owned(),
            tempo: options.tempo,
            ..State::default()
        };
        home.write(&state)?;
        let bed = Bed {
            pki: Pki::create(&home.pki())?,
            processes: Processes::new(&home, guard.group()),
            binaries,
            home,
            guard: Some(guard),
            state: Mutex::new(state),
        };
        let raising = Raising { bed: &bed, ports: &options.ports, say: &options.say, options: &options };
        let planes = Box::pin(raising.raise()).await?;
        bed.note(|state| {
            state.ready = true;
            state.planes = planes;
        })?;
        Ok(bed)
    }

    /// etcd and one kube-apiserver, the plane [`plane::LONE`], in about four seconds.
    pub async fn single_plane() -> Result<Bed, Error> {
        Box::pin(Bed::up(Options::single_plane())).await
    }

    /// The bed that is up in this directory. Its owner, if it has one, stays its owner.
    pub fn attach(dir: &Path) -> Result<Bed, Error> {
        let (home, state) = Home::find(dir)?;
        if !state.ready {
            let at_work = state.owner.is_some_and(|owner| owner.condition() != Condition::Dead);
            let dir = home.dir().to_owned();
            return Err(if at_work { Error::Busy(dir) } else { Error::CutOff(dir) });
        }
        Ok(Bed {
            binaries: Binaries::at(&state.binaries),
            pki: Pki::open(&home.pki())?,
            processes: Processes::new(&home, state.group),
            home,
            guard: None,
            state: Mutex::new(state),
        })
    }

    /// Lets the bed live on without an owner; `down` ends it.
    pub fn release(mut self) -> Result<(), Error> {
        self.note(|state| state.owner = None)?;
        if let Some(guard) = self.guard.take() {
            guard.release();
        }
        self.home.unlock();
        Ok(())
    }

    /// Ends the bed in this directory: every process that was started for it, and nothing else.
    pub fn down(dir: &Path) -> Result<(), Error> {
        let (mut home, state) = Home::find(dir)?;
        if let Some(owner) = state.owner {
            end_owner(&owner)?;
        }
        if !home.dir().exists() {
            return Ok(()); // the owner has cleared everything away
        }
        home.relock()?;
        Processes::new(&home, 0).kill_all()?;
        home.clear()
    }

    /// The directory of the bed.
    pub fn dir(&self) -> &Path {
        self.home.dir()
    }

    /// All planes.
    pub fn planes(&self) -> Vec<Plane> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).planes.clone()
    }

    /// The plane of this name.
    pub fn plane(&self, name: &str) -> Result<Plane, Error> {
        let planes = self.planes();
        let known = || planes.iter().map(|plane| plane.name.as_str()).collect::<Vec<_>>().join(", ");
        let found = planes.iter().find(|plane| plane.name == name).cloned();
        found.ok_or_else(|| Error::UnknownPlane { name: name.to_owned(), known: known() })
    }

    /// The admin's kubeconfig of a plane.
    pub fn kubeconfig(&self, plane: &str) -> Result<PathBuf, Error> {
        Ok(self.home.kubeconfig(&self.plane(plane)?.name))
    }

    /// A kubeconfig with which to be the user, with at most two groups, on a plane.
    pub fn kubeconfig_for(&self, plane: &str, user: &str, groups: &[&str]) -> Result<String, Error> {
        self.pki.kubeconfig(&self.plane(plane)?.server, user, groups)
    }

    /// The admin's client of a plane.
    pub async fn client(&self, plane: &str) -> Result<Client, Error> {
        self.client_for(plane, "admin", &[MASTERS]).await
    }

    /// A client that is the user, with at most two groups, on a plane.
    pub async fn client_for(&self, plane: &str, user: &str, groups: &[&str]) -> Result<Client, Error> {
        ready::client(&self.pki, &self.plane(plane)?.server, user, groups).await
    }

    /// A kubectl command on a plane, as admin, to which arguments can be added.
    pub fn kubectl(&self, plane: &str) -> Result<Command, Error> {
        let mut command = Command::new(self.binaries.path(pins::KUBECTL));
        command.env("KUBECONFIG", self.kubeconfig(plane)?);
        Ok(command)
    }

    /// All components, by name.
    pub fn components(&self) -> Result<Vec<Component>, Error> {
        self.processes.reap();
        let describe = |record: Record| Component {
            condition: record.identity.condition(),
            resident_kib: record.identity.resident_kib(),
            log: self.processes.log(&record),
            tail: self.processes.tail(&record),
            record,
        };
        Ok(self.processes.records()?.into_iter().map(describe).collect())
    }

    /// The component of this name.
    pub fn component(&self, name: &str) -> Result<Component, Error> {
        self.processes.record(name)?;
        let found = self.components()?.into_iter().find(|component| component.record.spec.name == name);
        found.ok_or_else(|| Error::UnknownComponent { name: name.to_owned(), known: String::new() })
    }

    /// Waits until a component dies, and says which, with its last lines.
    pub async fn first_death(&self) -> Error {
        loop {
            match self.processes.first_dead() {
                Ok(None) => tokio::time::sleep(Duration::from_millis(500)).await,
                Ok(Some(dead)) => return self.processes.death(&dead),
                Err(err) => return err,
            }
        }
    }

    /// Kills a component (SIGKILL) and waits until it is gone.
    pub fn kill(&self, component: &str) -> Result<(), Error> {
        self.processes.kill(component)
    }

    /// Asks a component to stop (SIGTERM) and waits until it is gone.
    pub fn stop(&self, component: &str) -> Result<(), Error> {
        self.processes.stop(component)
    }

    /// Freezes a component (SIGSTOP): its connections stay open and nothing answers on them.
    pub fn pause(&self, component: &str) -> Result<(), Error> {
        self.processes.pause(component)
    }

    /// Lets a frozen component go on.
    pub fn resume(&self, component: &str) -> Result<(), Error> {
        self.processes.resume(component)
    }

    /// Starts a component that is dead again, as it was started before, and waits until it is ready.
    pub async fn start(&self, component: &str) -> Result<(), Error> {
        let record = self.processes.record(component)?;
        if record.identity.condition() != Condition::Dead {
            return Ok(());
        }
        let record = self.processes.start(&record.spec)?;
        let quiet: Say = std::sync::Arc::new(|line| tracing::debug!("{line}"));
        ready::wait(&self.processes, &self.pki, &record, &quiet).await.map(|_| ())
    }

    /// Kills a component and starts it again.
    pub async fn restart(&self, component: &str) -> Result<(), Error> {
        self.kill(component)?;
        self.start(component).await
    }

    fn note(&self, change: impl FnOnce(&mut State)) -> Result<(), Error> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        self.home.write(&state)
    }
}

impl Drop for Bed {
    /// Ends the bed when this process owns it. The directory is left for a look when a test has failed; the
    /// next bed clears it away.
    fn drop(&mut self) {
        let Some(guard) = self.guard.take() else { return };
        drop(guard);
        // What was restarted by a process of another terminal is in a group of its own.
        let ended = self.processes.kill_all();
        self.processes.reap();
        if std::thread::panicking() {
            eprintln!("the logs of the bed are in {}", self.home.dir().join("log").display());
            return;
        }
        if let Err(err) = ended.and_then(|()| self.home.clear()) {
            tracing::warn!("{err}");
        }
    }
}

fn end_owner(owner: &Identity) -> Result<(), Error> {
    let name = "the owner of the bed".to_owned();
    let signalled = owner.signal(Signal::TERM);
    signalled.map_err(|cause| Error::Signal { name: name.clone(), cause })?;
    let deadline = Instant::now() + OWNER_ENDS_WITHIN;
    while owner.condition() != Condition::Dead {
        if Instant::now() > deadline {
            return Err(Error::Unkillable { name, pid: owner.pid, seconds: OWNER_ENDS_WITHIN.as_secs() });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

impl Raising<'_> {
    async fn raise(&self) -> Result<Vec<Plane>, Error> {
        let (bed, options) = (self.bed, self.options);
        let ports = self.launch(etcd::PORTS, |ports| Ok(etcd::spec(&bed.binaries, &bed.home, ports))).await?;
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

    async fn project(&self, name: &str, etcd: &str) -> Result<Plane, Error> {
        let plane = self.plane(name, Kind::Project, etcd).await?;
        let crds = async {
            self.crds(&plane, polis_api::crds::of_project().into_iter().map(|file| file.crd).collect()).await
        };
        tokio::try_join!(self.controllers(&plane), crds)?;
        Ok(plane)
    }

    async fn cell(&self, city: &str, etcd: &str) -> Result<Plane, Error> {
        let plane = self.plane(&city.to_lowercase(), Kind::Cell { city: city.to_owned() }, etcd).await?;
        let crds = async {
            let by_hand = self.options.cell_crds == CellCrds::ByHand;
            let ours = |file: &CrdFile| file.folder == polis_api::crds::COMPUTE_FOLDER;
            let crds = polis_api::crds::of_cell().into_iter().filter(|file| by_hand || !ours(file));
            self.crds(&plane, crds.map(|file| file.crd).collect()).await
        };
        tokio::try_join!(self.controllers(&plane), crds)?;
        Ok(plane)
    }

    async fn hub(&self, etcd: &str) -> Result<Plane, Error> {
        let bed = self.bed;
        let plane = self.plane(HUB, Kind::Hub, etcd).await?;
        let client = self.client(&plane).await?;
        hub::make_namespaces(&client).await?;
        let crds = async {
            let ours = polis_api::crds::compute().into_iter().map(|file| file.crd);
            manifest::apply_crds(&client, HUB, &bed.binaries.karmada_crds()?).await?;
            self.crds(&plane, ours.collect()).await
        };
        let clusters = async {
            let port = self
                .launch_one(|port| hub::aggregated_apiserver(&bed.binaries, &bed.home, &bed.pki, etcd, port))
                .await?;
            hub::register_clusters(&client, &bed.pki, port).await
        };
        let webhook =
            async { self.launch_one(|port| hub::webhook(&bed.binaries, &bed.home, &bed.pki, port)).await };
        let ((), (), (), webhook) = tokio::try_join!(self.controllers(&plane), crds, clusters, webhook)?;
        hub::register_webhook(&client, &bed.binaries, &bed.pki, webhook).await?;
        if self.options.crds {
            hub::install_interpreter(&client).await?;
        }
        Ok(plane)
    }

    /// Starts what moves objects between hub and cells, and makes the cells members, each with its city.
    async fn federate(&self, hub_plane: &Plane, cells: &[Plane]) -> Result<(), Error> {
        let (bed, tempo): (&Bed, Tempo) = (self.bed, self.options.tempo);
        let client = self.client(hub_plane).await?;
        let controllers =
            self.launch_one(|port| hub::controller_manager(&bed.binaries, &bed.home, tempo, port));
        let scheduler = self.launch_one(|port| hub::scheduler(&bed.binaries, &bed.home, tempo, port));
        let joining = try_join_all(cells.iter().map(|cell| cell::join(&client, &bed.pki, cell)));
        tokio::try_join!(controllers, scheduler, joining)?;
        if self.options.crds && self.options.cell_crds == CellCrds::ByPolicy {
            hub::install_crds_to_cells(&client).await?;
        }
        try_join_all(cells.iter().map(|plane| self.admit(&client, plane))).await?;
        Ok(())
    }

    async fn admit(&self, hub: &Client, cell: &Plane) -> Result<(), Error> {
        let start = Instant::now();
        cell::await_member(hub, cell, self.options.crds).await?;
        if let Kind::Cell { city } = &cell.kind {
            cell::label(hub, cell, city).await?;
        }
        (self.say)(&format!(
            "  {:<34} joined after {:.1} s",
            format!("cell {}", cell.name),
            start.elapsed().as_secs_f64()
        ));
        Ok(())
    }

    async fn plane(&self, name: &str, kind: Kind, etcd: &str) -> Result<Plane, Error> {
        let bed = self.bed;
        let ports = self
            .launch(1, |ports| {
                let mut spec = plane::apiserver(&bed.binaries, &bed.pki, name, &kind, etcd, ports[0])?;
                spec.args.extend(self.options.owners_guarded.then(|| plane::OWNERS_GUARDED.to_owned()));
                Ok(spec)
            })
            .await?;
        let plane = Plane { name: name.to_owned(), kind, server: plane::server(ports[0]) };
        let kubeconfig = bed.pki.kubeconfig(&plane.server, "admin", &[MASTERS])?;
        crate::home::write_whole(&bed.home.kubeconfig(name), kubeconfig.as_bytes())?;
        Ok(plane)
    }

    async fn controllers(&self, plane: &Plane) -> Result<(), Error> {
        let bed = self.bed;
        if self.options.controllers {
            self.launch_one(|port| {
                plane::controller_manager(&bed.binaries, &bed.home, &bed.pki, &plane.name, port)
            })
            .await?;
        }
        Ok(())
    }

    async fn crds(&self, plane: &Plane, crds: Vec<Value>) -> Result<(), Error> {
        if !self.options.crds {
            return Ok(());
        }
        manifest::apply_crds(&self.client(plane).await?, &plane.name, &crds).await
    }

    async fn client(&self, plane: &Plane) -> Result<Client, Error> {
        ready::client(&self.bed.pki, &plane.server, "admin", &[MASTERS]).await
    }

    async fn launch_one(&self, spec: impl Fn(u16) -> Spec) -> Result<u16, Error> {
        Ok(self.launch(1, |ports| Ok(spec(ports[0]))).await?[0])
    }

    /// Starts a component on free ports and waits until it is ready. When another process takes a port in
    /// between, others are tried.
    fn launch(
        &self,
        ports: usize,
        spec: impl Fn(&[u16]) -> Result<Spec, Error>,
    ) -> impl Future<Output = Result<Vec<u16>, Error>> {
        let processes = &self.bed.processes;
        async move {
            let mut tries = 0;
            loop {
                tries += 1;
                let ports = (0..ports).map(|_| self.ports.choose()).collect::<Result<Vec<u16>, Error>>()?;
                let spec = spec(&ports)?;
                let record = processes.start(&spec)?;
                match ready::wait(processes, &self.bed.pki, &record, self.say).await {
                    Ok(took) => {
                        (self.say)(&format!("  {:<34} ready after {:.1} s", spec.name, took.as_secs_f64()));
                        return Ok(ports);
                    }
                    Err(taken @ Error::PortTaken { .. }) if tries < PORT_TRIES => {
                        (self.say)(&format!("  {taken}: trying another"));
                        processes.kill(&spec.name)?;
                    }
                    Err(err) => return Err(err),
                }
            }
        }
    }
}
