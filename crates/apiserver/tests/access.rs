//! Authentication and authorization over TLS.

mod common;

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicI64, Ordering},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use common::*;
use futures::future::BoxFuture;
use http_body_util::BodyExt as _;
use k8s_openapi::api::{
    admissionregistration::v1::MutatingWebhookConfiguration,
    authorization::v1::{SelfSubjectAccessReview, SubjectAccessReview},
    core::v1::{ConfigMap, ServiceAccount},
    rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
};
use kube::{
    Api, Client, Config,
    api::{ListParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use polis_apimachinery::{
    audit::{AuditLevel, AuditPolicy},
    clock::Clock,
};
use polis_apiserver::{
    Access, Audit, CredentialKind, PlaneSpec, Revocation, Server, UserInfo, WebhookCall, WebhookTransport,
    kubeconfig,
};
use polis_testing::TlsSocket;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn mk<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).expect("an object")
}

/// A server on a free port.
struct TestServer {
    server: Server,
    socket: TlsSocket,
}

async fn serve(access: Access) -> TestServer {
    serve_with(Server::builder().access(access)).await
}

async fn serve_with(builder: polis_apiserver::Builder) -> TestServer {
    let server = builder.build().await.expect("a server");
    let socket = TlsSocket::of(&server).await;
    TestServer { server, socket }
}

impl TestServer {
    async fn client(&self, user: &str, groups: &[&str], prefix: &str) -> Client {
        let certificate = self.socket.authority.client(user, groups).expect("a certificate");
        self.client_of(&kubeconfig(&self.socket.address, prefix, self.socket.authority.pem(), &certificate))
            .await
    }

    async fn client_of(&self, config: &str) -> Client {
        let config = Kubeconfig::from_yaml(config).expect("a kubeconfig");
        Client::try_from(
            Config::from_custom_kubeconfig(config, &KubeConfigOptions::default())
                .await
                .expect("a configuration"),
        )
        .expect("a client")
    }

    async fn with_token(&self, token: &str) -> Client {
        let mut config = Config::new(self.socket.address.parse().expect("a URL"));
        config.root_cert = Some(vec![pem_to_der(self.socket.authority.pem())]);
        config.auth_info.token = Some(token.to_owned().into());
        Client::try_from(config).expect("a client")
    }
}

fn pem_to_der(pem: &str) -> Vec<u8> {
    use rustls_pki_types::{CertificateDer, pem::PemObject};
    CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate").to_vec()
}

fn code(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        other => panic!("{other}"),
    }
}

/// Sends one request to a plane in process as a user. Returns the code and the body of the response.
async fn request(
    server: &Server,
    plane: &str,
    user: &UserInfo,
    method: &str,
    path: &str,
    body: &Value,
) -> (u16, String) {
    use http_body_util::BodyExt;
    let media = if method == "PATCH" { "application/apply-patch+yaml" } else { "application/json" };
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", media)
        .extension(user.clone())
        .body(http_body_util::Full::new(Bytes::from(body.to_string())))
        .expect("a request");
    let response = server.plane_service(plane).handle(request).await;
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    (code, String::from_utf8(body.to_vec()).expect("UTF-8"))
}

/// The revision of the last write to the store.
async fn revision(server: &Server, user: &UserInfo) -> String {
    let (_, list) = request(server, "cell", user, "GET", "/api/v1/namespaces", &Value::Null).await;
    let list: Value = serde_json::from_str(&list).expect("a list");
    list["metadata"]["resourceVersion"].as_str().expect("a revision").to_owned()
}

/// Grants rules to a user in a namespace.
async fn grant(server: &Server, namespace: &str, user: &str, rules: Value) {
    let client = mk_client(server, "cell");
    let name = format!("granted-to-{user}");
    Api::<Role>::namespaced(client.clone(), namespace)
        .create(&PostParams::default(), &mk(json!({"metadata": {"name": name}, "rules": rules})))
        .await
        .expect("a role");
    Api::<RoleBinding>::namespaced(client, namespace).create(&PostParams::default(), &mk(json!({"metadata": {"name": name}, "roleRef": {"kind": "Role", "name": name, "apiGroup": "rbac.authorization.k8s.io"}, "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}]}))).await.expect("a binding");
}

fn mk_cluster_scoped_crd(plural: &str) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": format!("{plural}.example.com")}, "spec": {
        "group": "example.com", "names": {"plural": plural, "singular": plural, "kind": plural.to_uppercase(), "listKind": format!("{}List", plural.to_uppercase())}, "scope": "Cluster",
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}})
}

