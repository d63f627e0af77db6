//! The steps from a derived CRD to one that an API server takes without a warning.
//!
//! Each step is a pure change of the CRD's JSON and does one thing.

use serde_json::{Map, Value, json};

use crate::{annotations, conditions, reasons, schema};

/// What the API server writes when a condition was never set: the beginning of Unix time.
///
/// It does not move while the status stays `Unknown`, so it says nothing about how long anything has waited.
const NEVER: &str = "1970-01-01T00:00:00Z";

/// Names the list kind; API servers fill it in, and a file that leaves it out differs from what they hand back.
pub(super) fn name_the_list(crd: &mut Value) {
    let names = &mut crd["spec"]["names"];
    let list = format!("{}List", names["kind"].as_str().unwrap_or_default());
    names["listKind"] = json!(list);
}

/// Drops titles, and defaults that only say that a Rust field may be left out.
pub(super) fn drop_noise(crd: &mut Value) {
    visit(root(crd), "", &mut |_, node| {
        node.remove("title");
        if node.get("default").is_some_and(is_empty) {
            node.remove("default");
        }
    });
}

/// Drops `nullable`: then `null` means absent, as for every kind of Kubernetes, and is never stored.
pub(super) fn forbid_null(crd: &mut Value) {
    visit(root(crd), "", &mut |_, node| {
        node.remove("nullable");
    });
}

/// Writes out the two types of an int-or-string, which the derive's own clean-up empties.
pub(super) fn say_int_or_string(crd: &mut Value) {
    visit(root(crd), "", &mut |_, node| {
        if node.get("x-kubernetes-int-or-string") == Some(&json!(true)) {
            node.insert("anyOf".into(), json!([{ "type": "integer" }, { "type": "string" }]));
        }
    });
}

/// Adds the fields that every object has.
pub(super) fn add_type_and_metadata(crd: &mut Value) {
    let properties = &mut root(crd)["properties"];
    properties["apiVersion"] = json!({ "type": "string", "description": "Group and version of the schema that the object follows." });
    properties["kind"] = json!({ "type": "string", "description": "Kind of the object." });
    properties["metadata"] = json!({ "type": "object" });
}

/// Says of types borrowed from core/v1 what Kubernetes says of them and the derive does not know.
pub(super) fn describe_core_types(crd: &mut Value) {
    visit(root(crd), "", &mut |name, node| match name {
        "configMap" => {
            node.insert("x-kubernetes-map-type".into(), json!("atomic"));
            name_may_be_empty(node);
            list_is_atomic(node, "items");
        }
        "secret" => list_is_atomic(node, "items"),
        "configMapKeyRef" | "secretKeyRef" => {
            node.insert("x-kubernetes-map-type".into(), json!("atomic"));
            name_may_be_empty(node);
        }
        "fieldRef" | "resourceFieldRef" => {
            node.insert("x-kubernetes-map-type".into(), json!("atomic"));
        }
        "divisor" => {
            node.insert("pattern".into(), json!(schema::QUANTITY));
        }
        // Alpha in Kubernetes, and nothing here could honour it: better refused than ignored.
        "valueFrom" => {
            node.get_mut("properties").and_then(Value::as_object_mut).map(|p| p.remove("fileKeyRef"));
        }
        _ => {}
    });
}

/// Gives every Instance a status from the start, so that a reader never meets one without conditions.
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

/// Marks a CRD for a kind of others: good enough for tests, and never to be applied over the owner's.
pub(super) fn mark_minimal(crd: &mut Value) {
    crd["metadata"]["annotations"][annotations::MINIMAL_CRD] = json!("true");
    let root = root(crd);
    let what = root["description"].as_str().unwrap_or_default();
    root["description"] = json!(format!("{what} Minimal definition for tests; not the owner's."));
}

/// The schema of the one version.
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

fn name_may_be_empty(node: &mut Map<String, Value>) {
    node["properties"]["name"]["default"] = json!("");
    if let Some(required) = node.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|field| field != "name");
        if required.is_empty() {
            node.remove("required");
        }
    }
}

fn list_is_atomic(node: &mut Map<String, Value>, list: &str) {
    node["properties"][list]["x-kubernetes-list-type"] = json!("atomic");
}

/// Visits every schema of a tree, with the name of the property it describes (empty for items and values).
pub(super) fn visit(schema: &mut Value, name: &str, step: &mut impl FnMut(&str, &mut Map<String, Value>)) {
    let Some(node) = schema.as_object_mut() else { return };
    step(name, node);
    if let Some(properties) = node.get_mut("properties").and_then(Value::as_object_mut) {
        for (name, property) in properties.iter_mut() {
            visit(property, name, step);
        }
    }
    for inner in ["items", "additionalProperties"] {
        if let Some(inner) = node.get_mut(inner) {
            visit(inner, "", step);
        }
    }
}
