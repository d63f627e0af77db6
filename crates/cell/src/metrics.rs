//! Counters of a cell.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use polis_engine::{Class, Key};
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

/// Why a claim could not be made or read, in words.
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
/// The hub does not answer at all; other reasons are the classes of its answers.
pub(crate) const UNREACHABLE: &str = "unreachable";

/// What cannot be resolved about an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Unknown {
    /// The project of the hub namespace, or a label that links the instance.
    Origin,
    /// The project of the cell's namespace.
    Project,
    /// Whose the object is that has the name of the copy.
    Copy,
}

impl Unknown {
    const ALL: [Self; 3] = [Self::Origin, Self::Project, Self::Copy];

    fn as_str(self) -> &'static str {
        match self {
            Self::Origin => "origin",
            Self::Project => "project",
            Self::Copy => "copy",
        }
    }
}

/// The counters. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Metrics(Arc<Inner>);

struct Inner {
    quota_enforced: Gauge,
    quota_failures: Family<ByReason, Counter>,
    claims_orphaned: Counter,
    hub_failures: Family<ByReason, Counter>,
    unresolved: Family<ByWhat, Gauge>,
    open: Mutex<BTreeSet<(Unknown, Key)>>,
}

impl Metrics {
    /// Makes the counters and puts them beside the engine's.
    pub(crate) fn register(registry: &polis_engine::Metrics) -> Self {
        let inner = Inner {
            quota_enforced: Gauge::default(),
            quota_failures: Family::default(),
            claims_orphaned: Counter::default(),
            hub_failures: Family::default(),
            unresolved: Family::default(),
            open: Mutex::default(),
        };
        for what in Unknown::ALL {
            inner.unresolved.get_or_create(&ByWhat { what: what.as_str() }).set(0);
        }
        // On the page from the start: the first failure would otherwise be none to Prometheus.
        for reason in QUOTA_REASONS {
            drop(inner.quota_failures.get_or_create(&ByReason { reason }));
        }
        for reason in Class::ALL.map(Class::as_str).into_iter().chain([UNREACHABLE]) {
            drop(inner.hub_failures.get_or_create(&ByReason { reason }));
        }
        registry.register(|registry| {
            registry.register(
                "compute_quota_enforcement_enabled",
                "1 if instances need a quota grant to start",
                inner.quota_enforced.clone(),
            );
            registry.register(
                "compute_quota_eval_failures",
                "Quota claims that could not be made or read, by reason",
                inner.quota_failures.clone(),
            );
            registry.register(
                "compute_quota_claim_orphaned",
                "Instances that were let go without giving back their claim",
                inner.claims_orphaned.clone(),
            );
            registry.register(
                "compute_writeback_failures",
                "Passes that could not bring the hub up to date, by reason",
                inner.hub_failures.clone(),
            );
            registry.register(
                "compute_instances_unresolved",
                "Instances that stay invisible until somebody puts right what is wrong, by what is not known",
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

    /// Notes that something about an instance cannot be resolved. True the first time: that is when to tell people.
    pub(crate) fn unresolved(&self, what: Unknown, key: &Key) -> bool {
        let mut open = self.0.open.lock();
        let new = open.insert((what, key.clone()));
        if new {
            self.0.unresolved.get_or_create(&ByWhat { what: what.as_str() }).inc();
        }
        new
    }

    /// Notes that it is resolved, or that nobody asks any more.
    pub(crate) fn resolved(&self, what: Unknown, key: &Key) {
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
    fn every_reason_is_on_the_page_before_there_is_one() {
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
    fn what_is_not_resolved_is_told_once_and_counted_until_it_is() {
        let registry = polis_engine::Metrics::default();
        let metrics = Metrics::register(&registry);
        let key = Key::new("cell", "ns-1", "web-0");
        assert!(metrics.unresolved(Unknown::Origin, &key));
        assert!(!metrics.unresolved(Unknown::Origin, &key));
        assert!(registry.render().contains("compute_instances_unresolved{what=\"origin\"} 1"));
        metrics.resolved(Unknown::Origin, &key);
        assert!(registry.render().contains("compute_instances_unresolved{what=\"origin\"} 0"));
    }
}
