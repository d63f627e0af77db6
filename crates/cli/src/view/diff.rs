//! Line diff between two versions of an object.

use serde_json::{Map, Value};
use similar::{ChangeTag, TextDiff};

use polis_api::annotations;

/// Unchanged lines before and after a change.
const CONTEXT: usize = 3;

/// One line of a diff.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiffLine {
    /// An added line.
    Plus(String),
    /// A removed line.
    Minus(String),
    /// An unchanged line.
    Same(String),
    /// Unchanged lines that are left out.
    Gap,
}

/// The diff of the fields that users write; empty if they are equal.
pub fn lines(before: Option<&Value>, after: &Value) -> Result<Vec<DiffLine>, String> {
    let text = |value: &Value| crate::output::yaml(&user_fields(value));
    let (before, after) = (before.map(text).transpose()?.unwrap_or_default(), text(after)?);
    let diff = TextDiff::from_lines(&before, &after);
    let mut lines = Vec::new();
    for (index, group) in diff.grouped_ops(CONTEXT).iter().enumerate() {
        if index > 0 {
            lines.push(DiffLine::Gap);
        }
        for change in group.iter().flat_map(|operation| diff.iter_changes(operation)) {
            let text = change.value().trim_end_matches('\n').to_owned();
            lines.push(match change.tag() {
                ChangeTag::Insert => DiffLine::Plus(text),
                ChangeTag::Delete => DiffLine::Minus(text),
                ChangeTag::Equal => DiffLine::Same(text),
            });
        }
    }
    Ok(lines)
}

/// The fields of an object that users write: labels, annotations and spec.
fn user_fields(object: &Value) -> Value {
    let mut fields = Map::new();
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
        fields.insert("metadata".into(), Value::Object(meta));
    }
    fields.insert("spec".into(), object.get("spec").cloned().unwrap_or(Value::Null));
    Value::Object(fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn drawn(before: Option<&Value>, after: &Value) -> String {
        let lines = lines(before, after).unwrap();
        let text = lines.iter().map(|line| match line {
            DiffLine::Plus(text) => format!("+ {text}"),
            DiffLine::Minus(text) => format!("- {text}"),
            DiffLine::Same(text) => format!("  {text}"),
            DiffLine::Gap => "...".to_owned(),
        });
        text.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn fields_of_the_server_are_not_compared() {
        let before = json!({"metadata": {"resourceVersion": "1"}, "spec": {"a": 1}, "status": {"x": 1}});
        let after = json!({"metadata": {"resourceVersion": "2"}, "spec": {"a": 1}});
        assert_eq!(lines(Some(&before), &after).unwrap(), []);
    }

    #[test]
    fn a_change_is_shown_with_its_context() {
        let before = json!({"spec": {"image": "a", "list": [1, 2, 3, 4, 5, 6, 7, 8], "z": 1}});
        let after = json!({"spec": {"image": "b", "list": [1, 2, 3, 4, 5, 6, 7, 8], "z": 2}});
        insta::assert_snapshot!(drawn(Some(&before), &after));
    }

    #[test]
    fn a_new_object_has_only_added_lines() {
        let after = json!({"metadata": {"labels": {"tier": "front"}}, "spec": {"a": 1}});
        insta::assert_snapshot!(drawn(None, &after));
    }
}
