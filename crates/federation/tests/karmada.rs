//! The suite on real Karmada: the same cases, the same assertions. One bed serves all of them.

#[allow(dead_code, reason = "cases of the embedded federation alone are not run here")]
mod suite;
mod together;

use std::time::Duration;

use polis_federation::planes::Api;
use polis_testbed::{Bed, Options};
use suite::world::{CLUSTER, PLACE, Plane, THING, World, condition};

shared_cases!(as_list);

async fn world() -> World {
    let bed = Bed::up(Options::federation(["dfw", "ord"])).await.unwrap_or_else(|error| panic!("{error}"));
    let mut planes = Vec::new();
    for name in ["hub", "dfw", "ord"] {
        let client = bed.client(name).await.unwrap_or_else(|error| panic!("{error}"));
        let plane =
            Plane { api: Api::new(name, client), name: name.to_owned(), quiet: Duration::from_secs(3) };
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
    World::new(hub, members, None, bed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_shared_case_holds_on_karmada() {
    together::run(world().await, cases()).await;
}