#[tokio::test]
async fn a_role_in_one_namespace_grants_nothing_outside_of_it() {
    let server = mk_server().await;
    for plural in ["regions", "namespaces"] {
        server.install_crd_in("cell", &mk_cluster_scoped_crd(plural)).await.expect("a definition");
    }
    let admin = UserInfo::admin();
    for (path, object) in [
        ("/api/v1/namespaces", json!({"metadata": {"name": "mine"}})),
        ("/api/v1/namespaces", json!({"metadata": {"name": "theirs"}})),
        ("/api/v1/namespaces/theirs/configmaps", json!({"metadata": {"name": "mine"}})),
        ("/apis/rbac.authorization.k8s.io/v1/clusterroles", json!({"metadata": {"name": "theirs"}})),
        (
            "/apis/example.com/v1/regions",
            json!({"apiVersion": "example.com/v1", "kind": "REGIONS", "metadata": {"name": "mine"}}),
        ),
    ] {
        let (code, body) = request(&server, "cell", &admin, "POST", path, &object).await;
        assert_eq!(code, 201, "{path}: {body}");
    }
    grant(&server, "mine", "ann", json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}])).await;
    let ann = UserInfo::new("ann", [""; 0]);
    let before = revision(&server, &admin).await;
    for (path, code) in [
        ("/api/v1/namespaces/mine/namespaces", 404),
        ("/api/v1/namespaces/mine/namespaces/theirs", 404),
        ("/api/v1/namespaces/mine/namespaces/mine", 404),
        ("/api/v1/namespaces/mine/namespaces/theirs/status", 404),
        ("/api/v1/namespaces/mine/namespaces/theirs/finalize", 404),
        ("/api/v1/namespaces/mine/nodes", 404),
        ("/apis/rbac.authorization.k8s.io/v1/namespaces/mine/clusterroles", 404),
        ("/apis/rbac.authorization.k8s.io/v1/namespaces/mine/clusterroles/theirs", 404),
        ("/apis/apiextensions.k8s.io/v1/namespaces/mine/customresourcedefinitions/widgets.example.com", 404),
        ("/apis/example.com/v1/namespaces/mine/regions", 404),
        ("/apis/example.com/v1/namespaces/mine/regions/mine", 404),
        ("/apis/example.com/v1/namespaces/mine", 404),
        ("/api/v1/namespaces/theirs", 403),
        ("/api/v1/configmaps/mine", 403),
        ("/api/v1/namespaces/theirs/configmaps/mine", 403),
    ] {
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
            let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "theirs", "labels": {"owner": "ann"}}});
            let query = if method == "PATCH" { "?fieldManager=t" } else { "" };
            let (found, body) =
                request(&server, "cell", &ann, method, &format!("{path}{query}"), &object).await;
            assert_eq!(found, code, "{method} {path}: {body}");
        }
    }
    assert_eq!(revision(&server, &admin).await, before, "a request outside of the namespace wrote something");
    let (code, body) = request(&server, "cell", &ann, "GET", "/api/v1/namespaces/mine", &json!(null)).await;
    assert_eq!(code, 200, "a namespace is in its own namespace: {body}");
}

#[tokio::test]
async fn an_apply_or_put_that_creates_needs_the_verb_create() {
    let server = mk_server().await;
    let rule = |verbs: Value| json!([{"verbs": verbs, "apiGroups": ["*"], "resources": ["*"]}]);
    grant(&server, "default", "patcher", rule(json!(["get", "patch", "update"]))).await;
    grant(&server, "default", "creator", rule(json!(["get", "patch", "update", "create"]))).await;
    let user = |name: &str| UserInfo::new(name, [""; 0]);
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a"}});
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "a"}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 1}});
    for (method, path, object) in [
        ("PATCH", "/api/v1/namespaces/default/configmaps/a", &map),
        ("PATCH", "/apis/example.com/v1/namespaces/default/widgets/a", &widget),
        ("PUT", "/apis/coordination.k8s.io/v1/namespaces/default/leases/a", &lease),
    ] {
        let query = if method == "PATCH" { "?fieldManager=t&force=true" } else { "" };
        let uri = format!("{path}{query}");
        let dry = format!("{uri}{}dryRun=All", if query.is_empty() { "?" } else { "&" });
        for uri in [&uri, &dry] {
            let (code, body) = request(&server, "cell", &user("patcher"), method, uri, object).await;
            assert_eq!(code, 403, "{uri}: {body}");
            assert!(body.contains("User \\\"patcher\\\" cannot create resource"), "{body}");
        }
        let (code, body) = request(&server, "cell", &user("creator"), method, &uri, object).await;
        assert_eq!(code, 201, "{uri}: {body}");
        if method == "PATCH" {
            let (code, body) = request(&server, "cell", &user("patcher"), method, &uri, object).await;
            assert_eq!(code, 200, "a change of an existing object: {body}");
        }
    }
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default2"}});
    let uri = "/api/v1/namespaces/default2?fieldManager=t";
    assert_eq!(request(&server, "cell", &user("creator"), "PATCH", uri, &namespace).await.0, 403);
}

