//! The decisions of the Polis controllers, as pure functions over Kubernetes objects.
//!
//! The crate does no I/O, has no async code and no client, and reads no clock: the current time is an
//! argument. A controller reads the existing objects, calls a function of this crate, and carries out the
//! result: an action, or the object to write. The same input gives the same result in the same order. When
//! the existing objects match the desired state, there is nothing to do. Controllers, admission, the runtime
//! and the CLI depend on this crate; it depends on `polis-api` only.
//!
//! ```text
//!   controller: read objects ─► core: decide ─► controller: write objects
//!                (cache)        (pure, a table of tests)   (engine)
//! ```
//!
//! Project plane
//! - [`admission`]: validation and defaults of workloads;
//! - [`cities`]: the cities that a project may use;
//! - [`deployments`]: the deployments that a workload needs;
//! - [`workload_status`]: the status of a workload;
//! - [`projection`]: the copy of an instance in its project;
//! - [`instance_events`]: which of its changes are events there.
//!
//! Hub
//! - [`tenant`]: the project that a hub namespace belongs to;
//! - [`hub_copy`]: the copy of a deployment on the hub, and the status that the project gets from it;
//! - [`referenced_data`]: the config maps and secrets of a deployment, from the project to the cell;
//! - [`policy`]: the propagation policy of a city;
//! - [`cell_access`]: the rights of a city's cells in a hub namespace;
//! - [`heartbeat`]: the Lease by which a cell shows the hub that its controllers run;
//! - [`contact`]: whether a cell has been heard of, and what its silence does to a status;
//! - [`source_revision`]: which of two specs of a deployment is the newer one;
//! - [`teardown`]: how a deleted deployment leaves the hub and its cells;
//! - [`writeback`]: the copy of an instance on the hub.
//!
//! Cell
//! - [`instances`]: which instance is created or deleted next;
//! - [`template`]: the hash of a template, and when an instance is outdated;
//! - [`networks`]: the network objects of a deployment, and when they are ready;
//! - [`quota`]: the ResourceClaim of an instance, and the condition that follows from it;
//! - [`gates`]: when the scheduling gates of an instance are removed;
//! - [`health`]: the probes of a container;
//! - [`ready`]: the `Ready` condition of an instance;
//! - [`pods`]: the Pod that runs an instance in a Kubernetes cluster;
//! - [`suspension`]: whether an instance is suspended;
//! - [`deployment_status`]: the status of a deployment.
//!
//! Shared
//! - [`rollout`]: whether a spec is reached, on its way, or stuck;
//! - [`deadlines`]: how long a state may last before it is called stuck;
//! - [`mirror`]: the copy of an instance on another plane, for [`projection`] and [`writeback`];
//! - [`significant_change`]: which status changes are written without delay;
//! - [`canonical`], [`conditions`], [`metadata`], [`owner`], [`quantity`], [`ranking`].

pub mod admission;
pub mod canonical;
pub mod cell_access;
pub mod cities;
pub mod conditions;
pub mod contact;
pub mod deadlines;
pub mod deployment_status;
pub mod deployments;
pub mod gates;
pub mod health;
pub mod heartbeat;
pub mod hub_copy;
pub mod instance_events;
pub mod instances;
pub mod metadata;
pub mod mirror;
pub mod networks;
pub mod owner;
pub mod pods;
pub mod policy;
pub mod projection;
pub mod quantity;
pub mod quota;
pub mod ranking;
pub mod ready;
pub mod referenced_data;
pub mod rollout;
pub mod significant_change;
pub mod source_revision;
pub mod suspension;
pub mod teardown;
pub mod template;
pub mod tenant;
pub mod workload_status;
pub mod writeback;

#[cfg(test)]
mod testing;

/// The timestamp type of Kubernetes objects; the current time is passed to decisions as one of these.
pub use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
