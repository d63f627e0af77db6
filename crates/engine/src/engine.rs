//! [`Engine`], the manager of a process: its planes, controllers, leader election and worker pool.

use std::collections::BTreeSet;
use std::future::Future;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::{Mutex, RwLock};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::Instrument;

use crate::backoff::Backoff;
use crate::cache::InformerStore;
use crate::event::EventRecorder;
use crate::leader::{LeaderElection, LeaderElector, Leadership};
use crate::metrics::Metrics;
use crate::plane::Env;
use crate::planes::{FixedPlanes, Member, PlaneProvider, PlaneRegistry, PlaneSet, Readiness, Set};
use crate::queue::{ActiveTask, Queue};
use crate::reconciler::{AnyReconciler, Reconciler};
use crate::router::{Controller, Router};
use crate::signal::Signal;
use crate::watch::ListLimiter;
use crate::{Clock, ControllerBuilder, Error, ErrorClass, Key, Plane, Random, Watch, WatchedPlanes, admin};

/// The manager of a process: watches planes and runs controllers, like controller-runtime's `Manager`.
///
/// Declare the planes with their watches, then the controllers, then call [`Engine::run`].
///
/// ```no_run
/// use polis_engine::{Action, Engine, Key, MiloProjects, Plane, PlaneSet, Reconciler, Unresolved, Watch};
/// use polis_api::k8s_openapi::api::core::v1::{ConfigMap, Secret};
///
/// /// Copies the ConfigMaps of each project to the hub.
/// struct Mirror { projects: PlaneSet, hub: Plane }
///
/// impl Reconciler for Mirror {
///     type Error = polis_engine::Error;
///
///     async fn reconcile(&self, key: &Key) -> Result<Action, Self::Error> {
///         let project = self.projects.plane(key)?;
///         let Some(settings) = project.get::<ConfigMap>(key)? else {
///             return Ok(Action::AwaitChange); // deleted
///         };
///         let namespace = format!("project-{}", key.plane);
///         let existing = self.hub.get::<ConfigMap>((namespace.as_str(), &*key.name))?;
///         let mut desired = ConfigMap { data: settings.data, ..ConfigMap::default() };
///         desired.metadata.namespace = Some(namespace);
///         desired.metadata.name = Some(key.name.to_string());
///         self.hub.create_or_update(existing.as_ref(), &desired).await?;
///         Ok(Action::AwaitChange)
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
///     .for_kind::<ConfigMap>()
///     .watches::<ConfigMap>(&hub, |_, copy| {
///         let namespace = copy.metadata.namespace.as_deref().unwrap_or_default();
///         let project = namespace
///             .strip_prefix("project-")
///             .ok_or_else(|| Unresolved(format!("namespace {namespace} belongs to no project")))?;
///         Ok(vec![Key::new(project, "default", copy.metadata.name.as_deref().unwrap_or_default())])
///     });
/// engine.run(async { tokio::signal::ctrl_c().await.ok(); }).await
/// # }
/// ```
pub struct Engine {
    env: Arc<Env>,
    workers: usize,
    max_concurrent_lists: usize,
    grace_period: Duration,
    backoff: Backoff,
    pub(crate) sets: Vec<Arc<Set>>,
    providers: Vec<(usize, Box<dyn PlaneProvider>)>,
    pub(crate) controllers: Vec<Controller>,
    pub(crate) external_sources: Vec<(usize, mpsc::UnboundedReceiver<Key>)>,
    /// Tasks that run as long as the engine.
    pub(crate) background: Vec<BoxFuture<'static, ()>>,
    election: Option<LeaderElection>,
    admin: Option<SocketAddr>,
    metrics: Option<SocketAddr>,
    admin_metrics: bool,
    handle: Handle,
}

/// Default number of workers. Reconciles mostly wait for responses, so this exceeds the number of cores.
const WORKERS: usize = 32;
/// Default number of concurrent lists: enough to keep two cores busy with decoding, few enough not to
/// overload a server at start-up.
const MAX_CONCURRENT_LISTS: usize = 64;
/// Default time for running reconciles to finish at shutdown.
const GRACE_PERIOD: Duration = Duration::from_secs(10);
/// Default back-off of a failing key. With this cap, a key that always fails costs one attempt in five
/// minutes.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(20), cap: Duration::from_secs(300) };

impl Engine {
    /// An engine with the system clock and a random seed.
    pub fn new() -> Self {
        Self::with(Clock::system(), Random::from_entropy())
    }

