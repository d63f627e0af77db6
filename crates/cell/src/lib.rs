//! The controllers of a cell.
//!
//! [`DeploymentController`] keeps the instances of each deployment that the federation brings, and their networks;
//! [`InstanceController`] sees to it that each instance has its quota, says whether it is ready and shows it on the hub.
//! They meet only in the objects of the cell. [`declare`] puts both on an engine.
//!
//! A cell goes on by itself: hub and projects may be away for as long as they like. What runs goes on running, scaling
//! works, status stays true; the hub is told when it is back. Only an instance that has ended waits: its object goes when
//! the hub has forgotten it, and what replaces it comes then.

mod deployment;
mod error;
mod instance;
mod link;
mod metrics;
mod networks;
mod newborns;
mod quota;
mod writeback;

pub use deployment::DeploymentController;
pub use error::Error;
pub use instance::InstanceController;
pub use networks::Networks;
pub use polis_core::quota::ResourceRefKind;
pub use quota::Quota;

use std::sync::Arc;

use polis_api::compute::{Instance, WorkloadDeployment};
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::labels;
use polis_api::networking::{Location, NetworkBinding, NetworkContext, Subnet, SubnetClaim};
use polis_api::quota::{AllowanceBucket, ResourceClaim};
use polis_engine::{Clock, Engine, Fixed, Index, Plane, Watch};

use metrics::Metrics;
use newborns::Newborns;
use quota::Treasury;
use writeback::WriteBack;

/// What the controllers of a cell are told.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The cell's own plane.
    pub plane: Plane,
    /// The hub.
    pub hub: Plane,
    /// Name of the cell: the value of labels by which its copies and claims are known. `single` where nobody chose one;
    /// cells that share a hub or a project need names of their own.
    pub name: String,
    /// Whether the cell keeps networks.
    pub networks: Networks,
    /// Where quota is claimed; nowhere if none.
    pub quota: Option<Quota>,
}

/// Declares the planes and controllers of the cell role on an engine.
pub fn declare(engine: &mut Engine, clock: Clock, cell: Cell) -> Result<(), Error> {
    let Cell { plane, hub, name, networks, quota } = cell;
    if !is_label_value(&name) {
        return Err(Error::Name { name });
    }
    let metrics = Metrics::register(&engine.handle().registry());

    let mut watches = vec![
        Watch::of::<WorkloadDeployment>().index(networks::by_city()),
        Watch::of::<Instance>().index(Index::Owner).index(deployment::by_deployment_uid()),
    ];
    if networks == Networks::WhereServed {
        watches.extend(networks::watches());
    }
    if quota.is_some() {
        watches.push(Watch::of::<Namespace>());
    }
    let plane = engine.plane("cell", plane, watches);

    // A set of one, and not a plane that controllers need: a cell that starts while the hub is away must work.
    let hub_name = hub.name().clone();
    let ours = format!("{}={name}", labels::SOURCE_CLUSTER);
    let hub = engine.planes("hub", Fixed::new([hub.role("hub")]), [Watch::of::<Instance>().labels(ours)]);

    let claims_kept = quota.is_some();
    let treasury = Treasury::declare(engine, quota, &name, &clock, &metrics);

    let newborns = Arc::new(Newborns::default());
    let deployment = DeploymentController {
        cell: plane.clone(),
        name: name.clone(),
        networks,
        quota: claims_kept,
        recorder: engine.recorder("deployment"),
        clock: clock.clone(),
        lag: engine.handle().registry().lag("deployment"),
        newborns: newborns.clone(),
    };
    let controller = engine
        .controller("deployment", &plane, deployment)
        .on::<WorkloadDeployment>()
        .maps::<Instance>(&plane, move |cell, instance| deployment::keys_of_seen(&newborns, cell, instance));
    if networks == Networks::WhereServed {
        controller
            .maps::<Location>(&plane, networks::keys_of_location)
            .maps::<NetworkBinding>(&plane, networks::keys_of_binding)
            .maps::<NetworkContext>(&plane, networks::keys_of_context)
            .maps::<SubnetClaim>(&plane, networks::keys_of_claim)
            .maps::<Subnet>(&plane, networks::keys_of_subnet);
    }

    let recorder = engine.recorder("instance");
    let lag = engine.handle().registry().lag("instance");
    let write_back = WriteBack::new(hub.clone(), hub_name, name, recorder.clone(), metrics.clone(), lag);
    let copies = write_back.newborns();
    let claims = treasury.planes();
    let instance =
        InstanceController { cell: plane.clone(), networks, quota: treasury, write_back, recorder, clock };
    let here = plane.name().clone();
    let mut controller = engine
        .controller("instance", &plane, instance)
        .on::<Instance>()
        .maps::<WorkloadDeployment>(&plane, instance::keys_of_deployment)
        .maps::<Instance>(&hub, move |_, copy| {
            let keys = instance::key_of_copy(&here, copy);
            keys.iter().for_each(|key| copies.seen(key, copy));
            Ok(keys)
        });
    if networks == Networks::WhereServed {
        controller = controller.maps::<NetworkBinding>(&plane, instance::keys_of_binding);
    }
    if let Some((claims, waiting)) = claims {
        let here = plane.name().clone();
        controller
            .maps::<Namespace>(&plane, instance::keys_of_namespace)
            .maps::<ResourceClaim>(&claims, move |_, claim| Ok(quota::key_of_claim(&here, claim)))
            .maps::<AllowanceBucket>(&claims, move |project, bucket| {
                quota::keys_of_bucket(&waiting, project, bucket)
            });
    }
    Ok(())
}

/// Whether a text can stand as the value of a label, and names something.
fn is_label_value(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= 63 && bytes.iter().copied().all(inner) && ends(bytes.first()) && ends(bytes.last())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_named_by_what_can_stand_in_a_label() {
        for good in ["single", "dfw-1", "a", "Cell_7.x"] {
            assert!(is_label_value(good), "{good}");
        }
        for bad in ["", "-a", "a-", "a b", "a/b", "ä", &"a".repeat(64)] {
            assert!(!is_label_value(bad), "{bad}");
        }
    }
}
