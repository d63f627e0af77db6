//! The status of an Instance from that of its Pod.

use std::time::Duration;

use polis_api::ObjectExt;
use polis_api::compute::{
    Instance, InstanceControllerStatus, InstanceNetworkInterfaceStatus, InstanceStatus,
    NetworkInterfaceAssignments,
};
use polis_api::conditions::{CONTAINERS_READY, PROGRAMMED, RUNNING};
use polis_api::k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodStatus,
};
use polis_api::reasons;

use crate::conditions::{self, DesiredCondition};
use crate::{Time, template};

/// After a failure, a container counts as running only when it has run for this long: a crash loop never
/// appears to run.
const PROBATION: Duration = Duration::from_secs(10);

/// What the Pod of an Instance says about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodObservation {
    /// `Programmed`, `Running`, and `ContainersReady` where probes exist.
    pub conditions: Vec<DesiredCondition>,
    /// The address of the Pod.
    pub address: Option<String>,
    /// Look again after this time even if the Pod does not change.
    pub again_after: Option<Duration>,
}

/// Whether all containers of a Pod have ended for good.
pub(super) fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Failed" | "Succeeded"))
}

/// The conditions of an Instance and its address, from its Pod.
pub fn observe(instance: &Instance, pod: &Pod, now: &Time) -> PodObservation {
    let none = PodStatus::default();
    let status = pod.status.as_ref().unwrap_or(&none);
    let containers = status.container_statuses.as_deref().unwrap_or_default();
    let blocked = refused(status, containers);
    let programmed = match &blocked {
        None => DesiredCondition::new_true(PROGRAMMED, reasons::PROGRAMMED, accepted(pod)),
        Some((reason, message)) => DesiredCondition::new_false(PROGRAMMED, *reason, message.clone()),
    };
    let (running, again_after) = if pod.is_deleting() {
        let message = match pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) {
            Some(node) => format!("the Pod is being ended on node {node}"),
            None => "the Pod is being ended".to_owned(),
        };
        (DesiredCondition::new_false(RUNNING, reasons::STOPPING, message), None)
    } else if has_ended(pod) {
        (DesiredCondition::new_false(RUNNING, reasons::STOPPED, ended(status)), None)
    } else if blocked.is_some() {
        (DesiredCondition::new_false(RUNNING, reasons::STOPPED, "no container runs"), None)
    } else {
        running(instance, pod, status, containers, now)
    };
    let mut conditions = vec![programmed, running];
    conditions.extend(readiness(instance, containers));
    PodObservation {
        conditions,
        address: status.pod_ip.clone().filter(|address| !address.is_empty()),
        again_after,
    }
}

/// The status of the Instance with these conditions and address. The template hash is that of the Instance if
/// `programmed`: its Pod was created from it.
pub fn status(
    instance: &Instance,
    observation: &PodObservation,
    programmed: bool,
    now: &Time,
) -> InstanceStatus {
    let mut status = instance.status.clone().unwrap_or_default();
    for condition in &observation.conditions {
        conditions::set(&mut status.conditions, condition, instance.metadata.generation, now);
    }
    if programmed && let Some(hash) = template::instance_hash(instance) {
        status.controller = Some(InstanceControllerStatus { observed_template_hash: hash.to_owned() });
    }
    if let Some(address) = &observation.address {
        let wanted = instance.spec.network_interfaces.len();
        if status.network_interfaces.len() < wanted {
            status.network_interfaces.resize(wanted, InstanceNetworkInterfaceStatus::default());
        }
        if let Some(first) = status.network_interfaces.first_mut() {
            let assigned = first.assignments.get_or_insert_with(NetworkInterfaceAssignments::default);
            assigned.network_ip = Some(address.clone());
        }
    }
    status
}

fn accepted(pod: &Pod) -> String {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    match node {
        Some(node) => format!("the cluster has accepted the Pod; it is on node {node}"),
        None => "the cluster has accepted the Pod".to_owned(),
    }
}

/// Why the cluster does not run the Pod, if its spec or its place is the cause.
fn refused(status: &PodStatus, containers: &[ContainerStatus]) -> Option<(&'static str, String)> {
    let waiting = containers.iter().filter_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        Some((container, waiting.reason.as_deref().unwrap_or_default(), waiting.message.as_deref()))
    });
    for (container, reason, message) in waiting {
        let condition = match reason {
            "ImagePullBackOff"
            | "ErrImagePull"
            | "InvalidImageName"
            | "ErrImageNeverPull"
            | "RegistryUnavailable"
            | "ImageInspectError"
            | "SignatureValidationFailed" => reasons::IMAGE_UNAVAILABLE,
            "CreateContainerConfigError"
            | "CreateContainerError"
            | "RunContainerError"
            | "PreCreateHookError"
            | "PostStartHookError" => reasons::CONFIGURATION_ERROR,
            _ => continue,
        };
        let detail = message.filter(|message| !message.is_empty()).unwrap_or(reason);
        return Some((condition, format!("container {}: {detail}", container.name)));
    }
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let unscheduled = conditions.iter().find(|condition| {
        condition.type_ == "PodScheduled"
            && condition.status == "False"
            && condition.reason.as_deref() == Some("Unschedulable")
    })?;
    let message = unscheduled.message.as_deref().unwrap_or("no node has space for the Pod");
    Some((reasons::INSUFFICIENT_CAPACITY, message.to_owned()))
}

