//! CRDs: validation, schemas and discovery.

use serde_json::{Value, json};

use crate::script::{Script, ScriptStep, delete, get, merge, post};

const ALL: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn crd(plural: &str, edit: impl FnOnce(&mut Value)) -> Value {
    let kind = format!("{}{}", plural[..1].to_uppercase(), &plural[1..]);
    let mut crd = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": format!("{plural}.defs.example.com")}, "spec": {
        "group": "defs.example.com", "scope": "Namespaced", "names": {"plural": plural, "kind": kind},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object"}}}}}]}});
    edit(&mut crd);
    crd
}

fn with_schema(plural: &str, spec: Value) -> Value {
    crd(plural, |crd| crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = spec)
}

fn dry(value: &Value) -> ScriptStep {
    post(format!("{ALL}?dryRun=All"), value)
}

pub fn scripts() -> Vec<Script> {
    vec![shells(), schemas()]
}

fn shells() -> Script {
    type Edit = fn(&mut Value);
    let edits: Vec<(&str, Edit)> = vec![
        ("fine", |_| {}),
        ("no group", |c| c["spec"]["group"] = "".into()),
        ("a short group", |c| c["spec"]["group"] = "short".into()),
        ("another name", |c| c["metadata"]["name"] = "other.defs.example.com".into()),
        ("no scope", |c| drop(c["spec"].as_object_mut().and_then(|s| s.remove("scope")))),
        ("a bad scope", |c| c["spec"]["scope"] = "Galaxy".into()),
        ("no kind", |c| c["spec"]["names"]["kind"] = "".into()),
        ("a bad kind", |c| c["spec"]["names"]["kind"] = "A_B".into()),
        ("a bad plural", |c| c["spec"]["names"]["plural"] = "Upper".into()),
        ("kind and listKind alike", |c| c["spec"]["names"]["listKind"] = c["spec"]["names"]["kind"].clone()),
        ("bad short names", |c| c["spec"]["names"]["shortNames"] = json!(["A", "b"])),
        ("bad categories", |c| c["spec"]["names"]["categories"] = json!(["A B"])),
        ("no versions", |c| c["spec"]["versions"] = json!([])),
        ("no storage", |c| c["spec"]["versions"][0]["storage"] = json!(false)),
        ("two storages", |c| {
            let mut second = c["spec"]["versions"][0].clone();
            second["name"] = "v2".into();
            c["spec"]["versions"].as_array_mut().expect("versions").push(second);
        }),
        ("a version twice", |c| {
            let mut second = c["spec"]["versions"][0].clone();
            second["storage"] = false.into();
            c["spec"]["versions"].as_array_mut().expect("versions").push(second);
        }),
        ("a bad version", |c| c["spec"]["versions"][0]["name"] = "V 1".into()),
        ("no schema", |c| drop(c["spec"]["versions"][0].as_object_mut().and_then(|v| v.remove("schema")))),
        ("a column without a path", |c| {
            c["spec"]["versions"][0]["additionalPrinterColumns"] = json!([{"name": "A", "type": "string"}])
        }),
        ("a column of a bad type", |c| {
            c["spec"]["versions"][0]["additionalPrinterColumns"] =
                json!([{"name": "A", "type": "object", "jsonPath": ".spec"}])
        }),
        ("a column with a bad path", |c| {
            c["spec"]["versions"][0]["additionalPrinterColumns"] =
                json!([{"name": "A", "type": "string", "jsonPath": "spec"}])
        }),
        ("a scale without paths", |c| c["spec"]["versions"][0]["subresources"] = json!({"scale": {}})),
        ("a scale with odd paths", |c| {
            c["spec"]["versions"][0]["subresources"] =
                json!({"scale": {"specReplicasPath": ".status.x", "statusReplicasPath": ".spec.y"}})
        }),
        ("preserve at the root", |c| c["spec"]["preserveUnknownFields"] = true.into()),
        ("a conversion that is none", |c| c["spec"]["conversion"] = json!({"strategy": "Magic"})),
        ("a selectable field that is none", |c| {
            c["spec"]["versions"][0]["selectableFields"] = json!([{"jsonPath": ".spec.none"}])
        }),
        ("a deprecation warning alone", |c| c["spec"]["versions"][0]["deprecationWarning"] = "old".into()),
        ("a protected group", |c| {
            c["spec"]["group"] = "defs.k8s.io".into();
            c["metadata"]["name"] = "shells.defs.k8s.io".into();
        }),
    ];
    let mut steps: Vec<ScriptStep> =
        edits.into_iter().map(|(title, edit)| dry(&crd("shells", edit)).titled(title)).collect();
    steps.push(
        post(
            format!("{ALL}?fieldValidation=Strict&dryRun=All"),
            &crd("shells", |c| c["spec"]["bogus"] = 1.into()),
        )
        .titled("strict and unknown"),
    );
    Script::new("definitions-shells", steps)
}

