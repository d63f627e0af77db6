//! Namespaces: alive until their finalizer has emptied them.

use serde_json::{Value, json};

use crate::{
    json,
    kinds::Subresource,
    schema::{FieldError, names},
    status::Failure,
    verbs::Call,
};

/// The finalizer in `spec` that holds a namespace until it is empty.
pub(crate) const KEEPER: &str = "kubernetes";
const NAME_LABEL: &str = "kubernetes.io/metadata.name";
/// Namespaces that every cluster needs.
const PROTECTED: [&str; 3] = ["default", "kube-system", "kube-public"];

/// A namespace as the server makes it.
pub(crate) fn mk_namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

pub(super) fn fill_in(object: &mut Value) {
    if let Some(Value::Object(spec)) = object.get_mut("spec")
        && spec.get("finalizers").is_some_and(|finalizers| finalizers.as_array().is_some_and(Vec::is_empty))
    {
        spec.remove("finalizers");
    }
    let name = json::meta(object, "name").to_owned();
    let metadata = json::meta_mut(object);
    if let Value::Object(labels) = metadata.entry("labels").or_insert_with(|| json!({})) {
        labels.insert(NAME_LABEL.into(), name.into());
    }
}

pub(super) fn prepare_create(object: &mut Value) {
    let mut finalizers = json::texts(&object["spec"]["finalizers"]);
    if !finalizers.iter().any(|finalizer| finalizer == KEEPER) {
        finalizers.push(KEEPER.into());
    }
    object["spec"] = json!({"finalizers": finalizers});
    object["status"] = json!({"phase": "Active"});
}

pub(super) fn prepare_update(call: &Call, old: &Value, new: &mut Value) {
    match call.subresource {
        Some(Subresource::Finalize) => {
            // Only the finalizers, and nothing else, are given through `finalize`.
            let finalizers = json::texts(&new["spec"]["finalizers"]);
            let metadata = new["metadata"].clone();
            *new = old.clone();
            new["metadata"] = metadata;
            new["spec"] = if finalizers.is_empty() { json!({}) } else { json!({"finalizers": finalizers}) };
        }
        _ => new["spec"] = old["spec"].clone(),
    }
}

pub(super) fn faults(object: &Value) -> Vec<FieldError> {
    json::texts(&object["spec"]["finalizers"])
        .iter()
        .flat_map(|finalizer| {
            let mut wrong: Vec<FieldError> = names::label_key(finalizer)
                .into_iter()
                .map(|why| FieldError::invalid("spec.finalizers", finalizer.as_str(), why))
                .collect();
            if !finalizer.contains('/') && finalizer != KEEPER && wrong.is_empty() {
                wrong.push(FieldError::invalid(
                    "spec.finalizers",
                    finalizer.as_str(),
                    "name is neither a standard finalizer name nor is it fully qualified",
                ));
            }
            wrong
        })
        .collect()
}

pub(super) fn may_delete(call: &Call, object: &Value) -> Result<(), Failure> {
    let name = json::meta(object, "name");
    // A plane on its way out takes its default namespace with it.
    if PROTECTED.contains(&name) && !call.plane.is_leaving() {
        return Err(Failure::forbidden(&call.kind.about(), name, "this namespace may not be deleted"));
    }
    Ok(())
}

/// Marks a namespace; true while its own finalizer holds it.
pub(super) fn mark(object: &mut Value) -> bool {
    let held = !json::texts(&object["spec"]["finalizers"]).is_empty();
    if held || !json::finalizers(object).is_empty() {
        object["status"]["phase"] = "Terminating".into();
    }
    held
}

/// A namespace goes with the last of both kinds of finalizers.
pub(super) fn may_go(object: &Value) -> bool {
    json::texts(&object["spec"]["finalizers"]).is_empty()
}
