//! Strategic merge patch: a merge patch that merges some lists by key.
//!
//! Directives inside the patch: `$patch: replace|delete` on maps and elements,
//! `$deleteFromPrimitiveList/<field>`, `$setElementOrder/<field>` and `$retainKeys`. Custom resources do not
//! support it (415).

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::PatchError;
use crate::apply::types::{Fields, List, Ref, Types};
use crate::go_format;

const DIRECTIVE: &str = "$patch";
const DELETE_FROM: &str = "$deleteFromPrimitiveList";
const ORDER: &str = "$setElementOrder";
const RETAIN: &str = "$retainKeys";

/// Merges the patch into the object, with the merge types of its kind.
pub fn patch(object: &Value, patch: &Value, types: &Types) -> Result<Value, PatchError> {
    let Value::Object(changes) = patch else {
        return Err(PatchError::Malformed(format!(
            "json: cannot unmarshal {} into Go value of type map[string]interface {{}}",
            go_format::kind(patch)
        )));
    };
    let original = object.as_object().cloned().unwrap_or_default();
    let merge = Merge { types };
    merge.map(original, changes.clone(), Some(types.root())).map(Value::Object)
}

struct Merge<'t> {
    types: &'t Types,
}

fn go_map(map: &Map<String, Value>) -> String {
    let entries: Vec<String> = map.iter().map(|(k, v)| format!("{k}:{}", go_value(v))).collect();
    format!("map[{}]", entries.join(" "))
}

fn go_value(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(s) => s.clone(),
        Value::Array(items) => go_list(items),
        Value::Object(map) => go_map(map),
        other => other.to_string(),
    }
}

fn go_list(items: &[Value]) -> String {
    format!("[{}]", items.iter().map(go_value).collect::<Vec<_>>().join(" "))
}

fn internal<T>(text: String) -> Result<T, PatchError> {
    Err(PatchError::Contradiction(text))
}

fn no_key<T>(map: &Map<String, Value>, key: &str) -> Result<T, PatchError> {
    internal(format!("map: {} does not contain declared merge key: {key}", go_map(map)))
}

/// Removes maps with a directive; `None` if the value itself has one.
fn without_directives(value: Value) -> Option<Value> {
    match value {
        Value::Object(map) if map.contains_key(DIRECTIVE) => None,
        Value::Object(map) => Some(Value::Object(
            map.into_iter().filter_map(|(k, v)| Some((k, without_directives(v)?))).collect(),
        )),
        Value::Array(items) => Some(Value::Array(items.into_iter().filter_map(without_directives).collect())),
        other => Some(other),
    }
}

fn discard_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => map.retain(|_, v| {
            discard_nulls(v);
            !v.is_null()
        }),
        Value::Array(items) => items.iter_mut().for_each(discard_nulls),
        _ => {}
    }
}

/// The identity of an element: its merge key, or the element itself.
fn merge_key(item: &Value, key: Option<&str>) -> String {
    match key {
        Some(key) => item.get(key).map_or_else(String::new, Value::to_string),
        None => item.to_string(),
    }
}

fn positions(list: &[Value], key: Option<&str>) -> HashMap<String, usize> {
    let mut positions = HashMap::new();
    for (i, item) in list.iter().enumerate() {
        positions.entry(merge_key(item, key)).or_insert(i);
    }
    positions
}

/// Sorts merged elements: elements of the patch in the order of the patch, other elements in the server's
/// order. Where both orders apply, the server's order decides.
fn in_order(
    merged: Vec<Value>,
    patch_order: &[Value],
    server_order: &[Value],
    key: Option<&str>,
) -> Vec<Value> {
    let by_patch = positions(patch_order, key);
    let by_server = positions(server_order, key);
    let (mut named, mut others): (Vec<Value>, Vec<Value>) =
        merged.into_iter().partition(|item| by_patch.contains_key(&merge_key(item, key)));
    named.sort_by_key(|item| by_patch.get(&merge_key(item, key)).copied());
    others.sort_by_key(|item| by_server.get(&merge_key(item, key)).copied());
    let mut out = Vec::with_capacity(named.len() + others.len());
    let (mut named, mut others) = (named.into_iter().peekable(), others.into_iter().peekable());
    loop {
        let other_first = match (others.peek(), named.peek()) {
            (None, None) => return out,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(o), Some(n)) => {
                match (by_server.get(&merge_key(o, key)), by_server.get(&merge_key(n, key))) {
                    (Some(o), Some(n)) => o < n,
                    _ => false,
                }
            }
        };
        out.extend(if other_first { others.next() } else { named.next() });
    }
}

