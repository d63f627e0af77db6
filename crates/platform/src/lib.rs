//! Local stand-ins for the platform around Polis, so that a laptop or a test is a whole platform.
//!
//! | stand-in | does | in place of |
//! |---|---|---|
//! | [`projects`] | a plane for each `Project`, until the project is deleted and its plane is empty | Milo |
//! | [`locations`] | a Location for each city that has a cell, bound into projects | the service catalogue |
//! | [`quota`] | counts grants and decides on claims | Milo's quota |
//! | [`networks`] | networks, subnets and addresses in a cell | the network services operator |
//!
//! With [`homes`], a project that ends leaves nothing on the hub either.
//!
//! Each is an ordinary controller that is put on an engine by its `declare`, and each can be left out: then the real
//! service takes its place, and nothing else changes. They meet Polis only in the objects of planes.

mod error;
pub mod homes;
pub mod locations;
pub mod networks;
pub mod projects;
pub mod quota;

pub use error::Error;

use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polis_api::labels::{MANAGED_BY, MANAGED_BY_PLATFORM};
use polis_api::milo::Project;
use polis_core::{metadata, owner};
use polis_engine::{Error as EngineError, Key, Plane, PlaneName};

/// Metadata of something that a stand-in makes.
fn made_here(namespace: Option<&str>, name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: namespace.map(str::to_owned),
        labels: Some(metadata::map([(MANAGED_BY, MANAGED_BY_PLATFORM)])),
        ..Default::default()
    }
}

/// Whether a stand-in made it: what people made is left alone.
fn is_made_here(meta: &ObjectMeta) -> bool {
    metadata::label(meta, MANAGED_BY) == Some(MANAGED_BY_PLATFORM)
}

/// The key of a project as a whole, for controllers that see to all of it at once.
fn key_of_project(project: &PlaneName) -> Key {
    Key::cluster(project.clone(), "whole")
}

/// Whether a project is there and stays: nothing is made on a plane that is being emptied.
fn stays(root: &Plane, project: &PlaneName) -> Result<bool, EngineError> {
    let project = root.get::<Project>(project.as_str())?;
    Ok(project.is_some_and(|project| !owner::is_deleting(&project.metadata)))
}
