//! kill -9 under write load: every acknowledged write is there afterwards, whole, and watchers can go on.
//!
//! `POLIS_KILL_ROUNDS` lengthens the run (10 unless told otherwise), `POLIS_KILL_SEED` repeats one.

mod common;

use std::{
    collections::BTreeMap,
    path::Path,
    process::Stdio,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{StreamExt, future::join_all};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, Config, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

const WRITERS: u64 = 4;
const KEYS: u64 = 6;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The server as a process of its own.
struct Process {
    child: Child,
    api: Api<ConfigMap>,
}

impl Process {
    async fn start(folder: &Path) -> Self {
        let config = folder.join("kubeconfig");
        let mut child = Command::new(env!("CARGO_BIN_EXE_polis-apiserver"))
            .args(["--store".as_ref(), folder.join("store.redb").as_os_str()])
            .args(["--kubeconfig".as_ref(), config.as_os_str()])
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("a server");
        let mut said = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let line = tokio::time::timeout(Duration::from_secs(60), said.next_line()).await;
        let line = line.expect("in time").expect("a line").expect("the server serves");
        assert!(line.starts_with("serving on"), "{line}");
        let file = Kubeconfig::read_from(config).expect("a kubeconfig");
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
        let client = Client::try_from(config.expect("a configuration")).expect("a client");
        Self { child, api: Api::namespaced(client, "default") }
    }

    /// SIGKILL, and gone.
    async fn kill(mut self) {
        self.child.kill().await.expect("the server dies");
    }
}

/// What one writer knows of its objects: the number that was acknowledged last, and the one under way.
#[derive(Clone, Debug, Default)]
struct Known {
    acknowledged: Option<u64>,
    under_way: Option<Option<u64>>,
}

#[derive(Default)]
struct Book {
    objects: BTreeMap<String, Known>,
    revision: u64,
    writes: u64,
}

fn mk_map(name: &str, n: u64) -> ConfigMap {
    let fill = n.to_string().repeat(200);
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"n": n.to_string(), "fill": fill}}))
        .expect("a map")
}

/// The number of a map, whose two fields must agree: a torn object would not.
fn number_of(map: &ConfigMap) -> u64 {
    let data = map.data.as_ref().expect("data");
    assert_eq!(data["n"].repeat(200), data["fill"], "{} is torn", map.name_any());
    data["n"].parse().expect("a number")
}

/// Writes until the server is gone.
async fn write(api: Api<ConfigMap>, book: Arc<Mutex<Book>>, writer: u64, mut chance: StdRng) {
    loop {
        let name = format!("w{writer}-{}", chance.random_range(0..KEYS));
        let n: u64 = chance.random_range(0..1_000_000_000);
        let before = book.lock().expect("unpoisoned").objects.entry(name.clone()).or_default().acknowledged;
        let removes = before.is_some() && chance.random_range(0..5) == 0;
        let wanted = (!removes).then_some(n);
        book.lock().expect("unpoisoned").objects.entry(name.clone()).or_default().under_way = Some(wanted);
        let outcome = match (before, wanted) {
            (None, _) => api.create(&PostParams::default(), &mk_map(&name, n)).await.map(Some),
            (Some(_), Some(_)) if chance.random() => {
                api.replace(&name, &PostParams::default(), &mk_map(&name, n)).await.map(Some)
            }
            (Some(_), Some(_)) => {
                let patch = Patch::Merge(json!({"data": mk_map(&name, n).data}));
                api.patch(&name, &PatchParams::default(), &patch).await.map(Some)
            }
            (Some(_), None) => api.delete(&name, &DeleteParams::default()).await.map(|_| None),
        };
        let mut book = book.lock().expect("unpoisoned");
        match outcome {
            Ok(written) => {
                if let Some(written) = written {
                    let revision = written.resource_version().expect("a revision").parse().expect("a number");
                    book.revision = book.revision.max(revision);
                }
                book.writes += 1;
                *book.objects.entry(name).or_default() = Known { acknowledged: wanted, under_way: None };
            }
            Err(kube::Error::Api(status)) => panic!("{name}: the server refused: {status}"),
            Err(_) => return, // no answer: the server is gone, and nobody knows whether it was written
        }
    }
}

/// A state by names, and the revision it was seen at.
type Followed = (BTreeMap<String, u64>, String);

