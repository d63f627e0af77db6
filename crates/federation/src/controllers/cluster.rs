//! A member: connected, probed, described in its Cluster's status; drained when it leaves.
//!
//! Reads   Cluster, its Secret, the member's health, version and APIs
//! Writes  the Cluster: finalizer, taints, status · its execution namespace
//!
//! The APIs are read when the member is connected and when a definition changes on it, never by the clock. Health is
//! probed by the clock, because silence says nothing. Losing a member moves nothing.

use std::sync::Arc;

use polis_api::conditions::karmada::COMPLETE_API_ENABLEMENTS;
use polis_api::karmada::{ApiEnablement, ApiResource, Cluster, ClusterStatus, TAINT_NOT_READY};
use polis_api::{conditions as condition, finalizers, labels};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{add_finalizer, has_finalizer, tree, typed, without_finalizer};
use crate::conditions::{self, Fact};
use crate::error::Error;
use crate::member::{self, JoinError, Member, Way};
use crate::names;
use crate::object;
use crate::planes::Fault;
use crate::queue::Outcome;
use crate::world::{Key, World, kinds};

impl World {
    pub(super) async fn settle_cluster(&self, name: &str) -> Result<Outcome, Error> {
        let Some(object) = self.hub.clusters.get("", name) else {
            self.members.write().remove(name);
            return Ok(Outcome::Settled);
        };
        if object::is_deleting(&object) {
            return self.drain_cluster(name, &object).await;
        }
        let object = if has_finalizer(&object, finalizers::karmada::CLUSTER) {
            object
        } else {
            let mut wanted = (*object).clone();
            add_finalizer(&mut wanted, finalizers::karmada::CLUSTER);
            self.hub.clusters.learn(self.hub.api.replace(&kinds::CLUSTER, &wanted).await?)
        };
        self.settle_execution_namespace(name).await?;
        let cluster: Cluster = typed(&object)?;
        let standing = cluster.status.clone().unwrap_or_default();
        let mut wanted = standing.clone();
        let joined = self.connect(name, &cluster).await?;
        self.examine(joined, &standing, &mut wanted).await;
        let object = self.settle_taints(object, &wanted).await?;
        if wanted != standing {
            let mut reported = (*object).clone();
            reported["status"] = tree("status", &wanted)?;
            self.hub.clusters.learn(self.hub.api.replace_status(&kinds::CLUSTER, &reported).await?);
        }
        Ok(Outcome::After(self.settings.probe_every))
    }

