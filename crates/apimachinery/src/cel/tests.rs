//! Tests of CEL rules.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn with_rule(properties: Value, rule: &str) -> Node {
    Node::parse(&json!({"type": "object", "properties": {"spec": {"type": "object", "properties": properties, "x-kubernetes-validations": [{"rule": rule}]}}})).unwrap()
}

fn messages(node: &Node, new: Value, old: Option<Value>) -> Vec<String> {
    validate(node, &new, old.as_ref()).iter().map(ToString::to_string).collect()
}

#[test]
fn rules_evaluate_to_true_or_false() {
    let properties = json!({
        "n": {"type": "integer"}, "m": {"type": "integer"}, "d": {"type": "number"}, "s": {"type": "string"}, "b": {"type": "boolean"},
        "list": {"type": "array", "items": {"type": "string"}}, "ints": {"type": "array", "items": {"type": "integer"}},
        "objects": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}, "v": {"type": "integer"}}}},
        "map": {"type": "object", "additionalProperties": {"type": "string"}}, "when": {"type": "string", "format": "date-time"}, "for": {"type": "string", "format": "duration"},
        "port": {"x-kubernetes-int-or-string": true}, "namespace": {"type": "string"}, "a-b": {"type": "string"},
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}, "other": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
    });
    let object = json!({"n": 3, "m": 5, "d": 1.5, "s": "hello", "b": true, "list": ["a", "b"], "ints": [1, 2, 3], "objects": [{"name": "x", "v": 1}, {"name": "y", "v": 2}],
        "map": {"k": "v"}, "when": "2024-01-01T00:00:00Z", "for": "1h", "port": "80%", "namespace": "ns", "a-b": "dash", "set": ["p", "q"], "other": ["q", "p"]});
    let cases = [
        ("self.n < self.m", true),
        ("self.n + 2 == self.m && self.n * 2 > self.m", true),
        ("self.d == 1.5", true),
        ("self.s.startsWith('hel') && self.s.endsWith('lo') && self.s.contains('ell')", true),
        ("self.s.matches('^h.*o$')", true),
        ("size(self.s) == 5 && self.list.size() == 2", true),
        ("has(self.s) && !has(self.map.none)", true),
        ("self.list.all(x, size(x) == 1)", true),
        ("self.list.exists(x, x == 'b')", true),
        ("self.list.exists_one(x, x == 'b')", true),
        ("self.ints.map(x, x * 2) == [2, 4, 6]", true),
        ("self.ints.filter(x, x > 1) == [2, 3]", true),
        ("self.ints.sum() == 6", true),
        ("self.objects.all(o, o.v > 0) && self.objects[0].name == 'x'", true),
        ("self.objects.map(o, o.name).join(',') == 'x,y'", true),
        ("'k' in self.map && self.map['k'] == 'v' && self.map.all(k, k == 'k')", true),
        ("self.when < timestamp('2025-01-01T00:00:00Z')", true),
        ("self.for == duration('60m')", true),
        ("type(self.port) == string", true),
        ("type(self.port) == string ? self.port == '80%' : self.port < 100", true),
        ("self.__namespace__ == 'ns' && self.a__dash__b == 'dash'", true),
        ("self.set == self.other", true),
        ("self.s.lowerAscii() == 'hello' && self.s.split('l').size() == 3", true),
        ("quantity('1Gi').isGreaterThan(quantity('1G'))", true),
        ("isIP('10.0.0.1') && ip('10.0.0.1').family() == 4", true),
        ("url('https://a.b/c').getHost() == 'a.b'", true),
        ("sets.contains(self.list, ['a'])", true),
        ("'%s-%d'.format([self.s, self.n]) == 'hello-3'", true),
        ("self.?s.orValue('') == 'hello'", true),
        ("optional.of(1).orValue(2) == 1 && optional.none().orValue(2) == 2", true),
        ("self.b ? self.n == 3 : false", true),
        ("self.list.all(i, v, i < 2 && v != '') && self.map.exists(k, v, k == 'k' && v == 'v')", true),
        (
            "self.list.transformList(i, v, v + 'x') == ['ax', 'bx'] && self.map.transformMap(k, v, v + k)['k'] == 'vk'",
            true,
        ),
        ("1 / 0 == 1 || true", true),
        ("self.n > self.m", false),
        ("self.list.all(x, x == 'a')", false),
    ];
    for (rule, holds) in cases {
        let errors = messages(&with_rule(properties.clone(), rule), json!({"spec": object}), None);
        let expected: Vec<String> =
            if holds { Vec::new() } else { vec![format!("spec: Invalid value: failed rule: {rule}")] };
        assert_eq!(errors, expected, "{rule}");
    }
}

