//! Server-side apply by several managers, on a custom and on a built-in kind.

use serde_json::{Value, json};

use crate::{
    corpus::opening,
    script::{Script, ScriptStep, apply, delete, get, json_patch, merge, post, put},
};

const WIDGETS: &str = "/apis/differential.example.com/v1/namespaces/d-apply/widgets";
const MAPS: &str = "/api/v1/namespaces/d-apply/configmaps";

fn widget(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "differential.example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec})
}

fn by(manager: &str, name: &str, spec: Value) -> ScriptStep {
    apply(format!("{WIDGETS}/{name}?fieldManager={manager}"), &widget(name, spec))
}

fn forced(manager: &str, name: &str, spec: Value) -> ScriptStep {
    apply(format!("{WIDGETS}/{name}?fieldManager={manager}&force=true"), &widget(name, spec))
}

fn map(manager: &str, name: &str, data: Value) -> ScriptStep {
    apply(
        format!("{MAPS}/{name}?fieldManager={manager}"),
        &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}),
    )
}

pub fn scripts() -> Vec<Script> {
    let mut first = opening("d-apply");
    first.extend([
        by("a", "w0", json!({"size": 3, "color": "red"})),
        by("b", "w0", json!({"name": "abc"})),
        by("b", "w0", json!({"size": 4})),
        by("b", "w0", json!({"size": 3})),
        by("a", "w0", json!({"color": "red"})),
        by("b", "w0", json!({})),
        forced("b", "w0", json!({"color": "blue"})),
        by("a", "w0", json!({"color": "red"})),
        merge(format!("{WIDGETS}/w0"), &json!({"spec": {"color": "green"}})),
        by("b", "w0", json!({"color": "blue"})),
        put(format!("{WIDGETS}/w0?fieldManager=p"), &widget("w0", json!({"color": "red"}))).titled("put without a revision"),
        by("a", "w0", json!({})),
        by("b", "w0", json!({})),
        get(format!("{WIDGETS}/w0")),
        merge(format!("{WIDGETS}/w0"), &json!({"metadata": {"managedFields": []}})).titled("remove all managers"),
        by("c", "w0", json!({"size": 9})),
        merge(format!("{WIDGETS}/w0"), &json!({"metadata": {"managedFields": [{"manager": "x", "operation": "Bogus", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}}]}})).titled("invalid managers"),
        by("c", "w0", json!({"bogus": 1})),
        apply(format!("{WIDGETS}/w0?fieldManager=c&fieldValidation=Strict"), &widget("w0", json!({"bogus": 1}))).titled("strict and unknown"),
        by("c", "w0", json!({"size": "text"})),
        by("c", "w0", json!({"size": 1000})),
        by("c", "w0", json!({"size": null})),
        delete(format!("{WIDGETS}/w0")),
    ]);
    vec![Script::new("apply-scalars", first), lists(), maps(), metadata(), dry(), generated()]
}

fn lists() -> Script {
    let part = |name: &str, value: &str| json!({"name": name, "value": value});
    let steps = vec![
        by("a", "l0", json!({"parts": [part("x", "1"), part("y", "2")], "tags": ["one", "two"]})),
        by("b", "l0", json!({"parts": [part("z", "3")], "tags": ["three"]})),
        by("b", "l0", json!({"parts": [part("x", "9")]})),
        forced("b", "l0", json!({"parts": [part("x", "9")]})),
        by("a", "l0", json!({"parts": [part("y", "2")], "tags": ["two"]})),
        by("a", "l0", json!({"parts": [{"name": "y"}]})),
        by("b", "l0", json!({"parts": [{"value": "no key"}]})),
        by("b", "l0", json!({"parts": [part("k", "1"), part("k", "2")]})),
        by("b", "l0", json!({"tags": ["d", "d"]})),
        by("b", "l0", json!({"tags": [1]})),
        by("b", "l0", json!({"parts": {}})),
        by("a", "l0", json!({"parts": [part("2", "b"), part("1", "a"), part("y", "c")]}))
            .titled("another order"),
        json_patch(format!("{WIDGETS}/l0"), &json!([{"op": "remove", "path": "/spec/parts/0"}])),
        merge(format!("{WIDGETS}/l0?fieldManager=m"), &json!({"spec": {"parts": [part("m", "m")]}})),
        by("a", "l0", json!({})),
        get(format!("{WIDGETS}/l0")),
        delete(format!("{WIDGETS}/l0")),
    ];
    Script::new("apply-lists", steps)
}

