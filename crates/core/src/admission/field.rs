//! Field paths and validation errors, with the reasons and texts of Kubernetes.

use std::fmt;

use serde_json::Value;

/// The number of characters of an invalid value that a message shows: enough for the user to find it.
const MAX_SHOWN: usize = 120;

/// The path of a field, such as `spec.placements[0].cityCodes[1]`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path(String);

impl Path {
    /// The path of a field, from the root of the object.
    pub fn new(field: &str) -> Self {
        Self(field.to_owned())
    }

    /// The path of a field below this one; `field` may contain dots.
    pub fn at(&self, field: &str) -> Self {
        Self(format!("{}.{field}", self.0))
    }

    /// The path of an element of this list.
    pub fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    /// The path of the value of a key in this map.
    pub fn key(&self, key: &str) -> Self {
        Self(format!("{}[{key}]", self.0))
    }

    /// The error that the field is missing.
    pub fn required(&self, detail: impl Into<String>) -> FieldError {
        self.error(FieldErrorKind::Required, None, detail)
    }

    /// The error that the value is invalid.
    pub fn invalid(&self, value: impl Into<Value>, detail: impl Into<String>) -> FieldError {
        self.error(FieldErrorKind::Invalid, Some(value.into()), detail)
    }

    /// The error that the field must not be set.
    pub fn forbidden(&self, detail: impl Into<String>) -> FieldError {
        self.error(FieldErrorKind::Forbidden, None, detail)
    }

    /// The error that the value is not one of the supported values.
    pub fn not_supported<'a>(
        &self,
        value: impl Into<Value>,
        supported: impl IntoIterator<Item = &'a str>,
    ) -> FieldError {
        let supported: Vec<String> = supported.into_iter().map(|value| format!("{value:?}")).collect();
        self.error(
            FieldErrorKind::NotSupported,
            Some(value.into()),
            format!("supported values: {}", supported.join(", ")),
        )
    }

    /// The error that another field has the same value.
    pub fn duplicate(&self, value: impl Into<Value>) -> FieldError {
        self.error(FieldErrorKind::Duplicate, Some(value.into()), "")
    }

    /// The error that the value names something that does not exist.
    pub fn not_found(&self, value: impl Into<Value>, detail: impl Into<String>) -> FieldError {
        self.error(FieldErrorKind::NotFound, Some(value.into()), detail)
    }

    /// The error that the field could not be checked.
    pub fn internal(&self, detail: impl Into<String>) -> FieldError {
        self.error(FieldErrorKind::Internal, None, detail)
    }

    fn error(&self, kind: FieldErrorKind, value: Option<Value>, detail: impl Into<String>) -> FieldError {
        FieldError { path: self.clone(), kind, value, detail: detail.into() }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The type of a validation error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldErrorKind {
    /// The field is missing.
    Required,
    /// The value is invalid.
    Invalid,
    /// The field must not be set, or not by this user.
    Forbidden,
    /// The value is not one of the supported values.
    NotSupported,
    /// Another field has the same value.
    Duplicate,
    /// The value names something that does not exist.
    NotFound,
    /// The field could not be checked.
    Internal,
}

impl FieldErrorKind {
    /// The reason in the causes of a Kubernetes Status.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid => "FieldValueInvalid",
            Self::Forbidden => "FieldValueForbidden",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Duplicate => "FieldValueDuplicate",
            Self::NotFound => "FieldValueNotFound",
            Self::Internal => "InternalError",
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Required => "Required value",
            Self::Invalid => "Invalid value",
            Self::Forbidden => "Forbidden",
            Self::NotSupported => "Unsupported value",
            Self::Duplicate => "Duplicate value",
            Self::NotFound => "Not found",
            Self::Internal => "Internal error",
        }
    }
}

/// A validation error of one field.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    /// The path of the field.
    pub path: Path,
    /// The type of the error.
    pub kind: FieldErrorKind,
    value: Option<Value>,
    detail: String,
}

impl FieldError {
    /// The message without the path: `Invalid value: "x": must be …`.
    pub fn message(&self) -> String {
        let mut message = self.kind.text().to_owned();
        if let Some(value) = &self.value {
            message = format!("{message}: {}", truncated(value));
        }
        if !self.detail.is_empty() {
            message = format!("{message}: {}", self.detail);
        }
        message
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message())
    }
}

/// The value as JSON, truncated so that the rest of the message stays readable.
fn truncated(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_texts_of_kubernetes() {
        let at = Path::new("spec").at("ports").index(1).at("name");
        for (error, text) in [
            (at.required(""), "spec.ports[1].name: Required value"),
            (at.required("set one"), "spec.ports[1].name: Required value: set one"),
            (at.invalid("X", "too short"), "spec.ports[1].name: Invalid value: \"X\": too short"),
            (at.invalid(7, "too much"), "spec.ports[1].name: Invalid value: 7: too much"),
            (at.forbidden("not here"), "spec.ports[1].name: Forbidden: not here"),
            (
                at.not_supported("c", ["a", "b"]),
                "spec.ports[1].name: Unsupported value: \"c\": supported values: \"a\", \"b\"",
            ),
            (at.duplicate("a"), "spec.ports[1].name: Duplicate value: \"a\""),
            (at.not_found("a", ""), "spec.ports[1].name: Not found: \"a\""),
            (at.internal("timeout"), "spec.ports[1].name: Internal error: timeout"),
        ] {
            assert_eq!(error.to_string(), text);
        }
    }

    #[test]
    fn a_long_value_is_truncated_between_characters() {
        let text = Path::new("spec").invalid("é".repeat(500), "too long").to_string();
        assert!(text.ends_with("…: too long") && text.chars().count() < 160, "{text}");
    }
}
