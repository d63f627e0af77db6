//! Revisions of a workload's template, recorded in an annotation of the workload.
//!
//! The API has no kind for revisions, and the commands use only the API. Every command that changes a
//! template therefore records it in one annotation, in the same request: the history cannot disagree with the
//! workload and is deleted with it. A template that another tool wrote (kubectl, CI) is recorded with the
//! next change, with its own cause; of two such changes in a row, only the second is recorded. A revision is
//! a template: it does not include scale and cities, and undo does not change them.
//!
//! At most [`MAX_REVISIONS`] revisions and [`MAX_BYTES`] of JSON are stored, because all annotations of an
//! object together are limited to 256 KiB. The oldest are dropped first.

use polis_api::annotations::REVISIONS;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Maximum number of revisions.
pub const MAX_REVISIONS: usize = 10;
/// Maximum size of the annotation in bytes.
pub const MAX_BYTES: usize = 64 * 1024;
/// Cause of a revision that another tool wrote.
const OTHER_TOOL: &str = "changed by other means";

/// One revision of the template.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TemplateRevision {
    /// Its number; increases by one and is not reused.
    pub revision: u64,
    /// When it was recorded, in RFC 3339.
    pub at: String,
    /// The command that wrote it.
    pub cause: String,
    /// The template.
    pub template: Value,
}

