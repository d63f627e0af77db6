//! Expectations: quota writes that the watch has not delivered yet.
//!
//! A ledger that is computed from a cache without the last grant would grant the same amount twice. So every
//! write records the version of the object that it replaces. While the cache holds that version or an earlier
//! one, the quota controller waits. The next version and the deletion of the object are both events, so the
//! wait always ends. After a failed write the state of the server is unknown, and the next reconcile reads
//! uncached.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polis_engine::PlaneName;

/// The expectations of all projects.
#[derive(Default)]
pub(super) struct Expectations(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// Replaced resource versions, by project and UID.
    replaced: BTreeMap<PlaneName, BTreeMap<String, String>>,
    /// Projects with a failed write.
    failed: BTreeSet<PlaneName>,
}

impl Expectations {
    /// Expects the watch to deliver a newer version than the one that was replaced.
    pub(super) fn expect_update(&self, project: &PlaneName, replaced: &ObjectMeta) {
        let mut inner = self.0.lock();
        let versions = inner.replaced.entry(project.clone()).or_default();
        versions.insert(replaced.uid.clone().unwrap_or_default(), version(replaced).to_owned());
    }

    /// Records whether the last write to the project failed.
    pub(super) fn set_failed_write(&self, project: &PlaneName, failed: bool) {
        let mut inner = self.0.lock();
        match failed {
            true => _ = inner.failed.insert(project.clone()),
            false => _ = inner.failed.remove(project),
        }
    }

    /// Whether the last write to the project failed.
    pub(super) fn has_failed_write(&self, project: &PlaneName) -> bool {
        self.0.lock().failed.contains(project)
    }

    /// Drops the state of a project that is being deleted.
    pub(super) fn forget(&self, project: &PlaneName) {
        let mut inner = self.0.lock();
        inner.replaced.remove(project);
        inner.failed.remove(project);
    }

    /// Whether the cached objects of a project are older than its writes. Drops satisfied expectations.
    pub(super) fn are_unsatisfied<'a>(
        &self,
        project: &PlaneName,
        cached: impl Iterator<Item = &'a ObjectMeta>,
    ) -> bool {
        let mut inner = self.0.lock();
        let Some(replaced) = inner.replaced.get_mut(project) else { return false };
        let cached: BTreeMap<&str, &str> =
            cached.map(|meta| (meta.uid.as_deref().unwrap_or_default(), version(meta))).collect();
        replaced
            .retain(|uid, version| cached.get(uid.as_str()).is_some_and(|cached| !is_later(cached, version)));
        let unsatisfied = !replaced.is_empty();
        if !unsatisfied {
            inner.replaced.remove(project);
        }
        unsatisfied
    }
}

/// Whether a version is later than another. Versions that are not numbers count as later if they differ.
fn is_later(version: &str, than: &str) -> bool {
    match (version.parse::<u64>(), than.parse::<u64>()) {
        (Ok(version), Ok(than)) => version > than,
        _ => version != than,
    }
}

fn version(meta: &ObjectMeta) -> &str {
    meta.resource_version.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_meta(uid: &str, version: &str) -> ObjectMeta {
        ObjectMeta { uid: Some(uid.into()), resource_version: Some(version.into()), ..Default::default() }
    }

    #[test]
    fn a_project_waits_until_the_watch_delivers_its_writes() {
        let (expectations, project) = (Expectations::default(), PlaneName::from("shop"));
        let unsatisfied = |cached: &[ObjectMeta]| expectations.are_unsatisfied(&project, cached.iter());
        assert!(!unsatisfied(&[mk_meta("a", "1")]));
        expectations.expect_update(&project, &mk_meta("a", "1"));
        expectations.expect_update(&project, &mk_meta("b", "2"));
        assert!(unsatisfied(&[mk_meta("a", "1"), mk_meta("b", "2")]));
        assert!(unsatisfied(&[mk_meta("a", "3"), mk_meta("b", "2")]), "b is not delivered yet");
        assert!(!expectations.are_unsatisfied(&PlaneName::from("other"), [mk_meta("b", "2")].iter()));
        assert!(!unsatisfied(&[mk_meta("a", "3"), mk_meta("b", "9")]));
        assert!(!unsatisfied(&[mk_meta("a", "1")]), "satisfied expectations are dropped");
    }

    #[test]
    fn a_cache_that_is_older_than_the_replaced_version_does_not_satisfy() {
        let (expectations, project) = (Expectations::default(), PlaneName::from("shop"));
        expectations.expect_update(&project, &mk_meta("a", "10"));
        assert!(expectations.are_unsatisfied(&project, [mk_meta("a", "9")].iter()), "after an uncached read");
        assert!(!expectations.are_unsatisfied(&project, [mk_meta("a", "11")].iter()));
    }

    #[test]
    fn a_deleted_object_satisfies_its_expectation() {
        let (expectations, project) = (Expectations::default(), PlaneName::from("shop"));
        expectations.expect_update(&project, &mk_meta("a", "1"));
        assert!(!expectations.are_unsatisfied(&project, [mk_meta("uid of a successor", "1")].iter()));
    }

    #[test]
    fn a_failed_write_is_remembered_until_a_write_succeeds() {
        let (expectations, project) = (Expectations::default(), PlaneName::from("shop"));
        expectations.set_failed_write(&project, true);
        assert!(expectations.has_failed_write(&project));
        expectations.set_failed_write(&project, false);
        assert!(!expectations.has_failed_write(&project));
    }
}
