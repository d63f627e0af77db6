//! Network binding and context controllers: a NetworkContext (a network in a location) exists while a
//! NetworkBinding requests it.
//!
//! Reads   cell: NetworkBinding, NetworkContext, Location, SubnetClaim
//! Writes  cell: NetworkContext · NetworkBinding (status)
//! Order   location exists → context → status of the context → status of the binding

use polis_api::conditions::READY;
use polis_api::networking::{
    Location, NetworkBinding, NetworkContext, NetworkContextReference, NetworkContextSpec, SubnetClaim,
};
use polis_api::{ObjectExt, names, reasons};
use polis_core::conditions::{self, DesiredCondition};
use polis_engine::{
    Action, Clock, Engine, Key, ListOptions, Plane, Preconditions, Reconciler, Unresolved, Watch,
};

use super::{by_context, by_given_context, failed, keys, ready, set_condition};
use crate::{Error, managed_metadata};

/// The watches of the controllers in the cell.
pub(super) fn watches() -> Vec<Watch> {
    vec![
        Watch::of::<Location>(),
        Watch::of::<NetworkBinding>().index(by_given_context()),
        Watch::of::<NetworkContext>(),
        Watch::of::<SubnetClaim>().index(by_context()),
    ]
}

/// Registers the controllers with an engine.
pub(super) fn declare(engine: &mut Engine, cell: &Plane, clock: &Clock) {
    let bindings = NetworkBindingController { cell: cell.clone(), clock: clock.clone() };
    engine
        .controller("network-bindings", cell, bindings)
        .for_kind::<NetworkBinding>()
        .watches::<Location>(cell, keys_of_location)
        .watches::<NetworkContext>(cell, keys_of_context)
        .watches::<SubnetClaim>(cell, keys_of_claim);
    engine
        .controller("network-contexts", cell, NetworkContextController { cell: cell.clone() })
        .for_kind::<NetworkContext>()
        .watches::<NetworkBinding>(cell, key_of_binding);
}

/// Reconciles the NetworkBindings of a cell.
struct NetworkBindingController {
    cell: Plane,
    clock: Clock,
}

/// Deletes NetworkContexts without a binding.
struct NetworkContextController {
    cell: Plane,
}

impl Reconciler for NetworkBindingController {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(binding) = self.cell.get::<NetworkBinding>(key)? else { return Ok(Action::AwaitChange) };
        if binding.is_deleting() {
            return Ok(Action::AwaitChange);
        }
        let location = &binding.spec.location.name;
        if self.cell.get::<Location>(location.as_str())?.is_none() {
            let why = format!("location {location:?} does not exist in this cell");
            return self.update_binding(&binding, None, failed(why)).await;
        }
        let name = context_of(&binding);
        let existing = self.cell.get::<NetworkContext>((key.namespace(), name.as_str()))?;
        let context = match existing {
            Some(context) if context.is_deleting() => return Ok(Action::AwaitChange),
            Some(context) if !is_for(&context, &binding) => {
                let why = format!("network context {name} belongs to another network or location");
                return self.update_binding(&binding, None, failed(why)).await;
            }
            Some(context) => context,
            None => match self.cell.create_missing(&mk_context(&binding)).await? {
                Some(created) => created,
                None => return Ok(Action::AwaitChange), // its event requeues the key
            },
        };
        self.set_context_ready(&context).await?;
        let claims = self.cell.find::<SubnetClaim>(&by_context(), &name)?;
        let claims = claims.iter().filter(|claim| claim.metadata.namespace == binding.metadata.namespace);
        let condition = match claims.into_iter().find_map(failure_message) {
            Some(why) => failed(why),
            None => ready(reasons::NETWORK_CONTEXT_READY, format!("network context {name} is ready")),
        };
        self.update_binding(&binding, Some(&name), condition).await
    }
}

impl NetworkBindingController {
    /// There is nothing to program, so an existing context is ready.
    async fn set_context_ready(&self, context: &NetworkContext) -> Result<(), Error> {
        let programmed = DesiredCondition::new_true(
            polis_api::conditions::PROGRAMMED,
            reasons::PROGRAMMED,
            "no programming is needed on one machine",
        );
        let desired = [programmed, ready(reasons::READY, "the network is ready")];
        // The bindings of a network share the context.
        let status = |current: &NetworkContext| {
            let mut status = current.status.clone().unwrap_or_default();
            for condition in &desired {
                set_condition(&mut status.conditions, &current.metadata, condition, &self.clock);
            }
            Some(status)
        };
        self.cell.modify_status((context.namespace(), context.name()), status).await?;
        Ok(())
    }

