//! Counters. Every label has few values by construction: kinds, controllers and sets that the program declares, verbs, codes
//! and classes. Never the name of a plane or of an object: those are in logs and in `/readyz?verbose`.
//!
//! What may be counted is on the page from the start, with 0: the first event would otherwise be none to Prometheus, which
//! counts what is added to a number that it has seen before.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::lag::{self, Behind, Lag};
use crate::{Class, Clock, Kind};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByController {
    controller: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByClass {
    controller: &'static str,
    class: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByPriority {
    priority: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByKind {
    kind: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByKindAndReason {
    kind: String,
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByState {
    set: &'static str,
    state: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByReason {
    set: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByCertificate {
    certificate: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Request {
    verb: &'static str,
    code: String,
    plane: &'static str,
}

/// A watch that began too long ago to be gone on with: the one reason to start again that is nobody's trouble.
pub(crate) const EXPIRED: &str = "expired";

/// The counters of one engine.
pub struct Metrics {
    registry: Mutex<Registry>,
    reconciles: Family<ByController, Counter>,
    errors: Family<ByClass, Counter>,
    durations: Family<ByController, Histogram, fn() -> Histogram>,
    unresolved: Family<ByController, Counter>,
    depth: Family<ByPriority, Gauge>,
    delayed: Gauge,
    running: Gauge,
    oldest: Gauge,
    retries: Family<ByController, Counter>,
    restarts: Family<ByKindAndReason, Counter>,
    lag: Family<ByKind, Histogram, fn() -> Histogram>,
    decode_failures: Family<ByKind, Counter>,
    planes: Family<ByState, Gauge>,
    failing: Family<ByReason, Gauge>,
    requests: Family<Request, Counter>,
    events_dropped: Counter,
    leader: Gauge,
    certificates: Family<ByCertificate, Gauge>,
    behind: Arc<Behind>,
    lags: Mutex<BTreeSet<&'static str>>,
    behind_keys: Family<ByController, Gauge>,
    behind_oldest: Family<ByController, Gauge>,
}

fn durations() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 4.0, 8)) // 1 ms to 16 s
}

fn lags() -> Histogram {
    Histogram::new(exponential_buckets(1.0, 4.0, 6)) // creation times have whole seconds
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("polis");
        let metrics = Self {
            registry: Mutex::default(),
            reconciles: Family::default(),
            errors: Family::default(),
            durations: Family::new_with_constructor(durations),
            unresolved: Family::default(),
            depth: Family::default(),
            delayed: Gauge::default(),
            running: Gauge::default(),
            oldest: Gauge::default(),
            retries: Family::default(),
            restarts: Family::default(),
            lag: Family::new_with_constructor(lags),
            decode_failures: Family::default(),
            planes: Family::default(),
            failing: Family::default(),
            requests: Family::default(),
            events_dropped: Counter::default(),
            leader: Gauge::default(),
            certificates: Family::default(),
            behind: Arc::default(),
            lags: Mutex::default(),
            behind_keys: Family::default(),
            behind_oldest: Family::default(),
        };
        registry.register("reconciles", "Reconciles that ended", metrics.reconciles.clone());
        registry.register(
            "reconcile_errors",
            "Reconciles that failed, by class of error",
            metrics.errors.clone(),
        );
        registry.register("reconcile_seconds", "Time per reconcile", metrics.durations.clone());
        registry.register(
            "events_unresolved",
            "Events that a mapper could not turn into keys",
            metrics.unresolved.clone(),
        );
        registry.register("queue_depth", "Keys ready to be worked on", metrics.depth.clone());
        registry.register("queue_delayed", "Keys that wait for their time", metrics.delayed.clone());
        registry.register("queue_running", "Keys being worked on", metrics.running.clone());
        registry.register(
            "queue_oldest_seconds",
            "Age of the key that has been ready for longest",
            metrics.oldest.clone(),
        );
        registry.register("queue_retries", "Keys put back after a failure", metrics.retries.clone());
        registry.register(
            "watch_restarts",
            "Watches that ended other than on time, by reason",
            metrics.restarts.clone(),
        );
        registry.register(
            "watch_lag_seconds",
            "From creation of an object to its sight",
            metrics.lag.clone(),
        );
        registry.register(
            "decode_failures",
            "Objects that do not fit their type",
            metrics.decode_failures.clone(),
        );
        registry.register("planes", "Planes by state of engagement", metrics.planes.clone());
        registry.register(
            "planes_failing",
            "Planes that cannot be watched, by reason",
            metrics.failing.clone(),
        );
        registry.register(
            "api_requests",
            "Requests by verb, code and kind of plane",
            metrics.requests.clone(),
        );
        registry.register("events_dropped", "Kubernetes events given up", metrics.events_dropped.clone());
        registry.register("leader", "1 while this replica leads", metrics.leader.clone());
        registry.register(
            "certificate_expiry_timestamp_seconds",
            "When a certificate of this process ends, in seconds since 1970",
            metrics.certificates.clone(),
        );
        registry.register(
            "behind",
            "Keys whose object elsewhere is not up to date, by controller",
            metrics.behind_keys.clone(),
        );
        registry.register(
            "behind_oldest_seconds",
            "Age of the oldest of them",
            metrics.behind_oldest.clone(),
        );
        *metrics.registry.lock() = registry;
        metrics
    }
}

impl Metrics {
    /// What the text is.
    pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

    /// The text that Prometheus scrapes.
    pub fn render(&self) -> String {
        self.look_behind();
        let mut text = String::new();
        // Writing into a String cannot fail.
        let _ = encode(&mut text, &self.registry.lock());
        text
    }

    /// Notes of a controller on what is behind.
    pub fn lag(&self, controller: &'static str) -> Lag {
        // On the page from the start: an alert must be able to tell nothing behind from nobody there.
        self.lags.lock().insert(controller);
        Lag::new(controller, self.behind.clone())
    }

    /// Ages grow by themselves: they are worked out when somebody asks.
    fn look_behind(&self) {
        let summary = lag::summary(&self.behind);
        for controller in self.lags.lock().iter().copied() {
            let (count, age) = summary.get(controller).copied().unwrap_or_default();
            self.behind_keys.get_or_create(&ByController { controller }).set(gauge(count));
            let age = i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
            self.behind_oldest.get_or_create(&ByController { controller }).set(age);
        }
    }

    /// Says when a certificate ends, in seconds since 1970.
    pub fn certificate_ends(&self, certificate: &'static str, at: i64) {
        self.certificates.get_or_create(&ByCertificate { certificate }).set(at);
    }

    /// Lets a program add metrics of its own to the same page.
    pub fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.registry.lock());
    }

    /// A controller that has done nothing yet.
    pub(crate) fn controller(&self, controller: &'static str) {
        let by = ByController { controller };
        for counter in [&self.reconciles, &self.unresolved, &self.retries] {
            drop(counter.get_or_create(&by));
        }
        drop(self.durations.get_or_create(&by));
        for class in Class::ALL {
            drop(self.errors.get_or_create(&ByClass { controller, class: class.as_str() }));
        }
    }

    /// A kind that is watched, and of which nothing was seen yet.
    pub(crate) fn watched(&self, kind: &Kind) {
        let by = ByKind { kind: kind.to_string() };
        drop(self.decode_failures.get_or_create(&by));
        drop(self.lag.get_or_create(&by));
        drop(self.restarts.get_or_create(&ByKindAndReason { kind: by.kind, reason: EXPIRED }));
    }

    pub(crate) fn reconciled(&self, controller: &'static str, took: Duration, error: Option<Class>) {
        self.reconciles.get_or_create(&ByController { controller }).inc();
        self.durations.get_or_create(&ByController { controller }).observe(took.as_secs_f64());
        if let Some(class) = error {
            self.errors.get_or_create(&ByClass { controller, class: class.as_str() }).inc();
            self.retries.get_or_create(&ByController { controller }).inc();
        }
    }

    pub(crate) fn unresolved(&self, controller: &'static str) {
        self.unresolved.get_or_create(&ByController { controller }).inc();
    }

    pub(crate) fn queue(&self, depth: [usize; 3], delayed: usize, running: usize, oldest: Duration) {
        for (priority, depth) in ["fresh", "retry", "backlog"].into_iter().zip(depth) {
            self.depth.get_or_create(&ByPriority { priority }).set(gauge(depth));
        }
        self.delayed.set(gauge(delayed));
        self.running.set(gauge(running));
        self.oldest.set(i64::try_from(oldest.as_secs()).unwrap_or(i64::MAX));
    }

    pub(crate) fn watch_restarted(&self, kind: &Kind, reason: &'static str) {
        self.restarts.get_or_create(&ByKindAndReason { kind: kind.to_string(), reason }).inc();
    }

    pub(crate) fn watch_lag(&self, kind: &Kind, created: Option<&str>, clock: &Clock) {
        let Some(created) = created.and_then(|created| created.parse::<jiff::Timestamp>().ok()) else {
            return;
        };
        let lag = clock.now().duration_since(created).as_secs_f64().max(0.0);
        self.lag.get_or_create(&ByKind { kind: kind.to_string() }).observe(lag);
    }

    pub(crate) fn decode_failed(&self, kind: &Kind) {
        self.decode_failures.get_or_create(&ByKind { kind: kind.to_string() }).inc();
    }

    pub(crate) fn planes(&self, set: &'static str, state: &'static str, count: usize) {
        self.planes.get_or_create(&ByState { set, state }).set(gauge(count));
    }

    pub(crate) fn failing(&self, set: &'static str, reason: &'static str, count: usize) {
        self.failing.get_or_create(&ByReason { set, reason }).set(gauge(count));
    }

    pub(crate) fn request(&self, verb: &'static str, code: String, plane: &'static str) {
        self.requests.get_or_create(&Request { verb, code, plane }).inc();
    }

    pub(crate) fn event_dropped(&self) {
        self.events_dropped.inc();
    }

    pub(crate) fn leading(&self, leading: bool) {
        self.leader.set(i64::from(leading));
    }
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

#[cfg(test)]
mod tests {
    use polis_api::k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    #[test]
    fn what_may_be_counted_is_on_the_page_before_anything_is() {
        let metrics = Metrics::default();
        metrics.controller("notes");
        metrics.watched(&Kind::of::<ConfigMap>());
        let page = metrics.render();
        for line in [
            "polis_reconciles_total{controller=\"notes\"} 0",
            "polis_reconcile_errors_total{controller=\"notes\",class=\"forbidden\"} 0",
            "polis_reconcile_seconds_count{controller=\"notes\"} 0",
            "polis_events_unresolved_total{controller=\"notes\"} 0",
            "polis_queue_retries_total{controller=\"notes\"} 0",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not on\n{page}");
        }
        for family in ["decode_failures_total", "watch_lag_seconds_count", "watch_restarts_total"] {
            let begins = format!("polis_{family}{{kind=\"");
            let found = page.lines().find(|line| line.starts_with(&begins));
            assert!(found.is_some_and(|line| line.ends_with(" 0")), "{family} is not on\n{page}");
        }
    }
}
