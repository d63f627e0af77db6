//! Strategies of the built-in kinds: defaults, validation, deletion rules, and actions after a write.
//!
//! Each function dispatches on group and resource. Kinds without an entry have no special behaviour.

mod configs;
mod crd;
mod events;
mod leases;
mod namespaces;
mod roles;

pub(crate) use crd::{
    CRD_FINALIZER, collection as crd_collection, load as load_crds, unregister as unregister_crd,
};
pub(crate) use namespaces::{NAMESPACE_FINALIZER, mk_namespace};
pub(crate) use roles::check_escalation;

use polis_apimachinery::{ValidationError, time};
use serde_json::Value;

use crate::{
    status::StatusError,
    verbs::{Call, WriteResult},
};

/// Group and resource of a call.
fn resource_of(call: &Call) -> (&str, &str) {
    (call.kind.group.as_str(), call.kind.plural.as_str())
}

/// Applies the defaults of the kind. The writer owns the defaulted fields.
pub(crate) fn apply_defaults(call: &Call, object: &mut Value) -> Result<(), StatusError> {
    match resource_of(call) {
        ("", "namespaces") => namespaces::apply_defaults(object),
        ("", "secrets") => {
            check_base64(call, object, "data")?;
            drop_empty(object, &["data", "stringData"]);
            configs::prepare_secret(object);
        }
        ("", "configmaps") => {
            check_base64(call, object, "binaryData")?;
            drop_empty(object, &["data", "binaryData"]);
        }
        ("", "serviceaccounts") => drop_empty(object, &["secrets", "imagePullSecrets"]),
        ("apiextensions.k8s.io", "customresourcedefinitions") => {
            polis_apimachinery::crd::apply_defaults(object)
        }
        ("rbac.authorization.k8s.io", _) => roles::prepare(object, call.kind.plural.ends_with("bindings")),
        ("admissionregistration.k8s.io", _) => crate::admission::prepare(object),
        _ => {}
    }
    Ok(())
}

/// The decoding error of a body whose JSON types are valid: a malformed MicroTime.
pub(crate) fn decode_error(call: &Call, object: &Value) -> Option<String> {
    let fields: &[&str] = match resource_of(call) {
        ("coordination.k8s.io", "leases") => &["/spec/acquireTime", "/spec/renewTime"],
        (_, "events") if !call.kind.is_custom() => &["/eventTime", "/series/lastObservedTime"],
        _ => &[],
    };
    fields
        .iter()
        .filter_map(|field| object.pointer(field).and_then(Value::as_str))
        .find_map(time::micro_time_error)
}

fn check_base64(call: &Call, object: &Value, field: &str) -> Result<(), StatusError> {
    let kind = &call.kind.kind;
    configs::base64_error(object, field).map_or(Ok(()), |why| {
        Err(StatusError::bad_request(format!(
            "{kind} in version \"v1\" cannot be handled as a {kind}: {why}"
        )))
    })
}

/// Removes empty lists and maps, as Go's `omitempty` does.
fn drop_empty(object: &mut Value, fields: &[&str]) {
    let Value::Object(all) = object else { return };
    for field in fields {
        if all.get(*field).is_some_and(|value| {
            value.as_array().is_some_and(Vec::is_empty)
                || value.as_object().is_some_and(serde_json::Map::is_empty)
        }) {
            all.remove(*field);
        }
    }
}

/// Sets the fields of a new object that the server controls.
pub(crate) fn prepare_create(call: &Call, object: &mut Value) -> Result<(), StatusError> {
    match resource_of(call) {
        ("", "namespaces") => namespaces::prepare_create(object),
        ("apiextensions.k8s.io", "customresourcedefinitions") => crd::prepare_create(call, object)?,
        ("coordination.k8s.io", "leases") => leases::prepare(object),
        _ => {}
    }
    Ok(())
}

/// Adds fields that Go encodes even if they are empty (no `omitempty`) to the object to store.
pub(crate) fn fill_empty_fields(call: &Call, stored: &mut Value) {
    if resource_of(call).0 == "rbac.authorization.k8s.io"
        && call.kind.kind.ends_with("Role")
        && stored["rules"].as_array().is_none_or(Vec::is_empty)
    {
        stored["rules"] = Value::Null;
    }
    if resource_of(call).1 == "events" && stored.get("source").is_none() {
        stored["source"] = serde_json::json!({});
    }
    let absent: &[(&str, Value)] = match resource_of(call) {
        ("" | "events.k8s.io", "events") => &[
            ("eventTime", Value::Null),
            ("firstTimestamp", Value::Null),
            ("lastTimestamp", Value::Null),
            ("reportingComponent", Value::String(String::new())),
            ("reportingInstance", Value::String(String::new())),
        ],
        _ => &[],
    };
    if let Value::Object(fields) = stored {
        for (name, value) in absent {
            fields.entry(*name).or_insert_with(|| value.clone());
        }
    }
}