fn schemas() -> Script {
    let schemas = [
        json!({"type": "object", "properties": {"a": {"type": "string"}}}),
        json!({"properties": {"a": {"type": "string"}}}),
        json!({"type": "objekt"}),
        json!({"type": "object", "properties": {"a": {}}}),
        json!({"type": "object", "properties": {"a": {"x-kubernetes-preserve-unknown-fields": true}}}),
        json!({"type": "object", "properties": {"a": {"type": "array"}}}),
        json!({"type": "object", "properties": {"a": {"type": "array", "items": [{"type": "string"}]}}}),
        json!({"type": "object", "additionalProperties": true, "properties": {"a": {"type": "string"}}}),
        json!({"type": "object", "additionalProperties": {"type": "string"}, "properties": {"a": {"type": "string"}}}),
        json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}),
        json!({"type": "object", "properties": {"a": {"type": "string", "format": "made-up"}}}),
        json!({"type": "object", "properties": {"a": {"type": "integer", "default": "x"}}}),
        json!({"type": "object", "properties": {"a": {"type": "integer", "minimum": 5, "default": 1}}}),
        json!({"type": "object", "properties": {"a": {"type": "string", "default": null}}}),
        json!({"type": "object", "properties": {"a": {"type": "string", "nullable": true, "default": null}}}),
        json!({"type": "object", "properties": {"a": {"type": "string", "uniqueItems": true}}}),
        json!({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true, "items": {"type": "string"}}}}),
        json!({"type": "object", "properties": {"a": {"type": "array", "x-kubernetes-list-type": "map", "items": {"type": "object", "properties": {"k": {"type": "string"}}}}}}),
        json!({"type": "object", "properties": {"a": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": {"type": "object", "properties": {"k": {"type": "string"}}}}}}),
        json!({"type": "object", "properties": {"a": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["z"], "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}}}}}}),
        json!({"type": "object", "properties": {"a": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "object"}}}}),
        json!({"type": "object", "properties": {"a": {"type": "array", "x-kubernetes-list-type": "odd", "items": {"type": "string"}}}}),
        json!({"type": "object", "properties": {"a": {"type": "object", "x-kubernetes-map-type": "odd"}}}),
        json!({"type": "object", "properties": {"a": {"type": "object", "x-kubernetes-embedded-resource": true}}}),
        json!({"type": "object", "properties": {"a": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}}}),
        json!({"type": "object", "properties": {"a": {"x-kubernetes-int-or-string": true, "type": "string"}}}),
        json!({"type": "object", "properties": {"a": {"x-kubernetes-int-or-string": true}}}),
        json!({"type": "object", "properties": {"a": {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": true}}}),
        json!({"type": "object", "properties": {"a": {"anyOf": [{"type": "integer"}, {"type": "string"}]}}}),
        json!({"type": "object", "oneOf": [{"properties": {"z": {"type": "string"}}}]}),
        json!({"type": "object", "allOf": [{"description": "no"}], "properties": {"a": {"type": "string"}}}),
        json!({"type": "object", "not": {"required": ["a"]}, "properties": {"a": {"type": "string"}}}),
        json!({"type": "object", "properties": {"a": {"$ref": "#/x"}}}),
        json!({"type": "object", "definitions": {}}),
        json!({"type": "object", "patternProperties": {"x": {"type": "string"}}}),
        json!({"type": "object", "properties": {"a": {"type": "string", "enum": []}}}),
        json!({"type": "object", "properties": {"a": {"type": "string", "enum": ["x", "x"]}}}),
        json!({"type": "object", "required": ["missing"]}),
        json!({"type": "object", "properties": {"a": {"type": "string", "maxLength": -1}}}),
        json!({"type": "object", "x-kubernetes-validations": [{"rule": "self.a == 'x'"}], "properties": {"a": {"type": "string"}}}),
        json!({"type": "object", "x-kubernetes-validations": [{"rule": "self.b == 'x'"}], "properties": {"a": {"type": "string"}}}),
        json!({"type": "object", "x-kubernetes-validations": [{"rule": "self.a =="}], "properties": {"a": {"type": "string"}}}),
        json!({"type": "object", "x-kubernetes-validations": [{"rule": "self.a"}], "properties": {"a": {"type": "string"}}}),
        json!({"type": "object", "x-kubernetes-validations": [{"rule": ""}], "properties": {"a": {"type": "string"}}}),
        json!({"type": "object", "x-kubernetes-validations": [{"rule": "true", "message": "a\nb"}], "properties": {"a": {"type": "string"}}}),
        json!({"type": "object", "x-kubernetes-validations": [{"rule": "self.a == oldSelf.a"}], "properties": {"a": {"type": "string"}}}),
    ];
    let mut steps: Vec<ScriptStep> = schemas
        .into_iter()
        .map(|schema| {
            dry(&with_schema("schemas", schema.clone()))
                .titled(format!("schema {}", schema.to_string().chars().take(200).collect::<String>()))
        })
        .collect();
    for (title, root) in [
        ("root of another type", json!({"type": "string"})),
        ("root without a type", json!({"properties": {}})),
        (
            "root with metadata name pattern",
            json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"name": {"type": "string", "pattern": "^a"}}}}}),
        ),
        (
            "root with other metadata",
            json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}}),
        ),
        (
            "root with kind",
            json!({"type": "object", "properties": {"kind": {"type": "string"}, "apiVersion": {"type": "string"}}}),
        ),
        ("root nullable", json!({"type": "object", "nullable": true})),
    ] {
        steps.push(
            dry(&crd("schemas", |c| c["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = root))
                .titled(title),
        );
    }
    steps.push(
        post(
            ALL,
            &with_schema("kepts", json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})),
        )
        .titled("keep one"),
    );
    // kube-apiserver establishes the CRD within this watch; the following steps need an established CRD.
    steps.push(get("/api/v1/configmaps?watch=1&timeoutSeconds=2&labelSelector=none%3Dsuch").titled("wait"));
    steps.push(
        merge(format!("{ALL}/kepts.defs.example.com"), &json!({"spec": {"scope": "Cluster"}}))
            .titled("change its scope"),
    );
    steps.push(
        merge(format!("{ALL}/kepts.defs.example.com"), &json!({"spec": {"group": "other.example.com"}}))
            .titled("change its group"),
    );
    steps.push(post(ALL, &with_schema("kepts", json!({"type": "object"}))).titled("again"));
    steps.push(delete(format!("{ALL}/kepts.defs.example.com")).titled("delete it"));
    steps.push(get(format!("{ALL}/none.defs.example.com")));
    Script::new("definitions-schemas", steps)
}

