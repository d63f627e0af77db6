//! CEL values.
//!
//! Maps and lists of an object are borrowed from its JSON together with their schema, and converted only
//! where a rule accesses them. So a rule on one field converts that field and not the object. Timestamps,
//! durations and the types of the Kubernetes libraries (quantities, addresses, URLs, …) stay values of the
//! library.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::rc::Rc;

use base64::Engine;
use kube_cel::cel;
use serde_json::Value;

use super::cost::Extent;
use crate::schema::node::{JsonType, ListType, Node};

/// The schema of a JSON value, if known.
#[derive(Clone, Copy)]
pub(crate) enum ValueSchema<'a> {
    /// No schema: the type follows from the JSON value.
    Unknown,
    /// The schema of the value.
    Known(&'a Node),
}

/// A string of the object, of the expression, or a computed one. Copies share the bytes: a variable or an
/// element that is used many times takes memory once.
#[derive(Debug, Clone)]
pub(crate) enum Text<'a> {
    Borrowed(&'a str),
    Shared(Rc<str>),
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Borrowed(text) => text,
            Self::Shared(text) => text,
        }
    }
}

impl PartialEq for Text<'_> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Text<'_> {}

impl PartialOrd for Text<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Text<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        (**self).cmp(&**other)
    }
}

/// A key of a map.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key<'a> {
    Bool(bool),
    Int(i64),
    Text(Text<'a>),
}

/// A value of the CEL library, and the bytes that it takes: the library does not tell the size of its types.
#[derive(Debug, PartialEq)]
pub(crate) struct Foreign {
    pub(crate) value: cel::Value,
    pub(crate) bytes: u64,
}

impl Foreign {
    fn new(value: cel::Value) -> Self {
        /// Counts the bytes of the debug representation, which has all fields of the library's types.
        struct Count(u64);
        impl std::fmt::Write for Count {
            fn write_str(&mut self, text: &str) -> std::fmt::Result {
                self.0 += text.len() as u64;
                Ok(())
            }
        }
        let mut count = Count(0);
        // Counting cannot fail.
        let _ = std::fmt::write(&mut count, format_args!("{value:?}"));
        Self { value, bytes: count.0 }
    }
}

/// The elements or keys of a value, in order, without copying the collection.
pub(crate) type Iter<'v, T> = Box<dyn Iterator<Item = T> + 'v>;

