//! The controllers, one file per kind of key. Each reconcile reads, decides, and writes each object at most
//! once.

mod binding;
mod cluster;
mod dependencies;
mod execution;
mod interpreters;
mod namespace;
mod policy;
mod scheduler;
mod status;
mod template;

use serde::Deserialize;
use serde_json::Value;

pub(crate) use dependencies::is_attached;
pub(crate) use execution::DriftConflict;
pub(crate) use status::CachedStatus;

use crate::error::Error;
use crate::object::ObjectKey;
use crate::queue::Requeue;
use crate::state::{FederationState, Key};

impl FederationState {
    /// Reconciles one key.
    pub(crate) async fn reconcile(&self, key: &Key) -> Result<Requeue, Error> {
        match key {
            Key::Interpreters => self.reconcile_interpreters().await,
            Key::Cluster(name) => self.reconcile_cluster(name).await,
            Key::Kind(type_meta) => self.reconcile_kind(type_meta).await,
            Key::Policy(namespace, name) => self.reconcile_policy(namespace.as_deref(), name).await,
            Key::Namespace(name) => self.reconcile_namespace(name).await,
            Key::NamespacesOn(cluster) => self.reconcile_namespaces_on(cluster).await,
            Key::Template(key) => self.reconcile_template(key).await,
            Key::Binding(namespace, name) => self.reconcile_binding(namespace.as_deref(), name).await,
            Key::Placement(namespace, name) => self.reconcile_placement(namespace.as_deref(), name),
            Key::Status(namespace, name) => self.reconcile_status(namespace.as_deref(), name).await,
            Key::Work(cluster, name) => self.reconcile_work(cluster, name).await,
        }
    }
}

/// Decodes an object.
fn typed<'a, T: Deserialize<'a>>(object: &'a Value) -> Result<T, Error> {
    T::deserialize(object).map_err(|source| Error::Decode { what: ObjectKey::of(object).to_string(), source })
}

/// Encodes a value as JSON.
fn tree<T: serde::Serialize>(what: &str, part: &T) -> Result<Value, Error> {
    serde_json::to_value(part).map_err(|source| Error::Decode { what: what.to_owned(), source })
}

fn has_finalizer(object: &Value, finalizer: &str) -> bool {
    object["metadata"]["finalizers"].as_array().is_some_and(|all| all.iter().any(|one| one == finalizer))
}

/// Adds a finalizer to an object, in memory.
fn add_finalizer(object: &mut Value, finalizer: &str) {
    if has_finalizer(object, finalizer) {
        return;
    }
    if !object["metadata"]["finalizers"].is_array() {
        object["metadata"]["finalizers"] = Value::Array(Vec::new());
    }
    if let Some(all) = object["metadata"]["finalizers"].as_array_mut() {
        all.push(Value::String(finalizer.to_owned()));
    }
}

/// The finalizers of an object except one.
fn without_finalizer(object: &Value, finalizer: &str) -> Vec<Value> {
    let all = object["metadata"]["finalizers"].as_array().into_iter().flatten();
    all.filter(|one| *one != finalizer).cloned().collect()
}
