//! Operations on typed values: the field set of a value, comparison, merge, removal of fields, and type
//! checking.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::field_set::FieldSet;
use super::path_element::PathElement;
use super::types::{Fields, List, Narrowed, Ref, Scalar, Types, Variant, empty_map};

/// The path element of an item of a set or keyed list.
pub(crate) fn element_path(types: &Types, list: &List, item: &Value) -> Result<PathElement, String> {
    if list.keys.is_empty() {
        return match item {
            Value::Object(_) => {
                Err("associative list without keys has an element that's a map type".to_owned())
            }
            Value::Array(_) => Err("not supported: associative list with lists as elements".to_owned()),
            Value::Null => {
                Err("associative list without keys has an element that's an explicit null".to_owned())
            }
            scalar => Ok(PathElement::Value(scalar.clone())),
        };
    }
    let map = match item {
        Value::Null => return Err("associative list with keys may not have a null element".to_owned()),
        Value::Object(map) => map,
        _ => return Err("associative list with keys may not have non-map elements".to_owned()),
    };
    let fields = types.get(list.element).map.as_ref();
    let mut key: Vec<(Box<str>, Value)> = Vec::with_capacity(list.keys.len());
    for name in &list.keys {
        let value = map.get(&**name).or_else(|| fields?.named(name)?.default.as_ref());
        if let Some(value) = value {
            key.push((name.clone(), value.clone()));
        }
    }
    if key.is_empty() {
        let names: Vec<String> = list.keys.iter().map(|k| crate::go_format::quote(k)).collect();
        return Err(format!(
            "associative list with keys has an element that omits all key fields [{}] (and doesn't have default values for any key fields)",
            names.join(" ")
        ));
    }
    key.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(PathElement::Key(key.into()))
}

fn items(value: Option<&Value>) -> Option<&[Value]> {
    value.and_then(Value::as_array).map(Vec::as_slice)
}

// --- Field set of a value ---

/// The fields that the writer of a value owns.
pub(crate) fn fields_of(types: &Types, value: &Value) -> FieldSet {
    owned_at(types, types.root(), value).1
}

/// Whether the value itself is owned, and the owned fields below it.
fn owned_at(types: &Types, ty: Ref, value: &Value) -> (bool, FieldSet) {
    let ty = types.get(ty);
    let nothing = (false, FieldSet::default());
    match ty.variant(ty.narrow(Some(value))) {
        Variant::Scalar(_) => (true, FieldSet::default()),
        Variant::List(list) if !list.associative => (true, FieldSet::default()),
        Variant::List(list) => match value.as_array() {
            Some(items) => (false, owned_items(types, list, items)),
            None => nothing,
        },
        Variant::Map(fields) if fields.atomic => (true, FieldSet::default()),
        Variant::Map(fields) => match value.as_object() {
            Some(map) => (false, owned_entries(types, fields, map)),
            None => nothing,
        },
        Variant::Nothing => nothing,
    }
}

fn owned_items(types: &Types, list: &List, items: &[Value]) -> FieldSet {
    let mut count: BTreeMap<PathElement, (usize, &Value)> = BTreeMap::new();
    for item in items {
        if let Ok(element) = element_path(types, list, item) {
            count.entry(element).and_modify(|e| e.0 += 1).or_insert((1, item));
        }
    }
    let mut set = FieldSet::default();
    for (element, (times, item)) in count {
        // Of duplicate elements only the element is owned: its parts are ambiguous.
        let below = if times > 1 { FieldSet::default() } else { owned_at(types, list.element, item).1 };
        set.put(element, true, below);
    }
    set
}

fn owned_entries(types: &Types, fields: &Fields, map: &Map<String, Value>) -> FieldSet {
    let mut set = FieldSet::default();
    for (key, value) in map {
        let Some(ty) = fields.entry(key) else { continue };
        let (mut member, below) = owned_at(types, ty, value);
        let empty = value.is_null() || value.as_object().is_some_and(Map::is_empty);
        member |= empty || fields.named(key).is_none();
        set.put(PathElement::field(key), member, below);
    }
    set
}

// --- Comparison ---

