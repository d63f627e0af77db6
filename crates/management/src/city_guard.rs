//! City guard: tells of a member of the hub that has lost its city, and counts those that are not heard of.
//!
//! Reads   hub: Cluster
//! Writes  hub: Event
//!
//! Taken from a member, the city label makes the federation delete every deployment there at once. Where the hub admits
//! Clusters itself, an admission policy refuses that; where an aggregated server serves them it cannot. So the loss is
//! at least loud: an event on the Cluster, an error in the log, and a count that does not go back. What a member carried
//! is known from the moment this process has first seen it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use polis_api::karmada::Cluster;
use polis_api::{annotations, labels};
use polis_core::{metadata, owner};
use polis_engine::{Error as EngineError, Index, Key, Metrics, Outcome, Plane, Reconciler, Recorder, Tone};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

/// See the head of this file.
pub struct CityGuard {
    hub: Plane,
    recorder: Recorder,
    lost: Counter,
    /// The city that each member was last seen with.
    cities: Mutex<BTreeMap<String, String>>,
    /// Members with a city that the federation does not call ready.
    silent: Mutex<BTreeSet<String>>,
    unheard: Gauge,
}

impl CityGuard {
    /// A guard that has seen nothing yet.
    pub fn new(hub: Plane, recorder: Recorder, metrics: &Metrics) -> Self {
        let lost = Counter::default();
        metrics.register(|registry| {
            let help = "Members of the hub that lost their city label, and with it every deployment";
            registry.register("compute_city_labels_lost", help, lost.clone());
        });
        let unheard = Gauge::default();
        metrics.register(|registry| {
            let help = "Members of the hub with a city that the federation does not hear of";
            registry.register("compute_cells_unheard", help, unheard.clone());
        });
        Self { hub, recorder, lost, cities: Mutex::default(), silent: Mutex::default(), unheard }
    }

    /// Notes whether a member is heard of. One without a city runs nothing, and one that is gone is nobody's.
    fn listen(&self, name: &str, cluster: Option<&Cluster>) {
        let heard = cluster.is_none_or(|cluster| city_of(cluster).is_empty() || is_ready(cluster));
        let mut silent = self.silent.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match heard {
            true => _ = silent.remove(name),
            false => _ = silent.insert(name.to_owned()),
        }
        self.unheard.set(i64::try_from(silent.len()).unwrap_or(i64::MAX));
    }

    /// Notes the city of a member; gives back the one that it has lost without leave.
    fn note(&self, cluster: &Cluster) -> Option<String> {
        let name = owner::name(&cluster.metadata).to_owned();
        let city = city_of(cluster);
        let mut cities = self.cities.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let before = match city {
            "" => cities.remove(&name),
            city => cities.insert(name, city.to_owned()),
        };
        let allowed = metadata::annotation(&cluster.metadata, annotations::ALLOW_CITY_CHANGE) == Some("true");
        before.filter(|before| before != city && !allowed)
    }
}

impl Reconciler for CityGuard {
    type Error = EngineError;

    async fn reconcile(&self, key: &Key) -> Result<Outcome, EngineError> {
        let found = self.hub.get::<Cluster>(key)?;
        self.listen(&key.name, found.as_ref());
        let Some(cluster) = found else { return Ok(Outcome::Settled) };
        if let Some(lost) = self.note(&cluster) {
            self.lost.inc();
            tracing::error!(
                cluster = &*key.name,
                city = lost,
                "a member has lost its city; every deployment there is deleted"
            );
            let note = format!(
                "Label {}={lost} was taken away: every deployment of that city is deleted on this cluster. Put it back if that was not meant",
                labels::TOPOLOGY_CITY_CODE
            );
            self.recorder.record(&self.hub, &cluster, Tone::Warning, "CityLabelLost", "Observe", &note);
        }
        Ok(Outcome::Settled)
    }
}

/// Whether the federation hears of a member: it says `Ready` of it.
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
    metadata::label(&cluster.metadata, labels::TOPOLOGY_CITY_CODE).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
    use polis_api::karmada::ClusterStatus;
    use polis_engine::{Engine, Transport};

    use super::*;

    fn mk_guard() -> CityGuard {
        let engine = Engine::new();
        let nowhere = tower::service_fn(|_: http::Request<bytes::Bytes>| async {
            Err::<http::Response<http_body_util::Full<bytes::Bytes>>, _>("nobody is there")
        });
        let hub = Plane::new("hub", Transport::in_process(nowhere));
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
    fn a_city_taken_away_or_changed_is_told_of_once() {
        let guard = mk_guard();
        assert_eq!(guard.note(&mk_cluster(Some("dfw"), false)), None);
        assert_eq!(guard.note(&mk_cluster(Some("ord"), false)), Some("dfw".into()));
        assert_eq!(guard.note(&mk_cluster(None, false)), Some("ord".into()));
        assert_eq!(guard.note(&mk_cluster(None, false)), None);
    }

    #[test]
    fn a_member_with_a_city_is_unheard_of_until_it_is_ready_or_gone() {
        let guard = mk_guard();
        let said = |status: &str| {
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
            guard.listen("cell", cluster);
            guard.unheard.get()
        };
        assert_eq!(after(Some(&said("True"))), 0);
        assert_eq!(after(Some(&said("Unknown"))), 1);
        assert_eq!(after(Some(&said("False"))), 1);
        assert_eq!(after(Some(&said("True"))), 0);
        assert_eq!(after(Some(&mk_cluster(Some("dfw"), false))), 1, "nobody has said anything yet");
        assert_eq!(after(Some(&mk_cluster(None, false))), 0);
        assert_eq!(after(Some(&said("False"))), 1);
        assert_eq!(after(None), 0);
    }

    #[test]
    fn a_change_that_was_announced_is_not_told_of() {
        let guard = mk_guard();
        guard.note(&mk_cluster(Some("dfw"), false));
        assert_eq!(guard.note(&mk_cluster(None, true)), None);
    }

    #[test]
    fn a_member_that_gets_its_first_city_loses_nothing() {
        let guard = mk_guard();
        assert_eq!(guard.note(&mk_cluster(None, false)), None);
        assert_eq!(guard.note(&mk_cluster(Some("dfw"), false)), None);
    }
}
