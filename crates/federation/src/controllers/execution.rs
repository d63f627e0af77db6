//! Execution controller: applies the manifest of a Work to its member and reports the member's status.
//!
//! Reads   hub: Work, Cluster · member: the object
//! Writes  member: the object, at most one write, only if it differs · hub: Work (status; finalizer, after
//!         the member has confirmed the deletion of the object)
//!
//! An object is never deleted because a member is unreachable. While a member is not ready its Works wait;
//! all of them are requeued when it becomes ready.

use std::sync::Arc;
use std::time::Duration;

use polis_api::conditions::karmada::{APPLIED, DISPATCHING};
use polis_api::karmada::{ManifestStatus, ResourceIdentifier, WorkStatus};
use polis_api::{annotations, finalizers};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::binding::binding_id;
use super::template::binding_kind;
use super::{has_finalizer, tree, without_finalizer};
use crate::conditions::{self, ConditionUpdate};
use crate::error::Error;
use crate::interpreter::TypeMeta;
use crate::member::Member;
use crate::names;
use crate::object::{self, ObjectKey};
use crate::planes::{ApiErrorKind, ResourceKind};
use crate::queue::Requeue;
use crate::retain::{self, LastApplied};
use crate::state::{FederationState, Key, kinds};

/// Corrections of drift within [`DRIFT_WINDOW`] before further corrections back off.
const DRIFT_LIMIT: u32 = 5;
/// How long a correction of drift is remembered.
const DRIFT_WINDOW: Duration = Duration::from_secs(60);
/// Longest delay before drift is corrected.
const DRIFT_BACKOFF_MAX: Duration = Duration::from_secs(300);

/// How long a reconcile waits for the first list of an informer before it reads the object itself.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);

/// Event message for a member that is removed while it is unreachable.
const LEFT_BEHIND: &str = "the member was removed while it was not reachable: it keeps the copies that it has, with their labels and annotations";

/// Another writer changes an object as often as the federation corrects it.
#[derive(Debug)]
pub(crate) struct DriftConflict {
    count: u32,
    last: Instant,
}

impl FederationState {
    pub(super) async fn reconcile_work(&self, cluster: &str, name: &str) -> Result<Requeue, Error> {
        let namespace = names::execution_namespace(cluster);
        let Some(work) = self.hub.works.get(&namespace, name) else { return Ok(Requeue::OnChange) };
        if object::is_deleting(&work) {
            return self.finalize_work(cluster, &work).await;
        }
        if self.is_orphan(&work).await? {
            self.delete_work(&work).await?;
            return Ok(Requeue::OnChange); // its deletion requeues the Work
        }
        let info = self.cluster(cluster);
        let ready = info.as_ref().is_some_and(|info| info.ready && !info.candidate.deleting);
        let suspended = work["spec"]["suspendDispatching"] == true;
        let dispatching = if suspended {
            ConditionUpdate::new(
                DISPATCHING,
                false,
                "SuspendDispatching",
                "changes are not sent to the member",
            )
        } else {
            ConditionUpdate::new(DISPATCHING, true, "Dispatching", "changes are sent to the member")
        };
        let Some(member) = self.member(cluster).filter(|_| ready) else {
            // The member's readiness requeues the Work; until then only the condition Dispatching is
            // reported.
            return self.report(&work, dispatching, None, None).await;
        };
        let manifest = work["spec"]["workload"]["manifests"][0].clone();
        let kind = match self.kind_on(&member, &manifest).await? {
            Some(kind) => kind,
            None => {
                let why =
                    format!("{} {} is not served by {cluster}", manifest["apiVersion"], manifest["kind"]);
                return self.report(&work, dispatching, Some(Err(why)), None).await;
            }
        };
        let _permit = member.write_permits.acquire().await;
        let observed = self.observe(&member, &kind, &manifest).await?;
        if suspended {
            return self.report(&work, dispatching, None, observed.as_deref()).await;
        }
        match self.apply(cluster, name, &member, &kind, &manifest, observed.clone()).await {
            Ok(Applied::Present(object)) => {
                self.report(&work, dispatching, Some(Ok(())), Some(&object)).await
            }
            Ok(Applied::Refused(why)) => {
                self.record_event(&work, true, "SyncFailed", &why).await;
                self.report(&work, dispatching, Some(Err(why)), observed.as_deref()).await
            }
            Ok(Applied::Deferred(pause)) => {
                self.report(&work, dispatching, None, observed.as_deref()).await?;
                Ok(Requeue::After(pause))
            }
            Err(error) => {
                // The error is reported on the Work, and the key is retried.
                if !matches!(error.kind(), Some(ApiErrorKind::Conflict | ApiErrorKind::AlreadyExists)) {
                    self.report(&work, dispatching, Some(Err(error.to_string())), observed.as_deref())
                        .await?;
                }
                if error.kind() == Some(ApiErrorKind::Unreachable) {
                    self.queue.add(Key::Cluster(cluster.to_owned()));
                }
                Err(error)
            }
        }
    }

