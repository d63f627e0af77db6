//! Sets of field paths, encoded as `fieldsV1`.
//!
//! A set is a tree. An entry records whether the path that ends at its element is a member, and the subset
//! below it. Entries are sorted, so set operations need one pass. Empty entries are removed.

use std::cmp::Ordering;
use std::fmt;

use serde_json::{Map, Value};

use super::path_element::PathElement;

/// A set of paths into an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSet {
    entries: Vec<FieldSetEntry>,
}

/// A path element in a set, with the subset below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldSetEntry {
    /// The path element.
    pub element: PathElement,
    /// The path that ends at this element is in the set.
    pub member: bool,
    /// The subset below the element.
    pub below: FieldSet,
}

/// Invalid `fieldsV1`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("failed to decode fieldsV1: {0}")]
pub struct FieldsError(String);

impl FieldSet {
    /// The empty set.
    pub const EMPTY: Self = Self { entries: Vec::new() };

    /// A set of paths of plain fields, e.g. `[["spec"], ["metadata", "name"]]`.
    pub fn of_fields(paths: &[&[&str]]) -> Self {
        let mut set = Self::default();
        for path in paths {
            let elements: Vec<PathElement> = path.iter().map(|name| PathElement::field(name)).collect();
            set.insert(&elements);
        }
        set
    }

    /// Whether the set has no paths.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entries, sorted.
    pub fn entries(&self) -> &[FieldSetEntry] {
        &self.entries
    }

    fn find(&self, element: &PathElement) -> Result<usize, usize> {
        self.entries.binary_search_by(|e| e.element.cmp(element))
    }

    /// The entry of an element.
    pub fn get(&self, element: &PathElement) -> Option<&FieldSetEntry> {
        self.find(element).ok().map(|i| &self.entries[i])
    }

    /// The entry of a field, without allocating a path element.
    pub fn get_field(&self, name: &str) -> Option<&FieldSetEntry> {
        let found = self.entries.binary_search_by(|e| match &e.element {
            PathElement::Field(n) => (**n).cmp(name),
            _ => Ordering::Greater,
        });
        found.ok().map(|i| &self.entries[i])
    }

    /// Whether the path is in the set.
    #[cfg(test)]
    fn has(&self, path: &[PathElement]) -> bool {
        match path {
            [] => false,
            [last] => self.get(last).is_some_and(|e| e.member),
            [first, rest @ ..] => self.get(first).is_some_and(|e| e.below.has(rest)),
        }
    }

    /// Adds a path.
    pub fn insert(&mut self, path: &[PathElement]) {
        let [first, rest @ ..] = path else { return };
        let at = match self.find(first) {
            Ok(at) => at,
            Err(at) => {
                self.entries
                    .insert(at, FieldSetEntry { element: first.clone(), member: false, below: Self::EMPTY });
                at
            }
        };
        let entry = &mut self.entries[at];
        match rest {
            [] => entry.member = true,
            rest => entry.below.insert(rest),
        }
    }

    /// Adds an element with the subset below it. Elements in sorted order are appended without a search.
    pub(crate) fn put(&mut self, element: PathElement, member: bool, below: FieldSet) {
        if !member && below.is_empty() {
            return;
        }
        if self.entries.last().is_none_or(|last| last.element < element) {
            self.entries.push(FieldSetEntry { element, member, below });
            return;
        }
        match self.find(&element) {
            Err(at) => self.entries.insert(at, FieldSetEntry { element, member, below }),
            Ok(at) => {
                let entry = &mut self.entries[at];
                entry.member |= member;
                entry.below = entry.below.union(&below);
            }
        }
    }

