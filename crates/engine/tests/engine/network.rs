//! Connections over real sockets: TLS, stream limits, broken connections, rotated credentials.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use polis_api::k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use polis_engine::{Engine, FixedPlanes, ListOptions, Plane, PlaneSet, Watch};
use rcgen::ExtendedKeyUsagePurpose;
use serde_json::json;

use crate::fake_apiserver::FakeApiServer;
use crate::fake_apiserver::network::{Authority, Options, Server};
use crate::harness::{Running, cached, eventually, mk_map, served};

fn mk_watches() -> [Watch; 3] {
    [Watch::of::<ConfigMap>(), Watch::of::<Namespace>(), Watch::of::<Secret>()]
}

/// An engine with many planes on one server.
fn watch_projects(root: &Plane, count: usize) -> (Running, PlaneSet) {
    let mut engine = Engine::new();
    let planes = (0..count).map(|number| {
        root.with_path_prefix(format!("p{number}"), &format!("projects/p{number}/control-plane"))
    });
    let set = engine.planes("projects", FixedPlanes::new(planes), mk_watches());
    (Running::spawn(engine), set)
}

async fn all_agree(fake: &FakeApiServer, set: &PlaneSet, count: usize) {
    eventually("every cache equals the server", || {
        let planes = set.engaged();
        planes.len() == count
            && planes.iter().all(|plane| cached(plane) == served(fake, plane.name().as_str()))
    })
    .await;
}

