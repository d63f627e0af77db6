//! Deployment controller: creates, replaces and deletes the instances of a WorkloadDeployment, and reports
//! its status.
//!
//! Reads   cell: WorkloadDeployment, Instance, ConfigMap and Secret (companions); with networks also
//!         Location, NetworkBinding, NetworkContext, SubnetClaim, Subnet
//! Writes  cell: Instance (create, delete, linking labels, gates `Network` and `ReferencedData`),
//!         NetworkBinding (create), SubnetClaim (create), WorkloadDeployment (status), Event
//! Order   networks, referenced data → labels and gates of existing instances → at most one create or delete
//!         → status.
//!
//! A new instance has its labels, owner, finalizers and the gates that are still closed from its first write.
//! The deployment has no finalizer of its own: the garbage collector deletes its instances, and each instance
//! has finalizers. A deployment that its project has deleted is marked before it is deleted here: its
//! instances end first, and the status reports that. Nothing is polled: every reconcile waits for an event of
//! an instance or of a network.

use std::collections::{BTreeMap, BTreeSet};

use polis_api::compute::{
    GATE_QUOTA, Instance, LocationReference, WorkloadDeployment, WorkloadDeploymentStatus,
};
use polis_api::conditions::WITHDRAWN;
use polis_api::k8s_openapi::api::core::v1::{ConfigMap, Secret};
use polis_api::networking::{Location, NetworkBinding, NetworkContext, Subnet, SubnetClaim};
use polis_api::{ObjectExt, events, finalizers, labels, names};
use polis_core::deployment_status::{self, DeploymentStatusInput};
use polis_core::instances::{self, DeleteReason, InstanceAction, InstanceDefaults, InstancePlan, WaitReason};
use polis_core::networks::{self, NetworkState};
use polis_core::owner::{DeletionPlan, ObjectRef};
use polis_core::referenced_data::{DataObject, DeliveryState};
use polis_core::{Time, conditions, gates, owner, significant_change, source_revision, teardown};
use polis_engine::{
    Action, Clock, Engine, EventRecorder, Index, Key, ListOptions, Object, Plane, Reconciler,
    StatusCoalescer, Unresolved, Watch,
};

use crate::networks::NetworkObjects;
use crate::{Error, NetworkMode, referenced_data};

/// The watches of the controller in the cell.
pub(crate) fn watches(networks: NetworkMode) -> Vec<Watch> {
    let mut watches = vec![
        Watch::of::<WorkloadDeployment>()
            .index(crate::networks::by_city())
            .index(referenced_data::by_companion()),
        Watch::of::<Instance>().index(Index::Owner).index(by_deployment_uid()),
    ];
    watches.extend(referenced_data::watches());
    if networks == NetworkMode::WhenServed {
        watches.extend(crate::networks::watches());
    }
    watches
}

/// Registers the controller with an engine. New instances get these finalizers.
pub(crate) fn declare(
    engine: &mut Engine,
    cell: &Plane,
    clock: &Clock,
    name: String,
    networks: NetworkMode,
    finalizers: Vec<&'static str>,
) {
    let deployment = DeploymentController {
        cell: cell.clone(),
        name,
        networks,
        finalizers,
        recorder: engine.recorder("deployment"),
        clock: clock.clone(),
        coalescer: engine.handle().registry().status_coalescer("deployment"),
    };
    let controller = engine
        .controller("deployment", cell, deployment)
        .for_kind::<WorkloadDeployment>()
        .watches::<Instance>(cell, keys_of_instance)
        .watches::<ConfigMap>(cell, keys_of_companion)
        .watches::<Secret>(cell, keys_of_companion);
    if networks == NetworkMode::WhenServed {
        controller
            .watches::<Location>(cell, crate::networks::keys_of_location)
            .watches::<NetworkBinding>(cell, crate::networks::keys_of_binding)
            .watches::<NetworkContext>(cell, crate::networks::keys_of_context)
            .watches::<SubnetClaim>(cell, crate::networks::keys_of_claim)
            .watches::<Subnet>(cell, crate::networks::keys_of_subnet);
    }
}

/// Instances by the UID of their deployment in this cell.
fn by_deployment_uid() -> Index {
    Index::label(labels::WORKLOAD_DEPLOYMENT_UID)
}

/// Reconciles the WorkloadDeployments of a cell.
struct DeploymentController {
    cell: Plane,
    /// Name of the cell.
    name: String,
    networks: NetworkMode,
    /// Finalizers of a new instance.
    finalizers: Vec<&'static str>,
    recorder: EventRecorder,
    clock: Clock,
    /// Delays insignificant status updates and tracks deployments whose status is out of date.
    coalescer: StatusCoalescer,
}

