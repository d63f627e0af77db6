//! Kills the server with SIGKILL under write load: every acknowledged write survives, and watches can resume.
//!
//! `POLIS_KILL_ROUNDS` sets the number of kills (default 10), `POLIS_KILL_SEED` the random seed.

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

/// A server process and a client of it.
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
        let mut stdout = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let line = tokio::time::timeout(Duration::from_secs(60), stdout.next_line()).await;
        let line = line.expect("in time").expect("a line").expect("the server serves");
        assert!(line.starts_with("serving on"), "{line}");
        let file = Kubeconfig::read_from(config).expect("a kubeconfig");
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
        let client = Client::try_from(config.expect("a configuration")).expect("a client");
        Self { child, api: Api::namespaced(client, "default") }
    }

    /// Sends SIGKILL and waits for the end of the process.
    async fn kill(mut self) {
        self.child.kill().await.expect("the server dies");
    }
}

/// What a writer knows of an object: the last acknowledged number, and that of the write in flight.
#[derive(Clone, Debug, Default)]
struct ObjectState {
    acknowledged: Option<u64>,
    in_flight: Option<Option<u64>>,
}

#[derive(Default)]
struct WriteRecord {
    objects: BTreeMap<String, ObjectState>,
    revision: u64,
    writes: u64,
}

fn mk_map(name: &str, n: u64) -> ConfigMap {
    let fill = n.to_string().repeat(200);
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"n": n.to_string(), "fill": fill}}))
        .expect("a map")
}

/// The number of a ConfigMap. Its two fields must agree; those of a torn object would not.
fn number_of(map: &ConfigMap) -> u64 {
    let data = map.data.as_ref().expect("data");
    assert_eq!(data["n"].repeat(200), data["fill"], "{} is torn", map.name_any());
    data["n"].parse().expect("a number")
}

/// Writes until the server is killed.
async fn write(api: Api<ConfigMap>, record: Arc<Mutex<WriteRecord>>, writer: u64, mut random: StdRng) {
    loop {
        let name = format!("w{writer}-{}", random.random_range(0..KEYS));
        let n: u64 = random.random_range(0..1_000_000_000);
        let before = record.lock().expect("unpoisoned").objects.entry(name.clone()).or_default().acknowledged;
        let removes = before.is_some() && random.random_range(0..5) == 0;
        let wanted = (!removes).then_some(n);
        record.lock().expect("unpoisoned").objects.entry(name.clone()).or_default().in_flight = Some(wanted);
        let outcome = match (before, wanted) {
            (None, _) => api.create(&PostParams::default(), &mk_map(&name, n)).await.map(Some),
            (Some(_), Some(_)) if random.random() => {
                api.replace(&name, &PostParams::default(), &mk_map(&name, n)).await.map(Some)
            }
            (Some(_), Some(_)) => {
                let patch = Patch::Merge(json!({"data": mk_map(&name, n).data}));
                api.patch(&name, &PatchParams::default(), &patch).await.map(Some)
            }
            (Some(_), None) => api.delete(&name, &DeleteParams::default()).await.map(|_| None),
        };
        let mut record = record.lock().expect("unpoisoned");
        match outcome {
            Ok(written) => {
                if let Some(written) = written {
                    let revision = written.resource_version().expect("a revision").parse().expect("a number");
                    record.revision = record.revision.max(revision);
                }
                record.writes += 1;
                *record.objects.entry(name).or_default() =
                    ObjectState { acknowledged: wanted, in_flight: None };
            }
            Err(kube::Error::Api(status)) => panic!("{name}: the server refused: {status}"),
            Err(_) => return, // no response: the server was killed, and the result of the write is unknown
        }
    }
}

/// The numbers by object name, and the revision of this state.
type WatchState = (BTreeMap<String, u64>, String);

/// Checks that every object has the acknowledged number or that of the write in flight.
async fn check(api: &Api<ConfigMap>, record: &mut WriteRecord) -> WatchState {
    let list = api.list(&ListParams::default()).await.expect("a list");
    let found: BTreeMap<String, u64> =
        list.items.iter().map(|map| (map.name_any(), number_of(map))).collect();
    for (name, known) in &mut record.objects {
        let found_number = found.get(name).copied();
        assert!(
            found_number == known.acknowledged || Some(found_number) == known.in_flight,
            "{name} is {found_number:?}; known is {known:?}"
        );
        *known = ObjectState { acknowledged: found_number, in_flight: None };
    }
    let unknown: Vec<&String> = found.keys().filter(|name| !record.objects.contains_key(*name)).collect();
    assert!(unknown.is_empty(), "{unknown:?} exist but were never written");
    let revision = list.metadata.resource_version.expect("a revision");
    assert!(revision.parse::<u64>().expect("a number") >= record.revision, "revisions went back");
    (found, revision)
}

/// Watches the collection until the server is killed. Returns the last state and its revision.
async fn watch(api: Api<ConfigMap>, mut seen: BTreeMap<String, u64>, mut revision: String) -> WatchState {
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

/// Resumes a watch after a restart: it must reach the current state or get a 410.
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
        Err(error) => panic!("the watch cannot resume: {error}"),
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
async fn a_killed_server_keeps_every_acknowledged_write() {
    let (rounds, seed) = (number("POLIS_KILL_ROUNDS", 10), number("POLIS_KILL_SEED", 1));
    let folder = tempfile::tempdir().expect("a folder");
    let record = Arc::new(Mutex::new(WriteRecord::default()));
    let mut random = StdRng::seed_from_u64(seed);
    let mut watched: Option<WatchState> = None;
    for round in 0..rounds {
        let process = Process::start(folder.path()).await;
        let mut known = std::mem::take(&mut *record.lock().expect("unpoisoned"));
        let (present, revision) = check(&process.api, &mut known).await;
        if let Some((seen, at)) = watched.take() {
            resume(&process.api, seen, &at, &present).await;
        }
        *record.lock().expect("unpoisoned") = known;
        let writers = (0..WRITERS).map(|writer| {
            let random = StdRng::seed_from_u64(seed ^ (round << 8) ^ writer);
            tokio::spawn(write(process.api.clone(), record.clone(), writer, random))
        });
        let writers: Vec<_> = writers.collect();
        let watcher = tokio::spawn(watch(process.api.clone(), present, revision));
        // Not a wait for a condition: the server is killed at a random moment.
        tokio::time::sleep(Duration::from_millis(random.random_range(1..250))).await;
        process.kill().await;
        join_all(writers).await.into_iter().for_each(|writer| writer.expect("a writer"));
        watched = Some(watcher.await.expect("a watcher"));
    }
    let process = Process::start(folder.path()).await;
    let mut known = std::mem::take(&mut *record.lock().expect("unpoisoned"));
    check(&process.api, &mut known).await;
    println!("{rounds} kills, {} acknowledged writes, revision {}", known.writes, known.revision);
    assert!(known.writes > rounds, "{} writes in {rounds} rounds are too few to mean anything", known.writes);
}
