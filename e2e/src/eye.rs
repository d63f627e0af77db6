//! Eye: what is on a plane now, what was there, and when it changed.
//!
//! One watch per kind keeps a mirror of the plane and a journal of its changes. Scenarios wait on the mirror instead of
//! asking again and again, and look back in the journal: an object that was gone for a moment was gone. An eye survives
//! the death of its plane: it lists again when the plane is back, and notes what it finds changed.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use futures::StreamExt as _;
use polis_api::kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, WatchEvent, WatchParams},
};
use serde_json::Value;
use tokio::{sync::watch, task::JoinSet};

/// A kind that eyes look at: group, version, kind, plural.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind(pub &'static str, pub &'static str, pub &'static str, pub &'static str);

/// What lives on every plane of ours.
const COMPUTE: [Kind; 3] = [
    Kind("compute.datumapis.com", "v1alpha", "Workload", "workloads"),
    Kind("compute.datumapis.com", "v1alpha", "WorkloadDeployment", "workloaddeployments"),
    Kind("compute.datumapis.com", "v1alpha", "Instance", "instances"),
];
/// What lives on every plane.
const CORE: [Kind; 2] = [Kind("", "v1", "Namespace", "namespaces"), Kind("", "v1", "Event", "events")];
/// What Karmada keeps on the hub.
const FEDERATION: [Kind; 3] = [
    Kind("policy.karmada.io", "v1alpha1", "PropagationPolicy", "propagationpolicies"),
    Kind("work.karmada.io", "v1alpha2", "ResourceBinding", "resourcebindings"),
    Kind("work.karmada.io", "v1alpha1", "Work", "works"),
];
/// What a cell asks its network for.
const NETWORKS: [Kind; 4] = [
    Kind("networking.datumapis.com", "v1alpha", "NetworkBinding", "networkbindings"),
    Kind("networking.datumapis.com", "v1alpha", "NetworkContext", "networkcontexts"),
    Kind("networking.datumapis.com", "v1alpha", "SubnetClaim", "subnetclaims"),
    Kind("networking.datumapis.com", "v1alpha", "Subnet", "subnets"),
];
/// What a project is asked for.
const QUOTA: [Kind; 1] = [Kind("quota.miloapis.com", "v1alpha1", "ResourceClaim", "resourceclaims")];

/// Kinds to look at on a project plane.
pub fn kinds_of_project() -> Vec<Kind> {
    [&COMPUTE[..], &CORE, &QUOTA].concat()
}

/// Kinds to look at on the hub.
pub fn kinds_of_hub() -> Vec<Kind> {
    [&COMPUTE[1..], &CORE, &FEDERATION].concat()
}

/// Kinds to look at on a cell.
pub fn kinds_of_cell() -> Vec<Kind> {
    [&COMPUTE[1..], &CORE, &NETWORKS].concat()
}

/// Where an object is on its plane.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Its namespace; empty for an object without one.
    pub namespace: String,
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// What happened to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It appeared.
    Came,
    /// It is another than before.
    Turned,
    /// It is no more.
    Went,
}

/// One line of the journal.
#[derive(Debug, Clone)]
pub struct Note {
    /// When the eye saw it.
    pub at: Instant,
    /// What happened.
    pub change: Change,
    /// To what.
    pub key: Key,
    /// The object after the change; the last that was seen of it when it went.
    pub object: Arc<Value>,
}

/// Lines of journal that are kept: a storm fills them in minutes, a scenario needs a few hundred.
const JOURNAL: usize = 20_000;
/// How long an eye waits before it looks again at a plane that does not answer.
const BLINK: Duration = Duration::from_millis(200);
/// Seconds after which a watch is renewed.
const WATCH_SECONDS: u32 = 240;

#[derive(Default)]
struct Sight {
    objects: BTreeMap<Key, Arc<Value>>,
    journal: VecDeque<Note>,
}

impl Sight {
    fn note(&mut self, change: Change, key: Key, object: Arc<Value>) {
        if self.journal.len() == JOURNAL {
            self.journal.pop_front();
        }
        self.journal.push_back(Note { at: Instant::now(), change, key, object });
    }

    fn put(&mut self, key: Key, object: Value) {
        let object = Arc::new(object);
        let change = match self.objects.insert(key.clone(), object.clone()) {
            None => Change::Came,
            Some(before) if version(&before) == version(&object) => return,
            Some(_) => Change::Turned,
        };
        self.note(change, key, object);
    }

    fn forget(&mut self, key: &Key) {
        if let Some(last) = self.objects.remove(key) {
            self.note(Change::Went, key.clone(), last);
        }
    }
}

fn version(object: &Value) -> Option<&str> {
    object.pointer("/metadata/resourceVersion")?.as_str()
}

/// Who is told of a change: those who wait for anything on the plane, and those who wait for something in one namespace. A
/// hundred scenarios wait at the same time, each for its own.
#[derive(Default)]
struct Bells {
    anywhere: watch::Sender<()>,
    within: Mutex<BTreeMap<String, watch::Sender<()>>>,
}

impl Bells {
    fn ring(&self, namespace: &str) {
        self.anywhere.send_replace(());
        if let Some(bell) = self.within().get(namespace) {
            bell.send_replace(());
        }
    }

    fn ring_all(&self) {
        self.anywhere.send_replace(());
        self.within().values().for_each(|bell| bell.send_replace(()));
    }

    fn within(&self) -> MutexGuard<'_, BTreeMap<String, watch::Sender<()>>> {
        self.within.lock().expect("nobody panics while ringing")
    }
}

/// Looks at one plane. It closes when it is dropped.
pub struct Eye {
    /// The plane.
    pub plane: String,
    client: Client,
    sight: Arc<Mutex<Sight>>,
    bells: Arc<Bells>,
    _looking: JoinSet<()>,
}

