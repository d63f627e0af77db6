//! The router: maps object changes on planes to keys in the work queue of controllers.
//!
//! Keys of a plane are queued only when all caches of the plane are synced, and a controller starts only when
//! the caches of all planes that it requires are synced. A reconcile therefore never reads a partial cache.
//! No change is lost: when a plane becomes engaged or a controller starts, every cached object is mapped once
//! with the priority `Backlog`, including objects on *other* planes that map to keys of the new plane.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};

use crate::cache::{Change, InformerStore, ObjectChange, name_of_id};
use crate::hold::{self, Holds};
use crate::plane::Env;
use crate::planes::Set;
use crate::queue::Queue;
use crate::reconciler::AnyReconciler;
use crate::schedule::{Priority, Task};
use crate::signal::Signal;
use crate::watch::Observer;
use crate::{Error, Key, Kind, Plane, PlaneName};

/// Planes that become engaged within this time are handled together. Mapping the objects of the other planes
/// walks over every cached object, and at start-up planes become engaged by the hundred.
const ENGAGE_BATCH_DELAY: Duration = Duration::from_millis(250);

/// Why a mapper cannot map an object to keys. The event is dropped and counted, not retried: the object is
/// mapped again when it changes, or when the plane of its key becomes engaged.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct Unresolved(pub String);

impl From<Error> for Unresolved {
    fn from(error: Error) -> Self {
        Self(error.to_string())
    }
}

pub(crate) enum MapError {
    Unresolved(Unresolved),
    Unreadable(Error),
}

type ObjectMapper = dyn Fn(&Plane, &Kind, &str, &[u8]) -> Result<Vec<Key>, MapError> + Send + Sync;
type ChangeMapper = dyn Fn(&Plane, &Change<'_>) -> Result<Vec<Key>, Unresolved> + Send + Sync;

/// How a source maps changes to keys.
pub(crate) enum Mapper {
    /// The object itself is the key.
    Same,
    /// Maps each state of the object, as bytes.
    Object(Arc<ObjectMapper>),
    /// Maps the change of an untyped object.
    Change(Arc<ChangeMapper>),
}

/// The watches of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceWatch {
    /// A declared watch.
    Declared(usize),
    /// Every watch that is added at run time.
    Added,
}

/// A watch that yields keys of a controller.
pub(crate) struct Source {
    pub(crate) set: usize,
    pub(crate) watch: SourceWatch,
    pub(crate) mapper: Mapper,
}

pub(crate) struct Controller {
    pub(crate) name: &'static str,
    /// The set that contains the planes of the keys.
    pub(crate) primary: usize,
    /// Sets that must be ready before the controller starts.
    pub(crate) requires: BTreeSet<usize>,
    pub(crate) sources: Vec<Source>,
    pub(crate) reconciler: Arc<dyn AnyReconciler>,
    /// A change does not queue the key whose running reconcile has written it.
    pub(crate) skips_own_writes: bool,
    /// All required sets were ready, and keys are queued.
    pub(crate) started: AtomicBool,
}

pub(crate) struct Router {
    pub(crate) queue: Queue,
    pub(crate) holds: Holds,
    pub(crate) env: Arc<Env>,
    pub(crate) sets: Vec<Arc<Set>>,
    pub(crate) controllers: Vec<Controller>,
    newly_engaged: Mutex<BTreeMap<usize, BTreeSet<PlaneName>>>,
    engaged_notify: Notify,
    controller_started: Signal,
}

impl Router {
    pub(crate) fn new(
        queue: Queue,
        env: Arc<Env>,
        sets: Vec<Arc<Set>>,
        controllers: Vec<Controller>,
    ) -> Self {
        Self {
            holds: Holds::new(queue.clone()),
            queue,
            env,
            sets,
            controllers,
            newly_engaged: Mutex::default(),
            engaged_notify: Notify::new(),
            controller_started: Signal::default(),
        }
    }

    /// The observer for the planes of a set.
    pub(crate) fn observer(self: &Arc<Self>, set: usize) -> Arc<dyn Observer> {
        Arc::new(SetObserver { set, router: self.clone() })
    }

