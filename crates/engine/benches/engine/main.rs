//! What an idle project costs: the engine beside stock `kube` watchers and reflectors, on one machine, in one run.
//!
//! Three kinds of processes, all of this binary: a server (TLS, HTTP/2 with 100 streams per connection, HTTP/1.1 for those who ask
//! for it), and for each figure a fresh client, so that its memory is its own. Prints a table and writes
//! `target/bench/engine.json`. Takes about five minutes; `POLIS_BENCH_QUIET` sets the seconds of the quiet window (60).

mod peer;
mod polis;
mod process;
mod server;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Watches per project.
pub(crate) const WATCHES: usize = 3;

/// Where the server is, and whom to trust.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Address {
    pub(crate) url: String,
    pub(crate) authority: Vec<u8>,
}

/// What one client process measured.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Figures {
    /// Resident memory of the process, in KiB.
    pub(crate) rss: f64,
    /// Open sockets.
    pub(crate) sockets: f64,
    /// Processor seconds from start until everything is in the cache.
    pub(crate) sync_cpu: f64,
    /// Seconds on the clock until everything is in the cache.
    pub(crate) sync_time: f64,
    /// Percent of one core in the quiet window.
    pub(crate) quiet_cpu: f64,
    /// Requests that the server saw in the quiet window.
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
        .expect("server says where it is");
    ServerProcess(child, serde_json::from_str(&line).expect("an address"))
}

fn client(who: &str, server: &ServerProcess, projects: usize, quiet: u64) -> Figures {
    let address = serde_json::to_string(&server.1).expect("plain data");
    let output = this_program(&[who, &address, &projects.to_string(), &quiet.to_string()])
        .stderr(Stdio::inherit())
        .output()
        .expect("client runs");
    assert!(output.status.success(), "client {who} with {projects} projects failed: {}", output.status);
    serde_json::from_slice(&output.stdout).expect("figures")
}

fn this_program(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(arguments);
    command
}

/// Memory of one more project: above the same program with one project engaged, whose code is all in memory by then.
fn per_project(many: &Figures, one: &Figures, projects: usize) -> f64 {
    (many.rss - one.rss) / (projects - 1) as f64
}

/// The rows of the table, as they are written.
struct Rows(Vec<Value>);

impl Rows {
    fn add(&mut self, measure: String, unit: &str, polis: f64, peer: Option<f64>, goal: Option<f64>) {
        let peer_name = peer.map(|_| "kube 5.0 watcher + reflector, a Client per project (1,000 projects)");
        let round = |number: f64| (number * 1000.0).round() / 1000.0;
        self.0.push(json!({
            "measure": measure, "unit": unit, "polis": round(polis), "peer": peer.map(round),
            "peer_name": peer_name, "goal": goal, "better": "lower",
        }));
    }
}

fn measure() {
    let quiet = std::env::var("POLIS_BENCH_QUIET").ok().and_then(|quiet| quiet.parse().ok()).unwrap_or(60);
    let mut rows = Rows(Vec::new());
    idle_projects(&mut rows, quiet);
    projects_with_objects(&mut rows);
    print(&rows.0);
    let directory = target().join("bench");
    std::fs::create_dir_all(&directory).expect("target/bench");
    let file = directory.join("engine.json");
    std::fs::write(&file, serde_json::to_string_pretty(&rows.0).expect("plain data")).expect("written");
    println!("\nwritten to {}", file.display());
}

fn idle_projects(rows: &mut Rows, quiet: u64) {
    let server = start_server(0);
    let (one, peer_one) = (client("polis", &server, 1, 1), client("peer", &server, 1, 1));
    let peer = client("peer", &server, 1000, 5);
    let theirs = per_project(&peer, &peer_one, 1000);
    let whole = |figures: &Figures| figures.rss / 1024.0;
    rows.add(
        "RSS of the process with one project".to_owned(),
        "MiB",
        whole(&one),
        Some(whole(&peer_one)),
        None,
    );
    for projects in [1000, 5000] {
        let about = |what: &str| format!("{what}, {projects} idle projects x {WATCHES} watches");
        let polis = client("polis", &server, projects, quiet);
        let ours = per_project(&polis, &one, projects);
        let sockets = (polis.sockets / projects as f64, Some(peer.sockets / 1000.0));
        let requests = polis.quiet_requests as f64 * 60.0 / quiet as f64;
        rows.add(about("RSS per project"), "KiB", ours, Some(theirs), Some(10.0));
        rows.add(about("sockets per project"), "sockets", sockets.0, sockets.1, Some(0.04));
        rows.add(about("CPU while quiet"), "% of a core", polis.quiet_cpu, Some(peer.quiet_cpu), Some(0.1));
        rows.add(about("requests in a quiet minute"), "requests", requests, None, None);
        rows.add(about("CPU to engage all"), "s", polis.sync_cpu, None, None);
    }
}

fn projects_with_objects(rows: &mut Rows) {
    let server = start_server(30);
    let (one, peer_one) = (client("polis", &server, 1, 1), client("peer", &server, 1, 1));
    for projects in [1000, 5000] {
        let about = |what: &str| format!("{what}, {projects} projects x 30 objects of 0.9 KiB");
        let polis = client("polis", &server, projects, 5);
        // The peer would need more than a gigabyte for five thousand.
        let peer = (projects == 1000).then(|| client("peer", &server, projects, 5));
        let theirs = peer.map(|peer| per_project(&peer, &peer_one, projects));
        let goal = (projects == 5000).then_some(5.0);
        rows.add(about("RSS per project"), "KiB", per_project(&polis, &one, projects), theirs, Some(45.0));
        rows.add(about("CPU of a cold sync"), "s", polis.sync_cpu, peer.map(|peer| peer.sync_cpu), goal);
        rows.add(about("time of a cold sync"), "s", polis.sync_time, peer.map(|peer| peer.sync_time), None);
    }
}

/// The target directory that this binary was built in: three levels up (`release/deps/engine-…`).
fn target() -> std::path::PathBuf {
    let program = std::env::current_exe().expect("this program");
    program.ancestors().nth(3).expect("built by cargo").to_path_buf()
}

fn print(rows: &[Value]) {
    println!("{:<66} {:>12} {:>12} {:>8}  unit", "measure", "polis", "peer", "goal");
    for row in rows {
        let number = |field: &str| row[field].as_f64().map_or("-".to_owned(), |number| format!("{number}"));
        println!(
            "{:<66} {:>12} {:>12} {:>8}  {}",
            row["measure"].as_str().unwrap_or_default(),
            number("polis"),
            number("peer"),
            number("goal"),
            row["unit"].as_str().unwrap_or_default()
        );
    }
}
