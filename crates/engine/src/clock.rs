//! Time, as a seam.
//!
//! Waiting always goes through tokio's clock, which a test can pause. The wall clock is only for what is written into objects
//! (lease times, event times) and comes from here, so that a simulation is reproducible to the byte.

use std::fmt;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// Tells the time of day. Cheap to clone.
#[derive(Clone)]
pub struct Clock(Source);

#[derive(Clone)]
enum Source {
    System,
    Anchored { start: Timestamp, since: Instant, skew: SignedDuration },
    Custom(Arc<dyn Fn() -> Timestamp + Send + Sync>),
}

impl Clock {
    /// The wall clock of the machine.
    pub fn system() -> Self {
        Self(Source::System)
    }

    /// A wall clock that stands at `start` now and moves with tokio's clock: paused when that is paused.
    pub fn anchored(start: Timestamp) -> Self {
        Self(Source::Anchored { start, since: Instant::now(), skew: SignedDuration::ZERO })
    }

    /// Any other source of wall time.
    pub fn custom(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Source::Custom(Arc::new(now)))
    }

    /// The same clock, off by a constant: what a replica with a wrong clock sees.
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

    /// The time of day.
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
    async fn an_anchored_clock_moves_only_with_the_runtime() {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let clock = Clock::anchored(start);
        assert_eq!(clock.now(), start);
        tokio::time::advance(Duration::from_secs(90)).await;
        assert_eq!(clock.now(), start + SignedDuration::from_secs(90));
        assert_eq!(clock.skewed(SignedDuration::from_secs(-30)).now(), start + SignedDuration::from_secs(60));
    }
}
