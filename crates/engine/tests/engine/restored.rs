//! A server that was restored from a backup: the cache follows it back, and later changes are seen.

use std::time::Duration;

use polis_api::k8s_openapi::api::core::v1::ConfigMap;
use polis_engine::{Plane, Watch};

use crate::fake_apiserver::{FakeApiServer, InjectedFault};
use crate::harness::{
    KeyRecorder, Running, cached, eventually, eventually_within, mk_engine, mk_map, served,
};

fn watch_maps(server: &FakeApiServer) -> (Running, Plane, KeyRecorder) {
    let mut engine = mk_engine(1);
    let plane = engine.plane("plane", server.plane("main"), [Watch::of::<ConfigMap>()]);
    let recorder = KeyRecorder::default();
    engine.controller("notes", &plane, recorder.clone()).for_kind::<ConfigMap>();
    (Running::spawn(engine), plane, recorder)
}

#[tokio::test(start_paused = true)]
async fn the_cache_of_a_restored_server_goes_back_with_it_and_then_forward() {
    for streaming in [true, false] {
        let server = FakeApiServer::with_default_kinds();
        server.streaming(streaming);
        for name in ["stays", "changes", "goes"] {
            server.put("", "v1", "configmaps", mk_map("shop", name, "old"));
        }
        let (engine, plane, recorder) = watch_maps(&server);
        engine.ready().await;
        eventually("the backlog is reconciled", || recorder.keys().len() == 3).await;
        recorder.clear();
        let backup = server.backup();
        server.put("", "v1", "configmaps", mk_map("shop", "changes", "new"));
        server.put("", "v1", "configmaps", mk_map("shop", "added", "new"));
        server.remove("", "v1", "configmaps", "shop/goes");
        eventually("the changes are reconciled", || recorder.keys().len() == 3).await;
        recorder.clear();

        server.restore(&backup);
        eventually("the cache is that of the backup", || cached(&plane) == served(&server, "")).await;
        eventually("the differences are reconciled", || recorder.keys().len() == 3).await;
        let mut keys = recorder.keys();
        keys.sort();
        assert_eq!(keys, ["main/shop/added", "main/shop/changes", "main/shop/goes"]);

        // The server has not reached the revision of the first watch yet.
        server.put("", "v1", "configmaps", mk_map("shop", "later", "new"));
        eventually_within("a change after the restore is seen", Duration::from_secs(2), || {
            cached(&plane) == served(&server, "")
        })
        .await;
        engine.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn own_writes_that_a_restored_server_has_lost_leave_the_cache() {
    let server = FakeApiServer::with_default_kinds();
    server.put("", "v1", "configmaps", mk_map("shop", "a", "old"));
    let (engine, plane, _) = watch_maps(&server);
    engine.ready().await;
    let backup = server.backup();
    server.late_watches(true);
    let existing = plane.get::<ConfigMap>(("shop", "a")).unwrap().unwrap();
    let mut changed = existing.clone();
    changed.data = Some([("value".to_owned(), "mine".to_owned())].into());
    plane.update(&existing, &changed).await.unwrap();
    assert!(cached(&plane)[0].contains("mine"));
    server.restore(&backup);
    server.late_watches(false);
    eventually("the write is gone", || cached(&plane) == served(&server, "")).await;
    engine.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_at_its_timeout_costs_no_list() {
    let server = FakeApiServer::with_default_kinds();
    let (engine, plane, _) = watch_maps(&server);
    engine.ready().await;
    let before = server.log().len();
    tokio::time::sleep(Duration::from_secs(40 * 60)).await;
    server.end_watches();
    server.put("", "v1", "configmaps", mk_map("shop", "a", "x"));
    eventually("the watch is resumed", || cached(&plane) == served(&server, "")).await;
    let new: Vec<_> = server.log().split_off(before);
    assert!(new.iter().all(|line| !line.contains("limit=1")), "{new:?}");
    server.end_watches();
    server.put("", "v1", "configmaps", mk_map("shop", "b", "x"));
    eventually("the watch is resumed", || cached(&plane) == served(&server, "")).await;
    let new: Vec<_> = server.log().split_off(before);
    assert_eq!(new.iter().filter(|line| line.contains("limit=1")).count(), 1, "one after an interruption");
    engine.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_is_back_within_ten_seconds_and_at_once_when_another_request_succeeds() {
    let server = FakeApiServer::with_default_kinds();
    server.put("", "v1", "configmaps", mk_map("shop", "a", "old"));
    let (engine, plane, _) = watch_maps(&server);
    engine.ready().await;
    for probe in [false, true] {
        server.hook(|_, _| Some(InjectedFault::Respond(503, "down".into())));
        server.end_watches();
        tokio::time::sleep(Duration::from_secs(15 * 60)).await;
        server.clear_faults();
        server.put("", "v1", "configmaps", mk_map("shop", "a", &format!("new {probe}")));
        if probe {
            plane.uncached().get::<ConfigMap>(("shop", "a")).await.unwrap();
        }
        // The cap is 10 s, with up to half of it as jitter.
        let within = Duration::from_secs(if probe { 2 } else { 16 });
        eventually_within("the change is seen", within, || cached(&plane) == served(&server, "")).await;
    }
    engine.stop().await;
}
