//! Instance: gets each instance its quota, says whether it is ready, and shows it on the hub.
//!
//! Reads   cell: Instance, WorkloadDeployment, NetworkBinding, Namespace · project: ResourceClaim
//!         hub: Instance (this cell's copies), and live WorkloadDeployment, Namespace
//! Writes  cell: Instance (finalizers, gate `Quota`, status), Event · project: ResourceClaim · hub: Instance, with status
//! Order   finalizers → quota → status → gate → hub copy. Deletion: hub copy, claim, then the finalizers.
//!
//! The cell's own part never waits for the hub: what could not be shown there is shown later. The gate is dropped in
//! the pass that has written the grant, because no other would follow.

use std::time::Duration;

use polis_api::compute::{Instance, WorkloadDeployment};
use polis_api::conditions::{QUOTA_GRANTED, READY};
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use polis_api::networking::NetworkBinding;
use polis_api::{finalizers, labels};
use polis_core::conditions::{self, Verdict};
use polis_core::{Time, gates, metadata, networks, owner, ready, suspension};
use polis_engine::{Clock, Key, Outcome, Plane, PlaneName, Reconciler, Recorder, Tone, Unresolved};

use crate::networks::bindings;
use crate::quota::Treasury;
use crate::writeback::WriteBack;
use crate::{Error, Networks};

/// See the head of this file.
pub struct InstanceController {
    pub(crate) cell: Plane,
    pub(crate) networks: Networks,
    pub(crate) quota: Treasury,
    pub(crate) write_back: WriteBack,
    pub(crate) recorder: Recorder,
    pub(crate) clock: Clock,
}

impl Reconciler for InstanceController {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Outcome, Error> {
        let Some(instance) = self.cell.get::<Instance>(key)? else {
            self.forget(key); // gone, and its finalizers saw to the rest
            return Ok(Outcome::Settled);
        };
        if owner::is_deleting(&instance.metadata) {
            return self.release(key, &instance).await;
        }
        let instance = self.claim(instance).await?;
        let (quota, quota_again) = self.quota.look(&self.cell, key, &instance).await;
        let instance = self.report(instance, &quota).await?;
        let instance = self.open_gate(instance).await?;
        let hub_again = self.write_back.show(&self.cell, key, &instance).await?;
        Ok(soonest([quota_again, hub_again]))
    }
}

impl InstanceController {
    /// Finalizers, in one write and before anything exists elsewhere. Instances of ours are born with them.
    async fn claim(&self, instance: Instance) -> Result<Instance, Error> {
        let mut claimed = instance.clone();
        metadata::add_finalizer(&mut claimed.metadata, finalizers::INSTANCE);
        if self.quota.is_kept() {
            metadata::add_finalizer(&mut claimed.metadata, finalizers::QUOTA_CLAIM);
        }
        if claimed == instance {
            return Ok(instance);
        }
        Ok(self.cell.update(&instance, &claimed).await?.into_object().unwrap_or(claimed))
    }

    /// Quota, suspension and readiness, in one write.
    async fn report(&self, instance: Instance, quota: &Verdict) -> Result<Instance, Error> {
        let mut wished = instance.clone();
        if let Some(deployment) = self.deployment(&instance)?
            && let Some(status) = suspension::status(&instance, &deployment)
        {
            wished.status = Some(status);
        }
        let refusal = self.refusal(&instance)?;
        let now = Time(self.clock.now());
        if let Some(status) = ready::status(&wished, quota, refusal.as_deref(), &now) {
            wished.status = Some(status);
        }
        let Some(reported) = self.cell.update_status(&instance, &wished).await?.into_object() else {
            return Ok(instance);
        };
        self.tell(&instance, &reported);
        Ok(reported)
    }

    /// Drops the `Quota` gate if the grant holds for the instance as it is now.
    async fn open_gate(&self, instance: Instance) -> Result<Instance, Error> {
        match gates::quota_dropped(&instance) {
            Some(open) => Ok(self.cell.update(&instance, &open).await?.into_object().unwrap_or(open)),
            None => Ok(instance),
        }
    }

    /// Takes the instance from the hub, gives back its claim and lets it go, in that order. Neither of the first two
    /// waits for the other; the last waits for both.
    async fn release(&self, key: &Key, instance: &Instance) -> Result<Outcome, Error> {
        let mut released = instance.clone();
        let shown = metadata::remove_finalizer(&mut released.metadata, finalizers::INSTANCE);
        let claimed = metadata::remove_finalizer(&mut released.metadata, finalizers::QUOTA_CLAIM);
        let hidden = if shown { self.write_back.hide(&self.cell, key, instance).await } else { Ok(None) };
        let returned = if claimed { self.quota.give_back(&self.cell, key, instance).await } else { Ok(None) };
        let (hub_again, quota_again) = (hidden?, returned?);
        if let again @ Outcome::After(_) = soonest([hub_again, quota_again]) {
            return Ok(again);
        }
        self.forget(key);
        match self.cell.update(instance, &released).await {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(Outcome::Settled),
        }
    }

    fn forget(&self, key: &Key) {
        self.quota.forget(key);
        self.write_back.forget(key);
    }

