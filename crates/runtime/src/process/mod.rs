//! The process provider: runs each container of an Instance as a host process, supervised by a shim.
//!
//! - [`image`]: resolves an image to a program;
//! - `environment`: environment variables of a container;
//! - [`address`]: the IP address of an instance;
//! - [`restart`]: restart back-off and the phase of a container;
//! - `sandbox`: the files that a program may access;
//! - `images`, `image_spec`: images from registries, and the launch spec of their containers;
//! - `launch_spec`: combines the above into the launch spec of a container;
//! - `instance_dir`: the directory of an instance;
//! - `health`: the probes of a container;
//! - `container`, `shim_process`: the state of a container on this host, and its shim process;
//! - `host`: all instances on this host;
//! - `settings`: configuration.

pub mod address;
mod container;
mod environment;
mod health;
mod host;
pub mod image;
#[cfg(target_os = "linux")]
mod image_spec;
#[cfg(target_os = "linux")]
mod images;
pub(crate) mod instance_dir;
mod launch_spec;
pub mod restart;
mod sandbox;
mod settings;
mod shim_process;

use polis_api::ObjectExt;
use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use polis_api::compute::SandboxContainer;
use polis_api::reasons;
use polis_core::template;

pub use address::{AddressMode, LoopbackPool};
pub use restart::RestartBackoff;
pub use settings::ProcessSettings;

use crate::Error;
use crate::logs::LogReader;
use crate::provider::{
    ChangeCallback, InstancePhase, ManagedInstance, Provider, RunRefusal, RunReport, RunRequest, StopProgress,
};
use crate::shim::{LaunchRequest, ShimState};
use container::SHIM_POLL_INTERVAL;
use environment::EnvironmentError;
use host::{Host, earliest};
#[cfg(target_os = "linux")]
use images::{ImageState, Images};
use instance_dir::InstanceRecord;
use launch_spec::{ContainerStart, launch_spec};
use restart::RestartAction;

/// Runs instances as processes of this host. Cheap to clone.
#[derive(Clone)]
pub struct ProcessProvider(Arc<Host>);

impl ProcessProvider {
    /// Opens the state directory and loads the instances that an earlier runtime left in it.
    pub fn open(settings: ProcessSettings) -> Result<Self, Error> {
        let dir = &settings.dir;
        fs::create_dir_all(dir).map_err(Error::directory(dir))?;
        instance_dir::remove_incomplete(dir)?;
        let records = InstanceRecord::all(dir).map_err(Error::directory(dir))?;
        Ok(ProcessProvider(Arc::new(Host::new(settings, records))))
    }

    /// A reader of the instances' logs.
    pub fn logs(&self) -> LogReader {
        LogReader::new(&self.0.settings.dir)
    }

    /// The current or last run of each container of an instance.
    pub fn states(&self, uid: &str) -> Result<BTreeMap<String, ShimState>, Error> {
        let Some(instance_dir) = instance_dir::path(&self.0.settings.dir, uid) else {
            return Ok(BTreeMap::new());
        };
        let mut states = BTreeMap::new();
        for container in instance_dir::containers(&instance_dir)? {
            let container_dir = instance_dir.join(&container);
            if let Some(state) = ShimState::read(&container_dir).map_err(Error::directory(container_dir))? {
                states.insert(container, state);
            }
        }
        Ok(states)
    }

    /// Stops all containers and waits until they have exited. Records and Instance objects stay: the next
    /// provider that opens this directory starts the containers again.
    pub async fn stop_all(&self) -> Result<(), Error> {
        let uids: Vec<String> = self.0.instances.lock().keys().cloned().collect();
        let mut waiting = uids;
        while !waiting.is_empty() {
            let mut left = Vec::new();
            for uid in waiting {
                if self.stop(&uid).await? != StopProgress::Done {
                    left.push(uid);
                }
            }
            waiting = left;
            if !waiting.is_empty() {
                tokio::time::sleep(SHIM_POLL_INTERVAL).await;
            }
        }
        Ok(())
    }
}

impl Provider for ProcessProvider {
    fn instances(&self) -> Vec<ManagedInstance> {
        let instances = self.0.instances.lock();
        let managed = |record: &InstanceRecord| ManagedInstance {
            uid: record.uid.clone(),
            namespace: record.namespace.clone(),
            name: record.name.clone(),
        };
        instances.values().map(|instance| managed(&instance.record)).collect()
    }

    fn instance_uids(&self, namespace: &str, name: &str) -> Vec<String> {
        self.0.uids(namespace, name)
    }

    fn set_change_callback(&self, callback: ChangeCallback) {
        *self.0.on_change.lock() = Some(callback);
    }

