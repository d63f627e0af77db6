//! How many reviews were answered, how, and how fast.

use std::time::Duration;

use polis_engine::Metrics;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    webhook: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Which {
    webhook: &'static str,
}

/// Counters of the webhooks.
#[derive(Clone)]
pub(crate) struct Counts {
    reviews: Family<Answered, Counter>,
    durations: Family<Which, Histogram>,
}

impl Counts {
    /// New counters on the page of a program.
    pub(crate) fn register(metrics: &Metrics) -> Self {
        // From 0.1 ms to 13 s: an answer without a look at others, and one that waits for all it may.
        let histogram = || Histogram::new(exponential_buckets(0.0001, 3.0, 12));
        let counts = Self { reviews: Family::default(), durations: Family::new_with_constructor(histogram) };
        // On the page from the start: the first failure would otherwise be none to Prometheus.
        for webhook in ["mutate", "validate"] {
            for outcome in ["Allowed", "InternalError", "ServiceUnavailable"] {
                drop(counts.reviews.get_or_create(&Answered { webhook, outcome }));
            }
            drop(counts.durations.get_or_create(&Which { webhook }));
        }
        metrics.register(|registry| {
            let help = "Admission reviews answered, by webhook and outcome";
            registry.register("admission_reviews", help, counts.reviews.clone());
            let help = "Seconds that an admission review took, access reviews included";
            registry.register("admission_review_seconds", help, counts.durations.clone());
        });
        counts
    }

    pub(crate) fn answered(&self, webhook: &'static str, outcome: &'static str, took: Duration) {
        self.reviews.get_or_create(&Answered { webhook, outcome }).inc();
        self.durations.get_or_create(&Which { webhook }).observe(took.as_secs_f64());
    }
}