/// The difference between two values.
#[derive(Debug, Default)]
pub(crate) struct Difference {
    pub(crate) removed: FieldSet,
    pub(crate) modified: FieldSet,
    pub(crate) added: FieldSet,
}

impl Difference {
    pub(crate) fn without(self, excluded: &FieldSet) -> Self {
        if excluded.is_empty() {
            return self;
        }
        Self {
            removed: self.removed.recursive_difference(excluded),
            modified: self.modified.recursive_difference(excluded),
            added: self.added.recursive_difference(excluded),
        }
    }
}

/// The difference of one value: of the value itself, and of its descendants.
#[derive(Default)]
struct NodeDifference {
    removed: bool,
    modified: bool,
    added: bool,
    below: Difference,
}

impl NodeDifference {
    fn leaf(lhs: Option<&Value>, rhs: Option<&Value>) -> Self {
        match (lhs, rhs) {
            (None, _) => Self { added: true, ..Self::default() },
            (_, None) => Self { removed: true, ..Self::default() },
            (Some(l), Some(r)) => Self { modified: l != r, ..Self::default() },
        }
    }

    fn record(self, element: impl Fn() -> PathElement, into: &mut Difference) {
        if self.removed || !self.below.removed.is_empty() {
            into.removed.put(element(), self.removed, self.below.removed);
        }
        if self.modified || !self.below.modified.is_empty() {
            into.modified.put(element(), self.modified, self.below.modified);
        }
        if self.added || !self.below.added.is_empty() {
            into.added.put(element(), self.added, self.below.added);
        }
    }
}

/// Compares two values of the root type.
pub(crate) fn compare(types: &Types, lhs: &Value, rhs: &Value) -> Difference {
    compare_at(types, types.root(), Some(lhs), Some(rhs)).below
}

fn compare_at(types: &Types, ty: Ref, lhs: Option<&Value>, rhs: Option<&Value>) -> NodeDifference {
    if let (Some(l), Some(r)) = (lhs, rhs)
        && l == r
    {
        return NodeDifference::default();
    }
    let resolved = types.get(ty);
    let (left, right) = (resolved.narrow(lhs), resolved.narrow(rhs));
    match (lhs, rhs) {
        (None, None) => NodeDifference::default(),
        (_, None) => compare_variant(types, ty, left, lhs, rhs),
        (None, _) => compare_variant(types, ty, right, lhs, rhs),
        _ if left == right => compare_variant(types, ty, right, lhs, rhs),
        _ => {
            // The value changed its type, e.g. from a string to a map: compare as both types.
            let mut one = compare_variant(types, ty, left, lhs, rhs);
            let two = compare_variant(types, ty, right, lhs, rhs);
            one.removed |= two.removed;
            one.modified |= two.modified;
            one.added |= two.added;
            one.below.removed = one.below.removed.union(&two.below.removed);
            one.below.modified = one.below.modified.union(&two.below.modified);
            one.below.added = one.below.added.union(&two.below.added);
            one
        }
    }
}

fn compare_variant(
    types: &Types,
    ty: Ref,
    variant: Narrowed,
    lhs: Option<&Value>,
    rhs: Option<&Value>,
) -> NodeDifference {
    let below = match types.get(ty).variant(variant) {
        Variant::Scalar(_) | Variant::Nothing => return NodeDifference::leaf(lhs, rhs),
        Variant::Map(fields) => {
            let (l, r) = (lhs.and_then(Value::as_object), rhs.and_then(Value::as_object));
            if fields.atomic || (l.is_none_or(Map::is_empty) && r.is_none_or(Map::is_empty)) {
                return NodeDifference::leaf(lhs, rhs);
            }
            compare_entries(types, fields, l.unwrap_or(empty_map()), r.unwrap_or(empty_map()))
        }
        Variant::List(list) => {
            let (l, r) = (items(lhs).unwrap_or_default(), items(rhs).unwrap_or_default());
            if !list.associative || (l.is_empty() && r.is_empty()) {
                return NodeDifference::leaf(lhs, rhs);
            }
            compare_items(types, list, l, r)
        }
    };
    NodeDifference { removed: rhs.is_none(), modified: false, added: lhs.is_none(), below }
}

