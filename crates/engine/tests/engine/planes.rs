//! Sets of planes that change at run time.

use std::time::Duration;

use polis_api::k8s_openapi::api::core::v1::{ConfigMap, Secret};
use polis_engine::{FixedPlanes, Key, MiloProjects, Unresolved, Watch};
use serde_json::{Value, json};

use crate::fake_apiserver::{FakeApiServer, InjectedFault};
use crate::harness::{KeyRecorder, Running, cached, eventually, mk_engine, mk_map, served};

const MILO: &str = "resourcemanager.miloapis.com/v1alpha1";

fn mk_platform() -> FakeApiServer {
    let server = FakeApiServer::with_default_kinds();
    server.serve(MILO, "projects", "Project");
    server
}

fn mk_project(name: &str, ready: bool) -> Value {
    let status = if ready { "True" } else { "False" };
    json!({"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": status}]}})
}

#[tokio::test(start_paused = true)]
async fn projects_are_engaged_while_they_are_ready() {
    let server = mk_platform();
    for (name, ready) in [("a", true), ("b", true), ("unready", false)] {
        server.put("", MILO, "projects", mk_project(name, ready));
        server.put(name, "v1", "configmaps", mk_map("default", "settings", name));
    }
    let mut engine = mk_engine(1);
    let projects =
        engine.planes("projects", MiloProjects::new(server.plane("root")), [Watch::of::<ConfigMap>()]);
    let recorder = KeyRecorder::default();
    engine.controller("notes", &projects, recorder.clone()).for_kind::<ConfigMap>();
    let running = Running::spawn(engine);
    running.ready().await;
    let names = || projects.engaged().iter().map(|plane| plane.name().to_string()).collect::<Vec<_>>();
    assert_eq!(names(), ["a", "b"]);
    for name in ["a", "b"] {
        assert_eq!(
            cached(&projects.named(name).unwrap()),
            served(&server, name),
            "each plane has only its own objects"
        );
    }
    eventually("both are reconciled", || recorder.keys().len() == 2).await;

    server.put("", MILO, "projects", mk_project("unready", true));
    server.remove("", MILO, "projects", "/a");
    eventually("the engaged planes follow the projects", || names() == ["b", "unready"]).await;
    assert!(projects.named("a").is_err());
    let before = server.requests();
    server.put("a", "v1", "configmaps", mk_map("default", "settings", "unseen"));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(server.requests(), before, "a disengaged plane receives no requests");

    recorder.clear();
    server.put("", MILO, "projects", mk_project("a", true));
    eventually("a project that is ready again is reconciled", || recorder.keys() == ["a/default/settings"])
        .await;
    let discoveries = server
        .log()
        .iter()
        .filter(|line| line.contains("control-plane/api/v1") && line.ends_with("/api/v1"))
        .count();
    assert!(discoveries <= 3, "projects share discovery results; {discoveries} discovery requests");
}

#[tokio::test(start_paused = true)]
async fn ten_unresponsive_projects_of_a_hundred_do_not_delay_the_others() {
    let server = mk_platform();
    for number in 0..100 {
        server.put("", MILO, "projects", mk_project(&format!("p{number:02}"), true));
        server.put(&format!("p{number:02}"), "v1", "configmaps", mk_map("default", "m", "x"));
    }
    server.hook(|_, path| path.contains("/projects/p0").then_some(InjectedFault::NoResponse));
    let mut engine = mk_engine(1);
    engine.max_concurrent_lists(4);
    let projects =
        engine.planes("projects", MiloProjects::new(server.plane("root")), [Watch::of::<ConfigMap>()]);
    let recorder = KeyRecorder::default();
    engine.controller("notes", &projects, recorder.clone()).for_kind::<ConfigMap>();
    let running = Running::spawn(engine);
    eventually("all responsive projects are engaged", || projects.engaged().len() == 90).await;
    eventually("and reconciled", || recorder.keys().len() == 90).await;
    assert!(!running.handle.is_ready());
    eventually("the others are reported as failing", || projects.readiness().failing.len() == 10).await;
    let readiness = projects.readiness();
    assert!(
        readiness
            .failing
            .iter()
            .all(|(plane, reason, _)| plane.as_str().starts_with("p0") && *reason == "timeout"),
        "{readiness:?}"
    );
    let metrics = running.handle.metrics();
    assert!(metrics.contains("planes{set=\"projects\",state=\"engaged\"} 90"), "{metrics}");
    assert!(metrics.contains("planes_failing{set=\"projects\",reason=\"timeout\"} 10"), "{metrics}");
    assert!(!metrics.contains("p01"), "metrics contain no names of planes");

    server.clear_faults();
    eventually("they are engaged when they respond", || running.handle.is_ready()).await;
}

