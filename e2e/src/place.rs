//! Place: a namespace on a plane, and the words in which a scenario asks about it.
//!
//! `has` waits until something is there; `loses` waits until it is gone and then watches that it stays gone; `keeps`
//! and `lacks` watch a window in which nothing may change. All of them look at the journal of the plane, so nothing
//! that happens in between is missed, and an answer is always confirmed by a live read of the plane.

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use polis_api::{
    k8s_openapi::NamespaceResourceScope,
    kube::{
        Api, Client, Resource,
        api::{ApiResource, DynamicObject},
    },
};
use serde_json::Value;

use crate::{
    eye::{Change, Eye, Key},
    seek::{Kind, Seek},
};

/// How long something may take that must happen. Karmada needs about a second for a hop when it is idle, ten times that
/// while other scenarios load the same two cores, and again ten times that on a machine that builds something beside.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// How long something must not happen until it is said to be absent. The planes say it: see
/// [`Planes::quiet`](crate::planes::Planes::quiet).
pub fn quiet() -> Duration {
    *QUIET.get().expect("the stage is set before anybody looks")
}

static QUIET: OnceLock<Duration> = OnceLock::new();

pub(crate) fn set_quiet(quiet: Duration) {
    QUIET.get_or_init(|| quiet);
}

/// A namespace on a plane.
#[derive(Clone)]
pub struct Place {
    /// Looks at the plane.
    pub eye: Arc<Eye>,
    /// The namespace; empty for what has none.
    pub namespace: String,
}

impl Place {
    /// Waits until it is there, and returns it.
    pub async fn has<K: Kind>(&self, seek: Seek<K>) -> K {
        self.has_within(seek, DEADLINE).await
    }

    /// Waits so long until it is there, and returns it.
    pub async fn has_within<K: Kind>(&self, seek: Seek<K>, within: Duration) -> K {
        let key = self.key(&seek);
        let deadline = Instant::now() + within;
        let mut changes = self.eye.changes_in(&self.namespace);
        loop {
            changes.mark_unchanged();
            let seen = self.eye.sees(&key);
            let missing = seen.as_ref().map(|object| seek.missing(object));
            if missing.as_ref().is_some_and(Vec::is_empty)
                && let Some(live) = self.live::<K>(&seek.name).await
                && seek.missing(&live).is_empty()
            {
                return serde_json::from_value(live).expect("it was read before");
            }
            if !until(&mut changes, deadline).await {
                let found = match (seen, missing) {
                    (Some(object), Some(missing)) => {
                        format!("it is there, and not {missing:?}:\n{}", text(&object))
                    }
                    _ => format!("nothing of that name is there; there are {}", self.names()),
                };
                panic!("{self} has no {seek} after {within:?}: {found}");
            }
        }
    }

    /// Sees that it is there now and all through the window.
    pub async fn keeps<K: Kind>(&self, seek: Seek<K>, window: Duration) {
        let start = Instant::now();
        let key = self.key(&seek);
        self.has_within(seek.clone(), Duration::from_secs(5)).await;
        let mut changes = self.eye.changes_in(&self.namespace);
        loop {
            changes.mark_unchanged();
            for note in self.eye.journal_of(start, |about| *about == key) {
                let missing = seek.missing(&note.object);
                let stays = note.change != Change::Went && missing.is_empty();
                assert!(
                    stays,
                    "{self} did not keep {seek}: it {:?}, not {missing:?}:\n{}",
                    note.change,
                    text(&note.object)
                );
            }
            if !until(&mut changes, start + window).await {
                return;
            }
        }
    }

    /// Waits until it is gone and sees that it stays away for [`quiet`].
    pub async fn loses<K: Kind>(&self, seek: Seek<K>) {
        self.is_rid_of(seek.clone()).await;
        self.lacks(seek, quiet()).await;
    }

    /// Waits until it is gone.
    pub async fn is_rid_of<K: Kind>(&self, seek: Seek<K>) {
        let key = self.key(&seek);
        let matches = |object: &Value| seek.missing(object).is_empty();
        let deadline = Instant::now() + DEADLINE;
        let mut changes = self.eye.changes_in(&self.namespace);
        loop {
            changes.mark_unchanged();
            let seen = self.eye.sees(&key).filter(|object| matches(object));
            if seen.is_none() && self.live::<K>(&seek.name).await.is_none_or(|live| !matches(&live)) {
                return;
            }
            if !until(&mut changes, deadline).await {
                let found = seen.map(|object| text(&object)).unwrap_or_default();
                panic!("{self} still has {seek} after {DEADLINE:?}:\n{found}");
            }
        }
    }

