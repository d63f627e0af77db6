//! The controllers of the API server: garbage collector, namespace and CRD deletion, token secrets, event
//! expiry.
//!
//! Reads   every write to the store, in order
//! Writes  dependents, owners, namespaces, CRDs, secrets, events
//! Order   one task with one work queue; what other items wait for comes first
//!
//! Reconciling is level-triggered: the current state decides, not the event. After a restart every object is
//! enqueued once.

mod crds;
mod expiry;
mod gc;
mod namespaces;
mod tokens;

use std::{
    collections::BTreeSet,
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::future::join_all;
use polis_apimachinery::object;
use serde_json::Value;
use tokio::{sync::mpsc, task::JoinHandle, time::MissedTickBehavior};

use crate::{
    http::{Content, Options},
    plane::Plane,
    route::Verb,
    server::Core,
    status::StatusError,
    store::{ChangeType, Collection, Event, StoreWatch, WatchItem},
    verbs::{Call, DeleteOptions, Propagation},
};

/// Which controllers run in the server. Disable those that a kube-controller-manager runs instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnabledControllers {
    /// Deletes objects whose owners are gone.
    pub garbage_collector: bool,
    /// Empties namespaces that are being deleted.
    pub namespaces: bool,
    /// Fills secrets of service accounts with tokens.
    pub tokens: bool,
    /// Removes events after an hour.
    pub expiry: bool,
}

impl Default for EnabledControllers {
    fn default() -> Self {
        Self { garbage_collector: true, namespaces: true, tokens: true, expiry: true }
    }
}

/// Work items reconciled concurrently.
const CONCURRENCY: usize = 32;
/// Delay before a failed item is retried.
const RETRY_DELAY: Duration = Duration::from_millis(100);
/// Interval of history compaction and event expiry.
const SWEEP_INTERVAL: Duration = Duration::from_secs(30);

/// The key of an object in the store: collection and path.
pub(crate) type StoreKey = (Collection, Arc<str>);

/// Starts the task that runs all controllers.
pub(crate) fn start(
    core: &Arc<Core>,
    writes: mpsc::UnboundedReceiver<(Collection, Event)>,
    enabled: EnabledControllers,
) -> Vec<JoinHandle<()>> {
    let controllers = Controllers {
        core: core.clone(),
        enabled,
        graph: gc::Graph::default(),
        expiry: expiry::Expiry::default(),
        work: BTreeSet::new(),
    };
    vec![tokio::spawn(controllers.run(writes))]
}

/// An item of the work queue, in the order of priority: what other items wait for comes first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum WorkItem {
    Dependent(StoreKey),
    Owner(StoreKey),
    Token(StoreKey),
    Namespace(Arc<str>, Arc<str>),
    Crd(Arc<str>, Arc<str>),
}

struct Controllers {
    core: Arc<Core>,
    enabled: EnabledControllers,
    graph: gc::Graph,
    expiry: expiry::Expiry,
    work: BTreeSet<WorkItem>,
}

impl Controllers {
    async fn run(mut self, mut writes: mpsc::UnboundedReceiver<(Collection, Event)>) {
        self.enqueue_all();
        let mut sweep = tokio::time::interval(SWEEP_INTERVAL);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut events = Vec::new();
        loop {
            while !self.work.is_empty() {
                let batch: Vec<WorkItem> =
                    std::iter::from_fn(|| self.work.pop_first()).take(CONCURRENCY).collect();
                let this = &self;
                let again: Vec<Option<WorkItem>> =
                    join_all(batch.into_iter().map(|work| async move { this.reconcile(work).await })).await;
                // Failed items wait for the whole batch and RETRY_DELAY, so that the loop does not spin.
                let failed: Vec<WorkItem> = again.into_iter().flatten().collect();
                while let Ok((collection, event)) = writes.try_recv() {
                    self.observe(&collection, &event);
                }
                if !failed.is_empty() {
                    tokio::time::sleep(RETRY_DELAY).await;
                    self.work.extend(failed);
                }
            }
            tokio::select! {
                biased;
                count = writes.recv_many(&mut events, 1024) => {
                    if count == 0 {
                        return;
                    }
                    for (collection, event) in events.drain(..) {
                        self.observe(&collection, &event);
                    }
                }
                _ = sweep.tick() => {
                    self.core.store.view().compact(self.core.clock.now());
                    if self.enabled.expiry {
                        self.expiry.sweep(&self.core).await;
                    }
                }
            }
        }
    }

