//! One form for one meaning.
//!
//! The same object comes back from different planes in different clothes: keys in another order, an empty list
//! where nothing was, `null` for absent. A pass through Karmada's Lua interpreters drops empty lists and empty
//! maps altogether. Comparing clothes would write for ever and would replace instances that nobody changed, so
//! everything that is compared or hashed goes through here first.
//!
//! The form: members that are `null`, an empty list or an empty object are left out, from the inside outwards;
//! keys are sorted. Elements of a list always stay, since their number and order carry meaning (an empty ingress
//! rule lets everything in). Zero, `false` and the empty string are values and stay.

use serde::Serialize;
use serde_json::Value;

/// The canonical value of anything that serialises.
pub fn value(of: &impl Serialize) -> Value {
    // The kinds hold strings, numbers, lists and maps with string keys: nothing that JSON cannot say.
    let mut value = serde_json::to_value(of).expect("a kind serialises to JSON");
    prune(&mut value);
    value
}

/// Whether two things mean the same.
pub fn same(one: &impl Serialize, other: &impl Serialize) -> bool {
    value(one) == value(other)
}

/// The canonical text: no spaces, keys in byte order whatever map serde_json was built with.
pub fn text(of: &impl Serialize) -> String {
    let mut out = String::new();
    write(&value(of), &mut out);
    out
}

fn prune(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.values_mut().for_each(prune);
            members.retain(|_, member| !is_nothing(member));
        }
        Value::Array(elements) => elements.iter_mut().for_each(prune),
        _ => {}
    }
}

fn is_nothing(value: &Value) -> bool {
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
    fn what_becomes_empty_by_pruning_goes_too() {
        assert!(same(&json!({"metadata": {"labels": {}}}), &json!({})));
    }

    #[test]
    fn zero_false_and_the_empty_string_are_values() {
        for value in [json!({"a": 0}), json!({"a": false}), json!({"a": ""})] {
            assert!(!same(&value, &json!({})), "{value}");
        }
    }

    #[test]
    fn an_empty_element_of_a_list_still_counts() {
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
        fn the_text_reads_back_as_the_canonical_value(input in any_json()) {
            prop_assert_eq!(serde_json::from_str::<Value>(&text(&input)).unwrap(), value(&input));
        }

        #[test]
        fn canonical_once_is_canonical_twice(input in any_json()) {
            prop_assert_eq!(value(&value(&input)), value(&input));
        }
    }
}