/// A CEL value.
#[derive(Clone)]
pub(crate) enum Val<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(Text<'a>),
    Bytes(Rc<[u8]>),
    /// A map or list of the object.
    Json(&'a Value, ValueSchema<'a>),
    List(Rc<Vec<Val<'a>>>),
    Map(Rc<BTreeMap<Key<'a>, Val<'a>>>),
    Optional(Option<Rc<Val<'a>>>),
    /// A type, e.g. the result of `type(x)`.
    Type(&'static str),
    /// A value of the CEL library.
    Foreign(Rc<Foreign>),
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
            Value::String(s) => node.and_then(|n| formatted(n, s)).unwrap_or(Self::Text(Text::Borrowed(s))),
            Value::Array(_) | Value::Object(_) => Self::Json(value, schema),
        }
    }

    /// A computed string.
    pub(crate) fn text(text: impl Into<Rc<str>>) -> Self {
        Self::Text(Text::Shared(text.into()))
    }

    /// A computed list.
    pub(crate) fn list(items: Vec<Val<'a>>) -> Self {
        Self::List(Rc::new(items))
    }

    /// The elements of a list.
    pub(crate) fn items(&self) -> Option<Iter<'_, Val<'a>>> {
        match self {
            Self::List(items) => Some(Box::new(items.iter().cloned())),
            Self::Json(Value::Array(items), schema) => {
                let child = element(*schema);
                Some(Box::new(items.iter().map(move |item| Val::of(item, child))))
            }
            _ => None,
        }
    }

    /// The element of a list at an index.
    pub(crate) fn item(&self, at: usize) -> Option<Val<'a>> {
        match self {
            Self::List(items) => items.get(at).cloned(),
            Self::Json(Value::Array(items), schema) => {
                items.get(at).map(|item| Val::of(item, element(*schema)))
            }
            _ => None,
        }
    }

    /// Whether the value is a list.
    pub(crate) fn is_list(&self) -> bool {
        matches!(self, Self::List(_) | Self::Json(Value::Array(_), _))
    }

    /// Whether the value is a map.
    pub(crate) fn is_map(&self) -> bool {
        matches!(self, Self::Map(_) | Self::Json(Value::Object(_), _))
    }

    /// The keys of a map.
    pub(crate) fn keys(&self) -> Option<Iter<'_, Key<'a>>> {
        match self {
            Self::Map(map) => Some(Box::new(map.keys().cloned())),
            Self::Json(Value::Object(map), _) => {
                Some(Box::new(map.keys().map(|k| Key::Text(Text::Borrowed(k.as_str())))))
            }
            _ => None,
        }
    }

    /// The result of `size()`: characters, bytes, elements or entries.
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

    /// The size for costs: bytes, elements or entries; 1 for any other value.
    pub(crate) fn cost_size(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            other => other.size().unwrap_or(1),
        }
    }

    /// The value of a field (name escaped as in CEL) or of a map key.
    pub(crate) fn field(&self, escaped: &str) -> Option<Val<'a>> {
        match self {
            Self::Map(map) => map.get(&Key::Text(Text::Shared(escaped.into()))).cloned(),
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
    pub(crate) fn at_key(&self, key: &Key<'a>) -> Option<Val<'a>> {
        match (self, key) {
            (Self::Map(map), key) => map.get(key).cloned(),
            (Self::Json(Value::Object(map), schema), Key::Text(key)) => {
                let key = &**key;
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
    pub(crate) fn as_key(&self) -> Option<Key<'a>> {
        match self {
            Self::Bool(b) => Some(Key::Bool(*b)),
            Self::Int(i) => Some(Key::Int(*i)),
            Self::Uint(u) => i64::try_from(*u).ok().map(Key::Int),
            Self::Double(d) if d.fract() == 0.0 && d.abs() < 9e15 => Some(Key::Int(*d as i64)),
            Self::Text(text) => Some(Key::Text(text.clone())),
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
            Self::Foreign(foreign) => match &foreign.value {
                cel::Value::Duration(_) => "google.protobuf.Duration",
                cel::Value::Timestamp(_) => "google.protobuf.Timestamp",
                _ => "kubernetes",
            },
        }
    }

    /// Equality: numeric across number types, order-independent for sets and map lists, structural otherwise.
    /// Takes one of `steps` per compared value and byte; `None` when they are used up. Computed values share
    /// their parts, so the tree that is compared may be far larger than the memory it takes.
    pub(crate) fn equals(&self, other: &Self, steps: &mut u64) -> Option<bool> {
        let size = match (self, other) {
            (Self::Text(a), Self::Text(b)) if a.len() == b.len() => a.len() as u64,
            // These may have been converted from the object just before.
            (Self::Bytes(a), Self::Bytes(b)) => a.len().max(b.len()) as u64,
            (Self::Foreign(a), Self::Foreign(b)) => a.bytes.max(b.bytes),
            _ => 1,
        };
        *steps = steps.checked_sub(size.max(1))?;
        Some(match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (Self::Text(a), Self::Text(b)) => a == b,
            (Self::Bytes(a), Self::Bytes(b)) => a == b,
            (Self::Type(a), Self::Type(b)) => a == b,
            (Self::Foreign(a), Self::Foreign(b)) => a.value == b.value,
            (Self::Optional(a), Self::Optional(b)) => match (a, b) {
                (Some(a), Some(b)) => return a.equals(b, steps),
                (None, None) => true,
                _ => false,
            },
            (
                Self::Int(_) | Self::Uint(_) | Self::Double(_),
                Self::Int(_) | Self::Uint(_) | Self::Double(_),
            ) => self.compare(other) == Some(Ordering::Equal),
            _ => return self.equals_container(other, steps),
        })
    }

    fn equals_container(&self, other: &Self, steps: &mut u64) -> Option<bool> {
        if let (Some(a), Some(b)) = (self.items(), other.items()) {
            if self.size() != other.size() {
                return Some(false);
            }
            if let Some(keys) = self.list_type().or(other.list_type()) {
                return same_elements(self, other, keys, steps);
            }
            for (a, b) in a.zip(b) {
                if !a.equals(&b, steps)? {
                    return Some(false);
                }
            }
            return Some(true);
        }
        let (Some(keys), true) = (self.keys(), other.is_map()) else { return Some(false) };
        if self.size() != other.size() {
            return Some(false);
        }
        for key in keys {
            *steps = steps.checked_sub(key.bytes().max(1))?;
            let (Some(a), Some(b)) = (self.at_key(&key), other.at_key(&key)) else { return Some(false) };
            if !a.equals(&b, steps)? {
                return Some(false);
            }
        }
        Some(true)
    }

    /// The extent of the value as a tree, where shared parts count every time; `None` if it takes more than
    /// `max` bytes.
    pub(crate) fn extent(&self, max: u64) -> Option<Extent> {
        let mut total = Extent::default();
        self.add_extent(&mut total, max).then_some(total)
    }

    fn add_extent(&self, total: &mut Extent, max: u64) -> bool {
        let bytes = match self {
            Self::Text(text) => text.len() as u64,
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Foreign(foreign) => foreign.bytes,
            _ => 0,
        };
        *total = total.plus(Extent::text(bytes));
        if total.memory() > max {
            return false;
        }
        match self {
            Self::List(items) => items.iter().all(|item| item.add_extent(total, max)),
            Self::Map(map) => map.iter().all(|(key, value)| {
                *total = total.plus(Extent::text(key.bytes()));
                value.add_extent(total, max)
            }),
            Self::Optional(Some(inner)) => inner.add_extent(total, max),
            Self::Json(value, _) => add_json_extent(value, total, max),
            _ => true,
        }
    }

    /// The number of containers in each other that were computed; JSON counts as one, the parser bounds it.
    pub(crate) fn depth(&self) -> usize {
        1 + match self {
            Self::List(items) => items.iter().map(Val::depth).max().unwrap_or(0),
            Self::Map(map) => map.values().map(Val::depth).max().unwrap_or(0),
            Self::Optional(Some(inner)) => inner.depth(),
            _ => 0,
        }
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
            (Self::Foreign(a), Self::Foreign(b)) => a.value.partial_cmp(&b.value),
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
            Self::Foreign(foreign) => foreign.value.clone(),
            Self::Optional(_) | Self::Type(_) => return None,
            Self::List(_) | Self::Json(Value::Array(_), _) => {
                let items: Option<Vec<cel::Value>> = self.items()?.map(|item| item.to_foreign()).collect();
                cel::Value::List(std::sync::Arc::new(items?))
            }
            Self::Map(_) | Self::Json(..) => {
                let mut map = std::collections::HashMap::new();
                for key in self.keys()? {
                    let value = self.at_key(&key)?.to_foreign()?;
                    let key = match key {
                        Key::Bool(b) => cel::objects::Key::Bool(b),
                        Key::Int(i) => cel::objects::Key::Int(i),
                        Key::Text(text) => cel::objects::Key::String(std::sync::Arc::new(text.to_string())),
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
                        cel::objects::Key::String(text) => Key::Text(Text::Shared(text.as_str().into())),
                    };
                    (key, Self::from_foreign(value.clone()))
                });
                Self::Map(Rc::new(entries.collect()))
            }
            other => match optional(&other) {
                Some(inner) => Self::Optional(inner.map(|value| Rc::new(Self::from_foreign(value)))),
                None => Self::Foreign(Rc::new(Foreign::new(other))),
            },
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
            Self::Text(text) => Value::from(&**text),
            Self::Json(value, _) => (*value).clone(),
            Self::List(items) => Value::Array(items.iter().map(Val::to_json).collect::<Option<_>>()?),
            Self::Map(map) => {
                let entries = map.iter().map(|(k, v)| match k {
                    Key::Text(text) => Some((text.to_string(), v.to_json()?)),
                    _ => None,
                });
                Value::Object(entries.collect::<Option<_>>()?)
            }
            _ => return None,
        })
    }
}

