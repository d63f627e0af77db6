//! Requests, conflicts and repeated creations per workload, counted from the trace of the API server.
//!
//! `polis up` runs every controller of Polis: platform, management, federation, cell and runtime, with quota
//! and networks. The trace has one line per request, with the role of the controller that sent it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use polis_testing::eventually;
use serde_json::Value;

use crate::installation::{Installation, mk_workload};
use crate::{run, wait_until_ready};

/// The log levels that show each request and each failed reconcile.
const FILTER: &str = "off,polis_apiserver::service=trace,polis_engine::engine=debug,polis_federation=debug";
/// Time without a write after which the installation is idle.
const IDLE_TIME: Duration = Duration::from_secs(2);
/// Workloads of the burst.
const BURST: usize = 50;

/// Requests of controllers for the first workload with one instance: every verb except watch, without
/// Events. Some 15 of them create what later workloads share: namespaces, policy, network. Status updates
/// are coalesced, so the number varies: 56 to 58 on two cores.
const REQUESTS: usize = 60;
/// Writes among them: 52 to 54.
const WRITES: usize = 56;
/// The same for each workload of the burst: 45 to 54, with more intermediate states on a busy machine.
const REQUESTS_IN_BURST: usize = 56;
/// Writes among them: 42 to 51.
const WRITES_IN_BURST: usize = 53;

/// An installation whose requests are logged.
struct TracedInstallation {
    installation: Installation,
    log: PathBuf,
    _dir: tempfile::TempDir,
}

/// The requests and failures that a log has.
#[derive(Default)]
struct Trace {
    /// Requests by `<plane>: <verb> <resource> <code>`, and by role.
    requests: BTreeMap<String, BTreeMap<String, usize>>,
    /// Messages of failed reconciles.
    failures: Vec<String>,
}

impl TracedInstallation {
    async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let log = dir.path().join("log");
        let args = ["--ephemeral", "--cities", "dfw"];
        let installation = Installation::start_logging(FILTER, &log, &args).await;
        let traced = Self { installation, log, _dir: dir };
        traced.until_idle().await;
        traced
    }

    fn text(&self) -> String {
        std::fs::read_to_string(&self.log).expect("a log")
    }

    /// Waits until no controller writes any more.
    async fn until_idle(&self) {
        let writes = || Trace::parse(&self.text()).writes();
        let mut last = (writes(), tokio::time::Instant::now());
        eventually("the installation is idle", async || {
            let now = writes();
            if now != last.0 {
                last = (now, tokio::time::Instant::now());
            }
            (last.1.elapsed() >= IDLE_TIME).then_some(())
        })
        .await;
    }

    /// Runs workloads of one instance until they are ready and the installation is idle; returns the trace of
    /// it.
    async fn trace_of(&self, numbers: Range<usize>) -> Trace {
        let before = self.text().len();
        let all = numbers.end;
        for number in numbers {
            run(&self.installation, &mk_workload(&format!("web-{number}"), &["dfw"], 1)).await;
        }
        wait_until_ready(&self.installation, all).await;
        self.until_idle().await;
        Trace::parse(&self.text()[before..])
    }
}

impl Trace {
    fn parse(log: &str) -> Self {
        let mut trace = Trace::default();
        // The last line may be incomplete.
        for line in log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            let field = |name: &str| line["fields"][name].as_str().unwrap_or_default().to_owned();
            match &*field("message") {
                "request handled" => {
                    // Users and webhooks are not counted.
                    let Some(role) = field("user").strip_prefix("polis:").map(str::to_owned) else {
                        continue;
                    };
                    let (plane, verb, code) = (field("plane"), field("verb"), &line["fields"]["code"]);
                    let entry = format!("{plane}: {verb} {} {code}", resource(&field("path")));
                    *trace.requests.entry(entry).or_default().entry(role).or_default() += 1;
                }
                "reconcile failed; will retry" => trace.failures.push(field("error")),
                _ => {}
            }
        }
        trace
    }

    /// The number of requests that match, without watches, Events, and the heartbeats of cells, whose number
    /// depends on time.
    fn count(&self, matches: impl Fn(&str) -> bool) -> usize {
        let counted = self.requests.iter().filter(|(entry, _)| {
            let uncounted = [": watch ", " events ", " leases "];
            !uncounted.iter().any(|it| entry.contains(it)) && matches(entry)
        });
        counted.map(|(_, roles)| roles.values().sum::<usize>()).sum()
    }

    fn writes(&self) -> usize {
        self.count(|entry| !entry.contains(": get ") && !entry.contains(": list "))
    }

    /// The requests, one line for each plane, verb, resource and response, for the message of a failure.
    fn table(&self) -> String {
        let lines = self.requests.iter().map(|(entry, roles)| format!("{entry}: {roles:?}\n"));
        lines.chain(self.failures.iter().take(5).map(|failure| format!("failed: {failure}\n"))).collect()
    }

    /// Asserts that there are at most this many requests and writes, no conflicts, no repeated creations and
    /// no failed reconciles.
    fn assert_within(&self, most_requests: usize, most_writes: usize) {
        let (requests, writes) = (self.count(|_| true), self.writes());
        let conflicts = self.count(|entry| entry.ends_with(" 409") && !entry.contains(": create "));
        let repeated = self.count(|entry| entry.ends_with(" 409") && entry.contains(": create "));
        println!("{}{requests} requests, {writes} writes, {conflicts} conflicts,", self.table());
        println!("{repeated} repeated creations, {} failed reconciles", self.failures.len());
        assert_eq!((conflicts, repeated), (0, 0), "conflicts and repeated creations");
        assert_eq!(self.failures, [""; 0], "failed reconciles");
        assert!(requests <= most_requests, "{requests} requests are more than {most_requests}");
        assert!(writes <= most_writes, "{writes} writes are more than {most_writes}");
    }
}

/// The resource and subresource of a path.
fn resource(path: &str) -> String {
    let mut parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    if let Some(at) = parts.iter().rposition(|part| *part == "control-plane") {
        parts.drain(..=at);
    }
    parts.drain(..parts.len().min(if parts.first() == Some(&"api") { 2 } else { 3 }));
    if parts.first() == Some(&"namespaces") && parts.len() > 2 {
        parts.drain(..2);
    }
    match parts[..] {
        [plural, _, subresource, ..] => format!("{plural}/{subresource}"),
        [plural, ..] => plural.to_owned(),
        [] => path.to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workload_is_within_its_request_budget_without_conflicts_or_repeated_creations() {
    let traced = TracedInstallation::start().await;
    let trace = traced.trace_of(0..1).await;
    trace.assert_within(REQUESTS, WRITES);
    traced.installation.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_of_fifty_workloads_has_no_conflicts_or_repeated_creations() {
    let traced = TracedInstallation::start().await;
    traced.installation.raise_quota("polis-default").await;
    traced.until_idle().await;
    // The first workload creates what the others share: namespaces, policy, network.
    traced.trace_of(0..1).await;
    let trace = traced.trace_of(1..1 + BURST).await;
    trace.assert_within(BURST * REQUESTS_IN_BURST, BURST * WRITES_IN_BURST);
    traced.installation.stop().await;
}
