//! Real sockets: TLS, stream limits, broken connections, rotated tokens.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use polis_api::k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use polis_engine::{Engine, Fixed, Plane, PlaneSet, Query, Watch};
use rcgen::ExtendedKeyUsagePurpose;
use serde_json::json;

use crate::desk::{Running, cached, eventually, mk_map, served};
use crate::stand_in::StandIn;
use crate::stand_in::network::{Authority, Options, Server};

fn mk_watches() -> [Watch; 3] {
    [Watch::of::<ConfigMap>(), Watch::of::<Namespace>(), Watch::of::<Secret>()]
}

/// An engine over many planes behind one server.
fn watch_projects(root: &Plane, count: usize) -> (Running, PlaneSet) {
    let mut engine = Engine::new();
    let planes = (0..count)
        .map(|number| root.under(format!("p{number}"), &format!("projects/p{number}/control-plane")));
    let set = engine.planes("projects", Fixed::new(planes), mk_watches());
    (Running::start(engine), set)
}

async fn all_agree(stand_in: &StandIn, set: &PlaneSet, count: usize) {
    eventually("every cache equals the server", || {
        let planes = set.engaged();
        planes.len() == count
            && planes.iter().all(|plane| cached(plane) == served(stand_in, plane.name().as_str()))
    })
    .await;
}

