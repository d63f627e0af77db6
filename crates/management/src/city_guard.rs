//! City guard: reports member clusters of the hub that lose their city label, and counts members that are not
//! ready.
//!
//! Reads   hub: Cluster
//! Writes  hub: Event
//!
//! Removing the city label from a member makes the federation delete every deployment there at once. An
//! admission policy rejects that where the hub stores Clusters itself; it cannot where an aggregated API
//! server stores them. So the loss is reported: an event on the Cluster, an error in the log, and a counter.
//! The controller compares with the label that this process read first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use polis_api::karmada::Cluster;
use polis_api::{ObjectExt, annotations, events, labels};
use polis_engine::{
    Action, Engine, Error as EngineError, EventRecorder, Index, Key, Metrics, Plane, Reconciler, Watch,
};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

use crate::Management;

/// The watches of the controller on the hub.
pub(crate) fn watches() -> Vec<Watch> {
    vec![Watch::of::<Cluster>().index(by_city())]
}

/// Registers the controller with an engine.
pub(crate) fn declare(engine: &mut Engine, management: &Management) {
    let hub = &management.hub;
    let guard = CityGuard::new(hub.clone(), engine.recorder("city-guard"), &engine.handle().registry());
    engine.controller("city-guard", hub, guard).for_kind::<Cluster>();
}

/// Reports members of the hub that lose their city label.
struct CityGuard {
    hub: Plane,
    recorder: EventRecorder,
    lost: Counter,
    /// The last observed city of each member.
    cities: Mutex<BTreeMap<String, String>>,
    /// Members with a city that are not `Ready`.
    not_ready: Mutex<BTreeSet<String>>,
    not_ready_count: Gauge,
}

impl CityGuard {
    /// Creates the guard and registers its metrics.
    fn new(hub: Plane, recorder: EventRecorder, metrics: &Metrics) -> Self {
        let lost = Counter::default();
        metrics.register(|registry| {
            let help = "Times a member of the hub lost its city label, and with it every deployment";
            registry.register("compute_city_labels_lost", help, lost.clone());
        });
        let not_ready_count = Gauge::default();
        metrics.register(|registry| {
            let help = "Members of the hub with a city label that are not Ready";
            registry.register("compute_cells_unheard", help, not_ready_count.clone());
        });
        Self { hub, recorder, lost, cities: Mutex::default(), not_ready: Mutex::default(), not_ready_count }
    }

    /// Updates the gauge of members that are not ready. A member without a city runs nothing and does not
    /// count.
    fn track_readiness(&self, name: &str, cluster: Option<&Cluster>) {
        let ready = cluster.is_none_or(|cluster| city_of(cluster).is_empty() || is_ready(cluster));
        let mut not_ready = self.not_ready.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match ready {
            true => _ = not_ready.remove(name),
            false => _ = not_ready.insert(name.to_owned()),
        }
        self.not_ready_count.set(i64::try_from(not_ready.len()).unwrap_or(i64::MAX));
    }

    /// Records the city of a member. Returns the previous city if it was changed or removed without the
    /// annotation that permits it.
    fn track_city(&self, cluster: &Cluster) -> Option<String> {
        let name = cluster.name().to_owned();
        let city = city_of(cluster);
        let mut cities = self.cities.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let before = match city {
            "" => cities.remove(&name),
            city => cities.insert(name, city.to_owned()),
        };
        let allowed = cluster.annotation(annotations::ALLOW_CITY_CHANGE) == Some("true");
        before.filter(|before| before != city && !allowed)
    }
}

impl Reconciler for CityGuard {
    type Error = EngineError;

    async fn reconcile(&self, key: &Key) -> Result<Action, EngineError> {
        let cluster = self.hub.get::<Cluster>(key)?;
        self.track_readiness(&key.name, cluster.as_ref());
        let Some(cluster) = cluster else { return Ok(Action::AwaitChange) };
        if let Some(lost) = self.track_city(&cluster) {
            self.lost.inc();
            tracing::error!(
                cluster = &*key.name,
                city = lost,
                "a member lost its city label; the federation deletes every deployment there"
            );
            let note = format!(
                "Label {}={lost} was removed: every deployment of that city is deleted on this cluster. Restore the label if the change was a mistake",
                labels::TOPOLOGY_CITY_CODE
            );
            self.recorder.warn(&self.hub, &cluster, events::CITY_LABEL_LOST, "Observe", &note);
        }
        Ok(Action::AwaitChange)
    }
}