    /// Combines two sets in one pass; `join` combines the entries of the same element.
    fn zip(
        &self,
        other: &Self,
        mut join: impl FnMut(Option<&FieldSetEntry>, Option<&FieldSetEntry>) -> Option<FieldSetEntry>,
    ) -> Self {
        let mut entries = Vec::with_capacity(self.entries.len());
        let (mut left, mut right) = (self.entries.iter().peekable(), other.entries.iter().peekable());
        loop {
            let joined = match (left.peek(), right.peek()) {
                (None, None) => break,
                (Some(_), None) => join(left.next(), None),
                (None, Some(_)) => join(None, right.next()),
                (Some(l), Some(r)) => match l.element.cmp(&r.element) {
                    Ordering::Less => join(left.next(), None),
                    Ordering::Greater => join(None, right.next()),
                    Ordering::Equal => join(left.next(), right.next()),
                },
            };
            entries.extend(joined.filter(|e| e.member || !e.below.is_empty()));
        }
        Self { entries }
    }

    /// Paths of either set.
    pub fn union(&self, other: &Self) -> Self {
        if other.is_empty() {
            return self.clone();
        }
        self.zip(other, |l, r| match (l, r) {
            (Some(l), Some(r)) => Some(FieldSetEntry {
                element: l.element.clone(),
                member: l.member || r.member,
                below: l.below.union(&r.below),
            }),
            (one, other) => one.or(other).cloned(),
        })
    }

    /// Paths of both sets.
    pub fn intersection(&self, other: &Self) -> Self {
        self.zip(other, |l, r| {
            let (l, r) = (l?, r?);
            Some(FieldSetEntry {
                element: l.element.clone(),
                member: l.member && r.member,
                below: l.below.intersection(&r.below),
            })
        })
    }

    /// Paths of this set that are not in the other.
    pub fn difference(&self, other: &Self) -> Self {
        if other.is_empty() {
            return self.clone();
        }
        self.zip(other, |l, r| match (l?, r) {
            (l, Some(r)) => Some(FieldSetEntry {
                element: l.element.clone(),
                member: l.member && !r.member,
                below: l.below.difference(&r.below),
            }),
            (l, None) => Some(l.clone()),
        })
    }

    /// Paths of this set that are neither in the other nor below a path of it.
    pub fn recursive_difference(&self, other: &Self) -> Self {
        if other.is_empty() {
            return self.clone();
        }
        self.zip(other, |l, r| match (l?, r) {
            (_, Some(r)) if r.member => None,
            (l, Some(r)) => Some(FieldSetEntry {
                element: l.element.clone(),
                member: l.member,
                below: l.below.recursive_difference(&r.below),
            }),
            (l, None) => Some(l.clone()),
        })
    }

    /// All paths, in the order in which Kubernetes lists conflicts: members of a level before the levels
    /// below.
    pub fn paths(&self) -> Vec<Vec<PathElement>> {
        fn collect(set: &FieldSet, at: &mut Vec<PathElement>, out: &mut Vec<Vec<PathElement>>) {
            for entry in set.entries.iter().filter(|e| e.member) {
                at.push(entry.element.clone());
                out.push(at.clone());
                at.pop();
            }
            for entry in &set.entries {
                at.push(entry.element.clone());
                collect(&entry.below, at, out);
                at.pop();
            }
        }
        let mut out = Vec::new();
        collect(self, &mut Vec::new(), &mut out);
        out
    }

    /// Encodes the set as `fieldsV1`.
    pub fn encode(&self) -> Value {
        let encoded = self.entries.iter().map(|entry| {
            let mut below = entry.below.encode();
            if entry.member
                && let Value::Object(map) = &mut below
                && !map.is_empty()
            {
                map.insert(".".to_owned(), Value::Object(Map::new()));
            }
            (entry.element.encode(), below)
        });
        Value::Object(encoded.collect())
    }

    /// Decodes `fieldsV1`.
    pub fn decode(fields: &Value) -> Result<Self, FieldsError> {
        let Value::Object(map) = fields else {
            return Err(FieldsError(format!("expected an object, got {fields}")));
        };
        let mut entries = Vec::with_capacity(map.len());
        for (key, value) in map {
            if key == "." {
                continue;
            }
            let element = PathElement::decode(key)
                .ok_or_else(|| FieldsError(format!("unknown path element {key:?}")))?;
            let below = Self::decode(value)?;
            let member = below.is_empty() || value.get(".").is_some();
            entries.push(FieldSetEntry { element, member, below });
        }
        entries.sort_by(|a, b| a.element.cmp(&b.element));
        entries.dedup_by(|later, kept| {
            if later.element != kept.element {
                return false;
            }
            kept.member |= later.member;
            kept.below = kept.below.union(&later.below);
            true
        });
        Ok(Self { entries })
    }
}

