//! A plane: one virtual Kubernetes API server. It has a name, a catalogue of kinds and a lifecycle state; its
//! objects are in the store under its name.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

use serde_json::{Value, json};

use crate::{access::RoleIndex, kinds::Catalogue};

/// Whether a plane is that of a project.
pub(crate) fn is_project(name: &str) -> bool {
    name.starts_with("project:")
}

/// The definition of a plane.
#[derive(Clone, Debug, Default)]
pub struct PlaneSpec {
    /// The name, which follows `/planes/` in URL paths. [`PlaneSpec::project`] names the planes of projects.
    pub name: String,
    /// The shared catalogue whose kinds the plane serves. `None` gives the plane its own catalogue (hub,
    /// cell).
    pub catalogue: Option<String>,
    /// Namespaces to create besides `default`.
    pub namespaces: Vec<String>,
}

impl PlaneSpec {
    /// A plane with its own catalogue.
    pub fn standalone(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// The plane of a project, which serves the kinds of a shared catalogue.
    pub fn project(project: &str, catalogue: impl Into<String>) -> Self {
        Self {
            name: crate::route::project_plane(project),
            catalogue: Some(catalogue.into()),
            ..Self::default()
        }
    }

    /// The record of the plane in the store.
    pub(crate) fn record(&self) -> Value {
        json!({"apiVersion": "polis/v1", "kind": "Plane", "metadata": {"name": self.name}, "catalogue": self.catalogue})
    }

    pub(crate) fn from_record(record: &Value) -> Self {
        Self {
            name: polis_apimachinery::object::meta(record, "name").to_owned(),
            catalogue: record["catalogue"].as_str().map(str::to_owned),
            namespaces: Vec::new(),
        }
    }
}

const SERVING: u8 = 0;
const DELETING: u8 = 1;
const DELETED: u8 = 2;

/// A plane that the server serves.
pub(crate) struct Plane {
    pub(crate) name: Arc<str>,
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) roles: RoleIndex,
    state: AtomicU8,
}

impl Plane {
    pub(crate) fn new(name: Arc<str>, catalogue: Arc<Catalogue>) -> Self {
        Self { roles: RoleIndex::new(&name), name, catalogue, state: AtomicU8::new(SERVING) }
    }

    /// Whether the plane is being deleted: it serves requests but accepts no new objects.
    pub(crate) fn is_deleting(&self) -> bool {
        self.state.load(Ordering::Acquire) >= DELETING
    }

    /// Whether the plane has been deleted.
    pub(crate) fn is_deleted(&self) -> bool {
        self.state.load(Ordering::Acquire) == DELETED
    }

    pub(crate) fn mark_deleting(&self) {
        self.state.store(DELETING, Ordering::Release);
    }

    pub(crate) fn mark_deleted(&self) {
        self.state.store(DELETED, Ordering::Release);
    }
}
