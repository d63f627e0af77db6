//! Subnet controller: allocates a block of the city's address pool for each SubnetClaim.
//!
//! Reads   cell: SubnetClaim, NetworkContext, Subnet
//! Writes  cell: Subnet · SubnetClaim (status)
//! Order   subnet with its block → status of the subnet → status of the claim
//!
//! The specs of the Subnets are the only record of allocated blocks. A block is chosen from an uncached list
//! under a lock and stored with the new Subnet. So a restart loses nothing, and no two Subnets overlap.

use polis_api::ObjectExt;
use polis_api::conditions::{ALLOCATED, PROGRAMMED, READY};
use polis_api::networking::{IPV4, NetworkContext, Subnet, SubnetClaim, SubnetReference, SubnetSpec};
use polis_api::reasons;
use polis_core::conditions::{self, DesiredCondition};
use polis_core::owner;
use polis_engine::{Action, Clock, Engine, Key, ListOptions, Plane, Reconciler, Unresolved, Watch};
use tokio::sync::Mutex;

use super::pool::{AddressPool, Block, NoAddresses};
use super::{by_context, failed, keys, ready, set_condition};
use crate::{Error, managed_metadata};

/// The watches of the controller in the cell.
pub(super) fn watches() -> Vec<Watch> {
    vec![Watch::of::<SubnetClaim>().index(by_context()), Watch::of::<NetworkContext>(), Watch::of::<Subnet>()]
}

/// Registers the controller with an engine.
pub(super) fn declare(engine: &mut Engine, cell: &Plane, clock: &Clock, pool: AddressPool) {
    let clock = clock.clone();
    let subnets = SubnetController { cell: cell.clone(), pool, clock, allocating: Mutex::default() };
    engine
        .controller("subnets", cell, subnets)
        .for_kind::<SubnetClaim>()
        .watches::<NetworkContext>(cell, keys_of_context)
        .watches::<Subnet>(cell, keys_of_subnet);
}

/// Reconciles the SubnetClaims of a cell.
struct SubnetController {
    cell: Plane,
    pool: AddressPool,
    clock: Clock,
    allocating: Mutex<()>,
}

impl Reconciler for SubnetController {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(claim) = self.cell.get::<SubnetClaim>(key)? else { return Ok(Action::AwaitChange) };
        if claim.is_deleting() {
            return Ok(Action::AwaitChange);
        }
        let subnet = match self.cell.get::<Subnet>(key)? {
            // The Subnet of an earlier claim of this name; its deletion requeues the key.
            Some(subnet) if !owner::is_owned_by(&subnet.metadata, claim.uid()) => {
                return Ok(Action::AwaitChange);
            }
            Some(subnet) => subnet,
            None => match self.allocate(&claim).await? {
                Ok(subnet) => subnet,
                Err(why) => return self.update_claim(&claim, None, failed(why)).await,
            },
        };
        self.set_subnet_ready(&subnet).await?;
        let message = format!("subnet {} is ready", subnet.name());
        self.update_claim(&claim, Some(&subnet), ready(reasons::SUBNET_READY, message)).await
    }
}

impl SubnetController {
    /// Creates the Subnet of a claim, or returns why there are no addresses.
    async fn allocate(&self, claim: &SubnetClaim) -> Result<Result<Subnet, String>, Error> {
        let spec = &claim.spec;
        if spec.ip_family != IPV4 {
            return Ok(Err(format!("{} addresses are not available, only {IPV4}", spec.ip_family)));
        }
        let namespace = claim.namespace();
        let context = (namespace, spec.network_context.name.as_str());
        if self.cell.get::<NetworkContext>(context)?.is_none() {
            return Ok(Err(format!("network context {} does not exist", spec.network_context.name)));
        }
        let _guard = self.allocating.lock().await;
        let taken = taken(&self.cell.uncached().list::<Subnet>(&ListOptions::all()).await?);
        let block = match self.pool.allocate(&taken, spec.start_address.as_deref(), spec.prefix_length) {
            Ok(block) => block,
            Err(why @ (NoAddresses::Full(_) | NoAddresses::Outside(..) | NoAddresses::Taken(_))) => {
                return Ok(Err(why.to_string()));
            }
        };
        Ok(Ok(self.cell.create(&mk_subnet(claim, block)).await?))
    }

    async fn set_subnet_ready(&self, subnet: &Subnet) -> Result<(), Error> {
        let mut status = subnet.status.clone().unwrap_or_default();
        status.start_address = subnet.spec.start_address.clone();
        status.prefix_length = subnet.spec.prefix_length;
        for (kind, reason) in
            [(ALLOCATED, "Allocated"), (PROGRAMMED, reasons::PROGRAMMED), (READY, reasons::READY)]
        {
            let condition = DesiredCondition::new_true(kind, reason, "the addresses are ready");
            set_condition(&mut status.conditions, &subnet.metadata, &condition, &self.clock);
        }
        self.cell.write_status(subnet, status).await?;
        Ok(())
    }

    async fn update_claim(
        &self,
        claim: &SubnetClaim,
        subnet: Option<&Subnet>,
        condition: DesiredCondition,
    ) -> Result<Action, Error> {
        let mut status = claim.status.clone().unwrap_or_default();
        if let Some(subnet) = subnet {
            let name = subnet.name().to_owned();
            status.subnet_ref = Some(SubnetReference { name, ..Default::default() });
            status.start_address = subnet.spec.start_address.clone();
            status.prefix_length = subnet.spec.prefix_length;
        }
        set_condition(&mut status.conditions, &claim.metadata, &condition, &self.clock);
        self.cell.write_status(claim, status).await?;
        Ok(Action::AwaitChange)
    }
}

/// The blocks of all Subnets, including those that users created.
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
    let mut metadata = managed_metadata(claim.metadata.namespace.as_deref(), claim.name());
    metadata.owner_references = Some(vec![owner::controller_reference(claim)]);
    Subnet { metadata, spec, status: None }
}

/// Maps a context to its subnet claims.
fn keys_of_context(cell: &Plane, context: &NetworkContext) -> Result<Vec<Key>, Unresolved> {
    let claims = cell.find::<SubnetClaim>(&by_context(), context.name())?;
    let same_namespace = |claim: &&SubnetClaim| claim.metadata.namespace == context.metadata.namespace;
    keys(cell, claims.iter().filter(same_namespace))
}

/// Maps a subnet to its claim, and to every failed claim: the deletion of the subnet may free addresses.
fn keys_of_subnet(cell: &Plane, subnet: &Subnet) -> Result<Vec<Key>, Unresolved> {
    let failed = |claim: &&SubnetClaim| {
        claim.status.as_ref().is_some_and(|status| conditions::is_false(&status.conditions, READY))
    };
    let claims = cell.list::<SubnetClaim>()?;
    Ok(claims
        .iter()
        .filter(failed)
        .map(|claim| Key::of(cell, claim))
        .chain([Key::of(cell, subnet)])
        .collect())
}