fn change_all(stand_in: &StandIn, count: usize, value: &str) {
    for number in 0..count {
        stand_in.put(&format!("p{number}"), "v1", "configmaps", mk_map("default", "m", value));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_hundred_and_sixty_watches_are_live_on_connections_of_a_hundred_streams() {
    let stand_in = StandIn::usual();
    let server = Server::start(stand_in.clone(), Options::default()).await;
    change_all(&stand_in, 120, "first");
    let (running, set) = watch_projects(&server.plane("root"), 120);
    running.ready().await;
    assert_eq!(stand_in.watches(), 360);
    // 90 of 100 streams each, so four for watches; and at most four for everything else.
    assert!((5..=8).contains(&server.accepted()), "{} connections", server.accepted());
    change_all(&stand_in, 120, "second");
    all_agree(&stand_in, &set, 120).await;
    // Unary calls still pass while every watch stands.
    let plane = set.named("p7").unwrap();
    assert_eq!(plane.live().list::<ConfigMap>(&Query::all()).await.unwrap().len(), 1);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_connections_and_goodbyes_lose_nothing() {
    let stand_in = StandIn::usual();
    let server = Server::start(stand_in.clone(), Options::default()).await;
    change_all(&stand_in, 40, "first");
    let (running, set) = watch_projects(&server.plane("root"), 40);
    running.ready().await;

    server.break_connections();
    stand_in.remove("p3", "v1", "configmaps", "default/m");
    stand_in.put("p4", "v1", "configmaps", mk_map("default", "m", "while away"));
    stand_in.forget_history();
    all_agree(&stand_in, &set, 40).await;

    // GOAWAY: what is under way goes on, what is new goes elsewhere.
    server.say_goodbye();
    change_all(&stand_in, 40, "after goodbye");
    all_agree(&stand_in, &set, 40).await;
    let plane = set.named("p7").unwrap();
    let mut wanted = plane.get::<ConfigMap>(("default", "m")).unwrap().unwrap();
    for round in 0..20 {
        let current = wanted.clone();
        wanted.data.get_or_insert_default().insert("round".into(), round.to_string());
        wanted = plane.update(&current, &wanted).await.unwrap().into_object().unwrap();
    }
    all_agree(&stand_in, &set, 40).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_speaks_only_http_1_is_understood() {
    let stand_in = StandIn::usual();
    let server = Server::start(stand_in.clone(), Options { http2: false, ..Options::default() }).await;
    change_all(&stand_in, 5, "first");
    let (running, set) = watch_projects(&server.plane("root"), 5);
    running.ready().await;
    change_all(&stand_in, 5, "second");
    all_agree(&stand_in, &set, 5).await;
    let before = server.accepted();
    let plane = set.named("p1").unwrap();
    for _ in 0..20 {
        plane.live().get::<ConfigMap>(("default", "m")).await.unwrap().unwrap();
    }
    assert!(server.accepted() <= before + 2, "connections are used again");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_stream_limit_is_obeyed() {
    let stand_in = StandIn::usual();
    let server = Server::start(stand_in.clone(), Options { streams: 5, ..Options::default() }).await;
    change_all(&stand_in, 10, "first");
    let (running, set) = watch_projects(&server.plane("root"), 10);
    running.ready().await;
    assert_eq!(stand_in.watches(), 30);
    change_all(&stand_in, 10, "second");
    all_agree(&stand_in, &set, 10).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_is_rotated_is_read_anew() {
    let stand_in = StandIn::usual();
    let token = Arc::new(Mutex::new(Some("first".to_owned())));
    let server =
        Server::start(stand_in.clone(), Options { token: token.clone(), ..Options::default() }).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    std::fs::write(&file, "first\n").unwrap();
    let mut config = server.config();
    config.auth_info.token_file = Some(file.display().to_string());
    let root = Plane::from_kube_config("root", &config).unwrap();
    change_all(&stand_in, 3, "first");
    let (running, set) = watch_projects(&root, 3);
    running.ready().await;

    std::fs::write(&file, "second\n").unwrap();
    *token.lock() = Some("second".to_owned());
    let plane = set.named("p0").unwrap();
    plane.live().get::<ConfigMap>(("default", "m")).await.unwrap().unwrap();
    stand_in.cut_watches();
    change_all(&stand_in, 3, "with the new token");
    all_agree(&stand_in, &set, 3).await;
    assert!(set.readiness().failing.is_empty(), "{:?}", set.readiness());
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kubeconfig_with_a_client_certificate_opens_the_door() {
    let stand_in = StandIn::usual();
    let server =
        Server::start(stand_in.clone(), Options { client_certificates: true, ..Options::default() }).await;
    stand_in.put("", "v1", "configmaps", mk_map("default", "m", "x"));
    let directory = tempfile::tempdir().unwrap();
    let file = server.kubeconfig(directory.path());
    for context in [None, Some("main")] {
        let plane = Plane::from_kubeconfig("main", &file, context).await.unwrap();
        assert!(plane.live().get::<ConfigMap>(("default", "m")).await.unwrap().is_some());
    }
    let error = Plane::from_kubeconfig("main", &file, Some("other")).await.unwrap_err();
    assert!(error.to_string().contains("context other"), "{error}");
    let stranger = server.plane("stranger").live().get::<ConfigMap>(("default", "m")).await.unwrap_err();
    assert!(stranger.to_string().contains("stranger"), "{stranger}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_certificate_that_is_renewed_is_read_anew() {
    let stand_in = StandIn::usual();
    let server =
        Server::start(stand_in.clone(), Options { client_certificates: true, ..Options::default() }).await;
    stand_in.put("", "v1", "configmaps", mk_map("default", "m", "x"));
    let directory = tempfile::tempdir().unwrap();
    let file = server.kubeconfig(directory.path());
    let (good, key) = (directory.path().join("client.pem"), directory.path().join("key.pem"));
    let kept = [&good, &key].map(|file| std::fs::read(file).unwrap());
    let (certificate, of_it, ..) = Authority::new().issue(&["client"], ExtendedKeyUsagePurpose::ClientAuth);
    std::fs::write(&good, certificate).unwrap();
    std::fs::write(&key, of_it).unwrap();
    let plane = Plane::from_kubeconfig("main", &file, None).await.unwrap();
    let get = async || plane.live().get::<ConfigMap>(("default", "m")).await;
    assert!(get().await.is_err(), "a stranger is let in");

    std::fs::write(&good, "half a certifi").unwrap();
    assert!(get().await.is_err());
    for (file, content) in [&good, &key].into_iter().zip(kept) {
        std::fs::write(file, content).unwrap();
    }

    assert!(get().await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kubeconfig_with_an_exec_plugin_asks_it_for_a_token() {
    let stand_in = StandIn::usual();
    let token = Arc::new(Mutex::new(Some("from the plugin".to_owned())));
    let server = Server::start(stand_in.clone(), Options { token, ..Options::default() }).await;
    stand_in.put("", "v1", "configmaps", mk_map("default", "m", "x"));
    let directory = tempfile::tempdir().unwrap();
    let says = |token: &str| {
        let credential = json!({
            "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": token},
        });
        let exec = json!({
            "apiVersion": "client.authentication.k8s.io/v1", "command": "echo", "args": [credential.to_string()],
            "interactiveMode": "Never",
        });
        server.kubeconfig_of(directory.path(), json!({"exec": exec}))
    };
    let plane = Plane::from_kubeconfig("main", &says("from the plugin"), None).await.unwrap();
    assert!(plane.live().get::<ConfigMap>(("default", "m")).await.unwrap().is_some());
    let plane = Plane::from_kubeconfig("main", &says("of somebody else"), None).await.unwrap();
    let refused = plane.live().get::<ConfigMap>(("default", "m")).await.unwrap_err();
    assert_eq!(refused.code(), Some(401), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_the_kube_crate_can_be_made_for_a_plane() {
    use polis_api::kube::Api;
    let stand_in = StandIn::usual();
    let server = Server::start(stand_in.clone(), Options::default()).await;
    stand_in.put("p1", "v1", "configmaps", mk_map("default", "m", "x"));
    let plane = server.plane("root").under("p1", "projects/p1/control-plane");
    let maps: Api<ConfigMap> = Api::namespaced(plane.kube_client(), "default");
    let names: Vec<_> = maps
        .list(&Default::default())
        .await
        .unwrap()
        .items
        .into_iter()
        .filter_map(|map| map.metadata.name)
        .collect();
    assert_eq!(names, ["m"]);
    tokio::time::sleep(Duration::ZERO).await;
}
