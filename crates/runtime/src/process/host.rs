//! All instances on this host: their records, the state of their containers, and their phase.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use polis_api::ObjectExt;
use polis_api::compute::{Instance, InstanceSpec, SandboxContainer};
use polis_api::conditions::{CONTAINERS_READY, RUNNING};
use polis_core::health::{ContainerHealth, ProbeFailure, probed_ports};
use polis_core::{conditions, quota};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::container::{ContainerState, SHIM_POLL_INTERVAL};
#[cfg(target_os = "linux")]
use super::images::Images;
use super::instance_dir::{self, InstanceRecord};
use super::launch_spec::{is_tcp, number};
use super::restart::{self, ObservedContainer, RestartAction};
use super::{AddressMode, LoopbackPool, ProcessSettings, address, health};
use crate::isolation::cgroup::{Cgroup, CgroupLimits};
#[cfg(target_os = "linux")]
use crate::oci::ImageStore;
use crate::provider::{ChangeCallback, InstancePhase, ProbeReadiness, RunRequest, StopProgress};
use crate::shim::LaunchRequest;
use crate::{Error, Isolation};

/// Timeout of a TCP probe. A local port accepts or refuses at once.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// The instances that this provider runs for one cell.
pub(super) struct Host {
    pub(super) settings: ProcessSettings,
    isolation: OnceLock<Isolation>,
    #[cfg(target_os = "linux")]
    pub(super) images: Images,
    pub(super) instances: Mutex<BTreeMap<String, HostedInstance>>,
    /// UIDs by namespace and name.
    names: Mutex<BTreeMap<(String, String), BTreeSet<String>>>,
    pub(super) on_change: Mutex<Option<ChangeCallback>>,
}

/// An instance on this host.
pub(super) struct HostedInstance {
    pub(super) record: InstanceRecord,
    pub(super) containers: BTreeMap<String, ContainerState>,
}

impl Host {
    /// Loads the given records.
    pub(super) fn new(settings: ProcessSettings, all: Vec<InstanceRecord>) -> Self {
        #[cfg(target_os = "linux")]
        let images = Images::new(ImageStore::new(
            settings.images.clone(),
            settings.registries.clone(),
            settings.max_image_bytes,
        ));
        let host = Host {
            #[cfg(target_os = "linux")]
            images,
            settings,
            isolation: OnceLock::new(),
            instances: Mutex::default(),
            names: Mutex::default(),
            on_change: Mutex::default(),
        };
        for record in all {
            host.insert(&mut host.instances.lock(), record);
        }
        host
    }

    fn insert(&self, instances: &mut BTreeMap<String, HostedInstance>, record: InstanceRecord) {
        let name = (record.namespace.clone(), record.name.clone());
        self.names.lock().entry(name).or_default().insert(record.uid.clone());
        instances.insert(record.uid.clone(), HostedInstance { record, containers: BTreeMap::new() });
    }

    /// Removes an instance whose directory is deleted.
    pub(super) fn forget(&self, uid: &str) {
        let Some(HostedInstance { record, .. }) = self.instances.lock().remove(uid) else { return };
        let mut names = self.names.lock();
        let name = (record.namespace, record.name);
        if let Some(uids) = names.get_mut(&name) {
            uids.remove(uid);
            if uids.is_empty() {
                names.remove(&name);
            }
        }
    }

    /// What the programs of this host can do that a complete sandbox would deny.
    pub(super) fn isolation_gap(&self) -> Option<String> {
        match self.settings.sandbox {
            true => self.isolation().gap(),
            false => Some("instances are not isolated: the operator has disabled the sandbox".to_owned()),
        }
    }

    /// The isolation that this machine gives.
    pub(super) fn isolation(&self) -> &Isolation {
        self.isolation.get_or_init(|| Isolation::of_host(&self.settings.binary))
    }

    /// The control group of an instance; `None` if this machine has no controllers.
    pub(super) fn cgroup(&self, uid: &str, spec: &InstanceSpec) -> Option<Cgroup> {
        let root = &self.isolation().cgroups;
        let size = quota::instance_size(spec).ok().flatten();
        let positive = |amount: i128| u64::try_from(amount).ok().filter(|amount| *amount > 0);
        let limits = CgroupLimits {
            memory: size.and_then(|size| positive(size.mebibytes.into())).map(|size| size << 20),
            pids: Some(self.settings.max_processes),
            millicores: size.and_then(|size| positive(size.millicores.into())),
        };
        (!root.is_empty()).then(|| Cgroup { root: root.clone(), instance: uid.to_owned(), limits })
    }

