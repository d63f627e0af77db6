//! The planes of a manager, from its flags and configuration.

use anyhow::{Context, Result};
use polis_cell::{CellConfig, NetworkMode, QuotaConfig, ResourceRefKind};
use polis_core::cities::TenancyMode;
use polis_core::pods::PodOptions;
use polis_engine::{FixedPlanes, MiloProjects, Plane, PlaneProvider, PlaneRegistry, PlaneSet};
use polis_runtime::PodRuntimeConfig;

use super::config::{Config, Mode, QuotaResourceRef, RuntimeKind};
use super::flags::Flags;

/// Name of the only plane in mode `single`. It is a label value on the hub.
const SINGLE: &str = "single";

/// All planes of this process.
pub(crate) struct Planes {
    /// The cluster of the process, with its Leases, and in mode `single` its workloads.
    pub(crate) own: Plane,
    /// The hub.
    pub(crate) hub: Plane,
    mode: Mode,
    /// Whether each project is served by its own Service.
    by_service: bool,
    /// The plane with the Project objects.
    discovery: Plane,
    /// The server of the project planes.
    host: Plane,
    /// The server for quota claims; `None` if quota is disabled.
    quota: Option<Plane>,
    /// The cluster that runs the Pods of a cell, if it is not the cell itself.
    cluster: Option<Plane>,
}

impl Planes {
    /// Reads the kubeconfigs. It makes no request: an unreachable plane is retried and reported in `/readyz`.
    pub(crate) async fn connect(flags: &Flags, config: &Config) -> Result<Self> {
        let own = Plane::inferred(SINGLE).await.context("failed to find the cluster of this process")?;
        let kubeconfig =
            flags.federation_kubeconfig.as_deref().context("--federation-kubeconfig is not set")?;
        let hub = Plane::from_kubeconfig("hub", kubeconfig, flags.federation_context.as_deref()).await?;
        let discovery = match &config.discovery.discovery_kubeconfig_path {
            Some(path) => Plane::from_kubeconfig("discovery", path, None).await?,
            None => own.clone(),
        };
        let host = match &config.discovery.project_kubeconfig_path {
            Some(path) => Plane::from_kubeconfig("projects", path, None).await?,
            None => own.clone(),
        };
        let quota = match config.discovery.quota_kubeconfig() {
            // A configured path that does not work is an error: quota is disabled only if it is not
            // configured.
            Some(path) => Some(Plane::from_kubeconfig("quota", path, None).await?),
            None => None,
        };
        let cluster = match config.pods_kubeconfig(flags) {
            Some(path) => Some(Plane::from_kubeconfig("cluster", path, None).await?),
            None => None,
        };
        Ok(Self {
            own,
            hub,
            mode: config.discovery.mode,
            by_service: config.discovery.internal_service_discovery,
            discovery,
            host,
            quota,
            cluster,
        })
    }

    /// The cluster that runs the Pods of a cell; `None` if it is the cell itself.
    pub(crate) fn cluster(&self) -> Option<&Plane> {
        self.cluster.as_ref()
    }

    /// The parameters of the pod runtime; `None` if this cell has another provider.
    pub(crate) fn pods(&self, config: &Config) -> Option<PodRuntimeConfig> {
        let options = PodOptions {
            runtime_class: config.pods.runtime_class_name.clone(),
            node_selector: config.pods.node_selector.clone(),
        };
        let (cell, cluster) = (self.own.clone(), self.cluster.clone());
        (config.runtime == RuntimeKind::Pods).then_some(PodRuntimeConfig { cell, cluster, options })
    }

    /// The plane with the Project objects.
    pub(crate) fn discovery(&self) -> &Plane {
        &self.discovery
    }

    /// The server of the project planes.
    pub(crate) fn host(&self) -> &Plane {
        &self.host
    }

    /// The server for quota claims; `None` if quota is disabled.
    pub(crate) fn quota(&self) -> Option<&Plane> {
        self.quota.as_ref()
    }

    /// The parameters of the cell role.
    pub(crate) fn cell(&self, config: &Config) -> CellConfig {
        let name = config.discovery.cluster_name.clone();
        let resource_ref = match config.discovery.quota_resource_ref {
            QuotaResourceRef::Project => ResourceRefKind::Project,
            QuotaResourceRef::Instance => ResourceRefKind::Instance,
        };
        let quota = self.quota.clone().map(|projects| QuotaConfig { projects, resource_ref });
        let name = name.unwrap_or_else(|| SINGLE.to_owned());
        CellConfig {
            plane: self.own.clone(),
            hub: self.hub.clone(),
            name,
            networks: NetworkMode::WhenServed,
            quota,
            instance_finalizers: match config.runtime {
                RuntimeKind::Pods => polis_runtime::instance_finalizers(),
                RuntimeKind::External => Vec::new(),
            },
        }
    }

    /// The tenancy mode of the projects.
    pub(crate) fn tenancy_mode(&self) -> TenancyMode {
        match self.mode {
            Mode::Single => TenancyMode::Single,
            Mode::Milo => TenancyMode::Milo,
        }
    }

    /// The project lookup of the admission webhooks.
    pub(crate) fn admission_projects(&self, projects: PlaneSet) -> polis_admission::ProjectResolver {
        match self.mode {
            Mode::Single => polis_admission::ProjectResolver::single(projects, SINGLE),
            Mode::Milo => polis_admission::ProjectResolver::by_parent(projects),
        }
    }

    /// The provider of the project planes.
    pub(crate) fn projects(&self) -> Projects {
        match self.mode {
            Mode::Single => Projects::Single(FixedPlanes::new([self.own.clone()])),
            Mode::Milo => {
                let projects = MiloProjects::new(self.discovery.clone()).hosted_by(self.host.clone());
                Projects::Milo(if self.by_service { projects.via_services() } else { projects })
            }
        }
    }
}

/// Provider of the project planes, by discovery mode.
pub(crate) enum Projects {
    Single(FixedPlanes),
    Milo(MiloProjects),
}

impl PlaneProvider for Projects {
    fn run(self: Box<Self>, registry: PlaneRegistry) -> futures::future::BoxFuture<'static, ()> {
        match *self {
            Self::Single(fixed) => Box::new(fixed).run(registry),
            Self::Milo(projects) => Box::new(projects).run(registry),
        }
    }
}
