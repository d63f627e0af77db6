//! The parsed form of a CRD's OpenAPI schema: one tree per CRD version, shared by every plane.
//!
//! One node type serves both the structure (properties, items, defaults) and the branches under `allOf`,
//! `anyOf`, `oneOf` and `not`, because validation treats them alike. Rare keys are boxed, so a plain string
//! field costs little more than its name.

use std::sync::OnceLock;

use serde_json::{Map, Value};

use super::pattern;
use super::value_path::ValuePath;
use crate::cel::CompiledRule;
use crate::error::ValidationError;
use crate::format::StringFormat;

/// Maximum nesting of a schema. Known schemas stay below a third of it.
pub(crate) const DEPTH_MAX: usize = 120;

/// The `type` of a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum JsonType {
    /// `type` is not given.
    #[default]
    Any,
    /// `object`
    Object,
    /// `array`
    Array,
    /// `string`
    String,
    /// `integer`
    Integer,
    /// `number`
    Number,
    /// `boolean`
    Boolean,
}

impl JsonType {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "" => Self::Any,
            "object" => Self::Object,
            "array" => Self::Array,
            "string" => Self::String,
            "integer" => Self::Integer,
            "number" => Self::Number,
            "boolean" => Self::Boolean,
            _ => return None,
        })
    }

    /// The name in a schema; empty for [`JsonType::Any`].
    pub fn name(self) -> &'static str {
        match self {
            Self::Any => "",
            Self::Object => "object",
            Self::Array => "array",
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
        }
    }
}

/// `x-kubernetes-list-type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ListType {
    /// The list is replaced as a whole; the default.
    #[default]
    Atomic,
    /// Unique scalars.
    Set,
    /// Objects, identified by their key fields.
    Map,
}

/// `additionalProperties`: the entries a map accepts besides its named properties.
#[derive(Debug, Default)]
pub enum AdditionalProperties {
    /// `additionalProperties` is not given: unknown fields are pruned.
    #[default]
    Unspecified,
    /// `additionalProperties: true`
    Any,
    /// `additionalProperties: false`
    Nothing,
    /// `additionalProperties: {…}`
    Schema(Box<Node>),
}

/// One rule of `x-kubernetes-validations`.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The CEL expression.
    pub rule: String,
    /// The error message when the rule is false.
    pub message: String,
    /// A CEL expression that computes the message.
    pub message_expression: String,
    /// `FieldValueInvalid` unless given.
    pub reason: Option<String>,
    /// The field that the error names, relative to the node.
    pub field_path: String,
    /// With `true`, `oldSelf` is optional and the rule runs on creation too.
    pub optional_old_self: Option<bool>,
}

/// A compiled `pattern` with its source for messages.
#[derive(Debug)]
pub struct Pattern {
    /// The pattern in the schema.
    pub source: Box<str>,
    /// `None` if the pattern does not compile: then nothing matches, as in kube-apiserver.
    pub regex: Option<regex::Regex>,
}

/// Value validations: bounds, formats, enums and branches. A node without any has no `Checks`.
#[derive(Debug, Default)]
pub struct Checks {
    /// The enforced format and its name in messages.
    pub format: Option<(StringFormat, Box<str>)>,
    /// `maximum` and whether it is exclusive.
    pub maximum: Option<(f64, bool)>,
    /// `minimum` and whether it is exclusive.
    pub minimum: Option<(f64, bool)>,
    /// `maxLength`, in characters.
    pub max_length: Option<i64>,
    /// `minLength`, in characters.
    pub min_length: Option<i64>,
    /// `pattern`
    pub pattern: Option<Pattern>,
    /// `maxItems`
    pub max_items: Option<i64>,
    /// `minItems`
    pub min_items: Option<i64>,
    /// `uniqueItems`
    pub unique_items: bool,
    /// `multipleOf`
    pub multiple_of: Option<f64>,
    /// `enum`; empty means anything.
    pub allowed: Box<[Value]>,
    /// `maxProperties`
    pub max_properties: Option<i64>,
    /// `minProperties`
    pub min_properties: Option<i64>,
    /// `required`
    pub required: Box<[Box<str>]>,
    /// `allOf`
    pub all_of: Box<[Node]>,
    /// `anyOf`
    pub any_of: Box<[Node]>,
    /// `oneOf`
    pub one_of: Box<[Node]>,
    /// `not`
    pub not: Option<Box<Node>>,
}

