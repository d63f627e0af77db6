//! What tenants may store, and whom their admission configurations apply to.

mod common;

use std::sync::Arc;

use bytes::Bytes;
use common::*;
use futures::future::BoxFuture;
use http_body_util::BodyExt;
use parking_lot::Mutex;
use polis_apiserver::{PlaneSpec, Server, Storage, StorageQuota, UserInfo, WebhookCall, WebhookTransport};
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";
const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";

/// Sends one request to a plane as a user, or as the platform. Returns the code and the response.
async fn send(
    server: &Server,
    plane: &str,
    user: Option<&UserInfo>,
    method: &str,
    path: &str,
    body: &Value,
) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let media = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let mut request = http::Request::builder().method(method).uri(path).header("content-type", media);
    if let Some(user) = user {
        request = request.extension(user.clone());
    }
    let request = request.body(http_body_util::Full::new(Bytes::from(body))).expect("a request");
    let response = server.plane_service(plane).handle(request).await;
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    (code, serde_json::from_slice(&body).unwrap_or_else(|_| String::from_utf8_lossy(&body).into()))
}

fn tenant() -> UserInfo {
    UserInfo::new("alice", ["tenants"])
}

fn mk_map(name: &str, bytes: usize) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": "x".repeat(bytes)}})
}

/// Creates the planes of these projects, each with alice as its administrator.
async fn add_projects(server: &Server, projects: &[&str]) {
    for project in projects {
        server.create_plane(PlaneSpec::project(project, "projects")).await.expect("a plane");
        let rbac = "/apis/rbac.authorization.k8s.io/v1";
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "tenant"},
            "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]});
        let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "tenant"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "tenant"},
            "subjects": [{"kind": "User", "name": "alice", "apiGroup": "rbac.authorization.k8s.io"}]});
        let plane = format!("project:{project}");
        for (plural, object) in [("clusterroles", role), ("clusterrolebindings", binding)] {
            assert_eq!(send(server, &plane, None, "POST", &format!("{rbac}/{plural}"), &object).await.0, 201);
        }
    }
}