/// What is there must be what was acknowledged, or what was under way.
async fn check(api: &Api<ConfigMap>, book: &mut Book) -> Followed {
    let list = api.list(&ListParams::default()).await.expect("a list");
    let found: BTreeMap<String, u64> =
        list.items.iter().map(|map| (map.name_any(), number_of(map))).collect();
    for (name, known) in &mut book.objects {
        let there = found.get(name).copied();
        assert!(
            there == known.acknowledged || Some(there) == known.under_way,
            "{name} is {there:?}; known is {known:?}"
        );
        *known = Known { acknowledged: there, under_way: None };
    }
    let stray: Vec<&String> = found.keys().filter(|name| !book.objects.contains_key(*name)).collect();
    assert!(stray.is_empty(), "{stray:?} came from nowhere");
    let revision = list.metadata.resource_version.expect("a revision");
    assert!(revision.parse::<u64>().expect("a number") >= book.revision, "revisions went back");
    (found, revision)
}

/// Follows the collection until the server is gone; answers what was seen and up to which revision.
async fn follow(api: Api<ConfigMap>, mut seen: BTreeMap<String, u64>, mut revision: String) -> Followed {
    let (every, since) = (WatchParams::default(), revision.clone());
    let Ok(events) = api.watch(&every, &since).await else { return (seen, revision) };
    let mut events = std::pin::pin!(events);
    while let Some(Ok(event)) = events.next().await {
        match event {
            WatchEvent::Added(map) | WatchEvent::Modified(map) => {
                revision = map.resource_version().expect("a revision");
                seen.insert(map.name_any(), number_of(&map));
            }
            WatchEvent::Deleted(map) => {
                revision = map.resource_version().expect("a revision");
                seen.remove(&map.name_any());
            }
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(status) => panic!("the watch failed: {status:?}"),
        }
    }
    (seen, revision)
}

/// Goes on where a watch was cut: either it comes to the present state, or it is told to start over.
async fn resume(
    api: &Api<ConfigMap>,
    mut seen: BTreeMap<String, u64>,
    revision: &str,
    present: &BTreeMap<String, u64>,
) {
    let within = WatchParams::default().timeout(2);
    let mut events = match api.watch(&within, revision).await {
        Ok(events) => events.boxed(),
        Err(kube::Error::Api(status)) if status.code == 410 => return,
        Err(error) => panic!("the watch cannot go on: {error}"),
    };
    while seen != *present {
        match events.next().await {
            Some(Ok(WatchEvent::Added(map) | WatchEvent::Modified(map))) => {
                seen.insert(map.name_any(), number_of(&map));
            }
            Some(Ok(WatchEvent::Deleted(map))) => drop(seen.remove(&map.name_any())),
            Some(Ok(WatchEvent::Error(status))) if status.code == 410 => return,
            Some(Ok(WatchEvent::Bookmark(_))) => {}
            other => panic!("a resumed watch ended at {seen:?} instead of {present:?}: {other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_has_everything_that_it_acknowledged() {
    let (rounds, seed) = (number("POLIS_KILL_ROUNDS", 10), number("POLIS_KILL_SEED", 1));
    let folder = tempfile::tempdir().expect("a folder");
    let book = Arc::new(Mutex::new(Book::default()));
    let mut chance = StdRng::seed_from_u64(seed);
    let mut followed: Option<Followed> = None;
    for round in 0..rounds {
        let process = Process::start(folder.path()).await;
        let mut known = std::mem::take(&mut *book.lock().expect("unpoisoned"));
        let (present, revision) = check(&process.api, &mut known).await;
        if let Some((seen, at)) = followed.take() {
            resume(&process.api, seen, &at, &present).await;
        }
        *book.lock().expect("unpoisoned") = known;
        let writers = (0..WRITERS).map(|writer| {
            let chance = StdRng::seed_from_u64(seed ^ (round << 8) ^ writer);
            tokio::spawn(write(process.api.clone(), book.clone(), writer, chance))
        });
        let writers: Vec<_> = writers.collect();
        let follower = tokio::spawn(follow(process.api.clone(), present, revision));
        // Not a wait for something: the moment of the kill is the point of the test, and any will do.
        tokio::time::sleep(Duration::from_millis(chance.random_range(1..250))).await;
        process.kill().await;
        join_all(writers).await.into_iter().for_each(|writer| writer.expect("a writer"));
        followed = Some(follower.await.expect("a watcher"));
    }
    let process = Process::start(folder.path()).await;
    let mut known = std::mem::take(&mut *book.lock().expect("unpoisoned"));
    check(&process.api, &mut known).await;
    println!("{rounds} kills, {} acknowledged writes, revision {}", known.writes, known.revision);
    assert!(known.writes > rounds, "{} writes in {rounds} rounds are too few to mean anything", known.writes);
}
