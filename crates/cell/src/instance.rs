//! Instance controller: claims quota for each instance, sets its conditions and copies it to the hub.
//!
//! Reads   cell: Instance, WorkloadDeployment, ConfigMap and Secret (companions), NetworkBinding, Namespace
//!         project: ResourceClaim, AllowanceBucket
//!         hub: Instance (the copies of this cell, in the namespaces of its instances);
//!         uncached WorkloadDeployment, Namespace
//! Writes  cell: Instance (finalizers, gate `Quota`, status), Event
//!         project: ResourceClaim · hub: Instance with status
//! Order   finalizers → quota claim → status → gate → hub copy.
//!         Deletion: hub copy, claim, then the finalizers.
//!
//! Work in the cell never waits for the hub: a copy that cannot be written is written later. The reconcile
//! that writes the grant to the status also removes the gate, because no other event follows.

use std::time::Duration;

use polis_api::compute::{Instance, WorkloadDeployment};
use polis_api::conditions::{QUOTA_GRANTED, READY, REFERENCED_DATA_READY};
use polis_api::k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use polis_api::networking::NetworkBinding;
use polis_api::quota::{AllowanceBucket, ResourceClaim};
use polis_api::{ObjectExt, finalizers, labels};
use polis_core::conditions::{self, DesiredCondition};
use polis_core::referenced_data::{DataObject, DeliveryState, instance_condition};
use polis_core::{Time, gates, metadata, networks, owner, ready, suspension};
use polis_engine::{
    Action, Clock, Engine, EventRecorder, Index, Key, Object, Plane, PlaneName, Reconciler, Unresolved, Watch,
};

use crate::networks::bindings;
use crate::quota::{self, QuotaEnforcement};
use crate::writeback::WriteBack;
use crate::{Error, NetworkMode, referenced_data};

/// The watches of the controller in the cell.
pub(crate) fn watches(networks: NetworkMode, quota: bool) -> Vec<Watch> {
    let mut watches = vec![
        Watch::of::<Instance>().index(Index::Owner),
        Watch::of::<WorkloadDeployment>().index(referenced_data::by_companion()),
    ];
    watches.extend(referenced_data::watches());
    if networks == NetworkMode::WhenServed {
        watches.push(Watch::of::<NetworkBinding>());
    }
    if quota {
        watches.push(Watch::of::<Namespace>());
    }
    watches
}

/// The finalizers of the controller. An instance has them before anything exists for it on other planes.
pub(crate) fn finalizers(quota: &QuotaEnforcement) -> Vec<&'static str> {
    let claim = quota.is_enabled().then_some(finalizers::QUOTA_CLAIM);
    [finalizers::INSTANCE].into_iter().chain(claim).collect()
}

/// Registers the controller with an engine.
pub(crate) fn declare(
    engine: &mut Engine,
    cell: &Plane,
    clock: Clock,
    networks: NetworkMode,
    quota: QuotaEnforcement,
    write_back: WriteBack,
) {
    let (hub, claims) = (write_back.planes(), quota.watched());
    let recorder = engine.recorder("instance");
    let instance = InstanceController { cell: cell.clone(), networks, quota, write_back, recorder, clock };
    let here = cell.name().clone();
    let mut controller = engine
        .controller("instance", cell, instance)
        .for_kind::<Instance>()
        .watches::<WorkloadDeployment>(cell, keys_of_deployment)
        .watches::<ConfigMap>(cell, keys_of_companion)
        .watches::<Secret>(cell, keys_of_companion)
        .watches::<Instance>(&hub, move |_, copy| Ok(key_of_copy(&here, copy)));
    if networks == NetworkMode::WhenServed {
        controller = controller.watches::<NetworkBinding>(cell, keys_of_binding);
    }
    if let Some((claims, pending)) = claims {
        let here = cell.name().clone();
        controller
            .watches::<Namespace>(cell, keys_of_namespace)
            .watches::<ResourceClaim>(&claims, move |_, claim| Ok(quota::key_of_claim(&here, claim)))
            .watches::<AllowanceBucket>(&claims, move |project, bucket| {
                quota::keys_of_bucket(&pending, project, bucket)
            });
    }
}

/// Reconciles the Instances of a cell.
struct InstanceController {
    cell: Plane,
    networks: NetworkMode,
    quota: QuotaEnforcement,
    write_back: WriteBack,
    recorder: EventRecorder,
    clock: Clock,
}

impl Reconciler for InstanceController {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(instance) = self.cell.get::<Instance>(key)? else {
            self.forget(key); // deleted; its finalizers have cleaned up
            return Ok(Action::AwaitChange);
        };
        if instance.is_deleting() {
            return self.finalize(key, &instance).await;
        }
        let instance = self.ensure_finalizers(instance).await?;
        let (quota, quota_retry) = self.quota.evaluate(&self.cell, key, &instance).await;
        self.update_status(key, &instance, &quota).await?;
        // Of the granted status: no later event of it follows if it was the last change.
        self.cell.modify(key, gates::without_quota_gate).await?;
        let Some(instance) = self.cell.get::<Instance>(key)?.filter(|current| !current.is_deleting()) else {
            return Ok(Action::AwaitChange);
        };
        let hub_retry = self.write_back.sync(&self.cell, key, &instance).await?;
        Ok(requeue_after_shortest([quota_retry, hub_retry]))
    }
}

