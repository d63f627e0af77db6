//! Validation errors of single fields, worded as in Kubernetes (`field.Error`).
//!
//! They become `details.causes` and the message of a 422. Clients parse both, so values are written as Go
//! writes them: see [`go_format`](crate::go_format).

use std::fmt;

use serde_json::Value;

use crate::go_format;

/// Maximum number of errors that are collected for one object.
pub(crate) const ERRORS_MAX: usize = 1024;

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
        let listed: Vec<String> = supported.into_iter().map(|s| go_format::quote(s.as_ref())).collect();
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
            out.push_str(&go_format::render(value));
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
    fn several_errors_are_bracketed_and_duplicates_dropped() {
        let one = ValidationError::required("a", "");
        let two = ValidationError::required("b", "");
        assert_eq!(aggregate(std::slice::from_ref(&one)), "a: Required value");
        assert_eq!(aggregate(&[one.clone(), two, one]), "[a: Required value, b: Required value]");
    }
}