    /// Drops the queued keys of a plane that has left its set.
    pub(crate) fn disengaged(&self, set: usize, plane: &PlaneName) {
        for (number, controller) in self.controllers.iter().enumerate() {
            if controller.primary == set {
                self.queue.forget(number, plane);
            }
        }
    }

    /// Maps a change of an object in a cache to keys of all controllers.
    fn changed(
        &self,
        set: usize,
        plane: &Plane,
        watch: SourceWatch,
        informers: &InformerStore,
        change: &ObjectChange,
    ) {
        let untyped = Change::new(plane, informers, position(watch), change);
        for (number, controller) in self.controllers.iter().enumerate() {
            if !controller.started.load(Ordering::Acquire) {
                continue;
            }
            for source in
                controller.sources.iter().filter(|source| source.set == set && source.watch == watch)
            {
                if let Mapper::Change(mapper) = &source.mapper {
                    self.enqueue_change(number, &**mapper, plane, &untyped, Priority::Fresh, None);
                    continue;
                }
                // The old state is mapped as well, so that a key that the object no longer maps to is
                // reconciled.
                for bytes in [&change.after, &change.before].into_iter().flatten() {
                    self.enqueue_mapped(number, source, plane, &change.id, bytes, Priority::Fresh, None);
                    if matches!(source.mapper, Mapper::Same) {
                        break;
                    }
                }
            }
        }
    }

    /// Maps every object of a watch that was added at run time, once it is synced.
    fn added_synced(&self, set: usize, plane: &Plane, informers: &InformerStore) {
        for (number, controller) in self.controllers.iter().enumerate() {
            if controller.started.load(Ordering::Acquire) {
                let sources = controller.sources.iter();
                for source in sources.filter(|source| source.set == set && source.watch == SourceWatch::Added)
                {
                    self.enqueue_objects(number, source, plane, informers, 0, None);
                }
            }
        }
    }

    fn engaged(&self, set: usize, plane: &Plane) {
        tracing::info!(set = self.sets[set].name, plane = %plane.name(), "engaged");
        self.sets[set].engaged_changed.send();
        self.newly_engaged.lock().entry(set).or_default().insert(plane.name().clone());
        for (number, controller) in self.controllers.iter().enumerate() {
            if controller.started.load(Ordering::Acquire) {
                self.enqueue_backlog(number, controller, set, plane, None);
            }
        }
        self.engaged_notify.notify_one();
    }

    /// Maps every cached object of one plane to keys of a controller; if `only` is given, to keys of those
    /// planes.
    fn enqueue_backlog(
        &self,
        number: usize,
        controller: &Controller,
        set: usize,
        plane: &Plane,
        only: Option<&BTreeSet<PlaneName>>,
    ) {
        let Some(informers) = plane.informers() else { return };
        for source in controller.sources.iter().filter(|source| source.set == set) {
            match source.watch {
                SourceWatch::Declared(watch) => {
                    self.enqueue_objects(number, source, plane, informers, watch, only)
                }
                SourceWatch::Added => {
                    for added in informers.added.all().iter().filter(|added| added.is_engaged()) {
                        self.enqueue_objects(number, source, plane, added, 0, only);
                    }
                }
            }
        }
    }

    /// Maps every cached object of one watch to keys of a controller.
    fn enqueue_objects(
        &self,
        number: usize,
        source: &Source,
        plane: &Plane,
        informers: &InformerStore,
        watch: usize,
        only: Option<&BTreeSet<PlaneName>>,
    ) {
        let objects = informers.store(watch).lock().all();
        for (id, bytes) in objects {
            let Mapper::Change(mapper) = &source.mapper else {
                self.enqueue_mapped(number, source, plane, &id, &bytes, Priority::Backlog, only);
                continue;
            };
            let change = ObjectChange { id, before: None, after: Some(bytes), decoded_before: None };
            let change = Change::new(plane, informers, watch, &change);
            self.enqueue_change(number, &**mapper, plane, &change, Priority::Backlog, only);
        }
    }

    fn enqueue_change(
        &self,
        number: usize,
        mapper: &ChangeMapper,
        plane: &Plane,
        change: &Change<'_>,
        priority: Priority,
        only: Option<&BTreeSet<PlaneName>>,
    ) {
        match mapper(plane, change) {
            Ok(keys) => keys.into_iter().for_each(|key| self.enqueue(number, key, priority, only)),
            Err(why) => self.drop_unresolved(number, plane, change.kind(), &change.name().to_string(), &why),
        }
    }

