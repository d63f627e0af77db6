//! Instances that wait for quota: one queue per project, and the projects whose claims are watched.
//!
//! A cell may run instances of thousands of projects, and nearly all instances have their grants. Only
//! projects with a pending instance are watched, and for [`LINGER`] longer, so that a scale-up does not open
//! one watch per instance.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use polis_core::quota::{Headroom, PendingClaim, QueueDecision, QueuePosition, QuotaQueue};
use polis_engine::{Key, Plane, PlaneProvider, PlaneRegistry};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// How long a project stays watched after its last pending instance was granted quota.
const LINGER: Duration = Duration::from_secs(60);

/// The pending instances, by project. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct PendingInstances(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    queue: Mutex<Queue>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    projects: BTreeMap<String, Project>,
    /// The project of each instance, and its position in the queue of the project.
    positions: BTreeMap<Key, (String, QueuePosition)>,
}

#[derive(Debug, Default)]
struct Project {
    queue: QuotaQueue<Key>,
    /// When the queue became empty.
    idle_since: Option<Instant>,
}

impl PendingInstances {
    /// Adds an instance to the queue of its project.
    pub(crate) fn enqueue(&self, project: &str, key: &Key, claim: PendingClaim) {
        let mut queue = self.0.queue.lock();
        let new_project = queue.positions.get(key).is_none_or(|(previous, _)| previous != project);
        queue.remove(key); // a recreated instance gets a new position
        let entry = queue.projects.entry(project.to_owned()).or_default();
        let position = entry.queue.insert(claim, key.clone());
        entry.idle_since = None;
        queue.positions.insert(key.clone(), (project.to_owned(), position));
        if new_project {
            self.0.changed.notify_one();
        }
    }

    /// Records whether the claim of an instance is denied.
    pub(crate) fn set_denied(&self, key: &Key, denied: bool) {
        let queue = &mut *self.0.queue.lock();
        let Some((project, position)) = queue.positions.get(key) else { return };
        if let Some(project) = queue.projects.get_mut(project) {
            project.queue.set_denied(position, denied);
        }
    }

    /// Decides whether an instance may claim quota now, given the headroom of its project.
    pub(crate) fn decide(&self, key: &Key, headroom: &Headroom) -> QueueDecision {
        let queue = self.0.queue.lock();
        let Some((project, position)) = queue.positions.get(key) else { return QueueDecision::Unknown };
        queue
            .projects
            .get(project)
            .map_or(QueueDecision::Unknown, |project| project.queue.decide(position, headroom))
    }

    /// The denied instances of a project that fit into the headroom now.
    pub(crate) fn admissible(&self, project: &str, headroom: &Headroom) -> Vec<Key> {
        let queue = self.0.queue.lock();
        queue.projects.get(project).map(|project| project.queue.admissible(headroom)).unwrap_or_default()
    }

    /// Removes an instance from its queue.
    pub(crate) fn remove(&self, key: &Key) {
        if self.0.queue.lock().remove(key) {
            self.0.changed.notify_one();
        }
    }

    /// Returns the projects to watch and the time of the next change. Drops projects that have been idle for
    /// [`LINGER`].
    fn watched(&self, now: Instant) -> (BTreeSet<String>, Option<Instant>) {
        let mut queue = self.0.queue.lock();
        queue.projects.retain(|_, project| project.idle_since.is_none_or(|since| now < since + LINGER));
        let next = queue
            .projects
            .values()
            .filter_map(|project| project.idle_since)
            .min()
            .map(|since| since + LINGER);
        (queue.projects.keys().cloned().collect(), next)
    }
}

impl Queue {
    fn remove(&mut self, key: &Key) -> bool {
        let Some((project, position)) = self.positions.remove(key) else { return false };
        let Some(entry) = self.projects.get_mut(&project) else { return false };
        entry.queue.remove(&position);
        if entry.queue.is_empty() {
            entry.idle_since = Some(Instant::now());
        }
        entry.queue.is_empty()
    }
}

/// Provides the planes of the projects that have a pending instance.
pub(crate) struct PendingProjects {
    pub(crate) pending: PendingInstances,
    /// The API that serves the planes of all projects.
    pub(crate) base: Plane,
}

