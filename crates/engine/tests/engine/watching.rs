//! Watches: the cache equals the server after every interruption.

use std::time::Duration;

use polis_api::k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use polis_api::k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use polis_engine::{Error, Index, Plane, Watch};
use serde_json::json;

use crate::fake_apiserver::{FakeApiServer, InjectedFault};
use crate::harness::{KeyRecorder, Running, cached, eventually, mk_engine, mk_map, served};

/// A running engine with one plane, and the keys it has reconciled.
fn watch_maps(server: &FakeApiServer) -> (Running, Plane, KeyRecorder) {
    let mut engine = mk_engine(1);
    let plane = engine.plane("plane", server.plane("main"), [Watch::of::<ConfigMap>()]);
    let recorder = KeyRecorder::default();
    engine.controller("notes", &plane, recorder.clone()).for_kind::<ConfigMap>();
    (Running::spawn(engine), plane, recorder)
}

async fn agreed(server: &FakeApiServer, plane: &Plane) {
    eventually("the cache equals the server", || cached(plane) == served(server, "")).await;
}

fn lists(server: &FakeApiServer) -> usize {
    // A list of one object only finds out whether the server was restored.
    let lists = |line: &&String| {
        line.contains("configmaps") && !line.contains("&resourceVersion=") && !line.contains("limit=1")
    };
    server.log().iter().filter(lists).count()
}

