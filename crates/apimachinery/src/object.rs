//! Accessors for API objects held as JSON values: metadata, finalizers, conditions.
//!
//! ```
//! use polis_apimachinery::object;
//! use serde_json::json;
//!
//! let mut object = json!({"metadata": {"name": "web"}});
//! object::set_condition(&mut object, "Ready", "True", "Started", "it runs", "2026-01-01T00:00:00Z");
//! assert_eq!(object::meta(&object, "name"), "web");
//! assert!(object::condition_is(&object, "Ready", "True"));
//! assert!(!object::is_deleting(&object));
//! ```

use serde_json::{Map, Value};

/// `metadata.<field>` as a string; empty if absent.
pub fn meta<'a>(object: &'a Value, field: &str) -> &'a str {
    object
        .get("metadata")
        .and_then(|metadata| metadata.get(field))
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// `metadata`, created if absent.
pub fn meta_mut(object: &mut Value) -> &mut Map<String, Value> {
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    let Value::Object(fields) = object else { unreachable!("replaced by an object above") };
    let metadata = fields.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    if !metadata.is_object() {
        *metadata = Value::Object(Map::new());
    }
    match metadata {
        Value::Object(metadata) => metadata,
        _ => unreachable!("replaced by an object above"),
    }
}

/// Sets `metadata.<field>`, or removes it for `None`.
pub fn set_meta(object: &mut Value, field: &str, value: Option<Value>) {
    let metadata = meta_mut(object);
    match value {
        Some(value) => drop(metadata.insert(field.to_owned(), value)),
        None => drop(metadata.remove(field)),
    }
}

/// The fields of an object whose names satisfy `selects`, sorted by name.
pub fn fields_where(
    object: &Value,
    selects: impl Fn(&str) -> bool,
) -> impl Iterator<Item = (&String, &Value)> {
    object.as_object().into_iter().flatten().filter(move |(name, _)| selects(name))
}

/// Resets the fields of `new` whose names satisfy `selects` to their values in `old`. Equal fields are not
/// copied.
pub fn restore_fields(old: &Value, new: &mut Value, selects: impl Fn(&str) -> bool) {
    let Value::Object(fields) = new else { return };
    fields.retain(|name, _| !selects(name) || old.get(name).is_some());
    for (name, value) in fields_where(old, &selects) {
        if fields.get(name) != Some(value) {
            fields.insert(name.clone(), value.clone());
        }
    }
}

/// `metadata.finalizers`.
pub fn finalizers(object: &Value) -> Vec<String> {
    strings(&object["metadata"]["finalizers"])
}

/// The strings of a list.
pub fn strings(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(|item| item.as_str().map(str::to_owned)).collect()
}

/// Whether the object has a deletionTimestamp.
pub fn is_deleting(object: &Value) -> bool {
    object
        .get("metadata")
        .and_then(|metadata| metadata.get("deletionTimestamp"))
        .is_some_and(|time| !time.is_null())
}

/// Whether `status.conditions` has `kind` with `status`.
pub fn condition_is(object: &Value, kind: &str, status: &str) -> bool {
    condition(object, kind).is_some_and(|condition| condition["status"] == status)
}

/// The condition `kind` of `status.conditions`.
pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

/// Sets a condition; `lastTransitionTime` changes only with the status.
pub fn set_condition(object: &mut Value, kind: &str, status: &str, reason: &str, message: &str, now: &str) {
    let transition = match condition(object, kind) {
        Some(known) if known["status"] == status => known["lastTransitionTime"].clone(),
        _ => now.into(),
    };
    let condition = serde_json::json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": transition});
    if !object["status"].is_object() {
        object["status"] = serde_json::json!({});
    }
    if !object["status"]["conditions"].is_array() {
        object["status"]["conditions"] = serde_json::json!([]);
    }
    if let Some(conditions) = object["status"]["conditions"].as_array_mut() {
        match conditions.iter_mut().find(|known| known["type"] == kind) {
            Some(known) => *known = condition,
            None => conditions.push(condition),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selected_fields_are_reset_and_others_stay() {
        let old = json!({"metadata": {"a": 1}, "spec": {"x": 1}, "data": {"y": 2}, "status": "old"});
        let mut new = json!({"metadata": {"b": 1}, "spec": {"x": 9}, "extra": true, "status": "new"});
        restore_fields(&old, &mut new, |name| name != "metadata" && name != "status");
        assert_eq!(new, json!({"metadata": {"b": 1}, "spec": {"x": 1}, "data": {"y": 2}, "status": "new"}));
    }
}
