//! A recorder: watches a kind on one plane and records when each object first matched.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use futures::StreamExt as _;
use polis_api::kube::api::{ListParams, WatchEvent, WatchParams};
use polis_api::kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

/// The time of the first match by name.
pub(crate) type FirstMatches = BTreeMap<String, Instant>;

/// A watch of one kind on one plane. Dropping it ends the watch.
pub(crate) struct Recorder {
    first_matches: watch::Receiver<FirstMatches>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Recorder {
    /// Starts a watch. An object matches when `name` returns the name to record.
    pub(crate) async fn on<K>(client: Client, name: fn(&K) -> Option<String>) -> Self
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
    {
        let (sender, first_matches) = watch::channel(FirstMatches::new());
        let api: Api<K> = Api::all(client);
        let listed = api.list(&ListParams::default()).await.expect("lists the objects");
        let mut version = listed.metadata.resource_version.unwrap_or_default();
        let sender = Arc::new(sender);
        let task = tokio::spawn(async move {
            loop {
                let Ok(events) = api.watch(&WatchParams::default(), &version).await else { continue };
                futures::pin_mut!(events);
                while let Some(Ok(event)) = events.next().await {
                    let (WatchEvent::Added(object) | WatchEvent::Modified(object)) = event else { continue };
                    version = object.meta().resource_version.clone().unwrap_or_default();
                    if let Some(name) = name(&object) {
                        let now = Instant::now();
                        sender.send_modify(|first_matches| {
                            first_matches.entry(name).or_insert(now);
                        });
                    }
                }
            }
        });
        Recorder { first_matches, task }
    }

    /// Waits for this name; returns the time of its first match.
    pub(crate) async fn one(&self, name: &str) -> Instant {
        let mut first_matches = self.first_matches.clone();
        let first_matches =
            first_matches.wait_for(|all| all.contains_key(name)).await.expect("a running watch");
        first_matches[name]
    }

    /// Waits for `count` names; returns the time of the last first match.
    pub(crate) async fn all(&self, count: usize) -> Instant {
        let mut first_matches = self.first_matches.clone();
        let first_matches = first_matches.wait_for(|all| all.len() >= count).await.expect("a running watch");
        first_matches.values().max().copied().unwrap_or_else(Instant::now)
    }
}
