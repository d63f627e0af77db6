//! Holds: keys that are not reconciled before the watch has shown their own last write.
//!
//! The response of a write normally enters the cache at once (see [`crate::cache`]). Where it cannot, because
//! the versions of the server cannot be compared or a selector cannot be evaluated, a reconcile of the same
//! key could decide on a state from before the write: it would create an object again, or update it with an
//! old resource version. So the key waits. It is queued again when the watch shows the write, and after
//! [`HOLD_TIMEOUT`] at the latest: the object may have been changed and deleted while the watch was
//! interrupted.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::queue::Queue;
use crate::schedule::{Priority, Task};

/// How long a key waits for the watch to show its write.
const HOLD_TIMEOUT: Duration = Duration::from_secs(10);

tokio::task_local! {
    /// The key that the current task reconciles. Tasks that a reconcile spawns do not have it: their writes
    /// hold no key.
    static RUNNING: (Task, Holds);
}

/// The held keys of an engine. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Holds(Arc<Inner>);

struct Inner {
    queue: Queue,
    keys: Mutex<BTreeMap<Task, HeldKey>>,
    next_id: AtomicU64,
}

#[derive(Default)]
struct HeldKey {
    /// When each hold of the key ends at the latest, by its id.
    until: BTreeMap<u64, Instant>,
    /// A reconcile was due in the meantime.
    deferred: bool,
}

impl Holds {
    pub(crate) fn new(queue: Queue) -> Self {
        Self(Arc::new(Inner { queue, keys: Mutex::default(), next_id: AtomicU64::new(0) }))
    }

    /// Runs a reconcile. Writes within it hold its key.
    pub(crate) fn scope<F: Future>(&self, task: &Task, reconcile: F) -> impl Future<Output = F::Output> {
        RUNNING.scope((task.clone(), self.clone()), reconcile)
    }

    /// How long the key is still held; none if it may be reconciled. A key that is held is queued again when
    /// its last hold is released.
    pub(crate) fn defer(&self, task: &Task) -> Option<Duration> {
        let mut keys = self.0.keys.lock();
        let held = keys.get_mut(task)?;
        let now = Instant::now();
        held.until.retain(|_, until| *until > now);
        let Some(until) = held.until.values().max() else {
            keys.remove(task);
            return None;
        };
        held.deferred = true;
        Some(*until - now)
    }
}

/// Holds a key until it is dropped, or for [`HOLD_TIMEOUT`].
pub(crate) struct Hold {
    task: Task,
    id: u64,
    until: Instant,
    holds: Holds,
}

impl Hold {
    /// Holds the key that the current task reconciles; none outside of a reconcile.
    pub(crate) fn of_running_key() -> Option<Self> {
        RUNNING.try_with(|(task, holds)| holds.hold(task)).ok()
    }

    /// True if the hold has no effect any more.
    pub(crate) fn is_expired(&self) -> bool {
        self.until <= Instant::now()
    }
}

/// Whether the current task reconciles this key.
pub(crate) fn is_running(task: &Task) -> bool {
    RUNNING.try_with(|(running, _)| running == task).unwrap_or(false)
}

impl Holds {
    fn hold(&self, task: &Task) -> Hold {
        let id = self.0.next_id.fetch_add(1, Ordering::Relaxed);
        let until = Instant::now() + HOLD_TIMEOUT;
        self.0.keys.lock().entry(task.clone()).or_default().until.insert(id, until);
        Hold { task: task.clone(), id, until, holds: self.clone() }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut keys = self.holds.0.keys.lock();
        let Some(held) = keys.get_mut(&self.task) else { return };
        held.until.remove(&self.id);
        if held.until.is_empty() {
            let deferred = held.deferred;
            keys.remove(&self.task);
            drop(keys);
            if deferred {
                self.holds.0.queue.add(self.task.clone(), Priority::Fresh);
            }
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hold({})", self.task.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backoff::Backoff;
    use crate::{Key, Random};

    fn mk_holds() -> Holds {
        let backoff = Backoff { first: Duration::from_secs(1), cap: Duration::from_secs(60) };
        Holds::new(Queue::new(backoff, Random::from_seed(1)))
    }

    fn mk_task(name: &str) -> Task {
        Task { controller: 0, key: Key::new("p", "n", name) }
    }

    async fn hold(holds: &Holds, task: &Task) -> Hold {
        holds.scope(task, async { Hold::of_running_key().unwrap() }).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_held_until_its_last_hold_is_released_and_then_queued() {
        let (holds, task) = (mk_holds(), mk_task("a"));
        let (first, second) = (hold(&holds, &task).await, hold(&holds, &task).await);
        assert_eq!(holds.defer(&task), Some(HOLD_TIMEOUT));
        assert_eq!(holds.defer(&mk_task("b")), None);
        drop(first);
        assert!(holds.defer(&task).is_some());
        drop(second);
        assert_eq!(holds.defer(&task), None);
        assert_eq!(holds.0.queue.next().await.unwrap().task, task);
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_was_not_due_in_the_meantime_is_not_queued() {
        let (holds, task) = (mk_holds(), mk_task("a"));
        drop(hold(&holds, &task).await);
        assert_eq!(holds.0.queue.stats().ready, [0; 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_hold_times_out_and_its_late_release_does_not_end_another() {
        let (holds, task) = (mk_holds(), mk_task("a"));
        let first = hold(&holds, &task).await;
        tokio::time::advance(HOLD_TIMEOUT).await;
        assert_eq!(holds.defer(&task), None);
        let _second = hold(&holds, &task).await;
        drop(first);
        assert_eq!(holds.defer(&task), Some(HOLD_TIMEOUT));
    }

    #[tokio::test]
    async fn a_write_outside_of_a_reconcile_holds_no_key() {
        assert!(Hold::of_running_key().is_none());
    }
}
