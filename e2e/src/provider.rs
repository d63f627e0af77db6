//! Provider: plays the runtime of a cell, by the contract that a real one keeps.
//!
//! It acts only on Instances without gates, writes `Programmed` and `Running` (or `Available`, as later providers do),
//! the template hash that it has put to work and an address per interface, and never `Ready` or `QuotaGranted`. One
//! machine stands for one Instance uid; each start is written down, so that a scenario can tell whether anything was
//! started twice. Per namespace a scenario chooses a manner: prompt, slow, failing, idle. An image whose name holds
//! [`BROKEN`] never runs anywhere.

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

use crate::eye::Eye;

/// An image with this in its name cannot be pulled.
pub const BROKEN: &str = "broken";
/// The finalizer of a provider that must take its machine down first.
pub const FINALIZER: &str = "provider.polis.test/machine";

/// How the provider behaves in a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manner {
    /// Time from an Instance without gates to a running machine.
    pub takes: Duration,
    /// What becomes of machines.
    pub outcome: Outcome,
    /// The condition that says that a machine runs: `Running`, or `Available`.
    pub word: &'static str,
    /// Whether it holds Instances by a finalizer of its own until the machine is down.
    pub holds: bool,
}

/// What becomes of machines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// They run.
    Runs,
    /// They are programmed and do not run, for this reason.
    Crashes(&'static str),
    /// They are never programmed, for this reason.
    Fails(&'static str),
    /// Nothing: the provider is away.
    Nothing,
}

impl Default for Manner {
    fn default() -> Self {
        Manner { takes: Duration::ZERO, outcome: Outcome::Runs, word: conditions::RUNNING, holds: false }
    }
}

/// One start of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// Namespace of the Instance on the cell.
    pub namespace: String,
    /// Name of the Instance.
    pub name: String,
    /// Uid of the Instance: of which machine this is the start.
    pub uid: String,
    /// The template it was started with.
    pub hash: String,
}

#[derive(Default)]
struct Hall {
    manners: BTreeMap<String, Manner>,
    starts: Vec<Start>,
    busy: BTreeSet<String>,
    /// Instances that nothing is to be done about, by uid, at this version: a cell of hundreds of them changes all the
    /// time, and to read each of them at every change takes the time of the processes under test.
    settled: BTreeMap<String, String>,
}

/// The provider of one cell. It leaves when it is dropped.
pub struct Provider {
    hall: Arc<Mutex<Hall>>,
    nudge: Arc<tokio::sync::Notify>,
    _work: JoinSet<()>,
}

impl Provider {
    /// Puts a provider to work in the cell that the eye looks at.
    pub fn at_work(eye: Arc<Eye>) -> Provider {
        let hall = Arc::new(Mutex::new(Hall::default()));
        let nudge = Arc::new(tokio::sync::Notify::new());
        let mut work = JoinSet::new();
        work.spawn(work_on(eye, hall.clone(), nudge.clone()));
        Provider { hall, nudge, _work: work }
    }

    /// Sets how it behaves in a namespace from now on.
    pub fn behave(&self, namespace: &str, manner: Manner) {
        let mut hall = self.hall();
        hall.manners.insert(namespace.to_owned(), manner);
        hall.settled.clear();
        drop(hall);
        self.nudge.notify_one();
    }

    /// Every start of a machine in a namespace, in order.
    pub fn starts_in(&self, namespace: &str) -> Vec<Start> {
        self.hall().starts.iter().filter(|start| start.namespace == namespace).cloned().collect()
    }

    /// Forgets its machines, as a provider does that was killed: it takes up again what the Instances say.
    pub fn crash(&self) {
        let mut hall = self.hall();
        hall.busy.clear();
        hall.settled.clear();
        drop(hall);
        self.nudge.notify_one();
    }

    fn hall(&self) -> MutexGuard<'_, Hall> {
        self.hall.lock().expect("nobody panics in the hall")
    }
}

/// What the provider does about an Instance next.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Leave,
    Hold,
    Report,
    TakeDown,
}

fn step(instance: &Instance, manner: &Manner) -> Step {
    let held = instance.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
    if instance.metadata.deletion_timestamp.is_some() {
        return if held { Step::TakeDown } else { Step::Leave };
    }
    let gated =
        instance.spec.controller.as_ref().is_none_or(|controller| !controller.scheduling_gates.is_empty());
    if gated || manner.outcome == Outcome::Nothing {
        return Step::Leave;
    }
    if manner.holds && !held {
        return Step::Hold;
    }
    let current = instance.status.clone().unwrap_or_default();
    if reported(instance, manner, &current) == current { Step::Leave } else { Step::Report }
}

