//! Embedded planes: the API server and the federation of this repository, in the process of the suite.
//!
//! A scenario can cut the connection to a plane, with the effect of a killed API server: requests in flight
//! fail, and watches end in the middle of an event. The data still exists when the connection is restored.
//!
//! Some of the planes may be real API servers of the test bed, as in a mixed installation.

use std::{
    collections::BTreeMap,
    future::pending,
    sync::{Arc, Mutex},
    time::Duration,
};

use polis_api::{
    crds::{self, CrdFile},
    kube::Client,
};
use polis_apiserver::{PlaneSpec, Server, UserInfo};
use polis_engine::{Clock, Engine, Plane};
use polis_federation::FederationConfig;
use polis_testbed::{Options, TestCluster, hub, manifest, plane::HUB};
use polis_testing::{FaultId, Proxy, RequestFault, builders::mk_member};
use tokio::task::JoinHandle;

use crate::{
    Error,
    planes::{ClientIdentity, PlaneComponent, PlaneFuture, PlaneLayout, TestPlanes},
    real::{CITIES, PLATFORM, PROJECTS, client_of},
};

/// The only component of the federation.
const FEDERATION: &str = "federation";
/// As in the test bed: an outage is detected within seconds.
const PROBE_EVERY: Duration = Duration::from_secs(1);
const FAILURE_THRESHOLD: Duration = Duration::from_secs(2);

/// Planes of one embedded API server.
pub struct EmbeddedPlanes {
    layout: PlaneLayout,
    /// The connections to the embedded planes.
    proxy: Proxy,
    /// The planes that are disconnected.
    outages: Mutex<BTreeMap<String, FaultId>>,
    real_clients: BTreeMap<String, Client>,
    cluster: Option<TestCluster>,
    federation: Mutex<Option<JoinHandle<()>>>,
}

impl EmbeddedPlanes {
    /// Creates the planes with their CRDs, starts the federation, and registers the cells as members.
    pub async fn up() -> Result<Arc<dyn TestPlanes>, Error> {
        Self::with_real_planes(&[]).await
    }

    /// As [`EmbeddedPlanes::up`], with these planes on a kube-apiserver each.
    pub async fn with_real_planes(real: &[&str]) -> Result<Arc<dyn TestPlanes>, Error> {
        let unavailable = |err: polis_apiserver::Error| Error::Unavailable(err.to_string());
        let server = Server::builder().build().await.map_err(unavailable)?;
        let layout = PlaneLayout {
            platform: PLATFORM.to_owned(),
            projects: PROJECTS.map(str::to_owned).to_vec(),
            hub: HUB.to_owned(),
            cells: CITIES.map(str::to_owned).to_vec(),
        };
        let (cluster, real_clients) = start_real_planes(&layout, real).await?;
        for plane in layout.all().into_iter().filter(|plane| !real.contains(plane)) {
            server.create_plane(PlaneSpec::standalone(plane)).await.map_err(unavailable)?;
            for CrdFile { crd, .. } in kinds_of(&layout, plane) {
                server.install_crd_in(plane, &crd).await.map_err(unavailable)?;
            }
        }
        let planes = EmbeddedPlanes {
            proxy: Proxy::new(server).unrecorded(),
            outages: Mutex::default(),
            layout,
            real_clients,
            cluster,
            federation: Mutex::default(),
        };
        planes.set_up_federation().await?;
        Ok(Arc::new(planes))
    }

    async fn set_up_federation(&self) -> Result<(), Error> {
        let client = self.client_for(HUB, UserInfo::admin());
        hub::create_namespaces(&client).await?;
        hub::install_interpreter(&client).await?;
        self.start_federation();
        for city in &self.layout.cells {
            let member = serde_json::to_value(mk_member(city, Some(city))).expect("plain data");
            manifest::apply(&client, HUB, &member).await?;
        }
        Ok(())
    }

    fn start_federation(&self) {
        let plane = |name: &str| Plane::from_kube_client(name, self.client_for(name, UserInfo::admin()));
        let mut config = FederationConfig::new(plane(HUB));
        config.probe_every = PROBE_EVERY;
        config.failure_threshold = FAILURE_THRESHOLD;
        for city in &self.layout.cells {
            config = config.member(city, plane(city));
        }
        let mut engine = Engine::new();
        polis_federation::declare(&mut engine, Clock::system(), config);
        let running = tokio::spawn(async move { engine.run(pending()).await.expect("the engine runs") });
        *self.federation.lock().expect("the lock is not poisoned") = Some(running);
    }

    /// A client for a plane through its connection.
    fn client_for(&self, plane: &str, user: UserInfo) -> Client {
        if let Some(client) = self.real_clients.get(plane) {
            return client.clone();
        }
        self.proxy.client(plane, Some(user))
    }