/// Objects and bytes of a plane, from the metrics.
async fn usage(server: &Server, plane: &str) -> (u64, u64) {
    let (_, text) = send(server, "", None, "GET", "/metrics", &Value::Null).await;
    let text = text.as_str().expect("a text").to_owned();
    let figure = |unit: &str| {
        let series = format!("polis_plane_storage_{unit}{{plane=\"{plane}\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&series));
        line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {series} in {text}"))
    };
    (figure("objects"), figure("bytes"))
}

async fn create(server: &Server, plane: &str, map: &Value) -> (u16, String) {
    let (code, body) = send(server, plane, Some(&tenant()), "POST", MAPS, map).await;
    (code, body["message"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn a_project_at_its_quota_of_objects_can_delete_and_its_neighbour_can_create() {
    let quota = StorageQuota { objects: 6, bytes: 1 << 20 };
    let server = Server::builder().project_quota(quota).build().await.expect("a server");
    add_projects(&server, &["p", "q"]).await;
    let (start, _) = usage(&server, "project:p").await;
    for n in start..quota.objects {
        assert_eq!(create(&server, "project:p", &mk_map(&format!("m{n}"), 1)).await.0, 201);
    }
    let (code, message) = create(&server, "project:p", &mk_map("more", 1)).await;
    assert_eq!(code, 403);
    assert!(message.contains("it has 6 of 6 objects, and the write adds 1; delete objects"), "{message}");
    assert_eq!(create(&server, "project:q", &mk_map("other", 1)).await.0, 201);
    assert_eq!(send(&server, "project:p", None, "POST", MAPS, &mk_map("platform", 1)).await.0, 201);
    for name in ["platform".to_owned(), format!("m{start}")] {
        let path = format!("{MAPS}/{name}");
        assert_eq!(send(&server, "project:p", Some(&tenant()), "DELETE", &path, &Value::Null).await.0, 200);
    }
    assert_eq!(create(&server, "project:p", &mk_map("more", 1)).await.0, 201);
    let (_, text) = send(&server, "", None, "GET", "/metrics", &Value::Null).await;
    assert!(text.as_str().expect("a text").contains("polis_plane_storage_refusals_total 1"));
}

#[tokio::test]
async fn a_quota_of_bytes_counts_exactly_what_is_stored_and_survives_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("polis.redb");
    let quota = StorageQuota { objects: 1000, bytes: 20_000 };
    let open = || Server::builder().storage(Storage::Redb(file.clone())).project_quota(quota).build();
    let before = {
        let server = open().await.expect("a server");
        add_projects(&server, &["p"]).await;
        let plane = "project:p";
        let (objects, bytes) = usage(&server, plane).await;
        assert_eq!(create(&server, plane, &mk_map("a", 10_000)).await.0, 201);
        let path = format!("{MAPS}/a");
        let request = http::Request::get(path.as_str()).extension(tenant());
        let request = request.body(http_body_util::Full::new(Bytes::new())).expect("a request");
        let shown = server.plane_service(plane).handle(request).await.into_body().collect().await;
        let size = shown.expect("a body").to_bytes().len() as u64;
        assert_eq!(usage(&server, plane).await, (objects + 1, bytes + size));

        let (code, message) = create(&server, plane, &mk_map("b", 10_000)).await;
        assert_eq!(code, 403);
        assert!(message.contains("of 20000 bytes"), "{message}");
        let grow = json!({"data": {"l": "x".repeat(10_000)}});
        assert_eq!(send(&server, plane, Some(&tenant()), "PATCH", &path, &grow).await.0, 403);
        let held = json!({"metadata": {"finalizers": ["example.com/held"]}, "data": {"k": "x"}});
        assert_eq!(send(&server, plane, Some(&tenant()), "PATCH", &path, &held).await.0, 200);
        let (_, left) = usage(&server, plane).await;
        let fill = usize::try_from(quota.bytes - left).expect("small") - 400;
        assert_eq!(create(&server, plane, &mk_map("fill", fill)).await.0, 201);
        let (code, _) = send(&server, plane, Some(&tenant()), "DELETE", &path, &Value::Null).await;
        assert_eq!(code, 200, "a delete that waits for a finalizer makes the object larger");
        usage(&server, plane).await
    };
    let server = eventually("the store to be closed", || async { open().await.ok() }).await;
    assert_eq!(usage(&server, "project:p").await, before);
    assert_eq!(create(&server, "project:p", &mk_map("c", 10_000)).await.0, 403);
}

/// A policy that denies what its expression denies, and its binding.
fn mk_policy(expression: &str) -> [(&'static str, Value); 2] {
    let rule =
        json!({"operations": ["*"], "apiGroups": [""], "apiVersions": ["*"], "resources": ["configmaps"]});
    let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "strict"},
        "spec": {"matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": expression}]}});
    let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "strict"},
        "spec": {"policyName": "strict", "validationActions": ["Deny"]}});
    [("validatingadmissionpolicies", policy), ("validatingadmissionpolicybindings", binding)]
}

async fn add_policy(server: &Server, plane: &str, user: Option<&UserInfo>, expression: &str) {
    for (plural, object) in mk_policy(expression) {
        let (code, body) = send(server, plane, user, "POST", &format!("{ADMISSION}/{plural}"), &object).await;
        assert_eq!(code, 201, "{body}");
    }
}

/// A transport that records the webhooks that it is asked to call, and fails.
#[derive(Clone, Default)]
struct Recorded(Arc<Mutex<Vec<String>>>);

impl WebhookTransport for Recorded {
    fn post(&self, call: WebhookCall, _: Bytes) -> BoxFuture<'static, Result<Bytes, String>> {
        self.0.lock().push(call.url);
        Box::pin(async { Err("connection refused".to_owned()) })
    }
}

