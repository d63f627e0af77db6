//! The in-memory state of a store: every collection of every plane, at the current or a recent revision.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Bound,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use parking_lot::{Mutex, RwLock};
use polis_apimachinery::storage_quota::StorageUsage;
use tokio::sync::mpsc;

use super::{Collection, Compacted, Event, Revision, StoreWatch, Stored, histories::Histories, shard::Shard};

/// Limits of the history for resumed watches and continued lists.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HistoryLimits {
    /// Most events per collection.
    pub count: usize,
    /// Age after which an event is dropped. Kubernetes compacts etcd every five minutes.
    pub age: Duration,
    /// Most bytes of objects in all histories. Above it, the plane with the largest history loses its oldest
    /// events.
    pub bytes: usize,
    /// Most bytes of objects in the histories of one plane. Above it, the plane loses its oldest events.
    pub plane_bytes: usize,
}

impl Default for HistoryLimits {
    fn default() -> Self {
        Self { count: 4096, age: Duration::from_secs(300), bytes: 256 << 20, plane_bytes: 64 << 20 }
    }
}

/// The part of a collection to list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RangeOptions<'a> {
    /// Only paths with this prefix: `namespace/` for one namespace, empty for all.
    pub prefix: &'a str,
    /// Only paths from this one on; empty for all.
    pub from: &'a str,
    /// Most items to return.
    pub limit: usize,
    /// At this revision; `None` for the current one.
    pub at: Option<Revision>,
}

impl Default for RangeOptions<'_> {
    fn default() -> Self {
        Self { prefix: "", from: "", limit: usize::MAX, at: None }
    }
}

impl RangeOptions<'_> {
    pub(super) fn start(&self) -> Bound<&str> {
        Bound::Included(if self.from > self.prefix { self.from } else { self.prefix })
    }
}

/// A part of a collection at one revision.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    /// Path and object, sorted by path.
    pub items: Vec<(Arc<str>, Stored)>,
    /// The revision of the list.
    pub revision: Revision,
    /// Number of items after the last one.
    pub remaining: usize,
}

pub(super) type SharedShard = Arc<RwLock<Shard>>;

/// All collections of a store, in memory.
pub(crate) struct View {
    shards: RwLock<BTreeMap<Collection, SharedShard>>,
    /// The revision of the last visible write. Set under the lock of the written shard, so that a reader with
    /// the lock of a shard sees no object with a later revision.
    revision: AtomicU64,
    limits: HistoryLimits,
    histories: Mutex<Histories>,
    usage: Mutex<HashMap<Arc<str>, StorageUsage>>,
    /// Receives every write of every collection: the controllers of the server.
    subscriber: OnceLock<mpsc::UnboundedSender<(Collection, Event)>>,
}

impl View {
    pub(super) fn new(limits: HistoryLimits, revision: Revision) -> Self {
        Self {
            shards: RwLock::default(),
            revision: AtomicU64::new(revision),
            limits,
            histories: Mutex::default(),
            usage: Mutex::default(),
            subscriber: OnceLock::new(),
        }
    }

    pub(super) fn restore(
        &self,
        collection: Collection,
        objects: BTreeMap<Arc<str>, Stored>,
        compact_revision: Revision,
    ) {
        for object in objects.values() {
            self.account(&collection.plane, None, Some(object.json().len() as u64));
        }
        self.shards
            .write()
            .insert(collection, Arc::new(RwLock::new(Shard::restored(objects, compact_revision))));
    }

    pub(super) fn shard(&self, collection: &Collection) -> SharedShard {
        if let Some(shard) = self.shards.read().get(collection) {
            return shard.clone();
        }
        self.shards.write().entry(collection.clone()).or_default().clone()
    }

    /// The revision of the latest write.
    pub(crate) fn revision(&self) -> Revision {
        self.revision.load(Ordering::Acquire)
    }

    /// The objects and bytes of a plane.
    pub(crate) fn usage(&self, plane: &str) -> StorageUsage {
        self.usage.lock().get(plane).copied().unwrap_or_default()
    }

    /// The objects and bytes of every plane that has any.
    pub(crate) fn usages(&self) -> Vec<(Arc<str>, StorageUsage)> {
        self.usage.lock().iter().map(|(plane, usage)| (plane.clone(), *usage)).collect()
    }

    /// Counts a write that replaces an object of `old` bytes by one of `new` bytes.
    pub(super) fn account(&self, plane: &Arc<str>, old: Option<u64>, new: Option<u64>) {
        let mut usage = self.usage.lock();
        let after = usage.get(plane).copied().unwrap_or_default().after(old, new);
        match after == StorageUsage::default() {
            true => drop(usage.remove(plane)),
            false => drop(usage.insert(plane.clone(), after)),
        }
    }

    /// The current object at a path.
    pub(crate) fn get(&self, collection: &Collection, path: &str) -> Option<Stored> {
        let shard = self.shards.read().get(collection)?.clone();

        shard.read().get(path).cloned()
    }

