//! A fake provider of a cell, with the contract of a real one.
//!
//! It acts only on Instances without gates. It writes `Programmed` and `Running` (or `Available`, as later
//! providers do), the hash of the running template and an address per interface, and never `Ready` or
//! `QuotaGranted`. Each Instance uid is one machine; each start is recorded, so that a scenario can detect a
//! double start. A scenario sets the behavior per namespace: immediate, slow, failing or absent. An image
//! with [`BROKEN`] in its name never runs.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use polis_api::{
    compute::{
        Instance, InstanceControllerStatus, InstanceNetworkInterfaceStatus, InstanceStatus,
        NetworkInterfaceAssignments,
    },
    conditions,
    k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time},
    kube::{
        Api, ResourceExt as _,
        api::{Patch, PatchParams, PostParams},
    },
    reasons,
};
use serde_json::json;
use tokio::task::JoinSet;

use crate::recorder::PlaneRecorder;

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
            running_condition: conditions::RUNNING,
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

#[derive(Default)]
struct ProviderState {
    behaviors: BTreeMap<String, ProviderBehavior>,
    starts: Vec<MachineStart>,
    in_progress: BTreeSet<String>,
    /// Resource versions, by uid, of Instances without a pending action. Parsing hundreds of Instances on
    /// every change would take CPU time from the processes under test.
    up_to_date: BTreeMap<String, String>,
}

/// The fake provider of one cell. It stops when it is dropped.
pub struct FakeProvider {
    state: Arc<Mutex<ProviderState>>,
    wakeup: Arc<tokio::sync::Notify>,
    _task: JoinSet<()>,
}

impl FakeProvider {
    /// Starts a provider in the recorder's cell.
    pub fn start(recorder: Arc<PlaneRecorder>) -> FakeProvider {
        let state = Arc::new(Mutex::new(ProviderState::default()));
        let wakeup = Arc::new(tokio::sync::Notify::new());
        let mut task = JoinSet::new();
        task.spawn(run(recorder, state.clone(), wakeup.clone()));
        FakeProvider { state, wakeup, _task: task }
    }

    /// Sets the behavior in a namespace.
    pub fn set_behavior(&self, namespace: &str, behavior: ProviderBehavior) {
        let mut state = self.state();
        state.behaviors.insert(namespace.to_owned(), behavior);
        state.up_to_date.clear();
        drop(state);
        self.wakeup.notify_one();
    }

    /// The starts of machines in a namespace, in order.
    pub fn starts_in(&self, namespace: &str) -> Vec<MachineStart> {
        self.state().starts.iter().filter(|start| start.namespace == namespace).cloned().collect()
    }

