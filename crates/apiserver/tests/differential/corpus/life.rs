//! The life of one object, from creation to its end.

use serde_json::json;

use super::subjects::Subject;
use crate::script::{Step, delete, get, merge, post, put};

pub fn steps(subject: &Subject, namespace: &str) -> Vec<Step> {
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
        post(&all, &object).called("again"),
        get(&one),
        put(&one, &stale).called("put stale"),
        put(&one, &exact).called("put exact"),
        put(&one, &object).called("put without revision"),
        put(&one, &foreign).called("put with another uid"),
        merge(&one, &json!({"metadata": {"annotations": {"n": "1"}}})),
        merge(&one, &subject.change),
        merge(&one, &subject.change).called("the same change again"),
        merge(&one, &json!({"metadata": {"resourceVersion": "1"}})).called("merge stale"),
        merge(&one, &json!({"metadata": {"finalizers": ["example.com/f"]}})),
        merge(
            &one,
            &json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "11111111-1111-4111-8111-111111111111"}]}}),
        ),
        delete(&one).called("delete held"),
        delete(&one).called("delete held again"),
        merge(&one, &json!({"metadata": {"finalizers": ["example.com/f", "example.com/g"]}}))
            .called("add a finalizer too late"),
        merge(&one, &json!({"metadata": {"finalizers": null}})).called("release"),
        get(&one).called("gone"),
        delete(&one).called("delete gone"),
        merge(&one, &subject.change).called("patch gone"),
        put(format!("{all}/{namespace}-new"), &subject.named(&format!("{namespace}-new")))
            .called("put what is not there"),
        delete(format!("{all}/{namespace}-new")).called("delete what the put may have made"),
        post(format!("{all}?dryRun=All"), &subject.named("dry")),
        get(format!("{all}/dry")),
        post(&all, &subject.named("kept")),
        merge(format!("{all}/kept?dryRun=All"), &subject.change).called("dry merge"),
        delete(format!("{all}/kept?dryRun=All")).called("dry delete"),
        post(format!("{all}?dryRun=All"), &subject.named("kept")).called("dry create of what is there"),
        get(format!("{all}/kept")),
        delete(format!("{all}/kept")),
    ]
}
