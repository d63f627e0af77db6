//! Events go an hour after they were last written.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::Place;
use crate::{
    server::Core,
    store::{Event, Expect, Revision, Write},
};

/// How long an event is kept.
const LIFE: SignedDuration = SignedDuration::from_hours(1);

/// When which event goes.
#[derive(Default)]
pub(super) struct Expiry {
    due: BTreeMap<(Timestamp, Revision), Place>,
}

impl Expiry {
    pub(super) fn note(&mut self, place: &Place, event: &Event, now: Timestamp) {
        let end = now.checked_add(LIFE).unwrap_or(Timestamp::MAX);
        self.due.insert((end, event.revision()), place.clone());
    }

    /// Removes what is due and has not been written since.
    pub(super) async fn sweep(&mut self, core: &Core) {
        let now = core.clock.now();
        while let Some(entry) = self.due.first_entry() {
            if entry.key().0 > now {
                return;
            }
            let ((_, revision), (collection, path)) = entry.remove_entry();
            // A conflict means that it was written again: that write has its own hour.
            let _ = core
                .store
                .commit(Write {
                    collection,
                    path: path.to_string(),
                    expect: Expect::At(revision),
                    draft: None,
                })
                .await;
        }
    }
}
