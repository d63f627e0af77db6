//! Test environment: a platform with project `shop`, the webhooks, and a proxy that records their access
//! reviews.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures::future::BoxFuture;
use polis_admission::{ProjectResolver, Webhook};
use polis_api::compute::Workload;
use polis_api::kube::{Api, Client};
use polis_api::networking::LocationBinding;
use polis_apiserver::{UserInfo, WebhookCall, WebhookTransport};
use polis_engine::{FixedPlanes, Watch};
use polis_testing::builders::mk_location_binding;
use polis_testing::{Cluster, create_untyped, eventually};
use serde_json::{Value, json};

use crate::manifests::mk_sandbox;
use crate::proxy::{Authorizer, ReviewProxy};

/// The in-process webhooks, set after the API server is created.
#[derive(Clone, Default)]
struct DeferredWebhook(Arc<OnceLock<Webhook>>);

impl WebhookTransport for DeferredWebhook {
    fn post(&self, call: WebhookCall, review: Bytes) -> BoxFuture<'static, Result<Bytes, String>> {
        let deferred = self.clone();
        Box::pin(async move {
            let webhook = deferred.0.get().ok_or("the webhooks are not set yet")?;
            let uri: http::Uri = call.url.parse().map_err(|error| format!("{}: {error}", call.url))?;
            webhook.review(uri.path(), &review).await.map_err(|error| error.message)
        })
    }
}

/// A platform with the projects `shop`, which the webhooks know, and `elsewhere`, which they do not.
pub struct TestEnv {
    pub cluster: Cluster,
    pub webhook: Webhook,
    pub proxy: ReviewProxy,
}

/// A file of `deploy/`.
pub fn deployed(path: &str) -> Value {
    let root: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(path);
    let text = std::fs::read_to_string(&root).unwrap_or_else(|error| panic!("{}: {error}", root.display()));
    serde_saphyr::from_str(&text).expect("YAML")
}

impl TestEnv {
    /// A platform whose project `shop` has the cities `dfw` and `ord`, and a user `ada` who may use `blue`.
    pub async fn new() -> Self {
        let deferred = DeferredWebhook::default();
        let builder = Cluster::builder().project("shop").project("elsewhere");
        let mut cluster = builder.server(|server| server.webhooks(deferred.clone())).build().await;
        let proxy = ReviewProxy::new(cluster.server(), Authorizer::Roles);
        let shop = FixedPlanes::new([proxy.plane("shop")]);
        cluster.start("webhooks", |engine| {
            let planes = engine.planes("project", shop, [Watch::of::<LocationBinding>()]);
            let webhook = Webhook::new(ProjectResolver::by_parent(planes), &engine.handle().registry());
            assert!(deferred.0.set(webhook).is_ok());
        });
        let webhook = deferred.0.get().expect("it was set").clone();
        let env = Self { cluster, webhook, proxy };
        for city in ["dfw", "ord"] {
            env.bind(city).await;
        }
        for object in [
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "builder"}, "rules": [
                {"apiGroups": ["compute.datumapis.com"], "resources": ["workloads"], "verbs": ["*"]},
                {"apiGroups": [""], "resources": ["configmaps", "secrets"], "resourceNames": ["open", "large"], "verbs": ["get"]},
                {"apiGroups": ["networking.datumapis.com"], "resources": ["networks"], "resourceNames": ["blue"], "verbs": ["use"]}]}),
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "builder"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "builder"},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ada"}]}),
        ] {
            for project in ["shop", "elsewhere"] {
                env.put(&format!("project:{project}"), &object).await;
            }
        }
        for file in ["base/webhook/mutating.yaml", "base/webhook/validating.yaml"] {
            env.put("@projects", &deployed(file)).await;
        }
        eventually("the bindings are in the cache", async || {
            (env.admits("dfw").await && env.admits("ord").await).then_some(())
        })
        .await;
        env
    }

    /// Writes an object as the administrator.
    pub async fn put(&self, plane: &str, object: &Value) {
        let client = Client::new(self.cluster.server().plane_service(plane), "default");
        create_untyped(&client, object).await;
    }

    /// Binds a city to the project.
    pub async fn bind(&self, city: &str) {
        self.cluster.plane("shop").create(&mk_location_binding(city)).await.expect("a binding");
    }

    /// Whether the webhooks admit a workload in a city.
    async fn admits(&self, city: &str) -> bool {
        let review = mk_review("CREATE", &mk_sandbox("probe", &[city]), &Value::Null);
        let response =
            self.webhook.review(polis_admission::VALIDATE_PATH, review.to_string().as_bytes()).await;
        self.proxy.take_reviews();
        let response: Value = serde_json::from_slice(&response.expect("a response")).expect("JSON");
        response["response"]["allowed"] == true
    }

    /// The Workloads of a project, for user `ada`.
    pub fn workloads(&self, project: &str) -> Api<Workload> {
        let mut ada = UserInfo::new("ada", ["builders"]);
        ada.uid = "u-ada".into();
        ada.extra.insert("example.com/team".into(), vec!["one".into(), "two".into()]);
        Api::namespaced(self.cluster.proxy.client(project, Some(ada)), "default")
    }
}

/// A review as an API server sends it.
pub fn mk_review(operation: &str, object: &Value, old: &Value) -> Value {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "q-1", "operation": operation, "namespace": "default", "name": "web", "object": object, "oldObject": old,
        "kind": {"group": "compute.datumapis.com", "version": "v1alpha", "kind": "Workload"},
        "resource": {"group": "compute.datumapis.com", "version": "v1alpha", "resource": "workloads"},
        "userInfo": {"username": "ada", "groups": ["system:authenticated"], "extra": {
            "iam.miloapis.com/parent-api-group": ["resourcemanager.miloapis.com"],
            "iam.miloapis.com/parent-type": ["Project"], "iam.miloapis.com/parent-name": ["shop"]}}}})
}
