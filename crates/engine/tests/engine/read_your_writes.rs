//! Tests of read-your-writes: the cache includes own writes at once and never goes back to an older state.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use polis_api::k8s_openapi::api::core::v1::ConfigMap;
use polis_engine::{Action, Plane, Preconditions, Watch};
use serde_json::json;

use crate::fake_apiserver::FakeApiServer;
use crate::harness::{FnReconciler, KeyRecorder, Running, cached, eventually, mk_engine, mk_map, served};

const HOLD: &str = "example.com/hold";

/// A running engine with one plane, whose watch of ConfigMaps can be made late.
async fn start(server: &FakeApiServer, watch: Watch) -> (Running, Plane, KeyRecorder) {
    let mut engine = mk_engine(1);
    let plane = engine.plane("plane", server.plane("main"), [watch]);
    let recorder = KeyRecorder::default();
    engine.controller("notes", &plane, recorder.clone()).for_kind::<ConfigMap>();
    let running = Running::spawn(engine);
    running.ready().await;
    events_delivered().await;
    recorder.clear();
    (running, plane, recorder)
}

/// Lets every event that is on its way arrive. Takes no real time.
async fn events_delivered() {
    tokio::time::sleep(Duration::from_secs(1)).await;
}

fn mk_desired(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(mk_map("shop", name, value)).unwrap()
}

/// The cached value of a ConfigMap.
fn value(plane: &Plane, name: &str) -> Option<String> {
    let map = plane.get::<ConfigMap>(("shop", name)).unwrap()?;
    map.data.unwrap_or_default().get("value").cloned()
}

#[tokio::test(start_paused = true)]
async fn own_writes_are_read_before_a_late_watch_shows_them_and_are_reconciled_once() {
    let server = FakeApiServer::with_default_kinds();
    let (_running, plane, recorder) = start(&server, Watch::of::<ConfigMap>()).await;
    server.late_watches(true);

    let created = plane.create(&mk_desired("a", "1")).await.unwrap();
    assert_eq!(value(&plane, "a").as_deref(), Some("1"));
    events_delivered().await;
    let updated = plane.create_or_update(Some(&created), &mk_desired("a", "2")).await.unwrap();
    assert_eq!(value(&plane, "a").as_deref(), Some("2"));
    events_delivered().await;
    let held = plane.add_finalizer(&updated.into_object().unwrap(), HOLD).await.unwrap();
    events_delivered().await;
    let mut desired = held.into_object().unwrap();
    desired.data = mk_desired("a", "3").data;
    plane.apply(&desired, "tests", true).await.unwrap();
    assert_eq!(cached(&plane), served(&server, ""));
    events_delivered().await;
    assert_eq!(recorder.keys(), ["main/shop/a"; 4], "each write is routed once, as an event would be");

    recorder.clear();
    server.late_watches(false);
    events_delivered().await;
    assert_eq!(recorder.keys(), [""; 0], "the late events are no changes");
    assert_eq!(cached(&plane), served(&server, ""));
}