    /// An engine with the given clock and random source. On a paused tokio runtime, with in-process planes
    /// and a fixed seed, a run is reproducible to the byte.
    pub fn with(clock: Clock, random: Random) -> Self {
        let env = Arc::new(Env { clock, random: random.split("engine"), ..Env::default() });
        Self {
            env: env.clone(),
            workers: WORKERS,
            max_concurrent_lists: MAX_CONCURRENT_LISTS,
            grace_period: GRACE_PERIOD,
            backoff: BACKOFF,
            sets: Vec::new(),
            providers: Vec::new(),
            controllers: Vec::new(),
            external_sources: Vec::new(),
            background: Vec::new(),
            election: None,
            admin: None,
            metrics: None,
            admin_metrics: true,
            handle: Handle(Arc::new(HandleInner {
                env,
                running: RwLock::new(None),
                leadership: Mutex::new(None),
                address: Mutex::new(None),
            })),
        }
    }

    /// Sets the number of workers, which all controllers share.
    pub fn workers(&mut self, workers: usize) -> &mut Self {
        self.workers = workers.max(1);
        self
    }

    /// Sets how many initial lists run at the same time, over all planes and kinds.
    pub fn max_concurrent_lists(&mut self, lists: usize) -> &mut Self {
        self.max_concurrent_lists = lists.max(1);
        self
    }

    /// Sets how long running reconciles may take to finish at shutdown before they are cancelled.
    pub fn shutdown_grace_period(&mut self, grace_period: Duration) -> &mut Self {
        self.grace_period = grace_period;
        self
    }

    /// Sets the back-off of a failing key.
    pub fn backoff(&mut self, backoff: Backoff) -> &mut Self {
        self.backoff = backoff;
        self
    }

    /// Reconciles only while this replica holds the lease. Watches run on every replica.
    pub fn leader_election(&mut self, election: LeaderElection) -> &mut Self {
        self.election = Some(election);
        self
    }

    /// Serves `/healthz`, `/readyz` and `/metrics` at this address.
    pub fn admin(&mut self, address: SocketAddr) -> &mut Self {
        self.admin = Some(address);
        self
    }

    /// Serves only `/metrics` at this address, in addition to the admin address.
    pub fn metrics(&mut self, address: SocketAddr) -> &mut Self {
        self.metrics = Some(address);
        self
    }

    /// Removes `/metrics` from the admin address. For programs that serve the metrics of the [`Handle`]
    /// themselves, with authentication.
    pub fn disable_admin_metrics(&mut self) -> &mut Self {
        self.admin_metrics = false;
        self
    }

    /// Declares one plane and its watches. Controllers that use the plane start when all its kinds are
    /// listed.
    ///
    /// Watches of one kind are merged: the plane has one cache of the kind, with the indexes of all. So each
    /// controller can name what it needs. Panics if watches of one kind have different selectors.
    ///
    /// A plane that this engine has declared is returned as it is, so that controllers of several crates
    /// share its cache. Panics if its first declaration lacks one of the watches.
    pub fn plane(
        &mut self,
        role: &'static str,
        plane: Plane,
        watches: impl IntoIterator<Item = Watch>,
    ) -> Plane {
        let watches = Watch::merged(watches);
        if let Some(declared) = plane.informers().filter(|_| Arc::ptr_eq(plane.env(), &self.env)) {
            let missing =
                watches.iter().find(|watch| !declared.watches.iter().any(|has| has.includes(watch)));
            if let Some(watch) = missing {
                panic!(
                    "plane {} is declared without the watch of {} that role {role} needs",
                    plane.name(),
                    watch.kind
                );
            }
            return plane;
        }
        let set = self.set(role, watches.clone(), true);
        let informers = Arc::new(InformerStore::new(set.id, watches));
        let plane = plane.with_role(role).bound_to(&self.env, Some(informers));
        set.planes.write().insert(plane.name().clone(), Member { plane: plane.clone(), task: None });
        self.providers.push((set.id, Box::new(FixedPlanes::new([plane.clone()]))));
        plane
    }

    /// Declares a set of planes with the same watches, merged as in [`Engine::plane`]. The provider adds and
    /// removes planes at run time.
    pub fn planes(
        &mut self,
        role: &'static str,
        provider: impl PlaneProvider,
        watches: impl IntoIterator<Item = Watch>,
    ) -> PlaneSet {
        let set = self.set(role, Watch::merged(watches), false);
        self.providers.push((set.id, Box::new(provider)));
        PlaneSet(set)
    }

    fn set(&mut self, name: &'static str, watches: Arc<[Watch]>, required: bool) -> Arc<Set> {
        watches.iter().for_each(|watch| self.env.metrics.init_kind(&watch.kind));
        let set = Arc::new(Set {
            id: self.sets.len(),
            name,
            watches,
            required,
            env: self.env.clone(),
            planes: RwLock::default(),
            listed: AtomicBool::new(false),
            error: Mutex::new(None),
            engaged_changed: Signal::default(),
        });
        self.sets.push(set.clone());
        set
    }

