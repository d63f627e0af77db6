//! Own writes: object states that the cache has, or misses, before the watch has shown them.
//!
//! The response of a write enters the cache if it is newer than everything that the watch has shown. From
//! then on the watch is late for this object, and this module decides which of its events still count:
//!
//! - A state from before the write is ignored, and the state of the write itself is no change.
//! - A deleted object leaves a tombstone. While it exists, late states of the object (the same UID) and of
//!   its predecessors (an older version) are ignored. It ends with the deletion event, with a list that does
//!   not contain the object, or with a new object of that name.
//! - A list neither drops nor replaces a state that is newer than the list.
//!
//! A response that cannot enter the cache holds the key that wrote it (see [`crate::hold`]) until the watch
//! shows the write.
//!
//! Because the watch shows the changes of a kind in the order of their versions, its last version tells which
//! responses it has shown already. A response that arrives after its own events is thus recognised, even if
//! the object has been deleted again in the meantime.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::ParsedObject;
use crate::hold::Hold;
use crate::resource_version::ResourceVersion;

/// The progress of the watch of one store, and the own writes that it has not shown.
#[derive(Debug, Default)]
pub(super) struct OwnWrites {
    /// The watch has shown every change up to this version; none before the first list, and if versions
    /// cannot be compared.
    shown: Option<ResourceVersion>,
    /// None if there are no such writes, so that an idle store allocates nothing.
    unshown: Option<Box<Unshown>>,
}

#[derive(Debug, Default)]
struct Unshown {
    /// Objects whose state in the cache is ahead of the watch, by id.
    ahead: BTreeMap<Arc<str>, Ahead>,
    /// Writes that could not enter the cache.
    held: Vec<HeldWrite>,
}

/// How the cache is ahead of the watch.
#[derive(Debug)]
enum Ahead {
    /// Created or updated, at this version.
    Written(ResourceVersion),
    /// Deleted: the UID of the object, and the last version that the cache had.
    Deleted { uid: Box<str>, last: Option<ResourceVersion> },
}

/// A write that could not enter the cache, and the key that waits for the watch to show it.
#[derive(Debug)]
struct HeldWrite {
    id: Arc<str>,
    uid: Box<str>,
    version: Box<str>,
    hold: Hold,
}

impl OwnWrites {
    /// Whether the watch has shown the state of a response, or a later delete has removed the object.
    pub(super) fn includes(&self, response: &ParsedObject, version: ResourceVersion) -> bool {
        let ahead = self.unshown.as_ref().and_then(|unshown| unshown.ahead.get(&response.id));
        self.shown >= Some(version)
            || match ahead {
                Some(Ahead::Deleted { uid, last }) => *response.uid == **uid || *last >= Some(version),
                Some(Ahead::Written(_)) | None => false,
            }
    }

    /// Records that the state of a write has entered the cache.
    pub(super) fn set_written(&mut self, id: Arc<str>, version: ResourceVersion) {
        self.unshown.get_or_insert_default().ahead.insert(id, Ahead::Written(version));
    }

    /// Records that a delete has removed an object from the cache.
    pub(super) fn set_deleted(&mut self, id: Arc<str>, uid: &str, last: Option<ResourceVersion>) {
        self.unshown.get_or_insert_default().ahead.insert(id, Ahead::Deleted { uid: uid.into(), last });
    }

    /// Holds a key until the watch shows this write.
    pub(super) fn hold(&mut self, response: &ParsedObject, hold: Hold) {
        let held = &mut self.unshown.get_or_insert_default().held;
        held.retain(|held| !held.hold.is_expired());
        let (uid, version) = (response.uid.as_str().into(), response.version.as_str().into());
        held.push(HeldWrite { id: response.id.clone(), uid, version, hold });
    }

