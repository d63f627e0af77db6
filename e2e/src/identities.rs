//! Identities: who the controllers are on each plane, and the roles that we ship for them.
//!
//! The suite gives controllers no right of its own making. It applies the manifests under `deploy/` as an operator
//! would, and lets the controllers be the users and groups that those manifests name.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::{
    Error,
    planes::{Identity, Layout},
    staff::Role,
};

/// The user that the controllers are, on the planes of projects, on the hub and on their own cluster.
pub const MANAGER: &str = "system:serviceaccount:compute-system:compute-manager";
/// The group of every cell, on the hub.
pub const CELLS: &str = "compute.datumapis.com:cells";

/// The group of the cells of a city, on the hub.
pub fn city_group(city: &str) -> String {
    format!("compute.datumapis.com:city:{city}")
}

/// The user that the cell of a city is on the hub.
pub fn cell_user(city: &str) -> String {
    format!("system:serviceaccount:compute-system:compute-cell-{city}")
}

/// What `deploy/` holds for each kind of plane.
pub struct Shipped {
    deploy: PathBuf,
}

/// Folders and files under `deploy/` that an operator applies to each kind of plane. Kinds and their interpreter are
/// not among them: planes have those from the start.
const ON_PROJECTS: &[&str] = &["components/rbac/project"];
const ON_PLATFORM: &[&str] = &["components/rbac/management", "components/leader-election/role.yaml"];
const ON_HUB: &[&str] = &[
    "components/rbac/hub",
    "components/federation/cell-confinement.yaml",
    "components/federation/city-guard.yaml",
];
const ON_CELLS: &[&str] = &["components/rbac/cell", "components/leader-election/role.yaml"];

impl Default for Shipped {
    fn default() -> Self {
        Shipped { deploy: Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy") }
    }
}

impl Shipped {
    /// Who a role is on a plane.
    pub fn identity(&self, layout: &Layout, role: &Role, plane: &str) -> Identity {
        match role {
            Role::Cell(city) if plane == layout.hub => {
                Identity { user: cell_user(city), groups: vec![CELLS.to_owned(), city_group(city)] }
            }
            _ => Identity { user: MANAGER.to_owned(), groups: Vec::new() },
        }
    }

    /// The objects that an operator applies to a plane, in order.
    pub fn manifests(&self, layout: &Layout, plane: &str) -> Result<Vec<Value>, Error> {
        let folders = match plane {
            plane if plane == layout.hub => vec![ON_HUB],
            plane if plane == layout.platform => vec![ON_PLATFORM, ON_PROJECTS],
            plane if layout.cells.iter().any(|cell| cell == plane) => vec![ON_CELLS],
            _ => vec![ON_PROJECTS],
        };
        let mut objects = Vec::new();
        for folder in folders.concat() {
            for file in files(&self.deploy.join(folder))? {
                objects.extend(read(&file)?);
            }
        }
        Ok(objects)
    }
}

/// The file itself, or the manifests of a folder.
fn files(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    if folder.is_file() {
        return Ok(vec![folder.to_owned()]);
    }
    let listed = fs::read_dir(folder).map_err(Error::file(folder))?;
    let mut files: Vec<PathBuf> = listed
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|ending| ending == "yaml"))
        .filter(|path| path.file_name().is_some_and(|name| name != "kustomization.yaml"))
        .collect();
    files.sort();
    Ok(files)
}

fn read(path: &Path) -> Result<Vec<Value>, Error> {
    let text = fs::read_to_string(path).map_err(Error::file(path))?;
    Ok(polis_testbed::manifest::read(&path.display().to_string(), &text)?)
}
