//! Valid and invalid values, with the messages of kube-apiserver.

use serde_json::json;

use super::*;

fn errors(schema: Value, value: Value) -> Vec<String> {
    create(&Node::parse(&schema).unwrap(), &value, "").iter().map(ToString::to_string).collect()
}

fn spec(schema: Value) -> Value {
    json!({"type": "object", "properties": {"spec": schema}})
}

#[test]
fn errors_have_the_messages_of_kubernetes() {
    let cases = [
        (
            json!({"type": "string"}),
            json!(5),
            "spec: Invalid value: \"integer\": spec in body must be of type string: \"integer\"",
        ),
        (
            json!({"type": "integer"}),
            json!("5"),
            "spec: Invalid value: \"string\": spec in body must be of type integer: \"string\"",
        ),
        (
            json!({"type": "integer"}),
            json!(1.5),
            "spec: Invalid value: \"number\": spec in body must be of type integer: \"number\"",
        ),
        (
            json!({"type": "string"}),
            Value::Null,
            "spec: Invalid value: \"null\": spec in body must be of type string: \"null\"",
        ),
        (
            json!({"x-kubernetes-int-or-string": true}),
            json!(true),
            "spec: Invalid value: \"boolean\": spec in body must be of type integer,string: \"boolean\"",
        ),
        (
            json!({"type": "string", "enum": ["a", "b"]}),
            json!("c"),
            "spec: Unsupported value: \"c\": supported values: \"a\", \"b\"",
        ),
        (
            json!({"type": "integer", "minimum": 1}),
            json!(0),
            "spec: Invalid value: 0: spec in body should be greater than or equal to 1",
        ),
        (
            json!({"type": "integer", "maximum": 3, "exclusiveMaximum": true}),
            json!(3),
            "spec: Invalid value: 3: spec in body should be less than 3",
        ),
        (
            json!({"type": "number", "minimum": 0.5}),
            json!(0.25),
            "spec: Invalid value: 0.25: spec in body should be greater than or equal to 0.5",
        ),
        (
            json!({"type": "integer", "multipleOf": 5}),
            json!(7),
            "spec: Invalid value: 7: spec in body should be a multiple of 5",
        ),
        (
            json!({"type": "string", "maxLength": 2}),
            json!("abc"),
            "spec: Too long: may not be more than 2 bytes",
        ),
        (
            json!({"type": "string", "minLength": 2}),
            json!("é"),
            "spec: Invalid value: \"é\": spec in body should be at least 2 chars long",
        ),
        (
            json!({"type": "string", "pattern": "^a$"}),
            json!("b"),
            "spec: Invalid value: \"b\": spec in body should match '^a$'",
        ),
        (
            json!({"type": "string", "format": "date-time"}),
            json!("x"),
            "spec: Invalid value: \"x\": spec in body must be of type date-time: \"x\"",
        ),
        (
            json!({"type": "string", "format": "date"}),
            json!(5),
            "spec: Invalid value: \"int64\": spec in body must be of type date: \"int64\"",
        ),
        (
            json!({"type": "array", "items": {"type": "string"}, "minItems": 1}),
            json!([]),
            "spec: Invalid value: 0: spec in body should have at least 1 items",
        ),
        (
            json!({"type": "array", "items": {"type": "string"}, "maxItems": 1}),
            json!(["a", "b"]),
            "spec: Too many: 2: must have at most 1 item",
        ),
        (
            json!({"type": "array", "items": {"type": "string"}}),
            json!(["a", 1]),
            "spec[1]: Invalid value: \"integer\": spec[1] in body must be of type string: \"integer\"",
        ),
        (json!({"type": "object", "required": ["x"]}), json!({}), "spec.x: Required value"),
        (
            json!({"type": "object", "minProperties": 1}),
            json!({}),
            "spec: Invalid value: 0: spec in body should have at least 1 properties",
        ),
        (
            json!({"type": "object", "maxProperties": 1}),
            json!({"a": 1, "b": 2}),
            "spec: Too many: 2: must have at most 1 item",
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "integer"}}),
            json!({"a": "b"}),
            "spec.a: Invalid value: \"string\": spec.a in body must be of type integer: \"string\"",
        ),
    ];
    for (schema, value, words) in cases {
        assert_eq!(errors(spec(schema.clone()), json!({"spec": value})), [words], "{schema}");
    }
}

