//! Path elements of `fieldsV1`: a field, a list element by keys, a list element by value, or a list index.

use std::cmp::Ordering;
use std::fmt;

use serde_json::Value;

use crate::go_format;

/// One element of a path into an object.
#[derive(Debug, Clone)]
pub enum PathElement {
    /// `f:name`: a field or map entry.
    Field(Box<str>),
    /// `k:{"name":"x"}`: an element of a map list, by its key fields in the order of their names.
    Key(Box<[(Box<str>, Value)]>),
    /// `v:"x"`: an element of a set.
    Value(Value),
    /// `i:3`: an element by its index. Kubernetes decodes it and never encodes it.
    Index(i64),
}

impl PathElement {
    /// A field of this name.
    pub fn field(name: &str) -> Self {
        Self::Field(name.into())
    }

    /// Encodes the element as a key of `fieldsV1`.
    pub fn encode(&self) -> String {
        match self {
            Self::Field(name) => format!("f:{name}"),
            Self::Key(fields) => {
                let map: serde_json::Map<String, Value> =
                    fields.iter().map(|(k, v)| (k.to_string(), v.clone())).collect();
                format!("k:{}", go_format::json(&Value::Object(map)))
            }
            Self::Value(value) => format!("v:{}", go_format::json(value)),
            Self::Index(index) => format!("i:{index}"),
        }
    }

    /// Decodes a key of `fieldsV1`; `None` if it is invalid.
    pub fn decode(text: &str) -> Option<Self> {
        let (prefix, rest) = text.split_at_checked(2)?;
        match prefix {
            "f:" => Some(Self::field(rest)),
            "v:" => serde_json::from_str(rest).ok().map(Self::Value),
            "i:" => rest.parse().ok().map(Self::Index),
            "k:" => match serde_json::from_str(rest).ok()? {
                Value::Object(map) => Some(Self::Key(map.into_iter().map(|(k, v)| (k.into(), v)).collect())),
                _ => None,
            },
            _ => None,
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Field(_) => 0,
            Self::Key(_) => 1,
            Self::Value(_) => 2,
            Self::Index(_) => 3,
        }
    }
}

impl fmt::Display for PathElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(fields) => {
                f.write_str("[")?;
                for (i, (name, value)) in fields.iter().enumerate() {
                    write!(f, "{}{name}={}", if i > 0 { "," } else { "" }, go_format::render(value))?;
                }
                f.write_str("]")
            }
            Self::Value(value) => write!(f, "[={}]", go_format::render(value)),
            Self::Index(index) => write!(f, "[{index}]"),
        }
    }
}

impl Ord for PathElement {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Field(a), Self::Field(b)) => a.cmp(b),
            (Self::Key(a), Self::Key(b)) => compare_keys(a, b),
            (Self::Value(a), Self::Value(b)) => compare_values(a, b),
            (Self::Index(a), Self::Index(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl PartialOrd for PathElement {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PathElement {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for PathElement {}

fn compare_keys(a: &[(Box<str>, Value)], b: &[(Box<str>, Value)]) -> Ordering {
    for ((a_name, a_value), (b_name, b_value)) in a.iter().zip(b) {
        let order = a_name.cmp(b_name).then_with(|| compare_values(a_value, b_value));
        if order != Ordering::Equal {
            return order;
        }
    }
    a.len().cmp(&b.len())
}

/// A total order of JSON values: numbers, strings, booleans, lists, maps, null. Numbers compare by value: 1
/// equals 1.0.
pub(crate) fn compare_values(a: &Value, b: &Value) -> Ordering {
    fn rank(v: &Value) -> u8 {
        match v {
            Value::Number(_) => 0,
            Value::String(_) => 1,
            Value::Bool(_) => 2,
            Value::Array(_) => 3,
            Value::Object(_) => 4,
            Value::Null => 5,
        }
    }
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => match (x.as_i64(), y.as_i64()) {
            (Some(x), Some(y)) => x.cmp(&y),
            _ => x.as_f64().unwrap_or_default().total_cmp(&y.as_f64().unwrap_or_default()),
        },
        (Value::String(x), Value::String(y)) => x.cmp(y),
        (Value::Bool(x), Value::Bool(y)) => x.cmp(y),
        (Value::Array(x), Value::Array(y)) => {
            let first = x.iter().zip(y).map(|(x, y)| compare_values(x, y)).find(|o| o.is_ne());
            first.unwrap_or_else(|| x.len().cmp(&y.len()))
        }
        (Value::Object(x), Value::Object(y)) => {
            let pairs = x.iter().zip(y);
            let first = pairs
                .map(|((xk, xv), (yk, yv))| xk.cmp(yk).then_with(|| compare_values(xv, yv)))
                .find(|o| o.is_ne());
            first.unwrap_or_else(|| x.len().cmp(&y.len()))
        }
        _ => rank(a).cmp(&rank(b)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn encoding_round_trips() {
        let key = PathElement::Key(Box::new([("name".into(), json!("a<b")), ("port".into(), json!(80))]));
        for (element, encoded, shown) in [
            (PathElement::field("a.b"), "f:a.b", ".a.b"),
            (key, "k:{\"name\":\"a\\u003cb\",\"port\":80}", "[name=\"a<b\",port=80]"),
            (PathElement::Value(json!("x")), "v:\"x\"", "[=\"x\"]"),
            (PathElement::Index(3), "i:3", "[3]"),
        ] {
            assert_eq!(element.encode(), encoded);
            assert_eq!(element.to_string(), shown);
            assert_eq!(PathElement::decode(encoded), Some(element));
        }
        for odd in ["", "f", "x:a", "i:a", "k:[]", "v:{"] {
            assert_eq!(PathElement::decode(odd), None);
        }
    }

    #[test]
    fn elements_are_sorted_as_fields_keys_values_indexes() {
        let mut elements = [
            PathElement::Index(0),
            PathElement::Value(json!(1)),
            PathElement::Key(Box::new([])),
            PathElement::field("z"),
            PathElement::field("a"),
        ];
        elements.sort();
        let shown: Vec<String> = elements.iter().map(PathElement::encode).collect();
        assert_eq!(shown, ["f:a", "f:z", "k:{}", "v:1", "i:0"]);
        assert_eq!(PathElement::Value(json!(1)), PathElement::Value(json!(1.0)));
    }
}
