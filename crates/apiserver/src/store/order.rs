//! The one order of all writes of a store: each is checked against what is there, numbered, and shown to readers.

use std::sync::Arc;

use parking_lot::Mutex;

use super::{CommitError, Expect, HistoryLimits, Revision, Stored, View, Write};
use crate::seams::Clock;

/// A view and the right to write to it, one write at a time.
pub(super) struct Order {
    pub(super) view: View,
    clock: Arc<dyn Clock>,
    /// Held over check, numbering and showing.
    last: Mutex<Revision>,
}

impl Order {
    /// Goes on after what is in the view. `clock` dates history.
    pub(super) fn after(view: View, clock: Arc<dyn Clock>) -> Self {
        let last = Mutex::new(view.revision());
        Self { view, clock, last }
    }

    /// The order of an empty store.
    pub(super) fn new(limits: HistoryLimits, clock: Arc<dyn Clock>) -> Self {
        // Revision 1 is "empty", as in etcd: 0 means "any" in the API and must never be an object's revision.
        Self::after(View::new(limits, 1), clock)
    }

    /// Makes one write, and hands it to `next` before there can be another.
    pub(super) fn write(
        &self,
        write: Write,
        next: impl FnOnce(Write, Revision, Option<Stored>),
    ) -> Result<Stored, CommitError> {
        let mut last = self.last.lock();
        let current = self.view.get(&write.collection, &write.path);
        check(write.expect, current.as_ref())?;
        let revision = *last + 1;
        let object = write.draft.as_ref().map(|draft| draft.finish(revision));
        let answer = match (&object, current) {
            (Some(object), _) => object.clone(),
            (None, Some(current)) => current.at(revision),
            (None, None) => return Err(CommitError::Conflict(None)),
        };
        self.view.apply(&write.collection, &write.path, revision, object.clone(), self.clock.now());
        *last = revision;
        next(write, revision, object);
        Ok(answer)
    }
}

/// Whether a write may go ahead over what is there.
fn check(expect: Expect, current: Option<&Stored>) -> Result<(), CommitError> {
    match (expect, current) {
        (Expect::Absent, None) => Ok(()),
        (Expect::At(revision), Some(current)) if current.revision() == revision => Ok(()),
        (_, current) => Err(CommitError::Conflict(current.cloned())),
    }
}