impl PlaneProvider for PendingProjects {
    fn run(self: Box<Self>, registry: PlaneRegistry) -> BoxFuture<'static, ()> {
        async move {
            registry.set_listed();
            let mut engaged = BTreeSet::new();
            loop {
                let (watched, next) = self.pending.watched(Instant::now());
                for project in watched.difference(&engaged) {
                    registry.engage(&self.base.of_project(project));
                }
                for project in engaged.difference(&watched) {
                    registry.disengage(project);
                }
                engaged = watched;
                tokio::select! {
                    biased;
                    () = self.pending.0.changed.notified() => {}
                    () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
                }
            }
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use polis_api::quota::{AllowanceBucket, RESOURCE_INSTANCES};

    use super::*;

    fn mk_key(name: &str) -> Key {
        Key::new("cell", "ns-1", name)
    }

    fn mk_claim(name: &str) -> PendingClaim {
        let requests = polis_core::quota::requests(None);
        PendingClaim { created: None, name: name.into(), requests, denied: false }
    }

    fn mk_headroom(available: i64) -> Headroom {
        let mut bucket = AllowanceBucket::default();
        bucket.spec.consumer_ref.kind = "Project".into();
        bucket.spec.consumer_ref.name = "acme".into();
        bucket.spec.resource_type = RESOURCE_INSTANCES.into();
        let status = bucket.status.get_or_insert_default();
        (status.available, status.limit) = (available, 10);
        Headroom::of("acme", &[bucket])
    }

    #[tokio::test]
    async fn only_denied_instances_that_fit_into_the_headroom_are_admissible() {
        let pending = PendingInstances::default();
        for name in ["a", "b", "c"] {
            pending.enqueue("acme", &mk_key(name), mk_claim(name));
        }
        pending.enqueue("shop", &mk_key("d"), mk_claim("d"));
        pending.set_denied(&mk_key("b"), true);
        pending.set_denied(&mk_key("c"), true);
        assert_eq!(pending.admissible("acme", &mk_headroom(1)), []);
        assert_eq!(pending.admissible("acme", &mk_headroom(2)), [mk_key("b")]);
        pending.remove(&mk_key("a"));
        assert_eq!(pending.admissible("acme", &mk_headroom(2)), [mk_key("b"), mk_key("c")]);
        assert_eq!(pending.decide(&mk_key("c"), &mk_headroom(1)), QueueDecision::Wait);
        assert_eq!(pending.decide(&mk_key("a"), &mk_headroom(1)), QueueDecision::Unknown);
    }

    fn watched(pending: &PendingInstances) -> Vec<String> {
        pending.watched(Instant::now()).0.into_iter().collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_project_is_watched_while_it_has_a_pending_instance_and_a_little_longer() {
        let pending = PendingInstances::default();
        pending.enqueue("acme", &mk_key("a"), mk_claim("a"));
        pending.enqueue("acme", &mk_key("b"), mk_claim("b"));
        pending.remove(&mk_key("a"));
        tokio::time::advance(LINGER * 2).await;
        assert_eq!(watched(&pending), ["acme"]);
        pending.remove(&mk_key("b"));
        assert_eq!(watched(&pending), ["acme"]);
        tokio::time::advance(LINGER).await;
        assert!(watched(&pending).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn an_instance_is_in_the_queue_of_one_project_only() {
        let pending = PendingInstances::default();
        pending.enqueue("acme", &mk_key("a"), mk_claim("a"));
        pending.enqueue("shop", &mk_key("a"), mk_claim("a"));
        tokio::time::advance(LINGER).await;
        assert_eq!(watched(&pending), ["shop"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_pending_instance_keeps_the_lingering_watch() {
        let pending = PendingInstances::default();
        pending.enqueue("acme", &mk_key("a"), mk_claim("a"));
        pending.remove(&mk_key("a"));
        pending.enqueue("acme", &mk_key("b"), mk_claim("b"));
        tokio::time::advance(LINGER * 3).await;
        assert_eq!(watched(&pending), ["acme"]);
    }
}
