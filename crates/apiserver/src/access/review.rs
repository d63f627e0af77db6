//! Access and token reviews (SubjectAccessReview, TokenReview and the like): evaluated, never stored.

use http::Response;
use polis_apimachinery::ValidationError;
use serde_json::{Map, Value, json};

use super::{Attributes, authenticate_token, issuer, rbac};
use crate::{
    http::ResponseBody,
    status::{GroupResource, StatusError},
    user::UserInfo,
    verbs::Call,
};

/// Evaluates a review and responds with its status filled in.
pub(crate) fn review(call: &Call, mut object: Value) -> Result<Response<ResponseBody>, StatusError> {
    if let Some(fields) = object.as_object_mut() {
        fields.entry("metadata").or_insert_with(|| json!({}));
    }
    let status = match call.kind.plural.as_str() {
        "selfsubjectaccessreviews" => access(call, &call.user, &object)?,
        "subjectaccessreviews" | "localsubjectaccessreviews" => {
            let reviewed = subject(&object)?;
            if call.kind.namespaced
                && object["spec"]["resourceAttributes"]["namespace"].as_str() != call.namespace.as_deref()
            {
                let error = ValidationError::invalid(
                    "spec.resourceAttributes.namespace",
                    object["spec"]["resourceAttributes"]["namespace"].clone(),
                    "must match metadata.namespace",
                );
                return Err(refused(error));
            }
            access(call, &reviewed, &object)?
        }
        "selfsubjectrulesreviews" => rules(call, &object),
        "selfsubjectreviews" => json!({"userInfo": user_info(&call.user)}),
        "tokenreviews" => token(call, &object)?,
        _ => return Err(StatusError::method_not_allowed()),
    };
    crate::ownership::on_write(call, None, &mut object);
    object["status"] = status;
    Ok(crate::http::object(201, &object, call.output))
}

/// The error of an invalid review. Kubernetes leaves its kind empty.
fn refused(error: ValidationError) -> StatusError {
    StatusError::invalid(&GroupResource::new("authorization.k8s.io", ""), "", &[error])
}

/// The `userInfo` of reviews and admission requests.
pub(crate) fn user_info(user: &UserInfo) -> Value {
    let mut info = Map::new();
    info.insert("username".into(), user.name.clone().into());
    if !user.uid.is_empty() {
        info.insert("uid".into(), user.uid.clone().into());
    }
    info.insert("groups".into(), json!(user.groups));
    if !user.extra.is_empty() {
        info.insert("extra".into(), json!(user.extra));
    }
    Value::Object(info)
}

fn subject(object: &Value) -> Result<UserInfo, StatusError> {
    let spec = &object["spec"];
    let groups = polis_apimachinery::object::strings(&spec["groups"]);
    let name = spec["user"].as_str().unwrap_or_default();
    if name.is_empty() && groups.is_empty() {
        let error =
            ValidationError::invalid("spec.user", "", "at least one of user or group must be specified");
        return Err(refused(error));
    }
    let extra = spec["extra"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, values)| (name.clone(), polis_apimachinery::object::strings(values)))
        .collect();
    Ok(UserInfo {
        name: name.to_owned(),
        uid: spec["uid"].as_str().unwrap_or_default().to_owned(),
        groups,
        extra,
    })
}

fn access(call: &Call, user: &UserInfo, object: &Value) -> Result<Value, StatusError> {
    let spec = &object["spec"];
    let (resource, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    if resource.is_object() && path.is_object() {
        return Err(refused(ValidationError::invalid(
            "spec.nonResourceAttributes",
            json!({"Path": path["path"], "Verb": path["verb"]}),
            "cannot be specified in combination with resourceAttributes",
        )));
    }
    if !resource.is_object() && !path.is_object() {
        return Err(refused(ValidationError::invalid(
            "spec.resourceAttributes",
            Value::Null,
            "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        )));
    }
    let text = |value: &Value, field: &str| value[field].as_str().unwrap_or_default().to_owned();
    let attributes = if resource.is_object() {
        let name = match text(resource, "subresource") {
            sub if sub.is_empty() => text(resource, "resource"),
            sub => format!("{}/{sub}", text(resource, "resource")),
        };
        Attributes {
            verb: text(resource, "verb"),
            about: GroupResource::new(text(resource, "group"), name),
            subresource: text(resource, "subresource"),
            name: text(resource, "name"),
            namespace: text(resource, "namespace"),
            path: None,
        }
    } else {
        Attributes { verb: text(path, "verb"), path: Some(text(path, "path")), ..Attributes::default() }
    };
    Ok(json!({"allowed": rbac::allows(&call.core, &call.plane, user, &attributes)}))
}

fn rules(call: &Call, object: &Value) -> Value {
    let namespace = object["spec"]["namespace"].as_str().unwrap_or_default();
    let mut resource = Vec::new();
    let mut other = Vec::new();
    if call.user.is_master() {
        resource.push(json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}));
        other.push(json!({"verbs": ["*"], "nonResourceURLs": ["*"]}));
    }
    let applicable = rbac::rules_for(&call.core, &call.plane, &call.user, namespace);
    for rule in applicable.iter().flat_map(|rules| rules.iter()) {
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

fn token(call: &Call, object: &Value) -> Result<Value, StatusError> {
    let token = object["spec"]["token"].as_str().unwrap_or_default();
    if token.is_empty() {
        return Err(StatusError::bad_request("token is required for TokenReview in authentication"));
    }
    let mut audiences = polis_apimachinery::object::strings(&object["spec"]["audiences"]);
    if audiences.is_empty() {
        audiences.push(issuer(&call.plane.name));
    }
    Ok(match authenticate_token(&call.core, &call.plane.name, token, &audiences) {
        Ok(found) => {
            json!({"authenticated": true, "user": user_info(&found.user), "audiences": found.audiences})
        }
        Err(why) => json!({"user": {}, "error": format!("[invalid bearer token, {why}]")}),
    })
}
