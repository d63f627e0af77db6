//! A Work: the object on the member, brought to the manifest, and what the member says about it.
//!
//! Reads   the Work, its Cluster, the member's object
//! Writes  the member's object: one write, only when something differs · the Work: status, and its finalizer once the
//!         member has confirmed that the object is gone
//!
//! Nothing is taken from a member because it is out of sight. While a member is not ready its Works wait, and are all
//! looked at again the moment it is.

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
use crate::conditions::{self, Fact};
use crate::error::Error;
use crate::interpreter::Target;
use crate::member::Member;
use crate::names;
use crate::object::{self, Identity};
use crate::planes::{Fault, Kind};
use crate::queue::Outcome;
use crate::retain::{self, Written};
use crate::world::{Key, World, kinds};

/// Hand edits undone within [`FIGHT_WINDOW`] before they are undone more slowly.
const FIGHT_AFTER: u32 = 5;
/// How long an undone hand edit is remembered.
const FIGHT_WINDOW: Duration = Duration::from_secs(60);
/// Longest time that a hand edit may stand in a fight.
const FIGHT_MOST: Duration = Duration::from_secs(300);

/// How long objects wait for the first list of their kind on a member before they are asked for one by one.
const LIST_WITHIN: Duration = Duration::from_secs(5);

/// What is said of a member that leaves and cannot be asked to give anything back.
const LEFT_BEHIND: &str =
    "the member left while it was not reachable: it keeps the copies that it has, with their marks";

/// How often a hand edit was undone.
#[derive(Debug)]
pub(crate) struct Fight {
    count: u32,
    last: Instant,
}

