//! The four walks over typed values: which fields a value has, how two values differ, what they merge to, and what is
//! left when fields are taken away.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::set::FieldSet;
use super::step::Step;
use super::types::{Fields, List, Narrowed, Ref, Scalar, Side, Types, empty_map};

/// How an element of a set or keyed list is known.
pub(crate) fn element_step(types: &Types, list: &List, item: &Value) -> Result<Step, String> {
    if list.keys.is_empty() {
        return match item {
            Value::Object(_) => {
                Err("associative list without keys has an element that's a map type".to_owned())
            }
            Value::Array(_) => Err("not supported: associative list with lists as elements".to_owned()),
            Value::Null => {
                Err("associative list without keys has an element that's an explicit null".to_owned())
            }
            scalar => Ok(Step::Value(scalar.clone())),
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
        let names: Vec<String> = list.keys.iter().map(|k| crate::schema::error::quote(k)).collect();
        return Err(format!(
            "associative list with keys has an element that omits all key fields [{}] (and doesn't have default values for any key fields)",
            names.join(" ")
        ));
    }
    key.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(Step::Key(key.into()))
}

fn items(value: Option<&Value>) -> Option<&[Value]> {
    value.and_then(Value::as_array).map(Vec::as_slice)
}

// --- Which fields a value has ---

/// The fields of a value, as its writer would own them.
pub(crate) fn fields_of(types: &Types, value: &Value) -> FieldSet {
    own(types, types.root(), value).1
}

/// Whether the place itself is a field, and the fields below it.
fn own(types: &Types, ty: Ref, value: &Value) -> (bool, FieldSet) {
    let ty = types.get(ty);
    let nothing = (false, FieldSet::default());
    match ty.side(ty.narrow(Some(value))) {
        Side::Scalar(_) => (true, FieldSet::default()),
        Side::List(list) if !list.associative => (true, FieldSet::default()),
        Side::List(list) => match value.as_array() {
            Some(items) => (false, own_items(types, list, items)),
            None => nothing,
        },
        Side::Map(fields) if fields.atomic => (true, FieldSet::default()),
        Side::Map(fields) => match value.as_object() {
            Some(map) => (false, own_entries(types, fields, map)),
            None => nothing,
        },
        Side::Nothing => nothing,
    }
}

fn own_items(types: &Types, list: &List, items: &[Value]) -> FieldSet {
    let mut count: BTreeMap<Step, (usize, &Value)> = BTreeMap::new();
    for item in items {
        if let Ok(step) = element_step(types, list, item) {
            count.entry(step).and_modify(|e| e.0 += 1).or_insert((1, item));
        }
    }
    let mut set = FieldSet::default();
    for (step, (times, item)) in count {
        // Of repeated elements only the element is owned: nobody could say whose parts they are.
        let below = if times > 1 { FieldSet::default() } else { own(types, list.element, item).1 };
        set.put(step, true, below);
    }
    set
}

fn own_entries(types: &Types, fields: &Fields, map: &Map<String, Value>) -> FieldSet {
    let mut set = FieldSet::default();
    for (key, value) in map {
        let Some(ty) = fields.entry(key) else { continue };
        let (mut member, below) = own(types, ty, value);
        let empty = value.is_null() || value.as_object().is_some_and(Map::is_empty);
        member |= empty || fields.named(key).is_none();
        set.put(Step::field(key), member, below);
    }
    set
}

// --- How two values differ ---

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

/// What a comparison says about one place: itself, and the parts below.
#[derive(Default)]
struct Found {
    removed: bool,
    modified: bool,
    added: bool,
    below: Difference,
}

impl Found {
    fn leaf(lhs: Option<&Value>, rhs: Option<&Value>) -> Self {
        match (lhs, rhs) {
            (None, _) => Self { added: true, ..Self::default() },
            (_, None) => Self { removed: true, ..Self::default() },
            (Some(l), Some(r)) => Self { modified: l != r, ..Self::default() },
        }
    }

    fn place(self, step: impl Fn() -> Step, into: &mut Difference) {
        if self.removed || !self.below.removed.is_empty() {
            into.removed.put(step(), self.removed, self.below.removed);
        }
        if self.modified || !self.below.modified.is_empty() {
            into.modified.put(step(), self.modified, self.below.modified);
        }
        if self.added || !self.below.added.is_empty() {
            into.added.put(step(), self.added, self.below.added);
        }
    }
}

/// Compares two values of the root type.
pub(crate) fn compare(types: &Types, lhs: &Value, rhs: &Value) -> Difference {
    find(types, types.root(), Some(lhs), Some(rhs)).below
}

fn find(types: &Types, ty: Ref, lhs: Option<&Value>, rhs: Option<&Value>) -> Found {
    if let (Some(l), Some(r)) = (lhs, rhs)
        && l == r
    {
        return Found::default();
    }
    let resolved = types.get(ty);
    let (left, right) = (resolved.narrow(lhs), resolved.narrow(rhs));
    match (lhs, rhs) {
        (None, None) => Found::default(),
        (_, None) => find_side(types, ty, left, lhs, rhs),
        (None, _) => find_side(types, ty, right, lhs, rhs),
        _ if left == right => find_side(types, ty, right, lhs, rhs),
        _ => {
            // The value changed its nature, e.g. from a string to a map: both sides have their say.
            let mut one = find_side(types, ty, left, lhs, rhs);
            let two = find_side(types, ty, right, lhs, rhs);
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

fn find_side(types: &Types, ty: Ref, side: Narrowed, lhs: Option<&Value>, rhs: Option<&Value>) -> Found {
    let below = match types.get(ty).side(side) {
        Side::Scalar(_) | Side::Nothing => return Found::leaf(lhs, rhs),
        Side::Map(fields) => {
            let (l, r) = (lhs.and_then(Value::as_object), rhs.and_then(Value::as_object));
            if fields.atomic || (l.is_none_or(Map::is_empty) && r.is_none_or(Map::is_empty)) {
                return Found::leaf(lhs, rhs);
            }
            find_entries(types, fields, l.unwrap_or(empty_map()), r.unwrap_or(empty_map()))
        }
        Side::List(list) => {
            let (l, r) = (items(lhs).unwrap_or_default(), items(rhs).unwrap_or_default());
            if !list.associative || (l.is_empty() && r.is_empty()) {
                return Found::leaf(lhs, rhs);
            }
            find_items(types, list, l, r)
        }
    };
    Found { removed: rhs.is_none(), modified: false, added: lhs.is_none(), below }
}

fn find_entries(
    types: &Types,
    fields: &Fields,
    lhs: &Map<String, Value>,
    rhs: &Map<String, Value>,
) -> Difference {
    let mut difference = Difference::default();
    for (key, l, r) in zip(lhs, rhs) {
        if let Some(ty) = fields.entry(key) {
            find(types, ty, l, r).place(|| Step::field(key), &mut difference);
        }
    }
    difference
}

fn find_items(types: &Types, list: &List, lhs: &[Value], rhs: &[Value]) -> Difference {
    type Sides<'v> = (Vec<&'v Value>, Vec<&'v Value>);
    let mut sides: BTreeMap<Step, Sides<'_>> = BTreeMap::new();
    for item in lhs {
        if let Ok(step) = element_step(types, list, item) {
            sides.entry(step).or_default().0.push(item);
        }
    }
    for item in rhs {
        if let Ok(step) = element_step(types, list, item) {
            sides.entry(step).or_default().1.push(item);
        }
    }
    let mut difference = Difference::default();
    for (step, (l, r)) in sides {
        let found = match (l.as_slice(), r.as_slice()) {
            ([] | [_], [] | [_]) => find(types, list.element, l.first().copied(), r.first().copied()),
            // Repeated elements are compared as one lump.
            ([_, _, ..], [_, _, ..]) => Found { modified: l != r, ..Found::default() },
            ([_, _, ..], r) => Found {
                removed: true,
                ..r.first().map_or_else(Found::default, |r| find(types, list.element, None, Some(r)))
            },
            (l, _) => Found {
                added: true,
                ..l.first().map_or_else(Found::default, |l| find(types, list.element, Some(l), None))
            },
        };
        found.place(|| step.clone(), &mut difference);
    }
    difference
}

/// Walks two sorted maps side by side.
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

// --- What two values merge to ---

/// Lays `rhs` over `lhs`: what `rhs` says wins, what it does not speak of stays.
pub(crate) fn merge(types: &Types, lhs: &Value, rhs: &Value) -> Result<Value, String> {
    Ok(lay(types, types.root(), Some(lhs), Some(rhs))?.unwrap_or(Value::Null))
}

fn lay(types: &Types, ty: Ref, lhs: Option<&Value>, rhs: Option<&Value>) -> Result<Option<Value>, String> {
    let resolved = types.get(ty);
    let side = if rhs.is_none() { resolved.narrow(lhs) } else { resolved.narrow(rhs) };
    let leaf = || rhs.or(lhs).cloned();
    match resolved.side(side) {
        Side::Scalar(_) => Ok(leaf()),
        Side::Nothing => Ok(None),
        Side::Map(fields) => {
            let (l, r) = (lhs.and_then(Value::as_object), rhs.and_then(Value::as_object));
            if fields.atomic || (l.is_none_or(Map::is_empty) && r.is_none_or(Map::is_empty)) {
                return Ok(leaf());
            }
            let mut out = Map::new();
            for (key, l, r) in zip(l.unwrap_or(empty_map()), r.unwrap_or(empty_map())) {
                // A field that the type does not know cannot be in `rhs`, which was checked; in `lhs` it stays.
                let merged = match fields.entry(key) {
                    Some(ty) => lay(types, ty, l, r)?,
                    None => r.or(l).cloned(),
                };
                if let Some(value) = merged {
                    out.insert(key.to_owned(), value);
                }
            }
            Ok((!out.is_empty()).then_some(Value::Object(out)))
        }
        Side::List(list) => {
            let (l, r) = (items(lhs).unwrap_or_default(), items(rhs).unwrap_or_default());
            if !list.associative || (l.is_empty() && r.is_empty()) {
                return Ok(leaf());
            }
            let out = lay_items(types, list, l, r)?;
            Ok((!out.is_empty()).then_some(Value::Array(out)))
        }
    }
}

/// Merges two keyed lists. The order of `rhs` holds for the elements it names; elements only in `lhs` stay beside their
/// old neighbours.
fn lay_items(types: &Types, list: &List, lhs: &[Value], rhs: &[Value]) -> Result<Vec<Value>, String> {
    let mut right: BTreeMap<Step, &Value> = BTreeMap::new();
    let mut right_order = Vec::with_capacity(rhs.len());
    for (i, item) in rhs.iter().enumerate() {
        let step = element_step(types, list, item).map_err(|e| format!("element {i}: {e}"))?;
        if right.insert(step.clone(), item).is_some() {
            return Err(format!("duplicate entries for key {step}"));
        }
        right_order.push(step);
    }
    // A repeated element on the left has no one value to merge with.
    let mut left: BTreeMap<Step, Option<&Value>> = BTreeMap::new();
    let mut left_order = Vec::with_capacity(lhs.len());
    for (i, item) in lhs.iter().enumerate() {
        let step = element_step(types, list, item).map_err(|e| format!("element {i}: {e}"))?;
        left.entry(step.clone()).and_modify(|v| *v = None).or_insert(Some(item));
        left_order.push((step, item));
    }
    let mut shared = right_order.iter().filter(|s| left.contains_key(*s));
    let mut next_shared = shared.next();
    let mut merged: std::collections::BTreeSet<&Step> = std::collections::BTreeSet::new();
    let mut out = Vec::with_capacity(lhs.len().max(rhs.len()));
    let both =
        |step: &Step| lay(types, list.element, left.get(step).copied().flatten(), right.get(step).copied());
    let (mut l, mut r) = (0, 0);
    while l < left_order.len() || r < right_order.len() {
        if let (Some((left_step, _)), Some(right_step)) = (left_order.get(l), right_order.get(r)) {
            if left_step == right_step {
                merged.insert(right_step);
                out.extend(both(right_step)?);
                l += 1;
                r += 1;
                next_shared = shared.next();
                continue;
            }
            if right.contains_key(left_step) && next_shared.is_some_and(|s| s != left_step) {
                // It comes later in the new order.
                l += 1;
                continue;
            }
        }
        if let Some((left_step, item)) = left_order.get(l) {
            if !right.contains_key(left_step) {
                out.extend(lay(types, list.element, Some(item), None)?);
                l += 1;
                continue;
            }
            if merged.contains(left_step) {
                l += 1;
            }
        }
        if let Some(right_step) = right_order.get(r) {
            merged.insert(right_step);
            out.extend(both(right_step)?);
            r += 1;
            if next_shared == Some(right_step) {
                next_shared = shared.next();
            }
        }
    }
    Ok(out)
}

// --- What is left when fields are taken away ---

/// Takes fields away from a value. What lost all its parts becomes null, as in Kubernetes 1.35; where the schema allows no
/// null it goes with the others when the object is shaped.
pub(crate) fn remove(types: &Types, value: &Value, gone: &FieldSet) -> Value {
    if gone.is_empty() {
        return value.clone();
    }
    take(types, types.root(), value, gone)
}

fn take(types: &Types, ty: Ref, value: &Value, gone: &FieldSet) -> Value {
    let ty = types.get(ty);
    match ty.side(ty.narrow(Some(value))) {
        Side::Scalar(_) | Side::Nothing => value.clone(),
        Side::Map(fields) => match value.as_object() {
            Some(map) if !fields.atomic => {
                let mut out = Map::new();
                for (key, value) in map {
                    match gone.get_field(key) {
                        Some(entry) if entry.member => {}
                        Some(entry) => {
                            let kept = match fields.entry(key) {
                                Some(ty) => take(types, ty, value, &entry.below),
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
        Side::List(list) => match value.as_array() {
            Some(items) if list.associative => {
                let kept = items.iter().filter_map(|item| {
                    let entry = element_step(types, list, item).ok().and_then(|step| gone.get(&step));
                    match entry {
                        Some(entry) if entry.member => None,
                        Some(entry) => Some(take(types, list.element, item, &entry.below)),
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

// --- Does a value fit its type? ---

/// Complaints about a configuration that does not fit the type, each with its place.
pub(crate) fn check(types: &Types, value: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut at = String::new();
    fits(types, types.root(), value, &mut at, &mut wrong);
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
        other => crate::schema::error::render(other),
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
            let entries: Vec<String> = map
                .iter()
                .map(|(k, v)| format!("{}:{}", crate::schema::error::quote(k), go_syntax(v)))
                .collect();
            format!("map[string]interface {{}}{{{}}}", entries.join(", "))
        }
        other => crate::schema::error::render(other),
    }
}

fn fits(types: &Types, ty: Ref, value: &Value, at: &mut String, wrong: &mut Vec<String>) {
    if wrong.len() >= crate::schema::validate::ERRORS_MAX {
        return;
    }
    let say = |at: &str, what: String| if at.is_empty() { what } else { format!("{at}: {what}") };
    let ty = types.get(ty);
    match ty.side(ty.narrow(Some(value))) {
        Side::Nothing => wrong.push(say(at, "schema error: invalid atom: inlined".to_owned())),
        Side::Scalar(_) if value.is_null() => {}
        Side::Scalar(kind) => match (kind, value) {
            (Scalar::Numeric, Value::Number(_))
            | (Scalar::Text, Value::String(_))
            | (Scalar::Boolean, Value::Bool(_)) => {}
            (Scalar::Any, Value::Number(_) | Value::String(_) | Value::Bool(_)) => {}
            (Scalar::Numeric, other) => {
                wrong.push(say(at, format!("expected numeric (int or float), got {}", go_type(other))))
            }
            (Scalar::Text, other) => wrong.push(say(
                at,
                format!("expected string, got &value.valueUnstructured{{Value:{}}}", go_syntax(other)),
            )),
            (Scalar::Boolean, other) => {
                wrong.push(say(at, format!("expected boolean, got &{{{}}}", go_text(other))))
            }
            (Scalar::Any, other) => {
                wrong.push(say(at, format!("expected any scalar, got &{{{}}}", go_text(other))))
            }
        },
        Side::Map(fields) => match value {
            Value::Null => {}
            Value::Object(map) => {
                for (key, value) in map {
                    let length = at.len();
                    at.push('.');
                    at.push_str(key);
                    match fields.entry(key) {
                        Some(ty) => fits(types, ty, value, at, wrong),
                        None => wrong.push(say(at, "field not declared in schema".to_owned())),
                    }
                    at.truncate(length);
                }
            }
            other => wrong.push(say(at, format!("expected map, got &{{{}}}", go_text(other)))),
        },
        Side::List(list) => match value {
            Value::Null => {}
            Value::Array(items) => {
                let mut seen = std::collections::BTreeSet::new();
                for (i, item) in items.iter().enumerate() {
                    let step = if list.associative {
                        element_step(types, list, item)
                    } else {
                        Ok(Step::Index(i as i64))
                    };
                    let step = match step {
                        Ok(step) => step,
                        Err(why) => {
                            wrong.push(say(at, format!("element {i}: {why}")));
                            return;
                        }
                    };
                    let length = at.len();
                    at.push_str(&step.to_string());
                    fits(types, list.element, item, at, wrong);
                    at.truncate(length);
                    if list.associative && !seen.insert(step.clone()) {
                        wrong.push(say(at, format!("duplicate entries for key {step}")));
                    }
                }
            }
            other => wrong.push(say(at, format!("expected list, got &{{{}}}", go_text(other)))),
        },
    }
}

// --- Ownership and types that have changed ---

/// Adds named fields that have owned parts as owned themselves, so that they go with their last part.
pub(crate) fn with_named_fields(types: &Types, set: &FieldSet) -> FieldSet {
    name_fields(types, types.root(), set)
}

fn name_fields(types: &Types, ty: Ref, set: &FieldSet) -> FieldSet {
    let resolved = types.get(ty);
    let mut out = FieldSet::default();
    for entry in set.entries() {
        let (named, below) = match &entry.step {
            Step::Field(name) => {
                let fields = resolved.map.as_ref();
                (fields.is_some_and(|f| f.named(name).is_some()), fields.and_then(|f| f.entry(name)))
            }
            _ => (false, resolved.list.as_ref().map(|l| l.element)),
        };
        let children = match below {
            Some(ty) => name_fields(types, ty, &entry.below),
            None => entry.below.clone(),
        };
        out.put(entry.step.clone(), entry.member || (named && !entry.below.is_empty()), children);
    }
    out
}

/// Brings an owned set in line with types that have become atomic since it was written: parts of an atomic value are
/// owned as the whole. `None` when nothing changes, which is nearly always.
pub(crate) fn reconcile(types: &Types, set: &FieldSet) -> Option<FieldSet> {
    let mut changed = false;
    let out = align(types, types.root(), set, &mut changed);
    changed.then_some(out)
}

fn align(types: &Types, ty: Ref, set: &FieldSet, changed: &mut bool) -> FieldSet {
    let resolved = types.get(ty);
    let mut out = FieldSet::default();
    for entry in set.entries() {
        let below = match &entry.step {
            Step::Field(name) => {
                resolved.map.as_ref().filter(|f| !Types::is_deduced_map(f)).and_then(|f| f.entry(name))
            }
            _ => resolved.list.as_ref().map(|l| l.element),
        };
        let Some(ty) = below else {
            out.put(entry.step.clone(), entry.member, entry.below.clone());
            continue;
        };
        let child = types.get(ty);
        // Looked at from the type alone, a value that may be several things is taken for a map.
        let atomic = match child.side(Narrowed::All) {
            Side::Map(fields) => fields.atomic && !Types::is_deduced_map(fields) && !entry.below.is_empty(),
            Side::List(list) => !(list.associative || entry.member && entry.below.is_empty()),
            _ => false,
        };
        if atomic {
            *changed = true;
            out.put(entry.step.clone(), true, FieldSet::default());
        } else if entry.below.is_empty() {
            out.put(entry.step.clone(), entry.member, FieldSet::default());
        } else {
            out.put(entry.step.clone(), entry.member, align(types, ty, &entry.below, changed));
        }
    }
    out
}
