//! Accessors for the metadata of any Kubernetes object as JSON.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::Error;

/// The key of an object: `apiVersion`, `kind`, namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Namespace; empty for a cluster-scoped object.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl ObjectKey {
    /// The key of an object.
    pub fn of(object: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        ObjectKey {
            api_version: text(&object["apiVersion"]),
            kind: text(&object["kind"]),
            namespace: text(&object["metadata"]["namespace"]),
            name: text(&object["metadata"]["name"]),
        }
    }

    /// The API group; empty for the core group.
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }
}

/// Formats as `Kind namespace/name`, for messages.
impl std::fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.namespace.is_empty() {
            write!(f, "{} {}", self.kind, self.name)
        } else {
            write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
        }
    }
}

/// A string field of the metadata; empty if absent.
pub fn meta<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

/// A label; empty if absent.
pub fn label<'a>(object: &'a Value, key: &str) -> &'a str {
    object["metadata"]["labels"][key].as_str().unwrap_or_default()
}

/// An annotation; empty if absent.
pub fn annotation<'a>(object: &'a Value, key: &str) -> &'a str {
    object["metadata"]["annotations"][key].as_str().unwrap_or_default()
}

/// All labels.
pub fn labels(object: &Value) -> BTreeMap<String, String> {
    string_map(&object["metadata"]["labels"])
}

/// Whether the object is being deleted.
pub fn is_deleting(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

/// The generation; 0 for kinds without one.
pub fn generation(object: &Value) -> i64 {
    object["metadata"]["generation"].as_i64().unwrap_or(0)
}

pub(crate) fn string_map(map: &Value) -> BTreeMap<String, String> {
    let fields = map.as_object().into_iter().flatten();
    fields.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

pub(crate) fn set_label(object: &mut Value, key: &str, value: &str) {
    set_string(object, "labels", key, value);
}

pub(crate) fn set_annotation(object: &mut Value, key: &str, value: &str) {
    set_string(object, "annotations", key, value);
}

fn set_string(object: &mut Value, map: &str, key: &str, value: &str) {
    if !object["metadata"][map].is_object() {
        object["metadata"][map] = Value::Object(Map::new());
    }
    object["metadata"][map][key] = Value::String(value.to_owned());
}

/// Removes keys from a map of the metadata, and the map itself if it becomes empty.
pub(crate) fn remove_keys(object: &mut Value, map: &str, keys: &[&str]) {
    let Some(fields) = object["metadata"][map].as_object_mut() else { return };
    for key in keys {
        fields.remove(*key);
    }
    if fields.is_empty() {
        remove(object, &["metadata", map]);
    }
}

/// Removes a field, if it exists.
pub(crate) fn remove(object: &mut Value, path: &[&str]) -> Option<Value> {
    let (last, parents) = path.split_last()?;
    let mut here = object;
    for part in parents {
        here = here.get_mut(*part)?;
    }
    here.as_object_mut()?.remove(*last)
}

/// Decodes an object.
pub(crate) fn typed<'a, T: Deserialize<'a>>(object: &'a Value) -> Result<T, Error> {
    T::deserialize(object).map_err(|source| Error::Decode { what: ObjectKey::of(object).to_string(), source })
}
