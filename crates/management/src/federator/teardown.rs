//! Teardown: finalization of a deployment that its project has deleted.
//!
//! Reads   project: WorkloadDeployment, Workload (annotation `abandon`)
//!         hub: WorkloadDeployment, Cluster; uncached WorkloadDeployment, ResourceBinding, Work
//! Writes  hub: WorkloadDeployment (mark, delete), Work (delete), PropagationPolicy (delete)
//!         project: WorkloadDeployment (condition `Withdrawn`, finalizer), Event
//! Order   mark the hub copy → the cell ends the instances → hub copy → Works → policy → companions →
//!         finalizer.
//!
//! `core::teardown` decides. The hub copy and the Clusters are watched; the binding and the Works are read
//! uncached, and only while a deployment of the project is being deleted: a few reads for each deletion that
//! goes through, and one pair every ten seconds for one that waits.
//!
//! The hub namespace is the one that is recorded on the deployment, and also the one that follows from the
//! project's namespace: a user of the project may have changed the record.

use std::collections::BTreeSet;

use polis_api::compute::{Workload, WorkloadDeployment};
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::karmada::{Cluster, ResourceBinding, Work, names as karmada};
use polis_api::{ObjectExt, annotations, events, finalizers};
use polis_core::teardown::{self, TeardownAction, TeardownInput, Waiting};
use polis_core::tenant::{self, Tenant};
use polis_core::{Time, hub_copy};
use polis_engine::{Action, ErrorClass, Key, ListOptions, Plane, Preconditions, Unresolved};

use super::Federator;
use crate::Error;
use crate::resolver::Companion;

/// Kind of the hub copy, for the names of its binding and Works.
const COPY_KIND: &str = "WorkloadDeployment";

/// A step that cannot go on yet, and the hub copy if it still exists.
struct Blocked {
    waiting: Waiting,
    copy: Option<WorkloadDeployment>,
}

impl Federator {
    /// Withdraws the deployment from the hub, then removes the finalizer. While that waits, a condition of
    /// the deployment says what is left.
    pub(super) async fn finalize(
        &self,
        project: &Plane,
        key: &Key,
        deployment: &WorkloadDeployment,
    ) -> Result<Action, Error> {
        if !deployment.has_finalizer(finalizers::FEDERATOR) {
            return Ok(Action::AwaitChange);
        }
        match self.withdraw(project, key, deployment).await {
            Ok(None) => {
                project.remove_finalizer(deployment, finalizers::FEDERATOR).await?;
                Ok(Action::AwaitChange)
            }
            Ok(Some(blocked)) => self.report_waiting(project, deployment, &blocked).await,
            Err(error) => {
                let note = format!("Failed to delete the deployment from the hub; retrying: {error}");
                self.recorder.warn(project, deployment, events::HUB_CLEANUP_FAILED, "Withdraw", &note);
                if ErrorClass::of(&error) == ErrorClass::Transient {
                    let blocked = Blocked { waiting: teardown::hub_unreachable(&error), copy: None };
                    self.report_waiting(project, deployment, &blocked).await?;
                }
                Err(error)
            }
        }
    }

    /// The project has no deployment of this key. Normally its finalizer has cleaned up, and the hub has no
    /// copy either. A copy that exists nevertheless, for example on a hub that was restored from a backup, is
    /// withdrawn if an uncached read of the project does not find the deployment, and if the labels of the
    /// hub namespace name this project: its plane alone says which UID its namespace has.
    pub(super) async fn withdraw_unknown(&self, project: &Plane, key: &Key) -> Result<Action, Error> {
        let Ok(hub_namespace) = self.hub_namespace(project, key) else { return Ok(Action::AwaitChange) };
        let name = (hub_namespace.name.as_str(), &*key.name);
        let Some(copy) = self.hub.get::<WorkloadDeployment>(name)? else { return Ok(Action::AwaitChange) };
        match self.owns_hub_namespace(key, &hub_namespace.name).await {
            Ok(true) => {}
            Ok(false) | Err(Error::Tenant(_)) => return Ok(Action::AwaitChange),
            Err(error) => return Err(error),
        }
        if project.uncached().get::<WorkloadDeployment>(key).await?.is_some() {
            return Ok(Action::AwaitChange); // its event requeues the key
        }
        let note = format!("Project {} has no deployment {key}; this copy is withdrawn", project.name());
        self.recorder.warn(&self.hub, &copy, events::SOURCE_GONE, "Withdraw", &note);
        let mut source = copy;
        source.metadata.namespace = key.namespace.as_deref().map(str::to_owned);
        source.metadata.deletion_timestamp = Some(Time(self.clock.now()));
        let blocked = self.withdraw_from(project, &hub_namespace.name, &source).await?;
        if blocked.is_none() {
            self.resolver.release(project, &hub_namespace.name, &source, key.namespace()).await?;
        }
        let recheck = blocked.and_then(|blocked| blocked.waiting.recheck);
        Ok(recheck.map_or(Action::AwaitChange, Action::RequeueAfter))
    }

