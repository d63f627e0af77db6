//! Acting: writes compare first, mean exactly what they name, and are not repeated blindly.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::Method;
use polis_api::k8s_openapi::api::core::v1::ConfigMap;
use polis_api::k8s_openapi::api::events::v1::Event;
use polis_engine::{Class, Engine, Error, Exactly, Key, Outcome, Plane, Query, Tone, Watch, Written};
use serde_json::json;

use crate::desk::{Doing, Notebook, Running, eventually, mk_engine, mk_map};
use crate::stand_in::{Misdeed, StandIn};

const HOLD: &str = "example.com/hold";

async fn read(plane: &Plane, name: &str) -> ConfigMap {
    plane.live().get(("shop", name)).await.unwrap().unwrap()
}

fn mk_wanted(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(mk_map("shop", name, value)).unwrap()
}

#[tokio::test(start_paused = true)]
async fn what_is_as_wanted_is_not_written() {
    let server = StandIn::usual();
    let plane = server.plane("main");
    let created = plane.create_or_update(None, &mk_wanted("a", "x")).await.unwrap();
    assert!(matches!(created, Written::Created(_)));
    let current = read(&plane, "a").await;
    let before = server.requests();
    assert_eq!(
        plane.create_or_update(Some(&current), &mk_wanted("a", "x")).await.unwrap(),
        Written::Unchanged
    );
    assert_eq!(plane.update(&current, &current).await.unwrap(), Written::Unchanged);
    assert_eq!(plane.update_status(&current, &current).await.unwrap(), Written::Unchanged);
    assert_eq!(plane.remove_finalizer(&current, HOLD).await.unwrap(), Written::Unchanged);
    assert_eq!(server.requests(), before);
    assert!(plane.create_or_update(Some(&current), &mk_wanted("a", "y")).await.unwrap().changed());
    assert_eq!(read(&plane, "a").await.data.unwrap()["value"], "y");
}

#[tokio::test(start_paused = true)]
async fn an_update_keeps_what_others_wrote_and_never_overwrites_what_it_has_not_seen() {
    let server = StandIn::usual();
    let plane = server.plane("main");
    let mut object = mk_map("shop", "a", "x");
    object["data"]["other"] = "theirs".into();
    server.put("", "v1", "configmaps", object.clone());
    let current = read(&plane, "a").await;
    plane.create_or_update(Some(&current), &mk_wanted("a", "y")).await.unwrap();
    assert_eq!(read(&plane, "a").await.data.unwrap()["other"], "theirs");
    let error = plane.create_or_update(Some(&current), &mk_wanted("a", "z")).await.unwrap_err();
    assert!(error.is_conflict(), "{error}");
    assert_eq!(read(&plane, "a").await.data.unwrap()["value"], "y");
}

