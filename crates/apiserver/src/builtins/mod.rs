//! What single built-in kinds do beyond storing: defaults, checks, and what follows a write.

mod configs;
mod crd;
mod events;
mod leases;
mod moments;
mod namespaces;
mod roles;

pub(crate) use crd::{CLEANUP, collection as crd_collection, forget as forget_crd, load as load_crds};
pub(crate) use namespaces::{KEEPER, mk_namespace};

use serde_json::Value;

use crate::{
    schema::FieldError,
    status::Failure,
    verbs::{Call, Written},
};

/// Which kind a call is about, for a match.
fn which(call: &Call) -> (&str, &str) {
    (call.kind.group.as_str(), call.kind.plural.as_str())
}

/// Fills in what may be left out: the defaults of the kind, which count as said by the writer.
pub(crate) fn fill_in(call: &Call, object: &mut Value) -> Result<(), Failure> {
    match which(call) {
        ("", "namespaces") => namespaces::fill_in(object),
        ("", "secrets") => {
            base64_or_refuse(call, object, "data")?;
            drop_empty(object, &["data", "stringData"]);
            configs::prepare_secret(object);
        }
        ("", "configmaps") => {
            base64_or_refuse(call, object, "binaryData")?;
            drop_empty(object, &["data", "binaryData"]);
        }
        ("", "serviceaccounts") => drop_empty(object, &["secrets", "imagePullSecrets"]),
        ("apiextensions.k8s.io", "customresourcedefinitions") => crd::fill_in(object),
        ("rbac.authorization.k8s.io", _) => roles::prepare(object, call.kind.plural.ends_with("bindings")),
        ("admissionregistration.k8s.io", _) => crate::admission::prepare(object),
        _ => {}
    }
    roles::check_escalation(call, object)
}

/// Where a body of the kind cannot be read at all, beyond its types.
pub(crate) fn unreadable(call: &Call, object: &Value) -> Option<String> {
    let fields: &[&str] = match which(call) {
        ("coordination.k8s.io", "leases") => &["/spec/acquireTime", "/spec/renewTime"],
        (_, "events") if !call.kind.is_custom() => &["/eventTime", "/series/lastObservedTime"],
        _ => &[],
    };
    fields
        .iter()
        .filter_map(|field| object.pointer(field).and_then(Value::as_str))
        .find_map(moments::micro_time_fault)
}

fn base64_or_refuse(call: &Call, object: &Value, field: &str) -> Result<(), Failure> {
    let kind = &call.kind.kind;
    configs::broken_base64(object, field).map_or(Ok(()), |why| {
        Err(Failure::bad_request(format!("{kind} in version \"v1\" cannot be handled as a {kind}: {why}")))
    })
}

/// Lists and maps that Go leaves out when they are empty.
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

/// Adds what the server itself gives a new object of the kind.
pub(crate) fn prepare_create(call: &Call, object: &mut Value) -> Result<(), Failure> {
    match which(call) {
        ("", "namespaces") => namespaces::prepare_create(object),
        ("apiextensions.k8s.io", "customresourcedefinitions") => crd::prepare_create(call, object)?,
        ("coordination.k8s.io", "leases") => leases::prepare(object),
        _ => {}
    }
    Ok(())
}

