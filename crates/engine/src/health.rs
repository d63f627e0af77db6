//! [`PlaneHealth`]: which verbs a plane answers with nothing but errors, and when it answers again.
//!
//! Every response is recorded by its verb. A response that shows that the plane works (also a refusal such as
//! a conflict) ends the back-off of the plane's watches at once: a person who has repaired a plane does not
//! wait for timers. A verb that gets only errors for a minute is named in `/readyz` and in a metric, for
//! example a write verb that is missing in a role.
//!
//! A plane that has answered no request at all for [`UNREACHABLE_AFTER`], and then not a probe either, is
//! unreachable ([`Reachability`]). The probe matters for an idle plane: the only requests to it may be those
//! for one kind whose aggregated API server is away.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::signal::{Signal, Subscription};

/// A verb that gets only errors is reported after this time.
pub(crate) const FAILING_AFTER: Duration = Duration::from_secs(60);
/// Without a request for this long, the failures of a verb are forgotten: nothing needs it any more. Longer
/// than every back-off.
const FORGET_AFTER: Duration = Duration::from_secs(600);
/// The shortest pause of a watch that waits for its plane. A plane that answers one kind and not another
/// would otherwise be asked for the other in a tight loop.
const MIN_PAUSE: Duration = Duration::from_secs(1);

/// A plane without an answer for this long is unreachable: longer than the restart of an API server.
pub(crate) const UNREACHABLE_AFTER: Duration = Duration::from_secs(30);

/// Whether a plane answers requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reachability {
    /// It answers, or has failed to for less than half a minute.
    Reachable {
        /// Since when, if it was unreachable before.
        since: Option<Timestamp>,
    },
    /// It has answered no request.
    Unreachable {
        /// Since when.
        since: Timestamp,
    },
}

/// Requests without an answer that shows that the plane works.
#[derive(Clone, Copy, Debug)]
struct Outage {
    began: Instant,
    /// The wall clock at that time.
    since: Timestamp,
    /// It has lasted, and a probe had no answer either.
    confirmed: bool,
}

/// The last responses of one plane.
#[derive(Debug, Default)]
pub(crate) struct PlaneHealth {
    outage: Mutex<Option<Outage>>,
    /// When the last outage ended that made the plane unreachable.
    returned: Mutex<Option<Timestamp>>,
    /// Notified when an outage begins or ends.
    outage_changed: Signal,
    /// Verbs whose last response was an error.
    failing: Mutex<BTreeMap<&'static str, FailingVerb>>,
    /// Notified when the plane answers after a request without a useful answer.
    recovered: Signal,
}

#[derive(Clone, Debug)]
struct FailingVerb {
    since: Instant,
    last: Instant,
    /// The HTTP status code, or the reason why there is none.
    code: String,
    /// The plane did not answer, or answered that it cannot work.
    unavailable: bool,
}

/// A verb that a plane has answered with nothing but errors for [`FAILING_AFTER`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailingRequests {
    /// The verb.
    pub verb: &'static str,
    /// The HTTP status code of the last response, or the reason why there is none.
    pub code: String,
    /// How long the plane has answered with errors only.
    pub since: Duration,
}

impl PlaneHealth {
    /// Records a response at this wall clock time: an HTTP status code, or the reason why there is none.
    pub(crate) fn record(
        &self,
        verb: &'static str,
        status: Option<u16>,
        code: &str,
        wall_clock: impl Fn() -> Timestamp,
    ) {
        let unavailable = status.is_none_or(|status| status >= 500 || status == 429);
        self.record_outage(unavailable, wall_clock);
        let failed = unavailable || matches!(status, Some(401 | 403));
        let now = Instant::now();
        let mut failing = self.failing.lock();
        if failed {
            let fresh = || FailingVerb { since: now, last: now, code: String::new(), unavailable };
            let known = failing.entry(verb).or_insert_with(fresh);
            if now - known.last > FORGET_AFTER {
                *known = fresh();
            }
            (known.last, known.code, known.unavailable) = (now, code.to_owned(), unavailable);
            return;
        }
        let was_unavailable = failing.values().any(|verb| verb.unavailable);
        failing.remove(verb);
        failing.values_mut().for_each(|verb| verb.unavailable = false);
        drop(failing);
        if was_unavailable {
            self.recovered.send();
        }
    }

