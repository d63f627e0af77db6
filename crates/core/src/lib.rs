//! Decisions of Polis, as pure functions.
//!
//! Everything that Polis decides is decided here, from plain data and nothing else: no I/O, no async, no client, and
//! no clock but the one handed in as an argument. A controller reads the world, asks this crate, and does what it
//! says. A decision answers with a step to take or with the difference to write; the same input gives the same
//! answer, in the same order, and a world that is as it should be gives nothing to do.
//!
//! Project plane
//! - [`admission`]: which workloads are taken, and what is wrong with the others;
//! - [`cities`]: which cities a project may use;
//! - [`deployments`]: which deployments a workload needs;
//! - [`workload_status`]: what a workload says about itself;
//! - [`projection`]: how an instance shows in its project.
//!
//! Hub
//! - [`identity`]: which project a hub namespace belongs to;
//! - [`hub_copy`]: how a deployment stands on the hub, and which status comes back;
//! - [`policy`]: when a city's propagation policy exists;
//! - [`writeback`]: how an instance stands on the hub.
//!
//! Cell
//! - [`instances`]: which instance is made or removed next;
//! - [`template`]: when an instance is out of date;
//! - [`networks`]: when the networks of a deployment are ready;
//! - [`quota`]: what an instance claims, and what the answer means;
//! - [`gates`]: when an instance may start;
//! - [`ready`]: whether it is ready, and if not, why;
//! - [`suspension`]: whether it exists without running;
//! - [`deployment_status`]: what a deployment says about itself.
//!
//! Everywhere
//! - [`news`]: which changes of a status are written at once;
//! - [`canonical`], [`conditions`], [`metadata`], [`owner`], [`quantity`], [`ranking`].

pub mod admission;
pub mod canonical;
pub mod cities;
pub mod conditions;
pub mod deployment_status;
pub mod deployments;
pub mod gates;
pub mod hub_copy;
pub mod identity;
pub mod instances;
pub mod metadata;
mod mirror;
pub mod networks;
pub mod news;
pub mod owner;
pub mod policy;
pub mod projection;
pub mod quantity;
pub mod quota;
pub mod ranking;
pub mod ready;
pub mod suspension;
pub mod template;
pub mod workload_status;
pub mod writeback;

#[cfg(test)]
mod testing;

/// A moment, as objects carry it. The only clock that decisions know is one of these, handed in.
pub use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

pub use mirror::Changes;
