//! Workload controller: creates, updates and deletes the WorkloadDeployments of a Workload, and reports its
//! status.
//!
//! Reads   project: Workload, WorkloadDeployment, Network, LocationBinding, Namespace
//! Writes  project: Workload (finalizer, status), WorkloadDeployment (all but status), Event
//! Order   finalizer → check that the networks exist → deployments → status.
//!         Deletion: deployments, then the finalizer.
//!
//! A deployment is created with the metadata that the federator needs, so that the federator needs no further
//! write in the project.

use polis_api::compute::{Workload, WorkloadDeployment};
use polis_api::conditions::AVAILABLE;
use polis_api::networking::{LocationBinding, Network};
use polis_api::{ObjectExt, events, finalizers, names, reasons};
use polis_core::cities::{Cities, SkippedBinding, TenancyMode};
use polis_core::deployments::{self, DeploymentAction, DeploymentPlan};
use polis_core::owner::DeletionPlan;
use polis_core::rollout::{self, StateEvent};
use polis_core::workload_status::{self, WorkloadStatusInput};
use polis_core::{Time, conditions, networks, significant_change};
use polis_engine::{
    Action, Clock, Engine, EventRecorder, Index, Key, ListOptions, Plane, PlaneSet, Reconciler,
    StatusCoalescer, Unresolved, Watch,
};

use crate::propagation_latency::{PropagationLatency, Stage};
use crate::{Error, Management, federator};

/// The watches of the controller in projects.
pub(crate) fn watches() -> Vec<Watch> {
    vec![
        Watch::of::<Workload>().index(by_network()),
        Watch::of::<WorkloadDeployment>().index(by_workload()),
        Watch::of::<Network>(),
        Watch::of::<LocationBinding>(),
    ]
}

/// Registers the controller with an engine.
pub(crate) fn declare(engine: &mut Engine, management: &Management) {
    let projects = &management.projects;
    let controller = WorkloadController {
        projects: projects.clone(),
        tenancy: management.tenancy,
        recorder: engine.recorder("workload"),
        clock: management.clock.clone(),
        coalescer: engine.handle().registry().status_coalescer("workload"),
        latency: management.latency.clone(),
    };
    engine
        .controller("workload", projects, controller)
        .for_kind::<Workload>()
        .watches::<WorkloadDeployment>(projects, key_of_deployment)
        .watches::<Network>(projects, keys_of_network)
        .watches::<LocationBinding>(projects, keys_of_binding);
}

/// Deployments by the UID of their Workload.
fn by_workload() -> Index {
    Index::field("spec.workloadRef.uid")
}

/// Workloads by the networks in their template.
fn by_network() -> Index {
    Index::field("spec.template.spec.networkInterfaces.network.name")
}

/// Reconciles the Workloads of projects.
struct WorkloadController {
    projects: PlaneSet,
    tenancy: TenancyMode,
    recorder: EventRecorder,
    clock: Clock,
    /// Delays insignificant status updates and tracks Workloads whose status is out of date.
    coalescer: StatusCoalescer,
    latency: PropagationLatency,
}

impl Reconciler for WorkloadController {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        self.coalescer.record_result(key, self.reconcile_key(key).await)
    }
}

impl WorkloadController {
    async fn reconcile_key(&self, key: &Key) -> Result<Action, Error> {
        let project = self.projects.plane(key)?;
        let Some(workload) = project.get::<Workload>(key)? else {
            return Ok(Action::AwaitChange); // deleted; its finalizer has cleaned up
        };
        if workload.is_deleting() {
            return self.finalize(&project, key, &workload).await;
        }
        self.latency.start(&workload);
        let workload =
            project.add_finalizer(&workload, finalizers::WORKLOAD).await?.into_object().unwrap_or(workload);
        let (cities, skipped) = cities(self.tenancy, &project)?;
        let missing_networks = missing_networks(&project, &workload)?;
        if missing_networks.is_empty() {
            let existing = existing_deployments(&project, key, &workload)?;
            let plan = deployments::plan(
                &workload,
                &existing,
                &cities,
                &federator::initial_metadata(&project, key)?,
            );
            self.apply(&project, key, &workload, &existing, plan).await?;
        }
        let input = WorkloadStatusInput {
            deployments: &existing_deployments(&project, key, &workload)?,
            cities: &cities,
            skipped: &skipped,
            missing_networks: &missing_networks,
        };
        self.update_status(&project, key, &workload, &input).await
    }

