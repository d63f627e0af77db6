//! The compact tree that a CRD's OpenAPI schema is parsed into, once per CRD version and shared by every plane.
//!
//! One node type serves both the structure (properties, items, defaults) and the branches under `allOf`, `anyOf`,
//! `oneOf` and `not`, because validation treats them alike. Everything that most nodes do not have hangs behind one
//! pointer, so a plain string field costs little more than its name.

use std::sync::OnceLock;

use serde_json::{Map, Value};

use super::cel::Compiled;
use super::error::FieldError;
use super::format::Format;
use super::path::Path;
use super::pattern;

/// Schemas nested deeper than this are refused; no real one reaches a third of it.
pub const DEPTH_MAX: usize = 120;

/// The JSON type a schema asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
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

impl Kind {
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

    /// The name as it stands in a schema; empty for [`Kind::Any`].
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
    /// The list is one value; the default.
    #[default]
    Atomic,
    /// Scalars, each once.
    Set,
    /// Objects, each named by its key fields.
    Map,
}

/// What a map accepts beside its named properties.
#[derive(Debug, Default)]
pub enum Additional {
    /// `additionalProperties` is not given: unknown fields are pruned.
    #[default]
    Unsaid,
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
    /// What to say when it is false.
    pub message: String,
    /// A CEL expression that makes the message.
    pub message_expression: String,
    /// `FieldValueInvalid` unless given.
    pub reason: Option<String>,
    /// The field to blame, relative to the node.
    pub field_path: String,
    /// With `true`, `oldSelf` is optional and the rule runs on creation too.
    pub optional_old_self: Option<bool>,
}

/// A pattern, compiled, with its source for messages.
#[derive(Debug)]
pub struct Pattern {
    /// As written.
    pub source: Box<str>,
    /// `None` when it does not compile: then nothing matches, as in kube-apiserver.
    pub regex: Option<regex::Regex>,
}

/// Bounds on values; a node without any has no `Checks`.
#[derive(Debug, Default)]
pub struct Checks {
    /// The enforced format and the name it goes by in messages.
    pub format: Option<(Format, Box<str>)>,
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

/// What only some nodes have.
#[derive(Debug, Default)]
pub struct Extras {
    /// `default`
    pub default: Option<Value>,
    /// `x-kubernetes-list-map-keys`
    pub map_keys: Box<[Box<str>]>,
    /// `x-kubernetes-validations`
    pub rules: Box<[Rule]>,
    /// The rules, compiled when they are first run.
    compiled: OnceLock<Box<[Compiled]>>,
}

/// One place of the schema.
#[derive(Debug, Default)]
pub struct Node {
    /// `type`
    pub kind: Kind,
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
    /// A rule stands here or below, so the rule walk must come this way.
    pub has_rules: bool,
    /// A default stands here or below.
    pub has_defaults: bool,
    /// A set or map list, or an embedded resource, stands here or below.
    pub has_lists: bool,
    /// An embedded resource stands here or below.
    pub has_embedded: bool,
    /// `properties`, sorted by name.
    pub properties: Box<[(Box<str>, Node)]>,
    /// `items`
    pub items: Option<Box<Node>>,
    /// `additionalProperties`
    pub additional: Additional,
    /// Bounds on values.
    pub checks: Option<Box<Checks>>,
    /// What only some nodes have.
    pub extras: Option<Box<Extras>>,
}

impl Node {
    /// Parses `openAPIV3Schema` or a part of it. Anything that the API type would not decode is an error; whether the
    /// schema is structural is for [`super::structural`] to say.
    pub fn parse(raw: &Value) -> Result<Self, FieldError> {
        Parser { depth: 0 }.node(raw, &Path::Root)
    }

    /// The schema of the property `name`.
    pub fn property(&self, name: &str) -> Option<&Node> {
        self.properties.binary_search_by(|(n, _)| (**n).cmp(name)).ok().map(|i| &self.properties[i].1)
    }

    /// The schema of the entries beside the named properties, if one is given.
    pub fn additional_schema(&self) -> Option<&Node> {
        match &self.additional {
            Additional::Schema(node) => Some(node),
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

    /// The rules, ready to run.
    pub(crate) fn compiled_rules(&self) -> &[Compiled] {
        match &self.extras {
            Some(extras) => extras
                .compiled
                .get_or_init(|| extras.rules.iter().map(|rule| Compiled::of(rule, self)).collect()),
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

/// Fields of a schema object that must be of one JSON type; anything else does not decode.
struct Fields<'a> {
    map: &'a Map<String, Value>,
    at: &'a Path<'a>,
}

impl<'a> Fields<'a> {
    fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|v| !v.is_null())
    }

    fn wrong<T>(&self, name: &str, value: &Value, wanted: &str) -> Result<T, FieldError> {
        Err(FieldError::type_invalid(
            self.at.child(name).to_string(),
            value.clone(),
            format!("must be {wanted}"),
        ))
    }

    fn text(&self, name: &str) -> Result<&'a str, FieldError> {
        match self.get(name) {
            None => Ok(""),
            Some(Value::String(s)) => Ok(s),
            Some(other) => self.wrong(name, other, "a string"),
        }
    }

    fn flag(&self, name: &str) -> Result<bool, FieldError> {
        match self.get(name) {
            None => Ok(false),
            Some(Value::Bool(b)) => Ok(*b),
            Some(other) => self.wrong(name, other, "a boolean"),
        }
    }

    fn number(&self, name: &str) -> Result<Option<f64>, FieldError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Number(n)) => Ok(n.as_f64()),
            Some(other) => self.wrong(name, other, "a number"),
        }
    }

    fn count(&self, name: &str) -> Result<Option<i64>, FieldError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Number(n)) if n.is_i64() || n.is_u64() => Ok(Some(n.as_i64().unwrap_or(i64::MAX))),
            Some(other) => self.wrong(name, other, "an integer"),
        }
    }

    fn list(&self, name: &str) -> Result<&'a [Value], FieldError> {
        match self.get(name) {
            None => Ok(&[]),
            Some(Value::Array(items)) => Ok(items),
            Some(other) => self.wrong(name, other, "a list"),
        }
    }

    fn texts(&self, name: &str) -> Result<Box<[Box<str>]>, FieldError> {
        self.list(name)?
            .iter()
            .map(|v| match v {
                Value::String(s) => Ok(s.as_str().into()),
                other => self.wrong(name, other, "a list of strings"),
            })
            .collect()
    }

    fn object(&self, name: &str) -> Result<Option<&'a Map<String, Value>>, FieldError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(other) => self.wrong(name, other, "an object"),
        }
    }
}

