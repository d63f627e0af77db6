//! From what is seen to what is done: turns changes on planes into keys of controllers.
//!
//! Nothing is queued for a plane before all its kinds are listed, nor for a controller before the planes it needs are: a
//! reconcile never looks at half a world. Nothing is lost by that either. When a plane or a controller is complete, everything in
//! sight is queued once as backlog, including what objects on *other* planes say about it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, watch};

use crate::cache::{Change, place_of_id};
use crate::plane::Env;
use crate::planes::Set;
use crate::queue::Queue;
use crate::reconciler::AnyReconciler;
use crate::schedule::{Priority, Task};
use crate::watch::Observer;
use crate::{Error, Key, Kind, Plane, PlaneName};

/// Planes that become engaged within this time are looked up on the other planes together: that walks over every object of
/// those, and at a start planes come by the hundred.
const GATHER: Duration = Duration::from_millis(250);

/// Why an event could not be turned into keys. It is dropped and counted, not retried: the object will be mapped again when
/// it changes, or when the plane it belongs to is engaged.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct Unresolved(pub String);

impl From<Error> for Unresolved {
    fn from(error: Error) -> Self {
        Self(error.to_string())
    }
}

pub(crate) enum NoKeys {
    Unresolved(Unresolved),
    Unreadable(Error),
}

pub(crate) type Mapper = Arc<dyn Fn(&Plane, &Kind, &str, &[u8]) -> Result<Vec<Key>, NoKeys> + Send + Sync>;

/// Where a controller's keys come from.
pub(crate) struct Source {
    pub(crate) set: usize,
    pub(crate) watch: usize,
    /// None: the object itself is the key.
    pub(crate) mapper: Option<Mapper>,
}

pub(crate) struct Controller {
    pub(crate) name: &'static str,
    /// The set that keys name planes of.
    pub(crate) primary: usize,
    /// Sets that must be complete before any work.
    pub(crate) needs: BTreeSet<usize>,
    pub(crate) sources: Vec<Source>,
    pub(crate) reconciler: Arc<dyn AnyReconciler>,
    /// What it needs is complete.
    pub(crate) open: AtomicBool,
}

pub(crate) struct Router {
    pub(crate) queue: Queue,
    pub(crate) env: Arc<Env>,
    pub(crate) sets: Vec<Arc<Set>>,
    pub(crate) controllers: Vec<Controller>,
    arrivals: Mutex<BTreeMap<usize, BTreeSet<PlaneName>>>,
    arrived: Notify,
    opened: watch::Sender<()>,
}

impl Router {
    pub(crate) fn new(
        queue: Queue,
        env: Arc<Env>,
        sets: Vec<Arc<Set>>,
        controllers: Vec<Controller>,
    ) -> Self {
        let (arrivals, arrived, opened) = (Mutex::default(), Notify::new(), watch::Sender::default());
        Self { queue, env, sets, controllers, arrivals, arrived, opened }
    }

    /// The observer for the planes of a set.
    pub(crate) fn observer(self: &Arc<Self>, set: usize) -> Arc<dyn Observer> {
        Arc::new(OfSet { set, router: self.clone() })
    }

    /// A plane has left its set.
    pub(crate) fn disengaged(&self, set: usize, plane: &PlaneName) {
        for (number, controller) in self.controllers.iter().enumerate() {
            if controller.primary == set {
                self.queue.forget(number, plane);
            }
        }
    }

    fn changed(&self, set: usize, plane: &Plane, watch: usize, change: &Change) {
        for (number, controller) in self.controllers.iter().enumerate() {
            if !controller.open.load(Ordering::Acquire) {
                continue;
            }
            for source in
                controller.sources.iter().filter(|source| source.set == set && source.watch == watch)
            {
                // What the object said before counts as well: a key that it no longer leads to must hear of that.
                for bytes in [&change.after, &change.before].into_iter().flatten() {
                    self.follow(number, source, plane, &change.id, bytes, Priority::Fresh, None);
                    if source.mapper.is_none() {
                        break;
                    }
                }
            }
        }
    }