#[test]
fn evaluation_errors_are_reported() {
    let properties = json!({"n": {"type": "integer"}, "s": {"type": "string"}, "map": {"type": "object", "additionalProperties": {"type": "string"}}});
    for (rule, words) in [
        ("self.n == 1", "spec: Invalid value: \"object\": no such key: n evaluating rule: self.n == 1"),
        (
            "self.map['x'] == 'y'",
            "spec: Invalid value: \"object\": no such key: x evaluating rule: self.map['x'] == 'y'",
        ),
        ("1 / 0 == 1", "spec: Invalid value: \"object\": division by zero evaluating rule: 1 / 0 == 1"),
        (
            "dyn(self.s) > 1",
            "spec: Invalid value: \"object\": 'no such overload': call arguments did not match a supported operator, function or macro signature for rule: dyn(self.s) > 1",
        ),
    ] {
        assert_eq!(
            messages(&with_rule(properties.clone(), rule), json!({"spec": {"s": "x", "map": {}}}), None),
            [words]
        );
    }
}

#[test]
fn errors_use_message_reason_and_path_of_the_rule() {
    let node = Node::parse(&json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"n": {"type": "integer"}}, "x-kubernetes-validations": [
        {"rule": "self.n > 5", "message": "too small", "fieldPath": ".n", "reason": "FieldValueForbidden"},
        {"rule": "self.n > 5", "messageExpression": "'got ' + string(self.n)"},
        {"rule": "self.n > 5", "message": "fallback", "messageExpression": "''"}]}}}))
    .unwrap();
    assert_eq!(
        messages(&node, json!({"spec": {"n": 1}}), None),
        ["spec.n: Forbidden: too small", "spec: Invalid value: got 1", "spec: Invalid value: fallback"]
    );
    let scalar = Node::parse(&json!({"type": "object", "properties": {"n": {"type": "integer", "x-kubernetes-validations": [{"rule": "self > 5"}]}}})).unwrap();
    assert_eq!(messages(&scalar, json!({"n": 1}), None), ["n: Invalid value: 1: failed rule: self > 5"]);
}

