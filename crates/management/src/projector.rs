//! Projector: copies each Instance of a project's deployments from the hub into the project.
//!
//! Reads   hub: Instance, Namespace · project: Instance, WorkloadDeployment, Namespace
//! Writes  project: Instance (projections, with status), Event
//! Order   resolve the tenant of the hub namespace → find the owner deployment → projection → its status.
//!
//! Keys are Instances of projects. A hub copy is mapped to the project that the labels of its hub namespace
//! name, and to nothing without these labels. A projection is deleted only if an uncached read of the hub
//! does not find its copy, and only if this controller created it.

use std::time::Duration;

use polis_api::compute::{Instance, WorkloadDeployment};
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::{ObjectExt, events, labels, names};
use polis_core::mirror::{CopyAction, InstanceChanges};
use polis_core::projection::{self, HubCopyState, ProjectionDeletion, ProjectionRefusal};
use polis_core::rollout::StateEvent;
use polis_core::tenant::{Tenant, TenantError};
use polis_core::{instance_events, template};
use polis_engine::{
    Action, Engine, EventRecorder, Index, Key, Plane, PlaneSet, Reconciler, StatusCoalescer, Unresolved,
    Watch,
};

use crate::propagation_latency::{PropagationLatency, Stage};
use crate::{Error, Management, unresolved_objects};

/// The watches of the controller in projects.
pub(crate) fn project_watches() -> Vec<Watch> {
    vec![Watch::of::<Instance>(), Watch::of::<WorkloadDeployment>(), Watch::of::<Namespace>()]
}

/// The watches of the controller on the hub.
pub(crate) fn hub_watches() -> Vec<Watch> {
    vec![unresolved_objects::watch(), Watch::of::<Instance>().index(by_deployment())]
}

/// Registers the controller with an engine.
pub(crate) fn declare(engine: &mut Engine, management: &Management) {
    let (projects, hub) = (&management.projects, &management.hub);
    let projector = Projector {
        projects: projects.clone(),
        hub: hub.clone(),
        recorder: engine.recorder("projector"),
        coalescer: engine.handle().registry().status_coalescer("projector"),
        latency: management.latency.clone(),
    };
    let hub_plane = hub.clone();
    let [of_copies, of_namespaces] = [(); 2].map(|()| management.unresolved.clone());
    engine
        .controller("projector", projects, projector)
        .for_kind::<Instance>()
        .watches::<Instance>(hub, move |hub, copy| of_copies.keys_of_copy(hub, copy))
        .watches::<Namespace>(hub, move |hub, namespace| {
            of_namespaces.keys_of_namespace::<Instance>(hub, namespace)
        })
        .watches::<WorkloadDeployment>(projects, move |project, deployment| {
            keys_of_deployment(&hub_plane, project, deployment)
        });
}

/// After a hub was restored from a backup, a missing copy does not show that its instance has ended: the cell
/// creates the copy again, once the federator has created its deployment. For this time projections stay.
const RESTORE_TIME: Duration = Duration::from_secs(5 * 60);
/// How often a projection without a copy is checked within that time.
const RESTORE_RECHECK: Duration = Duration::from_secs(60);

/// Projects the Instances of the hub into their projects.
struct Projector {
    projects: PlaneSet,
    hub: Plane,
    recorder: EventRecorder,
    /// Delays insignificant status updates and tracks projections that differ from their hub copies.
    coalescer: StatusCoalescer,
    latency: PropagationLatency,
}

impl Reconciler for Projector {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        self.coalescer.record_result(key, Box::pin(self.reconcile_key(key)).await)
    }
}

impl Projector {
    async fn reconcile_key(&self, key: &Key) -> Result<Action, Error> {
        let project = self.projects.plane(key)?;
        let Some(namespace) = project.get::<Namespace>(key.namespace())? else {
            return Ok(Action::AwaitChange); // the projection was deleted with its namespace
        };
        let hub_namespace = names::hub_namespace(namespace.uid());
        let existing = project.get::<Instance>(key)?;
        match self.hub.get::<Instance>((hub_namespace.as_str(), &*key.name))? {
            Some(copy) if !copy.is_deleting() => {
                self.ensure_projection(&project, key, &hub_namespace, &copy, existing).await
            }
            _ if existing.is_some() && self.hub.was_restored_within(RESTORE_TIME) => {
                Ok(Action::RequeueAfter(RESTORE_RECHECK))
            }
            _ => {
                self.delete_projection(&project, key, &hub_namespace, existing).await?;
                Ok(Action::AwaitChange)
            }
        }
    }

