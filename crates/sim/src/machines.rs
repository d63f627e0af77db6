//! [`Machines`]: the simulated container runtime of a cell.
//!
//! It has the contract of a [`Provider`]: the runtime controller of the product decides what runs. Containers
//! survive a crash of the cell's process, as they do with a real runtime, and take their time to start and
//! to stop. Each start is checked: the slot is free, quota is granted, and no gate is left.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use polis_api::ObjectExt as _;
use polis_api::compute::Instance;
use polis_core::{gates, template};
use polis_engine::Random;
use polis_runtime::Error;
use polis_runtime::provider::{
    ChangeCallback, InstancePhase, ManagedInstance, Provider, RunReport, RunRequest, StopProgress,
};
use tokio::time::sleep;

use crate::invariants;
use crate::journal::Journal;

/// Pause before a crashed container runs again.
const RESTART: Duration = Duration::from_secs(2);

/// The containers of all cells, for the check that a slot runs once.
#[derive(Clone, Default)]
pub struct Slots(Arc<Mutex<BTreeMap<(String, String), String>>>);

/// The simulated container runtime of a cell. Cheap to clone; it outlives the processes of its cell.
#[derive(Clone)]
pub struct Machines(Arc<Inner>);

struct Inner {
    city: String,
    journal: Journal,
    random: Random,
    longest_delay: Duration,
    slots: Slots,
    grants: Arc<dyn GrantCheck>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    machines: BTreeMap<String, Machine>,
    callback: Option<ChangeCallback>,
}

/// The containers of an instance.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Namespace on the cell.
    pub namespace: String,
    /// Name of the instance.
    pub name: String,
    /// Hash of the template that it runs.
    pub hash: String,
    /// Its address.
    pub address: String,
    /// What it does.
    pub phase: Phase,
}

/// What a machine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Starts.
    Starting,
    /// Runs.
    Up,
    /// Ended and will be restarted.
    Crashed,
    /// Stops.
    Stopping,
    /// Stopped.
    Stopped,
}

/// Whether quota is granted to an instance.
pub trait GrantCheck: Send + Sync {
    /// Why the instance must not run; `None` if its quota is granted.
    fn missing_grant(
        &self,
        instance: &Instance,
        project: Option<&str>,
    ) -> futures::future::BoxFuture<'_, Option<String>>;
}

impl Machines {
    /// The runtime of a cell without containers.
    pub fn new(
        city: &str,
        journal: Journal,
        random: Random,
        longest_delay: Duration,
        slots: Slots,
        grants: Arc<dyn GrantCheck>,
    ) -> Self {
        let city = city.to_owned();
        Self(Arc::new(Inner { city, journal, random, longest_delay, slots, grants, state: Mutex::default() }))
    }

    /// All machines by the UID of their instances.
    pub fn all(&self) -> BTreeMap<String, Machine> {
        self.0.state.lock().machines.clone()
    }

    /// Ends the containers of the first running machine; the runtime restarts them.
    pub fn crash_one(&self) {
        let crashed = {
            let mut state = self.0.state.lock();
            let up = state.machines.iter_mut().find(|(_, machine)| machine.phase == Phase::Up);
            up.map(|(uid, machine)| {
                machine.phase = Phase::Crashed;
                (uid.clone(), machine.clone())
            })
        };
        let Some((uid, machine)) = crashed else { return };
        self.0.journal.tell(format!("container of {} in {} crashed", machine.name, self.0.city));
        self.notify(&uid);
        self.later(uid, RESTART, |machine| {
            if machine.phase == Phase::Crashed {
                machine.phase = Phase::Up;
            }
        });
    }

    fn delay(&self) -> Duration {
        Duration::from_millis(self.0.random.below(self.0.longest_delay.as_millis() as u64 + 1))
    }

    /// Changes a machine later, if it still exists, and tells the controller.
    fn later(&self, uid: String, after: Duration, change: impl FnOnce(&mut Machine) + Send + 'static) {
        let machines = self.clone();
        tokio::spawn(async move {
            sleep(after).await;
            if let Some(machine) = machines.0.state.lock().machines.get_mut(&uid) {
                change(machine);
            }
            machines.notify(&uid);
        });
    }

    fn notify(&self, uid: &str) {
        let (callback, name) = {
            let state = self.0.state.lock();
            let name =
                state.machines.get(uid).map(|machine| (machine.namespace.clone(), machine.name.clone()));
            (state.callback.clone(), name)
        };
        if let (Some(callback), Some((namespace, name))) = (callback, name) {
            callback(&namespace, &name);
        }
    }

