//! The canonical JSON form of objects, for comparisons and hashes.
//!
//! Planes return the same object in different forms: with keys in another order, with an empty list for an
//! absent one, or with `null`. Karmada's Lua interpreters drop empty lists and empty maps. Comparing these
//! forms directly would cause endless writes and would replace unchanged instances, so every comparison and
//! every hash uses the canonical form.
//!
//! The canonical form omits members that are `null`, an empty list or an empty object, innermost first, and
//! sorts the keys. List elements are kept, because their number and order have a meaning (an empty ingress
//! rule allows all traffic). Zero, `false` and the empty string are values and are kept.

use serde::Serialize;
use serde_json::Value;

/// The canonical value of a serialisable object.
pub fn value(of: &impl Serialize) -> Value {
    // The API types contain only strings, numbers, lists and maps with string keys, which JSON can represent.
    let mut value = serde_json::to_value(of).expect("an API type serialises to JSON");
    prune(&mut value);
    value
}

/// Whether two objects have the same canonical form.
pub fn same(one: &impl Serialize, other: &impl Serialize) -> bool {
    value(one) == value(other)
}

/// The canonical text: no spaces, keys in byte order even if serde_json keeps the insertion order.
pub fn text(of: &impl Serialize) -> String {
    let mut out = String::new();
    write(&value(of), &mut out);
    out
}

fn prune(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.values_mut().for_each(prune);
            members.retain(|_, member| !is_empty(member));
        }
        Value::Array(elements) => elements.iter_mut().for_each(prune),
        _ => {}
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(elements) => elements.is_empty(),
        Value::Object(members) => members.is_empty(),
        _ => false,
    }
}

fn write(value: &Value, out: &mut String) {
    match value {
        Value::Object(members) => {
            let mut keys: Vec<_> = members.keys().collect();
            keys.sort();
            out.push('{');
            for (i, key) in keys.into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push(':');
                write(&members[key], out);
            }
            out.push('}');
        }
        Value::Array(elements) => {
            out.push('[');
            for (i, element) in elements.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write(element, out);
            }
            out.push(']');
        }
        plain => out.push_str(&plain.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn absent_null_and_empty_are_the_same() {
        assert!(same(&json!({"a": 1, "b": null, "c": [], "d": {}}), &json!({"a": 1})));
    }

    #[test]
    fn a_member_that_is_empty_after_pruning_is_omitted() {
        assert!(same(&json!({"metadata": {"labels": {}}}), &json!({})));
    }

    #[test]
    fn zero_false_and_the_empty_string_are_values() {
        for value in [json!({"a": 0}), json!({"a": false}), json!({"a": ""})] {
            assert!(!same(&value, &json!({})), "{value}");
        }
    }

    #[test]
    fn an_empty_list_element_is_kept() {
        assert!(!same(&json!({"ingress": [{}]}), &json!({})));
        assert!(!same(&json!({"ingress": [{}]}), &json!({"ingress": [{}, {}]})));
    }

    #[test]
    fn the_text_has_sorted_keys_and_no_spaces() {
        assert_eq!(
            text(&json!({"b": [1, {"z": "q\"", "a": null}], "a": true})),
            r#"{"a":true,"b":[1,{"z":"q\""}]}"#
        );
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[a-c\"]{0,3}".prop_map(Value::from)
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::hash_map("[a-d]", inner, 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_text_parses_as_the_canonical_value(input in any_json()) {
            prop_assert_eq!(serde_json::from_str::<Value>(&text(&input)).unwrap(), value(&input));
        }

        #[test]
        fn the_canonical_form_is_idempotent(input in any_json()) {
            prop_assert_eq!(value(&value(&input)), value(&input));
        }
    }
}