fn compare_entries(
    types: &Types,
    fields: &Fields,
    lhs: &Map<String, Value>,
    rhs: &Map<String, Value>,
) -> Difference {
    let mut difference = Difference::default();
    for (key, l, r) in zip(lhs, rhs) {
        if let Some(ty) = fields.entry(key) {
            compare_at(types, ty, l, r).record(|| PathElement::field(key), &mut difference);
        }
    }
    difference
}

fn compare_items(types: &Types, list: &List, lhs: &[Value], rhs: &[Value]) -> Difference {
    type Pair<'v> = (Vec<&'v Value>, Vec<&'v Value>);
    let mut pairs: BTreeMap<PathElement, Pair<'_>> = BTreeMap::new();
    for item in lhs {
        if let Ok(element) = element_path(types, list, item) {
            pairs.entry(element).or_default().0.push(item);
        }
    }
    for item in rhs {
        if let Ok(element) = element_path(types, list, item) {
            pairs.entry(element).or_default().1.push(item);
        }
    }
    let mut difference = Difference::default();
    for (element, (l, r)) in pairs {
        let node = match (l.as_slice(), r.as_slice()) {
            ([] | [_], [] | [_]) => compare_at(types, list.element, l.first().copied(), r.first().copied()),
            // Duplicate elements are compared as a whole.
            ([_, _, ..], [_, _, ..]) => NodeDifference { modified: l != r, ..NodeDifference::default() },
            ([_, _, ..], r) => NodeDifference {
                removed: true,
                ..r.first()
                    .map_or_else(NodeDifference::default, |r| compare_at(types, list.element, None, Some(r)))
            },
            (l, _) => NodeDifference {
                added: true,
                ..l.first()
                    .map_or_else(NodeDifference::default, |l| compare_at(types, list.element, Some(l), None))
            },
        };
        node.record(|| element.clone(), &mut difference);
    }
    difference
}

/// Iterates over two sorted maps in parallel.
fn zip<'v>(
    lhs: &'v Map<String, Value>,
    rhs: &'v Map<String, Value>,
) -> impl Iterator<Item = (&'v str, Option<&'v Value>, Option<&'v Value>)> {
    let (mut left, mut right) = (lhs.iter().peekable(), rhs.iter().peekable());
    std::iter::from_fn(move || {
        let order = match (left.peek(), right.peek()) {
            (None, None) => return None,
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some((l, _)), Some((r, _))) => l.cmp(r),
        };
        match order {
            std::cmp::Ordering::Less => left.next().map(|(k, v)| (k.as_str(), Some(v), None)),
            std::cmp::Ordering::Greater => right.next().map(|(k, v)| (k.as_str(), None, Some(v))),
            std::cmp::Ordering::Equal => {
                left.next().zip(right.next()).map(|((k, l), (_, r))| (k.as_str(), Some(l), Some(r)))
            }
        }
    })
}

// --- Merge ---

/// Merges `rhs` into `lhs`: fields of `rhs` win, other fields of `lhs` stay.
pub(crate) fn merge(types: &Types, lhs: &Value, rhs: &Value) -> Result<Value, String> {
    Ok(merge_at(types, types.root(), Some(lhs), Some(rhs))?.unwrap_or(Value::Null))
}

fn merge_at(
    types: &Types,
    ty: Ref,
    lhs: Option<&Value>,
    rhs: Option<&Value>,
) -> Result<Option<Value>, String> {
    let resolved = types.get(ty);
    let variant = if rhs.is_none() { resolved.narrow(lhs) } else { resolved.narrow(rhs) };
    let leaf = || rhs.or(lhs).cloned();
    match resolved.variant(variant) {
        Variant::Scalar(_) => Ok(leaf()),
        Variant::Nothing => Ok(None),
        Variant::Map(fields) => {
            let (l, r) = (lhs.and_then(Value::as_object), rhs.and_then(Value::as_object));
            if fields.atomic || (l.is_none_or(Map::is_empty) && r.is_none_or(Map::is_empty)) {
                return Ok(leaf());
            }
            let mut out = Map::new();
            for (key, l, r) in zip(l.unwrap_or(empty_map()), r.unwrap_or(empty_map())) {
                // `rhs` was checked and has no field outside the type; such a field of `lhs` stays.
                let merged = match fields.entry(key) {
                    Some(ty) => merge_at(types, ty, l, r)?,
                    None => r.or(l).cloned(),
                };
                if let Some(value) = merged {
                    out.insert(key.to_owned(), value);
                }
            }
            Ok((!out.is_empty()).then_some(Value::Object(out)))
        }
        Variant::List(list) => {
            let (l, r) = (items(lhs).unwrap_or_default(), items(rhs).unwrap_or_default());
            if !list.associative || (l.is_empty() && r.is_empty()) {
                return Ok(leaf());
            }
            let out = merge_items(types, list, l, r)?;
            Ok((!out.is_empty()).then_some(Value::Array(out)))
        }
    }
}

