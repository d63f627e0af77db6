//! The embedded federation beside Karmada, on one machine, in one run.
//!
//! Ours runs in this process over planes of the embedded API server, in memory; Karmada runs as it ships, over real API
//! servers. Both are measured by the same hands: objects are written to the hub, a watch on the member says when they
//! are there. Requests are those that the federation makes itself: ours are counted on their way, Karmada's by the
//! API servers. Prints a table and writes `target/bench/federation.json`.
//!
//! `POLIS_BENCH_MEMBERS` (1,000; 0 leaves it out) and `POLIS_BENCH_OBJECTS` (100) set the size of the large federation; `POLIS_BENCH_PEER=no`
//! leaves Karmada out.

mod karmada;
mod load;
mod polis;
mod rows;
mod scale;

use load::Figures;
use rows::{Better, Rows};

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn main() {
    let run = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    run.block_on(measure());
}

async fn measure() {
    let mut rows = Rows::default();
    let (members, objects) = (number("POLIS_BENCH_MEMBERS", 1_000), number("POLIS_BENCH_OBJECTS", 100));
    // Before anything else: memory that an earlier load gave back would be taken for memory that is not needed.
    if members > 0 {
        scale::large(&mut rows, members, objects).await;
    }
    let ours = {
        let world = polis::World::new(1).await;
        load::measure(&world.hub, &world.members[0], &world, 200, 2_000).await
    };
    println!("embedded: {ours:?}");
    let peer = if std::env::var("POLIS_BENCH_PEER").is_ok_and(|peer| peer == "no") {
        None
    } else {
        let world = karmada::World::new().await;
        let figures = load::measure(&world.hub, &world.member, &world, 30, 60).await;
        println!("Karmada: {figures:?}");
        Some(figures)
    };
    let theirs = |figure: fn(&Figures) -> f64| peer.as_ref().map(figure);
    let lower = Better::Lower;
    rows.add("hub write to object on the member, p50", "ms", ours.p50, theirs(|f| f.p50), Some(5.0), lower);
    rows.add("hub write to object on the member, p99", "ms", ours.p99, theirs(|f| f.p99), None, lower);
    let rate = theirs(|f| f.rate);
    rows.add("a burst of objects to one member", "1/s", ours.rate, rate, Some(1000.0), Better::Higher);
    let requests = theirs(|f| f.requests);
    rows.add("requests per new object, hub and member", "1", ours.requests, requests, Some(4.0), lower);
    let change = theirs(|f| f.change);
    rows.add("requests per change of an object, hub and member", "1", ours.change, change, Some(3.0), lower);
    let idle = theirs(|f| f.idle);
    rows.add("requests in 10 s of idleness, one member", "1", ours.idle, idle, Some(2.0), lower);
    scale::fan_out(&mut rows, 100, 100).await;
    rows.finish("federation");
}
