//! The network objects of a deployment in a cell, and when they are ready.
//!
//! Each interface has a NetworkBinding, which requests the network at the cell's location. The network
//! service creates a NetworkContext for it. Each context needs one private IPv4 SubnetClaim, shared by all
//! instances, and a Subnet. The networks are ready when all of these are ready. In a cell without networking
//! the state is always [`NetworkState::Ready`].

use std::collections::BTreeSet;

use polis_api::compute::{Workload, WorkloadDeployment};
use polis_api::conditions::READY;
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use polis_api::networking::{
    IPV4, Location, LocationReference, NetworkBinding, NetworkBindingSpec, NetworkContext,
    NetworkContextReference, NetworkReference, SUBNET_CLASS_PRIVATE, Subnet, SubnetClaim, SubnetClaimSpec,
};
use polis_api::{ObjectExt, labels, names, reasons};

use crate::{conditions, owner};

/// The state of the networks of a deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkState {
    /// All network objects are ready: instances may start.
    Ready,
    /// An object is missing or not ready; the message names it.
    Pending(String),
    /// The cell has no location of the city, so no network can be requested; the message names the city.
    Unserved(String),
    /// The network service has rejected a binding; the message is that of the service.
    Refused(String),
}

/// The network objects to create, and the state of the existing ones.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkPlan {
    /// The state of the networks.
    pub state: NetworkState,
    /// Bindings to create.
    pub bindings: Vec<NetworkBinding>,
    /// Subnet claims to create.
    pub claims: Vec<SubnetClaim>,
}

/// The existing network objects of a cell that may concern a deployment.
#[derive(Clone, Copy, Debug, Default)]
pub struct NetworkObjects<'a> {
    /// Bindings of the deployment's namespace.
    pub bindings: &'a [NetworkBinding],
    /// Contexts that those bindings reference.
    pub contexts: &'a [NetworkContext],
    /// Subnet claims of the contexts' namespaces.
    pub claims: &'a [SubnetClaim],
    /// Subnets of the contexts' namespaces.
    pub subnets: &'a [Subnet],
}

/// The networks that a workload references, as sorted (namespace, name) pairs. The namespace defaults to the
/// workload's.
pub fn required(workload: &Workload) -> BTreeSet<(String, String)> {
    let own = workload.namespace();
    let interfaces = workload.spec.template.spec.network_interfaces.iter();
    let key = |namespace: Option<&str>, name: &str| (namespace.unwrap_or(own).to_owned(), name.to_owned());
    interfaces
        .map(|interface| {
            key(interface.network.namespace.as_deref().filter(|n| !n.is_empty()), &interface.network.name)
        })
        .collect()
}

/// The location that serves a city in a cell; of several, the first by name.
pub fn location(city: &str, locations: &[Location]) -> Option<LocationReference> {
    let serves = |location: &&Location| {
        !city.is_empty()
            && location.spec.topology.get(labels::TOPOLOGY_CITY_CODE).is_some_and(|code| code == city)
    };
    let first = locations.iter().filter(serves).min_by_key(|location| location.name())?;
    Some(LocationReference {
        name: first.name().to_owned(),
        namespace: first.metadata.namespace.clone(),
        ..Default::default()
    })
}

/// Plans the network objects of a deployment.
pub fn plan(
    deployment: &WorkloadDeployment,
    location: Option<&LocationReference>,
    existing: NetworkObjects,
) -> NetworkPlan {
    let mut plan = NetworkPlan { state: NetworkState::Ready, bindings: Vec::new(), claims: Vec::new() };
    let Some(location) = location else {
        plan.state = NetworkState::Unserved(format!(
            "no location of this cell serves city {}",
            deployment.spec.city_code
        ));
        return plan;
    };
    let mut contexts = Vec::new();
    for (index, interface) in deployment.spec.template.spec.network_interfaces.iter().enumerate() {
        let name = names::network_binding(deployment.name(), index);
        let Some(binding) = existing.bindings.iter().find(|binding| binding.name() == name) else {
            plan.worsen(NetworkState::Pending(format!(
                "network {} is being requested",
                interface.network.name
            )));
            let network = NetworkReference {
                name: interface.network.name.clone(),
                namespace: interface.network.namespace.clone(),
                ..Default::default()
            };
            plan.bindings.push(new_binding(deployment, name, network, location));
            continue;
        };
        let status = binding.status.clone().unwrap_or_default();
        match (binding_state(&status.conditions), status.network_context_ref) {
            (Ok(()), Some(context)) => contexts.push(context),
            (Ok(()), None) => {
                plan.worsen(NetworkState::Pending(format!("binding {name} has no context yet")))
            }
            (Err(Some(refusal)), _) => plan.worsen(NetworkState::Refused(refusal)),
            (Err(None), _) => plan.worsen(NetworkState::Pending(format!("binding {name} is not ready"))),
        }
    }
    contexts.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    contexts.dedup();
    for context in contexts {
        plan.add_context(deployment, &context, location, existing);
    }
    plan
}

