//! The controllers of a cell.
//!
//! `DeploymentController` creates and deletes the instances of each WorkloadDeployment that the federation
//! copies into the cell, and requests their networks. `InstanceController` claims quota for each instance,
//! sets its conditions and copies it to the hub. The two communicate only through objects of the cell. The
//! heartbeat shows the hub that they run. Each module declares its controller and names the watches it needs;
//! [`declare`] registers all of them with an engine.
//!
//! ```text
//!   federation ─► WorkloadDeployment ─► DeploymentController ─► Instance ◄─ runtime
//!                        ▲ status            │                     │
//!                        └───────────────────┘                     ▼
//!                                            InstanceController ─► ResourceClaim (project plane)
//!                                                               └─► Instance copy (hub)
//! ```
//!
//! A cell works without the hub and the project planes: while they are unreachable, instances keep running,
//! scaling works and status in the cell stays current. The hub copies follow when the hub is back. Only a
//! deleted Instance waits: it keeps its finalizer until its hub copy is deleted, so its replacement (same
//! name) is not created until the hub is back.

mod circuit_breaker;
mod deployment;
mod error;
mod heartbeat;
mod hub_namespaces;
mod instance;
mod metrics;
mod networks;
mod quota;
mod referenced_data;
mod writeback;

pub use error::Error;
pub use networks::NetworkMode;
pub use polis_core::quota::ResourceRefKind;
pub use quota::QuotaConfig;

use polis_core::metadata;
use polis_engine::{Clock, Engine, Plane, Watch};

use metrics::Metrics;
use quota::QuotaEnforcement;
use writeback::WriteBack;

/// Configuration of the controllers of a cell.
#[derive(Clone, Debug)]
pub struct CellConfig {
    /// The cell's own plane.
    pub plane: Plane,
    /// The hub.
    pub hub: Plane,
    /// Name of the cell: the label value that marks its hub copies and quota claims. `single` by default;
    /// cells that share a hub or a project need different names.
    pub name: String,
    /// Whether the cell manages networks for its deployments.
    pub networks: NetworkMode,
    /// Where quota is claimed; none disables quota enforcement.
    pub quota: Option<QuotaConfig>,
    /// Finalizers of the other controllers of this cell, such as its runtime. Each new Instance has them from
    /// its creation, so that these controllers need no write of their own. Nothing removes the finalizer of a
    /// controller that does not run.
    pub instance_finalizers: Vec<&'static str>,
}

/// The watches of the controllers on their own plane, for a program that shares the cache of the cell with
/// other controllers: it declares the plane with the watches of all.
pub fn watches(networks: NetworkMode, quota: bool) -> Vec<Watch> {
    [deployment::watches(networks), instance::watches(networks, quota)].concat()
}

/// Registers the planes and controllers of the cell role with an engine.
pub fn declare(engine: &mut Engine, clock: Clock, cell: CellConfig) -> Result<(), Error> {
    let CellConfig { plane, hub, name, networks, quota, instance_finalizers } = cell;
    if !metadata::is_label_value(&name) {
        return Err(Error::Name { name });
    }
    let metrics = Metrics::register(&engine.handle().registry());
    let plane = engine.plane("cell", plane, watches(networks, quota.is_some()));
    let quota = QuotaEnforcement::declare(engine, quota, &name, &clock, &metrics);
    let hub = engine.plane("hub", hub, []);
    let write_back = WriteBack::declare(engine, hub.clone(), name.clone(), metrics);

    let finalizers = [instance::finalizers(&quota), instance_finalizers].concat();
    heartbeat::declare(engine, &plane, hub, &clock, name.clone());
    deployment::declare(engine, &plane, &clock, name, networks, finalizers);
    instance::declare(engine, &plane, clock, networks, quota, write_back);
    Ok(())
}
