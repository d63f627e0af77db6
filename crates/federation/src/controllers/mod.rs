//! What the federation does: one file for each sort of key, each a read, a decision and at most one write per object.

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

pub(crate) use dependencies::is_follower;
pub(crate) use execution::Fight;
pub(crate) use status::Outlook;

use crate::error::Error;
use crate::object::Identity;
use crate::queue::Outcome;
use crate::world::{Key, World};

impl World {
    /// Works on one key.
    pub(crate) async fn reconcile(&self, key: &Key) -> Result<Outcome, Error> {
        match key {
            Key::Interpreters => self.settle_interpreters().await,
            Key::Cluster(name) => self.settle_cluster(name).await,
            Key::Kind(target) => self.settle_kind(target).await,
            Key::Policy(namespace, name) => self.settle_policy(namespace.as_deref(), name).await,
            Key::Namespace(name) => self.settle_namespace(name).await,
            Key::NamespacesOn(cluster) => self.settle_namespaces_on(cluster).await,
            Key::Template(identity) => self.settle_template(identity).await,
            Key::Binding(namespace, name) => self.settle_binding(namespace.as_deref(), name).await,
            Key::Placement(namespace, name) => self.settle_placement(namespace.as_deref(), name),
            Key::Status(namespace, name) => self.settle_status(namespace.as_deref(), name).await,
            Key::Work(cluster, name) => self.settle_work(cluster, name).await,
        }
    }
}

/// An object as its type.
fn typed<'a, T: Deserialize<'a>>(object: &'a Value) -> Result<T, Error> {
    T::deserialize(object).map_err(|source| Error::Decode { what: Identity::of(object).to_string(), source })
}

/// A part of a type as JSON.
fn tree<T: serde::Serialize>(what: &str, part: &T) -> Result<Value, Error> {
    serde_json::to_value(part).map_err(|source| Error::Decode { what: what.to_owned(), source })
}

fn has_finalizer(object: &Value, finalizer: &str) -> bool {
    object["metadata"]["finalizers"].as_array().is_some_and(|all| all.iter().any(|one| one == finalizer))
}

/// Adds a finalizer to an object in hand.
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

/// The finalizers of an object without one of them.
fn without_finalizer(object: &Value, finalizer: &str) -> Vec<Value> {
    let all = object["metadata"]["finalizers"].as_array().into_iter().flatten();
    all.filter(|one| *one != finalizer).cloned().collect()
}
