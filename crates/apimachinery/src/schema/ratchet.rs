//! Ratcheting: detects unchanged values, whose validation errors an update ignores.

use std::collections::HashMap;

use serde_json::Value;

use super::node::{JsonType, ListType, Node};

/// The elements of the old map list, indexed by their key fields.
pub(crate) struct OldItems<'a> {
    keys: &'a [Box<str>],
    items: HashMap<String, &'a Value>,
}

impl<'a> OldItems<'a> {
    /// `None` for a list without keys: only elements of map lists can be correlated.
    pub(crate) fn of(node: &'a Node, old: Option<&'a Value>) -> Option<Self> {
        let keys = node.map_keys();
        if node.json_type != JsonType::Array || node.list_type != ListType::Map || keys.is_empty() {
            return None;
        }
        let mut items = HashMap::new();
        for item in old?.as_array()? {
            if let Some(key) = composite_key(keys, item) {
                items.entry(key).or_insert(item);
            }
        }
        Some(Self { keys, items })
    }

    pub(crate) fn get(&self, new: &Value) -> Option<&'a Value> {
        self.items.get(&composite_key(self.keys, new)?).copied()
    }
}

fn composite_key(keys: &[Box<str>], item: &Value) -> Option<String> {
    let map = item.as_object()?;
    let mut out = String::new();
    for key in keys {
        match map.get(&**key)? {
            value @ (Value::Bool(_) | Value::Number(_) | Value::String(_)) => {
                out.push_str(&value.to_string())
            }
            _ => return None,
        }
        out.push('\0');
    }
    Some(out)
}

/// Whether the value is unchanged. Elements of a map list may change their order.
pub(crate) fn unchanged(node: &Node, new: &Value, old: &Value) -> bool {
    match (new, old) {
        (Value::Array(n), Value::Array(o)) => {
            if n.len() != o.len() {
                return false;
            }
            match (OldItems::of(node, Some(old)), node.items.as_deref()) {
                (Some(items), Some(item_node)) => {
                    n.iter().all(|item| items.get(item).is_some_and(|old| unchanged(item_node, item, old)))
                }
                _ => n == o,
            }
        }
        (Value::Object(n), Value::Object(o)) => {
            n.len() == o.len()
                && n.iter().all(|(key, value)| match (node.field(key), o.get(key)) {
                    (Some(child), Some(old)) => unchanged(child, value, old),
                    _ => false,
                })
        }
        _ => new == old,
    }
}
