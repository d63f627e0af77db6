//! Event expiry: deletes Events one hour after their last write, as kube-apiserver does through etcd leases.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::StoreKey;
use crate::{
    server::Core,
    store::{Event, Precondition, Revision, Write},
};

/// Time from the last write of an Event to its deletion.
const EVENT_TTL: SignedDuration = SignedDuration::from_hours(1);

/// Events by expiry time.
#[derive(Default)]
pub(super) struct Expiry {
    due: BTreeMap<(Timestamp, Revision), StoreKey>,
}

impl Expiry {
    pub(super) fn observe(&mut self, key: &StoreKey, event: &Event, now: Timestamp) {
        let end = now.checked_add(EVENT_TTL).unwrap_or(Timestamp::MAX);
        self.due.insert((end, event.revision()), key.clone());
    }

    /// Deletes expired events that have not been written since.
    pub(super) async fn sweep(&mut self, core: &Core) {
        let now = core.clock.now();
        while let Some(entry) = self.due.first_entry() {
            if entry.key().0 > now {
                return;
            }
            let ((_, revision), (collection, path)) = entry.remove_entry();
            // A conflict means that the event was written again; that write has its own entry.
            let _ = core
                .store
                .commit(Write {
                    collection,
                    path: path.to_string(),
                    precondition: Precondition::AtRevision(revision),
                    object: None,
                })
                .await;
        }
    }
}
