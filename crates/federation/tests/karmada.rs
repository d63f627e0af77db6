//! The conformance cases on Karmada, all on one test cluster.

mod runner;
#[allow(dead_code, reason = "cases for the embedded federation only do not run here")]
mod suite;

use std::time::Duration;

use polis_testbed::{Options, TestCluster};
use suite::fixture::{Api, CLUSTER, PLACE, Plane, THING, TestFederation, condition};

shared_cases!(as_list);

async fn federation() -> TestFederation {
    let test_cluster =
        TestCluster::up(Options::federation(["dfw", "ord"])).await.unwrap_or_else(|error| panic!("{error}"));
    let mut planes = Vec::new();
    for name in ["hub", "dfw", "ord"] {
        let client = test_cluster.client(name).await.unwrap_or_else(|error| panic!("{error}"));
        let plane =
            Plane { api: Api::new(name, client), name: name.to_owned(), observe_for: Duration::from_secs(3) };
        for kind in [&THING, &PLACE] {
            suite::placement::install(&plane, kind).await;
        }
        planes.push(plane);
    }
    let members = planes.split_off(1);
    let hub = planes.remove(0);
    for member in ["dfw", "ord"] {
        let ready = |cluster: &serde_json::Value| {
            condition(cluster, "Ready")["status"] == "True"
                && cluster["status"]["apiEnablements"].to_string().contains("suite.polis.test")
        };
        hub.has(&CLUSTER, "", member, ready).await;
    }
    TestFederation::new(hub, members, None, test_cluster)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_shared_case_holds_on_karmada() {
    runner::run(federation().await, cases()).await;
}
