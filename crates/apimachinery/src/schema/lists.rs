//! Uniqueness of list elements: values of sets (`x-kubernetes-list-type: set`) and keys of map lists.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::node::{ListType, Node};
use super::value_path::ValuePath;
use crate::error::ERRORS_MAX;
use crate::error::ValidationError;

/// Reports duplicate values of sets and duplicate keys of map lists anywhere in the object.
pub(super) fn check(node: &Node, object: &Value) -> Vec<ValidationError> {
    let mut errors = Vec::new();
    if node.has_lists {
        walk(node, object, &ValuePath::Root, &mut errors);
    }
    errors
}

/// The index of the second occurrence of each duplicated value. Later occurrences are not reported.
pub(crate) fn duplicate_indexes(list: &Value) -> Vec<usize> {
    let Some(items) = list.as_array() else { return Vec::new() };
    indexes_of_duplicates(items.iter().map(ToString::to_string))
}

fn indexes_of_duplicates(keys: impl Iterator<Item = String>) -> Vec<usize> {
    let mut seen: HashMap<String, u32> = HashMap::new();
    let mut indexes = Vec::new();
    for (i, key) in keys.enumerate() {
        let times = seen.entry(key).or_default();
        *times += 1;
        if *times == 2 {
            indexes.push(i);
        }
    }
    indexes
}

fn walk(node: &Node, value: &Value, at: &ValuePath<'_>, errors: &mut Vec<ValidationError>) {
    if !node.has_lists || errors.len() >= ERRORS_MAX {
        return;
    }
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match (node.property(key), node.additional_schema()) {
                    (Some(child), _) => walk(child, value, &at.child(key), errors),
                    (None, Some(child)) => walk(child, value, &at.key(key), errors),
                    _ => {}
                }
            }
        }
        Value::Array(items) => {
            match node.list_type {
                ListType::Set if items.len() > 1 => {
                    errors.extend(
                        duplicate_indexes(value)
                            .into_iter()
                            .map(|i| ValidationError::duplicate(at.index(i).to_string(), items[i].clone())),
                    );
                }
                ListType::Map => check_map(node, items, at, errors),
                _ => {}
            }
            if let Some(child) = node.items.as_deref() {
                for (i, item) in items.iter().enumerate() {
                    walk(child, item, &at.index(i), errors);
                }
            }
        }
        _ => {}
    }
}

fn check_map(node: &Node, items: &[Value], at: &ValuePath<'_>, errors: &mut Vec<ValidationError>) {
    if let Some((i, item)) = items.iter().enumerate().find(|(_, item)| !item.is_object() && !item.is_null()) {
        errors.push(ValidationError::invalid(
            at.index(i).to_string(),
            item.clone(),
            "must be an object for an array of list-type map",
        ));
        return;
    }
    let key_of = |item: &Value| -> Map<String, Value> {
        let fields = node.map_keys().iter().filter_map(|k| Some((k.to_string(), item.get(&**k)?.clone())));
        fields.collect()
    };
    let indexes = indexes_of_duplicates(items.iter().map(|item| Value::Object(key_of(item)).to_string()));
    errors.extend(
        indexes
            .into_iter()
            .map(|i| ValidationError::duplicate(at.index(i).to_string(), Value::Object(key_of(&items[i])))),
    );
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_duplicate_is_reported_once() {
        let node = Node::parse(&json!({"type": "object", "properties": {
            "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "map": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name", "port"], "items": {"type": "object"}},
            "plain": {"type": "array", "items": {"type": "string"}},
        }}))
        .unwrap();
        let messages = |object: Value| -> Vec<String> {
            check(&node, &object).iter().map(ToString::to_string).collect()
        };
        assert_eq!(
            messages(json!({"set": ["a", "b", "a", "a"], "plain": ["a", "a"]})),
            ["set[2]: Duplicate value: \"a\""]
        );
        assert_eq!(
            messages(
                json!({"map": [{"name": "a", "port": 1}, {"name": "a", "port": 2}, {"name": "a", "port": 1, "x": 1}]})
            ),
            ["map[2]: Duplicate value: {\"name\":\"a\",\"port\":1}"]
        );
        assert_eq!(messages(json!({"map": [{}, {}]})), ["map[1]: Duplicate value: {}"]);
        assert_eq!(
            messages(json!({"map": [{}, 5]})),
            ["map[1]: Invalid value: 5: must be an object for an array of list-type map"]
        );
    }
}
