//! Benchmark of the embedded API server against kube-apiserver with etcd, and of the cost of idle planes.
//!
//! Both servers run as separate processes on one machine, write to the same disk, and are measured over TLS
//! with the same client. Prints a table and writes `target/bench/apiserver.json`. Takes about four minutes.
//! `POLIS_BENCH_PLANES` sets the number of planes (default 10,000), `POLIS_BENCH_SECONDS` the duration of
//! each throughput measurement (default 10).

mod child;
mod load;
mod planes;

use std::time::Duration;

use polis_testbed::{TestCluster, plane::SINGLE_PLANE};
use polis_testing::bench::BenchTable;

use child::Server;
use load::{Figures, Load};

/// The name of the peer in the table.
const PEER: &str = "kube-apiserver 1.35.4 + etcd 3.6.6";

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let run = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    match arguments.get(1).map(String::as_str) {
        Some("serve") => run.block_on(child::serve(arguments[2].as_ref())),
        Some("planes") => run.block_on(planes::run(&arguments[2..])),
        _ => run.block_on(measure()), // cargo passes `--bench`
    }
}

async fn measure() {
    let mut table = BenchTable::default();
    let seconds = Duration::from_secs(number("POLIS_BENCH_SECONDS", 10));

    let folder = tempfile::tempdir().expect("a folder");
    let ours = Server::start(folder.path());
    table.add("start to serving, empty store", "ms", ours.ready.as_secs_f64() * 1000.0).goal(200.0);
    let polis = Load::new((0..load::CONNECTIONS).map(|_| ours.client()).collect()).await.run(seconds).await;
    let polis_memory = ours.resident_kib();
    drop(ours);

    let cluster = TestCluster::single_plane().await.expect("a test bed with one kube-apiserver");
    let mut clients = Vec::new();
    for _ in 0..load::CONNECTIONS {
        clients.push(cluster.client(SINGLE_PLANE).await.expect("a client"));
    }
    let peer = Load::new(clients).await.run(seconds).await;
    let components = cluster.components().expect("components");
    let peer_memory: u64 = components.iter().filter_map(|component| component.resident_kib).sum();
    drop(cluster);

    compare(&mut table, &polis, &peer);
    table
        .add("memory after the load", "MiB", mib(polis_memory))
        .peer(mib(peer_memory), PEER)
        .goal(mib(peer_memory) * 0.1);
    planes::measure(&mut table, number("POLIS_BENCH_PLANES", 10_000));
    table.finish("apiserver");
}

fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

fn compare(table: &mut BenchTable, polis: &Figures, peer: &Figures) {
    for (name, ours) in &polis.verbs {
        let theirs = &peer.verbs[name];
        let about = |what: &str| format!("{name}: {what}");
        let goal = if *name == "create" { 0.2 } else { 1.0 };
        table
            .add(about("latency p50, one client"), "ms", ours.p50)
            .peer(theirs.p50, PEER)
            .goal(theirs.p50 * goal);
        table.add(about("latency p99, one client"), "ms", ours.p99).peer(theirs.p99, PEER).goal(theirs.p99);
        let goal = if *name == "create" { 5.0 } else { 1.0 };
        let clients = load::CLIENTS;
        table
            .add(about(&format!("throughput, {clients} clients")), "1/s", ours.rate)
            .peer(theirs.rate, PEER)
            .goal(theirs.rate * goal)
            .higher_is_better();
    }
    let watchers = load::WATCHERS;
    table
        .add(format!("a write reaches all of {watchers} watchers, p50"), "ms", polis.fan_out)
        .peer(peer.fan_out, PEER)
        .goal(peer.fan_out);
}