    /// Lists a part of a collection at one revision, sorted by path.
    pub(crate) fn range(&self, collection: &Collection, range: &RangeOptions<'_>) -> Result<Page, Compacted> {
        let Some(shard) = self.shards.read().get(collection).cloned() else {
            let revision = self.revision();
            return Ok(Page {
                items: Vec::new(),
                revision: range.at.map_or(revision, |at| at.min(revision)),
                remaining: 0,
            });
        };
        let shard = shard.read();
        shard.page(range, self.revision())
    }

    /// Every object of a collection.
    pub(crate) fn all(&self, collection: &Collection) -> Vec<(Arc<str>, Stored)> {
        self.range(collection, &RangeOptions::default()).map(|page| page.items).unwrap_or_default()
    }

    /// Number of objects in a collection.
    pub(crate) fn count(&self, collection: &Collection) -> usize {
        self.shards.read().get(collection).map_or(0, |shard| shard.read().len())
    }

    /// The collections of a plane that are not empty.
    pub(crate) fn collections(&self, plane: &str) -> Vec<Collection> {
        let first = Collection::new(plane, "");
        let shards = self.shards.read();
        shards
            .range((Bound::Included(&first), Bound::Unbounded))
            .take_while(|(collection, _)| &*collection.plane == plane)
            .filter(|(_, shard)| shard.read().len() > 0)
            .map(|(collection, _)| collection.clone())
            .collect()
    }

    /// Watches the writes to a collection after `from`.
    pub(crate) fn watch(&self, collection: &Collection, from: Revision) -> Result<StoreWatch, Compacted> {
        let shard = self.shard(collection);
        {
            let shard = shard.read();
            if from < shard.compact_revision() {
                return Err(Compacted { requested: from, oldest: shard.compact_revision() });
            }
        }
        Ok(StoreWatch::new(shard, from))
    }

    /// The writes to a collection after `seen`, oldest first.
    pub(crate) fn since(&self, collection: &Collection, seen: Revision) -> Result<Vec<Event>, Compacted> {
        let Some(shard) = self.shards.read().get(collection).cloned() else { return Ok(Vec::new()) };
        let shard = shard.read();
        shard.since(seen, usize::MAX)
    }

    /// Makes one committed write visible. Called in the order of revisions, one write at a time.
    pub(super) fn apply(
        &self,
        collection: &Collection,
        path: &str,
        revision: Revision,
        object: Option<Stored>,
        at: Timestamp,
    ) {
        let shared = self.shard(collection);
        let mut shard = shared.write();
        let added = shard.apply(path, revision, object, at);
        if let (Some(subscriber), Some(event)) = (self.subscriber.get(), shard.last()) {
            // Fails once the controllers have stopped.
            let _ = subscriber.send((collection.clone(), event.clone()));
        }
        let freed = shard.compact(self.limits.count, self.cutoff(at));
        self.revision.store(revision, Ordering::Release);
        drop(shard);
        let mut histories = self.histories.lock();
        histories.add(&collection.plane, revision, &shared, added);
        histories.subtract(&collection.plane, freed);
        histories.enforce(&self.limits, &collection.plane);
    }

    /// Every write from now on, of all collections, in order. There is one subscriber; a second one stays
    /// silent.
    pub(crate) fn subscribe(&self) -> mpsc::UnboundedReceiver<(Collection, Event)> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let _ = self.subscriber.set(sender);
        receiver
    }

    /// The revision of the latest write to a collection; 0 if there was none.
    pub(crate) fn changed_at(&self, collection: &Collection) -> Revision {
        self.shards.read().get(collection).map_or(0, |shard| shard.read().changed_at())
    }

    fn cutoff(&self, now: Timestamp) -> Timestamp {
        SignedDuration::try_from(self.limits.age)
            .ok()
            .and_then(|age| now.checked_sub(age).ok())
            .unwrap_or(Timestamp::MIN)
    }

    /// Drops history beyond the limits, and unused collections.
    pub(crate) fn compact(&self, now: Timestamp) {
        let cutoff = self.cutoff(now);
        let shards: Vec<_> =
            self.shards.read().iter().map(|(of, shard)| (of.plane.clone(), shard.clone())).collect();
        for (plane, shard) in shards {
            let freed = shard.write().compact(self.limits.count, cutoff);
            self.histories.lock().subtract(&plane, freed);
        }
        self.histories.lock().forget();
        // An emptied collection must keep its compact revision: otherwise a watcher could resume before the
        // last deletion and miss it.
        self.shards.write().retain(|_, shard| {
            let unshared = Arc::strong_count(shard) == 1;
            let idle = {
                let shard = shard.read();
                shard.is_idle() && shard.compact_revision() == 0
            };
            !(unshared && idle)
        });
    }

    /// Wakes every watcher of a collection, so that it checks whether its kind is still served.
    pub(crate) fn wake(&self, collection: &Collection) {
        if let Some(shard) = self.shards.read().get(collection) {
            shard.write().wake_all();
        }
    }
}
