//! Cluster controller: connects a member, probes it, reports its status, and drains it on deletion.
//!
//! Reads   hub: Cluster, its Secret · member: health, version, APIs
//! Writes  hub: Cluster (finalizer, taints, status), the execution namespace
//!
//! The APIs are read on connection and when a CRD changes on the member, never periodically. Health is probed
//! periodically. The loss of a member does not move objects to other members.

use std::collections::BTreeMap;
use std::sync::Arc;

use polis_api::conditions::karmada::COMPLETE_API_ENABLEMENTS;
use polis_api::karmada::{ApiEnablement, ApiResource, Cluster, ClusterStatus, TAINT_NOT_READY};
use polis_api::{conditions as condition, finalizers, labels};
use polis_engine::{Action, Change, Engine, ErrorClass, Key, Kind, Plane, Reconciler, Unresolved};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::tree;
use super::work::abandon;
use crate::conditions::{self, ConditionUpdate};
use crate::error::Error;
use crate::finalizers::{add_finalizer, has_finalizer};
use crate::kinds;
use crate::member::{JoinError, Member};
use crate::members::api_watch;
use crate::names;
use crate::object::{self, typed};
use crate::shared::Shared;
use crate::works::{self, delete_unless_replaced, remove_finalizer};

struct ClusterController(Arc<Shared>);

pub(super) fn declare(engine: &mut Engine, shared: &Arc<Shared>) {
    let hub = &shared.hub.plane;
    let (of_works, of_members) = (shared.clone(), shared.clone());
    let controller = engine
        .controller("cluster", hub, ClusterController(shared.clone()))
        .skips_own_writes()
        .watches_untyped(hub, &kinds::CLUSTER, |hub, change| {
            Ok(vec![crate::hub::key(hub, "", change.name().name)])
        })
        .watches_untyped(hub, &kinds::WORK, move |_, change| of_work(&of_works, change))
        .watches_untyped(hub, &kinds::NAMESPACE, |hub, change| {
            let member = names::cluster_of_execution_namespace(change.name().name);
            Ok(member.map(|member| crate::hub::key(hub, "", member)).into_iter().collect())
        })
        .watches_added(&shared.planes, move |member, change| {
            if *change.kind() != kinds::CRD {
                return Ok(Vec::new());
            }
            let member = member.name().as_str();
            of_members.members.mark_apis_stale(member);
            Ok(vec![of_members.hub.key("", member)])
        });
    shared.triggers.cluster.declare(controller);
}

/// A member that leaves waits for its Works, and one without a Cluster releases them.
fn of_work(shared: &Shared, change: &Change<'_>) -> Result<Vec<Key>, Unresolved> {
    let namespace = change.name().namespace.unwrap_or_default();
    let Some(member) = names::cluster_of_execution_namespace(namespace) else { return Ok(Vec::new()) };
    let is_due = match shared.clusters.get(member)? {
        Some(info) => info.candidate.deleting && change.is_deletion(),
        None => true,
    };
    Ok(if is_due { vec![shared.hub.key("", member)] } else { Vec::new() })
}

impl Reconciler for ClusterController {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let (shared, hub, name) = (&*self.0, &self.0.hub, &*key.name);
        let Some(object) = hub.get(&kinds::CLUSTER, "", name)? else {
            return self.release(name).await;
        };
        if object::is_deleting(&object) {
            return self.drain(name, &object).await;
        }
        let object = if has_finalizer(&object, finalizers::karmada::CLUSTER) {
            object
        } else {
            let mut wanted = (*object).clone();
            add_finalizer(&mut wanted, finalizers::karmada::CLUSTER);
            hub.of(&kinds::CLUSTER).update(&wanted).await?
        };
        self.ensure_execution_namespace(name).await?;
        let cluster: Cluster = typed(&object)?;
        let existing = cluster.status.clone().unwrap_or_default();
        let mut wanted = existing.clone();
        let joined = shared.members.connect(name, &cluster).await?;
        self.update_status(name, joined, &existing, &mut wanted).await;
        let object = self.ensure_taints(object, &wanted).await?;
        self.report(&object, &existing, &wanted).await?;
        Ok(Action::RequeueAfter(shared.probe_every))
    }
}

