//! Pod runtime controller: runs the Instances of a cell as Pods of a Kubernetes cluster.
//!
//! Reads   cell: Instance, Namespace
//!         cluster: Pod (those of Instances)
//! Writes  cell: Instance (finalizer; status: `Programmed`, `Running`, `ContainersReady`, template
//!         fingerprint, address)
//!         cluster: Pod, NetworkPolicy; Namespace if the cluster is apart from the cell
//! Order   finalizer, unless the Instance was created with it → network policy → Pod → status. Deletion: Pod,
//!         network policy, finalizer.
//!
//! The cluster is the cell's own API server, or another one. What a Pod must be, and what its status means,
//! is decided in `polis_core::pods`. The controller deletes the Pod of an Instance that it does not see only
//! if an uncached read of the cell finds no Instance with the Pod's UID label. It creates a Pod only when the
//! one before it is gone from the cluster: until then its node may still run it.

use std::time::Duration;

use polis_api::compute::{Instance, InstanceStatus};
use polis_api::k8s_openapi::api::core::v1::{Namespace, Pod};
use polis_api::k8s_openapi::api::networking::v1::NetworkPolicy;
use polis_api::{ObjectExt, finalizers, labels, reasons};
use polis_core::conditions::DesiredCondition;
use polis_core::pods::{self, DesiredPod, PodAction, PodDeletion, PodObservation, PodOptions};
use polis_core::tenant::Tenant;
use polis_core::{Time, gates};
use polis_engine::{Action, Clock, Engine, ErrorClass, Key, Object, Plane, Preconditions, Reconciler, Watch};

use crate::provider::{InstancePhase, RunRefusal, RunReport};
use crate::{Error, status};

/// Time until a Pod that the cluster has refused is created again.
const REFUSED_RETRY: Duration = Duration::from_secs(60);

/// Configuration of the pod runtime of a cell.
#[derive(Clone, Debug)]
pub struct PodRuntimeConfig {
    /// The cell's own plane, with the Instances.
    pub cell: Plane,
    /// The cluster that runs the Pods, if it is not the cell itself.
    pub cluster: Option<Plane>,
    /// Settings of all Pods.
    pub options: PodOptions,
}

/// Registers the pod runtime controller of a cell on an engine.
pub fn declare_pods(engine: &mut Engine, clock: Clock, config: PodRuntimeConfig) {
    let PodRuntimeConfig { cell, cluster, options } = config;
    let pods = || Watch::of::<Pod>().labels(labels::INSTANCE_UID);
    let objects = || vec![Watch::of::<Instance>(), Watch::of::<Namespace>()];
    let apart = cluster.is_some();
    let (cell, cluster) = match cluster {
        None => {
            let cell = engine.plane("pods", cell, [objects(), vec![pods()]].concat());
            (cell.clone(), cell)
        }
        Some(cluster) => {
            (engine.plane("pods", cell, objects()), engine.plane("pods-cluster", cluster, [pods()]))
        }
    };
    let name = cell.name().clone();
    let controller = Controller { cell: cell.clone(), cluster: cluster.clone(), apart, options, clock };
    engine
        .controller("pods", &cell, controller)
        .for_kind::<Instance>()
        .watches::<Pod>(&cluster, move |_, pod: &Pod| {
            Ok(vec![Key::new(name.clone(), pod.namespace(), pod.name())])
        });
}

/// The reconciler for Instances and their Pods.
struct Controller {
    cell: Plane,
    cluster: Plane,
    /// The cluster is not the cell's own API server.
    apart: bool,
    options: PodOptions,
    clock: Clock,
}