/// Keys that only few nodes have.
#[derive(Debug, Default)]
pub struct Extras {
    /// `default`
    pub default: Option<Value>,
    /// `x-kubernetes-list-map-keys`
    pub map_keys: Box<[Box<str>]>,
    /// `x-kubernetes-validations`
    pub rules: Box<[Rule]>,
    /// The rules, compiled on first use.
    compiled: OnceLock<Box<[CompiledRule]>>,
}

/// One node of the schema.
#[derive(Debug, Default)]
pub struct Node {
    /// `type`
    pub json_type: JsonType,
    /// `nullable`
    pub nullable: bool,
    /// `x-kubernetes-preserve-unknown-fields`
    pub preserve_unknown: bool,
    /// `x-kubernetes-embedded-resource`
    pub embedded: bool,
    /// `x-kubernetes-int-or-string`
    pub int_or_string: bool,
    /// `x-kubernetes-map-type: atomic`
    pub atomic_map: bool,
    /// `x-kubernetes-list-type`
    pub list_type: ListType,
    /// This node or a descendant has rules.
    pub has_rules: bool,
    /// This node or a descendant has a default.
    pub has_defaults: bool,
    /// This node or a descendant is a set or map list.
    pub has_lists: bool,
    /// This node or a descendant is an embedded resource.
    pub has_embedded: bool,
    /// `properties`, sorted by name.
    pub properties: Box<[(Box<str>, Node)]>,
    /// `items`
    pub items: Option<Box<Node>>,
    /// `additionalProperties`
    pub additional: AdditionalProperties,
    /// Bounds on values.
    pub checks: Option<Box<Checks>>,
    /// Keys that only few nodes have.
    pub extras: Option<Box<Extras>>,
}

impl Node {
    /// Parses `openAPIV3Schema` or a part of it. A key that the API type cannot decode is an error.
    /// [`super::structural`] checks whether the schema is structural.
    pub fn parse(raw: &Value) -> Result<Self, ValidationError> {
        Parser { depth: 0 }.node(raw, &ValuePath::Root)
    }

    /// The schema of the property `name`.
    pub fn property(&self, name: &str) -> Option<&Node> {
        self.properties.binary_search_by(|(n, _)| (**n).cmp(name)).ok().map(|i| &self.properties[i].1)
    }

    /// The schema of `additionalProperties`, if it is a schema.
    pub fn additional_schema(&self) -> Option<&Node> {
        match &self.additional {
            AdditionalProperties::Schema(node) => Some(node),
            _ => None,
        }
    }

    /// The schema of the field `name`, named or additional.
    pub fn field(&self, name: &str) -> Option<&Node> {
        self.property(name).or_else(|| self.additional_schema())
    }

    /// `default`
    pub fn default_value(&self) -> Option<&Value> {
        self.extras.as_ref()?.default.as_ref()
    }

    /// `x-kubernetes-list-map-keys`
    pub fn map_keys(&self) -> &[Box<str>] {
        self.extras.as_ref().map_or(&[], |e| &e.map_keys)
    }

    /// `x-kubernetes-validations`
    pub fn rules(&self) -> &[Rule] {
        self.extras.as_ref().map_or(&[], |e| &e.rules)
    }

