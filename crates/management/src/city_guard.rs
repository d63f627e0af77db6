//! City guard: tells of a member of the hub that has lost its city.
//!
//! Reads   hub: Cluster
//! Writes  hub: Event
//!
//! Taken from a member, the city label makes the federation delete every deployment there at once. Where the hub admits
//! Clusters itself, an admission policy refuses that; where an aggregated server serves them it cannot. So the loss is
//! at least loud: an event on the Cluster, an error in the log, and a count that does not go back. What a member carried
//! is known from the moment this process has first seen it.

use std::collections::BTreeMap;
use std::sync::Mutex;

use polis_api::karmada::Cluster;
use polis_api::{annotations, labels};
use polis_core::{metadata, owner};
use polis_engine::{Error as EngineError, Key, Metrics, Outcome, Plane, Reconciler, Recorder, Tone};
use prometheus_client::metrics::counter::Counter;

/// See the head of this file.
pub struct CityGuard {
    hub: Plane,
    recorder: Recorder,
    lost: Counter,
    /// The city that each member was last seen with.
    cities: Mutex<BTreeMap<String, String>>,
}

impl CityGuard {
    /// A guard that has seen nothing yet.
    pub fn new(hub: Plane, recorder: Recorder, metrics: &Metrics) -> Self {
        let lost = Counter::default();
        metrics.register(|registry| {
            let help = "Members of the hub that lost their city label, and with it every deployment";
            registry.register("compute_city_labels_lost", help, lost.clone());
        });
        Self { hub, recorder, lost, cities: Mutex::default() }
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
        let Some(cluster) = self.hub.get::<Cluster>(key)? else { return Ok(Outcome::Settled) };
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

/// The city of a member; empty when it has none.
pub(crate) fn city_of(cluster: &Cluster) -> &str {
    metadata::label(&cluster.metadata, labels::TOPOLOGY_CITY_CODE).unwrap_or_default()
}

#[cfg(test)]
mod tests {
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
