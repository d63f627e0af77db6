//! Is the `openAPIV3Schema` of a CRD fit to serve objects by? Asked once, when the CRD is written.
//!
//! On top of [`super::structural`]: keys that Kubernetes does not support, the rules of list and map types, and defaults
//! that the schema itself would refuse.

use serde_json::Value;

use super::cel;
use super::error::FieldError;
use super::meta;
use super::node::Node;
use super::path::Path;
use super::shape;
use super::structural::{self, Raw};
use super::validate;

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
const RULE_REASONS: [&str; 4] =
    ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

/// What may stand beside `properties` at the root when `status` is a subresource, in the spelling of the message.
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

/// Complaints about a schema. `at` is the place of `openAPIV3Schema` itself, e.g.
/// `spec.versions[0].schema.openAPIV3Schema`. An empty answer comes with the parsed schema.
pub fn check(schema: &Value, at: &str, status_subresource: bool) -> (Option<Node>, Vec<FieldError>) {
    let here = Path::At(at);
    let raw = Raw::new(schema);
    let mut wrong = Vec::new();
    if status_subresource {
        let kind = raw.text("type");
        if !kind.is_empty() && kind != "object" {
            let detail = "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
            wrong.push(FieldError::invalid(format!("{at}.type"), kind, detail));
        } else if raw.said().any(|key| {
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
            wrong.push(FieldError::invalid(at, schema.clone(), detail));
        }
    }
    if raw.flag("nullable") {
        wrong.push(FieldError::forbidden(format!("{at}.nullable"), "nullable cannot be true at the root"));
    }
    let parsed = Node::parse(schema).map_err(|mut error| {
        error.field = if error.field == "<nil>" { at.to_owned() } else { format!("{at}.{}", error.field) };
        error
    });
    let mut standing = Standing::default();
    match &parsed {
        Ok(node) => {
            // A reference leads out of what can be judged; that it is there is said below.
            let refers = refers(raw);
            let complaints = if refers { Vec::new() } else { structural::check(schema, &here) };
            let unstructural = refers || !complaints.is_empty();
            wrong.extend(complaints);
            if !unstructural {
                check_defaults(node, &here, Surroundings::default(), true, &mut wrong);
            }
        }
        Err(error) if error.detail == "items must be a schema object and not an array" => {}
        Err(error) => wrong.push(error.clone()),
    }
    check_keys(raw, &here, true, &mut standing, &mut wrong);
    if wrong.is_empty()
        && let Ok(node) = &parsed
    {
        wrong.extend(cel::check_definition(node, at));
    }
    if wrong.is_empty()
        && let Err(error) = &parsed
    {
        wrong.push(error.clone());
    }
    (parsed.ok(), wrong)
}

/// Whether a schema, or one within it, is only a reference to another.
fn refers(s: Raw<'_>) -> bool {
    s.get("$ref").is_some()
        || s.properties().any(|(_, property)| refers(property))
        || ["items", "not", "additionalProperties"].iter().filter_map(|key| s.child(key)).any(refers)
        || ["allOf", "anyOf", "oneOf"]
            .iter()
            .any(|key| s.list(key).iter().any(|branch| refers(Raw::new(branch))))
}

/// What the place of a schema allows.
#[derive(Default, Clone)]
struct Standing {
    no_defaults: Option<String>,
    inside_meta: bool,
}

fn check_keys(s: Raw<'_>, at: &Path<'_>, root: bool, standing: &mut Standing, wrong: &mut Vec<FieldError>) {
    check_supported(s, at, standing, wrong);
    let child = |name: &str| at.child(name).to_string();
    if s.flag("uniqueItems") {
        wrong.push(FieldError::forbidden(
            child("uniqueItems"),
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        ));
    }
    if let Some(additional) = s.get("additionalProperties") {
        if s.properties().next().is_some() && additional != &Value::Bool(true) {
            wrong.push(FieldError::forbidden(
                child("additionalProperties"),
                "additionalProperties and properties are mutual exclusive",
            ));
        }
        if let Some(schema) = s.child("additionalProperties") {
            let mut below = standing.clone();
            if below.inside_meta {
                below.no_defaults =
                    Some("inside additionalProperties applying to object metadata".to_owned());
            }
            check_keys(schema, &at.child("additionalProperties"), false, &mut below, wrong);
        }
    }
    let properties_at = at.child("properties");
    for (name, property) in s.properties() {
        let mut below = standing.clone();
        if (root || s.flag("x-kubernetes-embedded-resource"))
            && matches!(name, "metadata" | "kind" | "apiVersion")
        {
            below.inside_meta = true;
            if root {
                below.no_defaults = Some(format!("in top-level {name}"));
            }
        }
        check_keys(property, &properties_at.key(name), false, &mut below, wrong);
    }
    if let Some(not) = s.child("not") {
        check_keys(not, &at.child("not"), false, standing, wrong);
    }
    for key in ["allOf", "oneOf", "anyOf"] {
        let here = at.child(key);
        for (i, branch) in s.list(key).iter().enumerate() {
            check_keys(Raw::new(branch), &here.index(i), false, standing, wrong);
        }
    }
    if let Some(items) = s.child("items") {
        check_keys(items, &at.child("items"), false, standing, wrong);
    }
    if s.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false)) {
        wrong.push(FieldError::invalid(
            child("x-kubernetes-preserve-unknown-fields"),
            false,
            "must be true or undefined",
        ));
    }
    check_map_type(s, at, wrong);
    check_list_type(s, at, wrong);
    check_rules(s, at, wrong);
}

