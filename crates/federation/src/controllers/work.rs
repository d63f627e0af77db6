//! Work controller: applies the manifest of a Work to its member and reports the member's status.
//!
//! Reads   hub: Work, Cluster · member: the object
//! Writes  member: the object, at most one write, only if it differs · hub: Work (status; finalizer, after
//!         the member has confirmed the deletion of the object)
//!
//! An object is never deleted because a member is unreachable. While a member is not ready its Works wait;
//! all of them are requeued when it becomes ready.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use polis_api::annotations;
use polis_api::conditions::karmada::{APPLIED, DISPATCHING};
use polis_api::finalizers;
use polis_api::karmada::{ManifestStatus, ResourceIdentifier, WorkStatus};
use polis_engine::{
    Action, Change, Deletion, Engine, ErrorClass, Key, Kind, Plane, Reconciler, Unresolved, Watch,
};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use super::binding::key_of_origin;
use super::tree;
use crate::conditions::{self, ConditionUpdate};
use crate::error::Error;
use crate::finalizers::has_finalizer;
use crate::hub::{binding_id, binding_kind, spec_changed};
use crate::interpreter::TypeMeta;
use crate::kinds;
use crate::names;
use crate::object::{self, ObjectKey};
use crate::retain::{self, LastApplied};
use crate::shared::Shared;
use crate::works;

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
struct DriftConflict {
    count: u32,
    last: Instant,
}

/// Its keys are Works by member: the plane of a key is the member, and its name that of the Work. So the
/// queue is fair between members.
struct Works {
    shared: Arc<Shared>,
    /// The last write to a member.
    last_applied: Mutex<BTreeMap<Key, LastApplied>>,
    /// Recent corrections of drift.
    drift_conflicts: Mutex<BTreeMap<Key, DriftConflict>>,
}

/// One reconcile: a Work and its member.
#[derive(Clone, Copy)]
struct Dispatch<'a> {
    key: &'a Key,
    work: &'a Arc<Value>,
    member: &'a Plane,
}

pub(super) fn declare(engine: &mut Engine, shared: &Arc<Shared>) {
    let works =
        Works { shared: shared.clone(), last_applied: Mutex::default(), drift_conflicts: Mutex::default() };
    let (hub, members) = (&shared.hub.plane, &shared.planes);
    let (of_clusters, of_members) = (shared.clone(), shared.clone());
    let controller = engine
        .controller("work", members, works)
        .skips_own_writes()
        .watches_untyped(hub, &kinds::WORK, |_, change| {
            // Only this federation writes the status, and the binding aggregates it.
            let name = change.name();
            let member = names::cluster_of_execution_namespace(name.namespace.unwrap_or_default());
            let member = member.filter(|_| spec_changed(change));
            Ok(member.map(|member| Key::cluster(member, name.name)).into_iter().collect())
        })
        .watches_untyped(hub, &kinds::CLUSTER, move |_, change| of_cluster(&of_clusters, change))
        .watches_added(members, move |member, change| {
            let name = change.name();
            let work = names::work(&change.kind().kind, name.namespace.unwrap_or_default(), name.name);
            let space = names::execution_namespace(member.name().as_str());
            let exists = of_members.hub.of(&kinds::WORK).contains((space.as_str(), work.as_str()))?;
            Ok(if exists { vec![Key::cluster(member.name().clone(), &work)] } else { Vec::new() })
        });
    shared.triggers.work.declare(controller);
}

/// All Works of a member that becomes ready or not ready, or begins to leave.
fn of_cluster(shared: &Shared, change: &Change<'_>) -> Result<Vec<Key>, Unresolved> {
    let info = [change.before(), change.after()].map(|object| shared.clusters.info(object));
    let state = info.each_ref().map(|info| {
        let ready = info.as_ref().is_some_and(|info| info.ready);
        (ready, info.as_ref().is_none_or(|info| info.candidate.deleting))
    });
    if state[0] == state[1] {
        return Ok(Vec::new());
    }
    let member = change.name().name;
    let space = names::execution_namespace(member);
    let works = shared.hub.of(&kinds::WORK).list_within(&space)?;
    Ok(works.iter().map(|work| Key::cluster(member, object::meta(work, "name"))).collect())
}

