//! The network objects of a cell: which of them matter to a deployment, and to which deployments one matters.

use std::collections::BTreeSet;

use polis_api::compute::WorkloadDeployment;
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polis_api::networking::{Location, NetworkBinding, NetworkContext, Subnet, SubnetClaim};
use polis_api::{labels, names};
use polis_core::{networks, owner};
use polis_engine::{Error as EngineError, Index, Key, Plane, Unresolved, Watch};

/// Whether a cell keeps networks for its deployments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Networks {
    /// Instances start without; a `Network` gate that somebody left is dropped.
    Off,
    /// If the cell serves the kinds of the network service. Kinds that come later are noticed.
    #[default]
    WhereServed,
}

impl Networks {
    /// Whether networks are kept at the moment: every kind that it takes is served.
    pub(crate) fn kept(self, cell: &Plane) -> Result<bool, EngineError> {
        Ok(self == Networks::WhereServed
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

/// Bindings by the context that they were given.
fn by_given_context() -> Index {
    Index::field("status.networkContextRef.name")
}

/// Subnet claims by the context that they are for.
fn by_context() -> Index {
    Index::field("spec.networkContext.name")
}

/// What is watched where networks are kept.
pub(crate) fn watches() -> [Watch; 5] {
    [
        Watch::of::<Location>(),
        Watch::of::<NetworkBinding>().index(by_given_context()),
        Watch::of::<NetworkContext>(),
        Watch::of::<SubnetClaim>().index(by_context()),
        Watch::of::<Subnet>(),
    ]
}

/// The network objects that matter to one deployment.
#[derive(Default)]
pub(crate) struct Look {
    bindings: Vec<NetworkBinding>,
    contexts: Vec<NetworkContext>,
    claims: Vec<SubnetClaim>,
    subnets: Vec<Subnet>,
}

impl Look {
    /// Reads them from what the cell's watches have seen.
    pub(crate) fn at(cell: &Plane, deployment: &WorkloadDeployment) -> Result<Self, EngineError> {
        let namespace = deployment.metadata.namespace.as_deref().unwrap_or_default();
        let interfaces = deployment.spec.template.spec.network_interfaces.len();
        let mut look = Look {
            bindings: bindings(cell, namespace, owner::name(&deployment.metadata), interfaces)?,
            ..Look::default()
        };
        let mut seen = BTreeSet::new();
        for binding in &look.bindings {
            let Some(reference) =
                binding.status.as_ref().and_then(|status| status.network_context_ref.as_ref())
            else {
                continue;
            };
            let home = reference.namespace.as_deref().unwrap_or(namespace);
            if !seen.insert((home.to_owned(), reference.name.clone())) {
                continue;
            }
            look.contexts.extend(cell.get::<NetworkContext>((home, reference.name.as_str()))?);
            let claims = cell.find::<SubnetClaim>(&by_context(), &reference.name)?;
            for claim in claims.into_iter().filter(|claim| claim.metadata.namespace.as_deref() == Some(home))
            {
                let subnet = claim.status.as_ref().and_then(|status| status.subnet_ref.as_ref());
                if let Some(subnet) = subnet {
                    look.subnets.extend(cell.get::<Subnet>((home, subnet.name.as_str()))?);
                }
                look.claims.push(claim);
            }
        }
        Ok(look)
    }

    pub(crate) fn standing(&self) -> networks::Standing<'_> {
        networks::Standing {
            bindings: &self.bindings,
            contexts: &self.contexts,
            claims: &self.claims,
            subnets: &self.subnets,
        }
    }
}

/// The bindings of a deployment's interfaces, as far as there are any.
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

/// The deployments of the city that a location serves.
pub(crate) fn keys_of_location(cell: &Plane, location: &Location) -> Result<Vec<Key>, Unresolved> {
    let Some(city) = location.spec.topology.get(labels::TOPOLOGY_CITY_CODE).filter(|city| !city.is_empty())
    else {
        return Ok(Vec::new());
    };
    let served = cell.find::<WorkloadDeployment>(&by_city(), city)?;
    Ok(served
        .iter()
        .map(|deployment| key(cell, &deployment.metadata, owner::name(&deployment.metadata)))
        .collect())
}

/// The deployment that asked for a binding.
pub(crate) fn keys_of_binding(cell: &Plane, binding: &NetworkBinding) -> Result<Vec<Key>, Unresolved> {
    let asked = owner::controller(&binding.metadata).filter(|owner| owner.kind == "WorkloadDeployment");
    Ok(asked.map(|owner| key(cell, &binding.metadata, &owner.name)).into_iter().collect())
}

/// The deployments whose bindings were given a context.
pub(crate) fn keys_of_context(cell: &Plane, context: &NetworkContext) -> Result<Vec<Key>, Unresolved> {
    users(cell, owner::name(&context.metadata))
}

/// The deployments that wait for a subnet claim.
pub(crate) fn keys_of_claim(cell: &Plane, claim: &SubnetClaim) -> Result<Vec<Key>, Unresolved> {
    users(cell, &claim.spec.network_context.name)
}

/// The deployments that wait for a subnet.
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

fn key(cell: &Plane, meta: &ObjectMeta, name: &str) -> Key {
    Key::new(cell.name().clone(), meta.namespace.as_deref().unwrap_or_default(), name)
}
