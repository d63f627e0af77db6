//! Homes: the namespaces of the hub in which the deployments of a project lived.
//!
//! Reads   hub: Namespace, WorkloadDeployment, Instance
//! Writes  hub: Namespace (deletes)
//!
//! A home is named after the UID of a namespace of the project, so it outlives its last deployment without harm: the next
//! one needs it. Only when the project itself is gone will nobody need it again, and only whoever ends projects knows
//! that for certain. It is deleted when it is labelled as this project's, by the name that only we give, and nothing of
//! ours is left in it. The federation takes it from the cells.

use polis_api::compute::{Instance, WorkloadDeployment};
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::{labels, names};
use polis_core::identity::Identity;
use polis_core::owner;
use polis_engine::{Exactly, Plane, Query};

use crate::Error;

/// What the names of homes begin with.
const HOME: &str = "ns-";

/// The homes on a hub.
#[derive(Clone, Debug)]
pub struct Homes {
    hub: Plane,
}

impl Homes {
    /// The homes on this hub.
    pub fn new(hub: Plane) -> Self {
        Self { hub }
    }

    /// Takes away the homes of a project that is gone. An error while one is still lived in: to be tried again.
    pub(crate) async fn leave(&self, project: &str) -> Result<(), Error> {
        // A name that cannot travel never had a home.
        let Ok(label) = names::cluster_label(project) else { return Ok(()) };
        let of_project = Query::all().labels(format!("{}={label}", labels::UPSTREAM_CLUSTER_NAME));
        for home in self.hub.live().list::<Namespace>(&of_project).await? {
            let name = owner::name(&home.metadata);
            let ours = name.starts_with(HOME) && Identity::of(&home).is_ok_and(|of| of.project == project);
            if !ours || owner::is_deleting(&home.metadata) {
                continue;
            }
            let within = Query::within(name);
            let left = self.hub.live().list::<WorkloadDeployment>(&within).await?.len()
                + self.hub.live().list::<Instance>(&within).await?.len();
            if left > 0 {
                return Err(Error::LivedIn { project: project.to_owned(), namespace: name.to_owned(), left });
            }
            self.hub.delete(&home, Exactly::Object).await?;
        }
        Ok(())
    }
}
