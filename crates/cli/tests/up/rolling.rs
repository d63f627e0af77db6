//! A rolling restart under load: who asks for an instance that is ready is answered, and in each city one instance is
//! away at a time, the highest first.
//!
//! The client does what a load balancer does: it knows the instances that the project shows as ready, takes them in turn,
//! and goes to the next when one does not answer. What the project shows is a moment behind the cell, so some are asked
//! that have just gone; how many is printed. The cells are watched meanwhile for the order of things.

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

use crate::site::{Site, eventually, mk_workload};
use crate::{address, all_ready, instances, is_ready, run};

/// Clients at once.
const CLIENTS: usize = 8;
/// Instances in each city.
const REPLICAS: i32 = 2;
/// Longest time for one answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is known of one instance of a cell.
#[derive(Clone)]
struct Known {
    uid: String,
    ready: bool,
}

/// What was seen of one cell: the instances that became ready anew, in this order, and the most that were away at once.
#[derive(Default)]
struct Diary {
    renewed: Vec<String>,
    most_away: usize,
}

/// Keeps a diary of a cell until the end of the test.
async fn watch(cell: Client, diary: Arc<Mutex<Diary>>) {
    let api: Api<Instance> = Api::all(cell);
    let listed = api.list(&Default::default()).await.expect("instances");
    let know = |instance: &Instance| Known {
        uid: instance.uid().unwrap_or_default(),
        ready: is_ready(instance) && instance.metadata.deletion_timestamp.is_none(),
    };
    let mut known: BTreeMap<String, Known> =
        listed.iter().map(|instance| (instance.name_any(), know(instance))).collect();
    let old = known.clone();
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
            let now = Known { ready: there && know(&instance).ready, ..know(&instance) };
            let was = known.insert(name.clone(), now.clone());
            let mut diary = diary.lock().expect("a diary");
            if now.ready && now.uid != old[&name].uid && was.is_none_or(|was| !was.ready) {
                let ordinal = instance.labels().get(labels::INSTANCE_INDEX).cloned();
                diary.renewed.push(ordinal.unwrap_or_default());
            }
            diary.most_away = diary.most_away.max(known.values().filter(|known| !known.ready).count());
        }
    }
}

/// One request on a connection of its own.
async fn ask(host: &str) -> io::Result<String> {
    let asked = async {
        let mut stream = TcpStream::connect(host).await?;
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, io::Error>(answer)
    };
    let answer = tokio::time::timeout(PATIENCE, asked).await.map_err(io::Error::other)??;
    let whole = answer.starts_with("HTTP/1.1 200") && answer.contains("workload: web");
    if whole { Ok(answer) } else { Err(io::Error::other(format!("half an answer: {answer:?}"))) }
}

/// What came of the requests.
#[derive(Debug, Default)]
struct Tally {
    answered: usize,
    /// Of those: not by the instance that was asked first, which had just gone.
    later: usize,
    /// Connections that were taken and gave no whole answer.
    broken: usize,
    /// Requests that no instance of the city has answered.
    failed: Vec<String>,
}

/// The instances of each city that the project shows as ready.
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
    least: usize,
) -> Tally {
    let mut tally = Tally::default();
    for turn in number.. {
        if done.load(Ordering::Relaxed) && tally.answered >= least {
            break;
        }
        let city = &cities[turn % cities.len()];
        let until = Instant::now() + PATIENCE;
        for attempt in 0.. {
            // Looked up for each attempt: an instance that has gone is not asked again.
            let hosts = ready.lock().expect("instances").get(city).cloned().unwrap_or_default();
            let answer = match hosts.is_empty() {
                true => Err(io::ErrorKind::ConnectionRefused.into()),
                false => ask(&hosts[(turn / cities.len() + attempt) % hosts.len()]).await,
            };
            let Err(error) = answer else {
                tally.answered += 1;
                tally.later += usize::from(attempt > 0);
                break;
            };
            tally.broken += usize::from(error.kind() != io::ErrorKind::ConnectionRefused);
            if Instant::now() > until {
                tally.failed.push(format!("{city}: {error}"));
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    tally
}

/// So many requests, at least, to the instances of these cities while all of them are replaced.
async fn restart_under_load(cities: &[&str], requests: usize) {
    let site = Site::start(&["--ephemeral", "--cities", &cities.join(",")]).await;
    run(&site, &mk_workload("web", cities, REPLICAS)).await;
    let count = cities.len() * REPLICAS as usize;
    let before = all_ready(&site, count).await;

    let mut diaries = BTreeMap::new();
    let mut watches = Vec::new();
    for city in cities {
        let diary = Arc::new(Mutex::new(Diary::default()));
        watches.push(tokio::spawn(watch(site.client(&format!("polis-cell-{city}")).await, diary.clone())));
        diaries.insert(*city, diary);
    }
    let ready: Ready = Arc::new(Mutex::new(ready_by_city(&before)));
    let done = Arc::new(AtomicBool::new(false));
    let names: Vec<String> = cities.iter().map(|city| (*city).to_owned()).collect();
    let least = requests.div_ceil(CLIENTS);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| tokio::spawn(client(number, names.clone(), ready.clone(), done.clone(), least)))
        .collect();

    let api: Api<Workload> = Api::namespaced(site.client("polis-default").await, "default");
    let patch =
        json!({"spec": {"template": {"metadata": {"annotations": {"example.com/restarted": "now"}}}}});
    api.patch("web", &PatchParams::default(), &Patch::Merge(patch)).await.expect("a workload that restarts");
    let old: Vec<String> = before.iter().filter_map(|instance| instance.uid()).collect();
    eventually("every instance is new and ready", async || {
        let all = instances(&site).await;
        *ready.lock().expect("instances") = ready_by_city(&all);
        let renewed = |instance: &Instance| !old.contains(&instance.uid().unwrap_or_default());
        (all.len() == count && all.iter().all(|instance| is_ready(instance) && renewed(instance)))
            .then_some(())
    })
    .await;
    done.store(true, Ordering::Relaxed);

    let mut total = Tally::default();
    for client in clients {
        let tally = client.await.expect("a client");
        total.answered += tally.answered;
        total.later += tally.later;
        total.broken += tally.broken;
        total.failed.extend(tally.failed);
    }
    let Tally { answered, later, broken, failed } = &total;
    println!(
        "{answered} answered, {later} by another than the first asked, {broken} broken, {} failed",
        failed.len()
    );
    assert!(total.answered >= requests, "{} answered", total.answered);
    assert!(total.failed.is_empty(), "{:?}", total.failed);
    for (city, diary) in diaries {
        let order = (0..REPLICAS).rev().map(|ordinal| ordinal.to_string()).collect::<Vec<_>>();
        eventually(&format!("{city} has renewed all"), async || {
            (diary.lock().expect("a diary").renewed.len() >= order.len()).then_some(())
        })
        .await;
        let diary = diary.lock().expect("a diary");
        assert_eq!(diary.renewed, order, "{city}: the highest first, each once");
        assert_eq!(diary.most_away, 1, "{city}: one at a time");
    }
    watches.iter().for_each(tokio::task::JoinHandle::abort);
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_ten_thousand_requests_none_fails_in_a_rolling_restart_which_takes_one_instance_of_a_city_at_a_time()
 {
    restart_under_load(&["dfw", "ord", "lhr"], 10_000).await;
}
