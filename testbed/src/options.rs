//! Options of a test cluster: its planes, CRDs, timing and directory.

use std::{fmt, path::PathBuf, sync::Arc};

use crate::{Error, plane, port::Ports};

/// Callback for progress messages: components that start, and what the start waits for.
pub type ProgressFn = Arc<dyn Fn(&str) + Send + Sync>;

/// How quickly Karmada probes its members and retries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum TimingProfile {
    /// Short intervals for tests: a lost member is detected after about 3 s instead of 40 s, and failed work
    /// is retried after at most 3 s instead of 1000 s.
    #[default]
    #[serde(rename = "Brisk")]
    Fast,
    /// Karmada's defaults, for benchmarks.
    #[serde(rename = "AsShipped")]
    Upstream,
}

/// How the compute CRDs are installed on the cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum CellCrds {
    /// Installed before Karmada starts: the first object then reaches a cell in 0.4 s instead of 20 s.
    #[default]
    Preinstalled,
    /// Propagated by a ClusterPropagationPolicy on the hub, as in production.
    Propagated,
}

/// Options of a test cluster. Start from one of the constructors and change the fields that differ.
#[derive(Clone)]
pub struct Options {
    /// Names of the project planes.
    pub projects: Vec<String>,
    /// City codes of the cells. The plane of a cell is named after its city, in lower case.
    pub cells: Vec<String>,
    /// Whether there is a hub. Cells are joined to it; without a hub they are independent planes.
    pub hub: bool,
    /// Whether each plane has a kube-controller-manager (namespace deletion, garbage collection, service
    /// accounts).
    pub controllers: bool,
    /// Whether the compute CRDs and those of the platform are installed.
    pub crds: bool,
    /// How the compute CRDs are installed on the cells.
    pub cell_crds: CellCrds,
    /// Whether the API servers run the admission plugin OwnerReferencesPermissionEnforcement. Off in most
    /// installations.
    pub enforce_owner_references: bool,
    /// How quickly Karmada probes its members and retries.
    pub timing: TimingProfile,
    /// The state directory; `None` uses a new one, which is removed with the test cluster.
    pub dir: Option<PathBuf>,
    /// The source of free ports.
    pub ports: Ports,
    /// Callback for progress messages.
    pub progress: ProgressFn,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Options { projects, cells, hub, controllers, crds, cell_crds, timing, dir, .. } = self;
        f.debug_struct("Options")
            .field("projects", projects)
            .field("cells", cells)
            .field("hub", hub)
            .field("controllers", controllers)
            .field("crds", crds)
            .field("cell_crds", cell_crds)
            .field("timing", timing)
            .field("dir", dir)
            .finish_non_exhaustive()
    }
}

impl Options {
    /// etcd and one kube-apiserver, the plane `plane::SINGLE_PLANE`, without CRDs.
    pub fn single_plane() -> Self {
        Options {
            projects: vec![plane::SINGLE_PLANE.to_owned()],
            cells: Vec::new(),
            hub: false,
            controllers: false,
            crds: false,
            cell_crds: CellCrds::default(),
            enforce_owner_references: false,
            timing: TimingProfile::default(),
            dir: None,
            ports: Ports::default(),
            progress: Arc::new(|line| tracing::info!("{line}")),
        }
    }

    /// One project plane, the hub, and a cell for each city.
    pub fn federation<'a>(cities: impl IntoIterator<Item = &'a str>) -> Self {
        Options {
            cells: cities.into_iter().map(str::to_owned).collect(),
            hub: true,
            controllers: true,
            crds: true,
            ..Options::single_plane()
        }
        .with_projects(1)
    }

    /// The same with `count` project planes, `project-1` onwards.
    pub fn with_projects(mut self, count: usize) -> Self {
        self.projects = (1..=count).map(|ordinal| format!("project-{ordinal}")).collect();
        self
    }

    /// Names of all planes, in display order.
    pub fn planes(&self) -> Vec<String> {
        let hub = self.hub.then(|| plane::HUB.to_owned());
        self.projects
            .iter()
            .cloned()
            .chain(hub)
            .chain(self.cells.iter().map(|city| city.to_lowercase()))
            .collect()
    }

    /// Rejects names that are not DNS labels, duplicate names, and an empty list of planes.
    pub fn check(&self) -> Result<(), Error> {
        let mut names = self.planes();
        if let Some(bad) = names.iter().find(|name| !is_dns_label(name)) {
            return Err(Error::BadName { name: bad.clone() });
        }
        if names.is_empty() {
            return Err(Error::NoPlanes);
        }
        names.sort();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(Error::DuplicateName { name: pair[0].clone() }),
            None => Ok(()),
        }
    }
}

/// Karmada accepts member names of up to 48 characters, and a member is named after its plane.
const LONGEST_NAME: usize = 48;

fn is_dns_label(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !name.is_empty()
        && name.len() <= LONGEST_NAME
        && name.chars().all(inner)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_are_the_projects_the_hub_and_the_cells() {
        let options = Options::federation(["DFW", "ord"]).with_projects(2);
        assert_eq!(options.planes(), ["project-1", "project-2", "hub", "dfw", "ord"]);
        assert!(options.check().is_ok());
    }

    #[test]
    fn a_single_plane_is_one_plane() {
        assert_eq!(Options::single_plane().planes(), [plane::SINGLE_PLANE]);
    }

    #[test]
    fn an_invalid_city_name_is_rejected() {
        for city in ["d fw", "", "-x", "münchen", &"x".repeat(49)] {
            let message = Options::federation([city]).check().unwrap_err().to_string();
            assert!(message.contains("is not a valid plane name"), "{message}");
        }
    }

    #[test]
    fn duplicate_plane_names_are_rejected() {
        for cities in [["dfw", "DFW"], ["hub", "dfw"], ["project-1", "dfw"]] {
            let message = Options::federation(cities).check().unwrap_err().to_string();
            assert!(message.contains("more than once"), "{message}");
        }
    }
}
