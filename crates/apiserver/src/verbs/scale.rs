//! The scale subresource: the replica fields of an object as an `autoscaling/v1` Scale.

use http::Response;
use polis_apimachinery::{ValidationError, object, patch, selector::field_text};
use serde_json::{Value, json};

use super::{Call, Payload, commit::WriteResult, update::patch_failed};
use crate::{
    http::{Content, ResponseBody, decode_object},
    kinds::Scale,
    status::{GroupResource, StatusError},
    strict,
};

impl Call {
    fn scale_paths(&self) -> Result<&Scale, StatusError> {
        self.version.scale.as_ref().ok_or_else(StatusError::no_such_path)
    }

    /// The Scale of an object.
    fn scale_of(&self, object: &Value) -> Result<Value, StatusError> {
        let paths = self.scale_paths()?;
        let number = |path: &str| field_text(object, path).and_then(|text| text.parse::<i64>().ok());
        let metadata: serde_json::Map<String, Value> =
            ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"]
                .iter()
                .filter_map(|field| {
                    object["metadata"].get(*field).map(|value| ((*field).to_owned(), value.clone()))
                })
                .collect();
        let mut scale = json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata, "spec": {}, "status": {"replicas": number(&paths.status_replicas).unwrap_or(0)}});
        if let Some(replicas) = number(&paths.spec_replicas) {
            scale["spec"]["replicas"] = replicas.into();
        }
        if let Some(selector) = paths
            .label_selector
            .as_deref()
            .and_then(|path| field_text(object, path))
            .filter(|text| !text.is_empty())
        {
            scale["status"]["selector"] = selector.into_owned().into();
        }
        Ok(scale)
    }

    /// Validates the fields of an object that its Scale shows.
    pub(crate) fn scale_errors(&self, object: &Value) -> Vec<ValidationError> {
        let Some(paths) = self.version.scale.as_ref().filter(|_| self.kind.is_custom()) else {
            return Vec::new();
        };
        let mut errors = Vec::new();
        for path in [&paths.spec_replicas, &paths.status_replicas] {
            match at_path(object, path) {
                Err(why) => errors.push(ValidationError::invalid(path, 0, why)),
                Ok(None) => {}
                Ok(Some(value)) => match value.as_i64() {
                    None => {
                        errors.push(ValidationError::invalid(path, 0, type_mismatch(path, value, "int64")))
                    }
                    Some(number) if number < 0 => errors.push(ValidationError::invalid(
                        path,
                        number,
                        "should be a non-negative integer",
                    )),
                    Some(number) if number > i64::from(i32::MAX) => errors.push(ValidationError::invalid(
                        path,
                        number,
                        format!("should be less than or equal to {}", i32::MAX),
                    )),
                    Some(_) => {}
                },
            }
        }
        if let Some(path) = &paths.label_selector {
            match at_path(object, path) {
                Err(why) => errors.push(ValidationError::invalid(path, "", why)),
                Ok(Some(value)) if !value.is_string() => {
                    errors.push(ValidationError::invalid(path, "", type_mismatch(path, value, "string")))
                }
                Ok(_) => {}
            }
        }
        errors
    }

    pub(crate) fn get_scale(&self) -> Result<Response<ResponseBody>, StatusError> {
        let scale = self.scale_of(&self.convert_value(&self.current()?))?;
        Ok(crate::http::object(200, &scale, self.output))
    }

    pub(crate) async fn change_scale(
        &self,
        payload: &Payload,
    ) -> Result<Response<ResponseBody>, StatusError> {
        let name = self.target()?;
        let path = self.path(name);
        let paths = self.scale_paths()?;
        for _ in 0..16 {
            let stored = self.current()?;
            let old = self.convert_value(&stored);
            let scale = self.scale_of(&old)?;
            let wanted = self.wanted_scale(&scale, payload)?;
            let version = object::meta(&wanted, "resourceVersion");
            if !version.is_empty() && version != object::meta(&old, "resourceVersion") {
                return Err(StatusError::modified(&self.kind.group_resource(), name));
            }
            let replicas = replicas_of(&wanted, name)?;
            let mut new = old.clone();
            set_path(&mut new, &paths.spec_replicas, replicas.into());
            match self.store_update(&path, &stored, &old, new, false).await? {
                WriteResult::Conflict => {}
                WriteResult::Stored(stored) => {
                    return Ok(crate::http::object(
                        200,
                        &self.scale_of(&self.convert_value(&stored))?,
                        self.output,
                    ));
                }
                WriteResult::DryRun(object) => {
                    return Ok(crate::http::object(200, &self.scale_of(&object)?, self.output));
                }
            }
        }
        Err(StatusError::modified(&self.kind.group_resource(), name))
    }

    /// The Scale that the request asks for: its body, or its patch applied to the current Scale.
    fn wanted_scale(&self, scale: &Value, payload: &Payload) -> Result<Value, StatusError> {
        let patched = match payload.content {
            _ if self.verb == crate::route::Verb::Update => {
                return Ok(decode_object(payload.content, &payload.bytes)?.value);
            }
            Some(Content::JsonPatch) => patch::json::patch(scale, &strict::json(&payload.bytes)?.value),
            Some(Content::MergePatch | Content::StrategicPatch) => {
                patch::merge::patch(scale, &strict::json(&payload.bytes)?.value)
            }
            Some(Content::ApplyPatch) => patch::merge::patch(scale, &strict::yaml(&payload.bytes)?.value),
            _ => {
                return Err(StatusError::unsupported_media_type(
                    "application/json-patch+json, application/merge-patch+json",
                ));
            }
        };
        patched.map_err(|error| patch_failed(&error))
    }
}