    fn record_outage(&self, unavailable: bool, wall_clock: impl Fn() -> Timestamp) {
        let mut outage = self.outage.lock();
        match (*outage, unavailable) {
            (None, true) => {
                *outage = Some(Outage { began: Instant::now(), since: wall_clock(), confirmed: false })
            }
            (Some(ended), false) => {
                *outage = None;
                if ended.confirmed {
                    *self.returned.lock() = Some(wall_clock());
                }
            }
            _ => return,
        }
        drop(outage);
        self.outage_changed.send();
    }

    /// Whether the plane answers requests.
    pub(crate) fn reachability(&self) -> Reachability {
        match *self.outage.lock() {
            Some(Outage { confirmed: true, since, .. }) => Reachability::Unreachable { since },
            _ => Reachability::Reachable { since: *self.returned.lock() },
        }
    }

    /// Waits until no request has been answered for [`UNREACHABLE_AFTER`]. `changes` is from
    /// [`PlaneHealth::outages`].
    pub(crate) async fn wait_for_outage(&self, changes: &mut Subscription) {
        loop {
            let began = self.outage.lock().map(|outage| outage.began);
            match began {
                Some(began) if began.elapsed() >= UNREACHABLE_AFTER => return,
                // A timeout is an ordinary end of the wait.
                Some(began) => drop(timeout_at(began + UNREACHABLE_AFTER, changes.changed()).await),
                None => changes.changed().await,
            }
        }
    }

    /// A probe had no answer: the plane is unreachable, unless it has answered meanwhile. Returns whether it
    /// is.
    pub(crate) fn confirm_outage(&self) -> bool {
        let mut outage = self.outage.lock();
        let lasting = outage.as_mut().filter(|outage| outage.began.elapsed() >= UNREACHABLE_AFTER);
        lasting.map(|outage| outage.confirmed = true).is_some()
    }

    /// Waits until the plane answers. `changes` is from [`PlaneHealth::outages`].
    pub(crate) async fn wait_for_answer(&self, changes: &mut Subscription) {
        while self.outage.lock().is_some() {
            changes.changed().await;
        }
    }

    /// A subscription to the beginnings and ends of outages.
    pub(crate) fn outages(&self) -> Subscription {
        self.outage_changed.subscribe()
    }

    /// The last error of a verb was expected.
    pub(crate) fn expected(&self, verb: &'static str) {
        self.failing.lock().remove(verb);
    }

    /// The verbs that got only errors for [`FAILING_AFTER`].
    pub(crate) fn failing(&self) -> Vec<FailingRequests> {
        let now = Instant::now();
        let failing = self.failing.lock();
        let reported = failing
            .iter()
            .filter(|(_, it)| it.last - it.since >= FAILING_AFTER && now - it.last <= FORGET_AFTER);
        let report = |(verb, it): (&&'static str, &FailingVerb)| FailingRequests {
            verb,
            code: it.code.clone(),
            since: now - it.since,
        };
        reported.map(report).collect()
    }

