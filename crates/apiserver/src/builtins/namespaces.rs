//! Namespaces: labels, finalizers and deletion. `spec.finalizers` holds a namespace until it is empty.

use polis_apimachinery::{ValidationError, names, object};
use serde_json::{Value, json};

use crate::{kinds::Subresource, status::StatusError, verbs::Call};

/// The finalizer in `spec.finalizers` that holds a namespace until it is empty.
pub(crate) const NAMESPACE_FINALIZER: &str = "kubernetes";
const NAME_LABEL: &str = "kubernetes.io/metadata.name";
/// Namespaces that must not be deleted.
const PROTECTED: [&str; 3] = ["default", "kube-system", "kube-public"];

/// A new Namespace object.
pub(crate) fn mk_namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

pub(super) fn apply_defaults(object: &mut Value) {
    if let Some(Value::Object(spec)) = object.get_mut("spec")
        && spec.get("finalizers").is_some_and(|finalizers| finalizers.as_array().is_some_and(Vec::is_empty))
    {
        spec.remove("finalizers");
    }
    let name = object::meta(object, "name").to_owned();
    let metadata = object::meta_mut(object);
    if let Value::Object(labels) = metadata.entry("labels").or_insert_with(|| json!({})) {
        labels.insert(NAME_LABEL.into(), name.into());
    }
}

pub(super) fn prepare_create(object: &mut Value) {
    let mut finalizers = object::strings(&object["spec"]["finalizers"]);
    if !finalizers.iter().any(|finalizer| finalizer == NAMESPACE_FINALIZER) {
        finalizers.push(NAMESPACE_FINALIZER.into());
    }
    object["spec"] = json!({"finalizers": finalizers});
    object["status"] = json!({"phase": "Active"});
}

pub(super) fn prepare_update(call: &Call, old: &Value, new: &mut Value) {
    match call.subresource {
        Some(Subresource::Finalize) => {
            // The `finalize` subresource changes only `spec.finalizers`.
            let finalizers = object::strings(&new["spec"]["finalizers"]);
            let metadata = new["metadata"].clone();
            *new = old.clone();
            new["metadata"] = metadata;
            new["spec"] = if finalizers.is_empty() { json!({}) } else { json!({"finalizers": finalizers}) };
        }
        _ => new["spec"] = old["spec"].clone(),
    }
}

pub(super) fn validate(object: &Value) -> Vec<ValidationError> {
    object::strings(&object["spec"]["finalizers"])
        .iter()
        .flat_map(|finalizer| {
            let mut errors: Vec<ValidationError> = names::label_key(finalizer)
                .into_iter()
                .map(|why| ValidationError::invalid("spec.finalizers", finalizer.as_str(), why))
                .collect();
            if !finalizer.contains('/') && finalizer != NAMESPACE_FINALIZER && errors.is_empty() {
                errors.push(ValidationError::invalid(
                    "spec.finalizers",
                    finalizer.as_str(),
                    "name is neither a standard finalizer name nor is it fully qualified",
                ));
            }
            errors
        })
        .collect()
}

pub(super) fn check_delete(call: &Call, object: &Value) -> Result<(), StatusError> {
    let name = object::meta(object, "name");
    // A plane that is being removed deletes its default namespace as well.
    if PROTECTED.contains(&name) && !call.plane.is_deleting() {
        return Err(StatusError::forbidden(
            &call.kind.group_resource(),
            name,
            "this namespace may not be deleted",
        ));
    }
    Ok(())
}

/// Sets the phase `Terminating`. Returns true while `spec.finalizers` is not empty.
pub(super) fn begin_deletion(object: &mut Value) -> bool {
    let held = !object::strings(&object["spec"]["finalizers"]).is_empty();
    if held || !object::finalizers(object).is_empty() {
        object["status"]["phase"] = "Terminating".into();
    }
    held
}

/// A namespace can be removed when `spec.finalizers` is empty as well.
pub(super) fn can_remove(object: &Value) -> bool {
    object::strings(&object["spec"]["finalizers"]).is_empty()
}
