//! A recorder per plane: the current objects, and a journal of all changes.
//!
//! One watch per kind keeps a mirror of the plane and a journal of its changes. Tests wait on the mirror
//! instead of polling, and inspect the journal, so that the brief absence of an object is detected too. After
//! an outage of its plane a recorder lists again and records the differences.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use polis_api::ObjectExt;
use polis_api::kube::api::{
    ApiResource, DynamicObject, GroupVersionKind, ListParams, WatchEvent, WatchParams,
};
use polis_api::kube::{Api, Client};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A recorded kind: group, version, kind, plural.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordedKind(pub &'static str, pub &'static str, pub &'static str, pub &'static str);

/// Kinds of Polis, on every plane.
const COMPUTE: [RecordedKind; 3] = [
    RecordedKind("compute.datumapis.com", "v1alpha", "Workload", "workloads"),
    RecordedKind("compute.datumapis.com", "v1alpha", "WorkloadDeployment", "workloaddeployments"),
    RecordedKind("compute.datumapis.com", "v1alpha", "Instance", "instances"),
];
/// Core kinds, on every plane.
const CORE: [RecordedKind; 2] =
    [RecordedKind("", "v1", "Namespace", "namespaces"), RecordedKind("", "v1", "Event", "events")];
/// Karmada's kinds, on the hub.
const FEDERATION: [RecordedKind; 3] = [
    RecordedKind("policy.karmada.io", "v1alpha1", "PropagationPolicy", "propagationpolicies"),
    RecordedKind("work.karmada.io", "v1alpha2", "ResourceBinding", "resourcebindings"),
    RecordedKind("work.karmada.io", "v1alpha1", "Work", "works"),
];
/// Kinds of the network service, on cells.
const NETWORKS: [RecordedKind; 4] = [
    RecordedKind("networking.datumapis.com", "v1alpha", "NetworkBinding", "networkbindings"),
    RecordedKind("networking.datumapis.com", "v1alpha", "NetworkContext", "networkcontexts"),
    RecordedKind("networking.datumapis.com", "v1alpha", "SubnetClaim", "subnetclaims"),
    RecordedKind("networking.datumapis.com", "v1alpha", "Subnet", "subnets"),
];
/// Kinds of the quota service, on projects.
const QUOTA: [RecordedKind; 1] =
    [RecordedKind("quota.miloapis.com", "v1alpha1", "ResourceClaim", "resourceclaims")];

/// The recorded kinds of a project plane.
pub fn kinds_of_project() -> Vec<RecordedKind> {
    [&COMPUTE[..], &CORE, &QUOTA].concat()
}

/// The recorded kinds of the hub.
pub fn kinds_of_hub() -> Vec<RecordedKind> {
    [&COMPUTE[1..], &CORE, &FEDERATION].concat()
}

/// The recorded kinds of a cell.
pub fn kinds_of_cell() -> Vec<RecordedKind> {
    [&COMPUTE[1..], &CORE, &NETWORKS].concat()
}

/// Identifies an object on a plane.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectId {
    /// Its namespace; empty for a cluster-scoped object.
    pub namespace: String,
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// The type of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectChange {
    /// The object was created.
    Added,
    /// The object has a new resource version.
    Modified,
    /// The object was deleted.
    Deleted,
}

/// An entry of the journal.
#[derive(Debug, Clone)]
pub struct RecordedChange {
    /// When the recorder received it.
    pub at: Instant,
    /// The type of the change.
    pub change: ObjectChange,
    /// The object.
    pub key: ObjectId,
    /// The object after the change; its last version if it was deleted.
    pub object: Arc<Value>,
}

/// Length of the journal. A scenario needs a few hundred entries; a write loop fills it in minutes.
const MAX_ENTRIES: usize = 20_000;
/// Pause before listing again on a plane that does not respond.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// Timeout of a watch request, in seconds.
const WATCH_SECONDS: u32 = 240;

#[derive(Default)]
struct RecorderState {
    objects: BTreeMap<ObjectId, Arc<Value>>,
    journal: VecDeque<RecordedChange>,
}

