//! A watcher's place in the history of a collection.
//!
//! It costs a pointer, a revision and, while it waits, a waker. It buffers nothing.

use std::{
    collections::VecDeque,
    task::{Context, Poll},
};

use super::{Compacted, Event, Revision, view::SharedShard};

/// Events taken from history at a time: enough to amortise the lock, few enough to hold little.
const BATCH: usize = 32;

/// What a watch yields next.
#[derive(Debug)]
pub enum Next {
    /// A write.
    Event(Event),
    /// The watcher fell behind the history that is kept: it must list again.
    Compacted(Compacted),
}

/// A watch on one collection.
pub struct Watch {
    shard: SharedShard,
    seen: Revision,
    taken: VecDeque<Event>,
    slot: Option<u32>,
}

impl Watch {
    pub(super) fn new(shard: SharedShard, seen: Revision) -> Self {
        Self { shard, seen, taken: VecDeque::new(), slot: None }
    }

    /// The next write, or pending until there is one.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Next> {
        if let Some(event) = self.taken.pop_front() {
            return Poll::Ready(Next::Event(event));
        }
        self.taken = VecDeque::new();
        let mut shard = self.shard.write();
        match shard.since(self.seen, BATCH) {
            Err(gone) => Poll::Ready(Next::Compacted(gone)),
            Ok(events) => {
                let mut events = VecDeque::from(events);
                let Some(first) = events.pop_front() else {
                    shard.wait(&mut self.slot, context.waker());
                    return Poll::Pending;
                };
                self.seen = events.back().unwrap_or(&first).revision();
                self.taken = events;
                Poll::Ready(Next::Event(first))
            }
        }
    }

    /// The next write, when there is one.
    pub async fn next(&mut self) -> Next {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// Declares everything up to `revision` seen: nothing older can come. The caller knows that no event lies between.
    pub fn skip_to(&mut self, revision: Revision) {
        if self.taken.is_empty() {
            self.seen = self.seen.max(revision);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.shard.write().leave(slot);
        }
    }
}
