//! What the processes under test need beside them: a fake provider and the network service of each cell, and
//! a fake quota service of each project. Each runs on an engine of its own, as an administrator.

use polis_api::ObjectExt as _;
use polis_api::quota::ResourceClaim;
use polis_core::Time;
use polis_core::conditions::{self, DesiredCondition};
use polis_engine::{Action, Clock, Engine, Error, Key, Plane, Reconciler, Watch};
use polis_platform::networks::AddressPool;
use polis_testing::{RunningEngine, plane_of};

pub use polis_testing::provider::*;

use crate::recorder::PlaneRecorder;

/// Machines that start at the same time.
const WORKERS: usize = 256;

fn plane(recorder: &PlaneRecorder) -> Plane {
    plane_of(&recorder.plane, recorder.client().clone())
}

/// Starts the fake provider of a cell.
pub fn start_provider(cell: &PlaneRecorder) -> (FakeProvider, RunningEngine) {
    let mut engine = Engine::new();
    engine.workers(WORKERS);
    let behavior = ProviderBehavior::default();
    let provider = FakeProvider::declare(&mut engine, Clock::system(), plane(cell), behavior);
    (provider, RunningEngine::spawn(engine))
}

/// Starts the network service of a cell, with the addresses of the city of this number.
pub fn start_network_service(cell: &PlaneRecorder, city: &str, number: u16) -> RunningEngine {
    let mut engine = Engine::new();
    let pool = AddressPool::loopback(number).expect("addresses of a city");
    polis_platform::networks::declare(&mut engine, Clock::system(), plane(cell), city, pool);
    RunningEngine::spawn(engine)
}

/// Starts a quota service of a project that grants every claim.
pub fn start_quota_service(project: &PlaneRecorder) -> RunningEngine {
    let mut engine = Engine::new();
    let project = engine.plane("project", plane(project), [Watch::of::<ResourceClaim>()]);
    engine.controller("quota", &project, GrantAll(project.clone())).for_kind::<ResourceClaim>();
    RunningEngine::spawn(engine)
}

/// Grants every claim of a project.
struct GrantAll(Plane);

impl Reconciler for GrantAll {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(claim) = self.0.get::<ResourceClaim>(key)?.filter(|claim| !claim.is_deleting()) else {
            return Ok(Action::AwaitChange);
        };
        let mut status = claim.status.clone().unwrap_or_default();
        if conditions::find(&status.conditions, "Granted").is_none() {
            let note = "granted by the fake quota service";
            let granted = DesiredCondition::new_true("Granted", "QuotaAvailable", note);
            let now = Time(Clock::system().now());
            conditions::set(&mut status.conditions, &granted, claim.metadata.generation, &now);
            self.0.write_status(&claim, status).await?;
        }
        Ok(Action::AwaitChange)
    }
}
