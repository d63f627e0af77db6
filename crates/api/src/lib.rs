//! Kubernetes API types of Polis and of the platforms it uses: kinds, object names, labels and other fixed
//! strings.
//!
//! This crate defines every kind that Polis reads or writes, the strings that other programs rely on (labels,
//! annotations, finalizers, condition types, reasons), the functions that compute object names, and the CRDs
//! generated from the kinds. It has no I/O and no clock. Every other crate may depend on it; it depends on no
//! crate of the workspace.
//!
//! ```text
//!   compute ─ networking ─ quota ─ milo ─ karmada      kinds
//!      │  labels, annotations, finalizers, groups, conditions, reasons, names
//!      └─► crds ─► deploy/base/crds, testbed/crds, embedded planes
//! ```
//!
//! - [`compute`]: the kinds of Polis, `compute.datumapis.com/v1alpha`;
//! - [`networking`], [`quota`], [`milo`], [`karmada`]: kinds of other projects, with the fields that Polis
//!   uses;
//! - [`labels`], [`annotations`], [`finalizers`], [`groups`], [`conditions`], [`reasons`], [`events`]: fixed
//!   strings, one module each;
//! - [`names`]: object names;
//! - [`ObjectExt`]: short access to the metadata of an object;
//! - [`crds`]: the CRD files of the Polis kinds and of the test planes.
//!
//! The workspace uses `kube` and `k8s-openapi` through the re-exports of this crate, because both break their
//! APIs a few times a year.

// Several printer columns of a kind have the same type; clippy reports that as a duplicated attribute.
#![allow(clippy::duplicated_attributes)]

pub use k8s_openapi;
pub use kube;

pub mod annotations;
pub mod compute;
pub mod conditions;
pub mod crds;
pub mod events;
pub mod finalizers;
pub mod groups;
pub mod karmada;
pub mod labels;
pub mod milo;
pub mod names;
pub mod networking;
mod object_ext;
pub mod quota;
pub mod reasons;
mod schema;

pub use object_ext::ObjectExt;

/// Fields of a foreign object that Polis does not know, kept so that a read–modify–write loses nothing.
pub type Extra = std::collections::BTreeMap<String, serde_json::Value>;
