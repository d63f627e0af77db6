//! Our own kinds: group `compute.datumapis.com`, version `v1alpha`.
//!
//! A [`Workload`] is written by a user and names cities; one [`WorkloadDeployment`] exists per placement and
//! city; an [`Instance`] is one running thing in a cell. All three are namespaced and have a status subresource.
//!
//! Integers of a status are required by the schema, and zero is a legal value: they are plain `i32` here and are
//! always written. Write a status whole; a merge patch made from a diff may leave zeros out and is refused.

mod deployment;
mod instance;
mod network;
mod runtime;
mod scale;
mod template;
mod volume;
mod workload;

pub use deployment::*;
pub use instance::*;
pub use network::*;
pub use runtime::*;
pub use scale::*;
pub use template::*;
pub use volume::*;
pub use workload::*;

/// API group of the kinds in this module.
pub const GROUP: &str = "compute.datumapis.com";
/// The one version, served and stored.
pub const VERSION: &str = "v1alpha";
/// `apiVersion` of every object in this module.
pub const API_VERSION: &str = "compute.datumapis.com/v1alpha";