impl Reconciler for Works {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let (shared, cluster) = (&*self.shared, key.plane.as_str());
        let plane = shared.planes.plane(key)?;
        let namespace = names::execution_namespace(cluster);
        let Some(work) = shared.hub.get(&kinds::WORK, &namespace, &key.name)? else {
            self.last_applied.lock().remove(key);
            self.drift_conflicts.lock().remove(key);
            return Ok(Action::AwaitChange);
        };
        let dispatch = Dispatch { key, work: &work, member: &plane };
        if object::is_deleting(&work) {
            self.finalize(dispatch).await?;
            return Ok(Action::AwaitChange);
        }
        if self.is_orphan(&work).await? {
            works::delete(&shared.hub, &work).await?;
            // The own write does not queue the key.
            shared.triggers.work.add(key.clone());
            return Ok(Action::AwaitChange);
        }
        self.dispatch(dispatch).await
    }
}

impl Works {
    /// Sends the manifest to the member and reports the state.
    async fn dispatch(&self, to: Dispatch<'_>) -> Result<Action, Error> {
        let (shared, cluster, work) = (&*self.shared, to.key.plane.as_str(), to.work);
        let info = shared.clusters.get(cluster)?;
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
        let Some(member) = shared.members.get(cluster).filter(|_| ready) else {
            // The member's readiness requeues the Work; until then only the condition Dispatching is
            // reported.
            return self.report(work, dispatching, None, None).await;
        };
        let manifest = &work["spec"]["workload"]["manifests"][0];
        let Some(kind) = self.kind_on(to.member, manifest).await? else {
            let why = format!("{} {} is not served by {cluster}", manifest["apiVersion"], manifest["kind"]);
            return self.report(work, dispatching, Some(Err(why)), None).await;
        };
        let _permit = member.write_permits.acquire().await;
        let observed = observe(to.member, &kind, manifest).await?;
        if suspended {
            return self.report(work, dispatching, None, observed.as_deref()).await;
        }
        match self.apply(to, &kind, manifest, observed.clone()).await {
            Ok(Applied::Present(object)) => self.report(work, dispatching, Some(Ok(())), Some(&object)).await,
            Ok(Applied::Refused(why)) => {
                shared.hub.warn(work, "SyncFailed", &why);
                self.report(work, dispatching, Some(Err(why)), observed.as_deref()).await
            }
            Ok(Applied::Deferred(pause)) => {
                self.report(work, dispatching, None, observed.as_deref()).await?;
                Ok(Action::RequeueAfter(pause))
            }
            Err(error) => {
                // The error is reported on the Work, and the key is retried.
                if !matches!(error.class(), Some(ErrorClass::Conflict | ErrorClass::AlreadyExists)) {
                    self.report(work, dispatching, Some(Err(error.to_string())), observed.as_deref()).await?;
                }
                if error.class() == Some(ErrorClass::Transient) {
                    shared.triggers.cluster.add(shared.hub.key("", cluster));
                }
                Err(error)
            }
        }
    }

    /// Whether the binding of a Work no longer exists. A binding deletes its Works before itself, but the
    /// last write of a stopped federation may arrive after its successor has deleted them.
    async fn is_orphan(&self, work: &Value) -> Result<bool, Error> {
        let hub = &self.shared.hub;
        let Some(origin) = key_of_origin(&hub.plane, work) else { return Ok(false) };
        let id = binding_id(work);
        let parent = |binding: &Value| binding_id(binding) == id;
        if hub.binding(&origin)?.is_some_and(|binding| parent(&binding)) {
            return Ok(false);
        }
        // The cache may lag: the hub decides.
        let live = hub.of(binding_kind(origin.namespace.as_deref())).read(&origin).await?;
        Ok(!live.as_ref().is_some_and(parent))
    }

    /// The kind of a manifest: as the hub serves it, or from the discovery of the member if the hub no longer
    /// does.
    async fn kind_on(&self, member: &Plane, manifest: &Value) -> Result<Option<Arc<Kind>>, Error> {
        let type_meta = TypeMeta::of(manifest);
        if type_meta == kinds::type_meta(&kinds::NAMESPACE) {
            return Ok(Some(Arc::new(kinds::NAMESPACE.clone())));
        }
        if let Some(kind) = self.shared.kinds.get(&type_meta) {
            return Ok(Some(kind));
        }
        Ok(member.uncached().find_kind(&type_meta.api_version, &type_meta.kind).await?.map(Arc::new))
    }

