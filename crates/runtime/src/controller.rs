//! Runtime controller: runs the Instances of a cell through a provider, and writes their status.
//!
//! Reads   cell: Instance, Namespace, ConfigMap and Secret (companions), NetworkBinding, SubnetClaim
//!         provider: its instances
//! Writes  cell: Instance (finalizer; status: `Programmed`, `Running`, template fingerprint, addresses)
//! Order   finalizer, unless the Instance was created with it → run → status. Deletion: remove, then the
//!         finalizer.
//!
//! The controller removes an instance from the provider without a deletion only if an uncached read of the
//! cell finds no Instance of that name, or one with another UID.

use std::sync::Arc;
use std::time::Duration;

use polis_api::compute::{Instance, InstanceNetworkInterfaceStatus};
use polis_api::k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use polis_api::networking::{NetworkBinding, SubnetClaim};
use polis_api::{ObjectExt, finalizers, labels, names, reasons};
use polis_core::conditions::DesiredCondition;
use polis_core::referenced_data::{self, DataObject};
use polis_core::tenant::Tenant;
use polis_core::{Time, gates};
use polis_engine::{
    Action, Clock, Engine, Index, Key, Object, Plane, PlaneName, Reconciler, Unresolved, Watch,
};
use tokio::sync::mpsc;

use crate::provider::{
    AddressRange, ConfigData, InstancePhase, Provider, RunRefusal, RunReport, RunRequest, StopProgress,
};
use crate::{Error, status};

/// Configuration of a cell's runtime controller.
pub struct RuntimeConfig<P> {
    /// The cell's own plane.
    pub plane: Plane,
    /// City of the cell, for instances without a city label.
    pub city: String,
    /// Runs the instances.
    pub provider: P,
}

/// The finalizers of the controller, for the controller that creates the Instances of the cell: with them a
/// new Instance starts without a further write. The controller adds missing ones before it runs an Instance.
pub fn instance_finalizers() -> Vec<&'static str> {
    vec![finalizers::RUNTIME]
}

/// The watches of the controller, for a program that shares the cache of the cell with other controllers: it
/// declares the plane with the watches of all.
pub fn watches() -> Vec<Watch> {
    vec![
        Watch::of::<Instance>().index(by_companion()),
        Watch::of::<Namespace>(),
        Watch::of::<ConfigMap>().labels(labels::REFERENCED_DATA),
        Watch::of::<Secret>().labels(labels::REFERENCED_DATA),
        Watch::of::<NetworkBinding>(),
        Watch::of::<SubnetClaim>(),
    ]
}

/// Registers the runtime controller of a cell on an engine.
pub fn declare<P: Provider>(engine: &mut Engine, clock: Clock, runtime: RuntimeConfig<P>) {
    let RuntimeConfig { plane, city, provider } = runtime;
    let cell = engine.plane("runtime", plane, watches());
    let (changes, receiver) = mpsc::unbounded_channel();
    let plane_name = cell.name().clone();
    for managed in provider.instances() {
        // An instance whose object is deleted has no watch event. The engine owns the receiver, so send
        // cannot fail.
        _ = changes.send(key(&plane_name, &managed.namespace, &managed.name));
    }
    provider.set_change_callback(Arc::new(move |namespace, name| {
        _ = changes.send(key(&plane_name, namespace, name))
    }));
    let controller = Controller { cell: cell.clone(), city, provider, clock };
    engine
        .controller("runtime", &cell, controller)
        .for_kind::<Instance>()
        .watches::<ConfigMap>(&cell, users)
        .watches::<Secret>(&cell, users)
        .external_source(receiver);
}

fn key(plane: &PlaneName, namespace: &str, name: &str) -> Key {
    Key::new(plane.clone(), namespace, name)
}

/// Indexes instances by the companions that they need.
fn by_companion() -> Index {
    Index::Computed("companion", referenced_data::index_values_of_instance)
}

