//! ConfigMaps and Secrets.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Map, Value};

use crate::schema::{FieldError, names};

/// Most bytes of data in one object.
const DATA_MAX: usize = 1 << 20;

fn map<'a>(object: &'a Value, field: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    object[field].as_object().into_iter().flatten()
}

/// `stringData` into `data`, and the type that none is.
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

/// The first place at which data that should be base64 is not.
pub(super) fn broken_base64(object: &Value, field: &str) -> Option<String> {
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

fn immutable_faults(object: &Value, old: Option<&Value>, fields: &[&str]) -> Vec<FieldError> {
    let Some(old) = old.filter(|old| old["immutable"] == true) else { return Vec::new() };
    let mut wrong = Vec::new();
    if object["immutable"] != true {
        wrong.push(FieldError::forbidden("immutable", "field is immutable when `immutable` is set"));
    }
    wrong.extend(
        fields
            .iter()
            .filter(|field| object[**field] != old[**field])
            .map(|field| FieldError::forbidden(*field, "field is immutable when `immutable` is set")),
    );
    wrong
}

pub(super) fn config_map_faults(object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut wrong = Vec::new();
    let mut size = 0;
    for (key, value) in map(object, "data") {
        wrong.extend(
            names::config_key(key)
                .into_iter()
                .map(|why| FieldError::invalid(format!("data[{key}]"), key.as_str(), why)),
        );
        if object["binaryData"].get(key).is_some() {
            wrong.push(FieldError::invalid(
                format!("data[{key}]"),
                key.as_str(),
                "duplicate of key present in binaryData",
            ));
        }
        size += value.as_str().map_or(0, str::len);
    }
    for (key, value) in map(object, "binaryData") {
        wrong.extend(
            names::config_key(key)
                .into_iter()
                .map(|why| FieldError::invalid(format!("binaryData[{key}]"), key.as_str(), why)),
        );
        size += value.as_str().map_or(0, |text| text.len() / 4 * 3);
    }
    if size > DATA_MAX {
        wrong.push(FieldError::too_long("[]", 1_048_576));
    }
    wrong.extend(immutable_faults(object, old, &["data", "binaryData"]));
    wrong
}

/// Keys that secrets of a known type must have: type, keys, and whether one of them is enough.
const REQUIRED: &[(&str, &[&str], bool)] = &[
    ("kubernetes.io/dockercfg", &[".dockercfg"], false),
    ("kubernetes.io/dockerconfigjson", &[".dockerconfigjson"], false),
    ("kubernetes.io/basic-auth", &["username", "password"], true),
    ("kubernetes.io/ssh-auth", &["ssh-privatekey"], false),
    ("kubernetes.io/tls", &["tls.crt", "tls.key"], false),
];

pub(super) fn secret_faults(object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut wrong = Vec::new();
    let mut size = 0;
    for (key, value) in map(object, "data") {
        wrong.extend(
            names::config_key(key)
                .into_iter()
                .map(|why| FieldError::invalid(format!("data[{key}]"), key.as_str(), why)),
        );
        size += value.as_str().map_or(0, |text| text.len() / 4 * 3);
    }
    if size > DATA_MAX {
        wrong.push(FieldError::too_long("data", 1_048_576));
    }
    let kind = object["type"].as_str().unwrap_or_default();
    if let Some((_, keys, any)) = REQUIRED.iter().find(|(name, ..)| *name == kind) {
        let missing: Vec<&&str> = keys.iter().filter(|key| object["data"].get(**key).is_none()).collect();
        if if *any { missing.len() == keys.len() } else { !missing.is_empty() } {
            wrong.extend(missing.into_iter().map(|key| FieldError::required(format!("data[{key}]"), "")));
        }
    }
    if kind == "kubernetes.io/service-account-token"
        && object["metadata"]["annotations"]["kubernetes.io/service-account.name"]
            .as_str()
            .unwrap_or_default()
            .is_empty()
    {
        wrong.push(FieldError::required("metadata.annotations[kubernetes.io/service-account.name]", ""));
    }
    if let Some(old) = old {
        if object["type"] != old["type"] {
            wrong.push(FieldError::invalid("type", object["type"].clone(), "field is immutable"));
        }
        wrong.extend(immutable_faults(object, Some(old), &["data"]));
    }
    wrong
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn plain_text_becomes_data_and_wins() {
        let mut secret = json!({"data": {"a": "eA=="}, "stringData": {"a": "y", "b": "z"}});
        prepare_secret(&mut secret);
        assert_eq!(secret, json!({"data": {"a": "eQ==", "b": "eg=="}, "type": "Opaque"}));
    }

    #[test]
    fn an_immutable_object_keeps_its_data() {
        let old = json!({"immutable": true, "data": {"a": "b"}});
        let said: Vec<String> = config_map_faults(&json!({"data": {"a": "c"}}), Some(&old))
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            said,
            [
                "immutable: Forbidden: field is immutable when `immutable` is set",
                "data: Forbidden: field is immutable when `immutable` is set"
            ]
        );
    }
}
