//! Answers without what must differ: uids, revisions, times, generated names.

use std::sync::OnceLock;

use regex::Regex;
use serde_json::Value;

use crate::script::Answer;

fn patterns() -> &'static [(Regex, &'static str)] {
    static PATTERNS: OnceLock<Vec<(Regex, &'static str)>> = OnceLock::new();
    PATTERNS.get_or_init(|| {
        [
            (r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", "<uid>"),
            (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "<time>"),
            (r"(resource version: |ResourceVersion in the precondition \(|ResourceVersion in record \(|current: )\d+", "$1<rv>"),
            (r"(generated-)[bcdfghjklmnpqrstvwxz2456789]{5}\b", "$1<suffix>"),
            // An object as Go writes it: fields in the order of the struct, ours in the order of the alphabet.
            (r#"(?s)(patch: )?Invalid value: "\{.*\}": "#, "$1Invalid value: <object>: "),
            (r#"Invalid value: \[\{.*\}\]: "#, "Invalid value: <objects>: "),
            (r" \(6e756c6c\)$", ""),
            // Go's name for the type that was expected.
            (r"(cannot unmarshal \w+ into Go struct field) .*", "$1 <field and type>"),
            (r"(Object 'Kind' is missing in '.*') \(\{.*\)$", "$1"),
            // Go walks a map in no order and stops at the first field that is not declared.
            (r"(?s)(failed to create typed patch object \([^)]*\): ).*", "$1<why>"),
            // Where etcd keeps the object.
            (r"StorageError: invalid object, Code: 4, Key: [^ ]+, ResourceVersion: 0, AdditionalErrorMsg: ", ""),
            // The words of Go's JSON decoder about broken bytes.
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
    // The same complaints as in the causes, so in no order either.
    match text.split_once(" is invalid: [").and_then(|(what, rest)| Some((what, rest.strip_suffix(']')?))) {
        Some((what, complaints)) => {
            let mut complaints: Vec<&str> = complaints.split(", ").collect();
            complaints.sort_unstable();
            format!("{what} is invalid: [{}]", complaints.join(", "))
        }
        None => text,
    }
}

/// Kubernetes judges metadata twice for most kinds and says everything twice: complaints are a set.
fn once(items: &mut Vec<Value>) {
    let mut seen: Vec<Value> = Vec::new();
    items.retain(|item| {
        let new = !seen.contains(item);
        seen.push(item.clone());
        new
    });
}

/// An answer that can be compared.
pub fn of(answer: &Answer) -> Answer {
    let mut body = answer.body.clone();
    value(&mut body);
    Answer {
        code: answer.code,
        warnings: answer.warnings.iter().map(|warning| text(warning)).collect(),
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
                            once(causes);
                            // Go walks the fields of an object in no order.
                            causes.sort_by_key(ToString::to_string);
                        }
                    }
                    // Sorted by time, which two runs do not share.
                    "managedFields" => {
                        self::value(value);
                        if let Value::Array(entries) = value {
                            entries.sort_by_key(ToString::to_string);
                        }
                    }
                    // Discovery lists the kinds of a group in no order.
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
        Value::String(said) => {
            let normal = text(said);
            *said = normal;
        }
        _ => {}
    }
}
