//! Kinds of the network services operator, `networking.datumapis.com/v1alpha`, as far as Polis touches them.
//!
//! The operator owns these kinds. Fields that Polis does not know are kept in `extra` at every level.
//!
//! Locations exist in two forms: namespaced in the operator's first version, cluster-scoped since. Polis takes the
//! cluster-scoped form, because that is what platforms now have and what LocationBindings point to by bare name.
//! [`LocationReference`] keeps an optional namespace, so that bindings and claims of the first form are read and
//! written back unharmed.

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
