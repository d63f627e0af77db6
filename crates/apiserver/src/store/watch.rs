//! A watch: a position in the history of a collection.
//!
//! A watch costs a pointer, a revision and, while it waits, a waker. It has no buffer of its own.

use std::{
    collections::VecDeque,
    task::{Context, Poll},
};

use super::{Compacted, Event, Revision, view::SharedShard};

/// Events read from the history under one lock.
const BATCH: usize = 32;

/// The next item of a watch.
#[derive(Debug)]
pub(crate) enum WatchItem {
    /// A write.
    Event(Event),
    /// The watcher is behind the history and must list again.
    Compacted(Compacted),
}

/// A watch on one collection.
pub(crate) struct StoreWatch {
    shard: SharedShard,
    seen: Revision,
    taken: VecDeque<Event>,
    slot: Option<u32>,
}

impl StoreWatch {
    pub(super) fn new(shard: SharedShard, seen: Revision) -> Self {
        Self { shard, seen, taken: VecDeque::new(), slot: None }
    }

    /// Polls for the next write.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<WatchItem> {
        if let Some(event) = self.taken.pop_front() {
            return Poll::Ready(WatchItem::Event(event));
        }
        self.taken = VecDeque::new();
        let mut shard = self.shard.write();
        match shard.since(self.seen, BATCH) {
            Err(compacted) => Poll::Ready(WatchItem::Compacted(compacted)),
            Ok(events) => {
                let mut events = VecDeque::from(events);
                let Some(first) = events.pop_front() else {
                    shard.register_waker(&mut self.slot, context.waker());
                    return Poll::Pending;
                };
                self.seen = events.back().unwrap_or(&first).revision();
                self.taken = events;
                Poll::Ready(WatchItem::Event(first))
            }
        }
    }

    /// Waits for the next write.
    #[cfg(test)]
    pub(crate) async fn next(&mut self) -> WatchItem {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }
}

impl Drop for StoreWatch {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.shard.write().unregister_waker(slot);
        }
    }
}
