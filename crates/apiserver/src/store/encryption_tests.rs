//! Encryption at rest: what the file of a store contains, and which keys open it.

use std::path::{Path, PathBuf};

use ::redb::{self, ReadableDatabase, TableDefinition};
use futures::FutureExt;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use polis_apimachinery::clock::Clock;
use serde_json::{Value, json};

use super::{
    Collection, EncodedObject, EncryptionKeys, HistoryLimits, OpenError, Precondition, RedbStore, RowCodec,
    Store, Write,
};
use crate::{PlaneSpec, Server, Storage, common::*};

const OBJECTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("objects");

/// A store file and the key file beside it.
struct Files {
    _folder: tempfile::TempDir,
    store: PathBuf,
    keys: PathBuf,
}

fn mk_files() -> Files {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, keys) = (folder.path().join("store.redb"), folder.path().join("secrets.key"));
    Files { _folder: folder, store, keys }
}

fn keys(path: &Path) -> EncryptionKeys {
    EncryptionKeys::load_or_create(path).expect("keys")
}

fn open(store: &Path, keys: Option<EncryptionKeys>) -> Result<RedbStore, OpenError> {
    RedbStore::open(store, HistoryLimits::default(), Clock::system(), RowCodec::new(keys))
}

fn secrets() -> Collection {
    Collection::new("cell", "secrets")
}

/// Writes a Secret with a value, and waits until it is in the file.
fn put(store: &RedbStore, path: &str, value: &str) {
    let object = Some(EncodedObject::encode(&json!({"metadata": {"name": path}, "data": {"k": value}})));
    let write =
        Write { collection: secrets(), path: path.into(), precondition: Precondition::Absent, object };
    store.commit(write).now_or_never().expect("no backpressure").expect("writes");
}

fn value(store: &RedbStore, path: &str) -> Value {
    store.view().get(&secrets(), path).expect("a Secret").value()["data"]["k"].clone()
}

fn contains(file: &Path, text: &str) -> bool {
    memchr::memmem::find(&std::fs::read(file).expect("a file"), text.as_bytes()).is_some()
}

#[tokio::test]
async fn a_value_of_a_secret_is_never_in_the_file_and_is_read_after_a_restart() {
    let files = mk_files();
    let start = || async {
        let storage = Storage::Redb(files.store.clone());
        Server::builder().storage(storage).encryption(keys(&files.keys)).build().await.ok()
    };
    let server = start().await.expect("a server");
    server.create_plane(PlaneSpec::standalone("cell")).await.expect("a plane");
    let api: Api<Secret> = Api::namespaced(mk_client(&server, "cell"), "default");
    for name in ["kept", "gone"] {
        let secret = json!({"metadata": {"name": name}, "stringData": {"k": "planted-at-create"}});
        let secret = serde_json::from_value(secret).expect("a Secret");
        api.create(&PostParams::default(), &secret).await.expect("creates");
        assert!(!contains(&files.store, "planted") && !contains(&files.store, "cGxhbnRlZC"));
        let patch = Patch::Merge(json!({"stringData": {"k": "planted-at-update"}}));
        api.patch(name, &PatchParams::default(), &patch).await.expect("updates");
        assert!(!contains(&files.store, "planted") && !contains(&files.store, "cGxhbnRlZC"));
    }
    api.delete("gone", &DeleteParams::default()).await.expect("deletes");
    server.durable().await.expect("durable");
    assert!(!contains(&files.store, "planted") && !contains(&files.store, "cGxhbnRlZC"));
    assert!(contains(&files.store, "default/kept"), "the file has the row");
    drop((api, server));

    let server = eventually("the store to be closed", start).await;
    let api: Api<Secret> = Api::namespaced(mk_client(&server, "cell"), "default");
    let read = api.get("kept").await.expect("reads").data.expect("data");
    assert_eq!(read["k"].0, b"planted-at-update");
}