impl Reconciler for Controller {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let pod = self.cluster.get::<Pod>((key.namespace(), &*key.name))?;
        let Some(instance) = self.cell.get::<Instance>(key)? else {
            self.remove_orphan(key, pod.as_ref()).await?;
            return Ok(Action::AwaitChange);
        };
        if instance.is_deleting() {
            return self.finalize(&instance, pod.as_ref()).await;
        }
        if instance.spec.controller.is_none() || !gates::of(&instance).is_empty() {
            return Ok(Action::AwaitChange); // scheduling gates are set, or not decided yet
        }
        let claimed = self.cell.add_finalizer(&instance, finalizers::RUNTIME).await?;
        let instance = claimed.into_object().unwrap_or(instance);
        if instance.status.as_ref().is_some_and(|status| status.suspended == Some(true)) {
            self.end(&instance, pod.as_ref()).await?;
            self.write_running(&instance, status::suspended()).await?;
            return Ok(Action::AwaitChange);
        }
        Box::pin(self.run(key, &instance, pod.as_ref())).await
    }
}

impl Controller {
    /// Brings the Pod of an Instance that should run closer to its spec, and writes the status.
    async fn run(&self, key: &Key, instance: &Instance, pod: Option<&Pod>) -> Result<Action, Error> {
        let origin =
            self.cell.get::<Namespace>(key.namespace())?.and_then(|namespace| Tenant::of(&namespace).ok());
        let desired = match pods::pod(instance, origin.as_ref(), &self.options) {
            Ok(desired) => desired,
            Err(refused) => {
                self.end(instance, pod).await?;
                let message = pods::refusal_message(&refused);
                self.write_refusal(instance, reasons::CONFIGURATION_ERROR, message).await?;
                return Ok(Action::AwaitChange);
            }
        };
        match pods::plan(instance, DesiredPod::Running, pod) {
            PodAction::Create => self.create(instance, &desired, origin.as_ref()).await,
            PodAction::Unchanged => self.report(instance, pod).await,
            PodAction::Delete(PodDeletion::EarlierInstance) => {
                // The cache of the cell may be older than that of the cluster.
                let current = self.cell.uncached().get::<Instance>(key).await?;
                if let Some(pod) = pod
                    && current.is_some_and(|current| pod.label(labels::INSTANCE_UID) != Some(current.uid()))
                {
                    self.delete(pod, PodDeletion::EarlierInstance).await?;
                }
                Ok(Action::AwaitChange)
            }
            PodAction::Delete(reason) => {
                if let Some(pod) = pod {
                    self.delete(pod, reason).await?;
                }
                self.report(instance, pod).await
            }
            PodAction::AwaitDeletion if !is_own(instance, pod) => {
                let waiting = "waiting until the Pod of an earlier instance of this name has ended";
                let phase = InstancePhase::Starting(waiting.to_owned());
                self.write_running(instance, status::running(&phase)).await?;
                Ok(Action::AwaitChange)
            }
            PodAction::AwaitDeletion => self.report(instance, pod).await,
            PodAction::NameTaken | PodAction::None => self.refuse_name(instance).await,
        }
    }

