//! Heartbeat: the Lease by which a cell shows the hub that its controllers run.
//!
//! A cell with deployments of a city renews the Lease `<city>.<cell>` in the namespace [`NAMESPACE`] of the
//! hub once a minute. When it has no deployment of the city any more, it releases the Lease: a Lease without
//! a renewal time says nothing about its cell.

use std::time::Duration;

use polis_api::k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use polis_api::k8s_openapi::jiff::Timestamp;
use polis_api::{ObjectExt, labels, names};

use crate::{Time, metadata};

/// The namespace of the hub with the Leases of all cells.
pub const NAMESPACE: &str = "compute-cells";
/// How often a cell renews its Lease: one small write each minute.
pub const INTERVAL: Duration = Duration::from_secs(60);
/// A cell that has not been heard of for this long is silent: two renewals are missing, and half an interval
/// has passed for the third.
pub const SILENCE_LIMIT: Duration = Duration::from_secs(150);

/// The renewed Lease of a cell in a city.
pub fn renewed(existing: Option<&Lease>, city: &str, cell: &str, now: &Time) -> Lease {
    let mut lease = existing.cloned().unwrap_or_default();
    let metadata = std::mem::take(&mut lease.metadata);
    lease.metadata = ObjectMeta {
        namespace: Some(NAMESPACE.to_owned()),
        name: Some(names::heartbeat(city, cell)),
        ..metadata
    };
    let own = metadata::map([(labels::CITY_CODE, city), (labels::SOURCE_CLUSTER, cell)]);
    metadata::merge_labels(&mut lease.metadata, &own, &[]);
    lease.spec = Some(LeaseSpec {
        holder_identity: Some(cell.to_owned()),
        lease_duration_seconds: i32::try_from(SILENCE_LIMIT.as_secs()).ok(),
        renew_time: Some(MicroTime(now.0)),
        ..LeaseSpec::default()
    });
    lease
}

/// The Lease of a cell that has no deployment of the city any more.
pub fn released(existing: &Lease) -> Lease {
    let mut lease = existing.clone();
    if let Some(spec) = &mut lease.spec {
        spec.renew_time = None;
    }
    lease
}

/// When the next renewal is due; zero if it is due now.
pub fn next_renewal(existing: Option<&Lease>, now: &Time) -> Duration {
    let renewed = existing.and_then(renewed_at);
    let next = renewed.map_or(now.0, |renewed| renewed + INTERVAL);
    // A time far in the future is of another clock.
    Duration::try_from(next.duration_since(now.0)).unwrap_or_default().min(INTERVAL)
}

/// The last heartbeat of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// The city, verbatim.
    pub city: String,
    /// The cell.
    pub cell: String,
    /// The renewal time that the cell has written.
    pub renewed_at: Timestamp,
    /// When the renewal arrived, by the clock of the management plane. The clock of the cell may be wrong.
    pub heard_at: Timestamp,
}

impl Heartbeat {
    /// The heartbeat of a Lease that was read now, after `before`. None if the Lease is no heartbeat.
    pub fn observe(before: Option<&Heartbeat>, lease: &Lease, now: &Time) -> Option<Heartbeat> {
        let (city, cell) = (lease.label(labels::CITY_CODE)?, lease.label(labels::SOURCE_CLUSTER)?);
        let renewed_at = renewed_at(lease).filter(|_| lease.name() == names::heartbeat(city, cell))?;
        let heard_at = match before {
            Some(before) if before.renewed_at == renewed_at => before.heard_at,
            Some(_) => now.0,
            None => renewed_at.min(now.0),
        };
        Some(Heartbeat { city: city.to_owned(), cell: cell.to_owned(), renewed_at, heard_at })
    }
}

fn renewed_at(lease: &Lease) -> Option<Timestamp> {
    Some(lease.spec.as_ref()?.renew_time.as_ref()?.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    #[test]
    fn a_lease_is_renewed_once_a_minute_and_keeps_foreign_metadata() {
        let mut first = renewed(None, "DFW 1", "Dfw_a", &at(1000));
        assert_eq!((first.namespace(), first.name()), ("compute-cells", "dfw-1.dfw-a"));
        first.metadata.resource_version = Some("7".into());
        first.metadata.annotations = Some(metadata::map([("note", "mine")]));
        for (now, due) in [(1000, 60), (1059, 1), (1060, 0), (5000, 0), (0, 60)] {
            assert_eq!(next_renewal(Some(&first), &at(now)), Duration::from_secs(due), "at {now}");
        }
        assert_eq!(next_renewal(None, &at(5)), Duration::ZERO);
        let second = renewed(Some(&first), "DFW 1", "Dfw_a", &at(1060));
        assert_eq!(second.metadata, first.metadata);
        assert_eq!(second.spec.unwrap().renew_time.unwrap().0, at(1060).0);
    }

    #[test]
    fn a_heartbeat_is_heard_when_its_renewal_arrives() {
        let lease = |renewal: i64| renewed(None, "dfw", "dfw-1", &at(renewal));
        let heard = |before: Option<&Heartbeat>, renewal, now| {
            Heartbeat::observe(before, &lease(renewal), &at(now)).unwrap()
        };
        let first = heard(None, 100, 130);
        assert_eq!(first.heard_at, at(100).0, "the first one may be old");
        assert_eq!(heard(Some(&first), 100, 200).heard_at, at(100).0, "the same again changes nothing");
        assert_eq!(heard(Some(&first), 160, 200).heard_at, at(200).0, "the clock of the cell is behind");
        assert_eq!(heard(None, 900, 200).heard_at, at(200).0, "the clock of the cell is ahead");
    }

    #[test]
    fn a_released_or_foreign_lease_is_no_heartbeat() {
        let lease = renewed(None, "dfw", "dfw-1", &at(100));
        assert_eq!(Heartbeat::observe(None, &released(&lease), &at(100)), None);
        let mut renamed = lease.clone();
        renamed.metadata.name = Some("ord.dfw-1".into());
        assert_eq!(
            Heartbeat::observe(None, &renamed, &at(100)),
            None,
            "of a city that its label does not name"
        );
        assert_eq!(
            Heartbeat::observe(None, &Lease { metadata: lease.metadata.clone(), spec: None }, &at(1)),
            None
        );
    }
}
