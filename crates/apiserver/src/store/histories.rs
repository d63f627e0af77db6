//! The bytes of all histories, by plane, and which events go when they are too many.
//!
//! One plane cannot drive out the history of another: above its own limit a plane loses its oldest events,
//! and above the limit of all planes the plane with the most bytes does. Its watchers that are further behind
//! list again.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Weak},
};

use parking_lot::RwLock;

use super::{
    Revision,
    shard::Shard,
    view::{HistoryLimits, SharedShard},
};

/// The histories of all planes. A write and the regular compaction may account in any order, so the sums are
/// signed.
#[derive(Default)]
pub(super) struct Histories {
    bytes: i64,
    planes: HashMap<Arc<str>, PlaneHistory>,
}

#[derive(Default)]
struct PlaneHistory {
    bytes: i64,
    /// The events of the plane, oldest first. It may have events that their collection has dropped.
    events: VecDeque<(Revision, Weak<RwLock<Shard>>)>,
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl Histories {
    /// Records an event of a plane.
    pub(super) fn add(&mut self, plane: &Arc<str>, revision: Revision, shard: &SharedShard, bytes: usize) {
        let history = self.planes.entry(plane.clone()).or_default();
        history.bytes += signed(bytes);
        history.events.push_back((revision, Arc::downgrade(shard)));
        self.bytes += signed(bytes);
    }

    /// Records that a collection of the plane has dropped events.
    pub(super) fn subtract(&mut self, plane: &str, bytes: usize) {
        self.bytes -= signed(bytes);
        if let Some(history) = self.planes.get_mut(plane) {
            history.bytes -= signed(bytes);
        }
    }

    /// Drops events until the plane that was written, and all planes together, are within their limits. The
    /// latest event of a plane stays: its watchers read it from the history.
    pub(super) fn enforce(&mut self, limits: &HistoryLimits, written: &str) {
        if let Some(history) = self.planes.get_mut(written) {
            history.skip_dropped();
            while history.bytes > signed(limits.plane_bytes) {
                let Some(freed) = history.drop_oldest() else { break };
                self.bytes -= freed;
            }
        }
        while self.bytes > signed(limits.bytes) {
            let largest = self.planes.values_mut().filter(|history| history.events.len() > 1);
            let Some(history) = largest.max_by_key(|history| history.bytes) else { break };
            let Some(freed) = history.drop_oldest() else { break };
            self.bytes -= freed;
        }
    }

    /// Drops the records of events that their collections have dropped.
    pub(super) fn forget(&mut self) {
        self.planes.retain(|_, history| {
            history.skip_dropped();
            !history.events.is_empty()
        });
    }
}

impl PlaneHistory {
    fn skip_dropped(&mut self) {
        while let Some((revision, shard)) = self.events.front() {
            let kept = shard.upgrade().is_some_and(|shard| shard.read().compact_revision() < *revision);
            if kept {
                return;
            }
            self.events.pop_front();
        }
    }

    /// Drops the oldest event, unless it is the only one. Returns its bytes.
    fn drop_oldest(&mut self) -> Option<i64> {
        if self.events.len() <= 1 {
            return None;
        }
        let (revision, shard) = self.events.pop_front()?;
        let freed = shard.upgrade().map_or(0, |shard| signed(shard.write().compact_through(revision)));
        self.bytes -= freed;
        Some(freed)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use polis_apimachinery::clock::Clock;
    use serde_json::json;

    use crate::store::{
        Collection, EncodedObject, HistoryLimits, MemoryStore, Precondition, Store, WatchItem, Write,
    };

    fn create(store: &MemoryStore, plane: &str, name: &str, bytes: usize) {
        let object = EncodedObject::encode(&json!({"data": "x".repeat(bytes)}));
        let write = Write {
            collection: Collection::new(plane, "things"),
            path: name.into(),
            precondition: Precondition::Absent,
            object: Some(object),
        };
        store.commit(write).now_or_never().expect("a synchronous commit").expect("creates");
    }

    fn events_left(store: &MemoryStore, plane: &str) -> usize {
        let collection = Collection::new(plane, "things");
        let oldest = match store.view().watch(&collection, 1) {
            Ok(_) => 1,
            Err(compacted) => compacted.oldest,
        };
        store.view().since(&collection, oldest).expect("in the history").len()
    }

    #[test]
    fn a_plane_with_large_objects_keeps_a_short_history_and_its_neighbour_a_whole_one() {
        let limits = HistoryLimits { plane_bytes: 10_000, ..HistoryLimits::default() };
        let store = MemoryStore::new(limits, Clock::system());
        for n in 0..20 {
            create(&store, "large", &n.to_string(), 2000);
            create(&store, "small", &n.to_string(), 10);
        }
        assert_eq!(events_left(&store, "large"), 4);
        assert_eq!(events_left(&store, "small"), 20);
    }

    #[test]
    fn above_the_limit_of_all_planes_the_largest_history_is_shortened() {
        let limits = HistoryLimits { bytes: 10_000, ..HistoryLimits::default() };
        let store = MemoryStore::new(limits, Clock::system());
        create(&store, "small", "a", 1000);
        for n in 0..20 {
            create(&store, "large", &n.to_string(), 1500);
        }
        assert_eq!(events_left(&store, "small"), 1);
        assert_eq!(events_left(&store, "large"), 5);
    }

    #[test]
    fn a_watcher_reads_the_latest_event_however_large_it_is() {
        let limits = HistoryLimits { plane_bytes: 100, bytes: 100, ..HistoryLimits::default() };
        let store = MemoryStore::new(limits, Clock::system());
        let mut watch = store.view().watch(&Collection::new("p", "things"), 1).expect("nothing yet");
        for n in 0..3 {
            create(&store, "p", &n.to_string(), 1000);
            assert!(matches!(watch.next().now_or_never(), Some(WatchItem::Event(_))));
        }
    }
}
