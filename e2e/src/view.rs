//! A view of a namespace on a plane, with the assertions of scenarios.
//!
//! `eventually_has` waits until an object matches; `eventually_lacks` waits until no object matches, and that
//! it stays so; `consistently_has` and `consistently_lacks` observe for a period. All of them use the plane's
//! journal, so no intermediate change is missed, and confirm the result with an uncached read.

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use polis_api::{
    k8s_openapi::NamespaceResourceScope,
    kube::{
        Api, Client, Resource,
        api::{ApiResource, DynamicObject, ListParams},
    },
};
use serde_json::Value;

use crate::{
    matchers::{Matchable, Matcher},
    recorder::{ObjectChange, ObjectId, PlaneRecorder},
};

/// Timeout of `eventually` assertions. Karmada needs about a second per stage when it is idle, ten times that
/// while other scenarios load the same two cores, and ten times more on a machine that also compiles.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// The period of `consistently` assertions, from
/// [`TestPlanes::quiet_period`](crate::planes::TestPlanes::quiet_period).
pub fn quiet_period() -> Duration {
    *QUIET_PERIOD.get().expect("the fixture sets the quiet period")
}

static QUIET_PERIOD: OnceLock<Duration> = OnceLock::new();

pub(crate) fn set_quiet_period(period: Duration) {
    QUIET_PERIOD.get_or_init(|| period);
}

/// A namespace on a plane.
#[derive(Clone)]
pub struct NamespaceView {
    /// Records the plane.
    pub recorder: Arc<PlaneRecorder>,
    /// The namespace; empty for cluster-scoped objects.
    pub namespace: String,
}

impl NamespaceView {
    /// Waits until an object matches, and returns it.
    pub async fn eventually_has<K: Matchable>(&self, matcher: Matcher<K>) -> K {
        self.eventually_has_within(matcher, TIMEOUT).await
    }

    /// As [`NamespaceView::eventually_has`], with another timeout.
    pub async fn eventually_has_within<K: Matchable>(&self, matcher: Matcher<K>, within: Duration) -> K {
        let key = self.key(&matcher);
        let mismatches = |object: &Value| matcher.mismatches(object);
        let found = self.on_changes(Instant::now() + within, async || {
            self.recorder.get(&key).filter(|recorded| mismatches(recorded).is_empty())?;
            self.uncached::<K>(&matcher.name).await.filter(|uncached| mismatches(uncached).is_empty())
        });
        if let Some(object) = found.await {
            return serde_json::from_value(object).expect("it was parsed before");
        }
        let found = match self.recorder.get(&key) {
            Some(object) => {
                format!("it exists, without: {:?}:\n{}", mismatches(&object), pretty(&object))
            }
            None => format!("it does not exist; there are {}", self.names()),
        };
        panic!("{self} has no {matcher} after {within:?}: {found}");
    }

    /// Asserts that an object matches now and throughout the period.
    pub async fn consistently_has<K: Matchable>(&self, matcher: Matcher<K>, window: Duration) {
        let start = Instant::now();
        let key = self.key(&matcher);
        self.eventually_has_within(matcher.clone(), Duration::from_secs(5)).await;
        self.throughout(start + window, || {
            for entry in self.recorder.journal_of(start, |about| *about == key) {
                let mismatches = matcher.mismatches(&entry.object);
                let stays = entry.change != ObjectChange::Deleted && mismatches.is_empty();
                assert!(
                    stays,
                    "{self} did not keep {matcher}: {:?}, without: {mismatches:?}:\n{}",
                    entry.change,
                    pretty(&entry.object)
                );
            }
        })
        .await;
    }

    /// Waits until no object matches, and asserts that it stays so for the quiet period.
    pub async fn eventually_lacks<K: Matchable>(&self, matcher: Matcher<K>) {
        self.until_gone(matcher.clone()).await;
        self.consistently_lacks(matcher, quiet_period()).await;
    }

    /// Waits until no object matches.
    pub async fn until_gone<K: Matchable>(&self, matcher: Matcher<K>) {
        let key = self.key(&matcher);
        let matches = |object: &Value| matcher.mismatches(object).is_empty();
        let recorded = || self.recorder.get(&key).filter(|object| matches(object));
        let gone = self.on_changes(Instant::now() + TIMEOUT, async || {
            let gone = recorded().is_none()
                && self.uncached::<K>(&matcher.name).await.is_none_or(|uncached| !matches(&uncached));
            gone.then_some(())
        });
        if gone.await.is_none() {
            let found = recorded().map(|object| pretty(&object)).unwrap_or_default();
            panic!("{self} still has {matcher} after {TIMEOUT:?}:\n{found}");
        }
    }

    /// Asserts that no object matches now and throughout the period.
    pub async fn consistently_lacks<K: Matchable>(&self, matcher: Matcher<K>, window: Duration) {
        let start = Instant::now();
        let key = self.key(&matcher);
        // The recorder may lag behind the plane: what it delivers of an earlier version is history.
        let earlier = self.current_version::<K>().await;
        let is_earlier = |object: &Value| version_of(object).zip(earlier).is_some_and(|(at, now)| at <= now);
        self.throughout(start + window, || {
            let now = self.recorder.get(&key);
            let recorded = self.recorder.journal_of(start, |about| *about == key);
            let added = recorded.into_iter().filter(|entry| entry.change != ObjectChange::Deleted);
            for object in added.map(|entry| entry.object).chain(now).filter(|object| !is_earlier(object)) {
                let lacks = !matcher.mismatches(&object).is_empty();
                assert!(lacks, "{self} should have no {matcher}:\n{}", pretty(&object));
            }
        })
        .await;
    }

