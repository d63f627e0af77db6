//! Measurement of memory, CPU and sockets of the client process, from `/proc`.

use std::time::{Duration, Instant};

use crate::{Address, Figures};

/// Resident memory in KiB.
pub(crate) fn rss() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: f64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("statm");
    pages * 4.0
}

/// CPU seconds used so far. The kernel counts in hundredths.
pub(crate) fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("stat").split_whitespace().collect();
    let ticks = |field: usize| fields[field].parse::<f64>().expect("stat");
    (ticks(11) + ticks(12)) / 100.0
}

pub(crate) fn sockets() -> usize {
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("Linux");
    let is_socket = |path: std::path::PathBuf| {
        std::fs::read_link(path).is_ok_and(|link| link.to_string_lossy().starts_with("socket:"))
    };
    descriptors.flatten().filter(|entry| is_socket(entry.path())).count()
}

/// A measurement that starts before the client does.
pub(crate) struct Measurement {
    cpu: f64,
    start: Instant,
}

impl Measurement {
    pub(crate) fn begin() -> Self {
        Self { cpu: cpu(), start: Instant::now() }
    }

    /// Called when all caches are synced: waits three seconds, measures the idle window, and prints the
    /// figures.
    pub(crate) async fn report(self, address: &Address, quiet: u64) {
        let (sync_cpu, sync_time) = (cpu() - self.cpu, self.start.elapsed().as_secs_f64());
        tokio::time::sleep(Duration::from_secs(3)).await;
        let (before, requests) = (cpu(), requests(address).await);
        tokio::time::sleep(Duration::from_secs(quiet)).await;
        let quiet_cpu = (cpu() - before) / quiet as f64 * 100.0;
        let figures = Figures {
            rss: rss(),
            sockets: sockets() as f64,
            sync_cpu,
            sync_time,
            quiet_cpu,
            quiet_requests: self::requests(address).await - requests - 1, // without this request itself
        };
        println!("{}", serde_json::to_string(&figures).expect("plain data"));
    }
}

/// The number of requests that the server has received so far.
async fn requests(address: &Address) -> u64 {
    let plane = polis_engine::Plane::from_kube_config("server", &config(address)).expect("an address");
    let client = plane.kube_client();
    let request = http::Request::get("/requests").body(Vec::new()).expect("a request");
    client.request_text(request).await.expect("the server counts").trim().parse().expect("a number")
}

pub(crate) fn config(address: &Address) -> polis_api::kube::Config {
    let mut config = polis_api::kube::Config::new(address.url.parse().expect("a URL"));
    config.root_cert = Some(vec![address.authority.clone()]);
    config
}
