//! Metrics of the server, at `/metrics` of the root plane. They have the names of Kubernetes where it has the
//! metric.

use std::{fmt, sync::Arc, time::Duration};

use polis_apimachinery::storage_quota::StorageUsage;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, text::encode},
    metrics::{
        MetricType,
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::{ConstGauge, Gauge},
        histogram::Histogram,
    },
    registry::Registry,
};

use crate::{access::Audit, store::Store};

/// Bucket bounds of waits in seconds, as in Kubernetes.
const WAITS: [f64; 13] = [0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0];

type Labels<const N: usize> = [(&'static str, &'static str); N];

/// All metrics.
pub(crate) struct Metrics {
    registry: Registry,
    executing: Family<Labels<1>, Gauge>,
    queued: Family<Labels<1>, Gauge>,
    dispatched: Family<Labels<1>, Counter>,
    rejected: Family<Labels<2>, Counter>,
    waits: Family<Labels<1>, Histogram, fn() -> Histogram>,
    /// Open watches.
    pub(crate) watches: Gauge,
    /// Watches that were refused.
    pub(crate) watches_refused: Counter,
    /// Writes that were refused because of a storage quota.
    pub(crate) quota_refused: Counter,
}

/// The metrics of one priority level.
#[derive(Clone)]
pub(crate) struct LevelMetrics {
    name: &'static str,
    executing: Gauge,
    queued: Gauge,
    dispatched: Counter,
    rejected: Family<Labels<2>, Counter>,
    wait: Histogram,
}

fn mk_waits() -> Histogram {
    Histogram::new(WAITS)
}

impl Metrics {
    /// All metrics, with 0. `planes` measures the storage of the planes when the metrics are read, `audit`
    /// counts the events of the audit log.
    pub(crate) fn new(planes: StorageCollector, audit: AuditCollector) -> Arc<Self> {
        let mut registry = Registry::default();
        let mut metrics = Self {
            executing: Family::default(),
            queued: Family::default(),
            dispatched: Family::default(),
            rejected: Family::default(),
            waits: Family::new_with_constructor(mk_waits),
            watches: Gauge::default(),
            watches_refused: Counter::default(),
            quota_refused: Counter::default(),
            registry: Registry::default(),
        };
        registry.register(
            "apiserver_flowcontrol_current_executing_requests",
            "Requests of a priority level that compute",
            metrics.executing.clone(),
        );
        registry.register(
            "apiserver_flowcontrol_current_inqueue_requests",
            "Requests of a priority level that wait for a permit",
            metrics.queued.clone(),
        );
        registry.register(
            "apiserver_flowcontrol_dispatched_requests",
            "Requests that got their first permit",
            metrics.dispatched.clone(),
        );
        registry.register(
            "apiserver_flowcontrol_rejected_requests",
            "Requests refused with 429, by reason: queue-full, time-out, memory",
            metrics.rejected.clone(),
        );
        registry.register(
            "apiserver_flowcontrol_request_wait_duration_seconds",
            "Seconds from the arrival of a request to its first permit",
            metrics.waits.clone(),
        );
        registry.register("apiserver_longrunning_requests", "Open watches", metrics.watches.clone());
        registry.register(
            "polis_watches_refused",
            "Watches refused with 429 because their identity has too many",
            metrics.watches_refused.clone(),
        );
        registry.register(
            "polis_plane_storage_refusals",
            "Writes refused with 403 because their plane is at its storage quota",
            metrics.quota_refused.clone(),
        );
        registry.register_collector(Box::new(planes));
        registry.register_collector(Box::new(audit));
        metrics.registry = registry;
        Arc::new(metrics)
    }

    /// The metrics of a level.
    pub(crate) fn level(&self, name: &'static str) -> LevelMetrics {
        let labels = [("priority_level", name)];
        LevelMetrics {
            name,
            executing: self.executing.get_or_create_owned(&labels),
            queued: self.queued.get_or_create_owned(&labels),
            dispatched: self.dispatched.get_or_create_owned(&labels),
            rejected: self.rejected.clone(),
            wait: self.waits.get_or_create_owned(&labels),
        }
    }

    /// The metrics in the text format of OpenMetrics.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

impl LevelMetrics {
    pub(crate) fn show(&self, executing: usize, waiting: usize) {
        self.executing.set(i64::try_from(executing).unwrap_or(i64::MAX));
        self.queued.set(i64::try_from(waiting).unwrap_or(i64::MAX));
    }

    pub(crate) fn dispatch(&self, waited: Duration) {
        self.dispatched.inc();
        self.wait.observe(waited.as_secs_f64());
    }

    pub(crate) fn reject(&self, reason: &'static str) {
        self.rejected.get_or_create(&[("priority_level", self.name), ("reason", reason)]).inc();
    }
}

/// Measures the storage of the planes when the metrics are read.
pub(crate) struct StorageCollector(Arc<dyn Store>);

impl StorageCollector {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self(store)
    }
}

impl fmt::Debug for StorageCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StorageCollector")
    }
}

/// Name, help and value of a gauge with one series for each plane.
type PlaneGauge = (&'static str, &'static str, fn(&StorageUsage) -> u64);

impl Collector for StorageCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut planes = self.0.view().usages();
        planes.sort_by(|(a, _), (b, _)| a.cmp(b));
        let gauges: [PlaneGauge; 2] = [
            ("polis_plane_storage_objects", "Objects of a plane", |usage| usage.objects),
            ("polis_plane_storage_bytes", "Bytes of the objects of a plane", |usage| usage.bytes),
        ];
        for (name, help, value) in gauges {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (plane, usage) in &planes {
                let value = i64::try_from(value(usage)).unwrap_or(i64::MAX);
                ConstGauge::new(value).encode(family.encode_family(&[("plane", &**plane)])?)?;
            }
        }
        Ok(())
    }
}

/// Counts the events of the audit log when the metrics are read.
pub(crate) struct AuditCollector(Option<Arc<Audit>>);

impl AuditCollector {
    pub(crate) fn new(audit: Option<Arc<Audit>>) -> Self {
        Self(audit)
    }
}

impl fmt::Debug for AuditCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuditCollector")
    }
}

impl Collector for AuditCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (written, lost) = self.0.as_ref().map_or((0, 0), |audit| audit.counts());
        let help = "Events written to the audit log";
        let family = encoder.encode_descriptor("apiserver_audit_event", help, None, MetricType::Counter)?;
        ConstCounter::new(written).encode(family)?;
        let help = "Audit events lost, because the queue was full or the log could not be written";
        let mut family =
            encoder.encode_descriptor("apiserver_audit_error", help, None, MetricType::Counter)?;
        ConstCounter::new(lost).encode(family.encode_family(&[("plugin", "log")])?)
    }
}