/// `spec.replicas` of a Scale, or 422 if it is negative.
fn replicas_of(scale: &Value, name: &str) -> Result<i64, StatusError> {
    let replicas = scale["spec"]["replicas"].as_i64().unwrap_or(0);
    if replicas < 0 {
        let error = ValidationError::invalid("spec.replicas", replicas, "must be greater than or equal to 0");
        return Err(StatusError::invalid(&GroupResource::new("autoscaling", "Scale"), name, &[error]));
    }
    Ok(replicas)
}

/// The value at a dotted path; an error if a parent of it is not a map.
fn at_path<'a>(object: &'a Value, path: &str) -> Result<Option<&'a Value>, String> {
    let mut at = object;
    for step in path.trim_start_matches('.').split('.') {
        match at {
            Value::Object(fields) => match fields.get(step) {
                Some(value) => at = value,
                None => return Ok(None),
            },
            Value::Null => return Ok(None),
            other => return Err(type_mismatch(path, other, "map[string]interface{}")),
        }
    }
    Ok(Some(at).filter(|value| !value.is_null()))
}

/// The message of Go's unstructured accessors for a value of the errors type.
fn type_mismatch(path: &str, value: &Value, expected: &str) -> String {
    let (shown, kind) = match value {
        Value::Bool(flag) => (flag.to_string(), "bool"),
        Value::Number(number) if number.is_i64() => (number.to_string(), "int64"),
        Value::Number(number) => (polis_apimachinery::go_format::number(number), "float64"),
        Value::String(text) => (text.clone(), "string"),
        Value::Array(items) => (
            format!(
                "[{}]",
                items.iter().map(polis_apimachinery::go_format::json).collect::<Vec<_>>().join(" ")
            ),
            "[]interface {}",
        ),
        other => (polis_apimachinery::go_format::json(other), "map[string]interface {}"),
    };
    format!("{path} accessor error: {shown} is of the type {kind}, expected {expected}")
}

/// Sets the value at a dotted path. Creates missing parents.
fn set_path(object: &mut Value, path: &str, value: Value) {
    let mut at = object;
    for step in path.trim_start_matches('.').split('.') {
        if !at.is_object() {
            *at = json!({});
        }
        at = &mut at[step];
    }
    *at = value;
}
