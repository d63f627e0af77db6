//! Object metadata: coercion to `ObjectMeta` and validation.
//!
//! kube-apiserver decodes `metadata` into a Go struct and encodes it again. So unknown fields are dropped,
//! empty fields are omitted, and a wrong type is a decoding error instead of a validation error. The same
//! applies to embedded resources.

use serde_json::{Map, Value};

use crate::error::{ValidationError, ValidationErrorKind};
use crate::go_format;
use crate::names;
use crate::schema::{Node, ValuePath};

/// Maximum size of all annotations together, in bytes.
const ANNOTATIONS_MAX: usize = 256 << 10;
/// Maximum length of a field manager, in bytes.
pub const MANAGER_MAX: usize = 128;
const SUBRESOURCE_MAX: usize = 256;

/// The type of a metadata field.
#[derive(Clone, Copy)]
enum FieldType {
    Text,
    Integer,
    /// An optional integer (`*int64` in Go): zero is kept.
    MaybeInteger,
    Flag,
    Time,
    TextMap,
    TextList,
    List(&'static [(&'static str, FieldType)], &'static str),
    Anything,
}

const OWNER: &[(&str, FieldType)] = &[
    ("apiVersion", FieldType::Text),
    ("kind", FieldType::Text),
    ("name", FieldType::Text),
    ("uid", FieldType::Text),
    ("controller", FieldType::Flag),
    ("blockOwnerDeletion", FieldType::Flag),
];

const MANAGED: &[(&str, FieldType)] = &[
    ("manager", FieldType::Text),
    ("operation", FieldType::Text),
    ("apiVersion", FieldType::Text),
    ("time", FieldType::Time),
    ("fieldsType", FieldType::Text),
    ("fieldsV1", FieldType::Anything),
    ("subresource", FieldType::Text),
];

const META: &[(&str, FieldType)] = &[
    ("name", FieldType::Text),
    ("generateName", FieldType::Text),
    ("namespace", FieldType::Text),
    ("selfLink", FieldType::Text),
    ("uid", FieldType::Text),
    ("resourceVersion", FieldType::Text),
    ("generation", FieldType::Integer),
    ("creationTimestamp", FieldType::Time),
    ("deletionTimestamp", FieldType::Time),
    ("deletionGracePeriodSeconds", FieldType::MaybeInteger),
    ("labels", FieldType::TextMap),
    ("annotations", FieldType::TextMap),
    ("ownerReferences", FieldType::List(OWNER, "OwnerReference")),
    ("finalizers", FieldType::TextList),
    ("managedFields", FieldType::List(MANAGED, "ManagedFieldsEntry")),
];

/// Coerces `metadata` to `ObjectMeta`. Unknown fields are dropped and added to `report`, if given, prefixed
/// with `prefix` (e.g. `metadata`). The error is the message of Go's decoder.
pub fn coerce(metadata: &mut Value, prefix: &str, report: Option<&mut Vec<String>>) -> Result<(), String> {
    let mut report = report;
    match metadata {
        Value::Null => {
            *metadata = Value::Object(Map::new());
            Ok(())
        }
        Value::Object(map) => coerce_fields(map, META, "ObjectMeta", prefix, &mut report),
        other => Err(format!(
            "json: cannot unmarshal {} into Go value of type v1.ObjectMeta",
            go_format::kind(other)
        )),
    }
}

