//! Policies, bindings and webhook configurations as objects: what they default to, and what is wrong with them.

use serde_json::{Map, Value, json};

use crate::{
    admission_cel::{Policy, compile_conditions},
    schema::{FieldError, names},
    selector::LabelSelector,
    verbs::Call,
};

fn default(at: &mut Map<String, Value>, field: &str, value: Value) {
    at.entry(field).or_insert(value);
}

fn default_matching(matching: &mut Value) {
    if let Value::Object(matching) = matching {
        default(matching, "matchPolicy", "Equivalent".into());
        default(matching, "namespaceSelector", json!({}));
        default(matching, "objectSelector", json!({}));
        for field in ["resourceRules", "excludeResourceRules"] {
            for rule in matching
                .get_mut(field)
                .and_then(Value::as_array_mut)
                .into_iter()
                .flatten()
                .filter_map(Value::as_object_mut)
            {
                default(rule, "scope", "*".into());
            }
        }
    }
}

/// Fills in defaults.
pub(crate) fn prepare(object: &mut Value) {
    let mutating = object["kind"] == "MutatingWebhookConfiguration";
    for hook in object
        .get_mut("webhooks")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
    {
        default(hook, "failurePolicy", "Fail".into());
        default(hook, "matchPolicy", "Equivalent".into());
        default(hook, "namespaceSelector", json!({}));
        default(hook, "objectSelector", json!({}));
        default(hook, "timeoutSeconds", 10.into());
        if mutating {
            default(hook, "reinvocationPolicy", "Never".into());
        }
        for rule in hook
            .get_mut("rules")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
            .filter_map(Value::as_object_mut)
        {
            default(rule, "scope", "*".into());
        }
        if let Some(Value::Object(service)) =
            hook.get_mut("clientConfig").and_then(|client| client.get_mut("service"))
        {
            default(service, "port", 443.into());
        }
    }
    if let Some(Value::Object(spec)) = object.get_mut("spec") {
        if let Some(matching) = spec.get_mut("matchConstraints") {
            default_matching(matching);
        }
        if let Some(matching) = spec.get_mut("matchResources") {
            default_matching(matching);
        }
    }
    if object["kind"] == "ValidatingAdmissionPolicy"
        && let Some(Value::Object(spec)) = object.get_mut("spec")
    {
        default(spec, "failurePolicy", "Fail".into());
    }
}

/// Complaints about a configuration.
pub(crate) fn faults(call: &Call, object: &Value) -> Vec<FieldError> {
    match call.kind.kind.as_str() {
        "ValidatingAdmissionPolicy" => policy_faults(object),
        "ValidatingAdmissionPolicyBinding" => binding_faults(object),
        _ => webhook_faults(object),
    }
}

fn policy_faults(object: &Value) -> Vec<FieldError> {
    let spec = &object["spec"];
    let mut wrong = Vec::new();
    let empty = |field: &str| spec[field].as_array().is_none_or(Vec::is_empty);
    if empty("validations") && empty("auditAnnotations") {
        wrong.push(FieldError::required(
            "spec.validations",
            "validations or auditAnnotations must be non-empty",
        ));
    }
    if !spec["matchConstraints"].is_object() {
        wrong.push(FieldError::required("spec.matchConstraints", ""));
    } else if spec["matchConstraints"]["resourceRules"].as_array().is_none_or(Vec::is_empty) {
        wrong.push(FieldError::required("spec.matchConstraints.resourceRules", ""));
    }
    wrong.extend(matching_faults(&spec["matchConstraints"], "spec.matchConstraints"));
    wrong.extend(one_of(&spec["failurePolicy"], "spec.failurePolicy", &["Fail", "Ignore"]));
    if let Err(errors) = Policy::compile(object) {
        wrong.extend(errors);
    }
    wrong
}

fn binding_faults(object: &Value) -> Vec<FieldError> {
    let spec = &object["spec"];
    let mut wrong = Vec::new();
    if spec["policyName"].as_str().unwrap_or_default().is_empty() {
        wrong.push(FieldError::required("spec.policyName", ""));
    }
    let actions = crate::json::texts(&spec["validationActions"]);
    if actions.is_empty() {
        wrong.push(FieldError::required(
            "spec.validationActions",
            "at least one validation action is required",
        ));
    }
    for action in actions.iter().filter(|action| !["Deny", "Warn", "Audit"].contains(&action.as_str())) {
        wrong.push(FieldError::not_supported(
            "spec.validationActions",
            action.as_str(),
            ["Audit", "Deny", "Warn"],
        ));
    }
    if actions.iter().any(|action| action == "Deny") && actions.iter().any(|action| action == "Warn") {
        wrong.push(FieldError::invalid("spec.validationActions", spec["validationActions"].clone(), "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)"));
    }
    wrong.extend(matching_faults(&spec["matchResources"], "spec.matchResources"));
    wrong
}