#[test]
fn valid_values_pass() {
    let cases = [
        (json!({"type": "integer", "format": "int32"}), json!(5_000_000_000_i64)),
        (json!({"type": "integer"}), json!(5.0)),
        (json!({"type": "number"}), json!(5)),
        (json!({"type": "number", "multipleOf": 0.1}), json!(0.3)),
        (json!({"type": "string", "nullable": true}), Value::Null),
        (json!({"x-kubernetes-int-or-string": true}), json!("80%")),
        (json!({"type": "string", "maxLength": 2}), json!("éé")),
        (json!({"type": "integer", "enum": [1, 2]}), json!(2)),
        (json!({"x-kubernetes-preserve-unknown-fields": true}), json!([{"a": null}])),
        (json!({"type": "object"}), json!({"unknown": 1})),
    ];
    for (schema, value) in cases {
        assert_eq!(errors(spec(schema.clone()), json!({"spec": value})), Vec::<String>::new(), "{schema}");
    }
}

#[test]
fn failed_branches_report_the_object_and_the_branch_with_the_most_passed_checks() {
    let one = json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]});
    assert_eq!(
        errors(spec(one.clone()), json!({"spec": {}})),
        [
            "<nil>: Invalid value: \"\": \"spec\" must validate one and only one schema (oneOf). Found none valid",
            "spec.a: Required value"
        ]
    );
    assert_eq!(
        errors(spec(one.clone()), json!({"spec": {"a": "", "b": ""}})),
        [
            "<nil>: Invalid value: \"\": \"spec\" must validate one and only one schema (oneOf). Found 2 valid alternatives"
        ]
    );
    assert!(errors(spec(one), json!({"spec": {"a": ""}})).is_empty());
    let any = json!({"type": "integer", "anyOf": [{"minimum": 10}, {"maximum": 1}]});
    assert_eq!(
        errors(spec(any), json!({"spec": 5})),
        [
            "<nil>: Invalid value: \"\": \"spec\" must validate at least one schema (anyOf)",
            "spec: Invalid value: 5: spec in body should be greater than or equal to 10"
        ]
    );
    let all = json!({"type": "integer", "allOf": [{"minimum": 10}]});
    assert_eq!(
        errors(spec(all), json!({"spec": 5})),
        [
            "spec: Invalid value: 5: spec in body should be greater than or equal to 10",
            "<nil>: Invalid value: \"\": \"spec\" must validate all the schemas (allOf). None validated"
        ]
    );
    let not = json!({"type": "integer", "not": {"enum": [5]}});
    assert_eq!(
        errors(spec(not), json!({"spec": 5})),
        ["<nil>: Invalid value: \"\": \"spec\" must not validate the schema (not)"]
    );
}

#[test]
fn a_status_is_validated_on_its_own() {
    let node = Node::parse(&json!({"type": "object", "properties": {"phase": {"type": "string"}}})).unwrap();
    let messages: Vec<String> =
        create(&node, &json!({"phase": 1}), "status").iter().map(ToString::to_string).collect();
    assert_eq!(
        messages,
        ["status.phase: Invalid value: \"integer\": phase in body must be of type string: \"integer\""]
    );
}

#[test]
fn errors_of_unchanged_values_are_ignored() {
    let node = Node::parse(&spec(json!({"type": "object", "properties": {
        "a": {"type": "string", "maxLength": 1},
        "b": {"type": "string"},
        "list": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                 "items": {"type": "object", "properties": {"name": {"type": "string"}, "size": {"type": "integer", "maximum": 3}}}},
        "plain": {"type": "array", "items": {"type": "integer", "maximum": 3}},
    }}))).unwrap();
    let messages = |new: Value, old: Value| -> Vec<String> {
        update(&node, &json!({"spec": new}), &json!({"spec": old}), "")
            .iter()
            .map(|e| e.field.clone())
            .collect()
    };
    assert!(messages(json!({"a": "long", "b": "new"}), json!({"a": "long", "b": "old"})).is_empty());
    assert_eq!(messages(json!({"a": "longer"}), json!({"a": "long"})), ["spec.a"]);
    let old = json!({"list": [{"name": "x", "size": 9}, {"name": "y", "size": 1}]});
    assert!(
        messages(json!({"list": [{"name": "y", "size": 2}, {"name": "x", "size": 9}]}), old.clone())
            .is_empty()
    );
    assert_eq!(
        messages(json!({"list": [{"name": "y", "size": 8}, {"name": "x", "size": 9}]}), old),
        ["spec.list[0].size"]
    );
    assert!(messages(json!({"plain": [9], "b": "new"}), json!({"plain": [9]})).is_empty());
    assert_eq!(messages(json!({"plain": [9, 1]}), json!({"plain": [9]})), ["spec.plain[0]"]);
}

#[test]
fn the_number_of_errors_is_bounded() {
    let many: Vec<Value> = (0..100_000).map(Value::from).collect();
    let messages = errors(spec(json!({"type": "array", "items": {"type": "string"}})), json!({"spec": many}));
    assert_eq!(messages.len(), ERRORS_MAX);
}
