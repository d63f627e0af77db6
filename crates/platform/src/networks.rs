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
mod pool;

pub use pool::{AddressPool, AddressPoolError, MAX_LOOPBACK_CITIES};

use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use polis_api::kube::Resource;
use polis_api::networking::{Location, NetworkBinding, NetworkContext, Subnet, SubnetClaim};
use polis_api::{ObjectExt, conditions::READY, names, reasons};
use polis_core::Time;
use polis_core::conditions::{self, DesiredCondition};
use polis_engine::{Action, Clock, Engine, Index, Key, Plane, Reconciler, Unresolved, Watch};

use crate::Error;
use crate::locations::mk_location;
use addresses::SubnetController;
use bindings::{NetworkBindingController, NetworkContextController};

/// Registers the controllers of one cell with an engine: the cell's Location in `city`, and its networks from
/// `pool`.
pub fn declare(engine: &mut Engine, clock: Clock, cell: Plane, city: &str, pool: AddressPool) {
    let watches = [
        Watch::of::<Namespace>().fields("metadata.name=default"),
        Watch::of::<Location>(),
        Watch::of::<NetworkBinding>().index(by_given_context()),
        Watch::of::<NetworkContext>(),
        Watch::of::<SubnetClaim>().index(by_context()),
        Watch::of::<Subnet>(),
    ];
    let cell = engine.plane("cell", cell, watches);

    let here = Key::cluster(cell.name().clone(), &names::location(city));
    let location = CellLocationController { cell: cell.clone(), city: city.to_owned(), clock: clock.clone() };
    // The namespace triggers the first reconcile: a cell without a Location has no Location event.
    engine
        .controller("cell-location", &cell, location)
        .for_kind::<Location>()
        .watches::<Namespace>(&cell, move |_, _| Ok(vec![here.clone()]));

    let bindings = NetworkBindingController { cell: cell.clone(), clock: clock.clone() };
    engine
        .controller("network-bindings", &cell, bindings)
        .for_kind::<NetworkBinding>()
        .watches::<Location>(&cell, bindings::keys_of_location)
        .watches::<NetworkContext>(&cell, bindings::keys_of_context)
        .watches::<SubnetClaim>(&cell, bindings::keys_of_claim);

    engine
        .controller("network-contexts", &cell, NetworkContextController { cell: cell.clone() })
        .for_kind::<NetworkContext>()
        .watches::<NetworkBinding>(&cell, bindings::key_of_binding);

    let addresses = SubnetController::new(cell.clone(), pool, clock);
    engine
        .controller("subnets", &cell, addresses)
        .for_kind::<SubnetClaim>()
        .watches::<NetworkContext>(&cell, addresses::keys_of_context)
        .watches::<Subnet>(&cell, addresses::keys_of_subnet);
}

/// Subnet claims by the context in their spec.
fn by_context() -> Index {
    Index::field("spec.networkContext.name")
}

/// Bindings by the context in their status.
fn by_given_context() -> Index {
    Index::field("status.networkContextRef.name")
}

/// Reconciles the Location of the cell.
struct CellLocationController {
    cell: Plane,
    city: String,
    clock: Clock,
}

impl Reconciler for CellLocationController {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let desired = mk_location(&self.city);
        if *key.name != *desired.name() || !self.cell.serves::<Location>()? {
            return Ok(Action::AwaitChange); // not the Location of this cell
        }
        let existing = self.cell.get::<Location>(key)?;
        if existing.as_ref().is_some_and(|existing| existing.is_deleting()) {
            return Ok(Action::AwaitChange); // its deletion requeues the key
        }
        let written = self.cell.create_or_update(existing.as_ref(), &desired).await?;
        if let Some(location) = written.into_object().or(existing) {
            let mut status = location.status.clone().unwrap_or_default();
            let ready = ready(reasons::CELL_FOUND, "this cell serves the city");
            set_condition(&mut status.conditions, &location.metadata, &ready, &self.clock);
            self.cell.write_status(&location, status).await?;
        }
        Ok(Action::AwaitChange)
    }
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
