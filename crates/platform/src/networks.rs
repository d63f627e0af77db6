//! Networks: gives a cell the networks and addresses that its deployments ask for.
//!
//! Reads   cell: NetworkBinding, NetworkContext, SubnetClaim, Subnet, Location
//! Writes  cell: Location · NetworkContext · NetworkBinding (status) · Subnet · SubnetClaim (status)
//! Order   binding → context, ready at once → binding ready → (the cell asks for a subnet) → subnet → claim ready
//!
//! There is nothing to program on one machine: a network is a name, and its addresses are a block of the city's
//! [`Pool`]. A binding that cannot be fulfilled says `NetworkFailedToCreate` and why: its location is not this cell's,
//! its context belongs to another network, or the pool is used up. It is looked at again when that changes. A context
//! that nobody is bound to any more goes, and with it, by ownership, its claims and subnets.

mod addresses;
mod bindings;
mod pool;

pub use pool::{CITIES, Pool, PoolError};

use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use polis_api::networking::{Location, NetworkBinding, NetworkContext, Subnet, SubnetClaim};
use polis_api::{conditions::READY, names, reasons};
use polis_core::conditions::{self, Verdict};
use polis_core::{Time, owner};
use polis_engine::{Clock, Engine, Index, Key, Outcome, Plane, Reconciler, Unresolved, Watch};

use crate::Error;
use crate::locations::mk_location;
use addresses::Addresses;
use bindings::{Bindings, Contexts};

/// Declares the stand-in for one cell on an engine: the cell's location in `city`, and its networks from `pool`.
pub fn declare(engine: &mut Engine, clock: Clock, cell: Plane, city: &str, pool: Pool) {
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
    let home = Home { cell: cell.clone(), city: city.to_owned(), clock: clock.clone() };
    // The namespace is only there to be seen: a cell without a location would give no event at all.
    engine
        .controller("cell-location", &cell, home)
        .on::<Location>()
        .maps::<Namespace>(&cell, move |_, _| Ok(vec![here.clone()]));

    let bindings = Bindings { cell: cell.clone(), clock: clock.clone() };
    engine
        .controller("network-bindings", &cell, bindings)
        .on::<NetworkBinding>()
        .maps::<Location>(&cell, bindings::keys_of_location)
        .maps::<NetworkContext>(&cell, bindings::keys_of_context)
        .maps::<SubnetClaim>(&cell, bindings::keys_of_claim);

    engine
        .controller("network-contexts", &cell, Contexts { cell: cell.clone() })
        .on::<NetworkContext>()
        .maps::<NetworkBinding>(&cell, bindings::key_of_binding);

    let addresses = Addresses::new(cell.clone(), pool, clock);
    engine
        .controller("subnets", &cell, addresses)
        .on::<SubnetClaim>()
        .maps::<NetworkContext>(&cell, addresses::keys_of_context)
        .maps::<Subnet>(&cell, addresses::keys_of_subnet);
}

/// Subnet claims by the context that they are for.
fn by_context() -> Index {
    Index::field("spec.networkContext.name")
}

/// Bindings by the context that they were given.
fn by_given_context() -> Index {
    Index::field("status.networkContextRef.name")
}

/// Keeps the location of the cell.
struct Home {
    cell: Plane,
    city: String,
    clock: Clock,
}

impl Reconciler for Home {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Outcome, Error> {
        let wanted = mk_location(&self.city);
        if *key.name != *owner::name(&wanted.metadata) || !self.cell.serves::<Location>()? {
            return Ok(Outcome::Settled); // somebody else's
        }
        let standing = self.cell.get::<Location>(key)?;
        if standing.as_ref().is_some_and(|standing| owner::is_deleting(&standing.metadata)) {
            return Ok(Outcome::Settled); // its last event brings the key back
        }
        let written = self.cell.create_or_update(standing.as_ref(), &wanted).await?;
        if let Some(location) = written.into_object().or(standing) {
            let mut said = location.clone();
            let conditions = &mut said.status.get_or_insert_default().conditions;
            say(
                conditions,
                &location.metadata,
                &ready(reasons::CELL_FOUND, "this cell serves the city"),
                &self.clock,
            );
            self.cell.update_status(&location, &said).await?;
        }
        Ok(Outcome::Settled)
    }
}

/// Done.
fn ready(reason: &'static str, message: impl Into<String>) -> Verdict {
    Verdict::yes(READY, reason, message)
}

/// Cannot be done, and why.
fn failed(message: impl Into<String>) -> Verdict {
    Verdict::no(READY, reasons::NETWORK_FAILED_TO_CREATE, message)
}

/// Puts a verdict about an object among its conditions.
fn say(conditions: &mut Vec<Condition>, about: &ObjectMeta, verdict: &Verdict, clock: &Clock) {
    conditions::set(conditions, verdict, about.generation, &Time(clock.now()));
}

/// The keys of some objects.
fn keys<'a>(cell: &Plane, objects: impl IntoIterator<Item = &'a ObjectMeta>) -> Result<Vec<Key>, Unresolved> {
    let key = |meta: &ObjectMeta| {
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        Key::new(cell.name().clone(), namespace, owner::name(meta))
    };
    Ok(objects.into_iter().map(key).collect())
}
