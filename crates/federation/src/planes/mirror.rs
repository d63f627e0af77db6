//! A mirror of all objects of one kind on one plane.
//!
//! Lists once, then follows changes; lists again only when the server has forgotten where we were. What we write
//! ourselves is learned at once from the answer, so that the next look does not see the world before it.

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

use super::{Api, ApiError, Fault, Kind};
use crate::object;

/// A watch is asked to end after this many seconds; the server may end it sooner.
const ROUND: u64 = 1740;
/// First pause after a failure; it doubles up to [`PAUSE_MOST`].
const PAUSE_FIRST: Duration = Duration::from_millis(100);
/// Longest pause after failures, and how often a kind that is not served is asked for.
const PAUSE_MOST: Duration = Duration::from_secs(15);

/// One object, before and after.
#[derive(Debug, Clone)]
pub struct Change {
    /// As it was; none if it is new.
    pub before: Option<Arc<Value>>,
    /// As it is; none if it is gone.
    pub after: Option<Arc<Value>>,
}

impl Change {
    /// The object, as it is or last was.
    pub fn object(&self) -> Option<&Arc<Value>> {
        self.after.as_ref().or(self.before.as_ref())
    }
}

type Sink = Arc<dyn Fn(&Kind, Change) + Send + Sync>;

/// All objects of one kind on one plane, as last seen. The mirror ends when the last clone is dropped.
#[derive(Clone)]
pub struct Mirror {
    shared: Arc<Shared>,
    _task: Arc<Task>,
}

struct Shared {
    kind: Kind,
    objects: RwLock<BTreeMap<(String, String), Arc<Value>>>,
    synced: watch::Sender<bool>,
    nudge: Notify,
    begun: Instant,
    sink: Sink,
}

struct Task(AbortHandle);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Mirror {
    /// Begins to mirror; every change goes to `sink`.
    pub fn start(api: Api, kind: Kind, sink: Sink) -> Self {
        let shared = Arc::new(Shared {
            kind,
            objects: RwLock::default(),
            synced: watch::Sender::new(false),
            nudge: Notify::new(),
            begun: Instant::now(),
            sink,
        });
        let task = tokio::spawn(follow(api, shared.clone()));
        Mirror { shared, _task: Arc::new(Task(task.abort_handle())) }
    }

    /// Mirrors no more than the metadata, for one who wants to know that something changed and not what.
    pub fn told(api: &Api, kind: Kind, told: impl Fn() + Send + Sync + 'static) -> Self {
        Self::start(api.metadata_only(), kind, Arc::new(move |_: &Kind, _: Change| told()))
    }

    /// The kind.
    pub fn kind(&self) -> &Kind {
        &self.shared.kind
    }

    /// Whether everything was listed at least once.
    pub fn is_synced(&self) -> bool {
        *self.shared.synced.borrow()
    }

    /// Waits until everything was listed.
    pub async fn synced(&self) {
        // The sender lives as long as the mirror.
        let _ = self.shared.synced.subscribe().wait_for(|synced| *synced).await;
    }

    /// The object, if it was seen.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.shared.objects.read().get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// All objects.
    pub fn all(&self) -> Vec<Arc<Value>> {
        self.shared.objects.read().values().cloned().collect()
    }

    /// The objects of one namespace.
    pub fn within(&self, namespace: &str) -> Vec<Arc<Value>> {
        let objects = self.shared.objects.read();
        let from = (namespace.to_owned(), String::new());
        objects
            .range(from..)
            .take_while(|((at, _), _)| at == namespace)
            .map(|(_, object)| object.clone())
            .collect()
    }

    /// Takes in what a write of ours answered.
    pub fn learn(&self, object: Value) -> Arc<Value> {
        let object = Arc::new(object);
        self.shared.put(object.clone());
        object
    }

    /// Takes in what a write of ours answered, where whoever wrote it goes on from there: nobody is told.
    pub fn absorb(&self, object: Value) -> Arc<Value> {
        let object = Arc::new(object);
        self.shared.keep(&object);
        object
    }