impl InstanceController {
    /// Adds the finalizers in one write, before anything exists on other planes. The deployment controller
    /// creates instances with them.
    async fn ensure_finalizers(&self, instance: Instance) -> Result<Instance, Error> {
        let mut claimed = instance.clone();
        for finalizer in finalizers(&self.quota) {
            metadata::add_finalizer(&mut claimed.metadata, finalizer);
        }
        if claimed == instance {
            return Ok(instance);
        }
        Ok(self.cell.update(&instance, &claimed).await?.into_object().unwrap_or(claimed))
    }

    /// Writes the conditions for quota, suspension and readiness in one status update, beside what the
    /// runtime writes to the same status.
    async fn update_status(
        &self,
        key: &Key,
        instance: &Instance,
        quota: &DesiredCondition,
    ) -> Result<(), Error> {
        let deployment = self.deployment(instance)?;
        let network_failure = self.network_failure(instance)?;
        let data = match &deployment {
            Some(deployment) => Some(referenced_data::state(&self.cell, deployment)?),
            None => None,
        };
        let now = Time(self.clock.now());
        let mut before = None;
        let change = |current: &Instance| {
            if current.uid() != instance.uid() || current.metadata.generation != instance.metadata.generation
            {
                return None; // quota was evaluated for another spec; its event follows
            }
            before = Some(current.clone());
            let suspension =
                deployment.as_ref().and_then(|deployment| suspension::status(current, deployment));
            let mut desired = current.clone();
            desired.status = suspension.or(desired.status);
            let data = data.as_ref().and_then(|state| instance_condition(current, state));
            ready::status(&desired, quota, data.as_ref(), network_failure.as_deref(), &now).or(desired.status)
        };
        let updated = self.cell.modify_status(key, change).await?.into_object();
        if let (Some(before), Some(updated)) = (before, updated) {
            self.record_events(&before, &updated);
        }
        Ok(())
    }

    /// Deletes the hub copy and the claim, then removes the finalizers. A failure of the first does not
    /// prevent the second.
    async fn finalize(&self, key: &Key, instance: &Instance) -> Result<Action, Error> {
        let (has_copy, has_claim) =
            (instance.has_finalizer(finalizers::INSTANCE), instance.has_finalizer(finalizers::QUOTA_CLAIM));
        let hub =
            if has_copy { self.write_back.delete_copy(&self.cell, key, instance).await } else { Ok(None) };
        let quota =
            if has_claim { self.quota.release_claim(&self.cell, key, instance).await } else { Ok(None) };
        let (hub_retry, quota_retry) = (hub?, quota?);
        if let requeue @ Action::RequeueAfter(_) = requeue_after_shortest([hub_retry, quota_retry]) {
            return Ok(requeue);
        }
        self.forget(key);
        let release = |current: &Instance| {
            let mut released = current.clone();
            metadata::remove_finalizer(&mut released.metadata, finalizers::INSTANCE);
            metadata::remove_finalizer(&mut released.metadata, finalizers::QUOTA_CLAIM);
            (current.uid() == instance.uid()).then_some(released)
        };
        match self.cell.modify(key, release).await {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(Action::AwaitChange),
        }
    }

    fn forget(&self, key: &Key) {
        self.quota.forget(key);
        self.write_back.forget(key);
    }

    /// The deployment that controls the instance.
    fn deployment(&self, instance: &Instance) -> Result<Option<WorkloadDeployment>, Error> {
        let namespace = instance.namespace();
        let Some(owner) =
            owner::controller(&instance.metadata).filter(|owner| owner.kind == "WorkloadDeployment")
        else {
            return Ok(None);
        };
        let deployment = self.cell.get::<WorkloadDeployment>((namespace, owner.name.as_str()))?;
        Ok(deployment.filter(|deployment| deployment.uid() == owner.uid))
    }

    /// The message of the network service if it rejected a network.
    fn network_failure(&self, instance: &Instance) -> Result<Option<String>, Error> {
        let Some(deployment) = instance.label(labels::WORKLOAD_DEPLOYMENT_NAME) else {
            return Ok(None);
        };
        if gates::of(instance).is_empty() || !self.networks.enabled(&self.cell)? {
            return Ok(None);
        }
        let namespace = instance.namespace();
        let interfaces = instance.spec.network_interfaces.len();
        let bindings = bindings(&self.cell, namespace, deployment, interfaces)?;
        Ok(networks::refusal(deployment, interfaces, &bindings))
    }

