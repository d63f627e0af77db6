//! The engine: planes, controllers and workers, wired together and run until told to stop.

use std::collections::BTreeSet;
use std::future::Future;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use futures::FutureExt;
use parking_lot::{Mutex, RwLock};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::Instrument;

use crate::backoff::Backoff;
use crate::cache::{Seen, decode, place_of_id};
use crate::event::Recorder;
use crate::leader::{Election, Leadership};
use crate::metrics::Metrics;
use crate::plane::Env;
use crate::planes::{Fixed, Member, PlaneSet, Provider, Readiness, Roster, Set};
use crate::queue::{Queue, Taken};
use crate::reconciler::{AnyReconciler, Reconciler};
use crate::router::{Controller, NoKeys, Router, Source, Unresolved};
use crate::watch::Gate;
use crate::{Class, Clock, Error, Key, Kind, Object, Plane, Random, Watch, admin};

/// Everything that one process sees and does.
///
/// Declare planes with the watches they need, then controllers, then [`Engine::run`].
///
/// ```no_run
/// use polis_engine::{Engine, Index, Key, MiloProjects, Outcome, Plane, PlaneSet, Reconciler, Unresolved, Watch};
/// use polis_api::k8s_openapi::api::core::v1::{ConfigMap, Secret};
///
/// /// Keeps a copy of each project's settings on the hub.
/// struct Mirror { projects: PlaneSet, hub: Plane }
///
/// impl Reconciler for Mirror {
///     type Error = polis_engine::Error;
///
///     async fn reconcile(&self, key: &Key) -> Result<Outcome, Self::Error> {
///         let project = self.projects.plane(key)?;
///         let Some(settings) = project.get::<ConfigMap>(key)? else {
///             return Ok(Outcome::Settled); // gone
///         };
///         let home = format!("project-{}", key.plane);
///         let standing = self.hub.get::<ConfigMap>((home.as_str(), &*key.name))?;
///         let mut wanted = ConfigMap { data: settings.data, ..ConfigMap::default() };
///         wanted.metadata.namespace = Some(home);
///         wanted.metadata.name = Some(key.name.to_string());
///         self.hub.create_or_update(standing.as_ref(), &wanted).await?;
///         Ok(Outcome::Settled)
///     }
/// }
///
/// # async fn run(root: Plane, hub: Plane) -> Result<(), polis_engine::Error> {
/// let mut engine = Engine::new();
/// let projects = engine.planes("projects", MiloProjects::new(root), [Watch::of::<ConfigMap>()]);
/// let hub = engine.plane("hub", hub, [Watch::of::<ConfigMap>()]);
///
/// let mirror = Mirror { projects: projects.clone(), hub: hub.clone() };
/// engine
///     .controller("mirror", &projects, mirror)
///     .on::<ConfigMap>()
///     .maps::<ConfigMap>(&hub, |_, copy| {
///         let home = copy.metadata.namespace.as_deref().unwrap_or_default();
///         let project = home.strip_prefix("project-").ok_or_else(|| Unresolved(format!("{home} is no project's")))?;
///         Ok(vec![Key::new(project, "default", copy.metadata.name.as_deref().unwrap_or_default())])
///     });
/// engine.run(async { tokio::signal::ctrl_c().await.ok(); }).await
/// # }
/// ```
pub struct Engine {
    env: Arc<Env>,
    workers: usize,
    engaging: usize,
    grace: Duration,
    backoff: Backoff,
    sets: Vec<Arc<Set>>,
    providers: Vec<(usize, Box<dyn Provider>)>,
    controllers: Vec<Controller>,
    heard: Vec<(usize, mpsc::UnboundedReceiver<Key>)>,
    election: Option<Election>,
    admin: Option<SocketAddr>,
    metrics: Option<SocketAddr>,
    guarded: bool,
    handle: Handle,
}

