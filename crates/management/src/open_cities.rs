//! Open cities: tells of a plane that does not know LocationBindings.
//!
//! Reads   project: Namespace (only to be called once for each plane), whether LocationBinding is served
//!
//! A bare cluster must work without them, so every city is allowed there; a project of a platform may use none. Either is
//! a surprise to somebody whose set-up lacks a kind: so it is said when such a plane is first seen.

use std::collections::BTreeSet;
use std::sync::Mutex;

use polis_api::networking::LocationBinding;
use polis_core::cities::Ground;
use polis_engine::{Error as EngineError, Key, Outcome, PlaneName, PlaneSet, Reconciler};

/// See the head of this file.
pub struct OpenCities {
    projects: PlaneSet,
    ground: Ground,
    /// The planes that it was said of.
    told: Mutex<BTreeSet<PlaneName>>,
}

impl OpenCities {
    /// Nobody has been told of anything yet.
    pub fn new(projects: PlaneSet, ground: Ground) -> Self {
        Self { projects, ground, told: Mutex::default() }
    }
}

impl Reconciler for OpenCities {
    type Error = EngineError;

    async fn reconcile(&self, key: &Key) -> Result<Outcome, EngineError> {
        let open = !self.projects.plane(key)?.serves::<LocationBinding>()?;
        let mut told = self.told.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if open && told.insert(key.plane.clone()) {
            let so = match self.ground {
                Ground::Bare => "workloads may use every city",
                Ground::Platform => "workloads may use no city",
            };
            tracing::warn!(plane = %key.plane, "LocationBindings are not served here: {so}; install the kind to bind cities");
        } else if !open {
            told.remove(&key.plane);
        }
        Ok(Outcome::Settled)
    }
}