impl ClusterController {
    async fn ensure_execution_namespace(&self, cluster: &str) -> Result<(), Error> {
        let (hub, space) = (&self.0.hub, names::execution_namespace(cluster));
        if hub.get(&kinds::NAMESPACE, "", &space)?.is_some() {
            return Ok(());
        }
        let wanted = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space, "labels": {labels::karmada::SYSTEM: "true"}}});
        match hub.of(&kinds::NAMESPACE).create(&wanted).await {
            Err(error) if error.is_already_exists() => Ok(()),
            result => Ok(result.map(drop)?),
        }
    }

    /// Writes a changed status.
    async fn report(
        &self,
        object: &Value,
        existing: &ClusterStatus,
        wanted: &ClusterStatus,
    ) -> Result<(), Error> {
        if wanted != existing {
            let mut reported = object.clone();
            reported["status"] = tree("status", wanted)?;
            self.0.hub.of(&kinds::CLUSTER).update_status(&reported).await?;
        }
        Ok(())
    }

    /// Probes a member and, when there is reason, reads what it serves; or says why there is no way to it.
    async fn update_status(
        &self,
        name: &str,
        joined: Result<Arc<Member>, JoinError>,
        existing: &ClusterStatus,
        wanted: &mut ClusterStatus,
    ) {
        let now = self.0.hub.now();
        let member = match joined {
            Ok(member) => member,
            Err(why) => {
                let message = format!("cannot connect: {why}");
                let desired = ConditionUpdate::new(condition::READY, false, "ClusterNotReachable", message);
                return conditions::set(&mut wanted.conditions, desired, now);
            }
        };
        let was_ready = conditions::status(&existing.conditions, condition::READY) == Some("True");
        let plane = self.0.planes.wait_until_engaged(name).await;
        let probed = probe(&plane).await;
        let ready =
            member.probes.lock().observe(probed.is_ok(), was_ready, self.0.failure_threshold, Instant::now());
        let desired = match &probed {
            Ok(()) => ConditionUpdate::new(
                condition::READY,
                true,
                "ClusterReady",
                "the member is reachable and healthy",
            ),
            Err(_) if ready => return, // not reported before the threshold
            Err(error) if error.class() == ErrorClass::Transient => {
                ConditionUpdate::new(condition::READY, false, "ClusterNotReachable", error.to_string())
            }
            Err(error) => ConditionUpdate::new(condition::READY, false, "ClusterNotReady", error.to_string()),
        };
        conditions::set(&mut wanted.conditions, desired, now);
        if probed.is_err() {
            return;
        }
        if !was_ready {
            member.mark_apis_stale();
            plane.retry_watches();
        }
        // A failure means that the plane was replaced; the next probe adds the watch.
        let _ = plane.add_watch(api_watch());
        if member.take_apis_stale() || wanted.api_enablements.is_empty() {
            self.discover(&member, &plane, wanted).await;
        }
    }

    async fn discover(&self, member: &Member, plane: &Plane, wanted: &mut ClusterStatus) {
        let (apis, version) = (plane.uncached().kinds().await, version(plane).await);
        let desired = match apis {
            Ok(apis) => {
                wanted.api_enablements = enablements(apis);
                ConditionUpdate::new(
                    COMPLETE_API_ENABLEMENTS,
                    true,
                    "Complete",
                    "all APIs of the member are known",
                )
            }
            Err(error) => {
                // The known APIs are kept: a failed discovery must not remove objects.
                member.mark_apis_stale();
                ConditionUpdate::new(
                    COMPLETE_API_ENABLEMENTS,
                    false,
                    "PartialAPIEnablements",
                    error.to_string(),
                )
            }
        };
        conditions::set(&mut wanted.conditions, desired, self.0.hub.now());
        if let Some(version) = version {
            wanted.kubernetes_version = Some(version).filter(|version| !version.is_empty());
        }
    }

    /// Taints a member that is not ready with NoSchedule: it gets no new objects and keeps the existing ones.
    async fn ensure_taints(&self, object: Arc<Value>, status: &ClusterStatus) -> Result<Arc<Value>, Error> {
        let ready = conditions::status(&status.conditions, condition::READY) == Some("True");
        let mut taints: Vec<Value> = object["spec"]["taints"].as_array().cloned().unwrap_or_default();
        let ours = |taint: &Value| taint["key"] == TAINT_NOT_READY && taint["effect"] == "NoSchedule";
        let tainted = taints.iter().any(ours);
        if ready != tainted {
            return Ok(object);
        }
        if ready {
            taints.retain(|taint| !ours(taint));
        } else {
            taints.push(json!({"key": TAINT_NOT_READY, "effect": "NoSchedule"}));
        }
        let mut wanted = (*object).clone();
        match taints.is_empty() {
            true => drop(object::remove(&mut wanted, &["spec", "taints"])),
            false => wanted["spec"]["taints"] = Value::Array(taints),
        }
        Ok(self.0.hub.of(&kinds::CLUSTER).update(&wanted).await?)
    }

    /// Deletes all Works of the member, or abandons their objects if it is unreachable; then removes the
    /// finalizer.
    async fn drain(&self, name: &str, object: &Value) -> Result<Action, Error> {
        if !has_finalizer(object, finalizers::karmada::CLUSTER) {
            return Ok(Action::AwaitChange);
        }
        let (shared, hub) = (&*self.0, &self.0.hub);
        let space = names::execution_namespace(name);
        for work in hub.of(&kinds::WORK).list_within(&space)? {
            works::delete(hub, &work).await?;
            shared.triggers.work.add(Key::cluster(name, object::meta(&work, "name")));
        }
        if !hub.of(&kinds::WORK).list_within(&space)?.is_empty() {
            // A member that fails during the drain must not block the deletion forever: continue to probe.
            return self.probe_leaving(name, object).await;
        }
        if let Some(namespace) = hub.get(&kinds::NAMESPACE, "", &space)? {
            delete_unless_replaced(hub, &kinds::NAMESPACE, &namespace).await?;
        }
        remove_finalizer(hub, &kinds::CLUSTER, object, finalizers::karmada::CLUSTER).await?;
        shared.members.disconnect(name);
        Ok(Action::AwaitChange)
    }

    /// Probes a member during its drain and connects it if necessary: a reachable member loses its objects,
    /// an unreachable one keeps them.
    async fn probe_leaving(&self, name: &str, object: &Value) -> Result<Action, Error> {
        let cluster: Cluster = typed(object)?;
        let existing = cluster.status.clone().unwrap_or_default();
        let joined = match self.0.members.get(name) {
            Some(member) => Ok(member), // its Secret may be deleted already
            None => self.0.members.connect(name, &cluster).await?,
        };
        let mut wanted = existing.clone();
        self.update_status(name, joined, &existing, &mut wanted).await;
        self.report(object, &existing, &wanted).await?;
        Ok(Action::RequeueAfter(self.0.probe_every))
    }

    /// Drops the plane of a member without a Cluster, and releases the Works that wait for it. The member
    /// keeps their objects.
    async fn release(&self, name: &str) -> Result<Action, Error> {
        let shared = &*self.0;
        shared.members.disconnect(name);
        let works = shared.hub.of(&kinds::WORK).list_within(&names::execution_namespace(name))?;
        for work in works.iter().filter(|work| object::is_deleting(work)) {
            abandon(shared, name, work)?;
            works::release(&shared.hub, work).await?;
        }
        Ok(Action::AwaitChange)
    }
}

