//! [`Index`]: a cache index by owner, label or field, like client-go's indexers.
//!
//! The watch declares an index, and the cache updates it with each object. The values are read from the JSON
//! bytes by visiting only the indexed field, without a JSON tree of the whole object.

use std::borrow::Cow;
use std::fmt;

use serde::Deserializer as _;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// An index of cached objects, declared with [`crate::Watch::index`].
#[derive(Clone, Debug)]
pub enum Index {
    /// The UID of every owner reference.
    Owner,
    /// The value of a label.
    Label(Cow<'static, str>),
    /// The string, number or boolean at a path such as `spec.workloadRef.uid`. A list on the path yields the
    /// value of each element.
    Field(Cow<'static, str>),
    /// Values that a function computes from the object's JSON, which lacks `apiVersion` and `kind`. Its name
    /// identifies the index.
    Computed(&'static str, fn(&[u8]) -> Vec<String>),
}

impl PartialEq for Index {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Owner, Self::Owner) => true,
            (Self::Label(name), Self::Label(other)) => name == other,
            (Self::Field(path), Self::Field(other)) => path == other,
            (Self::Computed(name, _), Self::Computed(other, _)) => name == other,
            _ => false,
        }
    }
}

impl Eq for Index {}

impl Index {
    /// An index by the value of a label.
    pub fn label(name: impl Into<Cow<'static, str>>) -> Self {
        Self::Label(name.into())
    }

    /// An index by a field. Dots separate the parts of the path.
    pub fn field(path: impl Into<Cow<'static, str>>) -> Self {
        Self::Field(path.into())
    }

    /// The values of an object for this index.
    pub(crate) fn values(&self, json: &[u8]) -> Vec<String> {
        let mut values = Vec::new();
        match self {
            Self::Owner => walk(json, &["metadata", "ownerReferences", "uid"], &mut values),
            Self::Label(name) => walk(json, &["metadata", "labels", name], &mut values),
            Self::Field(path) => walk(json, &path.split('.').collect::<Vec<_>>(), &mut values),
            Self::Computed(_, compute) => values = compute(json),
        }
        values
    }
}

impl fmt::Display for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Owner => f.write_str("owner"),
            Self::Label(name) => write!(f, "label {name}"),
            Self::Field(path) => write!(f, "field {path}"),
            Self::Computed(name, _) => f.write_str(name),
        }
    }
}

/// Collects the scalar values at a path. A missing or non-scalar field yields none.
pub(crate) fn walk(json: &[u8], path: &[&str], values: &mut Vec<String>) {
    // Cached bytes are valid JSON. An error would only mean fewer values.
    let _ = FieldVisitor { path, values }.deserialize(&mut serde_json::Deserializer::from_slice(json));
}

struct FieldVisitor<'p, 'v> {
    path: &'p [&'p str],
    values: &'v mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for FieldVisitor<'_, '_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl FieldVisitor<'_, '_> {
    fn take(self, value: impl ToString) {
        if self.path.is_empty() {
            self.values.push(value.to_string());
        }
    }
}

impl<'de> Visitor<'de> for FieldVisitor<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Some((field, rest)) = self.path.split_first() else {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return Ok(());
        };
        while let Some(name) = map.next_key::<Name<'de>>()? {
            if name.0 == *field {
                map.next_value_seed(FieldVisitor { path: rest, values: &mut *self.values })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(FieldVisitor { path: self.path, values: &mut *self.values })?.is_some() {}
        Ok(())
    }

    fn visit_str<E>(self, value: &str) -> Result<(), E> {
        self.take(value);
        Ok(())
    }

    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        self.take(value);
        Ok(())
    }

    fn visit_i64<E>(self, value: i64) -> Result<(), E> {
        self.take(value);
        Ok(())
    }

    fn visit_u64<E>(self, value: u64) -> Result<(), E> {
        self.take(value);
        Ok(())
    }

    fn visit_f64<E>(self, value: f64) -> Result<(), E> {
        self.take(value);
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

/// A field name, borrowed unless it contains escapes.
pub(crate) struct Name<'a>(pub(crate) Cow<'a, str>);

impl<'de> serde::Deserialize<'de> for Name<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Name<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// Calls `each` with the name and raw value of each field of a JSON object, in order.
pub(crate) fn for_each_field<'de>(
    json: &'de [u8],
    each: impl FnMut(Cow<'de, str>, &'de serde_json::value::RawValue),
) -> Result<(), serde_json::Error> {
    struct Fields<F>(F);
    impl<'de, F: FnMut(Cow<'de, str>, &'de serde_json::value::RawValue)> Visitor<'de> for Fields<F> {
        type Value = ();
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
            while let Some((name, value)) = map.next_entry::<Name<'de>, &'de serde_json::value::RawValue>()? {
                (self.0)(name.0, value);
            }
            Ok(())
        }
    }
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    deserializer.deserialize_map(Fields(each))?;
    deserializer.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT: &[u8] = br#"{"metadata":{"labels":{"a.b/c":"x","n":"1"},"ownerReferences":[{"uid":"u1","kind":"A"},{"uid":"u2"}]},
        "spec":{"ref":{"uid":"r"},"ports":[{"n":80},{"n":81}],"on":true,"none":null}}"#;

    #[test]
    fn values_are_found_by_label_owner_and_field() {
        for (index, values) in [
            (Index::label("a.b/c"), vec!["x"]),
            (Index::label("missing"), vec![]),
            (Index::Owner, vec!["u1", "u2"]),
            (Index::field("spec.ref.uid"), vec!["r"]),
            (Index::field("spec.ports.n"), vec!["80", "81"]),
            (Index::field("spec.on"), vec!["true"]),
            (Index::field("spec.none"), vec![]),
            (Index::field("spec.ref"), vec![]),
            (Index::field("spec.ref.uid.deeper"), vec![]),
        ] {
            assert_eq!(index.values(OBJECT), values, "{index}");
        }
    }
}
