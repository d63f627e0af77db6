//! A store in memory, for tests. Commits are synchronous, so a single-threaded run is
//! deterministic.

use futures::future::{BoxFuture, ready};
use polis_apimachinery::{clock::Clock, storage_quota::StorageQuota};

use super::{CommitError, HistoryLimits, Revision, Store, Stored, View, Write, sequencer::Sequencer};

/// A store without persistence.
pub(crate) struct MemoryStore(Sequencer);

impl MemoryStore {
    /// An empty store. `clock` determines the age of history.
    pub(crate) fn new(limits: HistoryLimits, clock: Clock) -> Self {
        Self(Sequencer::new(limits, clock))
    }
}

impl Store for MemoryStore {
    fn view(&self) -> &View {
        &self.0.view
    }

    fn commit_within(
        &self,
        write: Write,
        quota: Option<StorageQuota>,
    ) -> BoxFuture<'static, Result<Stored, CommitError>> {
        Box::pin(ready(self.0.write(write, quota, |_, _, _| {})))
    }

    /// Nothing is persisted, so there is nothing to wait for.
    fn durable(&self, _: Revision) -> Option<BoxFuture<'static, Result<(), CommitError>>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use serde_json::json;

    use super::*;
    use crate::store::{ChangeType, Collection, EncodedObject, Precondition, RangeOptions, WatchItem};

    fn mk_collection() -> Collection {
        Collection::new("p", "configmaps")
    }

    fn put(
        store: &MemoryStore,
        path: &str,
        precondition: Precondition,
        value: u32,
    ) -> Result<Stored, CommitError> {
        let object = Some(EncodedObject::encode(&json!({"metadata": {"name": path}, "value": value})));
        store
            .commit(Write { collection: mk_collection(), path: path.into(), precondition, object })
            .now_or_never()
            .expect("a synchronous commit")
    }

    fn remove(store: &MemoryStore, path: &str, at: Revision) -> Stored {
        store
            .commit(Write {
                collection: mk_collection(),
                path: path.into(),
                precondition: Precondition::AtRevision(at),
                object: None,
            })
            .now_or_never()
            .expect("a synchronous commit")
            .expect("removes")
    }

    fn names(store: &MemoryStore, range: &RangeOptions<'_>) -> Vec<String> {
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
    fn revisions_grow_and_a_stale_write_is_refused_with_the_current_object() {
        let store = MemoryStore::new(HistoryLimits::default(), Clock::system());
        let first = put(&store, "a", Precondition::Absent, 1).expect("creates");
        assert_eq!(first.revision(), 2);
        let second = put(&store, "a", Precondition::AtRevision(2), 2).expect("updates");
        assert_eq!(second.revision(), 3);
        match put(&store, "a", Precondition::AtRevision(2), 3) {
            Err(CommitError::Conflict(Some(current))) => assert_eq!(current.revision(), 3),
            other => panic!("expected a conflict, got {other:?}"),
        }
        assert!(matches!(put(&store, "a", Precondition::Absent, 3), Err(CommitError::Conflict(Some(_)))));
        assert_eq!(store.view().revision(), 3);
    }

    #[test]
    fn a_past_revision_can_be_listed_until_it_is_compacted() {
        let store = MemoryStore::new(HistoryLimits::default(), Clock::system());
        put(&store, "n/a", Precondition::Absent, 1).expect("creates");
        put(&store, "n/b", Precondition::Absent, 1).expect("creates");
        remove(&store, "n/a", 2);
        put(&store, "n/c", Precondition::Absent, 1).expect("creates");
        assert_eq!(names(&store, &RangeOptions::default()), ["n/b", "n/c"]);
        assert_eq!(names(&store, &RangeOptions { at: Some(3), ..RangeOptions::default() }), ["n/a", "n/b"]);
        assert_eq!(names(&store, &RangeOptions { at: Some(2), ..RangeOptions::default() }), ["n/a"]);
        assert_eq!(names(&store, &RangeOptions { from: "n/b\0", ..RangeOptions::default() }), ["n/c"]);
        assert_eq!(
            names(&store, &RangeOptions { prefix: "m/", ..RangeOptions::default() }),
            Vec::<String>::new()
        );
    }

    #[test]
    fn a_watch_from_a_revision_sees_every_later_write_in_order() {
        let store = MemoryStore::new(HistoryLimits::default(), Clock::system());
        put(&store, "a", Precondition::Absent, 1).expect("creates");
        let mut watch = store.view().watch(&mk_collection(), 2).expect("in history");
        assert!(watch.next().now_or_never().is_none());
        put(&store, "a", Precondition::AtRevision(2), 2).expect("updates");
        remove(&store, "a", 3);
        let seen: Vec<_> = std::iter::from_fn(|| match watch.next().now_or_never()? {
            WatchItem::Event(event) => Some((event.change, event.revision())),
            WatchItem::Compacted(gone) => panic!("{gone}"),
        })
        .collect();
        assert_eq!(seen, [(ChangeType::Put, 3), (ChangeType::Delete, 4)]);
    }

    #[test]
    fn a_watcher_behind_the_history_gets_compacted_instead_of_a_buffer() {
        let limits = HistoryLimits { count: 2, ..HistoryLimits::default() };
        let store = MemoryStore::new(limits, Clock::system());
        let mut watch = store.view().watch(&mk_collection(), 1).expect("nothing yet");
        for n in 0..5 {
            put(&store, &format!("o{n}"), Precondition::Absent, n).expect("creates");
        }
        assert!(matches!(watch.next().now_or_never(), Some(WatchItem::Compacted(_))));
        assert!(store.view().watch(&mk_collection(), 2).is_err());
        assert!(store.view().watch(&mk_collection(), 4).is_ok());
    }
}
