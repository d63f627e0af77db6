//! Validation of the `openAPIV3Schema` of a CRD, run when the CRD is written.
//!
//! In addition to [`super::structural`]: keys that Kubernetes does not support, the rules of list and map
//! types, and defaults that do not match their own schema.

use serde_json::Value;

use super::node::Node;
use super::prune_and_default;
use super::structural::{self, Raw};
use super::validate;
use super::value_path::ValuePath;
use crate::cel;
use crate::error::ValidationError;
use crate::meta;

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
const RULE_REASONS: [&str; 4] =
    ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

/// Keys allowed at the root besides `properties` if `status` is a subresource, spelled as in the error
/// message.
const ALLOWED_AT_ROOT: &str = "[Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum MaxLength MinLength Pattern MaxItems MinItems UniqueItems MultipleOf Required Items Properties ExternalDocs Example XPreserveUnknownFields XValidations]";
const REFUSED_AT_ROOT: [&str; 18] = [
    "id",
    "$schema",
    "$ref",
    "default",
    "enum",
    "maxProperties",
    "minProperties",
    "additionalProperties",
    "additionalItems",
    "patternProperties",
    "dependencies",
    "definitions",
    "allOf",
    "oneOf",
    "anyOf",
    "not",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
];

/// Validates a schema. `at` is the path of `openAPIV3Schema` itself, e.g.
/// `spec.versions[0].schema.openAPIV3Schema`. Without errors the parsed schema is returned.
pub fn check(schema: &Value, at: &str, status_subresource: bool) -> (Option<Node>, Vec<ValidationError>) {
    let here = ValuePath::At(at);
    let raw = Raw::new(schema);
    let mut errors = Vec::new();
    if status_subresource {
        let kind = raw.text("type");
        if !kind.is_empty() && kind != "object" {
            let detail = "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
            errors.push(ValidationError::invalid(format!("{at}.type"), kind, detail));
        } else if raw.specified().any(|key| {
            REFUSED_AT_ROOT.contains(&key)
                || matches!(
                    key,
                    "nullable"
                        | "x-kubernetes-list-type"
                        | "x-kubernetes-list-map-keys"
                        | "x-kubernetes-map-type"
                )
        }) {
            let detail = format!(
                "only {ALLOWED_AT_ROOT} fields are allowed at the root of the schema if the status subresource is enabled"
            );
            errors.push(ValidationError::invalid(at, schema.clone(), detail));
        }
    }
    if raw.flag("nullable") {
        errors.push(ValidationError::forbidden(
            format!("{at}.nullable"),
            "nullable cannot be true at the root",
        ));
    }
    let parsed = Node::parse(schema).map_err(|mut error| {
        error.field = if error.field == "<nil>" { at.to_owned() } else { format!("{at}.{}", error.field) };
        error
    });
    let mut context = SchemaContext::default();
    match &parsed {
        Ok(node) => {
            // A schema with `$ref` cannot be checked further. `check_keys` reports the `$ref`.
            let has_ref = has_ref(raw);
            let structural_errors = if has_ref { Vec::new() } else { structural::check(schema, &here) };
            let not_structural = has_ref || !structural_errors.is_empty();
            errors.extend(structural_errors);
            if !not_structural {
                check_defaults(node, &here, DefaultContext::default(), true, &mut errors);
            }
        }
        Err(error) if error.detail == "items must be a schema object and not an array" => {}
        Err(error) => errors.push(error.clone()),
    }
    check_keys(raw, &here, true, &mut context, &mut errors);
    if errors.is_empty()
        && let Ok(node) = &parsed
    {
        errors.extend(cel::check_definition(node, at));
    }
    if errors.is_empty()
        && let Err(error) = &parsed
    {
        errors.push(error.clone());
    }
    (parsed.ok(), errors)
}

/// Whether a schema or one of its descendants contains `$ref`.
fn has_ref(s: Raw<'_>) -> bool {
    s.get("$ref").is_some()
        || s.properties().any(|(_, property)| has_ref(property))
        || ["items", "not", "additionalProperties"].iter().filter_map(|key| s.child(key)).any(has_ref)
        || ["allOf", "anyOf", "oneOf"]
            .iter()
            .any(|key| s.list(key).iter().any(|branch| has_ref(Raw::new(branch))))
}

/// What the position of a schema inside the CRD schema allows.
#[derive(Default, Clone)]
struct SchemaContext {
    no_defaults: Option<String>,
    inside_meta: bool,
}

