//! A fake provider of a cell, with the contract of a real one.
//!
//! It acts only on Instances without gates. It writes `Programmed` and `Running` (or `Available`, as later
//! providers do), the hash of the running template and an address per interface, and never `Ready` or
//! `QuotaGranted`. Each Instance UID is one machine; each start is recorded, so that a test can detect a
//! double start. A test sets the behavior per namespace: immediate, slow, failing or absent. An image with
//! [`BROKEN`] in its name never runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use polis_api::ObjectExt as _;
use polis_api::compute::{
    Instance, InstanceControllerStatus, InstanceNetworkInterfaceStatus, InstanceStatus,
    NetworkInterfaceAssignments,
};
use polis_api::conditions::{PROGRAMMED, RUNNING};
use polis_api::reasons;
use polis_core::conditions::{self, ConditionStatus, DesiredCondition};
use polis_core::{Time, gates, template};
use polis_engine::{Action, Clock, Engine, Error, Key, Plane, Reconciler, Watch};
use tokio::sync::mpsc;

/// An image with this text in its name is unavailable.
pub const BROKEN: &str = "broken";
/// The finalizer of a provider that must stop its machine first.
pub const FINALIZER: &str = "provider.polis.test/machine";

/// How the provider behaves in a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderBehavior {
    /// Time from an Instance without gates to a running machine.
    pub delay: Duration,
    /// What happens to machines.
    pub outcome: MachineOutcome,
    /// The condition of a running machine: `Running` or `Available`.
    pub running_condition: &'static str,
    /// Whether it sets its own finalizer until the machine is stopped.
    pub adds_finalizer: bool,
}

/// What happens to machines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MachineOutcome {
    /// They are running.
    Runs,
    /// They are programmed and not running, for this reason.
    Crashes(&'static str),
    /// They are never programmed, for this reason.
    Fails(&'static str),
    /// The provider does nothing.
    Absent,
}

impl Default for ProviderBehavior {
    fn default() -> Self {
        ProviderBehavior {
            delay: Duration::ZERO,
            outcome: MachineOutcome::Runs,
            running_condition: RUNNING,
            adds_finalizer: false,
        }
    }
}

/// The start of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineStart {
    /// Namespace of the Instance on the cell.
    pub namespace: String,
    /// Name of the Instance.
    pub name: String,
    /// UID of the Instance, which identifies the machine.
    pub uid: String,
    /// The hash of the template.
    pub hash: String,
}

/// The fake provider of one cell. Cheap to clone.
#[derive(Clone)]
pub struct FakeProvider {
    cell: Plane,
    clock: Clock,
    default: ProviderBehavior,
    state: Arc<Mutex<ProviderState>>,
    requeued: mpsc::UnboundedSender<Key>,
}

#[derive(Default)]
struct ProviderState {
    behaviors: BTreeMap<String, ProviderBehavior>,
    starts: Vec<MachineStart>,
}

impl FakeProvider {
    /// Declares the provider of a cell on an engine, with a behavior for all namespaces.
    pub fn declare(engine: &mut Engine, clock: Clock, cell: Plane, default: ProviderBehavior) -> Self {
        let cell = engine.plane("provider", cell, [Watch::of::<Instance>()]);
        let (requeued, keys) = mpsc::unbounded_channel();
        let provider = Self { cell: cell.clone(), clock, default, state: Arc::default(), requeued };
        let controller = engine.controller("provider", &cell, provider.clone());
        controller.for_kind::<Instance>().external_source(keys);
        provider
    }

    /// Sets the behavior in a namespace.
    pub fn set_behavior(&self, namespace: &str, behavior: ProviderBehavior) {
        self.state.lock().behaviors.insert(namespace.to_owned(), behavior);
        for instance in self.cell.list_within::<Instance>(namespace).unwrap_or_default() {
            // The engine has stopped if it does not receive the key.
            let _ = self.requeued.send(Key::of(&self.cell, &instance));
        }
    }

    /// The starts of machines in a namespace, in order.
    pub fn starts_in(&self, namespace: &str) -> Vec<MachineStart> {
        let state = self.state.lock();
        state.starts.iter().filter(|start| start.namespace == namespace).cloned().collect()
    }

    fn behavior(&self, namespace: &str) -> ProviderBehavior {
        self.state.lock().behaviors.get(namespace).unwrap_or(&self.default).clone()
    }
}

