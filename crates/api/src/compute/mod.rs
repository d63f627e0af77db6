//! The kinds of Polis: group `compute.datumapis.com`, version `v1alpha`.
//!
//! A user writes a [`Workload`], which names cities; one [`WorkloadDeployment`] exists per placement and
//! city; an [`Instance`] is one running copy in a cell. All three are namespaced and have a status
//! subresource.
//!
//! The schema requires the integers of a status, and zero is a valid value: they are plain `i32` here and are
//! always serialized. Write a whole status; the API server rejects a merge patch that omits zeros.

mod deployment;
mod instance;
mod network;
mod probe;
mod runtime;
mod scale;
mod template;
mod volume;
mod workload;

pub use deployment::*;
pub use instance::*;
pub use network::*;
pub use probe::*;
pub use runtime::*;
pub use scale::*;
pub use template::*;
pub use volume::*;
pub use workload::*;

/// API group of the kinds in this module.
pub const GROUP: &str = "compute.datumapis.com";
/// The only version, served and stored.
pub const VERSION: &str = "v1alpha";
/// `apiVersion` of every object in this module.
pub const API_VERSION: &str = "compute.datumapis.com/v1alpha";