fn check_keys(
    s: Raw<'_>,
    at: &ValuePath<'_>,
    root: bool,
    context: &mut SchemaContext,
    errors: &mut Vec<ValidationError>,
) {
    check_supported(s, at, context, errors);
    let child = |name: &str| at.child(name).to_string();
    if s.flag("uniqueItems") {
        errors.push(ValidationError::forbidden(
            child("uniqueItems"),
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        ));
    }
    if let Some(additional) = s.get("additionalProperties") {
        if s.properties().next().is_some() && additional != &Value::Bool(true) {
            errors.push(ValidationError::forbidden(
                child("additionalProperties"),
                "additionalProperties and properties are mutual exclusive",
            ));
        }
        if let Some(schema) = s.child("additionalProperties") {
            let mut below = context.clone();
            if below.inside_meta {
                below.no_defaults =
                    Some("inside additionalProperties applying to object metadata".to_owned());
            }
            check_keys(schema, &at.child("additionalProperties"), false, &mut below, errors);
        }
    }
    let properties_at = at.child("properties");
    for (name, property) in s.properties() {
        let mut below = context.clone();
        if (root || s.flag("x-kubernetes-embedded-resource"))
            && matches!(name, "metadata" | "kind" | "apiVersion")
        {
            below.inside_meta = true;
            if root {
                below.no_defaults = Some(format!("in top-level {name}"));
            }
        }
        check_keys(property, &properties_at.key(name), false, &mut below, errors);
    }
    if let Some(not) = s.child("not") {
        check_keys(not, &at.child("not"), false, context, errors);
    }
    for key in ["allOf", "oneOf", "anyOf"] {
        let here = at.child(key);
        for (i, branch) in s.list(key).iter().enumerate() {
            check_keys(Raw::new(branch), &here.index(i), false, context, errors);
        }
    }
    if let Some(items) = s.child("items") {
        check_keys(items, &at.child("items"), false, context, errors);
    }
    if s.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false)) {
        errors.push(ValidationError::invalid(
            child("x-kubernetes-preserve-unknown-fields"),
            false,
            "must be true or undefined",
        ));
    }
    check_map_type(s, at, errors);
    check_list_type(s, at, errors);
    check_rules(s, at, errors);
}

fn check_supported(
    s: Raw<'_>,
    at: &ValuePath<'_>,
    context: &SchemaContext,
    errors: &mut Vec<ValidationError>,
) {
    let child = |name: &str| at.child(name).to_string();
    let kind = s.text("type");
    if !kind.is_empty() && !TYPES.contains(&kind) {
        errors.push(ValidationError::not_supported(child("type"), kind, TYPES));
    }
    if s.get("default").is_some()
        && let Some(why) = &context.no_defaults
    {
        errors.push(ValidationError::forbidden(child("default"), format!("must not be set {why}")));
    }
    if !s.text("id").is_empty() {
        errors.push(ValidationError::forbidden(child("id"), "id is not supported"));
    }
    for key in ["additionalItems", "patternProperties", "definitions", "dependencies", "$ref"] {
        if s.get(key).is_some_and(|v| {
            key == "$ref"
                || key == "dependencies"
                || key == "additionalItems"
                || v.as_object().is_some_and(|m| !m.is_empty())
        }) {
            errors.push(ValidationError::forbidden(child(key), format!("{key} is not supported")));
        }
    }
    if kind == "null" {
        errors.push(ValidationError::forbidden(
            child("type"),
            "type cannot be set to null, use nullable as an alternative",
        ));
    }
    if s.get("items").is_some_and(Value::is_array) {
        errors.push(ValidationError::forbidden(
            child("items"),
            "items must be a schema object and not an array",
        ));
    }
    if context.inside_meta && s.flag("x-kubernetes-embedded-resource") {
        errors.push(ValidationError::forbidden(
            child("x-kubernetes-embedded-resource"),
            "must not be used inside of resource meta",
        ));
    }
}

