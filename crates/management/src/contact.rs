//! Contact: watches the heartbeats of the cells, and tells the federator when a cell falls silent or is heard
//! of again.
//!
//! Reads   hub: Lease (namespace `compute-cells`), WorkloadDeployment
//! Writes  nothing
//!
//! Keys are the Leases. A renewal is noted with the time of its arrival and costs no further work: only when
//! the state of a cell changes are the keys of its deployments queued. The federator asks for the
//! [`Contact`] of each deployment that it reconciles, and alone writes the result, so that conditions of the
//! cell and of its silence cannot replace each other in turn.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use polis_api::compute::WorkloadDeployment;
use polis_api::k8s_openapi::api::coordination::v1::Lease;
use polis_api::k8s_openapi::jiff::Timestamp;
use polis_api::karmada::Cluster;
use polis_api::{ObjectExt, labels, names};
use polis_core::Time;
use polis_core::contact::{self, Contact, ContactEvidence, RENEWAL_WINDOW};
use polis_core::heartbeat::{self, Heartbeat};
use polis_engine::{Action, Clock, Engine, Key, Plane, Reachability, Reconciler, Watch};
use tokio::sync::mpsc;

use crate::city_guard;
use crate::federator;
use crate::unresolved_objects::UnresolvedObjects;
use crate::{Error, Management};

/// The watches of the controller on the hub.
pub(crate) fn watches() -> Vec<Watch> {
    vec![Watch::of::<Lease>().within(heartbeat::NAMESPACE)]
}

/// Registers the controller with an engine. It queues keys of deployments for the federator.
pub(crate) fn declare(engine: &mut Engine, management: &Management, federator: mpsc::UnboundedSender<Key>) {
    let controller = CellContact {
        hub: management.hub.clone(),
        clock: management.clock.clone(),
        contacts: management.contacts.clone(),
        unresolved: management.unresolved.clone(),
        federator,
    };
    engine.controller("contact", &management.hub, controller).for_kind::<Lease>();
}

/// The heartbeats of all cells, as this process has heard them. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Contacts(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// By the name of the Lease.
    cells: BTreeMap<String, KnownCell>,
    /// When this process decided for the first time.
    started: Option<Timestamp>,
}

struct KnownCell {
    heartbeat: Heartbeat,
    silent: bool,
}

impl Contacts {
    /// The contact with the cell of a deployment.
    pub(crate) fn with_cell(
        &self,
        hub: &Plane,
        source: &WorkloadDeployment,
        copy: Option<&WorkloadDeployment>,
        now: &Time,
    ) -> Result<Contact, Error> {
        let city = &source.spec.city_code;
        let clusters = match hub.serves::<Cluster>()? {
            true => hub.find::<Cluster>(&city_guard::by_city(), city)?,
            false => Vec::new(),
        };
        let cell = copy.and_then(|copy| copy.status.as_ref()?.cell.as_deref());
        self.note_missing(hub, city, cell, now)?;
        let listening_since = self.listening_since(hub, now);
        let state = self.0.lock();
        let of_city = state.cells.values().map(|cell| &cell.heartbeat).filter(|it| it.city == *city);
        let heartbeats: Vec<Heartbeat> = of_city.cloned().collect();
        let evidence = ContactEvidence { heartbeats: &heartbeats, clusters: &clusters, listening_since };
        Ok(contact::with_cell(source, copy, &evidence, now))
    }

    /// Notes the Leases of a city, or of its one cell, that the controller has not reconciled yet: after a
    /// start the first decision must not be that a cell without a known heartbeat is not silent.
    fn note_missing(&self, hub: &Plane, city: &str, cell: Option<&str>, now: &Time) -> Result<(), Error> {
        let leases = match cell.map(|cell| names::heartbeat(city, cell)) {
            Some(name) if self.0.lock().cells.contains_key(&name) => return Ok(()),
            Some(name) => {
                hub.get::<Lease>((heartbeat::NAMESPACE, name.as_str()))?.into_iter().collect::<Vec<_>>()
            }
            None => hub.list_within::<Lease>(heartbeat::NAMESPACE)?,
        };
        let mut state = self.0.lock();
        for lease in leases.iter().filter(|lease| lease.label(labels::CITY_CODE) == Some(city)) {
            if let Some(heartbeat) = Heartbeat::observe(None, lease, now) {
                let known = || KnownCell { heartbeat, silent: false };
                state.cells.entry(lease.name().to_owned()).or_insert_with(known);
            }
        }
        Ok(())
    }

    /// Since when heartbeats can arrive; none while the hub does not respond.
    fn listening_since(&self, hub: &Plane, now: &Time) -> Option<Timestamp> {
        let started = *self.0.lock().started.get_or_insert(now.0);
        match hub.reachability() {
            Reachability::Unreachable { .. } => None,
            Reachability::Reachable { since } => Some(since.map_or(started, |since| since.max(started))),
        }
    }

    /// Notes a Lease. Returns its heartbeat, and whether its cell has fallen silent or is heard of again.
    fn observe(
        &self,
        name: &str,
        lease: Option<&Lease>,
        listening_since: Option<Timestamp>,
        now: &Time,
    ) -> Observed {
        let mut state = self.0.lock();
        let before = state.cells.remove(name);
        let heartbeat =
            lease.and_then(|lease| Heartbeat::observe(before.as_ref().map(|it| &it.heartbeat), lease, now));
        let (city, was_silent) = match (&heartbeat, &before) {
            (Some(it), _) => (it.city.clone(), before.as_ref().is_some_and(|before| before.silent)),
            (None, Some(before)) => (before.heartbeat.city.clone(), before.silent),
            (None, None) => return Observed { changed_city: None, action: Action::AwaitChange },
        };
        let Some(heartbeat) = heartbeat else {
            return Observed { changed_city: was_silent.then_some(city), action: Action::AwaitChange };
        };
        let left = contact::time_left(&heartbeat, listening_since, now);
        let silent = left.map_or(was_silent, |left| left.is_zero());
        let action = match left {
            Some(left) if left.is_zero() => Action::AwaitChange,
            Some(left) => Action::RequeueAfter(left),
            None => Action::RequeueAfter(RENEWAL_WINDOW),
        };
        state.cells.insert(name.to_owned(), KnownCell { heartbeat, silent });
        Observed { changed_city: (silent != was_silent).then_some(city), action }
    }
}

/// What the observation of a Lease leads to.
struct Observed {
    /// The city whose deployments have to be decided again.
    changed_city: Option<String>,
    action: Action,
}

/// Observes the Leases of the cells.
struct CellContact {
    hub: Plane,
    clock: Clock,
    contacts: Contacts,
    unresolved: UnresolvedObjects,
    federator: mpsc::UnboundedSender<Key>,
}

impl Reconciler for CellContact {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let now = Time(self.clock.now());
        let lease = self.hub.get::<Lease>(key)?;
        let listening_since = self.contacts.listening_since(&self.hub, &now);
        let observed = self.contacts.observe(&key.name, lease.as_ref(), listening_since, &now);
        if let Some(city) = observed.changed_city {
            tracing::info!(lease = &*key.name, city, "the contact with a cell has changed");
            for copy in self.hub.find::<WorkloadDeployment>(&federator::by_city(), &city)? {
                // A copy whose project is unknown is reported elsewhere.
                for key in self.unresolved.keys_of_copy(&self.hub, &copy).unwrap_or_default() {
                    // The receiver is gone once the engine stops.
                    drop(self.federator.send(key));
                }
            }
        }
        Ok(observed.action)
    }
}
