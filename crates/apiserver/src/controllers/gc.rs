//! Garbage collector: deletes objects whose owners are gone; implements foreground deletion and orphaning.
//!
//! Reads   owner references of all objects
//! Writes  deletes of dependents; owner references; the finalizers `orphan` and `foregroundDeletion`
//!
//! The collector looks up owners in the store by kind, name and uid, so it never mistakes a stale cache for
//! an absent owner. If the plane does not serve the kind of an owner, it keeps the dependents: the kind may
//! be served again.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use polis_apimachinery::object;
use serde_json::Value;

use super::{StoreKey, WorkItem};
use crate::{
    plane::Plane,
    route::Verb,
    server::Core,
    status::StatusError,
    store::{ChangeType, Event, OwnerReference, PartialMeta},
    verbs::{Call, DeleteOptions, Propagation},
};

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// The dependency graph, by plane and uid of the owner.
#[derive(Default)]
pub(super) struct Graph {
    dependents: BTreeMap<(Arc<str>, String), BTreeSet<StoreKey>>,
    owners: BTreeMap<StoreKey, Vec<String>>,
}

impl Graph {
    /// Updates the graph after a write and enqueues the affected objects.
    pub(super) fn observe(&mut self, key: &StoreKey, event: &Event, enqueue: &mut dyn FnMut(WorkItem)) {
        let plane = key.0.plane.clone();
        let known = self.owners.remove(key).unwrap_or_default();
        for uid in &known {
            let owner = (plane.clone(), uid.clone());
            if let Some(keys) = self.dependents.get_mut(&owner) {
                keys.remove(key);
                if keys.is_empty() {
                    self.dependents.remove(&owner);
                }
            }
        }
        match event.change {
            ChangeType::Put => {
                if event.object.contains(b"\"ownerReferences\"") {
                    let references = event.object.partial_meta().owner_references;
                    let owners: Vec<String> = references.into_iter().map(|reference| reference.uid).collect();
                    for uid in &owners {
                        self.dependents.entry((plane.clone(), uid.clone())).or_default().insert(key.clone());
                    }
                    if !owners.is_empty() {
                        self.owners.insert(key.clone(), owners);
                        enqueue(WorkItem::Dependent(key.clone()));
                    }
                }
                if event.object.contains(b"\"deletionTimestamp\"")
                    && (event.object.contains(b"\"orphan\"")
                        || event.object.contains(b"\"foregroundDeletion\""))
                {
                    enqueue(WorkItem::Owner(key.clone()));
                    self.each_dependent(&plane, &event.object.partial_meta().uid, |dependent| {
                        enqueue(WorkItem::Dependent(dependent.clone()))
                    });
                }
            }
            ChangeType::Delete => {
                let deleted = event.object.partial_meta();
                self.each_dependent(&plane, &deleted.uid, |dependent| {
                    enqueue(WorkItem::Dependent(dependent.clone()))
                });
                // Its owner may wait for it in foreground deletion.
                let path = event.path.as_ref();
                for reference in &deleted.owner_references {
                    enqueue(WorkItem::Owner(owner_hint(key, path, reference)));
                }
            }
        }
    }

    fn each_dependent(&self, plane: &Arc<str>, uid: &str, mut each: impl FnMut(&StoreKey)) {
        self.dependents.get(&(plane.clone(), uid.to_owned())).into_iter().flatten().for_each(&mut each);
    }

    fn dependents(&self, plane: &Arc<str>, uid: &str) -> Vec<StoreKey> {
        self.dependents.get(&(plane.clone(), uid.to_owned())).into_iter().flatten().cloned().collect()
    }
}

/// An unresolved key of an owner: the resource is `?group/kind`. [`resolve`] turns it into a store key when
/// the item is reconciled.
fn owner_hint(dependent: &StoreKey, path: &str, reference: &OwnerReference) -> StoreKey {
    let mut collection = dependent.0.clone();
    collection.resource = format!("?{}/{}", reference.group(), reference.kind).into();
    let path = path
        .split_once('/')
        .map_or_else(|| reference.name.clone(), |(namespace, _)| format!("{namespace}/{}", reference.name));
    (collection, path.into())
}

/// The result of an owner lookup.
enum Owner {
    /// It exists with the uid of the reference.
    Present(PartialMeta),
    /// It does not exist, or has another uid.
    Absent,
    /// Its kind is not served, or a cluster-scoped dependent refers to a namespaced owner.
    Unknown,
}

fn find_owner(core: &Core, plane: &Plane, namespace: Option<&str>, reference: &OwnerReference) -> Owner {
    let kinds = plane.catalogue.kinds();
    let Some(kind) = kinds.find_kind(reference.group(), &reference.kind) else { return Owner::Unknown };
    let path = match (kind.namespaced, namespace) {
        (true, Some(namespace)) => format!("{namespace}/{}", reference.name),
        (true, None) => return Owner::Unknown,
        (false, _) => reference.name.clone(),
    };
    match core.store.view().get(&kind.collection(&plane.name), &path).map(|stored| stored.partial_meta()) {
        Some(owner) if owner.uid == reference.uid => Owner::Present(owner),
        _ => Owner::Absent,
    }
}

fn waits_for_dependents(owner: &PartialMeta) -> bool {
    owner.is_deleting() && owner.has_finalizer(FOREGROUND)
}

