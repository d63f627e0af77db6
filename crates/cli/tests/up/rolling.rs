//! A rolling restart under load: no request fails, and in each city only one instance is unready at a time,
//! the highest ordinal first.
//!
//! The client works like a load balancer: it sends requests to the instances that are ready in the project,
//! round robin, and retries with the next one after a failure. The status in the project is later than in the
//! cell, so some requests go to instances that have just stopped; the test prints how many. A watch of each
//! cell records the order of replacements.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use polis_api::compute::{Instance, Workload};
use polis_api::kube::api::{Patch, PatchParams, WatchEvent, WatchParams};
use polis_api::kube::{Api, Client, ResourceExt as _};
use polis_api::labels;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::installation::{Installation, eventually, mk_workload};
use crate::{address, instances, is_ready, run, wait_until_ready};

/// Number of concurrent clients.
const CLIENTS: usize = 8;
/// Instances in each city.
const REPLICAS: i32 = 2;
/// Timeout of one request, including retries.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// The observed state of one instance in a cell.
#[derive(Clone)]
struct InstanceState {
    uid: String,
    ready: bool,
}

/// The observed history of one cell: the ordinals of replaced instances in order, and the maximum number of
/// unready ones.
#[derive(Default)]
struct CellHistory {
    replaced: Vec<String>,
    max_unready: usize,
}

/// Records the history of a cell until the end of the test.
async fn watch(cell: Client, history: Arc<Mutex<CellHistory>>) {
    let api: Api<Instance> = Api::all(cell);
    let listed = api.list(&Default::default()).await.expect("instances");
    let state_of = |instance: &Instance| InstanceState {
        uid: instance.uid().unwrap_or_default(),
        ready: is_ready(instance) && instance.metadata.deletion_timestamp.is_none(),
    };
    let mut states: BTreeMap<String, InstanceState> =
        listed.iter().map(|instance| (instance.name_any(), state_of(instance))).collect();
    let old = states.clone();
    let mut version = listed.metadata.resource_version.unwrap_or_default();
    loop {
        let events = api.watch(&WatchParams::default(), &version).await.expect("a watch");
        futures::pin_mut!(events);
        while let Some(Ok(event)) = events.next().await {
            let (instance, there) = match event {
                WatchEvent::Added(instance) | WatchEvent::Modified(instance) => (instance, true),
                WatchEvent::Deleted(instance) => (instance, false),
                WatchEvent::Bookmark(_) | WatchEvent::Error(_) => continue,
            };
            version = instance.resource_version().unwrap_or_default();
            let name = instance.name_any();
            let now = InstanceState { ready: there && state_of(&instance).ready, ..state_of(&instance) };
            let was = states.insert(name.clone(), now.clone());
            let mut history = history.lock().expect("the history");
            if now.ready && now.uid != old[&name].uid && was.is_none_or(|was| !was.ready) {
                let ordinal = instance.labels().get(labels::INSTANCE_INDEX).cloned();
                history.replaced.push(ordinal.unwrap_or_default());
            }
            history.max_unready =
                history.max_unready.max(states.values().filter(|state| !state.ready).count());
        }
    }
}

/// Sends one request on a new connection; returns the complete response.
async fn get(host: &str) -> io::Result<String> {
    let exchange = async {
        let mut stream = TcpStream::connect(host).await?;
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut response = String::new();
        stream.read_to_string(&mut response).await?;
        Ok::<_, io::Error>(response)
    };
    let response = tokio::time::timeout(REQUEST_TIMEOUT, exchange).await.map_err(io::Error::other)??;
    let complete = response.starts_with("HTTP/1.1 200") && response.contains("workload: web");
    if complete { Ok(response) } else { Err(io::Error::other(format!("incomplete response: {response:?}"))) }
}

/// Results of the requests.
#[derive(Debug, Default)]
struct RequestStats {
    answered: usize,
    /// Answered requests that needed a retry, because the first instance had just stopped.
    retried: usize,
    /// Connections that were accepted and had no complete response.
    incomplete: usize,
    /// Requests that no instance of the city answered.
    failed: Vec<String>,
}

/// Addresses of the ready instances in the project, by city.
type Ready = Arc<Mutex<BTreeMap<String, Vec<String>>>>;

fn ready_by_city(all: &[Instance]) -> BTreeMap<String, Vec<String>> {
    let mut cities: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for instance in all {
        let city = instance.labels().get(labels::CITY_CODE).cloned().unwrap_or_default();
        let serves = is_ready(instance) && instance.metadata.deletion_timestamp.is_none();
        if let Some(address) = address(instance).filter(|_| serves) {
            cities.entry(city).or_default().push(format!("{address}:8080"));
        }
    }
    cities
}