#[tokio::test]
async fn what_a_tenant_writes_never_applies_to_the_platform_and_what_the_platform_writes_applies_to_both() {
    let calls = Recorded::default();
    let server = Server::builder().webhooks(calls.clone()).build().await.expect("a server");
    add_projects(&server, &["p"]).await;
    add_policy(&server, "project:p", Some(&tenant()), "false").await;
    let hook = json!({"name": "h.example.com", "clientConfig": {"url": "https://hooks.example.com/all"}, "admissionReviewVersions": ["v1"], "sideEffects": "None",
        "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["*"], "resources": ["configmaps"]}]});
    for kind in ["Mutating", "Validating"] {
        let object = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": format!("{kind}WebhookConfiguration"), "metadata": {"name": "h"}, "webhooks": [hook]});
        let path = format!("{ADMISSION}/{}webhookconfigurations", kind.to_lowercase());
        assert_eq!(send(&server, "project:p", Some(&tenant()), "POST", &path, &object).await.0, 201);
    }
    assert_eq!(send(&server, "project:p", None, "POST", MAPS, &mk_map("a", 1)).await.0, 201);
    assert_eq!(*calls.0.lock(), Vec::<String>::new());
    assert_ne!(create(&server, "project:p", &mk_map("b", 1)).await.0, 201);
    assert_eq!(calls.0.lock().len(), 1);

    add_policy(&server, "@projects", None, "object.metadata.name != 'forbidden'").await;
    let (code, body) = send(&server, "project:p", None, "POST", MAPS, &mk_map("forbidden", 1)).await;
    assert_eq!(code, 422, "{body}");
}

#[tokio::test]
async fn a_suspended_plane_can_be_repaired_and_the_policies_of_the_platform_hold() {
    let folder = tempfile::tempdir().expect("a folder");
    let storage = Storage::Redb(folder.path().join("polis.redb"));
    {
        let server = Server::builder().storage(storage.clone()).build().await.expect("a server");
        add_projects(&server, &["p", "q"]).await;
        add_policy(&server, "@projects", None, "object.metadata.name != 'forbidden'").await;
        for plane in ["project:p", "project:q"] {
            add_policy(&server, plane, Some(&tenant()), "false").await;
            assert_eq!(create(&server, plane, &mk_map("a", 1)).await.0, 422);
        }
    }
    let open =
        || Server::builder().storage(storage.clone()).suspend_admission(["project:p".to_owned()]).build();
    let server = eventually("the store to be closed", || async { open().await.ok() }).await;
    assert_eq!(create(&server, "project:p", &mk_map("a", 1)).await.0, 201);
    assert_eq!(create(&server, "project:p", &mk_map("forbidden", 1)).await.0, 422);
    assert_eq!(create(&server, "project:q", &mk_map("a", 1)).await.0, 422);
}

#[tokio::test]
async fn a_policy_that_exhausts_its_budget_again_and_again_is_quarantined_until_it_is_changed() {
    let server = Server::builder().build().await.expect("a server");
    add_projects(&server, &["p"]).await;
    let plane = "project:p";
    add_policy(&server, plane, Some(&tenant()), "lists.range(2000000000).size() > 0").await;
    for n in 0..10 {
        let (code, message) = create(&server, plane, &mk_map(&format!("m{n}"), 1)).await;
        assert_eq!(code, 422);
        assert!(!message.contains("quarantined"), "{n}: {message}");
    }
    let (code, message) = create(&server, plane, &mk_map("next", 1)).await;
    assert_eq!(code, 422, "it is handled by its failurePolicy");
    assert!(message.contains("quarantined"), "{message}");

    let strict = format!("{POLICIES}/strict");
    let (_, policy) = send(&server, plane, Some(&tenant()), "GET", &strict, &Value::Null).await;
    let condition = &policy["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["status"]),
        (&json!("Quarantined"), &json!("True")),
        "{policy}"
    );
    assert_eq!(condition["reason"], "LimitExceeded");
    let (_, events) =
        send(&server, plane, Some(&tenant()), "GET", "/api/v1/namespaces/default/events", &Value::Null).await;
    let events = events["items"].as_array().expect("a list").clone();
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(
        (&events[0]["reason"], &events[0]["involvedObject"]["name"]),
        (&json!("Quarantined"), &json!("strict"))
    );

    let fixed = json!({"spec": {"validations": [{"expression": "true"}]}});
    assert_eq!(send(&server, plane, Some(&tenant()), "PATCH", &strict, &fixed).await.0, 200);
    assert_eq!(create(&server, plane, &mk_map("next", 1)).await.0, 201);
}
