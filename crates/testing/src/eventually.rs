//! Waiting for a condition: `eventually` until it holds, `consistently` that it keeps holding.
//!
//! A check reads the planes, which have no common watch, so it is repeated until a deadline. On a paused
//! clock that takes no time.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Time between two checks.
const INTERVAL: Duration = Duration::from_millis(20);
/// Longest wait on tokio's clock: longer than every back-off of the controllers.
const TIMEOUT: Duration = Duration::from_secs(3600);
/// Longest wait on the wall clock, for tests that do not pause tokio's: longer than any step takes on a busy
/// machine.
const REAL_TIMEOUT: Duration = Duration::from_secs(180);
/// Checks after which the interval grows, so that a wait of minutes on a paused clock needs few checks.
const FREQUENT_CHECKS: u32 = 100;

/// Waits until the check returns a value, and returns it. Panics with `what` if it never does.
pub async fn eventually<T>(what: &str, mut check: impl AsyncFnMut() -> Option<T>) -> T {
    let (deadline, real_deadline) = (Instant::now() + TIMEOUT, std::time::Instant::now() + REAL_TIMEOUT);
    for attempt in 1u32.. {
        if let Some(found) = check().await {
            return found;
        }
        let in_time = Instant::now() < deadline && std::time::Instant::now() < real_deadline;
        assert!(in_time, "timed out waiting for {what}");
        sleep(INTERVAL * attempt.div_ceil(FREQUENT_CHECKS)).await;
    }
    unreachable!("the loop ends with a value or a panic")
}

/// Asserts that the check holds now and throughout the period.
pub async fn consistently(what: &str, period: Duration, mut check: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + period;
    loop {
        assert!(check().await, "it did not stay so: {what}");
        if Instant::now() >= end {
            return;
        }
        sleep((period / 50).max(INTERVAL)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn eventually_returns_the_first_value() {
        let start = Instant::now();
        let minutes = || (start.elapsed() > Duration::from_secs(600)).then_some(start.elapsed());
        assert!(eventually("ten minutes pass", async || minutes()).await < Duration::from_secs(602));
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "timed out waiting for nothing")]
    async fn eventually_gives_up() {
        eventually::<()>("nothing", async || None).await;
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "it did not stay so: young")]
    async fn consistently_notices_a_change() {
        let start = Instant::now();
        let young = async || start.elapsed() < Duration::from_secs(30);
        consistently("young", Duration::from_secs(60), young).await;
    }
}
