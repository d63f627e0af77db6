//! The planes that a manager reaches, by its flags and configuration.

use anyhow::{Context, Result};
use polis_cell::{Cell, Networks, Quota, ResourceRefKind};
use polis_core::cities::Ground;
use polis_engine::{Fixed, MiloProjects, Plane, PlaneSet, Provider, Roster};

use super::config::{Config, Mode, QuotaResourceRef};
use super::flags::Flags;

/// The name of the one plane in mode `single`: it stands in labels on the hub.
const SINGLE: &str = "single";

/// Every plane of this process.
pub(crate) struct Planes {
    /// The cluster that the process belongs to: its leases, and in mode `single` its work.
    pub(crate) own: Plane,
    /// The hub.
    pub(crate) hub: Plane,
    mode: Mode,
    /// Projects are reached at services of their own.
    by_service: bool,
    /// Where projects are found.
    discovery: Plane,
    /// Through which projects are reached.
    host: Plane,
    /// The platform that quota is claimed from, if any.
    quota: Option<Plane>,
}

impl Planes {
    /// Reads the kubeconfigs. No request is made yet: a plane that is away is waited for, and named in readiness.
    pub(crate) async fn reach(flags: &Flags, config: &Config) -> Result<Self> {
        let own = Plane::inferred(SINGLE).await.context("the cluster of this process is not known")?;
        let kubeconfig = flags.federation_kubeconfig.as_deref().context("the hub is not given")?;
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
            // A path that is given and does not work is an error: quota is off only where nobody asked for it.
            Some(path) => Some(Plane::from_kubeconfig("quota", path, None).await?),
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
        })
    }

    /// Where projects are found.
    pub(crate) fn discovery(&self) -> &Plane {
        &self.discovery
    }

    /// Through which projects are reached.
    pub(crate) fn host(&self) -> &Plane {
        &self.host
    }

    /// The platform that quota is claimed from, if any.
    pub(crate) fn quota(&self) -> Option<&Plane> {
        self.quota.as_ref()
    }

    /// What the cell role works on.
    pub(crate) fn cell(&self, config: &Config) -> Cell {
        let name = config.discovery.cluster_name.clone();
        let resource_ref = match config.discovery.quota_resource_ref {
            QuotaResourceRef::Project => ResourceRefKind::Project,
            QuotaResourceRef::Instance => ResourceRefKind::Instance,
        };
        let quota = self.quota.clone().map(|projects| Quota { projects, resource_ref });
        let name = name.unwrap_or_else(|| SINGLE.to_owned());
        Cell { plane: self.own.clone(), hub: self.hub.clone(), name, networks: Networks::WhereServed, quota }
    }

    /// What the projects stand on.
    pub(crate) fn ground(&self) -> Ground {
        match self.mode {
            Mode::Single => Ground::Bare,
            Mode::Milo => Ground::Platform,
        }
    }

    /// How the webhooks find the project of a review among the planes of the projects.
    pub(crate) fn judged(&self, projects: PlaneSet) -> polis_admission::Projects {
        match self.mode {
            Mode::Single => polis_admission::Projects::single(projects, SINGLE),
            Mode::Milo => polis_admission::Projects::by_parent(projects),
        }
    }

    /// The planes of the projects.
    pub(crate) fn projects(&self) -> Projects {
        match self.mode {
            Mode::Single => Projects::Single(Fixed::new([self.own.clone()])),
            Mode::Milo => {
                let projects = MiloProjects::new(self.discovery.clone()).served_by(self.host.clone());
                Projects::Milo(if self.by_service { projects.by_service() } else { projects })
            }
        }
    }
}

/// Either way of finding projects.
pub(crate) enum Projects {
    Single(Fixed),
    Milo(MiloProjects),
}

impl Provider for Projects {
    fn run(self: Box<Self>, roster: Roster) -> futures::future::BoxFuture<'static, ()> {
        match *self {
            Self::Single(fixed) => Box::new(fixed).run(roster),
            Self::Milo(projects) => Box::new(projects).run(roster),
        }
    }
}
