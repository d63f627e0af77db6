//! Metrics of the webhooks.

use std::time::Duration;

use polis_engine::Metrics;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReviewLabels {
    webhook: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WebhookLabels {
    webhook: &'static str,
}

/// WebhookMetrics and durations of admission reviews.
#[derive(Clone)]
pub(crate) struct WebhookMetrics {
    reviews: Family<ReviewLabels, Counter>,
    durations: Family<WebhookLabels, Histogram>,
}

impl WebhookMetrics {
    /// Creates the metrics and registers them.
    pub(crate) fn register(metrics: &Metrics) -> Self {
        // 0.1 ms to 13 s: from a review without requests to planes to one that waits for all its timeouts.
        let histogram = || Histogram::new(exponential_buckets(0.0001, 3.0, 12));
        let created = Self { reviews: Family::default(), durations: Family::new_with_constructor(histogram) };
        // Initialised to zero: Prometheus does not see the first increment of a series that starts at 1.
        for webhook in ["mutate", "validate"] {
            for outcome in ["Allowed", "InternalError", "ServiceUnavailable"] {
                drop(created.reviews.get_or_create(&ReviewLabels { webhook, outcome }));
            }
            drop(created.durations.get_or_create(&WebhookLabels { webhook }));
        }
        metrics.register(|registry| {
            let help = "Admission reviews handled, by webhook and outcome";
            registry.register("admission_reviews", help, created.reviews.clone());
            let help = "Seconds to handle an admission review, including its access reviews";
            registry.register("admission_review_seconds", help, created.durations.clone());
        });
        created
    }

    pub(crate) fn record(&self, webhook: &'static str, outcome: &'static str, took: Duration) {
        self.reviews.get_or_create(&ReviewLabels { webhook, outcome }).inc();
        self.durations.get_or_create(&WebhookLabels { webhook }).observe(took.as_secs_f64());
    }
}
