//! Normalizes responses: replaces values that always differ, such as uids, revisions, times and generated
//! names.

use std::sync::OnceLock;

use regex::Regex;
use serde_json::Value;

use crate::script::ScriptResponse;

fn patterns() -> &'static [(Regex, &'static str)] {
    static PATTERNS: OnceLock<Vec<(Regex, &'static str)>> = OnceLock::new();
    PATTERNS.get_or_init(|| {
        [
            (r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", "<uid>"),
            (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "<time>"),
            (r"(resource version: |ResourceVersion in the precondition \(|ResourceVersion in record \(|current: )\d+", "$1<rv>"),
            (r"(generated-)[bcdfghjklmnpqrstvwxz2456789]{5}\b", "$1<suffix>"),
            // Objects in messages: Go writes fields in struct order, the embedded server in alphabetical
            // order.
            (r#"(?s)(patch: )?Invalid value: "\{.*\}": "#, "$1Invalid value: <object>: "),
            (r#"Invalid value: \[\{.*\}\]: "#, "Invalid value: <objects>: "),
            (r" \(6e756c6c\)$", ""),
            // Go's name of the expected type.
            (r"(cannot unmarshal \w+ into Go struct field) .*", "$1 <field and type>"),
            (r"(Object 'Kind' is missing in '.*') \(\{.*\)$", "$1"),
            // Go iterates maps in random order and stops at the first undeclared field.
            (r"(?s)(failed to create typed patch object \([^)]*\): ).*", "$1<why>"),
            // The etcd key of the object.
            (r"StorageError: invalid object, Code: 4, Key: [^ ]+, ResourceVersion: 0, AdditionalErrorMsg: ", ""),
            // The messages of Go's JSON decoder.
            (r"(?s)(error decoding patch: |json parse error: |error decoding YAML: ).*", "$1<why>"),
            (r#"(is not valid: ).*"#, "$1<why>"),
        ]
        .into_iter()
        .map(|(pattern, by)| (Regex::new(pattern).expect("a pattern"), by))
        .collect()
    })
}

fn text(text: &str) -> String {
    let text = patterns()
        .iter()
        .fold(text.to_owned(), |text, (pattern, by)| pattern.replace_all(&text, *by).into_owned());
    // The same errors as in the causes, so their order is random too.
    match text.split_once(" is invalid: [").and_then(|(what, rest)| Some((what, rest.strip_suffix(']')?))) {
        Some((what, errors)) => {
            let mut errors: Vec<&str> = errors.split(", ").collect();
            errors.sort_unstable();
            format!("{what} is invalid: [{}]", errors.join(", "))
        }
        None => text,
    }
}

/// Removes duplicates: for most kinds Kubernetes validates metadata twice and repeats the errors.
fn dedup(items: &mut Vec<Value>) {
    let mut seen: Vec<Value> = Vec::new();
    items.retain(|item| {
        let new = !seen.contains(item);
        seen.push(item.clone());
        new
    });
}

/// The response without the values that always differ.
pub fn normalize(response: &ScriptResponse) -> ScriptResponse {
    let mut body = response.body.clone();
    value(&mut body);
    ScriptResponse {
        code: response.code,
        warnings: response.warnings.iter().map(|warning| text(warning)).collect(),
        body,
    }
}

fn value(at: &mut Value) {
    match at {
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                match name.as_str() {
                    "resourceVersion" if value.is_string() => *value = "<rv>".into(),
                    "continue" if value.is_string() => *value = "<continue>".into(),
                    "causes" => {
                        self::value(value);
                        if let Value::Array(causes) = value {
                            dedup(causes);
                            // Go iterates the fields of an object in random order.
                            causes.sort_by_key(ToString::to_string);
                        }
                    }
                    // Sorted by time, which differs between runs.
                    "managedFields" => {
                        self::value(value);
                        if let Value::Array(entries) = value {
                            entries.sort_by_key(ToString::to_string);
                        }
                    }
                    // Discovery lists the kinds of a group in random order.
                    "resources" => {
                        self::value(value);
                        if let Value::Array(entries) = value {
                            entries.sort_by_key(|entry| entry["name"].to_string());
                        }
                    }
                    _ => self::value(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(value),
        Value::String(string) => {
            let normalized = text(string);
            *string = normalized;
        }
        _ => {}
    }
}