    /// The deployment that the instance belongs to.
    fn deployment(&self, instance: &Instance) -> Result<Option<WorkloadDeployment>, Error> {
        let namespace = instance.metadata.namespace.as_deref().unwrap_or_default();
        let Some(owner) =
            owner::controller(&instance.metadata).filter(|owner| owner.kind == "WorkloadDeployment")
        else {
            return Ok(None);
        };
        let deployment = self.cell.get::<WorkloadDeployment>((namespace, owner.name.as_str()))?;
        Ok(deployment.filter(|deployment| owner::uid(&deployment.metadata) == owner.uid))
    }

    /// The words of the network service, if it refused a network.
    fn refusal(&self, instance: &Instance) -> Result<Option<String>, Error> {
        let Some(deployment) = metadata::label(&instance.metadata, labels::WORKLOAD_DEPLOYMENT_NAME) else {
            return Ok(None);
        };
        if gates::of(instance).is_empty() || !self.networks.kept(&self.cell)? {
            return Ok(None);
        }
        let namespace = instance.metadata.namespace.as_deref().unwrap_or_default();
        let interfaces = instance.spec.network_interfaces.len();
        let bindings = bindings(&self.cell, namespace, deployment, interfaces)?;
        Ok(networks::refusal(deployment, interfaces, &bindings))
    }

    /// Tells people what has changed: quota refused or granted, readiness won or lost.
    fn tell(&self, before: &Instance, after: &Instance) {
        let tell = |tone, condition: &Condition, action| {
            let note = format!(
                "{} is {} ({}): {}",
                condition.type_, condition.status, condition.reason, condition.message
            );
            self.recorder.record(
                &self.cell,
                after,
                tone,
                &condition.reason,
                action,
                note.trim_end_matches(": "),
            );
        };
        if let Some(quota) = changed(before, after, QUOTA_GRANTED, |then, now| then.reason != now.reason) {
            match quota.status.as_str() {
                "False" => tell(Tone::Warning, quota, "Claim"),
                "True" if !gates::of(before).is_empty() => tell(Tone::Normal, quota, "Claim"),
                _ => {}
            }
        }
        if let Some(ready) =
            changed(before, after, READY, |then, now| (then.status == "True") != (now.status == "True"))
        {
            match ready.status.as_str() {
                "True" => tell(Tone::Normal, ready, "Run"),
                _ => tell(Tone::Warning, ready, "Run"),
            }
        }
    }
}

/// The condition after a change that matters. One that was not there before counts as untouched.
fn changed<'a>(
    before: &Instance,
    after: &'a Instance,
    kind: &str,
    matters: impl Fn(&Condition, &Condition) -> bool,
) -> Option<&'a Condition> {
    let of = |instance: &'a Instance| conditions::find(&instance.status.as_ref()?.conditions, kind);
    let now = of(after)?;
    let untouched = Condition { status: "Unknown".into(), ..now.clone() };
    let then = before.status.as_ref().and_then(|status| conditions::find(&status.conditions, kind)).cloned();
    let then = then.unwrap_or(Condition { reason: String::new(), ..untouched });
    matters(&then, now).then_some(now)
}

/// When to come back: the soonest of several wishes.
fn soonest(wishes: [Option<Duration>; 2]) -> Outcome {
    wishes.into_iter().flatten().min().map_or(Outcome::Settled, Outcome::After)
}

/// The instance that a hub copy shows.
pub(crate) fn key_of_copy(cell: &PlaneName, copy: &Instance) -> Vec<Key> {
    let namespace = copy.metadata.namespace.as_deref().unwrap_or_default();
    vec![Key::new(cell.clone(), namespace, owner::name(&copy.metadata))]
}

/// The instances whose suspension is not what the deployment asks for. Nothing else about a deployment matters to them.
pub(crate) fn keys_of_deployment(
    cell: &Plane,
    deployment: &WorkloadDeployment,
) -> Result<Vec<Key>, Unresolved> {
    let instances = cell.owned_by::<Instance>(owner::uid(&deployment.metadata))?;
    Ok(keys(cell, instances.iter().filter(|instance| suspension::status(instance, deployment).is_some())))
}

/// The instances that a refused network holds back.
pub(crate) fn keys_of_binding(cell: &Plane, binding: &NetworkBinding) -> Result<Vec<Key>, Unresolved> {
    let Some(deployment) = owner::controller(&binding.metadata) else { return Ok(Vec::new()) };
    let instances = cell.owned_by::<Instance>(&deployment.uid)?;
    Ok(keys(cell, instances.iter().filter(|instance| !gates::of(instance).is_empty())))
}

/// The instances of a namespace that wait for quota: its labels say which project they belong to.
pub(crate) fn keys_of_namespace(cell: &Plane, namespace: &Namespace) -> Result<Vec<Key>, Unresolved> {
    let instances = cell.list_within::<Instance>(owner::name(&namespace.metadata))?;
    let granted = |instance: &Instance| {
        instance.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, QUOTA_GRANTED))
    };
    Ok(keys(cell, instances.iter().filter(|instance| !granted(instance))))
}

fn keys<'a>(cell: &Plane, instances: impl Iterator<Item = &'a Instance>) -> Vec<Key> {
    let key = |instance: &Instance| {
        let namespace = instance.metadata.namespace.as_deref().unwrap_or_default();
        Key::new(cell.name().clone(), namespace, owner::name(&instance.metadata))
    };
    instances.map(key).collect()
}
