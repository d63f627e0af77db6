//! One collection in memory: its objects, its recent history and its watchers.
//!
//! History is a queue of events, bounded by count and age. A watcher has no buffer: it remembers its last
//! revision and reads the history from there. A watcher behind the history gets [`Compacted`]. A list at a
//! past revision is the current state with the later events reverted.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
    sync::Arc,
    task::Waker,
};

use jiff::Timestamp;

use super::{Compacted, Page, RangeOptions, Revision, Stored};

/// The type of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeType {
    /// Created or updated.
    Put,
    /// Deleted.
    Delete,
}

/// One write in the history of a collection.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    /// `namespace/name` or `name`.
    pub path: Arc<str>,
    /// The type of the write.
    pub change: ChangeType,
    /// The new state; for a deletion the last state with the revision of the deletion.
    pub object: Stored,
    /// The previous state; `None` if the write created the object.
    pub before: Option<Stored>,
    pub(super) at: Timestamp,
}

impl Event {
    /// An existing object as an event, for the initial list of an observer.
    pub(crate) fn initial(path: Arc<str>, object: Stored) -> Self {
        Self { path, change: ChangeType::Put, object, before: None, at: Timestamp::UNIX_EPOCH }
    }

    /// Bytes of the states that the event keeps in memory.
    fn size(&self) -> usize {
        self.object.json().len() + self.before.as_ref().map_or(0, |before| before.json().len())
    }

    /// The revision of the write.
    pub(crate) fn revision(&self) -> Revision {
        self.object.revision()
    }
}

#[derive(Default)]
pub(super) struct Shard {
    objects: BTreeMap<Arc<str>, Stored>,
    history: VecDeque<Event>,
    /// History is complete after this revision.
    compact_revision: Revision,
    /// One slot per waiting watcher; every write wakes all of them.
    waiting: Vec<Option<Waker>>,
    free: Vec<u32>,
}

impl Shard {
    /// A collection read from disk, whose latest write or deletion was at `compact_revision`.
    pub(super) fn restored(objects: BTreeMap<Arc<str>, Stored>, compact_revision: Revision) -> Self {
        Self { objects, compact_revision, ..Self::default() }
    }

    pub(super) fn get(&self, path: &str) -> Option<&Stored> {
        self.objects.get(path)
    }

    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    pub(super) fn compact_revision(&self) -> Revision {
        self.compact_revision
    }

    /// Applies one committed write and wakes the watchers. Returns the bytes added to the history.
    pub(super) fn apply(
        &mut self,
        path: &str,
        revision: Revision,
        object: Option<Stored>,
        at: Timestamp,
    ) -> usize {
        let event = match object {
            Some(object) => match self.objects.get_key_value(path).map(|(key, _)| key.clone()) {
                Some(key) => {
                    let before = self.objects.insert(key.clone(), object.clone());
                    Event { path: key, change: ChangeType::Put, object, before, at }
                }
                None => {
                    let key: Arc<str> = path.into();
                    self.objects.insert(key.clone(), object.clone());
                    Event { path: key, change: ChangeType::Put, object, before: None, at }
                }
            },
            None => {
                let Some((key, before)) = self.objects.remove_entry(path) else { return 0 };
                Event {
                    path: key,
                    change: ChangeType::Delete,
                    object: before.with_revision(revision),
                    before: Some(before),
                    at,
                }
            }
        };
        let size = event.size();
        self.history.push_back(event);
        for slot in &mut self.waiting {
            if let Some(waker) = slot.take() {
                waker.wake();
            }
        }
        size
    }

    pub(super) fn last(&self) -> Option<&Event> {
        self.history.back()
    }

    pub(super) fn changed_at(&self) -> Revision {
        self.history.back().map_or(self.compact_revision, Event::revision)
    }

    /// Drops all but the last `count` events, and all events older than `before`. Returns the bytes freed.
    pub(super) fn compact(&mut self, count: usize, before: Timestamp) -> usize {
        let mut freed = 0;
        while self.history.len() > count || self.history.front().is_some_and(|event| event.at < before) {
            let Some(event) = self.history.pop_front() else { break };
            self.compact_revision = event.revision();
            freed += event.size();
        }
        if self.history.is_empty() {
            self.history.shrink_to_fit();
        }
        freed
    }

    /// Drops the events up to a revision. Returns the bytes freed.
    pub(super) fn compact_through(&mut self, revision: Revision) -> usize {
        let mut freed = 0;
        while let Some(event) = self.history.pop_front_if(|event| event.revision() <= revision) {
            self.compact_revision = event.revision();
            freed += event.size();
        }
        freed
    }

