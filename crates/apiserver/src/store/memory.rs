//! A store in memory: for tests and the simulation. A commit happens in the call, so a single thread sees a total order.

use std::sync::Arc;

use futures::future::{BoxFuture, ready};

use super::{CommitError, HistoryLimits, Revision, Store, Stored, View, Write, order::Order};
use crate::seams::{Clock, SystemClock};

/// A store that forgets everything when it is dropped.
pub struct MemoryStore(Order);

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new(HistoryLimits::default(), Arc::new(SystemClock))
    }
}

impl MemoryStore {
    /// An empty store. `clock` dates history.
    pub fn new(limits: HistoryLimits, clock: Arc<dyn Clock>) -> Self {
        Self(Order::new(limits, clock))
    }
}

impl Store for MemoryStore {
    fn view(&self) -> &View {
        &self.0.view
    }

    fn commit(&self, write: Write) -> BoxFuture<'static, Result<Stored, CommitError>> {
        Box::pin(ready(self.0.write(write, |_, _, _| {})))
    }

    /// Nothing here lasts, so there is nothing to wait for.
    fn durable(&self, _: Revision) -> Option<BoxFuture<'static, Result<(), CommitError>>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use serde_json::json;

    use super::*;
    use crate::store::{Change, Collection, Draft, Expect, Next, Range};

    fn mk_collection() -> Collection {
        Collection::new("p", "configmaps")
    }

    fn put(store: &MemoryStore, path: &str, expect: Expect, value: u32) -> Result<Stored, CommitError> {
        let draft = Some(Draft::encode(&json!({"metadata": {"name": path}, "value": value})));
        store
            .commit(Write { collection: mk_collection(), path: path.into(), expect, draft })
            .now_or_never()
            .expect("memory answers at once")
    }

    fn remove(store: &MemoryStore, path: &str, at: Revision) -> Stored {
        store
            .commit(Write {
                collection: mk_collection(),
                path: path.into(),
                expect: Expect::At(at),
                draft: None,
            })
            .now_or_never()
            .expect("memory answers at once")
            .expect("removes")
    }

    fn names(store: &MemoryStore, range: &Range<'_>) -> Vec<String> {
        store
            .view()
            .range(&mk_collection(), range)
            .expect("in history")
            .items
            .into_iter()
            .map(|(path, _)| path.to_string())
            .collect()
    }

    #[test]
    fn revisions_grow_and_a_stale_write_is_refused_with_what_is_there() {
        let store = MemoryStore::default();
        let first = put(&store, "a", Expect::Absent, 1).expect("creates");
        assert_eq!(first.revision(), 2);
        let second = put(&store, "a", Expect::At(2), 2).expect("updates");
        assert_eq!(second.revision(), 3);
        match put(&store, "a", Expect::At(2), 3) {
            Err(CommitError::Conflict(Some(current))) => assert_eq!(current.revision(), 3),
            other => panic!("wanted a conflict, got {other:?}"),
        }
        assert!(matches!(put(&store, "a", Expect::Absent, 3), Err(CommitError::Conflict(Some(_)))));
        assert_eq!(store.view().revision(), 3);
    }

    #[test]
    fn the_past_can_be_listed_while_history_lasts() {
        let store = MemoryStore::default();
        put(&store, "n/a", Expect::Absent, 1).expect("creates");
        put(&store, "n/b", Expect::Absent, 1).expect("creates");
        remove(&store, "n/a", 2);
        put(&store, "n/c", Expect::Absent, 1).expect("creates");
        assert_eq!(names(&store, &Range::default()), ["n/b", "n/c"]);
        assert_eq!(names(&store, &Range { at: Some(3), ..Range::default() }), ["n/a", "n/b"]);
        assert_eq!(names(&store, &Range { at: Some(2), ..Range::default() }), ["n/a"]);
        assert_eq!(names(&store, &Range { from: "n/b\0", ..Range::default() }), ["n/c"]);
        assert_eq!(names(&store, &Range { prefix: "m/", ..Range::default() }), Vec::<String>::new());
    }

    #[test]
    fn a_watch_from_a_revision_sees_every_later_write_in_order() {
        let store = MemoryStore::default();
        put(&store, "a", Expect::Absent, 1).expect("creates");
        let mut watch = store.view().watch(&mk_collection(), 2).expect("in history");
        assert!(watch.next().now_or_never().is_none());
        put(&store, "a", Expect::At(2), 2).expect("updates");
        remove(&store, "a", 3);
        let seen: Vec<_> = std::iter::from_fn(|| match watch.next().now_or_never()? {
            Next::Event(event) => Some((event.change, event.revision())),
            Next::Compacted(gone) => panic!("{gone}"),
        })
        .collect();
        assert_eq!(seen, [(Change::Put, 3), (Change::Delete, 4)]);
    }

    #[test]
    fn a_watcher_behind_the_ring_is_told_and_never_buffered_for() {
        let limits = HistoryLimits { count: 2, ..HistoryLimits::default() };
        let store = MemoryStore::new(limits, Arc::new(SystemClock));
        let mut watch = store.view().watch(&mk_collection(), 1).expect("nothing yet");
        for n in 0..5 {
            put(&store, &format!("o{n}"), Expect::Absent, n).expect("creates");
        }
        assert!(matches!(watch.next().now_or_never(), Some(Next::Compacted(_))));
        assert!(store.view().watch(&mk_collection(), 2).is_err());
        assert!(store.view().watch(&mk_collection(), 4).is_ok());
    }
}
