//! Defaults of Workloads.
//!
//! Only a field that a workload cannot be stored without has a default. A default that stored workloads get
//! later would change their templates and so replace every instance. Therefore volumes without a device name
//! and ports without a protocol stay unchanged. The input is any JSON, because defaults are set before the
//! schema is checked.

use serde_json::{Map, Value};

use crate::quota::instance_types;

/// A missing field and its default value.
#[derive(Clone, Debug, PartialEq)]
pub struct DefaultedField {
    /// JSON pointer to the field.
    pub pointer: String,
    /// The default value.
    pub value: Value,
}

/// The missing fields of a workload that have a default: the instance type.
pub fn defaults(workload: &Value) -> Vec<DefaultedField> {
    const RUNTIME: &str = "/spec/template/spec/runtime";
    let Some(runtime) = workload.pointer(RUNTIME).and_then(Value::as_object) else { return Vec::new() };
    let Some(default_type) = instance_types().next() else { return Vec::new() };
    let set =
        |pointer: &str, value: Value| vec![DefaultedField { pointer: format!("{RUNTIME}/{pointer}"), value }];
    match runtime.get("resources") {
        None | Some(Value::Null) => set(
            "resources",
            Value::Object(Map::from_iter([("instanceType".to_owned(), default_type.into())])),
        ),
        Some(Value::Object(resources)) => match resources.get("instanceType") {
            None | Some(Value::Null) => set("resources/instanceType", default_type.into()),
            Some(Value::String(named)) if named.is_empty() => {
                set("resources/instanceType", default_type.into())
            }
            Some(_) => Vec::new(),
        },
        Some(_) => Vec::new(), // the schema check reports the error
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
    fn a_missing_instance_type_gets_the_default() {
        let default_type = json!("datumcloud/d1-standard-2");
        let field = "/spec/template/spec/runtime/resources/instanceType".to_owned();
        for runtime in [
            json!({"resources": {}}),
            json!({"resources": {"instanceType": ""}}),
            json!({"resources": {"instanceType": null}}),
        ] {
            assert_eq!(of(runtime), [(field.clone(), default_type.clone())]);
        }
        let whole = "/spec/template/spec/runtime/resources".to_owned();
        assert_eq!(of(json!({})), [(whole, json!({"instanceType": default_type}))]);
    }

    #[test]
    fn an_instance_type_in_the_spec_is_kept() {
        assert_eq!(of(json!({"resources": {"instanceType": "mine"}})), []);
    }

    #[test]
    fn malformed_input_gets_no_default() {
        for workload in [json!(null), json!({}), json!({"spec": []}), json!({"spec": {"template": 7}})] {
            assert_eq!(defaults(&workload), []);
        }
        for runtime in [json!(7), json!({"resources": "large"}), json!({"resources": {"instanceType": 7}})] {
            assert_eq!(of(runtime), []);
        }
    }
}
