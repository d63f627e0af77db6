//! Kinds of the network services operator, `networking.datumapis.com/v1alpha`, with the fields that Polis
//! uses.
//!
//! The operator owns these kinds. Fields that Polis does not know are kept in `extra` at every level.
//!
//! Locations exist in two forms: namespaced in the operator's first version, cluster-scoped since. Polis uses
//! the cluster-scoped form, because platforms have it now and LocationBindings refer to it by name alone.
//! [`LocationReference`] has an optional namespace, so that bindings and claims of the first form are read
//! and written back unchanged.

mod location;
mod network;
mod subnet;

pub use location::*;
pub use network::*;
pub use subnet::*;

/// API group of the kinds in this module.
pub const GROUP: &str = "networking.datumapis.com";
/// Version of the kinds in this module.
pub const VERSION: &str = "v1alpha";
/// `apiVersion` of every object in this module.
pub const API_VERSION: &str = "networking.datumapis.com/v1alpha";
