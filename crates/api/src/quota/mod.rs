//! Kinds of Milo's quota system, `quota.miloapis.com/v1alpha1`, as far as Polis touches them.
//!
//! Milo owns these kinds. Fields that Polis does not know are kept in `extra` at every level. Grants, buckets and
//! claims of a project live on the plane of the project; registrations on the platform's own.

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
