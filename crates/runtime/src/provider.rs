//! The contract of whatever turns an instance into something running.
//!
//! A provider is asked again and again to bring what runs closer to what is wanted ([`Provider::run`]), and tells each time
//! how far it is. It never sees a plane: the controller of this room reads the instance, and writes what the provider
//! tells into its status. So `process` (this host), and later others, differ only behind this trait.
//!
//! What a provider may rely on: it is never asked about one instance twice at once; no gate is left on what it is asked to
//! run; it is asked to end what it runs before the instance goes.

use std::future::Future;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use polis_api::compute::Instance;
use polis_api::k8s_openapi::api::core::v1::{ConfigMap, Secret};
use polis_core::identity::Identity;

use crate::Error;

/// Something that runs instances.
pub trait Provider: Send + Sync + 'static {
    /// Everything that stands for instances, whether they still exist or not.
    fn standing(&self) -> Vec<Standing>;

    /// UIDs of what stands under one name. Asked often: it must not look at everybody.
    fn standing_at(&self, namespace: &str, name: &str) -> Vec<String>;

    /// From now on, tell here when something has changed about what stands.
    fn report_to(&self, told: Told);

    /// Brings what runs closer to what is wanted, and tells how far it is.
    fn run(&self, order: &Order<'_>) -> impl Future<Output = Result<Report, Error>> + Send;

    /// Stops what runs and keeps what is needed to go on: the instance is suspended.
    fn rest(&self, uid: &str) -> impl Future<Output = Result<Progress, Error>> + Send;

    /// Stops what runs and removes everything that stands.
    fn end(&self, uid: &str) -> impl Future<Output = Result<Progress, Error>> + Send;
}

/// Something that stands for an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// UID of the instance on the cell.
    pub uid: String,
    /// Its namespace on the cell.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// Whom a provider tells that something has changed: called with namespace and name of the instance.
pub type Told = Arc<dyn Fn(&str, &str) + Send + Sync>;

/// What is to run.
pub struct Order<'a> {
    /// The instance; without gates, and with a UID.
    pub instance: &'a Instance,
    /// Where it comes from; none if its namespace does not say.
    pub origin: Option<&'a Identity>,
    /// The city of the cell.
    pub city: &'a str,
    /// The addresses that the network of its first interface has in this cell, if that keeps networks. Only told while
    /// the instance has no address.
    pub range: Option<Range>,
    /// The config maps and secrets beside it.
    pub data: &'a (dyn Data + Sync),
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Its first address.
    pub start: Ipv4Addr,
    /// How many leading bits all of its addresses share.
    pub prefix: u8,
}

/// Config maps and secrets in the namespace of an instance.
pub trait Data {
    /// A config map by its name.
    fn config_map(&self, name: &str) -> Result<Option<ConfigMap>, Error>;
    /// A secret by its name.
    fn secret(&self, name: &str) -> Result<Option<Secret>, Error>;
}

/// How far an instance is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Whether the spec was taken over, or why it cannot be.
    pub programmed: Result<(), Refusal>,
    /// What runs.
    pub phase: Phase,
    /// The address that was given to the first interface.
    pub address: Option<String>,
    /// Ask again after this time even if nothing is told.
    pub again: Option<Duration>,
}

impl Report {
    /// It cannot be run.
    pub fn refused(refusal: Refusal) -> Self {
        Report { programmed: Err(refusal), phase: Phase::Stopped, address: None, again: None }
    }
}

/// Why an instance cannot be run as it is. Waiting does not help; somebody has to change something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// One word, of `polis_api::reasons`.
    pub reason: &'static str,
    /// What is wrong and what to do.
    pub message: String,
}

/// What runs of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It is on its way up; what is waited for.
    Starting(String),
    /// It runs and can be used; where.
    Up(String),
    /// It ends again and again; how often and how.
    Crashing(String),
    /// It is being stopped.
    Stopping,
    /// Nothing runs.
    Stopped,
}

/// How far an end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing is left that runs.
    Done,
    /// Something still runs. Ask again when something is told, or after this time.
    Underway(Duration),
}