/// Merges two keyed lists. Elements of `rhs` keep the order of `rhs`; elements only in `lhs` stay next to
/// their old neighbours.
fn merge_items(types: &Types, list: &List, lhs: &[Value], rhs: &[Value]) -> Result<Vec<Value>, String> {
    let mut right: BTreeMap<PathElement, &Value> = BTreeMap::new();
    let mut right_order = Vec::with_capacity(rhs.len());
    for (i, item) in rhs.iter().enumerate() {
        let element = element_path(types, list, item).map_err(|e| format!("element {i}: {e}"))?;
        if right.insert(element.clone(), item).is_some() {
            return Err(format!("duplicate entries for key {element}"));
        }
        right_order.push(element);
    }
    // A duplicate element of `lhs` has no unique value to merge with.
    let mut left: BTreeMap<PathElement, Option<&Value>> = BTreeMap::new();
    let mut left_order = Vec::with_capacity(lhs.len());
    for (i, item) in lhs.iter().enumerate() {
        let element = element_path(types, list, item).map_err(|e| format!("element {i}: {e}"))?;
        left.entry(element.clone()).and_modify(|v| *v = None).or_insert(Some(item));
        left_order.push((element, item));
    }
    let mut shared = right_order.iter().filter(|s| left.contains_key(*s));
    let mut next_shared = shared.next();
    let mut merged: std::collections::BTreeSet<&PathElement> = std::collections::BTreeSet::new();
    let mut out = Vec::with_capacity(lhs.len().max(rhs.len()));
    let both = |element: &PathElement| {
        merge_at(types, list.element, left.get(element).copied().flatten(), right.get(element).copied())
    };
    let (mut l, mut r) = (0, 0);
    while l < left_order.len() || r < right_order.len() {
        if let (Some((left_element, _)), Some(right_element)) = (left_order.get(l), right_order.get(r)) {
            if left_element == right_element {
                merged.insert(right_element);
                out.extend(both(right_element)?);
                l += 1;
                r += 1;
                next_shared = shared.next();
                continue;
            }
            if right.contains_key(left_element) && next_shared.is_some_and(|s| s != left_element) {
                // The element comes later in the order of `rhs`.
                l += 1;
                continue;
            }
        }
        if let Some((left_element, item)) = left_order.get(l) {
            if !right.contains_key(left_element) {
                out.extend(merge_at(types, list.element, Some(item), None)?);
                l += 1;
                continue;
            }
            if merged.contains(left_element) {
                l += 1;
            }
        }
        if let Some(right_element) = right_order.get(r) {
            merged.insert(right_element);
            out.extend(both(right_element)?);
            r += 1;
            if next_shared == Some(right_element) {
                next_shared = shared.next();
            }
        }
    }
    Ok(out)
}

// --- Removal of fields ---

/// Removes fields from a value. A list or map that becomes empty is null, as in Kubernetes 1.35. If the
/// schema is not nullable there, `drop_nulls` removes it later.
pub(crate) fn remove(types: &Types, value: &Value, removed_fields: &FieldSet) -> Value {
    if removed_fields.is_empty() {
        return value.clone();
    }
    remove_at(types, types.root(), value, removed_fields)
}

