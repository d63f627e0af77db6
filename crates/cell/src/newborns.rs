//! Newborns: instances that were made a moment ago and that the watch has not shown yet.
//!
//! A pass may follow the one that made an instance sooner than the watch brings it. Such a pass would make it again; the
//! server refuses that, but it is a request for nothing. So a deployment is left alone until the watch has caught up
//! with what was made for it, or for [`PATIENCE`]: an instance may have come and gone while the watch was interrupted.
//!
//! So it is with the copy of an instance on the hub: whoever does not see it yet would look for its deployment, its namespace
//! and itself there, as often as the instance has something to say.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use polis_api::compute::Instance;
use polis_core::owner;
use polis_engine::Key;
use tokio::time::Instant;

/// How long a deployment waits for what was made for it to be seen.
const PATIENCE: Duration = Duration::from_secs(10);

/// The newborn of each deployment of a cell, of which one instance is made at a time; or the copy of each instance.
#[derive(Default)]
pub(crate) struct Newborns(Mutex<BTreeMap<Key, Newborn>>);

struct Newborn {
    uid: String,
    since: Instant,
}

impl Newborns {
    /// Notes that this instance was made for the deployment.
    pub(crate) fn made(&self, deployment: &Key, instance: &Instance) {
        let newborn = Newborn { uid: owner::uid(&instance.metadata).to_owned(), since: Instant::now() };
        self.0.lock().insert(deployment.clone(), newborn);
    }

    /// Notes that the watch has shown this instance.
    pub(crate) fn seen(&self, deployment: &Key, instance: &Instance) {
        let mut newborns = self.0.lock();
        if newborns.get(deployment).is_some_and(|newborn| newborn.uid == owner::uid(&instance.metadata)) {
            newborns.remove(deployment);
        }
    }

    /// How long the deployment still waits for its newborn. Not at all if that is among what stands: the watch may have
    /// been faster than the answer to whoever made it.
    pub(crate) fn awaited(&self, deployment: &Key, standing: &[Instance]) -> Option<Duration> {
        let mut newborns = self.0.lock();
        let newborn = newborns.get(deployment)?;
        let stands = standing.iter().any(|instance| owner::uid(&instance.metadata) == newborn.uid);
        let rest = PATIENCE.saturating_sub(newborn.since.elapsed());
        if stands || rest.is_zero() {
            newborns.remove(deployment);
            return None;
        }
        Some(rest)
    }

    /// Forgets the newborn of a deployment that is gone or going.
    pub(crate) fn forget(&self, deployment: &Key) {
        self.0.lock().remove(deployment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_instance(uid: &str) -> Instance {
        let mut instance = Instance::new("web-0", Default::default());
        instance.metadata.uid = Some(uid.into());
        instance
    }

    fn mk_key() -> Key {
        Key::new("cell", "ns-1", "web")
    }

    #[tokio::test(start_paused = true)]
    async fn a_deployment_waits_until_what_was_made_for_it_is_seen() {
        let newborns = Newborns::default();
        assert_eq!(newborns.awaited(&mk_key(), &[]), None);
        newborns.made(&mk_key(), &mk_instance("uid-1"));
        newborns.seen(&mk_key(), &mk_instance("uid-of-an-earlier-one"));
        assert_eq!(newborns.awaited(&mk_key(), &[mk_instance("uid-of-another")]), Some(PATIENCE));
        newborns.seen(&mk_key(), &mk_instance("uid-1"));
        assert_eq!(newborns.awaited(&mk_key(), &[]), None);
    }

    #[tokio::test(start_paused = true)]
    async fn what_stands_is_not_waited_for() {
        let newborns = Newborns::default();
        newborns.made(&mk_key(), &mk_instance("uid-1"));
        assert_eq!(newborns.awaited(&mk_key(), &[mk_instance("uid-1")]), None);
        assert_eq!(newborns.awaited(&mk_key(), &[]), None, "it was seen once; now it is gone");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_never_seen_is_not_waited_for_for_ever() {
        let newborns = Newborns::default();
        newborns.made(&mk_key(), &mk_instance("uid-1"));
        tokio::time::advance(PATIENCE / 2).await;
        assert_eq!(newborns.awaited(&mk_key(), &[]), Some(PATIENCE / 2));
        tokio::time::advance(PATIENCE / 2).await;
        assert_eq!(newborns.awaited(&mk_key(), &[]), None);
    }
}
