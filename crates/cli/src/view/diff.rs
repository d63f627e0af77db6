//! What a change would do to an object, line by line.

use serde_json::{Map, Value};
use similar::{ChangeTag, TextDiff};

use polis_api::annotations;

/// Lines around a change.
const CONTEXT: usize = 3;

/// One line of a diff.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// Comes.
    Plus(String),
    /// Goes.
    Minus(String),
    /// Stays.
    Same(String),
    /// Lines are left out here.
    Gap,
}

/// The lines that differ between two versions of an object; nothing when a person would see no difference.
pub fn lines(before: Option<&Value>, after: &Value) -> Result<Vec<Line>, String> {
    let text = |value: &Value| crate::output::yaml(&essence(value));
    let (before, after) = (before.map(text).transpose()?.unwrap_or_default(), text(after)?);
    let diff = TextDiff::from_lines(&before, &after);
    let mut lines = Vec::new();
    for (index, group) in diff.grouped_ops(CONTEXT).iter().enumerate() {
        if index > 0 {
            lines.push(Line::Gap);
        }
        for change in group.iter().flat_map(|operation| diff.iter_changes(operation)) {
            let text = change.value().trim_end_matches('\n').to_owned();
            lines.push(match change.tag() {
                ChangeTag::Insert => Line::Plus(text),
                ChangeTag::Delete => Line::Minus(text),
                ChangeTag::Equal => Line::Same(text),
            });
        }
    }
    Ok(lines)
}

/// The part of an object that its owner writes.
fn essence(object: &Value) -> Value {
    let mut kept = Map::new();
    let mut meta = Map::new();
    for key in ["labels", "annotations"] {
        let Some(mut entries) =
            object.pointer(&format!("/metadata/{key}")).and_then(Value::as_object).cloned()
        else {
            continue;
        };
        entries.remove(annotations::REVISIONS);
        if !entries.is_empty() {
            meta.insert(key.into(), Value::Object(entries));
        }
    }
    if !meta.is_empty() {
        kept.insert("metadata".into(), Value::Object(meta));
    }
    kept.insert("spec".into(), object.get("spec").cloned().unwrap_or(Value::Null));
    Value::Object(kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn drawn(before: Option<&Value>, after: &Value) -> String {
        let lines = lines(before, after).unwrap();
        let text = lines.iter().map(|line| match line {
            Line::Plus(text) => format!("+ {text}"),
            Line::Minus(text) => format!("- {text}"),
            Line::Same(text) => format!("  {text}"),
            Line::Gap => "...".to_owned(),
        });
        text.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn what_only_the_server_writes_is_no_difference() {
        let before = json!({"metadata": {"resourceVersion": "1"}, "spec": {"a": 1}, "status": {"x": 1}});
        let after = json!({"metadata": {"resourceVersion": "2"}, "spec": {"a": 1}});
        assert_eq!(lines(Some(&before), &after).unwrap(), []);
    }

    #[test]
    fn a_change_is_shown_with_what_stands_around_it() {
        let before = json!({"spec": {"image": "a", "list": [1, 2, 3, 4, 5, 6, 7, 8], "z": 1}});
        let after = json!({"spec": {"image": "b", "list": [1, 2, 3, 4, 5, 6, 7, 8], "z": 2}});
        insta::assert_snapshot!(drawn(Some(&before), &after));
    }

    #[test]
    fn something_new_is_all_plus() {
        let after = json!({"metadata": {"labels": {"tier": "front"}}, "spec": {"a": 1}});
        insta::assert_snapshot!(drawn(None, &after));
    }
}
