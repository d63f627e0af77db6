//! Deployment: keeps the instances of a deployment, one step at a time, and says how they are.
//!
//! Reads   cell: WorkloadDeployment, Instance; where networks are kept Location, NetworkBinding, NetworkContext, SubnetClaim, Subnet
//! Writes  cell: Instance (creation, deletion, linking labels, gate `Network`), NetworkBinding and SubnetClaim (creation),
//!         WorkloadDeployment (status), Event
//! Order   networks → labels and gates of what stands → one instance step → status.
//!
//! An instance is born with everything that is known then: labels, owner, finalizers, and only the gates that are not
//! open yet. The deployment has no finalizer of ours: its instances go by owner reference, and each sees to its own end.
//! Nothing is polled; every step waits for an event of an instance or of a network, and the one after a creation for the
//! event of what was created.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use polis_api::compute::{GATE_NETWORK, GATE_QUOTA, Instance, LocationReference, WorkloadDeployment};
use polis_api::networking::Location;
use polis_api::{finalizers, labels, names};
use polis_core::deployment_status::{self, Facts};
use polis_core::instances::{self, Birth, Farewell, Plan, Step, Until, Withdrawal};
use polis_core::networks::{self, NetworkState};
use polis_core::{Time, gates, metadata, news, owner};
use polis_engine::{Clock, Index, Key, Lag, Outcome, Plane, Reconciler, Recorder, Tone, Unresolved};

use crate::networks::Look;
use crate::newborns::Newborns;
use crate::{Error, Networks};

/// See the head of this file.
pub struct DeploymentController {
    pub(crate) cell: Plane,
    /// Name of the cell.
    pub(crate) name: String,
    pub(crate) networks: Networks,
    /// Whether instances claim quota.
    pub(crate) quota: bool,
    pub(crate) recorder: Recorder,
    pub(crate) clock: Clock,
    /// Deployments whose status is behind.
    pub(crate) lag: Lag,
    /// What was made and is not seen yet.
    pub(crate) newborns: Arc<Newborns>,
}

/// Instances by the UID of their deployment in this cell.
pub(crate) fn by_deployment_uid() -> Index {
    Index::label(labels::WORKLOAD_DEPLOYMENT_UID)
}

impl Reconciler for DeploymentController {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Outcome, Error> {
        self.lag.after(key, self.pass(key).await)
    }
}

impl DeploymentController {
    async fn pass(&self, key: &Key) -> Result<Outcome, Error> {
        let Some(deployment) = self.cell.get::<WorkloadDeployment>(key)? else {
            self.newborns.forget(key);
            return Ok(Outcome::Settled); // its instances follow it by owner reference
        };
        let mut standing = self.standing(key, &deployment)?;
        if owner::is_deleting(&deployment.metadata) {
            self.newborns.forget(key);
            return self.withdraw(key, &deployment, &standing).await;
        }
        if let Some(rest) = self.newborns.awaited(key, &standing) {
            return Ok(Outcome::After(rest));
        }
        let (networks, location) = self.settle_networks(&deployment).await?;
        let plan = instances::plan(&deployment, &standing, &self.birth(&networks, location));
        self.tend(&mut standing, &plan, &networks).await?;
        let stepped = self.step(key, &deployment, &mut standing, &plan).await;
        let reported = self.report(key, &deployment, &standing, &networks, plan.next()).await?;
        stepped.map(|()| reported)
    }

    /// The instances that are, look like, or stand in the way of the deployment's own.
    fn standing(&self, key: &Key, deployment: &WorkloadDeployment) -> Result<Vec<Instance>, Error> {
        let uid = owner::uid(&deployment.metadata);
        let mut found = BTreeMap::new();
        let linked = self
            .cell
            .owned_by::<Instance>(uid)?
            .into_iter()
            .chain(self.cell.find(&by_deployment_uid(), uid)?);
        for instance in
            linked.filter(|instance| instance.metadata.namespace.as_deref() == Some(key.namespace()))
        {
            found.insert(owner::name(&instance.metadata).to_owned(), instance);
        }
        for ordinal in 0..instances::desired(deployment) {
            let name = names::instance(&key.name, ordinal);
            if !found.contains_key(&name)
                && let Some(instance) = self.cell.get::<Instance>((key.namespace(), name.as_str()))?
            {
                found.insert(name, instance);
            }
        }
        Ok(found.into_values().collect())
    }