    /// The compiled rules.
    pub(crate) fn compiled_rules(&self) -> &[CompiledRule] {
        match &self.extras {
            Some(extras) => extras
                .compiled
                .get_or_init(|| extras.rules.iter().map(|rule| CompiledRule::of(rule, self)).collect()),
            None => &[],
        }
    }

    /// The names in `required`.
    pub fn required(&self) -> &[Box<str>] {
        self.checks.as_ref().map_or(&[], |c| &c.required)
    }
}

struct Parser {
    depth: usize,
}

/// Typed access to the keys of a schema object. A key of another JSON type is an error.
struct Fields<'a> {
    map: &'a Map<String, Value>,
    at: &'a ValuePath<'a>,
}

impl<'a> Fields<'a> {
    fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|v| !v.is_null())
    }

    fn wrong<T>(&self, name: &str, value: &Value, wanted: &str) -> Result<T, ValidationError> {
        Err(ValidationError::type_invalid(
            self.at.child(name).to_string(),
            value.clone(),
            format!("must be {wanted}"),
        ))
    }

    fn text(&self, name: &str) -> Result<&'a str, ValidationError> {
        match self.get(name) {
            None => Ok(""),
            Some(Value::String(s)) => Ok(s),
            Some(other) => self.wrong(name, other, "a string"),
        }
    }

    fn flag(&self, name: &str) -> Result<bool, ValidationError> {
        match self.get(name) {
            None => Ok(false),
            Some(Value::Bool(b)) => Ok(*b),
            Some(other) => self.wrong(name, other, "a boolean"),
        }
    }

    fn number(&self, name: &str) -> Result<Option<f64>, ValidationError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Number(n)) => Ok(n.as_f64()),
            Some(other) => self.wrong(name, other, "a number"),
        }
    }

    fn count(&self, name: &str) -> Result<Option<i64>, ValidationError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Number(n)) if n.is_i64() || n.is_u64() => Ok(Some(n.as_i64().unwrap_or(i64::MAX))),
            Some(other) => self.wrong(name, other, "an integer"),
        }
    }

    fn list(&self, name: &str) -> Result<&'a [Value], ValidationError> {
        match self.get(name) {
            None => Ok(&[]),
            Some(Value::Array(items)) => Ok(items),
            Some(other) => self.wrong(name, other, "a list"),
        }
    }

    fn texts(&self, name: &str) -> Result<Box<[Box<str>]>, ValidationError> {
        self.list(name)?
            .iter()
            .map(|v| match v {
                Value::String(s) => Ok(s.as_str().into()),
                other => self.wrong(name, other, "a list of strings"),
            })
            .collect()
    }

    fn object(&self, name: &str) -> Result<Option<&'a Map<String, Value>>, ValidationError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(other) => self.wrong(name, other, "an object"),
        }
    }
}

impl Parser {
    fn node(&mut self, raw: &Value, at: &ValuePath<'_>) -> Result<Node, ValidationError> {
        let Value::Object(map) = raw else {
            return Err(ValidationError::type_invalid(at.field(), raw.clone(), "must be an object"));
        };
        if self.depth == DEPTH_MAX {
            return Err(ValidationError::forbidden(
                at.field(),
                format!("must not be nested deeper than {DEPTH_MAX}"),
            ));
        }
        self.depth += 1;
        let node = self.inner(&Fields { map, at });
        self.depth -= 1;
        node
    }