fn remove_at(types: &Types, ty: Ref, value: &Value, removed_fields: &FieldSet) -> Value {
    let ty = types.get(ty);
    match ty.variant(ty.narrow(Some(value))) {
        Variant::Scalar(_) | Variant::Nothing => value.clone(),
        Variant::Map(fields) => match value.as_object() {
            Some(map) if !fields.atomic => {
                let mut out = Map::new();
                for (key, value) in map {
                    match removed_fields.get_field(key) {
                        Some(entry) if entry.member => {}
                        Some(entry) => {
                            let kept = match fields.entry(key) {
                                Some(ty) => remove_at(types, ty, value, &entry.below),
                                None => value.clone(),
                            };
                            out.insert(key.clone(), kept);
                        }
                        None => {
                            out.insert(key.clone(), value.clone());
                        }
                    }
                }
                if out.is_empty() { Value::Null } else { Value::Object(out) }
            }
            _ => Value::Null,
        },
        Variant::List(list) => match value.as_array() {
            Some(items) if list.associative => {
                let kept = items.iter().filter_map(|item| {
                    let entry =
                        element_path(types, list, item).ok().and_then(|element| removed_fields.get(&element));
                    match entry {
                        Some(entry) if entry.member => None,
                        Some(entry) => Some(remove_at(types, list.element, item, &entry.below)),
                        None => Some(item.clone()),
                    }
                });
                let kept: Vec<Value> = kept.collect();
                if kept.is_empty() { Value::Null } else { Value::Array(kept) }
            }
            _ => Value::Null,
        },
    }
}

// --- Type check ---

/// Type errors of a configuration, each with its path.
pub(crate) fn check(types: &Types, value: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut at = String::new();
    check_at(types, types.root(), value, &mut at, &mut wrong);
    wrong
}

fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_i64() => "int64",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// A value as Go prints it with `%v`.
fn go_text(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(s) => s.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(go_text).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => format!(
            "map[{}]",
            map.iter().map(|(k, v)| format!("{k}:{}", go_text(v))).collect::<Vec<_>>().join(" ")
        ),
        other => crate::go_format::render(other),
    }
}

/// A value as Go prints it with `%#v`.
fn go_syntax(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::Array(items) => {
            format!("[]interface {{}}{{{}}}", items.iter().map(go_syntax).collect::<Vec<_>>().join(", "))
        }
        Value::Object(map) => {
            let entries: Vec<String> =
                map.iter().map(|(k, v)| format!("{}:{}", crate::go_format::quote(k), go_syntax(v))).collect();
            format!("map[string]interface {{}}{{{}}}", entries.join(", "))
        }
        other => crate::go_format::render(other),
    }
}

fn check_at(types: &Types, ty: Ref, value: &Value, at: &mut String, wrong: &mut Vec<String>) {
    if wrong.len() >= crate::error::ERRORS_MAX {
        return;
    }
    let message = |at: &str, what: String| if at.is_empty() { what } else { format!("{at}: {what}") };
    let ty = types.get(ty);
    match ty.variant(ty.narrow(Some(value))) {
        Variant::Nothing => wrong.push(message(at, "schema error: invalid atom: inlined".to_owned())),
        Variant::Scalar(_) if value.is_null() => {}
        Variant::Scalar(kind) => match (kind, value) {
            (Scalar::Numeric, Value::Number(_))
            | (Scalar::Text, Value::String(_))
            | (Scalar::Boolean, Value::Bool(_)) => {}
            (Scalar::Any, Value::Number(_) | Value::String(_) | Value::Bool(_)) => {}
            (Scalar::Numeric, other) => {
                wrong.push(message(at, format!("expected numeric (int or float), got {}", go_type(other))))
            }
            (Scalar::Text, other) => wrong.push(message(
                at,
                format!("expected string, got &value.valueUnstructured{{Value:{}}}", go_syntax(other)),
            )),
            (Scalar::Boolean, other) => {
                wrong.push(message(at, format!("expected boolean, got &{{{}}}", go_text(other))))
            }
            (Scalar::Any, other) => {
                wrong.push(message(at, format!("expected any scalar, got &{{{}}}", go_text(other))))
            }
        },
        Variant::Map(fields) => match value {
            Value::Null => {}
            Value::Object(map) => {
                for (key, value) in map {
                    let length = at.len();
                    at.push('.');
                    at.push_str(key);
                    match fields.entry(key) {
                        Some(ty) => check_at(types, ty, value, at, wrong),
                        None => wrong.push(message(at, "field not declared in schema".to_owned())),
                    }
                    at.truncate(length);
                }
            }
            other => wrong.push(message(at, format!("expected map, got &{{{}}}", go_text(other)))),
        },
        Variant::List(list) => match value {
            Value::Null => {}
            Value::Array(items) => {
                let mut seen = std::collections::BTreeSet::new();
                for (i, item) in items.iter().enumerate() {
                    let element = if list.associative {
                        element_path(types, list, item)
                    } else {
                        Ok(PathElement::Index(i as i64))
                    };
                    let element = match element {
                        Ok(element) => element,
                        Err(why) => {
                            wrong.push(message(at, format!("element {i}: {why}")));
                            return;
                        }
                    };
                    let length = at.len();
                    at.push_str(&element.to_string());
                    check_at(types, list.element, item, at, wrong);
                    at.truncate(length);
                    if list.associative && !seen.insert(element.clone()) {
                        wrong.push(message(at, format!("duplicate entries for key {element}")));
                    }
                }
            }
            other => wrong.push(message(at, format!("expected list, got &{{{}}}", go_text(other)))),
        },
    }
}

