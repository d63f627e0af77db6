//! The lifecycle of one object, from creation to deletion.

use serde_json::json;

use super::subjects::Subject;
use crate::script::{ScriptStep, delete, get, merge, post, put};

pub fn steps(subject: &Subject, namespace: &str) -> Vec<ScriptStep> {
    let all = subject.collection(namespace);
    let one = format!("{all}/{namespace}-a");
    let object = subject.named(&format!("{namespace}-a"));
    let mut stale = object.clone();
    stale["metadata"]["resourceVersion"] = "1".into();
    let mut exact = object.clone();
    exact["metadata"]["resourceVersion"] = "$rv(1)".into();
    exact["metadata"]["labels"] = json!({"x": "y"});
    let mut foreign = object.clone();
    foreign["metadata"]["uid"] = "00000000-0000-4000-8000-000000000000".into();
    vec![
        post(&all, &object),
        post(&all, &object).titled("again"),
        get(&one),
        put(&one, &stale).titled("put stale"),
        put(&one, &exact).titled("put exact"),
        put(&one, &object).titled("put without revision"),
        put(&one, &foreign).titled("put with another uid"),
        merge(&one, &json!({"metadata": {"annotations": {"n": "1"}}})),
        merge(&one, &subject.change),
        merge(&one, &subject.change).titled("the same change again"),
        merge(&one, &json!({"metadata": {"resourceVersion": "1"}})).titled("merge stale"),
        merge(&one, &json!({"metadata": {"finalizers": ["example.com/f"]}})),
        merge(
            &one,
            &json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "11111111-1111-4111-8111-111111111111"}]}}),
        ),
        delete(&one).titled("delete held"),
        delete(&one).titled("delete held again"),
        merge(&one, &json!({"metadata": {"finalizers": ["example.com/f", "example.com/g"]}}))
            .titled("add a finalizer too late"),
        merge(&one, &json!({"metadata": {"finalizers": null}})).titled("release"),
        get(&one).titled("gone"),
        delete(&one).titled("delete gone"),
        merge(&one, &subject.change).titled("patch gone"),
        put(format!("{all}/{namespace}-new"), &subject.named(&format!("{namespace}-new")))
            .titled("put a missing object"),
        delete(format!("{all}/{namespace}-new")).titled("delete the object of the put"),
        post(format!("{all}?dryRun=All"), &subject.named("dry")),
        get(format!("{all}/dry")),
        post(&all, &subject.named("kept")),
        merge(format!("{all}/kept?dryRun=All"), &subject.change).titled("dry merge"),
        delete(format!("{all}/kept?dryRun=All")).titled("dry delete"),
        post(format!("{all}?dryRun=All"), &subject.named("kept")).titled("dry create of an existing object"),
        get(format!("{all}/kept")),
        delete(format!("{all}/kept")),
    ]
}
