//! The Prometheus metrics of the engine.
//!
//! Every label has few values: kinds, controllers and sets that the program declares, verbs, codes and error
//! classes. Names of planes and objects are never labels; they are in logs and in `/readyz?verbose`.
//!
//! Counters exist from the start with the value 0. Otherwise Prometheus would miss the first increment,
//! because `rate` and `increase` need an earlier sample.

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

use crate::coalesce::{self, StaleKeys, StatusCoalescer};
use crate::{Clock, ErrorClass, Kind};

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
struct ByVerb {
    set: &'static str,
    verb: &'static str,
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

/// Reason of a watch restart whose resource version has expired on the server (410). This is not an error.
pub(crate) const EXPIRED: &str = "expired";
/// Reason of a watch restart after the server was restored from a backup.
pub(crate) const RESTORED: &str = "restored";

/// The metrics of one engine.
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
    holds: Family<ByController, Counter>,
    restarts: Family<ByKindAndReason, Counter>,
    watch_lag: Family<ByKind, Histogram, fn() -> Histogram>,
    decode_failures: Family<ByKind, Counter>,
    planes: Family<ByState, Gauge>,
    failing: Family<ByReason, Gauge>,
    erring: Family<ByVerb, Gauge>,
    requests: Family<Request, Counter>,
    events_dropped: Counter,
    leader: Gauge,
    certificates: Family<ByCertificate, Gauge>,
    stale: Arc<StaleKeys>,
    coalescing_controllers: Mutex<BTreeSet<&'static str>>,
    stale_keys: Family<ByController, Gauge>,
    stale_oldest: Family<ByController, Gauge>,
}

fn durations() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 4.0, 8)) // 1 ms to 16 s
}

fn watch_lags() -> Histogram {
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
            holds: Family::default(),
            restarts: Family::default(),
            watch_lag: Family::new_with_constructor(watch_lags),
            decode_failures: Family::default(),
            planes: Family::default(),
            failing: Family::default(),
            erring: Family::default(),
            requests: Family::default(),
            events_dropped: Counter::default(),
            leader: Gauge::default(),
            certificates: Family::default(),
            stale: Arc::default(),
            coalescing_controllers: Mutex::default(),
            stale_keys: Family::default(),
            stale_oldest: Family::default(),
        };
        registry.register(
            "reconciles",
            "Number of finished reconciles, successful or failed, by controller",
            metrics.reconciles.clone(),
        );
        registry.register(
            "reconcile_errors",
            "Number of failed reconciles, by controller and error class",
            metrics.errors.clone(),
        );
        registry.register(
            "reconcile_seconds",
            "Duration of a reconcile in seconds, by controller",
            metrics.durations.clone(),
        );
        registry.register(
            "events_unresolved",
            "Number of object changes dropped because no key of an engaged plane was found for them, by controller",
            metrics.unresolved.clone(),
        );
        registry.register(
            "queue_depth",
            "Number of keys in the work queue that are ready to be reconciled, by priority",
            metrics.depth.clone(),
        );
        registry.register(
            "queue_delayed",
            "Number of keys in the work queue that wait for a retry or a requested requeue",
            metrics.delayed.clone(),
        );
        registry.register(
            "queue_running",
            "Number of keys that workers are reconciling",
            metrics.running.clone(),
        );
        registry.register(
            "queue_oldest_seconds",
            "Time in seconds that the oldest ready key has waited in the work queue",
            metrics.oldest.clone(),
        );
        registry.register(
            "queue_retries",
            "Number of keys queued again after a failed reconcile, by controller",
            metrics.retries.clone(),
        );
        registry.register(
            "queue_holds",
            "Number of reconciles that were deferred until the watch shows the key's own last write, by controller",
            metrics.holds.clone(),
        );
        registry.register(
            "watch_restarts",
            "Number of watches restarted after an error or an expired resource version, by kind and reason",
            metrics.restarts.clone(),
        );
        registry.register(
            "watch_lag_seconds",
            "Time in seconds from an object's creationTimestamp to its arrival on the watch, by kind",
            metrics.watch_lag.clone(),
        );
        registry.register(
            "decode_failures",
            "Number of objects that could not be decoded as their type, by kind",
            metrics.decode_failures.clone(),
        );
        registry.register("planes", "Number of planes by set and state: engaging (first lists incomplete), engaged (caches synced), failing (watch errors)", metrics.planes.clone());
        registry.register(
            "planes_failing",
            "Number of planes with a failing watch, by set and reason",
            metrics.failing.clone(),
        );
        registry.register(
            "planes_erring",
            "Number of planes that have answered nothing but errors for a minute, by set and verb",
            metrics.erring.clone(),
        );
        registry.register(
            "api_requests",
            "Number of API requests, by verb, HTTP status code or transport error, and role of the plane",
            metrics.requests.clone(),
        );
        registry.register(
            "events_dropped",
            "Number of Kubernetes Events that were dropped because they could not be written",
            metrics.events_dropped.clone(),
        );
        registry.register(
            "leader",
            "1 while this replica is the leader and reconciles, 0 otherwise",
            metrics.leader.clone(),
        );
        registry.register(
            "certificate_expiry_timestamp_seconds",
            "Expiry time of a certificate of this process, in seconds since the Unix epoch",
            metrics.certificates.clone(),
        );
        registry.register(
            "behind",
            "Number of keys whose target object is out of date, by controller",
            metrics.stale_keys.clone(),
        );
        registry.register(
            "behind_oldest_seconds",
            "Time in seconds since the target object of the oldest stale key went out of date, by controller",
            metrics.stale_oldest.clone(),
        );
        *metrics.registry.lock() = registry;
        metrics
    }
}

