//! Tests of writes, which compare first, carry preconditions, and are retried only where that is safe. Also
//! of events, shutdown and panics.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::Method;
use polis_api::k8s_openapi::api::core::v1::ConfigMap;
use polis_api::k8s_openapi::api::events::v1::Event;
use polis_engine::{
    Action, Engine, Error, ErrorClass, Key, ListOptions, OperationResult, Plane, Preconditions, Watch,
};
use serde_json::json;

use crate::fake_apiserver::{FakeApiServer, InjectedFault};
use crate::harness::{FnReconciler, KeyRecorder, Running, eventually, mk_engine, mk_map};

const HOLD: &str = "example.com/hold";

async fn read(plane: &Plane, name: &str) -> ConfigMap {
    plane.uncached().get(("shop", name)).await.unwrap().unwrap()
}

fn mk_desired(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(mk_map("shop", name, value)).unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_object_in_the_desired_state_is_not_written() {
    let server = FakeApiServer::with_default_kinds();
    let plane = server.plane("main");
    let created = plane.create_or_update(None, &mk_desired("a", "x")).await.unwrap();
    assert!(matches!(created, OperationResult::Created(_)));
    let current = read(&plane, "a").await;
    let before = server.requests();
    assert_eq!(
        plane.create_or_update(Some(&current), &mk_desired("a", "x")).await.unwrap(),
        OperationResult::Unchanged
    );
    assert_eq!(plane.update(&current, &current).await.unwrap(), OperationResult::Unchanged);
    assert_eq!(plane.update_status(&current, &current).await.unwrap(), OperationResult::Unchanged);
    assert_eq!(plane.remove_finalizer(&current, HOLD).await.unwrap(), OperationResult::Unchanged);
    assert_eq!(server.requests(), before);
    assert!(plane.create_or_update(Some(&current), &mk_desired("a", "y")).await.unwrap().changed());
    assert_eq!(read(&plane, "a").await.data.unwrap()["value"], "y");
}

#[tokio::test(start_paused = true)]
async fn an_update_keeps_fields_of_other_writers_and_fails_if_the_object_has_changed() {
    let server = FakeApiServer::with_default_kinds();
    let plane = server.plane("main");
    let mut object = mk_map("shop", "a", "x");
    object["data"]["other"] = "theirs".into();
    server.put("", "v1", "configmaps", object.clone());
    let current = read(&plane, "a").await;
    plane.create_or_update(Some(&current), &mk_desired("a", "y")).await.unwrap();
    assert_eq!(read(&plane, "a").await.data.unwrap()["other"], "theirs");
    let error = plane.create_or_update(Some(&current), &mk_desired("a", "z")).await.unwrap_err();
    assert!(error.is_conflict(), "{error}");
    assert_eq!(read(&plane, "a").await.data.unwrap()["value"], "y");
}

#[tokio::test(start_paused = true)]
async fn a_delete_checks_its_preconditions() {
    let server = FakeApiServer::with_default_kinds();
    let plane = server.plane("main");
    server.put("", "v1", "configmaps", mk_map("shop", "a", "x"));
    let first = read(&plane, "a").await;
    server.put("", "v1", "configmaps", mk_map("shop", "a", "changed"));
    assert!(plane.delete(&first, Preconditions::UidAndResourceVersion).await.unwrap_err().is_conflict());
    server.remove("", "v1", "configmaps", "shop/a");
    server.put("", "v1", "configmaps", mk_map("shop", "a", "namesake"));
    assert!(plane.delete(&first, Preconditions::Uid).await.unwrap_err().is_conflict());
    let second = read(&plane, "a").await;
    assert!(plane.delete(&second, Preconditions::Uid).await.unwrap());
    assert!(!plane.delete(&second, Preconditions::Uid).await.unwrap(), "the object no longer exists");
    let error = plane.delete(&mk_desired("a", "x"), Preconditions::Uid).await.unwrap_err();
    assert!(matches!(error, Error::Unidentified { missing: "uid", .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn finalizers_are_added_and_removed_with_preconditions() {
    let server = FakeApiServer::with_default_kinds();
    let plane = server.plane("main");
    server.put("", "v1", "configmaps", mk_map("shop", "a", "x"));
    let stale = read(&plane, "a").await;
    let held = plane.add_finalizer(&stale, HOLD).await.unwrap().into_object().unwrap();
    assert!(plane.add_finalizer(&stale, HOLD).await.unwrap_err().is_conflict());
    assert!(plane.delete(&held, Preconditions::Uid).await.unwrap());
    let leaving = read(&plane, "a").await;
    assert!(leaving.metadata.deletion_timestamp.is_some());
    plane.remove_finalizer(&leaving, HOLD).await.unwrap();
    assert_eq!(plane.uncached().get::<ConfigMap>(("shop", "a")).await.unwrap(), None);
    assert_eq!(
        plane.remove_finalizer(&leaving, HOLD).await.unwrap(),
        OperationResult::Unchanged,
        "a missing object counts as unchanged"
    );
}

#[tokio::test(start_paused = true)]
async fn fields_are_applied_and_lists_are_read_in_pages() {
    let server = FakeApiServer::with_default_kinds();
    server.page(2);
    let plane = server.plane("main");
    for name in ["a", "b", "c", "d", "e"] {
        plane.apply(&mk_desired(name, "x"), "tests", true).await.unwrap();
    }
    let all = plane.uncached().list::<ConfigMap>(&ListOptions::within("shop")).await.unwrap();
    assert_eq!(all.len(), 5);
    assert_eq!(plane.uncached().list::<ConfigMap>(&ListOptions::within("elsewhere")).await.unwrap(), []);
    assert!(server.log().iter().any(|line| line.contains("force=true&fieldManager=tests")));
}

#[tokio::test(start_paused = true)]
async fn a_create_that_may_have_been_processed_is_not_retried_but_an_update_is() {
    let server = FakeApiServer::with_default_kinds();
    let plane = server.plane("main");
    let count = |method: &str| server.log().iter().filter(|line| line.starts_with(method)).count();
    server.hook(|method, _| (method == Method::POST).then_some(InjectedFault::BreakAfter));
    let error = plane.create(&mk_desired("a", "x")).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Transient);
    assert_eq!(count("POST"), 1);
    // The server processed the create; an uncached read shows the object.
    let current = read(&plane, "a").await;

    let puts = Arc::new(AtomicUsize::new(0));
    server.hook({
        let puts = puts.clone();
        move |method, _| {
            (method == Method::PUT && puts.fetch_add(1, Ordering::Relaxed) == 0)
                .then_some(InjectedFault::BreakBefore)
        }
    });
    plane.update(&current, &ConfigMap { data: None, ..current.clone() }).await.unwrap();
    assert_eq!(count("PUT"), 2);
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_respected() {
    let server = FakeApiServer::with_default_kinds();
    let plane = server.plane("main");
    let times = Arc::new(AtomicUsize::new(0));
    server.hook({
        let times = times.clone();
        move |_, _| (times.fetch_add(1, Ordering::Relaxed) < 2).then_some(InjectedFault::Overloaded(429, 3))
    });
    let start = tokio::time::Instant::now();
    plane.create(&mk_desired("a", "x")).await.unwrap();
    assert!(start.elapsed() >= Duration::from_secs(6), "{:?}", start.elapsed());
    assert_eq!(server.requests(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_reconciled_again_from_the_new_state() {
    let server = FakeApiServer::with_default_kinds();
    server.put("", "v1", "configmaps", mk_map("shop", "a", "0"));
    let mut engine = mk_engine(1);
    let plane = engine.plane("plane", server.plane("main"), [Watch::of::<ConfigMap>()]);
    let work = {
        let (plane, server) = (plane.clone(), server.clone());
        move |key: polis_engine::Key| {
            let (plane, server) = (plane.clone(), server.clone());
            async move {
                let Some(map) = plane.get::<ConfigMap>(&key)? else { return Ok(Action::AwaitChange) };
                let mut wanted = map.clone();
                wanted
                    .data
                    .get_or_insert_default()
                    .insert("seen".into(), map.data.clone().unwrap_or_default()["value"].clone());
                if map.data.as_ref().unwrap()["value"] == "0" {
                    // The first time, another writer changes the object first.
                    server.put("", "v1", "configmaps", mk_map("shop", "a", "1"));
                }
                plane.update(&map, &wanted).await?;
                Ok(Action::AwaitChange)
            }
        }
    };
    engine.controller("copy", &plane, FnReconciler(work)).for_kind::<ConfigMap>();
    let running = Running::spawn(engine);
    let stored = || server.objects("", "v1", "configmaps")["shop/a"]["data"].clone();
    eventually("the object has the newer state", || stored() == json!({"value": "1", "seen": "1"})).await;
    eventually("the engine is idle", || running.handle.is_idle()).await;
    assert!(
        running.handle.metrics().contains("reconcile_errors_total{controller=\"copy\",class=\"conflict\"} 1")
    );
}

#[tokio::test(start_paused = true)]
async fn a_repeated_event_is_counted_and_a_long_note_is_truncated() {
    let server = FakeApiServer::with_default_kinds();
    let plane = server.plane("main");
    server.put("", "v1", "configmaps", mk_map("shop", "a", "x"));
    let object = read(&plane, "a").await;
    let engine: Engine = mk_engine(1);
    let recorder = engine.recorder("tests");
    for _ in 0..50 {
        recorder.warn(&plane, &object, "Broken", "Mend", &"x".repeat(3000));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    recorder.normal(&plane, &object, "Mended", "Mend", "fine now");
    tokio::time::sleep(Duration::from_secs(60)).await;
    let events = server.objects("", "events.k8s.io/v1", "events");
    let mut counts: Vec<(String, i32)> = events
        .values()
        .map(|event| serde_json::from_value::<Event>(event.clone()).unwrap())
        .map(|event| {
            assert!(event.note.unwrap().chars().count() <= 1024);
            (event.reason.unwrap(), event.series.map_or(1, |series| series.count))
        })
        .collect();
    counts.sort();
    assert_eq!(counts, [("Broken".to_owned(), 50), ("Mended".to_owned(), 1)]);
    let writes = server.log().iter().filter(|line| line.contains("events.k8s.io")).count();
    assert!(writes <= 5, "{writes} writes for 51 events");
}

#[tokio::test(start_paused = true)]
async fn running_reconciles_finish_within_the_grace_period_at_shutdown() {
    for (takes, finishes) in [(5, true), (50, false)] {
        let server = FakeApiServer::with_default_kinds();
        server.put("", "v1", "configmaps", mk_map("shop", "a", "x"));
        server.put("", "v1", "configmaps", mk_map("shop", "b", "x"));
        let mut engine = mk_engine(1);
        engine.workers(1).shutdown_grace_period(Duration::from_secs(10));
        let plane = engine.plane("plane", server.plane("main"), [Watch::of::<ConfigMap>()]);
        let (started, finished) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let work = {
            let (started, finished) = (started.clone(), finished.clone());
            move |_| {
                let (started, finished) = (started.clone(), finished.clone());
                async move {
                    started.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_secs(takes)).await;
                    finished.fetch_add(1, Ordering::Relaxed);
                    Ok(Action::AwaitChange)
                }
            }
        };
        engine.controller("slow", &plane, FnReconciler(work)).for_kind::<ConfigMap>();
        let running = Running::spawn(engine);
        eventually("a reconcile has started", || started.load(Ordering::Relaxed) == 1).await;
        let before = tokio::time::Instant::now();
        running.stop().await;
        assert!(before.elapsed() <= Duration::from_secs(11));
        assert_eq!(
            (started.load(Ordering::Relaxed), finished.load(Ordering::Relaxed)),
            (1, usize::from(finishes))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_reconcile_that_panics_is_retried_and_other_keys_are_reconciled() {
    let server = FakeApiServer::with_default_kinds();
    server.put("", "v1", "configmaps", mk_map("shop", "bad", "x"));
    server.put("", "v1", "configmaps", mk_map("shop", "good", "x"));
    let mut engine = mk_engine(1);
    engine.workers(1);
    let plane = engine.plane("plane", server.plane("main"), [Watch::of::<ConfigMap>()]);
    let recorder = KeyRecorder::default();
    let work = {
        let recorder = recorder.clone();
        move |key: polis_engine::Key| {
            let recorder = recorder.clone();
            async move {
                recorder.0.lock().push(key.name.to_string());
                assert_ne!(&*key.name, "bad", "this reconcile panics on purpose");
                Ok(Action::AwaitChange)
            }
        }
    };
    engine.controller("fragile", &plane, FnReconciler(work)).for_kind::<ConfigMap>();
    let _running = Running::spawn(engine);
    eventually("the key is retried", || recorder.keys().iter().filter(|name| *name == "bad").count() >= 3)
        .await;
    assert!(recorder.keys().contains(&"good".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn keys_of_an_external_source_are_queued_when_the_controller_starts() {
    let server = FakeApiServer::with_default_kinds();
    let mut engine = mk_engine(1);
    let plane = engine.plane("main", server.plane("main"), [Watch::of::<ConfigMap>()]);
    let (say, heard) = tokio::sync::mpsc::unbounded_channel();
    let recorder = KeyRecorder::default();
    engine.controller("notes", &plane, recorder.clone()).for_kind::<ConfigMap>().external_source(heard);
    say.send(Key::new("main", "shop", "early")).unwrap();
    let running = Running::spawn(engine);
    running.ready().await;
    eventually("the key that was sent before the start", || recorder.keys() == ["main/shop/early"]).await;
    say.send(Key::new("main", "shop", "late")).unwrap();
    eventually("the key that was sent after the start", || {
        recorder.keys() == ["main/shop/early", "main/shop/late"]
    })
    .await;
    running.stop().await;
}
