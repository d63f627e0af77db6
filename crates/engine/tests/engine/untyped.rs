//! Kinds that are known only at run time: watches that are added and removed, untyped objects, and planes
//! that come and go with them.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use polis_api::k8s_openapi::api::core::v1::ConfigMap;
use polis_engine::{
    Action, Deletion, Index, Key, Kind, Plane, PlaneProvider, PlaneRegistry, ResourceScope, Watch,
};
use serde_json::{Value, json};

use crate::fake_apiserver::FakeApiServer;
use crate::harness::{FnReconciler, KeyRecorder, Running, eventually, mk_engine, mk_map};

const MAPS: (&str, &str) = ("v1", "configmaps");

fn maps() -> Kind {
    Kind::of::<ConfigMap>()
}

fn mk_watch() -> Watch {
    Watch::kind(maps()).keep_decoded()
}

fn mk_value(name: &str, value: &str) -> Value {
    let mut map = mk_map("shop", name, value);
    map["apiVersion"] = "v1".into();
    map["kind"] = "ConfigMap".into();
    map
}

/// Lets every event that is on its way arrive. Takes no real time.
async fn events_delivered() {
    tokio::time::sleep(Duration::from_secs(1)).await;
}

/// A running engine with one plane without declared watches, and a recorder of the objects of added ones.
async fn start(server: &FakeApiServer) -> (Running, Plane, KeyRecorder) {
    let mut engine = mk_engine(1);
    let plane = engine.plane("plane", server.plane("main"), []);
    let recorder = KeyRecorder::default();
    engine.controller("notes", &plane, recorder.clone()).watches_added(&plane, |plane, change| {
        Ok(vec![Key::new(plane.name().clone(), "n", change.name().name)])
    });
    let running = Running::spawn(engine);
    running.ready().await;
    (running, plane, recorder)
}