impl<'a> Key<'a> {
    /// The key as a value.
    pub(crate) fn value(&self) -> Val<'a> {
        match self {
            Self::Bool(b) => Val::Bool(*b),
            Self::Int(i) => Val::Int(*i),
            Self::Text(text) => Val::Text(text.clone()),
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Text(text) => text.len() as u64,
            _ => 0,
        }
    }
}

fn add_json_extent(value: &Value, total: &mut Extent, max: u64) -> bool {
    let add = |bytes: usize, total: &mut Extent| {
        *total = total.plus(Extent::text(bytes as u64));
        total.memory() <= max
    };
    match value {
        Value::Array(items) => items.iter().all(|item| {
            let bytes = item.as_str().map_or(0, str::len);
            add(bytes, total) && add_json_extent(item, total, max)
        }),
        Value::Object(map) => map.iter().all(|(key, item)| {
            let bytes = item.as_str().map_or(0, str::len);
            add(key.len(), total) && add(bytes, total) && add_json_extent(item, total, max)
        }),
        _ => true,
    }
}

/// The content of an optional of the library; `None` for any other value.
fn optional(value: &cel::Value) -> Option<Option<cel::Value>> {
    let cel::Value::Opaque(opaque) = value else { return None };
    let optional = opaque.downcast_ref::<cel::objects::OptionalValue>()?;
    Some(optional.value().cloned())
}