    /// A page of the collection at `range.at`, or at `revision`, the current one of the store.
    pub(super) fn page(&self, range: &RangeOptions<'_>, revision: Revision) -> Result<Page, Compacted> {
        match range.at {
            Some(at) if at < revision => {
                if at < self.compact_revision {
                    return Err(Compacted { requested: at, oldest: self.compact_revision });
                }
                let undone = self.states_at(at, range.prefix);
                if undone.is_empty() {
                    return Ok(self.current_page(range, at));
                }
                Ok(self.past_page(range, at, undone))
            }
            _ => Ok(self.current_page(range, revision)),
        }
    }

    fn current_page(&self, range: &RangeOptions<'_>, revision: Revision) -> Page {
        let mut matching = self
            .objects
            .range::<str, _>((range.start(), Bound::Unbounded))
            .take_while(|(path, _)| path.starts_with(range.prefix));
        let items: Vec<_> = matching
            .by_ref()
            .take(range.limit)
            .map(|(path, object)| (path.clone(), object.clone()))
            .collect();
        let remaining = matching.count();
        Page { items, revision, remaining }
    }

    /// The states at `at` of all paths under `prefix` that were written since; `None` if the object did not
    /// exist.
    fn states_at(&self, at: Revision, prefix: &str) -> BTreeMap<&str, Option<&Stored>> {
        let mut states = BTreeMap::new();
        for event in self.history.iter().rev().take_while(|event| event.revision() > at) {
            if event.path.starts_with(prefix) {
                states.insert(&*event.path, event.before.as_ref());
            }
        }
        states
    }

    fn past_page(
        &self,
        range: &RangeOptions<'_>,
        at: Revision,
        undone: BTreeMap<&str, Option<&Stored>>,
    ) -> Page {
        let untouched = self
            .objects
            .iter()
            .filter(|(path, _)| !undone.contains_key(&***path))
            .map(|(path, object)| (&**path, object));
        let restored = undone.iter().filter_map(|(path, object)| object.map(|object| (*path, object)));
        let merged: BTreeMap<&str, &Stored> = untouched.chain(restored).collect();
        let mut matching = merged
            .range::<str, _>((range.start(), Bound::Unbounded))
            .take_while(|(path, _)| path.starts_with(range.prefix));
        let items: Vec<_> = matching
            .by_ref()
            .take(range.limit)
            .map(|(path, object)| (Arc::from(*path), (*object).clone()))
            .collect();
        let remaining = matching.count();
        Page { items, revision: at, remaining }
    }

    /// At most `max` events after `seen`, oldest first.
    pub(super) fn since(&self, seen: Revision, max: usize) -> Result<Vec<Event>, Compacted> {
        if seen < self.compact_revision {
            return Err(Compacted { requested: seen, oldest: self.compact_revision });
        }
        let from = self.history.partition_point(|event| event.revision() <= seen);
        Ok(self.history.range(from..).take(max).cloned().collect())
    }

    pub(super) fn register_waker(&mut self, slot: &mut Option<u32>, waker: &Waker) {
        let index = *slot.get_or_insert_with(|| {
            self.free.pop().unwrap_or_else(|| {
                self.waiting.push(None);
                // The server limits watchers far below u32::MAX.
                u32::try_from(self.waiting.len() - 1).unwrap_or(u32::MAX)
            })
        });
        if let Some(registered) = self.waiting.get_mut(index as usize) {
            match registered {
                Some(known) => known.clone_from(waker),
                None => *registered = Some(waker.clone()),
            }
        }
    }

    pub(super) fn unregister_waker(&mut self, slot: u32) {
        if let Some(registered) = self.waiting.get_mut(slot as usize) {
            *registered = None;
            self.free.push(slot);
        }
        if self.free.len() == self.waiting.len() {
            self.waiting = Vec::new();
            self.free = Vec::new();
        }
    }

    /// Whether the shard has no objects, no history and no watchers, so that it can be dropped.
    pub(super) fn is_idle(&self) -> bool {
        self.objects.is_empty() && self.history.is_empty() && self.waiting.is_empty()
    }

    /// Wakes every watcher, so that it checks whether its kind is still served.
    pub(super) fn wake_all(&mut self) {
        for slot in &mut self.waiting {
            if let Some(waker) = slot.take() {
                waker.wake();
            }
        }
    }
}