    fn inner(&mut self, f: &Fields<'_>) -> Result<Node, ValidationError> {
        let at = f.at;
        let kind_name = f.text("type")?;
        let mut node = Node {
            json_type: JsonType::named(kind_name).unwrap_or_default(),
            nullable: f.flag("nullable")?,
            preserve_unknown: f.flag("x-kubernetes-preserve-unknown-fields")?,
            embedded: f.flag("x-kubernetes-embedded-resource")?,
            int_or_string: f.flag("x-kubernetes-int-or-string")?,
            atomic_map: f.text("x-kubernetes-map-type")? == "atomic",
            list_type: match f.text("x-kubernetes-list-type")? {
                "set" => ListType::Set,
                "map" => ListType::Map,
                _ => ListType::Atomic,
            },
            ..Node::default()
        };
        if let Some(properties) = f.object("properties")? {
            let here = at.child("properties");
            node.properties = properties
                .iter()
                .map(|(name, raw)| Ok((name.as_str().into(), self.node(raw, &here.key(name))?)))
                .collect::<Result<_, ValidationError>>()?;
        }
        match f.get("items") {
            Some(items @ Value::Object(_)) => {
                node.items = Some(Box::new(self.node(items, &at.child("items"))?))
            }
            Some(other @ Value::Array(_)) => {
                return Err(ValidationError::new(
                    crate::error::ValidationErrorKind::Forbidden,
                    at.child("items").to_string(),
                    Some(other.clone()),
                    "items must be a schema object and not an array",
                ));
            }
            Some(other) => return f.wrong("items", other, "an object"),
            None => {}
        }
        node.additional = match f.get("additionalProperties") {
            None => AdditionalProperties::Unspecified,
            Some(Value::Bool(true)) => AdditionalProperties::Any,
            Some(Value::Bool(false)) => AdditionalProperties::Nothing,
            Some(schema @ Value::Object(_)) => {
                AdditionalProperties::Schema(Box::new(self.node(schema, &at.child("additionalProperties"))?))
            }
            Some(other) => return f.wrong("additionalProperties", other, "an object or a boolean"),
        };
        let checks = self.checks(f)?;
        let extras = Extras {
            default: f.get("default").cloned(),
            map_keys: f.texts("x-kubernetes-list-map-keys")?,
            rules: rules(f)?,
            compiled: OnceLock::new(),
        };
        let own_list = node.json_type == JsonType::Array && node.list_type != ListType::Atomic;
        let has_default = extras.default.is_some();
        let has_rules = !extras.rules.is_empty();
        if has_default || has_rules || !extras.map_keys.is_empty() {
            node.extras = Some(Box::new(extras));
        }
        node.checks = checks.map(Box::new);
        let below = |test: fn(&Node) -> bool| {
            node.properties.iter().any(|(_, n)| test(n))
                || node.items.as_deref().is_some_and(test)
                || node.additional_schema().is_some_and(test)
        };
        let (rules_below, defaults_below) = (below(|n| n.has_rules), below(|n| n.has_defaults));
        let (lists_below, embedded_below) = (below(|n| n.has_lists), below(|n| n.has_embedded));
        node.has_rules = has_rules || rules_below;
        node.has_defaults = has_default || defaults_below;
        node.has_lists = own_list || lists_below;
        node.has_embedded = node.embedded || embedded_below;
        Ok(node)
    }

    fn checks(&mut self, f: &Fields<'_>) -> Result<Option<Checks>, ValidationError> {
        let source = f.text("pattern")?;
        let format = f.text("format")?;
        let checks = Checks {
            format: StringFormat::named(format).map(|known| (known, format.into())),
            maximum: f.number("maximum")?.map(|n| Ok((n, f.flag("exclusiveMaximum")?))).transpose()?,
            minimum: f.number("minimum")?.map(|n| Ok((n, f.flag("exclusiveMinimum")?))).transpose()?,
            max_length: f.count("maxLength")?,
            min_length: f.count("minLength")?,
            pattern: (!source.is_empty())
                .then(|| Pattern { source: source.into(), regex: pattern::compile(source).ok() }),
            max_items: f.count("maxItems")?,
            min_items: f.count("minItems")?,
            unique_items: f.flag("uniqueItems")?,
            multiple_of: f.number("multipleOf")?,
            allowed: f.list("enum")?.into(),
            max_properties: f.count("maxProperties")?,
            min_properties: f.count("minProperties")?,
            required: f.texts("required")?,
            all_of: self.branches(f, "allOf")?,
            any_of: self.branches(f, "anyOf")?,
            one_of: self.branches(f, "oneOf")?,
            not: f.get("not").map(|raw| self.node(raw, &f.at.child("not")).map(Box::new)).transpose()?,
        };
        let empty = checks.format.is_none()
            && checks.maximum.is_none()
            && checks.minimum.is_none()
            && checks.max_length.is_none()
            && checks.min_length.is_none()
            && checks.pattern.is_none()
            && checks.max_items.is_none()
            && checks.min_items.is_none()
            && !checks.unique_items
            && checks.multiple_of.is_none()
            && checks.allowed.is_empty()
            && checks.max_properties.is_none()
            && checks.min_properties.is_none()
            && checks.required.is_empty()
            && checks.all_of.is_empty()
            && checks.any_of.is_empty()
            && checks.one_of.is_empty()
            && checks.not.is_none();
        Ok((!empty).then_some(checks))
    }

