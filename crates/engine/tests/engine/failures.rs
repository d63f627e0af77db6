//! Failing planes are reported and do not affect the others.

use std::time::Duration;

use polis_api::k8s_openapi::api::core::v1::ConfigMap;
use polis_engine::{Engine, FixedPlanes, Plane, Watch};
use tokio::net::TcpListener;

use crate::fake_apiserver::FakeApiServer;
use crate::fake_apiserver::network::{Options, Server};
use crate::harness::{KeyRecorder, Running, eventually_within, mk_map};

/// A server that accepts connections and sends nothing.
async fn silent_server() -> (String, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let task = tokio::spawn(async move {
        let mut sockets = Vec::new();
        while let Ok((socket, _)) = listener.accept().await {
            sockets.push(socket);
        }
    });
    (url, task)
}

fn plane_of(name: &str, config: &polis_api::kube::Config) -> Plane {
    Plane::from_kube_config(name, config).unwrap()
}

async fn get(address: std::net::SocketAddr, path: &str) -> String {
    polis_testing::http_get(address, path).await.expect("a response")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failing_planes_are_reported_and_do_not_affect_the_others() {
    let fake = FakeApiServer::with_default_kinds();
    fake.put("", "v1", "configmaps", mk_map("shop", "a", "x"));
    let good = Server::start(fake.clone(), Options::default()).await;

    let garbage = FakeApiServer::with_default_kinds();
    garbage.hook(|_, _| {
        Some(crate::fake_apiserver::InjectedFault::Respond(200, "<html>welcome</html>".to_owned()))
    });
    let garbage = Server::start(garbage, Options::default()).await;

    let locked = Options::default();
    *locked.token.lock() = Some("secret".to_owned());
    let locked = Server::start(FakeApiServer::with_default_kinds(), locked).await;

    let (silent_url, silent_task) = silent_server().await;
    let mut silent_config = good.config();
    silent_config.cluster_url = silent_url.parse().unwrap();

    let mut wrong = good.config();
    wrong.root_cert = Some(vec![locked.authority.der.to_vec()]);

    let mut closed = good.config();
    closed.cluster_url = "https://127.0.0.1:1".parse().unwrap();

    let mut engine = Engine::new();
    engine.admin("127.0.0.1:0".parse().unwrap());
    let planes = [
        good.plane("good"),
        garbage.plane("garbage"),
        locked.plane("locked"),
        plane_of("silent", &silent_config),
        plane_of("impostor", &wrong),
        plane_of("closed", &closed),
    ];
    let set = engine.planes("cells", FixedPlanes::new(planes), [Watch::of::<ConfigMap>()]);
    let recorder = KeyRecorder::default();
    engine.controller("notes", &set, recorder.clone()).for_kind::<ConfigMap>();
    let running = Running::spawn(engine);

    let soon = Duration::from_secs(4);
    eventually_within("the healthy plane is reconciled", soon, || recorder.keys() == ["good/shop/a"]).await;
    let failing = || set.readiness().failing;
    eventually_within("the others are reported as failing", Duration::from_secs(30), || failing().len() == 5)
        .await;
    let mut reasons: Vec<_> =
        failing().into_iter().map(|(plane, reason, _)| format!("{plane}: {reason}")).collect();
    reasons.sort();
    assert_eq!(
        reasons,
        ["closed: connect", "garbage: garbage", "impostor: tls", "locked: unauthorized", "silent: timeout"]
    );
    fake.put("", "v1", "configmaps", mk_map("shop", "b", "x"));
    eventually_within("the healthy plane is still reconciled", soon, || recorder.keys().len() == 2).await;

    let address = running.handle.admin_address().unwrap();
    assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
    let ready = get(address, "/readyz?verbose").await;
    assert!(ready.starts_with("HTTP/1.1 503"), "{ready}");
    for line in [
        "[-] cells: 1 engaged, 5 engaging, 5 failing",
        "impostor (tls): ",
        "locked (unauthorized): ",
        "not ready",
    ] {
        assert!(ready.contains(line), "{line}: {ready}");
    }
    let metrics = get(address, "/metrics").await;
    for line in [
        "polis_planes{set=\"cells\",state=\"engaged\"} 1",
        "polis_planes_failing{set=\"cells\",reason=\"tls\"} 1",
        "polis_planes_failing{set=\"cells\",reason=\"garbage\"} 1",
        "polis_reconciles_total{controller=\"notes\"} 2",
        "polis_queue_depth{priority=\"fresh\"} 0",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    assert!(get(address, "/other").await.starts_with("HTTP/1.1 404"));
    running.stop().await;
    silent_task.abort();
}