    /// Whether the binding of a Work no longer exists. A binding deletes its Works before itself, but the
    /// last write of a stopped federation may arrive after its successor has deleted them.
    async fn is_orphan(&self, work: &Value) -> Result<bool, Error> {
        let Some(Key::Binding(namespace, name)) = FederationState::binding_of(work) else { return Ok(false) };
        let id = binding_id(work);
        let at = namespace.as_deref().unwrap_or_default();
        let parent = |binding: &Value| binding_id(binding) == id;
        if self.bindings(namespace.as_deref()).get(at, &name).is_some_and(|binding| parent(&binding)) {
            return Ok(false);
        }
        // The informer may lag: the hub decides.
        let live = self.hub.api.get(&binding_kind(namespace.as_deref()), at, &name).await?;
        Ok(!live.as_ref().is_some_and(parent))
    }

    /// The kind of a manifest: from the informer of the hub, or from the discovery of the member if the hub
    /// no longer serves it.
    async fn kind_on(&self, member: &Member, manifest: &Value) -> Result<Option<ResourceKind>, Error> {
        let type_meta = TypeMeta::of(manifest);
        if type_meta == kinds::NAMESPACE.type_meta() {
            return Ok(Some(kinds::NAMESPACE));
        }
        if let Some(informer) = self.template_informer(&type_meta) {
            return Ok(Some(informer.kind().clone()));
        }
        Ok(member.api.find_kind(&type_meta).await?)
    }

    /// The member's object: from the informer, or by a request while the informer is not synced.
    async fn observe(
        &self,
        member: &Member,
        kind: &ResourceKind,
        manifest: &Value,
    ) -> Result<Option<Arc<Value>>, Error> {
        let (namespace, name) = (object::meta(manifest, "namespace"), object::meta(manifest, "name"));
        let informer = member.informer(kind);
        // One list replaces a request per object; the timeout limits the wait for a slow list.
        let left = LIST_TIMEOUT.saturating_sub(informer.age());
        if informer.is_synced() || tokio::time::timeout(left, informer.synced()).await.is_ok() {
            return Ok(informer.get(namespace, name));
        }
        Ok(member.api.get(kind, namespace, name).await?.map(Arc::new))
    }

    async fn apply(
        &self,
        cluster: &str,
        work: &str,
        member: &Member,
        kind: &ResourceKind,
        manifest: &Value,
        observed: Option<Arc<Value>>,
    ) -> Result<Applied, Error> {
        let informer = member.informer(kind);
        let digest = retain::digest(manifest);
        let work_key = (cluster.to_owned(), work.to_owned());
        let Some(observed) = observed else {
            let created = match member.api.create(kind, manifest).await {
                Ok(created) => created,
                Err(error) if error.kind == ApiErrorKind::AlreadyExists => {
                    // The informer lags: store the live object and retry.
                    let (namespace, name) =
                        (object::meta(manifest, "namespace"), object::meta(manifest, "name"));
                    if let Some(live) = member.api.get(kind, namespace, name).await? {
                        informer.write_through(live);
                    }
                    return Err(error.into());
                }
                Err(error) if error.kind == ApiErrorKind::Invalid => {
                    return Ok(Applied::Refused(error.to_string()));
                }
                Err(error) => return Err(error.into()),
            };
            self.last_applied
                .lock()
                .insert(work_key, LastApplied { manifest: digest, version: retain::version(&created) });
            return Ok(Applied::Present(informer.write_through_silently(created)));
        };
        if object::is_deleting(&observed) {
            return Ok(Applied::Present(observed)); // it is created again after its deletion
        }
        if !retain::is_managed(&observed)
            && object::annotation(manifest, annotations::karmada::CONFLICT_RESOLUTION) != "overwrite"
        {
            return Ok(Applied::Refused(format!(
                "{} exists on {cluster} and is not managed by the federation; set conflictResolution: Overwrite to take it over",
                ObjectKey::of(manifest)
            )));
        }
        let merged = retain::merge(manifest.clone(), &observed);
        let mut merged = match self.interpreter().retain(merged, &observed) {
            Ok(merged) => merged,
            Err(error) => {
                return Ok(Applied::Refused(format!(
                    "failed to retain fields of {}: {error}",
                    ObjectKey::of(manifest)
                )));
            }
        };
        let last_applied = self.last_applied.lock().get(&work_key).cloned();
        if !retain::differs(&merged, &observed, digest, last_applied.as_ref()) {
            return Ok(Applied::Present(observed));
        }
        let drifted = last_applied.is_some_and(|last_applied| last_applied.manifest == digest);
        if drifted && let Some(pause) = self.record_drift(&work_key, member, kind, manifest).await {
            return Ok(Applied::Deferred(pause));
        }
        // The status belongs to the member; kinds without a status subresource would lose it.
        if let Some(status) = observed.get("status") {
            merged["status"] = status.clone();
        }
        let answer = match member.api.replace(kind, &merged).await {
            Ok(answer) => answer,
            Err(error) if error.kind == ApiErrorKind::Invalid => {
                return Ok(Applied::Refused(error.to_string()));
            }
            Err(error) => return Err(error.into()),
        };
        self.last_applied
            .lock()
            .insert(work_key, LastApplied { manifest: digest, version: retain::version(&answer) });
        Ok(Applied::Present(informer.write_through_silently(answer)))
    }

