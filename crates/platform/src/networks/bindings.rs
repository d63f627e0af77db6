//! Bindings and contexts: a network, wanted in a location, and it there.

use polis_api::conditions::READY;
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polis_api::networking::{
    Location, NetworkBinding, NetworkContext, NetworkContextReference, NetworkContextSpec, SubnetClaim,
};
use polis_api::{names, reasons};
use polis_core::conditions::{self, Verdict};
use polis_core::owner;
use polis_engine::{Clock, Exactly, Key, Outcome, Plane, Query, Reconciler, Unresolved};

use super::{by_context, by_given_context, failed, keys, ready, say};
use crate::{Error, made_here};

/// Answers bindings.
pub(super) struct Bindings {
    pub(super) cell: Plane,
    pub(super) clock: Clock,
}

/// Takes away contexts that nobody is bound to.
pub(super) struct Contexts {
    pub(super) cell: Plane,
}

impl Reconciler for Bindings {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Outcome, Error> {
        let Some(binding) = self.cell.get::<NetworkBinding>(key)? else { return Ok(Outcome::Settled) };
        if owner::is_deleting(&binding.metadata) {
            return Ok(Outcome::Settled);
        }
        let location = &binding.spec.location.name;
        if self.cell.get::<Location>(location.as_str())?.is_none() {
            let why = format!("location {location:?} is not a location of this cell");
            return self.answer(&binding, None, failed(why)).await;
        }
        let name = context_of(&binding);
        let standing = self.cell.get::<NetworkContext>((key.namespace(), name.as_str()))?;
        let context = match standing {
            Some(context) if owner::is_deleting(&context.metadata) => return Ok(Outcome::Settled),
            Some(context) if !is_for(&context, &binding) => {
                let why = format!("network context {name} belongs to another network or location");
                return self.answer(&binding, None, failed(why)).await;
            }
            Some(context) => context,
            None => self.cell.create(&mk_context(&binding)).await?,
        };
        self.program(&context).await?;
        let claims = self.cell.find::<SubnetClaim>(&by_context(), &name)?;
        let refused = claims.iter().filter(|claim| claim.metadata.namespace == binding.metadata.namespace);
        let verdict = match refused.into_iter().find_map(refusal) {
            Some(why) => failed(why),
            None => ready(reasons::NETWORK_CONTEXT_READY, format!("network context {name} is ready")),
        };
        self.answer(&binding, Some(&name), verdict).await
    }
}

impl Bindings {
    /// There is nothing to program: a context is ready when it is there.
    async fn program(&self, context: &NetworkContext) -> Result<(), Error> {
        let mut said = context.clone();
        let conditions = &mut said.status.get_or_insert_default().conditions;
        let programmed = Verdict::yes(
            polis_api::conditions::PROGRAMMED,
            reasons::PROGRAMMED,
            "nothing to do on one machine",
        );
        say(conditions, &context.metadata, &programmed, &self.clock);
        say(conditions, &context.metadata, &ready(reasons::READY, "the network can be used"), &self.clock);
        self.cell.update_status(context, &said).await?;
        Ok(())
    }

    async fn answer(
        &self,
        binding: &NetworkBinding,
        context: Option<&str>,
        verdict: Verdict,
    ) -> Result<Outcome, Error> {
        let mut said = binding.clone();
        let status = said.status.get_or_insert_default();
        if let Some(name) = context {
            let namespace = binding.metadata.namespace.clone();
            let reference =
                NetworkContextReference { name: name.to_owned(), namespace, ..Default::default() };
            status.network_context_ref = Some(reference);
        }
        say(&mut status.conditions, &binding.metadata, &verdict, &self.clock);
        self.cell.update_status(binding, &said).await?;
        Ok(Outcome::Settled)
    }
}

impl Reconciler for Contexts {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Outcome, Error> {
        let Some(context) = self.cell.get::<NetworkContext>(key)? else { return Ok(Outcome::Settled) };
        let used = |bindings: &[NetworkBinding]| {
            bindings.iter().any(|b| !owner::is_deleting(&b.metadata) && context_of(b) == *key.name)
        };
        // Most often somebody was given it, which is found without a look at the bindings themselves.
        let given =
            self.cell.names_within::<NetworkBinding>(key.namespace(), &by_given_context(), &key.name)?;
        if owner::is_deleting(&context.metadata)
            || !given.is_empty()
            || used(&self.cell.list_within(key.namespace())?)
        {
            return Ok(Outcome::Settled);
        }
        if !used(&self.cell.live().list(&Query::within(key.namespace())).await?) {
            self.cell.delete(&context, Exactly::State).await?;
        }
        Ok(Outcome::Settled)
    }
}

/// Name of the context that a binding asks for.
fn context_of(binding: &NetworkBinding) -> String {
    let network = &binding.spec.network;
    names::network_context(&network.name, network.namespace.as_deref(), &binding.spec.location.name)
}

fn mk_context(binding: &NetworkBinding) -> NetworkContext {
    let (network, location) = (binding.spec.network.clone(), binding.spec.location.clone());
    NetworkContext {
        metadata: made_here(binding.metadata.namespace.as_deref(), &context_of(binding)),
        spec: NetworkContextSpec { network, location, ..Default::default() },
        status: None,
    }
}

/// Names are joined by dashes, so that two pairs of network and location may share one.
fn is_for(context: &NetworkContext, binding: &NetworkBinding) -> bool {
    context.spec.network == binding.spec.network && context.spec.location == binding.spec.location
}

/// Why a claim got no addresses.
fn refusal(claim: &SubnetClaim) -> Option<String> {
    let ready = conditions::find(&claim.status.as_ref()?.conditions, READY)?;
    let refused = ready.status == "False" && ready.reason == reasons::NETWORK_FAILED_TO_CREATE;
    refused.then(|| ready.message.clone())
}

/// The context that a binding asks for.
pub(super) fn key_of_binding(cell: &Plane, binding: &NetworkBinding) -> Result<Vec<Key>, Unresolved> {
    let namespace = binding.metadata.namespace.as_deref().unwrap_or_default();
    Ok(vec![Key::new(cell.name().clone(), namespace, &context_of(binding))])
}

/// The bindings in a location.
pub(super) fn keys_of_location(cell: &Plane, location: &Location) -> Result<Vec<Key>, Unresolved> {
    let bindings = cell.list::<NetworkBinding>()?;
    let here = |binding: &&NetworkBinding| binding.spec.location.name == owner::name(&location.metadata);
    keys(cell, bindings.iter().filter(here).map(|binding| &binding.metadata))
}

/// The bindings that ask for a context.
pub(super) fn keys_of_context(cell: &Plane, context: &NetworkContext) -> Result<Vec<Key>, Unresolved> {
    bound(cell, &context.metadata, owner::name(&context.metadata))
}

/// The bindings whose context a claim is for.
pub(super) fn keys_of_claim(cell: &Plane, claim: &SubnetClaim) -> Result<Vec<Key>, Unresolved> {
    bound(cell, &claim.metadata, &claim.spec.network_context.name)
}

fn bound(cell: &Plane, near: &ObjectMeta, context: &str) -> Result<Vec<Key>, Unresolved> {
    let bindings: Vec<NetworkBinding> = cell.list_within(near.namespace.as_deref().unwrap_or_default())?;
    keys(
        cell,
        bindings.iter().filter(|binding| context_of(binding) == context).map(|binding| &binding.metadata),
    )
}
