//! Differential test: sends the same requests to kube-apiserver and to the embedded server and compares the
//! responses.
//!
//! The scripts of `corpus` run against both servers. Values that always differ (uids, revisions, times) are
//! replaced before the comparison. `deviations.json` lists the intended differences with a reason each; an
//! entry that no longer occurs is an error too.
//!
//! The scripts of every kind run again as a user with all rights in one namespace, as one who may only get
//! and patch there, and as an anonymous one.
//!
//! The random kinds and requests of `random` are compared in the same way: 12 kinds, or as many as fit into
//! `POLIS_DIFFERENTIAL_SECONDS`, from seed `POLIS_DIFFERENTIAL_SEED` on.
//!
//! The verdicts of `authorization` are compared too: 4,000, or `POLIS_DIFFERENTIAL_VERDICTS`, from the same
//! seed on.
//!
//! `POLIS_DIFFERENTIAL_KUBECONFIG` names a running kube-apiserver to use instead of a new test bed;
//! `POLIS_DIFFERENTIAL_ONLY` selects the scripts whose name contains it.

#![recursion_limit = "512"]

mod authorization;
mod compare;
mod corpus;
mod normalize;
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
use polis_apiserver::{EnabledControllers, Server};

use compare::{Deviation, Difference, both};
use corpus::Chain;

/// Chains of scripts that run concurrently. Most of their time is spent waiting for watches to end.
const AT_ONCE: usize = 12;

async fn real() -> (Client, Option<polis_testbed::TestCluster>) {
    if let Ok(path) = std::env::var("POLIS_DIFFERENTIAL_KUBECONFIG") {
        let file = Kubeconfig::read_from(path).expect("a kubeconfig");
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
            .await
            .expect("a configuration");
        return (Client::try_from(config).expect("a client"), None);
    }
    let cluster =
        polis_testbed::TestCluster::single_plane().await.expect("a test bed with one kube-apiserver");
    let client = cluster.client(polis_testbed::plane::SINGLE_PLANE).await.expect("a client");
    (client, Some(cluster))
}

/// The embedded server. The test bed runs no controllers, so they are disabled here too.
async fn embedded() -> (Client, Server) {
    let enabled =
        EnabledControllers { garbage_collector: false, namespaces: false, tokens: false, expiry: false };
    let server = Server::builder().controllers(enabled).build().await.expect("a server");
    (Client::new(server.plane_service(""), "default"), server)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_requests_get_the_same_answers() {
    let (theirs, _cluster) = real().await;
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
    check(requests, found, only.is_empty(), false);
}

/// Waits until a server has seen the rights of a user.
async fn authorized(client: &Client, user: &corpus::replays::ReplayUser) {
    let Some(review) = user.review() else { return };
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let request = http::Request::post("/apis/authorization.k8s.io/v1/subjectaccessreviews")
            .header("content-type", "application/json")
            .body(review.to_string().into_bytes())
            .expect("a request");
        let review: serde_json::Value = client.request(request).await.expect("a review");
        if review["status"]["allowed"] == true {
            return;
        }
        assert!(Instant::now() < deadline, "{} has no rights", user.name);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_requests_of_users_with_few_rights_get_the_same_answers() {
    let (theirs, _cluster) = real().await;
    let (ours, _server) = embedded().await;
    let only = std::env::var("POLIS_DIFFERENTIAL_ONLY").unwrap_or_default();
    let (mut requests, mut found) = (0, Vec::new());
    for script in corpus::first() {
        found.extend(both(&script, &theirs, &ours).await);
    }
    for user in &corpus::replays::USERS {
        found.extend(both(&user.rights(), &theirs, &ours).await);
        tokio::join!(authorized(&theirs, user), authorized(&ours, user));
        let mut scripts = user.scripts();
        scripts.retain(|script| script.name.contains(&only));
        requests += scripts.iter().map(|script| script.steps.len()).sum::<usize>();
        let (theirs, ours) = (&theirs, &ours);
        let played = stream::iter(scripts)
            .map(|script| async move { both(&script, theirs, ours).await })
            .buffer_unordered(AT_ONCE)
            .collect::<Vec<_>>();
        found.extend(played.await.into_iter().flatten());
    }
    check(requests, found, only.is_empty(), true);
}

/// Checks that every difference is on the list, and that every entry of the list occurs: those of the replays
/// begin with `^as-`.
fn check(requests: usize, found: Vec<Difference>, complete: bool, replays: bool) {
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
            .filter(|at| at.starts_with("^as-") == replays && !used.contains_key(at))
            .collect();
        assert!(unused.is_empty(), "these deviations no longer occur; remove them from the list: {unused:?}");
    }
    assert!(
        differences.is_empty(),
        "{} of {requests} responses differ:\n{}",
        differences.len(),
        differences.join("\n")
    );
}

/// Waits until a new kind is served, which takes a while on kube-apiserver.
async fn served(client: &Client, path: &str) {
    let deadline = Instant::now() + Duration::from_secs(120);
    let mut responses = 0;
    // More than once: kube-apiserver may still use a handler without the new kind.
    while responses < 3 {
        let request = http::Request::get(path).body(Vec::new()).expect("a request");
        match client.request::<serde_json::Value>(request).await {
            Ok(_) => responses += 1,
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
    let (theirs, _cluster) = real().await;
    let (ours, _server) = embedded().await;
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let numbers =
        (first..).take_while(|n| end.map_or(*n < first + AT_ONCE as u64, |end| Instant::now() < end));
    let play = async |number| {
        let trial = random::trial(number);
        let mut found = both(&trial.definition, &theirs, &ours).await;
        served(&theirs, &trial.path).await;
        found.extend(both(&trial.requests, &theirs, &ours).await);
        // The corpus compares the deletion of CRDs.
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
    assert!(found.is_empty(), "{} of {requests} responses differ:\n{}", found.len(), found.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_requests_are_authorized_alike() {
    let wanted = number("POLIS_DIFFERENTIAL_VERDICTS").unwrap_or(4000) as usize;
    let first = number("POLIS_DIFFERENTIAL_SEED").unwrap_or(1);
    let (theirs, _cluster) = real().await;
    let (ours, _server) = embedded().await;
    authorization::compare(&ours, Some(&theirs), first, wanted).await;
}
