//! [`Journal`]: everything that happened in a run, in order, with a digest of it.
//!
//! The digest covers the time, the text and the content of every entry, so two runs with the same digest sent
//! the same requests and received the same responses at the same simulated times.

use std::fmt;
use std::hash::{DefaultHasher, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// How much of the journal an entry belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail {
    /// Operations, faults, crashes, violations: the timeline of the run.
    Timeline,
    /// Successful writes.
    Write,
    /// Every other request, response and watch event.
    Trace,
}

/// Something that happened.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its number.
    pub step: usize,
    /// Simulated time since the start.
    pub at: Duration,
    /// How much of the journal it belongs to.
    pub detail: Detail,
    /// What happened.
    pub text: String,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>7} {:>11.3}s  {}", self.step, self.at.as_secs_f64(), self.text)
    }
}

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Its id in `docs/dev/invariants.md`.
    pub invariant: &'static str,
    /// What was found, on which object.
    pub found: String,
    /// The step after which it was found.
    pub step: usize,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (step {}): {}", self.invariant, self.step, self.found)
    }
}

/// Everything that happened in a run. Cheap to clone.
#[derive(Clone)]
pub struct Journal(Arc<Inner>);

struct Inner {
    start: Instant,
    /// Entries with more detail count in the digest, and are not kept.
    keep: Detail,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    entries: Vec<Entry>,
    violations: Vec<Violation>,
    digest: DefaultHasher,
    step: usize,
    requests: usize,
    writes: usize,
}

/// Violations after which no further ones are kept: a broken run repeats itself.
const VIOLATIONS_MAX: usize = 50;

impl Journal {
    /// An empty journal that keeps the text of entries up to a detail.
    pub fn new(keep: Detail) -> Self {
        Self(Arc::new(Inner { start: Instant::now(), keep, state: Mutex::default() }))
    }

    /// Adds an entry. `content` is what was sent or received; it counts in the digest and is not kept.
    pub fn add(&self, detail: Detail, text: String, content: &[u8]) -> usize {
        let at = self.0.start.elapsed();
        let mut state = self.0.state.lock();
        state.step += 1;
        let step = state.step;
        state.digest.write_u128(at.as_nanos());
        state.digest.write(text.as_bytes());
        state.digest.write(content);
        if detail <= self.0.keep {
            state.entries.push(Entry { step, at, detail, text });
        }
        step
    }

    /// Adds an entry of the timeline.
    pub fn tell(&self, text: impl Into<String>) {
        self.add(Detail::Timeline, text.into(), b"");
    }

    /// Records a broken invariant.
    pub fn violate(&self, invariant: &'static str, found: impl Into<String>) {
        let found = found.into();
        let step = self.add(Detail::Timeline, format!("BROKEN {invariant}: {found}"), b"");
        let mut state = self.0.state.lock();
        let known = state.violations.iter().any(|known| known.invariant == invariant && known.found == found);
        if !known && state.violations.len() < VIOLATIONS_MAX {
            state.violations.push(Violation { invariant, found, step });
        }
    }

    /// Counts a request.
    pub fn count(&self, write: bool) {
        let mut state = self.0.state.lock();
        state.requests += 1;
        state.writes += usize::from(write);
    }

    /// Requests and writes so far.
    pub fn counts(&self) -> (usize, usize) {
        let state = self.0.state.lock();
        (state.requests, state.writes)
    }

    /// Simulated time since the start.
    pub fn elapsed(&self) -> Duration {
        self.0.start.elapsed()
    }

    /// The number of entries so far.
    pub fn steps(&self) -> usize {
        self.0.state.lock().step
    }

    /// The digest of all entries so far.
    pub fn digest(&self) -> u64 {
        self.0.state.lock().digest.clone().finish()
    }

    /// The broken invariants so far.
    pub fn violations(&self) -> Vec<Violation> {
        self.0.state.lock().violations.clone()
    }

    /// The kept entries.
    pub fn entries(&self) -> Vec<Entry> {
        self.0.state.lock().entries.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_digest_depends_on_time_text_and_content() {
        let digest = async |pause: u64, text: &str, content: &[u8]| {
            let journal = Journal::new(Detail::Timeline);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            journal.add(Detail::Trace, text.to_owned(), content);
            assert_eq!(journal.entries().len(), 0, "a trace is not kept");
            journal.digest()
        };
        let first = digest(1, "get a", b"x").await;
        assert_eq!(digest(1, "get a", b"x").await, first);
        for other in
            [digest(2, "get a", b"x").await, digest(1, "get b", b"x").await, digest(1, "get a", b"y").await]
        {
            assert_ne!(other, first);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_violation_is_reported_once() {
        let journal = Journal::new(Detail::Timeline);
        journal.violate("slot", "web-0 runs twice");
        journal.violate("slot", "web-0 runs twice");
        let found: Vec<String> = journal.violations().iter().map(ToString::to_string).collect();
        assert_eq!(found, ["slot (step 1): web-0 runs twice"]);
    }
}
