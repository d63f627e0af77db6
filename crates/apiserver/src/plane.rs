//! A plane: a name, a catalogue, and whether it is still wanted. Its objects are in the store under its name.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

use serde_json::{Value, json};

use crate::kinds::Catalogue;

/// How to make a plane.
#[derive(Clone, Debug, Default)]
pub struct PlaneSpec {
    /// Its name: what follows `/planes/` in paths. Projects are named by [`PlaneSpec::project`].
    pub name: String,
    /// The shared catalogue whose kinds it serves; `None` gives it one of its own, as a hub or a cell has.
    pub catalogue: Option<String>,
    /// Namespaces made with it besides `default`.
    pub namespaces: Vec<String>,
}

impl PlaneSpec {
    /// A plane with kinds of its own.
    pub fn own(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// The plane of a project, with the kinds of a shared catalogue.
    pub fn project(project: &str, catalogue: impl Into<String>) -> Self {
        Self {
            name: crate::route::project_plane(project),
            catalogue: Some(catalogue.into()),
            ..Self::default()
        }
    }

    /// As it is kept in the store.
    pub(crate) fn record(&self) -> Value {
        json!({"apiVersion": "polis/v1", "kind": "Plane", "metadata": {"name": self.name}, "catalogue": self.catalogue})
    }

    pub(crate) fn from_record(record: &Value) -> Self {
        Self {
            name: crate::json::meta(record, "name").to_owned(),
            catalogue: record["catalogue"].as_str().map(str::to_owned),
            namespaces: Vec::new(),
        }
    }
}

const SERVING: u8 = 0;
const LEAVING: u8 = 1;
const GONE: u8 = 2;

/// One control plane of many.
pub(crate) struct Plane {
    pub(crate) name: Arc<str>,
    pub(crate) catalogue: Arc<Catalogue>,
    state: AtomicU8,
}

impl Plane {
    pub(crate) fn new(name: Arc<str>, catalogue: Arc<Catalogue>) -> Self {
        Self { name, catalogue, state: AtomicU8::new(SERVING) }
    }

    /// Being deleted: serves, but takes nothing new.
    pub(crate) fn is_leaving(&self) -> bool {
        self.state.load(Ordering::Acquire) >= LEAVING
    }

    /// Deleted.
    pub(crate) fn is_gone(&self) -> bool {
        self.state.load(Ordering::Acquire) == GONE
    }

    pub(crate) fn leave(&self) {
        self.state.store(LEAVING, Ordering::Release);
    }

    pub(crate) fn go(&self) {
        self.state.store(GONE, Ordering::Release);
    }
}
