//! Deletes: preconditions, propagation, finalizers.

use serde_json::{Value, json};

use super::subjects::Subject;
use crate::script::{ScriptStep, delete, get, merge, post};

pub fn steps(subject: &Subject, namespace: &str) -> Vec<ScriptStep> {
    let all = subject.collection(namespace);
    let one = format!("{all}/{namespace}-r");
    let make = || post(&all, &subject.named(&format!("{namespace}-r"))).titled("make");
    let by = |options: Value| delete(&one).body(&options);
    let release = || merge(&one, &json!({"metadata": {"finalizers": null}})).titled("release");
    vec![
        make(),
        by(json!({"preconditions": {"uid": "33333333-3333-4333-8333-333333333333"}})),
        by(json!({"preconditions": {"resourceVersion": "1"}})),
        by(json!({"preconditions": {"uid": "$uid(1)", "resourceVersion": "$rv(1)"}})),
        make(),
        by(json!({"propagationPolicy": "Sideways"})),
        by(json!({"propagationPolicy": "Background", "orphanDependents": true})),
        by(json!({"gracePeriodSeconds": -1})),
        by(json!({"gracePeriodSeconds": 30})),
        make(),
        by(json!({"dryRun": ["All"]})),
        by(json!({"dryRun": ["Some"]})),
        by(json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Foreground"})),
        get(&one).titled("waits for its dependents"),
        by(json!({"propagationPolicy": "Orphan"})).titled("orphan after foreground"),
        by(json!({"propagationPolicy": "Background"})).titled("background after orphan"),
        release(),
        make(),
        by(json!({"propagationPolicy": "Orphan"})),
        get(&one).titled("waits to orphan"),
        release(),
        make(),
        by(json!({"orphanDependents": true})),
        release(),
        make(),
        by(json!({"orphanDependents": false})),
        make(),
        delete(format!("{one}?propagationPolicy=Foreground")),
        release(),
        make(),
        delete(format!("{one}?gracePeriodSeconds=0")),
        ScriptStep::new("DELETE", &one).text("{").titled("broken options"),
        by(json!({"kind": "ConfigMap", "apiVersion": "v1"})).titled("options of another kind"),
        by(json!({"bogus": 1})).titled("unknown options"),
    ]
}