    async fn settle_execution_namespace(&self, cluster: &str) -> Result<(), Error> {
        let space = names::execution_namespace(cluster);
        if self.hub.namespaces.get("", &space).is_some() {
            return Ok(());
        }
        let wanted = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space, "labels": {labels::karmada::SYSTEM: "true"}}});
        match self.hub.api.create(&kinds::NAMESPACE, &wanted).await {
            Ok(made) => drop(self.hub.namespaces.learn(made)),
            Err(error) if error.fault == Fault::AlreadyExists => {}
            Err(error) => return Err(error.into()),
        }
        // What should be on the member can be said now.
        self.queue.add(Key::NamespacesOn(cluster.to_owned()));
        Ok(())
    }

    /// The connection to a member: the standing one, unless its Cluster or Secret say another.
    async fn connect(&self, name: &str, cluster: &Cluster) -> Result<Result<Arc<Member>, JoinError>, Error> {
        if let Some(twin) = self.twin_of(name, cluster) {
            return Ok(Err(JoinError::Client(format!(
                "spec.id is that of cluster {twin}: one member must not be joined twice"
            ))));
        }
        let standing = self.member(name);
        let (way, given) = match self.settings.given.get(name) {
            Some(client) => (Way::Given, Some(client.clone())),
            None => {
                let secret = match &cluster.spec.secret_ref {
                    Some(reference) => {
                        self.hub.api.get(&kinds::SECRET, &reference.namespace, &reference.name).await?
                    }
                    None => None,
                };
                match member::way_of(cluster, secret.as_ref()) {
                    Ok(way) => (way, None),
                    Err(why) => return Ok(Err(why)),
                }
            }
        };
        if let Some(member) = standing.filter(|member| member.way == way) {
            return Ok(Ok(member));
        }
        let client = match given.map_or_else(|| member::client_of(&way), Ok) {
            Ok(client) => client,
            Err(why) => return Ok(Err(why)),
        };
        let member = Member::new(&self.me, name, client, way);
        self.members.write().insert(name.to_owned(), member.clone());
        // Works that were looked at before there was a connection wait for it, not only for a change of readiness.
        self.look_at_works(name);
        Ok(Ok(member))
    }

    /// Another cluster with the same identity that was there first.
    fn twin_of(&self, name: &str, cluster: &Cluster) -> Option<String> {
        let id = cluster.spec.id.as_deref().filter(|id| !id.is_empty())?;
        let created =
            cluster.metadata.creation_timestamp.as_ref().map(|time| time.0.to_string()).unwrap_or_default();
        self.hub
            .clusters
            .all()
            .iter()
            .filter(|other| object::meta(other, "name") != name && other["spec"]["id"] == id)
            .find(|other| {
                (object::meta(other, "creationTimestamp"), object::meta(other, "name"))
                    < (created.as_str(), name)
            })
            .map(|other| object::meta(other, "name").to_owned())
    }

    /// Probes a member and, when there is reason, reads what it serves; or says why there is no way to it.
    async fn examine(
        &self,
        joined: Result<Arc<Member>, JoinError>,
        standing: &ClusterStatus,
        wanted: &mut ClusterStatus,
    ) {
        let now = self.now();
        let member = match joined {
            Ok(member) => member,
            Err(why) => {
                let message = format!("cannot connect: {why}");
                let fact = Fact::new(condition::READY, false, "ClusterNotReachable", message);
                return conditions::set(&mut wanted.conditions, fact, now);
            }
        };
        let was_ready = conditions::status(&standing.conditions, condition::READY) == Some("True");
        let probed = member.api.probe().await;
        let ready = member.probes.lock().judge(
            probed.is_ok(),
            was_ready,
            self.settings.failure_threshold,
            Instant::now(),
        );
        let fact = match &probed {
            Ok(()) => {
                Fact::new(condition::READY, true, "ClusterReady", "the member is reachable and healthy")
            }
            Err(_) if ready => return, // held back until the threshold
            Err(error) if error.fault == Fault::Unreachable => {
                Fact::new(condition::READY, false, "ClusterNotReachable", error.message.clone())
            }
            Err(error) => Fact::new(condition::READY, false, "ClusterNotReady", error.message.clone()),
        };
        conditions::set(&mut wanted.conditions, fact, now);
        if probed.is_err() {
            return;
        }
        if !was_ready {
            member.doubt_apis();
            member.nudge();
        }
        if member.take_doubt() || wanted.api_enablements.is_empty() {
            self.discover(&member, wanted).await;
        }
    }

    async fn discover(&self, member: &Member, wanted: &mut ClusterStatus) {
        let (apis, version) = (member.api.discover().await, member.api.version().await);
        let fact = match apis {
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
                Fact::new(COMPLETE_API_ENABLEMENTS, true, "Complete", "all APIs of the member are known")
            }
            Err(error) => {
                // What was known stands: not seeing an API is no reason to take anything away.
                member.doubt_apis();
                Fact::new(COMPLETE_API_ENABLEMENTS, false, "PartialAPIEnablements", error.to_string())
            }
        };
        conditions::set(&mut wanted.conditions, fact, self.now());
        if let Ok(version) = version {
            wanted.kubernetes_version = Some(version).filter(|version| !version.is_empty());
        }
    }

    /// A member that is not ready gets nothing new; what it has, it keeps.
    async fn settle_taints(&self, object: Arc<Value>, status: &ClusterStatus) -> Result<Arc<Value>, Error> {
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
        Ok(self.hub.clusters.learn(self.hub.api.replace(&kinds::CLUSTER, &wanted).await?))
    }

    /// Takes back what the member has of us, or lets it go where it cannot be reached; then lets the Cluster go.
    async fn drain_cluster(&self, name: &str, object: &Value) -> Result<Outcome, Error> {
        if !has_finalizer(object, finalizers::karmada::CLUSTER) {
            return Ok(Outcome::Settled);
        }
        let space = names::execution_namespace(name);
        let works = self.hub.works.within(&space);
        for work in &works {
            self.delete_work(work).await?;
            self.queue.add(Key::Work(name.to_owned(), object::meta(work, "name").to_owned()));
        }
        if !works.is_empty() {
            // A member that dies while it leaves must not hold the Cluster for ever: go on probing.
            return self.examine_leaving(name, object).await;
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
        Ok(Outcome::Settled)
    }

    /// A member that leaves is asked how it is, like any other, and connected where it is not: whether it still answers
    /// decides whether its objects are taken back or left behind.
    async fn examine_leaving(&self, name: &str, object: &Value) -> Result<Outcome, Error> {
        let cluster: Cluster = typed(object)?;
        let standing = cluster.status.clone().unwrap_or_default();
        let joined = match self.member(name) {
            Some(member) => Ok(member), // its Secret may be gone already
            None => self.connect(name, &cluster).await?,
        };
        let mut wanted = standing.clone();
        self.examine(joined, &standing, &mut wanted).await;
        if wanted != standing {
            let mut reported = object.clone();
            reported["status"] = tree("status", &wanted)?;
            self.hub.clusters.learn(self.hub.api.replace_status(&kinds::CLUSTER, &reported).await?);
        }
        Ok(Outcome::After(self.settings.probe_every))
    }
}