fn check_supported(s: Raw<'_>, at: &Path<'_>, standing: &Standing, wrong: &mut Vec<FieldError>) {
    let child = |name: &str| at.child(name).to_string();
    let kind = s.text("type");
    if !kind.is_empty() && !TYPES.contains(&kind) {
        wrong.push(FieldError::not_supported(child("type"), kind, TYPES));
    }
    if s.get("default").is_some()
        && let Some(why) = &standing.no_defaults
    {
        wrong.push(FieldError::forbidden(child("default"), format!("must not be set {why}")));
    }
    if !s.text("id").is_empty() {
        wrong.push(FieldError::forbidden(child("id"), "id is not supported"));
    }
    for key in ["additionalItems", "patternProperties", "definitions", "dependencies", "$ref"] {
        if s.get(key).is_some_and(|v| {
            key == "$ref"
                || key == "dependencies"
                || key == "additionalItems"
                || v.as_object().is_some_and(|m| !m.is_empty())
        }) {
            wrong.push(FieldError::forbidden(child(key), format!("{key} is not supported")));
        }
    }
    if kind == "null" {
        wrong.push(FieldError::forbidden(
            child("type"),
            "type cannot be set to null, use nullable as an alternative",
        ));
    }
    if s.get("items").is_some_and(Value::is_array) {
        wrong.push(FieldError::forbidden(child("items"), "items must be a schema object and not an array"));
    }
    if standing.inside_meta && s.flag("x-kubernetes-embedded-resource") {
        wrong.push(FieldError::forbidden(
            child("x-kubernetes-embedded-resource"),
            "must not be used inside of resource meta",
        ));
    }
}

fn check_map_type(s: Raw<'_>, at: &Path<'_>, wrong: &mut Vec<FieldError>) {
    let Some(map_type) = s.get("x-kubernetes-map-type").and_then(Value::as_str) else { return };
    let kind = s.text("type");
    if kind != "object" {
        let (field, detail) =
            (at.child("type").to_string(), "must be object if x-kubernetes-map-type is specified");
        wrong.push(if kind.is_empty() {
            FieldError::required(field, detail)
        } else {
            FieldError::invalid(field, kind, detail)
        });
    }
    if !matches!(map_type, "atomic" | "granular") {
        wrong.push(FieldError::not_supported(
            at.child("x-kubernetes-map-type").to_string(),
            map_type,
            ["atomic", "granular"],
        ));
    }
}

