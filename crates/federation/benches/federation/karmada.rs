//! Karmada with its defaults over real kube-apiservers, with one member.

use polis_api::kube::Client;
use polis_testbed::{Options, TestCluster};
use serde_json::json;

use super::load::{Api, Counts, NAMESPACE, POLICY, SHOP, mk_policy};

const MEMBER: &str = "dfw";

pub(crate) struct TestFederation {
    pub(crate) hub: Api,
    pub(crate) member: Api,
    clients: [Client; 2],
    _test_cluster: TestCluster,
}

impl TestFederation {
    pub(crate) async fn new() -> Self {
        let test_cluster =
            TestCluster::up(Options::federation([MEMBER])).await.unwrap_or_else(|error| panic!("{error}"));
        let client =
            async |plane: &str| test_cluster.client(plane).await.unwrap_or_else(|error| panic!("{error}"));
        let clients = [client("hub").await, client(MEMBER).await];
        let (hub, member) = (Api::new("hub", clients[0].clone()), Api::new(MEMBER, clients[1].clone()));
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SHOP}});
        hub.create(&NAMESPACE, &namespace).await.expect("created");
        hub.create(&POLICY, &mk_policy(json!({}))).await.expect("created");
        Self { hub, member, clients, _test_cluster: test_cluster }
    }
}

impl Counts for TestFederation {
    /// The creation of the object on the hub.
    const OURS: f64 = 1.0;

    /// Requests to both API servers, from their metrics, without watches.
    async fn requests(&self) -> f64 {
        let mut all = 0.0;
        for client in &self.clients {
            let request = http::Request::get("/metrics").body(Vec::new()).expect("a request");
            let text = client.request_text(request).await.expect("metrics");
            all += text.lines().filter(|line| counts(line)).filter_map(value).sum::<f64>();
        }
        all
    }
}

/// Requests for the kinds of a federation: an API server also counts requests of itself and its own
/// controllers.
fn counts(line: &str) -> bool {
    let about = ["configmaps", "events", "works", "resourcebindings", "clusters"];
    line.starts_with("apiserver_request_total{")
        && !line.contains("verb=\"WATCH\"")
        && about.iter().any(|resource| line.contains(&format!("resource=\"{resource}\"")))
}

fn value(line: &str) -> Option<f64> {
    line.rsplit(' ').next()?.parse().ok()
}
