//! Overlays: the same scenarios, with everything as `deploy/` renders it.
//!
//! Without it, staff is given the roles that we ship and flags of the harness. With it, each plane gets what
//! `docs/operations/install.md` has an operator apply to it, rendered by kubectl, and each process is started with the
//! arguments, environment, configuration and identity of the Deployment that the overlay renders to.

use serde_json::Value;

use crate::{
    Error,
    planes::Layout,
    rendered::{Rendered, word},
    staff::Role,
};

/// Where processes and their rights come from. `POLIS_E2E_STAFF` says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manning {
    /// The roles of `deploy/`, and flags of the harness.
    Plain,
    /// `overlays/management-plane`, and `overlays/cell` in each cell.
    Overlays,
    /// `overlays/single-cluster` in the first cell, and `overlays/cell` in the others.
    SingleCluster,
}

/// A Deployment, and the roles that it plays.
pub struct Post {
    /// What it switches on.
    pub roles: Vec<Role>,
    /// The overlay.
    pub rendered: Rendered,
}

const MANAGEMENT: &str = "docs/operations/examples/management-plane";
const CELL: &str = "docs/operations/examples/cell-dfw";
const SITE: &str = "deploy/overlays/single-cluster";

impl Manning {
    /// What the environment asks for.
    pub fn wanted() -> Result<Manning, Error> {
        match std::env::var("POLIS_E2E_STAFF").as_deref() {
            Err(_) | Ok("plain") => Ok(Manning::Plain),
            Ok("overlays") => Ok(Manning::Overlays),
            Ok("single-cluster") => Ok(Manning::SingleCluster),
            Ok(other) => Err(Error::Unavailable(format!(
                "there is no staff called {other:?}: POLIS_E2E_STAFF may be plain, overlays or single-cluster"
            ))),
        }
    }

    /// What an operator applies to a plane, in order.
    pub fn manifests(self, layout: &Layout, plane: &str) -> Vec<Value> {
        let site = self == Manning::SingleCluster;
        let mut rendered = Vec::new();
        if plane == layout.hub {
            rendered.push(Rendered::alone("deploy/components/federation"));
            if site {
                rendered.push(Rendered::alone("deploy/components/rbac/site/hub"));
            }
        } else if layout.cells.iter().any(|cell| cell == plane) {
            rendered.push(match site && layout.cells[0] == plane {
                true => Rendered::of(SITE),
                false => cell(plane),
            });
        } else {
            rendered.push(Rendered::alone("deploy/components/rbac/project"));
            rendered.push(Rendered::alone("deploy/components/rbac/quota"));
            if site {
                rendered.push(Rendered::alone("deploy/components/rbac/site/projects"));
            }
            if plane == layout.platform {
                rendered.push(match site {
                    true => Rendered::alone("deploy/components/rbac/management"),
                    false => Rendered::of(MANAGEMENT),
                });
            }
        }
        rendered.iter().flat_map(Rendered::known).cloned().collect()
    }

    /// Every Deployment that runs.
    pub fn posts(self, layout: &Layout) -> Vec<Post> {
        let of_cell = |city: &String| Post { roles: vec![Role::Cell(city.clone())], rendered: cell(city) };
        let first = match self {
            Manning::SingleCluster => Post {
                roles: vec![Role::Management, Role::Cell(layout.cells[0].clone())],
                rendered: Rendered::of(SITE),
            },
            _ => Post { roles: vec![Role::Management], rendered: Rendered::of(MANAGEMENT) },
        };
        let others = layout.cells.iter().skip(usize::from(self == Manning::SingleCluster));
        let posts: Vec<Post> = [first].into_iter().chain(others.map(of_cell)).collect();
        for post in &posts {
            post.check();
        }
        posts
    }
}

impl Post {
    /// An overlay under which nothing runs, or something else than its roles, shows nothing.
    fn check(&self) {
        for (switch, wanted) in [
            ("ENABLE_MANAGEMENT_CONTROLLERS", self.roles.contains(&Role::Management)),
            ("ENABLE_CELL_CONTROLLERS", self.roles.iter().any(|role| matches!(role, Role::Cell(_)))),
        ] {
            assert_eq!(
                self.rendered.variable(switch) == "true",
                wanted,
                "{switch} of the Deployment of {:?}",
                self.roles
            );
        }
        let replicas = &self.rendered.deployment().expect("a Deployment")["spec"]["replicas"];
        assert!(replicas.as_u64() > Some(0), "the Deployment of {:?} has {replicas} replicas", self.roles);
    }
}

/// The cell of a city: a copy of the example for Dallas with its own name.
fn cell(city: &str) -> Rendered {
    let named = format!("clusterName: cell-{city}");
    let rendered = Rendered::copy_of(CELL, &[("clusterName: cell-dfw", &named)]);
    let config = rendered.find("ConfigMap", "compute-config").expect("a configuration");
    assert!(word(&config["data"]["config.yaml"]).contains(&named), "the example has lost its clusterName");
    rendered
}
