//! Preparation and validation of ConfigMaps and Secrets.

use base64::{Engine, engine::general_purpose::STANDARD};
use polis_apimachinery::{ValidationError, names};
use serde_json::{Map, Value};

/// Maximum size of the data of one object, in bytes.
const DATA_MAX: usize = 1 << 20;

fn map<'a>(object: &'a Value, field: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    object[field].as_object().into_iter().flatten()
}

/// Moves `stringData` to `data` and defaults the type to `Opaque`.
pub(super) fn prepare_secret(object: &mut Value) {
    let plain = object.as_object_mut().and_then(|fields| fields.remove("stringData"));
    if let Some(Value::Object(plain)) = plain {
        let data = object
            .as_object_mut()
            .map(|fields| fields.entry("data").or_insert_with(|| Value::Object(Map::new())));
        if let Some(Value::Object(data)) = data {
            data.extend(
                plain
                    .into_iter()
                    .filter_map(|(key, value)| Some((key, Value::String(STANDARD.encode(value.as_str()?))))),
            );
        }
    }
    if object["type"].as_str().unwrap_or_default().is_empty() {
        object["type"] = "Opaque".into();
    }
}

/// The decoding error of the first value that is not base64.
pub(super) fn base64_error(object: &Value, field: &str) -> Option<String> {
    map(object, field).find_map(|(_, value)| STANDARD.decode(value.as_str()?).err()).map(
        |error| match error {
            base64::DecodeError::InvalidByte(at, _)
            | base64::DecodeError::InvalidLastSymbol { offset: at, .. } => {
                format!("illegal base64 data at input byte {at}")
            }
            _ => "illegal base64 data".to_owned(),
        },
    )
}

fn validate_immutable(object: &Value, old: Option<&Value>, fields: &[&str]) -> Vec<ValidationError> {
    let Some(old) = old.filter(|old| old["immutable"] == true) else { return Vec::new() };
    let mut errors = Vec::new();
    if object["immutable"] != true {
        errors.push(ValidationError::forbidden("immutable", "field is immutable when `immutable` is set"));
    }
    errors.extend(
        fields
            .iter()
            .filter(|field| object[**field] != old[**field])
            .map(|field| ValidationError::forbidden(*field, "field is immutable when `immutable` is set")),
    );
    errors
}

pub(super) fn validate_config_map(object: &Value, old: Option<&Value>) -> Vec<ValidationError> {
    let mut errors = Vec::new();
    let mut size = 0;
    for (key, value) in map(object, "data") {
        errors.extend(
            names::config_key(key)
                .into_iter()
                .map(|why| ValidationError::invalid(format!("data[{key}]"), key.as_str(), why)),
        );
        if object["binaryData"].get(key).is_some() {
            errors.push(ValidationError::invalid(
                format!("data[{key}]"),
                key.as_str(),
                "duplicate of key present in binaryData",
            ));
        }
        size += value.as_str().map_or(0, str::len);
    }
    for (key, value) in map(object, "binaryData") {
        errors.extend(
            names::config_key(key)
                .into_iter()
                .map(|why| ValidationError::invalid(format!("binaryData[{key}]"), key.as_str(), why)),
        );
        size += value.as_str().map_or(0, |text| text.len() / 4 * 3);
    }
    if size > DATA_MAX {
        errors.push(ValidationError::too_long("[]", 1_048_576));
    }
    errors.extend(validate_immutable(object, old, &["data", "binaryData"]));
    errors
}

/// Required keys by secret type: type, keys, and whether one of the keys is sufficient.
const REQUIRED: &[(&str, &[&str], bool)] = &[
    ("kubernetes.io/dockercfg", &[".dockercfg"], false),
    ("kubernetes.io/dockerconfigjson", &[".dockerconfigjson"], false),
    ("kubernetes.io/basic-auth", &["username", "password"], true),
    ("kubernetes.io/ssh-auth", &["ssh-privatekey"], false),
    ("kubernetes.io/tls", &["tls.crt", "tls.key"], false),
];

pub(super) fn validate_secret(object: &Value, old: Option<&Value>) -> Vec<ValidationError> {
    let mut errors = Vec::new();
    let mut size = 0;
    for (key, value) in map(object, "data") {
        errors.extend(
            names::config_key(key)
                .into_iter()
                .map(|why| ValidationError::invalid(format!("data[{key}]"), key.as_str(), why)),
        );
        size += value.as_str().map_or(0, |text| text.len() / 4 * 3);
    }
    if size > DATA_MAX {
        errors.push(ValidationError::too_long("data", 1_048_576));
    }
    let kind = object["type"].as_str().unwrap_or_default();
    if let Some((_, keys, any)) = REQUIRED.iter().find(|(name, ..)| *name == kind) {
        let missing: Vec<&&str> = keys.iter().filter(|key| object["data"].get(**key).is_none()).collect();
        if if *any { missing.len() == keys.len() } else { !missing.is_empty() } {
            errors
                .extend(missing.into_iter().map(|key| ValidationError::required(format!("data[{key}]"), "")));
        }
    }
    if kind == "kubernetes.io/service-account-token"
        && object["metadata"]["annotations"]["kubernetes.io/service-account.name"]
            .as_str()
            .unwrap_or_default()
            .is_empty()
    {
        errors
            .push(ValidationError::required("metadata.annotations[kubernetes.io/service-account.name]", ""));
    }
    if let Some(old) = old {
        if object["type"] != old["type"] {
            errors.push(ValidationError::invalid("type", object["type"].clone(), "field is immutable"));
        }
        errors.extend(validate_immutable(object, Some(old), &["data"]));
    }
    errors
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn string_data_overrides_data() {
        let mut secret = json!({"data": {"a": "eA=="}, "stringData": {"a": "y", "b": "z"}});
        prepare_secret(&mut secret);
        assert_eq!(secret, json!({"data": {"a": "eQ==", "b": "eg=="}, "type": "Opaque"}));
    }

    #[test]
    fn an_immutable_object_keeps_its_data() {
        let old = json!({"immutable": true, "data": {"a": "b"}});
        let messages: Vec<String> = validate_config_map(&json!({"data": {"a": "c"}}), Some(&old))
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            messages,
            [
                "immutable: Forbidden: field is immutable when `immutable` is set",
                "data: Forbidden: field is immutable when `immutable` is set"
            ]
        );
    }
}