impl Eye {
    /// Opens an eye on these kinds of a plane.
    pub fn open(plane: &str, client: Client, kinds: Vec<Kind>) -> Eye {
        let sight = Arc::new(Mutex::new(Sight::default()));
        let bells = Arc::new(Bells::default());
        let mut looking = JoinSet::new();
        for kind in kinds {
            looking.spawn(look(client.clone(), kind, sight.clone(), bells.clone()));
        }
        Eye { plane: plane.to_owned(), client, sight, bells, _looking: looking }
    }

    /// A client with the rights of the harness.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Told at every change.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.bells.anywhere.subscribe()
    }

    /// Told at every change in a namespace; an empty one is that of objects without.
    pub fn changes_in(&self, namespace: &str) -> watch::Receiver<()> {
        self.bells.within().entry(namespace.to_owned()).or_default().subscribe()
    }

    /// The object as the eye sees it.
    pub fn sees(&self, key: &Key) -> Option<Arc<Value>> {
        self.sight().objects.get(key).cloned()
    }

    /// All objects of a kind.
    pub fn all(&self, kind: &str) -> Vec<(Key, Arc<Value>)> {
        let sight = self.sight();
        let of_kind = sight.objects.iter().filter(|(key, _)| key.kind == kind);
        of_kind.map(|(key, object)| (key.clone(), object.clone())).collect()
    }

    /// All objects in a namespace.
    pub fn within(&self, namespace: &str) -> Vec<(Key, Arc<Value>)> {
        let sight = self.sight();
        let from = Key { namespace: namespace.to_owned(), kind: String::new(), name: String::new() };
        let there = sight.objects.range(from..).take_while(|(key, _)| key.namespace == namespace);
        there.map(|(key, object)| (key.clone(), object.clone())).collect()
    }

    /// What was seen since then.
    pub fn journal(&self, since: Instant) -> Vec<Note> {
        self.journal_of(since, |_| true)
    }

    /// What was seen since then of some objects.
    pub fn journal_of(&self, since: Instant, which: impl Fn(&Key) -> bool) -> Vec<Note> {
        let sight = self.sight();
        let from = sight.journal.partition_point(|note| note.at < since);
        sight.journal.range(from..).filter(|note| which(&note.key)).cloned().collect()
    }

    fn sight(&self) -> MutexGuard<'_, Sight> {
        self.sight.lock().expect("nobody panics while looking")
    }
}

async fn look(client: Client, kind: Kind, sight: Arc<Mutex<Sight>>, bells: Arc<Bells>) {
    let Kind(group, version, name, plural) = kind;
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, name), plural);
    let api: Api<DynamicObject> = Api::all_with(client, &resource);
    loop {
        if let Ok(listed) = api.list(&ListParams::default()).await {
            let from = listed.metadata.resource_version.clone().unwrap_or_default();
            {
                let mut sight = sight.lock().expect("nobody panics while looking");
                let found: BTreeMap<Key, Value> = listed
                    .items
                    .iter()
                    .filter_map(|object| Some((key_of(name, object), plain(object)?)))
                    .collect();
                let gone: Vec<Key> = sight
                    .objects
                    .keys()
                    .filter(|key| key.kind == name && !found.contains_key(key))
                    .cloned()
                    .collect();
                gone.iter().for_each(|key| sight.forget(key));
                found.into_iter().for_each(|(key, object)| sight.put(key, object));
            }
            bells.ring_all();
            follow(&api, name, &from, &sight, &bells).await;
        }
        tokio::time::sleep(BLINK).await;
    }
}

/// Follows the changes from a version on, until the watch ends or breaks.
async fn follow(api: &Api<DynamicObject>, kind: &str, from: &str, sight: &Mutex<Sight>, bells: &Bells) {
    let mut from = from.to_owned();
    loop {
        let Ok(events) = api.watch(&WatchParams::default().timeout(WATCH_SECONDS), &from).await else {
            return;
        };
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            let (object, left) = match event {
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
            let plain = if left { None } else { plain(&object) };
            {
                let mut sight = sight.lock().expect("nobody panics while looking");
                match plain {
                    _ if left => sight.forget(&key),
                    Some(plain) => sight.put(key, plain),
                    None => {}
                }
            }
            bells.ring(&namespace);
        }
    }
}

fn key_of(kind: &str, object: &DynamicObject) -> Key {
    Key {
        namespace: object.metadata.namespace.clone().unwrap_or_default(),
        kind: kind.to_owned(),
        name: object.metadata.name.clone().unwrap_or_default(),
    }
}

fn plain(object: &DynamicObject) -> Option<Value> {
    let mut object = serde_json::to_value(object).ok()?;
    object.get_mut("metadata")?.as_object_mut()?.remove("managedFields");
    Some(object)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mk_key(name: &str) -> Key {
        Key { namespace: "shop".into(), kind: "Instance".into(), name: name.into() }
    }

    fn mk_object(version: &str) -> Value {
        json!({"metadata": {"resourceVersion": version}})
    }

    #[test]
    fn the_journal_tells_what_came_turned_and_went_and_nothing_twice() {
        let mut sight = Sight::default();
        sight.put(mk_key("a-0"), mk_object("1"));
        sight.put(mk_key("a-0"), mk_object("1"));
        sight.put(mk_key("a-0"), mk_object("2"));
        sight.forget(&mk_key("a-0"));
        sight.forget(&mk_key("a-0"));
        let changes: Vec<Change> = sight.journal.iter().map(|note| note.change).collect();
        assert_eq!(changes, [Change::Came, Change::Turned, Change::Went]);
    }
}
