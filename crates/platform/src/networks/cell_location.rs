//! Cell location controller: the Location of a cell's city.
//!
//! Reads   cell: Namespace `default` (triggers the first reconcile), Location
//! Writes  cell: Location, with status

use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::networking::Location;
use polis_api::{ObjectExt, names, reasons};
use polis_engine::{Action, Clock, Engine, Key, Plane, Reconciler, Watch};

use super::{ready, set_condition};
use crate::Error;
use crate::locations::mk_location;

/// The watches of the controller in the cell.
pub(super) fn watches() -> Vec<Watch> {
    vec![Watch::of::<Namespace>(), Watch::of::<Location>()]
}

/// Registers the controller with an engine.
pub(super) fn declare(engine: &mut Engine, cell: &Plane, clock: &Clock, city: &str) {
    let here = Key::cluster(cell.name().clone(), &names::location(city));
    let location = CellLocationController { cell: cell.clone(), city: city.to_owned(), clock: clock.clone() };
    // The namespace triggers the first reconcile: a cell without a Location has no Location event.
    engine.controller("cell-location", cell, location).for_kind::<Location>().watches::<Namespace>(
        cell,
        move |_, namespace| {
            let is_default = namespace.name() == "default";
            Ok(is_default.then(|| here.clone()).into_iter().collect())
        },
    );
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