    /// The launcher of a running container of the instance, other than this one.
    pub(super) fn running_sibling(&self, uid: &str, container: &str) -> Option<i32> {
        let instances = self.instances.lock();
        let mut others = instances.get(uid)?.containers.iter().filter(|(name, _)| *name != container);
        others.find_map(|(_, state)| match state {
            ContainerState::Running(running) => Some(running.state.pid),
            _ => None,
        })
    }

    /// UIDs of the instances with this namespace and name.
    pub(super) fn uids(&self, namespace: &str, name: &str) -> Vec<String> {
        let names = self.names.lock();
        let uids = names.get(&(namespace.to_owned(), name.to_owned()));
        uids.into_iter().flatten().cloned().collect()
    }

    /// Returns the record of an instance. Creates it, with an address or mapped ports, on the first call.
    pub(super) async fn ensure_record(
        &self,
        request: &RunRequest<'_>,
        containers: &[SandboxContainer],
    ) -> Result<InstanceRecord, Error> {
        let instance = request.instance;
        let uid = instance.uid();
        let existing = self.instances.lock().get(uid).map(|instance| instance.record.clone());
        let mut record = existing.clone().unwrap_or_else(|| InstanceRecord {
            uid: uid.to_owned(),
            namespace: instance.namespace().to_owned(),
            name: instance.name().to_owned(),
            address: Ipv4Addr::LOCALHOST,
            ports: BTreeMap::new(),
        });
        match self.settings.addresses {
            AddressMode::PerInstance(pool) if existing.is_none() => {
                let pool = request.range.and_then(LoopbackPool::new).unwrap_or(pool);
                record.address = self.allocate_address(record.clone(), assigned_address(instance), pool)?;
            }
            AddressMode::PerInstance(_) => {}
            AddressMode::Shared => {
                let named = containers.iter().flat_map(|container| &container.ports).filter_map(number);
                for port in named.chain(containers.iter().flat_map(probed_ports)) {
                    if !record.ports.contains_key(&port) {
                        record.ports.insert(port, self.free_port(&record).await?);
                    }
                }
            }
        }
        if existing.as_ref() != Some(&record) {
            record.write(&self.settings.dir)?;
            let mut instances = self.instances.lock();
            match instances.get_mut(uid) {
                Some(instance) => instance.record = record.clone(),
                None => self.insert(&mut instances, record.clone()),
            }
        }
        Ok(record)
    }

    /// Chooses an address and reserves it under one lock.
    fn allocate_address(
        &self,
        record: InstanceRecord,
        assigned: Option<Ipv4Addr>,
        pool: LoopbackPool,
    ) -> Result<Ipv4Addr, Error> {
        let mut instances = self.instances.lock();
        let address = match assigned {
            Some(address) => address,
            None => {
                let taken: BTreeSet<Ipv4Addr> =
                    instances.values().map(|instance| instance.record.address).collect();
                pool.choose(&record.uid, |address| taken.contains(&address)).ok_or_else(|| {
                    Error::NoAddress { instance: record.uid.clone(), pool: pool.to_string() }
                })?
            }
        };
        self.insert(&mut instances, InstanceRecord { address, ..record });
        Ok(address)
    }

    /// A port that is free on the host and not mapped to another instance.
    async fn free_port(&self, record: &InstanceRecord) -> Result<u16, Error> {
        let failed = || Error::directory(&self.settings.dir);
        loop {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(failed())?;
            let port = listener.local_addr().map_err(failed())?.port();
            let taken = record.ports.values().any(|taken| *taken == port)
                || self
                    .instances
                    .lock()
                    .values()
                    .any(|instance| instance.record.ports.values().any(|taken| *taken == port));
            if !taken {
                return Ok(port);
            }
        }
    }