#[tokio::test(start_paused = true)]
async fn a_delete_hits_the_very_object_or_nothing() {
    let server = StandIn::usual();
    let plane = server.plane("main");
    server.put("", "v1", "configmaps", mk_map("shop", "a", "x"));
    let first = read(&plane, "a").await;
    server.put("", "v1", "configmaps", mk_map("shop", "a", "changed"));
    assert!(plane.delete(&first, Exactly::State).await.unwrap_err().is_conflict());
    server.remove("", "v1", "configmaps", "shop/a");
    server.put("", "v1", "configmaps", mk_map("shop", "a", "namesake"));
    assert!(plane.delete(&first, Exactly::Object).await.unwrap_err().is_conflict());
    let second = read(&plane, "a").await;
    assert!(plane.delete(&second, Exactly::Object).await.unwrap());
    assert!(!plane.delete(&second, Exactly::Object).await.unwrap(), "gone already");
    let error = plane.delete(&mk_wanted("a", "x"), Exactly::Object).await.unwrap_err();
    assert!(matches!(error, Error::Unidentified { missing: "uid", .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn finalizers_come_and_go_with_preconditions() {
    let server = StandIn::usual();
    let plane = server.plane("main");
    server.put("", "v1", "configmaps", mk_map("shop", "a", "x"));
    let stale = read(&plane, "a").await;
    let held = plane.add_finalizer(&stale, HOLD).await.unwrap().into_object().unwrap();
    assert!(plane.add_finalizer(&stale, HOLD).await.unwrap_err().is_conflict());
    assert!(plane.delete(&held, Exactly::Object).await.unwrap());
    let leaving = read(&plane, "a").await;
    assert!(leaving.metadata.deletion_timestamp.is_some());
    plane.remove_finalizer(&leaving, HOLD).await.unwrap();
    assert_eq!(plane.live().get::<ConfigMap>(("shop", "a")).await.unwrap(), None);
    assert_eq!(
        plane.remove_finalizer(&leaving, HOLD).await.unwrap(),
        Written::Unchanged,
        "gone counts as done"
    );
}

#[tokio::test(start_paused = true)]
async fn fields_are_applied_and_lists_read_page_by_page() {
    let server = StandIn::usual();
    server.page(2);
    let plane = server.plane("main");
    for name in ["a", "b", "c", "d", "e"] {
        plane.apply(&mk_wanted(name, "x"), "tests", true).await.unwrap();
    }
    let all = plane.live().list::<ConfigMap>(&Query::within("shop")).await.unwrap();
    assert_eq!(all.len(), 5);
    assert_eq!(plane.live().list::<ConfigMap>(&Query::within("elsewhere")).await.unwrap(), []);
    assert!(server.log().iter().any(|line| line.contains("force=true&fieldManager=tests")));
}

#[tokio::test(start_paused = true)]
async fn a_create_of_unknown_outcome_is_not_repeated_but_an_update_is() {
    let server = StandIn::usual();
    let plane = server.plane("main");
    let count = |method: &str| server.log().iter().filter(|line| line.starts_with(method)).count();
    server.hook(|method, _| (method == Method::POST).then_some(Misdeed::BreakAfter));
    let error = plane.create(&mk_wanted("a", "x")).await.unwrap_err();
    assert_eq!(error.class(), Class::Transient);
    assert_eq!(count("POST"), 1);
    // It was done all the same; the next look tells.
    let current = read(&plane, "a").await;

    let puts = Arc::new(AtomicUsize::new(0));
    server.hook({
        let puts = puts.clone();
        move |method, _| {
            (method == Method::PUT && puts.fetch_add(1, Ordering::Relaxed) == 0)
                .then_some(Misdeed::BreakBefore)
        }
    });
    plane.update(&current, &ConfigMap { data: None, ..current.clone() }).await.unwrap();
    assert_eq!(count("PUT"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_asks_for_a_pause_gets_it() {
    let server = StandIn::usual();
    let plane = server.plane("main");
    let times = Arc::new(AtomicUsize::new(0));
    server.hook({
        let times = times.clone();
        move |_, _| (times.fetch_add(1, Ordering::Relaxed) < 2).then_some(Misdeed::Overloaded(429, 3))
    });
    let start = tokio::time::Instant::now();
    plane.create(&mk_wanted("a", "x")).await.unwrap();
    assert!(start.elapsed() >= Duration::from_secs(6), "{:?}", start.elapsed());
    assert_eq!(server.requests(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_decided_anew_from_what_is_there_then() {
    let server = StandIn::usual();
    server.put("", "v1", "configmaps", mk_map("shop", "a", "0"));
    let mut engine = mk_engine(1);
    let plane = engine.plane("plane", server.plane("main"), [Watch::of::<ConfigMap>()]);
    let work = {
        let (plane, server) = (plane.clone(), server.clone());
        move |key: polis_engine::Key| {
            let (plane, server) = (plane.clone(), server.clone());
            async move {
                let Some(map) = plane.get::<ConfigMap>(&key)? else { return Ok(Outcome::Settled) };
                let mut wanted = map.clone();
                wanted
                    .data
                    .get_or_insert_default()
                    .insert("seen".into(), map.data.clone().unwrap_or_default()["value"].clone());
                if map.data.as_ref().unwrap()["value"] == "0" {
                    // Someone is faster than we are, the first time.
                    server.put("", "v1", "configmaps", mk_map("shop", "a", "1"));
                }
                plane.update(&map, &wanted).await?;
                Ok(Outcome::Settled)
            }
        }
    };
    engine.controller("copy", &plane, Doing(work)).on::<ConfigMap>();
    let running = Running::start(engine);
    let stored = || server.objects("", "v1", "configmaps")["shop/a"]["data"].clone();
    eventually("it settles on the newer state", || stored() == json!({"value": "1", "seen": "1"})).await;
    eventually("and comes to rest", || running.handle.is_idle()).await;
    assert!(
        running.handle.metrics().contains("reconcile_errors_total{controller=\"copy\",class=\"conflict\"} 1")
    );
}

#[tokio::test(start_paused = true)]
async fn the_same_event_again_is_counted_and_long_notes_are_cut() {
    let server = StandIn::usual();
    let plane = server.plane("main");
    server.put("", "v1", "configmaps", mk_map("shop", "a", "x"));
    let object = read(&plane, "a").await;
    let engine: Engine = mk_engine(1);
    let recorder = engine.recorder("tests");
    for _ in 0..50 {
        recorder.record(&plane, &object, Tone::Warning, "Broken", "Mend", &"x".repeat(3000));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    recorder.record(&plane, &object, Tone::Normal, "Mended", "Mend", "fine now");
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
async fn a_shutdown_lets_running_work_finish_within_the_grace_period() {
    for (takes, finishes) in [(5, true), (50, false)] {
        let server = StandIn::usual();
        server.put("", "v1", "configmaps", mk_map("shop", "a", "x"));
        server.put("", "v1", "configmaps", mk_map("shop", "b", "x"));
        let mut engine = mk_engine(1);
        engine.workers(1).grace(Duration::from_secs(10));
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
                    Ok(Outcome::Settled)
                }
            }
        };
        engine.controller("slow", &plane, Doing(work)).on::<ConfigMap>();
        let running = Running::start(engine);
        eventually("work has begun", || started.load(Ordering::Relaxed) == 1).await;
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
async fn a_reconciler_that_panics_is_tried_again_and_takes_nobody_along() {
    let server = StandIn::usual();
    server.put("", "v1", "configmaps", mk_map("shop", "bad", "x"));
    server.put("", "v1", "configmaps", mk_map("shop", "good", "x"));
    let mut engine = mk_engine(1);
    engine.workers(1);
    let plane = engine.plane("plane", server.plane("main"), [Watch::of::<ConfigMap>()]);
    let notebook = Notebook::default();
    let work = {
        let notebook = notebook.clone();
        move |key: polis_engine::Key| {
            let notebook = notebook.clone();
            async move {
                notebook.0.lock().push(key.name.to_string());
                assert_ne!(&*key.name, "bad", "this one is meant to panic");
                Ok(Outcome::Settled)
            }
        }
    };
    engine.controller("fragile", &plane, Doing(work)).on::<ConfigMap>();
    let _running = Running::start(engine);
    eventually("it is tried again", || notebook.keys().iter().filter(|name| *name == "bad").count() >= 3)
        .await;
    assert!(notebook.keys().contains(&"good".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn keys_from_outside_the_planes_wait_until_the_controller_may_work() {
    let server = StandIn::usual();
    let mut engine = mk_engine(1);
    let plane = engine.plane("main", server.plane("main"), [Watch::of::<ConfigMap>()]);
    let (say, heard) = tokio::sync::mpsc::unbounded_channel();
    let notebook = Notebook::default();
    engine.controller("notes", &plane, notebook.clone()).on::<ConfigMap>().hears(heard);
    say.send(Key::new("main", "shop", "early")).unwrap();
    let running = Running::start(engine);
    running.ready().await;
    eventually("the early key", || notebook.keys() == ["main/shop/early"]).await;
    say.send(Key::new("main", "shop", "late")).unwrap();
    eventually("the late key", || notebook.keys() == ["main/shop/early", "main/shop/late"]).await;
    running.stop().await;
}