/// Keys worked on at once. Reconciles mostly wait for answers, so more than the machine has cores.
const WORKERS: usize = 32;
/// Lists under way at once: enough to keep two cores busy with decoding, few enough not to flood a server at a start.
const ENGAGING: usize = 64;
/// Time for running reconciles to finish at a shutdown.
const GRACE: Duration = Duration::from_secs(10);
/// Back-off of a failing key. The cap is what a key that fails for ever costs: one attempt in five minutes.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(20), cap: Duration::from_secs(300) };

impl Engine {
    /// An engine on the clock and randomness of the machine.
    pub fn new() -> Self {
        Self::with(Clock::system(), Random::from_entropy())
    }

    /// An engine on a given clock and randomness. With a paused runtime, in-process planes and a seed, a run is reproducible to
    /// the byte.
    pub fn with(clock: Clock, random: Random) -> Self {
        let env = Arc::new(Env { clock, random: random.split("engine"), metrics: Arc::default() });
        Self {
            env: env.clone(),
            workers: WORKERS,
            engaging: ENGAGING,
            grace: GRACE,
            backoff: BACKOFF,
            sets: Vec::new(),
            providers: Vec::new(),
            controllers: Vec::new(),
            heard: Vec::new(),
            election: None,
            admin: None,
            metrics: None,
            guarded: false,
            handle: Handle(Arc::new(HandleInner {
                env,
                running: RwLock::new(None),
                leadership: Mutex::new(None),
                address: Mutex::new(None),
            })),
        }
    }

    /// Keys worked on at once, over all controllers.
    pub fn workers(&mut self, workers: usize) -> &mut Self {
        self.workers = workers.max(1);
        self
    }

    /// Kinds of planes that are listed at once.
    pub fn engaging(&mut self, lists: usize) -> &mut Self {
        self.engaging = lists.max(1);
        self
    }

    /// Time for running reconciles to finish at a shutdown, before they are cancelled.
    pub fn grace(&mut self, grace: Duration) -> &mut Self {
        self.grace = grace;
        self
    }

    /// Back-off of a key that fails.
    pub fn backoff(&mut self, backoff: Backoff) -> &mut Self {
        self.backoff = backoff;
        self
    }

    /// Work only while this replica holds a lease. Watching goes on regardless.
    pub fn lead(&mut self, election: Election) -> &mut Self {
        self.election = Some(election);
        self
    }

    /// Serve `/healthz`, `/readyz` and `/metrics` here.
    pub fn admin(&mut self, address: SocketAddr) -> &mut Self {
        self.admin = Some(address);
        self
    }

    /// Serve `/metrics` alone here, besides the admin address.
    pub fn metrics(&mut self, address: SocketAddr) -> &mut Self {
        self.metrics = Some(address);
        self
    }

    /// Leave `/metrics` out of the admin address: whoever runs this engine serves them elsewhere, from its [`Handle`], to
    /// those who may see them.
    pub fn guard_metrics(&mut self) -> &mut Self {
        self.guarded = true;
        self
    }

    /// One plane, watched. Controllers that use it wait until all its kinds are listed.
    pub fn plane(
        &mut self,
        role: &'static str,
        plane: Plane,
        watches: impl IntoIterator<Item = Watch>,
    ) -> Plane {
        let watches: Arc<[Watch]> = watches.into_iter().collect();
        let set = self.set(role, watches.clone(), true);
        let seen = Arc::new(Seen::new(set.id, watches));
        let plane = plane.role(role).bound_to(&self.env, Some(seen));
        set.planes.write().insert(plane.name().clone(), Member { plane: plane.clone(), task: None });
        self.providers.push((set.id, Box::new(Fixed::new([plane.clone()]))));
        plane
    }

    /// A set of planes that come and go, watched alike.
    pub fn planes(
        &mut self,
        role: &'static str,
        provider: impl Provider,
        watches: impl IntoIterator<Item = Watch>,
    ) -> PlaneSet {
        let set = self.set(role, watches.into_iter().collect(), false);
        self.providers.push((set.id, Box::new(provider)));
        PlaneSet(set)
    }

