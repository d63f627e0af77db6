//! Expectations: objects that a controller created and that its watch has not delivered yet.
//!
//! Like `ControllerExpectations` of client-go. A reconcile may run before the watch delivers the object that
//! the previous reconcile created. It would create the object again; the API server rejects that, but the
//! request is wasted. So a key with an expectation waits until the watch delivers the object, or for
//! [`EXPECTATION_TIMEOUT`]: an object may be created and deleted while the watch is interrupted.
//!
//! The deployment controller expects the instance that it created for a deployment. Write-back expects the
//! hub copy of an instance: without the expectation, every status change before the copy arrives would read
//! the deployment, the namespace and the copy from the hub.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use polis_api::ObjectExt;
use polis_api::compute::Instance;
use polis_engine::Key;
use tokio::time::Instant;

/// How long a key waits for the watch to deliver the created object.
const EXPECTATION_TIMEOUT: Duration = Duration::from_secs(10);

/// At most one expected instance per key: controllers create one at a time.
#[derive(Default)]
pub(crate) struct Expectations(Mutex<BTreeMap<Key, Expectation>>);

struct Expectation {
    uid: String,
    since: Instant,
}

impl Expectations {
    /// Expects the watch to deliver an instance that was created for the key.
    pub(crate) fn expect(&self, key: &Key, created: &Instance) {
        let expectation = Expectation { uid: created.uid().to_owned(), since: Instant::now() };
        self.0.lock().insert(key.clone(), expectation);
    }

    /// Records that the watch delivered an instance.
    pub(crate) fn observe(&self, key: &Key, instance: &Instance) {
        let mut expectations = self.0.lock();
        if expectations.get(key).is_some_and(|expected| expected.uid == instance.uid()) {
            expectations.remove(key);
        }
    }

    /// How long the key still waits; none if its expectation is satisfied. An expected instance that is among
    /// the existing ones satisfies it: the watch may deliver an object before the create call returns.
    pub(crate) fn unsatisfied(&self, key: &Key, existing: &[Instance]) -> Option<Duration> {
        let mut expectations = self.0.lock();
        let expected = expectations.get(key)?;
        let exists = existing.iter().any(|instance| instance.uid() == expected.uid);
        let left = EXPECTATION_TIMEOUT.saturating_sub(expected.since.elapsed());
        if exists || left.is_zero() {
            expectations.remove(key);
            return None;
        }
        Some(left)
    }

    /// Drops the expectation of a key whose object is deleted or being deleted.
    pub(crate) fn forget(&self, key: &Key) {
        self.0.lock().remove(key);
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
    async fn a_key_waits_until_the_watch_delivers_the_created_instance() {
        let expectations = Expectations::default();
        assert_eq!(expectations.unsatisfied(&mk_key(), &[]), None);
        expectations.expect(&mk_key(), &mk_instance("uid-1"));
        expectations.observe(&mk_key(), &mk_instance("uid-of-an-earlier-one"));
        assert_eq!(
            expectations.unsatisfied(&mk_key(), &[mk_instance("uid-of-another")]),
            Some(EXPECTATION_TIMEOUT)
        );
        expectations.observe(&mk_key(), &mk_instance("uid-1"));
        assert_eq!(expectations.unsatisfied(&mk_key(), &[]), None);
    }

    #[tokio::test(start_paused = true)]
    async fn an_existing_instance_satisfies_the_expectation() {
        let expectations = Expectations::default();
        expectations.expect(&mk_key(), &mk_instance("uid-1"));
        assert_eq!(expectations.unsatisfied(&mk_key(), &[mk_instance("uid-1")]), None);
        assert_eq!(expectations.unsatisfied(&mk_key(), &[]), None, "it was delivered and is deleted now");
    }

    #[tokio::test(start_paused = true)]
    async fn an_expectation_times_out() {
        let expectations = Expectations::default();
        expectations.expect(&mk_key(), &mk_instance("uid-1"));
        tokio::time::advance(EXPECTATION_TIMEOUT / 2).await;
        assert_eq!(expectations.unsatisfied(&mk_key(), &[]), Some(EXPECTATION_TIMEOUT / 2));
        tokio::time::advance(EXPECTATION_TIMEOUT / 2).await;
        assert_eq!(expectations.unsatisfied(&mk_key(), &[]), None);
    }
}
