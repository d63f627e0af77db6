//! The federation as a whole: made from clients, run until told to stop.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use polis_api::kube::Client;
use tokio::task::JoinSet;

use crate::interpreter::{Clock, Host, Interpreter, Limits};
use crate::planes::{Api, ApiError, Fault};
use crate::queue::Outcome;
use crate::world::{Settings, World, kinds};

/// Keys worked on at once. Work mostly waits for answers, so more than the machine has cores.
const WORKERS: usize = 32;

/// An embedded federation over one hub.
///
/// ```no_run
/// # async fn run(hub: kube::Client, dfw: kube::Client) {
/// use polis_federation::Federation;
/// let federation = Federation::builder(hub)
///     .member("dfw", dfw) // reached in process; all others by the endpoint and Secret of their Cluster
///     .build();
/// federation.run(std::future::pending()).await;
/// # }
/// # use polis_api::kube;
/// ```
pub struct Federation {
    hub: Client,
    settings: Settings,
    limits: Limits,
    workers: usize,
}

/// Says how a federation is to run.
pub struct Builder(Federation);

impl Federation {
    /// A federation over this hub.
    pub fn builder(hub: Client) -> Builder {
        Builder(Federation {
            hub,
            settings: Settings {
                probe_every: Duration::from_secs(10),
                failure_threshold: Duration::from_secs(30),
                clock: Arc::new(Timestamp::now),
                ids: Arc::new(|| uuid::Uuid::new_v4().to_string()),
                given: BTreeMap::new(),
            },
            limits: Limits::default(),
            workers: WORKERS,
        })
    }

    /// Kinds that the hub must serve and does not. Over such a hub a federation would wait for them, in silence.
    pub async fn missing(&self) -> Result<Vec<String>, ApiError> {
        let api = Api::new("the hub", self.hub.clone());
        let mut missing = Vec::new();
        for kind in kinds::OF_A_HUB {
            if api.find_kind(&kind.target()).await?.is_none() {
                missing.push(kind.to_string());
            }
        }
        Ok(missing)
    }

    /// Runs until `shutdown` is ready. Everything that was begun is safe to leave: the next run goes on from what the
    /// hub and the members say.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let clock: Clock = self.settings.clock.clone();
        let interpreter = Interpreter::new(Arc::new(Host::new(self.limits, clock)));
        let world = World::new(self.hub, self.settings, interpreter);
        let mut workers = JoinSet::new();
        tokio::pin!(shutdown);
        tokio::select! {
            biased;
            () = &mut shutdown => return,
            () = world.open() => {}
        }
        // Scripts first: an object must not be looked at with half of what is known about its kind.
        if let Err(error) = world.reconcile(&crate::world::Key::Interpreters).await {
            tracing::warn!(%error, "customizations not read yet");
        }
        for _ in 0..self.workers {
            workers.spawn(work(world.clone()));
        }
        shutdown.await;
        workers.shutdown().await;
    }
}

impl Builder {
    /// A member that is reached by this client instead of its Cluster's endpoint and Secret.
    pub fn member(mut self, name: impl Into<String>, client: Client) -> Self {
        self.0.settings.given.insert(name.into(), client);
        self
    }

    /// How often members are probed; 10 s unless said otherwise.
    pub fn probe_every(mut self, pause: Duration) -> Self {
        self.0.settings.probe_every = pause;
        self
    }

    /// How long a member must fail before it counts as not ready; 30 s unless said otherwise.
    pub fn failure_threshold(mut self, threshold: Duration) -> Self {
        self.0.settings.failure_threshold = threshold;
        self
    }

    /// The wall clock that is written into objects and that scripts see.
    pub fn clock(mut self, clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        self.0.settings.clock = Arc::new(clock);
        self
    }

    /// The source of permanent ids; random UUIDs unless said otherwise.
    pub fn ids(mut self, ids: impl Fn() -> String + Send + Sync + 'static) -> Self {
        self.0.settings.ids = Arc::new(ids);
        self
    }

    /// What scripts may use.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.0.limits = limits;
        self
    }

    /// Keys worked on at once.
    pub fn workers(mut self, workers: usize) -> Self {
        self.0.workers = workers.max(1);
        self
    }

    /// The federation, ready to run.
    pub fn build(self) -> Federation {
        self.0
    }
}

async fn work(world: Arc<World>) {
    loop {
        let key = world.queue.next().await;
        let outcome = match Box::pin(world.reconcile(&key)).await {
            Ok(outcome) => outcome,
            Err(error) => {
                match error.fault() {
                    // Someone was faster, or something must go first: the ordinary way of things.
                    Some(Fault::Conflict | Fault::AlreadyExists) => {
                        tracing::debug!(?key, %error, "will be tried again")
                    }
                    _ => tracing::warn!(?key, %error, "will be tried again"),
                }
                Outcome::Failed
            }
        };
        world.queue.finish(key, outcome);
    }
}
