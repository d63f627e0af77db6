//! CEL types derived from a schema, and the maximum size of their values.

use crate::schema::node::{AdditionalProperties, JsonType, Node};

/// Maximum size of a request, and so of an object, in bytes.
pub(crate) const REQUEST_MAX: u64 = 3 << 20;

/// A static CEL type.
#[derive(Debug, Clone)]
pub(crate) enum Ty<'a> {
    /// Known only at run time.
    Dyn,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    Text,
    Bytes,
    Time,
    Duration,
    Type,
    List(Box<Ty<'a>>, Option<&'a Node>),
    Map(Box<Ty<'a>>, Box<Ty<'a>>, Option<&'a Node>),
    /// An object with the fields of its schema; `true` if it also has `apiVersion`, `kind` and `metadata`.
    Object(&'a Node, bool),
    /// The metadata of a resource: `name` and `generateName`.
    Metadata,
    Optional(Box<Ty<'a>>),
    /// A named library type.
    Named(&'static str),
}

impl<'a> Ty<'a> {
    /// The type of a field with this schema; `None` if rules cannot access it.
    pub(crate) fn of(node: &'a Node, resource: bool) -> Option<Self> {
        if node.int_or_string {
            return Some(Self::Dyn);
        }
        Some(match node.json_type {
            JsonType::Any => return None,
            JsonType::Boolean => Self::Bool,
            JsonType::Integer => Self::Int,
            JsonType::Number => Self::Double,
            JsonType::String => match node.checks.as_ref().and_then(|c| c.format.as_ref()).map(|f| &*f.1) {
                Some("byte") => Self::Bytes,
                Some("date" | "date-time") => Self::Time,
                Some("duration") => Self::Duration,
                _ => Self::Text,
            },
            JsonType::Array => Self::List(Box::new(Self::of(node.items.as_deref()?, false)?), Some(node)),
            JsonType::Object => match &node.additional {
                AdditionalProperties::Schema(child) if node.properties.is_empty() => {
                    Self::Map(Box::new(Self::Text), Box::new(Self::of(child, false)?), Some(node))
                }
                _ => Self::Object(node, resource || node.embedded),
            },
        })
    }

    /// The name in messages.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Dyn => "dyn".to_owned(),
            Self::Null => "null".to_owned(),
            Self::Bool => "bool".to_owned(),
            Self::Int => "int".to_owned(),
            Self::Uint => "uint".to_owned(),
            Self::Double => "double".to_owned(),
            Self::Text => "string".to_owned(),
            Self::Bytes => "bytes".to_owned(),
            Self::Time => "timestamp".to_owned(),
            Self::Duration => "duration".to_owned(),
            Self::Type => "type".to_owned(),
            Self::List(element, _) => format!("list({})", element.name()),
            Self::Map(key, value, _) => format!("map({}, {})", key.name(), value.name()),
            Self::Object(..) | Self::Metadata => "object".to_owned(),
            Self::Optional(inner) => format!("optional_type({})", inner.name()),
            Self::Named(name) => (*name).to_owned(),
        }
    }

    pub(crate) fn is_number(&self) -> bool {
        matches!(self, Self::Int | Self::Uint | Self::Double)
    }

    /// Whether the two types are assignable.
    pub(crate) fn may_be(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Dyn, _) | (_, Self::Dyn) | (Self::Null, Self::Null) => true,
            // As in CEL, only message types may be null; scalars, lists and maps may not.
            (Self::Null, other) | (other, Self::Null) => matches!(
                other,
                Self::Object(..) | Self::Metadata | Self::Time | Self::Duration | Self::Named(_)
            ),
            (Self::Named(a), Self::Named(b)) => a == b,
            (Self::List(a, _), Self::List(b, _)) => a.may_be(b),
            (Self::Map(ak, av, _), Self::Map(bk, bv, _)) => ak.may_be(bk) && av.may_be(bv),
            (Self::Object(..) | Self::Metadata, Self::Object(..) | Self::Metadata | Self::Map(..)) => true,
            (Self::Map(..), Self::Object(..) | Self::Metadata) => true,
            (Self::Optional(a), Self::Optional(b)) => a.may_be(b),
            (a, b) => std::mem::discriminant(a) == std::mem::discriminant(b),
        }
    }

    /// The maximum size of a value: bytes of strings, elements of lists and maps.
    pub(crate) fn size(&self, node: Option<&Node>) -> u64 {
        match self {
            Self::List(_, Some(node)) | Self::Map(_, _, Some(node)) => largest(node),
            Self::Text | Self::Bytes => node.map_or(REQUEST_MAX - 2, largest),
            Self::Dyn | Self::List(..) | Self::Map(..) => REQUEST_MAX,
            _ => 1,
        }
    }
}

/// The maximum size of a value with this schema.
fn largest(node: &Node) -> u64 {
    let checks = node.checks.as_deref();
    let bound = |b: Option<i64>| b.map(|b| b.max(0) as u64);
    match node.json_type {
        JsonType::String => {
            let allowed = checks.map(|c| &c.allowed).filter(|a| !a.is_empty());
            if let Some(allowed) = allowed {
                return allowed.iter().filter_map(|v| v.as_str()).map(|s| s.len() as u64).max().unwrap_or(0);
            }
            // `maxLength` counts characters; a character takes up to four bytes.
            bound(checks.and_then(|c| c.max_length)).map_or(REQUEST_MAX - 2, |n| n.saturating_mul(4))
        }
        JsonType::Array => {
            let item = node.items.as_deref().map_or(1, smallest);
            bound(checks.and_then(|c| c.max_items)).unwrap_or((REQUEST_MAX - 2) / (item + 1))
        }
        JsonType::Object => {
            let item = node.additional_schema().map_or(1, smallest);
            bound(checks.and_then(|c| c.max_properties)).unwrap_or((REQUEST_MAX - 2) / (item + 6))
        }
        _ => 1,
    }
}

/// The minimum number of bytes of a value with this schema in a request.
fn smallest(node: &Node) -> u64 {
    match node.json_type {
        JsonType::Boolean => 4,
        JsonType::Integer | JsonType::Number => 1,
        JsonType::String | JsonType::Array => 2,
        JsonType::Any => 1,
        JsonType::Object => {
            let required = node.required().iter().filter_map(|name| Some((name, node.property(name)?)));
            let fields = required
                .filter(|(_, n)| n.default_value().is_none())
                .map(|(name, n)| name.len() as u64 + 4 + smallest(n));
            2 + fields.sum::<u64>()
        }
    }
}

/// The maximum number of values with this schema in a request, if nothing else bounds it.
pub(crate) fn occurrences(node: &Node) -> u64 {
    REQUEST_MAX / (smallest(node) + 1)
}

/// The maximum number of children per value of this schema; `None` if unbounded.
pub(crate) fn children(node: &Node) -> Option<u64> {
    let checks = node.checks.as_deref();
    let bound = match (node.json_type, &node.additional) {
        (JsonType::Array, _) => checks?.max_items?,
        (JsonType::Object, AdditionalProperties::Unspecified) => 1,
        (JsonType::Object, _) => checks?.max_properties?,
        _ => 1,
    };
    Some(bound.max(0) as u64)
}
