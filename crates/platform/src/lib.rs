//! Local implementations of the platform services around Polis, so that a laptop or a test runs a complete
//! platform.
//!
//! | module | does | in place of |
//! |---|---|---|
//! | [`projects`] | creates a plane for each `Project`; empties and deletes it with the project | Milo |
//! | [`locations`] | creates a Location for each city that has a cell, and binds it into projects | the service catalogue |
//! | [`quota`] | sums up grants and decides on claims | Milo's quota |
//! | [`networks`] | provides networks, subnets and addresses in a cell | the network services operator |
//!
//! [`hub_namespaces`] deletes the hub namespaces of a deleted project.
//!
//! ```text
//!   Project ─► projects ─► plane with namespace `default`      cell ready ─► locations ─► LocationBinding
//!   ResourceClaim ─► quota ─► Granted or denied                NetworkBinding ─► networks ─► addresses
//! ```
//!
//! Each module is an ordinary controller that its `declare` function registers with an engine. Each can be
//! left out and replaced by the real service without other changes. They communicate with Polis only through
//! objects on planes.

mod error;
pub mod hub_namespaces;
pub mod locations;
pub mod networks;
pub mod projects;
pub mod quota;

pub use error::Error;

use polis_api::ObjectExt;
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polis_api::kube::Resource;
use polis_api::labels::{MANAGED_BY, MANAGED_BY_PLATFORM};
use polis_api::milo::Project;
use polis_core::metadata;
use polis_engine::{Error as EngineError, Key, Plane, PlaneName};

/// Metadata of an object that this crate manages.
fn managed_metadata(namespace: Option<&str>, name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: namespace.map(str::to_owned),
        labels: Some(metadata::map([(MANAGED_BY, MANAGED_BY_PLATFORM)])),
        ..Default::default()
    }
}

/// Whether this crate manages the object. Objects that users created are left unchanged.
fn is_managed(object: &impl Resource) -> bool {
    object.label(MANAGED_BY) == Some(MANAGED_BY_PLATFORM)
}

/// The key of a project as a whole, for controllers that reconcile all its objects at once.
fn key_of_project(project: &PlaneName) -> Key {
    Key::cluster(project.clone(), "whole")
}

/// Whether a project exists and is not being deleted. Nothing is created on a plane that is being emptied.
fn is_active(root: &Plane, project: &PlaneName) -> Result<bool, EngineError> {
    let project = root.get::<Project>(project.as_str())?;
    Ok(project.is_some_and(|project| !project.is_deleting()))
}
