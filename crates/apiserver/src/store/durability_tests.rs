//! Durability: acknowledged writes survive restarts and power loss, and a damaged file is refused.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Condvar, Mutex},
};

use ::redb::{self, StorageBackend};
use futures::{FutureExt, StreamExt};
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams, PostParams, WatchEvent, WatchParams},
};
use polis_apimachinery::clock::Clock;
use serde_json::json;

use super::{
    Collection, CommitError, EncodedObject, HistoryLimits, OpenError, Precondition, RangeOptions, RedbStore,
    RowCodec, Store, Stored, Write,
};
use crate::{PlaneSpec, Server, Storage, common::*};

#[tokio::test]
async fn a_restart_keeps_planes_objects_and_revisions() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("polis.redb");
    let storage = || Storage::Redb(file.clone());
    let revision = {
        let server = Server::builder().storage(storage()).build().await.expect("a server");
        server.create_plane(PlaneSpec::standalone("cell")).await.expect("a plane");
        server.install_crd_in("cell", &mk_widgets_crd()).await.expect("a definition");
        let api = widgets(&mk_client(&server, "cell"));
        api.create(&PostParams::default(), &mk_widget("a", json!({"size": 4}))).await.expect("creates");
        api.create(&PostParams::default(), &mk_widget("b", json!({}))).await.expect("creates");
        api.delete("b", &DeleteParams::default()).await.expect("deletes");
        api.list(&ListParams::default()).await.expect("lists").metadata.resource_version.expect("a revision")
    };
    let server = eventually("the store to be closed", || async {
        Server::builder().storage(storage()).build().await.ok()
    })
    .await;
    let api = widgets(&mk_client(&server, "cell"));
    let list = api.list(&ListParams::default()).await.expect("lists");
    assert_eq!(list.items.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["a"]);
    assert_eq!(list.metadata.resource_version.expect("a revision"), revision);
    assert_eq!(list.items[0].data["spec"]["size"], 4);
    let after = api.create(&PostParams::default(), &mk_widget("c", json!({}))).await.expect("creates");
    assert!(
        after.resource_version().expect("a revision").parse::<u64>().expect("a number")
            > revision.parse().expect("a number")
    );
}

fn open(path: &std::path::Path) -> Result<RedbStore, OpenError> {
    RedbStore::open(path, HistoryLimits::default(), Clock::system(), RowCodec::default())
}

#[tokio::test]
async fn a_new_store_is_accessible_to_its_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("polis.redb");
    std::os::unix::fs::symlink(folder.path().join("other"), file.with_extension("new")).expect("a link");
    drop(open(&file).expect("a new store"));
    assert_eq!(std::fs::metadata(&file).expect("a file").permissions().mode() & 0o777, 0o600);
    assert!(!folder.path().join("other").exists(), "a link with the temporary name is not followed");
}

#[tokio::test]
async fn a_damaged_truncated_or_newer_file_is_refused_by_name_and_not_modified() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("polis.redb");
    drop(open(&file).expect("a new store"));
    let whole = std::fs::read(&file).expect("bytes");

    std::fs::write(&file, b"").expect("writes");
    assert!(matches!(open(&file), Err(OpenError::Damaged { path, .. }) if path.ends_with("polis.redb")));
    for length in [1, 100, 4096, whole.len() / 2] {
        std::fs::write(&file, &whole[..length]).expect("writes");
        let error = open(&file).err().unwrap_or_else(|| panic!("opened {length} bytes"));
        assert!(error.to_string().contains("polis.redb"), "{error}");
        assert_eq!(std::fs::read(&file).expect("bytes").len(), length, "the file was modified");
    }
    std::fs::write(&file, b"a text file and not a store, long enough").expect("writes");
    assert!(open(&file).is_err());

    std::fs::write(&file, &whole).expect("writes");
    {
        let database = redb::Database::open(&file).expect("opens");
        let transaction = database.begin_write().expect("begins");
        transaction
            .open_table(redb::TableDefinition::<&str, u64>::new("about"))
            .expect("a table")
            .insert("format", 99)
            .expect("inserts");
        transaction.commit().expect("commits");
    }
    let error = open(&file).err().expect("too new");
    assert!(matches!(error, OpenError::Newer { found: 99, .. }), "{error}");
}

/// A disk that loses power after a given number of operations: unsynced writes are lost or torn. While its
/// gate is shut, a sync blocks.
#[derive(Clone, Debug, Default)]
struct Disk(Arc<Mutex<State>>, Arc<Gate>);

#[derive(Debug, Default)]
struct Gate {
    shut: Mutex<bool>,
    turned: Condvar,
}