#[tokio::test]
async fn an_anonymous_caller_does_not_learn_which_planes_exist() {
    let server = serve(Access::default()).await;
    server.server.create_plane(PlaneSpec::standalone("cell-1")).await.expect("a plane");
    server.server.create_plane(PlaneSpec::project("shop-1", "projects")).await.expect("a project");
    let client = mk_anonymous_client(&server);
    let paths = [
        "",
        "/",
        "/healthz",
        "/version",
        "/readyz/ping",
        "/api",
        "/apis/example.com/v1",
        "/openapi/v2",
        "/x",
        "/api/v1/namespaces",
        "/api/v1/namespaces/default/configmaps/a",
        "/api/v1/a/b/c/d/e",
        "/api/v1/a//b",
        "/api/v1/watch",
        "/api/v1/configmaps?limit=x",
        "/api/v1/configmaps?watch=perhaps",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    ];
    for (prefix, absent) in [
        ("/planes/cell-1", "/planes/cell-2"),
        ("/projects/shop-1/control-plane", "/projects/shop-2/control-plane"),
        (
            "/apis/resourcemanager.miloapis.com/v1alpha1/projects/shop-1/control-plane",
            "/apis/resourcemanager.miloapis.com/v1alpha1/projects/shop-2/control-plane",
        ),
    ] {
        for path in paths {
            for method in ["GET", "POST", "DELETE", "OPTIONS"] {
                for header in [
                    ("accept", "application/json"),
                    ("authorization", "Bearer made-up"),
                    ("impersonate-user", "ann"),
                    ("impersonate-group", "g"),
                ] {
                    let existing = raw(&client, method, &format!("{prefix}{path}"), header).await;
                    let unknown = raw(&client, method, &format!("{absent}{path}"), header).await;
                    assert_eq!(existing, unknown, "{method} {path} {header:?}");
                    assert!(matches!(existing.0, 401 | 403 | 500), "{method} {path}: {existing:?}");
                }
            }
        }
    }
    let admin = server.client("root", &["system:masters"], "").await;
    assert_eq!(raw(&admin, "GET", "/planes/cell-1/version", ("accept", "*/*")).await.0, 200);
    assert_eq!(raw(&admin, "GET", "/planes/cell-2/version", ("accept", "*/*")).await.0, 404);
}

fn mk_anonymous_client(server: &TestServer) -> Client {
    let mut config = Config::new(server.socket.address.parse().expect("a URL"));
    config.root_cert = Some(vec![pem_to_der(server.socket.authority.pem())]);
    Client::try_from(config).expect("a client")
}

/// The code and the body of the response to a request with one header.
async fn raw(client: &Client, method: &str, path: &str, header: (&str, &str)) -> (u16, Bytes) {
    use http_body_util::BodyExt;
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header(header.0, header.1)
        .body(kube::client::Body::empty())
        .expect("a request");
    let response = client.send(request).await.expect("a response");
    let code = response.status().as_u16();
    (code, response.into_body().collect().await.expect("a body").to_bytes())
}