/// Requests `/readyz`, or `/healthz` if the server has no `/readyz`.
async fn probe(plane: &Plane) -> Result<(), polis_engine::Error> {
    match plane.uncached().raw("/readyz").await {
        Err(error) if error.is_not_found() => plane.uncached().raw("/healthz").await.map(drop),
        response => response.map(drop),
    }
}

/// The git version of the server.
async fn version(plane: &Plane) -> Option<String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Version {
        git_version: String,
    }
    let response = plane.uncached().raw("/version").await.ok()?;
    serde_json::from_slice(&response).ok().map(|Version { git_version }| git_version)
}

/// The kinds that a member serves, by group and version, as a Cluster lists them.
fn enablements(kinds: Vec<Kind>) -> Vec<ApiEnablement> {
    let mut by_version: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for kind in kinds {
        let served = (kind.plural.to_string(), kind.kind.to_string());
        by_version.entry(kind.api_version()).or_default().push(served);
    }
    let enablement = |(group_version, mut resources): (String, Vec<(String, String)>)| {
        resources.sort();
        let resource = |(name, kind)| ApiResource { name, kind, ..ApiResource::default() };
        let resources = resources.into_iter().map(resource).collect();
        ApiEnablement { group_version, resources, ..ApiEnablement::default() }
    };
    by_version.into_iter().map(enablement).collect()
}
