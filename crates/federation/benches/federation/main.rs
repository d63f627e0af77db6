//! Benchmark of the embedded federation and Karmada on one machine.
//!
//! The embedded federation runs in this process over in-memory planes; Karmada runs with its defaults over
//! real kube-apiservers. The load is the same: objects are written to the hub, and a watch on the member
//! reports their arrival. Only requests of the federation are counted: those of the embedded one by its
//! clients, those of Karmada by the API servers. Prints a table and writes `target/bench/federation.json`.
//!
//! `POLIS_BENCH_MEMBERS` (1,000; 0 skips it) and `POLIS_BENCH_OBJECTS` (100) set the size of the large
//! federation; `POLIS_BENCH_PEER=no` skips Karmada.

mod karmada;
mod load;
mod polis;
mod scale;

use load::Figures;
use polis_testing::bench::BenchTable;

/// The name of the peer in the table.
const PEER: &str = "Karmada 1.18.2 with its defaults, over kube-apiserver 1.35.4";

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn main() {
    let run = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    run.block_on(measure());
}

async fn measure() {
    let mut table = BenchTable::default();
    let (members, objects) = (number("POLIS_BENCH_MEMBERS", 1_000), number("POLIS_BENCH_OBJECTS", 100));
    // First, because memory that an earlier load freed would distort the measurement.
    if members > 0 {
        scale::large(&mut table, members, objects).await;
    }
    let ours = {
        let federation = polis::TestFederation::new(1).await;
        load::measure(&federation.hub, &federation.members[0], &federation, 200, 2_000).await
    };
    println!("embedded: {ours:?}");
    let peer = if std::env::var("POLIS_BENCH_PEER").is_ok_and(|peer| peer == "no") {
        None
    } else {
        let federation = karmada::TestFederation::new().await;
        let figures = load::measure(&federation.hub, &federation.member, &federation, 30, 60).await;
        println!("Karmada: {figures:?}");
        Some(figures)
    };
    let theirs = |figure: fn(&Figures) -> f64| peer.as_ref().map(figure);
    table
        .add("hub write to object on the member, p50", "ms", ours.p50)
        .peer(theirs(|f| f.p50), PEER)
        .goal(5.0);
    table.add("hub write to object on the member, p99", "ms", ours.p99).peer(theirs(|f| f.p99), PEER);
    let rate = theirs(|f| f.rate);
    table
        .add("a burst of objects to one member", "1/s", ours.rate)
        .peer(rate, PEER)
        .goal(1000.0)
        .higher_is_better();
    let requests = theirs(|f| f.requests);
    table.add("requests per new object, hub and member", "1", ours.requests).peer(requests, PEER).goal(4.0);
    let change = theirs(|f| f.change);
    table
        .add("requests per change of an object, hub and member", "1", ours.change)
        .peer(change, PEER)
        .goal(3.0);
    let idle = theirs(|f| f.idle);
    table.add("requests in 10 s of idleness, one member", "1", ours.idle).peer(idle, PEER).goal(2.0);
    scale::fan_out(&mut table, 100, 100).await;
    table.finish("federation");
}
