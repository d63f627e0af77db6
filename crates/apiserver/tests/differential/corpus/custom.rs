//! Schema validation: every type, bound and list with valid and invalid values.

use serde_json::{Value, json};

use crate::{
    corpus::opening,
    script::{Script, ScriptStep, apply, delete, get, json_patch, merge, post, put, strategic},
};

const ALL: &str = "/apis/differential.example.com/v1/namespaces/d-custom/widgets";

fn widget(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "differential.example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec})
}

/// Boundary values of every JSON type.
fn values() -> Vec<Value> {
    vec![
        json!(null),
        json!(true),
        json!(false),
        json!(0),
        json!(-1),
        json!(1),
        json!(100),
        json!(101),
        json!(1.5),
        json!(2.0),
        json!(1e30),
        json!(""),
        json!("a"),
        json!("ab"),
        json!("abcdef"),
        json!("AB"),
        json!("red"),
        json!("5"),
        json!("2026-01-01T00:00:00Z"),
        json!([]),
        json!(["a"]),
        json!(["a", "a"]),
        json!(["a", "b", "c", "d"]),
        json!([1]),
        json!([null]),
        json!({}),
        json!({"a": 1}),
        json!({"a": "x"}),
        json!({"a": "x", "b": "y"}),
        json!({"a": 1, "b": 2, "c": 3}),
        json!([{"name": "a"}]),
        json!([{"name": "a"}, {"name": "a"}]),
        json!([{"value": "v"}]),
        json!([{"name": "a", "extra": 1}]),
        json!({"a": null}),
        json!({"deep": {"deeper": [1, {"x": "y"}]}}),
    ]
}

pub fn scripts() -> Vec<Script> {
    let mut scripts = Vec::new();
    let mut first = opening("d-custom");
    for field in
        ["size", "color", "name", "ratio", "on", "port", "when", "tags", "parts", "limits", "free", "one"]
    {
        let mut steps = std::mem::take(&mut first);
        for (n, value) in values().into_iter().enumerate() {
            steps.push(post(
                format!("{ALL}?dryRun=All"),
                &widget(&format!("{field}{n}"), json!({ field: value })),
            ));
        }
        scripts.push(Script::new(format!("custom-{field}"), steps));
    }
    scripts.push(shapes());
    scripts.push(status());
    scripts.push(scale());
    scripts.push(updates());
    scripts.push(versions());
    scripts
}

fn shapes() -> Script {
    let steps: Vec<ScriptStep> = vec![
        post(ALL, &json!({"apiVersion": "differential.example.com/v1", "kind": "Widget", "metadata": {"name": "s0"}})).titled("without a spec"),
        post(ALL, &widget("s1", json!(null))).titled("spec null"),
        post(ALL, &widget("s2", json!("text"))).titled("spec text"),
        post(ALL, &widget("s3", json!([]))).titled("spec list"),
        post(ALL, &widget("s4", json!({"bogus": {"deep": 1}}))).titled("unknown in spec"),
        get(format!("{ALL}/s4")),
        post(format!("{ALL}?fieldValidation=Strict"), &widget("s5", json!({"bogus": {"deep": 1}, "parts": [{"name": "a", "odd": 1}]}))).titled("strict in spec"),
        post(format!("{ALL}?fieldValidation=Ignore"), &widget("s6", json!({"bogus": 1}))).titled("ignored in spec"),
        post(ALL, &json!({"apiVersion": "differential.example.com/v1", "kind": "Widget", "metadata": {"name": "s7"}, "spec": {}, "status": {"phase": "Set"}})).titled("status at creation"),
        get(format!("{ALL}/s7")),
        post(ALL, &json!({"apiVersion": "differential.example.com/v1", "kind": "Widget", "metadata": {"name": "s8", "labels": {"a": null}, "annotations": {}}, "spec": {}})).titled("empty metadata"),
        post(ALL, &json!({"apiVersion": "differential.example.com/v1", "kind": "Widget", "metadata": {"name": "s9", "creationTimestamp": "2020-01-01T00:00:00Z", "uid": "44444444-4444-4444-8444-444444444444", "generation": 9, "deletionTimestamp": "2020-01-01T00:00:00Z", "selfLink": "/x"}, "spec": {}})).titled("system fields at creation"),
        post(ALL, &json!({"apiVersion": "differential.example.com/v1", "kind": "Widget", "metadata": "x", "spec": {}})).titled("metadata text"),
        post(ALL, &json!({"apiVersion": "differential.example.com/v1", "kind": "Widget", "metadata": {"name": 5}, "spec": {}})).titled("a number as name"),
        post(ALL, &json!({"apiVersion": "differential.example.com/v1", "kind": 5, "metadata": {"name": "x"}, "spec": {}})).titled("a number as kind"),
        post(ALL, &json!({"apiVersion": "differential.example.com/v1", "kind": "WidgetList", "items": []})).titled("a list of them"),
        get(format!("{ALL}?fieldSelector=spec.color%3Dred")),
        get(format!("{ALL}?fieldSelector=spec.size%3D1")),
        get(ALL).accept("application/json;as=Table;v=v1;g=meta.k8s.io"),
        delete(ALL).titled("clear"),
    ];
    Script::new("custom-shapes", steps)
}

