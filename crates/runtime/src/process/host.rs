//! What there is on this host: the seats of instances, and who sits in them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use polis_api::compute::{Instance, SandboxContainer};
use polis_core::owner;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::occupant::{MOMENT, Occupant};
use super::recipe::{is_tcp, number};
use super::restart::{self, Found, Step};
use super::seat::{self, Facts};
use super::{Addresses, Pool, Settings, address};
use crate::Error;
use crate::provider::{self, Phase, Progress, Told};
use crate::shim::Order;

/// A port of this host answers at once or not at all.
const PROBE: Duration = Duration::from_secs(1);

/// Everything that runs here for one cell.
pub(super) struct Host {
    pub(super) settings: Settings,
    pub(super) seats: Mutex<BTreeMap<String, Seat>>,
    /// UIDs by namespace and name.
    names: Mutex<BTreeMap<(String, String), BTreeSet<String>>>,
    pub(super) told: Mutex<Option<Told>>,
}

/// The seat of one instance.
pub(super) struct Seat {
    pub(super) facts: Facts,
    pub(super) occupants: BTreeMap<String, Occupant>,
}

impl Host {
    /// With everybody who has a folder.
    pub(super) fn new(settings: Settings, all: Vec<Facts>) -> Self {
        let host =
            Host { settings, seats: Mutex::default(), names: Mutex::default(), told: Mutex::default() };
        for facts in all {
            host.sit(&mut host.seats.lock(), facts);
        }
        host
    }

    fn sit(&self, seats: &mut BTreeMap<String, Seat>, facts: Facts) {
        let name = (facts.namespace.clone(), facts.name.clone());
        self.names.lock().entry(name).or_default().insert(facts.uid.clone());
        seats.insert(facts.uid.clone(), Seat { facts, occupants: BTreeMap::new() });
    }

    /// Forgets an instance whose folder is gone.
    pub(super) fn leave(&self, uid: &str) {
        let Some(Seat { facts, .. }) = self.seats.lock().remove(uid) else { return };
        let mut names = self.names.lock();
        let name = (facts.namespace, facts.name);
        if let Some(uids) = names.get_mut(&name) {
            uids.remove(uid);
            if uids.is_empty() {
                names.remove(&name);
            }
        }
    }

    /// Who sits under a name.
    pub(super) fn uids(&self, namespace: &str, name: &str) -> Vec<String> {
        let names = self.names.lock();
        let uids = names.get(&(namespace.to_owned(), name.to_owned()));
        uids.into_iter().flatten().cloned().collect()
    }

    /// The seat of an instance: what it was given, or is given now.
    pub(super) async fn seat(
        &self,
        order: &provider::Order<'_>,
        containers: &[SandboxContainer],
    ) -> Result<Facts, Error> {
        let instance = order.instance;
        let uid = owner::uid(&instance.metadata);
        let standing = self.seats.lock().get(uid).map(|seat| seat.facts.clone());
        let mut facts = standing.clone().unwrap_or_else(|| Facts {
            uid: uid.to_owned(),
            namespace: instance.metadata.namespace.clone().unwrap_or_default(),
            name: owner::name(&instance.metadata).to_owned(),
            address: Ipv4Addr::LOCALHOST,
            ports: BTreeMap::new(),
        });
        match self.settings.addresses {
            Addresses::Own(pool) if standing.is_none() => {
                let pool = order.range.and_then(Pool::new).unwrap_or(pool);
                facts.address = self.claim(facts.clone(), given(instance), pool)?;
            }
            Addresses::Own(_) => {}
            Addresses::Shared => {
                for port in containers.iter().flat_map(|container| &container.ports).filter_map(number) {
                    if !facts.ports.contains_key(&port) {
                        facts.ports.insert(port, self.free_port(&facts).await?);
                    }
                }
            }
        }
        if standing.as_ref() != Some(&facts) {
            facts.write(&self.settings.dir)?;
            let mut seats = self.seats.lock();
            match seats.get_mut(uid) {
                Some(seat) => seat.facts = facts.clone(),
                None => self.sit(&mut seats, facts.clone()),
            }
        }
        Ok(facts)
    }