    /// Counts an event that maps to no key.
    fn drop_unresolved(&self, number: usize, plane: &Plane, kind: &Kind, object: &str, why: &Unresolved) {
        let controller = self.controllers[number].name;
        self.env.metrics.unresolved(controller);
        tracing::debug!(controller, plane = %plane.name(), %kind, object, %why, "dropped an event: the mapper found no key");
    }

    #[allow(clippy::too_many_arguments)] // an event, its source, and the options for its keys
    fn enqueue_mapped(
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
        let (Mapper::Object(mapper), SourceWatch::Declared(watch)) = (&source.mapper, source.watch) else {
            let object = name_of_id(id);
            let key = Key {
                plane: plane.name().clone(),
                namespace: object.namespace.map(Arc::from),
                name: Arc::from(object.name),
            };
            self.enqueue(number, key, priority, only);
            return;
        };
        let kind = &self.sets[source.set].watches[watch].kind;
        match mapper(plane, kind, id, bytes) {
            Ok(keys) => keys.into_iter().for_each(|key| self.enqueue(number, key, priority, only)),
            Err(MapError::Unresolved(why)) => self.drop_unresolved(number, plane, kind, id, &why),
            Err(MapError::Unreadable(error)) => {
                tracing::warn!(controller = controller.name, %error, "dropped an event: the object cannot be decoded");
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
        let task = Task { controller: number, key };
        if controller.skips_own_writes && hold::is_running(&task) {
            return;
        }
        self.queue.add(task, priority);
    }

    /// Starts controllers whose required sets are ready, and queues keys of newly engaged planes that objects
    /// on other planes map to.
    pub(crate) async fn run(&self) {
        self.start_ready();
        loop {
            self.engaged_notify.notified().await;
            tokio::time::sleep(ENGAGE_BATCH_DELAY).await;
            let newly_engaged = std::mem::take(&mut *self.newly_engaged.lock());
            let running: Vec<usize> = self.start_ready();
            for (set, planes) in newly_engaged {
                self.enqueue_from_other_sets(&running, set, &planes).await;
            }
        }
    }

    /// Starts the controllers whose required sets are ready and queues their backlog. Returns the controllers
    /// that were running before.
    fn start_ready(&self) -> Vec<usize> {
        let mut running = Vec::new();
        for (number, controller) in self.controllers.iter().enumerate() {
            let ready = controller.requires.iter().all(|set| self.sets[*set].readiness().is_ready());
            if !ready && !controller.started.load(Ordering::Acquire) {
                continue;
            }
            if controller.started.swap(true, Ordering::AcqRel) {
                running.push(number);
                continue;
            }
            tracing::info!(controller = controller.name, "controller started");
            for (set, plane) in self.engaged_planes() {
                self.enqueue_backlog(number, controller, set, &plane, None);
            }
            self.controller_started.send();
        }
        running
    }

    /// Queues the keys of an external source once the controller has started.
    pub(crate) async fn run_external_source(&self, number: usize, mut keys: mpsc::UnboundedReceiver<Key>) {
        let started = &self.controllers[number].started;
        let mut changes = self.controller_started.subscribe();
        while !started.load(Ordering::Acquire) {
            changes.changed().await;
        }
        while let Some(key) = keys.recv().await {
            self.enqueue(number, key, Priority::Fresh, None);
        }
    }

    /// Queues keys of newly engaged planes that objects on planes of other sets map to.
    async fn enqueue_from_other_sets(&self, running: &[usize], set: usize, planes: &BTreeSet<PlaneName>) {
        for number in running {
            let controller = &self.controllers[*number];
            if controller.primary != set {
                continue;
            }
            for (other, plane) in self.engaged_planes().into_iter().filter(|(other, _)| *other != set) {
                self.enqueue_backlog(*number, controller, other, &plane, Some(planes));
                tokio::task::yield_now().await;
            }
        }
    }

    fn engaged_planes(&self) -> Vec<(usize, Plane)> {
        let mut engaged_planes = Vec::new();
        for set in &self.sets {
            let planes = set.planes.read();
            engaged_planes.extend(
                planes
                    .values()
                    .filter(|member| member.is_engaged())
                    .map(|member| (set.id, member.plane.clone())),
            );
        }
        engaged_planes
    }

    /// Updates the gauges. Called for each scrape.
    pub(crate) fn update_gauges(&self) {
        let stats = self.queue.stats();
        self.env.metrics.queue(stats.ready, stats.delayed, stats.running, stats.oldest);
        // Several sets may have the same name, such as `hub` when both roles run in one process. A plane
        // counts as engaged when it is engaged in all of them, and as failing when it fails in one of them.
        let mut by_name: BTreeMap<&'static str, PlaneCounts> = BTreeMap::new();
        for set in &self.sets {
            let counts = by_name.entry(set.name).or_default();
            counts.planes.extend(set.planes.read().keys().cloned());
            let readiness = set.readiness();
            counts.engaging.extend(readiness.engaging);
            counts.failing.extend(readiness.failing.into_iter().map(|(plane, reason, _)| (plane, reason)));
            counts.erring.extend(readiness.erring.into_iter().map(|(plane, it)| (it.verb, plane)));
        }
        for (name, counts) in by_name {
            self.env.metrics.planes(name, "engaged", counts.planes.difference(&counts.engaging).count());
            self.env.metrics.planes(name, "engaging", counts.engaging.len());
            self.env.metrics.planes(name, "failing", counts.failing.len());
            let mut reasons: BTreeMap<&'static str, usize> =
                FAILING_REASONS.iter().map(|reason| (*reason, 0)).collect();
            for reason in counts.failing.values() {
                *reasons.entry(reason).or_default() += 1;
            }
            for (reason, count) in reasons {
                self.env.metrics.failing(name, reason, count);
            }
            for verb in VERBS {
                let of_verb = counts.erring.iter().filter(|(erring, _)| *erring == verb).count();
                self.env.metrics.erring(name, verb, of_verb);
            }
        }
    }
}

/// The planes of all sets with the same name.
#[derive(Default)]
struct PlaneCounts {
    planes: BTreeSet<PlaneName>,
    engaging: BTreeSet<PlaneName>,
    failing: BTreeMap<PlaneName, &'static str>,
    /// By verb, so that a plane counts once for each.
    erring: BTreeSet<(&'static str, PlaneName)>,
}

/// The verbs of the requests of an engine.
const VERBS: [&str; 9] = ["apply", "create", "delete", "discover", "get", "list", "patch", "update", "watch"];

/// Reasons that always have a series, so that a reason that no longer applies drops to 0.
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

/// Forwards the events of the reflectors of one set to the router.
struct SetObserver {
    set: usize,
    router: Arc<Router>,
}

impl SetObserver {
    /// A changed CustomResourceDefinition makes the discovery results of its plane out of date.
    fn check_discovery(plane: &Plane, kind: &Kind) {
        if kind.plural == "customresourcedefinitions" {
            plane.discovery().invalidate();
        }
    }
}

impl Observer for SetObserver {
    fn changed(&self, plane: &Plane, watch: usize, change: ObjectChange) {
        let Some(informers) = plane.informers() else { return };
        Self::check_discovery(plane, &informers.watches[watch].kind);
        if informers.is_engaged() {
            self.router.changed(self.set, plane, SourceWatch::Declared(watch), informers, &change);
        }
    }

    fn synced(&self, plane: &Plane, _: usize) {
        if plane.informers().is_some_and(|informers| informers.is_synced() && informers.set_engaged()) {
            self.router.engaged(self.set, plane);
        }
    }

    fn error_changed(&self, _: &Plane, _: usize) {}

    fn added_changed(&self, plane: &Plane, informers: &Arc<InformerStore>, change: ObjectChange) {
        Self::check_discovery(plane, &informers.watches[0].kind);
        if informers.is_engaged() {
            self.router.changed(self.set, plane, SourceWatch::Added, informers, &change);
        }
    }

    fn added_synced(&self, plane: &Plane, informers: &Arc<InformerStore>) {
        self.router.added_synced(self.set, plane, informers);
    }
}

/// The position of a watch in its cache. An added watch is the only one of its cache.
fn position(watch: SourceWatch) -> usize {
    match watch {
        SourceWatch::Declared(watch) => watch,
        SourceWatch::Added => 0,
    }
}
