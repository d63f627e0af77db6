//! Sets of fields: who owns what, and the wire form `fieldsV1`.
//!
//! A set is a tree. An entry says whether the step itself belongs to the set and which parts below it do. Entries are
//! sorted, so two sets are joined in one pass; no entry is kept that says nothing.

use std::cmp::Ordering;
use std::fmt;

use serde_json::{Map, Value};

use super::step::Step;

/// A set of paths into an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSet {
    entries: Vec<Entry>,
}

/// What a set says about one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The step.
    pub step: Step,
    /// The step itself belongs to the set.
    pub member: bool,
    /// What belongs to the set below the step.
    pub below: FieldSet,
}

/// `fieldsV1` that cannot be read.
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
            let steps: Vec<Step> = path.iter().map(|name| Step::field(name)).collect();
            set.insert(&steps);
        }
        set
    }

    /// True when no path belongs to the set.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entries, sorted.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    fn find(&self, step: &Step) -> Result<usize, usize> {
        self.entries.binary_search_by(|e| e.step.cmp(step))
    }

    /// What the set says about a step.
    pub fn get(&self, step: &Step) -> Option<&Entry> {
        self.find(step).ok().map(|i| &self.entries[i])
    }

    /// The same for a field, without making a step of it.
    pub fn get_field(&self, name: &str) -> Option<&Entry> {
        let found = self.entries.binary_search_by(|e| match &e.step {
            Step::Field(n) => (**n).cmp(name),
            _ => Ordering::Greater,
        });
        found.ok().map(|i| &self.entries[i])
    }

    /// Does the path belong to the set?
    pub fn has(&self, path: &[Step]) -> bool {
        match path {
            [] => false,
            [last] => self.get(last).is_some_and(|e| e.member),
            [first, rest @ ..] => self.get(first).is_some_and(|e| e.below.has(rest)),
        }
    }

    /// Adds a path.
    pub fn insert(&mut self, path: &[Step]) {
        let [first, rest @ ..] = path else { return };
        let at = match self.find(first) {
            Ok(at) => at,
            Err(at) => {
                self.entries.insert(at, Entry { step: first.clone(), member: false, below: Self::EMPTY });
                at
            }
        };
        let entry = &mut self.entries[at];
        match rest {
            [] => entry.member = true,
            rest => entry.below.insert(rest),
        }
    }

    /// Adds a step with everything below it. Steps that come in order are appended without a search.
    pub(crate) fn put(&mut self, step: Step, member: bool, below: FieldSet) {
        if !member && below.is_empty() {
            return;
        }
        if self.entries.last().is_none_or(|last| last.step < step) {
            self.entries.push(Entry { step, member, below });
            return;
        }
        match self.find(&step) {
            Err(at) => self.entries.insert(at, Entry { step, member, below }),
            Ok(at) => {
                let entry = &mut self.entries[at];
                entry.member |= member;
                entry.below = entry.below.union(&below);
            }
        }
    }

    /// Joins two sets in one pass; `join` decides what becomes of a step from what each set says about it.
    fn zip(
        &self,
        other: &Self,
        mut join: impl FnMut(Option<&Entry>, Option<&Entry>) -> Option<Entry>,
    ) -> Self {
        let mut entries = Vec::with_capacity(self.entries.len());
        let (mut left, mut right) = (self.entries.iter().peekable(), other.entries.iter().peekable());
        loop {
            let joined = match (left.peek(), right.peek()) {
                (None, None) => break,
                (Some(_), None) => join(left.next(), None),
                (None, Some(_)) => join(None, right.next()),
                (Some(l), Some(r)) => match l.step.cmp(&r.step) {
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
            (Some(l), Some(r)) => Some(Entry {
                step: l.step.clone(),
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
            Some(Entry {
                step: l.step.clone(),
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
            (l, Some(r)) => Some(Entry {
                step: l.step.clone(),
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
            (l, Some(r)) => Some(Entry {
                step: l.step.clone(),
                member: l.member,
                below: l.below.recursive_difference(&r.below),
            }),
            (l, None) => Some(l.clone()),
        })
    }

    /// All paths: of each step first those that end with it, then those that go on, as Kubernetes lists conflicts.
    pub fn paths(&self) -> Vec<Vec<Step>> {
        fn collect(set: &FieldSet, at: &mut Vec<Step>, out: &mut Vec<Vec<Step>>) {
            for entry in set.entries.iter().filter(|e| e.member) {
                at.push(entry.step.clone());
                out.push(at.clone());
                at.pop();
            }
            for entry in &set.entries {
                at.push(entry.step.clone());
                collect(&entry.below, at, out);
                at.pop();
            }
        }
        let mut out = Vec::new();
        collect(self, &mut Vec::new(), &mut out);
        out
    }

    /// The wire form.
    pub fn encode(&self) -> Value {
        let encoded = self.entries.iter().map(|entry| {
            let mut below = entry.below.encode();
            if entry.member
                && let Value::Object(map) = &mut below
                && !map.is_empty()
            {
                map.insert(".".to_owned(), Value::Object(Map::new()));
            }
            (entry.step.encode(), below)
        });
        Value::Object(encoded.collect())
    }

    /// Reads the wire form.
    pub fn decode(fields: &Value) -> Result<Self, FieldsError> {
        let Value::Object(map) = fields else {
            return Err(FieldsError(format!("expected an object, got {fields}")));
        };
        let mut entries = Vec::with_capacity(map.len());
        for (key, value) in map {
            if key == "." {
                continue;
            }
            let step =
                Step::decode(key).ok_or_else(|| FieldsError(format!("unknown path element {key:?}")))?;
            let below = Self::decode(value)?;
            let member = below.is_empty() || value.get(".").is_some();
            entries.push(Entry { step, member, below });
        }
        entries.sort_by(|a, b| a.step.cmp(&b.step));
        entries.dedup_by(|later, kept| {
            if later.step != kept.step {
                return false;
            }
            kept.member |= later.member;
            kept.below = kept.below.union(&later.below);
            true
        });
        Ok(Self { entries })
    }
}

/// A path as it stands in conflicts: `.spec.list[name="a"].size`.
pub fn show_path(path: &[Step]) -> String {
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

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => "[a-d]".prop_map(|n| Step::field(&n)),
            1 => "[a-c]".prop_map(|n| Step::Key(Box::new([("name".into(), Value::from(n))]))),
            1 => (0..3i64).prop_map(|n| Step::Value(Value::from(n))),
            1 => (0..3i64).prop_map(Step::Index),
        ]
    }

    pub(crate) fn any_set() -> impl Strategy<Value = FieldSet> {
        prop::collection::vec(prop::collection::vec(any_step(), 1..5), 0..12).prop_map(|paths| {
            let mut set = FieldSet::default();
            paths.iter().for_each(|p| set.insert(p));
            set
        })
    }

    #[test]
    fn the_wire_form_is_that_of_kubernetes() {
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
    fn a_recursive_difference_takes_what_lies_below() {
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
        fn what_is_written_is_read_back(set in any_set()) {
            prop_assert_eq!(FieldSet::decode(&set.encode()).unwrap(), set);
        }

        #[test]
        fn sets_obey_the_laws_of_sets(a in any_set(), b in any_set(), c in any_set()) {
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