#[test]
fn transition_rules_compare_with_the_old_value() {
    let properties = json!({"n": {"type": "integer"}});
    let node = with_rule(properties.clone(), "self.n >= oldSelf.n");
    assert!(
        messages(&node, json!({"spec": {"n": 1}}), None).is_empty(),
        "nothing to compare with on creation"
    );
    assert!(messages(&node, json!({"spec": {"n": 2}}), Some(json!({"spec": {"n": 1}}))).is_empty());
    assert_eq!(
        messages(&node, json!({"spec": {"n": 1}}), Some(json!({"spec": {"n": 2}}))),
        ["spec: Invalid value: failed rule: self.n >= oldSelf.n"]
    );
    let optional = Node::parse(&json!({"type": "object", "properties": {"n": {"type": "integer", "x-kubernetes-validations": [
        {"rule": "oldSelf.hasValue() || self == 1", "optionalOldSelf": true, "message": "must start at 1"}]}}})).unwrap();
    assert_eq!(messages(&optional, json!({"n": 2}), None), ["n: Invalid value: 2: must start at 1"]);
    assert!(messages(&optional, json!({"n": 2}), Some(json!({"n": 1}))).is_empty());
    let list = Node::parse(&json!({"type": "object", "properties": {"l": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": {"type": "object", "properties": {
        "k": {"type": "string"}, "v": {"type": "integer", "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "fixed"}]}}}}}})).unwrap();
    let old = json!({"l": [{"k": "a", "v": 1}, {"k": "b", "v": 2}]});
    assert!(
        messages(&list, json!({"l": [{"k": "b", "v": 2}, {"k": "c", "v": 9}]}), Some(old.clone())).is_empty()
    );
    assert_eq!(
        messages(&list, json!({"l": [{"k": "b", "v": 3}]}), Some(old)),
        ["l[0].v: Invalid value: 3: fixed"]
    );
}

#[test]
fn errors_of_unchanged_values_are_ignored() {
    let node = Node::parse(&json!({"type": "object", "properties": {
        "a": {"type": "integer", "x-kubernetes-validations": [{"rule": "self > 5"}]}, "b": {"type": "integer"}}}))
    .unwrap();
    assert!(messages(&node, json!({"a": 1, "b": 2}), Some(json!({"a": 1, "b": 1}))).is_empty());
    assert_eq!(messages(&node, json!({"a": 2}), Some(json!({"a": 1}))).len(), 1);
}

#[test]
fn a_rule_that_costs_too_much_is_stopped() {
    let node = with_rule(
        json!({"list": {"type": "array", "items": {"type": "integer"}}}),
        "self.list.all(x, self.list.all(y, self.list.all(z, x + y + z >= 0)))",
    );
    let many: Vec<i64> = (0..2000).collect();
    let started = std::time::Instant::now();
    let errors = messages(&node, json!({"spec": {"list": many}}), None);
    assert_eq!(errors.len(), 1);
    assert!(errors[0].contains("'operation cancelled: actual cost limit exceeded': no further validation rules will be run due to call cost exceeds limit for rule"), "{errors:?}");
    assert!(started.elapsed().as_secs() < 20);
}

fn rejected(schema: Value) -> Vec<String> {
    check_definition(&Node::parse(&schema).unwrap(), "s").iter().map(ToString::to_string).collect()
}

#[test]
fn a_crd_with_invalid_rules_is_rejected() {
    let schema = |rule: &str| {
        json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "a": {"type": "string"}, "n": {"type": "integer"}, "list": {"type": "array", "maxItems": 5, "items": {"type": "object", "properties": {"x": {"type": "string", "maxLength": 10}}}}},
        "x-kubernetes-validations": [{"rule": rule}]}}})
    };
    for (rule, why) in [
        ("self.b == 'x'", "ERROR: <input>:1:5: undefined field 'b'\n | self.b == 'x'\n | ....^"),
        (
            "foo == 1",
            "ERROR: <input>:1:1: undeclared reference to 'foo' (in container '')\n | foo == 1\n | ^",
        ),
        (
            "self.list.all(i, i.y == '')",
            "ERROR: <input>:1:19: undefined field 'y'\n | self.list.all(i, i.y == '')\n | ..................^",
        ),
        (
            "self.a == 1",
            "ERROR: <input>:1:8: found no matching overload for '_==_' applied to '(string, int)'\n | self.a == 1\n | .......^",
        ),
        (
            "self.n.x == 1",
            "ERROR: <input>:1:7: type 'int' does not support field selection\n | self.n.x == 1\n | ......^",
        ),
        (
            "self.a.bogus()",
            "ERROR: <input>:1:13: undeclared reference to 'bogus' (in container '')\n | self.a.bogus()\n | ............^",
        ),
    ] {
        let messages = rejected(schema(rule));
        assert_eq!(messages.len(), 1, "{rule}: {messages:?}");
        assert!(
            messages[0].starts_with("s.properties[spec].x-kubernetes-validations[0].rule: Invalid value: {"),
            "{messages:?}"
        );
        assert!(messages[0].ends_with(&format!("compilation failed: {why}")), "{rule}: {messages:?}");
    }
    let messages = rejected(schema("self.a"));
    assert!(messages[0].ends_with("cel expression must evaluate to a bool"), "{messages:?}");
    let messages = rejected(schema("self.a =="));
    assert!(
        messages[0]
            .contains("compilation failed: ERROR: <input>:1:10: Syntax error: mismatched input '<EOF>'"),
        "{messages:?}"
    );
    for fine in [
        "self.a == 'x'",
        "self.list.all(i, i.x != '')",
        "!has(self.n) || self.n > 1",
        "self.list.map(i, i.x).filter(x, x == 'a').size() > 0",
        "self.list.exists(i, has(i.x) && i.x.matches('^a'))",
    ] {
        assert!(rejected(schema(fine)).is_empty(), "{fine}: {:?}", rejected(schema(fine)));
    }
}

