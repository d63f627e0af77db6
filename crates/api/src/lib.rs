//! Kinds, names and exact strings of Polis and of the platforms it touches.
//!
//! This room holds words, not deeds: every kind that Polis reads or writes, the strings that others rely on
//! (labels, annotations, finalizers, condition types, reasons), the rules by which names are made, and the
//! CRDs generated from the kinds. No I/O and no clock. Every other crate may enter; this one enters none.
//!
//! - [`compute`]: our own kinds, `compute.datumapis.com/v1alpha`;
//! - [`networking`], [`quota`], [`milo`], [`karmada`]: the kinds of others, as far as Polis touches them;
//! - [`labels`], [`annotations`], [`finalizers`], [`conditions`], [`reasons`]: exact strings, one module each;
//! - [`names`]: how things are called;
//! - [`crds`]: the CRD files of our kinds and of the test planes.
//!
//! `kube` and `k8s-openapi` break their APIs a few times a year, so the workspace takes both from here.

// Several columns of a kind have the same type, which reads as a repeated attribute.
#![allow(clippy::duplicated_attributes)]

pub use k8s_openapi;
pub use kube;

pub mod annotations;
pub mod compute;
pub mod conditions;
pub mod crds;
pub mod finalizers;
pub mod karmada;
pub mod labels;
pub mod milo;
pub mod names;
pub mod networking;
pub mod quota;
pub mod reasons;
mod schema;

/// Fields of a foreign object that Polis does not know, kept so that a read–modify–write loses nothing.
pub type Extra = std::collections::BTreeMap<String, serde_json::Value>;
