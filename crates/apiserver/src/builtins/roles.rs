//! RBAC roles and bindings: defaults, validation, and prevention of privilege escalation.

use polis_apimachinery::{ValidationError, object};
use serde_json::Value;

use crate::{access::rbac, status::StatusError, verbs::Call};

const GROUP: &str = "rbac.authorization.k8s.io";

/// Applies the default API groups of role references and subjects.
pub(super) fn prepare(object: &mut Value, binding: bool) {
    if binding && let Value::Object(fields) = object {
        fields.entry("roleRef").or_insert_with(|| Value::Object(serde_json::Map::new()));
    }
    if let Some(Value::Object(reference)) = object.get_mut("roleRef")
        && reference.get("apiGroup").and_then(Value::as_str).unwrap_or_default().is_empty()
    {
        reference.insert("apiGroup".into(), GROUP.into());
    }
    if object["subjects"].as_array().is_some_and(Vec::is_empty) {
        object.as_object_mut().and_then(|fields| fields.remove("subjects"));
    }
    for subject in object.get_mut("subjects").and_then(Value::as_array_mut).into_iter().flatten() {
        let wanted = match subject["kind"].as_str() {
            Some("User" | "Group") => GROUP,
            _ => continue,
        };
        if subject["apiGroup"].as_str().unwrap_or_default().is_empty() {
            subject["apiGroup"] = wanted.into();
        }
    }
}

pub(super) fn validate(call: &Call, object: &Value, old: Option<&Value>) -> Vec<ValidationError> {
    let mut errors = Vec::new();
    for (i, rule) in object["rules"].as_array().into_iter().flatten().enumerate() {
        let at = format!("rules[{i}]");
        let empty = |field: &str| rule[field].as_array().is_none_or(Vec::is_empty);
        if empty("verbs") {
            errors.push(ValidationError::required(
                format!("{at}.verbs"),
                "verbs must contain at least one value",
            ));
        }
        if !empty("nonResourceURLs") {
            if call.kind.namespaced {
                errors.push(ValidationError::invalid(
                    format!("{at}.nonResourceURLs"),
                    rule["nonResourceURLs"].clone(),
                    "namespaced rules cannot apply to non-resource URLs",
                ));
            }
            if !empty("apiGroups") || !empty("resources") || !empty("resourceNames") {
                errors.push(ValidationError::invalid(
                    format!("{at}.nonResourceURLs"),
                    rule["nonResourceURLs"].clone(),
                    "rules cannot apply to both regular resources and non-resource URLs",
                ));
            }
            continue;
        }
        if empty("apiGroups") {
            errors.push(ValidationError::required(
                format!("{at}.apiGroups"),
                "resource rules must supply at least one api group",
            ));
        }
        if empty("resources") {
            errors.push(ValidationError::required(
                format!("{at}.resources"),
                "resource rules must supply at least one resource",
            ));
        }
    }
    if object.get("roleRef").is_some() || call.kind.plural.ends_with("bindings") {
        errors.extend(validate_binding(call, object, old));
    }
    errors
}

fn validate_binding(call: &Call, object: &Value, old: Option<&Value>) -> Vec<ValidationError> {
    let mut errors = Vec::new();
    let reference = &object["roleRef"];
    let text = |field: &str| reference[field].as_str().unwrap_or_default();
    if text("apiGroup") != GROUP {
        errors.push(ValidationError::not_supported("roleRef.apiGroup", text("apiGroup"), [GROUP]));
    }
    let kinds: &[&str] = if call.kind.namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
    if !kinds.contains(&text("kind")) {
        errors.push(ValidationError::not_supported("roleRef.kind", text("kind"), kinds.iter().copied()));
    }
    if text("name").is_empty() {
        errors.push(ValidationError::required("roleRef.name", ""));
    }
    for (i, subject) in object["subjects"].as_array().into_iter().flatten().enumerate() {
        let at = format!("subjects[{i}]");
        let text = |field: &str| subject[field].as_str().unwrap_or_default();
        if text("name").is_empty() {
            errors.push(ValidationError::required(format!("{at}.name"), ""));
        }
        match text("kind") {
            "ServiceAccount" => {
                if !text("apiGroup").is_empty() {
                    errors.push(ValidationError::not_supported(
                        format!("{at}.apiGroup"),
                        text("apiGroup"),
                        [""],
                    ));
                }
                if !call.kind.namespaced && text("namespace").is_empty() {
                    errors.push(ValidationError::required(format!("{at}.namespace"), ""));
                }
            }
            "User" | "Group" => {
                if text("apiGroup") != GROUP {
                    errors.push(ValidationError::not_supported(
                        format!("{at}.apiGroup"),
                        text("apiGroup"),
                        [GROUP],
                    ));
                }
            }
            other => errors.push(ValidationError::not_supported(
                format!("{at}.kind"),
                other,
                ["ServiceAccount", "User", "Group"],
            )),
        }
    }
    if old.is_some_and(|old| old["roleRef"] != object["roleRef"]) {
        errors.push(ValidationError::invalid("roleRef", object["roleRef"].clone(), "cannot change roleRef"));
    }
    errors
}

/// Rejects a grant of permissions that the user lacks, unless the user has the verb `escalate` or `bind`.
///
/// Called once, after mutating admission: what a webhook adds to the object is granted by the user's request.
pub(crate) fn check_escalation(call: &Call, object: &Value, old: Option<&Value>) -> Result<(), StatusError> {
    if call.kind.group != GROUP
        || call.user.is_master()
        || old.is_some_and(|old| changes_only_collection_fields(object, old))
    {
        return Ok(());
    }
    rbac::check_grant(call, object)
}

/// Whether an update changes nothing but what garbage collection needs: finalizers and owner references.
fn changes_only_collection_fields(new: &Value, old: &Value) -> bool {
    let without = |object: &Value| {
        let mut object = object.clone();
        for field in ["finalizers", "ownerReferences", "managedFields"] {
            object::set_meta(&mut object, field, None);
        }
        object
    };
    without(new) == without(old)
}