    /// Observes every object, at start.
    fn enqueue_all(&mut self) {
        for plane in self.core.all_planes() {
            for collection in self.core.store.view().collections(&plane.name) {
                for (path, stored) in self.core.store.view().all(&collection) {
                    let event = Event::initial(path, stored);
                    self.observe(&collection, &event);
                }
            }
        }
    }

    /// Records a write and enqueues the work that follows from it.
    fn observe(&mut self, collection: &Collection, event: &Event) {
        let key = (collection.clone(), event.path.clone());
        if self.enabled.garbage_collector {
            self.graph.observe(&key, event, &mut |work| {
                self.work.insert(work);
            });
        }
        match &*collection.resource {
            "namespaces"
                if self.enabled.namespaces && event.change == ChangeType::Put && is_terminating(event) =>
            {
                self.work.insert(WorkItem::Namespace(collection.plane.clone(), event.path.clone()));
            }
            "customresourcedefinitions.apiextensions.k8s.io"
                if event.change == ChangeType::Put && is_terminating(event) =>
            {
                self.work.insert(WorkItem::Crd(collection.plane.clone(), event.path.clone()));
            }
            "secrets"
                if self.enabled.tokens
                    && event.change == ChangeType::Put
                    && tokens::needs_token(&self.core, event) =>
            {
                self.work.insert(WorkItem::Token(key.clone()));
            }
            "events" if self.enabled.expiry && event.change == ChangeType::Put => {
                self.expiry.observe(&key, event, self.core.clock.now())
            }
            _ => {}
        }
        // A terminating namespace or CRD may wait for this deletion.
        if event.change == ChangeType::Delete {
            if self.enabled.namespaces
                && let Some((namespace, _)) = event.path.split_once('/')
                && namespaces::is_terminating(&self.core, &collection.plane, namespace)
            {
                self.work.insert(WorkItem::Namespace(collection.plane.clone(), namespace.into()));
            }
            if let Some((plane_name, name)) = crds::terminating_crd(&self.core, collection) {
                self.work.insert(WorkItem::Crd(plane_name, name));
            }
        }
    }

    /// Reconciles one item. Returns the item if it must be retried.
    async fn reconcile(&self, work: WorkItem) -> Option<WorkItem> {
        let result = match &work {
            WorkItem::Dependent(key) => gc::reconcile_dependent(&self.core, key).await,
            WorkItem::Owner(key) => gc::reconcile_owner(&self.core, &self.graph, key).await,
            WorkItem::Token(key) => tokens::fill(&self.core, key).await,
            WorkItem::Namespace(plane, name) => namespaces::terminate(&self.core, plane, name).await,
            WorkItem::Crd(plane_name, name) => crds::clean_up(&self.core, plane_name, name).await,
        };
        match result {
            Ok(()) => None,
            Err(failure) => {
                tracing::warn!(?work, %failure, "failed to reconcile; retrying");
                Some(work)
            }
        }
    }
}

/// Whether the object is being deleted. Searches the bytes first, to parse only candidates.
fn is_terminating(event: &Event) -> bool {
    event.object.contains(b"\"deletionTimestamp\"") && event.object.partial_meta().is_deleting()
}

/// Deletes every object under a prefix of a collection. Objects with finalizers become terminating.
async fn delete_under(
    core: &Arc<Core>,
    plane: &Arc<Plane>,
    collection: &Collection,
    prefix: &str,
) -> Result<(), StatusError> {
    let kinds = plane.catalogue.kinds();
    let Some(kind) = kinds.find_resource(&collection.resource) else { return Ok(()) };
    let range = crate::store::RangeOptions { prefix, ..crate::store::RangeOptions::default() };
    let page = core
        .store
        .view()
        .range(collection, &range)
        .map_err(|compacted| StatusError::expired(compacted.to_string()))?;
    for batch in page.items.chunks(CONCURRENCY) {
        let deletes = batch.iter().map(|(path, stored)| async move {
            let object = stored.value();
            if object::is_deleting(&object) {
                return Ok(());
            }
            let (namespace, name) =
                path.split_once('/').map_or((None, &**path), |(namespace, name)| (Some(namespace), name));
            let call = Call::internal(core, plane, kind, Verb::Delete, namespace, Some(name));
            let options = DeleteOptions {
                uid: Some(object::meta(&object, "uid").to_owned()),
                resource_version: None,
                propagation: Some(Propagation::Background),
            };
            match call.delete_object(name, &options).await {
                Err(failure) if !matches!(failure.code, 404 | 409) => Err(failure),
                _ => Ok(()),
            }
        });
        for result in join_all(deletes).await {
            result?;
        }
    }
    Ok(())
}

