//! A fake kubelet: gives the Pods of a cell their status, and ends deleted Pods.
//!
//! It replaces the scheduler, the nodes and the kubelets of a cluster. A Pod keeps a finalizer until its
//! node has ended it, so a deletion takes time, as in a cluster. What happens to a Pod depends on the image
//! of its first container: [`BROKEN`](crate::provider::BROKEN) in its name cannot be pulled, `crash` keeps
//! exiting, `huge` fits on no node, and everything else runs. A test can lose the node, evict a Pod, and
//! change the readiness of all.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use polis_api::ObjectExt as _;
use polis_api::k8s_openapi::api::core::v1::Pod;
use polis_engine::{Action, Clock, Engine, Error, Key, Plane, Reconciler, Watch};
use serde_json::{Value, json};

use crate::plane_ext::PlaneExt as _;
use crate::provider::BROKEN;

/// The finalizer of a Pod that a node runs.
const FINALIZER: &str = "kubelet.polis.test/pod";

/// The fake kubelet of one cell. Cheap to clone.
#[derive(Clone)]
pub struct FakeKubelet {
    cell: Plane,
    clock: Clock,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Time that a deleted Pod needs to end.
    termination: Duration,
    /// The node does not respond: nothing changes, and deleted Pods do not end.
    lost: bool,
    not_ready: bool,
    /// UIDs of the Pods that were started, in order.
    starts: Vec<(String, String)>,
}

impl FakeKubelet {
    /// Declares it on an engine.
    pub fn declare(engine: &mut Engine, clock: Clock, cell: Plane) -> Self {
        let cell = engine.plane("kubelet", cell, [Watch::of::<Pod>()]);
        let kubelet = FakeKubelet { cell: cell.clone(), clock, state: Arc::default() };
        engine.controller("kubelet", &cell, kubelet.clone()).for_kind::<Pod>();
        kubelet
    }

    /// Sets the time that a deleted Pod needs to end.
    pub fn terminate_within(&self, time: Duration) {
        self.state.lock().termination = time;
    }

    /// Loses or finds the node of all Pods.
    pub async fn set_node_lost(&self, lost: bool) {
        self.state.lock().lost = lost;
        self.touch().await;
    }

    /// Sets whether the readiness probes of all Pods succeed.
    pub async fn set_ready(&self, ready: bool) {
        self.state.lock().not_ready = !ready;
        self.touch().await;
    }

    /// Ends a Pod as an eviction does: its object stays, in phase Failed.
    pub async fn evict(&self, namespace: &str, name: &str) {
        let evicted =
            json!({"phase": "Failed", "reason": "Evicted", "message": "the node was low on memory"});
        let status = serde_json::from_value::<polis_api::k8s_openapi::api::core::v1::PodStatus>(evicted);
        let status = status.expect("a status");
        self.cell.change_status::<Pod>((namespace, name), |pod| pod.status = Some(status.clone())).await;
    }

    /// Names of the Pods that were started, in order.
    pub fn starts(&self) -> Vec<String> {
        self.state.lock().starts.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Reconciles all Pods, by a change of each.
    async fn touch(&self) {
        for pod in self.cell.all::<Pod>().await {
            let at = self.clock.now().to_string();
            self.cell
                .change::<Pod>((pod.namespace(), pod.name()), |pod| {
                    pod.metadata.annotations.get_or_insert_default().insert("touched".into(), at.clone());
                })
                .await;
        }
    }
}

impl Reconciler for FakeKubelet {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(pod) = self.cell.get::<Pod>(key)? else { return Ok(Action::AwaitChange) };
        let (lost, not_ready, termination) = {
            let state = self.state.lock();
            (state.lost, state.not_ready, state.termination)
        };
        if lost {
            return Ok(Action::AwaitChange);
        }
        if pod.is_deleting() {
            tokio::time::sleep(termination).await;
            self.cell.remove_finalizer(&pod, FINALIZER).await?;
            return Ok(Action::AwaitChange);
        }
        if pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Failed")) {
            // It has ended: a deletion removes it at once.
            self.cell.remove_finalizer(&pod, FINALIZER).await?;
            return Ok(Action::AwaitChange);
        }
        let claimed = self.cell.add_finalizer(&pod, FINALIZER).await?;
        let pod = claimed.into_object().unwrap_or(pod);
        {
            let mut state = self.state.lock();
            if !state.starts.iter().any(|(_, uid)| uid == pod.uid()) {
                state.starts.push((pod.name().to_owned(), pod.uid().to_owned()));
            }
        }
        let status = status(&pod, !not_ready, &self.clock.now().to_string());
        let started = pod.status.as_ref().and_then(|status| status.start_time.clone());
        let mut desired = pod.clone();
        desired.status = serde_json::from_value(status).ok();
        if let (Some(status), Some(_)) = (&mut desired.status, &started) {
            // A container that runs keeps its start.
            status.start_time = started;
            for (new, old) in status.container_statuses.iter_mut().flatten().zip(
                pod.status
                    .as_ref()
                    .and_then(|status| status.container_statuses.as_ref())
                    .into_iter()
                    .flatten(),
            ) {
                new.state.clone_from(&old.state);
            }
        }
        self.cell.update_status(&pod, &desired).await?;
        Ok(Action::AwaitChange)
    }
}

fn status(pod: &Pod, ready: bool, now: &str) -> Value {
    let containers = pod.spec.as_ref().map(|spec| spec.containers.as_slice()).unwrap_or_default();
    let image = containers.first().and_then(|container| container.image.as_deref()).unwrap_or_default();
    if image.contains("huge") {
        return json!({"phase": "Pending", "conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "0/1 nodes are available: 1 Insufficient memory.",
        }]});
    }
    let (state, last, restarts) = if image.contains(BROKEN) {
        (
            json!({"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}),
            json!({}),
            0,
        )
    } else if image.contains("crash") {
        let last = json!({"terminated": {"exitCode": 7, "reason": "Error"}});
        (json!({"waiting": {"reason": "CrashLoopBackOff"}}), last, 4)
    } else {
        (json!({"running": {"startedAt": now}}), json!({}), 0)
    };
    let running = state["running"].is_object();
    let container = |name: &str| {
        json!({
            "name": name, "image": image, "imageID": "", "restartCount": restarts, "state": state,
            "lastState": last, "started": running, "ready": running && ready,
        })
    };
    let containers: Vec<Value> =
        containers.iter().map(|container_of| container(&container_of.name)).collect();
    json!({
        "phase": if running { "Running" } else { "Pending" }, "podIP": "10.244.0.7", "startTime": now,
        "containerStatuses": containers,
    })
}