    async fn apply(
        &self,
        to: Dispatch<'_>,
        kind: &Kind,
        manifest: &Value,
        observed: Option<Arc<Value>>,
    ) -> Result<Applied, Error> {
        let objects = to.member.untyped(kind);
        let digest = retain::digest(manifest);
        let observed = match observed {
            Some(observed) => observed,
            None => match objects.create(manifest).await {
                Ok(created) => {
                    self.set_applied(to.key, digest, &created);
                    return Ok(Applied::Present(created));
                }
                Err(error) if error.class() == ErrorClass::Invalid => {
                    return Ok(Applied::Refused(error.to_string()));
                }
                Err(error) if error.is_already_exists() => {
                    // The cache lags: continue with the object on the member.
                    match objects.read(name_of(manifest)).await? {
                        Some(live) => Arc::new(live),
                        None => return Err(error.into()),
                    }
                }
                Err(error) => return Err(error.into()),
            },
        };
        if object::is_deleting(&observed) {
            return Ok(Applied::Present(observed)); // it is created again after its deletion
        }
        if !retain::is_managed(&observed)
            && object::annotation(manifest, annotations::karmada::CONFLICT_RESOLUTION) != "overwrite"
        {
            return Ok(Applied::Refused(format!(
                "{} exists on {} and is not managed by the federation; set conflictResolution: Overwrite to take it over",
                ObjectKey::of(manifest),
                to.key.plane
            )));
        }
        let merged = retain::merge(manifest.clone(), &observed);
        let mut merged = match self.shared.scripts.current().retain(merged, &observed) {
            Ok(merged) => merged,
            Err(error) => {
                return Ok(Applied::Refused(format!(
                    "failed to retain fields of {}: {error}",
                    ObjectKey::of(manifest)
                )));
            }
        };
        let last_applied = self.last_applied.lock().get(to.key).cloned();
        if !retain::differs(&merged, &observed, digest, last_applied.as_ref()) {
            return Ok(Applied::Present(observed));
        }
        let drifted = last_applied.is_some_and(|last_applied| last_applied.manifest == digest);
        if drifted && let Some(pause) = self.record_drift(to, kind, manifest).await {
            return Ok(Applied::Deferred(pause));
        }
        // The status belongs to the member; kinds without a status subresource would lose it.
        if let Some(status) = observed.get("status") {
            merged["status"] = status.clone();
        }
        match objects.update(&merged).await {
            Ok(written) => {
                self.set_applied(to.key, digest, &written);
                Ok(Applied::Present(written))
            }
            Err(error) if error.class() == ErrorClass::Invalid => Ok(Applied::Refused(error.to_string())),
            Err(error) => Err(error.into()),
        }
    }

    fn set_applied(&self, key: &Key, manifest: u64, written: &Value) {
        let version = retain::version(written);
        self.last_applied.lock().insert(key.clone(), LastApplied { manifest, version });
    }

    /// Records a correction of drift. The first [`DRIFT_LIMIT`] are made at once; further ones back off, and
    /// an event names the other writer.
    async fn record_drift(&self, to: Dispatch<'_>, kind: &Kind, manifest: &Value) -> Option<Duration> {
        let now = Instant::now();
        let (count, pause) = {
            let mut drift_conflicts = self.drift_conflicts.lock();
            let record_drift =
                drift_conflicts.entry(to.key.clone()).or_insert(DriftConflict { count: 0, last: now });
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
            let writers = to.member.untyped(kind).field_managers(name_of(manifest)).await;
            let writers = writers.unwrap_or_default().join(", ");
            let message = format!(
                "{} on {} is changed repeatedly by another writer ({writers}); its changes are now reverted with a back-off",
                ObjectKey::of(manifest),
                to.key.plane
            );
            self.shared.hub.warn(to.work, "DriftConflict", &message);
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
    ) -> Result<Action, Error> {
        let what = || ObjectKey::of(work).to_string();
        let existing: WorkStatus = Option::deserialize(&work["status"])
            .map_err(|source| Error::Decode { what: what(), source })?
            .unwrap_or_default();
        let mut wanted = existing.clone();
        let now = self.shared.hub.now();
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
            self.reflect(work, observed, &mut wanted);
        }
        if wanted != existing {
            let mut object = work.clone();
            object["status"] = tree("status", &wanted)?;
            self.shared.hub.of(&kinds::WORK).update_status(&object).await?;
        }
        Ok(Action::AwaitChange)
    }

