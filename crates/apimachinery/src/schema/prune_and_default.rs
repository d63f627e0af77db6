//! Dropping of nulls, pruning of unknown fields and defaulting, run before validation.
//!
//! The walks follow the schema: a field outside the schema is either kept or pruned as a whole. They never
//! change `apiVersion`, `kind` and `metadata` of the object and of embedded resources.

use serde_json::{Map, Value};

use super::node::{AdditionalProperties, Node};

fn is_meta(key: &str) -> bool {
    matches!(key, "apiVersion" | "kind" | "metadata")
}

/// Removes nulls of fields that are neither nullable nor have a default.
pub fn drop_nulls(node: &Node, value: &mut Value) {
    match value {
        Value::Object(map) => map.retain(|key, value| match node.field(key) {
            Some(child) if value.is_null() => child.nullable || child.default_value().is_some(),
            Some(child) => {
                drop_nulls(child, value);
                true
            }
            None => true,
        }),
        Value::Array(items) => {
            if let Some(child) = node.items.as_deref() {
                items.iter_mut().for_each(|item| drop_nulls(child, item));
            }
        }
        _ => {}
    }
}

/// Applies defaults to missing fields. A null counts as missing unless the field is nullable.
pub fn default(node: &Node, value: &mut Value) {
    if !node.has_defaults {
        return;
    }
    match value {
        Value::Object(map) => {
            for (name, child) in &node.properties {
                let Some(default) = child.default_value() else { continue };
                match map.get_mut(&**name) {
                    Some(value) if value.is_null() && !child.nullable => *value = default.clone(),
                    Some(_) => {}
                    None => {
                        map.insert(name.to_string(), default.clone());
                    }
                }
            }
            for (key, value) in map {
                match (node.property(key), node.additional_schema()) {
                    (Some(child), _) => self::default(child, value),
                    (None, Some(child)) => fill_entry(child, value),
                    _ => {}
                }
            }
        }
        Value::Array(items) => {
            if let Some(child) = node.items.as_deref() {
                items.iter_mut().for_each(|item| fill_entry(child, item));
            }
        }
        _ => {}
    }
}

fn fill_entry(child: &Node, value: &mut Value) {
    if value.is_null()
        && !child.nullable
        && let Some(default) = child.default_value()
    {
        *value = default.clone();
    }
    default(child, value);
}

/// Removes fields that are not in the schema. `resource` is true for a whole object, which keeps its type and
/// metadata. The paths of removed fields are added to `report`, unsorted.
pub fn prune(node: &Node, value: &mut Value, resource: bool, report: Option<&mut Vec<String>>) {
    let mut walk = Prune { at: String::new(), report };
    walk.node(Some(node), value, resource);
}

struct Prune<'r> {
    at: String,
    report: Option<&'r mut Vec<String>>,
}

