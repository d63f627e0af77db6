//! CEL values.
//!
//! Maps and lists of an object are borrowed from its JSON together with their schema, and converted only
//! where a rule accesses them. So a rule on one field converts that field and not the object. Timestamps,
//! durations and the types of the Kubernetes libraries (quantities, addresses, URLs, …) stay values of the
//! library.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::rc::Rc;

use base64::Engine;
use kube_cel::cel;
use serde_json::Value;

use crate::schema::node::{JsonType, ListType, Node};

/// The schema of a JSON value, if known.
#[derive(Clone, Copy)]
pub(crate) enum ValueSchema<'a> {
    /// No schema: the type follows from the JSON value.
    Unknown,
    /// The schema of the value.
    Known(&'a Node),
}

/// A key of a map.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Bool(bool),
    Int(i64),
    Text(String),
}

/// A CEL value.
#[derive(Clone)]
pub(crate) enum Val<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(Cow<'a, str>),
    Bytes(Rc<[u8]>),
    /// A map or list of the object.
    Json(&'a Value, ValueSchema<'a>),
    List(Rc<Vec<Val<'a>>>),
    Map(Rc<BTreeMap<Key, Val<'a>>>),
    Optional(Option<Rc<Val<'a>>>),
    /// A type, e.g. the result of `type(x)`.
    Type(&'static str),
    /// A value of the CEL library.
    Foreign(Rc<cel::Value>),
}

/// CEL keywords. A field of this name is escaped as `__name__`.
const RESERVED: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// Unescapes the name of a field in CEL: `__namespace__`, `a__dot__b`, `a__dash__b`.
pub(crate) fn unescape(escaped: &str) -> Cow<'_, str> {
    if !escaped.contains("__") {
        return Cow::Borrowed(escaped);
    }
    if let Some(word) =
        escaped.strip_prefix("__").and_then(|s| s.strip_suffix("__")).filter(|w| RESERVED.contains(w))
    {
        return Cow::Borrowed(word);
    }
    let plain = escaped
        .replace("__dot__", ".")
        .replace("__dash__", "-")
        .replace("__slash__", "/")
        .replace("__underscores__", "__");
    Cow::Owned(plain)
}

/// Whether this field name can be escaped for CEL.
pub(crate) fn can_escape(name: &str) -> bool {
    let first = name.chars().next();
    first.is_some_and(|c| !c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '/'))
}

impl<'a> Val<'a> {
    /// Wraps a JSON value with its schema.
    pub(crate) fn of(value: &'a Value, schema: ValueSchema<'a>) -> Self {
        let node = match schema {
            ValueSchema::Known(node) => Some(node),
            ValueSchema::Unknown => None,
        };
        match value {
            Value::Null => Self::Null,
            Value::Bool(b) => Self::Bool(*b),
            Value::Number(n) => match (node.map(|n| n.json_type), n.as_i64()) {
                (Some(JsonType::Number), _) | (_, None) => Self::Double(n.as_f64().unwrap_or_default()),
                (_, Some(i)) => Self::Int(i),
            },
            Value::String(s) => node.and_then(|n| formatted(n, s)).unwrap_or(Self::Text(Cow::Borrowed(s))),
            Value::Array(_) | Value::Object(_) => Self::Json(value, schema),
        }
    }

    /// A computed string.
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Text(Cow::Owned(text.into()))
    }

    /// A computed list.
    pub(crate) fn list(items: Vec<Val<'a>>) -> Self {
        Self::List(Rc::new(items))
    }

    /// The elements of a list.
    pub(crate) fn items(&self) -> Option<Vec<Val<'a>>> {
        match self {
            Self::List(items) => Some(items.to_vec()),
            Self::Json(Value::Array(items), schema) => {
                let child = element(*schema);
                Some(items.iter().map(|item| Val::of(item, child)).collect())
            }
            _ => None,
        }
    }

    /// Whether the value is a list.
    pub(crate) fn is_list(&self) -> bool {
        matches!(self, Self::List(_) | Self::Json(Value::Array(_), _))
    }

    /// The keys of a map, as values.
    pub(crate) fn keys(&self) -> Option<Vec<Val<'a>>> {
        match self {
            Self::Map(map) => Some(map.keys().map(Key::value).collect()),
            Self::Json(Value::Object(map), _) => {
                Some(map.keys().map(|k| Val::Text(Cow::Borrowed(k.as_str()))).collect())
            }
            _ => None,
        }
    }

    /// The size for costs and `size()`: characters, bytes, elements or entries.
    pub(crate) fn size(&self) -> Option<usize> {
        match self {
            Self::Text(text) => Some(text.chars().count()),
            Self::Bytes(bytes) => Some(bytes.len()),
            Self::List(items) => Some(items.len()),
            Self::Map(map) => Some(map.len()),
            Self::Json(Value::Array(items), _) => Some(items.len()),
            Self::Json(Value::Object(map), _) => Some(map.len()),
            _ => None,
        }
    }

    /// The value of a field (name escaped as in CEL) or of a map key.
    pub(crate) fn field(&self, escaped: &str) -> Option<Val<'a>> {
        match self {
            Self::Map(map) => map.get(&Key::Text(escaped.to_owned())).cloned(),
            Self::Json(Value::Object(map), schema) => match schema {
                // Map keys are data and are never escaped.
                ValueSchema::Known(node)
                    if node.properties.is_empty() && node.additional_schema().is_some() =>
                {
                    map.get(escaped).map(|v| {
                        Val::of(v, node.additional_schema().map_or(ValueSchema::Unknown, ValueSchema::Known))
                    })
                }
                ValueSchema::Known(node) => {
                    let name = unescape(escaped);
                    map.get(&*name).map(|v| {
                        Val::of(v, node.field(&name).map_or(ValueSchema::Unknown, ValueSchema::Known))
                    })
                }
                ValueSchema::Unknown => map
                    .get(escaped)
                    .or_else(|| map.get(&*unescape(escaped)))
                    .map(|v| Val::of(v, ValueSchema::Unknown)),
            },
            _ => None,
        }
    }

    /// The value of a map key, without unescaping.
    pub(crate) fn at_key(&self, key: &Key) -> Option<Val<'a>> {
        match (self, key) {
            (Self::Map(map), key) => map.get(key).cloned(),
            (Self::Json(Value::Object(map), schema), Key::Text(key)) => {
                let child = match schema {
                    ValueSchema::Known(node) => {
                        node.field(key).map_or(ValueSchema::Unknown, ValueSchema::Known)
                    }
                    ValueSchema::Unknown => ValueSchema::Unknown,
                };
                map.get(key).map(|v| Val::of(v, child))
            }
            _ => None,
        }
    }

    /// The value as a map key.
    pub(crate) fn as_key(&self) -> Option<Key> {
        match self {
            Self::Bool(b) => Some(Key::Bool(*b)),
            Self::Int(i) => Some(Key::Int(*i)),
            Self::Uint(u) => i64::try_from(*u).ok().map(Key::Int),
            Self::Double(d) if d.fract() == 0.0 && d.abs() < 9e15 => Some(Key::Int(*d as i64)),
            Self::Text(text) => Some(Key::Text(text.to_string())),
            _ => None,
        }
    }

    /// The name of the value's type.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "null_type",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Uint(_) => "uint",
            Self::Double(_) => "double",
            Self::Text(_) => "string",
            Self::Bytes(_) => "bytes",
            Self::List(_) | Self::Json(Value::Array(_), _) => "list",
            Self::Map(_) | Self::Json(..) => "map",
            Self::Optional(_) => "optional_type",
            Self::Type(_) => "type",
            Self::Foreign(value) => match &**value {
                cel::Value::Duration(_) => "google.protobuf.Duration",
                cel::Value::Timestamp(_) => "google.protobuf.Timestamp",
                _ => "kubernetes",
            },
        }
    }

    /// Equality: numeric across number types, order-independent for sets and map lists, structural otherwise.
    pub(crate) fn equals(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (Self::Text(a), Self::Text(b)) => a == b,
            (Self::Bytes(a), Self::Bytes(b)) => a == b,
            (Self::Type(a), Self::Type(b)) => a == b,
            (Self::Foreign(a), Self::Foreign(b)) => a == b,
            (Self::Optional(a), Self::Optional(b)) => match (a, b) {
                (Some(a), Some(b)) => a.equals(b),
                (None, None) => true,
                _ => false,
            },
            (
                Self::Int(_) | Self::Uint(_) | Self::Double(_),
                Self::Int(_) | Self::Uint(_) | Self::Double(_),
            ) => self.compare(other) == Some(Ordering::Equal),
            _ => self.equals_container(other),
        }
    }

    fn equals_container(&self, other: &Self) -> bool {
        if let (Some(a), Some(b)) = (self.items(), other.items()) {
            if a.len() != b.len() {
                return false;
            }
            return match self.list_type().or(other.list_type()) {
                Some(keys) => same_elements(&a, &b, keys),
                None => a.iter().zip(&b).all(|(a, b)| a.equals(b)),
            };
        }
        let (Some(keys), Some(others)) = (self.keys(), other.keys()) else { return false };
        keys.len() == others.len()
            && keys.iter().all(|key| {
                let Some(key) = key.as_key() else { return false };
                matches!((self.at_key(&key), other.at_key(&key)), (Some(a), Some(b)) if a.equals(&b))
            })
    }

    /// The key fields of a map list, an empty slice for a set, `None` for any other list.
    fn list_type(&self) -> Option<&'a [Box<str>]> {
        match self {
            Self::Json(Value::Array(_), ValueSchema::Known(node)) => match node.list_type {
                ListType::Atomic => None,
                ListType::Set => Some(&[]),
                ListType::Map => Some(node.map_keys()),
            },
            _ => None,
        }
    }

    /// The order of two values; `None` if they are not comparable.
    pub(crate) fn compare(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Bool(a), Self::Bool(b)) => Some(a.cmp(b)),
            (Self::Int(a), Self::Int(b)) => Some(a.cmp(b)),
            (Self::Uint(a), Self::Uint(b)) => Some(a.cmp(b)),
            (Self::Int(a), Self::Uint(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
            (Self::Uint(a), Self::Int(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
            (Self::Double(a), Self::Double(b)) => a.partial_cmp(b),
            (Self::Double(a), Self::Int(b)) => a.partial_cmp(&(*b as f64)),
            (Self::Int(a), Self::Double(b)) => (*a as f64).partial_cmp(b),
            (Self::Double(a), Self::Uint(b)) => a.partial_cmp(&(*b as f64)),
            (Self::Uint(a), Self::Double(b)) => (*a as f64).partial_cmp(b),
            (Self::Text(a), Self::Text(b)) => Some(a.cmp(b)),
            (Self::Bytes(a), Self::Bytes(b)) => Some(a.cmp(b)),
            (Self::Foreign(a), Self::Foreign(b)) => a.partial_cmp(b),
            _ => None,
        }
    }

    /// Converts to a value of the library; `None` for optionals and types.
    pub(crate) fn to_foreign(&self) -> Option<cel::Value> {
        Some(match self {
            Self::Null => cel::Value::Null,
            Self::Bool(b) => cel::Value::Bool(*b),
            Self::Int(i) => cel::Value::Int(*i),
            Self::Uint(u) => cel::Value::UInt(*u),
            Self::Double(d) => cel::Value::Float(*d),
            Self::Text(text) => cel::Value::String(std::sync::Arc::new(text.to_string())),
            Self::Bytes(bytes) => cel::Value::Bytes(std::sync::Arc::new(bytes.to_vec())),
            Self::Foreign(value) => (**value).clone(),
            Self::Optional(_) | Self::Type(_) => return None,
            Self::List(_) | Self::Json(Value::Array(_), _) => {
                let items: Option<Vec<cel::Value>> = self.items()?.iter().map(Val::to_foreign).collect();
                cel::Value::List(std::sync::Arc::new(items?))
            }
            Self::Map(_) | Self::Json(..) => {
                let mut map = std::collections::HashMap::new();
                for key in self.keys()? {
                    let key = key.as_key()?;
                    let value = self.at_key(&key)?.to_foreign()?;
                    let key = match key {
                        Key::Bool(b) => cel::objects::Key::Bool(b),
                        Key::Int(i) => cel::objects::Key::Int(i),
                        Key::Text(text) => cel::objects::Key::String(std::sync::Arc::new(text)),
                    };
                    map.insert(key, value);
                }
                cel::Value::Map(cel::objects::Map { map: std::sync::Arc::new(map) })
            }
        })
    }

    /// Converts a value of the library.
    pub(crate) fn from_foreign(value: cel::Value) -> Self {
        match value {
            cel::Value::Null => Self::Null,
            cel::Value::Bool(b) => Self::Bool(b),
            cel::Value::Int(i) => Self::Int(i),
            cel::Value::UInt(u) => Self::Uint(u),
            cel::Value::Float(d) => Self::Double(d),
            cel::Value::String(text) => Self::text(text.as_str()),
            cel::Value::Bytes(bytes) => Self::Bytes(bytes.as_slice().into()),
            cel::Value::List(items) => Self::list(items.iter().cloned().map(Self::from_foreign).collect()),
            cel::Value::Map(map) => {
                let entries = map.map.iter().map(|(key, value)| {
                    let key = match key {
                        cel::objects::Key::Bool(b) => Key::Bool(*b),
                        cel::objects::Key::Int(i) => Key::Int(*i),
                        cel::objects::Key::Uint(u) => Key::Int(i64::try_from(*u).unwrap_or(i64::MAX)),
                        cel::objects::Key::String(text) => Key::Text(text.to_string()),
                    };
                    (key, Self::from_foreign(value.clone()))
                });
                Self::Map(Rc::new(entries.collect()))
            }
            other => Self::Foreign(Rc::new(other)),
        }
    }

    /// Converts to JSON; `None` for values that JSON cannot represent.
    pub(crate) fn to_json(&self) -> Option<Value> {
        Some(match self {
            Self::Null => Value::Null,
            Self::Bool(b) => Value::from(*b),
            Self::Int(i) => Value::from(*i),
            Self::Uint(u) => Value::from(*u),
            Self::Double(d) => Value::from(*d),
            Self::Text(text) => Value::from(text.as_ref()),
            Self::Json(value, _) => (*value).clone(),
            Self::List(items) => Value::Array(items.iter().map(Val::to_json).collect::<Option<_>>()?),
            Self::Map(map) => {
                let entries = map.iter().map(|(k, v)| match k {
                    Key::Text(text) => Some((text.clone(), v.to_json()?)),
                    _ => None,
                });
                Value::Object(entries.collect::<Option<_>>()?)
            }
            _ => return None,
        })
    }
}

impl Key {
    pub(crate) fn value<'a>(&self) -> Val<'a> {
        match self {
            Self::Bool(b) => Val::Bool(*b),
            Self::Int(i) => Val::Int(*i),
            Self::Text(text) => Val::text(text.as_str()),
        }
    }
}

fn element(schema: ValueSchema<'_>) -> ValueSchema<'_> {
    match schema {
        ValueSchema::Known(node) => node.items.as_deref().map_or(ValueSchema::Unknown, ValueSchema::Known),
        ValueSchema::Unknown => ValueSchema::Unknown,
    }
}

/// Whether both lists have equal elements in any order. Map lists are matched by key, sets by value.
fn same_elements(a: &[Val<'_>], b: &[Val<'_>], keys: &[Box<str>]) -> bool {
    let sort_key = |v: &Val<'_>| -> String {
        if keys.is_empty() {
            return v.to_json().map_or_else(String::new, |j| j.to_string());
        }
        keys.iter()
            .map(|k| v.field(k).and_then(|f| f.to_json()).map_or_else(String::new, |j| j.to_string()) + "\0")
            .collect()
    };
    let mut candidates_by_key: std::collections::HashMap<String, Vec<&Val<'_>>> =
        std::collections::HashMap::new();
    for item in b {
        candidates_by_key.entry(sort_key(item)).or_default().push(item);
    }
    a.iter().all(|item| {
        let Some(candidates) = candidates_by_key.get_mut(&sort_key(item)) else { return false };
        let found = candidates.iter().position(|c| c.equals(item));
        found.map(|i| candidates.swap_remove(i)).is_some()
    })
}

/// Converts strings of some formats to timestamps, durations or bytes.
fn formatted<'a>(node: &Node, text: &str) -> Option<Val<'a>> {
    let (_, name) = node.checks.as_ref()?.format.as_ref()?;
    match &**name {
        "byte" => base64::engine::general_purpose::STANDARD.decode(text).ok().map(|b| Val::Bytes(b.into())),
        "date-time" => super::library::call("timestamp", None, &[Val::text(text)]).ok(),
        "date" => super::library::call("timestamp", None, &[Val::text(format!("{text}T00:00:00Z"))]).ok(),
        "duration" => super::library::call("duration", None, &[Val::text(text)]).ok(),
        _ => None,
    }
}