    fn set(&mut self, name: &'static str, watches: Arc<[Watch]>, required: bool) -> Arc<Set> {
        watches.iter().for_each(|watch| self.env.metrics.watched(&watch.kind));
        let set = Arc::new(Set {
            id: self.sets.len(),
            name,
            watches,
            required,
            env: self.env.clone(),
            planes: RwLock::default(),
            listed: AtomicBool::new(false),
            fault: Mutex::new(None),
            arrived: watch::Sender::default(),
        });
        self.sets.push(set.clone());
        set
    }

    /// A controller whose keys name objects on the planes of `primary`. Say next what it listens to.
    pub fn controller(
        &mut self,
        name: &'static str,
        primary: &impl Watched,
        reconciler: impl Reconciler,
    ) -> ControllerBuilder<'_> {
        self.env.metrics.controller(name);
        let primary = self.position(primary);
        let mut needs = BTreeSet::new();
        if self.sets[primary].required {
            needs.insert(primary);
        }
        self.controllers.push(Controller {
            name,
            primary,
            needs,
            sources: Vec::new(),
            reconciler: Arc::new(reconciler) as Arc<dyn AnyReconciler>,
            open: AtomicBool::new(false),
        });
        ControllerBuilder { engine: self }
    }

    /// A recorder of Kubernetes events, which `reporter` (the name of a controller) reports.
    pub fn recorder(&self, reporter: &'static str) -> Recorder {
        Recorder::new(reporter, self.env.clone())
    }

    /// Health, readiness and metrics, also while the engine runs.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    fn position(&self, watched: &impl Watched) -> usize {
        let known = watched.set().filter(|set| *set < self.sets.len());
        known.expect("planes are declared with this engine before the controllers that use them")
    }

    /// Runs until `shutdown` is ready, then stops taking keys, lets running ones finish within the grace period, and gives up
    /// the lease.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        let queue = Queue::new(self.backoff, self.env.random.split("queue"));
        let router = Arc::new(Router::new(queue.clone(), self.env.clone(), self.sets, self.controllers));
        *self.handle.0.running.write() = Some(router.clone());
        let mut background = JoinSet::new();
        if let Some(address) = self.admin {
            let listener =
                TcpListener::bind(address).await.map_err(|source| Error::Admin { address, source })?;
            *self.handle.0.address.lock() = listener.local_addr().ok();
            let pages = if self.guarded { admin::Pages::Probes } else { admin::Pages::All };
            background.spawn(admin::serve(listener, pages, self.handle.clone()));
        }
        if let Some(address) = self.metrics {
            let listener =
                TcpListener::bind(address).await.map_err(|source| Error::Admin { address, source })?;
            background.spawn(admin::serve(listener, admin::Pages::Metrics, self.handle.clone()));
        }
        let gate = Arc::new(Gate::new(self.engaging));
        for (set, provider) in self.providers {
            let roster = Roster { set: router.sets[set].clone(), router: router.clone(), gate: gate.clone() };
            background.spawn(provider.run(roster));
        }
        background.spawn({
            let router = router.clone();
            async move { router.run().await }
        });
        for (controller, keys) in self.heard {
            let router = router.clone();
            background.spawn(async move { router.hear(controller, keys).await });
        }

        let (elector, leadership) = match self.election {
            Some(election) => {
                let (elector, leadership) = election.start(&self.env);
                (Some(elector), leadership)
            }
            None => (None, Leadership::undisputed()),
        };
        *self.handle.0.leadership.lock() = Some(leadership.clone());
        let office = tokio::spawn(work(router.clone(), leadership, self.workers, self.grace));
        shutdown.await;
        tracing::info!("shutting down");
        queue.close();
        // Whoever panicked has been heard in the log; the shutdown goes on.
        let _ = office.await;
        if let Some(elector) = elector {
            elector.resign().await;
        }
        background.shutdown().await;
        for set in &router.sets {
            set.planes.write().clear();
        }
        *self.handle.0.running.write() = None;
        Ok(())
    }
}

impl Default for Engine {
    fn default() -> Self {
        Self::new()
    }
}

