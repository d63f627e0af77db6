//! Watches that are added to a plane at run time, for kinds that are known only then. Each has a cache of its
//! own and a reflector of its own.

use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;
use tokio::task::AbortHandle;

use super::{InformerStore, ObjectChange};
use crate::watch::{ListLimiter, Observer, Reflector, Watch};
use crate::{Error, Kind, Plane};

/// The added watches of one plane.
#[derive(Default)]
pub(crate) struct AddedWatches(RwLock<State>);

#[derive(Default)]
struct State {
    /// What a reflector needs; none before the plane is registered and after it is disengaged.
    runtime: Option<(Arc<dyn Observer>, Arc<ListLimiter>)>,
    watches: Vec<AddedWatch>,
}

struct AddedWatch {
    /// The cache of this one watch.
    informers: Arc<InformerStore>,
    task: AbortHandle,
}

impl Drop for AddedWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl AddedWatch {
    fn watch(&self) -> &Watch {
        &self.informers.watches[0]
    }
}

impl AddedWatches {
    /// Allows watches to be added.
    pub(crate) fn open(&self, observer: Arc<dyn Observer>, limiter: Arc<ListLimiter>) {
        self.0.write().runtime = Some((observer, limiter));
    }

    /// Stops all added watches. No further one can be added.
    pub(crate) fn close(&self) {
        // Dropped after the lock is released: the observer may own the last reference to other planes.
        let _closed = std::mem::take(&mut *self.0.write());
    }

    /// The cache of the added watch of whole objects of a kind.
    pub(super) fn of(&self, kind: &Kind) -> Option<Arc<InformerStore>> {
        let state = self.0.read();
        let is_of = |added: &&AddedWatch| added.watch().kind == *kind && !added.watch().metadata_only;
        state.watches.iter().find(is_of).map(|added| added.informers.clone())
    }

    /// The caches of all added watches.
    pub(crate) fn all(&self) -> Vec<Arc<InformerStore>> {
        self.0.read().watches.iter().map(|added| added.informers.clone()).collect()
    }
}

impl fmt::Debug for AddedWatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.read();
        f.debug_list().entries(state.watches.iter().map(AddedWatch::watch)).finish()
    }
}

/// Watches that come and go while the engine runs.
impl Plane {
    /// Starts a watch of a kind that is known only at run time. Does nothing if the plane has a watch of the
    /// kind. Controllers receive its events with [`crate::ControllerBuilder::watches_added`], and cached
    /// reads of the kind return its objects once it is synced ([`Plane::wait_until_synced`]).
    ///
    /// Unlike a declared watch, an added one does not count for the readiness of the plane.
    pub fn add_watch(&self, watch: Watch) -> Result<(), Error> {
        let Some(informers) = self.informers() else {
            return Err(Error::NotEngaged { plane: self.name().clone() });
        };
        if informers.watches.iter().any(|declared| declared.is_of(&watch)) {
            return Ok(());
        }
        let mut state = informers.added.0.write();
        if state.watches.iter().any(|added| added.watch().is_of(&watch)) {
            return Ok(());
        }
        let Some((observer, limiter)) = state.runtime.clone() else {
            return Err(Error::NotEngaged { plane: self.name().clone() });
        };
        self.env().metrics.init_kind(&watch.kind);
        tracing::debug!(plane = %self.name(), kind = %watch.kind, "added a watch");
        let added = Arc::new(InformerStore::new(informers.set, Arc::from([watch])));
        let observer: Arc<dyn Observer> = Arc::new(AddedObserver { informers: added.clone(), observer });
        added.set_observer(&observer);
        let reflector =
            Reflector { plane: self.clone(), informers: added.clone(), watch: 0, observer, limiter };
        let task = tokio::spawn(reflector.run()).abort_handle();
        state.watches.push(AddedWatch { informers: added, task });
        Ok(())
    }

    /// Stops an added watch and drops its cache.
    pub fn remove_watch(&self, kind: &Kind) {
        let Some(informers) = self.informers() else { return };
        let mut removed = Vec::new();
        let mut state = informers.added.0.write();
        while let Some(at) = state.watches.iter().position(|added| added.watch().kind == *kind) {
            removed.push(state.watches.swap_remove(at));
        }
        drop(state);
        if !removed.is_empty() {
            tracing::debug!(plane = %self.name(), %kind, "removed a watch");
        }
    }

    /// Whether the plane has a watch of whole objects of the kind, declared or added.
    pub fn is_watched(&self, kind: &Kind) -> bool {
        self.watch_of(kind).is_ok()
    }

    /// True if the kind is watched, and has been listed completely or is not served.
    pub fn is_synced(&self, kind: &Kind) -> bool {
        self.watch_of(kind).is_ok_and(|(informers, watch)| informers.store(watch).lock().is_synced())
    }

    /// Waits until an added watch has been listed or its kind is found not to be served. Fails if the kind is
    /// not watched.
    pub async fn wait_until_synced(&self, kind: &Kind) -> Result<(), Error> {
        let (informers, _) = self.watch_of(kind)?;
        informers.wait_until_engaged().await;
        Ok(())
    }

    /// Waits until the caches of all declared watches are synced. Waits forever if the plane is not watched.
    pub async fn wait_until_engaged(&self) {
        match self.informers() {
            Some(informers) => informers.wait_until_engaged().await,
            None => std::future::pending().await,
        }
    }

    /// Ends the back-off of failing watches: the caller knows that the plane responds again.
    pub fn retry_watches(&self) {
        let Some(informers) = self.informers() else { return };
        informers.retry_now();
        informers.added.all().iter().for_each(|added| added.retry_now());
    }
}

/// The observer of an added watch: forwards its events with the cache that they belong to.
struct AddedObserver {
    informers: Arc<InformerStore>,
    observer: Arc<dyn Observer>,
}

impl Observer for AddedObserver {
    fn changed(&self, plane: &Plane, _: usize, change: ObjectChange) {
        self.observer.added_changed(plane, &self.informers, change);
    }

    fn synced(&self, plane: &Plane, _: usize) {
        if self.informers.set_engaged() {
            self.observer.added_synced(plane, &self.informers);
        }
    }

    fn error_changed(&self, _: &Plane, _: usize) {}
}
