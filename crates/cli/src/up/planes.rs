//! The planes of one `polis up`: made, given their kinds, and reached.
//!
//! The root plane is the platform's: its Projects are the projects of this installation. Every project has a plane
//! behind Milo's path, the hub is `/planes/hub`, the cell of a city `/planes/cell-<city>`. A real hub or a real cell
//! stands in for an embedded one without anybody noticing.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use polis_api::crds::{self, CrdFile};
use polis_api::kube::Client;
use polis_api::kube::client::Body;
use polis_apiserver::{Identity, MASTERS, PlaneSpec, Server, Service};
use polis_engine::Plane;
use tokio::task::JoinSet;
use tower::ServiceExt as _;

use super::flags::Flags;

/// Name of the hub among the planes.
pub const HUB: &str = "hub";
/// What the names of cells begin with among the planes.
const CELL: &str = "cell-";
/// The kinds of every project.
pub const PROJECT_KINDS: &str = "projects";

/// Every plane, and how it is reached.
pub struct Planes {
    /// The API server of the embedded ones.
    pub server: Server,
    /// The hub.
    pub hub: Reached,
    /// The cells, by city.
    pub cells: Vec<(String, Reached)>,
    /// All planes are in one store, so that whoever works on them may run ahead of the disk: a crash takes what he saw
    /// together with what he made of it. With a plane elsewhere he waits, or he could leave something there whose
    /// origin is lost here.
    ahead: bool,
}

/// How a plane is reached.
#[derive(Clone)]
pub enum Reached {
    /// In this process, under this name.
    Here(String),
    /// Over the network.
    There(Plane),
}

/// The kinds of each sort of plane. Deriving them takes a good part of a start, so it is done while the store opens.
pub struct Kinds {
    hub: Vec<CrdFile>,
    cell: Vec<CrdFile>,
    project: Vec<CrdFile>,
}

impl Kinds {
    /// Derives them all.
    pub fn derive() -> Self {
        Self { hub: crds::of_hub(), cell: crds::of_cell(), project: crds::of_project() }
    }
}

impl Planes {
    /// Makes the embedded planes that are missing, with their kinds, and connects to the real ones.
    ///
    /// `known` are the cities that have an embedded plane already.
    pub async fn make(server: Server, flags: &Flags, known: &[String], kinds: Kinds) -> Result<Self> {
        let cities = flags.all_cities(known)?;
        let kinds = Arc::new(kinds);
        let mut making = JoinSet::new();
        let mut make = |plane: &str, of: fn(&Kinds) -> &[CrdFile]| {
            let (server, kinds, plane) = (server.clone(), kinds.clone(), plane.to_owned());
            making.spawn(async move { here(&server, &plane, of(&kinds)).await });
        };
        let hub = match &flags.federation_kubeconfig {
            Some(path) => real("hub", path).await?,
            None => {
                make(HUB, |kinds| &kinds.hub);
                Reached::Here(HUB.to_owned())
            }
        };
        let mut cells = Vec::new();
        for city in cities {
            let reached = match flags.cells.iter().find(|(real, _)| *real == city) {
                Some((_, path)) => real(&city, path).await?,
                None if flags.federation_kubeconfig.is_some() => continue, // out of a real hub's reach
                None => {
                    make(&cell_plane(&city), |kinds| &kinds.cell);
                    Reached::Here(cell_plane(&city))
                }
            };
            cells.push((city, reached));
        }
        make("", |kinds| &kinds.project);
        making.spawn({
            let server = server.clone();
            async move {
                for CrdFile { crd, .. } in &kinds.project {
                    server.install_crd(PROJECT_KINDS, crd).await?;
                }
                Ok(())
            }
        });
        while let Some(made) = making.join_next().await {
            made.context("a plane could not be made")??;
        }
        let ahead = flags.federation_kubeconfig.is_none() && flags.cells.is_empty();
        Ok(Self { server, hub, cells, ahead })
    }

    /// An embedded service as the parts of this process use it.
    fn within(&self, service: Service) -> Service {
        if self.ahead { service.ahead() } else { service }
    }

    /// A plane as controllers of that role reach it.
    pub fn plane(&self, reached: &Reached, role: &str) -> Plane {
        match reached {
            Reached::Here(name) => {
                let service = self.within(self.server.plane_service(name));
                Plane::in_process(name.as_str(), named(service, role))
            }
            Reached::There(plane) => plane.clone(),
        }
    }

    /// The plane of the platform, as controllers of that role reach it.
    pub fn root(&self, role: &str) -> Plane {
        Plane::in_process("platform", named(self.within(self.server.service()), role))
    }

    /// A client of a plane for that role.
    pub fn client(&self, reached: &Reached, role: &str) -> Client {
        match reached {
            Reached::Here(name) => {
                let service = self.within(self.server.plane_service(name));
                Client::new(named(service, role), "default")
            }
            Reached::There(plane) => plane.kube_client(),
        }
    }

    /// A client of the platform for that role.
    pub fn root_client(&self, role: &str) -> Client {
        Client::new(named(self.within(self.server.service()), role), "default")
    }
}

/// The plane of a city's cell.
pub fn cell_plane(city: &str) -> String {
    format!("{CELL}{city}")
}

/// The cities that the store has a cell for.
pub fn known_cities(server: &Server) -> Vec<String> {
    server.planes().iter().filter_map(|plane| plane.strip_prefix(CELL).map(str::to_owned)).collect()
}

/// Makes a plane if it is not there, and gives it its kinds.
async fn here(server: &Server, plane: &str, kinds: &[CrdFile]) -> Result<()> {
    if !server.has_plane(plane) {
        server.create_plane(PlaneSpec::own(plane)).await?;
    }
    for CrdFile { crd, .. } in kinds {
        server.install_crd_in(plane, crd).await?;
    }
    Ok(())
}

/// A plane of somebody else's. It has to serve our kinds already: they are installed by whoever runs it.
async fn real(name: &str, kubeconfig: &Path) -> Result<Reached> {
    let plane = Plane::from_kubeconfig(name, kubeconfig, None).await?;
    let asked = plane.kube_client().list_api_group_resources("compute.datumapis.com/v1alpha").await;
    let served = asked.with_context(|| format!("{name} ({}) cannot be used", kubeconfig.display()))?;
    if !served.resources.iter().any(|resource| resource.kind == "WorkloadDeployment") {
        bail!("{name} ({}) does not serve our kinds: apply deploy/base/crds to it", kubeconfig.display());
    }
    Ok(Reached::There(plane))
}

/// The service, as used by a role of this process: everything may be done, and the record says who did it.
fn named(
    service: Service,
    role: &str,
) -> impl tower::Service<
    http::Request<Body>,
    Response = http::Response<polis_apiserver::Body>,
    Error = std::convert::Infallible,
    Future: Send,
> + Clone
+ Send
+ Sync
+ 'static {
    let identity = Identity::new(format!("polis:{role}"), [MASTERS]);
    service.map_request(move |mut request: http::Request<Body>| {
        request.extensions_mut().insert(identity.clone());
        request
    })
}