#[tokio::test(start_paused = true)]
async fn objects_of_other_planes_are_mapped_again_when_their_project_is_engaged() {
    let server = mk_platform();
    let hub = FakeApiServer::with_default_kinds();
    for name in ["early", "late"] {
        hub.put("", "v1", "configmaps", mk_map(name, "copy", "x"));
    }
    hub.put("", "v1", "configmaps", mk_map("", "unowned", "x"));
    server.put("", MILO, "projects", mk_project("early", true));
    let mut engine = mk_engine(1);
    let projects =
        engine.planes("projects", MiloProjects::new(server.plane("root")), [Watch::of::<ConfigMap>()]);
    let hub_plane = engine.plane("hub", hub.plane("hub"), [Watch::of::<ConfigMap>()]);
    let recorder = KeyRecorder::default();
    engine.controller("notes", &projects, recorder.clone()).for_kind::<ConfigMap>().watches::<ConfigMap>(
        &hub_plane,
        |_, copy| {
            let project = copy.metadata.namespace.as_deref().filter(|namespace| !namespace.is_empty());
            let project = project.ok_or_else(|| Unresolved("belongs to no project".to_owned()))?;
            Ok(vec![Key::new(project, "default", "copy")])
        },
    );
    let running = Running::spawn(engine);
    running.ready().await;
    eventually("the key of the early project is reconciled", || recorder.keys() == ["early/default/copy"])
        .await;
    assert!(running.handle.metrics().contains("events_unresolved_total{controller=\"notes\"}"));

    server.put("", MILO, "projects", mk_project("late", true));
    eventually("and the key of the late project", || {
        recorder.keys() == ["early/default/copy", "late/default/copy"]
    })
    .await;

    recorder.clear();
    server.remove("", MILO, "projects", "/late");
    eventually("the project is disengaged", || projects.named("late").is_err()).await;
    server.put("", MILO, "projects", mk_project("late", true));
    eventually("a project that returns is reconciled again", || recorder.keys() == ["late/default/copy"])
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_controller_starts_when_its_required_planes_are_synced() {
    let (server, hub) = (FakeApiServer::with_default_kinds(), FakeApiServer::with_default_kinds());
    server.put("", "v1", "configmaps", mk_map("shop", "a", "x"));
    hub.hook(|_, _| Some(InjectedFault::Respond(503, "starting".to_owned())));
    let mut engine = mk_engine(1);
    let planes = engine.planes("cells", FixedPlanes::new([server.plane("cell")]), [Watch::of::<ConfigMap>()]);
    let hub_plane = engine.plane("hub", hub.plane("hub"), [Watch::of::<ConfigMap>()]);
    let (waiting, immediate) = (KeyRecorder::default(), KeyRecorder::default());
    engine.controller("waiting", &planes, waiting.clone()).for_kind::<ConfigMap>().requires_sync(&hub_plane);
    engine.controller("immediate", &planes, immediate.clone()).for_kind::<ConfigMap>();
    let running = Running::spawn(engine);
    eventually("the controller without the requirement runs", || immediate.keys().len() == 1).await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(waiting.keys(), [""; 0]);
    hub.clear_faults();
    running.ready().await;
    eventually("the other runs when the hub is synced", || waiting.keys() == ["cell/shop/a"]).await;
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_keys_of_one_plane_do_not_delay_another_plane() {
    let (loud, quiet) = (FakeApiServer::with_default_kinds(), FakeApiServer::with_default_kinds());
    for number in 0..10_000 {
        loud.put("", "v1", "configmaps", mk_map("shop", &format!("m{number}"), "x"));
    }
    let mut engine = mk_engine(1);
    engine.workers(1);
    let planes = engine.planes(
        "cells",
        FixedPlanes::new([loud.plane("loud"), quiet.plane("quiet")]),
        [Watch::of::<ConfigMap>()],
    );
    let recorder = KeyRecorder::default();
    let work = {
        let recorder = recorder.clone();
        move |key: Key| {
            let recorder = recorder.clone();
            async move {
                recorder.0.lock().push(key.to_string());
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok(polis_engine::Action::AwaitChange)
            }
        }
    };
    engine.controller("slow", &planes, crate::harness::FnReconciler(work)).for_kind::<ConfigMap>();
    let running = Running::spawn(engine);
    running.ready().await;
    eventually("reconciles have started", || recorder.keys().len() > 3).await;
    let before = recorder.keys().len();
    quiet.put("", "v1", "configmaps", mk_map("shop", "only", "x"));
    eventually("the key of the idle plane is reconciled", || {
        recorder.keys().contains(&"quiet/shop/only".to_owned())
    })
    .await;
    let turn = recorder.keys().iter().position(|key| key == "quiet/shop/only").unwrap();
    assert!(turn <= before + 1, "reconciled {} keys later", turn - before);
}

#[tokio::test(start_paused = true)]
async fn a_forbidden_optional_watch_does_not_block_controllers() {
    let server = FakeApiServer::with_default_kinds();
    server.put("", "v1", "configmaps", mk_map("shop", "a", "x"));
    server.hook(|_, path| path.contains("/secrets").then(|| InjectedFault::Respond(403, "forbidden".into())));
    let mut engine = mk_engine(1);
    let watches = [Watch::of::<ConfigMap>(), Watch::of::<Secret>().if_allowed()];
    let planes = engine.planes("cells", FixedPlanes::new([server.plane("cell")]), watches);
    let recorder = KeyRecorder::default();
    engine.controller("notes", &planes, recorder.clone()).for_kind::<ConfigMap>();
    let running = Running::spawn(engine);
    running.ready().await;
    eventually("the key is reconciled", || recorder.keys() == ["cell/shop/a"]).await;
    let cell = planes.named("cell").unwrap();
    assert!(!cell.serves::<Secret>().unwrap());
    assert!(planes.readiness().failing.is_empty());
    server.clear_faults();
    eventually("the kind is watched when that is allowed", || cell.serves::<Secret>().unwrap()).await;
}

#[tokio::test(start_paused = true)]
async fn projects_with_their_own_services_are_found_by_their_control_planes() {
    const INFRASTRUCTURE: &str = "infrastructure.miloapis.com/v1alpha1";
    let server = FakeApiServer::with_default_kinds();
    server.serve(INFRASTRUCTURE, "projectcontrolplanes", "ProjectControlPlane");
    let plane = |name: &str, status: &str| json!({"metadata": {"name": name}, "status": {"conditions": [{"type": "ControlPlaneReady", "status": status}]}});
    server.put("", INFRASTRUCTURE, "projectcontrolplanes", plane("a", "True"));
    server.put("", INFRASTRUCTURE, "projectcontrolplanes", plane("b", "False"));
    let mut engine = mk_engine(1);
    let provider = MiloProjects::new(server.plane("root")).via_services();
    let projects = engine.planes("projects", provider, [Watch::of::<ConfigMap>()]);
    let running = Running::spawn(engine);
    running.ready().await;
    let names = || projects.engaged().iter().map(|plane| plane.name().to_string()).collect::<Vec<_>>();
    assert_eq!(names(), ["a"]);
    assert!(!server.log().iter().any(|line| line.contains("control-plane/")), "requests have no path prefix");

    server.put("", INFRASTRUCTURE, "projectcontrolplanes", plane("b", "True"));
    eventually("the other project follows", || names() == ["a", "b"]).await;
}

#[tokio::test(start_paused = true)]
async fn sets_with_the_same_name_are_counted_together_and_a_failure_in_one_is_counted() {
    let server = FakeApiServer::with_default_kinds();
    server.hook(|_, path| path.contains("/secrets").then_some(InjectedFault::NoResponse));
    let mut engine = mk_engine(1);
    // As with both roles in one process: each watches other kinds of the same hub.
    let _all = engine.plane("hub", server.plane("hub"), [Watch::of::<Secret>()]);
    let healthy = engine.planes("hub", FixedPlanes::new([server.plane("hub")]), [Watch::of::<ConfigMap>()]);
    let running = Running::spawn(engine);
    eventually("one of them is engaged", || healthy.engaged().len() == 1).await;
    let failing = "planes_failing{set=\"hub\",reason=\"timeout\"} 1";
    eventually("the other is in trouble, and seen to be", || running.handle.metrics().contains(failing))
        .await;
    let page = running.handle.metrics();
    for line in [
        "planes{set=\"hub\",state=\"engaged\"} 0",
        "planes{set=\"hub\",state=\"engaging\"} 1",
        "planes{set=\"hub\",state=\"failing\"} 1",
    ] {
        assert!(page.contains(line), "{line} is missing in\n{page}");
    }

    server.clear_faults();
    eventually("both are engaged", || {
        let page = running.handle.metrics();
        page.contains("planes{set=\"hub\",state=\"engaged\"} 1") && page.contains("reason=\"timeout\"} 0")
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_plane_that_is_declared_again_has_one_cache_and_one_watch_per_kind() {
    let server = FakeApiServer::with_default_kinds();
    let mut engine = mk_engine(1);
    let watches = [Watch::of::<ConfigMap>(), Watch::of::<Secret>()];
    let plane = engine.plane("plane", server.plane("main"), watches);
    let again = engine.plane("again", plane.clone(), [Watch::of::<ConfigMap>()]);
    let running = Running::spawn(engine);
    running.ready().await;
    assert_eq!(server.watches(), 2);
    again.create(&serde_json::from_value::<ConfigMap>(mk_map("shop", "a", "1")).unwrap()).await.unwrap();
    assert!(plane.get::<ConfigMap>(("shop", "a")).unwrap().is_some());
}

#[test]
#[should_panic(expected = "plane main is declared without the watch of secrets")]
fn a_plane_is_not_declared_again_with_more_watches() {
    let mut engine = mk_engine(1);
    let server = FakeApiServer::with_default_kinds();
    let plane = engine.plane("plane", server.plane("main"), [Watch::of::<ConfigMap>()]);
    engine.plane("again", plane, [Watch::of::<Secret>()]);
}
