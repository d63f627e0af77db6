//! The conformance cases on the embedded federation over real planes: the hub and both members are
//! kube-apiservers.

mod runner;
#[allow(dead_code, reason = "cases that disconnect members do not run here")]
mod suite;

use std::time::Duration;

use polis_engine::{Clock, Engine};
use polis_federation::FederationConfig;
use polis_testbed::{Options, TestCluster};
use serde_json::json;
use suite::fixture::{Api, CLUSTER, PLACE, Plane, THING, TestFederation, condition, eventually};

shared_cases!(as_list);

async fn federation() -> TestFederation {
    let options = Options {
        cells: vec!["dfw".to_owned(), "ord".to_owned()],
        controllers: true,
        ..Options::single_plane()
    };
    let test_cluster = TestCluster::up(options).await.unwrap_or_else(|error| panic!("{error}"));
    let client = async |name: &str| test_cluster.client(name).await.unwrap_or_else(|error| panic!("{error}"));
    let plane = async |name: &str| Plane {
        api: Api::new(name, client(name).await),
        name: name.to_owned(),
        observe_for: Duration::from_secs(2),
    };
    let hub = plane(polis_testbed::plane::SINGLE_PLANE).await;
    for file in polis_api::crds::karmada() {
        let mut definition = serde_json::to_value(file.definition()).expect("JSON");
        definition["apiVersion"] = json!("apiextensions.k8s.io/v1");
        definition["kind"] = json!("CustomResourceDefinition");

        hub.create(definition).await;
    }
    eventually("clusters are served", || async { hub.api.list(&CLUSTER).await.ok() }).await;
    let members = vec![plane("dfw").await, plane("ord").await];
    for plane in std::iter::once(&hub).chain(&members) {
        for kind in [&THING, &PLACE] {
            suite::placement::install(plane, kind).await;
        }
    }
    let plane = async |name: &str| Api::new(name, client(name).await).into_plane();
    let mut config = FederationConfig::new(plane(polis_testbed::plane::SINGLE_PLANE).await);
    config.probe_every = Duration::from_secs(1);
    for member in ["dfw", "ord"] {
        config = config.member(member, plane(member).await);
    }
    let mut engine = Engine::new();
    polis_federation::declare(&mut engine, Clock::system(), config);
    tokio::spawn(engine.run(std::future::pending()));
    for member in ["dfw", "ord"] {
        hub.create(json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": member}, "spec": {"syncMode": "Push"}})).await;
        let ready = |cluster: &serde_json::Value| {
            condition(cluster, "Ready")["status"] == "True"
                && cluster["status"]["apiEnablements"].to_string().contains("suite.polis.test")
                && !cluster["spec"]["taints"].to_string().contains("not-ready")
        };
        hub.has(&CLUSTER, "", member, ready).await;
    }
    TestFederation::new(hub, members, None, test_cluster)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_shared_case_holds_over_real_api_servers() {
    runner::run(federation().await, cases()).await;
}
