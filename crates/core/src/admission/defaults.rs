//! What a workload gets when it does not say.
//!
//! Only what could not be stored without it: a default that appeared in stored workloads later would change their
//! templates, and with them replace every instance. So volumes without a device name and ports without a protocol stay
//! as they are. The input is any JSON: this runs before the schema is looked at.

use serde_json::{Map, Value};

use crate::quota::instance_types;

/// A value put where there was none.
#[derive(Clone, Debug, PartialEq)]
pub struct Filled {
    /// Where, as a JSON pointer.
    pub pointer: String,
    /// What.
    pub value: Value,
}

/// The fields that a workload leaves open and that have a default: the instance type.
pub fn defaults(workload: &Value) -> Vec<Filled> {
    const RUNTIME: &str = "/spec/template/spec/runtime";
    let Some(runtime) = workload.pointer(RUNTIME).and_then(Value::as_object) else { return Vec::new() };
    let Some(usual) = instance_types().next() else { return Vec::new() };
    let put = |pointer: &str, value: Value| vec![Filled { pointer: format!("{RUNTIME}/{pointer}"), value }];
    match runtime.get("resources") {
        None | Some(Value::Null) => {
            put("resources", Value::Object(Map::from_iter([("instanceType".to_owned(), usual.into())])))
        }
        Some(Value::Object(resources)) => match resources.get("instanceType") {
            None | Some(Value::Null) => put("resources/instanceType", usual.into()),
            Some(Value::String(named)) if named.is_empty() => put("resources/instanceType", usual.into()),
            Some(_) => Vec::new(),
        },
        Some(_) => Vec::new(), // the schema will say what is wrong
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(runtime: Value) -> Vec<(String, Value)> {
        let workload = json!({"spec": {"template": {"spec": {"runtime": runtime}}}});
        defaults(&workload).into_iter().map(|default| (default.pointer, default.value)).collect()
    }

    #[test]
    fn an_instance_type_is_filled_in_where_none_is_named() {
        let usual = json!("datumcloud/d1-standard-2");
        let field = "/spec/template/spec/runtime/resources/instanceType".to_owned();
        for runtime in [
            json!({"resources": {}}),
            json!({"resources": {"instanceType": ""}}),
            json!({"resources": {"instanceType": null}}),
        ] {
            assert_eq!(of(runtime), [(field.clone(), usual.clone())]);
        }
        let whole = "/spec/template/spec/runtime/resources".to_owned();
        assert_eq!(of(json!({})), [(whole, json!({"instanceType": usual}))]);
    }

    #[test]
    fn what_is_named_stays() {
        assert_eq!(of(json!({"resources": {"instanceType": "mine"}})), []);
    }

    #[test]
    fn what_makes_no_sense_is_left_to_the_schema() {
        for workload in [json!(null), json!({}), json!({"spec": []}), json!({"spec": {"template": 7}})] {
            assert_eq!(defaults(&workload), []);
        }
        for runtime in [json!(7), json!({"resources": "large"}), json!({"resources": {"instanceType": 7}})] {
            assert_eq!(of(runtime), []);
        }
    }
}
