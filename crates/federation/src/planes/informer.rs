//! An informer: a local store of all objects of one kind on one plane.
//!
//! It lists once and then watches; it lists again only when the server no longer has its resource version.
//! The results of own writes are written through to the store, so that the next reconcile does not read the
//! object before the write.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use parking_lot::RwLock;
use polis_api::kube::core::WatchEvent;
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::{Api, ApiError, ApiErrorKind, ResourceKind};
use crate::object;

/// `timeoutSeconds` of a watch; the server may close it sooner.
const WATCH_TIMEOUT_SECONDS: u64 = 1740;
/// First back-off after a failure; it doubles up to [`BACKOFF_MAX`].
const BACKOFF_MIN: Duration = Duration::from_millis(100);
/// Longest back-off after failures; also the interval for a kind that is not served.
const BACKOFF_MAX: Duration = Duration::from_secs(15);

/// A change of one object.
#[derive(Debug, Clone)]
pub struct InformerEvent {
    /// The object before; `None` if it is new.
    pub before: Option<Arc<Value>>,
    /// The object after; `None` if it was deleted.
    pub after: Option<Arc<Value>>,
}

impl InformerEvent {
    /// The object after the change, or before its deletion.
    pub fn object(&self) -> Option<&Arc<Value>> {
        self.after.as_ref().or(self.before.as_ref())
    }
}

type Handler = Arc<dyn Fn(&ResourceKind, InformerEvent) + Send + Sync>;

/// A store of all objects of one kind on one plane. The watch ends when the last clone is dropped.
#[derive(Clone)]
pub struct Informer {
    shared: Arc<Shared>,
    _task: Arc<Task>,
}

struct Shared {
    kind: ResourceKind,
    objects: RwLock<BTreeMap<(String, String), Arc<Value>>>,
    synced: watch::Sender<bool>,
    retry_now: Notify,
    started: Instant,
    handler: Handler,
}

struct Task(AbortHandle);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Informer {
    /// Starts to list and watch; `handler` receives every change.
    pub fn start(api: Api, kind: ResourceKind, handler: Handler) -> Self {
        let shared = Arc::new(Shared {
            kind,
            objects: RwLock::default(),
            synced: watch::Sender::new(false),
            retry_now: Notify::new(),
            started: Instant::now(),
            handler,
        });
        let task = tokio::spawn(run(api, shared.clone()));
        Informer { shared, _task: Arc::new(Task(task.abort_handle())) }
    }

    /// Watches only the metadata and calls `on_change` for every change.
    pub fn metadata_only(
        api: &Api,
        kind: ResourceKind,
        on_change: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        Self::start(
            api.metadata_only(),
            kind,
            Arc::new(move |_: &ResourceKind, _: InformerEvent| on_change()),
        )
    }

    /// Its kind.
    pub fn kind(&self) -> &ResourceKind {
        &self.shared.kind
    }

    /// Whether the first list is complete.
    pub fn is_synced(&self) -> bool {
        *self.shared.synced.borrow()
    }

    /// Waits until the first list is complete.
    pub async fn synced(&self) {
        // The sender lives as long as the informer.
        let _ = self.shared.synced.subscribe().wait_for(|synced| *synced).await;
    }

    /// The stored object, if any.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.shared.objects.read().get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// All objects.
    pub fn list(&self) -> Vec<Arc<Value>> {
        self.shared.objects.read().values().cloned().collect()
    }

    /// The objects of one namespace.
    pub fn list_namespace(&self, namespace: &str) -> Vec<Arc<Value>> {
        let objects = self.shared.objects.read();
        let from = (namespace.to_owned(), String::new());
        objects
            .range(from..)
            .take_while(|((at, _), _)| at == namespace)
            .map(|(_, object)| object.clone())
            .collect()
    }

    /// Stores the result of an own write and notifies the handler.
    pub fn write_through(&self, object: Value) -> Arc<Value> {
        let object = Arc::new(object);
        self.shared.upsert(object.clone());
        object
    }

    /// Stores the result of an own write without notifying the handler: the caller continues with the object.
    pub fn write_through_silently(&self, object: Value) -> Arc<Value> {
        let object = Arc::new(object);
        self.shared.store_if_newer(&object);
        object
    }

    /// The time since the start.
    pub fn age(&self) -> Duration {
        self.shared.started.elapsed()
    }

