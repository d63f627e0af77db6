//! Reviews: questions about access and identity, answered and not kept.

use http::Response;
use serde_json::{Map, Value, json};

use super::{Attributes, identify, rbac};
use crate::{
    http::Body,
    identity::Identity,
    schema::FieldError,
    status::{About, Failure},
    verbs::Call,
};

/// Answers a review.
pub(crate) fn review(call: &Call, mut object: Value) -> Result<Response<Body>, Failure> {
    if let Some(fields) = object.as_object_mut() {
        fields.entry("metadata").or_insert_with(|| json!({}));
    }
    let status = match call.kind.plural.as_str() {
        "selfsubjectaccessreviews" => access(call, &call.identity, &object)?,
        "subjectaccessreviews" | "localsubjectaccessreviews" => {
            let asked = subject(&object)?;
            if call.kind.namespaced
                && object["spec"]["resourceAttributes"]["namespace"].as_str() != call.namespace.as_deref()
            {
                let error = FieldError::invalid(
                    "spec.resourceAttributes.namespace",
                    object["spec"]["resourceAttributes"]["namespace"].clone(),
                    "must match metadata.namespace",
                );
                return Err(refused(error));
            }
            access(call, &asked, &object)?
        }
        "selfsubjectrulesreviews" => rules(call, &object),
        "selfsubjectreviews" => json!({"userInfo": user_info(&call.identity)}),
        "tokenreviews" => token(call, &object)?,
        _ => return Err(Failure::method_not_allowed()),
    };
    crate::ownership::on_write(call, None, &mut object);
    object["status"] = status;
    Ok(crate::http::object(201, &object, call.output))
}

/// A review that cannot be answered. Kubernetes does not name its kind.
fn refused(error: FieldError) -> Failure {
    Failure::invalid(&About::new("authorization.k8s.io", ""), "", &[error])
}

/// An identity as it appears in reviews and admission requests.
pub(crate) fn user_info(identity: &Identity) -> Value {
    let mut info = Map::new();
    info.insert("username".into(), identity.user.clone().into());
    if !identity.uid.is_empty() {
        info.insert("uid".into(), identity.uid.clone().into());
    }
    info.insert("groups".into(), json!(identity.groups));
    if !identity.extra.is_empty() {
        info.insert("extra".into(), json!(identity.extra));
    }
    Value::Object(info)
}

fn subject(object: &Value) -> Result<Identity, Failure> {
    let spec = &object["spec"];
    let groups = crate::json::texts(&spec["groups"]);
    let user = spec["user"].as_str().unwrap_or_default();
    if user.is_empty() && groups.is_empty() {
        let error = FieldError::invalid("spec.user", "", "at least one of user or group must be specified");
        return Err(refused(error));
    }
    let extra = spec["extra"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, values)| (name.clone(), crate::json::texts(values)))
        .collect();
    Ok(Identity {
        user: user.to_owned(),
        uid: spec["uid"].as_str().unwrap_or_default().to_owned(),
        groups,
        extra,
    })
}

fn access(call: &Call, identity: &Identity, object: &Value) -> Result<Value, Failure> {
    let spec = &object["spec"];
    let (resource, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    if resource.is_object() && path.is_object() {
        return Err(refused(FieldError::invalid(
            "spec.nonResourceAttributes",
            json!({"Path": path["path"], "Verb": path["verb"]}),
            "cannot be specified in combination with resourceAttributes",
        )));
    }
    if !resource.is_object() && !path.is_object() {
        return Err(refused(FieldError::invalid(
            "spec.resourceAttributes",
            Value::Null,
            "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        )));
    }
    let text = |value: &Value, field: &str| value[field].as_str().unwrap_or_default().to_owned();
    let wants = if resource.is_object() {
        let name = match text(resource, "subresource") {
            sub if sub.is_empty() => text(resource, "resource"),
            sub => format!("{}/{sub}", text(resource, "resource")),
        };
        Attributes {
            verb: text(resource, "verb"),
            about: About::new(text(resource, "group"), name),
            name: text(resource, "name"),
            namespace: text(resource, "namespace"),
            path: None,
        }
    } else {
        Attributes { verb: text(path, "verb"), path: Some(text(path, "path")), ..Attributes::default() }
    };
    Ok(json!({"allowed": rbac::allows(&call.core, &call.plane, identity, &wants)}))
}

fn rules(call: &Call, object: &Value) -> Value {
    let namespace = object["spec"]["namespace"].as_str().unwrap_or_default();
    let mut resource = Vec::new();
    let mut other = Vec::new();
    if call.identity.is_master() {
        resource.push(json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}));
        other.push(json!({"verbs": ["*"], "nonResourceURLs": ["*"]}));
    }
    for rule in rbac::rules_for(&call.core, &call.plane, &call.identity, namespace) {
        if rule.non_resource_urls.is_empty() {
            let mut entry =
                json!({"verbs": rule.verbs, "apiGroups": rule.api_groups, "resources": rule.resources});
            if !rule.resource_names.is_empty() {
                entry["resourceNames"] = json!(rule.resource_names);
            }
            resource.push(entry);
        } else {
            other.push(json!({"verbs": rule.verbs, "nonResourceURLs": rule.non_resource_urls}));
        }
    }
    json!({"resourceRules": resource, "nonResourceRules": other, "incomplete": false})
}

fn token(call: &Call, object: &Value) -> Result<Value, Failure> {
    let token = object["spec"]["token"].as_str().unwrap_or_default();
    if token.is_empty() {
        return Err(Failure::bad_request("token is required for TokenReview in authentication"));
    }
    Ok(match identify(&call.core, &call.plane, token) {
        Some(identity) => json!({"authenticated": true, "user": user_info(&identity)}),
        None => json!({"user": {}, "error": "[invalid bearer token, token lookup failed]"}),
    })
}
