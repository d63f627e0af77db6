//! JSON merge patch (RFC 7396): sets the given fields and removes null fields.

use serde_json::{Map, Value};

use super::PatchError;
use crate::go_format;

/// Merges the patch into the object.
pub fn patch(object: &Value, patch: &Value) -> Result<Value, PatchError> {
    match patch {
        Value::Object(changes) => {
            let mut out = object.clone();
            merge(&mut out, changes);
            Ok(out)
        }
        Value::Null => Err(PatchError::Malformed("Invalid JSON Patch".to_owned())),
        other => Err(PatchError::Malformed(format!(
            "error decoding patch: json: cannot unmarshal {} into Go value of type map[string]interface {{}}",
            go_format::kind(other)
        ))),
    }
}

fn merge(target: &mut Value, changes: &Map<String, Value>) {
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(map) = target else { return };
    for (key, change) in changes {
        match change {
            Value::Null => drop(map.remove(key)),
            Value::Object(changes) => merge(map.entry(key.as_str()).or_insert(Value::Null), changes),
            other => drop(map.insert(key.clone(), other.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_examples_of_rfc_7396_apply() {
        for (object, change, result) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
            (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
        ] {
            assert_eq!(patch(&object, &change).unwrap(), result);
        }
    }

    #[test]
    fn a_merge_patch_must_be_an_object() {
        assert_eq!(
            patch(&json!({}), &json!([])).unwrap_err().to_string(),
            "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}"
        );
        assert_eq!(patch(&json!({}), &Value::Null).unwrap_err().message(), "Invalid JSON Patch");
    }

    fn any_object() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![Just(json!(1)), Just(json!("s")), Just(json!([1])), Just(json!({}))];
        let inner = leaf.prop_recursive(3, 16, 3, |inner| {
            prop::collection::btree_map("[a-c]", inner, 0..3).prop_map(|m| json!(m))
        });
        prop::collection::btree_map("[a-c]", inner, 0..4).prop_map(|m| json!(m))
    }

    proptest! {
        #[test]
        fn merging_is_idempotent(object in any_object(), change in any_object()) {
            let once = patch(&object, &change).unwrap();
            prop_assert_eq!(patch(&once, &change).unwrap(), once);
        }

        #[test]
        fn merging_into_an_empty_object_returns_the_patch(object in any_object()) {
            prop_assert_eq!(patch(&json!({}), &object).unwrap(), object);
        }
    }
}