    /// Asks for what the networks of the deployment still need, and says how far they are.
    async fn settle_networks(
        &self,
        deployment: &WorkloadDeployment,
    ) -> Result<(NetworkState, Option<LocationReference>), Error> {
        if !self.networks.kept(&self.cell)? {
            return Ok((NetworkState::Ready, None));
        }
        let location = networks::location(&deployment.spec.city_code, &self.cell.list::<Location>()?);
        let look = Look::at(&self.cell, deployment)?;
        let plan = networks::plan(deployment, location.as_ref(), look.standing());
        for binding in &plan.bindings {
            made_by_now(self.cell.create(binding).await)?;
        }
        for claim in &plan.claims {
            made_by_now(self.cell.create(claim).await)?;
        }
        let location = location.map(|location| LocationReference {
            name: location.name,
            namespace: location.namespace.unwrap_or_default(),
        });
        Ok((plan.state, location))
    }

    /// What a new instance carries from its first write on.
    fn birth(&self, networks: &NetworkState, location: Option<LocationReference>) -> Birth {
        let network = (*networks != NetworkState::Ready).then_some(GATE_NETWORK);
        let claim = self.quota.then_some(finalizers::QUOTA_CLAIM);
        Birth {
            gates: network.into_iter().chain([GATE_QUOTA]).map(str::to_owned).collect(),
            finalizers: [finalizers::INSTANCE].into_iter().chain(claim).map(str::to_owned).collect(),
            location,
        }
    }

    /// Puts labels right and opens the network gate of what stands, each instance in one write.
    async fn tend(
        &self,
        standing: &mut [Instance],
        plan: &Plan,
        networks: &NetworkState,
    ) -> Result<(), Error> {
        for instance in standing.iter_mut() {
            let backfilled = plan.backfill.iter().find(|wanted| wanted.metadata.uid == instance.metadata.uid);
            let ours = backfilled.is_some()
                || !plan.foreign.iter().any(|name| *name == owner::name(&instance.metadata));
            if !ours || owner::is_deleting(&instance.metadata) {
                continue;
            }
            let mut wanted = backfilled.unwrap_or(instance).clone();
            wanted = gates::network_dropped(&wanted, networks).unwrap_or(wanted);
            if let Some(made) = self.cell.update(instance, &wanted).await?.into_object() {
                *instance = made;
            }
        }
        Ok(())
    }

    /// Takes the one step of this pass. What it makes is put into `standing`, so that the status counts it at once.
    async fn step(
        &self,
        key: &Key,
        deployment: &WorkloadDeployment,
        standing: &mut Vec<Instance>,
        plan: &Plan,
    ) -> Result<(), Error> {
        let tell = |tone, reason, note: String| {
            self.recorder.record(&self.cell, deployment, tone, reason, "Scale", &note)
        };
        match plan.next() {
            None => {}
            Some(Step::Create(instance)) => match self.cell.create(&**instance).await {
                Ok(made) => {
                    self.newborns.made(key, &made);
                    tell(
                        Tone::Normal,
                        "InstanceCreated",
                        format!("Created instance {}", owner::name(&made.metadata)),
                    );
                    standing.push(made);
                }
                // A namesake that was not seen yet, perhaps one on its way out: its next event brings the key back.
                Err(error) if error.is_already_exists() => {}
                Err(error) => {
                    let note =
                        format!("Instance {} cannot be made: {error}", owner::name(&instance.metadata));
                    tell(Tone::Warning, "InstanceNotCreated", note);
                    return Err(error.into());
                }
            },
            Some(Step::Delete { exact, why }) => {
                let place = (key.namespace(), exact.name.as_str());
                self.cell.delete_at::<Instance>(place, &exact.uid, Some(&exact.resource_version)).await?;
                // A stray was made by nobody who knows how: somebody should see to it.
                let tone = if *why == Farewell::Stray { Tone::Warning } else { Tone::Normal };
                tell(tone, "InstanceDeleted", format!("Deleted instance {}: {}", exact.name, in_words(*why)));
            }
            Some(Step::Wait { until: Until::Ready | Until::Gone, .. }) => {}
            Some(Step::Wait { name, until: Until::NameFree }) => {
                let holder = standing.iter().find(|instance| owner::name(&instance.metadata) == name);
                if !holder.is_some_and(|holder| is_of_namesake(holder, deployment)) {
                    let note =
                        format!("Instance {name} exists and belongs to somebody else; it is left as it is");
                    tell(Tone::Warning, "InstanceNotOurs", note);
                }
            }
            Some(Step::Wait { name, until: Until::NameFits }) => {
                let note = format!(
                    "Instance name {name} is longer than {} characters; use a deployment with a shorter name",
                    names::MAX_LABEL
                );
                tell(Tone::Warning, "NameTooLong", note);
            }
        }
        Ok(())
    }