    /// Waits until no object of these kinds exists, and asserts that none appears for the quiet period.
    pub async fn eventually_empty_of(&self, kinds: &[&str]) {
        let matches_kind = |key: &ObjectId| key.namespace == self.namespace && kinds.contains(&&*key.kind);
        let left = || -> Vec<String> {
            let objects = self.recorder.in_namespace(&self.namespace);
            let left = objects.iter().filter(|(key, _)| matches_kind(key));
            left.map(|(key, _)| key.to_string()).collect()
        };
        let empty = self.on_changes(Instant::now() + TIMEOUT, async || left().is_empty().then_some(()));
        assert!(empty.await.is_some(), "{self} still has {:?} after {TIMEOUT:?}", left());
        let start = Instant::now();
        self.throughout(start + quiet_period(), || {
            let recorded = self.recorder.journal_of(start, matches_kind);
            if let Some(entry) = recorded.into_iter().find(|entry| entry.change != ObjectChange::Deleted) {
                panic!("{self} was empty, then {} appeared:\n{}", entry.key, pretty(&entry.object));
            }
        })
        .await;
    }

    /// Repeats the check on every change in the namespace until it returns a value; none after the deadline.
    async fn on_changes<T>(&self, deadline: Instant, mut check: impl AsyncFnMut() -> Option<T>) -> Option<T> {
        let mut changes = self.recorder.changes_in(&self.namespace);
        loop {
            changes.mark_unchanged();
            if let Some(found) = check().await {
                return Some(found);
            }
            if !wait_for_change(&mut changes, deadline).await {
                return None;
            }
        }
    }

    /// Repeats the check on every change in the namespace until the deadline.
    async fn throughout(&self, deadline: Instant, mut check: impl FnMut()) {
        let checked = self.on_changes(deadline, async || {
            check();
            None::<()>
        });
        checked.await;
    }

    /// All objects of a kind.
    pub fn all<K: Matchable>(&self) -> Vec<K> {
        let objects = self
            .recorder
            .in_namespace(&self.namespace)
            .into_iter()
            .filter(|(key, _)| key.kind == K::kind(&()));
        objects.filter_map(|(_, object)| serde_json::from_value((*object).clone()).ok()).collect()
    }

    /// Waits until `check` returns a value for all objects of a kind.
    pub async fn eventually<K: Matchable, T>(
        &self,
        what: &str,
        mut check: impl FnMut(Vec<K>) -> Option<T>,
    ) -> T {
        let found = self.on_changes(Instant::now() + TIMEOUT, async || check(self.all::<K>())).await;
        found.unwrap_or_else(|| {
            panic!("{self} has not reached {what} within {TIMEOUT:?}; there are {}", self.names())
        })
    }

    /// An API client for this namespace with full access.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Matchable + Resource<Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client().clone(), &self.namespace)
    }

    /// A client for the plane with full access.
    pub fn client(&self) -> &Client {
        self.recorder.client()
    }

    /// Reads the object from the plane; `None` if it does not exist or the plane does not respond.
    async fn uncached<K: Matchable>(&self, name: &str) -> Option<Value> {
        let object = self.untyped::<K>().get_opt(name).await.ok()??;
        serde_json::to_value(object).ok()
    }

    /// The resource version of the plane now; `None` if the plane does not respond.
    async fn current_version<K: Matchable>(&self) -> Option<u64> {
        let list = self.untyped::<K>().list_metadata(&ListParams::default().limit(1)).await.ok()?;
        list.metadata.resource_version?.parse().ok()
    }

    fn untyped<K: Matchable>(&self) -> Api<DynamicObject> {
        let resource = ApiResource::erase::<K>(&());
        match self.namespace.as_str() {
            "" => Api::all_with(self.client().clone(), &resource),
            namespace => Api::namespaced_with(self.client().clone(), namespace, &resource),
        }
    }

    fn key<K: Matchable>(&self, matcher: &Matcher<K>) -> ObjectId {
        ObjectId {
            namespace: self.namespace.clone(),
            kind: K::kind(&()).into_owned(),
            name: matcher.name.clone(),
        }
    }

    fn names(&self) -> String {
        let objects = self.recorder.in_namespace(&self.namespace);
        let names: Vec<String> = objects
            .iter()
            .filter(|(key, _)| key.kind != "Event")
            .map(|(key, _)| format!("{} {}", key.kind, key.name))
            .collect();
        if names.is_empty() { "no objects".to_owned() } else { names.join(", ") }
    }
}

impl std::fmt::Display for NamespaceView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.namespace.as_str() {
            "" => write!(f, "{}", self.recorder.plane),
            namespace => write!(f, "{}/{namespace}", self.recorder.plane),
        }
    }
}

/// Waits for a change; false after the deadline.
///
/// Returns at least every 500 ms: an uncached read may be ahead of the recorder, and then no change follows.
pub(crate) async fn wait_for_change(
    changes: &mut tokio::sync::watch::Receiver<()>,
    deadline: Instant,
) -> bool {
    let next_check = Instant::now() + Duration::from_millis(500);
    let wake = deadline.min(next_check);
    let _changed = tokio::time::timeout_at(wake.into(), changes.changed()).await;
    Instant::now() < deadline
}

fn version_of(object: &Value) -> Option<u64> {
    object["metadata"]["resourceVersion"].as_str()?.parse().ok()
}

/// An object as indented JSON.
pub(crate) fn pretty(object: &Value) -> String {
    serde_json::to_string_pretty(object).unwrap_or_default()
}
