//! Kinds of Milo's quota system, `quota.miloapis.com/v1alpha1`, with the fields that Polis uses.
//!
//! Milo owns these kinds. Fields that Polis does not know are kept in `extra` at every level. Grants, buckets
//! and claims of a project are on the project's plane; registrations are on the platform's plane.

mod claim;
mod grant;
mod registration;

pub use claim::*;
pub use grant::*;
pub use registration::*;

/// API group of the kinds in this module.
pub const GROUP: &str = "quota.miloapis.com";
/// Version of the kinds in this module.
pub const VERSION: &str = "v1alpha1";
/// `apiVersion` of every object in this module.
pub const API_VERSION: &str = "quota.miloapis.com/v1alpha1";