    /// Sees that it is not there now and at no moment of the window.
    pub async fn lacks<K: Kind>(&self, seek: Seek<K>, window: Duration) {
        let start = Instant::now();
        let key = self.key(&seek);
        let mut changes = self.eye.changes_in(&self.namespace);
        loop {
            changes.mark_unchanged();
            let now = self.eye.sees(&key);
            let seen = self.eye.journal_of(start, |about| *about == key);
            let came = seen.into_iter().filter(|note| note.change != Change::Went);
            for object in came.map(|note| note.object).chain(now) {
                assert!(
                    !seek.missing(&object).is_empty(),
                    "{self} should have no {seek}:\n{}",
                    text(&object)
                );
            }
            if !until(&mut changes, start + window).await {
                return;
            }
        }
    }

    /// Waits until nothing of these kinds is there and sees that nothing comes for [`quiet`].
    pub async fn is_clear_of(&self, kinds: &[&str]) {
        let mine = |key: &Key| key.namespace == self.namespace && kinds.contains(&&*key.kind);
        let deadline = Instant::now() + DEADLINE;
        let mut changes = self.eye.changes_in(&self.namespace);
        let start = loop {
            changes.mark_unchanged();
            let left: Vec<String> = self
                .eye
                .within(&self.namespace)
                .iter()
                .filter(|(key, _)| mine(key))
                .map(|(key, _)| key.to_string())
                .collect();
            if left.is_empty() {
                break Instant::now();
            }
            assert!(until(&mut changes, deadline).await, "{self} still has {left:?} after {DEADLINE:?}");
        };
        loop {
            changes.mark_unchanged();
            let seen = self.eye.journal_of(start, mine);
            if let Some(note) = seen.into_iter().find(|note| note.change != Change::Went) {
                panic!("{self} was clear, and then came {}:\n{}", note.key, text(&note.object));
            }
            if !until(&mut changes, start + quiet()).await {
                return;
            }
        }
    }

    /// All objects of a kind that are there now.
    pub fn all<K: Kind>(&self) -> Vec<K> {
        let objects =
            self.eye.within(&self.namespace).into_iter().filter(|(key, _)| key.kind == K::kind(&()));
        objects.filter_map(|(_, object)| serde_json::from_value((*object).clone()).ok()).collect()
    }

    /// Waits until something is true of all objects of a kind that are there.
    pub async fn settles<K: Kind, T>(&self, words: &str, mut look: impl FnMut(Vec<K>) -> Option<T>) -> T {
        let deadline = Instant::now() + DEADLINE;
        let mut changes = self.eye.changes_in(&self.namespace);
        loop {
            changes.mark_unchanged();
            if let Some(found) = look(self.all::<K>()) {
                return found;
            }
            assert!(
                until(&mut changes, deadline).await,
                "{self} did not come to {words} in {DEADLINE:?}; there are {}",
                self.names()
            );
        }
    }

    /// A client of this place with the rights of the harness.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Kind + Resource<Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client().clone(), &self.namespace)
    }

    /// A client of the plane with the rights of the harness.
    pub fn client(&self) -> &Client {
        self.eye.client()
    }

    /// The object, read live; none when it is not there or the plane does not answer.
    async fn live<K: Kind>(&self, name: &str) -> Option<Value> {
        let resource = ApiResource::erase::<K>(&());
        let api: Api<DynamicObject> = match self.namespace.as_str() {
            "" => Api::all_with(self.client().clone(), &resource),
            namespace => Api::namespaced_with(self.client().clone(), namespace, &resource),
        };
        let object = api.get_opt(name).await.ok()??;
        serde_json::to_value(object).ok()
    }

    fn key<K: Kind>(&self, seek: &Seek<K>) -> Key {
        Key { namespace: self.namespace.clone(), kind: K::kind(&()).into_owned(), name: seek.name.clone() }
    }

    fn names(&self) -> String {
        let there = self.eye.within(&self.namespace);
        let names: Vec<String> = there
            .iter()
            .filter(|(key, _)| key.kind != "Event")
            .map(|(key, _)| format!("{} {}", key.kind, key.name))
            .collect();
        if names.is_empty() { "no objects".to_owned() } else { names.join(", ") }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.namespace.as_str() {
            "" => write!(f, "{}", self.eye.plane),
            namespace => write!(f, "{}/{namespace}", self.eye.plane),
        }
    }
}

/// Waits for a change; false when the time is over.
///
/// A live read may run ahead of the mirror, and then no change tells of it: so it also returns now and again.
pub(crate) async fn until(changes: &mut tokio::sync::watch::Receiver<()>, deadline: Instant) -> bool {
    let next_look = Instant::now() + Duration::from_millis(500);
    let wake = deadline.min(next_look);
    let _either = tokio::time::timeout_at(wake.into(), changes.changed()).await;
    Instant::now() < deadline
}

/// An object for people.
pub(crate) fn text(object: &Value) -> String {
    serde_json::to_string_pretty(object).unwrap_or_default()
}
