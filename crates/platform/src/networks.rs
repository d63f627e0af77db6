//! Network controllers: provide the networks and addresses that the deployments of a cell request.
//!
//! Reads   cell: NetworkBinding, NetworkContext, SubnetClaim, Subnet, Location
//! Writes  cell: Location · NetworkContext · NetworkBinding (status) · Subnet · SubnetClaim (status)
//! Order   binding → context, ready at once → binding ready → (the cell creates a subnet claim) → subnet →
//!         claim ready
//!
//! On one machine there is nothing to program: a network is a name, and its addresses are a block of the
//! city's [`AddressPool`]. A binding that cannot be fulfilled gets the reason `NetworkFailedToCreate` and a
//! message: its location is not this cell's, its context belongs to another network, or the pool is
//! exhausted. It is reconciled again when that changes. A context without bindings is deleted, and the
//! garbage collector deletes its claims and subnets.

mod addresses;
mod bindings;
mod cell_location;
mod pool;

pub use pool::{AddressPool, AddressPoolError, MAX_LOOPBACK_CITIES};

use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use polis_api::kube::Resource;
use polis_api::{conditions::READY, reasons};
use polis_core::Time;
use polis_core::conditions::{self, DesiredCondition};
use polis_engine::{Clock, Engine, Index, Key, Plane, Unresolved, Watch};

/// The watches of the controllers in the cell, for a program that shares the cache of the cell with other
/// controllers: it declares the plane with the watches of all.
pub fn watches() -> Vec<Watch> {
    [cell_location::watches(), bindings::watches(), addresses::watches()].concat()
}

/// Registers the controllers of one cell with an engine: the cell's Location in `city`, and its networks from
/// `pool`.
pub fn declare(engine: &mut Engine, clock: Clock, cell: Plane, city: &str, pool: AddressPool) {
    let cell = engine.plane("cell", cell, watches());
    cell_location::declare(engine, &cell, &clock, city);
    bindings::declare(engine, &cell, &clock);
    addresses::declare(engine, &cell, &clock, pool);
}

/// Subnet claims by the context in their spec.
fn by_context() -> Index {
    Index::field("spec.networkContext.name")
}

/// Bindings by the context in their status.
fn by_given_context() -> Index {
    Index::field("status.networkContextRef.name")
}

/// The desired condition Ready=True.
fn ready(reason: &'static str, message: impl Into<String>) -> DesiredCondition {
    DesiredCondition::new_true(READY, reason, message)
}

/// The desired condition Ready=False with reason `NetworkFailedToCreate`.
fn failed(message: impl Into<String>) -> DesiredCondition {
    DesiredCondition::new_false(READY, reasons::NETWORK_FAILED_TO_CREATE, message)
}

/// Sets a condition of an object.
fn set_condition(
    conditions: &mut Vec<Condition>,
    meta: &ObjectMeta,
    desired: &DesiredCondition,
    clock: &Clock,
) {
    conditions::set(conditions, desired, meta.generation, &Time(clock.now()));
}

/// The keys of objects.
fn keys<'a, K: Resource + 'a>(
    cell: &Plane,
    objects: impl IntoIterator<Item = &'a K>,
) -> Result<Vec<Key>, Unresolved> {
    Ok(objects.into_iter().map(|object| Key::of(cell, object)).collect())
}
