//! Sets hold each value once, map lists each key once.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::error::FieldError;
use super::node::{ListType, Node};
use super::path::Path;
use super::validate::ERRORS_MAX;

/// Complaints about repeated values of sets and repeated keys of map lists anywhere in the object.
pub fn check(node: &Node, object: &Value) -> Vec<FieldError> {
    let mut wrong = Vec::new();
    if node.has_lists {
        walk(node, object, &Path::Root, &mut wrong);
    }
    wrong
}

/// The places where a value stands for the second time; third and later times are not named again.
pub(crate) fn repeated(list: &Value) -> Vec<usize> {
    let Some(items) = list.as_array() else { return Vec::new() };
    repeats(items.iter().map(ToString::to_string))
}

fn repeats(keys: impl Iterator<Item = String>) -> Vec<usize> {
    let mut seen: HashMap<String, u32> = HashMap::new();
    let mut places = Vec::new();
    for (i, key) in keys.enumerate() {
        let times = seen.entry(key).or_default();
        *times += 1;
        if *times == 2 {
            places.push(i);
        }
    }
    places
}

fn walk(node: &Node, value: &Value, at: &Path<'_>, wrong: &mut Vec<FieldError>) {
    if !node.has_lists || wrong.len() >= ERRORS_MAX {
        return;
    }
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match (node.property(key), node.additional_schema()) {
                    (Some(child), _) => walk(child, value, &at.child(key), wrong),
                    (None, Some(child)) => walk(child, value, &at.key(key), wrong),
                    _ => {}
                }
            }
        }
        Value::Array(items) => {
            match node.list_type {
                ListType::Set if items.len() > 1 => {
                    wrong.extend(
                        repeated(value)
                            .into_iter()
                            .map(|i| FieldError::duplicate(at.index(i).to_string(), items[i].clone())),
                    );
                }
                ListType::Map => check_map(node, items, at, wrong),
                _ => {}
            }
            if let Some(child) = node.items.as_deref() {
                for (i, item) in items.iter().enumerate() {
                    walk(child, item, &at.index(i), wrong);
                }
            }
        }
        _ => {}
    }
}

fn check_map(node: &Node, items: &[Value], at: &Path<'_>, wrong: &mut Vec<FieldError>) {
    if let Some((i, item)) = items.iter().enumerate().find(|(_, item)| !item.is_object() && !item.is_null()) {
        wrong.push(FieldError::invalid(
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
    let places = repeats(items.iter().map(|item| Value::Object(key_of(item)).to_string()));
    wrong.extend(
        places
            .into_iter()
            .map(|i| FieldError::duplicate(at.index(i).to_string(), Value::Object(key_of(&items[i])))),
    );
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn repeated_values_and_keys_are_named_once() {
        let node = Node::parse(&json!({"type": "object", "properties": {
            "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "map": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name", "port"], "items": {"type": "object"}},
            "plain": {"type": "array", "items": {"type": "string"}},
        }}))
        .unwrap();
        let said = |object: Value| -> Vec<String> {
            check(&node, &object).iter().map(ToString::to_string).collect()
        };
        assert_eq!(
            said(json!({"set": ["a", "b", "a", "a"], "plain": ["a", "a"]})),
            ["set[2]: Duplicate value: \"a\""]
        );
        assert_eq!(
            said(
                json!({"map": [{"name": "a", "port": 1}, {"name": "a", "port": 2}, {"name": "a", "port": 1, "x": 1}]})
            ),
            ["map[2]: Duplicate value: {\"name\":\"a\",\"port\":1}"]
        );
        assert_eq!(said(json!({"map": [{}, {}]})), ["map[1]: Duplicate value: {}"]);
        assert_eq!(
            said(json!({"map": [{}, 5]})),
            ["map[1]: Invalid value: 5: must be an object for an array of list-type map"]
        );
    }
}
