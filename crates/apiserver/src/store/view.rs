//! What can be read: every collection of every plane, at the latest acknowledged revision or a recent one.

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use parking_lot::RwLock;
use tokio::sync::mpsc;

use super::{Collection, Compacted, Event, Revision, Stored, Watch, shard::Shard};

/// How much history a store keeps for watchers that resume and lists that continue.
#[derive(Clone, Copy, Debug)]
pub struct HistoryLimits {
    /// Events kept per collection.
    pub count: usize,
    /// Age after which an event is forgotten. Kubernetes compacts etcd every five minutes.
    pub age: Duration,
    /// Bytes of objects that history may hold in all; beyond, collections that are written to forget half of theirs.
    pub bytes: usize,
}

impl Default for HistoryLimits {
    fn default() -> Self {
        Self { count: 4096, age: Duration::from_secs(300), bytes: 256 << 20 }
    }
}

/// Which part of a collection to read.
#[derive(Clone, Copy, Debug)]
pub struct Range<'a> {
    /// Only paths that begin so; `namespace/` for one namespace, empty for all.
    pub prefix: &'a str,
    /// Only paths from here on; empty for all.
    pub from: &'a str,
    /// At most so many.
    pub limit: usize,
    /// As of this revision; `None` is now.
    pub at: Option<Revision>,
}

impl Default for Range<'_> {
    fn default() -> Self {
        Self { prefix: "", from: "", limit: usize::MAX, at: None }
    }
}

impl Range<'_> {
    pub(super) fn start(&self) -> Bound<&str> {
        Bound::Included(if self.from > self.prefix { self.from } else { self.prefix })
    }
}

/// A consistent part of a collection.
#[derive(Clone, Debug)]
pub struct Page {
    /// Path and object, in the order of paths.
    pub items: Vec<(Arc<str>, Stored)>,
    /// The revision at which all of them are as shown.
    pub revision: Revision,
    /// How many more follow.
    pub remaining: usize,
}

pub(super) type SharedShard = Arc<RwLock<Shard>>;

/// All collections of a store, in memory.
pub struct View {
    shards: RwLock<BTreeMap<Collection, SharedShard>>,
    /// The revision of the last write that readers see. Written under the lock of the shard that the write is in, so
    /// that whoever holds a shard's lock sees no object above it.
    revision: AtomicU64,
    limits: HistoryLimits,
    history_bytes: AtomicUsize,
    /// Who follows every write of every collection: the server's own controllers.
    tap: OnceLock<mpsc::UnboundedSender<(Collection, Event)>>,
}

impl View {
    pub(super) fn new(limits: HistoryLimits, revision: Revision) -> Self {
        Self {
            shards: RwLock::default(),
            revision: AtomicU64::new(revision),
            limits,
            history_bytes: AtomicUsize::new(0),
            tap: OnceLock::new(),
        }
    }

    pub(super) fn restore(
        &self,
        collection: Collection,
        objects: BTreeMap<Arc<str>, Stored>,
        floor: Revision,
    ) {
        self.shards.write().insert(collection, Arc::new(RwLock::new(Shard::restored(objects, floor))));
    }

    pub(super) fn shard(&self, collection: &Collection) -> SharedShard {
        if let Some(shard) = self.shards.read().get(collection) {
            return shard.clone();
        }
        self.shards.write().entry(collection.clone()).or_default().clone()
    }

    /// The revision of the latest write.
    pub fn revision(&self) -> Revision {
        self.revision.load(Ordering::Acquire)
    }

    /// One object.
    pub fn get(&self, collection: &Collection, path: &str) -> Option<Stored> {
        let shard = self.shards.read().get(collection)?.clone();

        shard.read().get(path).cloned()
    }

