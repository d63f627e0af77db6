//! A kube-apiserver as a member of an embedded hub, joined as in Karmada by endpoint, token and CA.

#[allow(dead_code, reason = "only the helpers of the suite are used here")]
mod suite;

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use polis_api::kube::config::{KubeConfigOptions, Kubeconfig};
use polis_api::kube::{Client, Config};
use polis_apiserver::{PlaneSpec, Server};
use polis_engine::ResourceScope::{Cluster, Namespaced};
use polis_engine::{Clock, Engine};
use polis_federation::FederationConfig;
use polis_testbed::{Options, TestCluster};
use serde_json::{Value, json};
use suite::fixture::{Api, CLUSTER, CONFIG_MAP, Kind, Plane, SECRET, condition, mk_policy, to, with};

const ACCOUNT: Kind = Kind::known("", "v1", "ServiceAccount", "serviceaccounts", Namespaced);
const ROLE_BINDING: Kind =
    Kind::known("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", Cluster);

/// Endpoint, CA and a bearer token with admin permissions, to join a member.
async fn access(test_cluster: &TestCluster, plane: &Plane, name: &str) -> (String, String, String) {
    let file =
        Kubeconfig::read_from(test_cluster.kubeconfig(name).expect("a kubeconfig")).expect("a kubeconfig");
    let config =
        Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.expect("a configuration");
    let ca: String = config
        .root_cert
        .iter()
        .flatten()
        .map(|der| {
            format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", STANDARD.encode(der))
        })
        .collect();
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "hub"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "namespace": "default", "name": "hub"}],
    });
    plane.api.create(&ROLE_BINDING, &binding).await.expect("a role binding");
    (config.cluster_url.to_string(), ca, token(test_cluster, plane, name).await)
}

/// A token of a new ServiceAccount with admin permissions. It is invalid after the deletion of the account.
async fn token(test_cluster: &TestCluster, plane: &Plane, name: &str) -> String {
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"namespace": "default", "name": "hub"}});
    plane.api.create(&ACCOUNT, &account).await.expect("an account");
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let request = http::Request::post("/api/v1/namespaces/default/serviceaccounts/hub/token")
        .body(request.to_string().into_bytes())
        .expect("a request");
    let response: Value =
        test_cluster.client(name).await.expect("a client").request(request).await.expect("a token");
    response["status"]["token"].as_str().expect("a token").to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_is_joined_by_endpoint_token_and_ca() {
    let test_cluster =
        TestCluster::up(Options::single_plane()).await.unwrap_or_else(|error| panic!("{error}"));
    let name = polis_testbed::plane::SINGLE_PLANE;
    let observe_for = Duration::from_millis(500);
    let member = Plane {
        api: Api::new("real", test_cluster.client(name).await.expect("a client")),
        name: "real".to_owned(),
        observe_for,
    };
    let (endpoint, ca, first) = access(&test_cluster, &member, name).await;

    let server = Server::builder().build().await.expect("a server");
    server.create_plane(PlaneSpec::standalone("hub")).await.expect("a plane");
    for file in polis_api::crds::karmada() {
        server
            .install_crd_in("hub", &serde_json::to_value(file.definition()).expect("JSON"))
            .await
            .expect("a definition");
    }
    let client = || Client::new(server.plane_service("hub"), "default");
    let mut config = FederationConfig::new(Api::new("hub", client()).into_plane());
    config.probe_every = Duration::from_millis(200);
    config.failure_threshold = Duration::from_secs(1);
    let mut engine = Engine::new();
    polis_federation::declare(&mut engine, Clock::system(), config);
    let federation = tokio::spawn(engine.run(std::future::pending()));
    let hub = Plane { api: Api::new("hub", client()), name: "hub".to_owned(), observe_for };
    for namespace in ["karmada-cluster", "shop"] {
        hub.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})).await;
    }
    // A wrong token first: the Cluster reports it, and a valid token is used without a restart.
    let secret = |token: &str| json!({"caBundle": STANDARD.encode(&ca), "token": STANDARD.encode(token)});
    hub.create(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "karmada-cluster", "name": "real"}, "data": secret("wrong")})).await;
    hub.create(json!({
        "apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "real"},
        "spec": {"syncMode": "Push", "apiEndpoint": endpoint, "secretRef": {"namespace": "karmada-cluster", "name": "real"}},
    }))
    .await;
    hub.has(&CLUSTER, "", "real", |cluster| {
        condition(cluster, "CompleteAPIEnablements")["status"] == "False"
            || condition(cluster, "Ready")["status"] == "False"
    })
    .await;
    hub.change(&SECRET, "karmada-cluster", "real", |object| object["data"] = secret(&first)).await;
    let cluster = hub
        .has(&CLUSTER, "", "real", |cluster| condition(cluster, "CompleteAPIEnablements")["status"] == "True")
        .await;
    assert_eq!(condition(&cluster, "Ready")["status"], "True");
    assert!(cluster["status"]["kubernetesVersion"].as_str().is_some_and(|version| version.starts_with('v')));

    let selectors = json!([{"apiVersion": "v1", "kind": "ConfigMap"}]);
    hub.create(with(mk_policy("shop", "p", to(&["real"])), "/spec/resourceSelectors", selectors)).await;
    hub.create(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "shop", "name": "a"}, "data": {"k": "v"}})).await;
    member.has(&CONFIG_MAP, "shop", "a", |copy| copy["data"]["k"] == "v").await;
    hub.change(&CONFIG_MAP, "shop", "a", |object| object["data"]["k"] = json!("w")).await;
    member.has(&CONFIG_MAP, "shop", "a", |copy| copy["data"]["k"] == "w").await;
    member.change(&CONFIG_MAP, "shop", "a", |copy| copy["data"]["k"] = json!("edited")).await;
    member.has(&CONFIG_MAP, "shop", "a", |copy| copy["data"]["k"] == "w").await;

    // A token that becomes invalid: the Cluster reports it, no object is deleted, and a new token is used.
    member.delete(&ACCOUNT, "default", "hub").await;
    let cluster =
        hub.has(&CLUSTER, "", "real", |cluster| condition(cluster, "Ready")["status"] == "False").await;
    let message = condition(&cluster, "Ready")["message"].to_string();
    assert!(message.contains("Unauthorized"), "{message}");
    hub.change(&CONFIG_MAP, "shop", "a", |object| object["data"]["k"] = json!("x")).await;
    let second = token(&test_cluster, &member, name).await;
    hub.change(&SECRET, "karmada-cluster", "real", |object| object["data"] = secret(&second)).await;
    hub.has(&CLUSTER, "", "real", |cluster| condition(cluster, "Ready")["status"] == "True").await;
    member.has(&CONFIG_MAP, "shop", "a", |copy| copy["data"]["k"] == "x").await;

    hub.delete(&CONFIG_MAP, "shop", "a").await;
    member.loses(&CONFIG_MAP, "shop", "a").await;
    federation.abort();
}