    /// Chooses an address and keeps it from others, in one step.
    fn claim(&self, facts: Facts, given: Option<Ipv4Addr>, pool: Pool) -> Result<Ipv4Addr, Error> {
        let mut seats = self.seats.lock();
        let address = match given {
            Some(address) => address,
            None => {
                let taken: BTreeSet<Ipv4Addr> = seats.values().map(|seat| seat.facts.address).collect();
                pool.choose(&facts.uid, |address| taken.contains(&address))
                    .ok_or_else(|| Error::NoAddress { instance: facts.uid.clone(), pool: pool.to_string() })?
            }
        };
        self.sit(&mut seats, Facts { address, ..facts });
        Ok(address)
    }

    /// A port that nobody listens on and no other instance was given.
    async fn free_port(&self, facts: &Facts) -> Result<u16, Error> {
        let failed = || Error::directory(&self.settings.dir);
        loop {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(failed())?;
            let port = listener.local_addr().map_err(failed())?.port();
            let taken = facts.ports.values().any(|taken| *taken == port)
                || self
                    .seats
                    .lock()
                    .values()
                    .any(|seat| seat.facts.ports.values().any(|taken| *taken == port));
            if !taken {
                return Ok(port);
            }
        }
    }

    /// Finds out what there is of a container, unless that is known.
    pub(super) fn look(self: &Arc<Self>, uid: &str, container: &str) -> Result<(), Error> {
        let Some(seat_folder) = seat::folder(&self.settings.dir, uid) else { return Ok(()) };
        let mut seats = self.seats.lock();
        let Some(seat) = seats.get_mut(uid) else { return Ok(()) };
        let occupant = seat.occupants.entry(container.to_owned()).or_default();
        if matches!(occupant, Occupant::Unknown | Occupant::Busy) {
            *occupant = Occupant::look(&seat_folder.join(container), &format!("{uid}/{container}"))?;
            occupant.watch(self.watcher(&seat.facts, container));
        }
        Ok(())
    }

    /// What to do next about a container; none while its shim is just starting or leaving.
    pub(super) fn next(
        self: &Arc<Self>,
        uid: &str,
        container: &str,
        template: &str,
    ) -> Result<Option<Step>, Error> {
        self.look(uid, container)?;
        let seats = self.seats.lock();
        let occupant = seats.get(uid).and_then(|seat| seat.occupants.get(container));
        Ok(occupant
            .and_then(Occupant::found)
            .map(|found| restart::step(found, template, &self.settings.restarts)))
    }

    pub(super) fn stop(&self, uid: &str, container: &str) -> Progress {
        let mut seats = self.seats.lock();
        let occupant = seats.get_mut(uid).and_then(|seat| seat.occupants.get_mut(container));
        occupant.map_or(Progress::Done, |occupant| occupant.stop(self.settings.grace))
    }

    pub(super) async fn start(
        self: &Arc<Self>,
        uid: &str,
        container: &str,
        order: Order,
    ) -> Result<(), Error> {
        let Some(folder) = seat::folder(&self.settings.dir, uid) else { return Ok(()) };
        let folder = folder.join(container);
        let started = Occupant::start(&self.settings.binary, folder, order, (uid, container)).await;
        let mut seats = self.seats.lock();
        if let Some(seat) = seats.get_mut(uid) {
            let occupant = seat.occupants.entry(container.to_owned()).or_default();
            // Whatever went wrong: the folder knows more than we do.
            *occupant = Occupant::Unknown;
            *occupant = started?;
            occupant.watch(self.watcher(&seat.facts, container));
        }
        Ok(())
    }