impl RecorderState {
    fn append(&mut self, change: ObjectChange, key: ObjectId, object: Arc<Value>) {
        if self.journal.len() == MAX_ENTRIES {
            self.journal.pop_front();
        }
        self.journal.push_back(RecordedChange { at: Instant::now(), change, key, object });
    }

    fn put(&mut self, key: ObjectId, object: Value) {
        let object = Arc::new(object);
        let change = match self.objects.insert(key.clone(), object.clone()) {
            None => ObjectChange::Added,
            Some(before) if version(&before) == version(&object) => return,
            Some(_) => ObjectChange::Modified,
        };
        self.append(change, key, object);
    }

    fn remove(&mut self, key: &ObjectId) {
        if let Some(last) = self.objects.remove(key) {
            self.append(ObjectChange::Deleted, key.clone(), last);
        }
    }
}

fn version(object: &Value) -> Option<&str> {
    object.pointer("/metadata/resourceVersion")?.as_str()
}

/// Notifies of changes on the plane or in one namespace: a hundred scenarios wait at the same time, each for
/// changes in its own namespaces.
#[derive(Default)]
struct Notifier {
    all: watch::Sender<()>,
    by_namespace: Mutex<BTreeMap<String, watch::Sender<()>>>,
}

impl Notifier {
    fn notify(&self, namespace: &str) {
        self.all.send_replace(());
        if let Some(sender) = self.by_namespace().get(namespace) {
            sender.send_replace(());
        }
    }

    fn notify_all(&self) {
        self.all.send_replace(());
        self.by_namespace().values().for_each(|sender| sender.send_replace(()));
    }

    fn by_namespace(&self) -> MutexGuard<'_, BTreeMap<String, watch::Sender<()>>> {
        self.by_namespace.lock().expect("the lock is not poisoned")
    }
}

/// Records one plane until it is dropped.
pub struct PlaneRecorder {
    /// The plane.
    pub plane: String,
    client: Client,
    state: Arc<Mutex<RecorderState>>,
    notifier: Arc<Notifier>,
    _tasks: JoinSet<()>,
}

impl PlaneRecorder {
    /// Starts recording these kinds of a plane.
    pub fn start(plane: &str, client: Client, kinds: Vec<RecordedKind>) -> PlaneRecorder {
        let state = Arc::new(Mutex::new(RecorderState::default()));
        let notifier = Arc::new(Notifier::default());
        let mut tasks = JoinSet::new();
        for kind in kinds {
            tasks.spawn(record(client.clone(), kind, state.clone(), notifier.clone()));
        }
        PlaneRecorder { plane: plane.to_owned(), client, state, notifier, _tasks: tasks }
    }

    /// A client with full access.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Notified of every change.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.notifier.all.subscribe()
    }

    /// Notified of changes in a namespace; the empty one means cluster-scoped objects.
    pub fn changes_in(&self, namespace: &str) -> watch::Receiver<()> {
        self.notifier.by_namespace().entry(namespace.to_owned()).or_default().subscribe()
    }

    /// The recorded object.
    pub fn get(&self, key: &ObjectId) -> Option<Arc<Value>> {
        self.state().objects.get(key).cloned()
    }

    /// All objects of a kind.
    pub fn all(&self, kind: &str) -> Vec<(ObjectId, Arc<Value>)> {
        let state = self.state();
        let of_kind = state.objects.iter().filter(|(key, _)| key.kind == kind);
        of_kind.map(|(key, object)| (key.clone(), object.clone())).collect()
    }

    /// All objects in a namespace.
    pub fn in_namespace(&self, namespace: &str) -> Vec<(ObjectId, Arc<Value>)> {
        let state = self.state();
        let from = ObjectId { namespace: namespace.to_owned(), kind: String::new(), name: String::new() };
        let objects = state.objects.range(from..).take_while(|(key, _)| key.namespace == namespace);
        objects.map(|(key, object)| (key.clone(), object.clone())).collect()
    }

    /// The changes since then.
    pub fn journal(&self, since: Instant) -> Vec<RecordedChange> {
        self.journal_of(since, |_| true)
    }

    /// The changes of matching objects since then.
    pub fn journal_of(&self, since: Instant, which: impl Fn(&ObjectId) -> bool) -> Vec<RecordedChange> {
        let state = self.state();
        let from = state.journal.partition_point(|entry| entry.at < since);
        state.journal.range(from..).filter(|entry| which(&entry.key)).cloned().collect()
    }

    fn state(&self) -> MutexGuard<'_, RecorderState> {
        self.state.lock().expect("the lock is not poisoned")
    }
}