impl Gate {
    fn shut(&self, shut: bool) {
        *self.shut.lock().expect("unpoisoned") = shut;
        self.turned.notify_all();
    }

    fn pass(&self) {
        let shut = self.shut.lock().expect("unpoisoned");
        drop(self.turned.wait_while(shut, |shut| *shut).expect("unpoisoned"));
    }
}

#[derive(Debug, Default)]
struct State {
    durable: Vec<u8>,
    /// Writes since the last sync, in order.
    pending: Vec<(u64, Vec<u8>)>,
    length: u64,
    /// Operations until the power loss; `None` for no power loss.
    left: Option<u64>,
    operations: u64,
}

impl State {
    fn step(&mut self) -> io::Result<()> {
        self.operations += 1;
        match &mut self.left {
            Some(0) => Err(io::Error::other("no power")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn write(bytes: &mut Vec<u8>, offset: u64, data: &[u8]) {
        let (start, end) = (offset as usize, offset as usize + data.len());
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[start..end].copy_from_slice(data);
    }

    fn current(&self) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        bytes.resize(self.length as usize, 0);
        for (offset, data) in &self.pending {
            Self::write(&mut bytes, *offset, data);
        }
        bytes.resize(self.length as usize, 0);
        bytes
    }
}

impl Disk {
    /// The disk after the power loss: each unsynced write is complete, lost or torn, depending on `seed`.
    fn after_power_loss(&self, mut seed: u64) -> Self {
        let state = self.0.lock().expect("unpoisoned");
        let mut bytes = state.durable.clone();
        for (offset, data) in &state.pending {
            for (n, sector) in data.chunks(512).enumerate() {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                if seed >> 62 != 0 {
                    State::write(&mut bytes, offset + n as u64 * 512, sector);
                }
            }
        }
        let length = bytes.len() as u64;
        Self(Arc::new(Mutex::new(State { durable: bytes, length, ..State::default() })), Arc::default())
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().expect("unpoisoned").length)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.0.lock().expect("unpoisoned");
        if state.left == Some(0) {
            return Err(io::Error::other("no power"));
        }
        let bytes = state.current();
        let end = offset as usize + out.len();
        out.copy_from_slice(
            bytes.get(offset as usize..end).ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?,
        );
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut state = self.0.lock().expect("unpoisoned");
        state.step()?;
        state.length = length;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.1.pass();
        let mut state = self.0.lock().expect("unpoisoned");
        state.step()?;
        state.durable = state.current();
        state.pending.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.0.lock().expect("unpoisoned");
        state.step()?;
        state.length = state.length.max(offset + data.len() as u64);
        state.pending.push((offset, data.to_vec()));
        Ok(())
    }
}

fn open_disk(disk: &Disk) -> Result<RedbStore, OpenError> {
    RedbStore::with_backend("disk", disk.clone(), HistoryLimits::default(), Clock::system())
}

/// The acknowledged objects: revision and number by path.
type Known = BTreeMap<String, (u64, u64)>;

/// Commits a write and waits until it is durable, as for clients outside the process.
async fn commit_durably(store: &RedbStore, write: Write) -> Result<Stored, CommitError> {
    let stored = store.commit(write).await?;
    match store.durable(stored.revision()) {
        Some(durable) => durable.await.map(|()| stored),
        None => Ok(stored),
    }
}

/// Writes until the power loss. Returns the acknowledged objects, and the path of the write that failed.
fn write_until_power_loss(store: &RedbStore, count: u64) -> (Known, Option<String>) {
    let collection = Collection::new("p", "things");
    let mut known = Known::new();
    for n in 0..count {
        let path = format!("o{}", n % 7);
        let current = known.get(&path).map(|(revision, _)| *revision);
        let removes = n % 5 == 4 && current.is_some();
        let object = (!removes).then(|| {
            EncodedObject::encode(&json!({"metadata": {"name": path}, "n": n, "fill": "x".repeat(700)}))
        });
        let write = Write {
            collection: collection.clone(),
            path: path.clone(),
            precondition: current.map_or(Precondition::Absent, Precondition::AtRevision),
            object,
        };
        match futures::executor::block_on(commit_durably(store, write)) {
            Ok(_) if removes => drop(known.remove(&path)),
            Ok(stored) => drop(known.insert(path, (stored.revision(), n))),
            Err(_) => return (known, Some(path)),
        }
    }
    (known, None)
}

/// Checks that every acknowledged write survived. The failed write may have survived too.
fn check(store: &RedbStore, known: &Known, unsure: Option<&str>, at: u64) {
    let page =
        store.view().range(&Collection::new("p", "things"), &RangeOptions::default()).expect("the present");
    let found: BTreeMap<String, u64> = page
        .items
        .iter()
        .map(|(path, stored)| (path.to_string(), stored.value()["n"].as_u64().expect("whole")))
        .collect();
    for (path, (revision, n)) in known.iter().filter(|(path, _)| Some(path.as_str()) != unsure) {
        assert_eq!(found.get(path), Some(n), "power lost at operation {at}");
        assert!(store.view().revision() >= *revision, "revisions went back at operation {at}");
    }
    let unknown: Vec<_> =
        found.keys().filter(|path| !known.contains_key(*path) && Some(path.as_str()) != unsure).collect();
    assert!(unknown.is_empty(), "{unknown:?} came back at operation {at}");
}

/// `POLIS_CRASH_POINTS` sets the number of crash points (default 150).
#[test]
fn a_power_loss_at_any_operation_loses_no_acknowledged_write() {
    const WRITES: u64 = 24;
    let limit: u64 =
        std::env::var("POLIS_CRASH_POINTS").ok().and_then(|text| text.parse().ok()).unwrap_or(150);
    let total = {
        let disk = Disk::default();
        let store = open_disk(&disk).expect("opens");
        write_until_power_loss(&store, WRITES);
        drop(store);
        disk.0.lock().expect("unpoisoned").operations
    };
    let step = (total / limit).max(1);
    let mut cuts = 0;
    for round in 0..limit.div_ceil(total).max(1) {
        for at in (0..total).step_by(usize::try_from(step).expect("small")) {
            let disk = Disk::default();
            disk.0.lock().expect("unpoisoned").left = Some(at);
            let (known, unsure) = match open_disk(&disk) {
                Ok(store) => write_until_power_loss(&store, WRITES),
                Err(_) => (Known::new(), None),
            };
            let survivor = disk.after_power_loss(at.wrapping_mul(31).wrapping_add(round));
            // A store that acknowledged a write must open; one that did not may be incomplete.
            match open_disk(&survivor) {
                Ok(store) => check(&store, &known, unsure.as_deref(), at),
                Err(error) => assert!(known.is_empty(), "operation {at}: {error}"),
            }
            cuts += 1;
        }
    }
    assert!(cuts >= 50, "{cuts} power cuts are too few to mean anything");
}

/// The store accepts writes while the disk still syncs the first ones; then the power is lost.
#[test]
fn a_power_loss_loses_only_the_tail_of_the_log() {
    const WRITES: u64 = 200;
    let collection = Collection::new("p", "things");
    for cut in (0..60).step_by(3) {
        let disk = Disk::default();
        let store = open_disk(&disk).expect("opens");
        disk.0.lock().expect("unpoisoned").left = Some(cut);
        // The state at each revision.
        let mut states: BTreeMap<u64, BTreeMap<String, u64>> = BTreeMap::from([(1, BTreeMap::new())]);
        let mut revisions: BTreeMap<String, u64> = BTreeMap::new();
        for n in 0..WRITES {
            let path = format!("o{}", n * 7 % 11);
            let current = revisions.get(&path).copied();
            let removes = n % 6 == 5 && current.is_some();
            let object =
                (!removes).then(|| EncodedObject::encode(&json!({"metadata": {"name": path}, "n": n})));
            let precondition = current.map_or(Precondition::Absent, Precondition::AtRevision);
            let write = Write { collection: collection.clone(), path: path.clone(), precondition, object };
            let Ok(stored) = futures::executor::block_on(store.commit(write)) else { break };
            let mut state = states.last_key_value().map(|(_, state)| state.clone()).unwrap_or_default();
            if removes {
                revisions.remove(&path);
                state.remove(&path);
            } else {
                revisions.insert(path.clone(), stored.revision());
                state.insert(path, n);
            }
            states.insert(stored.revision(), state);
        }
        drop(store);
        let survivor = open_disk(&disk.after_power_loss(cut)).expect("an intact store opens");
        let page = survivor.view().range(&collection, &RangeOptions::default()).expect("the present");
        let found: BTreeMap<String, u64> = page
            .items
            .iter()
            .map(|(path, stored)| (path.to_string(), stored.value()["n"].as_u64().expect("whole")))
            .collect();
        let revision = survivor.view().revision();
        assert_eq!(states.get(&revision), Some(&found), "cut at operation {cut}, came back at {revision}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_outside_the_process_see_only_durable_writes() {
    let disk = Disk::default();
    let store = Arc::new(open_disk(&disk).expect("opens"));
    let server = Server::builder().store(store).build().await.expect("a server");
    server.create_plane(PlaneSpec::standalone("cell")).await.expect("a plane");
    server.install_crd_in("cell", &mk_widgets_crd()).await.expect("a definition");
    server.durable().await.expect("a disk");
    let inside = widgets(&kube::Client::new(server.plane_service("cell").read_uncommitted(), "default"));
    let outside = widgets(&mk_client(&server, "cell"));
    let mut events = std::pin::pin!(outside.watch(&WatchParams::default(), "0").await.expect("watches"));

    disk.1.shut(true);
    inside.create(&PostParams::default(), &mk_widget("a", json!({}))).await.expect("creates");
    assert_eq!(inside.get("a").await.expect("visible with read_uncommitted").name_any(), "a");
    let (all, post, second) = (ListParams::default(), PostParams::default(), mk_widget("b", json!({})));
    let mut got = std::pin::pin!(outside.get("a"));
    let mut listed = std::pin::pin!(outside.list(&all));
    let mut created = std::pin::pin!(outside.create(&post, &second));
    // All requests proceed up to the wait for the disk: eventually the second widget exists.
    while inside.get_opt("b").await.expect("answers").is_none() {
        assert!(got.as_mut().now_or_never().is_none(), "shown before it is durable");
        assert!(listed.as_mut().now_or_never().is_none(), "shown before it is durable");
        assert!(created.as_mut().now_or_never().is_none(), "acknowledged before it is durable");
        assert!(events.next().now_or_never().is_none(), "watched before it is durable");
        tokio::task::yield_now().await;
    }

    disk.1.shut(false);
    assert_eq!(got.await.expect("is there").name_any(), "a");
    assert!(!listed.await.expect("lists").items.is_empty());
    assert_eq!(created.await.expect("creates").name_any(), "b");
    for expected in ["a", "b"] {
        match events.next().await {
            Some(Ok(WatchEvent::Added(widget))) => assert_eq!(widget.name_any(), expected),
            other => panic!("expected an event of {expected}, got {other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_waits_for_its_own_events_and_not_for_later_writes_of_other_planes() {
    let disk = Disk::default();
    let store = Arc::new(open_disk(&disk).expect("opens"));
    let server = Server::builder().store(store).build().await.expect("a server");
    for plane in ["cell", "other"] {
        server.create_plane(PlaneSpec::standalone(plane)).await.expect("a plane");
        server.install_crd_in(plane, &mk_widgets_crd()).await.expect("a definition");
    }
    let outside = widgets(&mk_client(&server, "cell"));
    let mut events = std::pin::pin!(outside.watch(&WatchParams::default(), "0").await.expect("watches"));
    outside.create(&PostParams::default(), &mk_widget("a", json!({}))).await.expect("creates");
    server.durable().await.expect("a disk");

    disk.1.shut(true);
    let elsewhere = widgets(&kube::Client::new(server.plane_service("other").read_uncommitted(), "default"));
    elsewhere.create(&PostParams::default(), &mk_widget("b", json!({}))).await.expect("creates");

    let first = tokio::time::timeout(std::time::Duration::from_secs(60), events.next()).await;
    disk.1.shut(false);
    match first {
        Ok(Some(Ok(WatchEvent::Added(widget)))) => assert_eq!(widget.name_any(), "a"),
        other => panic!("expected the event of the durable write, got {other:?}"),
    }
}

#[tokio::test]
async fn a_failed_disk_is_reported_to_requests_that_depend_on_lost_writes() {
    let disk = Disk::default();
    let store = Arc::new(open_disk(&disk).expect("opens"));
    let server = Server::builder().store(store).build().await.expect("a server");
    server.create_plane(PlaneSpec::standalone("cell")).await.expect("a plane");
    server.install_crd_in("cell", &mk_widgets_crd()).await.expect("a definition");
    let api = widgets(&mk_client(&server, "cell"));
    api.create(&PostParams::default(), &mk_widget("a", json!({}))).await.expect("creates");

    disk.0.lock().expect("unpoisoned").left = Some(0);
    let refused = api.create(&PostParams::default(), &mk_widget("b", json!({}))).await.expect_err("no power");
    assert!(refused.to_string().contains("no power"), "{refused}");
    assert!(api.get("b").await.expect_err("not durable").to_string().contains("restart to continue"));
    assert_eq!(api.get("a").await.expect("a durable object is served").name_any(), "a");
    let refused = api.create(&PostParams::default(), &mk_widget("c", json!({}))).await.expect_err("stopped");
    assert!(refused.to_string().contains("restart to continue"), "{refused}");
}
