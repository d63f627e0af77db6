//! The embedded federation: builder, start-up and worker pool.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use polis_api::kube::Client;
use tokio::task::JoinSet;

use crate::interpreter::{Interpreter, LuaHost, ScriptClock, ScriptLimits};
use crate::planes::{Api, ApiError, ApiErrorKind};
use crate::queue::Requeue;
use crate::state::{FederationState, Settings, kinds};

/// Workers of the queue: more than CPU cores, because reconciles mostly wait for API servers.
const WORKERS: usize = 32;

/// An embedded federation over one hub.
///
/// ```no_run
/// # async fn run(hub: kube::Client, dfw: kube::Client) {
/// use polis_federation::Federation;
/// let federation = Federation::builder(hub)
///     .member("dfw", dfw) // a client; other members use the endpoint and Secret of their Cluster
///     .build();
/// federation.run(std::future::pending()).await;
/// # }
/// # use polis_api::kube;
/// ```
pub struct Federation {
    hub: Client,
    settings: Settings,
    limits: ScriptLimits,
    workers: usize,
}

/// Options of a [`Federation`].
pub struct Builder(Federation);

impl Federation {
    /// Starts a builder for a federation over this hub.
    pub fn builder(hub: Client) -> Builder {
        Builder(Federation {
            hub,
            settings: Settings {
                probe_every: Duration::from_secs(10),
                failure_threshold: Duration::from_secs(30),
                clock: Arc::new(Timestamp::now),
                ids: Arc::new(|| uuid::Uuid::new_v4().to_string()),
                provided_clients: BTreeMap::new(),
            },
            limits: ScriptLimits::default(),
            workers: WORKERS,
        })
    }

    /// The required kinds that the hub does not serve. [`Federation::run`] waits for them without an error.
    pub async fn missing(&self) -> Result<Vec<String>, ApiError> {
        let api = Api::new("the hub", self.hub.clone());
        let mut missing = Vec::new();
        for kind in kinds::REQUIRED_ON_HUB {
            if api.find_kind(&kind.type_meta()).await?.is_none() {
                missing.push(kind.to_string());
            }
        }
        Ok(missing)
    }

    /// Runs until `shutdown` is ready. It can stop at any point: the next run continues from the objects on
    /// the hub and the members.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let clock: ScriptClock = self.settings.clock.clone();
        let interpreter = Interpreter::new(Arc::new(LuaHost::new(self.limits, clock)));
        let state = FederationState::new(self.hub, self.settings, interpreter);
        let mut workers = JoinSet::new();
        tokio::pin!(shutdown);
        tokio::select! {
            biased;
            () = &mut shutdown => return,
            () = state.sync() => {}
        }
        // Interpreter scripts first: an object must not be reconciled without the scripts of its kind.
        if let Err(error) = state.reconcile(&crate::state::Key::Interpreters).await {
            tracing::warn!(%error, "failed to read interpreter customizations; will retry");
        }
        for _ in 0..self.workers {
            workers.spawn(run_worker(state.clone()));
        }
        shutdown.await;
        workers.shutdown().await;
    }
}

impl Builder {
    /// Uses this client for a member instead of the endpoint and Secret of its Cluster.
    pub fn member(mut self, name: impl Into<String>, client: Client) -> Self {
        self.0.settings.provided_clients.insert(name.into(), client);
        self
    }

    /// Interval of the health probes of members; default 10 s.
    pub fn probe_every(mut self, pause: Duration) -> Self {
        self.0.settings.probe_every = pause;
        self
    }

    /// How long probes of a member must fail before it is not ready; default 30 s.
    pub fn failure_threshold(mut self, threshold: Duration) -> Self {
        self.0.settings.failure_threshold = threshold;
        self
    }

    /// The wall clock for timestamps in objects and for scripts.
    pub fn clock(mut self, clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        self.0.settings.clock = Arc::new(clock);
        self
    }

    /// The source of permanent ids; default random UUIDs.
    pub fn ids(mut self, ids: impl Fn() -> String + Send + Sync + 'static) -> Self {
        self.0.settings.ids = Arc::new(ids);
        self
    }

    /// The resource limits of interpreter scripts.
    pub fn limits(mut self, limits: ScriptLimits) -> Self {
        self.0.limits = limits;
        self
    }

    /// The number of workers.
    pub fn workers(mut self, workers: usize) -> Self {
        self.0.workers = workers.max(1);
        self
    }

    /// Builds the federation.
    pub fn build(self) -> Federation {
        self.0
    }
}

async fn run_worker(state: Arc<FederationState>) {
    loop {
        let key = state.queue.next().await;
        let requeue = match Box::pin(state.reconcile(&key)).await {
            Ok(requeue) => requeue,
            Err(error) => {
                match error.kind() {
                    // A concurrent write, or an object that must be deleted first: expected.
                    Some(ApiErrorKind::Conflict | ApiErrorKind::AlreadyExists) => {
                        tracing::debug!(?key, %error, "reconcile failed; will retry")
                    }
                    _ => tracing::warn!(?key, %error, "reconcile failed; will retry"),
                }
                Requeue::WithBackoff
            }
        };
        state.queue.finish(key, requeue);
    }
}