    /// Adds a controller whose keys are objects on the planes of `primary`. The returned builder adds its
    /// watches.
    pub fn controller(
        &mut self,
        name: &'static str,
        primary: &impl WatchedPlanes,
        reconciler: impl Reconciler,
    ) -> ControllerBuilder<'_> {
        self.env.metrics.init_controller(name);
        let primary = self.position(primary);
        let mut requires = BTreeSet::new();
        if self.sets[primary].required {
            requires.insert(primary);
        }
        self.controllers.push(Controller {
            name,
            primary,
            requires,
            sources: Vec::new(),
            skips_own_writes: false,
            reconciler: Arc::new(reconciler) as Arc<dyn AnyReconciler>,
            started: AtomicBool::new(false),
        });
        ControllerBuilder { engine: self }
    }

    /// A recorder of Kubernetes events. `reporter` is the name of the reporting controller.
    pub fn recorder(&self, reporter: &'static str) -> EventRecorder {
        EventRecorder::new(reporter, self.env.clone())
    }

    /// A handle to readiness and metrics of the engine, for use while it runs.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    pub(crate) fn position(&self, watched: &impl WatchedPlanes) -> usize {
        let known = watched.set().filter(|set| *set < self.sets.len());
        known.expect("the planes of a controller must be declared on the same engine first")
    }

    /// Runs until `shutdown` is ready. Then stops taking keys from the queue, waits up to the grace period
    /// for running reconciles, and releases the lease.
    ///
    /// If the future is dropped, all reconciles and watches are cancelled at once, as in a crash. The lease
    /// then expires.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        let queue = Queue::new(self.backoff, self.env.random.split("queue"));
        let router = Arc::new(Router::new(queue.clone(), self.env.clone(), self.sets, self.controllers));
        *self.handle.0.running.write() = Some(router.clone());
        let _running = RunGuard { router: router.clone(), handle: self.handle.clone() };
        let mut background = JoinSet::new();
        if let Some(address) = self.admin {
            let listener =
                TcpListener::bind(address).await.map_err(|source| Error::Admin { address, source })?;
            *self.handle.0.address.lock() = listener.local_addr().ok();
            let pages = if self.admin_metrics { admin::Pages::All } else { admin::Pages::Probes };
            background.spawn(admin::serve(listener, pages, self.handle.clone()));
        }
        if let Some(address) = self.metrics {
            let listener =
                TcpListener::bind(address).await.map_err(|source| Error::Admin { address, source })?;
            background.spawn(admin::serve(listener, admin::Pages::Metrics, self.handle.clone()));
        }
        let limiter = Arc::new(ListLimiter::new(self.max_concurrent_lists));
        for (set, provider) in self.providers {
            let registry = PlaneRegistry {
                set: router.sets[set].clone(),
                router: router.clone(),
                limiter: limiter.clone(),
            };
            background.spawn(provider.run(registry));
        }
        background.spawn({
            let router = router.clone();
            async move { router.run().await }
        });
        for (controller, keys) in self.external_sources {
            let router = router.clone();
            background.spawn(async move { router.run_external_source(controller, keys).await });
        }
        for task in self.background {
            background.spawn(task);
        }

        let (elector, leadership) = match self.election {
            Some(election) => {
                let (elector, leadership) = election.start(&self.env);
                (Some(elector), leadership)
            }
            None => (None, Leadership::permanent()),
        };
        let _election = elector.as_ref().map(LeaderElector::abort_on_drop);
        *self.handle.0.leadership.lock() = Some(leadership.clone());
        let mut worker_pool = JoinSet::new();
        worker_pool.spawn(run_workers(router.clone(), leadership, self.workers, self.grace_period));
        shutdown.await;
        tracing::info!("shutting down");
        queue.close();
        // A panic in the worker pool is already logged. The shutdown continues.
        let _ = worker_pool.join_next().await;
        if let Some(elector) = elector {
            elector.resign().await;
        }
        background.shutdown().await;
        Ok(())
    }
}

/// Stops the watches of an engine when its run ends or is dropped.
struct RunGuard {
    router: Arc<Router>,
    handle: Handle,
}

impl Drop for RunGuard {
    fn drop(&mut self) {
        self.router.queue.close();
        for set in &self.router.sets {
            // Dropped after the lock is released: a plane may own the last reference to others.
            let _planes = std::mem::take(&mut *set.planes.write());
        }
        *self.handle.0.running.write() = None;
    }
}

impl Default for Engine {
    fn default() -> Self {
        Self::new()
    }
}

/// Access to readiness, metrics and leadership of a running engine. Cheap to clone.
#[derive(Clone)]
pub struct Handle(Arc<HandleInner>);

struct HandleInner {
    env: Arc<Env>,
    running: RwLock<Option<Arc<Router>>>,
    leadership: Mutex<Option<Leadership>>,
    address: Mutex<Option<SocketAddr>>,
}