#[test]
fn the_first_start_with_keys_encrypts_what_an_earlier_version_stored() {
    let files = mk_files();
    let plain = open(&files.store, None).expect("a plain store");
    (0..50).for_each(|n| put(&plain, &format!("n/a{n}"), "planted"));
    let revision = plain.view().revision();
    drop(plain);
    assert!(contains(&files.store, "planted"));
    // A crash in an earlier attempt left a part of the new file.
    std::fs::write(files.store.with_extension("new"), "a part").expect("writes");

    let store = open(&files.store, Some(keys(&files.keys))).expect("opens");
    assert_eq!((value(&store, "n/a7"), store.view().revision()), (json!("planted"), revision));
    assert!(!contains(&files.store, "planted"), "no page of the file has the old value");
    put(&store, "n/later", "planted");
    drop(store);
    assert!(!contains(&files.store, "planted"));
    assert!(!files.store.with_extension("new").exists());
    let store = open(&files.store, Some(keys(&files.keys))).expect("opens again");
    assert_eq!(value(&store, "n/later"), "planted");
}

#[test]
fn without_the_right_key_the_start_fails_with_the_cause_and_no_secret_is_lost() {
    let files = mk_files();
    let store = open(&files.store, Some(keys(&files.keys))).expect("a store");
    put(&store, "n/a", "planted");
    drop(store);
    let other = mk_files();
    for (given, cause) in [(None, "no key file is given"), (Some(keys(&other.keys)), "has only: key-")] {
        let error = open(&files.store, given).err().expect("the key is missing").to_string();
        assert!(error.contains("secrets n/a of plane cell") && error.contains(cause), "{error}");
        assert!(error.contains(&files.store.display().to_string()), "{error}");
    }
    let store = open(&files.store, Some(keys(&files.keys))).expect("opens with its key");
    assert_eq!(value(&store, "n/a"), "planted");
}

#[test]
fn after_a_rotation_every_secret_opens_with_the_new_key_alone() {
    let files = mk_files();
    let store = open(&files.store, Some(keys(&files.keys))).expect("a store");
    put(&store, "n/a", "planted");
    drop(store);
    let old = keys(&files.keys).current().to_owned();
    let rotated = EncryptionKeys::rotate(&files.keys).expect("rotates");
    let new = rotated.current().to_owned();
    drop(open(&files.store, Some(rotated)).expect("a store under both keys"));
    assert!(!contains(&files.store, &old) && contains(&files.store, &new));

    let text = std::fs::read_to_string(&files.keys).expect("text");
    let without_old: String =
        text.lines().filter(|line| !line.starts_with(&old)).collect::<Vec<_>>().join("\n");
    std::fs::write(&files.keys, without_old).expect("writes");
    let store = open(&files.store, Some(keys(&files.keys))).expect("opens");
    assert_eq!(value(&store, "n/a"), "planted");
}

#[test]
fn a_row_that_was_moved_to_another_secret_is_refused() {
    let files = mk_files();
    let store = open(&files.store, Some(keys(&files.keys))).expect("a store");
    put(&store, "n/a", "planted");
    put(&store, "n/b", "public");
    drop(store);
    {
        let database = redb::Database::open(&files.store).expect("opens");
        let read = database.begin_read().expect("begins").open_table(OBJECTS).expect("a table");
        let row = read.get("cell\0secrets\0n/a").expect("reads").expect("a row").value().to_vec();
        drop(read);
        let transaction = database.begin_write().expect("begins");
        let moved = transaction
            .open_table(OBJECTS)
            .expect("a table")
            .insert("cell\0secrets\0n/b", row.as_slice())
            .map(drop);
        moved.expect("inserts");
        transaction.commit().expect("commits");
    }
    let error = open(&files.store, Some(keys(&files.keys))).err().expect("refused").to_string();
    assert!(error.contains("secrets n/b of plane cell") && error.contains("cannot be decrypted"), "{error}");
}
