//! Fixture: a hub and two members in this process. The federation reaches them through a proxy, with a log of
//! its requests and crash points.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use polis_api::kube::Client;
use polis_apiserver::{PlaneSpec, Server};
use polis_engine::{Clock, Engine};
use polis_federation::FederationConfig;
use polis_testing::{FaultId, PlaneRequests, Proxy, RecordedRequest, RequestFault, RequestLog};
use serde_json::json;
use tokio::sync::{Notify, watch};

use crate::suite;
use crate::suite::fixture::{Api, CLUSTER, PLACE, Plane, THING, TestFederation, condition};

/// The members.
const MEMBERS: [&str; 2] = ["dfw", "ord"];

/// Stops and crashes the federation, and has its requests.
pub struct Control {
    proxy: Proxy,
    /// The crash point that is armed.
    crash_point: Mutex<Option<FaultId>>,
    crashed: Notify,
    /// Whether the federation stays stopped.
    stopped: watch::Sender<bool>,
}

impl Control {
    /// Takes the requests since the last call, without health probes.
    pub fn drain(&self) -> Vec<RecordedRequest> {
        let mut requests = self.log().take();
        requests.retain(|request| request.resource != "/readyz");
        requests
    }

    /// Counts writes from now on; the federation crashes after the write with this number.
    pub fn arm(self: &Arc<Self>, last: usize) {
        self.log().take();
        let fault = self.log().crash_after_writes(last, |_| true);
        *self.crash_point.lock() = Some(fault);
        let control = self.clone();
        tokio::spawn(async move {
            control.log().triggered(fault).await;
            control.crashed.notify_one();
        });
    }

    /// Stops the federation until [`Control::start`].
    pub fn stop(&self) {
        self.stopped.send_replace(true);
    }

    /// Starts the federation again.
    pub fn start(&self) {
        self.stopped.send_replace(false);
    }

    /// Number of writes since [`Control::arm`].
    pub fn writes(&self) -> usize {
        self.log().writes().len()
    }

    fn log(&self) -> &RequestLog {
        self.proxy.requests()
    }

    /// Runs the federation, and restarts it after each crash.
    async fn supervise(&self) {
        let mut stopped = self.stopped.subscribe();
        loop {
            let is_up = stopped.wait_for(|stopped| !stopped).await.map(drop);
            is_up.expect("the sender is held here");
            let mut config = FederationConfig::new(self.proxy.plane("hub"));
            config.probe_every = Duration::from_millis(50);
            config.failure_threshold = Duration::from_millis(150);
            for member in MEMBERS {
                config = config.member(member, self.proxy.plane(member));
            }
            let mut engine = Engine::new();
            polis_federation::declare(&mut engine, Clock::system(), config);
            tokio::select! {
                ended = engine.run(pending()) => ended.expect("the engine runs"),
                () = self.crashed.notified() => {}
                _ = stopped.wait_for(|stopped| *stopped) => {}
            }
            // Only requests of the process that has crashed are refused.
            let crash_point = self.crash_point.lock().take();
            crash_point.into_iter().for_each(|fault| self.log().remove_fault(fault));
        }
    }
}

/// Ends the federation with the fixture.
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
    pub requests: Arc<Control>,
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
    for member in MEMBERS {
        hub.create(json!({
            "apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster",
            "metadata": {"name": member, "labels": {"topology.datum.net/city-code": member}}, "spec": {"syncMode": "Push"},
        }))
        .await;
    }
}

pub async fn recorded() -> RecordedFederation {
    let server = mk_server().await;
    let control = Arc::new(Control {
        proxy: Proxy::new(server.clone()),
        crash_point: Mutex::default(),
        crashed: Notify::new(),
        stopped: watch::Sender::default(),
    });
    let running = control.clone();
    let supervisor = tokio::spawn(async move { running.supervise().await });
    let hub = plane(&server, "hub");
    register_members(&hub).await;
    for member in MEMBERS {
        let ready = |cluster: &serde_json::Value| {
            condition(cluster, "Ready")["status"] == "True"
                && cluster["status"]["apiEnablements"].is_array()
                && !cluster["spec"]["taints"].to_string().contains("not-ready")
        };
        hub.has(&CLUSTER, "", member, ready).await;
    }
    let faults: std::collections::BTreeMap<&str, PlaneRequests> =
        MEMBERS.map(|member| (member, control.proxy.requests_to(member))).into();
    let set_reachable = move |member: &str, reachable: bool| match reachable {
        true => faults[member].restore(),
        false => faults[member].fail(RequestFault::Refuse),
    };
    let members = MEMBERS.map(|member| plane(&server, member)).to_vec();
    let running = Running { supervisor, _server: server };
    RecordedFederation {
        federation: TestFederation::new(hub, members, Some(Box::new(set_reachable)), running),
        requests: control,
    }
}
