//! Any Kubernetes object as a JSON tree: the few fields that the federation reads and writes on all of them.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// `apiVersion`, `kind`, namespace (empty for an object of the whole plane) and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// Group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Namespace; empty for an object of the whole plane.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl Identity {
    /// Who an object is.
    pub fn of(object: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Identity {
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

/// `Kind namespace/name`, for messages.
impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.namespace.is_empty() {
            write!(f, "{} {}", self.kind, self.name)
        } else {
            write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
        }
    }
}

/// The text of a metadata field; empty where there is none.
pub fn meta<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

/// A label; empty where there is none.
pub fn label<'a>(object: &'a Value, key: &str) -> &'a str {
    object["metadata"]["labels"][key].as_str().unwrap_or_default()
}

/// An annotation; empty where there is none.
pub fn annotation<'a>(object: &'a Value, key: &str) -> &'a str {
    object["metadata"]["annotations"][key].as_str().unwrap_or_default()
}

/// All labels.
pub fn labels(object: &Value) -> BTreeMap<String, String> {
    texts(&object["metadata"]["labels"])
}

/// Whether the object is on its way out.
pub fn is_deleting(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

/// The generation; 0 for kinds that have none.
pub fn generation(object: &Value) -> i64 {
    object["metadata"]["generation"].as_i64().unwrap_or(0)
}

pub(crate) fn texts(map: &Value) -> BTreeMap<String, String> {
    let fields = map.as_object().into_iter().flatten();
    fields.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

pub(crate) fn set_label(object: &mut Value, key: &str, value: &str) {
    set_text(object, "labels", key, value);
}

pub(crate) fn set_annotation(object: &mut Value, key: &str, value: &str) {
    set_text(object, "annotations", key, value);
}

fn set_text(object: &mut Value, map: &str, key: &str, value: &str) {
    if !object["metadata"][map].is_object() {
        object["metadata"][map] = Value::Object(Map::new());
    }
    object["metadata"][map][key] = Value::String(value.to_owned());
}

/// Takes keys out of a map of the metadata; a map that becomes empty goes as well.
pub(crate) fn remove_texts(object: &mut Value, map: &str, keys: &[&str]) {
    let Some(fields) = object["metadata"][map].as_object_mut() else { return };
    for key in keys {
        fields.remove(*key);
    }
    if fields.is_empty() {
        remove(object, &["metadata", map]);
    }
}

/// Takes a field away, if it is there.
pub(crate) fn remove(object: &mut Value, path: &[&str]) -> Option<Value> {
    let (last, parents) = path.split_last()?;
    let mut here = object;
    for part in parents {
        here = here.get_mut(*part)?;
    }
    here.as_object_mut()?.remove(*last)
}