impl Metrics {
    /// The content type of [`Metrics::render`].
    pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

    /// The metrics in the OpenMetrics text format.
    pub fn render(&self) -> String {
        self.update_stale();
        let mut text = String::new();
        // Writing into a String cannot fail.
        let _ = encode(&mut text, &self.registry.lock());
        text
    }

    /// The status coalescer of a controller.
    pub fn status_coalescer(&self, controller: &'static str) -> StatusCoalescer {
        // Registered at once, so that an alert can tell "no stale keys" from "controller not running".
        self.coalescing_controllers.lock().insert(controller);
        StatusCoalescer::new(controller, self.stale.clone())
    }

    /// Updates the gauges of stale keys. Ages change all the time, so they are computed for each scrape.
    fn update_stale(&self) {
        let summary = coalesce::summary(&self.stale);
        for controller in self.coalescing_controllers.lock().iter().copied() {
            let (count, age) = summary.get(controller).copied().unwrap_or_default();
            self.stale_keys.get_or_create(&ByController { controller }).set(gauge(count));
            let age = i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
            self.stale_oldest.get_or_create(&ByController { controller }).set(age);
        }
    }

    /// Sets the expiry time of a certificate, in seconds since the Unix epoch.
    pub fn set_certificate_expiry(&self, certificate: &'static str, at: i64) {
        self.certificates.get_or_create(&ByCertificate { certificate }).set(at);
    }

    /// Registers further metrics of the program.
    pub fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.registry.lock());
    }

    /// Creates the series of a controller with the value 0.
    pub(crate) fn init_controller(&self, controller: &'static str) {
        let by = ByController { controller };
        for counter in [&self.reconciles, &self.unresolved, &self.retries, &self.holds] {
            drop(counter.get_or_create(&by));
        }
        drop(self.durations.get_or_create(&by));
        for class in ErrorClass::ALL {
            drop(self.errors.get_or_create(&ByClass { controller, class: class.as_str() }));
        }
    }

    /// Creates the series of a watched kind with the value 0.
    pub(crate) fn init_kind(&self, kind: &Kind) {
        let by = ByKind { kind: kind.to_string() };
        drop(self.decode_failures.get_or_create(&by));
        drop(self.watch_lag.get_or_create(&by));
        drop(self.restarts.get_or_create(&ByKindAndReason { kind: by.kind, reason: EXPIRED }));
    }

    pub(crate) fn reconciled(&self, controller: &'static str, took: Duration, error: Option<ErrorClass>) {
        self.reconciles.get_or_create(&ByController { controller }).inc();
        self.durations.get_or_create(&ByController { controller }).observe(took.as_secs_f64());
        if let Some(class) = error {
            self.errors.get_or_create(&ByClass { controller, class: class.as_str() }).inc();
            self.retries.get_or_create(&ByController { controller }).inc();
        }
    }

    pub(crate) fn held(&self, controller: &'static str) {
        self.holds.get_or_create(&ByController { controller }).inc();
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

    pub(crate) fn observe_watch_lag(&self, kind: &Kind, created: Option<&str>, clock: &Clock) {
        let Some(created) = created.and_then(|created| created.parse::<jiff::Timestamp>().ok()) else {
            return;
        };
        let lag = clock.now().duration_since(created).as_secs_f64().max(0.0);
        self.watch_lag.get_or_create(&ByKind { kind: kind.to_string() }).observe(lag);
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

    pub(crate) fn erring(&self, set: &'static str, verb: &'static str, count: usize) {
        self.erring.get_or_create(&ByVerb { set, verb }).set(gauge(count));
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
    fn counters_are_rendered_as_0_before_the_first_event() {
        let metrics = Metrics::default();
        metrics.init_controller("notes");
        metrics.init_kind(&Kind::of::<ConfigMap>());
        let page = metrics.render();
        for line in [
            "polis_reconciles_total{controller=\"notes\"} 0",
            "polis_reconcile_errors_total{controller=\"notes\",class=\"forbidden\"} 0",
            "polis_reconcile_seconds_count{controller=\"notes\"} 0",
            "polis_events_unresolved_total{controller=\"notes\"} 0",
            "polis_queue_retries_total{controller=\"notes\"} 0",
            "polis_queue_holds_total{controller=\"notes\"} 0",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is missing in\n{page}");
        }
        for family in ["decode_failures_total", "watch_lag_seconds_count", "watch_restarts_total"] {
            let begins = format!("polis_{family}{{kind=\"");
            let found = page.lines().find(|line| line.starts_with(&begins));
            assert!(found.is_some_and(|line| line.ends_with(" 0")), "{family} is missing in\n{page}");
        }
    }
}
