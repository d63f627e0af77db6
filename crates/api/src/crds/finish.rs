//! Changes that turn a derived CRD into one that an API server accepts without a warning.
//!
//! Each function makes one change to the CRD's JSON, without I/O.

use serde_json::{Map, Value, json};

use crate::{annotations, conditions, reasons, schema};

/// Transition time of a condition that was never set: the start of Unix time.
///
/// It does not change while the status stays `Unknown`, so it does not show how long an instance has waited.
const NEVER: &str = "1970-01-01T00:00:00Z";

/// Sets the list kind. API servers default it, and a file without it would differ from the object that they
/// return.
pub(super) fn set_list_kind(crd: &mut Value) {
    let names = &mut crd["spec"]["names"];
    let list = format!("{}List", names["kind"].as_str().unwrap_or_default());
    names["listKind"] = json!(list);
}

/// Removes titles, and defaults that only mark a Rust field as optional.
pub(super) fn remove_titles_and_empty_defaults(crd: &mut Value) {
    visit(root(crd), "", &mut |_, node| {
        node.remove("title");
        if node.get("default").is_some_and(is_empty) {
            node.remove("default");
        }
    });
}

/// Joins the lines of each paragraph of a description: doc comments are wrapped at the width of the source,
/// and `kubectl explain` wraps at the width of the terminal.
pub(super) fn unwrap_descriptions(crd: &mut Value) {
    visit(root(crd), "", &mut |_, node| {
        if let Some(Value::String(text)) = node.get_mut("description") {
            *text = unwrapped(text);
        }
    });
}

fn unwrapped(text: &str) -> String {
    let mut joined = String::with_capacity(text.len());
    for line in text.lines() {
        let starts_block = line.is_empty() || line.starts_with(['-', '*', ' ']);
        if !joined.is_empty() {
            joined.push(if starts_block || joined.ends_with('\n') { '\n' } else { ' ' });
        }
        joined.push_str(line);
    }
    joined
}

/// Removes `nullable`: then `null` means absent, as in Kubernetes' own kinds, and is never stored.
pub(super) fn remove_nullable(crd: &mut Value) {
    visit(root(crd), "", &mut |_, node| {
        node.remove("nullable");
    });
}

/// Sets the two types of an int-or-string, which the derive removes.
pub(super) fn restore_int_or_string(crd: &mut Value) {
    visit(root(crd), "", &mut |_, node| {
        if node.get("x-kubernetes-int-or-string") == Some(&json!(true)) {
            node.insert("anyOf".into(), json!([{ "type": "integer" }, { "type": "string" }]));
        }
    });
}

/// Adds `apiVersion`, `kind` and `metadata`.
pub(super) fn add_type_and_metadata(crd: &mut Value) {
    let properties = &mut root(crd)["properties"];
    properties["apiVersion"] = json!({ "type": "string", "description": "Group and version of the schema that the object follows." });
    properties["kind"] = json!({ "type": "string", "description": "Kind of the object." });
    properties["metadata"] = json!({ "type": "object" });
}

/// Adds the list types, map types, defaults and patterns that Kubernetes has for core/v1 types and the derive
/// omits.
pub(super) fn complete_core_types(crd: &mut Value) {
    visit(root(crd), "", &mut |name, node| match name {
        "configMap" => {
            node.insert("x-kubernetes-map-type".into(), json!("atomic"));
            default_empty_name(node);
            set_list_atomic(node, "items");
        }
        "secret" => set_list_atomic(node, "items"),
        "configMapKeyRef" | "secretKeyRef" => {
            node.insert("x-kubernetes-map-type".into(), json!("atomic"));
            default_empty_name(node);
        }
        "fieldRef" | "resourceFieldRef" => {
            node.insert("x-kubernetes-map-type".into(), json!("atomic"));
        }
        "divisor" => {
            node.insert("pattern".into(), json!(schema::QUANTITY));
        }
        // Alpha in Kubernetes and not supported here: the API server should reject it, not ignore it.
        "valueFrom" => {
            node.get_mut("properties").and_then(Value::as_object_mut).map(|p| p.remove("fileKeyRef"));
        }
        _ => {}
    });
}

/// Sets a default status, so that every Instance has conditions from its creation.
pub(super) fn default_instance_status(crd: &mut Value) {
    let unknown = |type_: &str, reason: &str, message: &str| {
        json!({
            "type": type_,
            "status": "Unknown",
            "reason": reason,
            "message": message,
            "lastTransitionTime": NEVER,
        })
    };
    let waiting = "Waiting for a controller";
    root(crd)["properties"]["status"]["default"] = json!({
        "conditions": [
            unknown(conditions::PROGRAMMED, reasons::PENDING, waiting),
            unknown(conditions::RUNNING, reasons::PENDING, waiting),
            unknown(conditions::READY, reasons::PENDING, waiting),
            unknown(conditions::QUOTA_GRANTED, reasons::PENDING_EVALUATION, "Waiting for the quota to be evaluated"),
        ]
    });
}

/// Marks a CRD for a kind of another project: it is for tests, and must not replace the owner's CRD.
pub(super) fn mark_minimal(crd: &mut Value) {
    crd["metadata"]["annotations"][annotations::MINIMAL_CRD] = json!("true");
    let root = root(crd);
    let description = root["description"].as_str().unwrap_or_default();
    root["description"] = json!(format!("{description} Minimal definition for tests; not the owner's."));
}

/// The schema of the only version.
fn root(crd: &mut Value) -> &mut Value {
    &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(n) => n.as_i64() == Some(0),
        Value::String(s) => s.is_empty(),
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.is_empty(),
    }
}

fn default_empty_name(node: &mut Map<String, Value>) {
    node["properties"]["name"]["default"] = json!("");
    if let Some(required) = node.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|field| field != "name");
        if required.is_empty() {
            node.remove("required");
        }
    }
}

fn set_list_atomic(node: &mut Map<String, Value>, list: &str) {
    node["properties"][list]["x-kubernetes-list-type"] = json!("atomic");
}

/// Visits every schema of a tree, with the name of the property it describes (empty for items and values).
pub(super) fn visit(schema: &mut Value, name: &str, change: &mut impl FnMut(&str, &mut Map<String, Value>)) {
    let Some(node) = schema.as_object_mut() else { return };
    change(name, node);
    if let Some(properties) = node.get_mut("properties").and_then(Value::as_object_mut) {
        for (name, property) in properties.iter_mut() {
            visit(property, name, change);
        }
    }
    for inner in ["items", "additionalProperties"] {
        if let Some(inner) = node.get_mut(inner) {
            visit(inner, "", change);
        }
    }
}
