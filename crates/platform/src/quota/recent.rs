//! What the treasurer has written a moment ago and the watch has not shown yet.
//!
//! Books that are balanced on what a watch has shown would grant the same unit twice if the watch were behind the last
//! grant. So it is noted of every object in which version it was when it was written to; while it is seen in that version
//! or an earlier one, the books wait. Its next version is an event, whoever wrote it, and so is its end: nothing is waited
//! for in vain. After a write that failed nobody knows what became of it, and the next look is at the server itself.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polis_core::owner;
use polis_engine::PlaneName;

/// Notes about projects.
#[derive(Default)]
pub(super) struct Recent(Mutex<Notes>);

#[derive(Default)]
struct Notes {
    /// Versions that were written over, by project and UID.
    written: BTreeMap<PlaneName, BTreeMap<String, String>>,
    /// Projects where a write failed.
    doubted: BTreeSet<PlaneName>,
}

impl Recent {
    /// Notes that an object was written to when it was in this state.
    pub(super) fn written(&self, project: &PlaneName, before: &ObjectMeta) {
        let mut notes = self.0.lock();
        let written = notes.written.entry(project.clone()).or_default();
        written.insert(owner::uid(before).to_owned(), version(before).to_owned());
    }

    /// Notes whether a write to the project has failed.
    pub(super) fn doubt(&self, project: &PlaneName, failed: bool) {
        let mut notes = self.0.lock();
        match failed {
            true => _ = notes.doubted.insert(project.clone()),
            false => _ = notes.doubted.remove(project),
        }
    }

    /// Whether a write to the project has failed, and nobody has looked since.
    pub(super) fn is_doubted(&self, project: &PlaneName) -> bool {
        self.0.lock().doubted.contains(project)
    }

    /// Forgets a project that goes.
    pub(super) fn forget(&self, project: &PlaneName) {
        let mut notes = self.0.lock();
        notes.written.remove(project);
        notes.doubted.remove(project);
    }

    /// Whether what is seen of a project is behind what was written there. Notes that have been answered are forgotten.
    pub(super) fn is_awaited<'a>(
        &self,
        project: &PlaneName,
        seen: impl Iterator<Item = &'a ObjectMeta>,
    ) -> bool {
        let mut notes = self.0.lock();
        let Some(written) = notes.written.get_mut(project) else { return false };
        let seen: BTreeMap<&str, &str> = seen.map(|meta| (owner::uid(meta), version(meta))).collect();
        written.retain(|uid, before| seen.get(uid.as_str()).is_some_and(|seen| !is_later(seen, before)));
        let awaited = !written.is_empty();
        if !awaited {
            notes.written.remove(project);
        }
        awaited
    }
}

/// Whether a version is later than another. Versions are numbers; of anything else it is only known whether it differs.
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
    fn books_wait_until_the_watch_has_shown_what_was_written() {
        let (recent, project) = (Recent::default(), PlaneName::from("shop"));
        assert!(!recent.is_awaited(&project, [mk_meta("a", "1")].iter()));
        recent.written(&project, &mk_meta("a", "1"));
        recent.written(&project, &mk_meta("b", "2"));
        assert!(recent.is_awaited(&project, [mk_meta("a", "1"), mk_meta("b", "2")].iter()));
        assert!(recent.is_awaited(&project, [mk_meta("a", "3"), mk_meta("b", "2")].iter()), "b is behind");
        assert!(!recent.is_awaited(&PlaneName::from("other"), [mk_meta("b", "2")].iter()));
        assert!(!recent.is_awaited(&project, [mk_meta("a", "3"), mk_meta("b", "9")].iter()));
        assert!(!recent.is_awaited(&project, [mk_meta("a", "1")].iter()), "answered notes are forgotten");
    }

    #[test]
    fn what_is_seen_as_it_was_even_earlier_is_waited_for() {
        let (recent, project) = (Recent::default(), PlaneName::from("shop"));
        recent.written(&project, &mk_meta("a", "10"));
        assert!(recent.is_awaited(&project, [mk_meta("a", "9")].iter()), "decided on a look at the server");
        assert!(!recent.is_awaited(&project, [mk_meta("a", "11")].iter()));
    }

    #[test]
    fn what_is_gone_is_not_waited_for() {
        let (recent, project) = (Recent::default(), PlaneName::from("shop"));
        recent.written(&project, &mk_meta("a", "1"));
        assert!(!recent.is_awaited(&project, [mk_meta("of a namesake", "1")].iter()));
    }

    #[test]
    fn a_failed_write_is_doubted_until_one_succeeds() {
        let (recent, project) = (Recent::default(), PlaneName::from("shop"));
        recent.doubt(&project, true);
        assert!(recent.is_doubted(&project));
        recent.doubt(&project, false);
        assert!(!recent.is_doubted(&project));
    }
}
