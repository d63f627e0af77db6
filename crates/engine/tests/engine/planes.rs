//! Sets of planes that come and go.

use std::time::Duration;

use polis_api::k8s_openapi::api::core::v1::{ConfigMap, Secret};
use polis_engine::{Fixed, Key, MiloProjects, Unresolved, Watch};
use serde_json::{Value, json};

use crate::desk::{Notebook, Running, cached, eventually, mk_engine, mk_map, served};
use crate::stand_in::{Misdeed, StandIn};

const MILO: &str = "resourcemanager.miloapis.com/v1alpha1";

fn mk_platform() -> StandIn {
    let server = StandIn::usual();
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
    let notebook = Notebook::default();
    engine.controller("notes", &projects, notebook.clone()).on::<ConfigMap>();
    let running = Running::start(engine);
    running.ready().await;
    let names = || projects.engaged().iter().map(|plane| plane.name().to_string()).collect::<Vec<_>>();
    assert_eq!(names(), ["a", "b"]);
    for name in ["a", "b"] {
        assert_eq!(cached(&projects.named(name).unwrap()), served(&server, name), "each sees only its own");
    }
    eventually("both are worked on", || notebook.keys().len() == 2).await;

    server.put("", MILO, "projects", mk_project("unready", true));
    server.remove("", MILO, "projects", "/a");
    eventually("they follow", || names() == ["b", "unready"]).await;
    assert!(projects.named("a").is_err());
    let settled = server.requests();
    server.put("a", "v1", "configmaps", mk_map("default", "settings", "unseen"));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(server.requests(), settled, "a plane that left is left alone");

    notebook.clear();
    server.put("", MILO, "projects", mk_project("a", true));
    eventually("one that returns is seen anew", || notebook.keys() == ["a/default/settings"]).await;
    let discoveries = server
        .log()
        .iter()
        .filter(|line| line.contains("control-plane/api/v1") && line.ends_with("/api/v1"))
        .count();
    assert!(discoveries <= 3, "what one project serves all serve; asked {discoveries} times");
}

#[tokio::test(start_paused = true)]
async fn a_hundred_projects_of_which_ten_never_answer_do_not_wait_for_each_other() {
    let server = mk_platform();
    for number in 0..100 {
        server.put("", MILO, "projects", mk_project(&format!("p{number:02}"), true));
        server.put(&format!("p{number:02}"), "v1", "configmaps", mk_map("default", "m", "x"));
    }
    server.hook(|_, path| path.contains("/projects/p0").then_some(Misdeed::Silence));
    let mut engine = mk_engine(1);
    engine.engaging(4);
    let projects =
        engine.planes("projects", MiloProjects::new(server.plane("root")), [Watch::of::<ConfigMap>()]);
    let notebook = Notebook::default();
    engine.controller("notes", &projects, notebook.clone()).on::<ConfigMap>();
    let running = Running::start(engine);
    eventually("all that answer are engaged", || projects.engaged().len() == 90).await;
    eventually("and worked on", || notebook.keys().len() == 90).await;
    assert!(!running.handle.is_ready());
    eventually("the others are named", || projects.readiness().failing.len() == 10).await;
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
    assert!(!metrics.contains("p01"), "no names in metrics");

    server.behave();
    eventually("they are engaged once they answer", || running.handle.is_ready()).await;
}