fn maps() -> Script {
    let steps = vec![
        map("a", "m0", json!({"x": "1", "y": "2"})),
        map("b", "m0", json!({"z": "3"})),
        map("b", "m0", json!({"x": "9"})),
        map("a", "m0", json!({"x": "1"})),
        map("b", "m0", json!({"x": "1"})),
        map("a", "m0", json!({})),
        map("b", "m0", json!({})),
        map("a", "m0", json!({"x": 5})),
        map("a", "m0", json!(null)),
        apply(
            format!("{MAPS}/m0?fieldManager=a"),
            &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m0"}, "immutable": true}),
        )
        .titled("immutable"),
        map("c", "m0", json!({"n": "1"})),
        by("a", "m1", json!({"limits": {"cpu": 1, "mem": 2}, "free": {"a": {"b": 1}}})),
        by("b", "m1", json!({"free": {"a": {"c": 2}, "d": [1]}})),
        by("b", "m1", json!({"limits": {"cpu": 2}})),
        by("a", "m1", json!({"free": {"a": {"b": 1}}})),
        by("b", "m1", json!({"free": {"d": [2]}})),
        by("a", "m1", json!({"free": {"d": [3]}})),
        get(format!("{WIDGETS}/m1")),
        delete(format!("{WIDGETS}/m1")),
        delete(format!("{MAPS}/m0")),
    ];
    Script::new("apply-maps", steps)
}

fn metadata() -> Script {
    let with = |manager: &str, metadata: Value| {
        let mut object = widget("d0", json!({}));
        object["metadata"] = metadata;
        object["metadata"]["name"] = "d0".into();
        apply(format!("{WIDGETS}/d0?fieldManager={manager}"), &object)
    };
    let owner = |uid: &str| json!({"apiVersion": "v1", "kind": "A", "name": "a", "uid": uid});
    let steps = vec![
        with("a", json!({"labels": {"x": "1"}, "annotations": {"k": "v"}, "finalizers": ["example.com/a"]})),
        with("b", json!({"labels": {"x": "2"}})),
        with(
            "b",
            json!({"labels": {"y": "1"}, "finalizers": ["example.com/b"], "ownerReferences": [owner("u1")]}),
        ),
        with("a", json!({"ownerReferences": [owner("u2")]})),
        with("b", json!({})),
        with("a", json!({"uid": "55555555-5555-4555-8555-555555555555"})),
        with("a", json!({"resourceVersion": "1"})),
        with("a", json!({"generation": 7, "creationTimestamp": "2020-01-01T00:00:00Z"})),
        with("a", json!({"namespace": "elsewhere"})),
        with("a", json!({"bogus": 1})),
        with("a", json!({})),
        merge(format!("{WIDGETS}/d0"), &json!({"metadata": {"finalizers": null}})),
        delete(format!("{WIDGETS}/d0")),
    ];
    Script::new("apply-metadata", steps)
}

fn dry() -> Script {
    let steps = vec![
        apply(format!("{WIDGETS}/y0?fieldManager=a&dryRun=All"), &widget("y0", json!({"size": 2}))).titled("dry and new"),
        get(format!("{WIDGETS}/y0")),
        by("a", "y0", json!({"size": 2})),
        apply(format!("{WIDGETS}/y0?fieldManager=b&dryRun=All"), &widget("y0", json!({"size": 3}))).titled("dry and in conflict"),
        apply(format!("{WIDGETS}/y0?fieldManager=b&dryRun=All&force=true"), &widget("y0", json!({"size": 3}))).titled("dry and forced"),
        ScriptStep::new("PATCH", format!("{WIDGETS}/y0?fieldManager=a")).content("application/apply-patch+yaml").text("apiVersion: differential.example.com/v1\nkind: Widget\nmetadata:\n  name: y0\nspec:\n  size: 2\n  color: blue\n").titled("as YAML"),
        ScriptStep::new("PATCH", format!("{WIDGETS}/y0?fieldManager=a")).content("application/apply-patch+yaml").text(": : :").titled("broken YAML"),
        ScriptStep::new("PATCH", format!("{WIDGETS}/y0?fieldManager=a")).content("application/apply-patch+yaml").text("").titled("empty YAML"),
        ScriptStep::new("PATCH", format!("{WIDGETS}/y0?fieldManager=a")).content("application/apply-patch+yaml").text("[]").titled("a YAML list"),
        delete(format!("{WIDGETS}/y0")),
    ];
    Script::new("apply-dry", steps)
}

/// All pairs of small configurations by two managers, each followed by the first manager's next
/// configuration.
fn generated() -> Script {
    let configurations = [
        json!({}),
        json!({"size": 1}),
        json!({"size": 2, "color": "red"}),
        json!({"tags": ["a"]}),
        json!({"tags": ["a", "b"]}),
        json!({"parts": [{"name": "p"}]}),
        json!({"parts": [{"name": "p", "value": "q"}, {"name": "r"}]}),
        json!({"limits": {"x": 1}}),
        json!({"free": {"f": 1}}),
    ];
    let mut steps = Vec::new();
    for (i, one) in configurations.iter().enumerate() {
        for (j, other) in configurations.iter().enumerate() {
            let name = format!("g{i}{j}");
            steps.push(by("one", &name, one.clone()));
            steps.push(by("other", &name, other.clone()));
            steps.push(by("one", &name, configurations[(i + j) % configurations.len()].clone()));
            steps.push(post(WIDGETS, &widget(&name, json!({}))).titled(format!("there already {name}")));
        }
    }
    Script::new("apply-generated", steps)
}
