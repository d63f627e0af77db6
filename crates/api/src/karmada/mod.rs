//! Kinds of Karmada, with the fields that Polis uses.
//!
//! Karmada owns these kinds. Fields that Polis does not know are kept in `extra` at every level, so that a
//! read–modify–write through these types loses nothing. Enumerations that Karmada may extend are strings
//! here.

mod binding;
mod cluster;
mod interpreter;
pub mod names;
mod policy;
mod work;

pub use binding::*;
pub use cluster::*;
pub use interpreter::*;
pub use policy::*;
pub use work::*;

/// Group of [`Cluster`]. In Karmada an aggregated API, not a CRD.
pub const CLUSTER_GROUP: &str = "cluster.karmada.io";
/// Group of the policies.
pub const POLICY_GROUP: &str = "policy.karmada.io";
/// Group of bindings and works.
pub const WORK_GROUP: &str = "work.karmada.io";
/// Group of the interpreters.
pub const CONFIG_GROUP: &str = "config.karmada.io";
