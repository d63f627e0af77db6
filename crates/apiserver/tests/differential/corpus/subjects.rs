//! The kinds of the corpus. Every topic runs for each of them.

use serde_json::{Value, json};

use crate::script::{Script, get, post};

/// A kind of the corpus: its path and a sample object.
pub struct Subject {
    pub name: &'static str,
    pub group_path: &'static str,
    pub plural: &'static str,
    pub namespaced: bool,
    pub object: Value,
    /// A merge patch that changes it.
    pub change: Value,
}

impl Subject {
    pub fn collection(&self, namespace: &str) -> String {
        if self.namespaced {
            format!("{}/namespaces/{namespace}/{}", self.group_path, self.plural)
        } else {
            format!("{}/{}", self.group_path, self.plural)
        }
    }

    pub fn named(&self, name: &str) -> Value {
        let mut object = self.object.clone();
        object["metadata"]["name"] = name.into();
        object
    }
}

pub fn subjects() -> Vec<Subject> {
    let mk = |name, group_path, plural, namespaced, object, change| Subject {
        name,
        group_path,
        plural,
        namespaced,
        object,
        change,
    };
    vec![
        mk(
            "configmap",
            "/api/v1",
            "configmaps",
            true,
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}, "data": {"a": "b"}}),
            json!({"data": {"c": "d"}}),
        ),
        mk(
            "secret",
            "/api/v1",
            "secrets",
            true,
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {}, "stringData": {"a": "b"}}),
            json!({"stringData": {"c": "d"}}),
        ),
        mk(
            "serviceaccount",
            "/api/v1",
            "serviceaccounts",
            true,
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {}}),
            json!({"automountServiceAccountToken": false}),
        ),
        mk(
            "event",
            "/api/v1",
            "events",
            true,
            json!({"apiVersion": "v1", "kind": "Event", "metadata": {}, "involvedObject": {"kind": "X", "name": "x", "namespace": "$NS"}, "reason": "R", "message": "m", "type": "Normal", "source": {"component": "c"}, "count": 1}),
            json!({"count": 2}),
        ),
        mk(
            "lease",
            "/apis/coordination.k8s.io/v1",
            "leases",
            true,
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {}, "spec": {"holderIdentity": "me", "leaseDurationSeconds": 10}}),
            json!({"spec": {"leaseTransitions": 1}}),
        ),
        mk(
            "role",
            "/apis/rbac.authorization.k8s.io/v1",
            "roles",
            true,
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {}, "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]}),
            json!({"rules": [{"verbs": ["list"], "apiGroups": [""], "resources": ["pods"]}]}),
        ),
        mk(
            "rolebinding",
            "/apis/rbac.authorization.k8s.io/v1",
            "rolebindings",
            true,
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {}, "roleRef": {"kind": "Role", "name": "r"}, "subjects": [{"kind": "User", "name": "u"}]}),
            json!({"subjects": [{"kind": "Group", "name": "g"}]}),
        ),
        mk(
            "clusterrole",
            "/apis/rbac.authorization.k8s.io/v1",
            "clusterroles",
            false,
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {}, "rules": [{"verbs": ["get"], "nonResourceURLs": ["/x"]}]}),
            json!({"rules": [{"verbs": ["list"], "apiGroups": [""], "resources": ["pods"]}]}),
        ),
        mk(
            "widget",
            "/apis/differential.example.com/v1",
            "widgets",
            true,
            json!({"apiVersion": "differential.example.com/v1", "kind": "Widget", "metadata": {}, "spec": {"size": 2, "color": "red"}}),
            json!({"spec": {"color": "blue"}}),
        ),
        mk(
            "gadget",
            "/apis/differential.example.com/v1",
            "gadgets",
            false,
            json!({"apiVersion": "differential.example.com/v1", "kind": "Gadget", "metadata": {}, "spec": {"any": {"x": 1}}}),
            json!({"spec": {"any": {"y": 2}}}),
        ),
    ]
}

/// The custom kinds of the corpus: one with a strict schema, status and scale, and one that preserves unknown
/// fields.
pub fn mk_definitions() -> [Value; 2] {
    let names = |plural: &str, kind: &str| json!({"plural": plural, "singular": kind.to_lowercase(), "kind": kind, "listKind": format!("{kind}List")});
    [
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "widgets.differential.example.com"}, "spec": {
        "group": "differential.example.com", "names": names("widgets", "Widget"), "scope": "Namespaced",
        "versions": [{"name": "v1", "served": true, "storage": true,
            "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector"}},
            "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}, {"name": "Color", "type": "string", "jsonPath": ".spec.color", "priority": 1}],
            "selectableFields": [{"jsonPath": ".spec.color"}],
            "schema": {"openAPIV3Schema": {"type": "object", "required": ["spec"], "properties": {
                "spec": {"type": "object", "properties": {
                    "size": {"type": "integer", "minimum": 0, "maximum": 100, "default": 1},
                    "color": {"type": "string", "enum": ["red", "green", "blue"]},
                    "name": {"type": "string", "minLength": 2, "maxLength": 5, "pattern": "^[a-z]+$"},
                    "ratio": {"type": "number", "exclusiveMinimum": true, "minimum": 0, "multipleOf": 0.5},
                    "on": {"type": "boolean", "nullable": true},
                    "port": {"x-kubernetes-int-or-string": true},
                    "when": {"type": "string", "format": "date-time"},
                    "tags": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set", "maxItems": 3},
                    "parts": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "value": {"type": "string", "default": "none"}}}},
                    "limits": {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 2},
                    "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                    "one": {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": {"type": "string"}, "b": {"type": "string"}}},
                    "replicas": {"type": "integer"}
                }},
                "status": {"type": "object", "properties": {"phase": {"type": "string"}, "replicas": {"type": "integer"}, "selector": {"type": "string"}}}
            }}}}]}}),
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "gadgets.differential.example.com"}, "spec": {
        "group": "differential.example.com", "names": names("gadgets", "Gadget"), "scope": "Cluster",
        "versions": [
            {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}},
            {"name": "v1beta1", "served": true, "storage": false, "deprecated": true, "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}
        ]}}),
    ]
}

/// Creates the custom kinds and gives kube-apiserver time to serve them.
pub fn definitions() -> Script {
    let [widgets, gadgets] = mk_definitions();
    let mut steps = vec![
        post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &widgets).titled("define widgets"),
        post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &gadgets).titled("define gadgets"),
    ];
    // A watch that ends after four seconds: kube-apiserver establishes the CRDs within that time.
    steps.push(get("/api/v1/configmaps?watch=1&timeoutSeconds=4&labelSelector=none%3Dsuch").titled("wait"));
    Script::new("definitions-first", steps)
}