#[tokio::test(start_paused = true)]
async fn an_older_event_does_not_replace_an_own_write() {
    let server = FakeApiServer::with_default_kinds();
    server.put("", "v1", "configmaps", mk_map("shop", "a", "first"));
    let (_running, plane, recorder) = start(&server, Watch::of::<ConfigMap>()).await;
    server.late_watches(true);
    server.put("", "v1", "configmaps", mk_map("shop", "a", "theirs"));
    plane.apply(&mk_desired("a", "ours"), "tests", true).await.unwrap();
    assert_eq!(value(&plane, "a").as_deref(), Some("ours"));
    events_delivered().await;
    recorder.clear();
    server.late_watches(false);
    events_delivered().await;
    assert_eq!((value(&plane, "a").as_deref(), recorder.keys().len()), (Some("ours"), 0));

    server.put("", "v1", "configmaps", mk_map("shop", "a", "later"));
    events_delivered().await;
    assert_eq!(value(&plane, "a").as_deref(), Some("later"));
    assert_eq!(recorder.keys(), ["main/shop/a"]);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_object_does_not_come_back_and_its_successor_is_read() {
    let server = FakeApiServer::with_default_kinds();
    let (_running, plane, recorder) = start(&server, Watch::of::<ConfigMap>()).await;
    server.late_watches(true);
    let first = plane.create(&mk_desired("a", "first")).await.unwrap();
    assert!(plane.delete(&first, Preconditions::Uid).await.unwrap());
    assert_eq!(value(&plane, "a"), None);
    let second = plane.create(&mk_desired("a", "second")).await.unwrap();
    assert_eq!(value(&plane, "a").as_deref(), Some("second"));
    events_delivered().await;
    recorder.clear();
    server.late_watches(false);
    events_delivered().await;
    assert_eq!((value(&plane, "a").as_deref(), recorder.keys().len()), (Some("second"), 0));

    server.late_watches(true);
    assert!(plane.delete(&second, Preconditions::UidAndResourceVersion).await.unwrap());
    events_delivered().await;
    assert_eq!(recorder.keys(), ["main/shop/a"], "the deletion is routed");
    // Another client creates the object again. Its event ends the tombstone.
    server.put("", "v1", "configmaps", mk_map("shop", "a", "third"));
    server.late_watches(false);
    events_delivered().await;
    assert_eq!(cached(&plane), served(&server, ""));
    assert_eq!(value(&plane, "a").as_deref(), Some("third"));
}

#[tokio::test(start_paused = true)]
async fn a_delete_that_waits_for_a_finalizer_is_read_as_terminating_and_then_as_gone() {
    let server = FakeApiServer::with_default_kinds();
    let (_running, plane, _) = start(&server, Watch::of::<ConfigMap>()).await;
    server.late_watches(true);
    let created = plane.create(&mk_desired("a", "x")).await.unwrap();
    let held = plane.add_finalizer(&created, HOLD).await.unwrap().into_object().unwrap();
    assert!(plane.delete(&held, Preconditions::Uid).await.unwrap());
    let terminating = plane.get::<ConfigMap>(("shop", "a")).unwrap().unwrap();
    assert!(terminating.metadata.deletion_timestamp.is_some());
    plane.remove_finalizer(&terminating, HOLD).await.unwrap();
    assert_eq!(value(&plane, "a"), None);
    server.late_watches(false);
    events_delivered().await;
    assert_eq!(cached(&plane), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_list_keeps_newer_writes_and_does_not_bring_deleted_objects_back() {
    for streaming in [true, false] {
        let server = FakeApiServer::with_default_kinds();
        server.streaming(streaming);
        for name in ["kept", "deleted"] {
            server.put("", "v1", "configmaps", mk_map("shop", name, "old"));
        }
        let (_running, plane, _) = start(&server, Watch::of::<ConfigMap>()).await;
        server.late_watches(true);
        let kept = plane.get::<ConfigMap>(("shop", "kept")).unwrap().unwrap();
        let deleted = plane.get::<ConfigMap>(("shop", "deleted")).unwrap().unwrap();
        plane.create_or_update(Some(&kept), &mk_desired("kept", "new")).await.unwrap();
        plane.create(&mk_desired("created", "new")).await.unwrap();
        plane.delete(&deleted, Preconditions::Uid).await.unwrap();
        let before = cached(&plane);
        server.compact();
        server.end_watches();
        events_delivered().await;
        assert_eq!(cached(&plane), before);
        server.late_watches(false);
        server.put("", "v1", "configmaps", mk_map("shop", "deleted", "again"));
        events_delivered().await;
        assert_eq!(cached(&plane), served(&server, ""));
        assert_eq!(value(&plane, "deleted").as_deref(), Some("again"));
    }
}

#[tokio::test(start_paused = true)]
async fn an_response_that_the_watch_does_not_select_does_not_enter_the_cache() {
    let server = FakeApiServer::with_default_kinds();
    let (_running, plane, _) =
        start(&server, Watch::of::<ConfigMap>().within("shop").labels("app=web")).await;
    server.late_watches(true);
    let labelled = |namespace: &str, name: &str, app: &str| -> ConfigMap {
        let mut map = mk_map(namespace, name, "x");
        map["metadata"]["labels"] = json!({"app": app});
        serde_json::from_value(map).unwrap()
    };
    plane.create(&labelled("shop", "selected", "web")).await.unwrap();
    plane.create(&labelled("shop", "other-label", "api")).await.unwrap();
    plane.create(&labelled("other", "other-namespace", "web")).await.unwrap();
    plane.create(&mk_desired("no-label", "x")).await.unwrap();
    let names: Vec<_> =
        plane.list::<ConfigMap>().unwrap().into_iter().map(|map| map.metadata.name.unwrap()).collect();
    assert_eq!(names, ["selected"]);
}

#[tokio::test(start_paused = true)]
async fn a_change_by_an_own_write_reaches_the_other_controllers_of_the_process() {
    let server = FakeApiServer::with_default_kinds();
    server.put("", "v1", "configmaps", mk_map("shop", "trigger", "x"));
    let mut engine = mk_engine(1);
    let plane = engine.plane("plane", server.plane("main"), [Watch::of::<ConfigMap>()]);
    let (other, writer) = (KeyRecorder::default(), plane.clone());
    let work = move |key: polis_engine::Key| {
        let plane = writer.clone();
        async move {
            if &*key.name == "trigger" && plane.get::<ConfigMap>(("shop", "made"))?.is_none() {
                plane.create(&mk_desired("made", "x")).await?;
                assert!(plane.get::<ConfigMap>(("shop", "made"))?.is_some());
            }
            Ok(Action::AwaitChange)
        }
    };
    engine.controller("writer", &plane, FnReconciler(work)).for_kind::<ConfigMap>();
    engine.controller("other", &plane, other.clone()).for_kind::<ConfigMap>();
    let _running = Running::spawn(engine);
    eventually("the other controller reconciles it", || other.keys().contains(&"main/shop/made".to_owned()))
        .await;
    events_delivered().await;
    assert_eq!(other.keys().iter().filter(|key| *key == "main/shop/made").count(), 1, "{:?}", other.keys());
}

/// A controller that creates a child whenever it does not read one, on a late watch. Also returns whether
/// each reconcile read it.
async fn create_children(server: &FakeApiServer, watch: Watch) -> (Running, Plane, Arc<Mutex<Vec<bool>>>) {
    server.put("", "v1", "configmaps", mk_map("shop", "parent", "x"));
    server.late_watches(true);
    let mut engine = mk_engine(1);
    let plane = engine.plane("plane", server.plane("main"), [watch]);
    let (runs, children) = (Arc::new(Mutex::new(Vec::new())), plane.clone());
    let seen = runs.clone();
    let work = move |key: polis_engine::Key| {
        let (plane, seen) = (children.clone(), seen.clone());
        async move {
            if &*key.name != "parent" {
                return Ok(Action::AwaitChange);
            }
            let child = plane.get::<ConfigMap>(("shop", "child"))?;
            seen.lock().push(child.is_some());
            if child.is_none() {
                plane.create(&mk_desired("child", "x")).await?;
            }
            Ok(Action::RequeueAfter(Duration::from_secs(2)))
        }
    };
    engine.controller("parents", &plane, FnReconciler(work)).for_kind::<ConfigMap>();
    let running = Running::spawn(engine);
    eventually("the child is created", || server.objects("", "v1", "configmaps").contains_key("shop/child"))
        .await;
    (running, plane, runs)
}

fn holds(running: &Running) -> u64 {
    let page = running.handle.metrics();
    let line = page.lines().find(|line| line.starts_with("polis_queue_holds_total{")).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn without_comparable_versions_a_key_waits_until_the_watch_shows_its_write() {
    let server = FakeApiServer::with_default_kinds();
    server.opaque_versions();
    let (running, plane, runs) = create_children(&server, Watch::of::<ConfigMap>()).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(*runs.lock(), [false], "the key is held");
    assert!(holds(&running) > 0);
    server.late_watches(false);
    events_delivered().await;
    assert_eq!(*runs.lock(), [false, true], "the event of the write releases the key");
    assert_eq!(cached(&plane), served(&server, ""));

    // A delete leaves a tombstone by UID, for which no version is needed.
    server.late_watches(true);
    let child = plane.get::<ConfigMap>(("shop", "child")).unwrap().unwrap();
    plane.delete(&child, Preconditions::Uid).await.unwrap();
    assert_eq!(value(&plane, "child"), None);
}

#[tokio::test(start_paused = true)]
async fn a_key_is_not_held_longer_than_ten_seconds() {
    let server = FakeApiServer::with_default_kinds();
    server.opaque_versions();
    let (_running, _, runs) = create_children(&server, Watch::of::<ConfigMap>()).await;
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert_eq!(runs.lock().len(), 1);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(runs.lock().len() > 1);
}

#[tokio::test(start_paused = true)]
async fn a_field_selector_that_cannot_be_evaluated_holds_the_key() {
    let server = FakeApiServer::with_default_kinds();
    let watch = Watch::of::<ConfigMap>().fields("data.value=x");
    let (running, plane, runs) = create_children(&server, watch).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!((value(&plane, "child"), runs.lock().clone()), (None, vec![false]));
    assert!(holds(&running) > 0);
    server.late_watches(false);
    events_delivered().await;
    assert_eq!(*runs.lock(), [false, true]);
}

#[tokio::test(start_paused = true)]
async fn concurrent_changes_of_one_object_take_turns_and_do_not_conflict() {
    let server = FakeApiServer::with_default_kinds();
    server.put("", "v1", "configmaps", mk_map("shop", "a", "0"));
    let (_running, plane, _) = start(&server, Watch::of::<ConfigMap>()).await;
    server.late_watches(true);
    server.chaos(3, 0.0); // delays every response, and breaks none
    let changes = (0..20).map(|number| {
        plane.modify::<ConfigMap>(("shop", "a"), move |current| {
            let mut desired = current.clone();
            desired.data.get_or_insert_default().insert(format!("key-{number}"), "set".to_owned());
            Some(desired)
        })
    });
    for written in futures::future::join_all(changes).await {
        assert!(written.unwrap().changed());
    }
    let map = plane.get::<ConfigMap>(("shop", "a")).unwrap().unwrap();
    assert_eq!(map.data.unwrap().len(), 21);
    assert_eq!(cached(&plane), served(&server, ""));
    let unchanged = plane.modify::<ConfigMap>(("shop", "a"), |_| None).await.unwrap();
    assert!(!unchanged.changed());
    let missing = plane.modify::<ConfigMap>(("shop", "b"), |current| Some(current.clone())).await.unwrap();
    assert!(!missing.changed());
}

#[tokio::test(start_paused = true)]
async fn finalizers_that_two_controllers_set_on_the_same_state_do_not_conflict() {
    let server = FakeApiServer::with_default_kinds();
    server.put("", "v1", "configmaps", mk_map("shop", "a", "0"));
    let (_running, plane, _) = start(&server, Watch::of::<ConfigMap>()).await;
    server.chaos(3, 0.0); // delays every response, and breaks none
    let map = plane.get::<ConfigMap>(("shop", "a")).unwrap().unwrap();
    let (other, finalizers) =
        ("example.com/other", |map: ConfigMap| map.metadata.finalizers.unwrap_or_default());
    let (one, two) = tokio::join!(plane.add_finalizer(&map, HOLD), plane.add_finalizer(&map, other));
    assert!(one.unwrap().changed() && two.unwrap().changed());
    let both = plane.get::<ConfigMap>(("shop", "a")).unwrap().unwrap();
    assert_eq!(finalizers(both.clone()), [HOLD, other]);
    let (one, two) = tokio::join!(plane.remove_finalizer(&both, HOLD), plane.remove_finalizer(&both, other));
    assert!(one.unwrap().changed() && two.unwrap().changed());
    assert_eq!(finalizers(plane.get::<ConfigMap>(("shop", "a")).unwrap().unwrap()), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn of_several_tasks_that_need_an_object_one_creates_it() {
    let server = FakeApiServer::with_default_kinds();
    let (_running, plane, _) = start(&server, Watch::of::<ConfigMap>()).await;
    server.late_watches(true);
    server.chaos(3, 0.0); // delays every response, and breaks none
    let desired = mk_desired("a", "1");
    let created = futures::future::join_all((0..5).map(|_| plane.create_missing(&desired))).await;
    assert_eq!(created.into_iter().filter(|created| created.as_ref().unwrap().is_some()).count(), 1);
    assert_eq!(server.log().iter().filter(|request| request.starts_with("POST")).count(), 1);
}
