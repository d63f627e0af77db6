//! Authentication and authorization over TLS.

mod common;

use std::sync::{Arc, Mutex};

use common::*;
use k8s_openapi::api::{
    authorization::v1::{SelfSubjectAccessReview, SubjectAccessReview},
    core::v1::{ConfigMap, ServiceAccount},
    rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
};
use kube::{
    Api, Client, Config,
    api::{ListParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use polis_apiserver::{Access, Authority, PlaneSpec, Server, ServerTls, UserInfo, kubeconfig};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn mk<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).expect("an object")
}

/// A server on a free port, and the authority of its certificates.
struct TestServer {
    server: Server,
    authority: Authority,
    url: String,
    _serving: Serving,
}

struct Serving(tokio::task::JoinHandle<()>);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn serve(access: Access) -> TestServer {
    let authority = Authority::new().expect("an authority");
    let server = Server::builder().access(access).build().await.expect("a server");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("https://{}", listener.local_addr().expect("an address"));
    let tls =
        ServerTls::new(&authority.server(&["127.0.0.1"]).expect("a certificate"), Some(authority.pem()))
            .expect("TLS");
    let serving = server.clone();
    let task = tokio::spawn(async move { serving.serve(listener, tls).await });
    TestServer { server, authority, url, _serving: Serving(task) }
}

impl TestServer {
    async fn client(&self, user: &str, groups: &[&str], prefix: &str) -> Client {
        let certificate = self.authority.client(user, groups).expect("a certificate");
        self.client_of(&kubeconfig(&self.url, prefix, self.authority.pem(), &certificate)).await
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
        let mut config = Config::new(self.url.parse().expect("a URL"));
        config.root_cert = Some(vec![pem_to_der(self.authority.pem())]);
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

#[tokio::test]
async fn an_anonymous_user_can_read_health_and_version_only() {
    let server = serve(Access::default()).await;
    let mut config = Config::new(server.url.parse().expect("a URL"));
    config.root_cert = Some(vec![pem_to_der(server.authority.pem())]);
    let anonymous = Client::try_from(config).expect("a client");
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
    let lines: Arc<Mutex<Vec<String>>> = Arc::default();
    let sink = lines.clone();
    let server = serve(
        Access::default()
            .audit(Arc::new(move |line: &str| sink.lock().expect("unpoisoned").push(line.to_owned()))),
    )
    .await;
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
    let line: Value =
        serde_json::from_str(lines.lock().expect("unpoisoned").last().expect("a line")).expect("JSON");
    assert_eq!(
        (line["plane"].as_str(), line["verb"].as_str(), line["code"].as_u64()),
        (Some("project:shop"), Some("create"), Some(201))
    );
    assert_eq!(line["extra"]["iam.miloapis.com/parent-name"], json!(["shop"]));
}
