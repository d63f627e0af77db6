//! The garbage collector: what lost its last owner goes.
//!
//! Owners are looked up in the store itself, by kind, name and uid, so absence is a fact and never a guess. An owner of
//! a kind that the plane does not serve is left alone: it may be served again.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::Value;

use super::{Place, Work};
use crate::{
    json,
    plane::Plane,
    route::Verb,
    server::Core,
    status::Failure,
    store::{Change, Event, Head, OwnerReference},
    verbs::{Call, DeleteOptions, Propagation},
};

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// Who depends on whom, by plane and uid of the owner.
#[derive(Default)]
pub(super) struct Graph {
    dependents: BTreeMap<(Arc<str>, String), BTreeSet<Place>>,
    owners: BTreeMap<Place, Vec<String>>,
}

impl Graph {
    /// Takes notice of a write.
    pub(super) fn note(&mut self, place: &Place, event: &Event, enqueue: &mut dyn FnMut(Work)) {
        let plane = place.0.plane.clone();
        let known = self.owners.remove(place).unwrap_or_default();
        for uid in &known {
            let key = (plane.clone(), uid.clone());
            if let Some(places) = self.dependents.get_mut(&key) {
                places.remove(place);
                if places.is_empty() {
                    self.dependents.remove(&key);
                }
            }
        }
        match event.change {
            Change::Put => {
                if event.object.contains(b"\"ownerReferences\"") {
                    let references = event.object.head().owner_references;
                    let owners: Vec<String> = references.into_iter().map(|reference| reference.uid).collect();
                    for uid in &owners {
                        self.dependents
                            .entry((plane.clone(), uid.clone()))
                            .or_default()
                            .insert(place.clone());
                    }
                    if !owners.is_empty() {
                        self.owners.insert(place.clone(), owners);
                        enqueue(Work::Dependent(place.clone()));
                    }
                }
                if event.object.contains(b"\"deletionTimestamp\"")
                    && (event.object.contains(b"\"orphan\"")
                        || event.object.contains(b"\"foregroundDeletion\""))
                {
                    enqueue(Work::Owner(place.clone()));
                    self.each_dependent(&plane, &event.object.head().uid, |dependent| {
                        enqueue(Work::Dependent(dependent.clone()))
                    });
                }
            }
            Change::Delete => {
                let gone = event.object.head();
                self.each_dependent(&plane, &gone.uid, |dependent| {
                    enqueue(Work::Dependent(dependent.clone()))
                });
                // Its owner may have waited for it.
                let path = event.path.as_ref();
                for reference in &gone.owner_references {
                    enqueue(Work::Owner(owner_hint(place, path, reference)));
                }
            }
        }
    }

    fn each_dependent(&self, plane: &Arc<str>, uid: &str, mut each: impl FnMut(&Place)) {
        self.dependents.get(&(plane.clone(), uid.to_owned())).into_iter().flatten().for_each(&mut each);
    }

    fn dependents(&self, plane: &Arc<str>, uid: &str) -> Vec<Place> {
        self.dependents.get(&(plane.clone(), uid.to_owned())).into_iter().flatten().cloned().collect()
    }
}

/// Where an owner would be, as a key of work: resolved when it is looked at. Kind and group travel in the resource.
fn owner_hint(dependent: &Place, path: &str, reference: &OwnerReference) -> Place {
    let mut collection = dependent.0.clone();
    collection.resource = format!("?{}/{}", reference.group(), reference.kind).into();
    let path = path
        .split_once('/')
        .map_or_else(|| reference.name.clone(), |(namespace, _)| format!("{namespace}/{}", reference.name));
    (collection, path.into())
}

/// Where an owner lives.
enum Owner {
    /// There, with the right uid.
    Present(Head),
    /// Not there, or another of the same name.
    Absent,
    /// Its kind is not served, or it cannot be an owner from there: nothing is known.
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
    match core.store.view().get(&kind.collection(&plane.name), &path).map(|stored| stored.head()) {
        Some(owner) if owner.uid == reference.uid => Owner::Present(owner),
        _ => Owner::Absent,
    }
}

fn waits_for_dependents(owner: &Head) -> bool {
    owner.is_deleting() && owner.has_finalizer(FOREGROUND)
}

fn split(path: &str) -> (Option<&str>, &str) {
    path.split_once('/').map_or((None, path), |(namespace, name)| (Some(namespace), name))
}