impl Handle {
    /// The readiness of each set of planes, by its role. Empty before the engine runs.
    pub fn readiness(&self) -> Vec<(&'static str, Readiness)> {
        let running = self.0.running.read();
        running.iter().flat_map(|router| &router.sets).map(|set| (set.name, set.readiness())).collect()
    }

    /// True while the engine runs and every plane of every set is engaged.
    pub fn is_ready(&self) -> bool {
        let readiness = self.readiness();
        !readiness.is_empty() && readiness.iter().all(|(_, readiness)| readiness.is_ready())
    }

    /// True if no key is ready or running. Keys that are requeued for a later time do not count.
    pub fn is_idle(&self) -> bool {
        self.0.running.read().as_ref().is_some_and(|router| {
            let stats = router.queue.stats();
            stats.running == 0 && stats.ready.iter().all(|ready| *ready == 0)
        })
    }

    /// The metrics in the OpenMetrics text format, with updated gauges.
    pub fn metrics(&self) -> String {
        if let Some(router) = &*self.0.running.read() {
            router.update_gauges();
        }
        self.0.env.metrics.render()
    }

    /// The metrics registry, to which the program can add its own metrics.
    pub fn registry(&self) -> Arc<Metrics> {
        self.0.env.metrics.clone()
    }

    /// The fencing token while this replica leads; it grows with every change of leader, and is 0 without
    /// leader election. None while this replica does not lead.
    pub fn fencing_token(&self) -> Option<i64> {
        self.0.leadership.lock().as_ref().and_then(Leadership::fencing_token)
    }

    /// The address of the admin server, once it listens.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        *self.0.address.lock()
    }
}

/// The worker pool. Its workers run while this replica leads; when it loses the lease, they are cancelled at
/// once.
async fn run_workers(
    router: Arc<Router>,
    mut leadership: Leadership,
    workers: usize,
    grace_period: Duration,
) {
    loop {
        tokio::select! {
            biased;
            () = router.queue.closed() => return,
            _ = leadership.acquired() => {}
        }
        router.env.metrics.leading(true);
        let mut pool = JoinSet::new();
        for _ in 0..workers {
            pool.spawn(worker(router.clone()));
        }
        tokio::select! {
            biased;
            () = leadership.lost() => {
                router.env.metrics.leading(false);
                pool.shutdown().await;
            }
            () = async { while pool.join_next().await.is_some() {} } => return, // queue closed, all workers finished
            () = async { router.queue.closed().await; tokio::time::sleep(grace_period).await } => {
                tracing::warn!("cancelled reconciles that were still running {grace_period:?} after shutdown began");
                pool.shutdown().await;
                return;
            }
        }
    }
}

async fn worker(router: Arc<Router>) {
    while let Some(active) = router.queue.next().await {
        reconcile(&router, active).await;
        // A reconcile without I/O never suspends. Yield so that many of them do not block the thread.
        tokio::task::yield_now().await;
    }
}

async fn reconcile(router: &Router, active: ActiveTask) {
    let controller = &router.controllers[active.task.controller];
    let key = active.task.key.clone();
    if router.sets[controller.primary].engaged(key.plane.as_str()).is_none() {
        return active.finish(crate::Action::AwaitChange); // the plane was disengaged
    }
    if let Some(left) = router.holds.defer(&active.task) {
        router.env.metrics.held(controller.name);
        return active.defer(left);
    }
    let started = Instant::now();
    let span = tracing::info_span!("reconcile", controller = controller.name, plane = %key.plane, %key);
    let reconcile = router.holds.scope(&active.task, controller.reconciler.reconcile(&key));
    let running = AssertUnwindSafe(reconcile).catch_unwind();
    let ended = running.instrument(span.clone()).await;
    let took = started.elapsed();
    let metrics = &router.env.metrics;
    match ended {
        Ok(Ok(action)) => {
            metrics.reconciled(controller.name, took, None);
            active.finish(action);
        }
        Ok(Err(error)) => {
            let class = ErrorClass::of(&*error);
            metrics.reconciled(controller.name, took, Some(class));
            let failures = active.failures + 1;
            span.in_scope(|| match class {
                // Expected: another writer changed or created the object first.
                ErrorClass::Conflict | ErrorClass::AlreadyExists => tracing::debug!(error = %chain(&*error), failures, "reconcile failed; will retry"),
                _ => tracing::warn!(error = %chain(&*error), class = class.as_str(), failures, "reconcile failed; will retry"),
            });
            active.fail(class);
        }
        Err(_) => {
            metrics.reconciled(controller.name, took, Some(ErrorClass::Other));
            span.in_scope(|| tracing::error!("reconcile panicked; will retry"));
            active.fail(ErrorClass::Other);
        }
    }
}

/// An error and its chain of causes, on one line.
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