    /// Records a correction of drift. The first [`DRIFT_LIMIT`] are made at once; further ones back off, and
    /// an event names the other writer.
    async fn record_drift(
        &self,
        work_key: &(String, String),
        member: &Member,
        kind: &ResourceKind,
        manifest: &Value,
    ) -> Option<Duration> {
        let now = Instant::now();
        let (count, pause) = {
            let mut drift_conflicts = self.drift_conflicts.lock();
            let record_drift =
                drift_conflicts.entry(work_key.clone()).or_insert(DriftConflict { count: 0, last: now });
            let pause = Duration::from_secs(1 << record_drift.count.saturating_sub(DRIFT_LIMIT).min(9))
                .min(DRIFT_BACKOFF_MAX);
            let since = now.duration_since(record_drift.last);
            if since > DRIFT_WINDOW.max(pause * 2) {
                record_drift.count = 0;
            }
            if record_drift.count >= DRIFT_LIMIT && since < pause {
                (record_drift.count, Some(pause - since))
            } else {
                record_drift.count += 1;
                record_drift.last = now;
                (record_drift.count, None)
            }
        };
        if count == DRIFT_LIMIT {
            let (namespace, name) = (object::meta(manifest, "namespace"), object::meta(manifest, "name"));
            let writers = member.api.writers(kind, namespace, name).await.unwrap_or_default().join(", ");
            let message = format!(
                "{} on {} is changed repeatedly by another writer ({writers}); its changes are now reverted with a back-off",
                ObjectKey::of(manifest),
                work_key.0
            );
            if let Some(work) = self.hub.works.get(&names::execution_namespace(&work_key.0), &work_key.1) {
                self.record_event(&work, true, "DriftConflict", &message).await;
            }
        }
        pause
    }

    /// Writes conditions and the member's status to the Work, in one write, if they changed.
    async fn report(
        &self,
        work: &Value,
        dispatching: ConditionUpdate,
        applied: Option<Result<(), String>>,
        observed: Option<&Value>,
    ) -> Result<Requeue, Error> {
        let what = || ObjectKey::of(work).to_string();
        let existing: WorkStatus = Option::deserialize(&work["status"])
            .map_err(|source| Error::Decode { what: what(), source })?
            .unwrap_or_default();
        let mut wanted = existing.clone();
        let now = self.now();
        match applied {
            Some(Ok(())) => conditions::set(
                &mut wanted.conditions,
                ConditionUpdate::new(APPLIED, true, "AppliedSuccessful", "the member has the object"),
                now,
            ),
            Some(Err(why)) => conditions::set(
                &mut wanted.conditions,
                ConditionUpdate::new(APPLIED, false, "AppliedFailed", why),
                now,
            ),
            None => {}
        }
        conditions::set(&mut wanted.conditions, dispatching, now);
        if let Some(observed) = observed.filter(|observed| retain::is_managed(observed)) {
            self.reflect(work, observed, &mut wanted).await;
        }
        if wanted != existing {
            let mut object = work.clone();
            object["status"] = tree("status", &wanted)?;
            self.hub.works.write_through(self.hub.api.replace_status(&kinds::WORK, &object).await?);
        }
        Ok(Requeue::OnChange)
    }