impl Reconciler for DeploymentController {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        self.coalescer.record_result(key, self.reconcile_deployment(key).await)
    }
}

impl DeploymentController {
    async fn reconcile_deployment(&self, key: &Key) -> Result<Action, Error> {
        let Some(deployment) = self.cell.get::<WorkloadDeployment>(key)? else {
            return Ok(Action::AwaitChange); // the garbage collector deletes its instances
        };
        let existing = self.existing_instances(key, &deployment)?;
        if deployment.is_deleting() {
            return self.finalize(key, &deployment, &existing).await;
        }
        if source_revision::is_outdated(&deployment) {
            return self.keep(key, &deployment, &existing).await;
        }
        if teardown::requested(&deployment) {
            return self.withdraw(key, &deployment, existing).await;
        }
        let (networks, location) = self.ensure_networks(&deployment).await?;
        let data = referenced_data::state(&self.cell, &deployment)?;
        let closed = gates::of_deployment(&networks, &data);
        let plan = instances::plan(&deployment, &existing, &self.initial_metadata(&closed, location));
        self.update_existing(&existing, &plan, &closed).await?;
        let applied = self.apply_next(key, &deployment, &existing, &plan).await;
        let existing = self.existing_instances(key, &deployment)?;
        let action = self.update_status(key, &deployment, &existing, &networks, &data, plan.next()).await?;
        applied.map(|()| action)
    }

