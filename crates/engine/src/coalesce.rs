//! Status coalescing and staleness: which keys have an out-of-date target object, and since when.
//!
//! A controller that copies state from one object to another marks a key as stale when the target is out of
//! date, and as current when the target is up to date. This serves two purposes: the gauges `polis_behind`
//! and `polis_behind_oldest_seconds`, and a short delay in which insignificant changes are coalesced into one
//! write.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{Action, Key};

/// How long an insignificant change is delayed so that later changes join the same write. This covers the
/// status changes of one starting instance, and is too short for users to notice.
const COALESCE_DELAY: Duration = Duration::from_millis(500);

/// The stale keys of all controllers of an engine, and since when each is stale.
pub(crate) type StaleKeys = Mutex<BTreeMap<(&'static str, Key), Instant>>;

/// Tracks the stale keys of one controller and delays insignificant writes. Made by
/// [`crate::Metrics::status_coalescer`]. Cheap to clone.
#[derive(Clone, Debug)]
pub struct StatusCoalescer {
    controller: &'static str,
    stale: Arc<StaleKeys>,
}

impl StatusCoalescer {
    pub(crate) fn new(controller: &'static str, stale: Arc<StaleKeys>) -> Self {
        Self { controller, stale }
    }

    /// Marks the key as stale and returns how long to delay the write. None if the change is significant or
    /// the delay is over.
    pub fn delay(&self, key: &Key, significant: bool) -> Option<Duration> {
        let age = self.mark_stale(key);
        COALESCE_DELAY.checked_sub(age).filter(|rest| !significant && !rest.is_zero())
    }

    /// Updates the key after a reconcile and returns the result unchanged: [`Action::AwaitChange`] marks the
    /// key as current, an error marks it as stale, and [`Action::RequeueAfter`] leaves it as it was.
    pub fn record_result<E>(&self, key: &Key, result: Result<Action, E>) -> Result<Action, E> {
        match &result {
            Ok(Action::AwaitChange) => self.mark_current(key),
            Ok(Action::RequeueAfter(_)) => {}
            Err(_) => _ = self.mark_stale(key),
        }
        result
    }

    /// Marks the key as stale and returns for how long it has been stale.
    pub fn mark_stale(&self, key: &Key) -> Duration {
        let now = Instant::now();
        now - *self.stale.lock().entry((self.controller, key.clone())).or_insert(now)
    }

    /// Marks the key as current: its target is up to date, or no longer needed.
    pub fn mark_current(&self, key: &Key) {
        self.stale.lock().remove(&(self.controller, key.clone()));
    }
}

/// The number of stale keys and the age of the oldest, by controller.
pub(crate) fn summary(stale: &StaleKeys) -> BTreeMap<&'static str, (usize, Duration)> {
    let mut summary: BTreeMap<&'static str, (usize, Duration)> = BTreeMap::new();
    for ((controller, _), since) in stale.lock().iter() {
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
    async fn an_insignificant_change_is_delayed_once_and_a_significant_change_never() {
        let coalescer = Metrics::default().status_coalescer("projector");
        assert_eq!(coalescer.delay(&mk_key("significant"), true), None);
        assert_eq!(coalescer.delay(&mk_key("web-0"), false), Some(COALESCE_DELAY));
        tokio::time::advance(COALESCE_DELAY / 2).await;
        assert_eq!(coalescer.delay(&mk_key("web-0"), false), Some(COALESCE_DELAY / 2));
        assert_eq!(coalescer.delay(&mk_key("web-0"), true), None);
        tokio::time::advance(COALESCE_DELAY / 2).await;
        assert_eq!(coalescer.delay(&mk_key("web-0"), false), None);
        coalescer.mark_current(&mk_key("web-0"));
        assert_eq!(coalescer.delay(&mk_key("web-0"), false), Some(COALESCE_DELAY));
    }

    #[tokio::test(start_paused = true)]
    async fn metrics_show_the_age_of_the_oldest_stale_key_until_none_is_stale() {
        let metrics = Metrics::default();
        let coalescer = metrics.status_coalescer("federator");
        coalescer.mark_stale(&mk_key("old"));
        tokio::time::advance(Duration::from_secs(90)).await;
        coalescer.mark_stale(&mk_key("new"));
        let page = metrics.render();
        assert!(page.contains("polis_behind{controller=\"federator\"} 2"), "{page}");
        assert!(page.contains("polis_behind_oldest_seconds{controller=\"federator\"} 90"), "{page}");
        coalescer.mark_current(&mk_key("old"));
        assert!(metrics.render().contains("polis_behind_oldest_seconds{controller=\"federator\"} 0"));
        coalescer.mark_current(&mk_key("new"));
        assert!(metrics.render().contains("polis_behind{controller=\"federator\"} 0"));
    }
}