impl World {
    pub(super) async fn settle_work(&self, cluster: &str, name: &str) -> Result<Outcome, Error> {
        let namespace = names::execution_namespace(cluster);
        let Some(work) = self.hub.works.get(&namespace, name) else { return Ok(Outcome::Settled) };
        if object::is_deleting(&work) {
            return self.withdraw_work(cluster, &work).await;
        }
        if self.is_bereft(&work).await? {
            self.delete_work(&work).await?;
            return Ok(Outcome::Settled); // its end leads back here
        }
        let facts = self.cluster(cluster);
        let ready = facts.as_ref().is_some_and(|facts| facts.ready && !facts.candidate.deleting);
        let suspended = work["spec"]["suspendDispatching"] == true;
        let dispatching = if suspended {
            Fact::new(DISPATCHING, false, "SuspendDispatching", "changes are held back")
        } else {
            Fact::new(DISPATCHING, true, "Dispatching", "changes are sent to the member")
        };
        let Some(member) = self.member(cluster).filter(|_| ready) else {
            // Its return brings us back; until then only what is known here is said.
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
        let _place = member.gate.acquire().await;
        let observed = self.observe(&member, &kind, &manifest).await?;
        if suspended {
            return self.report(&work, dispatching, None, observed.as_deref()).await;
        }
        match self.apply(cluster, name, &member, &kind, &manifest, observed.clone()).await {
            Ok(Applied::Stands(object)) => self.report(&work, dispatching, Some(Ok(())), Some(&object)).await,
            Ok(Applied::Refused(why)) => {
                self.tell(&work, true, "SyncFailed", &why).await;
                self.report(&work, dispatching, Some(Err(why)), observed.as_deref()).await
            }
            Ok(Applied::Later(pause)) => {
                self.report(&work, dispatching, None, observed.as_deref()).await?;
                Ok(Outcome::After(pause))
            }
            Err(error) => {
                // The story goes onto the Work; the key comes again.
                if !matches!(error.fault(), Some(Fault::Conflict | Fault::AlreadyExists)) {
                    self.report(&work, dispatching, Some(Err(error.to_string())), observed.as_deref())
                        .await?;
                }
                if error.fault() == Some(Fault::Unreachable) {
                    self.queue.add(Key::Cluster(cluster.to_owned()));
                }
                Err(error)
            }
        }
    }

    /// Whether the binding of a Work is gone for certain. A binding lets its Works go before itself; but the last write of
    /// a federation that ended may arrive after the next one has done that.
    async fn is_bereft(&self, work: &Value) -> Result<bool, Error> {
        let Some(Key::Binding(namespace, name)) = World::binding_of(work) else { return Ok(false) };
        let id = binding_id(work);
        let at = namespace.as_deref().unwrap_or_default();
        let parent = |binding: &Value| binding_id(binding) == id;
        if self.bindings(namespace.as_deref()).get(at, &name).is_some_and(|binding| parent(&binding)) {
            return Ok(false);
        }
        // Out of sight is not gone: only the hub itself knows.
        let there = self.hub.api.get(&binding_kind(namespace.as_deref()), at, &name).await?;
        Ok(!there.as_ref().is_some_and(parent))
    }

    /// How a member knows the kind of a manifest. The hub's word is taken first; a kind that left the hub is asked for.
    async fn kind_on(&self, member: &Member, manifest: &Value) -> Result<Option<Kind>, Error> {
        let target = Target::of(manifest);
        if target == kinds::NAMESPACE.target() {
            return Ok(Some(kinds::NAMESPACE));
        }
        if let Some(mirror) = self.templates(&target) {
            return Ok(Some(mirror.kind().clone()));
        }
        Ok(member.api.find_kind(&target).await?)
    }

    /// The member's object: from the mirror, or asked for while the mirror is not complete.
    async fn observe(
        &self,
        member: &Member,
        kind: &Kind,
        manifest: &Value,
    ) -> Result<Option<Arc<Value>>, Error> {
        let (namespace, name) = (object::meta(manifest, "namespace"), object::meta(manifest, "name"));
        let mirror = member.mirror(kind);
        // One list instead of a question for each object; but a list that does not come holds nobody up for long.
        let left = LIST_WITHIN.saturating_sub(mirror.age());
        if mirror.is_synced() || tokio::time::timeout(left, mirror.synced()).await.is_ok() {
            return Ok(mirror.get(namespace, name));
        }
        Ok(member.api.get(kind, namespace, name).await?.map(Arc::new))
    }

    async fn apply(
        &self,
        cluster: &str,
        work: &str,
        member: &Member,
        kind: &Kind,
        manifest: &Value,
        observed: Option<Arc<Value>>,
    ) -> Result<Applied, Error> {
        let mirror = member.mirror(kind);
        let digest = retain::digest(manifest);
        let place = (cluster.to_owned(), work.to_owned());
        let Some(observed) = observed else {
            let created = match member.api.create(kind, manifest).await {
                Ok(created) => created,
                Err(error) if error.fault == Fault::AlreadyExists => {
                    // The mirror is behind: learn what is there, and look again.
                    let (namespace, name) =
                        (object::meta(manifest, "namespace"), object::meta(manifest, "name"));
                    if let Some(there) = member.api.get(kind, namespace, name).await? {
                        mirror.learn(there);
                    }
                    return Err(error.into());
                }
                Err(error) if error.fault == Fault::Invalid => {
                    return Ok(Applied::Refused(error.to_string()));
                }
                Err(error) => return Err(error.into()),
            };
            self.written
                .lock()
                .insert(place, Written { manifest: digest, version: retain::version(&created) });
            return Ok(Applied::Stands(mirror.absorb(created)));
        };
        if object::is_deleting(&observed) {
            return Ok(Applied::Stands(observed)); // it is made anew when it is gone
        }
        if !retain::is_managed(&observed)
            && object::annotation(manifest, annotations::karmada::CONFLICT_RESOLUTION) != "overwrite"
        {
            return Ok(Applied::Refused(format!(
                "{} exists on {cluster} and is not managed by the federation; set conflictResolution: Overwrite to take it over",
                Identity::of(manifest)
            )));
        }
        let merged = retain::merge(manifest.clone(), &observed);
        let mut merged = match self.interpreter().retain(merged, &observed) {
            Ok(merged) => merged,
            Err(error) => {
                return Ok(Applied::Refused(format!(
                    "failed to retain fields of {}: {error}",
                    Identity::of(manifest)
                )));
            }
        };
        let written = self.written.lock().get(&place).cloned();
        if !retain::differs(&merged, &observed, digest, written.as_ref()) {
            return Ok(Applied::Stands(observed));
        }
        let drifted = written.is_some_and(|written| written.manifest == digest);
        if drifted && let Some(pause) = self.fight(&place, member, kind, manifest).await {
            return Ok(Applied::Later(pause));
        }
        // A status is not ours to write; kinds without a status subresource would lose it.
        if let Some(status) = observed.get("status") {
            merged["status"] = status.clone();
        }
        let answer = match member.api.replace(kind, &merged).await {
            Ok(answer) => answer,
            Err(error) if error.fault == Fault::Invalid => return Ok(Applied::Refused(error.to_string())),
            Err(error) => return Err(error.into()),
        };
        self.written.lock().insert(place, Written { manifest: digest, version: retain::version(&answer) });
        Ok(Applied::Stands(mirror.absorb(answer)))
    }

    /// Someone edits what we undo. The first times it is undone at once; then more and more slowly, and the other is named.
    async fn fight(
        &self,
        place: &(String, String),
        member: &Member,
        kind: &Kind,
        manifest: &Value,
    ) -> Option<Duration> {
        let now = Instant::now();
        let (count, pause) = {
            let mut fights = self.fights.lock();
            let fight = fights.entry(place.clone()).or_insert(Fight { count: 0, last: now });
            let pause =
                Duration::from_secs(1 << fight.count.saturating_sub(FIGHT_AFTER).min(9)).min(FIGHT_MOST);
            let since = now.duration_since(fight.last);
            if since > FIGHT_WINDOW.max(pause * 2) {
                fight.count = 0;
            }
            if fight.count >= FIGHT_AFTER && since < pause {
                (fight.count, Some(pause - since))
            } else {
                fight.count += 1;
                fight.last = now;
                (fight.count, None)
            }
        };
        if count == FIGHT_AFTER {
            let (namespace, name) = (object::meta(manifest, "namespace"), object::meta(manifest, "name"));
            let writers = member.api.writers(kind, namespace, name).await.unwrap_or_default().join(", ");
            let message = format!(
                "{} on {} is changed again and again by another writer ({writers}); changes are undone more slowly now",
                Identity::of(manifest),
                place.0
            );
            if let Some(work) = self.hub.works.get(&names::execution_namespace(&place.0), &place.1) {
                self.tell(&work, true, "FightOverObject", &message).await;
            }
        }
        pause
    }

    /// Writes what is known onto the Work: conditions and the member's status, in one write, if anything changed.
    async fn report(
        &self,
        work: &Value,
        dispatching: Fact,
        applied: Option<Result<(), String>>,
        observed: Option<&Value>,
    ) -> Result<Outcome, Error> {
        let what = || Identity::of(work).to_string();
        let standing: WorkStatus = Option::deserialize(&work["status"])
            .map_err(|source| Error::Decode { what: what(), source })?
            .unwrap_or_default();
        let mut wanted = standing.clone();
        let now = self.now();
        match applied {
            Some(Ok(())) => conditions::set(
                &mut wanted.conditions,
                Fact::new(APPLIED, true, "AppliedSuccessful", "the member has the object"),
                now,
            ),
            Some(Err(why)) => {
                conditions::set(&mut wanted.conditions, Fact::new(APPLIED, false, "AppliedFailed", why), now)
            }
            None => {}
        }
        conditions::set(&mut wanted.conditions, dispatching, now);
        if let Some(observed) = observed.filter(|observed| retain::is_managed(observed)) {
            self.reflect(work, observed, &mut wanted).await;
        }
        if wanted != standing {
            let mut object = work.clone();
            object["status"] = tree("status", &wanted)?;
            self.hub.works.learn(self.hub.api.replace_status(&kinds::WORK, &object).await?);
        }
        Ok(Outcome::Settled)
    }

    async fn reflect(&self, work: &Value, observed: &Value, wanted: &mut WorkStatus) {
        let interpreter = self.interpreter();
        let identity = Identity::of(observed);
        let status = match interpreter.reflect_status(observed) {
            Ok(status) => status,
            Err(error) => {
                self.tell(work, true, "ReflectStatusFailed", &format!("{identity}: {error}")).await;
                return;
            }
        };
        let (health, trouble) = interpreter.health(observed);
        if let Some(error) = trouble {
            self.tell(work, true, "InterpretHealthFailed", &format!("{identity}: {error}")).await;
        }
        let (group, version) = identity.api_version.split_once('/').unwrap_or(("", &identity.api_version));
        wanted.manifest_statuses = vec![ManifestStatus {
            identifier: ResourceIdentifier {
                ordinal: 0,
                group: Some(group.to_owned()).filter(|group| !group.is_empty()),
                version: version.to_owned(),
                kind: identity.kind.clone(),
                namespace: Some(identity.namespace.clone()).filter(|namespace| !namespace.is_empty()),
                name: identity.name.clone(),
                ..ResourceIdentifier::default()
            },
            status,
            health: Some(health.as_str().to_owned()),
            ..ManifestStatus::default()
        }];
    }

    /// Takes the object from the member, and lets the Work go once the member confirms.
    async fn withdraw_work(&self, cluster: &str, work: &Value) -> Result<Outcome, Error> {
        if !has_finalizer(work, finalizers::karmada::WORK) {
            return Ok(Outcome::Settled);
        }
        let facts = self.cluster(cluster);
        let ready = facts.as_ref().is_some_and(|facts| facts.ready);
        let leaving = facts.as_ref().is_none_or(|facts| facts.candidate.deleting);
        match self.member(cluster).filter(|_| ready) {
            Some(member) => {
                let manifest = &work["spec"]["workload"]["manifests"][0];
                if let Some(kind) = self.kind_on(&member, manifest).await? {
                    let _place = member.gate.acquire().await;
                    if !self.take_back(cluster, &member, &kind, manifest, work).await? {
                        return Ok(Outcome::Settled); // the member's mirror brings us back
                    }
                }
            }
            None if leaving && !ready => {
                let message = format!(
                    "{cluster} left while it was not reachable: it keeps {}",
                    Identity::of(&work["spec"]["workload"]["manifests"][0])
                );
                self.tell(work, true, "LeftBehind", &message).await;
                // What is said of the Work goes with the namespace of the member.
                if let Some(cluster) = self.hub.clusters.get("", cluster) {
                    self.tell(&cluster, true, "LeftBehind", LEFT_BEHIND).await;
                }
            }
            None => return Ok(Outcome::Settled), // its return, or the connection to it, brings us back
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
                self.hub.works.release(answer);
                Ok(Outcome::Settled)
            }
            Err(error) if error.fault == Fault::NotFound => Ok(Outcome::Settled),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes the member's object, or strips our marks where it is to be kept. True once that is done.
    async fn take_back(
        &self,
        cluster: &str,
        member: &Member,
        kind: &Kind,
        manifest: &Value,
        work: &Value,
    ) -> Result<bool, Error> {
        let (namespace, name) = (object::meta(manifest, "namespace"), object::meta(manifest, "name"));
        // Asked for, not remembered: the finalizer goes only on the member's own word.
        let mirror = member.mirror(kind);
        let Some(observed) = member.api.get(kind, namespace, name).await? else { return Ok(true) };
        let ours = retain::is_managed(&observed)
            && retain::is_of_work(&observed, cluster, object::meta(work, "name"));
        if !ours {
            return Ok(true);
        }
        if work["spec"]["preserveResourcesOnDeletion"] == true {
            mirror.learn(member.api.replace(kind, &retain::released(&observed)).await?);
            return Ok(true);
        }
        if !object::is_deleting(&observed) {
            if member.api.delete(kind, namespace, name, object::meta(&observed, "uid")).await? {
                return Ok(true);
            }
            let there = member.api.get(kind, namespace, name).await?;
            if there.is_none_or(|there| there["metadata"]["uid"] != observed["metadata"]["uid"]) {
                return Ok(true);
            }
        }
        // The mirror tells of the end of what it has seen; what may end before its first list is asked for again.
        if !mirror.is_synced() {
            return Err(Error::Waiting(format!(
                "{} is ending on {cluster}, out of sight",
                Identity::of(manifest)
            )));
        }
        Ok(false)
    }
}

enum Applied {
    /// The member has it.
    Stands(Arc<Value>),
    /// The member cannot have it, and trying again changes nothing.
    Refused(String),
    /// To be looked at again after a while.
    Later(Duration),
}
