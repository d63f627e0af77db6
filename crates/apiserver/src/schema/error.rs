//! Validation errors of single fields, worded as in Kubernetes (`field.Error`).
//!
//! They become `details.causes` and the message of a 422. Clients parse both, so numbers, strings and objects
//! are formatted as Go formats them.

use std::fmt::{self, Write};

use serde_json::{Number, Value};

/// The type of a validation error. [`ValidationErrorKind::reason`] is the value of `causes[].reason`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ValidationErrorKind {
    /// A referenced value does not exist.
    NotFound,
    /// A required value is missing.
    Required,
    /// The value must be unique and occurs twice.
    Duplicate,
    /// The value is malformed or out of bounds.
    Invalid,
    /// The value is not in the list of supported values.
    NotSupported,
    /// The value is well-formed but not allowed here.
    Forbidden,
    /// A string is too long; the value is not repeated in the message.
    TooLong,
    /// A list or map has too many entries.
    TooMany,
    /// The server failed to validate the value.
    Internal,
    /// The value has another JSON type than the schema requires.
    TypeInvalid,
}

impl ValidationErrorKind {
    /// The machine-readable cause, e.g. `FieldValueRequired`.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NotFound => "FieldValueNotFound",
            Self::Required => "FieldValueRequired",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::Internal => "InternalError",
            Self::TypeInvalid => "FieldValueTypeInvalid",
        }
    }

    fn label(self) -> &'static str {
        match self {
            Self::NotFound => "Not found",
            Self::Required => "Required value",
            Self::Duplicate => "Duplicate value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::Internal => "Internal error",
        }
    }

    fn shows_value(self) -> bool {
        !matches!(self, Self::Required | Self::Forbidden | Self::TooLong | Self::Internal)
    }
}

/// A validation error of one field.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidationError {
    /// The type of the error.
    pub kind: ValidationErrorKind,
    /// The path, e.g. `spec.ports[0].name`; `<nil>` for the object itself, as in Kubernetes.
    pub field: String,
    /// The invalid value; `None` omits it from the message.
    pub value: Option<Value>,
    /// The reason, without a full stop; may be empty.
    pub detail: String,
}

impl ValidationError {
    /// An error with all fields.
    pub fn new(
        kind: ValidationErrorKind,
        field: impl Into<String>,
        value: Option<Value>,
        detail: impl Into<String>,
    ) -> Self {
        Self { kind, field: field.into(), value, detail: detail.into() }
    }

    /// A required value is missing.
    pub fn required(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(ValidationErrorKind::Required, field, None, detail)
    }

    /// The value is malformed or out of bounds.
    pub fn invalid(field: impl Into<String>, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(ValidationErrorKind::Invalid, field, Some(value.into()), detail)
    }

    /// The value has another JSON type than the schema requires.
    pub fn type_invalid(
        field: impl Into<String>,
        value: impl Into<Value>,
        detail: impl Into<String>,
    ) -> Self {
        Self::new(ValidationErrorKind::TypeInvalid, field, Some(value.into()), detail)
    }

    /// The value occurs twice.
    pub fn duplicate(field: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::new(ValidationErrorKind::Duplicate, field, Some(value.into()), "")
    }

    /// The value is not allowed here.
    pub fn forbidden(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(ValidationErrorKind::Forbidden, field, None, detail)
    }

    /// A referenced value does not exist.
    pub fn not_found(field: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::new(ValidationErrorKind::NotFound, field, Some(value.into()), "")
    }

    /// The value is not one of `supported`, which the message lists in the given order.
    pub fn not_supported<S: AsRef<str>>(
        field: impl Into<String>,
        value: impl Into<Value>,
        supported: impl IntoIterator<Item = S>,
    ) -> Self {
        let listed: Vec<String> = supported.into_iter().map(|s| quote(s.as_ref())).collect();
        let detail = if listed.is_empty() {
            String::new()
        } else {
            format!("supported values: {}", listed.join(", "))
        };
        Self::new(ValidationErrorKind::NotSupported, field, Some(value.into()), detail)
    }

    /// A string of more than `max` bytes.
    pub fn too_long(field: impl Into<String>, max: i64) -> Self {
        let unit = if max == 1 { "byte" } else { "bytes" };
        Self::new(ValidationErrorKind::TooLong, field, None, format!("may not be more than {max} {unit}"))
    }

    /// A list or map of `actual` entries where `max` are allowed.
    pub fn too_many(field: impl Into<String>, actual: usize, max: i64) -> Self {
        let unit = if max == 1 { "item" } else { "items" };
        Self::new(
            ValidationErrorKind::TooMany,
            field,
            Some(Value::from(actual)),
            format!("must have at most {max} {unit}"),
        )
    }

    /// The server failed to validate the value.
    pub fn internal(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(ValidationErrorKind::Internal, field, None, detail)
    }

    /// The machine-readable cause.
    pub fn reason(&self) -> &'static str {
        self.kind.reason()
    }

    /// The message without the field: the value of `causes[].message`.
    pub fn message(&self) -> String {
        let mut out = String::from(self.kind.label());
        if self.kind.shows_value()
            && let Some(value) = &self.value
        {
            out.push_str(": ");
            out.push_str(&render(value));
        }
        if !self.detail.is_empty() {
            out.push_str(": ");
            out.push_str(&self.detail);
        }
        out
    }
}

impl fmt::Display for ValidationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message())
    }
}

impl std::error::Error for ValidationError {}

