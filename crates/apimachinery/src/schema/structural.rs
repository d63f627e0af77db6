//! Checks whether a schema is structural: every field has a type outside of `allOf`, `anyOf`, `oneOf` and
//! `not`.
//!
//! Works on the raw schema, because the errors name its keys. [`super::node::Node::parse`] has checked the
//! JSON types of the keys before; here a key of the wrong type counts as absent.

use serde_json::{Map, Value, json};

use super::pattern;
use super::value_path::ValuePath;
use crate::error::ValidationError;

/// Access to the keys of a raw schema. A key of the wrong type counts as absent.
#[derive(Clone, Copy)]
pub(crate) struct Raw<'a>(Option<&'a Map<String, Value>>);

impl<'a> Raw<'a> {
    pub(crate) fn new(value: &'a Value) -> Self {
        Self(value.as_object())
    }

    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        self.0?.get(key).filter(|v| !v.is_null())
    }

    pub(crate) fn text(&self, key: &str) -> &'a str {
        self.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    pub(crate) fn flag(&self, key: &str) -> bool {
        self.get(key).and_then(Value::as_bool).unwrap_or_default()
    }

    pub(crate) fn list(&self, key: &str) -> &'a [Value] {
        self.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn child(&self, key: &str) -> Option<Raw<'a>> {
        self.get(key).filter(|v| v.is_object()).map(Raw::new)
    }

    pub(crate) fn properties(&self) -> impl Iterator<Item = (&'a str, Raw<'a>)> + use<'a> {
        self.get("properties")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
            .map(|(k, v)| (k.as_str(), Raw::new(v)))
    }

    pub(crate) fn property(&self, name: &str) -> Option<Raw<'a>> {
        self.get("properties")?.get(name).map(Raw::new)
    }

    pub(crate) fn value(&self) -> Value {
        self.0.cloned().map_or(Value::Null, Value::Object)
    }

    /// The keys with a value other than null, false, the empty string and empty collections.
    pub(crate) fn specified(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.0
            .into_iter()
            .flatten()
            .filter(|(key, value)| match value {
                Value::Null | Value::Bool(false) => {
                    key.as_str() == "additionalProperties" && !value.is_null()
                }
                Value::String(s) => !s.is_empty(),
                Value::Array(items) => !items.is_empty(),
                Value::Object(map) => {
                    !map.is_empty() || matches!(key.as_str(), "items" | "not" | "additionalProperties")
                }
                _ => true,
            })
            .map(|(key, _)| key.as_str())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

/// Validates the schema at `at`. Errors are sorted by message; without errors the schema is structural.
pub(super) fn check(schema: &Value, at: &ValuePath<'_>) -> Vec<ValidationError> {
    let mut errors = Vec::new();
    let raw = Raw::new(schema);
    invariants(raw, Level::Root, at, &mut errors);
    completeness(raw, raw, at, at, &mut errors);
    errors.sort_by_cached_key(ToString::to_string);
    errors
}

fn invariants(s: Raw<'_>, level: Level, at: &ValuePath<'_>, errors: &mut Vec<ValidationError>) {
    let child = |name: &str| at.child(name).to_string();
    let kind = s.text("type");
    let (embedded, preserve, int_or_string) = (
        s.flag("x-kubernetes-embedded-resource"),
        s.flag("x-kubernetes-preserve-unknown-fields"),
        s.flag("x-kubernetes-int-or-string"),
    );
    match s.child("items") {
        Some(items) => invariants(items, Level::Item, &at.child("items"), errors),
        None if kind == "array" => {
            errors.push(ValidationError::required(child("items"), "must be specified"))
        }
        None => {}
    }
    let properties_at = at.child("properties");
    for (name, property) in s.properties() {
        invariants(property, Level::Field, &properties_at.key(name), errors);
    }
    if s.get("additionalProperties").is_some() {
        if level == Level::Root {
            errors.push(ValidationError::forbidden(
                child("additionalProperties"),
                "must not be used at the root",
            ));
        }
        if let Some(additional) = s.child("additionalProperties") {
            invariants(additional, Level::Field, &at.child("additionalProperties"), errors);
        }
    }
    if int_or_string && preserve {
        errors.push(ValidationError::invalid(
            child("x-kubernetes-preserve-unknown-fields"),
            true,
            "must be false if x-kubernetes-int-or-string is true",
        ));
    }
    if int_or_string && embedded {
        errors.push(ValidationError::invalid(
            child("x-kubernetes-embedded-resource"),
            true,
            "must be false if x-kubernetes-int-or-string is true",
        ));
    }
    value_validation(s, int_or_string_pattern(s), first_all_of_is_int_or_string(s), at, errors);
    let check_meta = level == Level::Root || embedded;
    if embedded && kind != "object" {
        let detail = "must be object if x-kubernetes-embedded-resource is true";
        errors.push(if kind.is_empty() {
            ValidationError::required(child("type"), detail)
        } else {
            ValidationError::invalid(child("type"), kind, detail)
        });
    } else if kind.is_empty() && !int_or_string && !preserve {
        let detail = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        errors.push(ValidationError::required(child("type"), detail));
    }
    if embedded && s.get("additionalProperties").is_some() {
        errors.push(ValidationError::forbidden(
            child("additionalProperties"),
            "must not be used if x-kubernetes-embedded-resource is set",
        ));
    }
    if level == Level::Root && !kind.is_empty() && kind != "object" {
        errors.push(ValidationError::invalid(child("type"), kind, "must be object at the root"));
    }
    for name in ["kind", "apiVersion"] {
        if let Some(property) = s.property(name).filter(|p| check_meta && p.text("type") != "string") {
            errors.push(ValidationError::invalid(
                properties_at.key(name).child("type").to_string(),
                property.text("type"),
                "must be string",
            ));
        }
    }
    if let Some(metadata) = s.property("metadata") {
        let here = properties_at.key("metadata");
        if check_meta && metadata.text("type") != "object" {
            errors.push(ValidationError::invalid(
                here.child("type").to_string(),
                metadata.text("type"),
                "must be object",
            ));
        }
        let only_names = metadata.properties().all(|(name, _)| matches!(name, "name" | "generateName"));
        let ignored = |key: &str| {
            matches!(key, "type" | "default" | "externalDocs" | "example")
                || (key == "properties" && only_names)
        };
        if level == Level::Root && !metadata.specified().all(ignored) {
            errors.push(ValidationError::forbidden(here.to_string(), "must not specify anything other than name and generateName, but metadata is implicitly specified"));
        }
    }
    if embedded && !preserve && s.properties().next().is_none() {
        let detail = "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        errors.push(ValidationError::required(child("properties"), detail));
    }
}

/// `anyOf: [{type: integer}, {type: string}]`: the only branches that may have a type.
fn int_or_string_pattern(s: Raw<'_>) -> bool {
    *s.list("anyOf") == [json!({"type": "integer"}), json!({"type": "string"})]
}

fn first_all_of_is_int_or_string(s: Raw<'_>) -> bool {
    s.list("allOf").first().is_some_and(|first| int_or_string_pattern(Raw::new(first)))
}

fn value_validation(
    s: Raw<'_>,
    skip_any_of: bool,
    skip_first_all_of: bool,
    at: &ValuePath<'_>,
    errors: &mut Vec<ValidationError>,
) {
    for key in ["anyOf", "allOf", "oneOf"] {
        if key == "anyOf" && skip_any_of {
            continue;
        }
        let here = at.child(key);
        for (i, branch) in s.list(key).iter().enumerate() {
            nested(Raw::new(branch), key == "allOf" && skip_first_all_of && i == 0, &here.index(i), errors);
        }
    }
    if let Some(not) = s.child("not") {
        nested(not, false, &at.child("not"), errors);
    }
    let source = s.text("pattern");
    if let Some(why) = Some(source).filter(|p| !p.is_empty()).and_then(|p| pattern::compile(p).err()) {
        let detail = format!("must be a valid regular expression, but isn't: error parsing regexp: {why}");
        errors.push(ValidationError::invalid(at.child("pattern").to_string(), source, detail));
    }
}

fn nested(v: Raw<'_>, skip_any_of: bool, at: &ValuePath<'_>, errors: &mut Vec<ValidationError>) {
    value_validation(v, skip_any_of, false, at, errors);
    if let Some(items) = v.child("items") {
        nested(items, false, &at.child("items"), errors);
    }
    let properties_at = at.child("properties");
    for (name, property) in v.properties() {
        nested(property, false, &properties_at.key(name), errors);
    }
    let mut forbid =
        |key: &str, detail: &str| errors.push(ValidationError::forbidden(at.child(key).to_string(), detail));
    let (empty, undefined, off) = (
        "must be empty to be structural",
        "must be undefined to be structural",
        "must be false to be structural",
    );
    if !v.text("type").is_empty() {
        forbid("type", empty);
    }
    if v.get("additionalProperties").is_some_and(|a| a != &Value::Bool(false)) {
        forbid("additionalProperties", undefined);
    }
    if v.get("default").is_some() {
        forbid("default", undefined);
    }
    for key in ["title", "description"] {
        if !v.text(key).is_empty() {
            forbid(key, empty);
        }
    }
    for key in [
        "nullable",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-embedded-resource",
        "x-kubernetes-int-or-string",
    ] {
        if v.flag(key) {
            forbid(key, off);
        }
    }
    if !v.list("x-kubernetes-list-map-keys").is_empty() {
        forbid("x-kubernetes-list-map-keys", empty);
    }
    for key in ["x-kubernetes-list-type", "x-kubernetes-map-type"] {
        if v.get(key).is_some() {
            forbid(key, undefined);
        }
    }
    if !v.list("x-kubernetes-validations").is_empty() {
        forbid("x-kubernetes-validations", empty);
    }
    if v.property("metadata").is_some() {
        errors.push(ValidationError::forbidden(
            properties_at.key("metadata").to_string(),
            "must not be specified in a nested context",
        ));
    }
}

/// Fields in a branch at the root must also be in the structure. Like Kubernetes, this does not check
/// branches below the root.
fn completeness(
    v: Raw<'_>,
    s: Raw<'_>,
    s_at: &ValuePath<'_>,
    v_at: &ValuePath<'_>,
    errors: &mut Vec<ValidationError>,
) {
    if let Some(not) = v.child("not") {
        branch_completeness(not, s, s_at, &v_at.child("not"), errors);
    }
    for key in ["allOf", "anyOf", "oneOf"] {
        let here = v_at.child(key);
        for (i, branch) in v.list(key).iter().enumerate() {
            branch_completeness(Raw::new(branch), s, s_at, &here.index(i), errors);
        }
    }
}

fn branch_completeness(
    v: Raw<'_>,
    s: Raw<'_>,
    s_at: &ValuePath<'_>,
    v_at: &ValuePath<'_>,
    errors: &mut Vec<ValidationError>,
) {
    completeness(v, s, s_at, v_at, errors);
    let missing = |at: &ValuePath<'_>, from: &ValuePath<'_>| {
        ValidationError::required(at.to_string(), format!("because it is defined in {from}"))
    };
    if let Some(items) = v.child("items") {
        let (s_here, v_here) = (s_at.child("items"), v_at.child("items"));
        match s.child("items") {
            Some(s_items) => branch_completeness(items, s_items, &s_here, &v_here, errors),
            None => errors.push(missing(&s_here, &v_here)),
        }
    }
    let (s_here, v_here) = (s_at.child("properties"), v_at.child("properties"));
    for (name, property) in v.properties() {
        match s.property(name) {
            Some(s_property) => {
                branch_completeness(property, s_property, &s_here.key(name), &v_here.key(name), errors)
            }
            None => errors.push(missing(&s_here.key(name), &v_here.key(name))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(schema: Value) -> Vec<String> {
        check(&schema, &ValuePath::At("schema")).iter().map(ToString::to_string).collect()
    }

    fn with(property: Value) -> Value {
        json!({"type": "object", "properties": {"spec": property}})
    }

    #[test]
    fn structural_schemas_pass() {
        let good = [
            with(
                json!({"type": "object", "properties": {"a": {"type": "string"}}, "oneOf": [{"required": ["a"]}, {"properties": {"a": {"minLength": 1}}}]}),
            ),
            with(
                json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}),
            ),
            with(
                json!({"x-kubernetes-int-or-string": true, "allOf": [{"anyOf": [{"type": "integer"}, {"type": "string"}]}, {"enum": [1]}]}),
            ),
            with(json!({"x-kubernetes-preserve-unknown-fields": true})),
            json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 5}}}}}),
        ];
        for schema in good {
            assert_eq!(messages(schema.clone()), Vec::<String>::new(), "{schema}");
        }
    }

    #[test]
    fn schemas_that_are_not_structural_are_rejected() {
        let cases = [
            (json!({}), "schema.type: Required value: must not be empty at the root"),
            (
                json!({"type": "array", "items": {"type": "string"}}),
                "schema.type: Invalid value: \"array\": must be object at the root",
            ),
            (
                json!({"type": "object", "additionalProperties": true}),
                "schema.additionalProperties: Forbidden: must not be used at the root",
            ),
            (
                with(json!({})),
                "schema.properties[spec].type: Required value: must not be empty for specified object fields",
            ),
            (
                with(json!({"type": "array"})),
                "schema.properties[spec].items: Required value: must be specified",
            ),
            (
                with(json!({"type": "array", "items": {}})),
                "schema.properties[spec].items.type: Required value: must not be empty for specified array items",
            ),
            (
                with(json!({"type": "object", "anyOf": [{"type": "object"}]})),
                "schema.properties[spec].anyOf[0].type: Forbidden: must be empty to be structural",
            ),
            (
                with(json!({"type": "object", "not": {"default": 1}})),
                "schema.properties[spec].not.default: Forbidden: must be undefined to be structural",
            ),
            (
                json!({"type": "object", "allOf": [{"properties": {"x": {"minimum": 1}}}]}),
                "schema.properties[x]: Required value: because it is defined in schema.allOf[0].properties[x]",
            ),
            (
                with(
                    json!({"x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}),
                ),
                "schema.properties[spec].type: Required value: must be object if x-kubernetes-embedded-resource is true",
            ),
            (
                json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}}),
                "schema.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified",
            ),
            (
                json!({"type": "object", "properties": {"kind": {"type": "integer"}}}),
                "schema.properties[kind].type: Invalid value: \"integer\": must be string",
            ),
        ];
        for (schema, words) in cases {
            assert!(
                messages(schema.clone()).iter().any(|s| s == words),
                "{schema}: {:?}",
                messages(schema.clone())
            );
        }
    }

    #[test]
    fn a_pattern_that_does_not_compile_is_reported() {
        let messages = messages(with(json!({"type": "string", "pattern": "["})));
        assert!(messages[0].starts_with("schema.properties[spec].pattern: Invalid value: \"[\": must be a valid regular expression, but isn't: error parsing regexp: missing closing ]"), "{messages:?}");
    }
}