#[tokio::test(start_paused = true)]
async fn an_added_watch_delivers_its_objects_until_it_is_removed() {
    let server = FakeApiServer::with_default_kinds();
    server.put("", MAPS.0, MAPS.1, mk_map("shop", "old", "1"));
    let (running, plane, recorder) = start(&server).await;
    assert!(plane.untyped(&maps()).get(("shop", "old")).is_err(), "the kind is not watched");
    assert_eq!(server.watches(), 0);

    plane.add_watch(mk_watch()).unwrap();
    plane.add_watch(mk_watch()).unwrap();
    plane.wait_until_synced(&maps()).await.unwrap();
    assert!(plane.is_synced(&maps()));
    eventually("the existing object is reconciled", || recorder.keys() == ["main/n/old"]).await;
    server.put("", MAPS.0, MAPS.1, mk_map("shop", "new", "1"));
    eventually("and a new one", || recorder.keys() == ["main/n/old", "main/n/new"]).await;
    assert_eq!(plane.untyped(&maps()).list().unwrap().len(), 2);
    assert_eq!(server.watches(), 1, "a kind is watched once");
    assert!(running.handle.metrics().contains("polis_watch_lag_seconds_count{kind=\"configmaps/v1\"}"));

    plane.remove_watch(&maps());
    eventually("the stream is closed", || server.watches() == 0).await;
    assert!(!plane.is_watched(&maps()));
    server.put("", MAPS.0, MAPS.1, mk_map("shop", "later", "1"));
    events_delivered().await;
    assert_eq!(recorder.keys().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_added_watch_of_a_kind_that_is_not_served_starts_when_it_is() {
    let server = FakeApiServer::with_default_kinds();
    server.unserve(MAPS.0, MAPS.1);
    let (_running, plane, recorder) = start(&server).await;
    plane.add_watch(mk_watch()).unwrap();
    plane.wait_until_synced(&maps()).await.unwrap();
    assert_eq!(plane.untyped(&maps()).list().unwrap(), Vec::<Arc<Value>>::new());
    server.serve(MAPS.0, MAPS.1, "ConfigMap");
    server.put("", MAPS.0, MAPS.1, mk_map("shop", "a", "1"));
    eventually("the object is reconciled", || recorder.keys() == ["main/n/a"]).await;
}

#[tokio::test(start_paused = true)]
async fn untyped_writes_are_read_before_a_late_watch_shows_them() {
    let server = FakeApiServer::with_default_kinds();
    let (_running, plane, recorder) = start(&server).await;
    plane.add_watch(mk_watch()).unwrap();
    plane.wait_until_synced(&maps()).await.unwrap();
    events_delivered().await;
    server.late_watches(true);
    let (kind, name) = (maps(), ("shop", "a"));
    let objects = plane.untyped(&kind);

    let created = objects.create(&mk_value("a", "1")).await.unwrap();
    assert!(Arc::ptr_eq(&created, &objects.get(name).unwrap().unwrap()), "the response is the cached object");
    let mut wanted = (*created).clone();
    wanted["data"]["value"] = "2".into();
    objects.update(&wanted).await.unwrap();
    assert_eq!(objects.get(name).unwrap().unwrap()["data"]["value"], "2");
    let patched = objects.patch(name, &json!({"data": {"more": "3"}})).await.unwrap();
    assert_eq!(*objects.get(name).unwrap().unwrap(), *patched);
    assert_eq!(patched["apiVersion"], "v1");
    assert!(objects.contains(name).unwrap());

    let uid = patched["metadata"]["uid"].as_str().unwrap().to_owned();
    assert!(objects.delete(name, "another").await.unwrap_err().is_conflict());
    assert_eq!(objects.delete(name, &uid).await.unwrap(), Deletion::Complete);
    assert_eq!(objects.get(name).unwrap(), None);
    assert_eq!(objects.read(name).await.unwrap(), None);
    recorder.clear();
    server.late_watches(false);
    events_delivered().await;
    assert_eq!(objects.get(name).unwrap(), None);
    assert_eq!(recorder.keys(), [""; 0], "the late events are no changes");
}

#[tokio::test(start_paused = true)]
async fn a_version_is_decoded_once_and_shared() {
    let server = FakeApiServer::with_default_kinds();
    server.put("", MAPS.0, MAPS.1, mk_map("shop", "a", "1"));
    let mut engine = mk_engine(1);
    let plane = engine.plane("plane", server.plane("main"), [mk_watch().index(Index::field("data.value"))]);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let changes = seen.clone();
    engine.controller("notes", &plane, KeyRecorder::default()).watches_untyped(
        &plane,
        &maps(),
        move |_, change| {
            changes.lock().push((change.before().cloned(), change.after().cloned()));
            Ok(Vec::new())
        },
    );
    let running = Running::spawn(engine);
    running.ready().await;
    eventually("the controller has started", || !seen.lock().is_empty()).await;
    let (kind, index) = (maps(), Index::field("data.value"));
    let first = plane.untyped(&kind).get(("shop", "a")).unwrap().unwrap();
    for again in [
        plane.untyped(&kind).list().unwrap(),
        plane.untyped(&kind).list_within("shop").unwrap(),
        plane.untyped(&kind).find(&index, "1").unwrap(),
    ] {
        assert!(Arc::ptr_eq(&first, &again[0]));
    }
    server.put("", MAPS.0, MAPS.1, mk_map("shop", "a", "2"));
    eventually("the change is seen", || {
        seen.lock().iter().any(|(before, after)| {
            let is_first = before.as_ref().is_some_and(|before| Arc::ptr_eq(before, &first));
            is_first && after.as_ref().is_some_and(|after| after["data"]["value"] == "2")
        })
    })
    .await;
    let second = plane.untyped(&kind).get(("shop", "a")).unwrap().unwrap();
    assert!(
        seen.lock().iter().any(|(_, after)| after.as_ref().is_some_and(|after| Arc::ptr_eq(after, &second)))
    );
}

#[tokio::test(start_paused = true)]
async fn a_key_is_not_queued_for_what_its_own_reconcile_has_written() {
    let server = FakeApiServer::with_default_kinds();
    let mut engine = mk_engine(1);
    let plane = engine.plane("plane", server.plane("main"), [mk_watch()]);
    let writes = Arc::new(Mutex::new(0));
    let (writer, counted) = (plane.clone(), writes.clone());
    let write = FnReconciler(move |_: Key| {
        let (plane, counted) = (writer.clone(), counted.clone());
        async move {
            *counted.lock() += 1;
            let (kind, name) = (maps(), ("shop", "a"));
            if let Some(found) = plane.untyped(&kind).get(name)? {
                let mut wanted = (*found).clone();
                wanted["data"]["written"] = "yes".into();
                if wanted != *found {
                    plane.untyped(&kind).update(&wanted).await?;
                }
            }
            Ok(Action::AwaitChange)
        }
    });
    let other = KeyRecorder::default();
    engine.controller("writer", &plane, write).skips_own_writes().for_kind::<ConfigMap>();
    engine.controller("other", &plane, other.clone()).for_kind::<ConfigMap>();
    let running = Running::spawn(engine);
    running.ready().await;
    server.put("", MAPS.0, MAPS.1, mk_map("shop", "a", "1"));
    events_delivered().await;
    assert_eq!(server.objects("", MAPS.0, MAPS.1)["shop/a"]["data"]["written"], "yes");
    assert_eq!(*writes.lock(), 1, "the writer is not queued for its write");
    assert_eq!(other.keys(), ["main/shop/a"; 2], "the other controller is");
    server.put("", MAPS.0, MAPS.1, mk_map("shop", "a", "2"));
    events_delivered().await;
    assert_eq!(*writes.lock(), 2, "a foreign write queues the key");
}

/// Registers planes as a test commands.
struct Commanded(Arc<Mutex<Option<PlaneRegistry>>>);

impl PlaneProvider for Commanded {
    fn run(self: Box<Self>, registry: PlaneRegistry) -> BoxFuture<'static, ()> {
        registry.set_listed();
        *self.0.lock() = Some(registry);
        std::future::pending().boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn the_added_watches_of_a_plane_end_with_it_and_its_keys_are_dropped() {
    let server = FakeApiServer::with_default_kinds();
    server.put("", MAPS.0, MAPS.1, mk_map("shop", "a", "1"));
    let mut engine = mk_engine(1);
    let registry = Arc::default();
    let members = engine.planes("member", Commanded(Arc::clone(&registry)), []);
    let recorder = KeyRecorder::default();
    engine.controller("notes", &members, recorder.clone()).watches_added(&members, |plane, change| {
        Ok(vec![Key::cluster(plane.name().clone(), change.name().name)])
    });
    let running = Running::spawn(engine);
    eventually("the set is listed", || running.handle.is_ready()).await;
    let registry: PlaneRegistry = registry.lock().clone().unwrap();
    registry.engage(&server.plane("dfw"));
    let dfw = members.wait_until_engaged("dfw").await;
    dfw.add_watch(mk_watch()).unwrap();
    eventually("its object is reconciled", || recorder.keys() == ["dfw/a"]).await;

    registry.disengage("dfw");
    eventually("the stream is closed", || server.watches() == 0).await;
    assert!(
        dfw.add_watch(Watch::kind(Kind::known("", "v1", "Secret", "secrets", ResourceScope::Namespaced)))
            .is_err()
    );
    assert!(members.named("dfw").is_err());

    registry.engage(&server.plane("dfw"));
    let again = members.wait_until_engaged("dfw").await;
    assert!(!again.is_watched(&maps()), "the cache of a plane that returns is a new one");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_run_ends_all_watches_and_reconciles_at_once() {
    let server = FakeApiServer::with_default_kinds();
    server.put("", MAPS.0, MAPS.1, mk_map("shop", "a", "1"));
    let mut engine = mk_engine(1);
    let plane = engine.plane("plane", server.plane("main"), [mk_watch()]);
    let reached = Arc::new(Mutex::new(Vec::new()));
    let steps = reached.clone();
    let slow = FnReconciler(move |_: Key| {
        let steps = steps.clone();
        async move {
            steps.lock().push("started");
            tokio::time::sleep(Duration::from_secs(60)).await;
            steps.lock().push("finished");
            Ok(Action::AwaitChange)
        }
    });
    engine.controller("slow", &plane, slow).for_kind::<ConfigMap>();
    let handle = engine.handle();
    {
        let mut run = Box::pin(engine.run(std::future::pending()));
        let started = eventually("a reconcile runs", || !reached.lock().is_empty());
        tokio::select! {
            _ = &mut run => panic!("the engine stopped"),
            () = started => {}
        }
        assert_eq!(server.watches(), 1);
    }
    eventually("the stream is closed", || server.watches() == 0).await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(*reached.lock(), ["started"]);
    assert!(!handle.is_ready() && handle.readiness().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_backs_off_is_retried_at_once_when_the_plane_is_known_to_respond() {
    let server = FakeApiServer::with_default_kinds();
    let (_running, plane, recorder) = start(&server).await;
    server.hook(|_, _| Some(crate::fake_apiserver::InjectedFault::BreakBefore));
    plane.add_watch(mk_watch()).unwrap();
    tokio::time::sleep(Duration::from_secs(600)).await;
    server.clear_faults();
    server.put("", MAPS.0, MAPS.1, mk_map("shop", "a", "1"));
    let before = tokio::time::Instant::now();
    plane.retry_watches();
    eventually("the object is reconciled", || recorder.keys() == ["main/n/a"]).await;
    assert!(before.elapsed() < Duration::from_secs(1), "{:?}", before.elapsed());
}
