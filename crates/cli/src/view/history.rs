//! Revisions of a workload's template, kept on the workload itself.
//!
//! The API has no kind for revisions, and these verbs use nothing but the API. So every change that a verb of Polis makes
//! to a template is written down in one annotation of the workload, in the same request as the change: the two cannot
//! disagree, and the history goes when the workload goes. A template that somebody else wrote (kubectl, CI) is found
//! standing at the next change and written down then, marked as such; if two such changes come in a row, the first of
//! them is not seen. A revision is a template: scale and cities are no part of it, and undo leaves them as they are.
//!
//! At most [`KEPT`] revisions and [`BYTES`] of JSON are kept (all annotations of an object together may have 256 KiB);
//! the oldest go first.

use polis_api::annotations::REVISIONS;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The greatest number of revisions.
pub const KEPT: usize = 10;
/// The greatest size of all of them together.
pub const BYTES: usize = 64 * 1024;
/// The cause of a revision that no verb of Polis made.
const FOUND: &str = "changed by other means";

/// One revision of the template.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Revision {
    /// Its number; grows by one and is never used again.
    pub revision: u64,
    /// When it was written down, RFC 3339.
    pub at: String,
    /// Which verb made it.
    pub cause: String,
    /// The template.
    pub template: Value,
}

/// The revisions of a workload, the oldest first. What cannot be read is no history.
pub fn of(workload: &Value) -> Vec<Revision> {
    let text = workload["metadata"]["annotations"][REVISIONS].as_str();
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// Whether the template stands as it was last written down.
pub fn is_recorded(workload: &Value) -> bool {
    of(workload).last().is_some_and(|last| last.template == workload["spec"]["template"])
}

/// Writes down the template of `draft`, made by `cause`, after what stands now in `standing`.
pub fn record(standing: Option<&Value>, draft: &mut Value, cause: &str, at: &str) {
    let mut revisions = standing.map(of).unwrap_or_default();
    let standing = standing.map(|standing| standing["spec"]["template"].clone());
    if let Some(template) = standing {
        add(&mut revisions, FOUND, at, template);
    }
    add(&mut revisions, cause, at, draft["spec"]["template"].clone());
    let mut text = json!(revisions).to_string();
    while revisions.len() > 1 && (revisions.len() > KEPT || text.len() > BYTES) {
        revisions.remove(0);
        text = json!(revisions).to_string();
    }
    if draft["metadata"]["annotations"].is_null() {
        draft["metadata"]["annotations"] = json!({});
    }
    draft["metadata"]["annotations"][REVISIONS] = json!(text);
}

/// A template equal to the newest is no new revision.
fn add(revisions: &mut Vec<Revision>, cause: &str, at: &str, template: Value) {
    let newest = revisions.last();
    if newest.is_some_and(|newest| newest.template == template) {
        return;
    }
    let revision = newest.map_or(1, |newest| newest.revision + 1);
    revisions.push(Revision { revision, at: at.to_owned(), cause: cause.to_owned(), template });
}

/// The revision to go back to: the one named, or the one before the newest.
pub fn target(workload: &Value, wanted: Option<u64>) -> Result<Revision, String> {
    let revisions = of(workload);
    let numbers: Vec<String> = revisions.iter().map(|r| r.revision.to_string()).collect();
    match wanted {
        Some(wanted) => revisions.into_iter().find(|revision| revision.revision == wanted).ok_or_else(|| {
            match numbers.is_empty() {
                true => "it has no recorded revision".to_owned(),
                false => format!("there is no revision {wanted}; there are {}", numbers.join(", ")),
            }
        }),
        // A template changed by other means stands after the newest recorded one, which is then the one before.
        None if !revisions.is_empty() && !is_recorded(workload) => Ok(revisions[revisions.len() - 1].clone()),
        None if revisions.len() > 1 => Ok(revisions[revisions.len() - 2].clone()),
        None => Err("it has no revision before the one that stands".to_owned()),
    }
}

/// The image of a template, for the list.
pub fn image(template: &Value) -> String {
    let containers = template.pointer("/spec/runtime/sandbox/containers").and_then(Value::as_array);
    let images = containers.into_iter().flatten().filter_map(|container| container["image"].as_str());
    let images: Vec<&str> = images.collect();
    if images.is_empty() { "virtual machine".into() } else { images.join(",") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_workload(image: &str) -> Value {
        json!({"metadata": {"name": "web"}, "spec": {"template": {"image": image}}})
    }

    fn changed(standing: &Value, image: &str, cause: &str) -> Value {
        let mut draft = standing.clone();
        draft["spec"]["template"]["image"] = json!(image);
        record(Some(standing), &mut draft, cause, "now");
        draft
    }

    fn mk_first(image: &str) -> Value {
        let mut draft = mk_workload(image);
        record(None, &mut draft, "deploy", "now");
        draft
    }

    fn list(workload: &Value) -> Vec<(u64, String, String)> {
        let entry = |r: Revision| (r.revision, r.cause, r.template["image"].as_str().unwrap().to_owned());
        of(workload).into_iter().map(entry).collect()
    }

    #[test]
    fn every_change_is_a_revision_and_no_change_is_none() {
        let workload = changed(&mk_first("a"), "b", "restart");
        let workload = changed(&workload, "b", "deploy");
        assert_eq!(list(&workload), [(1, "deploy".into(), "a".into()), (2, "restart".into(), "b".into())]);
    }

    #[test]
    fn what_others_changed_is_written_down_at_the_next_change() {
        let mut workload = mk_first("a");
        workload["spec"]["template"]["image"] = json!("theirs");
        assert!(!is_recorded(&workload));
        let workload = changed(&workload, "b", "deploy");
        let causes: Vec<_> = list(&workload).into_iter().map(|(_, cause, image)| (cause, image)).collect();
        assert_eq!(causes[1], (FOUND.into(), "theirs".into()));
        assert_eq!(causes[2], ("deploy".into(), "b".into()));
    }

    #[test]
    fn a_workload_without_history_gets_one_at_its_first_change() {
        let workload = changed(&mk_workload("a"), "b", "deploy");
        assert_eq!(list(&workload).len(), 2);
        assert_eq!(target(&workload, None).unwrap().template["image"], "a");
    }

    #[test]
    fn numbers_go_on_when_the_oldest_are_dropped() {
        let mut workload = mk_first("0");
        for change in 1..=15 {
            workload = changed(&workload, &change.to_string(), "deploy");
        }
        let numbers: Vec<u64> = of(&workload).iter().map(|r| r.revision).collect();
        assert_eq!(numbers, (7..=16).collect::<Vec<u64>>());
    }

    #[test]
    fn a_history_never_outgrows_its_room() {
        let mut workload = mk_first("a");
        for letter in ["b", "c", "d", "e"] {
            workload = changed(&workload, &letter.repeat(30_000), "deploy");
        }
        let text = workload["metadata"]["annotations"][REVISIONS].as_str().unwrap();
        assert!(text.len() <= BYTES && of(&workload).len() == 2);
    }

    #[test]
    fn undo_goes_to_the_one_before_or_to_the_one_named() {
        let workload = changed(&changed(&mk_first("a"), "b", "deploy"), "c", "deploy");
        assert_eq!(target(&workload, None).unwrap().revision, 2);
        assert_eq!(target(&workload, Some(1)).unwrap().template["image"], "a");
        assert!(target(&workload, Some(9)).unwrap_err().contains("there are 1, 2, 3"));
        assert!(target(&mk_first("a"), None).unwrap_err().contains("no revision before"));
        assert!(target(&mk_workload("a"), Some(1)).unwrap_err().contains("no recorded revision"));
    }

    #[test]
    fn undo_after_a_change_by_other_means_goes_to_the_newest_recorded() {
        let mut workload = changed(&mk_first("a"), "b", "deploy");
        workload["spec"]["template"]["image"] = json!("theirs");
        assert_eq!(target(&workload, None).unwrap().template["image"], "b");
    }

    #[test]
    fn a_history_that_cannot_be_read_is_none() {
        let mut workload = mk_workload("a");
        workload["metadata"]["annotations"] = json!({REVISIONS: "not json"});
        assert_eq!(of(&workload), []);
    }
}
