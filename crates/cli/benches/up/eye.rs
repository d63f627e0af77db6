//! An eye on a kind of one plane: when each object was first seen as it should be.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use futures::StreamExt as _;
use polis_api::kube::api::{ListParams, WatchEvent, WatchParams};
use polis_api::kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

/// Names, and when they were first seen.
pub(crate) type Seen = BTreeMap<String, Instant>;

/// Watches until it is dropped.
pub(crate) struct Eye {
    seen: watch::Receiver<Seen>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Eye {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Eye {
    /// Notes every object that the function has a name for.
    pub(crate) async fn on<K>(client: Client, name: fn(&K) -> Option<String>) -> Self
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
    {
        let (tell, seen) = watch::channel(Seen::new());
        let api: Api<K> = Api::all(client);
        let listed = api.list(&ListParams::default()).await.expect("a list");
        let mut version = listed.metadata.resource_version.unwrap_or_default();
        let tell = Arc::new(tell);
        let task = tokio::spawn(async move {
            loop {
                let Ok(events) = api.watch(&WatchParams::default(), &version).await else { continue };
                futures::pin_mut!(events);
                while let Some(Ok(event)) = events.next().await {
                    let (WatchEvent::Added(object) | WatchEvent::Modified(object)) = event else { continue };
                    version = object.meta().resource_version.clone().unwrap_or_default();
                    if let Some(name) = name(&object) {
                        let now = Instant::now();
                        tell.send_modify(|seen| {
                            seen.entry(name).or_insert(now);
                        });
                    }
                }
            }
        });
        Eye { seen, task }
    }

    /// When this one was seen.
    pub(crate) async fn one(&self, name: &str) -> Instant {
        let mut seen = self.seen.clone();
        let seen = seen.wait_for(|seen| seen.contains_key(name)).await.expect("an eye that is open");
        seen[name]
    }

    /// When the last of so many was seen.
    pub(crate) async fn all(&self, count: usize) -> Instant {
        let mut seen = self.seen.clone();
        let seen = seen.wait_for(|seen| seen.len() >= count).await.expect("an eye that is open");
        seen.values().max().copied().unwrap_or_else(Instant::now)
    }
}