    /// The process of a component, if it has one.
    fn process(&self, component: &PlaneComponent) -> Result<Option<(&TestCluster, String)>, Error> {
        match (component, &self.cluster) {
            (PlaneComponent::ApiServer(plane), Some(cluster)) if self.real_clients.contains_key(plane) => {
                Ok(Some((cluster, cluster.plane(plane)?.apiserver())))
            }
            _ => Ok(None),
        }
    }

    fn disconnect(&self, component: &PlaneComponent) {
        match component {
            PlaneComponent::ApiServer(plane) => {
                let mut outages = self.outages.lock().expect("the lock is not poisoned");
                outages.entry(plane.clone()).or_insert_with(|| {
                    let plane = plane.clone();
                    self.proxy.requests().inject(RequestFault::Refuse, move |request| request.plane == plane)
                });
            }
            PlaneComponent::Federation(_) => {
                if let Some(running) = self.federation.lock().expect("the lock is not poisoned").take() {
                    running.abort();
                }
            }
        }
    }

    fn reconnect(&self, component: &PlaneComponent) {
        match component {
            PlaneComponent::ApiServer(plane) => {
                let outage = self.outages.lock().expect("the lock is not poisoned").remove(plane);
                outage.into_iter().for_each(|fault| self.proxy.requests().remove_fault(fault));
            }
            PlaneComponent::Federation(_) => {
                let stopped = self.federation.lock().expect("the lock is not poisoned").is_none();
                if stopped {
                    self.start_federation();
                }
            }
        }
    }
}

impl Drop for EmbeddedPlanes {
    fn drop(&mut self) {
        self.disconnect(&PlaneComponent::Federation(FEDERATION.to_owned()));
    }
}

/// Starts the real planes with their CRDs; returns an admin client for each.
async fn start_real_planes(
    layout: &PlaneLayout,
    real: &[&str],
) -> Result<(Option<TestCluster>, BTreeMap<String, Client>), Error> {
    let mut real_clients = BTreeMap::new();
    if real.is_empty() {
        return Ok((None, real_clients));
    }
    let planes = real.iter().map(|plane| (*plane).to_owned()).collect();
    let options = Options { projects: planes, controllers: true, ..Options::single_plane() };
    let cluster = Box::pin(TestCluster::up(options)).await?;
    for plane in real {
        let client = cluster.client(plane).await?;
        let kinds: Vec<_> = kinds_of(layout, plane).into_iter().map(|file| file.crd).collect();
        manifest::apply_crds(&client, plane, &kinds).await?;
        real_clients.insert((*plane).to_owned(), client);
    }
    Ok((Some(cluster), real_clients))
}

fn kinds_of(layout: &PlaneLayout, plane: &str) -> Vec<CrdFile> {
    match plane {
        plane if plane == layout.hub => crds::of_hub(),
        plane if layout.cells.iter().any(|cell| cell == plane) => crds::of_cell(),
        _ => crds::of_project(),
    }
}

impl TestPlanes for EmbeddedPlanes {
    fn layout(&self) -> &PlaneLayout {
        &self.layout
    }

    /// A change reaches all embedded planes within milliseconds, or a second on a busy machine; a real plane
    /// is slower.
    fn quiet_period(&self) -> Duration {
        Duration::from_secs(if self.cluster.is_none() { 2 } else { 4 })
    }

    fn admin(&self, plane: &str) -> PlaneFuture<'_, Client> {
        let client = self.client_for(plane, UserInfo::admin());
        Box::pin(async move { Ok(client) })
    }

    fn client(&self, plane: &str, identity: ClientIdentity) -> PlaneFuture<'_, Client> {
        if let Some(cluster) = self.cluster.as_ref().filter(|_| self.real_clients.contains_key(plane)) {
            return client_of(cluster, plane.to_owned(), identity);
        }
        let client = self.client_for(plane, UserInfo::new(identity.user, identity.groups));
        Box::pin(async move { Ok(client) })
    }

    fn federation_components(&self) -> Vec<String> {
        vec![FEDERATION.to_owned()]
    }

    fn kill(&self, component: PlaneComponent) -> PlaneFuture<'_, ()> {
        Box::pin(async move {
            match self.process(&component)? {
                Some((cluster, process)) => Ok(cluster.kill(&process)?),
                None => {
                    self.disconnect(&component);
                    Ok(())
                }
            }
        })
    }

    fn restore(&self, component: PlaneComponent) -> PlaneFuture<'_, ()> {
        Box::pin(async move {
            match self.process(&component)? {
                Some((cluster, process)) => Ok(cluster.start(&process).await?),
                None => {
                    self.reconnect(&component);
                    Ok(())
                }
            }
        })
    }
}