fn change_all(fake: &FakeApiServer, count: usize, value: &str) {
    for number in 0..count {
        fake.put(&format!("p{number}"), "v1", "configmaps", mk_map("default", "m", value));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_hundred_and_sixty_watches_share_connections_of_a_hundred_streams() {
    let fake = FakeApiServer::with_default_kinds();
    let server = Server::start(fake.clone(), Options::default()).await;
    change_all(&fake, 120, "first");
    let (running, set) = watch_projects(&server.plane("root"), 120);
    running.ready().await;
    assert_eq!(fake.watches(), 360);
    // 90 of 100 streams each: four connections for watches, and at most four for unary calls.
    assert!((5..=8).contains(&server.accepted()), "{} connections", server.accepted());
    change_all(&fake, 120, "second");
    all_agree(&fake, &set, 120).await;
    // Unary calls succeed while all watches are open.
    let plane = set.named("p7").unwrap();
    assert_eq!(plane.uncached().list::<ConfigMap>(&ListOptions::all()).await.unwrap().len(), 1);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_change_is_lost_after_broken_connections_and_goaway() {
    let fake = FakeApiServer::with_default_kinds();
    let server = Server::start(fake.clone(), Options::default()).await;
    change_all(&fake, 40, "first");
    let (running, set) = watch_projects(&server.plane("root"), 40);
    running.ready().await;

    server.break_connections();
    fake.remove("p3", "v1", "configmaps", "default/m");
    fake.put("p4", "v1", "configmaps", mk_map("default", "m", "while away"));
    fake.compact();
    all_agree(&fake, &set, 40).await;

    // After GOAWAY running requests finish, and new requests use another connection.
    server.send_goaway();
    change_all(&fake, 40, "after GOAWAY");
    all_agree(&fake, &set, 40).await;
    let plane = set.named("p7").unwrap();
    let mut wanted = plane.get::<ConfigMap>(("default", "m")).unwrap().unwrap();
    for round in 0..20 {
        let current = wanted.clone();
        wanted.data.get_or_insert_default().insert("round".into(), round.to_string());
        wanted = plane.update(&current, &wanted).await.unwrap().into_object().unwrap();
    }
    all_agree(&fake, &set, 40).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_only_http_1_works() {
    let fake = FakeApiServer::with_default_kinds();
    let server = Server::start(fake.clone(), Options { http2: false, ..Options::default() }).await;
    change_all(&fake, 5, "first");
    let (running, set) = watch_projects(&server.plane("root"), 5);
    running.ready().await;
    change_all(&fake, 5, "second");
    all_agree(&fake, &set, 5).await;
    let before = server.accepted();
    let plane = set.named("p1").unwrap();
    for _ in 0..20 {
        plane.uncached().get::<ConfigMap>(("default", "m")).await.unwrap().unwrap();
    }
    assert!(server.accepted() <= before + 2, "connections are reused");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_stream_limit_is_respected() {
    let fake = FakeApiServer::with_default_kinds();
    let server = Server::start(fake.clone(), Options { streams: 5, ..Options::default() }).await;
    change_all(&fake, 10, "first");
    let (running, set) = watch_projects(&server.plane("root"), 10);
    running.ready().await;
    assert_eq!(fake.watches(), 30);
    change_all(&fake, 10, "second");
    all_agree(&fake, &set, 10).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rotated_token_is_reloaded() {
    let fake = FakeApiServer::with_default_kinds();
    let token = Arc::new(Mutex::new(Some("first".to_owned())));
    let server = Server::start(fake.clone(), Options { token: token.clone(), ..Options::default() }).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    std::fs::write(&file, "first\n").unwrap();
    let mut config = server.config();
    config.auth_info.token_file = Some(file.display().to_string());
    let root = Plane::from_kube_config("root", &config).unwrap();
    change_all(&fake, 3, "first");
    let (running, set) = watch_projects(&root, 3);
    running.ready().await;

    std::fs::write(&file, "second\n").unwrap();
    *token.lock() = Some("second".to_owned());
    let plane = set.named("p0").unwrap();
    plane.uncached().get::<ConfigMap>(("default", "m")).await.unwrap().unwrap();
    fake.end_watches();
    change_all(&fake, 3, "with the new token");
    all_agree(&fake, &set, 3).await;
    assert!(set.readiness().failing.is_empty(), "{:?}", set.readiness());
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_certificate_of_a_kubeconfig_authenticates() {
    let fake = FakeApiServer::with_default_kinds();
    let server =
        Server::start(fake.clone(), Options { client_certificates: true, ..Options::default() }).await;
    fake.put("", "v1", "configmaps", mk_map("default", "m", "x"));
    let directory = tempfile::tempdir().unwrap();
    let file = server.kubeconfig(directory.path());
    for context in [None, Some("main")] {
        let plane = Plane::from_kubeconfig("main", &file, context).await.unwrap();
        assert!(plane.uncached().get::<ConfigMap>(("default", "m")).await.unwrap().is_some());
    }
    let error = Plane::from_kubeconfig("main", &file, Some("other")).await.unwrap_err();
    assert!(error.to_string().contains("context other"), "{error}");
    let error = server.plane("anonymous").uncached().get::<ConfigMap>(("default", "m")).await.unwrap_err();
    assert!(error.to_string().contains("anonymous"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewed_client_certificate_is_reloaded() {
    let fake = FakeApiServer::with_default_kinds();
    let server =
        Server::start(fake.clone(), Options { client_certificates: true, ..Options::default() }).await;
    fake.put("", "v1", "configmaps", mk_map("default", "m", "x"));
    let directory = tempfile::tempdir().unwrap();
    let file = server.kubeconfig(directory.path());
    let (good, key) = (directory.path().join("client.pem"), directory.path().join("key.pem"));
    let originals = [&good, &key].map(|file| std::fs::read(file).unwrap());
    let (certificate, other_key, ..) =
        Authority::new().issue(&["client"], ExtendedKeyUsagePurpose::ClientAuth);
    std::fs::write(&good, certificate).unwrap();
    std::fs::write(&key, other_key).unwrap();
    let plane = Plane::from_kubeconfig("main", &file, None).await.unwrap();
    let get = async || plane.uncached().get::<ConfigMap>(("default", "m")).await;
    assert!(get().await.is_err(), "the server must reject a certificate of another CA");

    std::fs::write(&good, "half a certifi").unwrap();
    assert!(get().await.is_err());
    for (file, content) in [&good, &key].into_iter().zip(originals) {
        std::fs::write(file, content).unwrap();
    }

    assert!(get().await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exec_plugin_of_a_kubeconfig_provides_the_token() {
    let fake = FakeApiServer::with_default_kinds();
    let token = Arc::new(Mutex::new(Some("from the plugin".to_owned())));
    let server = Server::start(fake.clone(), Options { token, ..Options::default() }).await;
    fake.put("", "v1", "configmaps", mk_map("default", "m", "x"));
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig_with = |token: &str| {
        let credential = json!({
            "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": token},
        });
        let exec = json!({
            "apiVersion": "client.authentication.k8s.io/v1", "command": "echo", "args": [credential.to_string()],
            "interactiveMode": "Never",
        });
        server.kubeconfig_of(directory.path(), json!({"exec": exec}))
    };
    let plane = Plane::from_kubeconfig("main", &kubeconfig_with("from the plugin"), None).await.unwrap();
    assert!(plane.uncached().get::<ConfigMap>(("default", "m")).await.unwrap().is_some());
    let plane = Plane::from_kubeconfig("main", &kubeconfig_with("another token"), None).await.unwrap();
    let refused = plane.uncached().get::<ConfigMap>(("default", "m")).await.unwrap_err();
    assert_eq!(refused.code(), Some(401), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_the_kube_crate_can_be_made_for_a_plane() {
    use polis_api::kube::Api;
    let fake = FakeApiServer::with_default_kinds();
    let server = Server::start(fake.clone(), Options::default()).await;
    fake.put("p1", "v1", "configmaps", mk_map("default", "m", "x"));
    let plane = server.plane("root").with_path_prefix("p1", "projects/p1/control-plane");
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
