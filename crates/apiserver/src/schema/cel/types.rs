//! Types of CEL as far as a schema tells them, and how large their values can get.

use crate::schema::node::{Additional, Kind, Node};

/// The largest request, and so the largest object a rule can meet.
pub(crate) const REQUEST_MAX: u64 = 3 << 20;

/// A type, as far as it is known before running.
#[derive(Debug, Clone)]
pub(crate) enum Ty<'a> {
    /// Known only when running.
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
    /// An object with the fields of its schema; `true` with the metadata of a resource as well.
    Object(&'a Node, bool),
    /// The metadata of a resource: `name` and `generateName`.
    Metadata,
    Optional(Box<Ty<'a>>),
    /// A type of a library, by its name.
    Named(&'static str),
}

impl<'a> Ty<'a> {
    /// The type of a field with this schema; `None` when rules cannot see it.
    pub(crate) fn of(node: &'a Node, resource: bool) -> Option<Self> {
        if node.int_or_string {
            return Some(Self::Dyn);
        }
        Some(match node.kind {
            Kind::Any => return None,
            Kind::Boolean => Self::Bool,
            Kind::Integer => Self::Int,
            Kind::Number => Self::Double,
            Kind::String => match node.checks.as_ref().and_then(|c| c.format.as_ref()).map(|f| &*f.1) {
                Some("byte") => Self::Bytes,
                Some("date" | "date-time") => Self::Time,
                Some("duration") => Self::Duration,
                _ => Self::Text,
            },
            Kind::Array => Self::List(Box::new(Self::of(node.items.as_deref()?, false)?), Some(node)),
            Kind::Object => match &node.additional {
                Additional::Schema(child) if node.properties.is_empty() => {
                    Self::Map(Box::new(Self::Text), Box::new(Self::of(child, false)?), Some(node))
                }
                _ => Self::Object(node, resource || node.embedded),
            },
        })
    }

    /// As it is named in messages.
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

    /// Could a value of this type be one of the other?
    pub(crate) fn may_be(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Dyn, _) | (_, Self::Dyn) | (Self::Null, Self::Null) => true,
            // Only what a message of its own would hold may be null; scalars, lists and maps are never.
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

    /// The largest size of a value: of texts in bytes, of lists and maps in elements.
    pub(crate) fn size(&self, node: Option<&Node>) -> u64 {
        match self {
            Self::List(_, Some(node)) | Self::Map(_, _, Some(node)) => largest(node),
            Self::Text | Self::Bytes => node.map_or(REQUEST_MAX - 2, largest),
            Self::Dyn | Self::List(..) | Self::Map(..) => REQUEST_MAX,
            _ => 1,
        }
    }
}

/// The largest size of a value with this schema.
fn largest(node: &Node) -> u64 {
    let checks = node.checks.as_deref();
    let bound = |b: Option<i64>| b.map(|b| b.max(0) as u64);
    match node.kind {
        Kind::String => {
            let allowed = checks.map(|c| &c.allowed).filter(|a| !a.is_empty());
            if let Some(allowed) = allowed {
                return allowed.iter().filter_map(|v| v.as_str()).map(|s| s.len() as u64).max().unwrap_or(0);
            }
            // Lengths are in characters, and one may take four bytes.
            bound(checks.and_then(|c| c.max_length)).map_or(REQUEST_MAX - 2, |n| n.saturating_mul(4))
        }
        Kind::Array => {
            let item = node.items.as_deref().map_or(1, smallest);
            bound(checks.and_then(|c| c.max_items)).unwrap_or((REQUEST_MAX - 2) / (item + 1))
        }
        Kind::Object => {
            let item = node.additional_schema().map_or(1, smallest);
            bound(checks.and_then(|c| c.max_properties)).unwrap_or((REQUEST_MAX - 2) / (item + 6))
        }
        _ => 1,
    }
}

/// The smallest number of bytes that a value with this schema takes in a request.
fn smallest(node: &Node) -> u64 {
    match node.kind {
        Kind::Boolean => 4,
        Kind::Integer | Kind::Number => 1,
        Kind::String | Kind::Array => 2,
        Kind::Any => 1,
        Kind::Object => {
            let required = node.required().iter().filter_map(|name| Some((name, node.property(name)?)));
            let fields = required
                .filter(|(_, n)| n.default_value().is_none())
                .map(|(name, n)| name.len() as u64 + 4 + smallest(n));
            2 + fields.sum::<u64>()
        }
    }
}

/// How often a value with this schema can occur when nothing bounds it.
pub(crate) fn occurrences(node: &Node) -> u64 {
    REQUEST_MAX / (smallest(node) + 1)
}

/// How many values a schema adds under each of its own: `None` when nothing bounds them.
pub(crate) fn children(node: &Node) -> Option<u64> {
    let checks = node.checks.as_deref();
    let bound = match (node.kind, &node.additional) {
        (Kind::Array, _) => checks?.max_items?,
        (Kind::Object, Additional::Unsaid) => 1,
        (Kind::Object, _) => checks?.max_properties?,
        _ => 1,
    };
    Some(bound.max(0) as u64)
}