async fn record(
    client: Client,
    kind: RecordedKind,
    state: Arc<Mutex<RecorderState>>,
    notifier: Arc<Notifier>,
) {
    let RecordedKind(group, version, name, plural) = kind;
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, name), plural);
    let api: Api<DynamicObject> = Api::all_with(client, &resource);
    loop {
        if let Ok(listed) = api.list(&ListParams::default()).await {
            let from = listed.metadata.resource_version.clone().unwrap_or_default();
            {
                let mut state = state.lock().expect("the lock is not poisoned");
                let found: BTreeMap<ObjectId, Value> = listed
                    .items
                    .iter()
                    .filter_map(|object| Some((key_of(name, object), to_json(object)?)))
                    .collect();
                let deleted: Vec<ObjectId> = state
                    .objects
                    .keys()
                    .filter(|key| key.kind == name && !found.contains_key(key))
                    .cloned()
                    .collect();
                deleted.iter().for_each(|key| state.remove(key));
                found.into_iter().for_each(|(key, object)| state.put(key, object));
            }
            notifier.notify_all();
            watch_changes(&api, name, &from, &state, &notifier).await;
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

/// Watches from a resource version on, until the watch fails.
async fn watch_changes(
    api: &Api<DynamicObject>,
    kind: &str,
    from: &str,
    state: &Mutex<RecorderState>,
    notifier: &Notifier,
) {
    let mut from = from.to_owned();
    loop {
        let Ok(events) = api.watch(&WatchParams::default().timeout(WATCH_SECONDS), &from).await else {
            return;
        };
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            let (object, deleted) = match event {
                Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => (object, false),
                Ok(WatchEvent::Deleted(object)) => (object, true),
                Ok(WatchEvent::Bookmark(mark)) => {
                    from = mark.metadata.resource_version;
                    continue;
                }
                Ok(WatchEvent::Error(_)) | Err(_) => return,
            };
            from = object.metadata.resource_version.clone().unwrap_or_default();
            let key = key_of(kind, &object);
            let namespace = key.namespace.clone();
            let json = if deleted { None } else { to_json(&object) };
            {
                let mut state = state.lock().expect("the lock is not poisoned");
                match json {
                    _ if deleted => state.remove(&key),
                    Some(json) => state.put(key, json),
                    None => {}
                }
            }
            notifier.notify(&namespace);
        }
    }
}

fn key_of(kind: &str, object: &DynamicObject) -> ObjectId {
    ObjectId {
        namespace: object.namespace().to_owned(),
        kind: kind.to_owned(),
        name: object.name().to_owned(),
    }
}

fn to_json(object: &DynamicObject) -> Option<Value> {
    let mut object = serde_json::to_value(object).ok()?;
    object.get_mut("metadata")?.as_object_mut()?.remove("managedFields");
    Some(object)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mk_key(name: &str) -> ObjectId {
        ObjectId { namespace: "shop".into(), kind: "Instance".into(), name: name.into() }
    }

    fn mk_object(version: &str) -> Value {
        json!({"metadata": {"resourceVersion": version}})
    }

    #[test]
    fn the_journal_has_every_change_once() {
        let mut state = RecorderState::default();
        state.put(mk_key("a-0"), mk_object("1"));
        state.put(mk_key("a-0"), mk_object("1"));
        state.put(mk_key("a-0"), mk_object("2"));
        state.remove(&mk_key("a-0"));
        state.remove(&mk_key("a-0"));
        let changes: Vec<ObjectChange> = state.journal.iter().map(|entry| entry.change).collect();
        assert_eq!(changes, [ObjectChange::Added, ObjectChange::Modified, ObjectChange::Deleted]);
    }
}
