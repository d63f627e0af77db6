//! Namespaces: names, finalizers, phases, and requests in a terminating namespace.

use serde_json::json;

use crate::script::{Script, delete, get, merge, post, put};

pub fn script() -> Script {
    let all = "/api/v1/namespaces";
    let object = |name: &str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    let steps = vec![
        post(all, &object("d-ns-a")),
        post(all, &object("d.ns")),
        post(all, &object("D")),
        post(
            all,
            &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "d-ns-b", "labels": {"kubernetes.io/metadata.name": "other"}}, "spec": {"finalizers": ["example.com/x"]}}),
        ),
        post(
            all,
            &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "d-ns-c"}, "spec": {"finalizers": ["unqualified"]}}),
        ),
        merge(
            format!("{all}/d-ns-a"),
            &json!({"metadata": {"labels": {"kubernetes.io/metadata.name": "other"}}}),
        ),
        merge(format!("{all}/d-ns-a"), &json!({"spec": {"finalizers": []}, "status": {"phase": "Odd"}})),
        merge(
            format!("{all}/d-ns-a/status"),
            &json!({"status": {"phase": "Active"}, "metadata": {"labels": {"s": "t"}}}),
        ),
        get(format!("{all}/d-ns-a/status")),
        get(format!("{all}/d-ns-a/finalize")),
        delete(format!("{all}/default")),
        delete(format!("{all}/kube-system")).titled("delete kube-system"),
        delete(format!("{all}/d-ns-a")),
        get(format!("{all}/d-ns-a")),
        post(
            format!("{all}/d-ns-a/configmaps"),
            &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "late"}}),
        ),
        put(
            format!("{all}/d-ns-a/finalize"),
            &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "d-ns-a"}, "spec": {}}),
        ),
        get(format!("{all}/d-ns-a")).titled("finalized"),
        post(
            "/api/v1/namespaces/d-ns-none/configmaps",
            &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}),
        )
        .titled("into a missing namespace"),
        get("/api/v1/namespaces/d-ns-none/configmaps"),
        get("/api/v1/namespaces/d-ns-none"),
        delete(all).titled("delete all namespaces"),
    ];
    Script::new("namespaces", steps)
}
