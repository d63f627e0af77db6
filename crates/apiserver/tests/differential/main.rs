//! The same requests to the real kube-apiserver and to the embedded one: the answers must be the same.
//!
//! Scripts of requests (made in `corpus`) run against both; answers are compared after what must differ (uids,
//! revisions, times) has been replaced. What differs on purpose is listed, with a reason each, in `deviations.json`; an
//! entry that no longer occurs is an error too.
//!
//! Random kinds and requests (made in `random`) are compared likewise: 12 kinds unless `POLIS_DIFFERENTIAL_SECONDS` says
//! how long to go on, beginning with number `POLIS_DIFFERENTIAL_SEED`.
//!
//! `POLIS_DIFFERENTIAL_KUBECONFIG` names a running kube-apiserver to use instead of a bed of our own;
//! `POLIS_DIFFERENTIAL_ONLY` runs the scripts whose name contains it.

#![recursion_limit = "512"]

mod compare;
mod corpus;
mod normal;
mod random;
mod script;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use futures::{StreamExt, stream};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use polis_apiserver::{Server, Switches};

use compare::{Deviation, Difference, both};
use corpus::Chain;

/// Chains of scripts under way at once. Most of their time is waiting for watches to end.
const AT_ONCE: usize = 12;

async fn real() -> (Client, Option<polis_testbed::Bed>) {
    if let Ok(path) = std::env::var("POLIS_DIFFERENTIAL_KUBECONFIG") {
        let file = Kubeconfig::read_from(path).expect("a kubeconfig");
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
            .await
            .expect("a configuration");
        return (Client::try_from(config).expect("a client"), None);
    }
    let bed = polis_testbed::Bed::single_plane().await.expect("a bed with one kube-apiserver");
    let client = bed.client(polis_testbed::plane::LONE).await.expect("a client");
    (client, Some(bed))
}

/// The embedded server. The bed has no controllers, so ours are off as well.
async fn embedded() -> (Client, Server) {
    let switches = Switches { garbage_collector: false, namespaces: false, tokens: false, expiry: false };
    let server = Server::builder().controllers(switches).build().await.expect("a server");
    (Client::new(server.plane_service(""), "default"), server)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_requests_get_the_same_answers() {
    let (theirs, _bed) = real().await;
    let (ours, _server) = embedded().await;
    let only = std::env::var("POLIS_DIFFERENTIAL_ONLY").unwrap_or_default();
    let play = async |chain: Chain| {
        let (mut requests, mut found) = (0, Vec::new());
        for script in chain.iter().filter(|script| script.name.contains(&only)) {
            requests += script.steps.len();
            found.extend(both(script, &theirs, &ours).await);
        }
        (requests, found)
    };
    let mut played = vec![play(corpus::first()).await];
    let chains: Vec<_> = stream::iter(corpus::chains()).map(&play).buffer_unordered(AT_ONCE).collect().await;
    played.extend(chains);
    played.push(play(corpus::last()).await);

    let requests: usize = played.iter().map(|(requests, _)| requests).sum();
    let found: Vec<Difference> = played.into_iter().flat_map(|(_, found)| found).collect();
    judge(requests, found, only.is_empty());
}

/// Every difference must be on the list, and every entry of the list must occur.
fn judge(requests: usize, found: Vec<Difference>, complete: bool) {
    let deviations = Deviation::all();
    let mut used: BTreeMap<&str, usize> = BTreeMap::new();
    let mut differences = Vec::new();
    for difference in found {
        match deviations.iter().find(|deviation| deviation.covers(&difference)) {
            Some(deviation) => *used.entry(deviation.at.as_str()).or_default() += 1,
            None => differences.push(difference.to_string()),
        }
    }
    println!(
        "{requests} requests, {} differences, {} deviations",
        differences.len(),
        used.values().sum::<usize>()
    );
    if complete {
        let unused: Vec<&str> = deviations
            .iter()
            .map(|deviation| deviation.at.as_str())
            .filter(|at| !used.contains_key(at))
            .collect();
        assert!(
            unused.is_empty(),
            "these deviations do not occur any more; take them off the list: {unused:?}"
        );
    }
    assert!(
        differences.is_empty(),
        "{} of {requests} answers differ:\n{}",
        differences.len(),
        differences.join("\n")
    );
}

/// Waits until a new kind answers: a while on a real server.
async fn served(client: &Client, path: &str) {
    let deadline = Instant::now() + Duration::from_secs(120);
    let mut answers = 0;
    // More than once: a server of several handlers may still answer from the one that does not know it.
    while answers < 3 {
        let request = http::Request::get(path).body(Vec::new()).expect("a request");
        match client.request::<serde_json::Value>(request).await {
            Ok(_) => answers += 1,
            Err(error) => assert!(Instant::now() < deadline, "{path} is not served: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_requests_get_the_same_answers() {
    let seconds = number("POLIS_DIFFERENTIAL_SECONDS");
    let first = number("POLIS_DIFFERENTIAL_SEED").unwrap_or(1);
    let (theirs, _bed) = real().await;
    let (ours, _server) = embedded().await;
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let numbers =
        (first..).take_while(|n| end.map_or(*n < first + AT_ONCE as u64, |end| Instant::now() < end));
    let play = async |number| {
        let trial = random::trial(number);
        let mut found = both(&trial.definition, &theirs, &ours).await;
        served(&theirs, &trial.path).await;
        found.extend(both(&trial.requests, &theirs, &ours).await);
        // How a definition ends is compared in the corpus.
        found.retain(|difference| !difference.place.ends_with("/end"));
        (1 + trial.requests.steps.len(), found)
    };
    let played: Vec<_> = stream::iter(numbers).map(&play).buffer_unordered(AT_ONCE).collect().await;
    let requests: usize = played.iter().map(|(requests, _)| requests).sum();
    let found: Vec<String> = played.iter().flat_map(|(_, found)| found).map(ToString::to_string).collect();
    println!(
        "{requests} random requests about {} kinds from number {first}, {} differences",
        played.len(),
        found.len()
    );
    assert!(found.is_empty(), "{} of {requests} answers differ:\n{}", found.len(), found.join("\n"));
}