#[test]
fn a_crd_with_too_expensive_rules_is_rejected() {
    let unbounded = json!({"type": "object", "properties": {"spec": {"type": "array", "items": {"type": "string"}, "x-kubernetes-validations": [{"rule": "self.all(x, self.all(y, x == y))"}]}}});
    let messages = rejected(unbounded);
    assert_eq!(
        messages[0],
        "s.properties[spec].x-kubernetes-validations[0].rule: Forbidden: estimated rule cost exceeds budget by factor of more than 100x (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
    );
    assert_eq!(
        messages[1],
        "s.properties[spec].x-kubernetes-validations[0].rule: Forbidden: contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema"
    );
    assert!(messages[2].starts_with("s: Forbidden: x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema exceeds budget by factor of more than 100x"));
    let bounded = json!({"type": "object", "properties": {"spec": {"type": "array", "maxItems": 10, "items": {"type": "string", "maxLength": 10}, "x-kubernetes-validations": [{"rule": "self.all(x, self.all(y, x == y))"}]}}});
    assert!(rejected(bounded).is_empty());
}

#[test]
fn old_self_requires_a_correlatable_value() {
    let schema = json!({"type": "object", "properties": {"l": {"type": "array", "maxItems": 3, "items": {"type": "integer", "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}}}});
    assert_eq!(
        rejected(schema),
        [
            "s.properties[l].items.x-kubernetes-validations[0].rule: Invalid value: \"self == oldSelf\": oldSelf cannot be used on the uncorrelatable portion of the schema within s.properties[l]"
        ]
    );
    let pointless = json!({"type": "object", "properties": {"n": {"type": "integer", "x-kubernetes-validations": [{"rule": "self > 1", "optionalOldSelf": true}]}}});
    assert_eq!(
        rejected(pointless),
        [
            "s.properties[n].x-kubernetes-validations[0].optionalOldSelf: Invalid value: true: may not be set if oldSelf is not used in rule"
        ]
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_expression_is_evaluated_or_rejected(rule in "[a-z0-9.()\\[\\]!=<>&|?:,' +*/%{}\"-]{0,40}") {
        let node = with_rule(json!({"a": {"type": "string"}}), &rule);
        let _ = messages(&node, json!({"spec": {"a": "x"}}), None);
        let _ = check_definition(&node, "s");
    }

    #[test]
    fn expressions_of_valid_tokens_are_evaluated_or_rejected(parts in prop::collection::vec("self|oldSelf|\\.a|\\.list|\\[0\\]|==|\\+|&&|1|'x'|true|null|size\\(|\\)|has\\(|\\.all\\(x, |x|!|\\?|:|in|\\.map\\(x, ", 1..12)) {
        let rule = parts.concat();
        let node = with_rule(json!({"a": {"type": "string"}, "list": {"type": "array", "items": {"type": "integer"}}}), &rule);
        let object = json!({"spec": {"a": "x", "list": [1, 2]}});
        let _ = messages(&node, object.clone(), Some(object));
        let _ = check_definition(&node, "s");
    }
}
