//! Open cities: tells of a plane that leaves the choice of cities open.
//!
//! Reads   project: Namespace (only to be called once for each plane), whether LocationBinding is served
//!
//! A bare cluster has no LocationBindings and must work, so every city is allowed there. On a platform the same would be
//! a mistake in the set-up that nobody notices: so it is said when such a plane is first seen.

use std::collections::BTreeSet;
use std::sync::Mutex;

use polis_api::networking::LocationBinding;
use polis_engine::{Error as EngineError, Key, Outcome, PlaneName, PlaneSet, Reconciler};

/// See the head of this file.
pub struct OpenCities {
    projects: PlaneSet,
    /// The planes that it was said of.
    told: Mutex<BTreeSet<PlaneName>>,
}

impl OpenCities {
    /// Nobody has been told of anything yet.
    pub fn new(projects: PlaneSet) -> Self {
        Self { projects, told: Mutex::default() }
    }
}

impl Reconciler for OpenCities {
    type Error = EngineError;

    async fn reconcile(&self, key: &Key) -> Result<Outcome, EngineError> {
        let open = !self.projects.plane(key)?.serves::<LocationBinding>()?;
        let mut told = self.told.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if open && told.insert(key.plane.clone()) {
            tracing::warn!(
                plane = %key.plane,
                "LocationBindings are not served here: workloads may use every city; install the kind to bind cities"
            );
        } else if !open {
            told.remove(&key.plane);
        }
        Ok(Outcome::Settled)
    }
}