    /// Creates the Pod, and what it needs before it.
    async fn create(
        &self,
        instance: &Instance,
        desired: &Pod,
        origin: Option<&Tenant>,
    ) -> Result<Action, Error> {
        if self.apart {
            self.ensure_namespace(instance, origin).await?;
        }
        if let Some(policy) = pods::network_policy(instance) {
            self.ensure_policy(&policy).await?;
        }
        match self.cluster.create(desired).await {
            Ok(created) => self.report(instance, Some(&created)).await,
            Err(error) if error.class() == ErrorClass::AlreadyExists => {
                let name = (instance.namespace(), instance.name());
                let existing = self.cluster.uncached().get::<Pod>(name).await?;
                match pods::plan(instance, DesiredPod::Running, existing.as_ref()) {
                    PodAction::NameTaken => self.refuse_name(instance).await,
                    _ => Err(error.into()), // the cache is behind, and will show it
                }
            }
            Err(error) if matches!(error.class(), ErrorClass::Invalid | ErrorClass::Forbidden) => {
                let reason = match error.class() {
                    ErrorClass::Invalid => reasons::CONFIGURATION_ERROR,
                    _ => reasons::PROGRAMMING_IN_PROGRESS,
                };
                let message = format!("the cluster refuses the Pod: {error}");
                self.write_refusal(instance, reason, message).await?;
                Ok(Action::RequeueAfter(REFUSED_RETRY))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Ends the Pod of an Instance that must not run. Returns whether it is gone.
    async fn end(&self, instance: &Instance, pod: Option<&Pod>) -> Result<bool, Error> {
        let name = (instance.namespace(), instance.name());
        let live;
        let pod = match pod {
            Some(pod) => Some(pod),
            // The cache may not show a Pod that was just created.
            None => {
                live = self.cluster.uncached().get::<Pod>(name).await?;
                live.as_ref()
            }
        };
        match (pods::plan(instance, DesiredPod::Absent, pod), pod) {
            (PodAction::Delete(reason), Some(pod)) => {
                self.delete(pod, reason).await?;
                Ok(false)
            }
            (PodAction::AwaitDeletion, _) => Ok(false),
            _ => Ok(true),
        }
    }

    /// Ends the Pod of a deleted Instance, then removes the network policy and the finalizer.
    async fn finalize(&self, instance: &Instance, pod: Option<&Pod>) -> Result<Action, Error> {
        if !instance.has_finalizer(finalizers::RUNTIME) {
            return Ok(Action::AwaitChange);
        }
        // A Pod that the API server has removed at once has no event that follows.
        let gone = self.end(instance, pod).await? || self.end(instance, None).await?;
        if !gone {
            let running = match pod {
                Some(pod) if pod.is_deleting() => self.observe(instance, pod).conditions.swap_remove(1),
                _ => status::running(&InstancePhase::Stopping),
            };
            self.write_running(instance, running).await?;
            return Ok(Action::AwaitChange);
        }
        if pods::network_policy(instance).is_some() {
            self.remove_policy((instance.namespace(), instance.name()), instance.uid()).await?;
        }
        self.cell.remove_finalizer(instance, finalizers::RUNTIME).await?;
        Ok(Action::AwaitChange)
    }

    /// Deletes the Pod of an Instance that no longer exists.
    async fn remove_orphan(&self, key: &Key, pod: Option<&Pod>) -> Result<(), Error> {
        let Some(pod) = pod.filter(|pod| !pod.is_deleting()) else { return Ok(()) };
        let Some(uid) = pod.label(labels::INSTANCE_UID) else { return Ok(()) };
        let current = self.cell.uncached().get::<Instance>(key).await?;
        if current.is_none() {
            tracing::info!(instance = %key, "deleting a Pod: its Instance no longer exists");
            self.delete(pod, PodDeletion::NotDesired).await?;
            self.remove_policy((key.namespace(), &key.name), uid).await?;
        }
        Ok(())
    }

    async fn delete(&self, pod: &Pod, reason: PodDeletion) -> Result<(), Error> {
        tracing::debug!(namespace = pod.namespace(), pod = pod.name(), ?reason, "deleting a Pod");
        match self.cluster.delete(pod, Preconditions::Uid).await {
            // Another Pod has the name: its event follows.
            Err(error) if error.is_conflict() => Ok(()),
            done => Ok(done.map(|_| ())?),
        }
    }

    /// The namespace of the Pods in a cluster that is apart from the cell. It has the labels of its tenant,
    /// and admits only Pods without privileges.
    async fn ensure_namespace(&self, instance: &Instance, origin: Option<&Tenant>) -> Result<(), Error> {
        if self.cluster.uncached().get::<Namespace>(instance.namespace()).await?.is_some() {
            return Ok(());
        }
        let mut namespace = Namespace::default();
        namespace.metadata.name = instance.metadata.namespace.clone();
        let mut labels = origin.map(Tenant::labels).unwrap_or_default();
        labels.insert("pod-security.kubernetes.io/enforce".to_owned(), "baseline".to_owned());
        namespace.metadata.labels = Some(labels);
        ignore_existing(self.cluster.create(&namespace).await)
    }

    async fn ensure_policy(&self, desired: &NetworkPolicy) -> Result<(), Error> {
        let name = (desired.namespace(), desired.name());
        let current = self.cluster.uncached().get::<NetworkPolicy>(name).await?;
        let Some(current) = current else {
            return ignore_existing(self.cluster.create(desired).await);
        };
        let mut wanted = current.clone();
        wanted.metadata.labels.clone_from(&desired.metadata.labels);
        wanted.spec.clone_from(&desired.spec);
        self.cluster.update(&current, &wanted).await?;
        Ok(())
    }

    async fn remove_policy(&self, name: (&str, &str), uid: &str) -> Result<(), Error> {
        let policy = match self.cluster.uncached().get::<NetworkPolicy>(name).await {
            Ok(policy) => policy,
            Err(error) if error.class() == ErrorClass::NotFound => None,
            Err(error) => return Err(error.into()),
        };
        if let Some(policy) = policy.filter(|policy| policy.label(labels::INSTANCE_UID) == Some(uid)) {
            self.cluster.delete(&policy, Preconditions::Uid).await?;
        }
        Ok(())
    }

    fn observe(&self, instance: &Instance, pod: &Pod) -> PodObservation {
        pods::observe(instance, pod, &self.now())
    }

    /// Writes what the Pod says to the status of its Instance.
    async fn report(&self, instance: &Instance, pod: Option<&Pod>) -> Result<Action, Error> {
        let Some(pod) = pod else { return Ok(Action::AwaitChange) };
        let observation = self.observe(instance, pod);
        let now = self.now();
        self.write(instance, |current| pods::instance_status(current, &observation, true, &now)).await?;
        Ok(observation.again_after.map_or(Action::AwaitChange, Action::RequeueAfter))
    }

    async fn refuse_name(&self, instance: &Instance) -> Result<Action, Error> {
        let message = format!(
            "Pod {} of namespace {} in the cluster was not created for an Instance; delete or rename it",
            instance.name(),
            instance.namespace()
        );
        self.write_refusal(instance, reasons::CONFIGURATION_ERROR, message).await?;
        // Pods of others are not watched.
        Ok(Action::RequeueAfter(REFUSED_RETRY))
    }

    async fn write_refusal(
        &self,
        instance: &Instance,
        reason: &'static str,
        message: String,
    ) -> Result<(), Error> {
        let report = RunReport::refused(RunRefusal { reason, message });
        let now = self.now();
        self.write(instance, |current| status::status(current, &report, &now)).await
    }

    async fn write_running(&self, instance: &Instance, running: DesiredCondition) -> Result<(), Error> {
        let now = self.now();
        self.write(instance, |current| status::with_running(current, running, &now)).await
    }

    /// Writes the status, unless the Instance was replaced or its spec has changed since.
    async fn write(
        &self,
        instance: &Instance,
        status: impl FnOnce(&Instance) -> InstanceStatus,
    ) -> Result<(), Error> {
        let is_current = |current: &Instance| {
            current.uid() == instance.uid() && current.metadata.generation == instance.metadata.generation
        };
        let status = |current: &Instance| is_current(current).then(|| status(current));
        self.cell.modify_status((instance.namespace(), instance.name()), status).await?;
        Ok(())
    }

    fn now(&self) -> Time {
        Time(self.clock.now())
    }
}

fn is_own(instance: &Instance, pod: Option<&Pod>) -> bool {
    pod.and_then(|pod| pod.label(labels::INSTANCE_UID)) == Some(instance.uid())
}

fn ignore_existing<K: Object>(created: Result<K, polis_engine::Error>) -> Result<(), Error> {
    match created {
        Err(error) if error.class() == ErrorClass::AlreadyExists => Ok(()),
        done => Ok(done.map(|_| ())?),
    }
}
