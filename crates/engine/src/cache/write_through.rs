//! Write-through: the response of a write enters the cache of its plane, and its change is routed to the
//! controllers as an event of the watch would be. The event itself is then no change.

use std::sync::{Arc, Weak};

use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_json::Value;

use super::{InformerStore, ObjectChange, ParsedObject, id_of, parse_object};
use crate::hold::Hold;
use crate::{Kind, NamespacedName, Plane};

#[derive(Deserialize)]
struct Head {
    metadata: ObjectMeta,
}

impl InformerStore {
    /// Handles the response of a create, update, patch or apply: the written object.
    pub(crate) fn written(&self, plane: &Plane, kind: &Kind, response: &[u8]) {
        if let Some(added) = self.added.of(kind) {
            added.written_here(plane, kind, response);
        }
        self.written_here(plane, kind, response);
    }

    fn written_here(&self, plane: &Plane, kind: &Kind, response: &[u8]) {
        if !self.is_running() || self.position(kind).is_none() {
            return;
        }
        // Only the response of a request that stores nothing is not an object.
        let Ok(object) = parse_object(response) else { return };
        let Ok(Head { metadata }) = serde_json::from_slice(&object.bytes) else { return };
        if is_gone(&metadata) {
            return self.removed(plane, kind, &object.id, &object.uid);
        }
        if let Some(watch) = self.position(kind) {
            let declared = &self.watches[watch];
            let selected = declared.selects(&metadata);
            let mut store = self.store(watch).lock();
            let change = store.write(&declared.indexes, &object, selected, Hold::of_running_key);
            drop(store);
            self.route(plane, watch, change);
        }
    }

    /// Like [`InformerStore::written`], for a response that was decoded already: its decoded form enters the
    /// cache with it.
    pub(super) fn written_untyped(
        &self,
        plane: &Plane,
        kind: &Kind,
        object: &ParsedObject,
        decoded: &Arc<Value>,
    ) {
        if let Some(added) = self.added.of(kind) {
            added.written_untyped(plane, kind, object, decoded);
        }
        let Some(watch) = self.position(kind).filter(|_| self.is_running()) else { return };
        let declared = &self.watches[watch];
        let selected = if declared.selects_all() {
            Some(true)
        } else {
            let Ok(metadata) = ObjectMeta::deserialize(&decoded["metadata"]) else { return };
            declared.selects(&metadata)
        };
        let metadata = &decoded["metadata"];
        let is_gone = metadata["deletionTimestamp"].is_string()
            && metadata["deletionGracePeriodSeconds"] == 0
            && metadata["finalizers"].as_array().is_none_or(Vec::is_empty);
        if is_gone {
            return self.removed(plane, kind, &object.id, &object.uid);
        }
        let mut store = self.store(watch).lock();
        let change = store.write(&declared.indexes, object, selected, Hold::of_running_key);
        if change.is_some() && declared.keep_decoded {
            store.keep_decoded(&object.id, &object.bytes, decoded);
        }
        drop(store);
        self.route(plane, watch, change);
    }

    /// Handles the response of a delete: the object if it still exists or is of a kind whose deletes return
    /// it, a Status otherwise.
    pub(crate) fn deleted(
        &self,
        plane: &Plane,
        kind: &Kind,
        target: NamespacedName<'_>,
        uid: &str,
        response: &[u8],
    ) {
        if let Some(added) = self.added.of(kind) {
            added.deleted(plane, kind, target, uid, response);
        }
        let terminating = serde_json::from_slice::<Head>(response)
            .is_ok_and(|head| head.metadata.deletion_timestamp.is_some());
        if terminating {
            self.written_here(plane, kind, response);
        } else if self.is_running() {
            self.removed(plane, kind, &id_of(target), uid);
        }
    }

    fn removed(&self, plane: &Plane, kind: &Kind, id: &str, uid: &str) {
        if let Some(watch) = self.position(kind) {
            let change = self.store(watch).lock().delete(&self.watches[watch].indexes, id, uid);
            self.route(plane, watch, change);
        }
    }

    fn route(&self, plane: &Plane, watch: usize, change: Option<ObjectChange>) {
        if let (Some(change), Some(observer)) = (change, self.observer.get().and_then(Weak::upgrade)) {
            observer.changed(plane, watch, change);
        }
    }

    /// Whether reflectors update the stores. Without them a response would stay in the cache for ever.
    fn is_running(&self) -> bool {
        self.observer.get().is_some_and(|observer| observer.strong_count() > 0)
    }
}

/// Whether a write has removed its object: an API server deletes a terminating object without finalizers and
/// grace period together with the write. Namespaces, which have finalizers in their spec, have no grace
/// period of 0.
fn is_gone(metadata: &ObjectMeta) -> bool {
    metadata.deletion_timestamp.is_some()
        && metadata.deletion_grace_period_seconds == Some(0)
        && metadata.finalizers.as_ref().is_none_or(Vec::is_empty)
}