/// Whether the condition `Ready` of a member is True.
fn is_ready(cluster: &Cluster) -> bool {
    let conditions = cluster.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Members by their city.
pub(crate) fn by_city() -> Index {
    Index::label(labels::TOPOLOGY_CITY_CODE)
}

/// The city of a member; empty when it has none.
pub(crate) fn city_of(cluster: &Cluster) -> &str {
    cluster.label(labels::TOPOLOGY_CITY_CODE).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
    use polis_api::karmada::ClusterStatus;
    use polis_core::metadata;
    use polis_engine::Transport;

    use super::*;

    fn mk_guard() -> CityGuard {
        let engine = Engine::new();
        let no_server = tower::service_fn(|_: http::Request<bytes::Bytes>| async {
            Err::<http::Response<http_body_util::Full<bytes::Bytes>>, _>("no server")
        });
        let hub = Plane::new("hub", Transport::in_process(no_server));
        CityGuard::new(hub, engine.recorder("city-guard"), &engine.handle().registry())
    }

    fn mk_cluster(city: Option<&str>, allowed: bool) -> Cluster {
        let mut cluster = Cluster::default();
        cluster.metadata.name = Some("cell".into());
        cluster.metadata.labels = city.map(|city| metadata::map([(labels::TOPOLOGY_CITY_CODE, city)]));
        if allowed {
            cluster.metadata.annotations = Some(metadata::map([(annotations::ALLOW_CITY_CHANGE, "true")]));
        }
        cluster
    }

    #[test]
    fn a_removed_or_changed_city_is_reported_once() {
        let guard = mk_guard();
        assert_eq!(guard.track_city(&mk_cluster(Some("dfw"), false)), None);
        assert_eq!(guard.track_city(&mk_cluster(Some("ord"), false)), Some("dfw".into()));
        assert_eq!(guard.track_city(&mk_cluster(None, false)), Some("ord".into()));
        assert_eq!(guard.track_city(&mk_cluster(None, false)), None);
    }

    #[test]
    fn a_member_with_a_city_counts_as_not_ready_until_it_is_ready_or_deleted() {
        let guard = mk_guard();
        let mk_member = |status: &str| {
            let mut cluster = mk_cluster(Some("dfw"), false);
            let ready = Condition {
                type_: "Ready".into(),
                status: status.into(),
                reason: String::new(),
                message: String::new(),
                last_transition_time: Time(jiff::Timestamp::UNIX_EPOCH),
                observed_generation: None,
            };
            cluster.status = Some(ClusterStatus { conditions: vec![ready], ..Default::default() });
            cluster
        };
        let after = |cluster: Option<&Cluster>| {
            guard.track_readiness("cell", cluster);
            guard.not_ready_count.get()
        };
        assert_eq!(after(Some(&mk_member("True"))), 0);
        assert_eq!(after(Some(&mk_member("Unknown"))), 1);
        assert_eq!(after(Some(&mk_member("False"))), 1);
        assert_eq!(after(Some(&mk_member("True"))), 0);
        assert_eq!(after(Some(&mk_cluster(Some("dfw"), false))), 1, "no Ready condition yet");
        assert_eq!(after(Some(&mk_cluster(None, false))), 0);
        assert_eq!(after(Some(&mk_member("False"))), 1);
        assert_eq!(after(None), 0);
    }

    #[test]
    fn a_permitted_change_is_not_reported() {
        let guard = mk_guard();
        guard.track_city(&mk_cluster(Some("dfw"), false));
        assert_eq!(guard.track_city(&mk_cluster(None, true)), None);
    }

    #[test]
    fn a_first_city_is_not_reported() {
        let guard = mk_guard();
        assert_eq!(guard.track_city(&mk_cluster(None, false)), None);
        assert_eq!(guard.track_city(&mk_cluster(Some("dfw"), false)), None);
    }
}