    async fn update_binding(
        &self,
        binding: &NetworkBinding,
        context: Option<&str>,
        condition: DesiredCondition,
    ) -> Result<Action, Error> {
        let mut status = binding.status.clone().unwrap_or_default();
        if let Some(name) = context {
            let namespace = binding.metadata.namespace.clone();
            let reference =
                NetworkContextReference { name: name.to_owned(), namespace, ..Default::default() };
            status.network_context_ref = Some(reference);
        }
        set_condition(&mut status.conditions, &binding.metadata, &condition, &self.clock);
        self.cell.write_status(binding, status).await?;
        Ok(Action::AwaitChange)
    }
}

impl Reconciler for NetworkContextController {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(context) = self.cell.get::<NetworkContext>(key)? else { return Ok(Action::AwaitChange) };
        let used = |bindings: &[NetworkBinding]| {
            bindings.iter().any(|b| !b.is_deleting() && context_of(b) == *key.name)
        };
        // The common case: a binding has the context in its status, which the index finds without reading the
        // bindings.
        let bound =
            self.cell.names_within::<NetworkBinding>(key.namespace(), &by_given_context(), &key.name)?;
        if context.is_deleting() || !bound.is_empty() || used(&self.cell.list_within(key.namespace())?) {
            return Ok(Action::AwaitChange);
        }
        if !used(&self.cell.uncached().list(&ListOptions::within(key.namespace())).await?) {
            self.cell.delete(&context, Preconditions::UidAndResourceVersion).await?;
        }
        Ok(Action::AwaitChange)
    }
}

/// Name of the context that a binding requests.
fn context_of(binding: &NetworkBinding) -> String {
    let network = &binding.spec.network;
    names::network_context(&network.name, network.namespace.as_deref(), &binding.spec.location.name)
}

fn mk_context(binding: &NetworkBinding) -> NetworkContext {
    let (network, location) = (binding.spec.network.clone(), binding.spec.location.clone());
    NetworkContext {
        metadata: managed_metadata(binding.metadata.namespace.as_deref(), &context_of(binding)),
        spec: NetworkContextSpec { network, location, ..Default::default() },
        status: None,
    }
}

/// Whether a context is for the network and location of a binding. Dashes join the parts of a context name,
/// so two pairs of network and location may share one name.
fn is_for(context: &NetworkContext, binding: &NetworkBinding) -> bool {
    context.spec.network == binding.spec.network && context.spec.location == binding.spec.location
}

/// The message of a claim that failed.
fn failure_message(claim: &SubnetClaim) -> Option<String> {
    let ready = conditions::find(&claim.status.as_ref()?.conditions, READY)?;
    let failed = ready.status == "False" && ready.reason == reasons::NETWORK_FAILED_TO_CREATE;
    failed.then(|| ready.message.clone())
}

/// Maps a binding to the context that it requests.
fn key_of_binding(cell: &Plane, binding: &NetworkBinding) -> Result<Vec<Key>, Unresolved> {
    let namespace = binding.namespace();
    Ok(vec![Key::new(cell.name().clone(), namespace, &context_of(binding))])
}

/// Maps a location to its bindings.
fn keys_of_location(cell: &Plane, location: &Location) -> Result<Vec<Key>, Unresolved> {
    let bindings = cell.list::<NetworkBinding>()?;
    let here = |binding: &&NetworkBinding| binding.spec.location.name == location.name();
    keys(cell, bindings.iter().filter(here))
}

/// Maps a context to the bindings that request it.
fn keys_of_context(cell: &Plane, context: &NetworkContext) -> Result<Vec<Key>, Unresolved> {
    requesting(cell, context.namespace(), context.name())
}

/// Maps a subnet claim to the bindings that request its context.
fn keys_of_claim(cell: &Plane, claim: &SubnetClaim) -> Result<Vec<Key>, Unresolved> {
    requesting(cell, claim.namespace(), &claim.spec.network_context.name)
}

fn requesting(cell: &Plane, namespace: &str, context: &str) -> Result<Vec<Key>, Unresolved> {
    let bindings: Vec<NetworkBinding> = cell.list_within(namespace)?;
    keys(cell, bindings.iter().filter(|binding| context_of(binding) == context))
}