    fn branches(&mut self, f: &Fields<'_>, name: &str) -> Result<Box<[Node]>, ValidationError> {
        let here = f.at.child(name);
        f.list(name)?.iter().enumerate().map(|(i, raw)| self.node(raw, &here.index(i))).collect()
    }
}

fn rules(f: &Fields<'_>) -> Result<Box<[Rule]>, ValidationError> {
    let list = f.list("x-kubernetes-validations")?;
    let here = f.at.child("x-kubernetes-validations");
    list.iter()
        .enumerate()
        .map(|(i, raw)| {
            let at = here.index(i);
            let Value::Object(map) = raw else {
                return Err(ValidationError::type_invalid(at.to_string(), raw.clone(), "must be an object"));
            };
            let f = Fields { map, at: &at };
            Ok(Rule {
                rule: f.text("rule")?.to_owned(),
                message: f.text("message")?.to_owned(),
                message_expression: f.text("messageExpression")?.to_owned(),
                reason: Some(f.text("reason")?.to_owned()).filter(|r| !r.is_empty()),
                field_path: f.text("fieldPath")?.to_owned(),
                optional_old_self: f.get("optionalOldSelf").map(|_| f.flag("optionalOldSelf")).transpose()?,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_schema_becomes_a_tree_with_its_properties_in_order() {
        let node = Node::parse(&json!({
            "type": "object",
            "required": ["spec"],
            "properties": {
                "spec": {"type": "object", "properties": {"b": {"type": "string", "default": "x"}, "a": {"type": "integer", "minimum": 1}}},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": {"type": "object"}},
            }
        }))
        .unwrap();
        assert_eq!(node.required(), ["spec".into()]);
        assert_eq!(node.property("spec").unwrap().property("b").unwrap().default_value(), Some(&json!("x")));
        assert_eq!(node.property("labels").unwrap().field("anything").unwrap().json_type, JsonType::String);
        assert_eq!(node.property("ports").unwrap().map_keys(), ["name".into()]);
        assert!(node.has_defaults && node.has_lists && !node.has_rules);
        assert!(node.property("labels").unwrap().checks.is_none());
    }

    #[test]
    fn a_key_of_the_wrong_type_is_reported_with_its_path() {
        let error = Node::parse(&json!({"properties": {"spec": {"type": 5}}})).unwrap_err();
        assert_eq!(error.to_string(), "properties[spec].type: Invalid value: 5: must be a string");
        let error = Node::parse(&json!({"items": [{"type": "string"}]})).unwrap_err();
        assert_eq!(error.to_string(), "items: Forbidden: items must be a schema object and not an array");
    }

    #[test]
    fn a_schema_nested_too_deeply_is_rejected() {
        let mut raw = json!({"type": "string"});
        for _ in 0..DEPTH_MAX {
            raw = json!({"type": "object", "properties": {"a": raw}});
        }
        assert!(Node::parse(&raw).unwrap_err().detail.contains("nested deeper"));
    }
}
