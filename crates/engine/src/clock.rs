//! The clock of tests: wall-clock time that advances with tokio's clock, which a test can pause.

use jiff::{SignedDuration, Timestamp};
use polis_apimachinery::clock::Clock;
use tokio::time::Instant;

/// A clock that shows `start` now and advances with tokio's clock.
pub fn anchored_clock(start: Timestamp) -> Clock {
    let since = Instant::now();
    Clock::custom(move || start + SignedDuration::try_from(since.elapsed()).unwrap_or(SignedDuration::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn an_anchored_clock_advances_only_with_the_runtime() {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let clock = anchored_clock(start);
        assert_eq!(clock.now(), start);
        tokio::time::advance(Duration::from_secs(90)).await;
        assert_eq!(clock.now(), start + SignedDuration::from_secs(90));
        assert_eq!(clock.skewed(SignedDuration::from_secs(-30)).now(), start + SignedDuration::from_secs(60));
    }
}
