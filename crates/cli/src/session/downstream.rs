//! Reads the hub and the cells of a workload, if the kubeconfig has contexts for them.
//!
//! `polis why` diagnoses with these objects. `polis destroy` waits until none is left.
//!
//! The planes are read at the same time, each within [`PLANE_TIMEOUT`]: a plane that accepts connections and
//! does not answer must not hold up the diagnosis of the others.

use std::time::Duration;

use futures::future;
use polis_api::ObjectExt;
use polis_api::compute::{Instance, WorkloadDeployment};
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::karmada::{self, Cluster, PropagationPolicy, ResourceBinding, Work};
use polis_api::kube::{Api, Client};
use polis_api::labels::TOPOLOGY_CITY_CODE;
use polis_api::names;
use polis_api::networking::NetworkBinding;
use polis_core::policy;

use super::{Session, optional};
use crate::exit::{CliError, Exit};
use crate::view::diagnosis::{PlaneSnapshot, RelatedObject, UnreadPlane};

/// How long a plane may take to answer.
const PLANE_TIMEOUT: Duration = Duration::from_secs(5);

/// The objects of one workload on the hub and in the cells.
#[derive(Default)]
pub struct DownstreamSnapshot {
    /// The hub.
    pub hub: Option<PlaneSnapshot>,
    /// Cells.
    pub cells: Vec<PlaneSnapshot>,
    /// Planes that could not be read.
    pub unread: Vec<UnreadPlane>,
    /// Other objects of the hub and the cells that explain what the workload waits for.
    pub related: Vec<RelatedObject>,
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
                downstream.unread.push(UnreadPlane::refused("hub and cells", error.why));
                return downstream;
            }
        };
        let cells = cells.into_iter().map(async |(city, client)| {
            let read = in_time(read_cell(client, &city, &namespace, workload)).await;
            (city, read)
        });
        let hub = async {
            match hub {
                Some(client) => Some(in_time(read_hub(client, &namespace, workload)).await),
                None => None,
            }
        };
        let (hub, cells) = future::join(hub, future::join_all(cells)).await;
        match hub {
            Some(Ok((plane, related))) => {
                downstream.hub = Some(plane);
                downstream.related.extend(related);
            }
            Some(Err(error)) => downstream.unread.push(unread("the hub".to_owned(), "", error)),
            None => {}
        }
        for (city, read) in cells {
            match read {
                Ok((plane, related)) => {
                    downstream.cells.push(plane);
                    downstream.related.extend(related);
                }
                Err(error) => downstream.unread.push(unread(format!("cell {city}"), &city, error)),
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

fn unread(plane: String, city: &str, error: CliError) -> UnreadPlane {
    let unreachable = error.exit == Exit::Unreachable;
    UnreadPlane { plane, city: city.to_owned(), why: error.why, unreachable }
}

async fn in_time<T>(read: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    tokio::time::timeout(PLANE_TIMEOUT, read).await.unwrap_or_else(|_| {
        let why = format!("no answer within {} seconds", PLANE_TIMEOUT.as_secs());
        Err(CliError::new(Exit::Unreachable, "failed to read the plane", why, ""))
    })
}

type PlaneObjects = (PlaneSnapshot, Vec<RelatedObject>);

async fn read_hub(
    client: Result<Client, CliError>,
    namespace: &str,
    workload: &str,
) -> Result<PlaneObjects, CliError> {
    const HUB: &str = "hub";
    let client = client?;
    let mut plane = read_plane(&client, HUB, "", namespace, workload).await?;
    let bindings = Api::<ResourceBinding>::namespaced(client.clone(), namespace);
    plane.bindings = optional(bindings, "bindings").await?;
    // Rights to these objects are not needed for a diagnosis: what cannot be read is left out.
    let clusters = optional(Api::<Cluster>::all(client.clone()), "clusters").await.ok().flatten();
    let clusters = clusters.unwrap_or_default();
    let mut related: Vec<RelatedObject> = clusters
        .iter()
        .map(|cluster| {
            let city = cluster.label(TOPOLOGY_CITY_CODE);
            RelatedObject::of(
                HUB,
                city,
                "Cluster",
                cluster,
                cluster.status.as_ref().map(|status| &*status.conditions),
            )
        })
        .filter(|object| object.city.is_some())
        .collect();
    let policies = Api::<PropagationPolicy>::namespaced(client.clone(), namespace);
    let policies = optional(policies, "policies").await.ok().flatten().unwrap_or_default();
    for policy in policies {
        let suspends = policy.spec.suspension.as_ref().is_some_and(|s| s.dispatching == Some(true));
        if let Some(city) = policy::city_of(&policy).filter(|_| suspends) {
            related.push(RelatedObject::suspended_policy(HUB, &city, policy.metadata));
        }
    }
    for deployment in &plane.deployments {
        let wanted = names::binding(KIND, deployment.name());
        let binding = plane.bindings.iter().flatten().find(|binding| binding.name() == wanted);
        for cluster in binding.iter().flat_map(|binding| &binding.spec.clusters) {
            let works = Api::<Work>::namespaced(client.clone(), &names::execution_namespace(&cluster.name));
            let name = karmada::names::work(KIND, namespace, deployment.name());
            if let Ok(Some(work)) = works.get_opt(&name).await {
                let city = Some(deployment.spec.city_code.as_str());
                related.push(RelatedObject::of(
                    HUB,
                    city,
                    "Work",
                    &work,
                    work.status.as_ref().map(|status| &*status.conditions),
                ));
            }
        }
    }
    Ok((plane, related))
}

/// Kind of the copies on the hub.
const KIND: &str = "WorkloadDeployment";

async fn read_cell(
    client: Result<Client, CliError>,
    city: &str,
    namespace: &str,
    workload: &str,
) -> Result<PlaneObjects, CliError> {
    let (client, name) = (client?, format!("cell {city}"));
    let plane = read_plane(&client, &name, city, namespace, workload).await?;
    let bindings = Api::<NetworkBinding>::namespaced(client, namespace);
    let bindings = optional(bindings, "network bindings").await.ok().flatten().unwrap_or_default();
    let of_deployment = |binding: &&NetworkBinding| {
        let interfaces = |deployment: &WorkloadDeployment| {
            (0..deployment.spec.template.spec.network_interfaces.len())
                .any(|index| binding.name() == names::network_binding(deployment.name(), index))
        };
        plane.deployments.iter().any(interfaces)
    };
    let related = bindings
        .iter()
        .filter(of_deployment)
        .map(|binding| {
            RelatedObject::of(
                &name,
                Some(city),
                "NetworkBinding",
                binding,
                binding.status.as_ref().map(|status| &*status.conditions),
            )
        })
        .collect();
    Ok((plane, related))
}

async fn read_plane(
    client: &Client,
    name: &str,
    city: &str,
    namespace: &str,
    workload: &str,
) -> Result<PlaneSnapshot, CliError> {
    let deployments: Api<WorkloadDeployment> = Api::namespaced(client.clone(), namespace);
    let mut deployments = optional(deployments, "deployments").await?.unwrap_or_default();
    deployments.retain(|deployment| deployment.spec.workload_ref.name == workload);
    let instances: Api<Instance> = Api::namespaced(client.clone(), namespace);
    let mut instances = optional(instances, "instances").await?.unwrap_or_default();
    instances.retain(|instance| crate::view::snapshot::workload_of(instance) == workload);
    Ok(PlaneSnapshot { name: name.to_owned(), city: city.to_owned(), deployments, instances, bindings: None })
}
