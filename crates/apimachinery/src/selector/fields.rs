//! Field selectors: equality of scalar fields.

use std::fmt;

use serde_json::Value;

use super::{SelectorError, TERMS_MAX, write_joined};

/// One term of a field selector: the field equals the value, or does not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldTerm {
    /// The field, e.g. `metadata.name`.
    pub field: String,
    /// The value to compare with, unescaped.
    pub value: String,
    /// True for `=` and `==`, false for `!=`.
    pub equal: bool,
}

impl fmt::Display for FieldTerm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.field)?;
        f.write_str(if self.equal { "=" } else { "!=" })?;
        for c in self.value.chars() {
            if matches!(c, '\\' | ',' | '=') {
                f.write_str("\\")?;
            }
            write!(f, "{c}")?;
        }
        Ok(())
    }
}

/// A `fieldSelector`; an object must satisfy all terms.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSelector {
    terms: Vec<FieldTerm>,
}

impl FieldSelector {
    /// Parses the query string form: `metadata.name=a,spec.x!=b`.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut parts = split_unescaped(text);
        parts.sort_unstable();
        if parts.len() > TERMS_MAX {
            return Err(SelectorError(format!("invalid selector: more than {TERMS_MAX} terms")));
        }
        let mut terms = Vec::new();
        for part in parts.into_iter().filter(|p| !p.is_empty()) {
            let split = part.char_indices().find_map(|(i, _)| {
                let rest = &part[i..];
                ["!=", "==", "="]
                    .iter()
                    .find(|op| rest.starts_with(**op))
                    .map(|op| (&part[..i], *op, &rest[op.len()..]))
            });
            let Some((field, operator, value)) = split else {
                return Err(SelectorError(format!("invalid selector: '{text}'; can't understand '{part}'")));
            };
            terms.push(FieldTerm {
                field: field.to_owned(),
                value: unescape(value)?,
                equal: operator != "!=",
            });
        }
        Ok(Self { terms })
    }

    /// Whether the selector has no terms.
    pub fn is_everything(&self) -> bool {
        self.terms.is_empty()
    }

    /// The terms, sorted by their source text.
    pub fn terms(&self) -> &[FieldTerm] {
        &self.terms
    }

    /// The value that `field` must equal, if the selector has such a term.
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.terms.iter().find(|t| t.equal && t.field == field).map(|t| t.value.as_str())
    }

    /// Whether an object matches. `lookup` returns the text of a field; a missing field is the empty string.
    pub fn matches<'a>(&self, lookup: impl Fn(&str) -> Option<std::borrow::Cow<'a, str>>) -> bool {
        self.terms.iter().all(|term| (lookup(&term.field).unwrap_or_default() == term.value) == term.equal)
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_joined(f, &self.terms)
    }
}

/// The text of the scalar at a dotted path, with or without a leading dot.
pub fn field_text<'a>(object: &'a Value, path: &str) -> Option<std::borrow::Cow<'a, str>> {
    let mut at = object;
    for step in path.trim_start_matches('.').split('.') {
        at = at.get(step)?;
    }
    match at {
        Value::String(s) => Some(s.as_str().into()),
        Value::Bool(b) => Some(if *b { "true".into() } else { "false".into() }),
        Value::Number(n) => Some(n.to_string().into()),
        _ => None,
    }
}

fn split_unescaped(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut start = 0;
    let mut escaped = false;
    for (i, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                parts.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    if !text.is_empty() {
        parts.push(&text[start..]);
    }
    parts
}

fn unescape(text: &str) -> Result<String, SelectorError> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => out.push(c),
                Some(c) => {
                    return Err(SelectorError(format!(
                        "invalid field selector: invalid escape sequence: \\{c}"
                    )));
                }
                None => {
                    return Err(SelectorError(
                        "invalid field selector: invalid escape sequence: \\".to_owned(),
                    ));
                }
            },
            ',' | '=' => {
                return Err(SelectorError(format!(
                    "invalid field selector: unescaped character in value: {}",
                    c as u32
                )));
            }
            c => out.push(c),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn field_selectors_compare_the_text_of_fields() {
        let object = json!({"metadata": {"name": "a", "namespace": "n"}, "spec": {"paused": true, "size": 3, "note": "x,y"}});
        let cases = [
            ("metadata.name=a", true),
            ("metadata.name!=a", false),
            ("metadata.name==a,metadata.namespace=n", true),
            ("spec.paused=true", true),
            ("spec.size=3", true),
            ("spec.note=x\\,y", true),
            ("spec.absent=", true),
            ("spec.absent!=x", true),
            (",,", true),
        ];
        for (text, expected) in cases {
            let selector = FieldSelector::parse(text).unwrap();
            assert_eq!(selector.matches(|field| field_text(&object, field)), expected, "{text}");
        }
    }

    #[test]
    fn an_invalid_field_selector_has_the_message_of_kubernetes() {
        for (text, words) in [
            ("metadata.name", "invalid selector: 'metadata.name'; can't understand 'metadata.name'"),
            ("a=b\\x", "invalid field selector: invalid escape sequence: \\x"),
            ("a=b\\", "invalid field selector: invalid escape sequence: \\"),
            ("a=b=c", "invalid field selector: unescaped character in value: 61"),
        ] {
            assert_eq!(FieldSelector::parse(text).unwrap_err().to_string(), words);
        }
    }
}