/// Discovery, version and health.
pub fn discovery() -> Script {
    let steps = vec![
        get("/apis/differential.example.com"),
        get("/apis/differential.example.com/v1"),
        get("/apis/differential.example.com/v1beta1"),
        get("/apis/differential.example.com/v9"),
        get("/apis/none.example.com"),
        get("/apis/none.example.com/v1"),
        get("/apis/none.example.com/v1/things"),
        get("/apis/coordination.k8s.io"),
        get("/apis/coordination.k8s.io/v9"),
        get("/apis/events.k8s.io/v1"),
        get("/apis/authorization.k8s.io/v1"),
        get("/apis/apiextensions.k8s.io/v1"),
        get("/api/v2"),
        get("/api/v1/nothings"),
        get("/nothing"),
        get("/healthz"),
        get("/livez"),
        get("/readyz"),
        get("/healthz/ping"),
        get("/healthz/nothing"),
        get("/livez/ping"),
        ScriptStep::new("POST", "/version").titled("post to version"),
        get("/api/v1/namespaces/default/configmaps/a/b/c"),
        get("/apis/differential.example.com/v1/namespaces/d-custom/gadgets"),
        get("/apis/differential.example.com/v1/widgets/x"),
        get("/apis/differential.example.com/v1/namespaces/d-custom/widgets/x/y"),
        get("/apis/differential.example.com/v1/widgets?limit=1").titled("all namespaces"),
        post("/apis/differential.example.com/v1/widgets", &json!({})).titled("create in all namespaces"),
        post("/api/v1/configmaps", &json!({})).titled("create a map in all namespaces"),
        delete("/api/v1/configmaps").titled("delete maps in all namespaces"),
    ];
    Script::new("discovery", steps)
}
