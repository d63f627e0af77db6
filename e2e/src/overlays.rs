//! Deployment modes: the same scenarios with the processes of the harness, or with everything as `deploy/`
//! renders it.
//!
//! In mode `plain` the processes get the shipped roles and flags of the harness. In the other modes each
//! plane gets the manifests that `docs/operations/install.md` applies to it, rendered by kubectl, and each
//! process runs with the arguments, environment, configuration and identity of the rendered Deployment.

use serde_json::Value;

use crate::{
    Error,
    manager_process::Role,
    planes::PlaneLayout,
    rendered::{RenderedManifests, as_text},
};

/// Where processes and their permissions come from. `POLIS_E2E_DEPLOYMENT` selects it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeploymentMode {
    /// The roles in `deploy/`, and flags of the harness.
    Plain,
    /// `overlays/management-plane`, and `overlays/cell` in each cell.
    Overlays,
    /// `overlays/single-cluster` in the first cell, and `overlays/cell` in the others.
    SingleCluster,
}

/// A Deployment and its roles.
pub struct ManagerDeployment {
    /// The roles that it enables.
    pub roles: Vec<Role>,
    /// The rendered overlay.
    pub rendered: RenderedManifests,
}

const MANAGEMENT: &str = "docs/operations/examples/management-plane";
const CELL: &str = "docs/operations/examples/cell-dfw";
const SINGLE_CLUSTER: &str = "deploy/overlays/single-cluster";

impl DeploymentMode {
    /// The mode in `POLIS_E2E_DEPLOYMENT`; `plain` by default.
    pub fn from_environment() -> Result<DeploymentMode, Error> {
        match std::env::var("POLIS_E2E_DEPLOYMENT").as_deref() {
            Err(_) | Ok("plain") => Ok(DeploymentMode::Plain),
            Ok("overlays") => Ok(DeploymentMode::Overlays),
            Ok("single-cluster") => Ok(DeploymentMode::SingleCluster),
            Ok(other) => Err(Error::Unavailable(format!(
                "unknown deployment mode {other:?}: POLIS_E2E_DEPLOYMENT must be plain, overlays or single-cluster"
            ))),
        }
    }

    /// The manifests for a plane, in the order of application.
    pub fn manifests(self, layout: &PlaneLayout, plane: &str) -> Vec<Value> {
        let single_cluster = self == DeploymentMode::SingleCluster;
        let mut rendered = Vec::new();
        if plane == layout.hub {
            rendered.push(RenderedManifests::of_component("deploy/components/federation"));
            if single_cluster {
                rendered.push(RenderedManifests::of_component("deploy/components/rbac/site/hub"));
            }
        } else if layout.cells.iter().any(|cell| cell == plane) {
            rendered.push(match single_cluster && layout.cells[0] == plane {
                true => RenderedManifests::of(SINGLE_CLUSTER),
                false => cell(plane),
            });
        } else {
            rendered.push(RenderedManifests::of_component("deploy/components/rbac/project"));
            rendered.push(RenderedManifests::of_component("deploy/components/rbac/quota"));
            if single_cluster {
                rendered.push(RenderedManifests::of_component("deploy/components/rbac/site/projects"));
            }
            if plane == layout.platform {
                rendered.push(match single_cluster {
                    true => RenderedManifests::of_component("deploy/components/rbac/management"),
                    false => RenderedManifests::of(MANAGEMENT),
                });
            }
        }
        rendered.iter().flat_map(RenderedManifests::served).cloned().collect()
    }

    /// All Deployments.
    pub fn deployments(self, layout: &PlaneLayout) -> Vec<ManagerDeployment> {
        let of_cell =
            |city: &String| ManagerDeployment { roles: vec![Role::Cell(city.clone())], rendered: cell(city) };
        let first = match self {
            DeploymentMode::SingleCluster => ManagerDeployment {
                roles: vec![Role::Management, Role::Cell(layout.cells[0].clone())],
                rendered: RenderedManifests::of(SINGLE_CLUSTER),
            },
            _ => ManagerDeployment {
                roles: vec![Role::Management],
                rendered: RenderedManifests::of(MANAGEMENT),
            },
        };
        let others = layout.cells.iter().skip(usize::from(self == DeploymentMode::SingleCluster));
        let deployments: Vec<ManagerDeployment> = [first].into_iter().chain(others.map(of_cell)).collect();
        for deployment in &deployments {
            deployment.check();
        }
        deployments
    }
}

impl ManagerDeployment {
    /// Asserts that the Deployment enables exactly its roles and has replicas: otherwise the suite would test
    /// nothing.
    fn check(&self) {
        for (switch, expected) in [
            ("ENABLE_MANAGEMENT_CONTROLLERS", self.roles.contains(&Role::Management)),
            ("ENABLE_CELL_CONTROLLERS", self.roles.iter().any(|role| matches!(role, Role::Cell(_)))),
        ] {
            assert_eq!(
                self.rendered.variable(switch) == "true",
                expected,
                "{switch} of the Deployment of {:?}",
                self.roles
            );
        }
        let replicas = &self.rendered.deployment().expect("a Deployment")["spec"]["replicas"];
        assert!(replicas.as_u64() > Some(0), "the Deployment of {:?} has {replicas} replicas", self.roles);
    }
}

/// The overlay of a city's cell: a copy of the example for Dallas with another name.
fn cell(city: &str) -> RenderedManifests {
    let named = format!("clusterName: cell-{city}");
    let rendered = RenderedManifests::copy_of(CELL, &[("clusterName: cell-dfw", &named)]);
    let config = rendered.find("ConfigMap", "compute-config").expect("a configuration");
    assert!(as_text(&config["data"]["config.yaml"]).contains(&named), "the example has no clusterName");
    rendered
}