    /// Applies the actions of a plan.
    async fn apply(
        &self,
        project: &Plane,
        key: &Key,
        workload: &Workload,
        existing: &[WorkloadDeployment],
        plan: DeploymentPlan,
    ) -> Result<(), Error> {
        for action in plan.actions {
            match action {
                DeploymentAction::Create(deployment) => {
                    let created = project.create(&*deployment).await?;
                    self.latency.reached(workload.uid(), Stage::Deployment);
                    let note =
                        format!("Created deployment {} for city {}", created.name(), created.spec.city_code);
                    self.recorder.normal(project, workload, events::DEPLOYMENT_CREATED, "Place", &note);
                }
                DeploymentAction::Update(desired) => {
                    let current =
                        existing.iter().find(|current| current.metadata.uid == desired.metadata.uid);
                    if let Some(current) = current
                        && project.update(current, &desired).await?.changed()
                    {
                        self.latency.reached(workload.uid(), Stage::Deployment);
                    }
                }
                DeploymentAction::Delete(object) => {
                    project
                        .delete_at::<WorkloadDeployment>(
                            (key.namespace(), object.name.as_str()),
                            &object.uid,
                            None,
                        )
                        .await?;
                    let note = format!(
                        "Deleted deployment {}: no placement of the workload names its city any more",
                        object.name
                    );
                    self.recorder.normal(project, workload, events::DEPLOYMENT_REMOVED, "Place", &note);
                }
                DeploymentAction::AwaitDeletion { .. } => {} // its deletion requeues the key
                DeploymentAction::NameConflict { name, workload_uid } => {
                    let note = format!(
                        "Deployment {name} belongs to the workload with UID {workload_uid} and is left unchanged"
                    );
                    self.recorder.warn(project, workload, events::DEPLOYMENT_NOT_OURS, "Place", &note);
                }
            }
        }
        for site in plan.stranded {
            let note = format!(
                "City {} is no longer bound to this project; the existing deployment keeps running",
                site.city
            );
            self.recorder.warn(project, workload, reasons::LOCATION_LOST, "Place", &note);
        }
        Ok(())
    }

    async fn update_status(
        &self,
        project: &Plane,
        key: &Key,
        workload: &Workload,
        input: &WorkloadStatusInput<'_>,
    ) -> Result<Action, Error> {
        let now = Time(self.clock.now());
        let Some(status) = workload_status::status(workload, input, &now) else {
            self.coalescer.mark_current(key);
            let recheck = workload_status::recheck(workload, input, &now);
            return Ok(recheck.map_or(Action::AwaitChange, Action::RequeueAfter));
        };
        if let Some(delay) =
            self.coalescer.delay(key, significant_change::of_workload(workload.status.as_ref(), &status))
        {
            return Ok(Action::RequeueAfter(delay));
        }
        if let Some(updated) = project.write_status(workload, status).await?.into_object() {
            self.record_changes(project, workload, &updated);
        }
        Ok(Action::AwaitChange)
    }

    /// Records an event when the status or reason of `Available` changes, and the events of the rollout.
    fn record_changes(&self, project: &Plane, before: &Workload, after: &Workload) {
        let conditions_of = |workload: &Workload| {
            workload.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default()
        };
        let (before, now) = (conditions_of(before), conditions_of(after));
        let (was, is) = (conditions::find(&before, AVAILABLE), conditions::find(&now, AVAILABLE));
        let mut recorded = None;
        if let Some(is) = is
            && was.map(|was| (&was.status, &was.reason)) != Some((&is.status, &is.reason))
        {
            match is.status == "True" || was.is_none() {
                true => self.recorder.normal(project, after, &is.reason, "Observe", &is.message),
                false => self.recorder.warn(project, after, &is.reason, "Observe", &is.message),
            }
            recorded = Some(is.reason.as_str());
        }
        for event in rollout::events(&before, &now) {
            let StateEvent { warning, reason, note } = &event;
            // A cause that makes the workload unavailable is one event.
            match warning {
                _ if recorded == Some(reason.as_str()) => {}
                true => self.recorder.warn(project, after, reason, "RollOut", note),
                false => self.recorder.normal(project, after, reason, "RollOut", note),
            }
        }
    }