    /// Reads the state of a container from its directory if it is unknown or changing.
    pub(super) fn inspect(self: &Arc<Self>, uid: &str, container: &str) -> Result<(), Error> {
        let Some(instance_dir) = instance_dir::path(&self.settings.dir, uid) else { return Ok(()) };
        let mut instances = self.instances.lock();
        let Some(instance) = instances.get_mut(uid) else { return Ok(()) };
        let container_state = instance.containers.entry(container.to_owned()).or_default();
        if matches!(container_state, ContainerState::Unknown | ContainerState::Starting) {
            *container_state =
                ContainerState::inspect(&instance_dir.join(container), &format!("{uid}/{container}"))?;
            container_state.watch(self.watcher(&instance.record, container));
            if let ContainerState::Exited { .. } = container_state {
                // A killed shim leaves the group. Another container of the instance keeps it.
                self.isolation().cgroups.remove(uid);
            }
        }
        Ok(())
    }

    /// The next action for a container; `None` while its shim is starting or exiting.
    pub(super) fn plan(
        self: &Arc<Self>,
        uid: &str,
        container: &str,
        template: &str,
    ) -> Result<Option<RestartAction>, Error> {
        self.inspect(uid, container)?;
        let instances = self.instances.lock();
        let container_state = instances.get(uid).and_then(|instance| instance.containers.get(container));
        Ok(container_state
            .and_then(ContainerState::observed)
            .map(|observed| restart::plan(observed, template, &self.settings.restart_backoff)))
    }

    pub(super) fn stop(&self, uid: &str, container: &str) -> StopProgress {
        let mut instances = self.instances.lock();
        let container_state =
            instances.get_mut(uid).and_then(|instance| instance.containers.get_mut(container));
        container_state
            .map_or(StopProgress::Done, |container_state| container_state.stop(self.settings.grace_period))
    }

