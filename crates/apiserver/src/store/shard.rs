//! One collection in memory: its objects, its recent history, and who waits for more.
//!
//! History is a ring of events bounded by count and age. A watcher holds no buffer: it holds the revision it has seen
//! and reads the ring; one that falls behind the ring is told that its revision is gone. A list of the past is the
//! present with the ring's events undone.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
    sync::Arc,
    task::Waker,
};

use jiff::Timestamp;

use super::{Compacted, Page, Range, Revision, Stored};

/// What an event did to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Created or updated.
    Put,
    /// Removed.
    Delete,
}

/// One write, as history keeps it.
#[derive(Clone, Debug)]
pub struct Event {
    /// `namespace/name` or `name`.
    pub path: Arc<str>,
    /// What happened.
    pub change: Change,
    /// The new state, or for a removal the last state at the revision of the removal.
    pub object: Stored,
    /// The state before, if there was one.
    pub before: Option<Stored>,
    pub(super) at: Timestamp,
}

impl Event {
    /// An object that is there, as if it had just been written: what a newcomer is told.
    pub fn seen(path: Arc<str>, object: Stored) -> Self {
        Self { path, change: Change::Put, object, before: None, at: Timestamp::UNIX_EPOCH }
    }

    /// The revision of the write.
    pub fn revision(&self) -> Revision {
        self.object.revision()
    }
}

#[derive(Default)]
pub(super) struct Shard {
    objects: BTreeMap<Arc<str>, Stored>,
    history: VecDeque<Event>,
    /// History is complete for revisions above this.
    floor: Revision,
    /// One slot per waiting watcher; all are woken by a write.
    waiting: Vec<Option<Waker>>,
    free: Vec<u32>,
}

impl Shard {
    /// A collection read from disk, whose latest write or removal was at `floor`.
    pub(super) fn restored(objects: BTreeMap<Arc<str>, Stored>, floor: Revision) -> Self {
        Self { objects, floor, ..Self::default() }
    }

    pub(super) fn get(&self, path: &str) -> Option<&Stored> {
        self.objects.get(path)
    }

    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    pub(super) fn floor(&self) -> Revision {
        self.floor
    }

    /// Applies one committed write and wakes the watchers. Answers the bytes of history it added.
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
                    Event { path: key, change: Change::Put, object, before, at }
                }
                None => {
                    let key: Arc<str> = path.into();
                    self.objects.insert(key.clone(), object.clone());
                    Event { path: key, change: Change::Put, object, before: None, at }
                }
            },
            None => {
                let Some((key, before)) = self.objects.remove_entry(path) else { return 0 };
                Event {
                    path: key,
                    change: Change::Delete,
                    object: before.at(revision),
                    before: Some(before),
                    at,
                }
            }
        };
        let size = event.object.json().len();
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
        self.history.back().map_or(self.floor, Event::revision)
    }

    /// Forgets the oldest history: all but `count` events, and all written before `before`. Answers the bytes freed.
    pub(super) fn compact(&mut self, count: usize, before: Timestamp) -> usize {
        let mut freed = 0;
        while self.history.len() > count || self.history.front().is_some_and(|event| event.at < before) {
            let Some(event) = self.history.pop_front() else { break };
            self.floor = event.revision();
            freed += event.object.json().len();
        }
        if self.history.is_empty() {
            self.history.shrink_to_fit();
        }
        freed
    }

    /// A page of the collection, now (`revision` is the store's) or as it was at `range.at`.
    pub(super) fn page(&self, range: &Range<'_>, revision: Revision) -> Result<Page, Compacted> {
        match range.at {
            Some(at) if at < revision => {
                if at < self.floor {
                    return Err(Compacted { asked: at, kept: self.floor });
                }
                let undone = self.undo(at, range.prefix);
                if undone.is_empty() {
                    return Ok(self.present(range, at));
                }
                Ok(self.past(range, at, undone))
            }
            _ => Ok(self.present(range, revision)),
        }
    }

    fn present(&self, range: &Range<'_>, revision: Revision) -> Page {
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

    /// The states at `at` of all paths under `prefix` written since: `None` where nothing was.
    fn undo(&self, at: Revision, prefix: &str) -> BTreeMap<&str, Option<&Stored>> {
        let mut states = BTreeMap::new();
        for event in self.history.iter().rev().take_while(|event| event.revision() > at) {
            if event.path.starts_with(prefix) {
                states.insert(&*event.path, event.before.as_ref());
            }
        }
        states
    }

    fn past(&self, range: &Range<'_>, at: Revision, undone: BTreeMap<&str, Option<&Stored>>) -> Page {
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
        if seen < self.floor {
            return Err(Compacted { asked: seen, kept: self.floor });
        }
        let from = self.history.partition_point(|event| event.revision() <= seen);
        Ok(self.history.range(from..).take(max).cloned().collect())
    }

    pub(super) fn wait(&mut self, slot: &mut Option<u32>, waker: &Waker) {
        let index = *slot.get_or_insert_with(|| {
            self.free.pop().unwrap_or_else(|| {
                self.waiting.push(None);
                // Watchers are bounded by the server far below u32.
                u32::try_from(self.waiting.len() - 1).unwrap_or(u32::MAX)
            })
        });
        if let Some(place) = self.waiting.get_mut(index as usize) {
            match place {
                Some(known) => known.clone_from(waker),
                None => *place = Some(waker.clone()),
            }
        }
    }

    pub(super) fn leave(&mut self, slot: u32) {
        if let Some(place) = self.waiting.get_mut(slot as usize) {
            *place = None;
            self.free.push(slot);
        }
        if self.free.len() == self.waiting.len() {
            self.waiting = Vec::new();
            self.free = Vec::new();
        }
    }

    /// Nothing in it, nobody waiting, no history: may be dropped.
    pub(super) fn is_idle(&self) -> bool {
        self.objects.is_empty() && self.history.is_empty() && self.waiting.is_empty()
    }

    /// Ends every watch on the collection: used when its kind goes away.
    pub(super) fn wake_all(&mut self) {
        for slot in &mut self.waiting {
            if let Some(waker) = slot.take() {
                waker.wake();
            }
        }
    }
}