    fn state(&self) -> MutexGuard<'_, ProviderState> {
        self.state.lock().expect("the lock is not poisoned")
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

fn plan(instance: &Instance, behavior: &ProviderBehavior) -> ProviderAction {
    let has_finalizer = instance.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
    if instance.metadata.deletion_timestamp.is_some() {
        return if has_finalizer { ProviderAction::RemoveFinalizer } else { ProviderAction::None };
    }
    let gated =
        instance.spec.controller.as_ref().is_none_or(|controller| !controller.scheduling_gates.is_empty());
    if gated || behavior.outcome == MachineOutcome::Absent {
        return ProviderAction::None;
    }
    if behavior.adds_finalizer && !has_finalizer {
        return ProviderAction::AddFinalizer;
    }
    let current = instance.status.clone().unwrap_or_default();
    if reported(instance, behavior, &current) == current {
        ProviderAction::None
    } else {
        ProviderAction::UpdateStatus
    }
}

/// The status as the provider writes it. Conditions of other writers stay; an unchanged condition keeps its
/// transition time.
fn reported(instance: &Instance, behavior: &ProviderBehavior, current: &InstanceStatus) -> InstanceStatus {
    let image = instance
        .spec
        .runtime
        .sandbox
        .iter()
        .flat_map(|s| &s.containers)
        .map(|c| &*c.image)
        .next()
        .unwrap_or("");
    let (programmed, runs) = match &behavior.outcome {
        _ if image.contains(BROKEN) => (("False", reasons::IMAGE_UNAVAILABLE), ("False", reasons::STOPPED)),
        MachineOutcome::Fails(why) => (("False", *why), ("False", reasons::STOPPED)),
        MachineOutcome::Crashes(why) => (("True", reasons::PROGRAMMED), ("False", *why)),
        MachineOutcome::Runs | MachineOutcome::Absent => {
            (("True", reasons::PROGRAMMED), ("True", behavior.running_condition))
        }
    };
    let mut status = current.clone();
    set_condition(&mut status.conditions, conditions::PROGRAMMED, programmed, instance.metadata.generation);
    set_condition(&mut status.conditions, behavior.running_condition, runs, instance.metadata.generation);
    if programmed.0 == "True" {
        let hash = instance.spec.controller.as_ref().map(|c| c.template_hash.clone()).unwrap_or_default();
        status.controller = Some(InstanceControllerStatus { observed_template_hash: hash });
        let ordinal = instance.name_any().rsplit('-').next().and_then(|n| n.parse::<u8>().ok()).unwrap_or(0);
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

fn set_condition(
    conditions: &mut Vec<Condition>,
    kind: &str,
    (status, reason): (&str, &str),
    generation: Option<i64>,
) {
    let before = conditions.iter_mut().find(|condition| condition.type_ == kind);
    if before.as_ref().is_some_and(|c| c.status == status && c.reason == reason) {
        return;
    }
    let condition = Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: "set by the fake provider".to_owned(),
        observed_generation: generation,
        last_transition_time: Time(jiff::Timestamp::now()),
    };
    match before {
        Some(before) => *before = condition,
        None => conditions.push(condition),
    }
}

async fn run(
    recorder: Arc<PlaneRecorder>,
    state: Arc<Mutex<ProviderState>>,
    wakeup: Arc<tokio::sync::Notify>,
) {
    let mut changes = recorder.changes();
    let mut tasks = JoinSet::new();
    loop {
        changes.mark_unchanged();
        while tasks.try_join_next().is_some() {}
        for (key, object) in recorder.all("Instance") {
            let meta = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
            let (uid, version) = (meta("uid"), meta("resourceVersion"));
            let behavior = {
                let state = state.lock().expect("the lock is not poisoned");
                if state.in_progress.contains(&uid) || state.up_to_date.get(&uid) == Some(&version) {
                    continue;
                }
                state.behaviors.get(&key.namespace).cloned().unwrap_or_default()
            };
            let Ok(instance) = serde_json::from_value::<Instance>((*object).clone()) else { continue };
            let action = plan(&instance, &behavior);
            let mut state_now = state.lock().expect("the lock is not poisoned");
            if action == ProviderAction::None {
                // Unless the behavior has changed meanwhile.
                if state_now.behaviors.get(&key.namespace).cloned().unwrap_or_default() == behavior {
                    state_now.up_to_date.insert(uid, version);
                }
                continue;
            }
            state_now.in_progress.insert(uid.clone());
            drop(state_now);
            let (recorder, state, wakeup) = (recorder.clone(), state.clone(), wakeup.clone());
            tasks.spawn(async move {
                let result = execute(&recorder, &state, action, &instance, &behavior).await;
                if result.is_err() {
                    // A conflict, or the cell does not respond: retry after a pause.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                state.lock().expect("the lock is not poisoned").in_progress.remove(&uid);
                wakeup.notify_one();
            });
        }
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = wakeup.notified() => {}
        }
    }
}

async fn execute(
    recorder: &PlaneRecorder,
    state: &Mutex<ProviderState>,
    action: ProviderAction,
    instance: &Instance,
    behavior: &ProviderBehavior,
) -> Result<(), polis_api::kube::Error> {
    let (namespace, name) = (instance.namespace().unwrap_or_default(), instance.name_any());
    let api: Api<Instance> = Api::namespaced(recorder.client().clone(), &namespace);
    match action {
        ProviderAction::None => {}
        ProviderAction::AddFinalizer => {
            let mut finalizers = instance.finalizers().to_vec();
            finalizers.push(FINALIZER.to_owned());
            let patch = json!({"metadata": {"finalizers": finalizers, "resourceVersion": instance.resource_version()}});
            api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        }
        ProviderAction::RemoveFinalizer => {
            tokio::time::sleep(behavior.delay).await;
            let finalizers: Vec<_> = instance.finalizers().iter().filter(|f| *f != FINALIZER).collect();
            let patch = json!({"metadata": {"finalizers": finalizers, "resourceVersion": instance.resource_version()}});
            api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        }
        ProviderAction::UpdateStatus => {
            tokio::time::sleep(behavior.delay).await;
            let mut current = api.get(&name).await?;
            if current.uid() != instance.uid() || current.metadata.deletion_timestamp.is_some() {
                return Ok(());
            }
            let before = current.status.clone().unwrap_or_default();
            let after = reported(&current, behavior, &before);
            if after == before {
                return Ok(());
            }
            let starts = is_running(&after, behavior.running_condition)
                && !is_running(&before, behavior.running_condition);
            current.status = Some(after);
            api.replace_status(&name, &PostParams::default(), &current).await?;
            let uid = current.uid().unwrap_or_default();
            let mut state = state.lock().expect("the lock is not poisoned");
            if starts {
                let hash =
                    current.spec.controller.map(|controller| controller.template_hash).unwrap_or_default();
                state.starts.push(MachineStart { namespace, name, uid, hash });
            }
        }
    }
    Ok(())
}

fn is_running(status: &InstanceStatus, running_condition: &str) -> bool {
    status
        .conditions
        .iter()
        .any(|condition| condition.type_ == running_condition && condition.status == "True")
}

#[cfg(test)]
mod tests {
    use polis_api::compute::{InstanceController, SchedulingGate};

    use super::*;
    use crate::builders;

    fn mk_instance(gates: &[&str], image: &str) -> Instance {
        let mut instance = Instance::new("a-2", builders::mk_template(image).spec);
        let gates = gates.iter().map(|&name| SchedulingGate { name: name.into() }).collect();
        instance.spec.controller =
            Some(InstanceController { template_hash: "h1".into(), scheduling_gates: gates });
        instance
    }

    #[test]
    fn an_instance_with_a_gate_does_not_start() {
        assert_eq!(plan(&mk_instance(&["Quota"], "x"), &ProviderBehavior::default()), ProviderAction::None);
        let mut unknown = mk_instance(&[], "x");
        unknown.spec.controller = None;
        assert_eq!(
            plan(&unknown, &ProviderBehavior::default()),
            ProviderAction::None,
            "the gates are not decided yet"
        );
    }

    #[test]
    fn a_running_machine_is_reported_once_with_hash_and_addresses() {
        let mut instance = mk_instance(&[], "x");
        assert_eq!(plan(&instance, &ProviderBehavior::default()), ProviderAction::UpdateStatus);
        let status = reported(&instance, &ProviderBehavior::default(), &InstanceStatus::default());
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
        let mut status = InstanceStatus::default();
        set_condition(&mut status.conditions, "Ready", ("False", "SchedulingGatesPresent"), None);
        let after = reported(&mk_instance(&[], "x"), &ProviderBehavior::default(), &status);
        assert_eq!(after.conditions[0], status.conditions[0]);
    }

    #[test]
    fn a_broken_image_is_not_programmed_and_reports_no_hash() {
        let status = reported(
            &mk_instance(&[], "registry/broken:1"),
            &ProviderBehavior::default(),
            &InstanceStatus::default(),
        );
        assert_eq!(
            (&*status.conditions[0].status, &*status.conditions[0].reason),
            ("False", "ImageUnavailable")
        );
        assert_eq!(status.controller, None);
    }

    #[test]
    fn a_finalizer_is_added_first_and_removed_last() {
        let behavior = ProviderBehavior { adds_finalizer: true, ..ProviderBehavior::default() };
        let mut instance = mk_instance(&[], "x");
        assert_eq!(plan(&instance, &behavior), ProviderAction::AddFinalizer);
        instance.metadata.finalizers = Some(vec![FINALIZER.into()]);
        assert_eq!(plan(&instance, &behavior), ProviderAction::UpdateStatus);
        instance.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::now()));
        assert_eq!(plan(&instance, &behavior), ProviderAction::RemoveFinalizer);
    }
}