    /// The project has no deployment of this key. If the name is that of a companion, no deployment needs the
    /// companion, and the labels of the hub namespace name this project, deletes it.
    pub(super) async fn delete_unused_companion(&self, project: &Plane, key: &Key) -> Result<(), Error> {
        let Ok(hub_namespace) = self.hub_namespace(project, key) else { return Ok(()) };
        let hub_namespace = hub_namespace.name.as_str();
        if !self.resolver.has_companion(hub_namespace, &key.name)?
            || !self.owns_hub_namespace(key, hub_namespace).await?
        {
            return Ok(());
        }
        let companion =
            Companion { namespace: key.namespace(), hub_namespace, name: &key.name, leaving: None };
        self.resolver.delete_unused(project, &companion).await
    }

    /// Takes the next steps of the teardown. Returns none when nothing is left.
    async fn withdraw(
        &self,
        project: &Plane,
        key: &Key,
        deployment: &WorkloadDeployment,
    ) -> Result<Option<Blocked>, Error> {
        for namespace in self.namespaces_to_clean(project, key, deployment).await? {
            if let Some(blocked) = self.withdraw_from(project, &namespace, deployment).await? {
                return Ok(Some(blocked));
            }
            // A city that is not a label value was never federated, so it has no policy.
            if hub_copy::check_city(deployment).is_ok() {
                let (city, leaving) = (&deployment.spec.city_code, deployment.metadata.name.as_deref());
                self.delete_unused_policy(project, key, &namespace, city, leaving).await?;
            }
            self.resolver.release(project, &namespace, deployment, key.namespace()).await?;
        }
        Ok(None)
    }

    /// The hub namespaces that may have a copy: the recorded one and the true one, each if it belongs to the
    /// tenant. Without a record nothing was written to the hub, unless a user has removed the record.
    async fn namespaces_to_clean(
        &self,
        project: &Plane,
        key: &Key,
        deployment: &WorkloadDeployment,
    ) -> Result<BTreeSet<String>, Error> {
        let recorded = hub_copy::recorded_namespace(deployment);
        if recorded.is_none() && hub_copy::check_city(deployment).is_err() {
            return Ok(BTreeSet::new()); // never federated
        }
        let own = self.hub_namespace(project, key)?.name;
        let candidates = recorded.filter(|recorded| *recorded != own).into_iter().chain([own.as_str()]);
        let mut namespaces = BTreeSet::new();
        for name in candidates {
            match self.owns_hub_namespace(key, name).await {
                Ok(true) => _ = namespaces.insert(name.to_owned()),
                // Only the true namespace can have lost its labels with copies of this deployment in it.
                Err(Error::Tenant(_)) if name != own => {
                    self.record_conflict(project, deployment, name, "belongs to no tenant");
                }
                Ok(false) => self.record_conflict(project, deployment, name, "belongs to another tenant"),
                Err(error) => return Err(error),
            }
        }
        Ok(namespaces)
    }

    /// Whether a hub namespace belongs to the tenant of the deployment, by its labels. Users of the project
    /// can change the annotation, and the project's plane says which UID its namespace has.
    async fn owns_hub_namespace(&self, key: &Key, name: &str) -> Result<bool, Error> {
        let tenant = Tenant::new(key.plane.as_str(), key.namespace()).map_err(tenant::TenantError::from)?;
        let namespace = match self.hub.get::<Namespace>(name)? {
            Some(namespace) => Some(namespace),
            // The watch delivers only namespaces with the label of a project.
            None => {
                let named = ListOptions::all().fields(format!("metadata.name={name}"));
                self.hub.uncached().list::<Namespace>(&named).await?.pop()
            }
        };
        Ok(tenant.owns(namespace.as_ref())?)
    }