    /// Starts the containers of an instance, after the checks.
    async fn start(&self, request: &RunRequest<'_>, hash: &str) {
        let instance = request.instance;
        let (namespace, name) = (instance.namespace().to_owned(), instance.name().to_owned());
        let place = format!("{} (UID {}) in {}", name, instance.uid(), self.0.city);
        self.0.journal.tell(format!("container of {place} starts"));
        let slot = (namespace.clone(), name.clone());
        let before = self.0.slots.0.lock().insert(slot, place.clone());
        if let Some(other) = before {
            self.0.journal.violate(invariants::ONE_PER_SLOT, format!("{place} starts while {other} exists"));
        }
        if !gates::of(instance).is_empty() {
            self.0.journal.violate(invariants::GRANTED, format!("{place} starts with scheduling gates"));
        }
        let address = {
            let state = self.0.state.lock();
            let start = request
                .range
                .map_or(u32::from(std::net::Ipv4Addr::new(10, 0, 0, 0)), |range| u32::from(range.start));
            let taken: Vec<&str> = state.machines.values().map(|machine| machine.address.as_str()).collect();
            let mut free = (1u32..).map(|n| std::net::Ipv4Addr::from(start + n).to_string());
            free.find(|address| !taken.contains(&address.as_str())).unwrap_or_default()
        };
        let machine = Machine { namespace, name, hash: hash.to_owned(), address, phase: Phase::Starting };
        // Nothing is awaited before: a crash of the cell's process leaves the container running.
        let uid = instance.uid().to_owned();
        self.0.state.lock().machines.insert(uid.clone(), machine);
        self.later(uid, self.delay(), |machine| {
            if machine.phase == Phase::Starting {
                machine.phase = Phase::Up;
            }
        });
        let project = request.origin.map(|origin| origin.project.as_str());
        if let Some(why) = self.0.grants.missing_grant(instance, project).await {
            self.0.journal.violate(invariants::GRANTED, format!("{place} starts: {why}"));
        }
    }

    /// Starts the containers of an instance that was suspended.
    fn restart(&self, uid: &str) {
        if let Some(machine) = self.0.state.lock().machines.get_mut(uid) {
            machine.phase = Phase::Starting;
        }
        self.later(uid.to_owned(), self.delay(), |machine| {
            if machine.phase == Phase::Starting {
                machine.phase = Phase::Up;
            }
        });
    }

    /// Stops the containers of an instance. True when they have stopped.
    fn stopped(&self, uid: &str) -> bool {
        let phase = self.0.state.lock().machines.get(uid).map(|machine| machine.phase);
        match phase {
            None | Some(Phase::Stopped) => true,
            Some(Phase::Stopping) => false,
            Some(_) => {
                if let Some(machine) = self.0.state.lock().machines.get_mut(uid) {
                    machine.phase = Phase::Stopping;
                }
                self.later(uid.to_owned(), self.delay(), |machine| machine.phase = Phase::Stopped);
                false
            }
        }
    }

    fn forget(&self, uid: &str) {
        let Some(machine) = self.0.state.lock().machines.remove(uid) else { return };
        self.0.journal.tell(format!("container of {} (UID {uid}) in {} is gone", machine.name, self.0.city));
        self.0.slots.0.lock().remove(&(machine.namespace, machine.name));
    }
}

impl Provider for Machines {
    fn instances(&self) -> Vec<ManagedInstance> {
        let state = self.0.state.lock();
        let managed = state.machines.iter().map(|(uid, machine)| ManagedInstance {
            uid: uid.clone(),
            namespace: machine.namespace.clone(),
            name: machine.name.clone(),
        });
        managed.collect()
    }

    fn instance_uids(&self, namespace: &str, name: &str) -> Vec<String> {
        let state = self.0.state.lock();
        let of_name = state
            .machines
            .iter()
            .filter(|(_, machine)| machine.namespace == namespace && machine.name == name);
        of_name.map(|(uid, _)| uid.clone()).collect()
    }

    fn set_change_callback(&self, callback: ChangeCallback) {
        self.0.state.lock().callback = Some(callback);
    }

    async fn run(&self, request: &RunRequest<'_>) -> Result<RunReport, Error> {
        let uid = request.instance.uid();
        let hash = template::instance_hash(request.instance).unwrap_or_default().to_owned();
        let known = self.0.state.lock().machines.get(uid).cloned();
        if known.is_none() {
            self.start(request, &hash).await;
        }
        let Some(machine) = self.0.state.lock().machines.get(uid).cloned() else {
            unreachable!("the machine was started above")
        };
        if machine.phase == Phase::Stopped {
            self.restart(uid); // it was suspended
        }
        let phase = match machine.phase {
            Phase::Stopped | Phase::Starting => InstancePhase::Starting("the containers start".to_owned()),
            Phase::Up => InstancePhase::Up(machine.address.clone()),
            Phase::Crashed => InstancePhase::Crashing("it ended".to_owned()),
            Phase::Stopping => InstancePhase::Stopping,
        };
        Ok(RunReport {
            programmed: Ok(()),
            warning: None,
            phase,
            readiness: None,
            address: Some(machine.address),
            requeue_after: None,
        })
    }

    async fn stop(&self, uid: &str) -> Result<StopProgress, Error> {
        Ok(if self.stopped(uid) { StopProgress::Done } else { StopProgress::Pending(Duration::from_secs(5)) })
    }

    async fn remove(&self, uid: &str) -> Result<StopProgress, Error> {
        if !self.stopped(uid) {
            return Ok(StopProgress::Pending(Duration::from_secs(5)));
        }
        self.forget(uid);
        Ok(StopProgress::Done)
    }
}
