//! Writes of one object by several controllers of a process, without conflicts.
//!
//! Two controllers that write different fields of an object, such as its status and its finalizers, conflict
//! if both decide on the same cached state. Here the writers of an object take turns: [`Plane::modify`]
//! applies a change to the cached object while it holds a lock, and every update of the object holds the lock
//! until the response has entered the cache. The next writer therefore changes what the last one wrote. The
//! change must be right for any state of the object that it gets, and returns none where it is not.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use polis_api::kube::core::object::HasStatus;
use tokio::sync::OwnedMutexGuard;

use crate::kind::name_of;
use crate::write::same;
use crate::{Error, Kind, NamespacedName, Object, OperationResult, Plane};

/// The objects that are being written, by plane, kind and name.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObjectLocks(Arc<Mutex<BTreeMap<String, ObjectLock>>>);

type ObjectLock = Arc<tokio::sync::Mutex<()>>;

impl ObjectLocks {
    async fn lock(&self, id: String) -> ObjectGuard {
        let lock = self.0.lock().entry(id.clone()).or_default().clone();
        ObjectGuard { locked: Some(lock.lock_owned().await), id, locks: self.clone() }
    }
}

/// The right to write an object, until it is dropped.
pub(crate) struct ObjectGuard {
    locked: Option<OwnedMutexGuard<()>>,
    id: String,
    locks: ObjectLocks,
}

impl Drop for ObjectGuard {
    fn drop(&mut self) {
        let mut locks = self.locks.0.lock();
        self.locked = None;
        // A waiting writer has a clone.
        if locks.get(&self.id).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            locks.remove(&self.id);
        }
    }
}

impl Plane {
    /// Updates an object outside its status to what `change` makes of its cached state. Unchanged if the
    /// cache does not contain it, or if `change` returns none.
    pub async fn modify<'p, K: Object>(
        &self,
        name: impl Into<NamespacedName<'p>>,
        change: impl FnOnce(&K) -> Option<K>,
    ) -> Result<OperationResult<K>, Error> {
        let name = name.into();
        let _writing = self.lock::<K>(name).await;
        let Some(current) = self.get::<K>(name)? else { return Ok(OperationResult::Unchanged) };
        match change(&current) {
            Some(desired) if !same(&current, &desired)? => self.update_locked(&current, &desired).await,
            _ => Ok(OperationResult::Unchanged),
        }
    }

    /// Like [`Plane::modify`], for the status.
    pub async fn modify_status<'p, K: Object + HasStatus>(
        &self,
        name: impl Into<NamespacedName<'p>>,
        change: impl FnOnce(&K) -> Option<K::Status>,
    ) -> Result<OperationResult<K>, Error> {
        let name = name.into();
        let _writing = self.lock::<K>(name).await;
        let Some(current) = self.get::<K>(name)? else { return Ok(OperationResult::Unchanged) };
        let Some(status) = change(&current) else { return Ok(OperationResult::Unchanged) };
        let mut desired = current.clone();
        *desired.status_mut() = Some(status);
        if same(&current, &desired)? {
            return Ok(OperationResult::Unchanged);
        }
        self.update_status_locked(&current, &desired).await
    }

    /// Creates an object unless the cache contains one of its name. Of several tasks of this process that
    /// need the same object, one creates it.
    pub async fn create_missing<K: Object>(&self, object: &K) -> Result<Option<K>, Error> {
        let name = name_of(object);
        let _writing = self.lock::<K>(name).await;
        match self.get::<K>(name)? {
            Some(_) => Ok(None),
            None => self.create(object).await.map(Some),
        }
    }

    /// Waits until no other task of this process writes the object.
    pub(crate) async fn lock<K: Object>(&self, name: NamespacedName<'_>) -> ObjectGuard {
        let Kind { group, plural, .. } = Kind::of::<K>();
        self.env().locks.lock(format!("{}/{plural}.{group}/{name}", self.name())).await
    }

    /// The cached state of an object that was read earlier, if it is still the same object.
    pub(crate) fn latest<K: Object>(&self, object: &K) -> Option<K> {
        let cached = self.informers().and_then(|_| self.get::<K>(name_of(object)).ok().flatten());
        cached.filter(|cached| cached.meta().uid == object.meta().uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn writers_of_one_object_take_turns_and_leave_no_lock_behind() {
        let locks = ObjectLocks::default();
        let first = locks.lock("a".into()).await;
        let other = locks.lock("b".into()).await;
        let second = tokio::spawn({
            let locks = locks.clone();
            async move { drop(locks.lock("a".into()).await) }
        });
        tokio::task::yield_now().await;
        assert!(!second.is_finished());
        drop(first);
        second.await.unwrap();
        drop(other);
        assert!(locks.0.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_writer_does_not_block_the_next() {
        let locks = ObjectLocks::default();
        let first = locks.lock("a".into()).await;
        let waiting = tokio::time::timeout(std::time::Duration::from_secs(1), locks.lock("a".into())).await;
        assert!(waiting.is_err());
        drop(first);
        drop(locks.lock("a".into()).await);
        assert!(locks.0.lock().is_empty());
    }
}
