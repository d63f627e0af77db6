//! The provider interface: how the runtime controller starts and stops instances.
//!
//! The controller calls [`Provider::run`] on every reconcile of an instance; the provider brings the running
//! containers closer to the spec and reports the phase. A provider never accesses a plane: the controller
//! reads the Instance and writes the report to its status.
//!
//! Guarantees to a provider: calls for one instance never overlap; an instance that it should run has no
//! scheduling gates; `remove` is called before the Instance object is deleted.

use std::future::Future;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use polis_api::compute::Instance;
use polis_api::k8s_openapi::api::core::v1::{ConfigMap, Secret};
use polis_core::tenant::Tenant;

use crate::Error;

/// Runs instances.
pub trait Provider: Send + Sync + 'static {
    /// All instances that the provider holds state for, including those whose Instance object is deleted.
    fn instances(&self) -> Vec<ManagedInstance>;

    /// UIDs of the held instances with this namespace and name. Called on every reconcile: it must not scan
    /// all instances.
    fn instance_uids(&self, namespace: &str, name: &str) -> Vec<String>;

    /// Sets the callback for state changes of the held instances.
    fn set_change_callback(&self, callback: ChangeCallback);

    /// Starts, replaces or restarts containers as the instance requires, and reports the phase.
    fn run(&self, request: &RunRequest<'_>) -> impl Future<Output = Result<RunReport, Error>> + Send;

    /// Stops the containers of a suspended instance and keeps its state.
    fn stop(&self, uid: &str) -> impl Future<Output = Result<StopProgress, Error>> + Send;

    /// Stops the containers and deletes all state of the instance.
    fn remove(&self, uid: &str) -> impl Future<Output = Result<StopProgress, Error>> + Send;
}

/// An instance that a provider holds state for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagedInstance {
    /// UID of the instance on the cell.
    pub uid: String,
    /// Its namespace on the cell.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// Called with namespace and name of an instance when its containers change.
pub type ChangeCallback = Arc<dyn Fn(&str, &str) + Send + Sync>;

/// An instance to run.
pub struct RunRequest<'a> {
    /// The Instance object: it has a UID and no scheduling gates.
    pub instance: &'a Instance,
    /// Project and namespace of origin; `None` if the cell's namespace has no labels for them.
    pub origin: Option<&'a Tenant>,
    /// The city of the cell.
    pub city: &'a str,
    /// The subnet of the first interface's network in this cell, if the cell has networks. Set only while the
    /// instance has no address.
    pub range: Option<AddressRange>,
    /// The config maps and secrets that the instance names.
    pub data: &'a (dyn ConfigData + Sync),
}

/// A range of IPv4 addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    /// Its first address.
    pub start: Ipv4Addr,
    /// The prefix length.
    pub prefix: u8,
}

/// Config maps and secrets of a workload's namespace, from their copies in the cell.
pub trait ConfigData {
    /// A config map by its name in the project.
    fn config_map(&self, name: &str) -> Result<Option<ConfigMap>, Error>;
    /// A secret by its name in the project.
    fn secret(&self, name: &str) -> Result<Option<Secret>, Error>;
}

/// The result of [`Provider::run`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunReport {
    /// Whether the provider accepts the spec.
    pub programmed: Result<(), RunRefusal>,
    /// A shortcoming of the host that the owner of the instance should know, for the message of `Programmed`.
    pub warning: Option<String>,
    /// The phase of the instance.
    pub phase: InstancePhase,
    /// Whether the containers with readiness probes are ready; `None` if there are none.
    pub readiness: Option<ProbeReadiness>,
    /// The address of the first interface.
    pub address: Option<String>,
    /// Reconcile again after this time even without a change.
    pub requeue_after: Option<Duration>,
}

impl RunReport {
    /// The report for an instance that cannot run.
    pub fn refused(refusal: RunRefusal) -> Self {
        RunReport {
            programmed: Err(refusal),
            warning: None,
            phase: InstancePhase::Stopped,
            readiness: None,
            address: None,
            requeue_after: None,
        }
    }
}

/// Why an instance cannot run with its current spec. A retry does not help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunRefusal {
    /// A reason of `polis_api::reasons`.
    pub reason: &'static str,
    /// What is wrong and what to do about it.
    pub message: String,
}

/// The phase of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstancePhase {
    /// Starting; what it waits for.
    Starting(String),
    /// Running and reachable; where.
    Up(String),
    /// Restarting repeatedly; how often, and the last exit.
    Crashing(String),
    /// Stopping.
    Stopping,
    /// No container runs.
    Stopped,
}

/// What the readiness probes of an instance say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeReadiness {
    /// All have succeeded.
    Ready,
    /// One has not; which one, and why.
    NotReady(String),
}

/// The result of [`Provider::stop`] and [`Provider::remove`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopProgress {
    /// All containers have exited.
    Done,
    /// A container still runs. Check again on the next change, or after this time.
    Pending(Duration),
}
