//! Benchmark: memory, sockets and CPU of an idle project with the engine, compared with `kube` watchers and
//! reflectors on the same machine.
//!
//! The binary runs as three kinds of processes: a server (TLS, HTTP/2 with 100 streams per connection,
//! HTTP/1.1 on request), and a fresh client process of the engine or of `kube` for each measurement. It
//! prints a table and writes `target/bench/engine.json`. It takes about five minutes; `POLIS_BENCH_QUIET`
//! sets the length of the idle window in seconds (60).

mod peer;
mod polis;
mod process;
mod server;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use polis_testing::bench::BenchTable;
use serde::{Deserialize, Serialize};

/// Watches per project.
pub(crate) const WATCHES: usize = 3;

/// The address and the CA of the server.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Address {
    pub(crate) url: String,
    pub(crate) authority: Vec<u8>,
}

/// The measurements of one client process.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Figures {
    /// Resident memory of the process, in KiB.
    pub(crate) rss: f64,
    /// Open sockets.
    pub(crate) sockets: f64,
    /// CPU seconds from the start until all caches are synced.
    pub(crate) sync_cpu: f64,
    /// Wall-clock seconds from the start until all caches are synced.
    pub(crate) sync_time: f64,
    /// CPU in the idle window, in percent of one core.
    pub(crate) quiet_cpu: f64,
    /// Requests to the server in the idle window.
    pub(crate) quiet_requests: u64,
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some("server") => server::run(arguments[2].parse().expect("objects per project")),
        Some("polis") => polis::run(&arguments[2..]),
        Some("peer") => peer::run(&arguments[2..]),
        _ => measure(), // cargo passes `--bench`
    }
}

struct ServerProcess(Child, Address);

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start_server(objects: usize) -> ServerProcess {
    let mut child = this_program(&["server", &objects.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .expect("server starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped"))
        .read_line(&mut line)
        .expect("the server prints its address");
    ServerProcess(child, serde_json::from_str(&line).expect("an address"))
}

fn client(mode: &str, server: &ServerProcess, projects: usize, quiet: u64) -> Figures {
    let address = serde_json::to_string(&server.1).expect("plain data");
    let output = this_program(&[mode, &address, &projects.to_string(), &quiet.to_string()])
        .stderr(Stdio::inherit())
        .output()
        .expect("client runs");
    assert!(output.status.success(), "client {mode} with {projects} projects failed: {}", output.status);
    serde_json::from_slice(&output.stdout).expect("figures")
}

fn this_program(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(arguments);
    command
}

/// Memory of one further project: the difference to the same program with one project, which has already
/// loaded its code.
fn per_project(many: &Figures, one: &Figures, projects: usize) -> f64 {
    (many.rss - one.rss) / (projects - 1) as f64
}

/// The name of the peer in the table.
const PEER: &str = "kube 5.0 watcher + reflector, a Client per project (1,000 projects)";

fn measure() {
    let quiet = std::env::var("POLIS_BENCH_QUIET").ok().and_then(|quiet| quiet.parse().ok()).unwrap_or(60);
    let mut table = BenchTable::default();
    idle_projects(&mut table, quiet);
    projects_with_objects(&mut table);
    table.finish("engine");
}

fn idle_projects(table: &mut BenchTable, quiet: u64) {
    let server = start_server(0);
    let (one, peer_one) = (client("polis", &server, 1, 1), client("peer", &server, 1, 1));
    let peer = client("peer", &server, 1000, 5);
    let theirs = per_project(&peer, &peer_one, 1000);
    let whole = |figures: &Figures| figures.rss / 1024.0;
    table.add("RSS of the process with one project", "MiB", whole(&one)).peer(whole(&peer_one), PEER);
    for projects in [1000, 5000] {
        let about = |what: &str| format!("{what}, {projects} idle projects x {WATCHES} watches");
        let polis = client("polis", &server, projects, quiet);
        let ours = per_project(&polis, &one, projects);
        let sockets = (polis.sockets / projects as f64, Some(peer.sockets / 1000.0));
        let requests = polis.quiet_requests as f64 * 60.0 / quiet as f64;
        table.add(about("RSS per project"), "KiB", ours).peer(theirs, PEER).goal(10.0);
        table.add(about("sockets per project"), "sockets", sockets.0).peer(sockets.1, PEER).goal(0.04);
        table
            .add(about("CPU while quiet"), "% of a core", polis.quiet_cpu)
            .peer(peer.quiet_cpu, PEER)
            .goal(0.1);
        table.add(about("requests in a quiet minute"), "requests", requests);
        table.add(about("CPU to engage all"), "s", polis.sync_cpu);
    }
}

fn projects_with_objects(table: &mut BenchTable) {
    let server = start_server(30);
    let (one, peer_one) = (client("polis", &server, 1, 1), client("peer", &server, 1, 1));
    for projects in [1000, 5000] {
        let about = |what: &str| format!("{what}, {projects} projects x 30 objects of 0.9 KiB");
        let polis = client("polis", &server, projects, 5);
        // kube would need more than a gigabyte for five thousand projects.
        let peer = (projects == 1000).then(|| client("peer", &server, projects, 5));
        let theirs = peer.map(|peer| per_project(&peer, &peer_one, projects));
        let goal = (projects == 5000).then_some(5.0);
        table
            .add(about("RSS per project"), "KiB", per_project(&polis, &one, projects))
            .peer(theirs, PEER)
            .goal(45.0);
        table
            .add(about("CPU of a cold sync"), "s", polis.sync_cpu)
            .peer(peer.map(|peer| peer.sync_cpu), PEER)
            .goal(goal);
        table
            .add(about("time of a cold sync"), "s", polis.sync_time)
            .peer(peer.map(|peer| peer.sync_time), PEER);
    }
}
