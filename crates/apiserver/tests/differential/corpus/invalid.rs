//! Invalid requests, and valid ones at the limits.

use serde_json::{Value, json};

use super::subjects::Subject;
use crate::script::{ScriptStep, delete, get, merge, post, put};

pub fn steps(subject: &Subject, namespace: &str) -> Vec<ScriptStep> {
    let all = subject.collection(namespace);
    let one = format!("{all}/{namespace}-m");
    let object = subject.named(&format!("{namespace}-m"));
    let with = |path: &str, value: Value| {
        let mut changed = object.clone();
        let (parent, field) = path.rsplit_once('/').expect("a pointer");
        let place = if parent.is_empty() { Some(&mut changed) } else { changed.pointer_mut(parent) };
        place.expect("a parent")[field] = value;
        changed
    };
    let mut steps = vec![];
    for name in ["", "A", "a_b", "-a", "a.b", "a..b", &"x".repeat(254), "a/b", "a b", ".", "..", "a%b"] {
        steps.push(post(&all, &subject.named(name)).titled(format!("name {name:.20?}")));
        if !matches!(name, "" | "A" | "a_b" | "-a") {
            continue;
        }
    }
    for (title, value) in [
        ("labels with a bad key", json!({"a/b/c": "x"})),
        ("labels with a bad value", json!({"a": "-"})),
        ("labels too long", json!({"a": "x".repeat(64)})),
        ("labels with a number", json!({"a": 1})),
        ("labels as text", json!("a")),
        ("labels null", json!(null)),
    ] {
        steps.push(post(&all, &with("/metadata/labels", value)).titled(title));
    }
    steps.push(delete(&one).titled("clear"));
    for (title, value) in [
        ("a bad annotation key", json!({"a/b/c": "x"})),
        ("an annotation of a number", json!({"a": true})),
        ("large annotations", json!({"a": "x".repeat(262_145)})),
    ] {
        steps.push(post(&all, &with("/metadata/annotations", value)).titled(title));
    }
    for (title, value) in [
        ("a bad finalizer", json!(["a b"])),
        ("an unqualified finalizer", json!(["abc"])),
        ("finalizers as text", json!("abc")),
        ("both ways to delete", json!(["orphan", "foregroundDeletion"])),
    ] {
        steps.push(post(&all, &with("/metadata/finalizers", value)).titled(title));
        steps.push(
            merge(&one, &json!({"metadata": {"finalizers": null}}))
                .titled(format!("clear finalizers after {title}")),
        );
        steps.push(delete(&one).titled(format!("clear after {title}")));
    }
    let owner = |extra: Value| {
        let mut owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "11111111-1111-4111-8111-111111111111"});
        for (key, value) in extra.as_object().expect("fields") {
            owner[key] = value.clone();
        }
        json!([owner])
    };
    for (title, value) in [
        ("an owner without a name", owner(json!({"name": ""}))),
        ("an owner without a uid", owner(json!({"uid": ""}))),
        ("an owner without a kind", owner(json!({"kind": ""}))),
        ("an owner of a broken version", owner(json!({"apiVersion": "a/b/c"}))),
        ("an owner without a version", owner(json!({"apiVersion": ""}))),
        ("an event as owner", owner(json!({"kind": "Event"}))),
        (
            "two controllers",
            json!([{"apiVersion": "v1", "kind": "A", "name": "a", "uid": "u", "controller": true}, {"apiVersion": "v1", "kind": "B", "name": "b", "uid": "w", "controller": true}]),
        ),
    ] {
        steps.push(post(&all, &with("/metadata/ownerReferences", value)).titled(title));
        steps.push(delete(&one).titled(format!("clear after {title}")));
    }
    steps.extend([
        post(&all, &with("/metadata/resourceVersion", json!("5"))).titled("create with a revision"),
        post(&all, &with("/metadata/namespace", json!("elsewhere"))).titled("create for another namespace"),
        post(&all, &with("/kind", json!("Other"))).titled("another kind"),
        post(&all, &with("/apiVersion", json!("other/v1"))).titled("another version"),
        post(&all, &with("/kind", json!(""))).titled("no kind"),
        delete(&one).titled("clear after no kind"),
        post(&all, &with("/apiVersion", json!(""))).titled("no version"),
        delete(&one).titled("clear after no version"),
        post(format!("{all}?fieldValidation=Strict"), &with("/bogus", json!(1))).titled("strict and unknown"),
        post(format!("{all}?fieldValidation=Strict"), &with("/metadata/bogus", json!(1)))
            .titled("strict and unknown in metadata"),
        post(format!("{all}?fieldValidation=Warn"), &with("/bogus", json!(1))).titled("warn and unknown"),
        delete(&one).titled("clear after warn"),
        post(format!("{all}?fieldValidation=Ignore"), &with("/bogus", json!(1))).titled("ignore and unknown"),
        delete(&one).titled("clear after ignore"),
        post(format!("{all}?fieldValidation=Maybe"), &object).titled("invalid validation"),
        ScriptStep::new("POST", format!("{all}?fieldValidation=Strict"))
            .text(format!("{{\"kind\":\"X\",{}", &object.to_string()[1..]))
            .titled("strict and twice"),
        post(format!("{all}?dryRun=Some"), &object).titled("invalid dry run"),
        post(format!("{all}?fieldManager={}", "x".repeat(129)), &object).titled("a manager too long"),
        ScriptStep::new("POST", &all).text("{").titled("broken JSON"),
        ScriptStep::new("POST", &all).text("").titled("no body"),
        ScriptStep::new("POST", &all).text("[]").titled("a list"),
        ScriptStep::new("POST", &all).text("null").titled("null"),
        ScriptStep::new("POST", &all).text("\"x\"").titled("a text"),
        ScriptStep::new("POST", &all).content("text/plain").text("x").titled("plain text"),
        ScriptStep::new("POST", &all).content("application/yaml").text(object.to_string()).titled("YAML"),
        delete(&one).titled("clear after YAML"),
        post(&one, &object).titled("post to a name"),
        put(&all, &object).titled("put to the collection"),
        merge(&all, &object).titled("patch of the collection"),
        post(&all, &object).titled("a valid object"),
        put(format!("{all}/other"), &object).titled("put under another name"),
        put(&one, &with("/metadata/namespace", json!("elsewhere"))).titled("put into another namespace"),
        put(&one, &with("/kind", json!("Other"))).titled("put of another kind"),
        get(format!("{all}/{namespace}-m/nothing")).titled("invalid subresource"),
        get(format!("{}x", all)).titled("invalid resource"),
        ScriptStep::new("OPTIONS", &all).titled("invalid method"),
        delete(&one).titled("end"),
    ]);
    steps
}