fn coerce_fields(
    map: &mut Map<String, Value>,
    fields: &[(&'static str, FieldType)],
    owner: &str,
    prefix: &str,
    report: &mut Option<&mut Vec<String>>,
) -> Result<(), String> {
    let mut failed = None;
    map.retain(|key, value| {
        let Some((name, field_type)) = fields.iter().find(|(name, _)| name == key) else {
            if let Some(report) = report.as_deref_mut() {
                report.push(format!("{prefix}.{key}"));
            }
            return false;
        };
        match coerce_value(value, *field_type, owner, name, prefix, report) {
            Ok(kept) => kept,
            Err(why) => {
                failed.get_or_insert(why);
                true
            }
        }
    });
    match failed {
        Some(why) => Err(why),
        None => Ok(()),
    }
}

/// Returns whether the field is kept: empty values are omitted, as with Go's `omitempty`.
fn coerce_value(
    value: &mut Value,
    field_type: FieldType,
    owner: &str,
    name: &str,
    prefix: &str,
    report: &mut Option<&mut Vec<String>>,
) -> Result<bool, String> {
    let wrong = |value: &Value, wanted: &str| {
        Err(format!(
            "json: cannot unmarshal {} into Go struct field {owner}.{name} of type {wanted}",
            go_format::kind(value)
        ))
    };
    match (field_type, &mut *value) {
        (_, Value::Null) => Ok(false),
        (FieldType::Anything, _) => Ok(true),
        (FieldType::Text, Value::String(s)) => Ok(!s.is_empty() || owner == "OwnerReference"),
        (FieldType::Text, other) => wrong(other, "string"),
        (FieldType::Flag, Value::Bool(_)) => Ok(true),
        (FieldType::Flag, other) => wrong(other, "bool"),
        (FieldType::Integer, Value::Number(n)) if n.is_i64() => Ok(n.as_i64() != Some(0)),
        (FieldType::MaybeInteger, Value::Number(n)) if n.is_i64() => Ok(true),
        (FieldType::Integer | FieldType::MaybeInteger, other) => match other {
            Value::Number(n) => Err(format!(
                "json: cannot unmarshal number {n} into Go struct field {owner}.{name} of type int64"
            )),
            other => wrong(other, "int64"),
        },
        (FieldType::Time, Value::String(s)) => match s.parse::<jiff::Timestamp>() {
            Ok(time) => {
                *s = jiff::Timestamp::from_second(time.as_second()).unwrap_or(time).to_string();
                Ok(true)
            }
            Err(_) => Err(format!(
                "parsing time {0} as \"2006-01-02T15:04:05Z07:00\": cannot parse {0} as \"2006\"",
                go_format::quote(s)
            )),
        },
        (FieldType::Time, other) => wrong(other, "string"),
        (FieldType::TextMap, Value::Object(map)) => {
            for item in map.values_mut() {
                match item {
                    Value::String(_) => {}
                    Value::Null => *item = Value::from(""),
                    other => return wrong(other, "string"),
                }
            }
            Ok(!map.is_empty())
        }
        (FieldType::TextMap, other) => wrong(other, "map[string]string"),
        (FieldType::TextList, Value::Array(items)) => {
            for item in items.iter_mut() {
                match item {
                    Value::String(_) => {}
                    Value::Null => *item = Value::from(""),
                    other => return wrong(other, "string"),
                }
            }
            Ok(!items.is_empty())
        }
        (FieldType::TextList, other) => wrong(other, "[]string"),
        (FieldType::List(fields, type_name), Value::Array(items)) => {
            for (i, item) in items.iter_mut().enumerate() {
                if item.is_null() {
                    *item = Value::Object(Map::new());
                }
                match item {
                    Value::Object(map) => {
                        coerce_fields(map, fields, type_name, &format!("{prefix}.{name}[{i}]"), report)?;
                        if type_name == "OwnerReference" {
                            for required in ["apiVersion", "kind", "name", "uid"] {
                                map.entry(required).or_insert_with(|| Value::from(""));
                            }
                        }
                    }
                    other => return wrong(other, &format!("v1.{type_name}")),
                }
            }
            Ok(!items.is_empty())
        }
        (FieldType::List(_, type_name), other) => wrong(other, &format!("[]v1.{type_name}")),
    }
}

/// Coerces the metadata of every embedded resource. The caller coerces the metadata of the root.
pub fn coerce_embedded(
    node: &Node,
    value: &mut Value,
    report: &mut Option<&mut Vec<String>>,
) -> Result<(), ValidationError> {
    coerce_below(node, value, &ValuePath::Root, report)
}

fn coerce_below(
    node: &Node,
    value: &mut Value,
    at: &ValuePath<'_>,
    report: &mut Option<&mut Vec<String>>,
) -> Result<(), ValidationError> {
    if !node.has_embedded {
        return Ok(());
    }
    match value {
        Value::Object(map) => {
            if node.embedded {
                for key in ["apiVersion", "kind"] {
                    if let Some(value) = map.get(key).filter(|v| !v.is_string()) {
                        return Err(ValidationError::invalid(
                            at.child(key).to_string(),
                            value.clone(),
                            "must be a string",
                        ));
                    }
                }
                if let Some(metadata) = map.get_mut("metadata") {
                    let here = at.child("metadata");
                    let before = metadata.clone();
                    coerce(metadata, &here.to_string(), report.as_deref_mut())
                        .map_err(|why| ValidationError::invalid(here.to_string(), before, why))?;
                }
            }
            for (key, value) in map {
                match (node.property(key), node.additional_schema()) {
                    (Some(child), _) => coerce_below(child, value, &at.child(key), report)?,
                    (None, Some(child)) => coerce_below(child, value, &at.key(key), report)?,
                    _ => {}
                }
            }
            Ok(())
        }
        Value::Array(items) => match node.items.as_deref() {
            Some(child) => items
                .iter_mut()
                .enumerate()
                .try_for_each(|(i, item)| coerce_below(child, item, &at.index(i), report)),
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

/// Validates `apiVersion`, `kind` and metadata of embedded resources.
pub fn check_embedded(node: &Node, value: &Value, at: &ValuePath<'_>, errors: &mut Vec<ValidationError>) {
    if !node.has_embedded || errors.len() >= crate::error::ERRORS_MAX {
        return;
    }
    match value {
        Value::Object(map) => {
            if node.embedded {
                check_resource(map, at, errors);
            }
            for (key, value) in map {
                match (node.property(key), node.additional_schema()) {
                    (Some(child), _) => check_embedded(child, value, &at.child(key), errors),
                    (None, Some(child)) => check_embedded(child, value, &at.key(key), errors),
                    _ => {}
                }
            }
        }
        Value::Array(items) => {
            if let Some(child) = node.items.as_deref() {
                for (i, item) in items.iter().enumerate() {
                    check_embedded(child, item, &at.index(i), errors);
                }
            }
        }
        _ => {}
    }
}

fn check_resource(map: &Map<String, Value>, at: &ValuePath<'_>, errors: &mut Vec<ValidationError>) {
    for key in ["apiVersion", "kind"] {
        let here = || at.child(key).to_string();
        match map.get(key) {
            None => errors.push(ValidationError::required(here(), "")),
            Some(Value::String(s)) if s.is_empty() => {
                errors.push(ValidationError::invalid(here(), "", "must not be empty"))
            }
            Some(Value::String(s)) if key == "apiVersion" => {
                if s.matches('/').count() > 1 {
                    errors.push(ValidationError::invalid(
                        here(),
                        s.as_str(),
                        format!("unexpected GroupVersion string: {s}"),
                    ));
                }
            }
            Some(Value::String(s)) => {
                let messages = names::dns_1035_label(&s.to_lowercase());
                if !messages.is_empty() {
                    errors.push(ValidationError::invalid(
                        here(),
                        s.as_str(),
                        format!("may have mixed case, but should otherwise match: {}", messages.join(",")),
                    ));
                }
            }
            Some(other) => errors.push(ValidationError::invalid(here(), other.clone(), "must be a string")),
        }
    }
    if let Some(metadata) = map.get("metadata") {
        let here = at.child("metadata");
        let mut metadata = metadata.clone();
        match coerce(&mut metadata, "metadata", None) {
            Err(why) => errors.push(ValidationError::invalid(here.to_string(), metadata, why)),
            Ok(()) => {
                let namespaced = !text(&metadata, "namespace").is_empty();
                if text(&metadata, "name").is_empty() {
                    metadata["name"] = Value::from("fakename");
                }
                let rule = NameRule { check: names::path_segment, prefix: path_prefix };
                errors.extend(check_create(&metadata, namespaced, rule, &here.to_string()));
            }
        }
    }
}

fn path_prefix(name: &str) -> Vec<String> {
    names::path_segment(name).into_iter().filter(|w| w.starts_with("may not contain")).collect()
}

fn text<'a>(metadata: &'a Value, key: &str) -> &'a str {
    metadata.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Validation functions for the names of a kind.
#[derive(Clone, Copy)]
pub struct NameRule {
    /// `name`
    pub check: fn(&str) -> Vec<String>,
    /// `generateName`
    pub prefix: fn(&str) -> Vec<String>,
}

impl NameRule {
    /// A DNS subdomain: custom resources and most built-ins.
    pub const SUBDOMAIN: Self =
        Self { check: names::dns_subdomain, prefix: |p| names::generated(p, names::dns_subdomain) };
    /// A DNS label: namespaces.
    pub const LABEL: Self =
        Self { check: names::dns_label, prefix: |p| names::generated(p, names::dns_label) };
    /// A valid URL path segment: RBAC kinds.
    pub const PATH_SEGMENT: Self = Self { check: names::path_segment, prefix: path_prefix };
}

/// Validates the metadata of a new object, after name generation. `at` is usually `metadata`.
pub fn check_create(metadata: &Value, namespaced: bool, rule: NameRule, at: &str) -> Vec<ValidationError> {
    let mut errors = Vec::new();
    let prefix = text(metadata, "generateName");
    if !prefix.is_empty() {
        errors.extend(
            (rule.prefix)(prefix)
                .into_iter()
                .map(|w| ValidationError::invalid(format!("{at}.generateName"), prefix, w)),
        );
    }
    let name = text(metadata, "name");
    if name.is_empty() {
        errors.push(ValidationError::required(format!("{at}.name"), "name or generateName is required"));
    } else {
        errors.extend(
            (rule.check)(name).into_iter().map(|w| ValidationError::invalid(format!("{at}.name"), name, w)),
        );
    }
    let namespace = text(metadata, "namespace");
    match (namespaced, namespace.is_empty()) {
        (true, true) => errors.push(ValidationError::required(format!("{at}.namespace"), "")),
        (true, false) => errors.extend(
            names::dns_label(namespace)
                .into_iter()
                .map(|w| ValidationError::invalid(format!("{at}.namespace"), namespace, w)),
        ),
        (false, false) => {
            errors.push(ValidationError::forbidden(format!("{at}.namespace"), "not allowed on this type"))
        }
        (false, true) => {}
    }
    if let Some(generation) = metadata.get("generation").and_then(Value::as_i64).filter(|g| *g < 0) {
        errors.push(ValidationError::invalid(
            format!("{at}.generation"),
            generation,
            "must be greater than or equal to 0",
        ));
    }
    check_common(metadata, at, &mut errors);
    let finalizers: Vec<&str> = metadata
        .get("finalizers")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    for finalizer in &finalizers {
        errors.extend(
            names::label_key(finalizer)
                .into_iter()
                .map(|w| ValidationError::invalid(format!("{at}.finalizers"), *finalizer, w)),
        );
    }
    if finalizers.contains(&"orphan") && finalizers.contains(&"foregroundDeletion") {
        errors.push(ValidationError::invalid(
            format!("{at}.finalizers"),
            Value::from(finalizers),
            "finalizer orphan and foregroundDeletion cannot be both set",
        ));
    }
    check_managed(metadata, at, &mut errors);
    errors
}

/// Validates the metadata of an update.
pub fn check_update(new: &Value, old: &Value, at: &str) -> Vec<ValidationError> {
    let mut errors = Vec::new();
    let finalizers = |m: &Value| -> Vec<String> {
        m.get("finalizers")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect()
    };
    if old.get("deletionTimestamp").is_some_and(|t| !t.is_null()) {
        let before = finalizers(old);
        let mut extra: Vec<String> = finalizers(new).into_iter().filter(|f| !before.contains(f)).collect();
        extra.sort();
        extra.dedup();
        if !extra.is_empty() {
            let listed: Vec<String> = extra.iter().map(|f| go_format::quote(f)).collect();
            let detail = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                listed.join(", ")
            );
            errors.push(ValidationError::forbidden(format!("{at}.finalizers"), detail));
        }
    }
    if text(new, "resourceVersion").is_empty() {
        errors.push(ValidationError::invalid(
            format!("{at}.resourceVersion"),
            "",
            "must be specified for an update",
        ));
    }
    let generation = |m: &Value| m.get("generation").and_then(Value::as_i64).unwrap_or_default();
    if generation(new) < generation(old) {
        errors.push(ValidationError::invalid(
            format!("{at}.generation"),
            generation(new),
            "must not be decremented",
        ));
    }
    for key in ["name", "namespace", "uid"] {
        if text(new, key) != text(old, key) {
            errors.push(ValidationError::invalid(
                format!("{at}.{key}"),
                text(new, key),
                "field is immutable",
            ));
        }
    }
    for key in ["creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        let of = |m: &Value| m.get(key).cloned().unwrap_or_default();
        if of(new) != of(old) {
            errors.push(ValidationError::invalid(format!("{at}.{key}"), of(new), "field is immutable"));
        }
    }
    check_common(new, at, &mut errors);
    check_managed(new, at, &mut errors);
    errors
}

fn check_common(metadata: &Value, at: &str, errors: &mut Vec<ValidationError>) {
    for (key, value) in metadata.get("labels").and_then(Value::as_object).into_iter().flatten() {
        let field = || format!("{at}.labels");
        errors.extend(
            names::label_key(key).into_iter().map(|w| ValidationError::invalid(field(), key.as_str(), w)),
        );
        let value = value.as_str().unwrap_or_default();
        errors.extend(
            names::label_value(value).into_iter().map(|w| ValidationError::invalid(field(), value, w)),
        );
    }
    let mut size = 0;
    for (key, value) in metadata.get("annotations").and_then(Value::as_object).into_iter().flatten() {
        size += key.len() + value.as_str().map_or(0, str::len);
        errors.extend(
            names::label_key(&key.to_lowercase())
                .into_iter()
                .map(|w| ValidationError::invalid(format!("{at}.annotations"), key.as_str(), w)),
        );
    }
    if size > ANNOTATIONS_MAX {
        errors.push(ValidationError::too_long(format!("{at}.annotations"), ANNOTATIONS_MAX as i64));
    }
    check_owners(metadata, &format!("{at}.ownerReferences"), errors);
}

fn check_owners(metadata: &Value, at: &str, errors: &mut Vec<ValidationError>) {
    let Some(owners) = metadata.get("ownerReferences") else { return };
    let mut controller: Option<String> = None;
    for owner in owners.as_array().into_iter().flatten() {
        let (version, kind) = (text(owner, "apiVersion"), text(owner, "kind"));
        if version.rsplit('/').next().unwrap_or_default().is_empty() {
            errors.push(ValidationError::invalid(
                format!("{at}.apiVersion"),
                version,
                "version must not be empty",
            ));
        }
        for key in ["kind", "name", "uid"] {
            if text(owner, key).is_empty() {
                errors.push(ValidationError::invalid(format!("{at}.{key}"), "", "must not be empty"));
            }
        }
        if version == "v1" && kind == "Event" {
            errors.push(ValidationError::invalid(
                at,
                owner.clone(),
                "/v1, Kind=Event is disallowed from being an owner",
            ));
        }
        if owner.get("controller").and_then(Value::as_bool) == Some(true) {
            let name = format!("{kind}/{}", text(owner, "name"));
            match &controller {
                Some(first) => {
                    let detail = format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {name}"
                    );
                    errors.push(ValidationError::invalid(at, owners.clone(), detail));
                }
                None => controller = Some(name),
            }
        }
    }
}

fn check_managed(metadata: &Value, at: &str, errors: &mut Vec<ValidationError>) {
    for (i, entry) in
        metadata.get("managedFields").and_then(Value::as_array).into_iter().flatten().enumerate()
    {
        let at = format!("{at}.managedFields[{i}]");
        let operation = text(entry, "operation");
        if !matches!(operation, "Apply" | "Update") {
            errors.push(ValidationError::invalid(
                format!("{at}.operation"),
                operation,
                "must be `Apply` or `Update`",
            ));
        }
        let fields_type = text(entry, "fieldsType");
        if !matches!(fields_type, "" | "FieldsV1") {
            errors.push(ValidationError::invalid(
                format!("{at}.fieldsType"),
                fields_type,
                "must be `FieldsV1`",
            ));
        }
        check_manager(text(entry, "manager"), &format!("{at}.manager"), errors);
        if text(entry, "subresource").len() > SUBRESOURCE_MAX {
            errors.push(ValidationError::too_long(format!("{at}.subresource"), SUBRESOURCE_MAX as i64));
        }
    }
}

/// Validates the name of a field manager.
pub fn check_manager(manager: &str, at: &str, errors: &mut Vec<ValidationError>) {
    if manager.len() > MANAGER_MAX {
        errors.push(ValidationError::too_long(at, MANAGER_MAX as i64));
    }
    for (i, c) in manager.char_indices().filter(|(_, c)| c.is_control() || (c.is_whitespace() && *c != ' ')) {
        errors.push(ValidationError::new(
            ValidationErrorKind::Invalid,
            at,
            Some(Value::from(manager)),
            format!("invalid character U+{:04X} (at position {i})", c as u32),
        ));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn metadata_is_coerced_to_object_meta() {
        let mut metadata = json!({"name": "a", "generation": 0, "labels": {}, "creationTimestamp": null, "extra": 1, "annotations": {"a": null},
            "ownerReferences": [{"kind": "K", "more": 1}], "deletionTimestamp": "2024-01-02T03:04:05.678+01:00", "deletionGracePeriodSeconds": 0});
        let mut unknown = Vec::new();
        coerce(&mut metadata, "metadata", Some(&mut unknown)).unwrap();
        assert_eq!(
            metadata,
            json!({"name": "a", "annotations": {"a": ""}, "ownerReferences": [{"apiVersion": "", "kind": "K", "name": "", "uid": ""}],
                   "deletionTimestamp": "2024-01-02T02:04:05Z", "deletionGracePeriodSeconds": 0})
        );
        assert_eq!(unknown, ["metadata.extra", "metadata.ownerReferences[0].more"]);
    }

    #[test]
    fn metadata_of_the_wrong_type_is_rejected_as_in_go() {
        for (metadata, words) in [
            (
                json!({"name": 1}),
                "json: cannot unmarshal number into Go struct field ObjectMeta.name of type string",
            ),
            (json!("x"), "json: cannot unmarshal string into Go value of type v1.ObjectMeta"),
            (
                json!({"labels": {"a": 1}}),
                "json: cannot unmarshal number into Go struct field ObjectMeta.labels of type string",
            ),
            (
                json!({"creationTimestamp": "soon"}),
                "parsing time \"soon\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"soon\" as \"2006\"",
            ),
        ] {
            let mut metadata = metadata;
            assert_eq!(coerce(&mut metadata, "metadata", None).unwrap_err(), words);
        }
    }

    #[test]
    fn new_metadata_is_validated() {
        let messages = |metadata: Value, namespaced: bool| -> Vec<String> {
            check_create(&metadata, namespaced, NameRule::SUBDOMAIN, "metadata")
                .iter()
                .map(ToString::to_string)
                .collect()
        };
        assert!(messages(json!({"name": "a", "namespace": "b", "labels": {"x/y": "z"}}), true).is_empty());
        assert_eq!(
            messages(json!({}), false),
            ["metadata.name: Required value: name or generateName is required"]
        );
        assert_eq!(
            messages(json!({"name": "a", "namespace": "b"}), false),
            ["metadata.namespace: Forbidden: not allowed on this type"]
        );
        assert!(messages(json!({"name": "A"}), false)[0].starts_with(
            "metadata.name: Invalid value: \"A\": a lowercase RFC 1123 subdomain must consist of"
        ));
        assert!(
            messages(json!({"name": "a", "labels": {"x": "!"}}), false)[0]
                .starts_with("metadata.labels: Invalid value: \"!\": a valid label must be")
        );
        let owners = json!({"name": "a", "ownerReferences": [
            {"apiVersion": "v1", "kind": "A", "name": "a", "uid": "1", "controller": true}, {"apiVersion": "v1", "kind": "B", "name": "b", "uid": "2", "controller": true}]});
        assert!(messages(owners, false)[0].contains(
            "Only one reference can have Controller set to true. Found \"true\" in references for A/a and B/b"
        ));
    }

    #[test]
    fn immutable_metadata_cannot_change() {
        let old = json!({"name": "a", "uid": "1", "resourceVersion": "1", "generation": 2, "deletionTimestamp": "2024-01-02T02:04:05Z", "finalizers": ["a/b"]});
        let new = json!({"name": "b", "uid": "1", "generation": 1, "deletionTimestamp": "2024-01-02T02:04:05Z", "finalizers": ["a/b", "c/d"]});
        let messages: Vec<String> =
            check_update(&new, &old, "metadata").iter().map(ToString::to_string).collect();
        assert_eq!(
            messages,
            [
                "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{\"c/d\"}",
                "metadata.resourceVersion: Invalid value: \"\": must be specified for an update",
                "metadata.generation: Invalid value: 1: must not be decremented",
                "metadata.name: Invalid value: \"b\": field is immutable",
            ]
        );
    }
}