impl Reconciler for FakeProvider {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let behavior = self.behavior(key.namespace());
        let Some(seen) = self.cell.get::<Instance>(key)? else { return Ok(Action::AwaitChange) };
        let action = plan(&seen, &behavior, &Time(self.clock.now()));
        if matches!(action, ProviderAction::RemoveFinalizer | ProviderAction::UpdateStatus) {
            tokio::time::sleep(behavior.delay).await;
        }
        match action {
            ProviderAction::None => {}
            ProviderAction::AddFinalizer => _ = self.cell.add_finalizer(&seen, FINALIZER).await?,
            ProviderAction::RemoveFinalizer => _ = self.cell.remove_finalizer(&seen, FINALIZER).await?,
            ProviderAction::UpdateStatus => {
                let current = self.cell.get::<Instance>(key)?;
                let current = current.filter(|current| current.uid() == seen.uid() && !current.is_deleting());
                let Some(current) = current else { return Ok(Action::AwaitChange) };
                let status = reported(&current, &behavior, &Time(self.clock.now()));
                let starts =
                    is_running(Some(&status), &behavior) && !is_running(current.status.as_ref(), &behavior);
                self.cell.write_status(&current, status).await?;
                if starts {
                    self.state.lock().starts.push(MachineStart {
                        namespace: key.namespace().to_owned(),
                        name: key.name.to_string(),
                        uid: current.uid().to_owned(),
                        hash: template::instance_hash(&current).unwrap_or_default().to_owned(),
                    });
                }
            }
        }
        Ok(Action::AwaitChange)
    }
}

/// The provider's action for an Instance.
#[derive(Debug, PartialEq, Eq)]
enum ProviderAction {
    None,
    AddFinalizer,
    UpdateStatus,
    RemoveFinalizer,
}

fn plan(instance: &Instance, behavior: &ProviderBehavior, now: &Time) -> ProviderAction {
    let has_finalizer = instance.has_finalizer(FINALIZER);
    if instance.is_deleting() {
        return if has_finalizer { ProviderAction::RemoveFinalizer } else { ProviderAction::None };
    }
    let gated = instance.spec.controller.is_none() || !gates::of(instance).is_empty();
    if gated || behavior.outcome == MachineOutcome::Absent {
        ProviderAction::None
    } else if behavior.adds_finalizer && !has_finalizer {
        ProviderAction::AddFinalizer
    } else if instance.status.as_ref() == Some(&reported(instance, behavior, now)) {
        ProviderAction::None
    } else {
        ProviderAction::UpdateStatus
    }
}

/// The status as the provider writes it. Conditions of other writers stay; a condition with the same status
/// and reason stays as it is.
fn reported(instance: &Instance, behavior: &ProviderBehavior, now: &Time) -> InstanceStatus {
    let containers = instance.spec.runtime.sandbox.iter().flat_map(|sandbox| &sandbox.containers);
    let broken = containers.take(1).any(|container| container.image.contains(BROKEN));
    let condition = |kind, status, reason: &'static str| DesiredCondition {
        kind,
        status,
        reason: reason.into(),
        message: "set by the fake provider".to_owned(),
    };
    let (yes, no, runs) = (ConditionStatus::True, ConditionStatus::False, behavior.running_condition);
    let (programmed, running) = match behavior.outcome {
        _ if broken => ((no, reasons::IMAGE_UNAVAILABLE), (no, reasons::STOPPED)),
        MachineOutcome::Fails(why) => ((no, why), (no, reasons::STOPPED)),
        MachineOutcome::Crashes(why) => ((yes, reasons::PROGRAMMED), (no, why)),
        MachineOutcome::Runs | MachineOutcome::Absent => ((yes, reasons::PROGRAMMED), (yes, runs)),
    };
    let mut status = instance.status.clone().unwrap_or_default();
    for (kind, (is, reason)) in [(PROGRAMMED, programmed), (runs, running)] {
        let found = conditions::find(&status.conditions, kind);
        if found.is_none_or(|found| found.status != is.as_str() || found.reason != reason) {
            let desired = condition(kind, is, reason);
            conditions::set(&mut status.conditions, &desired, instance.metadata.generation, now);
        }
    }
    if programmed.0 == ConditionStatus::True {
        let hash = template::instance_hash(instance).unwrap_or_default().to_owned();
        status.controller = Some(InstanceControllerStatus { observed_template_hash: hash });
        let ordinal = instance.name().rsplit('-').next().and_then(|n| n.parse::<u8>().ok()).unwrap_or(0);
        let address = |at: usize| InstanceNetworkInterfaceStatus {
            assignments: Some(NetworkInterfaceAssignments {
                network_ip: Some(format!("10.0.{at}.{ordinal}")),
                external_ip: None,
            }),
        };
        status.network_interfaces = (0..instance.spec.network_interfaces.len()).map(address).collect();
    }
    status
}

