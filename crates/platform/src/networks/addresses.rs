//! Addresses: a block of the city's pool for each subnet that is claimed.
//!
//! What is taken stands in the specs of the subnets and nowhere else. A block is chosen from a live list while no other
//! is being chosen, and written down with the subnet itself: so a restart forgets nothing and no two subnets share one.

use polis_api::conditions::{ALLOCATED, PROGRAMMED, READY};
use polis_api::networking::{
    IPV4, NetworkContext, Subnet, SubnetClaim, SubnetClaimStatus, SubnetReference, SubnetSpec,
};
use polis_api::reasons;
use polis_core::conditions::{self, Verdict};
use polis_core::owner;
use polis_engine::{Clock, Key, Outcome, Plane, Query, Reconciler, Unresolved};
use tokio::sync::Mutex;

use super::pool::{Block, NoAddresses, Pool};
use super::{by_context, failed, keys, ready, say};
use crate::{Error, made_here};

/// Answers subnet claims.
pub(super) struct Addresses {
    cell: Plane,
    pool: Pool,
    clock: Clock,
    choosing: Mutex<()>,
}

impl Reconciler for Addresses {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Outcome, Error> {
        let Some(claim) = self.cell.get::<SubnetClaim>(key)? else { return Ok(Outcome::Settled) };
        if owner::is_deleting(&claim.metadata) {
            return Ok(Outcome::Settled);
        }
        let subnet = match self.cell.get::<Subnet>(key)? {
            // What is left of an earlier claim of this name goes with that; its last event brings the key back.
            Some(subnet) if !owner::is_owned_by(&subnet.metadata, owner::uid(&claim.metadata)) => {
                return Ok(Outcome::Settled);
            }
            Some(subnet) => subnet,
            None => match self.allot(&claim).await? {
                Ok(subnet) => subnet,
                Err(why) => return self.answer(&claim, None, failed(why)).await,
            },
        };
        self.program(&subnet).await?;
        let words = format!("subnet {} is ready", owner::name(&subnet.metadata));
        self.answer(&claim, Some(&subnet), ready(reasons::SUBNET_READY, words)).await
    }
}

impl Addresses {
    pub(super) fn new(cell: Plane, pool: Pool, clock: Clock) -> Self {
        Self { cell, pool, clock, choosing: Mutex::default() }
    }

    /// Makes the subnet of a claim, or says why there is none.
    async fn allot(&self, claim: &SubnetClaim) -> Result<Result<Subnet, String>, Error> {
        let spec = &claim.spec;
        if spec.ip_family != IPV4 {
            return Ok(Err(format!("there are no {} addresses here, only {IPV4}", spec.ip_family)));
        }
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        let context = (namespace, spec.network_context.name.as_str());
        if self.cell.get::<NetworkContext>(context)?.is_none() {
            return Ok(Err(format!("there is no network context {}", spec.network_context.name)));
        }
        let _alone = self.choosing.lock().await;
        let taken = taken(&self.cell.live().list::<Subnet>(&Query::all()).await?);
        let block = match self.pool.take(&taken, spec.start_address.as_deref(), spec.prefix_length) {
            Ok(block) => block,
            Err(why @ (NoAddresses::Full(_) | NoAddresses::Outside(..) | NoAddresses::Taken(_))) => {
                return Ok(Err(why.to_string()));
            }
        };
        Ok(Ok(self.cell.create(&mk_subnet(claim, block)).await?))
    }

    async fn program(&self, subnet: &Subnet) -> Result<(), Error> {
        let mut said = subnet.clone();
        let status = said.status.get_or_insert_default();
        status.start_address = subnet.spec.start_address.clone();
        status.prefix_length = subnet.spec.prefix_length;
        for (kind, reason) in
            [(ALLOCATED, "Allocated"), (PROGRAMMED, reasons::PROGRAMMED), (READY, reasons::READY)]
        {
            let verdict = Verdict::yes(kind, reason, "the addresses can be used");
            say(&mut status.conditions, &subnet.metadata, &verdict, &self.clock);
        }
        self.cell.update_status(subnet, &said).await?;
        Ok(())
    }

    async fn answer(
        &self,
        claim: &SubnetClaim,
        subnet: Option<&Subnet>,
        verdict: Verdict,
    ) -> Result<Outcome, Error> {
        let mut said = claim.clone();
        let status: &mut SubnetClaimStatus = said.status.get_or_insert_default();
        if let Some(subnet) = subnet {
            let name = owner::name(&subnet.metadata).to_owned();
            status.subnet_ref = Some(SubnetReference { name, ..Default::default() });
            status.start_address = subnet.spec.start_address.clone();
            status.prefix_length = subnet.spec.prefix_length;
        }
        say(&mut status.conditions, &claim.metadata, &verdict, &self.clock);
        self.cell.update_status(claim, &said).await?;
        Ok(Outcome::Settled)
    }
}

/// The blocks that subnets have, whoever made them.
fn taken(subnets: &[Subnet]) -> Vec<Block> {
    let block = |subnet: &Subnet| {
        let status = subnet.status.as_ref();
        let start = subnet.spec.start_address.as_deref().or(status.and_then(|s| s.start_address.as_deref()));
        Block::read(start, subnet.spec.prefix_length.or(status.and_then(|s| s.prefix_length)))
    };
    subnets.iter().filter_map(block).collect()
}

fn mk_subnet(claim: &SubnetClaim, block: Block) -> Subnet {
    let spec = SubnetSpec {
        subnet_class: claim.spec.subnet_class.clone(),
        network_context: claim.spec.network_context.clone(),
        location: claim.spec.location.clone(),
        ip_family: claim.spec.ip_family.clone(),
        start_address: Some(block.start().to_string()),
        prefix_length: Some(block.prefix()),
        ..Default::default()
    };
    let mut metadata = made_here(claim.metadata.namespace.as_deref(), owner::name(&claim.metadata));
    metadata.owner_references = Some(vec![owner::controller_reference(claim)]);
    Subnet { metadata, spec, status: None }
}

/// The claims for a context.
pub(super) fn keys_of_context(cell: &Plane, context: &NetworkContext) -> Result<Vec<Key>, Unresolved> {
    let claims = cell.find::<SubnetClaim>(&by_context(), owner::name(&context.metadata))?;
    let near = |claim: &&SubnetClaim| claim.metadata.namespace == context.metadata.namespace;
    keys(cell, claims.iter().filter(near).map(|claim| &claim.metadata))
}

/// The claim of a subnet; and, because its addresses may be free now, every claim that was refused.
pub(super) fn keys_of_subnet(cell: &Plane, subnet: &Subnet) -> Result<Vec<Key>, Unresolved> {
    let refused = |claim: &&SubnetClaim| {
        claim.status.as_ref().is_some_and(|status| conditions::is_false(&status.conditions, READY))
    };
    let claims = cell.list::<SubnetClaim>()?;
    keys(cell, claims.iter().filter(refused).map(|claim| &claim.metadata).chain([&subnet.metadata]))
}
