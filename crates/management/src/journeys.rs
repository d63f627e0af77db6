//! Journeys: how long what a workload asks for is on its way, hop by hop.
//!
//! A journey begins when this process first sees a generation of a workload that its status does not speak of yet, and
//! passes each hop once, with the first object that gets there. All hops pass through this process, so they are measured
//! by one clock. What set out before this process began to lead is not measured.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use polis_api::compute::Workload;
use polis_core::owner;
use polis_engine::{Clock, Metrics};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

/// A journey of this age is given up: not every change of a workload makes a new instance.
const GIVEN_UP: i64 = 600;

/// Where a journey leads through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Hop {
    /// A deployment was written in the project.
    Deployment,
    /// Its copy was written on the hub.
    Hub,
    /// The cell has said its first word about it.
    Cell,
    /// An instance of the template is on the hub.
    Instance,
    /// It is shown in the project.
    Projection,
}

impl Hop {
    const ALL: [Self; 5] = [Self::Deployment, Self::Hub, Self::Cell, Self::Instance, Self::Projection];

    fn as_str(self) -> &'static str {
        match self {
            Self::Deployment => "deployment",
            Self::Hub => "hub",
            Self::Cell => "cell",
            Self::Instance => "instance",
            Self::Projection => "projection",
        }
    }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByHop {
    hop: &'static str,
}

struct Journey {
    generation: Option<i64>,
    began: jiff::Timestamp,
    passed: BTreeSet<Hop>,
}

/// The journeys under way. Cheap to clone.
#[derive(Clone)]
pub struct Journeys(Arc<Inner>);

struct Inner {
    clock: Clock,
    /// By UID of the workload.
    underway: Mutex<BTreeMap<String, Journey>>,
    seconds: Family<ByHop, Histogram, fn() -> Histogram>,
}

fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.005, 2.0, 14)) // 5 ms to 41 s
}

impl Journeys {
    /// Nobody is on the way yet.
    pub fn new(clock: Clock, metrics: &Metrics) -> Self {
        let inner =
            Inner { clock, underway: Mutex::default(), seconds: Family::new_with_constructor(seconds) };
        for hop in Hop::ALL {
            drop(inner.seconds.get_or_create(&ByHop { hop: hop.as_str() }));
        }
        metrics.register(|registry| {
            let help = "From the first sight of a generation of a workload to each hop of its way";
            registry.register("compute_hop_seconds", help, inner.seconds.clone());
        });
        Self(Arc::new(inner))
    }

    /// A workload is looked at. If it asks for something that it did not ask for before, a journey begins.
    pub(crate) fn sets_out(&self, workload: &Workload) {
        let generation = workload.metadata.generation;
        if workload.status.as_ref().and_then(|status| status.observed_generation) == generation {
            return;
        }
        let now = self.0.clock.now();
        let mut underway = self.underway();
        let uid = owner::uid(&workload.metadata);
        if underway.get(uid).is_some_and(|journey| journey.generation == generation) {
            return;
        }
        underway.retain(|_, journey| now.duration_since(journey.began).as_secs() < GIVEN_UP);
        let journey = Journey { generation, began: now, passed: BTreeSet::new() };
        underway.insert(uid.to_owned(), journey);
    }

    /// Whether a journey of this workload has this hop before it. To be asked where it takes effort to know whether the
    /// hop is passed.
    pub(crate) fn awaits(&self, workload_uid: &str, hop: Hop) -> bool {
        self.underway().get(workload_uid).is_some_and(|journey| !journey.passed.contains(&hop))
    }

    /// Something of this workload has come to a hop.
    pub(crate) fn passes(&self, workload_uid: &str, hop: Hop) {
        let mut underway = self.underway();
        let Some(journey) = underway.get_mut(workload_uid) else { return };
        if !journey.passed.insert(hop) {
            return;
        }
        let took = self.0.clock.now().duration_since(journey.began).as_secs_f64().max(0.0);
        self.0.seconds.get_or_create(&ByHop { hop: hop.as_str() }).observe(took);
        if hop == Hop::Projection {
            underway.remove(workload_uid);
        }
    }

    fn underway(&self) -> MutexGuard<'_, BTreeMap<String, Journey>> {
        self.0.underway.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use polis_api::compute::WorkloadStatus;

    use super::*;

    fn mk_workload(generation: i64, observed: Option<i64>) -> Workload {
        let mut workload = Workload::default();
        workload.metadata.uid = Some("uid".into());
        workload.metadata.generation = Some(generation);
        workload.status = Some(WorkloadStatus { observed_generation: observed, ..Default::default() });
        workload
    }

    fn mk_journeys() -> (Journeys, Metrics) {
        let metrics = Metrics::default();
        (Journeys::new(Clock::system(), &metrics), metrics)
    }

    fn count(metrics: &Metrics, hop: &str) -> String {
        let page = metrics.render();
        let line = format!("polis_compute_hop_seconds_count{{hop=\"{hop}\"}} ");
        page.lines().find_map(|found| found.strip_prefix(&line)).unwrap_or("none").to_owned()
    }

    #[test]
    fn each_hop_of_a_generation_is_counted_once() {
        let (journeys, metrics) = mk_journeys();
        journeys.sets_out(&mk_workload(1, None));
        for _ in 0..2 {
            journeys.passes("uid", Hop::Deployment);
            journeys.sets_out(&mk_workload(1, None));
        }
        journeys.passes("uid", Hop::Hub);
        assert_eq!((count(&metrics, "deployment").as_str(), count(&metrics, "hub").as_str()), ("1", "1"));
        assert!(journeys.awaits("uid", Hop::Instance) && !journeys.awaits("uid", Hop::Hub));
        journeys.sets_out(&mk_workload(2, Some(1)));
        journeys.passes("uid", Hop::Hub);
        assert_eq!(count(&metrics, "hub"), "2");
    }

    #[test]
    fn what_has_arrived_or_was_seen_before_is_on_no_journey() {
        let (journeys, metrics) = mk_journeys();
        journeys.sets_out(&mk_workload(3, Some(3)));
        journeys.passes("uid", Hop::Hub);
        assert_eq!(count(&metrics, "hub"), "0");
        journeys.sets_out(&mk_workload(4, Some(3)));
        journeys.passes("uid", Hop::Projection);
        journeys.passes("uid", Hop::Instance);
        assert_eq!(
            (count(&metrics, "projection").as_str(), count(&metrics, "instance").as_str()),
            ("1", "0")
        );
    }
}