#[tokio::test]
async fn a_role_with_more_permissions_than_can_be_checked_is_refused() {
    let server = mk_server().await;
    let rules = json!([{"verbs": ["*"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"]}]);
    grant(&server, "default", "ann", rules).await;
    let many: Vec<String> = (0..20_000).map(|n| n.to_string()).collect();
    let rule = json!({"verbs": many, "apiGroups": many, "resources": many, "resourceNames": many});
    let role = json!({"metadata": {"name": "large"}, "rules": [rule]});
    let path = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles";
    let own = json!({"metadata": {"name": "own"}, "rules": [{"verbs": ["get"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"]}]});
    let ann = UserInfo::new("ann", [""; 0]);
    // The verb `*` includes `escalate`; without it the permissions are compared.
    let verbs = json!([{"verbs": ["get", "create"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"]}]);
    grant(&server, "default", "bob", verbs).await;
    let bob = UserInfo::new("bob", [""; 0]);
    let (code, body) = request(&server, "cell", &bob, "POST", path, &role).await;
    assert_eq!(code, 403, "{body}");
    assert!(body.contains("the rules grant 160000000000000000 permissions"), "{body}");
    assert_eq!(request(&server, "cell", &bob, "POST", path, &own).await.0, 201);
    assert_eq!(request(&server, "cell", &ann, "POST", path, &role).await.0, 201);
}

/// A webhook that adds a rule to every role and subjects to every binding.
struct Escalating;

impl WebhookTransport for Escalating {
    fn post(&self, _: WebhookCall, review: Bytes) -> BoxFuture<'static, Result<Bytes, String>> {
        Box::pin(async move {
            let review: Value = serde_json::from_slice(&review).map_err(|error| error.to_string())?;
            let request = &review["request"];
            let patch = match request["kind"]["kind"].as_str() {
                Some("Role") => {
                    json!([{"op": "add", "path": "/rules", "value": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]}])
                }
                _ => json!([{"op": "replace", "path": "/roleRef/name", "value": "all"}]),
            };
            let response = json!({"uid": request["uid"], "allowed": true, "patchType": "JSONPatch", "patch": STANDARD.encode(patch.to_string())});
            Ok(json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
                .to_string()
                .into())
        })
    }
}

#[tokio::test]
async fn permissions_that_a_mutating_webhook_adds_to_a_role_are_an_escalation() {
    let server = Server::builder().webhooks(Escalating).build().await.expect("a server");
    server.create_plane(PlaneSpec::standalone("cell")).await.expect("a plane");
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let rules = json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]);
    let ann_rules = json!([{"verbs": ["get", "create", "update", "patch"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings"]}]);
    grant(&server, "default", "ann", ann_rules).await;
    let admin = UserInfo::admin();
    let role = |name: &str, rules: &Value| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": name}, "rules": rules});
    let binding = |name: &str, to: &str| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": name}, "roleRef": {"kind": "Role", "name": to, "apiGroup": "rbac.authorization.k8s.io"}});
    let roles = format!("{rbac}/namespaces/default/roles");
    let bindings = format!("{rbac}/namespaces/default/rolebindings");
    for (path, object) in [
        (&roles, role("all", &rules)),
        (&roles, role("none", &json!([]))),
        (&roles, role("finalized", &rules)),
    ] {
        assert_eq!(request(&server, "cell", &admin, "POST", path, &object).await.0, 201);
    }
    let hook = json!({"name": "h.example.com", "clientConfig": {"url": "https://hooks.example.com/"}, "admissionReviewVersions": ["v1"], "sideEffects": "None",
        "rules": [{"operations": ["*"], "apiGroups": ["rbac.authorization.k8s.io"], "apiVersions": ["*"], "resources": ["*"]}]});
    Api::<MutatingWebhookConfiguration>::all(mk_client(&server, "cell"))
        .create(&PostParams::default(), &mk(json!({"metadata": {"name": "m"}, "webhooks": [hook]})))
        .await
        .expect("a configuration");
    let ann = UserInfo::new("ann", [""; 0]);
    for (method, path, object) in [
        ("POST", roles.clone(), role("more", &json!([]))),
        ("PUT", format!("{roles}/none"), role("none", &json!([]))),
        ("PATCH", format!("{roles}/more?fieldManager=t"), role("more", &json!([]))),
        ("POST", bindings.clone(), binding("more", "none")),
        ("PUT", format!("{bindings}/more"), binding("more", "none")),
    ] {
        let (code, body) = request(&server, "cell", &ann, method, &path, &object).await;
        assert_eq!(code, 403, "{method} {path}: {body}");
        assert!(body.contains("is attempting to grant RBAC permissions not currently held"), "{body}");
    }
    let mut finalized = role("finalized", &rules);
    finalized["metadata"]["finalizers"] = json!(["example.com/f"]);
    let path = format!("{roles}/finalized");
    let (code, body) = request(&server, "cell", &ann, "PUT", &path, &finalized).await;
    assert_eq!(code, 200, "finalizers grant nothing: {body}");
}

#[tokio::test]
async fn a_list_of_one_name_is_authorized_by_that_name() {
    let server = mk_server().await;
    grant(
        &server,
        "default",
        "ann",
        json!([{"verbs": ["list"], "apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["a"]}]),
    )
    .await;
    let ann = UserInfo::new("ann", [""; 0]);
    let admin = mk_client(&server, "cell");
    let maps: Api<ConfigMap> = Api::default_namespaced(admin);
    for name in ["a", "b"] {
        maps.create(&PostParams::default(), &mk(json!({"metadata": {"name": name}}))).await.expect("creates");
    }
    let list = async |query: &str| {
        let path = format!("/api/v1/namespaces/default/configmaps{query}");
        request(&server, "cell", &ann, "GET", &path, &json!(null)).await
    };
    let (code, body) = list("?fieldSelector=metadata.name%3Da").await;
    assert_eq!(code, 200, "{body}");
    let body: Value = serde_json::from_str(&body).expect("a list");
    assert_eq!(body["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(list("?fieldSelector=metadata.name%3Db").await.0, 403);
    assert_eq!(list("?fieldSelector=metadata.name!%3Db").await.0, 403);
    assert_eq!(list("").await.0, 403);
}

#[tokio::test]
async fn a_client_certificate_authenticates_a_user_and_rbac_authorizes_it() {
    let server = serve(Access::default()).await;
    let admin = server.client("root", &["system:masters"], "").await;
    let ann = server.client("ann", &[], "").await;
    let maps: Api<ConfigMap> = Api::namespaced(ann.clone(), "default");
    assert_eq!(code(&maps.list(&ListParams::default()).await.expect_err("nothing granted")), 403);
    let roles: Api<Role> = Api::namespaced(admin.clone(), "default");
    roles.create(&PostParams::default(), &mk(json!({"metadata": {"name": "reader"}, "rules": [{"verbs": ["get", "list"], "apiGroups": [""], "resources": ["configmaps"]}]}))).await.expect("a role");
    let bindings: Api<RoleBinding> = Api::namespaced(admin.clone(), "default");
    bindings.create(&PostParams::default(), &mk(json!({"metadata": {"name": "ann"}, "roleRef": {"kind": "Role", "name": "reader", "apiGroup": "rbac.authorization.k8s.io"}, "subjects": [{"kind": "User", "name": "ann"}]}))).await.expect("a binding");
    maps.list(&ListParams::default()).await.expect("may list now");
    assert_eq!(
        code(&maps.create(&PostParams::default(), &ConfigMap::default()).await.expect_err("may not write")),
        403
    );
    let review = Api::<SelfSubjectAccessReview>::all(ann).create(&PostParams::default(), &mk(json!({"spec": {"resourceAttributes": {"verb": "list", "resource": "configmaps", "namespace": "default"}}}))).await.expect("a review");
    assert!(review.status.expect("an answer").allowed);
    let review = Api::<SubjectAccessReview>::all(admin).create(&PostParams::default(), &mk(json!({"spec": {"user": "ann", "resourceAttributes": {"verb": "delete", "resource": "configmaps", "namespace": "default"}}}))).await.expect("a review");
    assert!(!review.status.expect("an answer").allowed);
}

/// A clock, and the hours that it is ahead.
fn mk_clock() -> (Clock, Arc<AtomicI64>) {
    let hours = Arc::<AtomicI64>::default();
    let ahead = hours.clone();
    let now = move || jiff::Timestamp::now() + jiff::SignedDuration::from_hours(ahead.load(Ordering::SeqCst));
    (Clock::custom(now), hours)
}

#[tokio::test]
async fn a_certificate_that_has_expired_is_refused_on_an_open_connection() {
    let (clock, hours) = mk_clock();
    let server = serve_with(Server::builder().clock(clock)).await;
    let root = server.client("root", &["system:masters"], "").await;
    let maps: Api<ConfigMap> = Api::default_namespaced(root);
    maps.list(&ListParams::default()).await.expect("a valid certificate");
    hours.store(25, Ordering::SeqCst);
    assert_eq!(code(&maps.list(&ListParams::default()).await.expect_err("valid for a day")), 401);
}

#[tokio::test]
async fn a_revoked_certificate_is_refused_at_its_next_request() {
    let server = serve(Access::default()).await;
    let list = async |certificate: &polis_tls::Certificate| {
        let config = kubeconfig(&server.socket.address, "", server.socket.authority.pem(), certificate);
        let maps: Api<ConfigMap> = Api::default_namespaced(server.client_of(&config).await);
        maps.list(&ListParams::default()).await.map_or_else(|error| code(&error), |_| 200)
    };
    let issue = || server.socket.authority.client("root", &["system:masters"]).expect("a certificate");
    let (first, second) = (issue(), issue());
    for certificate in [&first, &second] {
        server.server.record_certificate(&certificate.cert).await.expect("recorded");
        assert_eq!(list(certificate).await, 200);
    }
    let known = server.server.credentials();
    assert_eq!(
        (known.len(), known[0].subject.as_str(), known[0].kind),
        (2, "root", CredentialKind::Certificate)
    );
    let ended = server.server.revoke(&Revocation::Id(known[0].id.clone())).await.expect("revoked");
    assert_eq!(ended, known[..1]);
    let mut codes = [list(&first).await, list(&second).await];
    codes.sort_unstable();
    assert_eq!(codes, [200, 401]);
    server.server.revoke(&Revocation::Subject("root".into())).await.expect("revoked");
    assert_eq!((list(&first).await, list(&second).await), (401, 401));
    // Those of the same second are revoked too: certificates have whole seconds.
    let later = eventually("a certificate issued after the revocation", || async {
        Some(issue()).filter(|issued| server.server.accepts_certificate(&issued.cert))
    });
    assert_eq!(list(&later.await).await, 200);
}

/// The next piece of a watch; `None` at its end.
async fn next_piece(watch: &mut kube::client::Body) -> Option<Bytes> {
    let frame = tokio::time::timeout(std::time::Duration::from_secs(20), watch.frame()).await;
    frame.expect("a piece or the end")?.expect("no error").into_data().ok()
}

async fn watch_maps(client: &Client) -> kube::client::Body {
    let path = "/api/v1/namespaces/default/configmaps?watch=true&resourceVersion=0";
    let request = http::Request::get(path).body(kube::client::Body::empty()).expect("a request");
    let response = client.send(request).await.expect("a response");
    assert_eq!(response.status().as_u16(), 200);
    response.into_body()
}

#[tokio::test]
async fn a_watch_ends_when_its_certificate_is_revoked_or_has_expired() {
    let (clock, hours) = mk_clock();
    let server = serve_with(Server::builder().clock(clock)).await;
    let (ann, bob) = (
        server.client("ann", &["system:masters"], "").await,
        server.client("bob", &["system:masters"], "").await,
    );
    let (mut of_ann, mut of_bob) = (watch_maps(&ann).await, watch_maps(&bob).await);
    let maps: Api<ConfigMap> = Api::namespaced(mk_client(&server.server, ""), "default");
    let create = async |name: &str| {
        maps.create(&PostParams::default(), &mk(json!({"metadata": {"name": name}}))).await.expect("created");
    };
    create("first").await;
    for watch in [&mut of_ann, &mut of_bob] {
        assert!(next_piece(watch).await.is_some());
    }
    // Without an event, at once.
    server.server.revoke(&Revocation::Subject("ann".into())).await.expect("revoked");
    assert_eq!(next_piece(&mut of_ann).await, None);
    create("second").await;
    assert!(next_piece(&mut of_bob).await.is_some());
    hours.store(25, Ordering::SeqCst);
    create("third").await;
    assert_eq!(next_piece(&mut of_bob).await, None, "valid for a day");
}

#[tokio::test]
async fn an_anonymous_user_can_read_health_and_version_only() {
    let server = serve(Access::default()).await;
    let anonymous = mk_anonymous_client(&server);
    anonymous.apiserver_version().await.expect("the version");
    let raw = |path: &str| {
        let request = http::Request::get(path).body(Vec::new()).expect("a request");
        let anonymous = anonymous.clone();
        async move { anonymous.request_text(request).await }
    };
    assert_eq!(raw("/readyz").await.expect("health"), "ok");
    assert_eq!(code(&raw("/apis").await.expect_err("forbidden")), 403);
    assert_eq!(code(&raw("/api/v1/namespaces").await.expect_err("forbidden")), 403);
    let unauthenticated = server.with_token("made up").await;
    assert_eq!(
        code(
            &Api::<ConfigMap>::default_namespaced(unauthenticated)
                .list(&ListParams::default())
                .await
                .expect_err("no such token")
        ),
        401
    );
}

#[tokio::test]
async fn static_tokens_and_service_account_tokens_authenticate_their_users() {
    let access = Access::default().token("sesame", UserInfo::new("ali", ["system:masters"]));
    let server = serve(access).await;
    let ali = server.with_token("sesame").await;
    let accounts: Api<ServiceAccount> = Api::namespaced(ali.clone(), "default");
    accounts
        .create(&PostParams::default(), &mk(json!({"metadata": {"name": "bot"}})))
        .await
        .expect("an account");
    let issued: Value = accounts
        .create_subresource(
            "token",
            "bot",
            &PostParams::default(),
            &json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}}),
        )
        .await
        .expect("a token");
    let token = issued["status"]["token"].as_str().expect("a token").to_owned();
    let bot = server.with_token(&token).await;
    let maps: Api<ConfigMap> = Api::namespaced(bot.clone(), "default");
    assert_eq!(code(&maps.list(&ListParams::default()).await.expect_err("nothing granted")), 403);
    accounts.delete("bot", &kube::api::DeleteParams::default()).await.expect("gone");
    assert_eq!(code(&maps.list(&ListParams::default()).await.expect_err("no account, no token")), 401);
}

#[tokio::test]
async fn a_user_can_grant_permissions_that_the_user_holds() {
    let server = mk_server().await;
    let admin = mk_client(&server, "cell");
    let roles: Api<ClusterRole> = Api::all(admin.clone());
    roles.create(&PostParams::default(), &mk(json!({"metadata": {"name": "granter"}, "rules": [{"verbs": ["*"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"], "resourceNames": []}, {"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"]}]}))).await.expect("a role");
    let bindings: Api<ClusterRoleBinding> = Api::all(admin);
    bindings.create(&PostParams::default(), &mk(json!({"metadata": {"name": "granter"}, "roleRef": {"kind": "ClusterRole", "name": "granter", "apiGroup": "rbac.authorization.k8s.io"}, "subjects": [{"kind": "Group", "name": "granters"}]}))).await.expect("a binding");
    let service =
        tower::ServiceBuilder::new().map_request(|mut request: http::Request<kube::client::Body>| {
            request.extensions_mut().insert(UserInfo::new("gina", ["granters"]));
            request
        });
    let gina = Client::new(service.service(server.plane_service("cell")), "default");
    let roles: Api<ClusterRole> = Api::all(gina);
    // `*` on clusterroles includes `escalate`, so take a verb list that does not.
    let held: ClusterRole = mk(
        json!({"metadata": {"name": "held"}, "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"]}]}),
    );
    roles.create(&PostParams::default(), &held).await.expect("a grant of held permissions");
}

#[tokio::test]
async fn a_project_path_adds_the_parent_project_to_the_user_and_the_audit_log() {
    let lines: Arc<Mutex<Vec<u8>>> = Arc::default();
    let sink = lines.clone();
    let policy = AuditPolicy::standard(AuditLevel::Metadata, "controllers");
    let audit = Audit::to_sink(policy, move |text| {
        sink.lock().expect("unpoisoned").extend_from_slice(text);
        Ok(())
    });
    let server = serve(Access::default().audit(audit.expect("an audit log"))).await;
    server.server.create_plane(PlaneSpec::project("shop", "projects")).await.expect("a project");
    let client = server
        .client(
            "root",
            &["system:masters"],
            "/apis/resourcemanager.miloapis.com/v1alpha1/projects/shop/control-plane",
        )
        .await;
    let maps: Api<ConfigMap> = Api::namespaced(client, "default");
    maps.create(&PostParams::default(), &mk(json!({"metadata": {"name": "a"}}))).await.expect("creates");
    let line: Value = eventually("an event", || async {
        let lines = lines.lock().expect("unpoisoned");
        lines.strip_suffix(b"\n").map(|line| serde_json::from_slice(line).expect("one line of JSON"))
    })
    .await;
    assert_eq!(
        (line["objectRef"]["plane"].as_str(), line["verb"].as_str(), line["responseStatus"]["code"].as_u64()),
        (Some("project:shop"), Some("create"), Some(201))
    );
    assert_eq!(line["user"]["extra"]["iam.miloapis.com/parent-name"], json!(["shop"]));
    assert_eq!(line["sourceIPs"], json!(["127.0.0.1"]));
}
