//! Runtime: has a provider run the instances of a cell, and says how far each is.
//!
//! Reads   cell: Instance, Namespace, ConfigMap, Secret, and live NetworkBinding, SubnetClaim · what stands at the provider
//! Writes  cell: Instance (finalizer, and of the status `Programmed`, `Running`, fingerprint, addresses)
//! Order   finalizer → run → status. Deletion: end, then the finalizer.
//!
//! What stands for an instance that is not there is ended, and only on evidence: the cell itself, asked at that moment,
//! has no instance of that name or one with another UID.

use std::sync::Arc;
use std::time::Duration;

use polis_api::compute::{Instance, InstanceNetworkInterfaceStatus, InstanceStatus};
use polis_api::k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polis_api::networking::{NetworkBinding, SubnetClaim};
use polis_api::{finalizers, labels, names, reasons};
use polis_core::conditions::Verdict;
use polis_core::identity::Identity;
use polis_core::{Time, gates, metadata, owner};
use polis_engine::{Clock, Engine, Index, Key, Outcome, Plane, PlaneName, Reconciler, Unresolved, Watch};
use tokio::sync::mpsc;

use crate::provider::{Data, Order, Phase, Progress, Provider, Range, Refusal, Report};
use crate::{Error, status};

/// What the runtime of a cell is told.
pub struct Runtime<P> {
    /// The cell's own plane.
    pub plane: Plane,
    /// City of the cell, for instances that do not say.
    pub city: String,
    /// What runs instances.
    pub provider: P,
}

/// Declares the runtime of a cell on an engine.
pub fn declare<P: Provider>(engine: &mut Engine, clock: Clock, runtime: Runtime<P>) {
    let Runtime { plane, city, provider } = runtime;
    let watches = [
        Watch::of::<Instance>().index(by_config_map()).index(by_secret()),
        Watch::of::<Namespace>(),
        Watch::of::<ConfigMap>(),
        Watch::of::<Secret>(),
    ];
    let cell = engine.plane("runtime", plane, watches);
    let (changes, heard) = mpsc::unbounded_channel();
    let here = cell.name().clone();
    for standing in provider.standing() {
        // What stands for nobody has no object that would bring its key. The receiver lives in the engine.
        _ = changes.send(key(&here, &standing.namespace, &standing.name));
    }
    provider.report_to(Arc::new(move |namespace, name| _ = changes.send(key(&here, namespace, name))));
    let controller = Controller { cell: cell.clone(), city, provider, clock };
    engine
        .controller("runtime", &cell, controller)
        .on::<Instance>()
        .maps::<ConfigMap>(&cell, |cell, map: &ConfigMap| users(cell, &by_config_map(), &map.metadata))
        .maps::<Secret>(&cell, |cell, secret: &Secret| users(cell, &by_secret(), &secret.metadata))
        .hears(heard);
}

fn key(plane: &PlaneName, namespace: &str, name: &str) -> Key {
    Key::new(plane.clone(), namespace, name)
}

/// Instances by the config maps that their environment comes from.
fn by_config_map() -> Index {
    Index::field("spec.runtime.sandbox.containers.env.valueFrom.configMapKeyRef.name")
}

/// Instances by the secrets that their environment comes from.
fn by_secret() -> Index {
    Index::field("spec.runtime.sandbox.containers.env.valueFrom.secretKeyRef.name")
}

/// The instances beside an object that name it.
fn users(cell: &Plane, index: &Index, object: &ObjectMeta) -> Result<Vec<Key>, Unresolved> {
    let beside = |instance: &Instance| instance.metadata.namespace == object.namespace;
    let named = cell.find::<Instance>(index, owner::name(object))?;
    let namespace = object.namespace.as_deref().unwrap_or_default();
    Ok(named
        .iter()
        .filter(|instance| beside(instance))
        .map(|instance| key(cell.name(), namespace, owner::name(&instance.metadata)))
        .collect())
}

/// See the head of this file.
struct Controller<P> {
    cell: Plane,
    city: String,
    provider: P,
    clock: Clock,
}

impl<P: Provider> Reconciler for Controller<P> {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Outcome, Error> {
        let instance = self.cell.get::<Instance>(key)?;
        let strays = self.end_strays(key, instance.as_ref()).await?;
        let Some(instance) = instance else {
            return Ok(outcome(strays));
        };
        if owner::is_deleting(&instance.metadata) {
            return self.withdraw(&instance).await;
        }
        if instance.spec.controller.is_none() || !gates::of(&instance).is_empty() {
            return Ok(outcome(strays)); // nobody has said yet that it may run
        }
        let claimed = self.cell.add_finalizer(&instance, finalizers::RUNTIME).await?;
        let instance = claimed.into_object().unwrap_or(instance);
        if instance.status.as_ref().is_some_and(|status| status.suspended == Some(true)) {
            return self.rest(&instance).await;
        }
        let again = self.run(key, &instance).await?;
        Ok(outcome(again.into_iter().chain(strays).min()))
    }
}

