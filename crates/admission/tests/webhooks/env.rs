//! Test environment: a platform with project `shop`, the webhooks, and a proxy that records their access
//! reviews.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::Request;
use polis_admission::{ProjectResolver, Webhook};
use polis_api::compute::Workload;
use polis_api::crds;
use polis_api::kube::api::PostParams;
use polis_api::kube::{self, Api, Client};
use polis_api::networking::LocationBinding;
use polis_apiserver::{PlaneSpec, Server, UserInfo, WebhookCall, WebhookTransport};
use polis_engine::{Engine, FixedPlanes, Handle, Plane, Watch};
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};
use tower::ServiceExt;

use crate::manifests::mk_sandbox;
use crate::proxy::{Authorizer, PlaneProxy};

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
    pub server: Server,
    pub webhook: Webhook,
    pub proxy: PlaneProxy,
    pub handle: Handle,
    _running: DropGuard,
}

/// The CRDs of these tests, built once: deriving their schemas takes longer than most tests.
fn kinds() -> &'static [Value] {
    static KINDS: OnceLock<Vec<Value>> = OnceLock::new();
    KINDS.get_or_init(|| {
        let plurals = ["workloads", "locationbindings", "networks"];
        let all = crds::compute().into_iter().chain(crds::platform()).map(|file| file.crd);
        all.filter(|crd| plurals.iter().any(|plural| crd["spec"]["names"]["plural"] == *plural)).collect()
    })
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
        let server = Server::builder().webhooks(deferred.clone()).build().await.expect("a server");
        for kind in kinds() {
            server.install_crd("projects", kind).await.expect("a definition");
        }
        for project in ["shop", "elsewhere"] {
            server.create_plane(PlaneSpec::project(project, "projects")).await.expect("a plane");
        }
        let proxy = PlaneProxy::new(server.project_service("shop"), Authorizer::Roles);
        let mut engine = Engine::new();
        let planes = engine.planes(
            "project",
            FixedPlanes::new([Plane::in_process("shop", proxy.clone())]),
            [Watch::of::<LocationBinding>()],
        );
        let handle = engine.handle();
        let webhook = Webhook::new(ProjectResolver::by_parent(planes), &handle.registry());
        assert!(deferred.0.set(webhook.clone()).is_ok());
        let stop = CancellationToken::new();
        tokio::spawn(engine.run(stop.clone().cancelled_owned()));
        let env = Self { server, webhook, proxy, handle, _running: stop.drop_guard() };
        for city in ["dfw", "ord"] {
            env.bind(city).await;
        }
        for object in [
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "builder"}, "rules": [
                {"apiGroups": ["compute.datumapis.com"], "resources": ["workloads"], "verbs": ["*"]},
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
        let bound = async {
            while !(env.admits("dfw").await && env.admits("ord").await) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        assert!(
            tokio::time::timeout(Duration::from_secs(30), bound).await.is_ok(),
            "the bindings are not in the cache"
        );
        env
    }

    /// Writes an object as the administrator.
    pub async fn put(&self, plane: &str, object: &Value) {
        let client = Client::new(self.server.plane_service(plane), "default");
        let object: kube::api::DynamicObject = serde_json::from_value(object.clone()).expect("an object");
        let types = object.types.clone().expect("a kind");
        let kind = kube::api::ApiResource::from_gvk(&types.try_into().expect("a kind"));
        Api::<kube::api::DynamicObject>::all_with(client, &kind)
            .create(&PostParams::default(), &object)
            .await
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// Binds a city to the project.
    pub async fn bind(&self, city: &str) {
        self.put("project:shop", &json!({"apiVersion": "networking.datumapis.com/v1alpha", "kind": "LocationBinding", "metadata": {"name": city},
            "spec": {"locationRef": {"name": city}, "topology": {"topology.datum.net/city-code": city}}}))
            .await;
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
        let service = self.server.project_service(project);
        let service = tower::service_fn(move |mut request: Request<kube::client::Body>| {
            let mut ada = UserInfo::new("ada", ["builders"]);
            ada.uid = "u-ada".into();
            ada.extra.insert("example.com/team".into(), vec!["one".into(), "two".into()]);
            request.extensions_mut().insert(ada);
            service.clone().oneshot(request)
        });
        Api::namespaced(Client::new(service, "default"), "default")
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