    /// Stores the result of a finalizer removal. Without further finalizers a terminating object is deleted,
    /// so it is removed from the store before the watch delivers the deletion.
    pub fn finalizer_removed(&self, object: Value) {
        let held = object["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty());
        if held || !object::is_deleting(&object) {
            self.write_through(object);
        } else {
            self.shared.remove(&object);
        }
    }

    /// Ends a back-off and retries now.
    pub fn retry_now(&self) {
        self.shared.retry_now.notify_one();
    }
}

impl Shared {
    fn key(object: &Value) -> (String, String) {
        (object::meta(object, "namespace").to_owned(), object::meta(object, "name").to_owned())
    }

    fn upsert(&self, object: Arc<Value>) {
        if let Some(before) = self.store_if_newer(&object) {
            (self.handler)(&self.kind, InformerEvent { before, after: Some(object) });
        }
    }

    /// Stores an object if it is newer than the stored one; returns the previous one.
    fn store_if_newer(&self, object: &Arc<Value>) -> Option<Option<Arc<Value>>> {
        let mut objects = self.objects.write();
        let key = Self::key(object);
        match objects.get(&key) {
            Some(stored) if !is_newer(object, stored) => None,
            _ => Some(objects.insert(key, object.clone())),
        }
    }

    fn remove(&self, last: &Value) {
        let before = {
            let mut objects = self.objects.write();
            let key = Self::key(last);
            match objects.get(&key) {
                // A newer object with the same name exists.
                Some(stored) if is_newer(stored, last) => return,
                Some(_) => objects.remove(&key),
                None => return,
            }
        };
        (self.handler)(&self.kind, InformerEvent { before, after: None });
    }

    /// Replaces the store with a list. Objects that are not in it are removed, except newer results of own
    /// writes.
    fn replace(&self, items: Vec<Value>, version: &str) {
        let listed: BTreeSet<(String, String)> = items.iter().map(Self::key).collect();
        let limit = number(version);
        let gone: Vec<Arc<Value>> = {
            let objects = self.objects.read();
            let missing = objects.iter().filter(|(key, _)| !listed.contains(*key));
            missing
                .filter(|(_, object)| number(object::meta(object, "resourceVersion")) <= limit)
                .map(|(_, object)| object.clone())
                .collect()
        };
        for object in gone {
            self.remove(&object);
        }
        for item in items {
            self.upsert(Arc::new(item));
        }
        self.synced.send_if_modified(|synced| !std::mem::replace(synced, true));
    }
}

/// Resource versions are opaque by contract, but numbers in every known server. A version that is not a
/// number counts as newer if the object differs.
fn number(version: &str) -> Option<u64> {
    version.parse().ok()
}

fn is_newer(object: &Value, stored: &Value) -> bool {
    let version = |object: &Value| number(object::meta(object, "resourceVersion"));
    match (version(object), version(stored)) {
        (Some(new), Some(old)) => new > old,
        _ => object != stored,
    }
}

async fn run(api: Api, shared: Arc<Shared>) {
    let mut version = None;
    let mut backoff = BACKOFF_MIN;
    loop {
        match list_and_watch(&api, &shared, &mut version, &mut backoff).await {
            Ok(()) => {}
            Err(error) if error.kind == ApiErrorKind::Expired => version = None,
            Err(error) => {
                if error.kind == ApiErrorKind::NotFound {
                    version = None;
                }
                tracing::debug!(%error, ?backoff, "informer failed; backing off");
                tokio::select! {
                    biased;
                    () = shared.retry_now.notified() => {}
                    () = tokio::time::sleep(backoff) => {}
                }
                backoff = (backoff * 2).min(BACKOFF_MAX);
            }
        }
    }
}

async fn list_and_watch(
    api: &Api,
    shared: &Shared,
    version: &mut Option<String>,
    backoff: &mut Duration,
) -> Result<(), ApiError> {
    let from = match version.take() {
        Some(version) => version,
        None => {
            let (items, listed) = api.list(&shared.kind).await?;
            shared.replace(items, &listed);
            listed
        }
    };
    let last = version.insert(from);
    let mut events = pin!(api.watch(&shared.kind, last, WATCH_TIMEOUT_SECONDS).await?);
    let opened = Instant::now();
    while let Some(event) = events.next().await {
        *backoff = BACKOFF_MIN;
        match event? {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                *last = object::meta(&object, "resourceVersion").to_owned();
                shared.upsert(Arc::new(object));
            }
            WatchEvent::Deleted(object) => {
                *last = object::meta(&object, "resourceVersion").to_owned();
                shared.remove(&object);
            }
            WatchEvent::Bookmark(bookmark) => *last = bookmark.metadata.resource_version,
            WatchEvent::Error(_) => {}
        }
    }
    // A server that closes watches at once would otherwise cause a tight loop.
    if opened.elapsed() < Duration::from_secs(1) {
        tokio::time::sleep(BACKOFF_MIN).await;
    }
    Ok(())
}
