//! Lag: keys whose object elsewhere is behind, and since when.
//!
//! A controller that carries state from one object to another notes here when it finds the other one behind, and takes the
//! note back when it has caught up. From that come two things: the age of the oldest note, which says how stale the world
//! is that people see; and a pause in which changes that nobody waits for are put together into one write.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{Key, Outcome};

/// How long a change that is no news waits for others to join it. Long enough for the steps of one instance in a cell,
/// short enough for people not to notice.
const HOLD: Duration = Duration::from_millis(500);

/// The notes of all controllers of an engine.
pub(crate) type Behind = Mutex<BTreeMap<(&'static str, Key), Instant>>;

/// The notes of one controller. Made by [`crate::Metrics::lag`]; cheap to clone.
#[derive(Clone, Debug)]
pub struct Lag {
    controller: &'static str,
    behind: Arc<Behind>,
}

impl Lag {
    pub(crate) fn new(controller: &'static str, behind: Arc<Behind>) -> Self {
        Self { controller, behind }
    }

    /// Notes that the key is behind, and says how long a change may still wait for others: not at all if it is news, or if
    /// it has waited.
    pub fn hold(&self, key: &Key, news: bool) -> Option<Duration> {
        let age = self.behind(key);
        HOLD.checked_sub(age).filter(|rest| !news && !rest.is_zero())
    }

    /// Draws the line under a pass: a key that settled has caught up, one that failed is behind. One that comes back by
    /// itself is as it was.
    pub fn after<E>(&self, key: &Key, outcome: Result<Outcome, E>) -> Result<Outcome, E> {
        match &outcome {
            Ok(Outcome::Settled) => self.caught_up(key),
            Ok(Outcome::After(_)) => {}
            Err(_) => _ = self.behind(key),
        }
        outcome
    }

    /// Notes that the key is behind, and says for how long it has been.
    pub fn behind(&self, key: &Key) -> Duration {
        let now = Instant::now();
        now - *self.behind.lock().entry((self.controller, key.clone())).or_insert(now)
    }

    /// Takes the note back: the key has caught up, or nobody asks any more.
    pub fn caught_up(&self, key: &Key) {
        self.behind.lock().remove(&(self.controller, key.clone()));
    }
}

/// Number of keys and age of the oldest, by controller.
pub(crate) fn summary(behind: &Behind) -> BTreeMap<&'static str, (usize, Duration)> {
    let mut summary: BTreeMap<&'static str, (usize, Duration)> = BTreeMap::new();
    for ((controller, _), since) in behind.lock().iter() {
        let (count, oldest) = summary.entry(controller).or_default();
        *count += 1;
        *oldest = (*oldest).max(since.elapsed());
    }
    summary
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Metrics;

    fn mk_key(name: &str) -> Key {
        Key::new("project", "shop", name)
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_that_is_no_news_waits_once_and_news_never() {
        let lag = Metrics::default().lag("projector");
        assert_eq!(lag.hold(&mk_key("news"), true), None);
        assert_eq!(lag.hold(&mk_key("web-0"), false), Some(HOLD));
        tokio::time::advance(HOLD / 2).await;
        assert_eq!(lag.hold(&mk_key("web-0"), false), Some(HOLD / 2));
        assert_eq!(lag.hold(&mk_key("web-0"), true), None);
        tokio::time::advance(HOLD / 2).await;
        assert_eq!(lag.hold(&mk_key("web-0"), false), None);
        lag.caught_up(&mk_key("web-0"));
        assert_eq!(lag.hold(&mk_key("web-0"), false), Some(HOLD));
    }

    #[tokio::test(start_paused = true)]
    async fn the_page_tells_the_age_of_the_oldest_and_forgets_it_with_the_last() {
        let metrics = Metrics::default();
        let lag = metrics.lag("federator");
        lag.behind(&mk_key("old"));
        tokio::time::advance(Duration::from_secs(90)).await;
        lag.behind(&mk_key("new"));
        let page = metrics.render();
        assert!(page.contains("polis_behind{controller=\"federator\"} 2"), "{page}");
        assert!(page.contains("polis_behind_oldest_seconds{controller=\"federator\"} 90"), "{page}");
        lag.caught_up(&mk_key("old"));
        assert!(metrics.render().contains("polis_behind_oldest_seconds{controller=\"federator\"} 0"));
        lag.caught_up(&mk_key("new"));
        assert!(metrics.render().contains("polis_behind{controller=\"federator\"} 0"));
    }
}