    /// Time from the request to stop an instance until it is killed.
    pub(super) fn grace_period(&self, spec: &InstanceSpec) -> Duration {
        let seconds =
            spec.runtime.sandbox.as_ref().and_then(|sandbox| sandbox.termination_grace_period_seconds);
        let wanted = seconds.map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or_default()));
        wanted.map_or(self.settings.grace_period, |wanted| wanted.min(self.settings.max_grace_period))
    }

    /// The probe because of which a running container must be restarted.
    pub(super) fn probe_failure(
        self: &Arc<Self>,
        uid: &str,
        container: &str,
    ) -> Result<Option<ProbeFailure>, Error> {
        self.inspect(uid, container)?;
        let instances = self.instances.lock();
        let state = instances.get(uid).and_then(|instance| instance.containers.get(container));
        Ok(state.and_then(ContainerState::health).and_then(|health| health.failed))
    }

    pub(super) fn stop_unhealthy(
        &self,
        uid: &str,
        container: &str,
        failure: &ProbeFailure,
    ) -> Result<StopProgress, Error> {
        let Some(instance_dir) = instance_dir::path(&self.settings.dir, uid) else {
            return Ok(StopProgress::Done);
        };
        let mut instances = self.instances.lock();
        let state = instances.get_mut(uid).and_then(|instance| instance.containers.get_mut(container));
        state.map_or(Ok(StopProgress::Done), |state| {
            state.stop_unhealthy(&instance_dir.join(container), failure, self.settings.grace_period)
        })
    }

    /// Starts the probes of running containers. An adopted container keeps the health in the instance's
    /// status: it was in the same run when the earlier runtime wrote it.
    pub(super) fn monitor(
        self: &Arc<Self>,
        instance: &Instance,
        containers: &[SandboxContainer],
        record: &InstanceRecord,
    ) {
        let Some(instance_dir) = instance_dir::path(&self.settings.dir, &record.uid) else { return };
        let was_true = |kind| {
            let status = instance.status.as_ref();
            status.is_some_and(|status| conditions::is_true(&status.conditions, kind))
        };
        let mut instances = self.instances.lock();
        let Some(hosted) = instances.get_mut(&record.uid) else { return };
        for container in containers {
            let Some(ContainerState::Running(running)) = hosted.containers.get_mut(&container.name) else {
                continue;
            };
            if running.health.is_some() {
                continue;
            }
            let health = match running.adopted {
                true => ContainerHealth::resumed(
                    container,
                    running.since.elapsed(),
                    was_true(RUNNING),
                    was_true(CONTAINERS_READY),
                ),
                false => ContainerHealth::of(container),
            };
            let Some(health) = health else { continue };
            let checks = health::checks(container, record, &instance_dir.join(&container.name));
            let (host, record) = (Arc::downgrade(self), record.clone());
            let on_change = move || {
                let callback = Weak::upgrade(&host).and_then(|host| host.on_change.lock().clone());
                if let Some(on_change) = callback {
                    on_change(&record.namespace, &record.name);
                }
            };
            running.health = Some(health::HealthMonitor::start(health, checks, running.since, on_change));
        }
    }

    /// Whether the containers with readiness probes are ready; `None` if there are none.
    pub(super) fn readiness(&self, uid: &str, containers: &[SandboxContainer]) -> Option<ProbeReadiness> {
        let instances = self.instances.lock();
        let hosted = instances.get(uid)?;
        let probed = containers.iter().filter(|container| container.readiness_probe.is_some());
        let mut readiness = None;
        for container in probed {
            let health = hosted.containers.get(&container.name).and_then(ContainerState::health);
            let why = match health {
                Some(health) if health.ready => None,
                Some(health) => Some(health.waiting_for.unwrap_or_default()),
                None => Some("it does not run".to_owned()),
            };
            let not_ready = |why| ProbeReadiness::NotReady(format!("container {}: {why}", container.name));
            match why {
                Some(why) => return Some(not_ready(why)),
                None => readiness = Some(ProbeReadiness::Ready),
            }
        }
        readiness
    }

    pub(super) async fn start(
        self: &Arc<Self>,
        uid: &str,
        container: &str,
        #[cfg_attr(not(target_os = "linux"), allow(unused_mut))] mut request: LaunchRequest,
    ) -> Result<(), Error> {
        #[cfg(target_os = "linux")]
        if let Some(namespaces) = &mut request.launch.namespaces {
            namespaces.network.join = self.running_sibling(uid, container);
        }
        let Some(instance_dir) = instance_dir::path(&self.settings.dir, uid) else { return Ok(()) };
        let container_dir = instance_dir.join(container);
        let started =
            ContainerState::start(&self.settings.binary, container_dir, request, (uid, container)).await;
        let mut instances = self.instances.lock();
        if let Some(instance) = instances.get_mut(uid) {
            let container_state = instance.containers.entry(container.to_owned()).or_default();
            // After an error the state is unknown: the next reconcile reads it from the directory.
            *container_state = ContainerState::Unknown;
            *container_state = started?;
            container_state.watch(self.watcher(&instance.record, container));
        }
        Ok(())
    }

    /// The callback for the exit of a shim: resets the container to `Unknown` and notifies the controller.
    fn watcher(self: &Arc<Self>, record: &InstanceRecord, container: &str) -> impl FnOnce() + Send + 'static {
        let (host, record, container) = (Arc::downgrade(self), record.clone(), container.to_owned());
        move || {
            let Some(host) = Weak::upgrade(&host) else { return };
            let container_state = {
                let mut instances = host.instances.lock();
                let instance = instances.get_mut(&record.uid);
                instance.and_then(|instance| instance.containers.get_mut(&container)).map(std::mem::take)
            };
            // Dropping the state aborts this task at its next await point; there is none.
            drop(container_state);
            if let Some(on_change) = host.on_change.lock().clone() {
                on_change(&record.namespace, &record.name);
            }
        }
    }

    /// The phase of an instance, and when to check it again at the latest.
    pub(super) async fn phase(
        self: &Arc<Self>,
        uid: &str,
        containers: &[SandboxContainer],
        record: &InstanceRecord,
    ) -> (InstancePhase, Option<Duration>) {
        let probed = |name: &str| {
            containers.iter().any(|container| container.name == name && container.readiness_probe.is_some())
        };
        let first_port = containers.iter().find_map(|container| {
            let port = container.ports.iter().filter(is_tcp).find_map(number)?;
            Some((container.name.as_str(), SocketAddr::from((record.address, record.port(port)))))
        });
        let (mut phases, mut again, mut probe) = (Vec::new(), None, None);
        {
            let instances = self.instances.lock();
            let Some(instance) = instances.get(uid) else { return (InstancePhase::Stopped, None) };
            for container in containers {
                let container_state = instance.containers.get(&container.name);
                let Some(observed) = container_state.and_then(ContainerState::observed) else {
                    phases.push(InstancePhase::Starting(format!(
                        "container {} is being started",
                        container.name
                    )));
                    again = earliest(again, SHIM_POLL_INTERVAL);
                    continue;
                };
                let (phase, later) = restart::phase(
                    &container.name,
                    observed,
                    !container.ports.is_empty(),
                    &self.settings.restart_backoff,
                );
                let health = container_state.and_then(ContainerState::health);
                let phase = match health {
                    Some(health) if !health.started => InstancePhase::Starting(format!(
                        "container {}: {}",
                        container.name,
                        health.waiting_for.unwrap_or_default()
                    )),
                    _ => phase,
                };
                if let (ObservedContainer::Running(_, up_for), Some(ContainerState::Running(running))) =
                    (observed, container_state)
                    && !probed(&container.name)
                    && first_port.is_some_and(|(name, _)| name == container.name)
                    && !running.accepts_connections
                {
                    probe = Some((up_for, running.state.shim));
                }
                phases.push(phase);
                again = later.into_iter().chain(again).min();
            }
        }
        let worst = phases.into_iter().max_by_key(severity).unwrap_or(InstancePhase::Stopped);
        let InstancePhase::Up(_) = worst else { return (worst, again) };
        let Some((container, endpoint)) = first_port else {
            return (InstancePhase::Up(format!("running at {}", record.address)), again);
        };
        if probed(container) {
            return (InstancePhase::Up(format!("running at {endpoint}")), again);
        }
        if let Some((up_for, shim)) = probe {
            if let Some(message) = not_accepting(endpoint, shim).await {
                // The probe interval grows with the uptime, from 20 ms to 1 s.
                let later = (up_for / 4).clamp(Duration::from_millis(20), Duration::from_secs(1));
                return (InstancePhase::Starting(message), earliest(again, later));
            }
            let mut instances = self.instances.lock();
            let container_state =
                instances.get_mut(uid).and_then(|instance| instance.containers.get_mut(container));
            if let Some(ContainerState::Running(running)) = container_state {
                running.accepts_connections = true;
            }
        }
        (InstancePhase::Up(format!("running; accepts connections at {endpoint}")), again)
    }
}