fn split(path: &str) -> (Option<&str>, &str) {
    path.split_once('/').map_or((None, path), |(namespace, name)| (Some(namespace), name))
}

/// Deletes a dependent without remaining owners, or removes its references to absent owners.
pub(super) async fn reconcile_dependent(core: &Arc<Core>, key: &StoreKey) -> Result<(), StatusError> {
    let (collection, path) = key;
    let Some(plane) = core.plane(&collection.plane) else { return Ok(()) };
    let Some(stored) = core.store.view().get(collection, path) else { return Ok(()) };
    let meta = stored.partial_meta();
    let (namespace, name) = split(path);
    let (mut present, mut absent, mut waiting) = (0, Vec::new(), Vec::new());
    for reference in &meta.owner_references {
        match find_owner(core, &plane, namespace, reference) {
            Owner::Unknown => return Ok(()),
            Owner::Absent => absent.push(reference.uid.clone()),
            Owner::Present(owner) if waits_for_dependents(&owner) => waiting.push(reference.uid.clone()),
            Owner::Present(_) => present += 1,
        }
    }
    if absent.is_empty() && waiting.is_empty() {
        return Ok(());
    }
    if present > 0 {
        return detach(core, key, &[absent, waiting].concat()).await;
    }
    if meta.is_deleting() {
        return Ok(());
    }
    let kinds = plane.catalogue.kinds();
    let Some(kind) = kinds.find_resource(&collection.resource) else { return Ok(()) };
    // A dependent of an owner in foreground deletion is deleted in the foreground too. Otherwise the object's
    // own finalizers determine the policy.
    let propagation = if !waiting.is_empty() {
        Some(Propagation::Foreground)
    } else if meta.has_finalizer(ORPHAN) || meta.has_finalizer(FOREGROUND) {
        None
    } else {
        Some(Propagation::Background)
    };
    let call = Call::internal(core, &plane, kind, Verb::Delete, namespace, Some(name));
    let options = DeleteOptions {
        uid: Some(meta.uid),
        resource_version: Some(stored.revision().to_string()),
        propagation,
    };
    match call.delete_object(name, &options).await {
        Err(failure) if !matches!(failure.code, 404 | 409) => Err(failure),
        // Changed or deleted concurrently: that write has enqueued it again.
        _ => Ok(()),
    }
}

/// Removes owner references from an object.
async fn detach(core: &Arc<Core>, key: &StoreKey, uids: &[String]) -> Result<(), StatusError> {
    let edit = |object: &mut Value| {
        let left: Vec<Value> = object["metadata"]["ownerReferences"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|reference| !uids.iter().any(|uid| reference["uid"] == uid.as_str()))
            .cloned()
            .collect();
        object::set_meta(object, "ownerReferences", (!left.is_empty()).then(|| left.into()));
    };
    core.rewrite(&key.0, &key.1, edit).await.map(drop)
}

/// Finishes the deletion of an owner: orphans its dependents, or removes `foregroundDeletion` when no
/// blocking dependent is left.
pub(super) async fn reconcile_owner(
    core: &Arc<Core>,
    graph: &Graph,
    key: &StoreKey,
) -> Result<(), StatusError> {
    let Some(key) = resolve(core, key) else { return Ok(()) };
    let Some(plane) = core.plane(&key.0.plane) else { return Ok(()) };
    let Some(stored) = core.store.view().get(&key.0, &key.1) else { return Ok(()) };
    let meta = stored.partial_meta();
    if !meta.is_deleting() {
        return Ok(());
    }
    if meta.has_finalizer(ORPHAN) {
        for dependent in graph.dependents(&key.0.plane, &meta.uid) {
            detach(core, &dependent, std::slice::from_ref(&meta.uid)).await?;
        }
        return release(core, &plane, &key, ORPHAN).await;
    }
    if meta.has_finalizer(FOREGROUND) {
        let blocked = graph.dependents(&key.0.plane, &meta.uid).iter().any(|(collection, path)| {
            core.store.view().get(collection, path).is_some_and(|stored| {
                let references = stored.partial_meta().owner_references;
                references.iter().any(|owner| owner.uid == meta.uid && owner.block_owner_deletion)
            })
        });
        if !blocked {
            return release(core, &plane, &key, FOREGROUND).await;
        }
    }
    Ok(())
}

/// The store key of an owner, from a key made by [`owner_hint`].
fn resolve(core: &Core, key: &StoreKey) -> Option<StoreKey> {
    let (collection, path) = key;
    let Some(hint) = collection.resource.strip_prefix('?') else { return Some(key.clone()) };
    let (group, kind) = hint.split_once('/')?;
    let plane = core.plane(&collection.plane)?;
    let kinds = plane.catalogue.kinds();
    let kind = kinds.find_kind(group, kind)?;
    let path = if kind.namespaced { path.clone() } else { split(path).1.into() };
    Some((kind.collection(&plane.name), path))
}

/// Removes a finalizer from an object. The object is deleted if it was the last one.
async fn release(
    core: &Arc<Core>,
    plane: &Arc<Plane>,
    key: &StoreKey,
    finalizer: &str,
) -> Result<(), StatusError> {
    let kinds = plane.catalogue.kinds();
    let Some(kind) = kinds.find_resource(&key.0.resource) else { return Ok(()) };
    let (namespace, name) = split(&key.1);
    let call = Call::internal(core, plane, kind, Verb::Update, namespace, Some(name));
    call.remove_finalizer(finalizer).await
}
