//! Serializes all writes of a store: checks the precondition, assigns the revision and updates the view.

use parking_lot::Mutex;
use polis_apimachinery::{clock::Clock, storage_quota::StorageQuota};

use super::{CommitError, HistoryLimits, Precondition, Revision, Stored, View, Write};

/// A view and the lock of its writers.
pub(super) struct Sequencer {
    pub(super) view: View,
    clock: Clock,
    /// The last revision. Locked during the whole write.
    last: Mutex<Revision>,
}

impl Sequencer {
    /// Continues after the revision of the view. `clock` determines the age of history.
    pub(super) fn after(view: View, clock: Clock) -> Self {
        let last = Mutex::new(view.revision());
        Self { view, clock, last }
    }

    /// The sequencer of an empty store.
    pub(super) fn new(limits: HistoryLimits, clock: Clock) -> Self {
        // Revision 1 is "empty", as in etcd: 0 means "any" in the API and must never be an object's revision.
        Self::after(View::new(limits, 1), clock)
    }

    /// Performs one write, and calls `next` before another write can start.
    pub(super) fn write(
        &self,
        write: Write,
        quota: Option<StorageQuota>,
        next: impl FnOnce(Write, Revision, Option<Stored>),
    ) -> Result<Stored, CommitError> {
        let mut last = self.last.lock();
        let current = self.view.get(&write.collection, &write.path);
        check(write.precondition, current.as_ref())?;
        let revision = *last + 1;
        let object = write.object.as_ref().map(|object| object.with_revision(revision));
        let size = |object: Option<&Stored>| object.map(|object| object.json().len() as u64);
        let (old, new) = (size(current.as_ref()), size(object.as_ref()));
        if let Some(quota) = quota {
            quota.admit(self.view.usage(&write.collection.plane), old, new)?;
        }
        let stored = match (&object, current) {
            (Some(object), _) => object.clone(),
            (None, Some(current)) => current.with_revision(revision),
            (None, None) => return Err(CommitError::Conflict(None)),
        };
        self.view.account(&write.collection.plane, old, new);
        self.view.apply(&write.collection, &write.path, revision, object.clone(), self.clock.now());
        *last = revision;
        next(write, revision, object);
        Ok(stored)
    }
}

/// Checks a precondition against the current object.
fn check(precondition: Precondition, current: Option<&Stored>) -> Result<(), CommitError> {
    match (precondition, current) {
        (Precondition::Absent, None) => Ok(()),
        (Precondition::AtRevision(revision), Some(current)) if current.revision() == revision => Ok(()),
        (_, current) => Err(CommitError::Conflict(current.cloned())),
    }
}
