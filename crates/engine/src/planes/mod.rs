//! Sets of planes: who belongs to one, and how far each has come.
//!
//! A [`Provider`] says which planes there are; the engine watches each from then on (a plane is *engaging* until every kind is
//! listed once, then *engaged*). Engagement runs on every replica, leader or not, several planes at a time; one that is slow or
//! broken holds up nobody.

mod fixed;
mod milo;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::{BoxFuture, join_all};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::cache::Seen;
use crate::plane::Env;
use crate::router::Router;
use crate::watch::{Follow, Gate, Observer, Watch};
use crate::{Error, Key, Plane, PlaneName};

pub use fixed::Fixed;
pub use milo::MiloProjects;

/// Says which planes a set has. Runs for as long as the engine does.
pub trait Provider: Send + 'static {
    /// Tells the roster who comes and who goes.
    fn run(self: Box<Self>, roster: Roster) -> BoxFuture<'static, ()>;
}

/// A set of planes that are watched alike, such as all projects. Cheap to clone.
#[derive(Clone)]
pub struct PlaneSet(pub(crate) Arc<Set>);

pub(crate) struct Set {
    pub(crate) id: usize,
    pub(crate) name: &'static str,
    pub(crate) watches: Arc<[Watch]>,
    /// Controllers that read it wait for all of its planes, not just for those they have keys of.
    pub(crate) required: bool,
    pub(crate) env: Arc<Env>,
    pub(crate) planes: RwLock<BTreeMap<PlaneName, Member>>,
    /// The provider has named every plane it knew of when it started.
    pub(crate) listed: AtomicBool,
    /// Why the provider cannot say which planes there are.
    pub(crate) fault: Mutex<Option<String>>,
    /// Told whenever another plane is engaged.
    pub(crate) arrived: watch::Sender<()>,
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
    }
}

impl PlaneSet {
    /// The plane of a key.
    pub fn plane(&self, key: &Key) -> Result<Plane, Error> {
        self.named(key.plane.as_str())
    }

    /// The plane of that name, if it is engaged.
    pub fn named(&self, name: &str) -> Result<Plane, Error> {
        self.0.engaged(name).ok_or_else(|| Error::NotEngaged { plane: name.into() })
    }

    /// The plane of that name, once it is engaged; never, if it never is.
    pub async fn until_engaged(&self, name: &str) -> Plane {
        let mut arrived = self.0.arrived.subscribe();
        loop {
            if let Some(plane) = self.0.engaged(name) {
                return plane;
            }
            // The sender lives as long as the set.
            let _ = arrived.changed().await;
        }
    }

    /// The planes that are engaged, in the order of their names.
    pub fn engaged(&self) -> Vec<Plane> {
        self.0
            .planes
            .read()
            .values()
            .filter(|member| member.is_engaged())
            .map(|member| member.plane.clone())
            .collect()
    }

    /// How far the set has come.
    pub fn readiness(&self) -> Readiness {
        self.0.readiness()
    }
}

impl fmt::Debug for PlaneSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PlaneSet({})", self.0.name)
    }
}

/// How far a set of planes has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// The provider has named the planes it knew of at the start.
    pub listed: bool,
    /// Planes whose kinds are all listed.
    pub engaged: usize,
    /// Planes that are not there yet.
    pub engaging: Vec<PlaneName>,
    /// Planes in trouble, engaged or not: which, a word for why, and the whole story.
    pub failing: Vec<(PlaneName, &'static str, String)>,
    /// Why the provider cannot say which planes there are.
    pub fault: Option<String>,
}

impl Readiness {
    /// Every plane that should be engaged is.
    pub fn is_ready(&self) -> bool {
        self.listed && self.engaging.is_empty()
    }
}

impl Member {
    pub(crate) fn is_engaged(&self) -> bool {
        self.plane.seen().is_some_and(|seen| seen.is_engaged())
    }
}

impl Set {
    pub(crate) fn engaged(&self, name: &str) -> Option<Plane> {
        self.planes.read().get(name).filter(|member| member.is_engaged()).map(|member| member.plane.clone())
    }

    pub(crate) fn readiness(&self) -> Readiness {
        let mut readiness = Readiness {
            listed: self.listed.load(Ordering::Acquire),
            fault: self.fault.lock().clone(),
            ..Readiness::default()
        };
        for (name, member) in self.planes.read().iter() {
            if member.is_engaged() {
                readiness.engaged += 1;
            } else {
                readiness.engaging.push(name.clone());
            }
            if let Some((kind, trouble)) = member.plane.seen().and_then(|seen| seen.trouble()) {
                readiness.failing.push((
                    name.clone(),
                    trouble.reason,
                    format!("{kind}: {}", trouble.message),
                ));
            }
        }
        readiness
    }
}

/// Where a provider signs planes on and off.
#[derive(Clone)]
pub struct Roster {
    pub(crate) set: Arc<Set>,
    pub(crate) router: Arc<Router>,
    pub(crate) gate: Arc<Gate>,
}

impl Roster {
    /// Starts to watch a plane. One of that name that is there already stays.
    pub fn engage(&self, plane: &Plane) {
        let mut planes = self.set.planes.write();
        if planes.get(plane.name()).is_some_and(|member| member.task.is_some()) {
            return;
        }
        let plane = match planes.remove(plane.name()) {
            Some(declared) => declared.plane.clone(), // handed out before the start; keeps its cache
            None => plane
                .bound_to(&self.set.env, Some(Arc::new(Seen::new(self.set.id, self.set.watches.clone())))),
        };
        let task =
            tokio::spawn(follow_all(plane.clone(), self.router.observer(self.set.id), self.gate.clone()));
        tracing::debug!(set = self.set.name, plane = %plane.name(), "engaging");
        planes.insert(plane.name().clone(), Member { plane, task: Some(task.abort_handle()) });
    }

    /// Stops watching a plane and forgets what was seen and queued of it.
    pub fn disengage(&self, name: &str) {
        let gone = self.set.planes.write().remove(name);
        if let Some(member) = gone {
            tracing::info!(set = self.set.name, plane = name, "disengaged");
            self.router.disengaged(self.set.id, member.plane.name());
        }
    }

    /// Every plane known at the start has been named.
    pub fn listed(&self) {
        self.set.listed.store(true, Ordering::Release);
    }

    /// Which planes there are cannot be found out at the moment; none again once it can.
    pub fn fault(&self, fault: Option<String>) {
        *self.set.fault.lock() = fault;
    }
}

impl fmt::Debug for Roster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Roster({})", self.set.name)
    }
}

/// All loops of one plane, in one task.
async fn follow_all(plane: Plane, observer: Arc<dyn Observer>, gate: Arc<Gate>) {
    let Some(seen) = plane.seen().cloned() else { return };
    if seen.watches.is_empty() {
        observer.synced(&plane, 0);
        return;
    }
    let loops = (0..seen.watches.len()).map(|watch| {
        let (plane, seen, observer, gate) = (plane.clone(), seen.clone(), observer.clone(), gate.clone());
        Follow { plane, seen, watch, observer, gate }.run()
    });
    join_all(loops).await;
}