fn check_list_type(s: Raw<'_>, at: &Path<'_>, wrong: &mut Vec<FieldError>) {
    let child = |name: &str| at.child(name).to_string();
    let list_type = s.get("x-kubernetes-list-type").and_then(Value::as_str);
    let keys = s.list("x-kubernetes-list-map-keys");
    let kind = s.text("type");
    let items = s.child("items");
    let items_at = at.child("items");
    if let Some(list_type) = list_type {
        if kind != "array" {
            let detail = "must be array if x-kubernetes-list-type is specified";
            wrong.push(if kind.is_empty() {
                FieldError::required(child("type"), detail)
            } else {
                FieldError::invalid(child("type"), kind, detail)
            });
        } else if list_type == "set"
            && let Some(items) = items
        {
            let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
            let (inner_list, inner_map) =
                (items.get("x-kubernetes-list-type"), items.text("x-kubernetes-map-type"));
            if items.text("type") == "array" && inner_list.is_some_and(|t| t != "atomic") {
                wrong.push(FieldError::invalid(
                    items_at.child("x-kubernetes-list-type").to_string(),
                    inner_list.cloned().unwrap_or_default(),
                    detail,
                ));
            }
            if items.text("type") == "object" && inner_map != "atomic" {
                wrong.push(FieldError::invalid(
                    items_at.child("x-kubernetes-map-type").to_string(),
                    inner_list.cloned().unwrap_or_default(),
                    detail,
                ));
            }
        }
        if !matches!(list_type, "atomic" | "set" | "map") {
            wrong.push(FieldError::not_supported(
                child("x-kubernetes-list-type"),
                list_type,
                ["atomic", "set", "map"],
            ));
        }
    }
    if !keys.is_empty() {
        let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
        match list_type {
            None => wrong.push(FieldError::required(child("x-kubernetes-list-type"), detail)),
            Some("map") => {}
            Some(other) => wrong.push(FieldError::invalid(child("x-kubernetes-list-type"), other, detail)),
        }
    }
    if list_type == Some("map") {
        if keys.is_empty() {
            wrong.push(FieldError::required(
                child("x-kubernetes-list-map-keys"),
                "must not be empty if x-kubernetes-list-type is map",
            ));
        }
        match items {
            None if s.get("items").is_none() => wrong.push(FieldError::required(
                child("items"),
                "must have a schema if x-kubernetes-list-type is map",
            )),
            None => wrong.push(FieldError::invalid(
                child("items"),
                s.get("items").cloned().unwrap_or_default(),
                "must only have a single schema if x-kubernetes-list-type is map",
            )),
            Some(items) if items.text("type") != "object" => {
                wrong.push(FieldError::invalid(
                    items_at.child("type").to_string(),
                    items.text("type"),
                    "must be object if parent array's x-kubernetes-list-type is map",
                ));
            }
            Some(items) => check_keys_of_map(items, keys, at, wrong),
        }
    }
    if let (Some(list_type @ ("set" | "map")), Some(items)) = (list_type, items) {
        if items.flag("nullable") {
            wrong.push(FieldError::forbidden(
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
                    wrong.push(FieldError::required(
                        properties_at.key(key).child("default").to_string(),
                        detail,
                    ));
                }
                if property.flag("nullable") {
                    let detail = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
                    wrong.push(FieldError::forbidden(
                        properties_at.key(key).child("nullable").to_string(),
                        detail,
                    ));
                }
            }
        }
    }
}

fn check_keys_of_map(items: Raw<'_>, keys: &[Value], at: &Path<'_>, wrong: &mut Vec<FieldError>) {
    let keys_at = at.child("x-kubernetes-list-map-keys").to_string();
    for (i, key) in keys.iter().enumerate() {
        let name = key.as_str().unwrap_or_default();
        match items.property(name) {
            Some(property) if matches!(property.text("type"), "array" | "object") => {
                let items_at = at.child("items");
                let field = items_at.child("properties").key(name).child("type").to_string();
                wrong.push(FieldError::invalid(
                    field,
                    items.text("type"),
                    "must be a scalar type if parent array's x-kubernetes-list-type is map",
                ));
            }
            Some(_) => {}
            None => wrong.push(FieldError::invalid(
                keys_at.as_str(),
                Value::from(keys),
                "entries must all be names of item properties",
            )),
        }
        if keys[..i].contains(key) {
            wrong.push(FieldError::invalid(
                keys_at.as_str(),
                Value::from(keys),
                "must not contain duplicate entries",
            ));
        }
    }
}

