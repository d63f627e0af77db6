//! Cluster controller: connects a member, probes it, reports its status, and drains it on deletion.
//!
//! Reads   hub: Cluster, its Secret · member: health, version, APIs
//! Writes  hub: Cluster (finalizer, taints, status), the execution namespace
//!
//! The APIs are read on connection and when a CRD changes on the member, never periodically. Health is probed
//! periodically. The loss of a member does not move objects to other members.

use std::sync::Arc;

use polis_api::conditions::karmada::COMPLETE_API_ENABLEMENTS;
use polis_api::karmada::{ApiEnablement, ApiResource, Cluster, ClusterStatus, TAINT_NOT_READY};
use polis_api::{conditions as condition, finalizers, labels};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{add_finalizer, has_finalizer, tree, typed, without_finalizer};
use crate::conditions::{self, ConditionUpdate};
use crate::error::Error;
use crate::member::{self, Connection, JoinError, Member};
use crate::names;
use crate::object;
use crate::planes::ApiErrorKind;
use crate::queue::Requeue;
use crate::state::{FederationState, Key, kinds};

impl FederationState {
    pub(super) async fn reconcile_cluster(&self, name: &str) -> Result<Requeue, Error> {
        let Some(object) = self.hub.clusters.get("", name) else {
            self.members.write().remove(name);
            return Ok(Requeue::OnChange);
        };
        if object::is_deleting(&object) {
            return self.drain_cluster(name, &object).await;
        }
        let object = if has_finalizer(&object, finalizers::karmada::CLUSTER) {
            object
        } else {
            let mut wanted = (*object).clone();
            add_finalizer(&mut wanted, finalizers::karmada::CLUSTER);
            self.hub.clusters.write_through(self.hub.api.replace(&kinds::CLUSTER, &wanted).await?)
        };
        self.ensure_execution_namespace(name).await?;
        let cluster: Cluster = typed(&object)?;
        let existing = cluster.status.clone().unwrap_or_default();
        let mut wanted = existing.clone();
        let joined = self.connect(name, &cluster).await?;
        self.update_status(joined, &existing, &mut wanted).await;
        let object = self.ensure_taints(object, &wanted).await?;
        if wanted != existing {
            let mut reported = (*object).clone();
            reported["status"] = tree("status", &wanted)?;
            self.hub.clusters.write_through(self.hub.api.replace_status(&kinds::CLUSTER, &reported).await?);
        }
        Ok(Requeue::After(self.settings.probe_every))
    }

