//! The network objects of a cell: watches, indexes, and the mapping from each object to deployments.

use std::collections::BTreeSet;

use polis_api::compute::WorkloadDeployment;
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use polis_api::networking::{Location, NetworkBinding, NetworkContext, Subnet, SubnetClaim};
use polis_api::{ObjectExt, labels, names};
use polis_core::{networks, owner};
use polis_engine::{Error as EngineError, Index, Key, Plane, Unresolved, Watch};

/// Whether a cell manages networks for its deployments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NetworkMode {
    /// Instances start without a network. A `Network` gate of an existing instance is removed.
    Disabled,
    /// Networks are managed while the cell serves the kinds of the network service. Kinds may be installed
    /// later.
    #[default]
    WhenServed,
}

impl NetworkMode {
    /// Whether the cell serves every kind of the network service now.
    pub(crate) fn enabled(self, cell: &Plane) -> Result<bool, EngineError> {
        Ok(self == NetworkMode::WhenServed
            && cell.serves::<Location>()?
            && cell.serves::<NetworkBinding>()?
            && cell.serves::<NetworkContext>()?
            && cell.serves::<SubnetClaim>()?
            && cell.serves::<Subnet>()?)
    }
}

/// Deployments by their city.
pub(crate) fn by_city() -> Index {
    Index::field("spec.cityCode")
}

/// Bindings by the context in their status.
fn by_given_context() -> Index {
    Index::field("status.networkContextRef.name")
}

/// Subnet claims by the context in their spec.
fn by_context() -> Index {
    Index::field("spec.networkContext.name")
}

/// The watches of a cell with networks.
pub(crate) fn watches() -> [Watch; 5] {
    [
        Watch::of::<Location>(),
        Watch::of::<NetworkBinding>().index(by_given_context()),
        Watch::of::<NetworkContext>(),
        Watch::of::<SubnetClaim>().index(by_context()),
        Watch::of::<Subnet>(),
    ]
}

/// The network objects of one deployment.
#[derive(Default)]
pub(crate) struct NetworkObjects {
    bindings: Vec<NetworkBinding>,
    contexts: Vec<NetworkContext>,
    claims: Vec<SubnetClaim>,
    subnets: Vec<Subnet>,
}

impl NetworkObjects {
    /// Reads the objects from the cache.
    pub(crate) fn read(cell: &Plane, deployment: &WorkloadDeployment) -> Result<Self, EngineError> {
        let namespace = deployment.namespace();
        let interfaces = deployment.spec.template.spec.network_interfaces.len();
        let mut objects = NetworkObjects {
            bindings: bindings(cell, namespace, deployment.name(), interfaces)?,
            ..NetworkObjects::default()
        };
        let mut visited = BTreeSet::new();
        for binding in &objects.bindings {
            let Some(reference) =
                binding.status.as_ref().and_then(|status| status.network_context_ref.as_ref())
            else {
                continue;
            };
            let context_namespace = reference.namespace.as_deref().unwrap_or(namespace);
            if !visited.insert((context_namespace.to_owned(), reference.name.clone())) {
                continue;
            }
            objects
                .contexts
                .extend(cell.get::<NetworkContext>((context_namespace, reference.name.as_str()))?);
            let claims = cell.find::<SubnetClaim>(&by_context(), &reference.name)?;
            for claim in claims.into_iter().filter(|claim| claim.namespace() == context_namespace) {
                let subnet = claim.status.as_ref().and_then(|status| status.subnet_ref.as_ref());
                if let Some(subnet) = subnet {
                    objects.subnets.extend(cell.get::<Subnet>((context_namespace, subnet.name.as_str()))?);
                }
                objects.claims.push(claim);
            }
        }
        Ok(objects)
    }

    pub(crate) fn existing(&self) -> networks::NetworkObjects<'_> {
        networks::NetworkObjects {
            bindings: &self.bindings,
            contexts: &self.contexts,
            claims: &self.claims,
            subnets: &self.subnets,
        }
    }
}

/// The existing bindings of a deployment's network interfaces.
pub(crate) fn bindings(
    cell: &Plane,
    namespace: &str,
    deployment: &str,
    interfaces: usize,
) -> Result<Vec<NetworkBinding>, EngineError> {
    let mut found = Vec::new();
    for index in 0..interfaces {
        let name = names::network_binding(deployment, index);
        found.extend(cell.get::<NetworkBinding>((namespace, name.as_str()))?);
    }
    Ok(found)
}

/// Maps a location to the deployments of its city.
pub(crate) fn keys_of_location(cell: &Plane, location: &Location) -> Result<Vec<Key>, Unresolved> {
    let Some(city) = location.spec.topology.get(labels::TOPOLOGY_CITY_CODE).filter(|city| !city.is_empty())
    else {
        return Ok(Vec::new());
    };
    let served = cell.find::<WorkloadDeployment>(&by_city(), city)?;
    Ok(served.iter().map(|deployment| Key::of(cell, deployment)).collect())
}

/// Maps a binding to the deployment that controls it.
pub(crate) fn keys_of_binding(cell: &Plane, binding: &NetworkBinding) -> Result<Vec<Key>, Unresolved> {
    let owner = owner::controller(&binding.metadata).filter(|owner| owner.kind == "WorkloadDeployment");
    let key = |owner: &OwnerReference| Key::new(cell.name().clone(), binding.namespace(), &owner.name);
    Ok(owner.map(key).into_iter().collect())
}

/// Maps a context to the deployments whose bindings refer to it.
pub(crate) fn keys_of_context(cell: &Plane, context: &NetworkContext) -> Result<Vec<Key>, Unresolved> {
    users(cell, context.name())
}

/// Maps a subnet claim to the deployments that use its context.
pub(crate) fn keys_of_claim(cell: &Plane, claim: &SubnetClaim) -> Result<Vec<Key>, Unresolved> {
    users(cell, &claim.spec.network_context.name)
}

/// Maps a subnet to the deployments that use its context.
pub(crate) fn keys_of_subnet(cell: &Plane, subnet: &Subnet) -> Result<Vec<Key>, Unresolved> {
    users(cell, &subnet.spec.network_context.name)
}

fn users(cell: &Plane, context: &str) -> Result<Vec<Key>, Unresolved> {
    let mut keys = Vec::new();
    for binding in cell.find::<NetworkBinding>(&by_given_context(), context)? {
        keys.extend(keys_of_binding(cell, &binding)?);
    }
    Ok(keys)
}
