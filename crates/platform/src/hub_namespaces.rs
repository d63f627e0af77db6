//! Hub namespace cleanup: deletes the hub namespaces of a deleted project.
//!
//! Reads   hub: Namespace, WorkloadDeployment, Instance (all uncached)
//! Writes  hub: Namespace (delete)
//!
//! The name of a hub namespace contains the UID of a project namespace, so it stays when its last deployment
//! is deleted: the next deployment uses it again. It is obsolete only after the project is deleted, which the
//! project controller alone knows. A namespace is deleted if its labels name the project, its name has the
//! prefix of hub namespaces, and it contains no WorkloadDeployment and no Instance. The federation deletes it
//! from the cells.

use polis_api::compute::{Instance, WorkloadDeployment};
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::{ObjectExt, labels, names};
use polis_core::tenant::Tenant;
use polis_engine::{ListOptions, Plane, Preconditions};

use crate::Error;

/// Name prefix of hub namespaces.
const NAME_PREFIX: &str = "ns-";

/// Deletes the hub namespaces of deleted projects.
#[derive(Clone, Debug)]
pub struct HubNamespaceCleanup {
    hub: Plane,
}

impl HubNamespaceCleanup {
    /// Creates the cleanup for this hub.
    pub fn new(hub: Plane) -> Self {
        Self { hub }
    }

    /// Deletes the hub namespaces of a deleted project. Returns an error while one still contains objects;
    /// the caller retries.
    pub(crate) async fn delete_namespaces_of(&self, project: &str) -> Result<(), Error> {
        // A project whose name is not a label value has no hub namespace.
        let Ok(label) = names::cluster_label(project) else { return Ok(()) };
        let of_project = ListOptions::all().labels(format!("{}={label}", labels::UPSTREAM_CLUSTER_NAME));
        for namespace in self.hub.uncached().list::<Namespace>(&of_project).await? {
            let name = namespace.name();
            let owned = name.starts_with(NAME_PREFIX)
                && Tenant::of(&namespace).is_ok_and(|tenant| tenant.project == project);
            if !owned || namespace.is_deleting() {
                continue;
            }
            let within = ListOptions::within(name);
            let left = self.hub.uncached().list::<WorkloadDeployment>(&within).await?.len()
                + self.hub.uncached().list::<Instance>(&within).await?.len();
            if left > 0 {
                return Err(Error::HubNamespaceNotEmpty {
                    project: project.to_owned(),
                    namespace: name.to_owned(),
                    left,
                });
            }
            self.hub.delete(&namespace, Preconditions::Uid).await?;
        }
        Ok(())
    }
}
