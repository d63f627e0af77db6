//! JSON patches, merge patches, strategic merge patches and server-side apply.

use serde_json::{Value, json};

use super::subjects::Subject;
use crate::script::{ScriptStep, apply, delete, get, json_patch, merge, post, strategic};

pub fn steps(subject: &Subject, namespace: &str) -> Vec<ScriptStep> {
    let all = subject.collection(namespace);
    let one = format!("{all}/{namespace}-p");
    let object = subject.named(&format!("{namespace}-p"));
    let ops = |operations: Value| json_patch(&one, &operations);
    vec![
        post(&all, &object),
        ops(json!([])),
        ops(json!([{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}])),
        ops(json!([{"op": "replace", "path": "/metadata/labels/a", "value": "c"}])),
        ops(json!([{"op": "remove", "path": "/metadata/labels/a"}])),
        ops(json!([{"op": "remove", "path": "/metadata/labels/zz"}])),
        ops(json!([{"op": "test", "path": "/metadata/name", "value": "other"}])),
        ops(json!([{"op": "test", "path": "/metadata/name", "value": format!("{namespace}-p")}])),
        ops(json!([{"op": "copy", "from": "/metadata/name", "path": "/metadata/annotations"}])),
        ops(json!([{"op": "add", "path": "/metadata/annotations", "value": {}}, {"op": "copy", "from": "/metadata/name", "path": "/metadata/annotations/n"}])),
        ops(json!([{"op": "move", "from": "/metadata/annotations", "path": "/metadata/labels"}])),
        ops(json!([{"op": "bogus", "path": "/a"}])),
        ops(json!([{"op": "add", "value": 1}])),
        ops(json!({"op": "add"})),
        ops(json!([{"op": "replace", "path": "/metadata/name", "value": "renamed"}])),
        ops(json!([{"op": "replace", "path": "/metadata/namespace", "value": "moved"}])),
        ops(json!([{"op": "replace", "path": "/metadata/uid", "value": "22222222-2222-4222-8222-222222222222"}])),
        ops(json!([{"op": "replace", "path": "/kind", "value": "Other"}])),
        ops(json!([{"op": "replace", "path": "/apiVersion", "value": "other/v9"}])),
        ops(json!([{"op": "remove", "path": "/metadata"}])),
        ops(json!([{"op": "add", "path": "/metadata/labels/-", "value": "x"}])),
        ScriptStep::new("PATCH", &one).content("application/json-patch+json").text("[{").titled("broken operations"),
        merge(&one, &json!({})),
        merge(&one, &json!({"metadata": {"labels": {"m": "1", "n": "2"}}})),
        merge(&one, &json!({"metadata": {"labels": {"m": null}}})),
        merge(&one, &json!({"metadata": {"labels": null}})),
        merge(&one, &json!({"metadata": {"name": "other"}})),
        merge(&one, &json!({"metadata": {"creationTimestamp": null, "uid": null, "generation": 77}})),
        merge(&one, &json!({"kind": "Other"})),
        merge(&one, &json!([])),
        merge(&one, &json!("x")),
        merge(&one, &json!(null)),
        merge(format!("{one}?fieldValidation=Strict"), &json!({"bogus": 1})).titled("strict and unknown"),
        merge(format!("{one}?fieldValidation=Warn"), &json!({"bogus": 1})).titled("warn and unknown"),
        merge(format!("{one}?fieldManager=editor"), &json!({"metadata": {"labels": {"by": "editor"}}})).titled("by a named manager"),
        merge(format!("{one}?force=true"), &json!({})).titled("force without apply"),
        ScriptStep::new("PATCH", &one).content("application/merge-patch+json").text("{").titled("broken merge"),
        ScriptStep::new("PATCH", &one).content("application/json").text("{}").titled("a patch as plain JSON"),
        ScriptStep::new("PATCH", &one).content("text/plain").text("{}").titled("a patch as text"),
        strategic(&one, &json!({"metadata": {"labels": {"s": "1"}}})),
        strategic(&one, &json!({"metadata": {"finalizers": ["example.com/a"]}})),
        strategic(&one, &json!({"metadata": {"finalizers": ["example.com/b"]}})),
        strategic(&one, &json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/a"]}})),
        strategic(&one, &json!({"metadata": {"finalizers": null}})),
        strategic(&one, &json!({"metadata": {"labels": {"$patch": "replace", "only": "me"}}})),
        strategic(&one, &json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "A", "name": "a", "uid": "u1"}]}})),
        strategic(&one, &json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "B", "name": "b", "uid": "u2"}]}})),
        strategic(&one, &json!({"metadata": {"ownerReferences": [{"$patch": "delete", "uid": "u1"}]}})),
        strategic(&one, &json!({"metadata": {"ownerReferences": [{"$patch": "delete"}]}})),
        strategic(&one, &json!({"metadata": {"ownerReferences": null}})),
        apply(&one, &object).titled("apply without a manager"),
        apply(format!("{one}?fieldManager=me"), &object).titled("apply"),
        apply(format!("{one}?fieldManager=me"), &object).titled("apply again"),
        apply(format!("{one}?fieldManager=you&force=true"), &object).titled("apply by another"),
        apply(format!("{one}?fieldManager=me"), &json!({"apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": {"name": format!("{namespace}-p")}})).titled("apply nothing"),
        apply(format!("{one}?fieldManager=me"), &json!({"apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": {"name": "other"}})).titled("apply to another name"),
        apply(format!("{one}?fieldManager=me"), &json!({"kind": object["kind"]})).titled("apply without a version"),
        apply(format!("{one}?fieldManager=me"), &json!({"apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": {"managedFields": [{"manager": "x"}]}})).titled("apply managed fields"),
        apply(format!("{all}/{namespace}-applied?fieldManager=me"), &subject.named(&format!("{namespace}-applied"))).titled("apply a missing object"),
        get(format!("{all}/{namespace}-applied")),
        delete(format!("{all}/{namespace}-applied")),
        delete(&one),
    ]
}