/// Whether all elements are maps. Fails on mixed element types and on lists of lists.
fn are_maps(lists: [&[Value]; 2]) -> Result<bool, PatchError> {
    let mut kind = None;
    for item in lists.into_iter().flatten() {
        let this = go_format::kind(item);
        match kind {
            None if item.is_array() => {
                return Err(PatchError::Unfit("lists of lists are not supported".to_owned()));
            }
            None => kind = Some(this),
            Some(before) if before != this => {
                let shown: Vec<String> = lists.iter().map(|l| go_list(l)).collect();
                return internal(format!("list element types are not identical: [{}]", shown.join(" ")));
            }
            Some(_) => {}
        }
    }
    match kind {
        Some(kind) => Ok(kind == "object"),
        None => internal("no elements in any of the given slices".to_owned()),
    }
}

impl<'t> Merge<'t> {
    fn fields(&self, ty: Option<Ref>) -> Option<&'t Fields> {
        self.types.get(ty?).map.as_ref()
    }

    fn child(&self, ty: Option<Ref>, key: &str) -> Option<Ref> {
        self.fields(ty)?.entry(key)
    }

    fn list_type(&self, ty: Option<Ref>, key: &str) -> Option<&'t List> {
        self.types.get(self.child(ty, key)?).list.as_ref()
    }

    fn map(
        &self,
        original: Map<String, Value>,
        mut patch: Map<String, Value>,
        ty: Option<Ref>,
    ) -> Result<Map<String, Value>, PatchError> {
        if let Some(directive) = patch.get(DIRECTIVE) {
            return match directive.as_str() {
                Some("replace") => {
                    patch.remove(DIRECTIVE);
                    Ok(patch)
                }
                Some("delete") => Ok(Map::new()),
                _ => internal(format!(
                    "unknown patch type: {} in map: {}",
                    go_value(directive),
                    go_map(&patch)
                )),
            };
        }
        let mut original = original;
        retain_keys(&mut original, &mut patch)?;
        self.order_lists(&mut original, &mut patch, ty)?;
        for (key, change) in patch {
            let (key, deletes) = match key.strip_prefix(DELETE_FROM) {
                Some(rest) => match rest.strip_prefix('/') {
                    Some(field) => (field.to_owned(), true),
                    None => {
                        return Err(PatchError::Malformed(
                            "invalid patch format of primitive list".to_owned(),
                        ));
                    }
                },
                None => (key, false),
            };
            if change.is_null() {
                original.remove(&key);
                continue;
            }
            let before = original.get_mut(&key).map(std::mem::take);
            let after = match (before, change) {
                (Some(Value::Object(before)), Value::Object(change)) => {
                    let child = self.child(ty, &key);
                    let replaced = self.fields(child).is_some_and(|f| f.patch_replace);
                    Some(Value::Object(if replaced { change } else { self.map(before, change, child)? }))
                }
                (Some(Value::Array(before)), Value::Array(change)) => {
                    let list = self.list_type(ty, &key);
                    Some(Value::Array(self.list(before, change, list, deletes)?))
                }
                (before, _) if deletes => before,
                (_, mut change) => {
                    discard_nulls(&mut change);
                    without_directives(change)
                }
            };
            match after {
                Some(after) => drop(original.insert(key, after)),
                None => drop(original.remove(&key)),
            }
        }
        Ok(original)
    }

    fn list(
        &self,
        original: Vec<Value>,
        patch: Vec<Value>,
        list: Option<&List>,
        deletes: bool,
    ) -> Result<Vec<Value>, PatchError> {
        let merges = list.is_some_and(|l| l.patch_merge);
        if !merges && !deletes {
            return Ok(patch);
        }
        if original.is_empty() && patch.is_empty() {
            return Ok(original);
        }
        if !are_maps([&original, &patch])? {
            let named: HashSet<String> = patch.iter().map(Value::to_string).collect();
            if deletes {
                return Ok(original.into_iter().filter(|item| !named.contains(&item.to_string())).collect());
            }
            let mut seen = HashSet::new();
            let merged: Vec<Value> =
                original.iter().chain(&patch).filter(|item| seen.insert(item.to_string())).cloned().collect();
            return Ok(in_order(merged, &patch, &original, None));
        }
        let Some(key) = list.and_then(|l| l.patch_key.as_deref()) else {
            return internal("cannot merge lists without merge key".to_owned());
        };
        let element = list.map(|l| l.element);
        let (merged, patch, order) = self.elements(original, patch, key, element)?;
        Ok(in_order(merged, &patch, &order, Some(key)))
    }

    /// Merges elements by key. Returns the merged list, the patch elements without directives, and the
    /// server's order.
    #[allow(clippy::type_complexity, reason = "three lists of the same type, named by the caller")]
    fn elements(
        &self,
        mut original: Vec<Value>,
        patch: Vec<Value>,
        key: &str,
        element: Option<Ref>,
    ) -> Result<(Vec<Value>, Vec<Value>, Vec<Value>), PatchError> {
        let mut plain = Vec::with_capacity(patch.len());
        let mut replace = false;
        for item in patch {
            let Value::Object(map) = &item else { continue };
            match map.get(DIRECTIVE).map(|d| (d.as_str(), d)) {
                None => plain.push(item),
                Some((Some("delete"), _)) => match map.get(key) {
                    Some(value) => original.retain(|o| o.get(key) != Some(value)),
                    None => return no_key(map, key),
                },
                Some((Some("replace"), _)) => replace = true,
                Some((Some("merge"), _)) => {
                    return internal("merging lists cannot yet be specified in the patch".to_owned());
                }
                Some((_, directive)) => {
                    return internal(format!(
                        "unknown patch type: {} in map: {}",
                        go_value(directive),
                        go_map(map)
                    ));
                }
            }
        }
        if replace {
            return Ok((plain.clone(), Vec::new(), plain));
        }
        let mut at = positions(&original, Some(key));
        let mut merged = original.clone();
        for item in &plain {
            let Value::Object(change) = item else { continue };
            if !change.contains_key(key) {
                return no_key(change, key);
            }
            match at.get(&merge_key(item, Some(key))) {
                Some(&i) => {
                    let before = merged[i].as_object().cloned().unwrap_or_default();
                    merged[i] = Value::Object(self.map(before, change.clone(), element)?);
                }
                None => {
                    at.insert(merge_key(item, Some(key)), merged.len());
                    merged.push(item.clone());
                }
            }
        }
        if let Some(Value::Object(map)) = merged.iter().find(|m| m.get(key).is_none()) {
            return no_key(map, key);
        }
        Ok((merged, plain, original))
    }

    /// Applies `$setElementOrder/<field>`: merges and sorts the list, then removes the field from the patch.
    fn order_lists(
        &self,
        original: &mut Map<String, Value>,
        patch: &mut Map<String, Value>,
        ty: Option<Ref>,
    ) -> Result<(), PatchError> {
        let directives: Vec<String> = patch.keys().filter(|k| k.starts_with(ORDER)).cloned().collect();
        for directive in directives {
            let malformed =
                || PatchError::Malformed("invalid patch format of setElementOrder list".to_owned());
            let Some(Value::Array(order)) = patch.remove(&directive) else { return Err(malformed()) };
            let field =
                directive.strip_prefix(ORDER).and_then(|r| r.strip_prefix('/')).ok_or_else(malformed)?;
            let list_of = |map: &Map<String, Value>| match map.get(field) {
                None => Ok(None),
                Some(Value::Array(items)) => Ok(Some(items.clone())),
                Some(other) => internal(format!(
                    "expected a []interface {{}}, but received a {}",
                    go_format::kind(other)
                )),
            };
            let (before, change) = (list_of(original)?, list_of(patch)?);
            let list = self.list_type(ty, field);
            let key = list.and_then(|l| l.patch_key.as_deref());
            check_order(change.as_deref().unwrap_or_default(), &order, key)?;
            let merged = match (&before, change) {
                (None, None) => continue,
                (Some(before), None) => before.clone(),
                (None, Some(change)) => match without_directives(Value::Array(change)) {
                    Some(Value::Array(items)) => items,
                    _ => continue,
                },
                (Some(before), Some(change)) => self.list(before.clone(), change, list, false)?,
            };
            if let (Some(key), Some(Value::Object(map))) =
                (key, merged.iter().find(|m| key.is_some_and(|k| m.get(k).is_none())))
            {
                return no_key(map, key);
            }
            original.insert(
                field.to_owned(),
                Value::Array(in_order(merged, &order, before.as_deref().unwrap_or_default(), key)),
            );
            patch.remove(field);
        }
        Ok(())
    }
}

