//! Tests of apply and field ownership.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::schema::Node;

const NOW: &str = "2024-01-01T00:00:00Z";
const LATER: &str = "2024-01-01T00:00:09Z";

fn node() -> Node {
    Node::parse(&json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {
            "a": {"type": "string"},
            "n": {"type": "integer"},
            "list": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": {"type": "object", "properties": {
                "name": {"type": "string"}, "v": {"type": "integer"}, "w": {"type": "integer"}}}},
            "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port", "protocol"], "items": {"type": "object", "properties": {
                "port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"}, "x": {"type": "string"}}}},
            "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "atomic": {"type": "array", "items": {"type": "string"}},
            "m": {"type": "object", "additionalProperties": {"type": "string"}},
            "am": {"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": {"type": "string"}},
            "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "nested": {"type": "object", "properties": {"x": {"type": "string"}, "y": {"type": "string"}}},
        }},
        "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    }}))
    .unwrap()
}

fn types() -> Types {
    Types::from_schema(&node())
}

struct AppliedObject {
    types: Types,
    live: Option<Value>,
    now: &'static str,
}

impl AppliedObject {
    fn new() -> Self {
        Self { types: types(), live: None, now: NOW }
    }

    fn context<'a>(
        &'a self,
        versions: &'a [(&'a str, &'a Types)],
        subresource: &'a str,
        reset: &'a FieldSet,
    ) -> WriteContext<'a> {
        WriteContext { versions, api_version: "t.io/v1", kind: "K", subresource, reset, now: self.now }
    }

    fn config(spec: Value) -> Value {
        json!({"apiVersion": "t.io/v1", "kind": "K", "metadata": {"name": "x"}, "spec": spec})
    }

    fn try_apply(&mut self, manager: &str, spec: Value, force: bool) -> Result<(), ApplyError> {
        let versions = [("t.io/v1", &self.types)];
        let reset = FieldSet::of_fields(&[&["status"]]);
        let context = self.context(&versions, "", &reset);
        let object = apply(&context, self.live.as_ref(), &Self::config(spec), manager, force)?;
        // The server drops nulls on every write.
        let mut object = object;
        crate::schema::prune_and_default::drop_nulls(&node(), &mut object);
        self.live = Some(object);
        Ok(())
    }

    fn apply(&mut self, manager: &str, spec: Value) {
        self.try_apply(manager, spec, false).unwrap();
    }

    fn update(&mut self, manager: &str, change: impl Fn(&mut Value)) {
        let mut new = self.live.clone().unwrap_or_else(|| Self::config(json!({})));
        change(&mut new);
        let versions = [("t.io/v1", &self.types)];
        let reset = FieldSet::of_fields(&[&["status"]]);
        let context = self.context(&versions, "", &reset);
        update(&context, self.live.as_ref(), &mut new, manager);
        self.live = Some(new);
    }

    fn spec(&self) -> Value {
        self.live.as_ref().unwrap()["spec"].clone()
    }

    fn owned(&self, manager: &str) -> Value {
        let entries =
            self.live.as_ref().unwrap()["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
        entries.iter().find(|e| e["manager"] == manager).map_or(Value::Null, |e| e["fieldsV1"].clone())
    }

    fn time(&self, manager: &str) -> Value {
        let entries =
            self.live.as_ref().unwrap()["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
        entries.iter().find(|e| e["manager"] == manager).map_or(Value::Null, |e| e["time"].clone())
    }
}

fn conflicts(result: Result<(), ApplyError>) -> Vec<String> {
    match result {
        Err(ApplyError::Conflicts(conflicts)) => {
            conflicts.iter().map(|c| format!("{} {}", c.message(), c.field)).collect()
        }
        other => panic!("expected conflicts, got {other:?}"),
    }
}

#[test]
fn the_first_apply_owns_its_fields() {
    let mut object = AppliedObject::new();
    object.apply("m1", json!({"a": "1", "list": [{"name": "p", "v": 1}], "set": ["q"], "m": {"k": "v"}, "open": {"z": {"y": 1}}, "atomic": ["x"], "am": {"k": "v"}}));
    assert_eq!(
        object.owned("m1"),
        json!({"f:spec": {"f:a": {}, "f:am": {}, "f:atomic": {}, "f:list": {"k:{\"name\":\"p\"}": {".": {}, "f:name": {}, "f:v": {}}}, "f:m": {"f:k": {}},
                          "f:open": {"f:z": {".": {}, "f:y": {}}}, "f:set": {"v:\"q\"": {}}}})
    );
    assert_eq!(object.time("m1"), NOW);
}

#[test]
fn another_manager_may_share_a_value_but_not_change_it() {
    let mut object = AppliedObject::new();
    object.apply("m1", json!({"a": "1", "list": [{"name": "p", "v": 1}], "m": {"k": "v"}}));
    object.now = LATER;
    object.apply("m2", json!({"a": "1"}));
    assert_eq!(object.owned("m2"), json!({"f:spec": {"f:a": {}}}));
    assert_eq!(object.time("m2"), Value::Null, "an apply that changes nothing sets no time");
    let result = object.try_apply("m2", json!({"a": "2"}), false);
    assert_eq!(
        result.as_ref().unwrap_err().to_string(),
        "Apply failed with 1 conflict: conflict with \"m1\": .spec.a"
    );
    let result =
        object.try_apply("m2", json!({"a": "2", "list": [{"name": "p", "v": 3}], "m": {"k": "w"}}), false);
    assert_eq!(
        result.as_ref().unwrap_err().to_string(),
        "Apply failed with 3 conflicts: conflicts with \"m1\":\n- .spec.a\n- .spec.list[name=\"p\"].v\n- .spec.m.k"
    );
    assert_eq!(conflicts(result)[1], "conflict with \"m1\" .spec.list[name=\"p\"].v");
    object.try_apply("m2", json!({"a": "2", "list": [{"name": "p", "v": 3}]}), true).unwrap();
    assert_eq!(object.spec(), json!({"a": "2", "list": [{"name": "p", "v": 3}], "m": {"k": "v"}}));
    assert_eq!(
        object.owned("m1"),
        json!({"f:spec": {"f:list": {"k:{\"name\":\"p\"}": {".": {}, "f:name": {}}}, "f:m": {"f:k": {}}}})
    );
}

#[test]
fn fields_no_longer_applied_are_removed_unless_another_manager_owns_them() {
    let mut object = AppliedObject::new();
    object.apply("m1", json!({"a": "1", "n": 1, "list": [{"name": "p", "v": 1}, {"name": "q"}], "set": ["s", "t"], "m": {"k": "v"}, "nested": {"x": "1"}}));
    object.apply("m2", json!({"a": "1", "list": [{"name": "p"}], "set": ["t"]}));
    object.apply("m1", json!({"n": 1}));
    assert_eq!(object.spec(), json!({"a": "1", "n": 1, "list": [{"name": "p"}], "set": ["t"]}));
    object.apply("m2", json!({}));
    assert_eq!(object.spec(), json!({"n": 1}));
    assert_eq!(object.owned("m2"), json!({"f:spec": {}}), "an applied empty map is owned");
}

#[test]
fn an_update_owns_what_it_changes() {
    let mut object = AppliedObject::new();
    object.apply("m1", json!({"a": "1", "n": 1, "list": [{"name": "p", "v": 1}]}));
    object.now = LATER;
    object.update("u", |o| {
        o["spec"]["a"] = json!("2");
        o["spec"]["list"][0]["w"] = json!(5);
        o["status"] = json!({"phase": "x"});
        o["metadata"]["labels"] = json!({"l": "1"});
    });
    assert_eq!(
        object.owned("u"),
        json!({"f:metadata": {"f:labels": {".": {}, "f:l": {}}}, "f:spec": {"f:a": {}, "f:list": {"k:{\"name\":\"p\"}": {"f:w": {}}}}}),
        "the status is not owned through the main endpoint"
    );
    assert_eq!(object.time("u"), LATER);
    assert_eq!(object.time("m1"), NOW);
    let result = object.try_apply("m1", json!({"a": "1", "n": 1}), false);
    assert_eq!(conflicts(result), ["conflict with \"u\" using t.io/v1 .spec.a"]);
}

#[test]
fn an_update_without_changes_keeps_times_and_owners() {
    let mut object = AppliedObject::new();
    object.apply("m1", json!({"a": "1"}));
    let before = object.live.clone();
    object.now = LATER;
    object.update("u", |_| {});
    assert_eq!(object.live, before);
    object.apply("m1", json!({"a": "1"}));
    assert_eq!(object.live, before);
}

#[test]
fn a_created_object_is_owned_by_its_creator() {
    let mut object = AppliedObject::new();
    object.update("creator", |o| o["spec"] = json!({"a": "1", "m": {}}));
    assert_eq!(object.owned("creator"), json!({"f:spec": {".": {}, "f:a": {}, "f:m": {}}}));
}

#[test]
fn the_status_endpoint_owns_status_only() {
    let mut object = AppliedObject::new();
    object.apply("m1", json!({"a": "1"}));
    let versions = [("t.io/v1", &object.types)];
    let reset = FieldSet::of_fields(&[&["spec"]]);
    let context = object.context(&versions, "status", &reset);
    let mut new = object.live.clone().unwrap();
    new["status"] = json!({"phase": "up"});
    update(&context, object.live.as_ref(), &mut new, "ctl");
    let entry = new["metadata"]["managedFields"]
        .as_array()
        .unwrap()
        .iter()
        .find(|e| e["manager"] == "ctl")
        .cloned()
        .unwrap();
    assert_eq!(entry["subresource"], "status");
    assert_eq!(entry["fieldsV1"], json!({"f:status": {".": {}, "f:phase": {}}}));
    object.live = Some(new);
    object.apply("m1", json!({"a": "2"}));
    assert_eq!(object.live.as_ref().unwrap()["status"], json!({"phase": "up"}));
}

#[test]
fn omitted_keys_with_defaults_identify_an_element() {
    let mut object = AppliedObject::new();
    object.apply("m1", json!({"ports": [{"port": 80, "x": "a"}]}));
    assert_eq!(
        object.owned("m1"),
        json!({"f:spec": {"f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}, "f:x": {}}}}})
    );
    object.apply("m2", json!({"ports": [{"port": 80, "protocol": "UDP"}]}));
    assert_eq!(object.spec()["ports"].as_array().unwrap().len(), 2);
}

#[test]
fn elements_keep_their_neighbours_and_take_the_order_of_the_apply() {
    let mut object = AppliedObject::new();
    object.update("u", |o| {
        o["spec"] = json!({"list": [{"name": "a"}, {"name": "b"}, {"name": "c"}, {"name": "d"}]})
    });
    object.apply("m1", json!({"list": [{"name": "c", "v": 1}, {"name": "a", "v": 1}, {"name": "e"}]}));
    let names: Vec<String> = object.spec()["list"]
        .as_array()
        .unwrap()
        .iter()
        .map(|i| i["name"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(names, ["b", "c", "d", "a", "e"]);
}

#[test]
fn an_untracked_object_gets_an_entry_before_its_first_apply() {
    let mut object = AppliedObject::new();
    object.live = Some(AppliedObject::config(json!({"a": "1", "n": 1})));
    let result = object.try_apply("m1", json!({"a": "2"}), false);
    assert_eq!(conflicts(result), ["conflict with \"before-first-apply\" using t.io/v1 .spec.a"]);
    object.update("u", |o| o["spec"]["n"] = json!(2));
    assert_eq!(
        object.live.as_ref().unwrap()["metadata"].get("managedFields"),
        None,
        "an untracked object stays untracked"
    );
}

#[test]
fn emptied_managed_fields_reset_the_ownership() {
    let mut object = AppliedObject::new();
    object.apply("m1", json!({"a": "1"}));
    object.update("u", |o| o["metadata"]["managedFields"] = json!([{}]));
    assert_eq!(object.live.as_ref().unwrap()["metadata"].get("managedFields"), None);
}

#[test]
fn type_errors_have_the_messages_of_kubernetes() {
    let mut object = AppliedObject::new();
    for (spec, words) in [
        (json!({"foo": 1}), ".spec.foo: field not declared in schema"),
        (json!({"a": 1}), ".spec.a: expected string, got &value.valueUnstructured{Value:1}"),
        (json!({"n": "x"}), ".spec.n: expected numeric (int or float), got string"),
        (json!({"list": "q"}), ".spec.list: expected list, got &{q}"),
        (
            json!({"list": [{"name": "p"}, {"name": "p"}]}),
            ".spec.list: duplicate entries for key [name=\"p\"]",
        ),
        (
            json!({"list": [{"v": 1}]}),
            ".spec.list: element 0: associative list with keys has an element that omits all key fields [\"name\"] (and doesn't have default values for any key fields)",
        ),
        (
            json!({"set": [{}]}),
            ".spec.set: element 0: associative list without keys has an element that's a map type",
        ),
    ] {
        let error = object.try_apply("m1", spec, false).unwrap_err().to_string();
        assert_eq!(error, format!("failed to create typed patch object (/x; t.io/v1, Kind=K): {words}"));
    }
}

#[test]
fn inconsistent_requests_are_rejected() {
    let object = AppliedObject::new();
    let versions = [("t.io/v1", &object.types)];
    let reset = FieldSet::EMPTY;
    let context = object.context(&versions, "", &reset);
    let other = json!({"apiVersion": "t.io/v2", "kind": "K", "metadata": {"name": "x"}});
    assert_eq!(
        apply(&context, None, &other, "m", false).unwrap_err(),
        ApplyError::BadRequest("invalid object type: t.io/v2, Kind=K".to_owned())
    );
    let mut owned = AppliedObject::config(json!({}));
    owned["metadata"]["managedFields"] = json!([]);
    assert_eq!(
        apply(&context, None, &owned, "m", false).unwrap_err(),
        ApplyError::BadRequest("metadata.managedFields must be nil".to_owned())
    );
}

#[test]
fn kubectl_can_change_from_client_side_to_server_side_apply() {
    let mut object = AppliedObject::new();
    let last = json!({"apiVersion": "t.io/v1", "kind": "K", "metadata": {"name": "x"}, "spec": {"a": "1"}})
        .to_string();
    object.update("kubectl-client-side-apply", |o| {
        o["spec"] = json!({"a": "1", "n": 1});
        o["metadata"]["annotations"] = json!({LAST_APPLIED: last});
    });
    assert!(object.try_apply("other", json!({"a": "2"}), false).is_err());
    object.apply("kubectl", json!({"a": "2"}));
    assert_eq!(object.spec()["a"], "2");
    let kept =
        object.live.as_ref().unwrap()["metadata"]["annotations"][LAST_APPLIED].as_str().unwrap().to_owned();
    assert!(kept.contains("\"a\":\"2\"") && kept.ends_with('\n'), "{kept}");
    assert!(
        object.try_apply("kubectl", json!({"a": "2", "n": 5}), false).is_err(),
        "a field outside the annotation is a conflict still"
    );
}

#[test]
fn fields_that_became_atomic_are_owned_as_a_whole() {
    let mut object = AppliedObject::new();
    object.apply("m1", json!({"am": {"k": "v"}}));
    let mut live = object.live.clone().unwrap();
    live["metadata"]["managedFields"][0]["fieldsV1"] = json!({"f:spec": {"f:am": {"f:k": {}}}});
    object.live = Some(live);
    object.update("u", |o| o["spec"]["a"] = json!("1"));
    assert_eq!(object.owned("m1"), json!({"f:spec": {"f:am": {}}}));
}

#[test]
fn entries_of_versions_no_longer_served_are_dropped() {
    let mut object = AppliedObject::new();
    object.apply("m1", json!({"a": "1"}));
    let mut live = object.live.clone().unwrap();
    live["metadata"]["managedFields"][0]["apiVersion"] = json!("t.io/v0");
    object.live = Some(live);
    object.update("u", |o| o["spec"]["n"] = json!(1));
    assert_eq!(object.owned("m1"), Value::Null);
}

#[test]
fn types_of_built_ins_come_from_their_definitions() {
    let definitions = std::collections::BTreeMap::from([
        (
            "ns.Status".to_owned(),
            json!({"type": "object", "properties": {"conditions": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"], "items": {"$ref": "#/components/schemas/ns.Condition"}}}}),
        ),
        (
            "ns.Condition".to_owned(),
            json!({"type": "object", "properties": {"type": {"type": "string"}, "status": {"type": "string"}}}),
        ),
        (
            "ns.Ref".to_owned(),
            json!({"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"name": {"type": "string"}}}),
        ),
        (
            "ns.Tree".to_owned(),
            json!({"type": "object", "properties": {"not": {"$ref": "#/components/schemas/ns.Tree"}, "title": {"type": "string"}}}),
        ),
        (
            "ns.Kind".to_owned(),
            json!({"type": "object", "properties": {
                "apiVersion": {"type": "string"}, "kind": {"type": "string"},
                "metadata": {"type": "object", "properties": {"name": {"type": "string"}}},
                "status": {"allOf": [{"$ref": "#/components/schemas/ns.Status"}], "default": {}},
                "ref": {"$ref": "#/components/schemas/ns.Ref"}, "tree": {"$ref": "#/components/schemas/ns.Tree"}}}),
        ),
    ]);
    let types = Types::from_openapi(&definitions, "ns.Kind");
    let value = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}, "ref": {"name": "x"}, "tree": {"not": {"not": {"title": "t"}}}});
    assert!(typed::check(&types, &value).is_empty());
    assert_eq!(
        typed::fields_of(&types, &value).encode(),
        json!({"f:ref": {}, "f:status": {"f:conditions": {"k:{\"type\":\"Ready\"}": {".": {}, "f:status": {}, "f:type": {}}}}, "f:tree": {"f:not": {"f:not": {"f:title": {}}}}})
    );
}

fn any_spec() -> impl Strategy<Value = Value> {
    let text = "[a-c]";
    let item = (text, prop::option::of(0..3i64), prop::option::of(0..3i64)).prop_map(|(n, v, w)| {
        let mut item = json!({"name": n});
        if let Some(v) = v {
            item["v"] = json!(v);
        }
        if let Some(w) = w {
            item["w"] = json!(w);
        }
        item
    });
    let list = prop::collection::vec(item, 0..4).prop_map(|items| {
        let mut seen = std::collections::BTreeSet::new();
        Value::from(items.into_iter().filter(|i| seen.insert(i["name"].to_string())).collect::<Vec<_>>())
    });
    let set = prop::collection::btree_set(text, 0..3).prop_map(|s| json!(s));
    let map = prop::collection::btree_map(text, text, 0..3).prop_map(|m| json!(m));
    let fields = (
        prop::option::of(text.prop_map(Value::from)),
        prop::option::of(list),
        prop::option::of(set),
        prop::option::of(map.clone()),
        prop::option::of(map.clone()),
        prop::option::of(map),
    );
    fields.prop_map(|(a, list, set, m, am, open)| {
        let pairs = [("a", a), ("list", list), ("set", set), ("m", m), ("am", am), ("open", open)];
        Value::Object(pairs.into_iter().filter_map(|(k, v)| Some((k.to_owned(), v?))).collect())
    })
}

/// Whether `object` contains every value of `config`.
fn holds(config: &Value, object: &Value) -> bool {
    match (config, object) {
        (Value::Object(c), Value::Object(o)) => c.iter().all(|(k, v)| {
            o.get(k).is_some_and(|w| holds(v, w))
                || v.as_object().is_some_and(Map::is_empty)
                || v.as_array().is_some_and(Vec::is_empty)
        }),
        (Value::Array(c), Value::Array(o)) => c.iter().all(|v| o.iter().any(|w| holds(v, w))),
        _ => config == object,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn apply_is_idempotent(first in any_spec(), second in any_spec()) {
        let mut object = AppliedObject::new();
        object.apply("m1", first);
        object.try_apply("m2", second.clone(), true).unwrap();
        let once = object.live.clone();
        object.now = LATER;
        object.try_apply("m2", second, false).unwrap();
        prop_assert_eq!(&object.live, &once);
    }

    #[test]
    fn applied_values_are_in_the_result(first in any_spec(), second in any_spec()) {
        let mut object = AppliedObject::new();
        object.apply("m1", first);
        object.try_apply("m2", second.clone(), true).unwrap();
        prop_assert!(holds(&second, &object.spec()), "{} in {}", second, object.spec());
    }

    #[test]
    fn one_manager_alone_gets_exactly_what_it_applies(first in any_spec(), second in any_spec()) {
        let mut object = AppliedObject::new();
        object.apply("m1", first);
        object.apply("m1", second.clone());
        let mut other = AppliedObject::new();
        other.apply("m1", second);
        let tidy = |v: Value| Value::Object(v.as_object().cloned().unwrap_or_default().into_iter().filter(|(_, v)| v != &json!([]) && v != &json!({})).collect());
        prop_assert_eq!(tidy(object.spec()), tidy(other.spec()));
    }

    #[test]
    fn merging_nothing_changes_nothing(spec in any_spec()) {
        let types = types();
        let object = AppliedObject::config(spec);
        prop_assert_eq!(typed::merge(&types, &object, &object).unwrap(), object.clone());
        let difference = typed::compare(&types, &object, &object);
        prop_assert!(difference.added.is_empty() && difference.modified.is_empty() && difference.removed.is_empty());
        prop_assert!(typed::fields_of(&types, &object).difference(&typed::fields_of(&types, &object)).is_empty());
    }

    #[test]
    fn comparison_is_symmetric(old in any_spec(), new in any_spec()) {
        let types = types();
        let (old, new) = (AppliedObject::config(old), AppliedObject::config(new));
        let (there, back) = (typed::compare(&types, &old, &new), typed::compare(&types, &new, &old));
        prop_assert_eq!(&there.added, &back.removed);
        prop_assert_eq!(&there.removed, &back.added);
        prop_assert_eq!(&there.modified, &back.modified);
        prop_assert_eq!(there.added.is_empty() && there.removed.is_empty() && there.modified.is_empty(), typed::merge(&types, &old, &new).unwrap() == old && typed::merge(&types, &new, &old).unwrap() == new);
    }
}