fn check_map_type(s: Raw<'_>, at: &ValuePath<'_>, errors: &mut Vec<ValidationError>) {
    let Some(map_type) = s.get("x-kubernetes-map-type").and_then(Value::as_str) else { return };
    let kind = s.text("type");
    if kind != "object" {
        let (field, detail) =
            (at.child("type").to_string(), "must be object if x-kubernetes-map-type is specified");
        errors.push(if kind.is_empty() {
            ValidationError::required(field, detail)
        } else {
            ValidationError::invalid(field, kind, detail)
        });
    }
    if !matches!(map_type, "atomic" | "granular") {
        errors.push(ValidationError::not_supported(
            at.child("x-kubernetes-map-type").to_string(),
            map_type,
            ["atomic", "granular"],
        ));
    }
}

fn check_list_type(s: Raw<'_>, at: &ValuePath<'_>, errors: &mut Vec<ValidationError>) {
    let child = |name: &str| at.child(name).to_string();
    let list_type = s.get("x-kubernetes-list-type").and_then(Value::as_str);
    let keys = s.list("x-kubernetes-list-map-keys");
    let kind = s.text("type");
    let items = s.child("items");
    let items_at = at.child("items");
    if let Some(list_type) = list_type {
        if kind != "array" {
            let detail = "must be array if x-kubernetes-list-type is specified";
            errors.push(if kind.is_empty() {
                ValidationError::required(child("type"), detail)
            } else {
                ValidationError::invalid(child("type"), kind, detail)
            });
        } else if list_type == "set"
            && let Some(items) = items
        {
            let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
            let (inner_list, inner_map) =
                (items.get("x-kubernetes-list-type"), items.text("x-kubernetes-map-type"));
            if items.text("type") == "array" && inner_list.is_some_and(|t| t != "atomic") {
                errors.push(ValidationError::invalid(
                    items_at.child("x-kubernetes-list-type").to_string(),
                    inner_list.cloned().unwrap_or_default(),
                    detail,
                ));
            }
            if items.text("type") == "object" && inner_map != "atomic" {
                errors.push(ValidationError::invalid(
                    items_at.child("x-kubernetes-map-type").to_string(),
                    inner_list.cloned().unwrap_or_default(),
                    detail,
                ));
            }
        }
        if !matches!(list_type, "atomic" | "set" | "map") {
            errors.push(ValidationError::not_supported(
                child("x-kubernetes-list-type"),
                list_type,
                ["atomic", "set", "map"],
            ));
        }
    }
    if !keys.is_empty() {
        let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
        match list_type {
            None => errors.push(ValidationError::required(child("x-kubernetes-list-type"), detail)),
            Some("map") => {}
            Some(other) => {
                errors.push(ValidationError::invalid(child("x-kubernetes-list-type"), other, detail))
            }
        }
    }
    if list_type == Some("map") {
        if keys.is_empty() {
            errors.push(ValidationError::required(
                child("x-kubernetes-list-map-keys"),
                "must not be empty if x-kubernetes-list-type is map",
            ));
        }
        match items {
            None if s.get("items").is_none() => errors.push(ValidationError::required(
                child("items"),
                "must have a schema if x-kubernetes-list-type is map",
            )),
            None => errors.push(ValidationError::invalid(
                child("items"),
                s.get("items").cloned().unwrap_or_default(),
                "must only have a single schema if x-kubernetes-list-type is map",
            )),
            Some(items) if items.text("type") != "object" => {
                errors.push(ValidationError::invalid(
                    items_at.child("type").to_string(),
                    items.text("type"),
                    "must be object if parent array's x-kubernetes-list-type is map",
                ));
            }
            Some(items) => check_keys_of_map(items, keys, at, errors),
        }
    }
    if let (Some(list_type @ ("set" | "map")), Some(items)) = (list_type, items) {
        if items.flag("nullable") {
            errors.push(ValidationError::forbidden(
                items_at.child("nullable").to_string(),
                format!("cannot be nullable when x-kubernetes-list-type is {list_type}"),
            ));
        }
        if list_type == "map" {
            let properties_at = items_at.child("properties");
            for key in keys.iter().filter_map(Value::as_str) {
                let Some(property) = items.property(key) else { continue };
                if !items.list("required").iter().any(|r| r == key) && property.get("default").is_none() {
                    let detail = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
                    errors.push(ValidationError::required(
                        properties_at.key(key).child("default").to_string(),
                        detail,
                    ));
                }
                if property.flag("nullable") {
                    let detail = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
                    errors.push(ValidationError::forbidden(
                        properties_at.key(key).child("nullable").to_string(),
                        detail,
                    ));
                }
            }
        }
    }
}

