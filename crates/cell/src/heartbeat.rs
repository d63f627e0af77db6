//! Heartbeat: shows the hub that the controllers of the cell run.
//!
//! Reads   cell: WorkloadDeployment · hub: Lease (once, uncached)
//! Writes  hub: Lease
//!
//! Keys are the cities that the deployments of the cell name: usually one. While the cell has a deployment of
//! a city, it renews its Lease for the city once a minute; an idle cell makes no other request. Without a
//! deployment it releases the Lease, and makes none at all. The city is part of the name of the Lease: a cell
//! may write on the hub only what is of its city.
//!
//! A renewal that fails is tried again after seconds and reported only by metrics of the plane: the hub finds
//! out that it is missing.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use polis_api::compute::WorkloadDeployment;
use polis_api::k8s_openapi::api::coordination::v1::Lease;
use polis_api::names;
use polis_core::{Time, heartbeat};
use polis_engine::{Action, Clock, Engine, Error, ErrorClass, Key, Plane, Reconciler, Unresolved};

use crate::networks;

/// Retry interval while the hub does not respond: its users see that the cell is back within seconds.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Registers the controller with an engine.
pub(crate) fn declare(engine: &mut Engine, cell: &Plane, hub: Plane, clock: &Clock, name: String) {
    let (cell_plane, clock, renewed) = (cell.clone(), clock.clone(), Mutex::default());
    let heartbeat = CellHeartbeat { cell: cell_plane, hub, name, clock, renewed };
    engine.controller("heartbeat", cell, heartbeat).watches::<WorkloadDeployment>(cell, key_of_city);
}

/// Renews the Leases of a cell.
struct CellHeartbeat {
    cell: Plane,
    hub: Plane,
    /// Name of the cell.
    name: String,
    clock: Clock,
    /// By city.
    renewed: Mutex<BTreeMap<String, Renewal>>,
}

/// The Lease of a city.
#[derive(Clone, Default)]
struct Renewal {
    /// As the hub has it; none if it has to be read. Only this controller writes it.
    lease: Option<Lease>,
    /// Events of deployments do not repeat an attempt that has failed before this time.
    retry_at: Option<Time>,
}

impl Reconciler for CellHeartbeat {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let needed = self.cell.any_with::<WorkloadDeployment>(&networks::by_city(), &key.name)?;
        let now = Time(self.clock.now());
        let Some(known) = self.renewed.lock().get(&*key.name).cloned().or(needed.then(Renewal::default))
        else {
            return Ok(Action::AwaitChange);
        };
        let wait = known.wait(needed, &now);
        if !wait.is_zero() {
            return Ok(Action::RequeueAfter(wait));
        }
        match self.write(&key.name, needed, known.lease, &now).await {
            Ok(lease) if needed => self.remember(key, Renewal { lease, retry_at: None }),
            Ok(_) => _ = self.renewed.lock().remove(&*key.name),
            Err(error) => {
                tracing::debug!(city = &*key.name, %error, "failed to renew the heartbeat on the hub");
                let retry = match ErrorClass::of(&error) {
                    ErrorClass::Forbidden | ErrorClass::NotFound => heartbeat::INTERVAL,
                    _ => RETRY_INTERVAL,
                };
                // Another writer may have changed the Lease: it is read again.
                self.remember(key, Renewal { lease: None, retry_at: Some(Time(now.0 + retry)) });
                return Ok(Action::RequeueAfter(retry));
            }
        }
        Ok(if needed { Action::RequeueAfter(heartbeat::INTERVAL) } else { Action::AwaitChange })
    }
}

impl Renewal {
    /// How long until the next attempt.
    fn wait(&self, needed: bool, now: &Time) -> Duration {
        let retry = self.retry_at.as_ref().map(|at| at.0.duration_since(now.0));
        let retry = retry.and_then(|left| Duration::try_from(left).ok()).unwrap_or_default();
        match &self.lease {
            Some(lease) if needed => retry.max(heartbeat::next_renewal(Some(lease), now)),
            _ => retry,
        }
    }
}

impl CellHeartbeat {
    fn remember(&self, key: &Key, renewal: Renewal) {
        self.renewed.lock().insert(key.name.to_string(), renewal);
    }

    /// Renews or releases the Lease of a city. Returns the Lease as the hub has it.
    async fn write(
        &self,
        city: &str,
        needed: bool,
        known: Option<Lease>,
        now: &Time,
    ) -> Result<Option<Lease>, Error> {
        let name = names::heartbeat(city, &self.name);
        let existing = match known {
            Some(known) => Some(known),
            None => self.hub.uncached().get::<Lease>((heartbeat::NAMESPACE, name.as_str())).await?,
        };
        let desired = match (needed, &existing) {
            (true, _) => heartbeat::renewed(existing.as_ref(), city, &self.name, now),
            (false, Some(existing)) => heartbeat::released(existing),
            (false, None) => return Ok(None),
        };
        Ok(match existing {
            Some(existing) => self.hub.update(&existing, &desired).await?.into_object().or(Some(existing)),
            None => Some(self.hub.create(&desired).await?),
        })
    }
}

/// Maps a deployment to its city.
fn key_of_city(cell: &Plane, deployment: &WorkloadDeployment) -> Result<Vec<Key>, Unresolved> {
    let city = deployment.spec.city_code.as_str();
    Ok(if city.is_empty() { Vec::new() } else { vec![Key::cluster(cell.name().clone(), city)] })
}