    /// The instances that the deployment controls, that are labelled with its UID, or that have a name which
    /// it needs.
    fn existing_instances(&self, key: &Key, deployment: &WorkloadDeployment) -> Result<Vec<Instance>, Error> {
        let uid = deployment.uid();
        let mut found = BTreeMap::new();
        let linked = self
            .cell
            .owned_by::<Instance>(uid)?
            .into_iter()
            .chain(self.cell.find(&by_deployment_uid(), uid)?);
        for instance in linked.filter(|instance| instance.namespace() == key.namespace()) {
            found.insert(instance.name().to_owned(), instance);
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

    /// Creates the missing NetworkBindings and SubnetClaims of the deployment, and returns the state of its
    /// networks.
    async fn ensure_networks(
        &self,
        deployment: &WorkloadDeployment,
    ) -> Result<(NetworkState, Option<LocationReference>), Error> {
        if !self.networks.enabled(&self.cell)? {
            return Ok((NetworkState::Ready, None));
        }
        let location = networks::location(&deployment.spec.city_code, &self.cell.list::<Location>()?);
        let objects = NetworkObjects::read(&self.cell, deployment)?;
        let plan = networks::plan(deployment, location.as_ref(), objects.existing());
        for binding in &plan.bindings {
            ignore_already_exists(self.cell.create(binding).await)?;
        }
        for claim in &plan.claims {
            // The deployments of a network share it.
            ignore_already_exists(self.cell.create_missing(claim).await)?;
        }
        let location = location.map(|location| LocationReference {
            name: location.name,
            namespace: location.namespace.unwrap_or_default(),
        });
        Ok((plan.state, location))
    }

    /// Gates, finalizers and location of a new instance.
    fn initial_metadata(
        &self,
        closed: &[&'static str],
        location: Option<LocationReference>,
    ) -> InstanceDefaults {
        InstanceDefaults {
            gates: closed.iter().copied().chain([GATE_QUOTA]).map(str::to_owned).collect(),
            finalizers: self.finalizers.iter().copied().map(str::to_owned).collect(),
            location,
        }
    }

    /// Corrects labels and removes the open gates of existing instances, with one write per instance.
    async fn update_existing(
        &self,
        existing: &[Instance],
        plan: &InstancePlan,
        closed: &[&'static str],
    ) -> Result<(), Error> {
        for instance in existing {
            let backfilled =
                plan.backfill.iter().find(|desired| desired.metadata.uid == instance.metadata.uid);
            let ours = backfilled.is_some() || !plan.foreign.iter().any(|name| *name == instance.name());
            if !ours || instance.is_deleting() {
                continue;
            }
            if let Some(desired) = backfilled {
                let ungated = gates::without_open_gates(desired, closed);
                self.cell.update(instance, ungated.as_ref().unwrap_or(desired)).await?;
            } else if gates::without_open_gates(instance, closed).is_some() {
                // The instance controller and the runtime write the same instance.
                let change = |current: &Instance| {
                    let same = current.uid() == instance.uid();
                    same.then(|| gates::without_open_gates(current, closed)).flatten()
                };
                self.cell.modify((instance.namespace(), instance.name()), change).await?;
            }
        }
        Ok(())
    }

    /// Applies the next action of the plan.
    async fn apply_next(
        &self,
        key: &Key,
        deployment: &WorkloadDeployment,
        existing: &[Instance],
        plan: &InstancePlan,
    ) -> Result<(), Error> {
        let (recorder, cell) = (&self.recorder, &self.cell);
        let warn = |reason, note: String| recorder.warn(cell, deployment, reason, "Scale", &note);
        let normal = |reason, note: String| recorder.normal(cell, deployment, reason, "Scale", &note);
        match plan.next() {
            None => {}
            Some(InstanceAction::Create(instance)) => match cell.create(&**instance).await {
                Ok(created) => {
                    normal(events::INSTANCE_CREATED, format!("Created instance {}", created.name()));
                }
                // An instance of this name exists and is not cached yet; its next event requeues the key.
                Err(error) if error.is_already_exists() => {}
                Err(error) => {
                    let note = format!("Failed to create instance {}: {error}", instance.name());
                    warn(events::INSTANCE_NOT_CREATED, note);
                    return Err(error.into());
                }
            },
            Some(InstanceAction::Delete { object, reason }) => {
                let name = (key.namespace(), object.name.as_str());
                cell.delete_at::<Instance>(name, &object.uid, Some(&object.resource_version)).await?;
                let note = format!("Deleted instance {}: {}", object.name, describe(*reason));
                match reason {
                    // A warning, because no controller creates an instance outside the slots.
                    DeleteReason::NoSlot => warn(events::INSTANCE_DELETED, note),
                    DeleteReason::Surplus | DeleteReason::Outdated => normal(events::INSTANCE_DELETED, note),
                }
            }
            Some(InstanceAction::Wait { reason: WaitReason::NotReady | WaitReason::Terminating, .. }) => {}
            Some(InstanceAction::Wait { name, reason: WaitReason::NameTaken }) => {
                let holder = existing.iter().find(|instance| instance.name() == name);
                if !holder.is_some_and(|holder| is_of_earlier_deployment(holder, deployment)) {
                    let note = format!(
                        "Instance {name} exists and is not controlled by this deployment; it is left unchanged. Delete or rename it"
                    );
                    warn(events::INSTANCE_NOT_OURS, note);
                }
            }
            Some(InstanceAction::Wait { name, reason: WaitReason::NameTooLong }) => {
                let note = format!(
                    "Instance name {name} is longer than {} characters; use a deployment with a shorter name",
                    names::MAX_LABEL
                );
                warn(events::NAME_TOO_LONG, note);
            }
        }
        Ok(())
    }

    async fn update_status(
        &self,
        key: &Key,
        deployment: &WorkloadDeployment,
        existing: &[Instance],
        networks: &NetworkState,
        data: &DeliveryState,
        action: Option<&InstanceAction>,
    ) -> Result<Action, Error> {
        let input = DeploymentStatusInput {
            instances: existing,
            networks,
            data,
            cell: Some(&self.name),
            city: None,
            action,
        };
        let now = Time(self.clock.now());
        let Some(status) = deployment_status::status(deployment, &input, &now) else {
            self.coalescer.mark_current(key);
            let recheck = deployment_status::recheck(deployment, &input, &now);
            return Ok(recheck.map_or(Action::AwaitChange, Action::RequeueAfter));
        };
        if let Some(left) =
            self.coalescer.delay(key, significant_change::of_deployment(deployment.status.as_ref(), &status))
        {
            return Ok(Action::RequeueAfter(left));
        }
        self.cell.write_status(deployment, status).await?;
        Ok(Action::AwaitChange)
    }

    /// The hub shows an older spec than the cell has acted on: changes no instance until the newer one is
    /// back, and keeps the status current.
    async fn keep(
        &self,
        key: &Key,
        deployment: &WorkloadDeployment,
        existing: &[Instance],
    ) -> Result<Action, Error> {
        let note = "The hub shows an older spec than this cell has acted on; the instances are kept until the federator has written the newer one";
        self.recorder.warn(&self.cell, deployment, events::SPEC_OUTDATED, "Scale", note);
        let data = referenced_data::state(&self.cell, deployment)?;
        self.update_status(key, deployment, existing, &NetworkState::Ready, &data, None).await
    }

    /// The project has deleted the deployment: deletes all instances at once, and reports how many are left.
    /// That none is left follows from an uncached list, because the cache may lack the newest instance.
    async fn withdraw(
        &self,
        key: &Key,
        deployment: &WorkloadDeployment,
        mut existing: Vec<Instance>,
    ) -> Result<Action, Error> {
        let ended = |status: &WorkloadDeploymentStatus| conditions::is_true(&status.conditions, WITHDRAWN);
        let mut plan = instances::deletion_plan(deployment, &existing);
        if plan == DeletionPlan::Done && !deployment.status.as_ref().is_some_and(ended) {
            let of_deployment = ListOptions::within(key.namespace()).labels(format!(
                "{}={}",
                labels::WORKLOAD_DEPLOYMENT_UID,
                deployment.uid()
            ));
            existing = self.cell.uncached().list::<Instance>(&of_deployment).await?;
            plan = instances::deletion_plan(deployment, &existing);
        }
        if let DeletionPlan::Delete(objects) = plan {
            self.delete_instances(key, objects).await?;
        }
        let data = referenced_data::state(&self.cell, deployment)?;
        self.update_status(key, deployment, &existing, &NetworkState::Ready, &data, None).await
    }

    async fn delete_instances(&self, key: &Key, objects: Vec<ObjectRef>) -> Result<(), Error> {
        for object in objects {
            let name = (key.namespace(), object.name.as_str());
            self.cell.delete_at::<Instance>(name, &object.uid, None).await?;
        }
        Ok(())
    }

    /// Deletes the instances and then removes the finalizer that other implementations put on deployments of
    /// a cell.
    async fn finalize(
        &self,
        key: &Key,
        deployment: &WorkloadDeployment,
        existing: &[Instance],
    ) -> Result<Action, Error> {
        if deployment.has_finalizer(finalizers::DEPLOYMENT) {
            match instances::deletion_plan(deployment, existing) {
                DeletionPlan::Done => {
                    _ = self.cell.remove_finalizer(deployment, finalizers::DEPLOYMENT).await?
                }
                DeletionPlan::Delete(objects) => self.delete_instances(key, objects).await?,
            }
        }
        Ok(Action::AwaitChange)
    }
}

fn ignore_already_exists<K>(created: Result<K, polis_engine::Error>) -> Result<(), Error> {
    match created {
        Err(error) if !error.is_already_exists() => Err(error.into()),
        _ => Ok(()),
    }
}

fn describe(reason: DeleteReason) -> &'static str {
    match reason {
        DeleteReason::NoSlot => "its name is not a slot of the deployment",
        DeleteReason::Surplus => "fewer instances are desired",
        DeleteReason::Outdated => "the template has changed",
    }
}

/// Whether an earlier deployment of the same name controls the instance. The garbage collector deletes it.
fn is_of_earlier_deployment(instance: &Instance, deployment: &WorkloadDeployment) -> bool {
    owner::controller(&instance.metadata)
        .is_some_and(|owner| owner.kind == "WorkloadDeployment" && owner.name == deployment.name())
}

/// Maps an instance to deployments: the one that its label names (of any UID, so that the deletion of an
/// earlier deployment's instance requeues the current one), the one that controls it, and the one whose slot
/// its name is.
fn keys_of_instance(cell: &Plane, instance: &Instance) -> Result<Vec<Key>, Unresolved> {
    let labelled = instance.label(labels::WORKLOAD_DEPLOYMENT_NAME);
    let owned = owner::controller(&instance.metadata)
        .filter(|owner| owner.kind == "WorkloadDeployment")
        .map(|owner| owner.name.as_str());
    let slot =
        instance.name().rsplit_once('-').filter(|(_, ordinal)| ordinal.bytes().all(|b| b.is_ascii_digit()));
    let names: BTreeSet<&str> = labelled.into_iter().chain(owned).chain(slot.map(|(stem, _)| stem)).collect();
    let named = names.into_iter().filter(|name| !name.is_empty());
    Ok(named.map(|name| Key::new(cell.name().clone(), instance.namespace(), name)).collect())
}

/// Maps a companion to the deployments that expect it.
fn keys_of_companion<K: Object + DataObject>(cell: &Plane, companion: &K) -> Result<Vec<Key>, Unresolved> {
    let users = referenced_data::users(cell, companion)?;
    Ok(users.iter().map(|user| Key::new(cell.name().clone(), companion.namespace(), user)).collect())
}