    fn engaged(&self, set: usize, plane: &Plane) {
        tracing::info!(set = self.sets[set].name, plane = %plane.name(), "engaged");
        self.sets[set].arrived.send_replace(());
        self.arrivals.lock().entry(set).or_default().insert(plane.name().clone());
        for (number, controller) in self.controllers.iter().enumerate() {
            if controller.open.load(Ordering::Acquire) {
                self.backlog(number, controller, set, plane, None);
            }
        }
        self.arrived.notify_one();
    }

    /// Queues what one plane has for a controller; only keys of the planes in `only`, if given.
    fn backlog(
        &self,
        number: usize,
        controller: &Controller,
        set: usize,
        plane: &Plane,
        only: Option<&BTreeSet<PlaneName>>,
    ) {
        let Some(seen) = plane.seen() else { return };
        for source in controller.sources.iter().filter(|source| source.set == set) {
            let objects = seen.store(source.watch).lock().all();
            for (id, bytes) in objects {
                self.follow(number, source, plane, &id, &bytes, Priority::Backlog, only);
            }
        }
    }

    #[allow(clippy::too_many_arguments)] // one event, its source, and what to do with its keys
    fn follow(
        &self,
        number: usize,
        source: &Source,
        plane: &Plane,
        id: &str,
        bytes: &[u8],
        priority: Priority,
        only: Option<&BTreeSet<PlaneName>>,
    ) {
        let controller = &self.controllers[number];
        let Some(mapper) = &source.mapper else {
            let place = place_of_id(id);
            let key = Key {
                plane: plane.name().clone(),
                namespace: place.namespace.map(Arc::from),
                name: Arc::from(place.name),
            };
            self.enqueue(number, key, priority, only);
            return;
        };
        let kind = &self.sets[source.set].watches[source.watch].kind;
        match mapper(plane, kind, id, bytes) {
            Ok(keys) => keys.into_iter().for_each(|key| self.enqueue(number, key, priority, only)),
            Err(NoKeys::Unresolved(why)) => {
                self.env.metrics.unresolved(controller.name);
                tracing::debug!(controller = controller.name, plane = %plane.name(), %kind, object = id, %why, "event dropped");
            }
            Err(NoKeys::Unreadable(error)) => {
                tracing::warn!(controller = controller.name, %error, "event dropped");
            }
        }
    }

    fn enqueue(&self, number: usize, key: Key, priority: Priority, only: Option<&BTreeSet<PlaneName>>) {
        if only.is_some_and(|only| !only.contains(&key.plane)) {
            return;
        }
        let controller = &self.controllers[number];
        if self.sets[controller.primary].engaged(key.plane.as_str()).is_none() {
            self.env.metrics.unresolved(controller.name);
            return;
        }
        self.queue.add(Task { controller: number, key }, priority);
    }

    /// Opens controllers whose needs are met, and looks up what other planes say about planes that have just been engaged.
    pub(crate) async fn run(&self) {
        self.open_ready();
        loop {
            self.arrived.notified().await;
            tokio::time::sleep(GATHER).await;
            let arrivals = std::mem::take(&mut *self.arrivals.lock());
            let at_work: Vec<usize> = self.open_ready();
            for (set, planes) in arrivals {
                self.catch_up(&at_work, set, &planes).await;
            }
        }
    }

    /// Opens the controllers that can begin, with everything in sight as backlog. Gives those that were open before.
    fn open_ready(&self) -> Vec<usize> {
        let mut at_work = Vec::new();
        for (number, controller) in self.controllers.iter().enumerate() {
            let ready = controller.needs.iter().all(|set| self.sets[*set].readiness().is_ready());
            if !ready && !controller.open.load(Ordering::Acquire) {
                continue;
            }
            if controller.open.swap(true, Ordering::AcqRel) {
                at_work.push(number);
                continue;
            }
            tracing::info!(controller = controller.name, "ready to work");
            for (set, plane) in self.everyone() {
                self.backlog(number, controller, set, &plane, None);
            }
            self.opened.send_replace(());
        }
        at_work
    }