    /// How long the mirror has been at work.
    pub fn age(&self) -> Duration {
        self.shared.begun.elapsed()
    }

    /// Takes in what the end of a finalizer answered: a deleted object is gone with the last of them, and need not be
    /// looked at until the watch says so, too.
    pub fn release(&self, object: Value) {
        let held = object["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty());
        if held || !object::is_deleting(&object) {
            self.learn(object);
        } else {
            self.shared.take(&object);
        }
    }

    /// Tries again now what failed before.
    pub fn nudge(&self) {
        self.shared.nudge.notify_one();
    }
}

impl Shared {
    fn key(object: &Value) -> (String, String) {
        (object::meta(object, "namespace").to_owned(), object::meta(object, "name").to_owned())
    }

    fn put(&self, object: Arc<Value>) {
        if let Some(before) = self.keep(&object) {
            (self.sink)(&self.kind, Change { before, after: Some(object) });
        }
    }

    /// Keeps an object if it is news, and answers with the one of before.
    fn keep(&self, object: &Arc<Value>) -> Option<Option<Arc<Value>>> {
        let mut objects = self.objects.write();
        let key = Self::key(object);
        match objects.get(&key) {
            Some(standing) if !is_newer(object, standing) => None,
            _ => Some(objects.insert(key, object.clone())),
        }
    }

    fn take(&self, last: &Value) {
        let before = {
            let mut objects = self.objects.write();
            let key = Self::key(last);
            match objects.get(&key) {
                // Another one of the same name has come meanwhile.
                Some(standing) if is_newer(standing, last) => return,
                Some(_) => objects.remove(&key),
                None => return,
            }
        };
        (self.sink)(&self.kind, Change { before, after: None });
    }

    /// Takes in a whole list: what is not in it is gone, except what we learned after the list was made.
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
            self.take(&object);
        }
        for item in items {
            self.put(Arc::new(item));
        }
        self.synced.send_if_modified(|synced| !std::mem::replace(synced, true));
    }
}

/// Versions are opaque by contract and numbers in every server that exists; one that is not a number is always taken as newer.
fn number(version: &str) -> Option<u64> {
    version.parse().ok()
}

fn is_newer(object: &Value, standing: &Value) -> bool {
    let version = |object: &Value| number(object::meta(object, "resourceVersion"));
    match (version(object), version(standing)) {
        (Some(new), Some(old)) => new > old,
        _ => object != standing,
    }
}

async fn follow(api: Api, shared: Arc<Shared>) {
    let mut version = None;
    let mut pause = PAUSE_FIRST;
    loop {
        match round(&api, &shared, &mut version, &mut pause).await {
            Ok(()) => {}
            Err(error) if error.fault == Fault::Expired => version = None,
            Err(error) => {
                if error.fault == Fault::NotFound {
                    version = None;
                }
                tracing::debug!(%error, ?pause, "mirror pauses");
                tokio::select! {
                    biased;
                    () = shared.nudge.notified() => {}
                    () = tokio::time::sleep(pause) => {}
                }
                pause = (pause * 2).min(PAUSE_MOST);
            }
        }
    }
}

async fn round(
    api: &Api,
    shared: &Shared,
    version: &mut Option<String>,
    pause: &mut Duration,
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
    let mut events = pin!(api.watch(&shared.kind, last, ROUND).await?);
    let opened = Instant::now();
    while let Some(event) = events.next().await {
        *pause = PAUSE_FIRST;
        match event? {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                *last = object::meta(&object, "resourceVersion").to_owned();
                shared.put(Arc::new(object));
            }
            WatchEvent::Deleted(object) => {
                *last = object::meta(&object, "resourceVersion").to_owned();
                shared.take(&object);
            }
            WatchEvent::Bookmark(bookmark) => *last = bookmark.metadata.resource_version,
            WatchEvent::Error(_) => {}
        }
    }
    // A server that closes at once would otherwise be asked in a tight loop.
    if opened.elapsed() < Duration::from_secs(1) {
        tokio::time::sleep(PAUSE_FIRST).await;
    }
    Ok(())
}