    async fn report(
        &self,
        key: &Key,
        deployment: &WorkloadDeployment,
        standing: &[Instance],
        networks: &NetworkState,
        step: Option<&Step>,
    ) -> Result<Outcome, Error> {
        let facts = Facts { instances: standing, networks, cell: Some(&self.name), city: None, step };
        let Some(status) = deployment_status::status(deployment, &facts, &Time(self.clock.now())) else {
            return Ok(Outcome::Settled);
        };
        if let Some(rest) = self.lag.hold(key, news::of_deployment(deployment.status.as_ref(), &status)) {
            return Ok(Outcome::After(rest));
        }
        let mut reported = deployment.clone();
        reported.status = Some(status);
        self.cell.update_status(deployment, &reported).await?;
        Ok(Outcome::Settled)
    }

    /// Other implementations put a finalizer on the deployments of a cell. One that carries it is taken apart as they
    /// would have done: its instances go first.
    async fn withdraw(
        &self,
        key: &Key,
        deployment: &WorkloadDeployment,
        standing: &[Instance],
    ) -> Result<Outcome, Error> {
        if metadata::has_finalizer(&deployment.metadata, finalizers::DEPLOYMENT) {
            match instances::withdrawal(deployment, standing) {
                Withdrawal::Done => {
                    _ = self.cell.remove_finalizer(deployment, finalizers::DEPLOYMENT).await?
                }
                Withdrawal::Remove(leaving) => {
                    for exact in leaving {
                        self.cell
                            .delete_at::<Instance>((key.namespace(), exact.name.as_str()), &exact.uid, None)
                            .await?;
                    }
                }
            }
        }
        Ok(Outcome::Settled)
    }
}

/// What was to be made is there, whoever made it.
fn made_by_now<K>(made: Result<K, polis_engine::Error>) -> Result<(), Error> {
    match made {
        Err(error) if !error.is_already_exists() => Err(error.into()),
        _ => Ok(()),
    }
}

fn in_words(why: Farewell) -> &'static str {
    match why {
        Farewell::Stray => "it stands in no slot of the deployment",
        Farewell::Surplus => "fewer are wanted",
        Farewell::Outdated => "the template has changed",
    }
}

/// Whether an instance was made by an earlier deployment of the same name, and will be collected.
fn is_of_namesake(instance: &Instance, deployment: &WorkloadDeployment) -> bool {
    owner::controller(&instance.metadata).is_some_and(|owner| {
        owner.kind == "WorkloadDeployment" && owner.name == owner::name(&deployment.metadata)
    })
}

/// The deployments that an instance may matter to: the one that its label names (whatever the UID, so that the end of an
/// earlier deployment's instance is noticed), the one that controls it, and the one whose slot its name is.
fn keys_of_instance(cell: &Plane, instance: &Instance) -> Vec<Key> {
    let meta = &instance.metadata;
    let labelled = metadata::label(meta, labels::WORKLOAD_DEPLOYMENT_NAME);
    let owned = owner::controller(meta)
        .filter(|owner| owner.kind == "WorkloadDeployment")
        .map(|owner| owner.name.as_str());
    let slot =
        owner::name(meta).rsplit_once('-').filter(|(_, ordinal)| ordinal.bytes().all(|b| b.is_ascii_digit()));
    let names: BTreeSet<&str> = labelled.into_iter().chain(owned).chain(slot.map(|(stem, _)| stem)).collect();
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let named = names.into_iter().filter(|name| !name.is_empty());
    named.map(|name| Key::new(cell.name().clone(), namespace, name)).collect()
}

/// The same, with a note that the instance is seen now.
pub(crate) fn keys_of_seen(
    newborns: &Newborns,
    cell: &Plane,
    instance: &Instance,
) -> Result<Vec<Key>, Unresolved> {
    let keys = keys_of_instance(cell, instance);
    keys.iter().for_each(|key| newborns.seen(key, instance));
    Ok(keys)
}