fn matching_faults(matching: &Value, at: &str) -> Vec<FieldError> {
    let mut wrong = Vec::new();
    for field in ["namespaceSelector", "objectSelector"] {
        if let Some(selector) = matching.get(field).filter(|selector| selector.is_object())
            && let Err(error) = LabelSelector::from_object(selector)
        {
            wrong.push(FieldError::invalid(format!("{at}.{field}"), selector.clone(), error.to_string()));
        }
    }
    for (n, rule) in matching["resourceRules"].as_array().into_iter().flatten().enumerate() {
        wrong.extend(rule_faults(rule, &format!("{at}.resourceRules[{n}]")));
    }
    wrong
}

fn rule_faults(rule: &Value, at: &str) -> Vec<FieldError> {
    ["operations", "apiGroups", "apiVersions", "resources"]
        .iter()
        .filter(|field| rule[**field].as_array().is_none_or(Vec::is_empty))
        .map(|field| FieldError::required(format!("{at}.{field}"), ""))
        .chain(
            crate::json::texts(&rule["operations"])
                .iter()
                .filter(|operation| {
                    !["*", "CREATE", "UPDATE", "DELETE", "CONNECT"].contains(&operation.as_str())
                })
                .map(|operation| {
                    FieldError::not_supported(
                        format!("{at}.operations[0]"),
                        operation.as_str(),
                        ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"],
                    )
                }),
        )
        .collect()
}

fn one_of(value: &Value, at: &str, allowed: &[&str]) -> Option<FieldError> {
    let text = value.as_str()?;
    (!allowed.contains(&text)).then(|| FieldError::not_supported(at, text, allowed.iter().copied()))
}

fn webhook_faults(object: &Value) -> Vec<FieldError> {
    let mut wrong = Vec::new();
    let hooks = object["webhooks"].as_array().map(Vec::as_slice).unwrap_or_default();
    for (n, hook) in hooks.iter().enumerate() {
        let at = format!("webhooks[{n}]");
        let name = hook["name"].as_str().unwrap_or_default();
        if name.is_empty() {
            wrong.push(FieldError::required(format!("{at}.name"), ""));
        } else if !names::dns_subdomain(name).is_empty() || name.split('.').count() < 3 {
            wrong.push(FieldError::invalid(
                format!("{at}.name"),
                name,
                "should be a domain with at least three segments separated by dots",
            ));
        }
        if hooks[..n].iter().any(|other| other["name"] == hook["name"]) {
            wrong.push(FieldError::duplicate(format!("{at}.name"), name));
        }
        let versions = crate::json::texts(&hook["admissionReviewVersions"]);
        if versions.is_empty() {
            wrong.push(FieldError::required(
                format!("{at}.admissionReviewVersions"),
                "must specify one of v1, v1beta1",
            ));
        } else if !versions.iter().any(|version| version == "v1") {
            wrong.push(FieldError::invalid(
                format!("{at}.admissionReviewVersions"),
                hook["admissionReviewVersions"].clone(),
                "must include at least one of v1, v1beta1",
            ));
        }
        match hook["sideEffects"].as_str() {
            None => wrong.push(FieldError::required(
                format!("{at}.sideEffects"),
                "must specify one of None, NoneOnDryRun",
            )),
            Some("None" | "NoneOnDryRun") => {}
            Some(other) => wrong.push(FieldError::not_supported(
                format!("{at}.sideEffects"),
                other,
                ["None", "NoneOnDryRun"],
            )),
        }
        wrong.extend(one_of(&hook["failurePolicy"], &format!("{at}.failurePolicy"), &["Fail", "Ignore"]));
        wrong.extend(one_of(&hook["matchPolicy"], &format!("{at}.matchPolicy"), &["Equivalent", "Exact"]));
        if let Some(seconds) = hook["timeoutSeconds"].as_i64().filter(|seconds| !(1..=30).contains(seconds)) {
            wrong.push(FieldError::invalid(
                format!("{at}.timeoutSeconds"),
                seconds,
                "the timeout value must be between 1 and 30 seconds",
            ));
        }
        let client = &hook["clientConfig"];
        match (client["url"].as_str(), client["service"].is_object()) {
            (None, false) | (Some(_), true) => wrong.push(FieldError::required(
                format!("{at}.clientConfig"),
                "exactly one of url or service is required",
            )),
            (Some(url), false) if !url.starts_with("https://") => {
                wrong.push(FieldError::invalid(
                    format!("{at}.clientConfig.url"),
                    url,
                    "'https' is the only allowed URL scheme; desired format: https://host[/path]",
                ));
            }
            _ => {}
        }
        for (m, rule) in hook["rules"].as_array().into_iter().flatten().enumerate() {
            wrong.extend(rule_faults(rule, &format!("{at}.rules[{m}]")));
        }
        wrong.extend(matching_faults(hook, &at));
        if let Err(errors) = compile_conditions(&hook["matchConditions"], &format!("{at}.matchConditions")) {
            wrong.extend(errors);
        }
    }
    wrong
}