/// The message of the network service if it has rejected a binding of a deployment. The instance controller
/// reports it as the reason why an instance does not start.
pub fn refusal(deployment: &str, interfaces: usize, bindings: &[NetworkBinding]) -> Option<String> {
    (0..interfaces).map(|index| names::network_binding(deployment, index)).find_map(|name| {
        let binding = bindings.iter().find(|binding| binding.name() == name)?;
        binding_state(&binding.status.as_ref()?.conditions).err().flatten()
    })
}

impl NetworkPlan {
    /// Lowers the state: `Refused` replaces `Pending`, `Pending` replaces `Ready`; of equals the first is
    /// kept.
    fn worsen(&mut self, state: NetworkState) {
        let weight = |state: &NetworkState| match state {
            NetworkState::Ready => 0,
            NetworkState::Pending(_) => 1,
            NetworkState::Unserved(_) => 2,
            NetworkState::Refused(_) => 3,
        };
        if weight(&state) > weight(&self.state) {
            self.state = state;
        }
    }

    /// Adds the subnet claim that a context needs, and lowers the state if one of its objects is not ready.
    fn add_context(
        &mut self,
        deployment: &WorkloadDeployment,
        reference: &NetworkContextReference,
        location: &LocationReference,
        existing: NetworkObjects,
    ) {
        let namespace = reference.namespace.as_ref().or(deployment.metadata.namespace.as_ref());
        let here = |meta: &ObjectMeta| meta.namespace.as_ref() == namespace;
        let not_yet = |what: &str| {
            NetworkState::Pending(format!("{what} of network context {} is not ready", reference.name))
        };

        let context = existing.contexts.iter().find(|c| here(&c.metadata) && c.name() == reference.name);
        let Some(context) = context.filter(|c| is_ready(c.status.as_ref().map(|s| &s.conditions[..]))) else {
            return self
                .worsen(NetworkState::Pending(format!("network context {} is not ready", reference.name)));
        };
        let mut fitting: Vec<_> = existing
            .claims
            .iter()
            .filter(|claim| {
                here(&claim.metadata)
                    && claim.spec.subnet_class == SUBNET_CLASS_PRIVATE
                    && claim.spec.ip_family == IPV4
                    && claim.spec.network_context.name == reference.name
                    && claim.spec.location.name == location.name
            })
            .collect();
        fitting.sort_by_key(|claim| claim.name());
        let Some(claim) = fitting.first() else {
            self.claims.push(new_claim(context, location));
            return self.worsen(not_yet("the subnet claim"));
        };
        let status = claim.status.clone().unwrap_or_default();
        let Some(subnet) = status.subnet_ref.filter(|_| conditions::is_true(&status.conditions, READY))
        else {
            return self.worsen(not_yet("the subnet claim"));
        };
        let subnet = existing.subnets.iter().find(|s| here(&s.metadata) && s.name() == subnet.name);
        if !subnet.is_some_and(|subnet| is_ready(subnet.status.as_ref().map(|s| &s.conditions[..]))) {
            self.worsen(not_yet("the subnet"));
        }
    }
}

fn is_ready(conditions: Option<&[Condition]>) -> bool {
    conditions.is_some_and(|conditions| conditions::is_true(conditions, READY))
}