    /// Queues the keys that somebody outside the planes names for a controller, from when it is open.
    pub(crate) async fn hear(&self, number: usize, mut keys: mpsc::UnboundedReceiver<Key>) {
        let open = &self.controllers[number].open;
        if self.opened.subscribe().wait_for(|()| open.load(Ordering::Acquire)).await.is_err() {
            return;
        }
        while let Some(key) = keys.recv().await {
            self.enqueue(number, key, Priority::Fresh, None);
        }
    }

    /// Queues what the planes of other sets say about planes that have just arrived.
    async fn catch_up(&self, at_work: &[usize], set: usize, planes: &BTreeSet<PlaneName>) {
        for number in at_work {
            let controller = &self.controllers[*number];
            if controller.primary != set {
                continue;
            }
            for (other, plane) in self.everyone().into_iter().filter(|(other, _)| *other != set) {
                self.backlog(*number, controller, other, &plane, Some(planes));
                tokio::task::yield_now().await;
            }
        }
    }

    fn everyone(&self) -> Vec<(usize, Plane)> {
        let mut everyone = Vec::new();
        for set in &self.sets {
            let planes = set.planes.read();
            everyone.extend(
                planes
                    .values()
                    .filter(|member| member.is_engaged())
                    .map(|member| (set.id, member.plane.clone())),
            );
        }
        everyone
    }

    /// Brings the gauges up to date; done when someone looks.
    pub(crate) fn census(&self) {
        let load = self.queue.load();
        self.env.metrics.queue(load.ready, load.delayed, load.running, load.oldest);
        // Several sets may go by one name, as the hub does where both roles run in one process: a plane is engaged when all of
        // them see it whole, and in trouble when one of them is.
        let mut named: BTreeMap<&'static str, Census> = BTreeMap::new();
        for set in &self.sets {
            let census = named.entry(set.name).or_default();
            census.planes.extend(set.planes.read().keys().cloned());
            let readiness = set.readiness();
            census.engaging.extend(readiness.engaging);
            census.failing.extend(readiness.failing.into_iter().map(|(plane, reason, _)| (plane, reason)));
        }
        for (name, census) in named {
            self.env.metrics.planes(name, "engaged", census.planes.difference(&census.engaging).count());
            self.env.metrics.planes(name, "engaging", census.engaging.len());
            self.env.metrics.planes(name, "failing", census.failing.len());
            let mut reasons: BTreeMap<&'static str, usize> =
                FAILING_REASONS.iter().map(|reason| (*reason, 0)).collect();
            for reason in census.failing.values() {
                *reasons.entry(reason).or_default() += 1;
            }
            for (reason, count) in reasons {
                self.env.metrics.failing(name, reason, count);
            }
        }
    }
}

/// The planes of all sets of one name.
#[derive(Default)]
struct Census {
    planes: BTreeSet<PlaneName>,
    engaging: BTreeSet<PlaneName>,
    failing: BTreeMap<PlaneName, &'static str>,
}

/// Reasons that are always shown, so that one that is over reads 0 and does not just stay.
const FAILING_REASONS: [&str; 12] = [
    "broken",
    "connect",
    "credentials",
    "forbidden",
    "garbage",
    "not_served",
    "other",
    "overloaded",
    "refused",
    "timeout",
    "tls",
    "unauthorized",
];

struct OfSet {
    set: usize,
    router: Arc<Router>,
}

impl Observer for OfSet {
    fn changed(&self, plane: &Plane, watch: usize, change: Change) {
        let Some(seen) = plane.seen() else { return };
        if seen.watches[watch].kind.plural == "customresourcedefinitions" {
            plane.discovery().doubt();
        }
        if seen.is_engaged() {
            self.router.changed(self.set, plane, watch, &change);
        }
    }

    fn synced(&self, plane: &Plane, _: usize) {
        if plane.seen().is_some_and(|seen| seen.is_synced() && seen.set_engaged()) {
            self.router.engaged(self.set, plane);
        }
    }

    fn troubled(&self, _: &Plane, _: usize) {}
}
