//! The embedded federation over embedded planes, with a count of its requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::StreamExt;
use polis_api::kube::Client;
use polis_apiserver::{PlaneSpec, Server, Service};
use polis_engine::{Clock, Engine, Kind, Plane, ResourceScope};
use polis_federation::FederationConfig;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tower::ServiceExt;

use super::load::{Api, Counts, NAMESPACE, POLICY, SHOP, mk_policy};

static CLUSTER: Kind =
    Kind::known("cluster.karmada.io", "v1alpha1", "Cluster", "clusters", ResourceScope::Cluster);

pub(crate) struct TestFederation {
    pub(crate) hub: Api,
    pub(crate) members: Vec<Api>,
    requests: Arc<AtomicU64>,
    server: Server,
    running: Option<JoinHandle<()>>,
}

pub(crate) fn name(member: usize) -> String {
    format!("m{member:04}")
}

impl TestFederation {
    /// A hub with ready members, and a policy that propagates all objects to all members.
    pub(crate) async fn new(members: usize) -> Self {
        let server = Server::builder().build().await.expect("a server");
        let names: Vec<String> = (0..members).map(name).collect();
        for plane in std::iter::once("hub").chain(names.iter().map(String::as_str)) {
            server.create_plane(PlaneSpec::standalone(plane)).await.expect("a plane");
        }
        for file in polis_api::crds::karmada() {
            server.install_crd_in("hub", &file.crd).await.expect("a definition");
        }
        let api = |plane: &str| Api::new(plane, Client::new(server.plane_service(plane), "default"));
        let hub = api("hub");
        let mut federation = Self {
            members: names.iter().map(|plane| api(plane)).collect(),
            hub: hub.clone(),
            requests: Arc::default(),
            server,
            running: None,
        };
        federation.start();
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SHOP}});
        hub.create(&NAMESPACE, &namespace).await.expect("created");
        for name in &names {
            let cluster = json!({
                "apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": name}, "spec": {"syncMode": "Push"},
            });
            hub.create(&CLUSTER, &cluster).await.expect("created");
        }
        futures::stream::iter(federation.members.iter().zip(&names))
            .for_each_concurrent(8, |(member, name)| {
                let hub = &hub;
                async move {
                    let there =
                        async || member.get(&NAMESPACE, "", SHOP).await.is_ok_and(|found| found.is_some());
                    while !(is_ready(hub, name).await && there().await) {
                        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                    }
                }
            })
            .await;
        hub.create(&POLICY, &mk_policy(json!({}))).await.expect("created");
        federation
    }

    /// Starts the federation.
    pub(crate) fn start(&mut self) {
        let mut config = FederationConfig::new(self.counted_plane("hub"));
        for member in (0..self.members.len()).map(name) {
            let plane = self.counted_plane(&member);
            config = config.member(member, plane);
        }
        let mut engine = Engine::new();
        polis_federation::declare(&mut engine, Clock::system(), config);
        let running = async move { engine.run(std::future::pending()).await.expect("the engine runs") };
        self.running = Some(tokio::spawn(running));
    }

    /// Stops the federation at any point.
    pub(crate) async fn end(&mut self) {
        if let Some(running) = self.running.take() {
            running.abort();
            drop(running.await);
        }
    }

    fn counted_plane(&self, plane: &str) -> Plane {
        let (service, requests): (Service, _) = (self.server.plane_service(plane), self.requests.clone());
        let service = tower::service_fn(move |request: http::Request<polis_api::kube::client::Body>| {
            // Watches are not counted; probes are.
            if !request.uri().query().is_some_and(|query| query.contains("watch=true")) {
                requests.fetch_add(1, Ordering::Relaxed);
            }
            service.clone().oneshot(request)
        });
        Plane::in_process(plane, service)
    }
}

impl Drop for TestFederation {
    fn drop(&mut self) {
        if let Some(running) = &self.running {
            running.abort();
        }
    }
}

impl Counts for TestFederation {
    const OURS: f64 = 0.0;

    async fn requests(&self) -> f64 {
        self.requests.load(Ordering::Relaxed) as f64
    }
}

async fn is_ready(hub: &Api, name: &str) -> bool {
    let Ok(Some(cluster)) = hub.get(&CLUSTER, "", name).await else { return false };
    let conditions = cluster["status"]["conditions"].as_array();
    let ready = conditions.is_some_and(|all: &Vec<Value>| {
        all.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
    });
    ready
        && cluster["status"]["apiEnablements"].is_array()
        && !cluster["spec"]["taints"].to_string().contains("not-ready")
}
