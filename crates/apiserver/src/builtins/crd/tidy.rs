//! Schemas as Go would write them again: without empty lists, empty maps and defaults of null.

use serde_json::{Map, Value};

use crate::schema::format::Format;

/// Lists and maps of a schema that say nothing when they are empty.
const SILENT: [&str; 11] = [
    "enum",
    "required",
    "allOf",
    "anyOf",
    "oneOf",
    "properties",
    "patternProperties",
    "definitions",
    "dependencies",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-validations",
];

/// Flags that say nothing when they are off.
const FLAGS: [&str; 6] = [
    "nullable",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "uniqueItems",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
];

/// The keys under which further schemas stand: by name, in a list, or one alone.
fn holds(key: &str) -> bool {
    matches!(key, "properties" | "patternProperties" | "definitions" | "dependencies")
}

fn branches(key: &str) -> bool {
    matches!(key, "items" | "not" | "additionalProperties" | "additionalItems" | "allOf" | "anyOf" | "oneOf")
}

/// Takes out of a schema, and of all schemas in it, what says nothing.
pub(super) fn tidy(schema: &mut Value) {
    let fields = match schema {
        Value::Array(items) => return items.iter_mut().for_each(tidy),
        Value::Object(fields) => fields,
        _ => return,
    };
    fields.retain(|key, value| match value {
        Value::Null => key != "default",
        Value::Bool(false) => !FLAGS.contains(&key.as_str()),
        Value::Array(items) => !items.is_empty() || !SILENT.contains(&key.as_str()),
        Value::Object(map) => !map.is_empty() || !SILENT.contains(&key.as_str()),
        _ => true,
    });
    for (key, value) in fields.iter_mut() {
        if branches(key) {
            tidy(value);
        } else if holds(key) {
            value.as_object_mut().into_iter().flat_map(Map::values_mut).for_each(tidy);
        }
    }
}

/// Formats of texts in the schemas of a CRD that nobody enforces.
pub(super) fn unknown_formats(crd: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for version in crd["spec"]["versions"].as_array().into_iter().flatten() {
        version.pointer("/schema/openAPIV3Schema").into_iter().for_each(|schema| collect(schema, &mut found));
    }
    found
}

fn collect(schema: &Value, found: &mut Vec<String>) {
    let fields = match schema {
        Value::Array(items) => return items.iter().for_each(|item| collect(item, found)),
        Value::Object(fields) => fields,
        _ => return,
    };
    if let (Some("string"), Some(format)) =
        (schema["type"].as_str(), schema["format"].as_str().filter(|format| !format.is_empty()))
        && Format::named(format).is_none()
        && !found.iter().any(|known| known == format)
    {
        found.push(format.to_owned());
    }
    for (key, value) in fields {
        if branches(key) {
            collect(value, found);
        } else if holds(key) {
            value.as_object().into_iter().flat_map(Map::values).for_each(|value| collect(value, found));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_says_nothing_goes_and_fields_named_like_keys_stay() {
        let mut schema = json!({"type": "object", "definitions": {}, "properties": {
            "required": {"type": "string", "enum": [], "default": null},
            "list": {"type": "array", "items": {"type": "object", "required": []}},
        }});
        tidy(&mut schema);
        assert_eq!(
            schema,
            json!({"type": "object", "properties": {
                "required": {"type": "string"},
                "list": {"type": "array", "items": {"type": "object"}},
            }})
        );
    }

    #[test]
    fn formats_of_texts_that_nobody_enforces_are_found_once() {
        let text = |format: &str| json!({"type": "string", "format": format});
        let schema = json!({"type": "object", "properties": {
            "a": text("made-up"), "b": text("made-up"), "c": text("date-time"), "n": {"type": "integer", "format": "int32"},
        }});
        let crd = json!({"spec": {"versions": [{"schema": {"openAPIV3Schema": schema}}]}});
        assert_eq!(unknown_formats(&crd), ["made-up"]);
    }
}
