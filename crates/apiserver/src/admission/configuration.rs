//! Defaulting and validation of webhook configurations, admission policies and their bindings.

use polis_apimachinery::{
    ValidationError,
    admission_policy::{CompiledPolicy, compile_match_conditions},
    names, object,
    selector::LabelSelector,
};
use serde_json::{Map, Value, json};

use crate::verbs::Call;

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

/// Sets the defaults.
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

/// Validates a configuration.
pub(crate) fn configuration_errors(call: &Call, object: &Value) -> Vec<ValidationError> {
    match call.kind.kind.as_str() {
        "ValidatingAdmissionPolicy" => policy_errors(object),
        "ValidatingAdmissionPolicyBinding" => binding_errors(object),
        _ => webhook_errors(object),
    }
}

fn policy_errors(object: &Value) -> Vec<ValidationError> {
    let spec = &object["spec"];
    let mut errors = Vec::new();
    let empty = |field: &str| spec[field].as_array().is_none_or(Vec::is_empty);
    if empty("validations") && empty("auditAnnotations") {
        errors.push(ValidationError::required(
            "spec.validations",
            "validations or auditAnnotations must be non-empty",
        ));
    }
    if !spec["matchConstraints"].is_object() {
        errors.push(ValidationError::required("spec.matchConstraints", ""));
    } else if spec["matchConstraints"]["resourceRules"].as_array().is_none_or(Vec::is_empty) {
        errors.push(ValidationError::required("spec.matchConstraints.resourceRules", ""));
    }
    errors.extend(matching_errors(&spec["matchConstraints"], "spec.matchConstraints"));
    errors.extend(one_of(&spec["failurePolicy"], "spec.failurePolicy", &["Fail", "Ignore"]));
    if let Err(found) = CompiledPolicy::compile(object) {
        errors.extend(found);
    }
    errors
}

fn binding_errors(object: &Value) -> Vec<ValidationError> {
    let spec = &object["spec"];
    let mut errors = Vec::new();
    if spec["policyName"].as_str().unwrap_or_default().is_empty() {
        errors.push(ValidationError::required("spec.policyName", ""));
    }
    let actions = object::strings(&spec["validationActions"]);
    if actions.is_empty() {
        errors.push(ValidationError::required(
            "spec.validationActions",
            "at least one validation action is required",
        ));
    }
    for action in actions.iter().filter(|action| !["Deny", "Warn", "Audit"].contains(&action.as_str())) {
        errors.push(ValidationError::not_supported(
            "spec.validationActions",
            action.as_str(),
            ["Audit", "Deny", "Warn"],
        ));
    }
    if actions.iter().any(|action| action == "Deny") && actions.iter().any(|action| action == "Warn") {
        errors.push(ValidationError::invalid("spec.validationActions", spec["validationActions"].clone(), "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)"));
    }
    errors.extend(matching_errors(&spec["matchResources"], "spec.matchResources"));
    errors
}

fn matching_errors(matching: &Value, at: &str) -> Vec<ValidationError> {
    let mut errors = Vec::new();
    for field in ["namespaceSelector", "objectSelector"] {
        if let Some(selector) = matching.get(field).filter(|selector| selector.is_object())
            && let Err(error) = LabelSelector::from_object(selector)
        {
            errors.push(ValidationError::invalid(
                format!("{at}.{field}"),
                selector.clone(),
                error.to_string(),
            ));
        }
    }
    for (n, rule) in matching["resourceRules"].as_array().into_iter().flatten().enumerate() {
        errors.extend(rule_errors(rule, &format!("{at}.resourceRules[{n}]")));
    }
    errors
}

fn rule_errors(rule: &Value, at: &str) -> Vec<ValidationError> {
    ["operations", "apiGroups", "apiVersions", "resources"]
        .iter()
        .filter(|field| rule[**field].as_array().is_none_or(Vec::is_empty))
        .map(|field| ValidationError::required(format!("{at}.{field}"), ""))
        .chain(
            object::strings(&rule["operations"])
                .iter()
                .filter(|operation| {
                    !["*", "CREATE", "UPDATE", "DELETE", "CONNECT"].contains(&operation.as_str())
                })
                .map(|operation| {
                    ValidationError::not_supported(
                        format!("{at}.operations[0]"),
                        operation.as_str(),
                        ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"],
                    )
                }),
        )
        .collect()
}

