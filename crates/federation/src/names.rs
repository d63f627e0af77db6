//! Names of bindings, Works and execution namespaces, equal to Karmada's.

pub use polis_api::karmada::names::*;
