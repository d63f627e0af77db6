//! The embedded federation: Karmada's API and observable behaviour over a hub plane and member planes.
//!
//! Production uses Karmada; a laptop and tests use this crate instead. Clients that write objects
//! and policies to the hub observe no difference. The crate has two parts: decisions, as pure functions over
//! plain data, and thin controllers that execute them.
//!
//! ```text
//!   object + PropagationPolicy ─► ResourceBinding ─► Work per member ─► object on the member
//!            (hub)                   (placement)       (hub)                  │
//!   status on the hub ◄─ aggregate ◄─ ResourceBinding status ◄─ Work status ◄─┘
//! ```
//!
//! - [`names`]: names of bindings, Works and execution namespaces;
//! - [`matching`], [`claim`]: which policy an object belongs to, and the labels and annotations that record
//!   it;
//! - [`placement`], [`division`]: the clusters of an object, and the replicas of each;
//! - [`manifest`], [`retain`]: the object that a member gets, and the fields that the member keeps;
//! - [`aggregate`], [`conditions`]: the status on the hub;
//! - [`interpreter`]: Lua scripts that define replicas, status and health of custom kinds;
//! - `controllers`: the reconcilers, over a hub plane and member planes of `polis-engine`; [`declare`]
//!   registers them.

pub mod aggregate;
pub mod claim;
mod clusters;
pub mod conditions;
mod controllers;
mod dependents;
pub mod division;
mod error;
mod finalizers;
mod hub;
pub mod interpreter;
mod kinds;
pub mod manifest;
pub mod matching;
mod member;
mod members;
pub mod names;
pub mod object;
pub mod placement;
pub mod retain;
mod shared;
mod works;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use polis_engine::{Backoff, Clock, Engine, Plane, Random};

pub use error::Error;

use clusters::{Clusters, Policies};
use hub::Hub;
use interpreter::{Interpreter, LuaHost, ScriptLimits};
use members::Members;
use shared::{Scripts, Shared, TemplateKinds};

/// Back-off of a failing key. Events that can end a failure (a member that returns, a kind that appears)
/// queue the key at once; the back-off covers the rest.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(20), cap: Duration::from_secs(60) };

/// What a federation needs.
pub struct FederationConfig {
    /// The hub.
    pub hub: Plane,
    /// Planes of members that do not use the endpoint and Secret of their Cluster, by name.
    pub members: BTreeMap<String, Plane>,
    /// Interval of the health probes of members; default 10 s.
    pub probe_every: Duration,
    /// How long probes of a member must fail before it is not ready; default 30 s.
    pub failure_threshold: Duration,
    /// The resource limits of interpreter scripts.
    pub limits: ScriptLimits,
    /// The source of permanent ids.
    pub random: Random,
}

impl FederationConfig {
    /// The defaults for this hub.
    pub fn new(hub: Plane) -> Self {
        Self {
            hub,
            members: BTreeMap::new(),
            probe_every: Duration::from_secs(10),
            failure_threshold: Duration::from_secs(30),
            limits: ScriptLimits::default(),
            random: Random::from_entropy(),
        }
    }

    /// Uses this plane for a member instead of the endpoint and Secret of its Cluster.
    pub fn member(mut self, name: impl Into<String>, plane: Plane) -> Self {
        self.members.insert(name.into(), plane);
        self
    }
}

/// Registers the planes and controllers of a federation with an engine.
///
/// The engine may stop at any point: the next one continues from the objects on the hub and the members.
///
/// ```no_run
/// # use polis_engine::{Clock, Engine, Plane};
/// # async fn run(hub: Plane, dfw: Plane) -> Result<(), polis_engine::Error> {
/// use polis_federation::FederationConfig;
/// let mut engine = Engine::new();
/// // A plane; other members use the endpoint and Secret of their Cluster.
/// let config = FederationConfig::new(hub).member("dfw", dfw);
/// polis_federation::declare(&mut engine, Clock::system(), config);
/// engine.run(std::future::pending()).await
/// # }
/// ```
pub fn declare(engine: &mut Engine, clock: Clock, config: FederationConfig) {
    engine.backoff(BACKOFF);
    let scripts = Arc::new(LuaHost::new(config.limits, {
        let clock = clock.clone();
        Arc::new(move || clock.now())
    }));
    let hub = Arc::new(Hub {
        plane: engine.plane("hub", config.hub, controllers::hub_watches()),
        recorder: engine.recorder("federation"),
        clock,
        random: config.random,
    });
    let members = Members::new(hub.clone(), config.members);
    let planes = engine.planes(members::ROLE, members.provider(), []);
    let shared = Arc::new(Shared {
        planes,
        members,
        clusters: Clusters::new(hub.clone()),
        policies: Policies::new(hub.clone()),
        kinds: TemplateKinds::new(hub.clone()),
        scripts: Scripts::new(hub.clone(), Interpreter::new(scripts)),
        results: Default::default(),
        dependents: Default::default(),
        triggers: Default::default(),
        probe_every: config.probe_every,
        failure_threshold: config.failure_threshold,
        hub,
    });
    controllers::declare(engine, &shared);
}

/// The required kinds that the hub does not serve. A federation starts without them and uses each when it is
/// served.
pub async fn missing(hub: &Plane) -> Result<Vec<String>, polis_engine::Error> {
    let mut missing = Vec::new();
    for kind in kinds::REQUIRED_ON_HUB {
        let found = hub.uncached().find_kind(&kind.api_version(), &kind.kind).await?;
        if found.is_none() {
            missing.push(kinds::describe(kind));
        }
    }
    Ok(missing)
}
