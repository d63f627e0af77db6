//! Decoders for untrusted JSON and YAML: report duplicate keys and bound the nesting.
//!
//! Numbers are normalized as in Kubernetes: whole floats become integers (`1.0` is stored as `1`), integers
//! beyond 64 bits become floats.
//!
//! ```
//! use polis_apimachinery::decode;
//!
//! let decoded = decode::json(br#"{"a": 1.0, "a": 2.0}"#).unwrap();
//! assert_eq!(decoded.value, serde_json::json!({"a": 2}));
//! assert_eq!(decoded.duplicates, [r#"duplicate field "a""#]);
//! assert_eq!(decode::yaml(b"a: 2").unwrap().value, decoded.value);
//! ```

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Maximum nesting of a value. Later walks over the value may therefore recurse.
pub const DEPTH_MAX: usize = 120;

/// A decoded document.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    /// The document; the last of duplicate keys wins.
    pub value: Value,
    /// Messages such as `duplicate field "spec.a"`, in document order; for `fieldValidation`.
    pub duplicates: Vec<String>,
}

/// Decodes one JSON document.
pub fn json(text: &[u8]) -> Result<Decoded, serde_json::Error> {
    let mut notes = Notes { at: String::new(), duplicates: Vec::new(), depth: 0 };
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let value = Seed(&mut notes).deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(Decoded { value, duplicates: notes.duplicates })
}

/// A text that is not one YAML document, or is nested too deeply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct YamlError(String);

/// Decodes one YAML document, and so also JSON. A duplicate key in YAML is an error.
pub fn yaml(bytes: &[u8]) -> Result<Decoded, YamlError> {
    // Most documents are JSON; the JSON decoder is faster and reports duplicate keys.
    if bytes.first() == Some(&b'{')
        && let Ok(decoded) = json(bytes)
    {
        return Ok(decoded);
    }
    let text = std::str::from_utf8(bytes).map_err(|error| YamlError(error.to_string()))?;
    let value: Value = serde_saphyr::from_str(text).map_err(|error| YamlError(error.to_string()))?;
    if !shallow(&value) {
        return Err(YamlError("it is nested too deeply".to_owned()));
    }
    Ok(Decoded { value, duplicates: Vec::new() })
}

/// Whether the value is nested at most [`DEPTH_MAX`] deep. For values that were not decoded here, e.g. patch
/// results.
pub fn shallow(value: &Value) -> bool {
    fn within(value: &Value, left: usize) -> bool {
        match value {
            Value::Array(items) => left > 0 && items.iter().all(|v| within(v, left - 1)),
            Value::Object(map) => left > 0 && map.values().all(|v| within(v, left - 1)),
            _ => true,
        }
    }
    within(value, DEPTH_MAX)
}

struct Notes {
    at: String,
    duplicates: Vec<String>,
    depth: usize,
}

struct Seed<'n>(&'n mut Notes);

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(Value::from(v))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(i64::try_from(v).map_or_else(|_| Value::from(v as f64), Value::from))
    }

    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        // Beyond 2^53 a float does not represent integers exactly.
        if v.fract() == 0.0 && v.abs() <= 9_007_199_254_740_992.0 {
            return Ok(Value::from(v as i64));
        }
        Ok(Number::from_f64(v).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::from(v))
    }

    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(Value::String(v))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let notes = self.0;
        let length = notes.at.len();
        deeper(notes)?;
        let mut items = Vec::new();
        loop {
            notes.at.truncate(length);
            notes.at.push_str(&format!("[{}]", items.len()));
            match seq.next_element_seed(Seed(notes))? {
                Some(item) => items.push(item),
                None => break,
            }
        }
        notes.at.truncate(length);
        notes.depth -= 1;
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let notes = self.0;
        let length = notes.at.len();
        deeper(notes)?;
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            if length > 0 {
                notes.at.push('.');
            }
            notes.at.push_str(&key);
            if map.contains_key(&key) && notes.duplicates.len() < crate::error::ERRORS_MAX {
                let note = format!("duplicate field {}", crate::go_format::quote(&notes.at));
                if !notes.duplicates.contains(&note) {
                    notes.duplicates.push(note);
                }
            }
            let value = access.next_value_seed(Seed(notes))?;
            map.insert(key, value);
            notes.at.truncate(length);
        }
        notes.depth -= 1;
        Ok(Value::Object(map))
    }
}

fn deeper<E: serde::de::Error>(notes: &mut Notes) -> Result<(), E> {
    notes.depth += 1;
    if notes.depth > DEPTH_MAX { Err(E::custom(format!("nested deeper than {DEPTH_MAX}"))) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn duplicate_keys_are_reported_and_the_last_wins() {
        let decoded =
            super::json(br#"{"spec":{"a":1,"a":2,"l":[{"b":1,"b":1}]},"kind":"x","kind":"y"}"#).unwrap();
        assert_eq!(decoded.value, json!({"spec": {"a": 2, "l": [{"b": 1}]}, "kind": "y"}));
        assert_eq!(
            decoded.duplicates,
            ["duplicate field \"spec.a\"", "duplicate field \"spec.l[0].b\"", "duplicate field \"kind\""]
        );
    }

    #[test]
    fn numbers_are_normalized() {
        assert_eq!(
            super::json(b"[1.0, -3.0, 1.5, 18446744073709551615, 1e300]").unwrap().value,
            json!([1, -3, 1.5, 18446744073709551615u64 as f64, 1e300])
        );
    }

    #[test]
    fn yaml_decodes_to_the_same_value_as_json() {
        assert_eq!(yaml(b"a: 1\nb: [x, 'y']\n").unwrap().value, json!({"a": 1, "b": ["x", "y"]}));
    }

    #[test]
    fn a_document_nested_too_deeply_is_rejected() {
        let text = "[".repeat(5000);
        assert!(super::json(text.as_bytes()).is_err());
        let deep = format!("{}1{}", "[".repeat(DEPTH_MAX + 1), "]".repeat(DEPTH_MAX + 1));
        assert!(super::json(deep.as_bytes()).unwrap_err().to_string().contains("nested deeper"));
        assert!(super::json(b"{} {}").is_err());
        assert!(yaml([b"[".repeat(5000), b"]".repeat(5000)].concat().as_slice()).is_err());
    }
}