    async fn reflect(&self, work: &Value, observed: &Value, wanted: &mut WorkStatus) {
        let interpreter = self.interpreter();
        let key = ObjectKey::of(observed);
        let status = match interpreter.reflect_status(observed) {
            Ok(status) => status,
            Err(error) => {
                self.record_event(work, true, "ReflectStatusFailed", &format!("{key}: {error}")).await;
                return;
            }
        };
        let (health, script_error) = interpreter.health(observed);
        if let Some(error) = script_error {
            self.record_event(work, true, "InterpretHealthFailed", &format!("{key}: {error}")).await;
        }
        let (group, version) = key.api_version.split_once('/').unwrap_or(("", &key.api_version));
        wanted.manifest_statuses = vec![ManifestStatus {
            identifier: ResourceIdentifier {
                ordinal: 0,
                group: Some(group.to_owned()).filter(|group| !group.is_empty()),
                version: version.to_owned(),
                kind: key.kind.clone(),
                namespace: Some(key.namespace.clone()).filter(|namespace| !namespace.is_empty()),
                name: key.name.clone(),
                ..ResourceIdentifier::default()
            },
            status,
            health: Some(health.as_str().to_owned()),
            ..ManifestStatus::default()
        }];
    }

    /// Deletes the object on the member, and removes the finalizer of the Work after the member has confirmed
    /// it.
    async fn finalize_work(&self, cluster: &str, work: &Value) -> Result<Requeue, Error> {
        if !has_finalizer(work, finalizers::karmada::WORK) {
            return Ok(Requeue::OnChange);
        }
        let info = self.cluster(cluster);
        let ready = info.as_ref().is_some_and(|info| info.ready);
        let leaving = info.as_ref().is_none_or(|info| info.candidate.deleting);
        match self.member(cluster).filter(|_| ready) {
            Some(member) => {
                let manifest = &work["spec"]["workload"]["manifests"][0];
                if let Some(kind) = self.kind_on(&member, manifest).await? {
                    let _permit = member.write_permits.acquire().await;
                    if !self.delete_from_member(cluster, &member, &kind, manifest, work).await? {
                        return Ok(Requeue::OnChange); // the member's informer requeues the Work
                    }
                }
            }
            None if leaving && !ready => {
                let message = format!(
                    "{cluster} was removed while it was not reachable: it keeps {}",
                    ObjectKey::of(&work["spec"]["workload"]["manifests"][0])
                );
                self.record_event(work, true, "LeftBehind", &message).await;
                // Events of the Work are deleted with the execution namespace.
                if let Some(cluster) = self.hub.clusters.get("", cluster) {
                    self.record_event(&cluster, true, "LeftBehind", LEFT_BEHIND).await;
                }
            }
            None => return Ok(Requeue::OnChange), // its readiness or connection requeues the Work
        }
        let patch = json!({"metadata": {
            "uid": object::meta(work, "uid"),
            "resourceVersion": object::meta(work, "resourceVersion"),
            "finalizers": without_finalizer(work, finalizers::karmada::WORK),
        }});
        match self
            .hub
            .api
            .patch(&kinds::WORK, object::meta(work, "namespace"), object::meta(work, "name"), &patch)
            .await
        {
            Ok(answer) => {
                self.hub.works.finalizer_removed(answer);
                Ok(Requeue::OnChange)
            }
            Err(error) if error.kind == ApiErrorKind::NotFound => Ok(Requeue::OnChange),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes the member's object, or removes the federation's labels and annotations if the object is
    /// preserved. True when that is done.
    async fn delete_from_member(
        &self,
        cluster: &str,
        member: &Member,
        kind: &ResourceKind,
        manifest: &Value,
        work: &Value,
    ) -> Result<bool, Error> {
        let (namespace, name) = (object::meta(manifest, "namespace"), object::meta(manifest, "name"));
        // An uncached read: only the member itself can confirm the deletion.
        let informer = member.informer(kind);
        let Some(observed) = member.api.get(kind, namespace, name).await? else { return Ok(true) };
        let ours = retain::is_managed(&observed)
            && retain::is_of_work(&observed, cluster, object::meta(work, "name"));
        if !ours {
            return Ok(true);
        }
        if work["spec"]["preserveResourcesOnDeletion"] == true {
            informer.write_through(member.api.replace(kind, &retain::released(&observed)).await?);
            return Ok(true);
        }
        if !object::is_deleting(&observed) {
            if member.api.delete(kind, namespace, name, object::meta(&observed, "uid")).await? {
                return Ok(true);
            }
            let live = member.api.get(kind, namespace, name).await?;
            if live.is_none_or(|live| live["metadata"]["uid"] != observed["metadata"]["uid"]) {
                return Ok(true);
            }
        }
        // A synced informer reports the deletion; before its first list it could miss it, so the key is
        // retried.
        if !informer.is_synced() {
            return Err(Error::Waiting(format!(
                "{} is terminating on {cluster}, and its informer is not synced",
                ObjectKey::of(manifest)
            )));
        }
        Ok(false)
    }
}

enum Applied {
    /// The member has the object.
    Present(Arc<Value>),
    /// The member rejects the object, and a retry cannot succeed.
    Refused(String),
    /// To be reconciled after a delay.
    Deferred(Duration),
}
