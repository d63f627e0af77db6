//! [`Hub`]: the hub plane with what every controller needs to read and write its objects.

use std::sync::Arc;

use jiff::Timestamp;
use polis_engine::{Change, Clock, EventRecorder, Key, Kind, Plane, Random, Untyped};
use serde_json::Value;

use crate::error::Error;
use crate::kinds;
use crate::object::{self, ObjectKey};

/// The action of all events.
const ACTION: &str = "Propagate";

/// The hub.
pub(crate) struct Hub {
    pub(crate) plane: Plane,
    pub(crate) recorder: EventRecorder,
    pub(crate) clock: Clock,
    pub(crate) random: Random,
}

impl Hub {
    /// The objects of a kind.
    pub(crate) fn of<'a>(&'a self, kind: &'a Kind) -> Untyped<'a> {
        self.plane.untyped(kind)
    }

    /// The cached object; `namespace` is empty for a cluster-scoped kind.
    pub(crate) fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Result<Option<Arc<Value>>, Error> {
        Ok(self.of(kind).get((namespace, name))?)
    }

    /// The cached binding of a key.
    pub(crate) fn binding(&self, key: &Key) -> Result<Option<Arc<Value>>, Error> {
        Ok(self.of(binding_kind(key.namespace.as_deref())).get(key)?)
    }

    /// The key of an object of the hub; `namespace` is empty for a cluster-scoped kind.
    pub(crate) fn key(&self, namespace: &str, name: &str) -> Key {
        key(&self.plane, namespace, name)
    }

    /// The key of every binding.
    pub(crate) fn binding_keys(&self) -> Result<Vec<Key>, polis_engine::Error> {
        let mut names = self.of(&kinds::BINDING).names()?;
        names.extend(self.of(&kinds::CLUSTER_BINDING).names()?);
        let key = |(namespace, name): (Option<String>, String)| {
            self.key(namespace.as_deref().unwrap_or_default(), &name)
        };
        Ok(names.into_iter().map(key).collect())
    }

    /// The current time, for timestamps in objects.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// A new permanent id.
    pub(crate) fn new_id(&self) -> String {
        self.random.uid()
    }

    /// Records a warning about an object of the hub. It never fails a reconcile.
    pub(crate) fn warn(&self, about: &Value, reason: &str, message: &str) {
        self.recorder.warn_untyped(&self.plane, about, reason, ACTION, message);
    }
}

/// The key of an object on a plane; `namespace` is empty for a cluster-scoped kind.
pub(crate) fn key(plane: &Plane, namespace: &str, name: &str) -> Key {
    match namespace {
        "" => Key::cluster(plane.name().clone(), name),
        namespace => Key::new(plane.name().clone(), namespace, name),
    }
}

/// The kind of bindings: ResourceBinding with a namespace, ClusterResourceBinding without.
pub(crate) fn binding_kind(namespace: Option<&str>) -> &'static Kind {
    if namespace.is_some_and(|namespace| !namespace.is_empty()) {
        &kinds::BINDING
    } else {
        &kinds::CLUSTER_BINDING
    }
}

/// The key of the resource template of a binding.
pub(crate) fn resource_of(binding: &Value) -> ObjectKey {
    let resource = &binding["spec"]["resource"];
    let text = |field: &str| resource[field].as_str().unwrap_or_default().to_owned();
    ObjectKey {
        api_version: text("apiVersion"),
        kind: text("kind"),
        namespace: text("namespace"),
        name: text("name"),
    }
}

/// Whether anything but the status changed. The federation itself writes the status.
pub(crate) fn spec_changed(change: &Change<'_>) -> bool {
    let (Some(before), Some(after)) = (change.before(), change.after()) else { return true };
    let same_meta = |field: &&str| before["metadata"].get(field) == after["metadata"].get(field);
    let meta = ["uid", "generation", "labels", "annotations", "finalizers", "deletionTimestamp"];
    !(meta.iter().all(same_meta) && spec_fields(before).eq(spec_fields(after)))
}

/// All fields of an object except metadata and status, in order.
fn spec_fields(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
    let fields = object.as_object().into_iter().flatten();
    fields.filter(|(key, _)| !matches!(key.as_str(), "metadata" | "status"))
}

/// The permanent id of a binding, from a binding or a Work.
pub(crate) fn binding_id(object: &Value) -> &str {
    let [id, cluster_id] =
        [polis_api::labels::karmada::BINDING_ID, polis_api::labels::karmada::CLUSTER_BINDING_ID]
            .map(|key| object::label(object, key));
    if id.is_empty() { cluster_id } else { id }
}
