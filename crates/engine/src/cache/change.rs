//! [`Change`]: the event of an untyped object.

use std::cell::OnceCell;
use std::sync::Arc;

use serde_json::Value;

use super::{InformerStore, ObjectChange, decode_any};
use crate::{Kind, NamespacedName, Plane};

/// A change of an untyped object: its state before and after. Each state is decoded when it is first read.
pub struct Change<'a> {
    plane: &'a Plane,
    informers: &'a InformerStore,
    watch: usize,
    change: &'a ObjectChange,
    before: OnceCell<Option<Arc<Value>>>,
    after: OnceCell<Option<Arc<Value>>>,
}

impl<'a> Change<'a> {
    pub(crate) fn new(
        plane: &'a Plane,
        informers: &'a InformerStore,
        watch: usize,
        change: &'a ObjectChange,
    ) -> Self {
        let before = OnceCell::new();
        if let Some(decoded) = &change.decoded_before {
            let _ = before.set(Some(decoded.clone())); // the cell is empty
        }
        Self { plane, informers, watch, change, before, after: OnceCell::new() }
    }

    /// The kind of the object.
    pub fn kind(&self) -> &'a Kind {
        &self.informers.watches[self.watch].kind
    }

    /// The namespace and name of the object.
    pub fn name(&self) -> NamespacedName<'a> {
        self.change.name()
    }

    /// True if the object was deleted.
    pub fn is_deletion(&self) -> bool {
        self.change.after.is_none()
    }

    /// The object before; none if it is new, or the controller or its plane has just started.
    pub fn before(&self) -> Option<&Arc<Value>> {
        self.before.get_or_init(|| self.decode(self.change.before.as_deref()?)).as_ref()
    }

    /// The object after; none if it was deleted.
    pub fn after(&self) -> Option<&Arc<Value>> {
        self.after
            .get_or_init(|| {
                self.informers.decoded(self.plane, self.watch, &self.change.id, self.change.after.as_ref()?)
            })
            .as_ref()
    }

    /// The object after the change, or before its deletion. None if it cannot be decoded, which is logged.
    pub fn object(&self) -> Option<&Arc<Value>> {
        self.after().or_else(|| self.before())
    }

    fn decode(&self, bytes: &[u8]) -> Option<Arc<Value>> {
        let decoded = decode_any(self.plane, self.kind(), &self.name().to_string(), bytes);
        decoded.map(Arc::new).inspect_err(|error| tracing::warn!(%error, "skipped an object")).ok()
    }
}

impl InformerStore {
    /// The decoded form of cached bytes: kept from an earlier read, or decoded now.
    fn decoded(&self, plane: &Plane, watch: usize, id: &Arc<str>, bytes: &Arc<[u8]>) -> Option<Arc<Value>> {
        self.decode_kept(plane, watch, id, bytes)
            .inspect_err(|error| tracing::warn!(%error, "skipped an object"))
            .ok()
    }

    /// Like [`InformerStore::decoded`], with the error of an object that is no JSON tree.
    pub(super) fn decode_kept(
        &self,
        plane: &Plane,
        watch: usize,
        id: &Arc<str>,
        bytes: &Arc<[u8]>,
    ) -> Result<Arc<Value>, crate::Error> {
        let declared = &self.watches[watch];
        let store = self.store(watch);
        if declared.keep_decoded {
            let store = store.lock();
            let is_current = store.objects.get(id).is_some_and(|stored| Arc::ptr_eq(stored, bytes));
            if let Some(decoded) = store.decoded(id).filter(|_| is_current) {
                return Ok(decoded);
            }
        }
        let name = super::name_of_id(id).to_string();
        let decoded = Arc::new(decode_any(plane, &declared.kind, &name, bytes)?);
        if declared.keep_decoded {
            store.lock().keep_decoded(id, bytes, &decoded);
        }
        Ok(decoded)
    }
}
