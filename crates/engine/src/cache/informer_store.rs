//! [`InformerStore`]: the caches of all watches of one plane, and whether they are synced.

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::added::AddedWatches;
use super::{Store, WatchError};
use crate::watch::{Observer, Watch};
use crate::{Kind, Plane};

/// The cache of one plane: one [`Store`] for each declared watch.
pub(crate) struct InformerStore {
    /// The set that the plane belongs to.
    pub(crate) set: usize,
    pub(crate) watches: Arc<[Watch]>,
    pub(super) stores: Box<[Mutex<Store>]>,
    /// Every kind has been listed, or found not to be served, at least once.
    engaged: AtomicBool,
    /// Notified when the plane becomes engaged.
    engaged_notify: Notify,
    /// Ends the back-off of failing watches.
    retry_notify: Notify,
    /// When the server was last found to be restored from a backup.
    restored: Mutex<Option<Instant>>,
    /// Receives the changes of own writes. It lives as long as the reflectors of the plane.
    pub(super) observer: OnceLock<Weak<dyn Observer>>,
    /// The watches that were added at run time, each with a cache of its own.
    pub(crate) added: AddedWatches,
}

impl InformerStore {
    pub(crate) fn new(set: usize, watches: Arc<[Watch]>) -> Self {
        let stores = watches.iter().map(|_| Mutex::default()).collect();
        Self {
            set,
            watches,
            stores,
            engaged: AtomicBool::new(false),
            engaged_notify: Notify::new(),
            retry_notify: Notify::new(),
            restored: Mutex::default(),
            observer: OnceLock::new(),
            added: AddedWatches::default(),
        }
    }

    /// Routes the changes of own writes to the observer of the reflectors, as long as it exists.
    pub(crate) fn set_observer(&self, observer: &Arc<dyn Observer>) {
        // A plane is engaged once: the cache of a plane that comes back is a new one.
        let _ = self.observer.set(Arc::downgrade(observer));
    }

    pub(crate) fn is_engaged(&self) -> bool {
        self.engaged.load(Ordering::Acquire)
    }

    /// Marks the plane as engaged. True if it was not engaged before.
    pub(crate) fn set_engaged(&self) -> bool {
        let newly = !self.engaged.swap(true, Ordering::AcqRel);
        self.engaged_notify.notify_waiters();
        newly
    }

    /// Waits until the plane is engaged.
    pub(crate) async fn wait_until_engaged(&self) {
        loop {
            let mut notified = pin!(self.engaged_notify.notified());
            notified.as_mut().enable();
            if self.is_engaged() {
                return;
            }
            notified.await;
        }
    }

    /// Waits until the back-off of failing watches must end.
    pub(crate) async fn retry(&self) {
        self.retry_notify.notified().await;
    }

    /// Ends the back-off of failing watches.
    pub(crate) fn retry_now(&self) {
        self.retry_notify.notify_waiters();
    }

    /// Records that the server was restored from a backup.
    pub(crate) fn set_restored(&self) {
        *self.restored.lock() = Some(Instant::now());
    }

    pub(crate) fn store(&self, watch: usize) -> &Mutex<Store> {
        &self.stores[watch]
    }

    /// True if every kind has been listed or is not served.
    pub(crate) fn is_synced(&self) -> bool {
        self.stores.iter().all(|store| store.lock().is_synced())
    }

    /// The first watch error, with its kind.
    pub(crate) fn error(&self) -> Option<(Kind, WatchError)> {
        self.watches
            .iter()
            .zip(&self.stores)
            .find_map(|(watch, store)| store.lock().error().map(|error| (watch.kind.clone(), error.clone())))
            .or_else(|| self.added.all().iter().find_map(|added| added.error()))
    }

    /// The position of the watch of whole objects of a kind.
    pub(super) fn position(&self, kind: &Kind) -> Option<usize> {
        self.watches.iter().position(|watch| watch.kind == *kind && !watch.metadata_only)
    }
}

impl fmt::Debug for InformerStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InformerStore").field("set", &self.set).field("stores", &self.stores).finish()
    }
}

impl Plane {
    /// Whether the server of a watched plane was found to be restored from a backup within this time. Then
    /// also an uncached read that finds nothing may only show that the backup is older than the object.
    pub fn was_restored_within(&self, time: Duration) -> bool {
        let informers = self.informers().into_iter();
        let mut all = informers.flat_map(|informers| {
            informers.added.all().into_iter().chain(std::iter::once(informers.clone()))
        });
        all.any(|informers| informers.restored.lock().is_some_and(|restored| restored.elapsed() < time))
    }
}