fn check_keys_of_map(items: Raw<'_>, keys: &[Value], at: &ValuePath<'_>, errors: &mut Vec<ValidationError>) {
    let keys_at = at.child("x-kubernetes-list-map-keys").to_string();
    for (i, key) in keys.iter().enumerate() {
        let name = key.as_str().unwrap_or_default();
        match items.property(name) {
            Some(property) if matches!(property.text("type"), "array" | "object") => {
                let items_at = at.child("items");
                let field = items_at.child("properties").key(name).child("type").to_string();
                errors.push(ValidationError::invalid(
                    field,
                    items.text("type"),
                    "must be a scalar type if parent array's x-kubernetes-list-type is map",
                ));
            }
            Some(_) => {}
            None => errors.push(ValidationError::invalid(
                keys_at.as_str(),
                Value::from(keys),
                "entries must all be names of item properties",
            )),
        }
        if keys[..i].contains(key) {
            errors.push(ValidationError::invalid(
                keys_at.as_str(),
                Value::from(keys),
                "must not contain duplicate entries",
            ));
        }
    }
}

fn check_rules(s: Raw<'_>, at: &ValuePath<'_>, errors: &mut Vec<ValidationError>) {
    let rules_at = at.child("x-kubernetes-validations");
    for (i, rule) in s.list("x-kubernetes-validations").iter().enumerate() {
        let here = rules_at.index(i);
        let field = |name: &str| here.child(name).to_string();
        let text = |name: &str| rule.get(name).and_then(Value::as_str).unwrap_or_default();
        let breaks = |s: &str| s.contains(['\n', '\r']);
        let (expression, message) = (text("rule").trim(), text("message"));
        if expression.is_empty() {
            errors.push(ValidationError::required(field("rule"), "rule is not specified"));
        } else if !message.is_empty() && message.trim().is_empty() {
            errors.push(ValidationError::invalid(
                field("message"),
                message,
                "must be non-empty if specified",
            ));
        } else if breaks(message.trim()) {
            errors.push(ValidationError::invalid(field("message"), message, "must not contain line breaks"));
        } else if breaks(expression) && message.trim().is_empty() {
            errors.push(ValidationError::required(
                field("message"),
                "message must be specified if rule contains line breaks",
            ));
        }
        let expression = text("messageExpression");
        if !expression.is_empty() && expression.trim().is_empty() {
            errors.push(ValidationError::required(
                field("messageExpression"),
                "messageExpression must be non-empty if specified",
            ));
        }
        if let Some(reason) = rule.get("reason").and_then(Value::as_str).filter(|r| !RULE_REASONS.contains(r))
        {
            errors.push(ValidationError::not_supported(field("reason"), reason, RULE_REASONS));
        }
        let path = text("fieldPath");
        if !path.is_empty() && path.trim().is_empty() {
            errors.push(ValidationError::invalid(field("fieldPath"), path, "must be non-empty if specified"));
        }
        if breaks(path) {
            errors.push(ValidationError::invalid(field("fieldPath"), path, "must not contain line breaks"));
        }
        if !path.is_empty()
            && Node::parse(&s.value()).is_ok_and(|node| super::field_path::parse(path, &node).is_err())
        {
            errors.push(ValidationError::invalid(field("fieldPath"), path, "must be a valid path"));
        }
    }
}

/// The position of a default, as far as its validation depends on it.
#[derive(Default, Clone, Copy)]
struct DefaultContext {
    inside_meta: bool,
}