    /// Deletes the deployments, and removes the finalizer once an uncached list finds none.
    async fn finalize(&self, project: &Plane, key: &Key, workload: &Workload) -> Result<Action, Error> {
        if !workload.has_finalizer(finalizers::WORKLOAD) {
            return Ok(Action::AwaitChange);
        }
        let mut plan = deployments::deletion_plan(workload, &existing_deployments(project, key, workload)?);
        if plan == DeletionPlan::Done {
            // The cache may lack the newest deployments, so an uncached list confirms the result.
            let uncached =
                project.uncached().list::<WorkloadDeployment>(&ListOptions::within(key.namespace())).await?;
            plan = deployments::deletion_plan(workload, &uncached);
        }
        match plan {
            DeletionPlan::Done => _ = project.remove_finalizer(workload, finalizers::WORKLOAD).await?,
            DeletionPlan::Delete(objects) => {
                for object in objects {
                    let name = (key.namespace(), object.name.as_str());
                    project.delete_at::<WorkloadDeployment>(name, &object.uid, None).await?;
                }
                return self.report_waiting(project, key, workload).await;
            }
        }
        Ok(Action::AwaitChange)
    }

    /// Writes the condition `Withdrawn` of a Workload that waits for its deployments, once one of them
    /// reports what it waits for. The deletion of each deployment requeues the key.
    async fn report_waiting(&self, project: &Plane, key: &Key, workload: &Workload) -> Result<Action, Error> {
        let deployments = existing_deployments(project, key, workload)?;
        let (cities, skipped) = cities(self.tenancy, project)?;
        let input = WorkloadStatusInput {
            deployments: &deployments,
            cities: &cities,
            skipped: &skipped,
            missing_networks: &[],
        };
        if let Some(status) = workload_status::of_deleted(workload, &input, &Time(self.clock.now())) {
            project.write_status(workload, status).await?;
        }
        Ok(Action::AwaitChange)
    }
}

/// The input of the plan: the deployments of the workload, and any other that has a name which the workload
/// needs.
fn existing_deployments(
    project: &Plane,
    key: &Key,
    workload: &Workload,
) -> Result<Vec<WorkloadDeployment>, Error> {
    let uid = workload.uid();
    let mut existing: Vec<WorkloadDeployment> = project.find(&by_workload(), uid)?;
    existing.retain(|deployment| deployment.namespace() == key.namespace());
    for placement in &workload.spec.placements {
        for city in &placement.city_codes {
            let name = names::deployment(&key.name, uid, &placement.name, city);
            if existing.iter().any(|deployment| deployment.name() == name) {
                continue;
            }
            existing.extend(project.get::<WorkloadDeployment>((key.namespace(), name.as_str()))?);
        }
    }
    Ok(existing)
}

/// The cities that the project may use, and the LocationBindings that were skipped.
fn cities(tenancy: TenancyMode, project: &Plane) -> Result<(Cities, Vec<SkippedBinding>), Error> {
    let served = project.serves::<LocationBinding>()?;
    let bindings = served.then(|| project.list::<LocationBinding>()).transpose()?;
    Ok(Cities::of_project(tenancy, bindings.as_deref()))
}

/// The networks of the template that do not exist in the project. Empty if the plane does not serve Network.
fn missing_networks(project: &Plane, workload: &Workload) -> Result<Vec<String>, Error> {
    let mut missing = Vec::new();
    if project.serves::<Network>()? {
        for (namespace, name) in networks::required(workload) {
            if project.get::<Network>((namespace.as_str(), name.as_str()))?.is_none() {
                missing.push(format!("{namespace}/{name}"));
            }
        }
    }
    Ok(missing)
}

/// Maps a deployment to its workload.
fn key_of_deployment(project: &Plane, deployment: &WorkloadDeployment) -> Result<Vec<Key>, Unresolved> {
    Ok(vec![Key::new(project.name().clone(), deployment.namespace(), &deployment.spec.workload_ref.name)])
}

/// Maps a network to the workloads that use it.
fn keys_of_network(project: &Plane, network: &Network) -> Result<Vec<Key>, Unresolved> {
    let workloads: Vec<Workload> = project.find(&by_network(), network.name())?;
    Ok(workloads.iter().map(|workload| Key::of(project, workload)).collect())
}

/// Maps a LocationBinding to every workload of the project: the permitted cities changed.
fn keys_of_binding(project: &Plane, _: &LocationBinding) -> Result<Vec<Key>, Unresolved> {
    Ok(project.list::<Workload>()?.iter().map(|workload| Key::of(project, workload)).collect())
}