/// Keys of the instances that need a companion.
fn users<K: Object + DataObject>(cell: &Plane, companion: &K) -> Result<Vec<Key>, Unresolved> {
    let (namespace, token) = (companion.namespace(), K::KIND.token(companion.name()));
    let users = cell.names_within::<Instance>(namespace, &by_companion(), &token)?;
    Ok(users.iter().map(|user| Key::new(cell.name().clone(), namespace, user)).collect())
}

/// The reconciler for Instances.
struct Controller<P> {
    cell: Plane,
    city: String,
    provider: P,
    clock: Clock,
}

impl<P: Provider> Reconciler for Controller<P> {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let instance = self.cell.get::<Instance>(key)?;
        let orphans = self.remove_orphans(key, instance.as_ref()).await?;
        let Some(instance) = instance else {
            return Ok(action(orphans));
        };
        if instance.is_deleting() {
            return self.finalize(&instance).await;
        }
        if instance.spec.controller.is_none() || !gates::of(&instance).is_empty() {
            return Ok(action(orphans)); // scheduling gates are set, or not decided yet
        }
        let claimed = self.cell.add_finalizer(&instance, finalizers::RUNTIME).await?;
        let instance = claimed.into_object().unwrap_or(instance);
        if instance.status.as_ref().is_some_and(|status| status.suspended == Some(true)) {
            return self.suspend(&instance).await;
        }
        let requeue_after = self.run(key, &instance).await?;
        Ok(action(requeue_after.into_iter().chain(orphans).min()))
    }
}

impl<P: Provider> Controller<P> {
    async fn run(&self, key: &Key, instance: &Instance) -> Result<Option<Duration>, Error> {
        let origin =
            self.cell.get::<Namespace>(key.namespace())?.and_then(|namespace| Tenant::of(&namespace).ok());
        let data = CachedConfig { cell: &self.cell, namespace: key.namespace() };
        let city = instance.label(labels::CITY_CODE).unwrap_or(&self.city);
        let range = self.address_range(instance).await?;
        let request = RunRequest { instance, origin: origin.as_ref(), city, range, data: &data };
        match self.provider.run(&request).await {
            Ok(report) => {
                self.write_report(key, instance, &report).await?;
                Ok(report.requeue_after)
            }
            Err(error) => {
                // The host has a problem. The status shows it while the engine retries.
                let report = RunReport::refused(RunRefusal {
                    reason: reasons::PROGRAMMING_IN_PROGRESS,
                    message: format!("{error}; Polis retries"),
                });
                self.write_report(key, instance, &report).await?;
                Err(error)
            }
        }
    }

    /// The subnet of the instance's first network in this cell, for an instance without an address.
    async fn address_range(&self, instance: &Instance) -> Result<Option<AddressRange>, Error> {
        let Some(deployment) = instance.label(labels::WORKLOAD_DEPLOYMENT_NAME) else {
            return Ok(None);
        };
        let has_address = |interface: &InstanceNetworkInterfaceStatus| {
            interface.assignments.as_ref().is_some_and(|given| given.network_ip.is_some())
        };
        if instance
            .status
            .as_ref()
            .and_then(|status| status.network_interfaces.first())
            .is_some_and(has_address)
        {
            return Ok(None);
        }
        let namespace = instance.namespace();
        let binding = names::network_binding(deployment, 0);
        let context = |binding: NetworkBinding| binding.status?.network_context_ref;
        let Some(context) = self.cached_or_read((namespace, binding.as_str()), context).await? else {
            return Ok(None);
        };
        let claim = names::subnet_claim(&context.name);
        let range = |claim: SubnetClaim| {
            let status = claim.status?;
            let start = status.start_address?.parse().ok()?;
            Some(AddressRange { start, prefix: u8::try_from(status.prefix_length?).ok()? })
        };
        let namespace = context.namespace.as_deref().unwrap_or(namespace);
        self.cached_or_read((namespace, claim.as_str()), range).await
    }

    /// What an object has in the cache, or else on the server: the network gate may open before the watch of
    /// a runtime with a cache of its own shows the object.
    async fn cached_or_read<K: Object, T>(
        &self,
        name: (&str, &str),
        field: impl Fn(K) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        match self.cell.get::<K>(name)?.and_then(&field) {
            Some(found) => Ok(Some(found)),
            None => Ok(self.cell.uncached().get::<K>(name).await?.and_then(field)),
        }
    }

