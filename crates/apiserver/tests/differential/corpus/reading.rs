//! Lists and watches: selectors, pages, revisions.

use serde_json::json;

use super::subjects::Subject;
use crate::script::{ScriptStep, delete, get, post};

pub fn steps(subject: &Subject, namespace: &str) -> Vec<ScriptStep> {
    let all = subject.collection(namespace);
    let mut steps = vec![];
    for n in 0..4 {
        let mut object = subject.named(&format!("{namespace}-{n}"));
        object["metadata"]["labels"] =
            json!({"n": n.to_string(), "odd": (n % 2 == 1).to_string(), "of": namespace});
        steps.push(post(&all, &object));
    }
    let mine = format!("labelSelector=of%3D{namespace}");
    steps.push(get(format!("{all}?{mine}")));
    for selector in [
        "n=1",
        "n==1",
        "n!=1",
        "n in (1,2)",
        "n notin (1,2)",
        "n",
        "!n",
        "odd=true,n>1",
        "n<2",
        "n in (",
        "=",
        "a=b=c",
        "n=1,",
        "x in ()",
        "(",
        "n!",
        "a/b/c=d",
        "n=-",
    ] {
        let encoded: String = selector
            .bytes()
            .map(|b| if b.is_ascii_alphanumeric() { char::from(b).to_string() } else { format!("%{b:02X}") })
            .collect();
        steps.push(
            get(format!("{all}?labelSelector=of%3D{namespace}%2C{encoded}"))
                .titled(format!("labels {selector}")),
        );
    }
    for selector in [
        format!("metadata.name={namespace}-1"),
        format!("metadata.name!={namespace}-1"),
        format!("metadata.namespace={namespace}"),
        "metadata.uid=x".into(),
        "spec.color=red".into(),
        "type=Opaque".into(),
        "a".into(),
        "=".into(),
        "metadata.name".into(),
    ] {
        steps.push(
            get(format!("{all}?{mine}&fieldSelector={}", selector.replace('=', "%3D")))
                .titled(format!("fields {selector}")),
        );
    }
    let first = 1 + steps.len();
    steps.extend([
        get(format!("{all}?{mine}&limit=2")),
        get(format!("{all}?{mine}&limit=2&continue=$continue({first})")).titled("the rest"),
        get(format!("{all}?limit=x")).titled("invalid limit"),
        get(format!("{all}?limit=-1&{mine}")).titled("a negative limit"),
        get(format!("{all}?continue=abc")).titled("invalid token"),
        get(format!("{all}?{mine}&resourceVersion=0")),
        get(format!("{all}?{mine}&resourceVersion=0&resourceVersionMatch=Exact")),
        get(format!("{all}?{mine}&resourceVersion=0&resourceVersionMatch=NotOlderThan")),
        get(format!("{all}?{mine}&resourceVersion=$rv(1)&resourceVersionMatch=Exact")).titled("at an exact revision"),
        get(format!("{all}?{mine}&resourceVersion=$rv(1)&resourceVersionMatch=NotOlderThan")).titled("not older"),
        get(format!("{all}?{mine}&resourceVersion=$rv(1)")).titled("from a revision"),
        get(format!("{all}?resourceVersionMatch=Exact")),
        get(format!("{all}?resourceVersionMatch=Some&resourceVersion=1")),
        get(format!("{all}?resourceVersion=x")),
        get(format!("{all}?resourceVersion=$rv(1)&continue=$continue({first})")).titled("a revision and a token"),
        get(format!("{all}/{namespace}-1?resourceVersion=0")).titled("get at any revision"),
        get(format!("{all}/{namespace}-1?resourceVersion=x")).titled("get at no revision"),
        get(format!("{all}?watch=1&timeoutSeconds=1&{mine}&resourceVersion=$rv(1)")).titled("watch from a revision"),
        get(format!("{all}?watch=1&timeoutSeconds=1&{mine}")).titled("watch from the present"),
        get(format!("{all}?watch=1&timeoutSeconds=1&{mine}&resourceVersion=0")).titled("watch from any"),
        get(format!("{all}?watch=1&timeoutSeconds=1&{mine}&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true")).titled("watch with initial events"),
        get(format!("{all}?watch=1&timeoutSeconds=1&{mine}&sendInitialEvents=true")).titled("initial events without a match"),
        get(format!("{all}?watch=1&timeoutSeconds=1&{mine}&resourceVersionMatch=NotOlderThan")).titled("a match without initial events"),
        get(format!("{all}?watch=1&timeoutSeconds=1&{mine}&sendInitialEvents=true&resourceVersionMatch=NotOlderThan")).titled("initial events without bookmarks"),
        get(format!("{all}?watch=1&timeoutSeconds=1&resourceVersion=x")).titled("watch from no revision"),
        get(format!("{all}?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3D{namespace}-2")).titled("watch one"),
        get(format!("{all}?sendInitialEvents=true")).titled("initial events of a list"),
        delete(format!("{all}?{mine}")).titled("delete all"),
        get(format!("{all}?{mine}")).titled("nothing left"),
    ]);
    steps
}
