//! The federation in operation: its probes, its metrics, and leader election with two replicas.

use std::net::SocketAddr;
use std::time::Duration;

use polis_api::kube::client::Body;
use polis_apiserver::Server;
use polis_engine::{Clock, Engine, Handle, LeaderElection, Plane as EnginePlane};
use polis_federation::FederationConfig;
use polis_testing::http_get;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tower::ServiceExt;

use crate::fixture::{mk_server, plane, register_members};
use crate::suite::fixture::*;

fn in_process(server: &Server, name: &str) -> EnginePlane {
    EnginePlane::in_process::<_, Body, _>(name, server.plane_service(name))
}

fn mk_config(server: &Server, hub: EnginePlane) -> FederationConfig {
    let mut config = FederationConfig::new(hub);
    for member in ["dfw", "ord"] {
        config = config.member(member, in_process(server, member));
    }
    config
}

/// The hub, whose Clusters cannot be read before `released`.
fn hub_without_clusters(server: &Server, released: &watch::Sender<bool>) -> EnginePlane {
    let (service, released) = (server.plane_service("hub"), released.subscribe());
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (service, mut released) = (service.clone(), released.clone());
        async move {
            if request.uri().path().ends_with("/clusters") {
                released.wait_for(|released| *released).await.expect("the test holds the sender");
            }
            service.oneshot(request).await
        }
    });
    EnginePlane::in_process("hub", service)
}

/// The status code and the body of a GET.
async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let response = http_get(address, path).await.expect("a response");
    let code = response.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status code");
    let (_, body) = response.split_once("\r\n\r\n").expect("a body");
    (code, body.to_owned())
}

#[tokio::test]
async fn readyz_names_what_it_waits_for_until_the_members_are_known_and_metrics_has_all_series() {
    let server = mk_server().await;
    register_members(&plane(&server, "hub")).await;
    let released = watch::Sender::new(false);
    let mut engine = Engine::new();
    engine.admin(SocketAddr::from(([127, 0, 0, 1], 0)));
    let hub = hub_without_clusters(&server, &released);
    polis_federation::declare(&mut engine, Clock::system(), mk_config(&server, hub));
    let handle = engine.handle();
    let running = tokio::spawn(engine.run(std::future::pending()));
    let address = eventually("the probes are served", || async { handle.admin_address() }).await;

    let (code, page) = get(address, "/readyz?verbose").await;
    assert_eq!(code, 503, "{page}");
    for line in
        ["[-] hub: 0 engaged, 1 engaging", "hub: engaging", "[-] member: 0 engaged", "not been listed"]
    {
        assert!(page.contains(line), "{line:?} is not in {page}");
    }
    assert_eq!(get(address, "/readyz").await.0, 503);
    assert_eq!(get(address, "/healthz").await.0, 200);

    released.send_replace(true);
    eventually("the federation is ready", || async {
        (get(address, "/readyz").await.0 == 200).then_some(())
    })
    .await;
    let (_, page) = get(address, "/readyz?verbose").await;
    assert!(page.contains("[+] member: 2 engaged, 0 engaging, 0 failing"), "{page}");
    let hub = plane(&server, "hub");
    let ready = |cluster: &serde_json::Value| condition(cluster, "Ready")["status"] == "True";
    hub.has(&CLUSTER, "", "dfw", ready).await;
    let (code, metrics) = get(address, "/metrics").await;
    assert_eq!(code, 200);
    for series in [
        "polis_reconciles_total{controller=\"cluster\"}",
        "polis_reconcile_errors_total{controller=\"work\",class=\"transient\"} 0",
        "polis_reconcile_seconds_count{controller=\"binding\"}",
        "polis_watch_lag_seconds_count{kind=\"works.work.karmada.io/v1alpha1\"}",
        "polis_watch_restarts_total{kind=\"clusters.cluster.karmada.io/v1alpha1\",reason=\"expired\"} 0",
        "polis_planes{set=\"hub\",state=\"engaged\"} 1",
        "polis_planes{set=\"member\",state=\"engaged\"} 2",
        "polis_queue_depth{priority=\"fresh\"}",
        "polis_leader 1",
    ] {
        assert!(metrics.contains(series), "{series:?} is not in {metrics}");
    }
    running.abort();
}

#[tokio::test]
async fn an_unreachable_member_does_not_delay_readiness() {
    let server = mk_server().await;
    register_members(&plane(&server, "hub")).await;
    let mut engine = Engine::new();
    let hub = in_process(&server, "hub");
    // No endpoint: the member cannot be connected.
    let config = FederationConfig::new(hub);
    polis_federation::declare(&mut engine, Clock::system(), config);
    let handle = engine.handle();
    let running = tokio::spawn(engine.run(std::future::pending()));
    eventually("the federation is ready", || async { handle.is_ready().then_some(()) }).await;
    let unreachable = |cluster: &serde_json::Value| {
        condition(cluster, "Ready")["message"] == "cannot connect: spec.apiEndpoint is missing"
    };
    plane(&server, "hub").has(&CLUSTER, "", "dfw", unreachable).await;
    running.abort();
}

/// One of two replicas.
struct Replica {
    handle: Handle,
    stop: watch::Sender<bool>,
    running: JoinHandle<()>,
}

fn start_replica(server: &Server, name: &str) -> Replica {
    let hub = in_process(server, "hub");
    let mut engine = Engine::new();
    let election = LeaderElection::new(hub.clone(), "karmada-system", "polis-federation", name);
    engine.leader_election(election.lease(Duration::from_secs(2)));
    polis_federation::declare(&mut engine, Clock::system(), mk_config(server, hub));
    let (handle, stop) = (engine.handle(), watch::Sender::new(false));
    let mut stopped = stop.subscribe();
    let running = tokio::spawn(async move {
        let shutdown = async move { drop(stopped.wait_for(|stopped| *stopped).await) };
        engine.run(shutdown).await.expect("the engine runs");
    });
    Replica { handle, stop, running }
}

#[tokio::test]
async fn of_two_replicas_one_acts_and_the_other_takes_over() {
    let server = mk_server().await;
    let (hub, dfw) = (plane(&server, "hub"), plane(&server, "dfw"));
    for namespace in ["karmada-system", "shop"] {
        let object =
            serde_json::json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        hub.create(object).await;
    }
    register_members(&hub).await;
    hub.create(mk_policy("shop", "p", to(&["dfw"]))).await;
    let first = start_replica(&server, "first");
    eventually("the first leads", || async { first.handle.fencing_token() }).await;
    let second = start_replica(&server, "second");
    hub.create(mk_thing("shop", "a")).await;
    dfw.arrives(&THING, "shop", "a").await;
    eventually("the standby knows the members too", || async { second.handle.is_ready().then_some(()) })
        .await;
    assert_eq!(second.handle.fencing_token(), None);
    let reconciles = |replica: &Replica| {
        let metrics = replica.handle.metrics();
        let count = metrics
            .lines()
            .find_map(|line| line.strip_prefix("polis_reconciles_total{controller=\"work\"} "));
        count.and_then(|count| count.parse::<u64>().ok()).expect("the series")
    };
    assert!(reconciles(&first) > 0);
    assert_eq!(reconciles(&second), 0);

    first.stop.send_replace(true);
    first.running.await.expect("it stops");
    eventually("the second leads", || async { second.handle.fencing_token() }).await;
    hub.create(mk_thing("shop", "b")).await;
    dfw.arrives(&THING, "shop", "b").await;
    hub.delete(&THING, "shop", "a").await;
    dfw.loses(&THING, "shop", "a").await;
    second.running.abort();
}