impl Parser {
    fn node(&mut self, raw: &Value, at: &Path<'_>) -> Result<Node, FieldError> {
        let Value::Object(map) = raw else {
            return Err(FieldError::type_invalid(at.field(), raw.clone(), "must be an object"));
        };
        if self.depth == DEPTH_MAX {
            return Err(FieldError::forbidden(
                at.field(),
                format!("must not be nested deeper than {DEPTH_MAX}"),
            ));
        }
        self.depth += 1;
        let node = self.inner(&Fields { map, at });
        self.depth -= 1;
        node
    }

    fn inner(&mut self, f: &Fields<'_>) -> Result<Node, FieldError> {
        let at = f.at;
        let kind_name = f.text("type")?;
        let mut node = Node {
            kind: Kind::named(kind_name).unwrap_or_default(),
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
                .collect::<Result<_, FieldError>>()?;
        }
        match f.get("items") {
            Some(items @ Value::Object(_)) => {
                node.items = Some(Box::new(self.node(items, &at.child("items"))?))
            }
            Some(other @ Value::Array(_)) => {
                return Err(FieldError::new(
                    super::error::FieldErrorKind::Forbidden,
                    at.child("items").to_string(),
                    Some(other.clone()),
                    "items must be a schema object and not an array",
                ));
            }
            Some(other) => return f.wrong("items", other, "an object"),
            None => {}
        }
        node.additional = match f.get("additionalProperties") {
            None => Additional::Unsaid,
            Some(Value::Bool(true)) => Additional::Any,
            Some(Value::Bool(false)) => Additional::Nothing,
            Some(schema @ Value::Object(_)) => {
                Additional::Schema(Box::new(self.node(schema, &at.child("additionalProperties"))?))
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
        let own_list = node.kind == Kind::Array && node.list_type != ListType::Atomic;
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

    fn checks(&mut self, f: &Fields<'_>) -> Result<Option<Checks>, FieldError> {
        let source = f.text("pattern")?;
        let format = f.text("format")?;
        let checks = Checks {
            format: Format::named(format).map(|known| (known, format.into())),
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

    fn branches(&mut self, f: &Fields<'_>, name: &str) -> Result<Box<[Node]>, FieldError> {
        let here = f.at.child(name);
        f.list(name)?.iter().enumerate().map(|(i, raw)| self.node(raw, &here.index(i))).collect()
    }
}

fn rules(f: &Fields<'_>) -> Result<Box<[Rule]>, FieldError> {
    let list = f.list("x-kubernetes-validations")?;
    let here = f.at.child("x-kubernetes-validations");
    list.iter()
        .enumerate()
        .map(|(i, raw)| {
            let at = here.index(i);
            let Value::Object(map) = raw else {
                return Err(FieldError::type_invalid(at.to_string(), raw.clone(), "must be an object"));
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
        assert_eq!(node.property("labels").unwrap().field("anything").unwrap().kind, Kind::String);
        assert_eq!(node.property("ports").unwrap().map_keys(), ["name".into()]);
        assert!(node.has_defaults && node.has_lists && !node.has_rules);
        assert!(node.property("labels").unwrap().checks.is_none());
    }

    #[test]
    fn a_schema_of_the_wrong_shape_is_named_by_its_place() {
        let error = Node::parse(&json!({"properties": {"spec": {"type": 5}}})).unwrap_err();
        assert_eq!(error.to_string(), "properties[spec].type: Invalid value: 5: must be a string");
        let error = Node::parse(&json!({"items": [{"type": "string"}]})).unwrap_err();
        assert_eq!(error.to_string(), "items: Forbidden: items must be a schema object and not an array");
    }

    #[test]
    fn a_bottomless_schema_is_refused() {
        let mut raw = json!({"type": "string"});
        for _ in 0..DEPTH_MAX {
            raw = json!({"type": "object", "properties": {"a": raw}});
        }
        assert!(Node::parse(&raw).unwrap_err().detail.contains("nested deeper"));
    }
}