fn ended(status: &PodStatus) -> String {
    let reason = status.reason.as_deref().filter(|reason| !reason.is_empty()).unwrap_or("it has ended");
    match status.message.as_deref().filter(|message| !message.is_empty()) {
        Some(message) => format!("the Pod is replaced: {reason}: {message}"),
        None => format!("the Pod is replaced: {reason}"),
    }
}

fn running(
    instance: &Instance,
    pod: &Pod,
    status: &PodStatus,
    containers: &[ContainerStatus],
    now: &Time,
) -> (DesiredCondition, Option<Duration>) {
    let starting = |message: String| DesiredCondition::new_false(RUNNING, reasons::STARTING, message);
    let mut again_after: Option<Duration> = None;
    let mut waiting = None;
    let wanted = instance.spec.runtime.sandbox.iter().flat_map(|sandbox| &sandbox.containers);
    for container in wanted {
        let name = &container.name;
        let Some(found) = containers.iter().find(|found| found.name == *name) else {
            waiting.get_or_insert(match status.phase.as_deref() {
                Some("Unknown") => "the state of the Pod is not known: its node does not report".to_owned(),
                _ => format!("container {name} is being started"),
            });
            continue;
        };
        let state = found.state.clone().unwrap_or_default();
        if let Some(termination) = crashing(found, &state, now, &mut again_after) {
            let message = format!(
                "container {name} keeps exiting: restart {}; last exit: {}",
                found.restart_count.max(1),
                describe(termination)
            );
            return (DesiredCondition::new_false(RUNNING, reasons::INSTANCE_CRASHING, message), again_after);
        }
        if state.running.is_none() {
            let reason = state.waiting.and_then(|waiting| waiting.reason);
            let reason = reason.filter(|reason| reason != "ContainerCreating");
            let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
            waiting.get_or_insert(format!("container {name} is being started{reason}"));
        } else if found.started != Some(true) {
            waiting.get_or_insert(match &container.startup_probe {
                Some(_) => format!("container {name}: startup probe has not succeeded yet"),
                None => format!("waiting until container {name} accepts connections"),
            });
        }
    }
    if let Some(message) = waiting {
        return (starting(message), again_after);
    }
    let restarts: i32 = containers.iter().map(|container| container.restart_count).sum();
    let mut message = match status.pod_ip.as_deref().filter(|address| !address.is_empty()) {
        Some(address) => format!("running at {address}"),
        None => "running".to_owned(),
    };
    if let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) {
        message.push_str(&format!(" on node {node}"));
    }
    match restarts {
        0 => {}
        1 => message.push_str(", 1 restart"),
        more => message.push_str(&format!(", {more} restarts")),
    }
    (DesiredCondition::new_true(RUNNING, reasons::RUNNING, message), again_after)
}

/// The last end of a container that keeps ending: it is in back-off, has just ended, or runs again for less
/// than [`PROBATION`].
fn crashing<'a>(
    container: &'a ContainerStatus,
    state: &ContainerState,
    now: &Time,
    again_after: &mut Option<Duration>,
) -> Option<&'a ContainerStateTerminated> {
    let last = container.last_state.as_ref().and_then(|last| last.terminated.as_ref());
    let current = container.state.as_ref().and_then(|state| state.terminated.as_ref());
    if current.is_some() {
        return current;
    }
    if let Some(running) = &state.running {
        let up_for = running.started_at.as_ref().map(|started| now.0.duration_since(started.0));
        // A start in the future means that the clocks differ.
        let up_for = up_for.and_then(|up_for| Duration::try_from(up_for).ok()).unwrap_or_default();
        let left = PROBATION.saturating_sub(up_for);
        if left.is_zero() || container.restart_count == 0 {
            return None;
        }
        *again_after = Some(again_after.map_or(left, |again| again.min(left)));
        return last;
    }
    let backing_off = state.waiting.as_ref().and_then(|waiting| waiting.reason.as_deref());
    last.filter(|_| backing_off == Some("CrashLoopBackOff"))
}

fn describe(termination: &ContainerStateTerminated) -> String {
    let reason =
        termination.reason.as_deref().filter(|reason| !matches!(*reason, "Error" | "Completed" | ""));
    match (reason, termination.signal) {
        (Some("OOMKilled"), _) => "out of memory".to_owned(),
        (Some(reason), _) => format!("{reason} (exit code {})", termination.exit_code),
        (None, Some(signal)) if signal > 0 => format!("killed by signal {signal}"),
        (None, _) => format!("exit code {}", termination.exit_code),
    }
}

/// `ContainersReady`, if a container of the Instance has a readiness probe.
fn readiness(instance: &Instance, containers: &[ContainerStatus]) -> Option<DesiredCondition> {
    let all = instance.spec.runtime.sandbox.iter().flat_map(|sandbox| &sandbox.containers);
    let mut probed = all.filter(|container| container.readiness_probe.is_some()).peekable();
    probed.peek()?;
    let is_ready = |name: &str| containers.iter().any(|container| container.name == name && container.ready);
    Some(match probed.find(|container| !is_ready(&container.name)) {
        None => DesiredCondition::new_true(
            CONTAINERS_READY,
            reasons::CONTAINERS_READY,
            "all readiness probes succeed",
        ),
        Some(container) => DesiredCondition::new_false(
            CONTAINERS_READY,
            reasons::CONTAINERS_NOT_READY,
            format!("container {}: readiness probe has not succeeded yet or fails", container.name),
        ),
    })
}