    async fn ensure_projection(
        &self,
        project: &Plane,
        key: &Key,
        hub_namespace: &str,
        copy: &Instance,
        existing: Option<Instance>,
    ) -> Result<Action, Error> {
        let Some(labelled) = self.hub.get::<Namespace>(hub_namespace)? else {
            return Ok(Action::AwaitChange);
        };
        let tenant = Tenant::of(&labelled)?;
        if tenant != self.expected_tenant(key)? {
            return Ok(Action::AwaitChange); // the federator reports the conflict
        }
        let name = copy.label(labels::WORKLOAD_DEPLOYMENT_NAME).unwrap_or_default();
        let deployment = project.get::<WorkloadDeployment>((key.namespace(), name))?;
        self.record_stage(Stage::Instance, deployment.as_ref(), copy);
        match projection::plan(copy, &tenant, deployment.as_ref(), existing.as_ref()) {
            Ok(CopyAction::Write(changes)) => {
                if let Some(delay) = self.coalescer.delay(key, changes.significant) {
                    return Ok(Action::RequeueAfter(delay));
                }
                let InstanceChanges { object, status, .. } = changes;
                let status = status.map(|status| *status);
                let written = project.write_copy(existing.as_ref(), object.as_deref(), status).await?;
                if let Some(written) = &written {
                    self.record_change(project, existing.as_ref(), written);
                }
                self.record_stage(Stage::Projection, deployment.as_ref(), copy);
            }
            Ok(CopyAction::None | CopyAction::AwaitDeletion) => {}
            // The garbage collector deletes the projections of a deployment that is being deleted. A missing
            // deployment may still be created.
            Err(ProjectionRefusal::NoOwner) if deployment.is_none() => {
                return Err(Error::OwnerNotFound { instance: key.to_string(), deployment: name.to_owned() });
            }
            Err(ProjectionRefusal::NoOwner) => {}
            Err(ProjectionRefusal::Foreign) => {
                let note = "An Instance of this name runs for this project and cannot be projected, because this object has its name. Rename or delete this object";
                if let Some(existing) = &existing {
                    self.recorder.warn(project, existing, events::PROJECTION_BLOCKED, "Project", note);
                }
            }
        }
        Ok(Action::AwaitChange)
    }

    /// Records the event about a change of a projection, for the users of the project.
    fn record_change(&self, project: &Plane, before: Option<&Instance>, after: &Instance) {
        if let Some(StateEvent { warning, reason, note }) = instance_events::of_change(before, after) {
            match warning {
                true => self.recorder.warn(project, after, &reason, "Run", &note),
                false => self.recorder.normal(project, after, &reason, "Run", &note),
            }
        }
    }

    /// The tenant that the hub namespace of a key must be labelled with.
    fn expected_tenant(&self, key: &Key) -> Result<Tenant, TenantError> {
        Ok(Tenant::new(key.plane.as_str(), key.namespace())?)
    }

    /// Records a stage for a copy of the deployment's current template.
    fn record_stage(&self, stage: Stage, deployment: Option<&WorkloadDeployment>, copy: &Instance) {
        let Some(spec) = deployment.map(|deployment| &deployment.spec) else { return };
        let uid = &spec.workload_ref.uid;
        if self.latency.awaits(uid, stage)
            && template::is_current(copy, &spec.template, &template::hash(&spec.template))
        {
            self.latency.reached(uid, stage);
        }
    }

    async fn delete_projection(
        &self,
        project: &Plane,
        key: &Key,
        hub_namespace: &str,
        existing: Option<Instance>,
    ) -> Result<(), Error> {
        let Some(existing) = existing else { return Ok(()) };
        let tenant = self.expected_tenant(key)?;
        if !projection::is_ours(&existing, &tenant) {
            return Ok(());
        }
        let uncached = self.hub.uncached().get::<Instance>((hub_namespace, &*key.name)).await?;
        let hub_copy = uncached.as_ref().map_or(HubCopyState::Absent, HubCopyState::Present);
        if let ProjectionDeletion::Delete(_) = projection::plan_deletion(&existing, &tenant, hub_copy) {
            project.delete_copy(&existing).await?;
        }
        Ok(())
    }
}

/// Hub copies by the name of their deployment.
fn by_deployment() -> Index {
    Index::label(labels::WORKLOAD_DEPLOYMENT_NAME)
}

/// Maps a deployment to the project Instances of its hub copies, which wait for it as their owner.
fn keys_of_deployment(
    hub: &Plane,
    project: &Plane,
    deployment: &WorkloadDeployment,
) -> Result<Vec<Key>, Unresolved> {
    let namespace = deployment.namespace();
    let Some(namespace_object) = project.get::<Namespace>(namespace)? else { return Ok(Vec::new()) };
    let hub_namespace = names::hub_namespace(namespace_object.uid());
    let copies = hub.names_within::<Instance>(&hub_namespace, &by_deployment(), deployment.name())?;
    Ok(copies.iter().map(|copy| Key::new(project.name().clone(), namespace, copy)).collect())
}
