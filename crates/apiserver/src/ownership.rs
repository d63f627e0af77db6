//! Who owns which field: `managedFields` of every write, and server-side apply on top of them.

use std::sync::OnceLock;

use serde_json::Value;

use crate::{
    apply::{self, ApplyError, FieldSet, Types, Writing},
    builtins, json,
    kinds::Subresource,
    status::{Cause, Failure},
    verbs::Call,
};

/// The name of a subresource as it stands in `managedFields`.
fn subresource(call: &Call) -> &'static str {
    match call.subresource {
        Some(Subresource::Status) => "status",
        Some(Subresource::Scale) => "scale",
        Some(Subresource::Finalize) => "finalize",
        Some(Subresource::Token) => "token",
        None => "",
    }
}

/// Fields that the endpoint throws away, which can therefore not be owned through it.
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

fn with_writing<R>(call: &Call, work: impl FnOnce(&Writing<'_>) -> R) -> R {
    let versions: Vec<(&str, &Types)> = call
        .kind
        .versions
        .iter()
        .map(|version| (version.api_version.as_str(), version.form.types()))
        .collect();
    let now = json::timestamp(call.core.clock.now());
    work(&Writing {
        versions: &versions,
        api_version: &call.version.api_version,
        kind: &call.kind.kind,
        subresource: subresource(call),
        reset: reset(call),
        now: &now,
    })
}

/// Records the writer of what changed between `old` and `new`.
pub(crate) fn on_write(call: &Call, old: Option<&Value>, new: &mut Value) {
    with_writing(call, |writing| apply::update(writing, old, new, call.manager()));
    for path in builtins::standing_structs(&call.kind) {
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

/// The object after a server-side apply, with its owners; not yet in form.
pub(crate) fn apply(call: &Call, old: Option<&Value>, applied: &Value) -> Result<Value, Failure> {
    let result = with_writing(call, |writing| {
        apply::apply(writing, old, applied, &call.options.field_manager, call.options.force == Some(true))
    });
    result.map_err(|error| match &error {
        ApplyError::Conflicts(conflicts) => {
            let causes = conflicts
                .iter()
                .map(|conflict| Cause {
                    reason: "FieldManagerConflict".into(),
                    message: conflict.message(),
                    field: conflict.field.clone(),
                })
                .collect();
            Failure::apply_conflict(error.to_string(), causes)
        }
        ApplyError::BadRequest(why) => Failure::bad_request(why.clone()),
        ApplyError::Untyped(why) => Failure::new(500, "", why.clone()),
    })
}

/// Whether two objects differ in nothing but the times in `managedFields`.
pub(crate) fn same_but_for_times(new: &Value, old: &Value) -> bool {
    fn all_but<'a>(value: &'a Value, name: &'static str) -> impl Iterator<Item = (&'a String, &'a Value)> {
        json::fields_where(value, move |field| field != name)
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
