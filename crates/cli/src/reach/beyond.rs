//! Reading hub and cells, where the kubeconfig leads there: for `why`, and for `destroy` to be sure.

use polis_api::compute::{Instance, WorkloadDeployment};
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::karmada::ResourceBinding;
use polis_api::kube::{Api, Client};
use polis_api::names;
use polis_core::owner;

use super::{Reach, optional};
use crate::exit::Fault;
use crate::view::diagnosis::Beyond;

/// What could be read beyond the project.
#[derive(Default)]
pub struct Horizon {
    /// The hub.
    pub hub: Option<Beyond>,
    /// Cells.
    pub cells: Vec<Beyond>,
    /// Planes that could not be read, with the reason.
    pub unread: Vec<String>,
}

impl Horizon {
    /// Names of the planes that still hold something.
    pub fn holding(&self) -> Vec<String> {
        let planes = self.hub.iter().chain(&self.cells);
        let full = planes.filter(|plane| !plane.deployments.is_empty() || !plane.instances.is_empty());
        full.map(|plane| plane.name.clone()).collect()
    }
}

impl Reach {
    /// What hub and cells have of a workload. What cannot be read is said, and is no fault.
    pub async fn beyond(&self, workload: &str) -> Horizon {
        let mut horizon = Horizon::default();
        let hub = self.hub().await;
        let cells = self.cells().await;
        if hub.is_none() && cells.is_empty() {
            return horizon;
        }
        let namespace = match self.hub_namespace().await {
            Ok(namespace) => namespace,
            Err(fault) => {
                horizon.unread.push(format!("hub and cells: {}", fault.why));
                return horizon;
            }
        };
        if let Some(client) = hub {
            match look(client, "hub", "", &namespace, workload).await {
                Ok(plane) => horizon.hub = Some(plane),
                Err(fault) => horizon.unread.push(format!("the hub: {}", fault.why)),
            }
        }
        for (city, client) in cells {
            match look(client, &format!("cell {city}"), &city, &namespace, workload).await {
                Ok(plane) => horizon.cells.push(plane),
                Err(fault) => horizon.unread.push(format!("cell {city}: {}", fault.why)),
            }
        }
        horizon
    }

    /// The namespace on hub and cells, by the UID of the project's.
    async fn hub_namespace(&self) -> Result<String, Fault> {
        let namespace = Api::<Namespace>::all(self.client.clone()).get(&self.namespace).await;
        let what = format!("failed to read namespace {}", self.namespace);
        let namespace = namespace.map_err(|error| Fault::request(what, &error))?;
        Ok(names::hub_namespace(owner::uid(&namespace.metadata)))
    }
}

async fn look(
    client: Result<Client, Fault>,
    name: &str,
    city: &str,
    namespace: &str,
    workload: &str,
) -> Result<Beyond, Fault> {
    let client = client?;
    let deployments: Api<WorkloadDeployment> = Api::namespaced(client.clone(), namespace);
    let mut deployments = optional(deployments, "deployments").await?.unwrap_or_default();
    deployments.retain(|deployment| deployment.spec.workload_ref.name == workload);
    let instances: Api<Instance> = Api::namespaced(client.clone(), namespace);
    let mut instances = optional(instances, "instances").await?.unwrap_or_default();
    instances.retain(|instance| crate::view::picture::workload_of(instance) == workload);
    let bindings = match city {
        "" => optional(Api::<ResourceBinding>::namespaced(client, namespace), "bindings").await?,
        _ => None,
    };
    Ok(Beyond { name: name.to_owned(), city: city.to_owned(), deployments, instances, bindings })
}
