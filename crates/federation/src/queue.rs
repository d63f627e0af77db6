//! Keys that wait to be worked on: each at most once, never twice at the same time, with a growing pause after failures.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// First pause after a failure.
const FIRST: Duration = Duration::from_millis(20);
/// Longest pause after failures. Whatever can be known to be over (a member that returns, a kind that appears) ends the
/// pause at once; this is for what cannot.
const MOST: Duration = Duration::from_secs(60);

/// How work on a key ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing to do until something changes.
    Settled,
    /// Nothing to do until something changes, or this much time has passed.
    After(Duration),
    /// It failed: again after a pause that grows.
    Failed,
}

/// A queue of keys.
pub struct Queue<K> {
    state: Mutex<State<K>>,
    wake: Notify,
}

struct State<K> {
    ready: VecDeque<K>,
    waiting: BTreeSet<K>,
    running: BTreeSet<K>,
    again: BTreeSet<K>,
    later: BTreeMap<(Instant, u64), K>,
    due: BTreeMap<K, (Instant, u64)>,
    failures: BTreeMap<K, u32>,
    counter: u64,
}

impl<K: Ord + Clone> Queue<K> {
    /// An empty queue.
    pub fn new() -> Self {
        let state = State {
            ready: VecDeque::new(),
            waiting: BTreeSet::new(),
            running: BTreeSet::new(),
            again: BTreeSet::new(),
            later: BTreeMap::new(),
            due: BTreeMap::new(),
            failures: BTreeMap::new(),
            counter: 0,
        };
        Queue { state: Mutex::new(state), wake: Notify::new() }
    }

    /// Something about the key has changed: it is worked on as soon as possible, whatever pause it was in.
    pub fn add(&self, key: K) {
        let mut state = self.state.lock();
        if let Some(at) = state.due.remove(&key) {
            state.later.remove(&at);
        }
        if state.running.contains(&key) {
            state.again.insert(key);
            return;
        }
        if state.waiting.insert(key.clone()) {
            state.ready.push_back(key);
            self.wake.notify_one();
        }
    }

    /// The next key; the caller must [`Queue::finish`] it.
    pub async fn next(&self) -> K {
        loop {
            let pause = {
                let mut state = self.state.lock();
                let now = Instant::now();
                while let Some(entry) = state.later.first_entry().filter(|entry| entry.key().0 <= now) {
                    let key = entry.remove();
                    state.due.remove(&key);
                    if !state.running.contains(&key) && state.waiting.insert(key.clone()) {
                        state.ready.push_back(key);
                    }
                }
                if let Some(key) = state.ready.pop_front() {
                    state.waiting.remove(&key);
                    state.running.insert(key.clone());
                    if !state.ready.is_empty() {
                        self.wake.notify_one();
                    }
                    return key;
                }
                state.later.first_key_value().map(|((at, _), _)| *at)
            };
            match pause {
                Some(until) => tokio::select! {
                    biased;
                    () = self.wake.notified() => {}
                    () = tokio::time::sleep_until(until) => {}
                },
                None => self.wake.notified().await,
            }
        }
    }

    /// Gives a key back.
    pub fn finish(&self, key: K, outcome: Outcome) {
        let mut state = self.state.lock();
        state.running.remove(&key);
        let failures = match outcome {
            Outcome::Failed => {
                let failures = state.failures.entry(key.clone()).or_default();
                *failures = failures.saturating_add(1);
                *failures
            }
            _ => {
                state.failures.remove(&key);
                0
            }
        };
        let changed = state.again.remove(&key);
        if changed && outcome != Outcome::Failed {
            state.waiting.insert(key.clone());
            state.ready.push_back(key);
            self.wake.notify_one();
            return;
        }
        let pause = match outcome {
            Outcome::Settled => return,
            Outcome::After(pause) => pause,
            // It changed meanwhile: what failed may be over.
            Outcome::Failed if changed => FIRST,
            Outcome::Failed => FIRST.saturating_mul(1 << failures.min(12).saturating_sub(1)).min(MOST),
        };
        state.counter += 1;
        let at = (Instant::now() + pause, state.counter);
        state.later.insert(at, key.clone());
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
    async fn a_key_waits_once_however_often_it_is_added() {
        let queue = Queue::new();
        queue.add("a");
        queue.add("a");
        assert_eq!(queue.next().await, "a");
        assert!(queue.next().now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_changes_while_it_is_worked_on_comes_again_afterwards() {
        let queue = Queue::new();
        queue.add("a");
        let key = queue.next().await;
        queue.add("a");
        assert!(queue.next().now_or_never().is_none());
        queue.finish(key, Outcome::Settled);
        assert_eq!(queue.next().await, "a");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failing_key_comes_back_later_and_later_and_at_once_when_it_changes() {
        let queue = Queue::new();
        queue.add("a");
        let mut pauses = Vec::new();
        for _ in 0..4 {
            let begun = Instant::now();
            let key = queue.next().await;
            pauses.push(begun.elapsed());
            queue.finish(key, Outcome::Failed);
        }
        assert_eq!(pauses[1..], [20, 40, 80].map(Duration::from_millis));
        queue.add("a");
        let begun = Instant::now();
        queue.next().await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_is_kept_and_no_key_is_lost() {
        let queue = Queue::new();
        queue.add("a");
        let key = queue.next().await;
        queue.finish(key, Outcome::After(Duration::from_secs(5)));
        assert!(queue.next().now_or_never().is_none());
        let begun = Instant::now();
        assert_eq!(queue.next().await, "a");
        assert_eq!(begun.elapsed(), Duration::from_secs(5));
    }
}
