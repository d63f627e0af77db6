//! Location binding diagnostics: reports project planes that do not serve LocationBinding.
//!
//! Reads   project: Namespace `default` (triggers one reconcile per plane); whether LocationBinding is served
//! Writes  nothing; logs a warning
//!
//! In single mode such a plane permits every city, in milo mode none. Both are wrong if the CRD is missing by
//! mistake, so the controller logs a warning once per plane.

use std::collections::BTreeSet;
use std::sync::Mutex;

use polis_api::ObjectExt;
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::networking::LocationBinding;
use polis_core::cities::TenancyMode;
use polis_engine::{Action, Engine, Error as EngineError, Key, PlaneName, PlaneSet, Reconciler, Watch};

use crate::Management;

/// The watches of the controller in projects.
pub(crate) fn watches() -> Vec<Watch> {
    vec![Watch::of::<Namespace>(), Watch::of::<LocationBinding>()]
}

/// Registers the controller with an engine.
pub(crate) fn declare(engine: &mut Engine, management: &Management) {
    let projects = &management.projects;
    let diagnostics = LocationBindingDiagnostics {
        projects: projects.clone(),
        tenancy: management.tenancy,
        reported: Mutex::default(),
    };
    engine.controller("open-cities", projects, diagnostics).watches::<Namespace>(
        projects,
        |project, namespace| {
            Ok(if namespace.name() == "default" { vec![Key::of(project, namespace)] } else { Vec::new() })
        },
    );
}

/// Logs a warning for each project plane that does not serve LocationBinding.
struct LocationBindingDiagnostics {
    projects: PlaneSet,
    tenancy: TenancyMode,
    /// The planes that were reported.
    reported: Mutex<BTreeSet<PlaneName>>,
}

impl Reconciler for LocationBindingDiagnostics {
    type Error = EngineError;

    async fn reconcile(&self, key: &Key) -> Result<Action, EngineError> {
        let unserved = !self.projects.plane(key)?.serves::<LocationBinding>()?;
        let mut reported = self.reported.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if unserved && reported.insert(key.plane.clone()) {
            let effect = match self.tenancy {
                TenancyMode::Single => "workloads may use every city",
                TenancyMode::Milo => "workloads may use no city",
            };
            tracing::warn!(plane = %key.plane, "LocationBindings are not served here: {effect}; install the CRD to bind cities");
        } else if !unserved {
            reported.remove(&key.plane);
        }
        Ok(Action::AwaitChange)
    }
}
