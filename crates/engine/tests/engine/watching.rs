//! Seeing: the cache equals the server, whatever happens in between.

use std::time::Duration;

use polis_api::k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use polis_api::k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use polis_engine::{Error, Index, Plane, Watch};
use serde_json::json;

use crate::desk::{Notebook, Running, cached, eventually, mk_engine, mk_map, served};
use crate::stand_in::{Misdeed, StandIn};

/// A running engine over one plane, and what it has been told to look at.
fn watch_maps(server: &StandIn) -> (Running, Plane, Notebook) {
    let mut engine = mk_engine(1);
    let plane = engine.plane("plane", server.plane("main"), [Watch::of::<ConfigMap>()]);
    let notebook = Notebook::default();
    engine.controller("notes", &plane, notebook.clone()).on::<ConfigMap>();
    (Running::start(engine), plane, notebook)
}

async fn agreed(server: &StandIn, plane: &Plane) {
    eventually("the cache equals the server", || cached(plane) == served(server, "")).await;
}

fn lists(server: &StandIn) -> usize {
    let lists = |line: &&String| line.contains("configmaps") && !line.contains("&resourceVersion=");
    server.log().iter().filter(lists).count()
}

#[tokio::test(start_paused = true)]
async fn what_is_there_and_what_changes_is_seen() {
    for streaming in [true, false] {
        let server = StandIn::usual();
        server.streaming(streaming);
        server.page(3);
        for number in 0..10 {
            server.put("", "v1", "configmaps", mk_map("shop", &format!("m{number}"), "old"));
        }
        let (engine, plane, notebook) = watch_maps(&server);
        engine.ready().await;
        agreed(&server, &plane).await;
        eventually("every object is worked on once", || notebook.keys().len() == 10).await;

        notebook.clear();
        server.put("", "v1", "configmaps", mk_map("shop", "m3", "new"));
        server.put("", "v1", "configmaps", mk_map("other", "extra", "new"));
        server.remove("", "v1", "configmaps", "shop/m4");
        agreed(&server, &plane).await;
        let mut keys = notebook.keys();
        keys.sort();
        assert_eq!(keys, ["main/other/extra", "main/shop/m3", "main/shop/m4"]);
        assert_eq!(plane.list_within::<ConfigMap>("shop").unwrap().len(), 9);
        engine.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_says_where_a_streamed_list_ends_is_listed_in_pages() {
    let server = StandIn::usual();
    server.put("", "v1", "configmaps", mk_map("shop", "m", "old"));
    server.hook(|_, path| path.contains("sendInitialEvents").then_some(Misdeed::Mute));
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
    let server = StandIn::usual();
    let (engine, plane, notebook) = watch_maps(&server);
    engine.ready().await;
    let before = lists(&server);
    for round in 0..5 {
        server.cut_watches();
        server.put("", "v1", "configmaps", mk_map("shop", "a", &round.to_string()));
        agreed(&server, &plane).await;
    }
    assert_eq!(lists(&server), before);
    assert_eq!(notebook.keys().len(), 5);
}

#[tokio::test(start_paused = true)]
async fn deletions_that_happened_while_disconnected_are_seen() {
    for streaming in [true, false] {
        let server = StandIn::usual();
        server.streaming(streaming);
        for name in ["stays", "goes", "changes"] {
            server.put("", "v1", "configmaps", mk_map("shop", name, "old"));
        }
        let (engine, plane, notebook) = watch_maps(&server);
        engine.ready().await;
        eventually("the backlog is done", || notebook.keys().len() == 3).await;
        notebook.clear();

        server.cut_watches();
        server.remove("", "v1", "configmaps", "shop/goes");
        server.put("", "v1", "configmaps", mk_map("shop", "changes", "new"));
        server.forget_history();
        agreed(&server, &plane).await;
        eventually("both changes are worked on", || notebook.keys().len() == 2).await;
        let mut keys = notebook.keys();
        keys.sort();
        assert_eq!(keys, ["main/shop/changes", "main/shop/goes"], "and what did not change is left alone");
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_engine_asks_nothing() {
    let server = StandIn::usual();
    server.put("", "v1", "configmaps", mk_map("shop", "a", "x"));
    let (engine, ..) = watch_maps(&server);
    engine.ready().await;
    let before = server.requests();
    tokio::time::sleep(Duration::from_secs(20 * 60)).await;
    assert_eq!(server.requests(), before);
    assert_eq!(server.watches(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_not_served_is_not_watched_until_it_is() {
    let server = StandIn::new(&[("v1", "configmaps", "ConfigMap")]);
    let mut engine = mk_engine(1);
    let plane =
        engine.plane("plane", server.plane("main"), [Watch::of::<ConfigMap>(), Watch::of::<Secret>()]);
    let notebook = Notebook::default();
    engine.controller("notes", &plane, notebook.clone()).on::<Secret>();
    let running = Running::start(engine);
    running.ready().await;
    assert!(!plane.serves::<Secret>().unwrap());
    assert_eq!(plane.list::<Secret>().unwrap(), []);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(!server.log().iter().any(|line| line.contains("secrets")), "asked for what is not there");
    let asked = server.log().iter().filter(|line| line.ends_with("/api/v1")).count();
    assert!((20..=45).contains(&asked), "asked {asked} times in ten minutes whether it is there now");

    server.serve("v1", "secrets", "Secret");
    server.put("", "v1", "secrets", json!({"metadata": {"namespace": "shop", "name": "s"}}));
    eventually("it is watched by itself", || notebook.keys() == ["main/shop/s"]).await;
    assert!(plane.serves::<Secret>().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_kind_whose_server_is_slow_to_serve_it_is_noticed_soon_after_it_does() {
    for slow in [1, 4, 10, 20, 60].map(Duration::from_secs) {
        let crds = "apiextensions.k8s.io/v1";
        let server = StandIn::new(&[(crds, "customresourcedefinitions", "CustomResourceDefinition")]);
        let mut engine = mk_engine(1);
        let watches = [Watch::of::<CustomResourceDefinition>(), Watch::of::<Secret>()];
        let plane = engine.plane("plane", server.plane("main"), watches);
        let running = Running::start(engine);
        running.ready().await;
        tokio::time::sleep(Duration::from_secs(600)).await;
        // The definition's last change comes long before its kind is served.
        server.put("", crds, "customresourcedefinitions", json!({"metadata": {"name": "secrets"}}));
        tokio::time::sleep(slow).await;
        server.serve("v1", "secrets", "Secret");
        let served = tokio::time::Instant::now();
        eventually("it is watched", || plane.serves::<Secret>().unwrap()).await;
        let took = served.elapsed();
        assert!(
            took <= Duration::from_secs(1) + slow / 2,
            "noticed {took:?} after it was served, {slow:?} after the change"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_vanishes_is_waited_for_and_what_was_seen_is_kept() {
    let server = StandIn::usual();
    server.put("", "v1", "configmaps", mk_map("shop", "a", "x"));
    let (engine, plane, _) = watch_maps(&server);
    engine.ready().await;
    server.unserve("v1", "configmaps");
    eventually("it is noticed", || !plane.serves::<ConfigMap>().unwrap()).await;
    assert_eq!(cached(&plane).len(), 1, "not being served is no evidence of deletion");
    server.remove("", "v1", "configmaps", "shop/a");
    server.serve("v1", "configmaps", "ConfigMap");
    server.put("", "v1", "configmaps", mk_map("shop", "b", "y"));
    eventually("it is served again", || plane.serves::<ConfigMap>().unwrap()).await;
    agreed(&server, &plane).await;
}

#[tokio::test(start_paused = true)]
async fn an_object_that_does_not_fit_is_named_and_stops_nothing() {
    let server = StandIn::usual();
    let (engine, plane, notebook) = watch_maps(&server);
    engine.ready().await;
    server.put(
        "",
        "v1",
        "configmaps",
        json!({"metadata": {"namespace": "shop", "name": "odd"}, "data": {"value": 7}}),
    );
    server.put("", "v1", "configmaps", mk_map("shop", "fine", "x"));
    eventually("both are seen", || notebook.keys().len() == 2).await;
    assert!(plane.get::<ConfigMap>(("shop", "fine")).unwrap().is_some());
    let error = plane.get::<ConfigMap>(("shop", "odd")).unwrap_err();
    let Error::Decode { object, field, .. } = &error else { panic!("{error}") };
    assert_eq!((object.as_str(), field.as_str()), ("ConfigMap shop/odd", "data.value"));
    assert!(engine.handle.metrics().contains("decode_failures_total{kind=\"configmaps/v1\"} 1"));
}

#[tokio::test(start_paused = true)]
async fn objects_are_found_by_label_owner_and_field() {
    let server = StandIn::usual();
    let mut engine = mk_engine(1);
    let label = Index::label("app");
    let field = Index::field("data.city");
    let watch = Watch::of::<ConfigMap>().index(Index::Owner).index(label.clone()).index(field.clone());
    let plane = engine.plane("plane", server.plane("main"), [watch, Watch::of::<Namespace>()]);
    let running = Running::start(engine);
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
    eventually("the indexes follow", || by(&label, "db") == ["a", "c"]).await;
    assert_eq!(by(&field, "dfw"), ["c"]);

    let error = plane.find::<ConfigMap>(&Index::label("other"), "x").unwrap_err();
    assert!(matches!(error, Error::NoIndex { .. }), "{error}");
    let error = plane.list::<Secret>().unwrap_err();
    assert!(matches!(error, Error::NotWatched { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn only_what_a_selector_lets_through_is_kept() {
    let server = StandIn::usual();
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
    let running = Running::start(engine);
    running.ready().await;
    assert_eq!(cached(&plane).len(), 1);
}
