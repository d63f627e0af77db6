//! Reads the hub and the cells of a workload, if the kubeconfig has contexts for them.
//!
//! `polis why` diagnoses with these objects. `polis destroy` waits until none is left.

use polis_api::ObjectExt;
use polis_api::compute::{Instance, WorkloadDeployment};
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::karmada::ResourceBinding;
use polis_api::kube::{Api, Client};
use polis_api::names;

use super::{Session, optional};
use crate::exit::CliError;
use crate::view::diagnosis::PlaneSnapshot;

/// The objects of one workload on the hub and in the cells.
#[derive(Default)]
pub struct DownstreamSnapshot {
    /// The hub.
    pub hub: Option<PlaneSnapshot>,
    /// Cells.
    pub cells: Vec<PlaneSnapshot>,
    /// Planes that could not be read, with the reason.
    pub unread: Vec<String>,
}

impl DownstreamSnapshot {
    /// Names of the planes that still have a deployment or an instance of the workload.
    pub fn planes_with_objects(&self) -> Vec<String> {
        let planes = self.hub.iter().chain(&self.cells);
        let full = planes.filter(|plane| !plane.deployments.is_empty() || !plane.instances.is_empty());
        full.map(|plane| plane.name.clone()).collect()
    }
}

impl Session {
    /// Reads the objects of a workload from the hub and every cell. A plane that cannot be read is listed in
    /// `unread`; it is not an error.
    pub async fn downstream(&self, workload: &str) -> DownstreamSnapshot {
        let mut downstream = DownstreamSnapshot::default();
        let hub = self.hub().await;
        let cells = self.cells().await;
        if hub.is_none() && cells.is_empty() {
            return downstream;
        }
        let namespace = match self.hub_namespace().await {
            Ok(namespace) => namespace,
            Err(error) => {
                downstream.unread.push(format!("hub and cells: {}", error.why));
                return downstream;
            }
        };
        if let Some(client) = hub {
            match read_plane(client, "hub", "", &namespace, workload).await {
                Ok(plane) => downstream.hub = Some(plane),
                Err(error) => downstream.unread.push(format!("the hub: {}", error.why)),
            }
        }
        for (city, client) in cells {
            match read_plane(client, &format!("cell {city}"), &city, &namespace, workload).await {
                Ok(plane) => downstream.cells.push(plane),
                Err(error) => downstream.unread.push(format!("cell {city}: {}", error.why)),
            }
        }
        downstream
    }

    /// The namespace on the hub and in the cells. Its name contains the UID of the project's namespace.
    async fn hub_namespace(&self) -> Result<String, CliError> {
        let namespace = Api::<Namespace>::all(self.client.clone()).get(&self.namespace).await;
        let what = format!("failed to read namespace {}", self.namespace);
        let namespace = namespace.map_err(|error| CliError::request(what, &error))?;
        Ok(names::hub_namespace(namespace.uid()))
    }
}

async fn read_plane(
    client: Result<Client, CliError>,
    name: &str,
    city: &str,
    namespace: &str,
    workload: &str,
) -> Result<PlaneSnapshot, CliError> {
    let client = client?;
    let deployments: Api<WorkloadDeployment> = Api::namespaced(client.clone(), namespace);
    let mut deployments = optional(deployments, "deployments").await?.unwrap_or_default();
    deployments.retain(|deployment| deployment.spec.workload_ref.name == workload);
    let instances: Api<Instance> = Api::namespaced(client.clone(), namespace);
    let mut instances = optional(instances, "instances").await?.unwrap_or_default();
    instances.retain(|instance| crate::view::snapshot::workload_of(instance) == workload);
    let bindings = match city {
        "" => optional(Api::<ResourceBinding>::namespaced(client, namespace), "bindings").await?,
        _ => None,
    };
    Ok(PlaneSnapshot { name: name.to_owned(), city: city.to_owned(), deployments, instances, bindings })
}