    fn reflect(&self, work: &Value, observed: &Value, wanted: &mut WorkStatus) {
        let interpreter = self.shared.scripts.current();
        let key = ObjectKey::of(observed);
        let status = match interpreter.reflect_status(observed) {
            Ok(status) => status,
            Err(error) => {
                self.shared.hub.warn(work, "ReflectStatusFailed", &format!("{key}: {error}"));
                return;
            }
        };
        let (health, script_error) = interpreter.health(observed);
        if let Some(error) = script_error {
            self.shared.hub.warn(work, "InterpretHealthFailed", &format!("{key}: {error}"));
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
    async fn finalize(&self, of: Dispatch<'_>) -> Result<(), Error> {
        let (shared, cluster, work) = (&*self.shared, of.key.plane.as_str(), of.work);
        if !has_finalizer(work, finalizers::karmada::WORK) {
            return Ok(());
        }
        let info = shared.clusters.get(cluster)?;
        let ready = info.as_ref().is_some_and(|info| info.ready);
        let leaving = info.as_ref().is_none_or(|info| info.candidate.deleting);
        match shared.members.get(cluster).filter(|_| ready) {
            Some(member) => {
                let manifest = &work["spec"]["workload"]["manifests"][0];
                if let Some(kind) = self.kind_on(of.member, manifest).await? {
                    let _permit = member.write_permits.acquire().await;
                    if !self.delete_from_member(of, &kind, manifest).await? {
                        return Ok(()); // the watch of the member requeues the Work
                    }
                }
            }
            None if leaving && !ready => abandon(shared, cluster, work)?,
            None => return Ok(()), // its readiness or connection requeues the Work
        }
        works::release(&shared.hub, work).await
    }

    /// Deletes the member's object, or removes the federation's labels and annotations if the object is
    /// preserved. True when that is done.
    async fn delete_from_member(
        &self,
        of: Dispatch<'_>,
        kind: &Kind,
        manifest: &Value,
    ) -> Result<bool, Error> {
        let (objects, name) = (of.member.untyped(kind), name_of(manifest));
        // Started before the deletion: it reports when the object is gone.
        watch(of.member, kind)?;
        // An uncached read: only the member itself can confirm the deletion.
        let Some(observed) = objects.read(name).await? else { return Ok(true) };
        let ours = retain::is_managed(&observed)
            && retain::is_of_work(&observed, of.key.plane.as_str(), &of.key.name);
        if !ours {
            return Ok(true);
        }
        if of.work["spec"]["preserveResourcesOnDeletion"] == true {
            objects.update(&retain::released(&observed)).await?;
            return Ok(true);
        }
        if !object::is_deleting(&observed) {
            let uid = object::meta(&observed, "uid");
            match objects.delete(name, uid).await {
                Ok(Deletion::Complete) => return Ok(true),
                Ok(Deletion::Pending) => {}
                Err(error) if error.is_conflict() => {} // another object has the name
                Err(error) => return Err(error.into()),
            }
            let live = objects.read(name).await?;
            if live.is_none_or(|live| live["metadata"]["uid"] != *uid) {
                return Ok(true);
            }
        }
        // A synced watch reports the deletion; before its first list it could miss it, so the key is retried.
        if !of.member.is_synced(kind) {
            return Err(Error::Waiting(format!(
                "{} is terminating on {}, and its kind is not synced",
                ObjectKey::of(manifest),
                of.key.plane
            )));
        }
        Ok(false)
    }
}

/// Records that a member keeps an object, because it was removed while it was not reachable.
pub(super) fn abandon(shared: &Shared, cluster: &str, work: &Value) -> Result<(), Error> {
    let message = format!(
        "{cluster} was removed while it was not reachable: it keeps {}",
        ObjectKey::of(&work["spec"]["workload"]["manifests"][0])
    );
    shared.hub.warn(work, "LeftBehind", &message);
    // Events of the Work are deleted with the execution namespace.
    if let Some(cluster) = shared.hub.get(&kinds::CLUSTER, "", cluster)? {
        shared.hub.warn(&cluster, "LeftBehind", LEFT_BEHIND);
    }
    Ok(())
}

/// Watches a kind on a member.
fn watch(member: &Plane, kind: &Kind) -> Result<(), Error> {
    Ok(member.add_watch(Watch::kind(kind.clone()).keep_decoded())?)
}

/// The member's object: from the cache, or by a request while the kind is not synced.
async fn observe(member: &Plane, kind: &Kind, manifest: &Value) -> Result<Option<Arc<Value>>, Error> {
    watch(member, kind)?;
    let objects = member.untyped(kind);
    // One list replaces a request per object; the timeout limits the wait for a slow list.
    if member.is_synced(kind)
        || tokio::time::timeout(LIST_TIMEOUT, member.wait_until_synced(kind)).await.is_ok()
    {
        return Ok(objects.get(name_of(manifest))?);
    }
    Ok(objects.read(name_of(manifest)).await?.map(Arc::new))
}

fn name_of(manifest: &Value) -> (&str, &str) {
    (object::meta(manifest, "namespace"), object::meta(manifest, "name"))
}

enum Applied {
    /// The member has the object.
    Present(Arc<Value>),
    /// The member rejects the object, and a retry cannot succeed.
    Refused(String),
    /// To be reconciled after a delay.
    Deferred(Duration),
}