/// Deletes all objects of a plane and waits until the plane is empty.
///
/// Every object is deleted once. After that the writes to the plane drive the work: finalizers can take hours
/// and hundreds of planes can be deleted at the same time, so there is no polling.
pub(crate) async fn empty_plane(core: &Arc<Core>, plane: &Arc<Plane>) {
    while let Some(mut deletion) = PlaneDeletion::of(core, plane) {
        if let Err(failure) = deletion.delete_all().await {
            tracing::warn!(plane = %plane.name, %failure, "failed to delete the objects of a plane; retrying");
            tokio::time::sleep(RETRY_DELAY).await;
            continue;
        }
        deletion.await_empty().await;
    }
}

/// The content of a plane that is being deleted.
struct PlaneDeletion<'a> {
    core: &'a Arc<Core>,
    plane: &'a Arc<Plane>,
    /// The collections that are not empty, each with a watch from before its objects were listed.
    collections: Vec<(Collection, StoreWatch)>,
}

impl<'a> PlaneDeletion<'a> {
    /// `None` if the plane is empty.
    fn of(core: &'a Arc<Core>, plane: &'a Arc<Plane>) -> Option<Self> {
        let view = core.store.view();
        let watched = |collection: Collection| {
            // A watch fails only if history was compacted since `changed_at`; then the next loop starts over.
            let watch = view.watch(&collection, view.changed_at(&collection)).ok()?;
            Some((collection, watch))
        };
        let found = view.collections(&plane.name);
        (!found.is_empty()).then(|| Self {
            core,
            plane,
            collections: found.into_iter().filter_map(watched).collect(),
        })
    }

    /// Deletes every object: namespaced content first, then namespaces, RBAC and CRDs, which the content
    /// depends on.
    async fn delete_all(&self) -> Result<(), StatusError> {
        for last in [false, true] {
            for (collection, _) in
                self.collections.iter().filter(|(of, _)| is_deleted_last(&of.resource) == last)
            {
                delete_under(self.core, self.plane, collection, "").await?;
            }
        }
        Ok(())
    }

    /// Waits until the collections are empty. Deletes objects that were created concurrently.
    async fn await_empty(&mut self) {
        loop {
            let left = self.core.store.view().collections(&self.plane.name);
            if left.iter().all(|left| !self.collections.iter().any(|(known, _)| known == left)) {
                return;
            }
            let (collection, next) = poll_fn(|context| self.poll_next(context)).await;
            let WatchItem::Event(event) = next else { return };
            if event.change == ChangeType::Put && !is_terminating(&event) {
                // It was created while `delete_all` ran.
                if let Err(failure) = delete_under(self.core, self.plane, &collection, &event.path).await {
                    tracing::warn!(plane = %self.plane.name, %failure, "failed to delete an object that was created during the deletion of its plane; retrying");
                    tokio::time::sleep(RETRY_DELAY).await;
                    return;
                }
            }
        }
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<(Collection, WatchItem)> {
        for (collection, watch) in &mut self.collections {
            if let Poll::Ready(next) = watch.poll_next(context) {
                return Poll::Ready((collection.clone(), next));
            }
        }
        Poll::Pending
    }
}

/// Resources that other objects of the plane depend on.
fn is_deleted_last(resource: &str) -> bool {
    resource == "namespaces"
        || resource.ends_with(".rbac.authorization.k8s.io")
        || resource.ends_with(".apiextensions.k8s.io")
}

/// Creates or updates a CRD by server-side apply.
pub(crate) async fn apply_crd(core: &Arc<Core>, plane: &Arc<Plane>, crd: &Value) -> Result<(), StatusError> {
    let kinds = plane.catalogue.kinds();
    let kind = kinds
        .find("apiextensions.k8s.io", "customresourcedefinitions")
        .ok_or_else(StatusError::no_such_path)?;
    let name = object::meta(crd, "name");
    let mut call = Call::internal(core, plane, kind, Verb::Patch, None, Some(name));
    call.options = Options { field_manager: "polis".into(), force: Some(true), ..Options::default() };
    let mut wanted = crd.clone();
    if let Some(fields) = wanted.as_object_mut() {
        fields.remove("status");
    }
    for field in ["resourceVersion", "uid", "creationTimestamp", "generation", "managedFields"] {
        object::set_meta(&mut wanted, field, None);
    }
    let bytes = serde_json::to_vec(&wanted).unwrap_or_default();
    let response = call
        .patch(&crate::verbs::Payload { content: Some(Content::ApplyPatch), bytes: bytes.into() })
        .await?;
    debug_assert!(response.status().is_success());
    Ok(())
}