/// All errors in one line, as in Kubernetes: without duplicates, in brackets if there is more than one.
pub fn aggregate(errors: &[ValidationError]) -> String {
    let mut lines: Vec<String> = Vec::with_capacity(errors.len());
    for error in errors {
        let line = error.to_string();
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    match lines.as_slice() {
        [] => String::new(),
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

/// Formats a value for a message: strings quoted, lists and maps as JSON.
pub(crate) fn render(value: &Value) -> String {
    match value {
        Value::String(s) => quote(s),
        Value::Number(n) => number(n),
        other => json(other),
    }
}

/// A number as Go prints it with `%v`.
pub(crate) fn number(n: &Number) -> String {
    match n.as_i64() {
        Some(i) => i.to_string(),
        None => float(n.as_f64().unwrap_or(f64::NAN)),
    }
}

/// A float as Go prints it with `%v`: shortest digits, exponent from 1e21 up and below 1e-4.
pub(crate) fn float(f: f64) -> String {
    if !f.is_finite() {
        return if f.is_nan() {
            "NaN".into()
        } else if f > 0.0 {
            "+Inf".into()
        } else {
            "-Inf".into()
        };
    }
    let magnitude = f.abs();
    if magnitude != 0.0 && !(1e-4..1e21).contains(&magnitude) { exponent(f) } else { format!("{f}") }
}

/// A float as Go's JSON encoder writes it: exponent from 1e21 up and below 1e-6.
fn json_float(f: f64) -> String {
    let magnitude = f.abs();
    if magnitude != 0.0 && !(1e-6..1e21).contains(&magnitude) {
        // The encoder shortens e-09 to e-9, `%v` does not.
        let text = exponent(f);
        match text.rsplit_once("e-0") {
            Some((mantissa, digit)) => format!("{mantissa}e-{digit}"),
            None => text,
        }
    } else {
        format!("{f}")
    }
}

fn exponent(f: f64) -> String {
    let text = format!("{f:e}");
    let (mantissa, power) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, digits) = match power.strip_prefix('-') {
        Some(digits) => ('-', digits),
        None => ('+', power),
    };
    format!("{mantissa}e{sign}{digits:0>2}")
}

/// A string in double quotes with Go's escapes.
pub(crate) fn quote(s: &str) -> String {
    let mut out = String::with_capacity(s.len() + 2);
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            c if (c as u32) < 0x20 || c == '\u{7f}' => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c if c.is_control()
                || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{200b}'..='\u{200f}') =>
            {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// JSON as Go's encoder writes it: keys sorted, `<`, `>` and `&` escaped.
pub(crate) fn json(value: &Value) -> String {
    let mut out = String::new();
    write_json(value, &mut out);
    out
}

fn write_json(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Number(n) => match n.as_i64() {
            Some(i) => out.push_str(&i.to_string()),
            None => out.push_str(&json_float(n.as_f64().unwrap_or(0.0))),
        },
        Value::String(s) => write_json_string(s, out),
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_json(item, out);
            }
            out.push(']');
        }
        Value::Object(map) => {
            out.push('{');
            for (i, (key, item)) in map.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_json_string(key, out);
                out.push(':');
                write_json(item, out);
            }
            out.push('}');
        }
    }
}

fn write_json_string(s: &str, out: &mut String) {
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c if (c as u32) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn errors_are_worded_as_in_kubernetes() {
        let cases = [
            (ValidationError::required("spec.x", ""), "spec.x: Required value"),
            (
                ValidationError::required("spec.x", "must be specified"),
                "spec.x: Required value: must be specified",
            ),
            (
                ValidationError::invalid("spec.x", "a\"b", "must be good"),
                "spec.x: Invalid value: \"a\\\"b\": must be good",
            ),
            (ValidationError::invalid("spec.x", 5, "too small"), "spec.x: Invalid value: 5: too small"),
            (ValidationError::invalid("spec.x", 1.5, "odd"), "spec.x: Invalid value: 1.5: odd"),
            (
                ValidationError::invalid("spec.x", json!({"b":1,"a":"<"}), "odd"),
                "spec.x: Invalid value: {\"a\":\"\\u003c\",\"b\":1}: odd",
            ),
            (
                ValidationError::not_supported("spec.x", "c", ["a", "b"]),
                "spec.x: Unsupported value: \"c\": supported values: \"a\", \"b\"",
            ),
            (ValidationError::too_long("spec.x", 3), "spec.x: Too long: may not be more than 3 bytes"),
            (ValidationError::too_many("spec.x", 4, 1), "spec.x: Too many: 4: must have at most 1 item"),
            (
                ValidationError::duplicate("spec.x[1]", json!({"name":"a"})),
                "spec.x[1]: Duplicate value: {\"name\":\"a\"}",
            ),
            (ValidationError::forbidden("spec", "no"), "spec: Forbidden: no"),
        ];
        for (error, text) in cases {
            assert_eq!(error.to_string(), text);
        }
    }

    #[test]
    fn floats_are_formatted_as_in_go() {
        for (f, text) in [
            (1e21, "1e+21"),
            (1e20, "100000000000000000000"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.0, "1"),
            (-2.5e30, "-2.5e+30"),
        ] {
            assert_eq!(float(f), text);
        }
        assert_eq!(json(&json!(1e-9)), "1e-9");
    }

    #[test]
    fn several_errors_are_bracketed_and_duplicates_dropped() {
        let one = ValidationError::required("a", "");
        let two = ValidationError::required("b", "");
        assert_eq!(aggregate(std::slice::from_ref(&one)), "a: Required value");
        assert_eq!(aggregate(&[one.clone(), two, one]), "[a: Required value, b: Required value]");
    }
}
