//! The identities of the controllers on each plane, and the shipped roles.
//!
//! The suite grants no permission of its own. It applies the manifests in `deploy/` as an operator would, and
//! the controllers use the users and groups that those manifests name.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::{
    Error,
    manager_process::Role,
    planes::{ClientIdentity, PlaneLayout},
};

/// The user of the controllers on their own cluster.
pub const MANAGER: &str = "system:serviceaccount:compute-system:compute-manager";
pub use polis_api::groups::{CELLS, MANAGERS, cells_of as city_group};

/// The identity of the controllers: its user counts on their own cluster, and its group elsewhere.
pub fn manager(user: &str) -> ClientIdentity {
    ClientIdentity { user: user.to_owned(), groups: vec![MANAGERS.to_owned()] }
}

/// The user of a city's cell on the hub.
pub fn cell_user(city: &str) -> String {
    format!("system:serviceaccount:compute-system:compute-cell-{city}")
}

/// The manifests in `deploy/` for each type of plane.
pub struct ShippedRoles {
    deploy: PathBuf,
}

/// Directories and files in `deploy/` that an operator applies to each type of plane. CRDs and the resource
/// interpreter are not among them: the planes already have those.
const ON_PROJECTS: &[&str] = &["components/rbac/project"];
const ON_PLATFORM: &[&str] = &["components/rbac/management", "components/leader-election/role.yaml"];
const ON_HUB: &[&str] = &[
    "components/rbac/hub",
    "components/federation/cell-confinement.yaml",
    "components/federation/city-guard.yaml",
];
const ON_CELLS: &[&str] = &["components/rbac/cell", "components/leader-election/role.yaml"];

impl Default for ShippedRoles {
    fn default() -> Self {
        ShippedRoles { deploy: Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy") }
    }
}

impl ShippedRoles {
    /// The identity of a role on a plane.
    pub fn identity(&self, layout: &PlaneLayout, role: &Role, plane: &str) -> ClientIdentity {
        match role {
            Role::Cell(city) if plane == layout.hub => {
                ClientIdentity { user: cell_user(city), groups: vec![CELLS.to_owned(), city_group(city)] }
            }
            _ => manager(MANAGER),
        }
    }

    /// The manifests for a plane, in the order of application.
    pub fn manifests(&self, layout: &PlaneLayout, plane: &str) -> Result<Vec<Value>, Error> {
        let paths = match plane {
            plane if plane == layout.hub => vec![ON_HUB],
            plane if plane == layout.platform => vec![ON_PLATFORM, ON_PROJECTS],
            plane if layout.cells.iter().any(|cell| cell == plane) => vec![ON_CELLS],
            _ => vec![ON_PROJECTS],
        };
        let mut objects = Vec::new();
        for path in paths.concat() {
            for file in files(&self.deploy.join(path))? {
                objects.extend(read(&file)?);
            }
        }
        Ok(objects)
    }
}

/// The file itself, or the manifests in a directory.
fn files(path: &Path) -> Result<Vec<PathBuf>, Error> {
    if path.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    let listed = fs::read_dir(path).map_err(Error::file(path))?;
    let mut files: Vec<PathBuf> = listed
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .filter(|path| path.file_name().is_some_and(|name| name != "kustomization.yaml"))
        .collect();
    files.sort();
    Ok(files)
}

fn read(path: &Path) -> Result<Vec<Value>, Error> {
    let text = fs::read_to_string(path).map_err(Error::file(path))?;
    Ok(polis_testbed::manifest::read(&path.display().to_string(), &text)?)
}