#[tokio::test(start_paused = true)]
async fn existing_and_changed_objects_are_reconciled() {
    for streaming in [true, false] {
        let server = FakeApiServer::with_default_kinds();
        server.streaming(streaming);
        server.page(3);
        for number in 0..10 {
            server.put("", "v1", "configmaps", mk_map("shop", &format!("m{number}"), "old"));
        }
        let (engine, plane, recorder) = watch_maps(&server);
        engine.ready().await;
        agreed(&server, &plane).await;
        eventually("every object is reconciled once", || recorder.keys().len() == 10).await;

        recorder.clear();
        server.put("", "v1", "configmaps", mk_map("shop", "m3", "new"));
        server.put("", "v1", "configmaps", mk_map("other", "extra", "new"));
        server.remove("", "v1", "configmaps", "shop/m4");
        agreed(&server, &plane).await;
        let mut keys = recorder.keys();
        keys.sort();
        assert_eq!(keys, ["main/other/extra", "main/shop/m3", "main/shop/m4"]);
        assert_eq!(plane.list_within::<ConfigMap>("shop").unwrap().len(), 9);
        engine.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_streaming_list_without_end_bookmark_falls_back_to_pages() {
    let server = FakeApiServer::with_default_kinds();
    server.put("", "v1", "configmaps", mk_map("shop", "m", "old"));
    server.hook(|_, path| path.contains("sendInitialEvents").then_some(InjectedFault::SilentStream));
    let (engine, plane, _) = watch_maps(&server);
    engine.ready().await;
    agreed(&server, &plane).await;
    server.put("", "v1", "configmaps", mk_map("shop", "m", "new"));
    agreed(&server, &plane).await;
    assert_eq!(server.log().iter().filter(|line| line.contains("sendInitialEvents")).count(), 1);
    engine.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_is_resumed_without_listing_again() {
    let server = FakeApiServer::with_default_kinds();
    let (engine, plane, recorder) = watch_maps(&server);
    engine.ready().await;
    let before = lists(&server);
    for round in 0..5 {
        server.end_watches();
        server.put("", "v1", "configmaps", mk_map("shop", "a", &round.to_string()));
        agreed(&server, &plane).await;
    }
    assert_eq!(lists(&server), before);
    assert_eq!(recorder.keys().len(), 5);
}

#[tokio::test(start_paused = true)]
async fn deletions_during_a_disconnection_are_found() {
    for streaming in [true, false] {
        let server = FakeApiServer::with_default_kinds();
        server.streaming(streaming);
        for name in ["stays", "goes", "changes"] {
            server.put("", "v1", "configmaps", mk_map("shop", name, "old"));
        }
        let (engine, plane, recorder) = watch_maps(&server);
        engine.ready().await;
        eventually("the backlog is reconciled", || recorder.keys().len() == 3).await;
        recorder.clear();

        server.end_watches();
        server.remove("", "v1", "configmaps", "shop/goes");
        server.put("", "v1", "configmaps", mk_map("shop", "changes", "new"));
        server.compact();
        agreed(&server, &plane).await;
        eventually("both changes are reconciled", || recorder.keys().len() == 2).await;
        let mut keys = recorder.keys();
        keys.sort();
        assert_eq!(keys, ["main/shop/changes", "main/shop/goes"], "unchanged objects are not reconciled");
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_engine_sends_no_requests() {
    let server = FakeApiServer::with_default_kinds();
    server.put("", "v1", "configmaps", mk_map("shop", "a", "x"));
    let (engine, ..) = watch_maps(&server);
    engine.ready().await;
    let before = server.requests();
    tokio::time::sleep(Duration::from_secs(20 * 60)).await;
    assert_eq!(server.requests(), before);
    assert_eq!(server.watches(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_kind_is_watched_when_it_is_served() {
    let server = FakeApiServer::new(&[("v1", "configmaps", "ConfigMap")]);
    let mut engine = mk_engine(1);
    let plane =
        engine.plane("plane", server.plane("main"), [Watch::of::<ConfigMap>(), Watch::of::<Secret>()]);
    let recorder = KeyRecorder::default();
    engine.controller("notes", &plane, recorder.clone()).for_kind::<Secret>();
    let running = Running::spawn(engine);
    running.ready().await;
    assert!(!plane.serves::<Secret>().unwrap());
    assert_eq!(plane.list::<Secret>().unwrap(), []);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(
        !server.log().iter().any(|line| line.contains("secrets")),
        "a kind that is not served must not be requested"
    );
    let discoveries = server.log().iter().filter(|line| line.ends_with("/api/v1")).count();
    assert!((20..=45).contains(&discoveries), "{discoveries} discovery requests in ten minutes");

    server.serve("v1", "secrets", "Secret");
    server.put("", "v1", "secrets", json!({"metadata": {"namespace": "shop", "name": "s"}}));
    eventually("the watch starts", || recorder.keys() == ["main/shop/s"]).await;
    assert!(plane.serves::<Secret>().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_served_late_is_found_soon() {
    for slow in [1, 4, 10, 20, 60].map(Duration::from_secs) {
        let crds = "apiextensions.k8s.io/v1";
        let server = FakeApiServer::new(&[(crds, "customresourcedefinitions", "CustomResourceDefinition")]);
        let mut engine = mk_engine(1);
        let watches = [Watch::of::<CustomResourceDefinition>(), Watch::of::<Secret>()];
        let plane = engine.plane("plane", server.plane("main"), watches);
        let running = Running::spawn(engine);
        running.ready().await;
        tokio::time::sleep(Duration::from_secs(600)).await;
        // The definition changes for the last time long before its kind is served.
        server.put("", crds, "customresourcedefinitions", json!({"metadata": {"name": "secrets"}}));
        tokio::time::sleep(slow).await;
        server.serve("v1", "secrets", "Secret");
        let served = tokio::time::Instant::now();
        eventually("the kind is watched", || plane.serves::<Secret>().unwrap()).await;
        let took = served.elapsed();
        assert!(
            took <= Duration::from_secs(1) + slow / 2,
            "noticed {took:?} after it was served, {slow:?} after the change"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_cache_of_a_kind_that_is_no_longer_served_is_kept() {
    let server = FakeApiServer::with_default_kinds();
    server.put("", "v1", "configmaps", mk_map("shop", "a", "x"));
    let (engine, plane, _) = watch_maps(&server);
    engine.ready().await;
    server.unserve("v1", "configmaps");
    eventually("the kind is reported as not served", || !plane.serves::<ConfigMap>().unwrap()).await;
    assert_eq!(
        cached(&plane).len(),
        1,
        "a kind that is not served does not mean that its objects are deleted"
    );
    server.remove("", "v1", "configmaps", "shop/a");
    server.serve("v1", "configmaps", "ConfigMap");
    server.put("", "v1", "configmaps", mk_map("shop", "b", "y"));
    eventually("the kind is served again", || plane.serves::<ConfigMap>().unwrap()).await;
    agreed(&server, &plane).await;
}

#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_be_decoded_is_reported_and_blocks_no_other() {
    let server = FakeApiServer::with_default_kinds();
    let (engine, plane, recorder) = watch_maps(&server);
    engine.ready().await;
    server.put(
        "",
        "v1",
        "configmaps",
        json!({"metadata": {"namespace": "shop", "name": "odd"}, "data": {"value": 7}}),
    );
    server.put("", "v1", "configmaps", mk_map("shop", "fine", "x"));
    eventually("both are reconciled", || recorder.keys().len() == 2).await;
    assert!(plane.get::<ConfigMap>(("shop", "fine")).unwrap().is_some());
    let error = plane.get::<ConfigMap>(("shop", "odd")).unwrap_err();
    let Error::Decode { object, field, .. } = &error else { panic!("{error}") };
    assert_eq!((object.as_str(), field.as_str()), ("ConfigMap shop/odd", "data.value"));
    assert!(engine.handle.metrics().contains("decode_failures_total{kind=\"configmaps/v1\"} 1"));
}

#[tokio::test(start_paused = true)]
async fn objects_are_found_by_label_owner_and_field() {
    let server = FakeApiServer::with_default_kinds();
    let mut engine = mk_engine(1);
    let label = Index::label("app");
    let field = Index::field("data.city");
    let watch = Watch::of::<ConfigMap>().index(Index::Owner).index(label.clone()).index(field.clone());
    let plane = engine.plane("plane", server.plane("main"), [watch, Watch::of::<Namespace>()]);
    let running = Running::spawn(engine);
    for (name, app, city) in [("a", "web", "dfw"), ("b", "web", "ord"), ("c", "db", "dfw")] {
        let meta = json!({"namespace": "shop", "name": name, "labels": {"app": app}, "ownerReferences": [{"uid": "u1", "name": "o", "kind": "K", "apiVersion": "v1"}]});
        server.put("", "v1", "configmaps", json!({"metadata": meta, "data": {"city": city}}));
    }
    running.ready().await;
    let names =
        |found: Vec<ConfigMap>| found.into_iter().filter_map(|map| map.metadata.name).collect::<Vec<_>>();
    let by = |index: &Index, value: &str| names(plane.find(index, value).unwrap());
    assert_eq!(by(&label, "web"), ["a", "b"]);
    assert_eq!(by(&field, "dfw"), ["a", "c"]);
    assert_eq!(names(plane.owned_by("u1").unwrap()), ["a", "b", "c"]);
    server.put(
        "",
        "v1",
        "configmaps",
        json!({"metadata": {"namespace": "shop", "name": "a", "labels": {"app": "db"}}}),
    );
    eventually("the indexes are updated", || by(&label, "db") == ["a", "c"]).await;
    assert_eq!(by(&field, "dfw"), ["c"]);

    let error = plane.find::<ConfigMap>(&Index::label("other"), "x").unwrap_err();
    assert!(matches!(error, Error::NoIndex { .. }), "{error}");
    let error = plane.list::<Secret>().unwrap_err();
    assert!(matches!(error, Error::NotWatched { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn only_objects_that_match_the_selector_are_cached() {
    let server = FakeApiServer::with_default_kinds();
    let mut engine = mk_engine(1);
    let plane = engine.plane("plane", server.plane("main"), [Watch::of::<ConfigMap>().labels("app=web")]);
    for (name, app) in [("a", "web"), ("b", "db")] {
        server.put(
            "",
            "v1",
            "configmaps",
            json!({"metadata": {"namespace": "shop", "name": name, "labels": {"app": app}}}),
        );
    }
    let running = Running::spawn(engine);
    running.ready().await;
    assert_eq!(cached(&plane).len(), 1);
}
