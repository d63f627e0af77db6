//! JSON patch (RFC 6902) with the semantics of kube-apiserver.
//!
//! The library of kube-apiserver is more lenient than the standard, and clients rely on it: `replace` of a
//! missing key in an existing map adds it, `copy` of a missing key copies null, `test` of a missing key
//! against null succeeds, negative indexes count from the end, and a path need not begin with a slash. The
//! Rust crate for the standard rejects all of these, so the operations are implemented here.

use serde_json::Value;

use super::PatchError;
use crate::decode::DEPTH_MAX;
use crate::go_format;

/// Maximum number of operations.
const OPERATIONS_MAX: usize = 10_000;
/// Maximum number of bytes that all `copy` operations together may add.
const COPIED_MAX: usize = 3 << 20;
/// Maximum number of values that all operations together may visit or shift. An operation costs the values
/// that it moves, so that 10,000 moves of a large subtree end early.
const WORK_MAX: usize = 8 << 20;
/// Elements of a list that cost as much to shift as one value costs to visit.
const SHIFTED_PER_VISIT: usize = 8;

/// What the operations of a patch may still cost.
struct Budget {
    work: usize,
    copied: usize,
}

impl Budget {
    fn charge(&mut self, values: usize) -> Result<(), PatchError> {
        self.work = self.work.checked_sub(values).ok_or_else(|| {
            PatchError::TooLarge(format!(
                "The operations of a JSON patch may move {WORK_MAX} values in total: split the patch"
            ))
        })?;
        Ok(())
    }

    /// Charges the shift of the elements of a list from `at` on.
    fn charge_shift(&mut self, length: usize, at: usize) -> Result<(), PatchError> {
        self.charge(length.saturating_sub(at) / SHIFTED_PER_VISIT)
    }

    /// The depth of a value. Charges every value in it.
    fn depth(&mut self, value: &Value) -> Result<usize, PatchError> {
        self.charge(1)?;
        let mut deepest = None;
        match value {
            Value::Array(items) => {
                deepest = Some(0);
                for item in items {
                    deepest = deepest.max(Some(self.depth(item)?));
                }
            }
            Value::Object(map) => {
                deepest = Some(0);
                for item in map.values() {
                    deepest = deepest.max(Some(self.depth(item)?));
                }
            }
            _ => {}
        }
        Ok(deepest.map_or(0, |deepest| deepest + 1))
    }

    /// Charges the bytes of a value before it is copied.
    fn charge_copy(&mut self, value: &Value) -> Result<(), PatchError> {
        let size = match value {
            Value::String(text) => text.len() + 2,
            Value::Array(items) => 2 + items.len(),
            Value::Object(map) => 2 + map.keys().map(|key| key.len() + 4).sum::<usize>(),
            _ => 5,
        };
        self.copied += size;
        if self.copied > COPIED_MAX {
            return Err(PatchError::Unfit(format!(
                "unable to complete the copy, the accumulated size increase of copy exceeds the limit {COPIED_MAX}"
            )));
        }
        match value {
            Value::Array(items) => items.iter().try_for_each(|item| self.charge_copy(item)),
            Value::Object(map) => map.values().try_for_each(|item| self.charge_copy(item)),
            _ => Ok(()),
        }
    }
}

impl From<String> for PatchError {
    fn from(why: String) -> Self {
        Self::Unfit(why)
    }
}

impl From<&str> for PatchError {
    fn from(why: &str) -> Self {
        Self::Unfit(why.to_owned())
    }
}

/// Applies the operations in order. If one fails, the whole patch fails.
pub fn patch(object: &Value, operations: &Value) -> Result<Value, PatchError> {
    let Value::Array(operations) = operations else {
        let kind = go_format::kind(operations);
        return Err(PatchError::Malformed(format!(
            "error decoding patch: json: cannot unmarshal {kind} into Go value of type []handlers.jsonPatchOp"
        )));
    };
    if let Some(odd) = operations.iter().find(|op| !op.is_object()) {
        let kind = go_format::kind(odd);
        return Err(PatchError::Malformed(format!(
            "error decoding patch: json: cannot unmarshal {kind} into Go value of type handlers.jsonPatchOp"
        )));
    }
    if operations.len() > OPERATIONS_MAX {
        let count = operations.len();
        return Err(PatchError::TooLarge(format!(
            "The allowed maximum operations in a JSON patch is {OPERATIONS_MAX}, got {count}"
        )));
    }
    let mut out = object.clone();
    let mut budget = Budget { work: WORK_MAX, copied: 0 };
    for operation in operations {
        apply_operation(&mut out, operation, &mut budget)?;
    }
    Ok(out)
}

