//! Hub namespaces: the namespaces of the hub in which the cell has instances, each watched as a plane.
//!
//! A cell has rights only in the hub namespaces where its city has deployments, so it cannot watch the whole
//! hub. Namespaces have the same names on the hub and in the cell, so the cell learns them from its own
//! instances: a namespace is watched from its first instance until [`LINGER`] after its last one.
//!
//! The watch of an idle namespace is a stream that is opened again after 30 to 60 minutes. For 1,000
//! namespaces these are 1,000 streams on 12 connections, and one request in 2.7 s on average.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use polis_engine::{Key, Plane, PlaneProvider, PlaneRegistry};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// How long a namespace stays watched after its last instance. A rollout that deletes the last instance
/// before it creates the next one does not list the namespace again.
const LINGER: Duration = Duration::from_secs(60);

/// The namespaces with an instance of the cell. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct HubNamespaces(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    namespaces: Mutex<BTreeMap<String, Entry>>,
    changed: Notify,
}

#[derive(Debug)]
struct Entry {
    /// Names of the instances.
    instances: BTreeSet<String>,
    /// When the first instance was added.
    since: Instant,
    /// When the last instance was removed.
    idle_since: Option<Instant>,
}

impl HubNamespaces {
    /// Adds an instance. Returns since when its namespace is watched.
    pub(crate) fn add(&self, key: &Key) -> Instant {
        let mut namespaces = self.0.namespaces.lock();
        if let Some(entry) = namespaces.get_mut(key.namespace()) {
            if !entry.instances.contains(&*key.name) {
                entry.instances.insert(key.name.to_string());
                entry.idle_since = None;
            }
            return entry.since;
        }
        let since = Instant::now();
        let entry = Entry { instances: [key.name.to_string()].into(), since, idle_since: None };
        namespaces.insert(key.namespace().to_owned(), entry);
        self.0.changed.notify_one();
        since
    }

    /// Removes an instance.
    pub(crate) fn remove(&self, key: &Key) {
        let mut namespaces = self.0.namespaces.lock();
        let Some(entry) = namespaces.get_mut(key.namespace()) else { return };
        if entry.instances.remove(&*key.name) && entry.instances.is_empty() {
            entry.idle_since = Some(Instant::now());
            self.0.changed.notify_one();
        }
    }

    /// Returns the namespaces to watch and the time of the next change. Drops namespaces that have been idle
    /// for [`LINGER`].
    fn watched(&self, now: Instant) -> (BTreeSet<String>, Option<Instant>) {
        let mut namespaces = self.0.namespaces.lock();
        namespaces.retain(|_, entry| entry.idle_since.is_none_or(|since| now < since + LINGER));
        let next = namespaces.values().filter_map(|entry| entry.idle_since).min().map(|since| since + LINGER);
        (namespaces.keys().cloned().collect(), next)
    }
}

/// Provides a plane for each of the namespaces.
pub(crate) struct WatchedNamespaces {
    pub(crate) namespaces: HubNamespaces,
    pub(crate) hub: Plane,
}

impl PlaneProvider for WatchedNamespaces {
    fn run(self: Box<Self>, registry: PlaneRegistry) -> BoxFuture<'static, ()> {
        async move {
            registry.set_listed();
            let mut engaged = BTreeSet::new();
            loop {
                let (watched, next) = self.namespaces.watched(Instant::now());
                for namespace in watched.difference(&engaged) {
                    registry.engage(&self.hub.within(namespace));
                }
                for namespace in engaged.difference(&watched) {
                    registry.disengage(namespace);
                }
                engaged = watched;
                tokio::select! {
                    biased;
                    () = self.namespaces.0.changed.notified() => {}
                    () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
                }
            }
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched(namespaces: &HubNamespaces) -> Vec<String> {
        namespaces.watched(Instant::now()).0.into_iter().collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_is_watched_until_a_minute_after_its_last_instance() {
        let namespaces = HubNamespaces::default();
        let key = |namespace, name| Key::new("cell", namespace, name);
        let since = namespaces.add(&key("ns-1", "web-0"));
        tokio::time::advance(LINGER).await;
        assert_eq!(namespaces.add(&key("ns-1", "web-1")), since);
        namespaces.add(&key("ns-2", "web-0"));
        namespaces.remove(&key("ns-1", "web-0"));
        tokio::time::advance(LINGER).await;
        assert_eq!(watched(&namespaces), ["ns-1", "ns-2"], "one instance is left");
        namespaces.remove(&key("ns-1", "web-1"));
        tokio::time::advance(LINGER / 2).await;
        assert_eq!(watched(&namespaces), ["ns-1", "ns-2"]);
        tokio::time::advance(LINGER / 2).await;
        assert_eq!(watched(&namespaces), ["ns-2"]);
        assert!(namespaces.add(&key("ns-1", "web-0")) > since, "it is watched anew");
    }

    #[tokio::test(start_paused = true)]
    async fn an_instance_that_returns_in_time_keeps_its_namespace_watched() {
        let namespaces = HubNamespaces::default();
        let key = Key::new("cell", "ns-1", "web-0");
        let since = namespaces.add(&key);
        namespaces.remove(&key);
        assert_eq!(namespaces.add(&key), since);
        tokio::time::advance(LINGER * 2).await;
        assert_eq!(watched(&namespaces), ["ns-1"]);
    }
}
