//! A fake provider: reports every instance of a cell without gates as running.

use polis_api::ObjectExt as _;
use polis_api::compute::{Instance, InstanceControllerStatus};
use polis_api::conditions::PROGRAMMED;
use polis_core::conditions::{DesiredCondition, set};
use polis_core::{Time, gates, template};
use polis_engine::{Action, Clock, Engine, Error, Key, Plane, Reconciler, Watch};

/// Declares the provider of a cell. It sets `Programmed` and the given condition, usually `Running`.
pub fn declare_provider(engine: &mut Engine, clock: Clock, cell: Plane, running_condition: &'static str) {
    let cell = engine.plane("cell", cell, [Watch::of::<Instance>()]);
    let provider = FakeRuntime { cell: cell.clone(), clock, running_condition };
    engine.controller("provider", &cell, provider).for_kind::<Instance>();
}

struct FakeRuntime {
    cell: Plane,
    clock: Clock,
    running_condition: &'static str,
}

impl Reconciler for FakeRuntime {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(instance) = self.cell.get::<Instance>(key)? else { return Ok(Action::AwaitChange) };
        if !gates::of(&instance).is_empty() || instance.is_deleting() {
            return Ok(Action::AwaitChange);
        }
        let mut running = instance.clone();
        let hash = template::instance_hash(&instance).unwrap_or_default().to_owned();
        let status = running.status.get_or_insert_default();
        status.controller = Some(InstanceControllerStatus { observed_template_hash: hash });
        for (kind, reason) in [(PROGRAMMED, PROGRAMMED), (self.running_condition, self.running_condition)] {
            let condition = DesiredCondition::new_true(kind, reason, "");
            set(&mut status.conditions, &condition, instance.metadata.generation, &Time(self.clock.now()));
        }
        self.cell.update_status(&instance, &running).await?;
        Ok(Action::AwaitChange)
    }
}