fn one_of(value: &Value, at: &str, allowed: &[&str]) -> Option<ValidationError> {
    let text = value.as_str()?;
    (!allowed.contains(&text)).then(|| ValidationError::not_supported(at, text, allowed.iter().copied()))
}

fn webhook_errors(object: &Value) -> Vec<ValidationError> {
    let mut errors = Vec::new();
    let hooks = object["webhooks"].as_array().map(Vec::as_slice).unwrap_or_default();
    for (n, hook) in hooks.iter().enumerate() {
        let at = format!("webhooks[{n}]");
        errors.extend(webhook_name_errors(hook, &hooks[..n], &at));
        errors.extend(review_errors(hook, &at));
        errors.extend(one_of(&hook["failurePolicy"], &format!("{at}.failurePolicy"), &["Fail", "Ignore"]));
        errors.extend(one_of(&hook["matchPolicy"], &format!("{at}.matchPolicy"), &["Equivalent", "Exact"]));
        if let Some(seconds) = hook["timeoutSeconds"].as_i64().filter(|seconds| !(1..=30).contains(seconds)) {
            errors.push(ValidationError::invalid(
                format!("{at}.timeoutSeconds"),
                seconds,
                "the timeout value must be between 1 and 30 seconds",
            ));
        }
        errors.extend(client_config_error(&hook["clientConfig"], &at));
        for (m, rule) in hook["rules"].as_array().into_iter().flatten().enumerate() {
            errors.extend(rule_errors(rule, &format!("{at}.rules[{m}]")));
        }
        errors.extend(matching_errors(hook, &at));
        if let Err(found) =
            compile_match_conditions(&hook["matchConditions"], &format!("{at}.matchConditions"))
        {
            errors.extend(found);
        }
    }
    errors
}

/// Errors of the name: it is a domain, and the webhooks before this one have others.
fn webhook_name_errors(hook: &Value, before: &[Value], at: &str) -> Vec<ValidationError> {
    let at = format!("{at}.name");
    let name = hook["name"].as_str().unwrap_or_default();
    let mut errors = Vec::new();
    if name.is_empty() {
        errors.push(ValidationError::required(&at, ""));
    } else if !names::dns_subdomain(name).is_empty() || name.split('.').count() < 3 {
        errors.push(ValidationError::invalid(
            &at,
            name,
            "should be a domain with at least three segments separated by dots",
        ));
    }
    if before.iter().any(|other| other["name"] == hook["name"]) {
        errors.push(ValidationError::duplicate(&at, name));
    }
    errors
}

/// Errors of the review versions and side effects.
fn review_errors(hook: &Value, at: &str) -> Vec<ValidationError> {
    let mut errors = Vec::new();
    let versions = object::strings(&hook["admissionReviewVersions"]);
    if versions.is_empty() {
        errors.push(ValidationError::required(
            format!("{at}.admissionReviewVersions"),
            "must specify one of v1, v1beta1",
        ));
    } else if !versions.iter().any(|version| version == "v1") {
        errors.push(ValidationError::invalid(
            format!("{at}.admissionReviewVersions"),
            hook["admissionReviewVersions"].clone(),
            "must include at least one of v1, v1beta1",
        ));
    }
    let at = format!("{at}.sideEffects");
    match hook["sideEffects"].as_str() {
        None => errors.push(ValidationError::required(at, "must specify one of None, NoneOnDryRun")),
        Some("None" | "NoneOnDryRun") => {}
        Some(other) => errors.push(ValidationError::not_supported(at, other, ["None", "NoneOnDryRun"])),
    }
    errors
}

fn client_config_error(client: &Value, at: &str) -> Option<ValidationError> {
    match (client["url"].as_str(), client["service"].is_object()) {
        (None, false) | (Some(_), true) => Some(ValidationError::required(
            format!("{at}.clientConfig"),
            "exactly one of url or service is required",
        )),
        (Some(url), false) if !url.starts_with("https://") => Some(ValidationError::invalid(
            format!("{at}.clientConfig.url"),
            url,
            "'https' is the only allowed URL scheme; desired format: https://host[/path]",
        )),
        _ => None,
    }
}
