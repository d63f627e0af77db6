//! Reviews, roles and bindings.

use serde_json::{Value, json};

use crate::{
    corpus::opening,
    script::{Script, post},
};

pub fn scripts() -> Vec<Script> {
    vec![reviews(), roles()]
}

fn reviews() -> Script {
    let access = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let own = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let review = |kind: &str, spec: Value| json!({"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec});
    let mut steps = vec![
        post(
            own,
            &review(
                "SelfSubjectAccessReview",
                json!({"nonResourceAttributes": {"path": "/x", "verb": "get"}}),
            ),
        ),
        post(own, &review("SelfSubjectAccessReview", json!({}))),
        post(
            own,
            &review(
                "SelfSubjectAccessReview",
                json!({"resourceAttributes": {"verb": "get"}, "nonResourceAttributes": {"path": "/x", "verb": "get"}}),
            ),
        ),
        post(
            access,
            &review(
                "SubjectAccessReview",
                json!({"user": "unknown", "resourceAttributes": {"verb": "get", "resource": "pods"}}),
            ),
        ),
        post(
            access,
            &review(
                "SubjectAccessReview",
                json!({"resourceAttributes": {"verb": "get", "resource": "pods"}}),
            ),
        ),
        post(access, &review("SubjectAccessReview", json!({"user": "unknown"}))),
        post(
            "/apis/authorization.k8s.io/v1/namespaces/default/localsubjectaccessreviews",
            &review(
                "LocalSubjectAccessReview",
                json!({"user": "unknown", "resourceAttributes": {"namespace": "other", "verb": "get"}}),
            ),
        ),
        post(
            "/apis/authentication.k8s.io/v1/tokenreviews",
            &json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {}}),
        ),
    ];
    steps.push(crate::script::get(own).titled("list reviews"));
    steps.push(crate::script::get(format!("{own}/x")).titled("get a review"));
    Script::new("reviews", steps)
}

fn roles() -> Script {
    let mut steps = opening("d-roles");
    let base = "/apis/rbac.authorization.k8s.io/v1";
    let role = |kind: &str, name: &str, rules: Value| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "rules": rules});
    for (n, rules) in [
        json!([]),
        json!(null),
        json!([{}]),
        json!([{"verbs": []}]),
        json!([{"verbs": ["get"]}]),
        json!([{"verbs": ["get"], "apiGroups": [""]}]),
        json!([{"verbs": ["get"], "resources": ["a"]}]),
        json!([{"verbs": ["get"], "nonResourceURLs": ["/x"]}]),
        json!([{"verbs": ["get"], "nonResourceURLs": ["/x"], "resources": ["a"], "apiGroups": [""]}]),
        json!([{"verbs": ["get"], "apiGroups": ["*"], "resources": ["*"], "resourceNames": ["n"]}]),
        json!("text"),
    ]
    .into_iter()
    .enumerate()
    {
        steps.push(post(
            format!("{base}/namespaces/d-roles/roles"),
            &role("Role", &format!("r{n}"), rules.clone()),
        ));
        steps.push(post(
            format!("{base}/clusterroles?dryRun=All"),
            &role("ClusterRole", &format!("d-roles-r{n}"), rules),
        ));
    }
    let binding = |kind: &str, name: &str, reference: Value, subjects: Value| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "roleRef": reference, "subjects": subjects});
    let references = [
        json!({"kind": "Role", "name": "r0"}),
        json!({"kind": "ClusterRole", "name": "view"}),
        json!({"kind": "Other", "name": "x"}),
        json!({"kind": "Role"}),
        json!({"apiGroup": "other", "kind": "Role", "name": "x"}),
        json!({}),
    ];
    let subjects = [
        json!([]),
        json!(null),
        json!([{"kind": "User", "name": "u"}]),
        json!([{"kind": "User"}]),
        json!([{"kind": "ServiceAccount", "name": "s"}]),
        json!([{"kind": "ServiceAccount", "name": "s", "namespace": "n", "apiGroup": "x"}]),
        json!([{"kind": "Group", "name": "g", "apiGroup": ""}]),
        json!([{"kind": "Robot", "name": "r"}]),
    ];
    for (i, reference) in references.iter().enumerate() {
        for (j, subject) in subjects.iter().enumerate() {
            steps.push(post(
                format!("{base}/namespaces/d-roles/rolebindings?dryRun=All"),
                &binding("RoleBinding", &format!("b{i}{j}"), reference.clone(), subject.clone()),
            ));
            steps.push(post(
                format!("{base}/clusterrolebindings?dryRun=All"),
                &binding("ClusterRoleBinding", &format!("d-b{i}{j}"), reference.clone(), subject.clone()),
            ));
        }
    }
    Script::new("roles", steps)
}