/// The status after the provider has said its part. What others wrote stays; a condition that says the same already
/// keeps its time.
fn reported(instance: &Instance, manner: &Manner, current: &InstanceStatus) -> InstanceStatus {
    let image = instance
        .spec
        .runtime
        .sandbox
        .iter()
        .flat_map(|s| &s.containers)
        .map(|c| &*c.image)
        .next()
        .unwrap_or("");
    let (programmed, runs) = match &manner.outcome {
        _ if image.contains(BROKEN) => (("False", reasons::IMAGE_UNAVAILABLE), ("False", reasons::STOPPED)),
        Outcome::Fails(why) => (("False", *why), ("False", reasons::STOPPED)),
        Outcome::Crashes(why) => (("True", reasons::PROGRAMMED), ("False", *why)),
        Outcome::Runs | Outcome::Nothing => (("True", reasons::PROGRAMMED), ("True", manner.word)),
    };
    let mut status = current.clone();
    say(&mut status.conditions, conditions::PROGRAMMED, programmed, instance.metadata.generation);
    say(&mut status.conditions, manner.word, runs, instance.metadata.generation);
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

fn say(conditions: &mut Vec<Condition>, kind: &str, (status, reason): (&str, &str), generation: Option<i64>) {
    let before = conditions.iter_mut().find(|condition| condition.type_ == kind);
    if before.as_ref().is_some_and(|c| c.status == status && c.reason == reason) {
        return;
    }
    let condition = Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: "said by the provider of the suite".to_owned(),
        observed_generation: generation,
        last_transition_time: Time(jiff::Timestamp::now()),
    };
    match before {
        Some(before) => *before = condition,
        None => conditions.push(condition),
    }
}

async fn work_on(eye: Arc<Eye>, hall: Arc<Mutex<Hall>>, nudge: Arc<tokio::sync::Notify>) {
    let mut changes = eye.changes();
    let mut at_work = JoinSet::new();
    loop {
        changes.mark_unchanged();
        while at_work.try_join_next().is_some() {}
        for (key, object) in eye.all("Instance") {
            let meta = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
            let (uid, version) = (meta("uid"), meta("resourceVersion"));
            let manner = {
                let hall = hall.lock().expect("nobody panics in the hall");
                if hall.busy.contains(&uid) || hall.settled.get(&uid) == Some(&version) {
                    continue;
                }
                hall.manners.get(&key.namespace).cloned().unwrap_or_default()
            };
            let Ok(instance) = serde_json::from_value::<Instance>((*object).clone()) else { continue };
            let step = step(&instance, &manner);
            let mut hall_now = hall.lock().expect("nobody panics in the hall");
            if step == Step::Leave {
                // Unless it was told to behave otherwise while this was decided.
                if hall_now.manners.get(&key.namespace).cloned().unwrap_or_default() == manner {
                    hall_now.settled.insert(uid, version);
                }
                continue;
            }
            hall_now.busy.insert(uid.clone());
            drop(hall_now);
            let (eye, hall, nudge) = (eye.clone(), hall.clone(), nudge.clone());
            at_work.spawn(async move {
                let done = do_step(&eye, &hall, step, &instance, &manner).await;
                if done.is_err() {
                    // Somebody else wrote, or the cell is away: look again, not at once.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                hall.lock().expect("nobody panics in the hall").busy.remove(&uid);
                nudge.notify_one();
            });
        }
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = nudge.notified() => {}
        }
    }
}