    /// Records an event when quota is denied or granted, and when the instance becomes ready or unready.
    fn record_events(&self, before: &Instance, after: &Instance) {
        let (recorder, cell) = (&self.recorder, &self.cell);
        if let Some(quota) = changed(before, after, QUOTA_GRANTED, |then, now| then.reason != now.reason) {
            match quota.status.as_str() {
                "False" => recorder.warn(cell, after, &quota.reason, "Claim", &describe(quota)),
                "True" if !gates::of(before).is_empty() => {
                    recorder.normal(cell, after, &quota.reason, "Claim", &describe(quota));
                }
                _ => {}
            }
        }
        if let Some(ready) =
            changed(before, after, READY, |then, now| (then.status == "True") != (now.status == "True"))
        {
            match ready.status.as_str() {
                "True" => recorder.normal(cell, after, &ready.reason, "Run", &describe(ready)),
                _ => recorder.warn(cell, after, &ready.reason, "Run", &describe(ready)),
            }
        }
    }
}

/// A condition as the note of an event.
fn describe(condition: &Condition) -> String {
    let Condition { type_, status, reason, message, .. } = condition;
    match message.is_empty() {
        true => format!("{type_} is {status} ({reason})"),
        false => format!("{type_} is {status} ({reason}): {message}"),
    }
}

/// The new condition if the change is relevant. A condition that was absent counts as Unknown before.
fn changed<'a>(
    before: &Instance,
    after: &'a Instance,
    kind: &str,
    relevant: impl Fn(&Condition, &Condition) -> bool,
) -> Option<&'a Condition> {
    let of = |instance: &'a Instance| conditions::find(&instance.status.as_ref()?.conditions, kind);
    let now = of(after)?;
    let absent = Condition { status: "Unknown".into(), ..now.clone() };
    let then = before.status.as_ref().and_then(|status| conditions::find(&status.conditions, kind)).cloned();
    let then = then.unwrap_or(Condition { reason: String::new(), ..absent });
    relevant(&then, now).then_some(now)
}

/// Requeues after the shortest delay.
fn requeue_after_shortest(delays: [Option<Duration>; 2]) -> Action {
    delays.into_iter().flatten().min().map_or(Action::AwaitChange, Action::RequeueAfter)
}

/// Maps a hub copy to its instance.
fn key_of_copy(cell: &PlaneName, copy: &Instance) -> Vec<Key> {
    vec![Key::new(cell.clone(), copy.namespace(), copy.name())]
}

/// Maps a deployment to the instances whose suspension or referenced data differs from it. No other field of
/// the deployment concerns them.
fn keys_of_deployment(cell: &Plane, deployment: &WorkloadDeployment) -> Result<Vec<Key>, Unresolved> {
    let instances = cell.owned_by::<Instance>(deployment.uid())?;
    let data = referenced_data::state(cell, deployment)?;
    let differs = |instance: &&Instance| {
        suspension::status(instance, deployment).is_some() || reports_other_data(instance, &data)
    };
    Ok(keys(cell, instances.iter().filter(differs)))
}

/// Whether the condition of an instance differs from the state of its deployment's data.
fn reports_other_data(instance: &Instance, state: &DeliveryState) -> bool {
    let Some(desired) = instance_condition(instance, state) else { return false };
    let status = instance.status.as_ref();
    let existing = status.and_then(|status| conditions::find(&status.conditions, REFERENCED_DATA_READY));
    existing.is_none_or(|existing| {
        (existing.status.as_str(), existing.reason.as_str()) != (desired.status.as_str(), &desired.reason)
            || existing.message != desired.message
    })
}

/// Maps a companion to the instances that wait for it, or that no longer do.
fn keys_of_companion<K: Object + DataObject>(cell: &Plane, companion: &K) -> Result<Vec<Key>, Unresolved> {
    let mut keys = Vec::new();
    for user in referenced_data::users(cell, companion)? {
        let deployment = cell.get::<WorkloadDeployment>((companion.namespace(), user.as_str()))?;
        if let Some(deployment) = deployment {
            keys.extend(keys_of_deployment(cell, &deployment)?);
        }
    }
    Ok(keys)
}

/// Maps a binding to the gated instances of its deployment, which a rejected network holds back.
fn keys_of_binding(cell: &Plane, binding: &NetworkBinding) -> Result<Vec<Key>, Unresolved> {
    let Some(deployment) = owner::controller(&binding.metadata) else { return Ok(Vec::new()) };
    let instances = cell.owned_by::<Instance>(&deployment.uid)?;
    Ok(keys(cell, instances.iter().filter(|instance| !gates::of(instance).is_empty())))
}

/// Maps a namespace to its instances without a grant: the labels of the namespace name their project.
fn keys_of_namespace(cell: &Plane, namespace: &Namespace) -> Result<Vec<Key>, Unresolved> {
    let instances = cell.list_within::<Instance>(namespace.name())?;
    let granted = |instance: &Instance| {
        instance.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, QUOTA_GRANTED))
    };
    Ok(keys(cell, instances.iter().filter(|instance| !granted(instance))))
}

fn keys<'a>(cell: &Plane, instances: impl Iterator<Item = &'a Instance>) -> Vec<Key> {
    instances.map(|instance| Key::of(cell, instance)).collect()
}