/// Formats a path as in conflicts: `.spec.list[name="a"].size`.
pub(crate) fn show_path(path: &[PathElement]) -> String {
    path.iter().map(ToString::to_string).collect()
}

impl fmt::Display for FieldSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for path in self.paths() {
            writeln!(f, "{}", show_path(&path))?;
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn any_element() -> impl Strategy<Value = PathElement> {
        prop_oneof![
            4 => "[a-d]".prop_map(|n| PathElement::field(&n)),
            1 => "[a-c]".prop_map(|n| PathElement::Key(Box::new([("name".into(), Value::from(n))]))),
            1 => (0..3i64).prop_map(|n| PathElement::Value(Value::from(n))),
            1 => (0..3i64).prop_map(PathElement::Index),
        ]
    }

    pub(crate) fn any_set() -> impl Strategy<Value = FieldSet> {
        prop::collection::vec(prop::collection::vec(any_element(), 1..5), 0..12).prop_map(|paths| {
            let mut set = FieldSet::default();
            paths.iter().for_each(|p| set.insert(p));
            set
        })
    }

    #[test]
    fn sets_are_encoded_as_in_kubernetes() {
        let wire = json!({"f:metadata": {"f:labels": {".": {}, "f:a": {}}}, "f:spec": {"f:list": {"k:{\"name\":\"p\"}": {".": {}, "f:v": {}}}, "f:set": {"v:\"q\"": {}}}});
        let set = FieldSet::decode(&wire).unwrap();
        assert_eq!(set.encode(), wire);
        let shown: Vec<String> = set.paths().iter().map(|p| show_path(p)).collect();
        assert_eq!(
            shown,
            [
                ".metadata.labels",
                ".metadata.labels.a",
                ".spec.list[name=\"p\"]",
                ".spec.list[name=\"p\"].v",
                ".spec.set[=\"q\"]"
            ]
        );
        assert!(FieldSet::decode(&json!({"odd": {}})).is_err());
        assert!(FieldSet::decode(&json!([])).is_err());
    }

    #[test]
    fn a_recursive_difference_removes_descendants() {
        let set = FieldSet::of_fields(&[&["spec", "a"], &["status", "b"], &["status"]]);
        assert_eq!(
            set.recursive_difference(&FieldSet::of_fields(&[&["status"]])),
            FieldSet::of_fields(&[&["spec", "a"]])
        );
        assert_eq!(
            set.difference(&FieldSet::of_fields(&[&["status"]])),
            FieldSet::of_fields(&[&["spec", "a"], &["status", "b"]])
        );
    }

    proptest! {
        #[test]
        fn encoding_round_trips(set in any_set()) {
            prop_assert_eq!(FieldSet::decode(&set.encode()).unwrap(), set);
        }

        #[test]
        fn set_operations_obey_the_laws_of_sets(a in any_set(), b in any_set(), c in any_set()) {
            prop_assert_eq!(a.union(&b), b.union(&a));
            prop_assert_eq!(a.intersection(&b), b.intersection(&a));
            prop_assert_eq!(a.union(&b).union(&c), a.union(&b.union(&c)));
            prop_assert_eq!(a.difference(&b).intersection(&b), FieldSet::EMPTY);
            prop_assert_eq!(a.difference(&b).union(&a.intersection(&b)), a.clone());
            prop_assert_eq!(a.intersection(&b.union(&c)), a.intersection(&b).union(&a.intersection(&c)));
            for path in a.paths() {
                prop_assert!(a.union(&b).has(&path));
                prop_assert_eq!(a.difference(&b).has(&path), !b.has(&path));
            }
        }
    }
}
