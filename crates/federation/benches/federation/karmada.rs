//! Karmada as it ships, over real API servers, with one member.

use polis_api::kube::Client;
use polis_federation::planes::Api;
use polis_testbed::{Bed, Options};
use serde_json::json;

use super::load::{Counts, NAMESPACE, POLICY, SHOP, mk_policy};

const MEMBER: &str = "dfw";

pub(crate) struct World {
    pub(crate) hub: Api,
    pub(crate) member: Api,
    clients: [Client; 2],
    _bed: Bed,
}

impl World {
    pub(crate) async fn new() -> Self {
        let bed = Bed::up(Options::federation([MEMBER])).await.unwrap_or_else(|error| panic!("{error}"));
        let client = async |plane: &str| bed.client(plane).await.unwrap_or_else(|error| panic!("{error}"));
        let clients = [client("hub").await, client(MEMBER).await];
        let (hub, member) = (Api::new("hub", clients[0].clone()), Api::new(MEMBER, clients[1].clone()));
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SHOP}});
        hub.create(&NAMESPACE, &namespace).await.expect("created");
        hub.create(&POLICY, &mk_policy(json!({}))).await.expect("created");
        Self { hub, member, clients, _bed: bed }
    }
}

impl Counts for World {
    /// The creation of the object on the hub.
    const OURS: f64 = 1.0;

    /// What both API servers have answered, as they count it themselves; watches apart.
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

/// Requests for the kinds that a federation works with: an API server also talks to itself and to its own controllers.
fn counts(line: &str) -> bool {
    let about = ["configmaps", "events", "works", "resourcebindings", "clusters"];
    line.starts_with("apiserver_request_total{")
        && !line.contains("verb=\"WATCH\"")
        && about.iter().any(|resource| line.contains(&format!("resource=\"{resource}\"")))
}

fn value(line: &str) -> Option<f64> {
    line.rsplit(' ').next()?.parse().ok()
}