    /// Waits for the back-off of a watch, or until the plane answers another request.
    pub(crate) async fn pause(&self, delay: Duration) {
        let mut recovered = self.recovered.subscribe();
        let least = delay.min(MIN_PAUSE);
        sleep(least).await;
        // A timeout is an ordinary end of the wait.
        drop(timeout(delay - least, recovered.changed()).await);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    const LONG: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn a_verb_is_reported_after_a_minute_of_errors_and_until_it_succeeds() {
        let health = PlaneHealth::default();
        health.record("create", Some(403), "403", Timestamp::now);
        advance(FAILING_AFTER).await;
        assert_eq!(health.failing(), [], "one error long ago is not a minute of errors");
        health.record("create", Some(403), "403", Timestamp::now);
        health.record("list", Some(200), "200", Timestamp::now);
        let reported = health.failing();
        assert_eq!(
            (reported[0].verb, reported[0].code.as_str(), reported[0].since),
            ("create", "403", FAILING_AFTER)
        );
        health.record("create", Some(409), "409", Timestamp::now);
        assert_eq!(health.failing(), [], "a conflict is an answer");
    }

    #[tokio::test(start_paused = true)]
    async fn a_verb_that_is_not_used_any_more_is_forgotten() {
        let health = PlaneHealth::default();
        health.record("create", None, "connect", Timestamp::now);
        advance(FAILING_AFTER).await;
        health.record("create", None, "connect", Timestamp::now);
        advance(FORGET_AFTER).await;
        assert_eq!(health.failing().len(), 1);
        advance(LONG).await;
        assert_eq!(health.failing(), []);
        health.record("create", None, "connect", Timestamp::now);
        assert_eq!(health.failing(), [], "the minute starts again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_ends_when_the_plane_answers_again() {
        let health = PlaneHealth::default();
        let started = Instant::now();
        health.record("watch", None, "connect", Timestamp::now);
        let answer = async {
            sleep(Duration::from_secs(3)).await;
            health.record("get", Some(404), "404", Timestamp::now);
        };
        tokio::join!(health.pause(LONG), answer);
        assert_eq!(started.elapsed(), Duration::from_secs(3));
        // Nothing was wrong, so the next answer ends no pause.
        let answer = async { health.record("get", Some(200), "200", Timestamp::now) };
        tokio::join!(health.pause(LONG), answer);
        assert_eq!(started.elapsed(), Duration::from_secs(3) + LONG);
    }

    #[tokio::test(start_paused = true)]
    async fn a_plane_that_answers_one_kind_only_is_asked_at_most_once_a_second() {
        let health = PlaneHealth::default();
        let started = Instant::now();
        for _ in 0..5 {
            health.record("watch", Some(503), "503", Timestamp::now);
            let answer = async { health.record("get", Some(200), "200", Timestamp::now) };
            tokio::join!(health.pause(LONG), answer);
        }
        assert_eq!(started.elapsed(), 5 * MIN_PAUSE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_plane_is_unreachable_without_an_answer_for_half_a_minute_and_until_the_next_one() {
        let health = PlaneHealth::default();
        let started = Instant::now();
        let wall_clock = || Timestamp::UNIX_EPOCH + started.elapsed();
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        let mut changes = health.outages();
        let requests = async {
            // A short outage changes nothing.
            health.record("watch", None, "connect", wall_clock);
            sleep(UNREACHABLE_AFTER / 2).await;
            health.record("watch", Some(403), "403", wall_clock);
            sleep(Duration::from_secs(85)).await;
            for _ in 0..8 {
                health.record("watch", Some(503), "503", wall_clock);
                sleep(Duration::from_secs(5)).await;
            }
            health.record("get", Some(404), "404", wall_clock);
        };
        let observer = async {
            assert_eq!(health.reachability(), Reachability::Reachable { since: None });
            health.wait_for_outage(&mut changes).await;
            assert_eq!(health.reachability(), Reachability::Reachable { since: None }, "not probed yet");
            assert!(health.confirm_outage());
            assert_eq!(started.elapsed(), Duration::from_secs(130));
            assert_eq!(health.reachability(), Reachability::Unreachable { since: at(100) });
            health.wait_for_answer(&mut changes).await;
            assert_eq!(health.reachability(), Reachability::Reachable { since: Some(at(140)) });
            assert!(!health.confirm_outage(), "it has answered");
        };
        tokio::join!(observer, requests);
    }
}