/// Messages for `fieldValidation` about unknown keys of operations.
pub fn unknown_fields(operations: &Value) -> Vec<String> {
    let mut unknown = Vec::new();
    for (i, operation) in operations.as_array().into_iter().flatten().enumerate() {
        for key in operation.as_object().into_iter().flatten().map(|(k, _)| k) {
            if !matches!(key.as_str(), "op" | "path" | "from" | "value")
                && unknown.len() < crate::error::ERRORS_MAX
            {
                unknown.push(format!("json patch unknown field \"[{i}].{key}\""));
            }
        }
    }
    unknown
}

fn apply_operation(object: &mut Value, operation: &Value, budget: &mut Budget) -> Result<(), PatchError> {
    let text = |key: &str| operation.get(key).and_then(Value::as_str);
    let path = text("path").ok_or("operation missing path field")?;
    let value = || operation.get("value").cloned().unwrap_or_default();
    match text("op").unwrap_or_default() {
        "add" => add(object, path, value(), budget),
        "remove" => remove(object, path, budget).map(drop),
        "replace" => replace(object, path, value(), budget),
        "test" => Ok(test(object, path, &value())?),
        "move" => {
            let from = text("from").ok_or("operation missing from field")?;
            let taken = remove(object, from, budget)?;
            add(object, path, taken, budget)
        }
        "copy" => {
            let from = text("from").ok_or("operation missing from field")?;
            let tokens = tokens(from)?;
            let (parent, key) = locate(object, &tokens)?;
            let source = get(parent, key)?.unwrap_or(&Value::Null);
            budget.charge_copy(source)?;
            let value = source.clone();
            add(object, path, value, budget)
        }
        other => Err(format!("unexpected kind of operation: {other}").into()),
    }
}

/// The reference tokens of a path. Text before the first slash is ignored.
fn tokens(path: &str) -> Result<Vec<String>, String> {
    let mut parts = path.split('/');
    parts.next();
    let tokens: Vec<String> = parts.map(|p| p.replace("~1", "/").replace("~0", "~")).collect();
    match tokens.len() {
        0 => Err(format!("path {path:?} has no tokens")),
        n if n > DEPTH_MAX => Err(format!("path is deeper than {DEPTH_MAX}")),
        _ => Ok(tokens),
    }
}

fn locate<'v, 's>(object: &'v mut Value, tokens: &'s [String]) -> Result<(&'v mut Value, &'s str), String> {
    let (key, parents) = tokens.split_last().ok_or("path has no tokens")?;
    let mut at = object;
    for token in parents {
        let next = match at {
            Value::Object(map) => map.get_mut(token),
            Value::Array(items) => index(token, items.len()).ok().and_then(|i| items.get_mut(i)),
            _ => None,
        };
        at = next.ok_or_else(|| format!("doc is missing path: {token:?}"))?;
    }
    match at {
        Value::Object(_) | Value::Array(_) => Ok((at, key)),
        _ => Err(format!("the parent of {key:?} is neither a map nor a list")),
    }
}

/// An index into a list of `length`; negative indexes count from the end.
fn index(token: &str, length: usize) -> Result<usize, String> {
    let wanted: i64 = token.parse().map_err(|_| format!("value {token:?} is not a list index"))?;
    let at = if wanted < 0 { wanted + length as i64 } else { wanted };
    usize::try_from(at).map_err(|_| format!("unable to access invalid index: {wanted}"))
}

fn get<'v>(parent: &'v Value, key: &str) -> Result<Option<&'v Value>, String> {
    match parent {
        Value::Object(map) => Ok(map.get(key)),
        Value::Array(items) => {
            let at = index(key, items.len())?;
            items.get(at).map(Some).ok_or_else(|| format!("unable to access invalid index: {at}"))
        }
        _ => Ok(None),
    }
}

fn check_depth(tokens: &[String], value: &Value, budget: &mut Budget) -> Result<(), PatchError> {
    // Moves could otherwise increase the nesting without increasing the size.
    if tokens.len() + budget.depth(value)? > DEPTH_MAX {
        return Err(format!("the result would be nested deeper than {DEPTH_MAX}").into());
    }
    Ok(())
}

fn add(object: &mut Value, path: &str, value: Value, budget: &mut Budget) -> Result<(), PatchError> {
    let tokens = tokens(path)?;
    check_depth(&tokens, &value, budget)?;
    let (parent, key) = locate(object, &tokens)?;
    match parent {
        Value::Object(map) => drop(map.insert(key.to_owned(), value)),
        Value::Array(items) if key == "-" => items.push(value),
        Value::Array(items) => {
            // The index after the last element is valid: it appends.
            let at = index(key, items.len() + 1)?;
            if at > items.len() {
                return Err(format!("unable to access invalid index: {at}").into());
            }
            budget.charge_shift(items.len(), at)?;
            items.insert(at, value);
        }
        _ => {}
    }
    Ok(())
}

