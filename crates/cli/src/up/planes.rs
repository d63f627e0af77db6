//! The planes of `polis up`: creates them, installs their CRDs, and builds their clients.
//!
//! The root plane is the platform's; its Project objects are the projects of this installation. Every project
//! has a plane at Milo's path, the hub is `/planes/hub`, the cell of a city is `/planes/cell-<city>`. An
//! external hub or cell replaces an embedded one; the controllers are the same.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use polis_api::crds::{self, CrdFile};
use polis_api::kube::Client;
use polis_api::kube::client::Body;
use polis_apiserver::{CONTROLLERS, MASTERS, PlaneSpec, Server, Service, UserInfo};
use polis_engine::Plane;
use tokio::task::JoinSet;
use tower::ServiceExt as _;

use super::flags::Flags;

/// Name of the hub's plane.
pub const HUB: &str = "hub";
/// Prefix of the names of the cells' planes.
const CELL: &str = "cell-";
/// Catalogue of the CRDs of all projects.
pub const PROJECT_KINDS: &str = "projects";

/// All planes of the process.
pub struct Planes {
    /// The API server of the embedded planes.
    pub server: Server,
    /// The hub.
    pub hub: PlaneBackend,
    /// The cells, by city.
    pub cells: Vec<(String, PlaneBackend)>,
    /// Whether controllers read writes before they are fsynced. True if all planes are in one store: a crash
    /// then loses a write and everything that was derived from it. With an external plane, an object there
    /// could survive a crash that loses its source here.
    read_uncommitted: bool,
}

/// Where a plane is served.
#[derive(Clone)]
pub enum PlaneBackend {
    /// By the embedded API server, with this name.
    Embedded(String),
    /// By an external API server.
    External(Plane),
}

/// The CRDs of each type of plane. Generating them takes a large part of the start time, so it runs while the
/// store opens.
pub struct PlaneCrds {
    hub: Vec<CrdFile>,
    cell: Vec<CrdFile>,
    project: Vec<CrdFile>,
}

impl PlaneCrds {
    /// Generates all CRDs.
    pub fn generate() -> Self {
        Self { hub: crds::of_hub(), cell: crds::of_cell(), project: crds::of_project() }
    }
}

impl Planes {
    /// Creates the missing embedded planes, installs the CRDs, and connects to the external planes.
    ///
    /// `known` are the cities that already have an embedded plane.
    pub async fn create(server: Server, flags: &Flags, known: &[String], kinds: PlaneCrds) -> Result<Self> {
        let cities = flags.all_cities(known)?;
        let kinds = Arc::new(kinds);
        let mut tasks = JoinSet::new();
        let mut create = |plane: &str, of: fn(&PlaneCrds) -> &[CrdFile]| {
            let (server, kinds, plane) = (server.clone(), kinds.clone(), plane.to_owned());
            tasks.spawn(async move { create_embedded(&server, &plane, of(&kinds)).await });
        };
        let hub = match &flags.federation_kubeconfig {
            Some(path) => connect_external("hub", path).await?,
            None => {
                create(HUB, |kinds| &kinds.hub);
                PlaneBackend::Embedded(HUB.to_owned())
            }
        };
        let mut cells = Vec::new();
        for city in cities {
            let backend = match flags.cells.iter().find(|(external, _)| *external == city) {
                Some((_, path)) => connect_external(&city, path).await?,
                None if flags.federation_kubeconfig.is_some() => continue, // an external hub cannot reach it
                None => {
                    create(&cell_plane(&city), |kinds| &kinds.cell);
                    PlaneBackend::Embedded(cell_plane(&city))
                }
            };
            cells.push((city, backend));
        }
        create("", |kinds| &kinds.project);
        tasks.spawn({
            let server = server.clone();
            async move {
                for CrdFile { crd, .. } in &kinds.project {
                    server.install_crd(PROJECT_KINDS, crd).await?;
                }
                Ok(())
            }
        });
        while let Some(made) = tasks.join_next().await {
            made.context("failed to create a plane")??;
        }
        let read_uncommitted = flags.federation_kubeconfig.is_none() && flags.cells.is_empty();
        Ok(Self { server, hub, cells, read_uncommitted })
    }

    /// The service for the controllers of this process.
    fn internal(&self, service: Service) -> Service {
        if self.read_uncommitted { service.read_uncommitted() } else { service }
    }

    /// A plane for the controllers of a role.
    pub fn plane(&self, backend: &PlaneBackend, role: &str) -> Plane {
        match backend {
            PlaneBackend::Embedded(name) => {
                let service = self.internal(self.server.plane_service(name));
                Plane::in_process(name.as_str(), as_role(service, role))
            }
            PlaneBackend::External(plane) => plane.clone(),
        }
    }

    /// The platform plane for the controllers of a role.
    pub fn root(&self, role: &str) -> Plane {
        Plane::in_process("platform", as_role(self.internal(self.server.service()), role))
    }

    /// A client of a plane for a role.
    pub fn client(&self, backend: &PlaneBackend, role: &str) -> Client {
        match backend {
            PlaneBackend::Embedded(name) => {
                let service = self.internal(self.server.plane_service(name));
                Client::new(as_role(service, role), "default")
            }
            PlaneBackend::External(plane) => plane.kube_client(),
        }
    }

    /// A client of the platform plane for a role.
    pub fn root_client(&self, role: &str) -> Client {
        Client::new(as_role(self.internal(self.server.service()), role), "default")
    }
}

/// Name of the plane of a city's cell.
pub fn cell_plane(city: &str) -> String {
    format!("{CELL}{city}")
}

/// The cities that have a plane in the store.
pub fn known_cities(server: &Server) -> Vec<String> {
    server.planes().iter().filter_map(|plane| plane.strip_prefix(CELL).map(str::to_owned)).collect()
}

/// Creates a plane if it does not exist, and installs its CRDs.
async fn create_embedded(server: &Server, plane: &str, kinds: &[CrdFile]) -> Result<()> {
    if !server.has_plane(plane) {
        server.create_plane(PlaneSpec::standalone(plane)).await?;
    }
    for CrdFile { crd, .. } in kinds {
        server.install_crd_in(plane, crd).await?;
    }
    Ok(())
}

/// Connects to an external plane. Its operator must have installed Polis' CRDs.
async fn connect_external(name: &str, kubeconfig: &Path) -> Result<PlaneBackend> {
    let plane = Plane::from_kubeconfig(name, kubeconfig, None).await?;
    let asked = plane.kube_client().list_api_group_resources("compute.datumapis.com/v1alpha").await;
    let served = asked.with_context(|| format!("failed to use {name} ({})", kubeconfig.display()))?;
    if !served.resources.iter().any(|resource| resource.kind == "WorkloadDeployment") {
        bail!(
            "{name} ({}) does not serve the kinds of Polis: apply deploy/base/crds to it",
            kubeconfig.display()
        );
    }
    Ok(PlaneBackend::External(plane))
}

/// Adds the user `polis:<role>` to every request, for authorisation and audit: an administrator, in the group
/// of the controllers whose routine writes are not recorded.
fn as_role(
    service: Service,
    role: &str,
) -> impl tower::Service<
    http::Request<Body>,
    Response = http::Response<polis_apiserver::ResponseBody>,
    Error = std::convert::Infallible,
    Future: Send,
> + Clone
+ Send
+ Sync
+ 'static {
    let identity = UserInfo::new(format!("polis:{role}"), [MASTERS, CONTROLLERS]);
    service.map_request(move |mut request: http::Request<Body>| {
        request.extensions_mut().insert(identity.clone());
        request
    })
}