fn element(schema: ValueSchema<'_>) -> ValueSchema<'_> {
    match schema {
        ValueSchema::Known(node) => node.items.as_deref().map_or(ValueSchema::Unknown, ValueSchema::Known),
        ValueSchema::Unknown => ValueSchema::Unknown,
    }
}

/// Whether both lists have equal elements in any order. Map lists are matched by key, sets by value.
fn same_elements(a: &Val<'_>, b: &Val<'_>, keys: &[Box<str>], steps: &mut u64) -> Option<bool> {
    for list in [a, b] {
        // Sorting writes every element as text.
        let extent = list.extent(steps.saturating_mul(Extent::NODE))?;
        *steps = steps.checked_sub(extent.nodes.saturating_add(extent.bytes))?;
    }
    let sort_key = |v: &Val<'_>| -> String {
        if keys.is_empty() {
            return v.to_json().map_or_else(String::new, |j| j.to_string());
        }
        keys.iter()
            .map(|k| v.field(k).and_then(|f| f.to_json()).map_or_else(String::new, |j| j.to_string()) + "\0")
            .collect()
    };
    let mut candidates_by_key: std::collections::HashMap<String, Vec<Val<'_>>> =
        std::collections::HashMap::new();
    for item in b.items()? {
        candidates_by_key.entry(sort_key(&item)).or_default().push(item);
    }
    for item in a.items()? {
        let Some(candidates) = candidates_by_key.get_mut(&sort_key(&item)) else { return Some(false) };
        let mut found = None;
        for (i, candidate) in candidates.iter().enumerate() {
            if candidate.equals(&item, steps)? {
                found = Some(i);
                break;
            }
        }
        let Some(i) = found else { return Some(false) };
        candidates.swap_remove(i);
    }
    Some(true)
}

/// Converts strings of some formats to timestamps, durations or bytes.
fn formatted<'a>(node: &Node, text: &str) -> Option<Val<'a>> {
    /// Maximum length of a timestamp or duration.
    const TIME_MAX: usize = 128;
    let (_, name) = node.checks.as_ref()?.format.as_ref()?;
    match &**name {
        "date-time" | "date" | "duration" if text.len() > TIME_MAX => None,
        "byte" => base64::engine::general_purpose::STANDARD.decode(text).ok().map(|b| Val::Bytes(b.into())),
        "date-time" => super::library::call("timestamp", None, &[Val::text(text)]).ok(),
        "date" => super::library::call("timestamp", None, &[Val::text(format!("{text}T00:00:00Z"))]).ok(),
        "duration" => super::library::call("duration", None, &[Val::text(text)]).ok(),
        _ => None,
    }
}