/// Deletes a dependent that has no owner left, or takes the owners that are gone off it.
pub(super) async fn look_at_dependent(core: &Arc<Core>, place: &Place) -> Result<(), Failure> {
    let (collection, path) = place;
    let Some(plane) = core.plane(&collection.plane) else { return Ok(()) };
    let Some(stored) = core.store.view().get(collection, path) else { return Ok(()) };
    let head = stored.head();
    let (namespace, name) = split(path);
    let (mut solid, mut gone, mut waiting) = (0, Vec::new(), Vec::new());
    for reference in &head.owner_references {
        match find_owner(core, &plane, namespace, reference) {
            Owner::Unknown => return Ok(()),
            Owner::Absent => gone.push(reference.uid.clone()),
            Owner::Present(owner) if waits_for_dependents(&owner) => waiting.push(reference.uid.clone()),
            Owner::Present(_) => solid += 1,
        }
    }
    if gone.is_empty() && waiting.is_empty() {
        return Ok(());
    }
    if solid > 0 {
        return detach(core, place, &[gone, waiting].concat()).await;
    }
    if head.is_deleting() {
        return Ok(());
    }
    let kinds = plane.catalogue.kinds();
    let Some(kind) = kinds.find_resource(&collection.resource) else { return Ok(()) };
    // A dependent of an owner that waits takes its own dependents first; otherwise what it asked for itself holds.
    let propagation = if !waiting.is_empty() {
        Some(Propagation::Foreground)
    } else if head.has_finalizer(ORPHAN) || head.has_finalizer(FOREGROUND) {
        None
    } else {
        Some(Propagation::Background)
    };
    let call = Call::internal(core, &plane, kind, Verb::Delete, namespace, Some(name));
    let options = DeleteOptions {
        uid: Some(head.uid),
        resource_version: Some(stored.revision().to_string()),
        propagation,
    };
    match call.delete_object(name, &options).await {
        Err(failure) if !matches!(failure.code, 404 | 409) => Err(failure),
        // Changed meanwhile: its new state has been noted and will be looked at.
        _ => Ok(()),
    }
}

/// Takes owners off an object.
async fn detach(core: &Arc<Core>, place: &Place, uids: &[String]) -> Result<(), Failure> {
    let edit = |object: &mut Value| {
        let left: Vec<Value> = object["metadata"]["ownerReferences"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|reference| !uids.iter().any(|uid| reference["uid"] == uid.as_str()))
            .cloned()
            .collect();
        json::set_meta(object, "ownerReferences", (!left.is_empty()).then(|| left.into()));
    };
    core.rewrite(&place.0, &place.1, edit).await.map(drop)
}

/// Lets an owner go that waited for its dependents, or orphans them and lets it go.
pub(super) async fn look_at_owner(core: &Arc<Core>, graph: &Graph, place: &Place) -> Result<(), Failure> {
    let Some(place) = resolve(core, place) else { return Ok(()) };
    let Some(plane) = core.plane(&place.0.plane) else { return Ok(()) };
    let Some(stored) = core.store.view().get(&place.0, &place.1) else { return Ok(()) };
    let head = stored.head();
    if !head.is_deleting() {
        return Ok(());
    }
    if head.has_finalizer(ORPHAN) {
        for dependent in graph.dependents(&place.0.plane, &head.uid) {
            detach(core, &dependent, std::slice::from_ref(&head.uid)).await?;
        }
        return release(core, &plane, &place, ORPHAN).await;
    }
    if head.has_finalizer(FOREGROUND) {
        let blocked = graph.dependents(&place.0.plane, &head.uid).iter().any(|(collection, path)| {
            core.store.view().get(collection, path).is_some_and(|stored| {
                let references = stored.head().owner_references;
                references.iter().any(|owner| owner.uid == head.uid && owner.block_owner_deletion)
            })
        });
        if !blocked {
            return release(core, &plane, &place, FOREGROUND).await;
        }
    }
    Ok(())
}

/// Turns a hint from a dependent into the owner's real place.
fn resolve(core: &Core, place: &Place) -> Option<Place> {
    let (collection, path) = place;
    let Some(hint) = collection.resource.strip_prefix('?') else { return Some(place.clone()) };
    let (group, kind) = hint.split_once('/')?;
    let plane = core.plane(&collection.plane)?;
    let kinds = plane.catalogue.kinds();
    let kind = kinds.find_kind(group, kind)?;
    let path = if kind.namespaced { path.clone() } else { split(path).1.into() };
    Some((kind.collection(&plane.name), path))
}

/// Takes a finalizer off an object, which goes if it was the last.
async fn release(
    core: &Arc<Core>,
    plane: &Arc<Plane>,
    place: &Place,
    finalizer: &str,
) -> Result<(), Failure> {
    let kinds = plane.catalogue.kinds();
    let Some(kind) = kinds.find_resource(&place.0.resource) else { return Ok(()) };
    let (namespace, name) = split(&place.1);
    let call = Call::internal(core, plane, kind, Verb::Update, namespace, Some(name));
    call.drop_finalizer(finalizer).await
}
