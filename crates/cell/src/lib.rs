//! The controllers of a cell.
//!
//! `DeploymentController` creates and deletes the instances of each WorkloadDeployment that the federation
//! copies into the cell, and requests their networks. `InstanceController` claims quota for each instance,
//! sets its conditions and copies it to the hub. The two communicate only through objects of the cell.
//! [`declare`] registers both with an engine.
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
mod expectations;
mod instance;
mod metrics;
mod networks;
mod quota;
mod writeback;

use deployment::DeploymentController;
pub use error::Error;
use instance::InstanceController;
pub use networks::NetworkMode;
use polis_core::metadata;
pub use polis_core::quota::ResourceRefKind;
pub use quota::QuotaConfig;

use std::sync::Arc;

use polis_api::compute::{Instance, WorkloadDeployment};
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::labels;
use polis_api::networking::{Location, NetworkBinding, NetworkContext, Subnet, SubnetClaim};
use polis_api::quota::{AllowanceBucket, ResourceClaim};
use polis_engine::{Clock, Engine, FixedPlanes, Index, Plane, Watch};

use expectations::Expectations;
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
}

/// Registers the planes and controllers of the cell role with an engine.
pub fn declare(engine: &mut Engine, clock: Clock, cell: CellConfig) -> Result<(), Error> {
    let CellConfig { plane, hub, name, networks, quota } = cell;
    if !metadata::is_label_value(&name) {
        return Err(Error::Name { name });
    }
    let metrics = Metrics::register(&engine.handle().registry());

    let mut watches = vec![
        Watch::of::<WorkloadDeployment>().index(networks::by_city()),
        Watch::of::<Instance>().index(Index::Owner).index(deployment::by_deployment_uid()),
    ];
    if networks == NetworkMode::WhenServed {
        watches.extend(networks::watches());
    }
    if quota.is_some() {
        watches.push(Watch::of::<Namespace>());
    }
    let plane = engine.plane("cell", plane, watches);

    // A plane set of one: unlike a single plane, the engine does not wait for it. A cell must start while the
    // hub is unreachable.
    let hub_name = hub.name().clone();
    let ours = format!("{}={name}", labels::SOURCE_CLUSTER);
    let hub = engine.planes(
        "hub",
        FixedPlanes::new([hub.with_role("hub")]),
        [Watch::of::<Instance>().labels(ours)],
    );

    let quota_enabled = quota.is_some();
    let enforcement = QuotaEnforcement::declare(engine, quota, &name, &clock, &metrics);

    let expectations = Arc::new(Expectations::default());
    let deployment = DeploymentController {
        cell: plane.clone(),
        name: name.clone(),
        networks,
        quota: quota_enabled,
        recorder: engine.recorder("deployment"),
        clock: clock.clone(),
        coalescer: engine.handle().registry().status_coalescer("deployment"),
        expectations: expectations.clone(),
    };
    let controller = engine
        .controller("deployment", &plane, deployment)
        .for_kind::<WorkloadDeployment>()
        .watches::<Instance>(&plane, move |cell, instance| {
        deployment::keys_of_instance_observed(&expectations, cell, instance)
    });
    if networks == NetworkMode::WhenServed {
        controller
            .watches::<Location>(&plane, networks::keys_of_location)
            .watches::<NetworkBinding>(&plane, networks::keys_of_binding)
            .watches::<NetworkContext>(&plane, networks::keys_of_context)
            .watches::<SubnetClaim>(&plane, networks::keys_of_claim)
            .watches::<Subnet>(&plane, networks::keys_of_subnet);
    }

    let recorder = engine.recorder("instance");
    let coalescer = engine.handle().registry().status_coalescer("instance");
    let write_back =
        WriteBack::new(hub.clone(), hub_name, name, recorder.clone(), metrics.clone(), coalescer);
    let copies = write_back.expectations();
    let claims = enforcement.watched();
    let instance =
        InstanceController { cell: plane.clone(), networks, quota: enforcement, write_back, recorder, clock };
    let here = plane.name().clone();
    let mut controller = engine
        .controller("instance", &plane, instance)
        .for_kind::<Instance>()
        .watches::<WorkloadDeployment>(&plane, instance::keys_of_deployment)
        .watches::<Instance>(&hub, move |_, copy| {
            let keys = instance::key_of_copy(&here, copy);
            keys.iter().for_each(|key| copies.observe(key, copy));
            Ok(keys)
        });
    if networks == NetworkMode::WhenServed {
        controller = controller.watches::<NetworkBinding>(&plane, instance::keys_of_binding);
    }
    if let Some((claims, pending)) = claims {
        let here = plane.name().clone();
        controller
            .watches::<Namespace>(&plane, instance::keys_of_namespace)
            .watches::<ResourceClaim>(&claims, move |_, claim| Ok(quota::key_of_claim(&here, claim)))
            .watches::<AllowanceBucket>(&claims, move |project, bucket| {
                quota::keys_of_bucket(&pending, project, bucket)
            });
    }
    Ok(())
}
