//! Benchmarks with many members.

use std::time::Instant;

use serde_json::json;

use super::load::{Arrivals, POLICY, SHOP, burst, change};
use super::polis::{TestFederation, name};
use polis_testing::bench::BenchTable;

/// Copies per second when objects are propagated to many members.
pub(crate) async fn fan_out(table: &mut BenchTable, members: usize, objects: usize) {
    let federation = TestFederation::new(members).await;
    let seconds = spread(&federation, objects).await;
    let measure = format!("a burst of objects to {members} members, copies");
    let rate = (members * objects) as f64 / seconds;
    table.add(measure, "1/s", rate).goal(1000.0).higher_is_better();
}

/// Creates objects and returns the seconds until every member has all of them.
async fn spread(federation: &TestFederation, objects: usize) -> f64 {
    let watched = watch(federation).await;
    let begun = Instant::now();
    burst(&federation.hub, "burst", objects).await;
    for arrivals in &watched {
        arrivals.until(|observed| observed.len() == objects).await;
    }
    begun.elapsed().as_secs_f64()
}

async fn watch(federation: &TestFederation) -> Vec<Arrivals> {
    let mut watched = Vec::new();
    for member in &federation.members {
        watched.push(Arrivals::on(member).await);
    }
    watched
}

/// Memory and restart time of a large federation.
pub(crate) async fn large(table: &mut BenchTable, members: usize, objects: usize) {
    let size = format!("{members} members x {objects} objects");
    let empty = resident_mib();
    let mut federation = TestFederation::new(members).await;
    let planes = resident_mib();
    let seconds = spread(&federation, objects).await;
    table.add(format!("{size}: until everything is everywhere"), "s", seconds);
    let held = resident_mib();
    table.add(format!("{size}: memory, hub, members and federation"), "MiB", held - empty);
    table.add(format!("{size}: memory of the empty planes among it"), "MiB", planes - empty);

    // A change during a restart must reach all members.
    federation.end().await;
    change(&federation.hub, "burst-0").await;
    let watched = watch(&federation).await;
    let begun = Instant::now();
    federation.start();
    for arrivals in &watched {
        arrivals.until(|observed| observed["burst-0"].1 == "second").await;
    }
    let seconds = begun.elapsed().as_secs_f64();
    table.add(format!("{size}: a change is everywhere after a restart"), "s", seconds);

    let begun = Instant::now();
    let mut policy = federation.hub.get(&POLICY, SHOP, "p").await.expect("a response").expect("the policy");
    policy["spec"]["placement"] = json!({"clusterAffinity": {"exclude": [name(0)]}});
    federation.hub.replace(&POLICY, &policy).await.expect("changed");
    watched[0].until(|observed| observed.is_empty()).await;
    let seconds = begun.elapsed().as_secs_f64();
    table.add(format!("{size}: a policy has left out one member"), "s", seconds);
}

fn resident_mib() -> f64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: f64 = pages.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or_default();
    pages * 4096.0 / 1024.0 / 1024.0
}
