//! The injected wall clock.
//!
//! Timers use tokio's clock, which a test can pause. The wall clock is only for timestamps that are written
//! into objects (leases, events). It is injected so that a test can reproduce a run to the byte.

use std::fmt;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// A source of wall-clock time. Cheap to clone.
#[derive(Clone)]
pub struct Clock(Source);

#[derive(Clone)]
enum Source {
    System,
    Anchored { start: Timestamp, since: Instant, skew: SignedDuration },
    Custom(Arc<dyn Fn() -> Timestamp + Send + Sync>),
}

impl Clock {
    /// The system clock.
    pub fn system() -> Self {
        Self(Source::System)
    }

    /// A clock that shows `start` now and advances with tokio's clock, which a test can pause.
    pub fn anchored(start: Timestamp) -> Self {
        Self(Source::Anchored { start, since: Instant::now(), skew: SignedDuration::ZERO })
    }

    /// A clock that calls `now`.
    pub fn custom(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Source::Custom(Arc::new(now)))
    }

    /// The same clock with a constant offset, to simulate a replica with clock skew.
    pub fn skewed(&self, by: SignedDuration) -> Self {
        match &self.0 {
            Source::Anchored { start, since, skew } => {
                Self(Source::Anchored { start: *start, since: *since, skew: *skew + by })
            }
            _ => {
                let inner = self.clone();
                Self::custom(move || inner.now() + by)
            }
        }
    }

    /// The current time.
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::System => Timestamp::now(),
            Source::Anchored { start, since, skew } => {
                let elapsed = SignedDuration::try_from(since.elapsed()).unwrap_or(SignedDuration::MAX);
                *start + elapsed + *skew
            }
            Source::Custom(now) => now(),
        }
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::system()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Source::System => "Clock(system)",
            Source::Anchored { .. } => "Clock(anchored)",
            Source::Custom(_) => "Clock(custom)",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn an_anchored_clock_advances_only_with_the_runtime() {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let clock = Clock::anchored(start);
        assert_eq!(clock.now(), start);
        tokio::time::advance(Duration::from_secs(90)).await;
        assert_eq!(clock.now(), start + SignedDuration::from_secs(90));
        assert_eq!(clock.skewed(SignedDuration::from_secs(-30)).now(), start + SignedDuration::from_secs(60));
    }
}
