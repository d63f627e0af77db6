//! Sets of planes and their members, like the provider and cluster registry of multicluster-runtime.
//!
//! A [`PlaneProvider`] engages and disengages planes (multicluster-runtime's words). A plane is *engaging*
//! from the start of its watches until every kind has been listed once, and *engaged* (all caches synced)
//! afterwards. Planes engage concurrently and on every replica, whether it leads or not. A slow or broken
//! plane does not delay the others.

mod fixed;
mod milo;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::{BoxFuture, join_all};
use parking_lot::{Mutex, RwLock};
use tokio::task::AbortHandle;

use crate::cache::InformerStore;
use crate::plane::Env;
use crate::router::Router;
use crate::signal::Signal;
use crate::watch::{ListLimiter, Observer, Reflector, Watch};
use crate::{Error, FailingRequests, Key, Plane, PlaneName};

pub use fixed::FixedPlanes;
pub use milo::MiloProjects;

/// Adds and removes the planes of a set. Runs as long as the engine.
pub trait PlaneProvider: Send + 'static {
    /// Engages and disengages planes through the registry.
    fn run(self: Box<Self>, registry: PlaneRegistry) -> BoxFuture<'static, ()>;
}

/// A set of planes with the same watches, such as all projects. Cheap to clone.
#[derive(Clone)]
pub struct PlaneSet(pub(crate) Arc<Set>);

pub(crate) struct Set {
    pub(crate) id: usize,
    pub(crate) name: &'static str,
    pub(crate) watches: Arc<[Watch]>,
    /// Controllers that read this set start only when all of its planes are engaged.
    pub(crate) required: bool,
    pub(crate) env: Arc<Env>,
    pub(crate) planes: RwLock<BTreeMap<PlaneName, Member>>,
    /// The provider has engaged every plane of its initial list.
    pub(crate) listed: AtomicBool,
    /// Why the provider cannot list the planes.
    pub(crate) error: Mutex<Option<String>>,
    /// Notified whenever a plane becomes engaged.
    pub(crate) engaged_changed: Signal,
}

pub(crate) struct Member {
    pub(crate) plane: Plane,
    pub(crate) task: Option<AbortHandle>,
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
        if let Some(informers) = self.plane.informers() {
            informers.added.close();
        }
    }
}

impl PlaneSet {
    /// The plane of a key; an error if it is not engaged.
    pub fn plane(&self, key: &Key) -> Result<Plane, Error> {
        self.named(key.plane.as_str())
    }

    /// The plane of that name; an error if it is not engaged.
    pub fn named(&self, name: &str) -> Result<Plane, Error> {
        self.0.engaged(name).ok_or_else(|| Error::NotEngaged { plane: name.into() })
    }

    /// Waits until the plane of that name is engaged. Waits forever if it never is.
    pub async fn wait_until_engaged(&self, name: &str) -> Plane {
        let mut engaged_changed = self.0.engaged_changed.subscribe();
        loop {
            if let Some(plane) = self.0.engaged(name) {
                return plane;
            }
            engaged_changed.changed().await;
        }
    }

    /// The engaged planes, ordered by name.
    pub fn engaged(&self) -> Vec<Plane> {
        self.0
            .planes
            .read()
            .values()
            .filter(|member| member.is_engaged())
            .map(|member| member.plane.clone())
            .collect()
    }

    /// The readiness of the set.
    pub fn readiness(&self) -> Readiness {
        self.0.readiness()
    }
}

impl fmt::Debug for PlaneSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PlaneSet({})", self.0.name)
    }
}

/// The readiness of a set of planes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// The provider has engaged every plane of its initial list.
    pub listed: bool,
    /// The number of engaged planes.
    pub engaged: usize,
    /// Planes that are not engaged yet.
    pub engaging: Vec<PlaneName>,
    /// Planes whose watches fail, engaged or not: name, reason (a metric label) and message.
    pub failing: Vec<(PlaneName, &'static str, String)>,
    /// Planes that have answered a verb with nothing but errors for a minute. They do not make the set
    /// unready: the other planes, and the webhooks of the same process, still work.
    pub erring: Vec<(PlaneName, FailingRequests)>,
    /// Why the provider cannot list the planes.
    pub error: Option<String>,
}