    async fn run(&self, request: &RunRequest<'_>) -> Result<RunReport, Error> {
        let instance = request.instance;
        let containers = match image::containers(&instance.spec) {
            Ok(containers) => containers,
            Err(refusal) => return Ok(RunReport::refused(refusal)),
        };
        let uid = instance.uid();
        let record = self.0.ensure_record(request, containers).await?;
        let (mut again, mut replacing, mut unhealthy) = (None, false, None);

        // Decide and prepare all containers before starting any: a container that cannot run blocks the
        // others.
        let mut starts = Vec::new();
        for container in containers {
            if let Some(failure) = self.0.probe_failure(uid, &container.name)? {
                if let StopProgress::Pending(time) = self.0.stop_unhealthy(uid, &container.name, &failure)? {
                    again = earliest(again, time);
                }
                unhealthy = Some(format!("container {} is restarted: {}", container.name, failure.message));
                continue;
            }
            match self.0.plan(uid, &container.name, template::instance_hash(instance).unwrap_or_default())? {
                None => again = earliest(again, SHIM_POLL_INTERVAL),
                Some(RestartAction::None) => {}
                Some(RestartAction::Wait(time)) => again = earliest(again, time),
                Some(RestartAction::Stop) => {
                    replacing = true;
                    if let StopProgress::Pending(time) = self.0.stop(uid, &container.name) {
                        again = earliest(again, time);
                    }
                }
                Some(RestartAction::Start { restarts, consecutive_failures, last_termination }) => {
                    let failed_by = last_termination.as_ref().map(|termination| &termination.cause);
                    let start = ContainerStart { container, restarts, failed_by };
                    #[cfg(target_os = "linux")]
                    let image = match Images::of(&self.0, request, container)? {
                        None => None,
                        Some(ImageState::Ready(image)) => Some(image),
                        Some(ImageState::Pulling) => return Ok(pulling(container, &record)),
                        Some(ImageState::Failed(error, retry)) => {
                            let message = error.to_string();
                            let refusal = RunRefusal { reason: reasons::IMAGE_UNAVAILABLE, message };
                            let requeue_after = Some(retry);
                            return Ok(RunReport { requeue_after, ..RunReport::refused(refusal) });
                        }
                    };
                    #[cfg(not(target_os = "linux"))]
                    let image = None;
                    match launch_spec(&self.0, request, &record, &start, image.as_ref()) {
                        Ok((launch, stop_signal)) => starts.push((
                            container,
                            LaunchRequest {
                                restarts,
                                consecutive_failures,
                                last_termination,
                                template: template::instance_hash(instance).unwrap_or_default().to_owned(),
                                grace_period: self.0.grace_period(&instance.spec),
                                pre_stop: health::pre_stop(container, &record),
                                log_retention: self.0.settings.log_retention,
                                cgroup: self.0.cgroup(uid, &instance.spec),
                                stop_signal,
                                launch,
                            },
                        )),
                        Err(EnvironmentError::Refused(refusal)) => return Ok(RunReport::refused(refusal)),
                        Err(EnvironmentError::Failed(error)) => return Err(error),
                    }
                }
            }
        }
        for (container, launch_request) in starts {
            self.0.start(uid, &container.name, launch_request).await?;
        }
        self.0.monitor(instance, containers, &record);
        let (phase, later) = self.0.phase(uid, containers, &record).await;
        let phase = match unhealthy {
            _ if replacing => InstancePhase::Stopping,
            Some(unhealthy) => InstancePhase::Crashing(unhealthy),
            None => phase,
        };
        let requeue_after = later.into_iter().chain(again).min();
        Ok(RunReport {
            programmed: Ok(()),
            warning: self.0.isolation_gap(),
            readiness: self.0.readiness(uid, containers),
            phase,
            address: Some(record.address.to_string()),
            requeue_after,
        })
    }

    async fn stop(&self, uid: &str) -> Result<StopProgress, Error> {
        let Some(instance_dir) = instance_dir::path(&self.0.settings.dir, uid) else {
            return Ok(StopProgress::Done);
        };
        let mut again = None;
        for container in instance_dir::containers(&instance_dir)? {
            self.0.inspect(uid, &container)?;
            if let StopProgress::Pending(time) = self.0.stop(uid, &container) {
                again = earliest(again, time);
            }
        }
        Ok(again.map_or(StopProgress::Done, StopProgress::Pending))
    }

    async fn remove(&self, uid: &str) -> Result<StopProgress, Error> {
        let progress = self.stop(uid).await?;
        let Some(instance_dir) = instance_dir::path(&self.0.settings.dir, uid) else {
            return Ok(StopProgress::Done);
        };
        if progress != StopProgress::Done {
            return Ok(progress);
        }
        if !instance_dir::remove(&instance_dir)? {
            return Ok(StopProgress::Pending(SHIM_POLL_INTERVAL));
        }
        self.0.isolation().cgroups.remove(uid);
        #[cfg(target_os = "linux")]
        self.0.images.store.release(uid);
        self.0.forget(uid);
        Ok(StopProgress::Done)
    }
}

/// The report for an instance whose image is pulled. The end of the pull triggers the next reconcile.
fn pulling(container: &SandboxContainer, record: &InstanceRecord) -> RunReport {
    let SandboxContainer { name, image, .. } = container;
    RunReport {
        programmed: Ok(()),
        warning: None,
        readiness: None,
        phase: InstancePhase::Starting(format!("image {image} of container {name} is being pulled")),
        address: Some(record.address.to_string()),
        requeue_after: None,
    }
}