    /// Whether a state from the watch or a list enters the cache. False if the cache has it or a later one.
    pub(super) fn admit(&mut self, object: &ParsedObject) -> bool {
        let Some(unshown) = &mut self.unshown else { return true };
        unshown.held.retain(|held| held.id != object.id || *held.version != *object.version);
        let version = ResourceVersion::parse(&object.version);
        let (admitted, confirmed) = match unshown.ahead.get(&object.id) {
            None => (true, false),
            Some(Ahead::Written(written)) => (
                version.is_none_or(|version| version > *written),
                version.is_none_or(|version| version >= *written),
            ),
            Some(Ahead::Deleted { uid, last }) => {
                let successor = *object.uid != **uid && !is_before(version, *last);
                (successor, successor)
            }
        };
        if confirmed {
            unshown.ahead.remove(&object.id);
        }
        self.free_if_empty();
        admitted
    }

    /// Whether a deletion from the watch takes effect. False if it is older than an own write.
    pub(super) fn admit_deletion(&mut self, object: &ParsedObject) -> bool {
        let Some(unshown) = &mut self.unshown else { return true };
        unshown.held.retain(|held| held.uid.as_ref() != object.uid);
        let version = ResourceVersion::parse(&object.version);
        let admitted = match unshown.ahead.get(&object.id) {
            None => true,
            Some(Ahead::Written(written)) => !is_before(version, Some(*written)),
            Some(Ahead::Deleted { uid, last }) => *object.uid == **uid || !is_before(version, *last),
        };
        if admitted {
            unshown.ahead.remove(&object.id);
        }
        self.free_if_empty();
        admitted
    }

    /// The newest version that the watch has shown or an own write has created.
    pub(super) fn newest(&self) -> Option<ResourceVersion> {
        let ahead = self.unshown.iter().flat_map(|unshown| unshown.ahead.values());
        let written = ahead.filter_map(|ahead| match ahead {
            Ahead::Written(version) => Some(*version),
            Ahead::Deleted { last, .. } => *last,
        });
        written.chain(self.shown).max()
    }

    /// Records that the watch has shown every change up to a version.
    pub(super) fn set_shown(&mut self, version: &str) {
        self.shown = ResourceVersion::parse(version);
        if let Some(unshown) = &mut self.unshown {
            let is_shown = |held: &HeldWrite| {
                ResourceVersion::parse(&held.version).is_some_and(|version| Some(version) <= self.shown)
            };
            unshown.held.retain(|held| !is_shown(held));
            self.free_if_empty();
        }
    }

    /// Records that a list is complete: it contains these objects and shows every change up to a version.
    /// Returns the written objects that are newer than the list.
    pub(super) fn complete_list(&mut self, listed: &BTreeSet<Arc<str>>, version: &str) -> BTreeSet<Arc<str>> {
        let list = ResourceVersion::parse(version);
        // A list that is older than the watch comes from a server that was restored from a backup.
        let is_restored = list < self.shown;
        self.shown = list;
        let Some(unshown) = &mut self.unshown else { return BTreeSet::new() };
        unshown.held.clear();
        unshown.ahead.retain(|id, ahead| match ahead {
            Ahead::Written(version) => !is_restored && is_before(list, Some(*version)),
            Ahead::Deleted { last, .. } => !is_restored && (listed.contains(id) || is_before(list, *last)),
        });
        let written =
            |(id, ahead): (&Arc<str>, &Ahead)| matches!(ahead, Ahead::Written(_)).then(|| id.clone());
        let newer = unshown.ahead.iter().filter_map(written).collect();
        self.free_if_empty();
        newer
    }

    fn free_if_empty(&mut self) {
        if self.unshown.as_ref().is_some_and(|unshown| unshown.ahead.is_empty() && unshown.held.is_empty()) {
            self.unshown = None;
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.unshown.is_none()
    }
}

/// Whether a version is older than another. False if they cannot be compared.
fn is_before(version: Option<ResourceVersion>, other: Option<ResourceVersion>) -> bool {
    version.zip(other).is_some_and(|(version, other)| version < other)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store exists for every kind of every project, so its size matters.
    #[test]
    fn an_idle_store_needs_16_bytes_for_own_writes() {
        assert_eq!(std::mem::size_of::<OwnWrites>(), 16);
    }
}