/// The revisions of a workload, the oldest first. An annotation that cannot be parsed counts as empty.
pub fn of(workload: &Value) -> Vec<TemplateRevision> {
    let text = workload["metadata"]["annotations"][REVISIONS].as_str();
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// Whether the current template is the newest revision.
pub fn is_recorded(workload: &Value) -> bool {
    of(workload).last().is_some_and(|last| last.template == workload["spec"]["template"])
}

/// Records the template of `manifest` with its cause, after the revisions and the current template of
/// `existing`.
pub fn record(existing: Option<&Value>, manifest: &mut Value, cause: &str, at: &str) {
    let mut revisions = existing.map(of).unwrap_or_default();
    let existing = existing.map(|existing| existing["spec"]["template"].clone());
    if let Some(template) = existing {
        add(&mut revisions, OTHER_TOOL, at, template);
    }
    add(&mut revisions, cause, at, manifest["spec"]["template"].clone());
    let mut text = json!(revisions).to_string();
    while revisions.len() > 1 && (revisions.len() > MAX_REVISIONS || text.len() > MAX_BYTES) {
        revisions.remove(0);
        text = json!(revisions).to_string();
    }
    if manifest["metadata"]["annotations"].is_null() {
        manifest["metadata"]["annotations"] = json!({});
    }
    manifest["metadata"]["annotations"][REVISIONS] = json!(text);
}

/// Appends a revision unless its template equals the newest one.
fn add(revisions: &mut Vec<TemplateRevision>, cause: &str, at: &str, template: Value) {
    let newest = revisions.last();
    if newest.is_some_and(|newest| newest.template == template) {
        return;
    }
    let revision = newest.map_or(1, |newest| newest.revision + 1);
    revisions.push(TemplateRevision { revision, at: at.to_owned(), cause: cause.to_owned(), template });
}

/// The revision to restore: the given one, or the previous one.
pub fn target(workload: &Value, wanted: Option<u64>) -> Result<TemplateRevision, String> {
    let revisions = of(workload);
    let numbers: Vec<String> = revisions.iter().map(|r| r.revision.to_string()).collect();
    match wanted {
        Some(wanted) => revisions.into_iter().find(|revision| revision.revision == wanted).ok_or_else(|| {
            match numbers.is_empty() {
                true => "the workload has no recorded revision".to_owned(),
                false => format!("the workload has no revision {wanted}; it has {}", numbers.join(", ")),
            }
        }),
        // A template of another tool is newer than the newest revision, which is then the previous one.
        None if !revisions.is_empty() && !is_recorded(workload) => Ok(revisions[revisions.len() - 1].clone()),
        None if revisions.len() > 1 => Ok(revisions[revisions.len() - 2].clone()),
        None => Err("the workload has no revision before the current one".to_owned()),
    }
}

/// The images of a template, for the table.
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

    fn changed(existing: &Value, image: &str, cause: &str) -> Value {
        let mut manifest = existing.clone();
        manifest["spec"]["template"]["image"] = json!(image);
        record(Some(existing), &mut manifest, cause, "now");
        manifest
    }

    fn mk_first(image: &str) -> Value {
        let mut manifest = mk_workload(image);
        record(None, &mut manifest, "deploy", "now");
        manifest
    }

    fn list(workload: &Value) -> Vec<(u64, String, String)> {
        let entry =
            |r: TemplateRevision| (r.revision, r.cause, r.template["image"].as_str().unwrap().to_owned());
        of(workload).into_iter().map(entry).collect()
    }

    #[test]
    fn every_changed_template_is_a_revision() {
        let workload = changed(&mk_first("a"), "b", "restart");
        let workload = changed(&workload, "b", "deploy");
        assert_eq!(list(&workload), [(1, "deploy".into(), "a".into()), (2, "restart".into(), "b".into())]);
    }

    #[test]
    fn a_template_of_another_tool_is_recorded_with_the_next_change() {
        let mut workload = mk_first("a");
        workload["spec"]["template"]["image"] = json!("theirs");
        assert!(!is_recorded(&workload));
        let workload = changed(&workload, "b", "deploy");
        let causes: Vec<_> = list(&workload).into_iter().map(|(_, cause, image)| (cause, image)).collect();
        assert_eq!(causes[1], (OTHER_TOOL.into(), "theirs".into()));
        assert_eq!(causes[2], ("deploy".into(), "b".into()));
    }

    #[test]
    fn a_workload_without_history_gets_one_at_its_first_change() {
        let workload = changed(&mk_workload("a"), "b", "deploy");
        assert_eq!(list(&workload).len(), 2);
        assert_eq!(target(&workload, None).unwrap().template["image"], "a");
    }

    #[test]
    fn numbers_continue_after_the_oldest_are_dropped() {
        let mut workload = mk_first("0");
        for change in 1..=15 {
            workload = changed(&workload, &change.to_string(), "deploy");
        }
        let numbers: Vec<u64> = of(&workload).iter().map(|r| r.revision).collect();
        assert_eq!(numbers, (7..=16).collect::<Vec<u64>>());
    }

    #[test]
    fn the_annotation_never_exceeds_its_maximum_size() {
        let mut workload = mk_first("a");
        for letter in ["b", "c", "d", "e"] {
            workload = changed(&workload, &letter.repeat(30_000), "deploy");
        }
        let text = workload["metadata"]["annotations"][REVISIONS].as_str().unwrap();
        assert!(text.len() <= MAX_BYTES && of(&workload).len() == 2);
    }

    #[test]
    fn undo_restores_the_previous_or_the_given_revision() {
        let workload = changed(&changed(&mk_first("a"), "b", "deploy"), "c", "deploy");
        assert_eq!(target(&workload, None).unwrap().revision, 2);
        assert_eq!(target(&workload, Some(1)).unwrap().template["image"], "a");
        assert!(target(&workload, Some(9)).unwrap_err().contains("it has 1, 2, 3"));
        assert!(target(&mk_first("a"), None).unwrap_err().contains("no revision before"));
        assert!(target(&mk_workload("a"), Some(1)).unwrap_err().contains("no recorded revision"));
    }

    #[test]
    fn undo_after_a_change_by_another_tool_restores_the_newest_revision() {
        let mut workload = changed(&mk_first("a"), "b", "deploy");
        workload["spec"]["template"]["image"] = json!("theirs");
        assert_eq!(target(&workload, None).unwrap().template["image"], "b");
    }

    #[test]
    fn an_invalid_annotation_counts_as_no_revisions() {
        let mut workload = mk_workload("a");
        workload["metadata"]["annotations"] = json!({REVISIONS: "not json"});
        assert_eq!(of(&workload), []);
    }
}