fn remove(object: &mut Value, path: &str, budget: &mut Budget) -> Result<Value, PatchError> {
    let tokens = tokens(path)?;
    let (parent, key) = locate(object, &tokens)?;
    match parent {
        Value::Object(map) => {
            map.remove(key).ok_or_else(|| format!("unable to remove nonexistent key: {key}").into())
        }
        Value::Array(items) => {
            let at = index(key, items.len())?;
            if at >= items.len() {
                return Err(format!("unable to access invalid index: {at}").into());
            }
            budget.charge_shift(items.len(), at)?;
            Ok(items.remove(at))
        }
        _ => Err(format!("unable to remove nonexistent key: {key}").into()),
    }
}

fn replace(object: &mut Value, path: &str, value: Value, budget: &mut Budget) -> Result<(), PatchError> {
    let tokens = tokens(path)?;
    check_depth(&tokens, &value, budget)?;
    let (parent, key) = locate(object, &tokens)?;
    match parent {
        Value::Object(map) => drop(map.insert(key.to_owned(), value)),
        Value::Array(items) => {
            let at = index(key, items.len())?;
            *items.get_mut(at).ok_or_else(|| format!("unable to access invalid index: {at}"))? = value;
        }
        _ => {}
    }
    Ok(())
}

fn test(object: &mut Value, path: &str, wanted: &Value) -> Result<(), String> {
    let tokens = tokens(path)?;
    let (parent, key) = locate(object, &tokens)?;
    let actual = get(parent, key)?.unwrap_or(&Value::Null);
    if actual == wanted { Ok(()) } else { Err(format!("testing value {path} failed")) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn object() -> Value {
        json!({"data": {"k": "v"}, "list": ["a", "b"]})
    }

    #[test]
    fn operations_apply_as_in_kubernetes() {
        let cases = [
            (
                json!([{"op": "add", "path": "/data/n", "value": "x"}]),
                json!({"data": {"k": "v", "n": "x"}, "list": ["a", "b"]}),
            ),
            (
                json!([{"op": "add", "path": "/data/n"}]),
                json!({"data": {"k": "v", "n": null}, "list": ["a", "b"]}),
            ),
            (
                json!([{"op": "replace", "path": "/data/n", "value": "x"}]),
                json!({"data": {"k": "v", "n": "x"}, "list": ["a", "b"]}),
            ),
            (
                json!([{"op": "copy", "from": "/data/none", "path": "/data/n"}]),
                json!({"data": {"k": "v", "n": null}, "list": ["a", "b"]}),
            ),
            (
                json!([{"op": "move", "from": "/data/k", "path": "/data/n"}]),
                json!({"data": {"n": "v"}, "list": ["a", "b"]}),
            ),
            (
                json!([{"op": "test", "path": "/data/none", "value": null}, {"op": "remove", "path": "/data"}]),
                json!({"list": ["a", "b"]}),
            ),
            (
                json!([{"op": "add", "path": "/list/-", "value": "c"}]),
                json!({"data": {"k": "v"}, "list": ["a", "b", "c"]}),
            ),
            (
                json!([{"op": "add", "path": "/list/0", "value": "c"}]),
                json!({"data": {"k": "v"}, "list": ["c", "a", "b"]}),
            ),
            (
                json!([{"op": "add", "path": "/list/-1", "value": "c"}]),
                json!({"data": {"k": "v"}, "list": ["a", "b", "c"]}),
            ),
            (json!([{"op": "remove", "path": "/list/-1"}]), json!({"data": {"k": "v"}, "list": ["a"]})),
            (
                json!([{"op": "add", "path": "data/x", "value": 1}]),
                json!({"data": {"k": "v"}, "list": ["a", "b"], "x": 1}),
            ),
            (
                json!([{"op": "add", "path": "/data/a~1b~0c", "value": 1}]),
                json!({"data": {"k": "v", "a/b~c": 1}, "list": ["a", "b"]}),
            ),
        ];
        for (operations, result) in cases {
            assert_eq!(patch(&object(), &operations).unwrap(), result, "{operations}");
        }
    }

    #[test]
    fn operations_that_do_not_apply_fail() {
        let cases = [
            json!([{"op": "bogus", "path": "/a"}]),
            json!([{"op": "add"}]),
            json!([{"op": "add", "path": "", "value": {}}]),
            json!([{"op": "add", "path": "/none/x", "value": 1}]),
            json!([{"op": "add", "path": "/data/k/x", "value": 1}]),
            json!([{"op": "replace", "path": "/none/x", "value": 1}]),
            json!([{"op": "remove", "path": "/data/none"}]),
            json!([{"op": "remove", "path": "/list/7"}]),
            json!([{"op": "remove", "path": "/list/x"}]),
            json!([{"op": "add", "path": "/list/5", "value": 1}]),
            json!([{"op": "replace", "path": "/list/9", "value": 1}]),
            json!([{"op": "test", "path": "/data/k", "value": "w"}]),
            json!([{"op": "move", "from": "/data/none", "path": "/data/x"}]),
        ];
        for operations in cases {
            let error = patch(&object(), &operations).unwrap_err();
            assert_eq!(
                (error.code(), error.message().as_str()),
                (422, "the server rejected our request due to an error in our request"),
                "{operations}"
            );
        }
    }

    #[test]
    fn malformed_patches_are_rejected() {
        assert_eq!(
            patch(&object(), &json!({})).unwrap_err().message(),
            "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp"
        );
        assert_eq!(patch(&object(), &json!([1])).unwrap_err().code(), 400);
        let many = vec![json!({"op": "test", "path": "/x", "value": null}); OPERATIONS_MAX + 1];
        assert_eq!(
            patch(&object(), &Value::from(many)).unwrap_err().to_string(),
            "The allowed maximum operations in a JSON patch is 10000, got 10001"
        );
        assert_eq!(
            unknown_fields(&json!([{"op": "add", "extra": 1}])),
            ["json patch unknown field \"[0].extra\""]
        );
    }

    #[test]
    fn growth_and_nesting_are_bounded() {
        let double = vec![json!({"op": "copy", "from": "/data", "path": "/data/n"}); 200];
        assert_eq!(patch(&object(), &Value::from(double)).unwrap_err().code(), 422);
        let nest: Vec<Value> = (0..5000)
            .flat_map(|_| {
                [
                    json!({"op": "move", "from": "/data", "path": "/x"}),
                    json!({"op": "add", "path": "/data", "value": {}}),
                    json!({"op": "move", "from": "/x", "path": "/data/x"}),
                ]
            })
            .collect();
        assert_eq!(patch(&object(), &Value::from(nest[..9999].to_vec())).unwrap_err().code(), 422);
    }

    #[test]
    fn moves_of_large_values_and_shifts_of_long_lists_end_at_the_budget() {
        let large = json!({"data": {"a": vec![0; 100_000]}, "list": vec![0; 400_000]});
        let swap = |from: &str, to: &str| {
            [json!({"op": "move", "from": from, "path": to}), json!({"op": "move", "from": to, "path": from})]
        };
        let attacks = [
            (0..5000).flat_map(|_| swap("/data/a", "/data/b")).collect::<Vec<_>>(),
            (0..5000).flat_map(|_| swap("/list/0", "/data/b")).collect(),
        ];
        for attack in attacks {
            let error = patch(&large, &Value::from(attack[..50].to_vec())).map(drop);
            assert_eq!(error, Ok(()), "an ordinary patch of a large object applies");
            assert_eq!(patch(&large, &Value::from(attack)).unwrap_err().code(), 413);
        }
        let small: Vec<Value> = (0..5000).flat_map(|_| swap("/data/a", "/data/b")).collect();
        patch(&json!({"data": {"a": "x"}}), &Value::from(small)).expect("10,000 moves of a small value");
    }

    #[test]
    fn a_copy_is_charged_before_it_is_made() {
        let mut budget = Budget { work: WORK_MAX, copied: 0 };
        let mut object = json!({"data": {"k": "x".repeat(2 << 20)}});
        let copy = |to: &str| json!({"op": "copy", "from": "/data/k", "path": to});
        apply_operation(&mut object, &copy("/data/n"), &mut budget).unwrap();
        apply_operation(&mut object, &copy("/data/o"), &mut budget).unwrap_err();
        assert!(object["data"].get("o").is_none());
    }

    proptest! {
        #[test]
        fn any_operations_are_applied_or_rejected(ops in prop::collection::vec(("add|remove|replace|test|move|copy", "(/(data|list|k|-|0|1|-1)){0,3}", "(/(data|list|k|-|0|1|-1)){0,3}"), 0..12)) {
            let operations: Vec<Value> = ops.into_iter().map(|(op, path, from)| json!({"op": op, "path": path, "from": from, "value": {"k": [1]}})).collect();
            if let Ok(result) = patch(&object(), &Value::from(operations)) {
                prop_assert!(crate::decode::shallow(&result));
            }
        }
    }
}
