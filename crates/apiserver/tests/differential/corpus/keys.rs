//! Validation of single kinds: keys of ConfigMaps and Secrets, numbers of Leases, both groups of Events.

use serde_json::json;

use super::opening;
use crate::script::{Script, delete, get, merge, post};

pub fn script() -> Script {
    let mut steps = opening("d-keys");
    let maps = "/api/v1/namespaces/d-keys/configmaps";
    let secrets = "/api/v1/namespaces/d-keys/secrets";
    for (n, data) in [
        json!({"a/b": "x"}),
        json!({"": "x"}),
        json!({"..": "x"}),
        json!({"..x": "x"}),
        json!({".": "x"}),
        json!({"ok.key-1_A": ""}),
        json!({"a": 1}),
        json!({"a": null}),
        json!({"a": {"b": 1}}),
        json!([]),
        json!({}),
    ]
    .into_iter()
    .enumerate()
    {
        steps.push(post(maps, &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("k{n}")}, "data": data})));
        steps.push(post(secrets, &json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": format!("k{n}")}, "stringData": data})));
    }
    steps.extend([
        post(maps, &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "both"}, "data": {"a": "x"}, "binaryData": {"a": "eA=="}})),
        post(maps, &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "broken"}, "binaryData": {"a": "%%"}})),
        post(maps, &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "fixed"}, "immutable": true, "data": {"a": "x"}})),
        merge(format!("{maps}/fixed"), &json!({"data": {"a": "y"}})),
        merge(format!("{maps}/fixed"), &json!({"immutable": false})),
        merge(format!("{maps}/fixed"), &json!({"metadata": {"labels": {"still": "possible"}}})),
        post(secrets, &json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "data"}, "data": {"a": "not base64!"}})),
        post(secrets, &json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "typed"}, "type": "example.com/t", "data": {"a": "eA=="}})),
        merge(format!("{secrets}/typed"), &json!({"type": "other"})),
        merge(format!("{secrets}/typed"), &json!({"stringData": {"a": "new"}})),
        post(secrets, &json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tls"}, "type": "kubernetes.io/tls", "data": {"tls.crt": "eA=="}})),
        post(secrets, &json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "basic"}, "type": "kubernetes.io/basic-auth", "data": {}})),
        post(secrets, &json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "sa"}, "type": "kubernetes.io/service-account-token"})),
        post(maps, &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "large"}, "data": {"a": "x".repeat(1_048_577)}})).titled("a large map"),
    ]);
    let leases = "/apis/coordination.k8s.io/v1/namespaces/d-keys/leases";
    for (n, spec) in [
        json!({"leaseDurationSeconds": 0}),
        json!({"leaseDurationSeconds": "x"}),
        json!({"leaseTransitions": -1}),
        json!({"holderIdentity": ""}),
        json!({"renewTime": "2026-01-01T00:00:00.123456Z"}),
        json!({"renewTime": "2026-01-01T00:00:00Z"}),
        json!({"renewTime": "yesterday"}),
        json!({"preferredHolder": "x"}),
        json!({"strategy": "OldestEmulationVersion"}),
    ]
    .into_iter()
    .enumerate()
    {
        steps.push(post(leases, &json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": format!("l{n}")}, "spec": spec})));
    }
    let events = "/apis/events.k8s.io/v1/namespaces/d-keys/events";
    steps.extend([
        post(events, &json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e1"}, "eventTime": "2026-01-01T00:00:00.000001Z", "reportingController": "example.com/c", "reportingInstance": "i", "action": "Do", "reason": "Why", "regarding": {"kind": "X", "name": "x", "namespace": "d-keys"}, "note": "n", "type": "Normal"})),
        get(format!("{events}/e1")),
        get("/api/v1/namespaces/d-keys/events/e1"),
        get(format!("{events}?fieldSelector=regarding.name%3Dx")),
        get("/api/v1/namespaces/d-keys/events?fieldSelector=involvedObject.name%3Dx"),
        get("/api/v1/namespaces/d-keys/events?fieldSelector=involvedObject.name%3Dy"),
        post(events, &json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e2"}, "reason": "Why"})),
        delete(format!("{events}/e1")),
    ]);
    Script::new("keys", steps)
}
