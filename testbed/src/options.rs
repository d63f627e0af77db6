//! What bed is wanted.

use std::{fmt, path::PathBuf, sync::Arc};

use crate::{Error, plane, port::Ports};

/// Where the bed says what it does and what it waits for.
pub type Say = Arc<dyn Fn(&str) + Send + Sync>;

/// How quickly Karmada notices and retries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum Tempo {
    /// Seconds where Karmada's defaults take half a minute or more, for tests: a lost member is noticed after
    /// about 3 s instead of 40, work that failed is retried after at most 3 s instead of 1000.
    #[default]
    Brisk,
    /// Karmada's own defaults, for measuring.
    AsShipped,
}

/// How our CRDs come to the cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum CellCrds {
    /// Put there before Karmada starts: the first object then reaches a cell in 0.4 s instead of 20 s.
    #[default]
    ByHand,
    /// Carried there by a ClusterPropagationPolicy on the hub, as in production.
    ByPolicy,
}

/// What bed is wanted. Begin with one of the constructors and change what differs.
#[derive(Clone)]
pub struct Options {
    /// Names of the project planes.
    pub projects: Vec<String>,
    /// City codes of the cells. A cell's plane has the name of its city in lower case.
    pub cells: Vec<String>,
    /// Whether there is a hub. Cells are joined to it; without one they are planes on their own.
    pub hub: bool,
    /// Whether each plane has a kube-controller-manager (namespace deletion, garbage collection, service accounts).
    pub controllers: bool,
    /// Whether our CRDs and those of the platform are put on the planes.
    pub crds: bool,
    /// How our CRDs come to the cells.
    pub cell_crds: CellCrds,
    /// Whether API servers ask who may name an owner that waits for what it owns. Off in most installations.
    pub owners_guarded: bool,
    /// How quickly Karmada notices and retries.
    pub tempo: Tempo,
    /// The directory of the bed; none: one of its own, which goes when the bed goes.
    pub dir: Option<PathBuf>,
    /// Where ports come from.
    pub ports: Ports,
    /// Where the bed says what it does.
    pub say: Say,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Options { projects, cells, hub, controllers, crds, cell_crds, tempo, dir, .. } = self;
        f.debug_struct("Options")
            .field("projects", projects)
            .field("cells", cells)
            .field("hub", hub)
            .field("controllers", controllers)
            .field("crds", crds)
            .field("cell_crds", cell_crds)
            .field("tempo", tempo)
            .field("dir", dir)
            .finish_non_exhaustive()
    }
}

impl Options {
    /// etcd and one kube-apiserver, the plane `plane::LONE`, with nothing on it.
    pub fn single_plane() -> Self {
        Options {
            projects: vec![plane::LONE.to_owned()],
            cells: Vec::new(),
            hub: false,
            controllers: false,
            crds: false,
            cell_crds: CellCrds::default(),
            owners_guarded: false,
            tempo: Tempo::default(),
            dir: None,
            ports: Ports::default(),
            say: Arc::new(|line| tracing::info!("{line}")),
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

    /// Names of all planes of the bed, in the order in which they are shown.
    pub fn planes(&self) -> Vec<String> {
        let hub = self.hub.then(|| plane::HUB.to_owned());
        self.projects
            .iter()
            .cloned()
            .chain(hub)
            .chain(self.cells.iter().map(|city| city.to_lowercase()))
            .collect()
    }

    /// Refuses what could not stand: names that are no DNS labels, and two planes of one name.
    pub fn check(&self) -> Result<(), Error> {
        let mut names = self.planes();
        if let Some(bad) = names.iter().find(|name| !is_dns_label(name)) {
            return Err(Error::BadName { name: bad.clone() });
        }
        if names.is_empty() {
            return Err(Error::NothingWanted);
        }
        names.sort();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(Error::NameTwice { name: pair[0].clone() }),
            None => Ok(()),
        }
    }
}

/// Karmada takes names of members up to 48 characters, and a plane's name becomes one.
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
        assert_eq!(Options::single_plane().planes(), [plane::LONE]);
    }

    #[test]
    fn a_city_that_could_be_no_name_is_refused_in_one_sentence() {
        for city in ["d fw", "", "-x", "münchen", &"x".repeat(49)] {
            let message = Options::federation([city]).check().unwrap_err().to_string();
            assert!(message.contains("is no name for a plane"), "{message}");
        }
    }

    #[test]
    fn two_planes_of_one_name_are_refused() {
        for cities in [["dfw", "DFW"], ["hub", "dfw"], ["project-1", "dfw"]] {
            let message = Options::federation(cities).check().unwrap_err().to_string();
            assert!(message.contains("twice"), "{message}");
        }
    }
}