/// Adds the fields that Go writes even when they are empty, to what is stored.
pub(crate) fn complete(call: &Call, stored: &mut Value) {
    if which(call).0 == "rbac.authorization.k8s.io"
        && call.kind.kind.ends_with("Role")
        && stored["rules"].as_array().is_none_or(Vec::is_empty)
    {
        stored["rules"] = Value::Null;
    }
    if which(call).1 == "events" && stored.get("source").is_none() {
        stored["source"] = serde_json::json!({});
    }
    let absent: &[(&str, Value)] = match which(call) {
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

/// Structs that are there in Go even when nothing is said about them; they belong to nobody.
pub(crate) fn standing_structs(kind: &crate::kinds::Kind) -> &'static [&'static [&'static str]] {
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

/// Complaints about metadata that only some kinds make.
pub(crate) fn metadata_faults(call: &Call, object: &Value) -> Vec<FieldError> {
    let mut wrong = Vec::new();
    for reference in object["metadata"]["ownerReferences"].as_array().into_iter().flatten() {
        let version = reference["apiVersion"].as_str().unwrap_or_default();
        if version.matches('/').count() > 1 {
            wrong.push(FieldError::invalid(
                "metadata.ownerReferences.apiVersion",
                version,
                "version must not be empty",
            ));
        }
    }
    let strict = call.kind.rules().is_some()
        && !matches!(which(call), (_, "events") | ("coordination.k8s.io", _) | ("apiextensions.k8s.io", _));
    if call.kind.is_custom() {
        for finalizer in crate::json::finalizers(object).iter().filter(|finalizer| {
            !finalizer.contains('/')
                && crate::schema::names::label_key(finalizer).is_empty()
                && !["orphan", "foregroundDeletion"].contains(&finalizer.as_str())
        }) {
            call.warn(format!("metadata.finalizers: {finalizer:?}: prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers"));
        }
    }
    if strict {
        for (n, finalizer) in crate::json::finalizers(object).iter().enumerate() {
            let standard = ["kubernetes", "orphan", "foregroundDeletion"].contains(&finalizer.as_str());
            if !finalizer.contains('/') && !standard {
                wrong.push(FieldError::invalid(
                    format!("metadata.finalizers[{n}]"),
                    finalizer.as_str(),
                    "name is neither a standard finalizer name nor is it fully qualified",
                ));
            }
        }
    }
    wrong
}

/// Keeps what an update may not change.
pub(crate) fn prepare_update(call: &Call, old: &Value, new: &mut Value) -> Result<(), Failure> {
    match which(call) {
        ("", "namespaces") => namespaces::prepare_update(call, old, new),
        ("apiextensions.k8s.io", "customresourcedefinitions") => crd::prepare_update(call, old, new)?,
        ("coordination.k8s.io", "leases") => leases::prepare(new),
        _ => {}
    }
    Ok(())
}

/// Complaints beyond the schema.
pub(crate) fn faults(call: &Call, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    match which(call) {
        ("", "configmaps") => configs::config_map_faults(object, old),
        ("", "secrets") => configs::secret_faults(object, old),
        ("", "namespaces") => namespaces::faults(object),
        ("coordination.k8s.io", "leases") => leases::faults(object),
        ("" | "events.k8s.io", "events") => events::faults(object, old, !call.kind.group.is_empty()),
        ("apiextensions.k8s.io", "customresourcedefinitions") => crd::faults(object, old),
        ("rbac.authorization.k8s.io", _) => roles::faults(call, object, old),
        ("admissionregistration.k8s.io", _) => crate::admission::faults(call, object),
        _ => Vec::new(),
    }
}

/// Objects that may never be deleted.
pub(crate) fn may_delete(call: &Call, object: &Value) -> Result<(), Failure> {
    match which(call) {
        ("", "namespaces") => namespaces::may_delete(call, object),
        ("apiextensions.k8s.io", "customresourcedefinitions") => crd::may_write(call),
        _ => Ok(()),
    }
}

/// Marks an object that is to be deleted, where the kind has its own marks. True when it has to wait for them.
pub(crate) fn mark(call: &Call, object: &mut Value) -> bool {
    match which(call) {
        ("", "namespaces") => namespaces::mark(object),
        ("apiextensions.k8s.io", "customresourcedefinitions") => crd::mark(call, object),
        _ => false,
    }
}

/// Whether an object whose finalizers are gone may go too.
pub(crate) fn may_go(call: &Call, object: &Value) -> bool {
    which(call) != ("", "namespaces") || namespaces::may_go(object)
}

/// What follows a write.
pub(crate) async fn after_write(call: &Call, written: &Written) {
    if let (("apiextensions.k8s.io", "customresourcedefinitions"), Written::Stored(stored)) =
        (which(call), written)
    {
        crd::after_write(call, stored).await;
    }
}

/// What follows a removal.
pub(crate) async fn after_removal(call: &Call, last: &Value) {
    if which(call) == ("apiextensions.k8s.io", "customresourcedefinitions") {
        crd::after_removal(call, last).await;
    }
}
