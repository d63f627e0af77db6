//! JSON, merge and strategic patches, and applies, of every sort.

use serde_json::{Value, json};

use super::subjects::Subject;
use crate::script::{Step, apply, delete, get, json_patch, merge, post, strategic};

pub fn steps(subject: &Subject, namespace: &str) -> Vec<Step> {
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
        Step::new("PATCH", &one).content("application/json-patch+json").text("[{").called("broken operations"),
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
        merge(format!("{one}?fieldValidation=Strict"), &json!({"bogus": 1})).called("strict and unknown"),
        merge(format!("{one}?fieldValidation=Warn"), &json!({"bogus": 1})).called("warn and unknown"),
        merge(format!("{one}?fieldManager=somebody"), &json!({"metadata": {"labels": {"by": "somebody"}}})).called("by a named manager"),
        merge(format!("{one}?force=true"), &json!({})).called("force without apply"),
        Step::new("PATCH", &one).content("application/merge-patch+json").text("{").called("broken merge"),
        Step::new("PATCH", &one).content("application/json").text("{}").called("a patch as plain JSON"),
        Step::new("PATCH", &one).content("text/plain").text("{}").called("a patch as text"),
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
        apply(&one, &object).called("apply without a manager"),
        apply(format!("{one}?fieldManager=me"), &object).called("apply"),
        apply(format!("{one}?fieldManager=me"), &object).called("apply again"),
        apply(format!("{one}?fieldManager=you&force=true"), &object).called("apply by another"),
        apply(format!("{one}?fieldManager=me"), &json!({"apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": {"name": format!("{namespace}-p")}})).called("apply nothing"),
        apply(format!("{one}?fieldManager=me"), &json!({"apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": {"name": "other"}})).called("apply to another name"),
        apply(format!("{one}?fieldManager=me"), &json!({"kind": object["kind"]})).called("apply without a version"),
        apply(format!("{one}?fieldManager=me"), &json!({"apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": {"managedFields": [{"manager": "x"}]}})).called("apply managed fields"),
        apply(format!("{all}/{namespace}-applied?fieldManager=me"), &subject.named(&format!("{namespace}-applied"))).called("apply what is not there"),
        get(format!("{all}/{namespace}-applied")),
        delete(format!("{all}/{namespace}-applied")),
        delete(&one),
    ]
}