fn is_running(status: Option<&InstanceStatus>, behavior: &ProviderBehavior) -> bool {
    status.is_some_and(|status| conditions::is_true(&status.conditions, behavior.running_condition))
}

#[cfg(test)]
mod tests {
    use polis_api::compute::{InstanceController, SchedulingGate};
    use polis_api::k8s_openapi::jiff::Timestamp;

    use super::*;
    use crate::builders::{condition, mk_condition, mk_template};

    const NOW: Time = Time(Timestamp::UNIX_EPOCH);

    fn mk_instance(gates: &[&str], image: &str) -> Instance {
        let mut instance = Instance::new("a-2", mk_template(image).spec);
        let gates = gates.iter().map(|&name| SchedulingGate { name: name.into() }).collect();
        instance.spec.controller =
            Some(InstanceController { template_hash: "h1".into(), scheduling_gates: gates });
        instance
    }

    fn plan(instance: &Instance, behavior: &ProviderBehavior) -> ProviderAction {
        super::plan(instance, behavior, &NOW)
    }

    #[test]
    fn an_instance_with_a_gate_does_not_start() {
        assert_eq!(plan(&mk_instance(&["Quota"], "x"), &ProviderBehavior::default()), ProviderAction::None);
        let mut unknown = mk_instance(&[], "x");
        unknown.spec.controller = None;
        let action = plan(&unknown, &ProviderBehavior::default());
        assert_eq!(action, ProviderAction::None, "the gates are not decided yet");
    }

    #[test]
    fn a_running_machine_is_reported_once_with_hash_and_addresses() {
        let mut instance = mk_instance(&[], "x");
        assert_eq!(plan(&instance, &ProviderBehavior::default()), ProviderAction::UpdateStatus);
        let status = reported(&instance, &ProviderBehavior::default(), &NOW);
        let conditions: Vec<_> =
            status.conditions.iter().map(|c| (&*c.type_, &*c.status, &*c.reason)).collect();
        assert_eq!(conditions, [("Programmed", "True", "Programmed"), ("Running", "True", "Running")]);
        assert_eq!(status.controller.as_ref().unwrap().observed_template_hash, "h1");
        let address = status.network_interfaces[0].assignments.as_ref().unwrap().network_ip.clone();
        assert_eq!(address.as_deref(), Some("10.0.0.2"));
        instance.status = Some(status);
        assert_eq!(plan(&instance, &ProviderBehavior::default()), ProviderAction::None);
    }

    #[test]
    fn conditions_of_other_writers_stay() {
        let mut instance = mk_instance(&[], "x");
        let ready = mk_condition("Ready", "False", "SchedulingGatesPresent", &NOW);
        instance.status.get_or_insert_default().conditions = vec![ready.clone()];
        assert_eq!(reported(&instance, &ProviderBehavior::default(), &NOW).conditions[0], ready);
    }

    #[test]
    fn a_broken_image_is_not_programmed_and_reports_no_hash() {
        let broken = mk_instance(&[], "registry/broken:1");
        let status = reported(&broken, &ProviderBehavior::default(), &NOW);
        assert_eq!(condition(&status.conditions, PROGRAMMED), Some(("False", "ImageUnavailable")));
        assert_eq!(status.controller, None);
    }

    #[test]
    fn a_finalizer_is_added_first_and_removed_last() {
        let behavior = ProviderBehavior { adds_finalizer: true, ..ProviderBehavior::default() };
        let mut instance = mk_instance(&[], "x");
        assert_eq!(plan(&instance, &behavior), ProviderAction::AddFinalizer);
        instance.metadata.finalizers = Some(vec![FINALIZER.into()]);
        assert_eq!(plan(&instance, &behavior), ProviderAction::UpdateStatus);
        instance.metadata.deletion_timestamp = Some(NOW);
        assert_eq!(plan(&instance, &behavior), ProviderAction::RemoveFinalizer);
    }
}