// --- Reconciliation of field sets with changed types ---

/// Adds named fields with owned descendants to the set, so that they are removed with their last descendant.
pub(crate) fn with_named_fields(types: &Types, set: &FieldSet) -> FieldSet {
    name_fields(types, types.root(), set)
}

fn name_fields(types: &Types, ty: Ref, set: &FieldSet) -> FieldSet {
    let resolved = types.get(ty);
    let mut out = FieldSet::default();
    for entry in set.entries() {
        let (named, below) = match &entry.element {
            PathElement::Field(name) => {
                let fields = resolved.map.as_ref();
                (fields.is_some_and(|f| f.named(name).is_some()), fields.and_then(|f| f.entry(name)))
            }
            _ => (false, resolved.list.as_ref().map(|l| l.element)),
        };
        let children = match below {
            Some(ty) => name_fields(types, ty, &entry.below),
            None => entry.below.clone(),
        };
        out.put(entry.element.clone(), entry.member || (named && !entry.below.is_empty()), children);
    }
    out
}

/// Adapts a field set to types that became atomic since it was written: an atomic value is owned as a whole.
/// `None` if nothing changes, the usual case.
pub(crate) fn reconcile(types: &Types, set: &FieldSet) -> Option<FieldSet> {
    let mut changed = false;
    let out = reconcile_at(types, types.root(), set, &mut changed);
    changed.then_some(out)
}

fn reconcile_at(types: &Types, ty: Ref, set: &FieldSet, changed: &mut bool) -> FieldSet {
    let resolved = types.get(ty);
    let mut out = FieldSet::default();
    for entry in set.entries() {
        let below = match &entry.element {
            PathElement::Field(name) => {
                resolved.map.as_ref().filter(|f| !Types::is_deduced_map(f)).and_then(|f| f.entry(name))
            }
            _ => resolved.list.as_ref().map(|l| l.element),
        };
        let Some(ty) = below else {
            out.put(entry.element.clone(), entry.member, entry.below.clone());
            continue;
        };
        let child = types.get(ty);
        // Without a value, a type with several variants counts as a map.
        let atomic = match child.variant(Narrowed::All) {
            Variant::Map(fields) => {
                fields.atomic && !Types::is_deduced_map(fields) && !entry.below.is_empty()
            }
            Variant::List(list) => !(list.associative || entry.member && entry.below.is_empty()),
            _ => false,
        };
        if atomic {
            *changed = true;
            out.put(entry.element.clone(), true, FieldSet::default());
        } else if entry.below.is_empty() {
            out.put(entry.element.clone(), entry.member, FieldSet::default());
        } else {
            out.put(entry.element.clone(), entry.member, reconcile_at(types, ty, &entry.below, changed));
        }
    }
    out
}
