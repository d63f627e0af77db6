//! Finalizers of an object, in memory.

use serde_json::Value;

/// Whether an object has a finalizer.
pub(crate) fn has_finalizer(object: &Value, finalizer: &str) -> bool {
    object["metadata"]["finalizers"].as_array().is_some_and(|all| all.iter().any(|one| one == finalizer))
}

/// Adds a finalizer to an object.
pub(crate) fn add_finalizer(object: &mut Value, finalizer: &str) {
    if has_finalizer(object, finalizer) {
        return;
    }
    if !object["metadata"]["finalizers"].is_array() {
        object["metadata"]["finalizers"] = Value::Array(Vec::new());
    }
    if let Some(all) = object["metadata"]["finalizers"].as_array_mut() {
        all.push(Value::String(finalizer.to_owned()));
    }
}

/// The finalizers of an object except one.
pub(crate) fn without_finalizer(object: &Value, finalizer: &str) -> Vec<Value> {
    let all = object["metadata"]["finalizers"].as_array().into_iter().flatten();
    all.filter(|one| *one != finalizer).cloned().collect()
}