/// Defaults must match their own schema, have no unknown fields, and form valid embedded resources.
fn check_defaults(
    node: &Node,
    at: &ValuePath<'_>,
    context: DefaultContext,
    root: bool,
    errors: &mut Vec<ValidationError>,
) {
    if !node.has_defaults {
        return;
    }
    let mut context = context;
    if node.embedded || root {
        context.inside_meta = false;
    }
    if let Some(default) = node.default_value() {
        let here = at.child("default");
        let place = here.to_string();
        if !context.inside_meta {
            let mut pruned = default.clone();
            prune_and_default::prune(node, &mut pruned, node.embedded || root, None);
            if &pruned != default {
                errors.push(ValidationError::invalid(
                    place.as_str(),
                    default.clone(),
                    "must not have unknown fields",
                ));
            }
        }
        let mut coerced = default.clone();
        let mut structural_errors = Vec::new();
        match meta::coerce_embedded(node, &mut coerced, &mut None) {
            Err(error) => structural_errors.push(error),
            Ok(()) => meta::check_embedded(node, default, &here, &mut structural_errors),
        }
        if structural_errors.is_empty() {
            structural_errors = validate::create(node, default, &place);
        }
        if structural_errors.is_empty() {
            structural_errors = cel::validate_at(node, default, &here);
        }
        errors.extend(structural_errors);
    }
    if let Some(items) = node.items.as_deref() {
        check_defaults(items, &at.child("items"), context, false, errors);
    }
    let properties_at = at.child("properties");
    for (name, property) in &node.properties {
        let mut below = context;
        if (node.embedded || root) && matches!(&**name, "metadata" | "apiVersion" | "kind") {
            below.inside_meta = true;
        }
        check_defaults(property, &properties_at.key(name), below, false, errors);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn messages(schema: Value) -> Vec<String> {
        check(&schema, "s", false).1.iter().map(ToString::to_string).collect()
    }

    fn with(property: Value) -> Value {
        json!({"type": "object", "properties": {"spec": property}})
    }

    #[test]
    fn keys_and_list_types_are_validated() {
        let cases = [
            (
                with(json!({"type": "strange"})),
                "s.properties[spec].type: Unsupported value: \"strange\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\"",
            ),
            (
                with(json!({"type": "string", "$ref": "#/x"})),
                "s.properties[spec].$ref: Forbidden: $ref is not supported",
            ),
            (
                with(json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true})),
                "s.properties[spec].uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
            ),
            (
                with(json!({"type": "array", "items": [{"type": "string"}]})),
                "s.properties[spec].items: Forbidden: items must be a schema object and not an array",
            ),
            (
                with(
                    json!({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "string"}}),
                ),
                "s.properties[spec].additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive",
            ),
            (
                with(json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "bag"})),
                "s.properties[spec].x-kubernetes-list-type: Unsupported value: \"bag\": supported values: \"atomic\", \"set\", \"map\"",
            ),
            (
                with(json!({"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "map"})),
                "s.properties[spec].x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map",
            ),
            (
                with(
                    json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["n"], "items": {"type": "object", "properties": {"n": {"type": "string"}}}}),
                ),
                "s.properties[spec].items.properties[n].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
            ),
            (
                with(
                    json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["n"], "items": {"type": "object"}}),
                ),
                "s.properties[spec].x-kubernetes-list-map-keys: Invalid value: [\"n\"]: entries must all be names of item properties",
            ),
            (
                with(json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "object"}})),
                "s.properties[spec].items.x-kubernetes-map-type: Invalid value: null: must be atomic as item of a list with x-kubernetes-list-type=set",
            ),
            (
                with(json!({"type": "string", "x-kubernetes-map-type": "atomic"})),
                "s.properties[spec].type: Invalid value: \"string\": must be object if x-kubernetes-map-type is specified",
            ),
            (
                with(json!({"type": "object", "x-kubernetes-validations": [{"rule": " "}]})),
                "s.properties[spec].x-kubernetes-validations[0].rule: Required value: rule is not specified",
            ),
            (
                json!({"type": "object", "properties": {"metadata": {"type": "object", "default": {}}}}),
                "s.properties[metadata].default: Forbidden: must not be set in top-level metadata",
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
    fn defaults_must_match_their_schema() {
        assert_eq!(
            messages(with(json!({"type": "string", "default": 5}))),
            [
                "s.properties[spec].default: Invalid value: \"integer\":  in body must be of type string: \"integer\""
            ]
        );
        assert_eq!(
            messages(with(json!({"type": "object", "default": {"a": 1}}))),
            ["s.properties[spec].default: Invalid value: {\"a\":1}: must not have unknown fields"]
        );
        assert!(
            messages(with(
                json!({"type": "object", "default": {"a": "x"}, "properties": {"a": {"type": "string"}}})
            ))
            .is_empty()
        );
    }

    #[test]
    fn the_root_allows_fewer_keys_when_status_is_a_subresource() {
        let (_, errors) = check(&json!({"type": "object", "anyOf": [{"required": ["spec"]}]}), "s", true);
        assert!(errors[0].detail.starts_with("only [Description Type"), "{errors:?}");
        let (node, errors) =
            check(&json!({"type": "object", "properties": {"status": {"type": "object"}}}), "s", true);
        assert!(errors.is_empty() && node.is_some());
    }
}