fn retain_keys(original: &mut Map<String, Value>, patch: &mut Map<String, Value>) -> Result<(), PatchError> {
    let Some(keys) = patch.remove(RETAIN) else { return Ok(()) };
    let malformed = || PatchError::Malformed("invalid patch format of retainKeys".to_owned());
    let keys: HashSet<&str> =
        keys.as_array().ok_or_else(malformed)?.iter().filter_map(Value::as_str).collect();
    let allowed = |k: &str, v: &Value| {
        v.is_null() || k.starts_with(DELETE_FROM) || k.starts_with(ORDER) || keys.contains(k)
    };
    if !patch.iter().all(|(k, v)| allowed(k, v)) {
        return Err(malformed());
    }
    original.retain(|k, _| keys.contains(k.as_str()));
    Ok(())
}

/// The elements of the patch must be in the order of the directive.
fn check_order(patch: &[Value], order: &[Value], key: Option<&str>) -> Result<(), PatchError> {
    let mut left = patch.iter().filter(|item| item.get(DIRECTIVE).is_none()).peekable();
    if patch.is_empty() || order.is_empty() {
        return Ok(());
    }
    for wanted in order {
        let Some(item) = left.peek() else { return Ok(()) };
        if let (Some(key), Value::Object(map)) = (key, item)
            && !map.contains_key(key)
        {
            return no_key(map, key);
        }
        if merge_key(item, key) == merge_key(wanted, key) {
            left.next();
        }
    }
    if left.peek().is_some() {
        return internal(format!(
            "The order in patch list:\n{}\n doesn't match {ORDER} list:\n{}\n",
            go_list(patch),
            go_list(order)
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn types() -> Types {
        let definitions = BTreeMap::from([(
            "K".to_owned(),
            json!({"type": "object", "properties": {
                "metadata": {"type": "object", "properties": {
                    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                    "finalizers": {"type": "array", "items": {"type": "string"}, "x-kubernetes-patch-strategy": "merge", "x-kubernetes-list-type": "set"},
                    "owners": {"type": "array", "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "uid", "items": {"type": "object", "properties": {
                        "uid": {"type": "string"}, "name": {"type": "string"}}}},
                }},
                "data": {"type": "object", "additionalProperties": {"type": "string"}},
                "rules": {"type": "array", "items": {"type": "object"}},
            }}),
        )]);
        Types::from_openapi(&definitions, "K")
    }

    fn patched(object: Value, change: Value) -> Result<Value, PatchError> {
        patch(&object, &change, &types())
    }

    #[test]
    fn maps_merge_by_their_directives() {
        let object = json!({"data": {"k": "v"}});
        for (change, result) in [
            (json!({"data": {"k": null, "n": "1"}}), json!({"data": {"n": "1"}})),
            (json!({"data": null}), json!({})),
            (json!({"data": {"$patch": "replace", "z": "1"}}), json!({"data": {"z": "1"}})),
            (json!({"data": {"$patch": "delete"}}), json!({"data": {}})),
            (json!({"data": {"$retainKeys": ["n"], "n": "1"}}), json!({"data": {"n": "1"}})),
            (
                json!({"new": {"a": null, "b": 1, "c": {"$patch": "delete"}}}),
                json!({"data": {"k": "v"}, "new": {"b": 1}}),
            ),
        ] {
            assert_eq!(patched(object.clone(), change.clone()).unwrap(), result, "{change}");
        }
    }

    #[test]
    fn primitive_lists_merge_in_the_order_of_kubernetes() {
        let object = json!({"metadata": {"finalizers": ["a", "b"]}});
        for (change, result) in [
            (json!({"finalizers": ["c"]}), json!(["c", "a", "b"])),
            (json!({"$deleteFromPrimitiveList/finalizers": ["a"]}), json!(["b"])),
            (json!({"$setElementOrder/finalizers": ["b", "a"]}), json!(["b", "a"])),
            (
                json!({"$setElementOrder/finalizers": ["b", "c", "a"], "finalizers": ["c"]}),
                json!(["b", "c", "a"]),
            ),
        ] {
            assert_eq!(
                patched(object.clone(), json!({"metadata": change})).unwrap()["metadata"]["finalizers"],
                result,
                "{change}"
            );
        }
    }

    #[test]
    fn keyed_lists_merge_by_key() {
        let object = json!({"metadata": {"owners": [{"uid": "1", "name": "a"}, {"uid": "2", "name": "b"}]}});
        for (change, result) in [
            (
                json!([{"uid": "2", "name": "c"}]),
                json!([{"uid": "1", "name": "a"}, {"uid": "2", "name": "c"}]),
            ),
            (
                json!([{"uid": "3"}]),
                json!([{"uid": "3"}, {"uid": "1", "name": "a"}, {"uid": "2", "name": "b"}]),
            ),
            (json!([{"$patch": "delete", "uid": "1"}]), json!([{"uid": "2", "name": "b"}])),
            (json!([{"$patch": "replace"}, {"uid": "9"}]), json!([{"uid": "9"}])),
        ] {
            assert_eq!(
                patched(object.clone(), json!({"metadata": {"owners": change}})).unwrap()["metadata"]["owners"],
                result,
                "{change}"
            );
        }
        assert_eq!(
            patched(json!({"rules": [{"a": 1}]}), json!({"rules": [{"b": 1}]})).unwrap(),
            json!({"rules": [{"b": 1}]})
        );
    }

    #[test]
    fn inconsistent_patches_have_the_messages_of_kubernetes() {
        let object =
            json!({"metadata": {"finalizers": ["a", "b"], "owners": [{"uid": "1"}]}, "data": {"k": "v"}});
        for (change, code, words) in [
            (json!([]), 400, "json: cannot unmarshal array into Go value of type map[string]interface {}"),
            (json!({"data": {"$patch": "odd"}}), 500, "unknown patch type: odd in map: map[$patch:odd]"),
            (
                json!({"metadata": {"$retainKeys": ["name"], "labels": {"q": "1"}}}),
                400,
                "invalid patch format of retainKeys",
            ),
            (
                json!({"metadata": {"$setElementOrder/finalizers": ["b"], "finalizers": ["c"]}}),
                500,
                "The order in patch list:\n[c]\n doesn't match $setElementOrder list:\n[b]\n",
            ),
            (
                json!({"metadata": {"$setElementOrder/finalizers": "b"}}),
                400,
                "invalid patch format of setElementOrder list",
            ),
            (
                json!({"metadata": {"owners": [{"name": "a"}]}}),
                500,
                "map: map[name:a] does not contain declared merge key: uid",
            ),
            (
                json!({"metadata": {"finalizers": [["a"]]}}),
                500,
                "list element types are not identical: [[a b] [[a]]]",
            ),
        ] {
            let error = patched(object.clone(), change.clone()).unwrap_err();
            assert_eq!((error.code(), error.message().as_str()), (code, words), "{change}");
        }
    }

    fn any_change() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            Just(json!("s")),
            Just(json!(1)),
            Just(json!("delete")),
            Just(json!("replace"))
        ];
        let keys = "metadata|data|finalizers|owners|uid|\\$patch|\\$retainKeys|\\$setElementOrder/owners|\\$setElementOrder/finalizers|\\$deleteFromPrimitiveList/finalizers|\\$setElementOrder";
        let inner = leaf.prop_recursive(4, 24, 4, move |inner| {
            prop_oneof![
                prop::collection::btree_map(keys, inner.clone(), 0..4).prop_map(|m| json!(m)),
                prop::collection::vec(inner, 0..3).prop_map(Value::from)
            ]
        });
        prop::collection::btree_map("metadata|data|rules|\\$patch", inner, 0..3).prop_map(|m| json!(m))
    }

    proptest! {
        #[test]
        fn any_patch_is_merged_or_rejected(object in any_change(), change in any_change()) {
            let _ = patched(object, change);
        }
    }
}