async fn client(
    number: usize,
    cities: Vec<String>,
    ready: Ready,
    done: Arc<AtomicBool>,
    min_requests: usize,
) -> RequestStats {
    let mut stats = RequestStats::default();
    for request in number.. {
        if done.load(Ordering::Relaxed) && stats.answered >= min_requests {
            break;
        }
        let city = &cities[request % cities.len()];
        let until = Instant::now() + REQUEST_TIMEOUT;
        for attempt in 0.. {
            // Read for each attempt, so that a stopped instance is not tried again.
            let hosts = ready.lock().expect("instances").get(city).cloned().unwrap_or_default();
            let response = match hosts.is_empty() {
                true => Err(io::ErrorKind::ConnectionRefused.into()),
                false => get(&hosts[(request / cities.len() + attempt) % hosts.len()]).await,
            };
            let Err(error) = response else {
                stats.answered += 1;
                stats.retried += usize::from(attempt > 0);
                break;
            };
            stats.incomplete += usize::from(error.kind() != io::ErrorKind::ConnectionRefused);
            if Instant::now() > until {
                stats.failed.push(format!("{city}: {error}"));
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    stats
}

/// Sends at least `requests` requests to the instances of these cities while all instances are replaced.
async fn restart_under_load(cities: &[&str], requests: usize) {
    let installation = Installation::start(&["--ephemeral", "--cities", &cities.join(",")]).await;
    run(&installation, &mk_workload("web", cities, REPLICAS)).await;
    let count = cities.len() * REPLICAS as usize;
    let before = wait_until_ready(&installation, count).await;

    let mut histories = BTreeMap::new();
    let mut watches = Vec::new();
    for city in cities {
        let history = Arc::new(Mutex::new(CellHistory::default()));
        watches.push(tokio::spawn(watch(
            installation.client(&format!("polis-cell-{city}")).await,
            history.clone(),
        )));
        histories.insert(*city, history);
    }
    let ready: Ready = Arc::new(Mutex::new(ready_by_city(&before)));
    let done = Arc::new(AtomicBool::new(false));
    let names: Vec<String> = cities.iter().map(|city| (*city).to_owned()).collect();
    let min_requests = requests.div_ceil(CLIENTS);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| tokio::spawn(client(number, names.clone(), ready.clone(), done.clone(), min_requests)))
        .collect();

    let api: Api<Workload> = Api::namespaced(installation.client("polis-default").await, "default");
    let patch =
        json!({"spec": {"template": {"metadata": {"annotations": {"example.com/restarted": "now"}}}}});
    api.patch("web", &PatchParams::default(), &Patch::Merge(patch)).await.expect("restarts the workload");
    let old: Vec<String> = before.iter().filter_map(|instance| instance.uid()).collect();
    eventually("every instance is new and ready", async || {
        let all = instances(&installation).await;
        *ready.lock().expect("instances") = ready_by_city(&all);
        let replaced = |instance: &Instance| !old.contains(&instance.uid().unwrap_or_default());
        (all.len() == count && all.iter().all(|instance| is_ready(instance) && replaced(instance)))
            .then_some(())
    })
    .await;
    done.store(true, Ordering::Relaxed);

    let mut total = RequestStats::default();
    for client in clients {
        let stats = client.await.expect("a client");
        total.answered += stats.answered;
        total.retried += stats.retried;
        total.incomplete += stats.incomplete;
        total.failed.extend(stats.failed);
    }
    let RequestStats { answered, retried, incomplete, failed } = &total;
    println!(
        "{answered} answered, {retried} after a retry, {incomplete} incomplete, {} failed",
        failed.len()
    );
    assert!(total.answered >= requests, "{} answered", total.answered);
    assert!(total.failed.is_empty(), "{:?}", total.failed);
    for (city, history) in histories {
        let order = (0..REPLICAS).rev().map(|ordinal| ordinal.to_string()).collect::<Vec<_>>();
        eventually(&format!("{city} has replaced all instances"), async || {
            (history.lock().expect("the history").replaced.len() >= order.len()).then_some(())
        })
        .await;
        let history = history.lock().expect("the history");
        assert_eq!(history.replaced, order, "{city}: the highest first, each once");
        assert_eq!(history.max_unready, 1, "{city}: one at a time");
    }
    watches.iter().for_each(tokio::task::JoinHandle::abort);
    installation.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_replaces_one_instance_per_city_at_a_time_and_no_request_fails() {
    restart_under_load(&["dfw", "ord", "lhr"], 10_000).await;
}
