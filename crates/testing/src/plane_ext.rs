//! What a test does with a plane: uncached reads, changes with retries, and waiting for objects.

use polis_api::k8s_openapi::api::events::v1::Event;
use polis_engine::{ListOptions, NamespacedName, Object, Plane, Preconditions};

use crate::eventually;

/// Test helpers of a plane. A failed request is a panic, except for a conflict, which is retried.
#[expect(async_fn_in_trait, reason = "implemented for Plane alone, and tests do not spawn these futures")]
pub trait PlaneExt {
    /// Reads an object.
    async fn read<'n, K: Object>(&self, name: impl Into<NamespacedName<'n>>) -> Option<K>;

    /// All objects of a kind.
    async fn all<K: Object>(&self) -> Vec<K>;

    /// All objects of a kind in a namespace.
    async fn all_in<K: Object>(&self, namespace: &str) -> Vec<K>;

    /// Changes an existing object.
    async fn change<'n, K: Object>(&self, name: impl Into<NamespacedName<'n>>, change: impl Fn(&mut K));

    /// Changes the status of an existing object.
    async fn change_status<'n, K: Object>(
        &self,
        name: impl Into<NamespacedName<'n>>,
        change: impl Fn(&mut K),
    );

    /// Deletes an existing object, without waiting for its finalizers.
    async fn remove<'n, K: Object>(&self, name: impl Into<NamespacedName<'n>>);

    /// Waits until an object exists and matches.
    async fn eventually_has<'n, K: Object>(
        &self,
        name: impl Into<NamespacedName<'n>>,
        matches: impl Fn(&K) -> bool,
    ) -> K;

    /// Waits until an object does not exist.
    async fn eventually_lacks<'n, K: Object>(&self, name: impl Into<NamespacedName<'n>>);

    /// The events about the object of this name, whatever its kind.
    async fn events_of(&self, name: &str) -> Vec<Event>;

    /// Waits for an event about the object of this name, and returns its note.
    async fn eventually_event(&self, name: &str, reason: &str) -> String;
}

impl PlaneExt for Plane {
    async fn read<'n, K: Object>(&self, name: impl Into<NamespacedName<'n>>) -> Option<K> {
        self.uncached().get(name).await.expect("the plane responds")
    }

    async fn all<K: Object>(&self) -> Vec<K> {
        self.uncached().list(&ListOptions::all()).await.expect("the plane responds")
    }

    async fn all_in<K: Object>(&self, namespace: &str) -> Vec<K> {
        self.uncached().list(&ListOptions::within(namespace)).await.expect("the plane responds")
    }

    async fn change<'n, K: Object>(&self, name: impl Into<NamespacedName<'n>>, change: impl Fn(&mut K)) {
        retry_on_conflict(self, name.into(), change, Part::Object).await;
    }

    async fn change_status<'n, K: Object>(
        &self,
        name: impl Into<NamespacedName<'n>>,
        change: impl Fn(&mut K),
    ) {
        retry_on_conflict(self, name.into(), change, Part::Status).await;
    }

    async fn remove<'n, K: Object>(&self, name: impl Into<NamespacedName<'n>>) {
        let object: K = self.read(name).await.expect("the object exists");
        self.delete(&object, Preconditions::Uid).await.expect("the plane responds");
    }

    async fn eventually_has<'n, K: Object>(
        &self,
        name: impl Into<NamespacedName<'n>>,
        matches: impl Fn(&K) -> bool,
    ) -> K {
        let name = name.into();
        let what = format!("{} {name} on {}", std::any::type_name::<K>(), self.name());
        eventually(&what, async || self.read::<K>(name).await.filter(|object| matches(object))).await
    }

    async fn eventually_lacks<'n, K: Object>(&self, name: impl Into<NamespacedName<'n>>) {
        let name = name.into();
        let what = format!("no {} {name} on {}", std::any::type_name::<K>(), self.name());
        eventually(&what, async || self.read::<K>(name).await.is_none().then_some(())).await;
    }

    async fn events_of(&self, name: &str) -> Vec<Event> {
        let mut events = self.all::<Event>().await;
        events.retain(|event| event.regarding.as_ref().and_then(|about| about.name.as_deref()) == Some(name));
        events
    }

    async fn eventually_event(&self, name: &str, reason: &str) -> String {
        eventually(&format!("event {reason} of {name} on {}", self.name()), async || {
            let events = self.events_of(name).await;
            let found = events.into_iter().find(|event| event.reason.as_deref() == Some(reason));
            found.map(|event| event.note.unwrap_or_default())
        })
        .await
    }
}

/// The part of an object that a write changes.
#[derive(Clone, Copy)]
enum Part {
    Object,
    Status,
}

/// Reads, changes and writes an object until the write does not conflict with another.
async fn retry_on_conflict<K: Object>(
    plane: &Plane,
    name: NamespacedName<'_>,
    change: impl Fn(&mut K),
    part: Part,
) {
    loop {
        let current: K = plane.read(name).await.expect("the object exists");
        let mut desired = current.clone();
        change(&mut desired);
        let written = match part {
            Part::Object => plane.update(&current, &desired).await,
            Part::Status => plane.update_status(&current, &desired).await,
        };
        match written {
            Err(error) if error.is_conflict() => {}
            done => {
                done.expect("the plane responds");
                return;
            }
        }
    }
}
