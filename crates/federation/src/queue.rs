//! The work queue: each key is queued at most once, is never processed concurrently, and backs off
//! exponentially after failures.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// First delay after a failure.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
/// Longest delay after failures. Events that can end a failure (a member that returns, a kind that appears)
/// requeue the key at once; the delay covers the rest.
const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// When a key is reconciled again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requeue {
    /// When one of its inputs changes.
    OnChange,
    /// When one of its inputs changes, or after this time.
    After(Duration),
    /// The reconcile failed: after an exponential back-off.
    WithBackoff,
}

/// A deduplicating work queue with delays and back-off.
pub struct Queue<K> {
    state: Mutex<State<K>>,
    wake: Notify,
}

struct State<K> {
    ready: VecDeque<K>,
    queued: BTreeSet<K>,
    processing: BTreeSet<K>,
    dirty: BTreeSet<K>,
    delayed: BTreeMap<(Instant, u64), K>,
    due: BTreeMap<K, (Instant, u64)>,
    failures: BTreeMap<K, u32>,
    counter: u64,
}

impl<K: Ord + Clone> Queue<K> {
    /// An empty queue.
    pub fn new() -> Self {
        let state = State {
            ready: VecDeque::new(),
            queued: BTreeSet::new(),
            processing: BTreeSet::new(),
            dirty: BTreeSet::new(),
            delayed: BTreeMap::new(),
            due: BTreeMap::new(),
            failures: BTreeMap::new(),
            counter: 0,
        };
        Queue { state: Mutex::new(state), wake: Notify::new() }
    }

    /// Enqueues a key without delay; a pending delay or back-off is cancelled.
    pub fn add(&self, key: K) {
        let mut state = self.state.lock();
        if let Some(at) = state.due.remove(&key) {
            state.delayed.remove(&at);
        }
        if state.processing.contains(&key) {
            state.dirty.insert(key);
            return;
        }
        if state.queued.insert(key.clone()) {
            state.ready.push_back(key);
            self.wake.notify_one();
        }
    }

    /// Takes the next key; the caller must call [`Queue::finish`] with it.
    pub async fn next(&self) -> K {
        loop {
            let delay = {
                let mut state = self.state.lock();
                let now = Instant::now();
                while let Some(entry) = state.delayed.first_entry().filter(|entry| entry.key().0 <= now) {
                    let key = entry.remove();
                    state.due.remove(&key);
                    if !state.processing.contains(&key) && state.queued.insert(key.clone()) {
                        state.ready.push_back(key);
                    }
                }
                if let Some(key) = state.ready.pop_front() {
                    state.queued.remove(&key);
                    state.processing.insert(key.clone());
                    if !state.ready.is_empty() {
                        self.wake.notify_one();
                    }
                    return key;
                }
                state.delayed.first_key_value().map(|((at, _), _)| *at)
            };
            match delay {
                Some(until) => tokio::select! {
                    biased;
                    () = self.wake.notified() => {}
                    () = tokio::time::sleep_until(until) => {}
                },
                None => self.wake.notified().await,
            }
        }
    }

    /// Ends the processing of a key.
    pub fn finish(&self, key: K, requeue: Requeue) {
        let mut state = self.state.lock();
        state.processing.remove(&key);
        let failures = match requeue {
            Requeue::WithBackoff => {
                let failures = state.failures.entry(key.clone()).or_default();
                *failures = failures.saturating_add(1);
                *failures
            }
            _ => {
                state.failures.remove(&key);
                0
            }
        };
        let changed = state.dirty.remove(&key);
        if changed && requeue != Requeue::WithBackoff {
            state.queued.insert(key.clone());
            state.ready.push_back(key);
            self.wake.notify_one();
            return;
        }
        let delay = match requeue {
            Requeue::OnChange => return,
            Requeue::After(delay) => delay,
            // An input changed during the reconcile: the cause of the failure may be gone.
            Requeue::WithBackoff if changed => BACKOFF_MIN,
            Requeue::WithBackoff => {
                BACKOFF_MIN.saturating_mul(1 << failures.min(12).saturating_sub(1)).min(BACKOFF_MAX)
            }
        };
        state.counter += 1;
        let at = (Instant::now() + delay, state.counter);
        state.delayed.insert(at, key.clone());
        state.due.insert(key, at);
        self.wake.notify_one();
    }
}

impl<K: Ord + Clone> Default for Queue<K> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[tokio::test(start_paused = true)]
    async fn a_key_is_queued_once() {
        let queue = Queue::new();
        queue.add("a");
        queue.add("a");
        assert_eq!(queue.next().await, "a");
        assert!(queue.next().now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_added_while_it_is_processed_is_queued_again_afterwards() {
        let queue = Queue::new();
        queue.add("a");
        let key = queue.next().await;
        queue.add("a");
        assert!(queue.next().now_or_never().is_none());
        queue.finish(key, Requeue::OnChange);
        assert_eq!(queue.next().await, "a");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failing_key_backs_off_and_is_retried_at_once_when_it_is_added() {
        let queue = Queue::new();
        queue.add("a");
        let mut delays = Vec::new();
        for _ in 0..4 {
            let started = Instant::now();
            let key = queue.next().await;
            delays.push(started.elapsed());
            queue.finish(key, Requeue::WithBackoff);
        }
        assert_eq!(delays[1..], [20, 40, 80].map(Duration::from_millis));
        queue.add("a");
        let started = Instant::now();
        queue.next().await;
        assert_eq!(started.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_delayed_key_is_returned_after_its_delay() {
        let queue = Queue::new();
        queue.add("a");
        let key = queue.next().await;
        queue.finish(key, Requeue::After(Duration::from_secs(5)));
        assert!(queue.next().now_or_never().is_none());
        let started = Instant::now();
        assert_eq!(queue.next().await, "a");
        assert_eq!(started.elapsed(), Duration::from_secs(5));
    }
}
