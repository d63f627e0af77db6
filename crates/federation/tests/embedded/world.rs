//! A hub and two members in this process, with a tap on every request of the federation.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use polis_api::kube::Client;
use polis_apiserver::{PlaneSpec, Server, Service};
use polis_federation::Federation;
use polis_federation::planes::Api;
use serde_json::json;
use tokio::sync::{Notify, watch};
use tower::ServiceExt;

use crate::suite;
use crate::suite::world::{CLUSTER, PLACE, Plane, THING, World, condition};

/// What the federation asked of which plane; and the place where it dies, if it should.
#[derive(Default)]
pub struct Tap {
    requests: Mutex<Vec<(String, String, String)>>,
    armed: AtomicBool,
    writes: AtomicUsize,
    /// The write after which the federation dies, counted from the moment that the tap is armed.
    last: AtomicUsize,
    died: Notify,
    /// Whether the federation is to stay down.
    down: watch::Sender<bool>,
}

impl Tap {
    /// Requests since the last look, as plane, method and path; probes of health left out.
    pub fn drain(&self) -> Vec<(String, String, String)> {
        let mut requests = std::mem::take(&mut *self.requests.lock());
        requests.retain(|(_, _, path)| path != "/readyz");
        requests
    }

    /// Counts writes from now on, and lets the federation die right after the one with this number.
    pub fn arm(&self, last: usize) {
        self.writes.store(0, Ordering::Release);
        self.last.store(last, Ordering::Release);
        self.armed.store(true, Ordering::Release);
    }

    /// Ends the federation, and keeps it down until [`Tap::start`].
    pub fn stop(&self) {
        self.down.send_replace(true);
    }

    /// Lets the federation run again.
    pub fn start(&self) {
        self.down.send_replace(false);
    }

    /// Writes since the tap was armed.
    pub fn writes(&self) -> usize {
        self.writes.load(Ordering::Acquire)
    }

    /// True if this write is the last one that is answered to nobody.
    fn dies(&self, method: &http::Method) -> bool {
        if !self.armed.load(Ordering::Acquire) || method == http::Method::GET {
            return false;
        }
        let number = self.writes.fetch_add(1, Ordering::AcqRel) + 1;
        number == self.last.load(Ordering::Acquire)
    }
}

/// A federation that is started anew whenever it dies; ends with its world.
struct Running {
    keeper: tokio::task::JoinHandle<()>,
    _server: Server,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

/// A world in which every request of the federation passes a tap.
pub struct Tapped {
    pub world: World,
    pub tap: Arc<Tap>,
}

pub async fn world() -> World {
    tapped().await.world
}

fn plane(server: &Server, name: &str) -> Plane {
    Plane {
        api: Api::new(name, Client::new(server.plane_service(name), "default")),
        name: name.to_owned(),
        quiet: Duration::from_millis(300),
    }
}

/// A client that can be cut off, and that dies when the tap says so: the write is done, its answer never comes.
fn client(plane: &str, service: Service, reachable: Arc<AtomicBool>, tap: Arc<Tap>) -> Client {
    let plane = plane.to_owned();
    let service = tower::service_fn(move |request: http::Request<polis_api::kube::client::Body>| {
        let (service, reachable, tap, plane) =
            (service.clone(), reachable.clone(), tap.clone(), plane.clone());
        async move {
            if !reachable.load(Ordering::Acquire) {
                return Err(std::io::Error::other("cut off"));
            }
            tap.requests.lock().push((plane, request.method().to_string(), request.uri().path().to_owned()));
            let dies = tap.dies(request.method());
            let answer = match service.oneshot(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            };
            if dies {
                tap.armed.store(false, Ordering::Release);
                tap.died.notify_one();
                pending::<()>().await;
            }
            Ok(answer)
        }
    });
    Client::new(service, "default")
}

pub async fn tapped() -> Tapped {
    let server = Server::builder().build().await.expect("a server");
    for name in ["hub", "dfw", "ord"] {
        server.create_plane(PlaneSpec::own(name)).await.expect("a plane");
        for kind in [&THING, &PLACE] {
            server.install_crd_in(name, &suite::placement::mk_definition(kind)).await.expect("a definition");
        }
    }
    for file in polis_api::crds::karmada() {
        let definition = serde_json::to_value(file.definition()).expect("JSON");
        server.install_crd_in("hub", &definition).await.expect("a definition");
    }
    let tap = Arc::new(Tap::default());
    let switches: BTreeMap<String, Arc<AtomicBool>> =
        ["dfw", "ord"].map(|member| (member.to_owned(), Arc::new(AtomicBool::new(true)))).into();
    let services: BTreeMap<String, Service> =
        ["hub", "dfw", "ord"].map(|name| (name.to_owned(), server.plane_service(name))).into();
    let keeper = tokio::spawn(keep_running(services, switches.clone(), tap.clone()));
    let hub = plane(&server, "hub");
    for member in ["dfw", "ord"] {
        hub.create(json!({
            "apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster",
            "metadata": {"name": member, "labels": {"topology.datum.net/city-code": member}}, "spec": {"syncMode": "Push"},
        }))
        .await;
    }
    for member in ["dfw", "ord"] {
        let ready = |cluster: &serde_json::Value| {
            condition(cluster, "Ready")["status"] == "True"
                && cluster["status"]["apiEnablements"].is_array()
                && !cluster["spec"]["taints"].to_string().contains("not-ready")
        };
        hub.has(&CLUSTER, "", member, ready).await;
    }
    let cut = move |member: &str, reachable: bool| switches[member].store(reachable, Ordering::Release);
    let members = vec![plane(&server, "dfw"), plane(&server, "ord")];
    let running = Running { keeper, _server: server };
    Tapped { world: World::new(hub, members, Some(Box::new(cut)), running), tap }
}

async fn keep_running(
    services: BTreeMap<String, Service>,
    switches: BTreeMap<String, Arc<AtomicBool>>,
    tap: Arc<Tap>,
) {
    let mut down = tap.down.subscribe();
    loop {
        let is_up = down.wait_for(|down| !down).await.map(drop);
        is_up.expect("the tap is held here");
        let always = Arc::new(AtomicBool::new(true));
        let mut federation = Federation::builder(client("hub", services["hub"].clone(), always, tap.clone()))
            .probe_every(Duration::from_millis(50))
            .failure_threshold(Duration::from_millis(150));
        for (member, reachable) in &switches {
            federation = federation
                .member(member, client(member, services[member].clone(), reachable.clone(), tap.clone()));
        }
        tokio::select! {
            () = federation.build().run(pending()) => {}
            () = tap.died.notified() => {}
            _ = down.wait_for(|down| *down) => {}
        }
    }
}
