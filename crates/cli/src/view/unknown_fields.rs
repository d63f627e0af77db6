//! Explains what the server found wrong in a manifest: the line in the file, and for an unknown field the one
//! that was probably meant.

use polis_api::crds;
use serde_json::Value;

use super::nearest;

/// How the server introduces each unknown field.
const UNKNOWN: &str = "unknown field \"";

/// One sentence for each unknown field that the message of the server names; empty if it names none. `name`
/// is the workload, whose document in the file is searched.
pub fn explain(message: &str, file: &str, name: &str) -> Vec<String> {
    let paths = message.split(UNKNOWN).skip(1).filter_map(|rest| rest.split('"').next());
    let describe = |path: &str| {
        let line = line_of(file, name, path).map(|line| format!("line {line}: ")).unwrap_or_default();
        format!("{line}unknown field {path}{}", hint(path))
    };
    paths.map(describe).collect()
}

/// The message of a validation error with the line of each field that it names. A field that is missing has
/// the line of the nearest one around it.
pub fn with_lines(message: &str, file: &str, name: &str) -> String {
    let located = message.split(' ').map(|word| {
        let path = word.trim_end_matches(':');
        let is_field = word.ends_with(':') && (path.starts_with("spec.") || path.starts_with("metadata."));
        let line = if is_field { nearest_line(file, name, path) } else { None };
        line.map_or_else(|| word.to_owned(), |line| format!("line {line}: {word}"))
    });
    located.collect::<Vec<_>>().join(" ")
}

fn nearest_line(file: &str, name: &str, path: &str) -> Option<usize> {
    let around = path.rsplit_once('.').map(|(around, _)| around);
    line_of(file, name, path).or_else(|| nearest_line(file, name, around?))
}

/// The known fields beside the unknown one are in the schema of the Workload.
fn hint(path: &str) -> String {
    let files = crds::compute();
    let is_workload = |crd: &&Value| crd["spec"]["names"]["kind"] == "Workload";
    let schema = files.iter().map(|file| &file.crd).find(is_workload);
    let mut node = schema.and_then(|crd| crd.pointer("/spec/versions/0/schema/openAPIV3Schema"));
    let keys: Vec<&str> = keys(path).collect();
    let Some((unknown, parents)) = keys.split_last() else { return String::new() };
    for key in parents {
        node =
            node.and_then(|node| node["properties"].get(key)).map(|node| node.get("items").unwrap_or(node));
    }
    let known = node.and_then(|node| node["properties"].as_object());
    nearest::hint(unknown, known.into_iter().flatten().map(|(name, _)| name.as_str()))
}

/// The keys of `spec.containers[0].ports[1].prot`, without indexes.
fn keys(path: &str) -> impl Iterator<Item = &str> {
    path.split('.').map(|key| key.split('[').next().unwrap_or(key))
}

/// The line of a field, counted from 1: the keys of its path are searched one after the other, which finds
/// the field unless an earlier element of a list has a field of the same name.
fn line_of(file: &str, name: &str, path: &str) -> Option<usize> {
    let lines: Vec<&str> = file.lines().collect();
    let ends = lines.iter().enumerate().filter(|(_, line)| line.trim_end() == "---").map(|(at, _)| at);
    let mut from = 0;
    for end in ends.chain([lines.len()]) {
        let document = &lines[from..end];
        if document.iter().any(|line| names(line, name)) {
            let mut at = 0;
            for key in keys(path) {
                at += document[at..].iter().position(|line| has_key(line, key))?;
            }
            return Some(from + at + 1);
        }
        from = end;
    }
    None
}

/// Whether a line sets `name` to this value.
fn names(line: &str, value: &str) -> bool {
    let after = |text: &str| text.trim_start_matches([':', ' ', '"', '\'']).starts_with(value);
    line.match_indices("name").any(|(at, key)| after(&line[at + key.len()..]))
}

/// Whether a line has a key, in block or flow style, quoted or not.
fn has_key(line: &str, key: &str) -> bool {
    line.match_indices(key).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + key.len()..].trim_start_matches(['"', '\'']).trim_start();
        before.is_none_or(|c| " {,-\"'".contains(c)) && after.starts_with(':')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"apiVersion: compute.datumapis.com/v1alpha
kind: Workload
metadata: {name: web}
spec:
  template:
    spec:
      runtime:
        sandbox:
          containers:
          - {name: main, image: polis.local/hello, ports: [{name: http, prot: 8080}]}
---
kind: Workload
metadata:
  name: api
spec:
  placemnts: []
"#;

    #[test]
    fn an_unknown_field_has_its_line_and_the_field_that_was_meant() {
        let message = "Workload in version \"v1alpha\" cannot be handled as a Workload: strict decoding error: \
            unknown field \"spec.template.spec.runtime.sandbox.containers[0].ports[0].prot\"";
        assert_eq!(
            explain(message, FILE, "web"),
            ["line 10: unknown field spec.template.spec.runtime.sandbox.containers[0].ports[0].prot \
              (did you mean port?)"]
        );
    }

    #[test]
    fn the_fields_of_a_validation_error_have_their_lines() {
        let message = "Workload \"web\" is invalid: spec.template.spec.runtime.sandbox.containers[0].image: \
            Required value: name one, spec.placements: Required value";
        assert_eq!(
            with_lines(message, FILE, "web"),
            "Workload \"web\" is invalid: line 10: spec.template.spec.runtime.sandbox.containers[0].image: \
             Required value: name one, line 4: spec.placements: Required value"
        );
        assert_eq!(with_lines("no field is named", FILE, "web"), "no field is named");
    }

    #[test]
    fn each_unknown_field_of_a_later_document_is_found() {
        let message = "strict decoding error: unknown field \"spec.placemnts\", unknown field \"spec.zzz\"";
        assert_eq!(
            explain(message, FILE, "api"),
            ["line 16: unknown field spec.placemnts (did you mean placements?)", "unknown field spec.zzz"]
        );
        assert!(explain("another error", FILE, "api").is_empty());
    }
}
