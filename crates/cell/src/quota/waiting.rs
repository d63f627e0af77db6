//! Who waits for quota: a line of instances for each project, and the projects whose claims are watched.
//!
//! A cell may run instances of thousands of projects, and nearly all of them have their grants. Only a project that has
//! an instance waiting is watched, and for a little longer, so that a scale-up does not open a watch per instance.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use polis_core::quota::{Line, Place, Room, Turn, Waiter};
use polis_engine::{Key, Plane, Provider, Roster};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// How long a project stays watched after its last instance has its grant.
const LINGER: Duration = Duration::from_secs(60);

/// The instances that wait, by project. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waiting(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    queue: Mutex<Queue>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    projects: BTreeMap<String, Project>,
    /// The project that each waits for, and its place in the line.
    places: BTreeMap<Key, (String, Place)>,
}

#[derive(Debug, Default)]
struct Project {
    line: Line<Key>,
    /// Since when nobody waits.
    idle: Option<Instant>,
}

impl Waiting {
    /// An instance of a project waits.
    pub(crate) fn join(&self, project: &str, key: &Key, waiter: Waiter) {
        let mut queue = self.0.queue.lock();
        let moved = queue.places.get(key).is_none_or(|(standing, _)| standing != project);
        queue.leave(key); // it may have been made anew since, with another place
        let entry = queue.projects.entry(project.to_owned()).or_default();
        let place = entry.line.join(waiter, key.clone());
        entry.idle = None;
        queue.places.insert(key.clone(), (project.to_owned(), place));
        if moved {
            self.0.changed.notify_one();
        }
    }

    /// Whether it was denied, by what has been found out in this pass.
    pub(crate) fn note(&self, key: &Key, denied: bool) {
        let queue = &mut *self.0.queue.lock();
        let Some((project, place)) = queue.places.get(key) else { return };
        if let Some(project) = queue.projects.get_mut(project) {
            project.line.note(place, denied);
        }
    }

    /// Whether it is the turn of an instance, with so much room in its project.
    pub(crate) fn turn(&self, key: &Key, room: &Room) -> Turn {
        let queue = self.0.queue.lock();
        let Some((project, place)) = queue.places.get(key) else { return Turn::Unknown };
        queue.projects.get(project).map_or(Turn::Unknown, |project| project.line.turn(place, room))
    }

    /// The instances of a project that were denied and whose turn it is, with so much room.
    pub(crate) fn called(&self, project: &str, room: &Room) -> Vec<Key> {
        let queue = self.0.queue.lock();
        queue.projects.get(project).map(|project| project.line.called(room)).unwrap_or_default()
    }

    /// An instance waits no more.
    pub(crate) fn leave(&self, key: &Key) {
        if self.0.queue.lock().leave(key) {
            self.0.changed.notify_one();
        }
    }

    /// The projects to watch, and when to look again. Those that have been idle for long enough are dropped.
    fn watched(&self, now: Instant) -> (BTreeSet<String>, Option<Instant>) {
        let mut queue = self.0.queue.lock();
        queue.projects.retain(|_, project| project.idle.is_none_or(|since| now < since + LINGER));
        let next =
            queue.projects.values().filter_map(|project| project.idle).min().map(|since| since + LINGER);
        (queue.projects.keys().cloned().collect(), next)
    }
}

impl Queue {
    fn leave(&mut self, key: &Key) -> bool {
        let Some((project, place)) = self.places.remove(key) else { return false };
        let Some(entry) = self.projects.get_mut(&project) else { return false };
        entry.line.leave(&place);
        if entry.line.is_empty() {
            entry.idle = Some(Instant::now());
        }
        entry.line.is_empty()
    }
}

/// The planes of the projects that have an instance waiting.
pub(crate) struct WaitingProjects {
    pub(crate) waiting: Waiting,
    /// The API that serves the planes of all projects.
    pub(crate) base: Plane,
}

impl Provider for WaitingProjects {
    fn run(self: Box<Self>, roster: Roster) -> BoxFuture<'static, ()> {
        async move {
            roster.listed();
            let mut engaged = BTreeSet::new();
            loop {
                let (watched, next) = self.waiting.watched(Instant::now());
                for project in watched.difference(&engaged) {
                    roster.engage(&self.base.of_project(project));
                }
                for project in engaged.difference(&watched) {
                    roster.disengage(project);
                }
                engaged = watched;
                tokio::select! {
                    () = self.waiting.0.changed.notified() => {}
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

    fn mk_waiter(name: &str) -> Waiter {
        let needs = polis_core::quota::requests(None);
        Waiter { born: None, name: name.into(), needs, denied: false }
    }

    fn mk_room(available: i64) -> Room {
        let mut bucket = AllowanceBucket::default();
        bucket.spec.consumer_ref.kind = "Project".into();
        bucket.spec.consumer_ref.name = "acme".into();
        bucket.spec.resource_type = RESOURCE_INSTANCES.into();
        let status = bucket.status.get_or_insert_default();
        (status.available, status.limit) = (available, 10);
        Room::of("acme", &[bucket])
    }

    #[tokio::test]
    async fn only_those_are_called_who_were_denied_and_have_room_now() {
        let waiting = Waiting::default();
        for name in ["a", "b", "c"] {
            waiting.join("acme", &mk_key(name), mk_waiter(name));
        }
        waiting.join("shop", &mk_key("d"), mk_waiter("d"));
        waiting.note(&mk_key("b"), true);
        waiting.note(&mk_key("c"), true);
        assert_eq!(waiting.called("acme", &mk_room(1)), []);
        assert_eq!(waiting.called("acme", &mk_room(2)), [mk_key("b")]);
        waiting.leave(&mk_key("a"));
        assert_eq!(waiting.called("acme", &mk_room(2)), [mk_key("b"), mk_key("c")]);
        assert_eq!(waiting.turn(&mk_key("c"), &mk_room(1)), Turn::Behind);
        assert_eq!(waiting.turn(&mk_key("a"), &mk_room(1)), Turn::Unknown);
    }

    fn watched(waiting: &Waiting) -> Vec<String> {
        waiting.watched(Instant::now()).0.into_iter().collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_project_is_watched_while_one_of_its_instances_waits_and_a_little_longer() {
        let waiting = Waiting::default();
        waiting.join("acme", &mk_key("a"), mk_waiter("a"));
        waiting.join("acme", &mk_key("b"), mk_waiter("b"));
        waiting.leave(&mk_key("a"));
        tokio::time::advance(LINGER * 2).await;
        assert_eq!(watched(&waiting), ["acme"]);
        waiting.leave(&mk_key("b"));
        assert_eq!(watched(&waiting), ["acme"]);
        tokio::time::advance(LINGER).await;
        assert!(watched(&waiting).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn an_instance_waits_for_one_project_only() {
        let waiting = Waiting::default();
        waiting.join("acme", &mk_key("a"), mk_waiter("a"));
        waiting.join("shop", &mk_key("a"), mk_waiter("a"));
        tokio::time::advance(LINGER).await;
        assert_eq!(watched(&waiting), ["shop"]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_back_while_the_watch_lingers_keeps_it() {
        let waiting = Waiting::default();
        waiting.join("acme", &mk_key("a"), mk_waiter("a"));
        waiting.leave(&mk_key("a"));
        waiting.join("acme", &mk_key("b"), mk_waiter("b"));
        tokio::time::advance(LINGER * 3).await;
        assert_eq!(watched(&waiting), ["acme"]);
    }
}