#[tokio::test(start_paused = true)]
async fn what_another_plane_says_about_a_project_is_not_lost_before_the_project_is_engaged() {
    let server = mk_platform();
    let hub = StandIn::usual();
    for name in ["early", "late"] {
        hub.put("", "v1", "configmaps", mk_map(name, "copy", "x"));
    }
    hub.put("", "v1", "configmaps", mk_map("", "stray", "x"));
    server.put("", MILO, "projects", mk_project("early", true));
    let mut engine = mk_engine(1);
    let projects =
        engine.planes("projects", MiloProjects::new(server.plane("root")), [Watch::of::<ConfigMap>()]);
    let hub_plane = engine.plane("hub", hub.plane("hub"), [Watch::of::<ConfigMap>()]);
    let notebook = Notebook::default();
    engine.controller("notes", &projects, notebook.clone()).on::<ConfigMap>().maps::<ConfigMap>(
        &hub_plane,
        |_, copy| {
            let project = copy.metadata.namespace.as_deref().filter(|namespace| !namespace.is_empty());
            let project = project.ok_or_else(|| Unresolved("belongs to nobody".to_owned()))?;
            Ok(vec![Key::new(project, "default", "copy")])
        },
    );
    let running = Running::start(engine);
    running.ready().await;
    eventually("the early one is worked on", || notebook.keys() == ["early/default/copy"]).await;
    assert!(running.handle.metrics().contains("events_unresolved_total{controller=\"notes\"}"));

    server.put("", MILO, "projects", mk_project("late", true));
    eventually("and the late one", || notebook.keys() == ["early/default/copy", "late/default/copy"]).await;

    notebook.clear();
    server.remove("", MILO, "projects", "/late");
    eventually("it leaves", || projects.named("late").is_err()).await;
    server.put("", MILO, "projects", mk_project("late", true));
    eventually("one that returns is worked on again", || notebook.keys() == ["late/default/copy"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_controller_does_not_work_before_it_sees_all_it_needs() {
    let (server, hub) = (StandIn::usual(), StandIn::usual());
    server.put("", "v1", "configmaps", mk_map("shop", "a", "x"));
    hub.hook(|_, _| Some(Misdeed::Answer(503, "starting".to_owned())));
    let mut engine = mk_engine(1);
    let planes = engine.planes("cells", Fixed::new([server.plane("cell")]), [Watch::of::<ConfigMap>()]);
    let hub_plane = engine.plane("hub", hub.plane("hub"), [Watch::of::<ConfigMap>()]);
    let (patient, hasty) = (Notebook::default(), Notebook::default());
    engine.controller("patient", &planes, patient.clone()).on::<ConfigMap>().needs(&hub_plane);
    engine.controller("hasty", &planes, hasty.clone()).on::<ConfigMap>();
    let running = Running::start(engine);
    eventually("one that does not need the hub works", || hasty.keys().len() == 1).await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(patient.keys(), [""; 0]);
    hub.behave();
    running.ready().await;
    eventually("the other works once the hub is seen", || patient.keys() == ["cell/shop/a"]).await;
}

#[tokio::test(start_paused = true)]
async fn one_plane_with_ten_thousand_keys_does_not_hold_up_another() {
    let (loud, quiet) = (StandIn::usual(), StandIn::usual());
    for number in 0..10_000 {
        loud.put("", "v1", "configmaps", mk_map("shop", &format!("m{number}"), "x"));
    }
    let mut engine = mk_engine(1);
    engine.workers(1);
    let planes = engine.planes(
        "cells",
        Fixed::new([loud.plane("loud"), quiet.plane("quiet")]),
        [Watch::of::<ConfigMap>()],
    );
    let notebook = Notebook::default();
    let work = {
        let notebook = notebook.clone();
        move |key: Key| {
            let notebook = notebook.clone();
            async move {
                notebook.0.lock().push(key.to_string());
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok(polis_engine::Outcome::Settled)
            }
        }
    };
    engine.controller("slow", &planes, crate::desk::Doing(work)).on::<ConfigMap>();
    let running = Running::start(engine);
    running.ready().await;
    eventually("work has begun", || notebook.keys().len() > 3).await;
    let before = notebook.keys().len();
    quiet.put("", "v1", "configmaps", mk_map("shop", "only", "x"));
    eventually("the quiet one is heard", || notebook.keys().contains(&"quiet/shop/only".to_owned())).await;
    let turn = notebook.keys().iter().position(|key| key == "quiet/shop/only").unwrap();
    assert!(turn <= before + 1, "came {} turns later", turn - before);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_good_to_have_and_forbidden_keeps_nobody_from_working() {
    let server = StandIn::usual();
    server.put("", "v1", "configmaps", mk_map("shop", "a", "x"));
    server.hook(|_, path| path.contains("/secrets").then(|| Misdeed::Answer(403, "not for you".into())));
    let mut engine = mk_engine(1);
    let watches = [Watch::of::<ConfigMap>(), Watch::of::<Secret>().if_allowed()];
    let planes = engine.planes("cells", Fixed::new([server.plane("cell")]), watches);
    let notebook = Notebook::default();
    engine.controller("notes", &planes, notebook.clone()).on::<ConfigMap>();
    let running = Running::start(engine);
    running.ready().await;
    eventually("it is worked on", || notebook.keys() == ["cell/shop/a"]).await;
    let cell = planes.named("cell").unwrap();
    assert!(!cell.serves::<Secret>().unwrap());
    assert!(planes.readiness().failing.is_empty());
    server.behave();
    eventually("it is watched once that is allowed", || cell.serves::<Secret>().unwrap()).await;
}

#[tokio::test(start_paused = true)]
async fn projects_with_services_of_their_own_are_found_by_their_control_planes() {
    const INFRASTRUCTURE: &str = "infrastructure.miloapis.com/v1alpha1";
    let server = StandIn::usual();
    server.serve(INFRASTRUCTURE, "projectcontrolplanes", "ProjectControlPlane");
    let plane = |name: &str, status: &str| json!({"metadata": {"name": name}, "status": {"conditions": [{"type": "ControlPlaneReady", "status": status}]}});
    server.put("", INFRASTRUCTURE, "projectcontrolplanes", plane("a", "True"));
    server.put("", INFRASTRUCTURE, "projectcontrolplanes", plane("b", "False"));
    let mut engine = mk_engine(1);
    let provider = MiloProjects::new(server.plane("root")).by_service();
    let projects = engine.planes("projects", provider, [Watch::of::<ConfigMap>()]);
    let running = Running::start(engine);
    running.ready().await;
    let names = || projects.engaged().iter().map(|plane| plane.name().to_string()).collect::<Vec<_>>();
    assert_eq!(names(), ["a"]);
    assert!(!server.log().iter().any(|line| line.contains("control-plane/")), "no path in front");

    server.put("", INFRASTRUCTURE, "projectcontrolplanes", plane("b", "True"));
    eventually("the other follows", || names() == ["a", "b"]).await;
}

#[tokio::test(start_paused = true)]
async fn sets_of_one_name_are_counted_together_and_the_trouble_of_one_is_not_hidden_by_the_other() {
    let server = StandIn::usual();
    server.hook(|_, path| path.contains("/secrets").then_some(Misdeed::Silence));
    let mut engine = mk_engine(1);
    // As with both roles in one process: each looks at other kinds of the same hub.
    let _all = engine.plane("hub", server.plane("hub"), [Watch::of::<Secret>()]);
    let fine = engine.planes("hub", Fixed::new([server.plane("hub")]), [Watch::of::<ConfigMap>()]);
    let running = Running::start(engine);
    eventually("one of them is engaged", || fine.engaged().len() == 1).await;
    let failing = "planes_failing{set=\"hub\",reason=\"timeout\"} 1";
    eventually("the other is in trouble, and seen to be", || running.handle.metrics().contains(failing))
        .await;
    let page = running.handle.metrics();
    for line in [
        "planes{set=\"hub\",state=\"engaged\"} 0",
        "planes{set=\"hub\",state=\"engaging\"} 1",
        "planes{set=\"hub\",state=\"failing\"} 1",
    ] {
        assert!(page.contains(line), "{line} is not on\n{page}");
    }

    server.behave();
    eventually("both are engaged", || {
        let page = running.handle.metrics();
        page.contains("planes{set=\"hub\",state=\"engaged\"} 1") && page.contains("reason=\"timeout\"} 0")
    })
    .await;
}
