//! Field ownership: updates `managedFields` on every write, and implements server-side apply.

use std::sync::OnceLock;

use polis_apimachinery::{
    apply::{self, ApplyError, FieldSet, Types, WriteContext},
    object, time,
};
use serde_json::Value;

use crate::{
    builtins,
    kinds::Subresource,
    status::{StatusCause, StatusError},
    verbs::Call,
};

/// The name of the request's subresource in `managedFields`.
fn subresource(call: &Call) -> &'static str {
    match call.subresource {
        Some(Subresource::Status) => "status",
        Some(Subresource::Scale) => "scale",
        Some(Subresource::Finalize) => "finalize",
        Some(Subresource::Token) => "token",
        None => "",
    }
}

/// Fields that the endpoint ignores, so that a write through it cannot own them (`resetFields` in
/// kube-apiserver).
fn reset(call: &Call) -> &'static FieldSet {
    static STATUS: OnceLock<FieldSet> = OnceLock::new();
    static SPEC: OnceLock<FieldSet> = OnceLock::new();
    static NOTHING: FieldSet = FieldSet::EMPTY;
    match call.subresource {
        Some(Subresource::Status) => SPEC.get_or_init(|| FieldSet::of_fields(&[&["spec"]])),
        None if call.version.status => STATUS.get_or_init(|| FieldSet::of_fields(&[&["status"]])),
        _ => &NOTHING,
    }
}

fn with_write_context<R>(call: &Call, work: impl FnOnce(&WriteContext<'_>) -> R) -> R {
    let versions: Vec<(&str, &Types)> = call
        .kind
        .versions
        .iter()
        .map(|version| (version.api_version.as_str(), version.versioned_schema.types()))
        .collect();
    let now = time::timestamp(call.core.clock.now());
    work(&WriteContext {
        versions: &versions,
        api_version: &call.version.api_version,
        kind: &call.kind.kind,
        subresource: subresource(call),
        reset: reset(call),
        now: &now,
    })
}

/// Records the field manager of every field that differs between `old` and `new`.
pub(crate) fn on_write(call: &Call, old: Option<&Value>, new: &mut Value) {
    with_write_context(call, |context| apply::update(context, old, new, call.manager()));
    for path in builtins::unowned_structs(&call.kind) {
        for entry in new
            .pointer_mut("/metadata/managedFields")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
            .filter(|entry| entry["operation"] == "Update")
        {
            let mut at = entry.get_mut("fieldsV1");
            for step in *path {
                at = at.and_then(|fields| fields.get_mut(*step));
            }
            if let Some(Value::Object(fields)) = at {
                fields.remove(".");
            }
        }
    }
}

/// The object after a server-side apply, with its `managedFields`, before defaulting and pruning.
pub(crate) fn apply(call: &Call, old: Option<&Value>, applied: &Value) -> Result<Value, StatusError> {
    let result = with_write_context(call, |context| {
        apply::apply(context, old, applied, &call.options.field_manager, call.options.force == Some(true))
    });
    result.map_err(|error| match &error {
        ApplyError::Conflicts(conflicts) => {
            let causes = conflicts
                .iter()
                .map(|conflict| StatusCause {
                    reason: "FieldManagerConflict".into(),
                    message: conflict.message(),
                    field: conflict.field.clone(),
                })
                .collect();
            StatusError::apply_conflict(error.to_string(), causes)
        }
        ApplyError::BadRequest(why) => StatusError::bad_request(why.clone()),
        ApplyError::Untyped(why) => StatusError::new(500, "", why.clone()),
    })
}

/// Whether two objects are equal except for the times in `managedFields`.
pub(crate) fn equal_except_times(new: &Value, old: &Value) -> bool {
    fn all_but<'a>(value: &'a Value, name: &'static str) -> impl Iterator<Item = (&'a String, &'a Value)> {
        object::fields_where(value, move |field| field != name)
    }
    fn owners(object: &Value) -> Option<&Vec<Value>> {
        object["metadata"].get("managedFields").and_then(Value::as_array)
    }
    let same_owners = match (owners(new), owners(old)) {
        (Some(new), Some(old)) => {
            new.len() == old.len()
                && new.iter().zip(old).all(|(new, old)| all_but(new, "time").eq(all_but(old, "time")))
        }
        (new, old) => new == old,
    };
    same_owners
        && all_but(new, "metadata").eq(all_but(old, "metadata"))
        && all_but(&new["metadata"], "managedFields").eq(all_but(&old["metadata"], "managedFields"))
}