/// What a controller listens to. Made by [`Engine::controller`].
pub struct ControllerBuilder<'e> {
    engine: &'e mut Engine,
}

impl ControllerBuilder<'_> {
    /// Every object of this kind on the controller's own planes is a key.
    pub fn on<K: Object>(self) -> Self {
        let set = self.controller().primary;
        let watch = self.watch::<K>(set);
        self.source(Source { set, watch, mapper: None })
    }

    /// Objects of this kind, on any declared planes, lead to keys. The mapper is given the plane that the object is on, and the
    /// object as it is, as it was, or as it was last seen before it was deleted.
    ///
    /// A key of a plane that is not engaged is dropped and counted: it comes again when the plane is.
    pub fn maps<K: Object>(
        self,
        planes: &impl Watched,
        mapper: impl Fn(&Plane, &K) -> Result<Vec<Key>, Unresolved> + Send + Sync + 'static,
    ) -> Self {
        let set = self.engine.position(planes);
        let watch = self.watch::<K>(set);
        let mapper = move |plane: &Plane, kind: &Kind, id: &str, bytes: &[u8]| {
            let object =
                decode::<K>(plane, kind, &place_of_id(id).to_string(), bytes).map_err(NoKeys::Unreadable)?;
            mapper(plane, &object).map_err(NoKeys::Unresolved)
        };
        self.source(Source { set, watch, mapper: Some(Arc::new(mapper)) }).needs(planes)
    }

    /// The controller reads these planes, too: it does not work before they are complete. (Planes of a set that comes and goes
    /// are not waited for.)
    pub fn needs(mut self, planes: &impl Watched) -> Self {
        let set = self.engine.position(planes);
        if self.engine.sets[set].required {
            self.controller_mut().needs.insert(set);
        }
        self
    }

    /// Keys also come from outside the planes: whoever holds the sender says which objects to look at again. What is said before
    /// the controller may work waits until it may.
    pub fn hears(self, keys: mpsc::UnboundedReceiver<Key>) -> Self {
        self.engine.heard.push((self.engine.controllers.len() - 1, keys));
        self
    }

    fn source(mut self, source: Source) -> Self {
        self.controller_mut().sources.push(source);
        self
    }

    fn watch<K: Object>(&self, set: usize) -> usize {
        let (kind, set) = (Kind::of::<K>(), &self.engine.sets[set]);
        let found = set.watches.iter().position(|watch| watch.kind == kind);
        found.unwrap_or_else(|| {
            panic!("controller {}: planes {} have no watch of {kind}", self.controller().name, set.name)
        })
    }

    fn controller(&self) -> &Controller {
        self.engine.controllers.last().expect("made with a controller")
    }

    fn controller_mut(&mut self) -> &mut Controller {
        self.engine.controllers.last_mut().expect("made with a controller")
    }
}

/// Planes that an engine watches: a [`Plane`] or a [`PlaneSet`] that [`Engine::plane`] or [`Engine::planes`] gave.
pub trait Watched {
    #[doc(hidden)]
    fn set(&self) -> Option<usize>;
}

impl Watched for Plane {
    fn set(&self) -> Option<usize> {
        self.seen().map(|seen| seen.set)
    }
}

impl Watched for PlaneSet {
    fn set(&self) -> Option<usize> {
        Some(self.0.id)
    }
}

/// A look into an engine from outside. Cheap to clone.
#[derive(Clone)]
pub struct Handle(Arc<HandleInner>);

struct HandleInner {
    env: Arc<Env>,
    running: RwLock<Option<Arc<Router>>>,
    leadership: Mutex<Option<Leadership>>,
    address: Mutex<Option<SocketAddr>>,
}

impl Handle {
    /// How far each set of planes has come, by the name it was declared with. Empty before the engine runs.
    pub fn readiness(&self) -> Vec<(&'static str, Readiness)> {
        let running = self.0.running.read();
        running.iter().flat_map(|router| &router.sets).map(|set| (set.name, set.readiness())).collect()
    }