/// `Ok` if a binding is ready; otherwise the message of the rejection, if it was rejected.
fn binding_state(conditions: &[Condition]) -> Result<(), Option<String>> {
    match conditions::find(conditions, READY) {
        Some(ready) if ready.status == "True" => Ok(()),
        Some(ready) if ready.status == "False" && ready.reason == reasons::NETWORK_FAILED_TO_CREATE => {
            Err(Some(ready.message.clone()))
        }
        _ => Err(None),
    }
}

fn new_binding(
    deployment: &WorkloadDeployment,
    name: String,
    network: NetworkReference,
    location: &LocationReference,
) -> NetworkBinding {
    let metadata = ObjectMeta {
        name: Some(name),
        namespace: deployment.metadata.namespace.clone(),
        owner_references: Some(vec![owner::controller_reference(deployment)]),
        ..Default::default()
    };
    let spec = NetworkBindingSpec { network, location: location.clone(), ..Default::default() };
    NetworkBinding { metadata, spec, status: None }
}

fn new_claim(context: &NetworkContext, location: &LocationReference) -> SubnetClaim {
    let name = context.name();
    let metadata = ObjectMeta {
        name: Some(names::subnet_claim(name)),
        namespace: context.metadata.namespace.clone(),
        owner_references: Some(vec![owner::reference(context)]),
        ..Default::default()
    };
    let spec = SubnetClaimSpec {
        subnet_class: SUBNET_CLASS_PRIVATE.into(),
        network_context: NetworkContextReference { name: name.to_owned(), ..Default::default() },
        location: location.clone(),
        ip_family: IPV4.into(),
        ..Default::default()
    };
    SubnetClaim { metadata, spec, status: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{mk_condition, mk_deployment, mk_meta, mk_workload};
    use polis_api::networking::{NetworkBindingStatus, SubnetReference};

    fn mk_location(name: &str, city: &str) -> Location {
        let mut location = Location { metadata: mk_meta("", name), ..Default::default() };
        location.metadata.namespace = None;
        location.spec.topology.insert(labels::TOPOLOGY_CITY_CODE.into(), city.into());
        location
    }

    fn mk_location_ref() -> LocationReference {
        LocationReference { name: "dfw-a".into(), ..Default::default() }
    }

    fn bound(status: &str, reason: &str) -> NetworkBinding {
        let network = NetworkReference { name: "test-network".into(), ..Default::default() };
        let mut binding = new_binding(&mk_deployment("web"), "web-net-0".into(), network, &mk_location_ref());
        binding.status = Some(NetworkBindingStatus {
            network_context_ref: Some(NetworkContextReference { name: "ctx".into(), ..Default::default() }),
            conditions: vec![mk_condition(READY, status, reason)],
            ..Default::default()
        });
        binding
    }

    fn context(status: &str) -> NetworkContext {
        let mut context = NetworkContext { metadata: mk_meta("ns-1", "ctx"), ..Default::default() };
        context.status.get_or_insert_default().conditions = vec![mk_condition(READY, status, "Why")];
        context
    }

    fn claim(status: &str) -> SubnetClaim {
        let mut claim = new_claim(&context("True"), &mk_location_ref());
        let state = claim.status.get_or_insert_default();
        state.conditions = vec![mk_condition(READY, status, "Why")];
        state.subnet_ref = Some(SubnetReference { name: "ctx-0".into(), ..Default::default() });
        claim
    }

    fn subnet(status: &str) -> Subnet {
        let mut subnet = Subnet { metadata: mk_meta("ns-1", "ctx-0"), ..Default::default() };
        subnet.status.get_or_insert_default().conditions = vec![mk_condition(READY, status, "Why")];
        subnet
    }

    fn plan_of(
        bindings: &[NetworkBinding],
        contexts: &[NetworkContext],
        claims: &[SubnetClaim],
        subnets: &[Subnet],
    ) -> NetworkPlan {
        plan(
            &mk_deployment("web"),
            Some(&mk_location_ref()),
            NetworkObjects { bindings, contexts, claims, subnets },
        )
    }

    #[test]
    fn every_interface_gets_a_binding_at_the_cells_location() {
        let mut deployment = mk_deployment("web");
        let mut second = deployment.spec.template.spec.network_interfaces[0].clone();
        second.network.namespace = Some("nets".into());
        deployment.spec.template.spec.network_interfaces.push(second);
        let plan = plan(&deployment, Some(&mk_location_ref()), NetworkObjects::default());
        let names: Vec<_> = plan.bindings.iter().map(|b| b.name()).collect();
        assert_eq!(names, ["web-net-0", "web-net-1"]);
        assert_eq!(plan.bindings[1].spec.network.namespace.as_deref(), Some("nets"));
        assert!(owner::is_controlled_by(&plan.bindings[0].metadata, "uid-web"));
        assert!(matches!(plan.state, NetworkState::Pending(_)));
    }

    #[test]
    fn a_ready_context_without_a_claim_gets_one() {
        let plan = plan_of(&[bound("True", "Ready")], &[context("True")], &[], &[]);
        assert_eq!(plan.claims[0].name(), "ctx-0");
        assert_eq!(plan.claims[0].metadata.owner_references.as_ref().unwrap()[0].controller, None);
        assert!(matches!(plan.state, NetworkState::Pending(_)));
    }

    #[test]
    fn ready_objects_need_no_action() {
        let plan =
            plan_of(&[bound("True", "Ready")], &[context("True")], &[claim("True")], &[subnet("True")]);
        assert_eq!(plan, NetworkPlan { state: NetworkState::Ready, bindings: vec![], claims: vec![] });
    }

    #[test]
    fn an_object_that_is_not_ready_makes_the_state_pending() {
        let plans = [
            plan_of(&[bound("False", "Pending")], &[context("True")], &[claim("True")], &[subnet("True")]),
            plan_of(&[bound("True", "Ready")], &[], &[claim("True")], &[subnet("True")]),
            plan_of(&[bound("True", "Ready")], &[context("False")], &[claim("True")], &[subnet("True")]),
            plan_of(&[bound("True", "Ready")], &[context("True")], &[claim("False")], &[subnet("True")]),
            plan_of(&[bound("True", "Ready")], &[context("True")], &[claim("True")], &[subnet("False")]),
            plan_of(&[bound("True", "Ready")], &[context("True")], &[claim("True")], &[]),
        ];
        for plan in plans {
            assert!(matches!(plan.state, NetworkState::Pending(_)), "{plan:?}");
            assert!(plan.bindings.is_empty() && plan.claims.is_empty(), "{plan:?}");
        }
    }

    #[test]
    fn a_rejected_binding_outranks_pending_objects() {
        let plan = plan_of(&[bound("False", "NetworkFailedToCreate")], &[], &[], &[]);
        assert_eq!(plan.state, NetworkState::Refused(String::new()));
        assert_eq!(refusal("web", 1, &[bound("False", "NetworkFailedToCreate")]), Some(String::new()));
        assert_eq!(refusal("web", 1, &[bound("False", "Pending")]), None);
        assert_eq!(refusal("api", 1, &[bound("False", "NetworkFailedToCreate")]), None);
    }

    #[test]
    fn a_cell_without_a_location_of_the_city_is_reported_and_creates_nothing() {
        let plan = plan(&mk_deployment("web"), None, NetworkObjects::default());
        assert!(matches!(plan.state, NetworkState::Unserved(_)) && plan.bindings.is_empty());
    }

    #[test]
    fn a_network_is_looked_up_in_the_namespace_of_the_interface() {
        let mut workload = mk_workload("web", &["dfw"]);
        let interfaces = &mut workload.spec.template.spec.network_interfaces;
        interfaces.push(interfaces[0].clone());
        interfaces.push(interfaces[0].clone());
        interfaces[2].network.namespace = Some("nets".into());
        let names: Vec<_> =
            required(&workload).into_iter().map(|(namespace, name)| format!("{namespace}/{name}")).collect();
        assert_eq!(names, ["nets/test-network", "shop/test-network"]);
    }

    #[test]
    fn the_location_of_a_city_is_the_first_by_name() {
        let locations = [mk_location("b", "dfw"), mk_location("a", "dfw"), mk_location("0", "ord")];
        assert_eq!(location("dfw", &locations).unwrap().name, "a");
        assert_eq!(location("lhr", &locations), None);
        assert_eq!(location("", &[mk_location("a", "")]), None);
    }
}