impl Prune<'_> {
    fn note(&mut self, key: &str) {
        if let Some(report) = self.report.as_deref_mut()
            && report.len() < crate::error::ERRORS_MAX
        {
            report.push(if self.at.is_empty() { key.to_owned() } else { format!("{}.{key}", self.at) });
        }
    }

    fn within(&mut self, step: impl FnOnce(&mut String), walk: impl FnOnce(&mut Self)) {
        if self.report.is_none() {
            return walk(self);
        }
        let length = self.at.len();
        step(&mut self.at);
        walk(self);
        self.at.truncate(length);
    }

    fn in_key(&mut self, key: &str, walk: impl FnOnce(&mut Self)) {
        self.within(
            |at| {
                if !at.is_empty() {
                    at.push('.');
                }
                at.push_str(key);
            },
            walk,
        );
    }

    fn in_index(&mut self, i: usize, walk: impl FnOnce(&mut Self)) {
        self.within(|at| at.push_str(&format!("[{i}]")), walk);
    }

    fn node(&mut self, node: Option<&Node>, value: &mut Value, resource: bool) {
        if let Some(node) = node.filter(|n| n.preserve_unknown) {
            return self.prune_preserved(node, value, resource);
        }
        match value {
            Value::Object(map) => self.object(node, map, resource),
            Value::Array(items) => {
                for (i, item) in items.iter_mut().enumerate() {
                    if matches!(item, Value::Object(_) | Value::Array(_)) {
                        self.in_index(i, |w| w.node(node.and_then(|n| n.items.as_deref()), item, false));
                    }
                }
            }
            _ => {}
        }
    }

    fn object(&mut self, node: Option<&Node>, map: &mut Map<String, Value>, resource: bool) {
        let Some(node) = node else {
            for key in map.keys() {
                self.note(key);
            }
            map.clear();
            return;
        };
        map.retain(|key, value| {
            if (resource || node.embedded) && is_meta(key) {
                return true;
            }
            match (node.property(key), &node.additional) {
                (Some(child), _) => self.in_key(key, |w| w.node(Some(child), value, false)),
                (None, AdditionalProperties::Unspecified) => {
                    if !(is_meta(key) && self.at.is_empty()) {
                        self.note(key);
                    }
                    return false;
                }
                (None, AdditionalProperties::Schema(child)) => {
                    self.in_key(key, |w| w.node(Some(child), value, false))
                }
                // `true` and `false` keep the entry and prune everything below it.
                (None, AdditionalProperties::Any | AdditionalProperties::Nothing) => {
                    self.in_key(key, |w| w.node(None, value, false))
                }
            }
            true
        });
    }

    /// Under `x-kubernetes-preserve-unknown-fields`, prunes only inside fields that the schema specifies.
    fn prune_preserved(&mut self, node: &Node, value: &mut Value, resource: bool) {
        match value {
            Value::Object(map) => {
                for (key, value) in map {
                    if (resource || node.embedded) && is_meta(key) {
                        continue;
                    }
                    match (node.property(key), &node.additional) {
                        (Some(child), _) => self.in_key(key, |w| w.node(Some(child), value, false)),
                        (None, AdditionalProperties::Schema(child)) => {
                            self.in_key(key, |w| w.node(Some(child), value, false))
                        }
                        (None, AdditionalProperties::Any | AdditionalProperties::Nothing) => {
                            self.in_key(key, |w| w.node(None, value, false))
                        }
                        (None, AdditionalProperties::Unspecified) => {}
                    }
                }
            }
            Value::Array(items) => {
                if let Some(child) = node.items.as_deref() {
                    for (i, item) in items.iter_mut().enumerate() {
                        self.in_index(i, |w| w.prune_preserved(child, item, false));
                    }
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn node(raw: Value) -> Node {
        Node::parse(&raw).unwrap()
    }

    #[test]
    fn defaults_apply_at_every_depth() {
        let node = node(json!({"type": "object", "properties": {
            "spec": {"type": "object", "default": {}, "properties": {
                "size": {"type": "integer", "default": 1},
                "mode": {"type": "string", "nullable": true, "default": "x"},
                "list": {"type": "array", "items": {"type": "object", "properties": {"port": {"type": "integer", "default": 80}}}},
                "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"on": {"type": "boolean", "default": true}}}},
            }},
        }}));
        let filled = |mut value: Value| {
            default(&node, &mut value);
            value
        };
        assert_eq!(filled(json!({})), json!({"spec": {"size": 1, "mode": "x"}}));
        assert_eq!(
            filled(json!({"spec": {"size": null, "mode": null}})),
            json!({"spec": {"size": 1, "mode": null}})
        );
        assert_eq!(
            filled(json!({"spec": {"size": 0, "mode": "", "list": [{}], "map": {"a": {}}}})),
            json!({"spec": {"size": 0, "mode": "", "list": [{"port": 80}], "map": {"a": {"on": true}}}})
        );
    }

    #[test]
    fn nulls_are_dropped_unless_nullable_or_defaulted() {
        let node = node(json!({"type": "object", "properties": {
            "a": {"type": "string"}, "b": {"type": "string", "nullable": true}, "c": {"type": "string", "default": "x"},
            "m": {"type": "object", "additionalProperties": {"type": "string"}},
        }}));
        let mut value = json!({"a": null, "b": null, "c": null, "m": {"k": null}, "unknown": null});
        drop_nulls(&node, &mut value);
        assert_eq!(value, json!({"b": null, "c": null, "m": {}, "unknown": null}));
    }

    #[test]
    fn unknown_fields_are_pruned_and_reported() {
        let node = node(json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {
                "a": {"type": "string"},
                "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"known": {"type": "object", "properties": {"x": {"type": "string"}}}}},
                "list": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "string"}}}},
                "any": {"type": "object", "additionalProperties": true},
                "inner": {"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"spec": {"type": "object"}}},
            }},
        }}));
        let mut value = json!({
            "apiVersion": "v1", "kind": "A", "metadata": {"name": "x"}, "top": 1,
            "spec": {"a": "1", "b": 2, "open": {"free": {"z": 1}, "known": {"x": "1", "y": 2}}, "list": [{"n": "a", "m": 1}], "any": {"k": {"deep": 1}, "s": "v"},
                     "inner": {"apiVersion": "v1", "kind": "B", "metadata": {"name": "y"}, "spec": {"u": 1}, "status": {}}},
        });
        let mut gone = Vec::new();
        prune(&node, &mut value, true, Some(&mut gone));
        gone.sort();
        assert_eq!(
            gone,
            [
                "spec.any.k.deep",
                "spec.b",
                "spec.inner.spec.u",
                "spec.inner.status",
                "spec.list[0].m",
                "spec.open.known.y",
                "top"
            ]
        );
        assert_eq!(
            value,
            json!({
                "apiVersion": "v1", "kind": "A", "metadata": {"name": "x"},
                "spec": {"a": "1", "open": {"free": {"z": 1}, "known": {"x": "1"}}, "list": [{"n": "a"}], "any": {"k": {}, "s": "v"},
                         "inner": {"apiVersion": "v1", "kind": "B", "metadata": {"name": "y"}, "spec": {}}},
            })
        );
    }

    fn any_schema() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(json!({"type": "string"})),
            Just(json!({"type": "string", "default": "d"})),
            Just(json!({"type": "integer", "nullable": true})),
            Just(json!({"x-kubernetes-preserve-unknown-fields": true})),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::btree_map("[a-d]", inner.clone(), 0..4)
                    .prop_map(|p| json!({"type": "object", "properties": p})),
                prop::collection::btree_map("[a-d]", inner.clone(), 0..4)
                    .prop_map(|p| json!({"type": "object", "properties": p, "default": {}})),
                inner.clone().prop_map(|i| json!({"type": "array", "items": i})),
                inner.prop_map(|i| json!({"type": "object", "additionalProperties": i})),
            ]
        })
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![Just(Value::Null), Just(json!("s")), Just(json!(1)), Just(json!(true))];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::btree_map("[a-e]", inner.clone(), 0..4).prop_map(|m| json!(m)),
                prop::collection::vec(inner, 0..3).prop_map(Value::from)
            ]
        })
    }

    proptest! {
        #[test]
        fn pruning_and_defaulting_are_idempotent(schema in any_schema(), mut value in any_value()) {
            let node = node(schema);
            let normalize = |value: &mut Value| {
                drop_nulls(&node, value);
                prune(&node, value, false, None);
                default(&node, value);
            };
            normalize(&mut value);
            let once = value.clone();
            normalize(&mut value);
            prop_assert_eq!(value, once);
        }
    }
}
