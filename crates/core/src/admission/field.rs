//! Fields, and what is wrong with them, in the words that Kubernetes uses.

use std::fmt;

use serde_json::Value;

/// Characters of a refused value that are shown: enough to find it again.
const SHOWN: usize = 120;

/// The way to a field, as a user writes it: `spec.placements[0].cityCodes[1]`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path(String);

impl Path {
    /// A field of the object.
    pub fn new(field: &str) -> Self {
        Self(field.to_owned())
    }

    /// A field, or several with dots between them, of what is here.
    pub fn at(&self, field: &str) -> Self {
        Self(format!("{}.{field}", self.0))
    }

    /// An entry of the list that is here.
    pub fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    /// The value of a key of the map that is here.
    pub fn key(&self, key: &str) -> Self {
        Self(format!("{}[{key}]", self.0))
    }

    /// Must be given.
    pub fn required(&self, detail: impl Into<String>) -> FieldError {
        self.error(Fault::Required, None, detail)
    }

    /// Has a value that cannot be.
    pub fn invalid(&self, value: impl Into<Value>, detail: impl Into<String>) -> FieldError {
        self.error(Fault::Invalid, Some(value.into()), detail)
    }

    /// Must not be given.
    pub fn forbidden(&self, detail: impl Into<String>) -> FieldError {
        self.error(Fault::Forbidden, None, detail)
    }

    /// Has a value that is none of those there are.
    pub fn not_supported<'a>(
        &self,
        value: impl Into<Value>,
        supported: impl IntoIterator<Item = &'a str>,
    ) -> FieldError {
        let supported: Vec<String> = supported.into_iter().map(|value| format!("{value:?}")).collect();
        self.error(
            Fault::NotSupported,
            Some(value.into()),
            format!("supported values: {}", supported.join(", ")),
        )
    }

    /// Has a value that another has already.
    pub fn duplicate(&self, value: impl Into<Value>) -> FieldError {
        self.error(Fault::Duplicate, Some(value.into()), "")
    }

    /// Names something that is not there.
    pub fn not_found(&self, value: impl Into<Value>, detail: impl Into<String>) -> FieldError {
        self.error(Fault::NotFound, Some(value.into()), detail)
    }

    /// Cannot be judged.
    pub fn internal(&self, detail: impl Into<String>) -> FieldError {
        self.error(Fault::Internal, None, detail)
    }

    fn error(&self, fault: Fault, value: Option<Value>, detail: impl Into<String>) -> FieldError {
        FieldError { path: self.clone(), fault, value, detail: detail.into() }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What kind of wrong it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Missing.
    Required,
    /// Not a possible value.
    Invalid,
    /// Not allowed here, or not to this user.
    Forbidden,
    /// None of the values there are.
    NotSupported,
    /// Given twice.
    Duplicate,
    /// Names something that is not there.
    NotFound,
    /// Could not be found out.
    Internal,
}

impl Fault {
    /// The word for it in the causes of a Kubernetes status.
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

    fn in_words(self) -> &'static str {
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

/// One thing that is wrong with an object.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    /// Where.
    pub path: Path,
    /// What kind of wrong.
    pub fault: Fault,
    value: Option<Value>,
    detail: String,
}

impl FieldError {
    /// What is wrong, without the field: `Invalid value: "x": must be …`.
    pub fn message(&self) -> String {
        let mut message = self.fault.in_words().to_owned();
        if let Some(value) = &self.value {
            message = format!("{message}: {}", shown(value));
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

/// A value as it is shown, cut to a length that leaves room for the rest.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_read_as_those_of_kubernetes() {
        let at = Path::new("spec").at("ports").index(1).at("name");
        for (error, text) in [
            (at.required(""), "spec.ports[1].name: Required value"),
            (at.required("say one"), "spec.ports[1].name: Required value: say one"),
            (at.invalid("X", "too loud"), "spec.ports[1].name: Invalid value: \"X\": too loud"),
            (at.invalid(7, "too much"), "spec.ports[1].name: Invalid value: 7: too much"),
            (at.forbidden("not here"), "spec.ports[1].name: Forbidden: not here"),
            (
                at.not_supported("c", ["a", "b"]),
                "spec.ports[1].name: Unsupported value: \"c\": supported values: \"a\", \"b\"",
            ),
            (at.duplicate("a"), "spec.ports[1].name: Duplicate value: \"a\""),
            (at.not_found("a", ""), "spec.ports[1].name: Not found: \"a\""),
            (at.internal("away"), "spec.ports[1].name: Internal error: away"),
        ] {
            assert_eq!(error.to_string(), text);
        }
    }

    #[test]
    fn a_long_value_is_cut_between_characters() {
        let text = Path::new("spec").invalid("é".repeat(500), "too long").to_string();
        assert!(text.ends_with("…: too long") && text.chars().count() < 160, "{text}");
    }
}
