//! Hub contact: reports on the deployments of all projects that the hub does not respond.
//!
//! Reads   project: WorkloadDeployment
//! Writes  project: WorkloadDeployment (status)
//!
//! Needs no cache of the hub, so that a process which starts while the hub is away reports it too. While the
//! hub is unreachable this controller alone writes the status of deployments that are not being deleted: one
//! write for each. Then the federator writes what the hub says.

use polis_api::ObjectExt;
use polis_api::compute::WorkloadDeployment;
use polis_core::contact;
use polis_engine::{Action, Engine, Key, Plane, PlaneSet, Reachability, Reconciler, Unresolved};

use crate::{Error, Management};

/// Registers the controller with an engine.
pub(crate) fn declare(engine: &mut Engine, management: &Management) {
    let (projects, hub) = (management.projects.clone(), management.hub.clone());
    let all = projects.clone();
    engine
        .controller("hub-contact", &management.projects, HubContact { projects, hub })
        .for_kind::<WorkloadDeployment>()
        .watches_reachability(&management.hub, move || all_deployments(&all));
}

/// Writes the status of deployments whose hub is unreachable.
struct HubContact {
    projects: PlaneSet,
    hub: Plane,
}

impl Reconciler for HubContact {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Reachability::Unreachable { since } = self.hub.reachability() else {
            return Ok(Action::AwaitChange); // the federator reports
        };
        let project = self.projects.plane(key)?;
        let deployment = project.get::<WorkloadDeployment>(key)?;
        // The teardown reports in a condition of its own.
        if let Some(deployment) = deployment.filter(|deployment| !deployment.is_deleting())
            && let Some(status) = contact::without_hub(&deployment, since)
        {
            project.write_status(&deployment, status).await?;
        }
        Ok(Action::AwaitChange)
    }
}

/// The deployments of all projects, which the loss or return of the hub concerns.
pub(crate) fn all_deployments(projects: &PlaneSet) -> Result<Vec<Key>, Unresolved> {
    let mut keys = Vec::new();
    for project in projects.engaged() {
        let deployments = project.list::<WorkloadDeployment>()?;
        keys.extend(deployments.iter().map(|deployment| Key::of(&project, deployment)));
    }
    Ok(keys)
}
