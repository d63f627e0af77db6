//! Normalizes CRD schemas as Go's `omitempty` does: removes empty lists, empty maps, false flags and null
//! defaults.

use serde_json::{Map, Value};

use crate::format::StringFormat;

/// Lists and maps that are omitted if empty.
const OMITTED_WHEN_EMPTY: [&str; 11] = [
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

/// Flags that are omitted if false.
const OMITTED_WHEN_FALSE: [&str; 6] = [
    "nullable",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "uniqueItems",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
];

/// Keys whose value maps names to schemas.
fn maps_names_to_schemas(key: &str) -> bool {
    matches!(key, "properties" | "patternProperties" | "definitions" | "dependencies")
}

/// Keys whose value is a schema or a list of schemas.
fn holds_schemas(key: &str) -> bool {
    matches!(key, "items" | "not" | "additionalProperties" | "additionalItems" | "allOf" | "anyOf" | "oneOf")
}

/// Removes empty values from a schema and its descendants.
pub(super) fn omit_empty(schema: &mut Value) {
    let fields = match schema {
        Value::Array(items) => return items.iter_mut().for_each(omit_empty),
        Value::Object(fields) => fields,
        _ => return,
    };
    fields.retain(|key, value| match value {
        Value::Null => key != "default",
        Value::Bool(false) => !OMITTED_WHEN_FALSE.contains(&key.as_str()),
        Value::Array(items) => !items.is_empty() || !OMITTED_WHEN_EMPTY.contains(&key.as_str()),
        Value::Object(map) => !map.is_empty() || !OMITTED_WHEN_EMPTY.contains(&key.as_str()),
        _ => true,
    });
    for (key, value) in fields.iter_mut() {
        if holds_schemas(key) {
            omit_empty(value);
        } else if maps_names_to_schemas(key) {
            value.as_object_mut().into_iter().flat_map(Map::values_mut).for_each(omit_empty);
        }
    }
}

/// The string formats in the schemas of a CRD that are not enforced.
pub fn unknown_formats(crd: &Value) -> Vec<String> {
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
        && StringFormat::named(format).is_none()
        && !found.iter().any(|known| known == format)
    {
        found.push(format.to_owned());
    }
    for (key, value) in fields {
        if holds_schemas(key) {
            collect(value, found);
        } else if maps_names_to_schemas(key) {
            value.as_object().into_iter().flat_map(Map::values).for_each(|value| collect(value, found));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn empty_values_are_removed_and_properties_named_like_keys_stay() {
        let mut schema = json!({"type": "object", "definitions": {}, "properties": {
            "required": {"type": "string", "enum": [], "default": null},
            "list": {"type": "array", "items": {"type": "object", "required": []}},
        }});
        omit_empty(&mut schema);
        assert_eq!(
            schema,
            json!({"type": "object", "properties": {
                "required": {"type": "string"},
                "list": {"type": "array", "items": {"type": "object"}},
            }})
        );
    }

    #[test]
    fn each_unknown_string_format_is_found_once() {
        let text = |format: &str| json!({"type": "string", "format": format});
        let schema = json!({"type": "object", "properties": {
            "a": text("made-up"), "b": text("made-up"), "c": text("date-time"), "n": {"type": "integer", "format": "int32"},
        }});
        let crd = json!({"spec": {"versions": [{"schema": {"openAPIV3Schema": schema}}]}});
        assert_eq!(unknown_formats(&crd), ["made-up"]);
    }
}
