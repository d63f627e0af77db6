//! A manager in a separate process, connected to the planes of the benchmark over sockets, so that its memory
//! can be measured: the management role with all controllers and watches, and the allocator of the product.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use polis_api::kube::Config;
use polis_api::kube::config::{KubeConfigOptions, Kubeconfig};
use polis_apiserver::{Server, kubeconfig};
use polis_core::cities::TenancyMode;
use polis_engine::{Clock, Engine, MiloProjects, Plane};
use polis_tls::{Authority, ServerTls};
use serde::{Deserialize, Serialize};

/// Delay before memory is read: the first lists are decoded and reconciled, and the allocator has returned
/// free memory.
const MEMORY_DELAY: Duration = Duration::from_secs(10);
/// The argument that makes this program a manager.
pub const ROLE: &str = "manager";

/// The measurements of a manager.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct Figures {
    /// Engaged projects.
    pub engaged: usize,
    /// Seconds until all projects were engaged.
    pub time: f64,
    /// Resident memory when idle, in KiB.
    pub resident: f64,
}

/// The planes on a socket, and kubeconfigs for them.
pub struct ServedPlanes {
    platform: String,
    hub: String,
}

impl ServedPlanes {
    /// Serves the planes of a server for as long as this process runs.
    pub async fn serve(server: &Server) -> Self {
        let authority = Authority::new().expect("an authority");
        let certificate = authority.server(&["127.0.0.1"]).expect("a certificate");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("https://{}", listener.local_addr().expect("a port"));
        let tls = ServerTls::new(&certificate, Some(authority.pem())).expect("a certificate");
        let server = server.clone();
        tokio::spawn(async move { server.serve(listener, tls).await });
        let client = authority.client("manager", &["system:masters"]).expect("a certificate");
        let kubeconfig_for = |prefix| kubeconfig(&url, prefix, authority.pem(), &client);
        Self { platform: kubeconfig_for(""), hub: kubeconfig_for("/planes/hub") }
    }

    /// Measures a manager of the projects with these labels, or of all.
    pub async fn measure(&self, labels: Option<&str>) -> Figures {
        let mut manager = Command::new(std::env::current_exe().expect("this program"));
        manager.args([ROLE, &self.platform, &self.hub]).args(labels).stderr(Stdio::inherit());
        let child = tokio::task::spawn_blocking(move || manager.output());
        let output = child.await.expect("no panic").expect("a manager runs");
        assert!(output.status.success(), "a manager failed: {}", output.status);
        serde_json::from_slice(&output.stdout).expect("figures")
    }
}

async fn plane(name: &str, kubeconfig: &str) -> Plane {
    let parsed = Kubeconfig::from_yaml(kubeconfig).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default()).await;
    Plane::from_kube_config(name, &config.expect("a kubeconfig")).expect("an address")
}

/// Resident memory of this process, in KiB.
fn resident() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<f64>().ok()).expect("a number");
    pages * 4.0
}

/// Runs a manager, prints its measurements and exits.
#[tokio::main(worker_threads = 2)]
pub async fn run(arguments: &[String]) {
    let started = Instant::now();
    let [platform, hub] = [plane("platform", &arguments[0]).await, plane("hub", &arguments[1]).await];
    let projects = match arguments.get(2) {
        Some(labels) => MiloProjects::new(platform).labels(labels),
        None => MiloProjects::new(platform),
    };
    let mut engine = Engine::new();
    let projects = polis_management::declare(&mut engine, Clock::system(), projects, TenancyMode::Milo, hub);
    let handle = engine.handle();
    let engine = tokio::spawn(engine.run(std::future::pending()));
    while !handle.is_ready() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let time = started.elapsed().as_secs_f64();
    while !handle.is_idle() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    tokio::time::sleep(MEMORY_DELAY).await;
    let figures = Figures { engaged: projects.engaged().len(), time, resident: resident() };
    println!("{}", serde_json::to_string(&figures).expect("plain data"));
    engine.abort();
}
