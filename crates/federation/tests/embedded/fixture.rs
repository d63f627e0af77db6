//! Fixture: a hub and two members in this process, with a log of all requests of the federation and crash
//! points.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use polis_api::kube::Client;
use polis_apiserver::{PlaneSpec, Server, Service};
use polis_engine::{Clock, Engine, Plane as EnginePlane};
use polis_federation::FederationConfig;
use serde_json::json;
use tokio::sync::{Notify, watch};
use tower::ServiceExt;

use crate::suite;
use crate::suite::fixture::{Api, CLUSTER, PLACE, Plane, THING, TestFederation, condition};

/// A log of all requests of the federation, with a crash point.
#[derive(Default)]
pub struct RequestLog {
    requests: Mutex<Vec<(String, String, String)>>,
    armed: AtomicBool,
    writes: AtomicUsize,
    /// The write after which the federation crashes, counted from [`RequestLog::arm`].
    last: AtomicUsize,
    crashed: Notify,
    /// Whether the federation stays stopped.
    stopped: watch::Sender<bool>,
}

impl RequestLog {
    /// Takes the requests since the last call, as (plane, method, path), without health probes.
    pub fn drain(&self) -> Vec<(String, String, String)> {
        let mut requests = std::mem::take(&mut *self.requests.lock());
        requests.retain(|(_, _, path)| path != "/readyz");
        requests
    }

    /// Counts writes from now on; the federation crashes after the write with this number.
    pub fn arm(&self, last: usize) {
        self.writes.store(0, Ordering::Release);
        self.last.store(last, Ordering::Release);
        self.armed.store(true, Ordering::Release);
    }

    /// Stops the federation until [`RequestLog::start`].
    pub fn stop(&self) {
        self.stopped.send_replace(true);
    }

    /// Starts the federation again.
    pub fn start(&self) {
        self.stopped.send_replace(false);
    }

    /// Number of writes since [`RequestLog::arm`].
    pub fn writes(&self) -> usize {
        self.writes.load(Ordering::Acquire)
    }

    /// Whether the federation crashes after this write.
    fn crashes(&self, method: &http::Method) -> bool {
        if !self.armed.load(Ordering::Acquire) || method == http::Method::GET {
            return false;
        }
        let number = self.writes.fetch_add(1, Ordering::AcqRel) + 1;
        number == self.last.load(Ordering::Acquire)
    }
}

/// Restarts the federation after each crash; ends with the fixture.
struct Running {
    supervisor: tokio::task::JoinHandle<()>,
    _server: Server,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.supervisor.abort();
    }
}

/// A federation with a log of its requests.
pub struct RecordedFederation {
    pub federation: TestFederation,
    pub requests: Arc<RequestLog>,
}

pub async fn federation() -> TestFederation {
    recorded().await.federation
}

/// A client of a plane.
pub fn plane(server: &Server, name: &str) -> Plane {
    Plane {
        api: Api::new(name, Client::new(server.plane_service(name), "default")),
        name: name.to_owned(),
        observe_for: Duration::from_millis(300),
    }
}

/// A plane that can be disconnected, and that crashes the federation after a write: the write is done, its
/// response is never returned.
fn client(
    plane: &str,
    service: Service,
    reachable: Arc<AtomicBool>,
    requests: Arc<RequestLog>,
) -> EnginePlane {
    let name = plane.to_owned();
    let plane = name.clone();
    let service = tower::service_fn(move |request: http::Request<polis_api::kube::client::Body>| {
        let (service, reachable, requests, plane) =
            (service.clone(), reachable.clone(), requests.clone(), plane.clone());
        async move {
            if !reachable.load(Ordering::Acquire) {
                return Err(std::io::Error::other("disconnected"));
            }
            requests.requests.lock().push((
                plane,
                request.method().to_string(),
                request.uri().path().to_owned(),
            ));
            let crashes = requests.crashes(request.method());
            let response = match service.oneshot(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            };
            if crashes {
                requests.armed.store(false, Ordering::Release);
                requests.crashed.notify_one();
                pending::<()>().await;
            }
            Ok(response)
        }
    });
    EnginePlane::in_process(name, service)
}

/// A server with the planes of a federation, which serve their kinds.
pub async fn mk_server() -> Server {
    let server = Server::builder().build().await.expect("a server");
    for name in ["hub", "dfw", "ord"] {
        server.create_plane(PlaneSpec::standalone(name)).await.expect("a plane");
        for kind in [&THING, &PLACE] {
            server.install_crd_in(name, &suite::placement::mk_crd(kind)).await.expect("a definition");
        }
    }
    for file in polis_api::crds::karmada() {
        let definition = serde_json::to_value(file.definition()).expect("JSON");
        server.install_crd_in("hub", &definition).await.expect("a definition");
    }
    server
}

/// Creates the Clusters of both members.
pub async fn register_members(hub: &Plane) {
    for member in ["dfw", "ord"] {
        hub.create(json!({
            "apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster",
            "metadata": {"name": member, "labels": {"topology.datum.net/city-code": member}}, "spec": {"syncMode": "Push"},
        }))
        .await;
    }
}

pub async fn recorded() -> RecordedFederation {
    let server = mk_server().await;
    let requests = Arc::new(RequestLog::default());
    let switches: BTreeMap<String, Arc<AtomicBool>> =
        ["dfw", "ord"].map(|member| (member.to_owned(), Arc::new(AtomicBool::new(true)))).into();
    let services: BTreeMap<String, Service> =
        ["hub", "dfw", "ord"].map(|name| (name.to_owned(), server.plane_service(name))).into();
    let supervisor = tokio::spawn(supervise(services, switches.clone(), requests.clone()));
    let hub = plane(&server, "hub");
    register_members(&hub).await;
    for member in ["dfw", "ord"] {
        let ready = |cluster: &serde_json::Value| {
            condition(cluster, "Ready")["status"] == "True"
                && cluster["status"]["apiEnablements"].is_array()
                && !cluster["spec"]["taints"].to_string().contains("not-ready")
        };
        hub.has(&CLUSTER, "", member, ready).await;
    }
    let set_reachable =
        move |member: &str, reachable: bool| switches[member].store(reachable, Ordering::Release);
    let members = vec![plane(&server, "dfw"), plane(&server, "ord")];
    let running = Running { supervisor, _server: server };
    RecordedFederation {
        federation: TestFederation::new(hub, members, Some(Box::new(set_reachable)), running),
        requests,
    }
}

async fn supervise(
    services: BTreeMap<String, Service>,
    switches: BTreeMap<String, Arc<AtomicBool>>,
    requests: Arc<RequestLog>,
) {
    let mut stopped = requests.stopped.subscribe();
    loop {
        let is_up = stopped.wait_for(|stopped| !stopped).await.map(drop);
        is_up.expect("the request log is held here");
        let always = Arc::new(AtomicBool::new(true));
        let hub = client("hub", services["hub"].clone(), always, requests.clone());
        let mut config = FederationConfig::new(hub);
        config.probe_every = Duration::from_millis(50);
        config.failure_threshold = Duration::from_millis(150);
        for (member, reachable) in &switches {
            let plane = client(member, services[member].clone(), reachable.clone(), requests.clone());
            config = config.member(member, plane);
        }
        let mut engine = Engine::new();
        polis_federation::declare(&mut engine, Clock::system(), config);
        tokio::select! {
            ended = engine.run(pending()) => ended.expect("the engine runs"),
            () = requests.crashed.notified() => {}
            _ = stopped.wait_for(|stopped| *stopped) => {}
        }
    }
}