    /// What happens when the shim of a container has ended: it is looked at anew, by whoever is told.
    fn watcher(self: &Arc<Self>, facts: &Facts, container: &str) -> impl FnOnce() + Send + 'static {
        let (inner, facts, container) = (Arc::downgrade(self), facts.clone(), container.to_owned());
        move || {
            let Some(inner) = Weak::upgrade(&inner) else { return };
            let occupant = {
                let mut seats = inner.seats.lock();
                let seat = seats.get_mut(&facts.uid);
                seat.and_then(|seat| seat.occupants.get_mut(&container)).map(std::mem::take)
            };
            drop(occupant); // ends this very task, at its next await: there is none
            if let Some(told) = inner.told.lock().clone() {
                told(&facts.namespace, &facts.name);
            }
        }
    }

    /// What is to be said of an instance.
    pub(super) async fn phase(
        self: &Arc<Self>,
        uid: &str,
        containers: &[SandboxContainer],
        facts: &Facts,
    ) -> (Phase, Option<Duration>) {
        let door = containers.iter().find_map(|container| {
            let port = container.ports.iter().filter(is_tcp).find_map(number)?;
            Some((container.name.as_str(), SocketAddr::from((facts.address, facts.port(port)))))
        });
        let (mut phases, mut again, mut knock) = (Vec::new(), None, None);
        {
            let seats = self.seats.lock();
            let Some(seat) = seats.get(uid) else { return (Phase::Stopped, None) };
            for container in containers {
                let occupant = seat.occupants.get(&container.name);
                let Some(found) = occupant.and_then(Occupant::found) else {
                    phases.push(Phase::Starting(format!("container {} is being started", container.name)));
                    again = soonest(again, MOMENT);
                    continue;
                };
                let (phase, later) = restart::phase(
                    &container.name,
                    found,
                    !container.ports.is_empty(),
                    &self.settings.restarts,
                );
                if let (Found::Up(_, up_for), Some(Occupant::Up(running))) = (found, occupant)
                    && door.is_some_and(|(name, _)| name == container.name)
                    && !running.accepts
                {
                    knock = Some(up_for);
                }
                phases.push(phase);
                again = later.into_iter().chain(again).min();
            }
        }
        let worst = phases.into_iter().max_by_key(severity).unwrap_or(Phase::Stopped);
        let Phase::Up(_) = worst else { return (worst, again) };
        let Some((container, place)) = door else {
            return (Phase::Up(format!("runs at {}", facts.address)), again);
        };
        if let Some(up_for) = knock {
            let answer = timeout(PROBE, TcpStream::connect(place)).await;
            if !answer.is_ok_and(|answer| answer.is_ok()) {
                // Often at first, then once a second.
                let later = (up_for / 4).clamp(Duration::from_millis(20), Duration::from_secs(1));
                let waits = format!("waits until {place} accepts connections");
                return (Phase::Starting(waits), soonest(again, later));
            }
            let mut seats = self.seats.lock();
            let occupant = seats.get_mut(uid).and_then(|seat| seat.occupants.get_mut(container));
            if let Some(Occupant::Up(running)) = occupant {
                running.accepts = true;
            }
        }
        (Phase::Up(format!("runs and accepts connections at {place}")), again)
    }
}

/// What a person should hear first of several containers.
fn severity(phase: &Phase) -> u8 {
    match phase {
        Phase::Up(_) => 0,
        Phase::Starting(_) => 1,
        Phase::Stopped => 2,
        Phase::Stopping => 3,
        Phase::Crashing(_) => 4,
    }
}

pub(super) fn soonest(again: Option<Duration>, time: Duration) -> Option<Duration> {
    Some(again.map_or(time, |standing| standing.min(time)))
}

/// The address that somebody else has given to the first interface, if the host has it.
fn given(instance: &Instance) -> Option<Ipv4Addr> {
    let assigned = instance.status.as_ref()?.network_interfaces.first()?.assignments.as_ref()?;
    address::usable(assigned.network_ip.as_deref()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_container_speaks_for_the_instance() {
        let phases = [Phase::Up(String::new()), Phase::Crashing("x".into()), Phase::Starting("y".into())];
        assert_eq!(phases.iter().max_by_key(|phase| severity(phase)), Some(&Phase::Crashing("x".into())));
    }
}
