//! The controllers of the management plane.
//!
//! The workload controller creates the WorkloadDeployments of each Workload. The federator copies them to the
//! hub and their status back, and the resolver in it the config maps and secrets that they refer to. The cell
//! access controller gives the cells of a city rights in the hub namespaces of its deployments. The projector
//! copies the Instances from the hub into their projects. The city guard reports hub members that lose their
//! city label. Two diagnostics report project planes that do not serve LocationBinding, and hub namespaces of
//! unknown projects. Two controllers report lost contact: with a cell, for the federator to write, and with
//! the hub. The controllers communicate through objects of the projects and the hub. Each module declares its
//! controller and names the watches it needs; [`declare`] registers all of them with an engine.
//!
//! ```text
//!   Workload ─► workload ─► WorkloadDeployment ─► federator ─► hub: WorkloadDeployment, policy
//!      ▲ status                    ▲ status ──────────┘
//!   project: Instance (projection) ◄──────────────────── projector ◄─ hub: Instance (copy)
//! ```

mod cell_access;
mod city_guard;
mod contact;
mod diagnostics;
mod error;
mod federator;
mod hub_contact;
mod projector;
mod propagation_latency;
mod resolver;
mod unresolved_objects;
mod workload;

pub use error::Error;

use polis_core::cities::TenancyMode;
use polis_engine::{Clock, Engine, Plane, PlaneProvider, PlaneSet};

use contact::Contacts;
use diagnostics::{location_bindings, unknown_projects};
use propagation_latency::PropagationLatency;
use tokio::sync::mpsc;
use unresolved_objects::UnresolvedObjects;

/// What the controllers of the management role share.
struct Management {
    /// The planes of the projects.
    projects: PlaneSet,
    hub: Plane,
    /// Whether project planes belong to a platform or to a single cluster.
    tenancy: TenancyMode,
    clock: Clock,
    /// Measures the stages of each rollout.
    latency: PropagationLatency,
    unresolved: UnresolvedObjects,
    /// The heartbeats of the cells.
    contacts: Contacts,
}

/// Registers the planes and controllers of the management role with an engine. Returns the planes of the
/// projects.
pub fn declare(
    engine: &mut Engine,
    clock: Clock,
    projects: impl PlaneProvider,
    tenancy: TenancyMode,
    hub: Plane,
) -> PlaneSet {
    let of_projects = [
        workload::watches(),
        federator::project_watches(),
        projector::project_watches(),
        location_bindings::watches(),
        unknown_projects::project_watches(),
    ];
    let of_hub = [
        federator::hub_watches(),
        projector::hub_watches(),
        city_guard::watches(),
        cell_access::hub_watches(),
        unknown_projects::hub_watches(),
        contact::watches(),
    ];
    let metrics = engine.handle().registry();
    let management = Management {
        projects: engine.planes("project", projects, of_projects.concat()),
        hub: engine.plane("hub", hub, of_hub.concat()),
        tenancy,
        latency: PropagationLatency::new(clock.clone(), &metrics),
        unresolved: UnresolvedObjects::new(engine.recorder("unresolved-objects"), &metrics),
        contacts: Contacts::default(),
        clock,
    };
    let (federator, keys) = mpsc::unbounded_channel();
    workload::declare(engine, &management);
    location_bindings::declare(engine, &management);
    federator::declare(engine, &management, keys);
    contact::declare(engine, &management, federator);
    hub_contact::declare(engine, &management);
    city_guard::declare(engine, &management);
    cell_access::declare(engine, &management);
    unknown_projects::declare(engine, &management);
    projector::declare(engine, &management);
    management.projects
}