/// Struct fields that Go encodes even if they are empty. No field manager owns them.
pub(crate) fn unowned_structs(kind: &crate::kinds::Kind) -> &'static [&'static [&'static str]] {
    match (kind.group.as_str(), kind.plural.as_str()) {
        ("", "namespaces") => &[&["f:spec"], &["f:status"]],
        ("", "events") => &[&["f:source"], &["f:involvedObject"]],
        ("coordination.k8s.io", "leases")
        | ("admissionregistration.k8s.io" | "authorization.k8s.io" | "authentication.k8s.io", _) => {
            &[&["f:spec"]]
        }
        ("apiextensions.k8s.io", "customresourcedefinitions") => {
            &[&["f:spec"], &["f:spec", "f:names"], &["f:status"], &["f:status", "f:acceptedNames"]]
        }
        _ => &[],
    }
}

/// Validates metadata rules that apply to some kinds only.
pub(crate) fn validate_metadata(call: &Call, object: &Value) -> Vec<ValidationError> {
    let mut errors = Vec::new();
    for reference in object["metadata"]["ownerReferences"].as_array().into_iter().flatten() {
        let version = reference["apiVersion"].as_str().unwrap_or_default();
        if version.matches('/').count() > 1 {
            errors.push(ValidationError::invalid(
                "metadata.ownerReferences.apiVersion",
                version,
                "version must not be empty",
            ));
        }
    }
    let strict = call.kind.rules().is_some()
        && !matches!(
            resource_of(call),
            (_, "events") | ("coordination.k8s.io", _) | ("apiextensions.k8s.io", _)
        );
    if call.kind.is_custom() {
        for finalizer in polis_apimachinery::object::finalizers(object).iter().filter(|finalizer| {
            !finalizer.contains('/')
                && polis_apimachinery::names::label_key(finalizer).is_empty()
                && !["orphan", "foregroundDeletion"].contains(&finalizer.as_str())
        }) {
            call.warn(format!("metadata.finalizers: {finalizer:?}: prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers"));
        }
    }
    if strict {
        for (n, finalizer) in polis_apimachinery::object::finalizers(object).iter().enumerate() {
            let standard = ["kubernetes", "orphan", "foregroundDeletion"].contains(&finalizer.as_str());
            if !finalizer.contains('/') && !standard {
                errors.push(ValidationError::invalid(
                    format!("metadata.finalizers[{n}]"),
                    finalizer.as_str(),
                    "name is neither a standard finalizer name nor is it fully qualified",
                ));
            }
        }
    }
    errors
}

/// Restores the fields that an update must not change.
pub(crate) fn prepare_update(call: &Call, old: &Value, new: &mut Value) -> Result<(), StatusError> {
    match resource_of(call) {
        ("", "namespaces") => namespaces::prepare_update(call, old, new),
        ("apiextensions.k8s.io", "customresourcedefinitions") => crd::prepare_update(call, old, new)?,
        ("coordination.k8s.io", "leases") => leases::prepare(new),
        _ => {}
    }
    Ok(())
}

/// Validates the kind's rules beyond its schema.
pub(crate) fn validate(call: &Call, object: &Value, old: Option<&Value>) -> Vec<ValidationError> {
    match resource_of(call) {
        ("", "configmaps") => configs::validate_config_map(object, old),
        ("", "secrets") => configs::validate_secret(object, old),
        ("", "namespaces") => namespaces::validate(object),
        ("coordination.k8s.io", "leases") => leases::validate(object),
        ("" | "events.k8s.io", "events") => events::validate(object, old, !call.kind.group.is_empty()),
        ("apiextensions.k8s.io", "customresourcedefinitions") => {
            polis_apimachinery::crd::validate(object, old)
        }
        ("rbac.authorization.k8s.io", _) => roles::validate(call, object, old),
        ("admissionregistration.k8s.io", _) => crate::admission::configuration_errors(call, object),
        _ => Vec::new(),
    }
}

/// Rejects the deletion of protected objects.
pub(crate) fn check_delete(call: &Call, object: &Value) -> Result<(), StatusError> {
    match resource_of(call) {
        ("", "namespaces") => namespaces::check_delete(call, object),
        ("apiextensions.k8s.io", "customresourcedefinitions") => crd::check_writable(call),
        _ => Ok(()),
    }
}

/// Sets the kind's own deletion markers. Returns true if the object must wait for a finalizer of the kind.
pub(crate) fn begin_deletion(call: &Call, object: &mut Value) -> bool {
    match resource_of(call) {
        ("", "namespaces") => namespaces::begin_deletion(object),
        ("apiextensions.k8s.io", "customresourcedefinitions") => crd::begin_deletion(call, object),
        _ => false,
    }
}

/// Whether an object without `metadata.finalizers` can be removed.
pub(crate) fn can_remove(call: &Call, object: &Value) -> bool {
    resource_of(call) != ("", "namespaces") || namespaces::can_remove(object)
}

/// Runs after a write of an object of the kind.
pub(crate) async fn after_write(call: &Call, written: &WriteResult) {
    if let (("apiextensions.k8s.io", "customresourcedefinitions"), WriteResult::Stored(stored)) =
        (resource_of(call), written)
    {
        crd::after_write(call, stored).await;
    }
}

/// Runs after the removal of an object of the kind.
pub(crate) async fn after_removal(call: &Call, last: &Value) {
    if resource_of(call) == ("apiextensions.k8s.io", "customresourcedefinitions") {
        crd::after_removal(call, last).await;
    }
}
