//! Runs the Instances of a cell.
//!
//! [`declare`] registers a controller on an engine. It watches the Instances of one cell, runs those without
//! scheduling gates through a [`Provider`], and writes the result to their status. [`ProcessProvider`] is the
//! provider of this crate: it runs containers as host processes, each with a small shim, so that containers
//! keep running while Polis restarts.
//!
//! ```text
//!   Instance ─► controller ─► Provider ─► shim (one per container) ─► launcher: limits, sandbox ─► program
//!       ▲ status    ▲            │             │
//!       └───────────┘ ◄──────────┴─ events ◄───┘ state and output in the instance directory
//! ```
//!
//! - [`provider`]: the provider interface;
//! - `check`: checks of an instance over its network, for probes and hooks;
//! - `pods`: the controller that runs Instances as Pods of a Kubernetes cluster instead;
//! - [`process`]: the process provider: images, environment, addresses, restarts, instance directories;
//! - `shim`: the process that supervises a container, and the launcher that applies limits and the sandbox;
//! - `isolation`: namespaces, control groups, system calls and the network of a container;
//! - `oci`: images from registries, and their layers on this host;
//! - [`program`]: the programs of the built-in images;
//! - [`logs`]: reads the output of instances;
//! - `internal_command`: the entry points of shim, launcher and built-in programs in the binary.
//!
//! This crate accesses its own cell and the host; it does not access the hub or projects.

mod check;
mod controller;
mod error;
mod internal_command;
mod isolation;
pub mod logs;
#[cfg(target_os = "linux")]
mod oci;
mod pods;
pub mod process;
pub mod program;
pub mod provider;
mod shim;
mod status;

pub use controller::{RuntimeConfig, declare, instance_finalizers, watches};
pub use error::Error;
pub use internal_command::run_internal_command;
pub use isolation::report::{Isolation, Landlock};
#[cfg(target_os = "linux")]
pub use oci::RegistrySettings;
pub use pods::{PodRuntimeConfig, declare_pods};
pub use process::{AddressMode, LoopbackPool, ProcessProvider, ProcessSettings, RestartBackoff};
pub use provider::Provider;
pub use shim::{LogRetention, ShimState, Termination, TerminationCause};