    /// Takes the next steps in one hub namespace. Returns none when nothing is left in it.
    async fn withdraw_from(
        &self,
        project: &Plane,
        namespace: &str,
        deployment: &WorkloadDeployment,
    ) -> Result<Option<Blocked>, Error> {
        let name = (namespace, deployment.name());
        let workload_name = (deployment.namespace(), deployment.spec.workload_ref.name.as_str());
        let workload = project.get::<Workload>(workload_name)?;
        let abandoned = teardown::is_abandoned(deployment, workload.as_ref());
        let has_members = self.hub.serves::<Cluster>()?;
        let clusters = if has_members { self.hub.list::<Cluster>()? } else { Vec::new() };
        let mut copy = match self.copy(namespace, deployment)? {
            Some(copy) => Some(copy),
            // The cache may lack the newest copy, and a missing entry is no evidence.
            None => self.hub.uncached().get::<WorkloadDeployment>(name).await?,
        };
        loop {
            let now = Time(self.clock.now());
            // The binding first: while it exists, the federation may still create Works.
            let bound = copy.is_none() && self.binding_exists(namespace, deployment.name()).await?;
            let works = match teardown::needs_works(copy.as_ref(), &clusters, &now) {
                true => self.works_of(namespace, deployment.name()).await?,
                false => Vec::new(),
            };
            let input =
                TeardownInput { copy: copy.as_ref(), bound, works: &works, clusters: &clusters, abandoned };
            let action = teardown::plan(deployment, &input, &now);
            if has_members {
                self.record_leaving(project, deployment, &works, &clusters);
            }
            match action {
                TeardownAction::Mark(marked) => match &copy {
                    Some(current) => copy = self.hub.update(current, &marked).await?.into_object().or(copy),
                    None => unreachable!("only an existing copy is marked"),
                },
                TeardownAction::DeleteCopy { unconfirmed } => {
                    if let Some(why) = unconfirmed {
                        let reason = events::TEARDOWN_UNCONFIRMED;
                        self.recorder.warn(project, deployment, reason, "Withdraw", &why);
                    }
                    let Some(current) = copy.take() else { unreachable!("only an existing copy is deleted") };
                    if !self.hub.delete_copy(&current).await? {
                        copy = self.hub.uncached().get::<WorkloadDeployment>(name).await?;
                    }
                }
                TeardownAction::DeleteWorks(waiting) => {
                    for work in works.iter().filter(|work| !work.is_deleting()) {
                        self.hub.delete(work, Preconditions::Uid).await?;
                    }
                    return Ok(Some(Blocked { waiting, copy }));
                }
                TeardownAction::Wait(waiting) => return Ok(Some(Blocked { waiting, copy })),
                TeardownAction::Done { left_behind } => {
                    if abandoned {
                        self.record_abandoned(project, deployment, &left_behind);
                    }
                    return Ok(None);
                }
            }
        }
    }

    async fn binding_exists(&self, namespace: &str, name: &str) -> Result<bool, Error> {
        let binding = karmada::binding(COPY_KIND, name);
        Ok(self.hub.uncached().get::<ResourceBinding>((namespace, binding.as_str())).await?.is_some())
    }

    /// The Works of a hub copy, in the execution namespaces of all members: they all have the same name.
    async fn works_of(&self, namespace: &str, name: &str) -> Result<Vec<Work>, Error> {
        let of_name = format!("metadata.name={}", karmada::work(COPY_KIND, namespace, name));
        let mut works = match self.hub.uncached().list::<Work>(&ListOptions::all().fields(of_name)).await {
            Err(error) if error.code() == Some(404) => Vec::new(), // a hub without Works
            listed => listed?,
        };
        works.retain(|work| {
            let binding = work.annotation(annotations::karmada::BINDING_NAMESPACE);
            binding.is_none_or(|bound_in| bound_in == namespace)
        });
        Ok(works)
    }

    /// Writes the condition `Withdrawn`, once the deletion has taken long enough to be worth a write.
    async fn report_waiting(
        &self,
        project: &Plane,
        deployment: &WorkloadDeployment,
        blocked: &Blocked,
    ) -> Result<Action, Error> {
        let now = Time(self.clock.now());
        let Blocked { waiting, copy } = blocked;
        let report_in = teardown::report_after(deployment, &now);
        if report_in.is_none()
            && let Some(status) = teardown::status(deployment, copy.as_ref(), waiting, &now)
        {
            project.write_status(deployment, status).await?;
        }
        let delays = [waiting.recheck, report_in];
        Ok(delays.into_iter().flatten().min().map_or(Action::AwaitChange, Action::RequeueAfter))
    }

    fn record_leaving(
        &self,
        project: &Plane,
        deployment: &WorkloadDeployment,
        works: &[Work],
        clusters: &[Cluster],
    ) {
        for cell in teardown::leaving(works, clusters) {
            let note = format!(
                "Cell {cell} has left the federation, so the deletion does not wait for it. Instances of this deployment may still run there"
            );
            self.recorder.warn(project, deployment, events::CELL_ABANDONED, "Withdraw", &note);
        }
    }

    fn record_abandoned(&self, project: &Plane, deployment: &WorkloadDeployment, left_behind: &[String]) {
        let note = match left_behind {
            [] => format!(
                "City {} was abandoned; nothing of the deployment was left there",
                deployment.spec.city_code
            ),
            cells => format!(
                "City {} was abandoned: instances may still run in cell {}. The federation deletes them there when the cell returns",
                deployment.spec.city_code,
                cells.join(", ")
            ),
        };
        self.recorder.warn(project, deployment, events::CELL_ABANDONED, "Withdraw", &note);
    }
}

/// Maps a Workload that is being deleted, and that abandons cities, to its deployments.
pub(super) fn keys_of_abandoning(project: &Plane, workload: &Workload) -> Result<Vec<Key>, Unresolved> {
    if !workload.is_deleting() || workload.annotation(annotations::ABANDON).is_none() {
        return Ok(Vec::new());
    }
    let deployments = project.list_within::<WorkloadDeployment>(workload.namespace())?;
    let of_workload = |it: &&WorkloadDeployment| it.spec.workload_ref.uid == workload.uid();
    Ok(deployments.iter().filter(of_workload).map(|deployment| Key::of(project, deployment)).collect())
}