/// Why the program of a shim does not accept connections at its address; none if it does.
async fn not_accepting(endpoint: SocketAddr, shim: i32) -> Option<String> {
    let connected = timeout(PROBE_TIMEOUT, TcpStream::connect(endpoint)).await;
    if !connected.is_ok_and(|result| result.is_ok()) {
        return Some(format!("waiting until {endpoint} accepts connections"));
    }
    #[cfg(target_os = "linux")]
    if crate::isolation::listener::is_foreign(endpoint, shim) {
        return Some(format!(
            "waiting until {endpoint} is free: a process outside of the instance listens there"
        ));
    }
    #[cfg(not(target_os = "linux"))]
    let _ = shim;
    None
}

/// Order of phases: the instance has the phase of its worst container.
fn severity(phase: &InstancePhase) -> u8 {
    match phase {
        InstancePhase::Up(_) => 0,
        InstancePhase::Starting(_) => 1,
        InstancePhase::Stopped => 2,
        InstancePhase::Stopping => 3,
        InstancePhase::Crashing(_) => 4,
    }
}

pub(super) fn earliest(again: Option<Duration>, time: Duration) -> Option<Duration> {
    Some(again.map_or(time, |again| again.min(time)))
}

/// The address in the status of the first interface, if it is an address of this host.
fn assigned_address(instance: &Instance) -> Option<Ipv4Addr> {
    let assigned = instance.status.as_ref()?.network_interfaces.first()?.assignments.as_ref()?;
    address::usable(assigned.network_ip.as_deref()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_has_the_phase_of_its_worst_container() {
        let phases = [
            InstancePhase::Up(String::new()),
            InstancePhase::Crashing("x".into()),
            InstancePhase::Starting("y".into()),
        ];
        assert_eq!(
            phases.iter().max_by_key(|phase| severity(phase)),
            Some(&InstancePhase::Crashing("x".into()))
        );
    }
}