fn check_rules(s: Raw<'_>, at: &Path<'_>, wrong: &mut Vec<FieldError>) {
    let rules_at = at.child("x-kubernetes-validations");
    for (i, rule) in s.list("x-kubernetes-validations").iter().enumerate() {
        let here = rules_at.index(i);
        let field = |name: &str| here.child(name).to_string();
        let text = |name: &str| rule.get(name).and_then(Value::as_str).unwrap_or_default();
        let breaks = |s: &str| s.contains(['\n', '\r']);
        let (expression, message) = (text("rule").trim(), text("message"));
        if expression.is_empty() {
            wrong.push(FieldError::required(field("rule"), "rule is not specified"));
        } else if !message.is_empty() && message.trim().is_empty() {
            wrong.push(FieldError::invalid(field("message"), message, "must be non-empty if specified"));
        } else if breaks(message.trim()) {
            wrong.push(FieldError::invalid(field("message"), message, "must not contain line breaks"));
        } else if breaks(expression) && message.trim().is_empty() {
            wrong.push(FieldError::required(
                field("message"),
                "message must be specified if rule contains line breaks",
            ));
        }
        let expression = text("messageExpression");
        if !expression.is_empty() && expression.trim().is_empty() {
            wrong.push(FieldError::required(
                field("messageExpression"),
                "messageExpression must be non-empty if specified",
            ));
        }
        if let Some(reason) = rule.get("reason").and_then(Value::as_str).filter(|r| !RULE_REASONS.contains(r))
        {
            wrong.push(FieldError::not_supported(field("reason"), reason, RULE_REASONS));
        }
        let path = text("fieldPath");
        if !path.is_empty() && path.trim().is_empty() {
            wrong.push(FieldError::invalid(field("fieldPath"), path, "must be non-empty if specified"));
        }
        if breaks(path) {
            wrong.push(FieldError::invalid(field("fieldPath"), path, "must not contain line breaks"));
        }
        if !path.is_empty()
            && Node::parse(&s.value()).is_ok_and(|node| super::field_path::parse(path, &node).is_err())
        {
            wrong.push(FieldError::invalid(field("fieldPath"), path, "must be a valid path"));
        }
    }
}

/// Where a default stands, as far as it matters for judging it.
#[derive(Default, Clone, Copy)]
struct Surroundings {
    inside_meta: bool,
}

/// Defaults must fit their own schema, hold no unknown fields, and make valid embedded resources.
fn check_defaults(node: &Node, at: &Path<'_>, around: Surroundings, root: bool, wrong: &mut Vec<FieldError>) {
    if !node.has_defaults {
        return;
    }
    let mut around = around;
    if node.embedded || root {
        around.inside_meta = false;
    }
    if let Some(default) = node.default_value() {
        let here = at.child("default");
        let place = here.to_string();
        if !around.inside_meta {
            let mut pruned = default.clone();
            shape::prune(node, &mut pruned, node.embedded || root, None);
            if &pruned != default {
                wrong.push(FieldError::invalid(
                    place.as_str(),
                    default.clone(),
                    "must not have unknown fields",
                ));
            }
        }
        let mut coerced = default.clone();
        let mut complaints = Vec::new();
        match meta::coerce_embedded(node, &mut coerced, &mut None) {
            Err(error) => complaints.push(error),
            Ok(()) => meta::check_embedded(node, default, &here, &mut complaints),
        }
        if complaints.is_empty() {
            complaints = validate::create(node, default, &place);
        }
        if complaints.is_empty() {
            complaints = cel::validate_at(node, default, &here);
        }
        wrong.extend(complaints);
    }
    if let Some(items) = node.items.as_deref() {
        check_defaults(items, &at.child("items"), around, false, wrong);
    }
    let properties_at = at.child("properties");
    for (name, property) in &node.properties {
        let mut below = around;
        if (node.embedded || root) && matches!(&**name, "metadata" | "apiVersion" | "kind") {
            below.inside_meta = true;
        }
        check_defaults(property, &properties_at.key(name), below, false, wrong);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn said(schema: Value) -> Vec<String> {
        check(&schema, "s", false).1.iter().map(ToString::to_string).collect()
    }

    fn with(property: Value) -> Value {
        json!({"type": "object", "properties": {"spec": property}})
    }

    #[test]
    fn keys_and_list_types_are_judged() {
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
            assert!(said(schema.clone()).iter().any(|s| s == words), "{schema}: {:?}", said(schema.clone()));
        }
    }

    #[test]
    fn defaults_must_fit_their_schema() {
        assert_eq!(
            said(with(json!({"type": "string", "default": 5}))),
            [
                "s.properties[spec].default: Invalid value: \"integer\":  in body must be of type string: \"integer\""
            ]
        );
        assert_eq!(
            said(with(json!({"type": "object", "default": {"a": 1}}))),
            ["s.properties[spec].default: Invalid value: {\"a\":1}: must not have unknown fields"]
        );
        assert!(
            said(with(
                json!({"type": "object", "default": {"a": "x"}, "properties": {"a": {"type": "string"}}})
            ))
            .is_empty()
        );
    }

    #[test]
    fn the_root_is_plain_when_status_is_a_subresource() {
        let (_, wrong) = check(&json!({"type": "object", "anyOf": [{"required": ["spec"]}]}), "s", true);
        assert!(wrong[0].detail.starts_with("only [Description Type"), "{wrong:?}");
        let (node, wrong) =
            check(&json!({"type": "object", "properties": {"status": {"type": "object"}}}), "s", true);
        assert!(wrong.is_empty() && node.is_some());
    }
}