impl Readiness {
    /// True if the initial list is complete and every plane is engaged.
    pub fn is_ready(&self) -> bool {
        self.listed && self.engaging.is_empty()
    }
}

impl Member {
    pub(crate) fn is_engaged(&self) -> bool {
        self.plane.informers().is_some_and(|informers| informers.is_engaged())
    }
}

impl Set {
    pub(crate) fn engaged(&self, name: &str) -> Option<Plane> {
        self.planes.read().get(name).filter(|member| member.is_engaged()).map(|member| member.plane.clone())
    }

    pub(crate) fn readiness(&self) -> Readiness {
        let mut readiness = Readiness {
            listed: self.listed.load(Ordering::Acquire),
            error: self.error.lock().clone(),
            ..Readiness::default()
        };
        for (name, member) in self.planes.read().iter() {
            if member.is_engaged() {
                readiness.engaged += 1;
            } else {
                readiness.engaging.push(name.clone());
            }
            if let Some((kind, error)) = member.plane.informers().and_then(|informers| informers.error()) {
                readiness.failing.push((name.clone(), error.reason, format!("{kind}: {}", error.message)));
            }
            let erring = member.plane.health().failing();
            readiness.erring.extend(erring.into_iter().map(|requests| (name.clone(), requests)));
        }
        readiness
    }
}

/// Engages and disengages the planes of one set on behalf of its provider.
#[derive(Clone)]
pub struct PlaneRegistry {
    pub(crate) set: Arc<Set>,
    pub(crate) router: Arc<Router>,
    pub(crate) limiter: Arc<ListLimiter>,
}

impl PlaneRegistry {
    /// Starts the watches of a plane. Does nothing if a plane of that name is registered.
    pub fn engage(&self, plane: &Plane) {
        let mut planes = self.set.planes.write();
        if planes.get(plane.name()).is_some_and(|member| member.task.is_some()) {
            return;
        }
        let plane = match planes.get(plane.name()) {
            Some(declared) => declared.plane.clone(), // declared with `Engine::plane`: keep its cache
            None => plane.bound_to(
                &self.set.env,
                Some(Arc::new(InformerStore::new(self.set.id, self.set.watches.clone()))),
            ),
        };
        let observer = self.router.observer(self.set.id);
        if let Some(informers) = plane.informers() {
            informers.set_observer(&observer);
            informers.added.open(observer.clone(), self.limiter.clone());
        }
        let task = tokio::spawn(reflect_all(plane.clone(), observer, self.limiter.clone()));
        tracing::debug!(set = self.set.name, plane = %plane.name(), "engaging");
        let task = Some(task.abort_handle());
        match planes.get_mut(plane.name()) {
            Some(declared) => declared.task = task,
            None => drop(planes.insert(plane.name().clone(), Member { plane, task })),
        }
    }

    /// Stops the watches of a plane and drops its cache and its queued keys.
    pub fn disengage(&self, name: &str) {
        let removed = self.set.planes.write().remove(name);
        if let Some(member) = removed {
            tracing::info!(set = self.set.name, plane = name, "disengaged");
            self.router.disengaged(self.set.id, member.plane.name());
        }
    }

    /// Records that every plane of the initial list has been engaged.
    pub fn set_listed(&self) {
        self.set.listed.store(true, Ordering::Release);
    }

    /// Records why the provider cannot list the planes, or with `None` that it can again.
    pub fn set_error(&self, error: Option<String>) {
        *self.set.error.lock() = error;
    }
}

impl fmt::Debug for PlaneRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PlaneRegistry({})", self.set.name)
    }
}

/// Runs the reflectors of all kinds of one plane, in one task.
async fn reflect_all(plane: Plane, observer: Arc<dyn Observer>, limiter: Arc<ListLimiter>) {
    let Some(informers) = plane.informers().cloned() else { return };
    if informers.watches.is_empty() {
        observer.synced(&plane, 0);
        return;
    }
    let reflectors = (0..informers.watches.len()).map(|watch| {
        let (plane, informers, observer, limiter) =
            (plane.clone(), informers.clone(), observer.clone(), limiter.clone());
        Reflector { plane, informers, watch, observer, limiter }.run()
    });
    join_all(reflectors).await;
}
