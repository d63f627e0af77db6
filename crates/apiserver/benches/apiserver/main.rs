//! The embedded API server beside kube-apiserver and etcd, on one machine, in one run, and what an idle plane costs.
//!
//! Both servers are processes of their own, durable on the same disk, reached over TLS by the same client. Prints a
//! table and writes `target/bench/apiserver.json`. Takes about four minutes; `POLIS_BENCH_PLANES` sets the number of
//! planes (10,000), `POLIS_BENCH_SECONDS` how long throughput is measured (10).

mod child;
mod load;
mod planes;
mod rows;

use std::time::Duration;

use polis_testbed::{Bed, plane::LONE};

use child::Server;
use load::{Figures, Load};
use rows::{Better, Rows};

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
    let mut rows = Rows::default();
    let seconds = Duration::from_secs(number("POLIS_BENCH_SECONDS", 10));

    let folder = tempfile::tempdir().expect("a folder");
    let ours = Server::start(folder.path());
    rows.alone("start to serving, empty store", "ms", ours.ready.as_secs_f64() * 1000.0, Some(200.0));
    let polis = Load::new((0..load::CONNECTIONS).map(|_| ours.client()).collect()).await.run(seconds).await;
    let polis_memory = ours.resident_kib();
    drop(ours);

    let bed = Bed::single_plane().await.expect("a bed with one kube-apiserver");
    let mut clients = Vec::new();
    for _ in 0..load::CONNECTIONS {
        clients.push(bed.client(LONE).await.expect("a client"));
    }
    let peer = Load::new(clients).await.run(seconds).await;
    let components = bed.components().expect("components");
    let peer_memory: u64 = components.iter().filter_map(|component| component.resident_kib).sum();
    drop(bed);

    compare(&mut rows, &polis, &peer);
    rows.beside("memory after the load", "MiB", mib(polis_memory), mib(peer_memory), 0.1, Better::Lower);
    planes::measure(&mut rows, number("POLIS_BENCH_PLANES", 10_000));
    rows.finish("apiserver");
}

fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

fn compare(rows: &mut Rows, polis: &Figures, peer: &Figures) {
    for (name, ours) in &polis.verbs {
        let theirs = &peer.verbs[name];
        let about = |what: &str| format!("{name}: {what}");
        let goal = if *name == "create" { 0.2 } else { 1.0 };
        rows.beside(&about("latency p50, one client"), "ms", ours.p50, theirs.p50, goal, Better::Lower);
        rows.beside(&about("latency p99, one client"), "ms", ours.p99, theirs.p99, 1.0, Better::Lower);
        let goal = if *name == "create" { 5.0 } else { 1.0 };
        let clients = load::CLIENTS;
        rows.beside(
            &about(&format!("throughput, {clients} clients")),
            "1/s",
            ours.rate,
            theirs.rate,
            goal,
            Better::Higher,
        );
    }
    let watchers = load::WATCHERS;
    rows.beside(
        &format!("a write reaches all of {watchers} watchers, p50"),
        "ms",
        polis.fan_out,
        peer.fan_out,
        1.0,
        Better::Lower,
    );
}
