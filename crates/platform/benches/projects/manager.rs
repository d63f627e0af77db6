//! A manager as a process of its own, in front of the planes of the benchmark and over sockets, so that what it takes is its
//! own: the management role with all its controllers and watches, and the allocator of the program.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use polis_api::kube::Config;
use polis_api::kube::config::{KubeConfigOptions, Kubeconfig};
use polis_apiserver::{Authority, Server, Tls, kubeconfig};
use polis_core::cities::Ground;
use polis_engine::{Clock, Engine, MiloProjects, Plane};
use serde::{Deserialize, Serialize};

/// Until memory is looked at: the first lists are decoded and compared, and the allocator has given back what it will.
const REST: Duration = Duration::from_secs(10);
/// The argument that makes this program a manager.
pub const ROLE: &str = "manager";

/// What a manager says of itself.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct Figures {
    /// Projects that it has engaged.
    pub engaged: usize,
    /// Seconds until it had.
    pub time: f64,
    /// Memory once it rests, in KiB.
    pub resident: f64,
}

/// The planes on a socket, and how to get there.
pub struct Door {
    platform: String,
    hub: String,
}

impl Door {
    /// Opens the planes of a server to managers, for as long as this program runs.
    pub async fn open(server: &Server) -> Self {
        let authority = Authority::new().expect("an authority");
        let certificate = authority.server(&["127.0.0.1"]).expect("a certificate");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("https://{}", listener.local_addr().expect("a port"));
        let tls = Tls::new(&certificate, Some(authority.pem())).expect("a certificate");
        let server = server.clone();
        tokio::spawn(async move { server.serve(listener, tls).await });
        let client = authority.client("manager", &["system:masters"]).expect("a certificate");
        let way = |prefix| kubeconfig(&url, prefix, authority.pem(), &client);
        Self { platform: way(""), hub: way("/planes/hub") }
    }

    /// What a manager of the projects with these labels takes, or of all.
    pub async fn measure(&self, labels: Option<&str>) -> Figures {
        let mut manager = Command::new(std::env::current_exe().expect("this program"));
        manager.args([ROLE, &self.platform, &self.hub]).args(labels).stderr(Stdio::inherit());
        let ended = tokio::task::spawn_blocking(move || manager.output());
        let output = ended.await.expect("no panic").expect("a manager runs");
        assert!(output.status.success(), "a manager failed: {}", output.status);
        serde_json::from_slice(&output.stdout).expect("figures")
    }
}

async fn plane(name: &str, kubeconfig: &str) -> Plane {
    let parsed = Kubeconfig::from_yaml(kubeconfig).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default()).await;
    Plane::from_kube_config(name, &config.expect("a kubeconfig")).expect("an address")
}

/// Memory of this process, in KiB.
fn resident() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<f64>().ok()).expect("a number");
    pages * 4.0
}

/// Is a manager until it has said what it takes.
#[tokio::main(worker_threads = 2)]
pub async fn run(arguments: &[String]) {
    let started = Instant::now();
    let [platform, hub] = [plane("platform", &arguments[0]).await, plane("hub", &arguments[1]).await];
    let projects = match arguments.get(2) {
        Some(labels) => MiloProjects::new(platform).labels(labels),
        None => MiloProjects::new(platform),
    };
    let mut engine = Engine::new();
    let projects = polis_management::declare(&mut engine, Clock::system(), projects, Ground::Platform, hub);
    let handle = engine.handle();
    let engine = tokio::spawn(engine.run(std::future::pending()));
    while !handle.is_ready() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let time = started.elapsed().as_secs_f64();
    while !handle.is_idle() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    tokio::time::sleep(REST).await;
    let figures = Figures { engaged: projects.engaged().len(), time, resident: resident() };
    println!("{}", serde_json::to_string(&figures).expect("plain data"));
    engine.abort();
}
