//! Metrics of the cell controllers.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use polis_engine::{ErrorClass, Key};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByReason {
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByWhat {
    what: &'static str,
}

/// Values of label `reason` of `compute_quota_eval_failures`.
pub(crate) const QUOTA_REASONS: [&str; 8] = [
    "backend_unavailable",
    "misconfigured",
    "namespace_not_found",
    "no_budget",
    "other_cell",
    "project_id_unresolvable",
    "project_not_found",
    "size_invalid",
];
/// Value of label `reason` when the hub does not respond. Other values are the classes of its errors.
pub(crate) const UNREACHABLE: &str = "unreachable";

/// A reference of an instance that cannot be resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum UnresolvedReference {
    /// The project of the hub namespace, or a label that links the instance to its deployment.
    Origin,
    /// The project of the cell's namespace.
    Project,
    /// The owner of an Instance on the hub that has the name of the copy.
    Copy,
    /// The deployment on the hub: the hub has had none for a minute.
    Deployment,
}

impl UnresolvedReference {
    const ALL: [Self; 4] = [Self::Origin, Self::Project, Self::Copy, Self::Deployment];

    fn as_str(self) -> &'static str {
        match self {
            Self::Origin => "origin",
            Self::Project => "project",
            Self::Copy => "copy",
            Self::Deployment => "deployment",
        }
    }
}

/// The metrics. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Metrics(Arc<Inner>);

struct Inner {
    quota_enforced: Gauge,
    quota_failures: Family<ByReason, Counter>,
    claims_orphaned: Counter,
    hub_failures: Family<ByReason, Counter>,
    unresolved: Family<ByWhat, Gauge>,
    open: Mutex<BTreeSet<(UnresolvedReference, Key)>>,
}

impl Metrics {
    /// Creates the metrics and registers them with the engine's registry.
    pub(crate) fn register(registry: &polis_engine::Metrics) -> Self {
        let inner = Inner {
            quota_enforced: Gauge::default(),
            quota_failures: Family::default(),
            claims_orphaned: Counter::default(),
            hub_failures: Family::default(),
            unresolved: Family::default(),
            open: Mutex::default(),
        };
        for what in UnresolvedReference::ALL {
            inner.unresolved.get_or_create(&ByWhat { what: what.as_str() }).set(0);
        }
        // Initialised to zero: Prometheus does not see the first increment of a series that starts at 1.
        for reason in QUOTA_REASONS {
            drop(inner.quota_failures.get_or_create(&ByReason { reason }));
        }
        for reason in ErrorClass::ALL.map(ErrorClass::as_str).into_iter().chain([UNREACHABLE]) {
            drop(inner.hub_failures.get_or_create(&ByReason { reason }));
        }
        registry.register(|registry| {
            registry.register(
                "compute_quota_enforcement_enabled",
                "1 if instances need a quota grant to start, 0 if quota enforcement is disabled",
                inner.quota_enforced.clone(),
            );
            registry.register(
                "compute_quota_eval_failures",
                "Failed attempts to create or read a quota claim, by reason",
                inner.quota_failures.clone(),
            );
            registry.register(
                "compute_quota_claim_orphaned",
                "Instances that were deleted without deleting their quota claim",
                inner.claims_orphaned.clone(),
            );
            registry.register(
                "compute_writeback_failures",
                "Reconciles that failed to update the hub copy of an instance, by reason",
                inner.hub_failures.clone(),
            );
            registry.register(
                "compute_instances_unresolved",
                "Instances that cannot be copied to the hub or claim quota because a reference cannot be resolved, by reference",
                inner.unresolved.clone(),
            );
        });
        Self(Arc::new(inner))
    }

    pub(crate) fn quota_enforced(&self, enforced: bool) {
        self.0.quota_enforced.set(i64::from(enforced));
    }

    pub(crate) fn quota_failed(&self, reason: &'static str) {
        self.0.quota_failures.get_or_create(&ByReason { reason }).inc();
    }

    pub(crate) fn claim_orphaned(&self) {
        self.0.claims_orphaned.inc();
    }

    pub(crate) fn hub_failed(&self, reason: &'static str) {
        self.0.hub_failures.get_or_create(&ByReason { reason }).inc();
    }

    /// Adds an unresolved reference of an instance. Returns true the first time, which is when to report it.
    pub(crate) fn add_unresolved(&self, what: UnresolvedReference, key: &Key) -> bool {
        let mut open = self.0.open.lock();
        let new = open.insert((what, key.clone()));
        if new {
            self.0.unresolved.get_or_create(&ByWhat { what: what.as_str() }).inc();
        }
        new
    }

    /// Removes an unresolved reference: it is resolved, or the instance is deleted.
    pub(crate) fn remove_unresolved(&self, what: UnresolvedReference, key: &Key) {
        let mut open = self.0.open.lock();
        if open.remove(&(what, key.clone())) {
            self.0.unresolved.get_or_create(&ByWhat { what: what.as_str() }).dec();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_initialised_to_zero() {
        let registry = polis_engine::Metrics::default();
        let _counters = Metrics::register(&registry);
        let page = registry.render();
        for line in [
            "polis_compute_quota_eval_failures_total{reason=\"other_cell\"} 0",
            "polis_compute_writeback_failures_total{reason=\"unreachable\"} 0",
            "polis_compute_writeback_failures_total{reason=\"forbidden\"} 0",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not on\n{page}");
        }
    }

    #[test]
    fn an_unresolved_reference_is_reported_once_and_counted_until_it_is_resolved() {
        let registry = polis_engine::Metrics::default();
        let metrics = Metrics::register(&registry);
        let key = Key::new("cell", "ns-1", "web-0");
        assert!(metrics.add_unresolved(UnresolvedReference::Origin, &key));
        assert!(!metrics.add_unresolved(UnresolvedReference::Origin, &key));
        assert!(registry.render().contains("compute_instances_unresolved{what=\"origin\"} 1"));
        metrics.remove_unresolved(UnresolvedReference::Origin, &key);
        assert!(registry.render().contains("compute_instances_unresolved{what=\"origin\"} 0"));
    }
}