fn status() -> Script {
    let one = format!("{ALL}/t0");
    let mut full = widget("t0", json!({"size": 50}));
    full["status"] = json!({"phase": "Up", "bogus": 1});
    full["metadata"]["labels"] = json!({"through": "status"});
    let mut exact = full.clone();
    exact["metadata"]["resourceVersion"] = "$rv(0)".into();
    let steps = vec![
        post(ALL, &widget("t0", json!({}))),
        put(format!("{one}/status"), &full).titled("without a revision"),
        put(format!("{one}/status"), &exact).titled("exact"),
        get(format!("{one}/status")),
        merge(
            format!("{one}/status"),
            &json!({"status": {"phase": "Down"}, "spec": {"size": 7}, "metadata": {"labels": {"a": "b"}}}),
        ),
        merge(format!("{one}/status"), &json!({"status": {"phase": 5}})),
        merge(format!("{one}/status"), &json!({"status": null})),
        merge(&one, &json!({"status": {"phase": "Main"}})),
        merge(&one, &json!({"spec": {"size": 8}})),
        merge(
            format!("{one}/status?fieldManager=reporter"),
            &json!({"status": {"phase": "Reported", "replicas": 3, "selector": "a=b"}}),
        ),
        json_patch(
            format!("{one}/status"),
            &json!([{"op": "replace", "path": "/status/phase", "value": "Patched"}]),
        ),
        strategic(format!("{one}/status"), &json!({"status": {"phase": "S"}})),
        apply(
            format!("{one}/status?fieldManager=applier"),
            &json!({"apiVersion": "differential.example.com/v1", "kind": "Widget", "metadata": {"name": "t0"}, "status": {"phase": "Applied"}}),
        ),
        apply(
            format!("{one}/status?fieldManager=applier&force=true"),
            &json!({"apiVersion": "differential.example.com/v1", "kind": "Widget", "metadata": {"name": "t0"}, "status": {"phase": "Applied"}}),
        ),
        delete(format!("{one}/status")),
        post(format!("{one}/status"), &full),
        put(format!("{ALL}/none/status"), &widget("none", json!({}))),
        merge(format!("{ALL}/none/status"), &json!({"status": {}})),
        get("/apis/differential.example.com/v1/gadgets/none/status"),
        delete(&one),
    ];
    Script::new("custom-status", steps)
}

fn scale() -> Script {
    let one = format!("{ALL}/c0");
    let scale = |replicas: Value| json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "c0", "namespace": "d-custom"}, "spec": {"replicas": replicas}});
    let steps = vec![
        post(ALL, &widget("c0", json!({}))),
        get(format!("{one}/scale")),
        put(format!("{one}/scale"), &scale(json!(3))),
        put(format!("{one}/scale"), &scale(json!(-3))),
        merge(format!("{one}/scale"), &json!({"spec": {"replicas": 5}})),
        merge(format!("{one}/status"), &json!({"status": {"replicas": 2, "selector": "x=y"}})),
        get(format!("{one}/scale")),
        get(&one),
        get(format!("{ALL}/none/scale")),
        delete(format!("{one}/scale")),
        delete(&one),
    ];
    Script::new("custom-scale", steps)
}

fn updates() -> Script {
    let one = format!("{ALL}/u0");
    let steps = vec![
        post(
            ALL,
            &widget(
                "u0",
                json!({"size": 5, "parts": [{"name": "a"}, {"name": "b", "value": "v"}], "tags": ["x"], "free": {"any": [1]}}),
            ),
        ),
        merge(&one, &json!({"spec": {"parts": [{"name": "c"}]}})),
        merge(&one, &json!({"spec": {"size": null}})),
        merge(&one, &json!({"spec": {"size": 500}})),
        merge(&one, &json!({"spec": {"tags": ["y", "y"]}})),
        merge(&one, &json!({"spec": {"on": null}})),
        merge(&one, &json!({"spec": {"free": {"any": null, "more": {"x": null}}}})),
        json_patch(&one, &json!([{"op": "add", "path": "/spec/parts/-", "value": {"name": "d"}}])),
        json_patch(&one, &json!([{"op": "add", "path": "/spec/parts/0", "value": {"name": "c"}}])),
        json_patch(&one, &json!([{"op": "remove", "path": "/spec"}])),
        merge(&one, &json!({"spec": {}})),
        merge(&one, &json!({"metadata": {"generation": 100}})),
        get(&one),
        delete(&one),
    ];
    Script::new("custom-updates", steps)
}

fn versions() -> Script {
    let beta = "/apis/differential.example.com/v1beta1/gadgets";
    let steps = vec![
        post(
            beta,
            &json!({"apiVersion": "differential.example.com/v1beta1", "kind": "Gadget", "metadata": {"name": "v0"}, "any": {"thing": [1, null, "x"]}}),
        ),
        get("/apis/differential.example.com/v1/gadgets/v0"),
        get(format!("{beta}/v0")),
        merge("/apis/differential.example.com/v1/gadgets/v0", &json!({"spec": {"x": 1.5}})),
        merge(format!("{beta}/v0"), &json!({"spec": {"x": 2}})),
        post(
            beta,
            &json!({"apiVersion": "differential.example.com/v1", "kind": "Gadget", "metadata": {"name": "v1"}}),
        ),
        get(format!("{beta}?watch=1&timeoutSeconds=1")).titled("watch an old version"),
        get("/apis/differential.example.com/v2/gadgets"),
        delete(format!("{beta}/v0")),
    ];
    Script::new("custom-versions", steps)
}