    async fn ensure_execution_namespace(&self, cluster: &str) -> Result<(), Error> {
        let space = names::execution_namespace(cluster);
        if self.hub.namespaces.get("", &space).is_some() {
            return Ok(());
        }
        let wanted = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space, "labels": {labels::karmada::SYSTEM: "true"}}});
        match self.hub.api.create(&kinds::NAMESPACE, &wanted).await {
            Ok(made) => drop(self.hub.namespaces.write_through(made)),
            Err(error) if error.kind == ApiErrorKind::AlreadyExists => {}
            Err(error) => return Err(error.into()),
        }
        // Works can be created now.
        self.queue.add(Key::NamespacesOn(cluster.to_owned()));
        Ok(())
    }

    /// Connects a member; keeps the existing connection unless the Cluster or its Secret changed.
    async fn connect(&self, name: &str, cluster: &Cluster) -> Result<Result<Arc<Member>, JoinError>, Error> {
        if let Some(duplicate) = self.duplicate_of(name, cluster) {
            return Ok(Err(JoinError::Client(format!(
                "spec.id is the id of cluster {duplicate}: a member must not be joined twice"
            ))));
        }
        let existing = self.member(name);
        let (connection, provided_clients) = match self.settings.provided_clients.get(name) {
            Some(client) => (Connection::Provided, Some(client.clone())),
            None => {
                let secret = match &cluster.spec.secret_ref {
                    Some(reference) => {
                        self.hub.api.get(&kinds::SECRET, &reference.namespace, &reference.name).await?
                    }
                    None => None,
                };
                match member::connection_of(cluster, secret.as_ref()) {
                    Ok(connection) => (connection, None),
                    Err(why) => return Ok(Err(why)),
                }
            }
        };
        if let Some(member) = existing.filter(|member| member.connection == connection) {
            return Ok(Ok(member));
        }
        let client = match provided_clients.map_or_else(|| member::client_of(&connection), Ok) {
            Ok(client) => client,
            Err(why) => return Ok(Err(why)),
        };
        let member = Member::new(&self.me, name, client, connection);
        self.members.write().insert(name.to_owned(), member.clone());
        // Works that were reconciled before the connection existed wait for it, not only for a change of
        // readiness.
        self.enqueue_works(name);
        Ok(Ok(member))
    }

    /// An older Cluster with the same `spec.id`.
    fn duplicate_of(&self, name: &str, cluster: &Cluster) -> Option<String> {
        let id = cluster.spec.id.as_deref().filter(|id| !id.is_empty())?;
        let created =
            cluster.metadata.creation_timestamp.as_ref().map(|time| time.0.to_string()).unwrap_or_default();
        self.hub
            .clusters
            .list()
            .iter()
            .filter(|other| object::meta(other, "name") != name && other["spec"]["id"] == id)
            .find(|other| {
                (object::meta(other, "creationTimestamp"), object::meta(other, "name"))
                    < (created.as_str(), name)
            })
            .map(|other| object::meta(other, "name").to_owned())
    }

    /// Probes a member and, when there is reason, reads what it serves; or says why there is no way to it.
    async fn update_status(
        &self,
        joined: Result<Arc<Member>, JoinError>,
        existing: &ClusterStatus,
        wanted: &mut ClusterStatus,
    ) {
        let now = self.now();
        let member = match joined {
            Ok(member) => member,
            Err(why) => {
                let message = format!("cannot connect: {why}");
                let desired = ConditionUpdate::new(condition::READY, false, "ClusterNotReachable", message);
                return conditions::set(&mut wanted.conditions, desired, now);
            }
        };
        let was_ready = conditions::status(&existing.conditions, condition::READY) == Some("True");
        let probed = member.api.probe().await;
        let ready = member.probes.lock().observe(
            probed.is_ok(),
            was_ready,
            self.settings.failure_threshold,
            Instant::now(),
        );
        let desired = match &probed {
            Ok(()) => ConditionUpdate::new(
                condition::READY,
                true,
                "ClusterReady",
                "the member is reachable and healthy",
            ),
            Err(_) if ready => return, // not reported before the threshold
            Err(error) if error.kind == ApiErrorKind::Unreachable => {
                ConditionUpdate::new(condition::READY, false, "ClusterNotReachable", error.message.clone())
            }
            Err(error) => {
                ConditionUpdate::new(condition::READY, false, "ClusterNotReady", error.message.clone())
            }
        };
        conditions::set(&mut wanted.conditions, desired, now);
        if probed.is_err() {
            return;
        }
        if !was_ready {
            member.mark_apis_stale();
            member.retry_now();
        }
        if member.take_apis_stale() || wanted.api_enablements.is_empty() {
            self.discover(&member, wanted).await;
        }
    }

    async fn discover(&self, member: &Member, wanted: &mut ClusterStatus) {
        let (apis, version) = (member.api.discover().await, member.api.version().await);
        let desired = match apis {
            Ok(apis) => {
                wanted.api_enablements = apis
                    .into_iter()
                    .filter(|(_, resources)| !resources.is_empty())
                    .map(|(group_version, resources)| ApiEnablement {
                        group_version,
                        resources: resources
                            .into_iter()
                            .map(|(name, kind)| ApiResource { name, kind, ..ApiResource::default() })
                            .collect(),
                        ..ApiEnablement::default()
                    })
                    .collect();
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
        conditions::set(&mut wanted.conditions, desired, self.now());
        if let Ok(version) = version {
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
        Ok(self.hub.clusters.write_through(self.hub.api.replace(&kinds::CLUSTER, &wanted).await?))
    }

    /// Deletes all Works of the member, or abandons their objects if it is unreachable; then removes the
    /// finalizer.
    async fn drain_cluster(&self, name: &str, object: &Value) -> Result<Requeue, Error> {
        if !has_finalizer(object, finalizers::karmada::CLUSTER) {
            return Ok(Requeue::OnChange);
        }
        let space = names::execution_namespace(name);
        let works = self.hub.works.list_namespace(&space);
        for work in &works {
            self.delete_work(work).await?;
            self.queue.add(Key::Work(name.to_owned(), object::meta(work, "name").to_owned()));
        }
        if !works.is_empty() {
            // A member that fails during the drain must not block the deletion forever: continue to probe.
            return self.probe_leaving(name, object).await;
        }
        if let Some(namespace) = self.hub.namespaces.get("", &space) {
            self.hub.api.delete(&kinds::NAMESPACE, "", &space, object::meta(&namespace, "uid")).await?;
        }
        let patch = json!({"metadata": {
            "uid": object::meta(object, "uid"),
            "resourceVersion": object::meta(object, "resourceVersion"),
            "finalizers": without_finalizer(object, finalizers::karmada::CLUSTER),
        }});
        self.hub.api.patch(&kinds::CLUSTER, "", name, &patch).await?;
        self.members.write().remove(name);
        Ok(Requeue::OnChange)
    }

    /// Probes a member during its drain and connects it if necessary: a reachable member loses its objects,
    /// an unreachable one keeps them.
    async fn probe_leaving(&self, name: &str, object: &Value) -> Result<Requeue, Error> {
        let cluster: Cluster = typed(object)?;
        let existing = cluster.status.clone().unwrap_or_default();
        let joined = match self.member(name) {
            Some(member) => Ok(member), // its Secret may be deleted already
            None => self.connect(name, &cluster).await?,
        };
        let mut wanted = existing.clone();
        self.update_status(joined, &existing, &mut wanted).await;
        if wanted != existing {
            let mut reported = object.clone();
            reported["status"] = tree("status", &wanted)?;
            self.hub.clusters.write_through(self.hub.api.replace_status(&kinds::CLUSTER, &reported).await?);
        }
        Ok(Requeue::After(self.settings.probe_every))
    }
}