    /// An ordered part of a collection, all of one revision.
    pub fn range(&self, collection: &Collection, range: &Range<'_>) -> Result<Page, Compacted> {
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

    /// Every object of a collection, now.
    pub fn all(&self, collection: &Collection) -> Vec<(Arc<str>, Stored)> {
        self.range(collection, &Range::default()).map(|page| page.items).unwrap_or_default()
    }

    /// Number of objects in a collection.
    pub fn count(&self, collection: &Collection) -> usize {
        self.shards.read().get(collection).map_or(0, |shard| shard.read().len())
    }

    /// The collections of a plane that hold at least one object.
    pub fn collections(&self, plane: &str) -> Vec<Collection> {
        let first = Collection::new(plane, "");
        let shards = self.shards.read();
        shards
            .range((Bound::Included(&first), Bound::Unbounded))
            .take_while(|(collection, _)| &*collection.plane == plane)
            .filter(|(_, shard)| shard.read().len() > 0)
            .map(|(collection, _)| collection.clone())
            .collect()
    }

    /// All writes to a collection after `from`.
    pub fn watch(&self, collection: &Collection, from: Revision) -> Result<Watch, Compacted> {
        let shard = self.shard(collection);
        {
            let shard = shard.read();
            if from < shard.floor() {
                return Err(Compacted { asked: from, kept: shard.floor() });
            }
        }
        Ok(Watch::new(shard, from))
    }

    /// Makes one committed write visible. Writers call it in the order of revisions, one at a time.
    pub(super) fn apply(
        &self,
        collection: &Collection,
        path: &str,
        revision: Revision,
        object: Option<Stored>,
        at: Timestamp,
    ) {
        let shard = self.shard(collection);
        let mut shard = shard.write();
        let added = shard.apply(path, revision, object, at);
        if let (Some(tap), Some(event)) = (self.tap.get(), shard.last()) {
            // Nobody listens once the controllers have stopped.
            let _ = tap.send((collection.clone(), event.clone()));
        }
        let held = self.history_bytes.fetch_add(added, Ordering::Relaxed) + added;
        let count = if held > self.limits.bytes { self.limits.count.min(64) } else { self.limits.count };
        let freed = shard.compact(count, self.horizon(at));
        self.history_bytes.fetch_sub(freed, Ordering::Relaxed);
        self.revision.store(revision, Ordering::Release);
    }

    /// Every write from now on, of all collections, in order. There is one tap; a second one stays silent.
    pub fn tap(&self) -> mpsc::UnboundedReceiver<(Collection, Event)> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let _ = self.tap.set(sender);
        receiver
    }

    /// The revision of the latest write to a collection; 0 if there was none.
    pub fn changed_at(&self, collection: &Collection) -> Revision {
        self.shards.read().get(collection).map_or(0, |shard| shard.read().changed_at())
    }

    fn horizon(&self, now: Timestamp) -> Timestamp {
        SignedDuration::try_from(self.limits.age)
            .ok()
            .and_then(|age| now.checked_sub(age).ok())
            .unwrap_or(Timestamp::MIN)
    }

    /// Forgets history older than the limits allow at `now`, and collections that nobody uses.
    pub fn compact(&self, now: Timestamp) {
        let horizon = self.horizon(now);
        let shards: Vec<_> = self.shards.read().values().cloned().collect();
        for shard in shards {
            let freed = shard.write().compact(self.limits.count, horizon);
            self.history_bytes.fetch_sub(freed, Ordering::Relaxed);
        }
        // A collection that was emptied must remember its floor, or a watcher could resume before its last removal.
        self.shards.write().retain(|_, shard| {
            let unshared = Arc::strong_count(shard) == 1;
            let idle = {
                let shard = shard.read();
                shard.is_idle() && shard.floor() == 0
            };
            !(unshared && idle)
        });
    }

    /// Wakes every watcher of a collection, so that it looks whether its kind is still served.
    pub fn wake(&self, collection: &Collection) {
        if let Some(shard) = self.shards.read().get(collection) {
            shard.write().wake_all();
        }
    }
}