    /// Removes a deleted instance from the provider, then its finalizer.
    async fn finalize(&self, instance: &Instance) -> Result<Action, Error> {
        if !instance.has_finalizer(finalizers::RUNTIME) {
            return Ok(Action::AwaitChange);
        }
        match self.provider.remove(instance.uid()).await? {
            StopProgress::Done => {
                self.cell.remove_finalizer(instance, finalizers::RUNTIME).await?;
                Ok(Action::AwaitChange)
            }
            StopProgress::Pending(again) => {
                self.write_running(instance, status::running(&InstancePhase::Stopping)).await?;
                Ok(Action::RequeueAfter(again))
            }
        }
    }

    async fn suspend(&self, instance: &Instance) -> Result<Action, Error> {
        let progress = self.provider.stop(instance.uid()).await?;
        self.write_running(instance, status::suspended()).await?;
        Ok(match progress {
            StopProgress::Done => Action::AwaitChange,
            StopProgress::Pending(again) => Action::RequeueAfter(again),
        })
    }

    /// Removes instances of this name that the provider holds and the cell does not have.
    async fn remove_orphans(
        &self,
        key: &Key,
        instance: Option<&Instance>,
    ) -> Result<Option<Duration>, Error> {
        let cached = instance.map(|instance| instance.uid());
        let mut requeue_after = None;
        let held = self.provider.instance_uids(key.namespace(), &key.name);
        for orphan in held.iter().map(String::as_str).filter(|uid| cached != Some(*uid)) {
            let current = self.cell.uncached().get::<Instance>(key).await?;
            if current.is_some_and(|current| current.uid() == orphan) {
                continue; // the cache is behind
            }
            tracing::info!(instance = %key, uid = orphan, "removing processes: their Instance no longer exists");
            if let StopProgress::Pending(time) = self.provider.remove(orphan).await? {
                requeue_after = Some(requeue_after.map_or(time, |earlier: Duration| earlier.min(time)));
            }
        }
        Ok(requeue_after)
    }

    /// Writes what the provider reports of the instance. The cell's instance controller writes other
    /// conditions of the same status, also while the provider works.
    async fn write_report(&self, key: &Key, instance: &Instance, report: &RunReport) -> Result<(), Error> {
        // A report for an earlier spec is not written: the event of the change follows.
        let is_current = |current: &Instance| {
            current.uid() == instance.uid() && current.metadata.generation == instance.metadata.generation
        };
        let status =
            |current: &Instance| is_current(current).then(|| status::status(current, report, &self.now()));
        self.cell.modify_status(key, status).await?;
        Ok(())
    }

    async fn write_running(&self, instance: &Instance, running: DesiredCondition) -> Result<(), Error> {
        let status = |current: &Instance| {
            let same = current.uid() == instance.uid();
            same.then(|| status::with_running(current, running, &self.now()))
        };
        self.cell.modify_status((instance.namespace(), instance.name()), status).await?;
        Ok(())
    }

    fn now(&self) -> Time {
        Time(self.clock.now())
    }
}

fn action(requeue_after: Option<Duration>) -> Action {
    requeue_after.map_or(Action::AwaitChange, Action::RequeueAfter)
}

/// The companions of config maps and secrets of a workload's namespace, from the cache.
struct CachedConfig<'a> {
    cell: &'a Plane,
    namespace: &'a str,
}

impl ConfigData for CachedConfig<'_> {
    fn config_map(&self, name: &str) -> Result<Option<ConfigMap>, Error> {
        self.companion(name)
    }

    fn secret(&self, name: &str) -> Result<Option<Secret>, Error> {
        self.companion(name)
    }
}

impl CachedConfig<'_> {
    fn companion<K: Object + DataObject>(&self, source: &str) -> Result<Option<K>, Error> {
        let name = names::companion(K::KIND.as_str(), source);
        Ok(self.cell.get((self.namespace, name.as_str()))?)
    }
}