impl<P: Provider> Controller<P> {
    async fn run(&self, key: &Key, instance: &Instance) -> Result<Option<Duration>, Error> {
        let origin =
            self.cell.get::<Namespace>(key.namespace())?.and_then(|namespace| Identity::of(&namespace).ok());
        let data = Beside { cell: &self.cell, namespace: key.namespace() };
        let city = metadata::label(&instance.metadata, labels::CITY_CODE).unwrap_or(&self.city);
        let range = self.range(instance).await?;
        let order = Order { instance, origin: origin.as_ref(), city, range, data: &data };
        match self.provider.run(&order).await {
            Ok(report) => {
                self.say(instance, status::status(instance, &report, &self.now())).await?;
                Ok(report.again)
            }
            Err(error) => {
                // Something is wrong with the host: it is tried again, and meanwhile people can read why it takes time.
                let report = Report::refused(Refusal {
                    reason: reasons::PROGRAMMING_IN_PROGRESS,
                    message: format!("{error}; it is tried again"),
                });
                self.say(instance, status::status(instance, &report, &self.now())).await?;
                Err(error)
            }
        }
    }

    /// The addresses of the instance's first network in this cell. Read live, and only for an instance that has no address:
    /// its gate may be gone before a watch of these kinds has seen what opened it.
    async fn range(&self, instance: &Instance) -> Result<Option<Range>, Error> {
        let Some(deployment) = metadata::label(&instance.metadata, labels::WORKLOAD_DEPLOYMENT_NAME) else {
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
        let live = self.cell.live();
        let namespace = instance.metadata.namespace.as_deref().unwrap_or_default();
        let binding = names::network_binding(deployment, 0);
        let binding = live.get::<NetworkBinding>((namespace, binding.as_str())).await?;
        let Some(context) = binding.and_then(|binding| binding.status?.network_context_ref) else {
            return Ok(None);
        };
        let home = context.namespace.as_deref().unwrap_or(namespace);
        let claim = live.get::<SubnetClaim>((home, names::subnet_claim(&context.name).as_str())).await?;
        Ok(claim.and_then(|claim| {
            let status = claim.status?;
            let start = status.start_address?.parse().ok()?;
            Some(Range { start, prefix: u8::try_from(status.prefix_length?).ok()? })
        }))
    }

    /// An instance on its way out: its end is seen through before the finalizer goes.
    async fn withdraw(&self, instance: &Instance) -> Result<Outcome, Error> {
        if !metadata::has_finalizer(&instance.metadata, finalizers::RUNTIME) {
            return Ok(Outcome::Settled);
        }
        match self.provider.end(owner::uid(&instance.metadata)).await? {
            Progress::Done => {
                self.cell.remove_finalizer(instance, finalizers::RUNTIME).await?;
                Ok(Outcome::Settled)
            }
            Progress::Underway(again) => {
                self.say_running(instance, status::running(&Phase::Stopping)).await?;
                Ok(Outcome::After(again))
            }
        }
    }

    async fn rest(&self, instance: &Instance) -> Result<Outcome, Error> {
        let progress = self.provider.rest(owner::uid(&instance.metadata)).await?;
        self.say_running(instance, status::suspended()).await?;
        Ok(match progress {
            Progress::Done => Outcome::Settled,
            Progress::Underway(again) => Outcome::After(again),
        })
    }

    /// Ends what stands under this name for an instance that is not there.
    async fn end_strays(&self, key: &Key, instance: Option<&Instance>) -> Result<Option<Duration>, Error> {
        let known = instance.map(|instance| owner::uid(&instance.metadata));
        let mut again = None;
        let standing = self.provider.standing_at(key.namespace(), &key.name);
        for stray in standing.iter().map(String::as_str).filter(|uid| known != Some(*uid)) {
            let live = self.cell.live().get::<Instance>(key).await?;
            if live.is_some_and(|live| owner::uid(&live.metadata) == stray) {
                continue; // the watch is a moment behind
            }
            tracing::info!(instance = %key, uid = stray, "runs for no instance: ended");
            if let Progress::Underway(time) = self.provider.end(stray).await? {
                again = Some(again.map_or(time, |standing: Duration| standing.min(time)));
            }
        }
        Ok(again)
    }

    async fn say_running(&self, instance: &Instance, verdict: Verdict) -> Result<(), Error> {
        self.say(instance, status::withdrawn(instance, verdict, &self.now())).await
    }

    async fn say(&self, instance: &Instance, status: Option<InstanceStatus>) -> Result<(), Error> {
        if let Some(status) = status {
            let mut told = instance.clone();
            told.status = Some(status);
            self.cell.update_status(instance, &told).await?;
        }
        Ok(())
    }

    fn now(&self) -> Time {
        Time(self.clock.now())
    }
}

fn outcome(again: Option<Duration>) -> Outcome {
    again.map_or(Outcome::Settled, Outcome::After)
}

/// What lies beside an instance, as the watches have seen it.
struct Beside<'a> {
    cell: &'a Plane,
    namespace: &'a str,
}

impl Data for Beside<'_> {
    fn config_map(&self, name: &str) -> Result<Option<ConfigMap>, Error> {
        Ok(self.cell.get((self.namespace, name))?)
    }

    fn secret(&self, name: &str) -> Result<Option<Secret>, Error> {
        Ok(self.cell.get((self.namespace, name))?)
    }
}
