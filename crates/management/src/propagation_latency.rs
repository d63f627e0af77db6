//! Propagation latency: time from a new Workload generation to each stage of its rollout.
//!
//! The measurement starts when this process first reads a generation that the Workload's status has not
//! observed yet. Each stage is recorded once, for the first object that reaches it. This process takes part
//! in all stages, so one clock measures them. A rollout that started before this process became the leader is
//! not measured.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use polis_api::ObjectExt;
use polis_api::compute::Workload;
use polis_engine::{Clock, Metrics};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

/// Seconds after which a rollout is dropped: not every new generation leads to a new instance.
const ROLLOUT_TIMEOUT_SECONDS: i64 = 600;

/// A stage of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// A WorkloadDeployment was written in the project.
    Deployment,
    /// Its copy was written on the hub.
    Hub,
    /// The cell reported its first status.
    Cell,
    /// An instance of the template was copied to the hub.
    Instance,
    /// The instance was projected into the project.
    Projection,
}

impl Stage {
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
struct ByStage {
    hop: &'static str,
}

struct Rollout {
    generation: Option<i64>,
    started: jiff::Timestamp,
    reached: BTreeSet<Stage>,
}

/// Measures the running rollouts of all Workloads. Cheap to clone.
#[derive(Clone)]
pub(crate) struct PropagationLatency(Arc<Inner>);

struct Inner {
    clock: Clock,
    /// By UID of the workload.
    rollouts: Mutex<BTreeMap<String, Rollout>>,
    seconds: Family<ByStage, Histogram, fn() -> Histogram>,
}

fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.005, 2.0, 14)) // 5 ms to 41 s
}

impl PropagationLatency {
    /// Registers the histogram `compute_hop_seconds`.
    pub(crate) fn new(clock: Clock, metrics: &Metrics) -> Self {
        let inner =
            Inner { clock, rollouts: Mutex::default(), seconds: Family::new_with_constructor(seconds) };
        for stage in Stage::ALL {
            drop(inner.seconds.get_or_create(&ByStage { hop: stage.as_str() }));
        }
        metrics.register(|registry| {
            let help = "Seconds from the first read of a new Workload generation to each stage of its rollout, by stage (label hop)";
            registry.register("compute_hop_seconds", help, inner.seconds.clone());
        });
        Self(Arc::new(inner))
    }

    /// Starts a measurement if the Workload has a generation that its status has not observed.
    pub(crate) fn start(&self, workload: &Workload) {
        let generation = workload.metadata.generation;
        if workload.status.as_ref().and_then(|status| status.observed_generation) == generation {
            return;
        }
        let now = self.0.clock.now();
        let mut rollouts = self.rollouts();
        let uid = workload.uid();
        if rollouts.get(uid).is_some_and(|rollout| rollout.generation == generation) {
            return;
        }
        rollouts.retain(|_, rollout| now.duration_since(rollout.started).as_secs() < ROLLOUT_TIMEOUT_SECONDS);
        let rollout = Rollout { generation, started: now, reached: BTreeSet::new() };
        rollouts.insert(uid.to_owned(), rollout);
    }

    /// Whether a rollout of this workload has not reached the stage yet. Callers check it before an expensive
    /// test of the stage.
    pub(crate) fn awaits(&self, workload_uid: &str, stage: Stage) -> bool {
        self.rollouts().get(workload_uid).is_some_and(|rollout| !rollout.reached.contains(&stage))
    }

    /// Records that a rollout of this workload reached a stage.
    pub(crate) fn reached(&self, workload_uid: &str, stage: Stage) {
        let mut rollouts = self.rollouts();
        let Some(rollout) = rollouts.get_mut(workload_uid) else { return };
        if !rollout.reached.insert(stage) {
            return;
        }
        let took = self.0.clock.now().duration_since(rollout.started).as_secs_f64().max(0.0);
        self.0.seconds.get_or_create(&ByStage { hop: stage.as_str() }).observe(took);
        if stage == Stage::Projection {
            rollouts.remove(workload_uid);
        }
    }

    fn rollouts(&self) -> MutexGuard<'_, BTreeMap<String, Rollout>> {
        self.0.rollouts.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
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

    fn mk_latency() -> (PropagationLatency, Metrics) {
        let metrics = Metrics::default();
        (PropagationLatency::new(Clock::system(), &metrics), metrics)
    }

    fn count(metrics: &Metrics, stage: &str) -> String {
        let page = metrics.render();
        let line = format!("polis_compute_hop_seconds_count{{hop=\"{stage}\"}} ");
        page.lines().find_map(|found| found.strip_prefix(&line)).unwrap_or("none").to_owned()
    }

    #[test]
    fn each_stage_of_a_generation_is_recorded_once() {
        let (latency, metrics) = mk_latency();
        latency.start(&mk_workload(1, None));
        for _ in 0..2 {
            latency.reached("uid", Stage::Deployment);
            latency.start(&mk_workload(1, None));
        }
        latency.reached("uid", Stage::Hub);
        assert_eq!((count(&metrics, "deployment").as_str(), count(&metrics, "hub").as_str()), ("1", "1"));
        assert!(latency.awaits("uid", Stage::Instance) && !latency.awaits("uid", Stage::Hub));
        latency.start(&mk_workload(2, Some(1)));
        latency.reached("uid", Stage::Hub);
        assert_eq!(count(&metrics, "hub"), "2");
    }

    #[test]
    fn a_completed_or_observed_generation_is_not_measured() {
        let (latency, metrics) = mk_latency();
        latency.start(&mk_workload(3, Some(3)));
        latency.reached("uid", Stage::Hub);
        assert_eq!(count(&metrics, "hub"), "0");
        latency.start(&mk_workload(4, Some(3)));
        latency.reached("uid", Stage::Projection);
        latency.reached("uid", Stage::Instance);
        assert_eq!(
            (count(&metrics, "projection").as_str(), count(&metrics, "instance").as_str()),
            ("1", "0")
        );
    }
}