async fn do_step(
    eye: &Eye,
    hall: &Mutex<Hall>,
    step: Step,
    instance: &Instance,
    manner: &Manner,
) -> Result<(), polis_api::kube::Error> {
    let (namespace, name) = (instance.namespace().unwrap_or_default(), instance.name_any());
    let api: Api<Instance> = Api::namespaced(eye.client().clone(), &namespace);
    match step {
        Step::Leave => {}
        Step::Hold => {
            let mut finalizers = instance.finalizers().to_vec();
            finalizers.push(FINALIZER.to_owned());
            let patch = json!({"metadata": {"finalizers": finalizers, "resourceVersion": instance.resource_version()}});
            api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        }
        Step::TakeDown => {
            tokio::time::sleep(manner.takes).await;
            let finalizers: Vec<_> = instance.finalizers().iter().filter(|f| *f != FINALIZER).collect();
            let patch = json!({"metadata": {"finalizers": finalizers, "resourceVersion": instance.resource_version()}});
            api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        }
        Step::Report => {
            tokio::time::sleep(manner.takes).await;
            let mut live = api.get(&name).await?;
            if live.uid() != instance.uid() || live.metadata.deletion_timestamp.is_some() {
                return Ok(());
            }
            let before = live.status.clone().unwrap_or_default();
            let after = reported(&live, manner, &before);
            if after == before {
                return Ok(());
            }
            let starts =
                conditions_say_running(&after, manner.word) && !conditions_say_running(&before, manner.word);
            live.status = Some(after);
            api.replace_status(&name, &PostParams::default(), &live).await?;
            let uid = live.uid().unwrap_or_default();
            let mut hall = hall.lock().expect("nobody panics in the hall");
            if starts {
                let hash =
                    live.spec.controller.map(|controller| controller.template_hash).unwrap_or_default();
                hall.starts.push(Start { namespace, name, uid, hash });
            }
        }
    }
    Ok(())
}

fn conditions_say_running(status: &InstanceStatus, word: &str) -> bool {
    status.conditions.iter().any(|condition| condition.type_ == word && condition.status == "True")
}

#[cfg(test)]
mod tests {
    use polis_api::compute::{InstanceController, SchedulingGate};

    use super::*;
    use crate::draft;

    fn mk_instance(gates: &[&str], image: &str) -> Instance {
        let mut instance = Instance::new("a-2", draft::template(image).spec);
        let gates = gates.iter().map(|&name| SchedulingGate { name: name.into() }).collect();
        instance.spec.controller =
            Some(InstanceController { template_hash: "h1".into(), scheduling_gates: gates });
        instance
    }

    #[test]
    fn an_instance_with_a_gate_is_left_alone() {
        assert_eq!(step(&mk_instance(&["Quota"], "x"), &Manner::default()), Step::Leave);
        let mut unknown = mk_instance(&[], "x");
        unknown.spec.controller = None;
        assert_eq!(
            step(&unknown, &Manner::default()),
            Step::Leave,
            "nobody has said that there are no gates"
        );
    }

    #[test]
    fn a_running_machine_is_reported_once_with_hash_and_addresses() {
        let mut instance = mk_instance(&[], "x");
        assert_eq!(step(&instance, &Manner::default()), Step::Report);
        let status = reported(&instance, &Manner::default(), &InstanceStatus::default());
        let said: Vec<_> = status.conditions.iter().map(|c| (&*c.type_, &*c.status, &*c.reason)).collect();
        assert_eq!(said, [("Programmed", "True", "Programmed"), ("Running", "True", "Running")]);
        assert_eq!(status.controller.as_ref().unwrap().observed_template_hash, "h1");
        let address = status.network_interfaces[0].assignments.as_ref().unwrap().network_ip.clone();
        assert_eq!(address.as_deref(), Some("10.0.0.2"));
        instance.status = Some(status);
        assert_eq!(step(&instance, &Manner::default()), Step::Leave);
    }

    #[test]
    fn what_others_said_stays() {
        let mut status = InstanceStatus::default();
        say(&mut status.conditions, "Ready", ("False", "SchedulingGatesPresent"), None);
        let after = reported(&mk_instance(&[], "x"), &Manner::default(), &status);
        assert_eq!(after.conditions[0], status.conditions[0]);
    }

    #[test]
    fn a_broken_image_is_not_programmed_and_claims_no_hash() {
        let status =
            reported(&mk_instance(&[], "registry/broken:1"), &Manner::default(), &InstanceStatus::default());
        assert_eq!(
            (&*status.conditions[0].status, &*status.conditions[0].reason),
            ("False", "ImageUnavailable")
        );
        assert_eq!(status.controller, None);
    }

    #[test]
    fn a_provider_with_a_finalizer_holds_first_and_takes_down_last() {
        let manner = Manner { holds: true, ..Manner::default() };
        let mut instance = mk_instance(&[], "x");
        assert_eq!(step(&instance, &manner), Step::Hold);
        instance.metadata.finalizers = Some(vec![FINALIZER.into()]);
        assert_eq!(step(&instance, &manner), Step::Report);
        instance.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::now()));
        assert_eq!(step(&instance, &manner), Step::TakeDown);
    }
}