    /// True while the engine runs and every plane that should be engaged is.
    pub fn is_ready(&self) -> bool {
        let readiness = self.readiness();
        !readiness.is_empty() && readiness.iter().all(|(_, readiness)| readiness.is_ready())
    }

    /// True if nothing is queued, running, or waiting for its turn. Keys that wait for a time do not count.
    pub fn is_idle(&self) -> bool {
        self.0.running.read().as_ref().is_some_and(|router| {
            let load = router.queue.load();
            load.running == 0 && load.ready.iter().all(|ready| *ready == 0)
        })
    }

    /// The metrics, up to date.
    pub fn metrics(&self) -> String {
        if let Some(router) = &*self.0.running.read() {
            router.census();
        }
        self.0.env.metrics.render()
    }

    /// Where metrics of the program's own can be added.
    pub fn registry(&self) -> Arc<Metrics> {
        self.0.env.metrics.clone()
    }

    /// The fencing number while this replica leads: it grows with every change of leader, and is 0 where nobody stands for
    /// election. None while another replica leads.
    pub fn fence(&self) -> Option<i64> {
        self.0.leadership.lock().as_ref().and_then(Leadership::fence)
    }

    /// Where the admin server listens, once it does.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        *self.0.address.lock()
    }
}

/// Works on keys while this replica leads. A leader that loses the lease drops what it is doing at once.
async fn work(router: Arc<Router>, mut leadership: Leadership, workers: usize, grace: Duration) {
    loop {
        tokio::select! {
            biased;
            () = router.queue.closed() => return,
            _ = leadership.gained() => {}
        }
        router.env.metrics.leading(true);
        let mut crew = JoinSet::new();
        for _ in 0..workers {
            crew.spawn(worker(router.clone()));
        }
        tokio::select! {
            biased;
            () = leadership.lost() => {
                router.env.metrics.leading(false);
                crew.shutdown().await;
            }
            () = async { while crew.join_next().await.is_some() {} } => return, // closed, and all have finished
            () = async { router.queue.closed().await; tokio::time::sleep(grace).await } => {
                tracing::warn!("reconciles still running after {grace:?}; cancelled");
                crew.shutdown().await;
                return;
            }
        }
    }
}

async fn worker(router: Arc<Router>) {
    while let Some(taken) = router.queue.next().await {
        reconcile(&router, taken).await;
        // Keys that need nothing are settled without a pause; a long queue of them must not hold the thread.
        tokio::task::yield_now().await;
    }
}

async fn reconcile(router: &Router, taken: Taken) {
    let controller = &router.controllers[taken.task.controller];
    let key = taken.task.key.clone();
    if router.sets[controller.primary].engaged(key.plane.as_str()).is_none() {
        return taken.finish(crate::Outcome::Settled); // the plane has gone meanwhile
    }
    let started = Instant::now();
    let span = tracing::info_span!("reconcile", controller = controller.name, plane = %key.plane, %key);
    let running = AssertUnwindSafe(controller.reconciler.reconcile(&key)).catch_unwind();
    let ended = running.instrument(span.clone()).await;
    let took = started.elapsed();
    let metrics = &router.env.metrics;
    match ended {
        Ok(Ok(outcome)) => {
            metrics.reconciled(controller.name, took, None);
            taken.finish(outcome);
        }
        Ok(Err(error)) => {
            let class = Class::of(&*error);
            metrics.reconciled(controller.name, took, Some(class));
            let failures = taken.failures + 1;
            span.in_scope(|| match class {
                // Someone was faster: the ordinary way of things.
                Class::Conflict | Class::AlreadyExists => tracing::debug!(error = %chain(&*error), failures, "will be tried again"),
                _ => tracing::warn!(error = %chain(&*error), class = class.as_str(), failures, "will be tried again"),
            });
            taken.fail();
        }
        Err(_) => {
            metrics.reconciled(controller.name, took, Some(Class::Other));
            span.in_scope(|| tracing::error!("reconcile panicked; will be tried again"));
            taken.fail();
        }
    }
}

/// An error with its causes, on one line.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}
