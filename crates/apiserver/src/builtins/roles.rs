//! Roles and bindings: what they default to, and that nobody grants more than he has.

use serde_json::Value;

use crate::{access::rbac, schema::FieldError, status::Failure, verbs::Call};

const GROUP: &str = "rbac.authorization.k8s.io";

/// Groups that may be left out.
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

pub(super) fn faults(call: &Call, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut wrong = Vec::new();
    for (i, rule) in object["rules"].as_array().into_iter().flatten().enumerate() {
        let at = format!("rules[{i}]");
        let empty = |field: &str| rule[field].as_array().is_none_or(Vec::is_empty);
        if empty("verbs") {
            wrong.push(FieldError::required(format!("{at}.verbs"), "verbs must contain at least one value"));
        }
        if !empty("nonResourceURLs") {
            if call.kind.namespaced {
                wrong.push(FieldError::invalid(
                    format!("{at}.nonResourceURLs"),
                    rule["nonResourceURLs"].clone(),
                    "namespaced rules cannot apply to non-resource URLs",
                ));
            }
            if !empty("apiGroups") || !empty("resources") || !empty("resourceNames") {
                wrong.push(FieldError::invalid(
                    format!("{at}.nonResourceURLs"),
                    rule["nonResourceURLs"].clone(),
                    "rules cannot apply to both regular resources and non-resource URLs",
                ));
            }
            continue;
        }
        if empty("apiGroups") {
            wrong.push(FieldError::required(
                format!("{at}.apiGroups"),
                "resource rules must supply at least one api group",
            ));
        }
        if empty("resources") {
            wrong.push(FieldError::required(
                format!("{at}.resources"),
                "resource rules must supply at least one resource",
            ));
        }
    }
    if object.get("roleRef").is_some() || call.kind.plural.ends_with("bindings") {
        wrong.extend(binding_faults(call, object, old));
    }
    wrong
}

fn binding_faults(call: &Call, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut wrong = Vec::new();
    let reference = &object["roleRef"];
    let text = |field: &str| reference[field].as_str().unwrap_or_default();
    if text("apiGroup") != GROUP {
        wrong.push(FieldError::not_supported("roleRef.apiGroup", text("apiGroup"), [GROUP]));
    }
    let kinds: &[&str] = if call.kind.namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
    if !kinds.contains(&text("kind")) {
        wrong.push(FieldError::not_supported("roleRef.kind", text("kind"), kinds.iter().copied()));
    }
    if text("name").is_empty() {
        wrong.push(FieldError::required("roleRef.name", ""));
    }
    for (i, subject) in object["subjects"].as_array().into_iter().flatten().enumerate() {
        let at = format!("subjects[{i}]");
        let text = |field: &str| subject[field].as_str().unwrap_or_default();
        if text("name").is_empty() {
            wrong.push(FieldError::required(format!("{at}.name"), ""));
        }
        match text("kind") {
            "ServiceAccount" => {
                if !text("apiGroup").is_empty() {
                    wrong.push(FieldError::not_supported(format!("{at}.apiGroup"), text("apiGroup"), [""]));
                }
                if !call.kind.namespaced && text("namespace").is_empty() {
                    wrong.push(FieldError::required(format!("{at}.namespace"), ""));
                }
            }
            "User" | "Group" => {
                if text("apiGroup") != GROUP {
                    wrong.push(FieldError::not_supported(
                        format!("{at}.apiGroup"),
                        text("apiGroup"),
                        [GROUP],
                    ));
                }
            }
            other => wrong.push(FieldError::not_supported(
                format!("{at}.kind"),
                other,
                ["ServiceAccount", "User", "Group"],
            )),
        }
    }
    if old.is_some_and(|old| old["roleRef"] != object["roleRef"]) {
        wrong.push(FieldError::invalid("roleRef", object["roleRef"].clone(), "cannot change roleRef"));
    }
    wrong
}

/// Nobody grants what he does not have, unless he may `escalate` or `bind`.
pub(super) fn check_escalation(call: &Call, object: &Value) -> Result<(), Failure> {
    if call.kind.group != GROUP || call.identity.is_master() {
        return Ok(());
    }
    rbac::check_grant(call, object)
}
