//! Unknown project diagnostics: reports hub namespaces whose labels name a project that does not exist.
//!
//! Reads   hub: Namespace, WorkloadDeployment · project: Namespace (shows that a project becomes known)
//! Writes  hub: Event
//!
//! The project may be deleted, or the label may be wrong. The objects in the namespace are left unchanged and
//! the namespace is counted as an unresolved object. When the project becomes known later, the count goes
//! down.

use std::time::Duration;

use polis_api::compute::WorkloadDeployment;
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::{ObjectExt, labels, names};
use polis_core::tenant::Tenant;
use polis_engine::{
    Action, Engine, Error as EngineError, Index, Key, Plane, PlaneSet, Reconciler, Unresolved, Watch,
};

use crate::Management;
use crate::unresolved_objects::{self, UnresolvedObjects};

/// Requeue delay while a project is being synced, or the list of projects is not complete.
const RECHECK_INTERVAL: Duration = Duration::from_secs(30);

/// The watches of the controller in projects. Every project has namespaces, so their events also show that a
/// project becomes known.
pub(crate) fn project_watches() -> Vec<Watch> {
    vec![Watch::of::<Namespace>()]
}

/// The watches of the controller on the hub.
pub(crate) fn hub_watches() -> Vec<Watch> {
    vec![unresolved_objects::watch().index(by_project()), Watch::of::<WorkloadDeployment>()]
}

/// Registers the controller with an engine.
pub(crate) fn declare(engine: &mut Engine, management: &Management) {
    let (projects, hub) = (&management.projects, &management.hub);
    let diagnostics = UnknownProjectDiagnostics {
        projects: projects.clone(),
        hub: hub.clone(),
        unresolved: management.unresolved.clone(),
    };
    let hub_plane = hub.clone();
    engine
        .controller("unknown-projects", hub, diagnostics)
        .for_kind::<Namespace>()
        .watches::<WorkloadDeployment>(hub, |hub, copy| {
            Ok(vec![Key::cluster(hub.name().clone(), copy.namespace())])
        })
        .watches::<Namespace>(projects, move |project, _| keys_of_project(&hub_plane, project));
}

/// Reports hub namespaces of unknown projects.
struct UnknownProjectDiagnostics {
    projects: PlaneSet,
    hub: Plane,
    unresolved: UnresolvedObjects,
}

impl Reconciler for UnknownProjectDiagnostics {
    type Error = EngineError;

    async fn reconcile(&self, key: &Key) -> Result<Action, EngineError> {
        let Some(namespace) = self.hub.get::<Namespace>(key)? else {
            let mut deleted = Namespace::default();
            deleted.metadata.name = Some(key.name.to_string());
            self.unresolved.report(&self.hub, &deleted, None);
            return Ok(Action::AwaitChange);
        };
        // A namespace without a project label is reported with each object in it.
        let project = Tenant::of(&namespace).ok().map(|tenant| tenant.project);
        let Some(project) = project.filter(|project| self.projects.named(project).is_err()) else {
            self.unresolved.report(&self.hub, &namespace, None);
            return Ok(Action::AwaitChange);
        };
        let readiness = self.projects.readiness();
        let syncing = !readiness.listed || readiness.engaging.iter().any(|plane| plane.as_str() == project);
        // A project that is engaged later requeues the key; see `keys_of_project`.
        let empty = !self.hub.any_within::<WorkloadDeployment>(&key.name)?;
        let why = Unresolved(format!("its labels name project {project}, which is not known"));
        self.unresolved.report(&self.hub, &namespace, Some(&why).filter(|_| !syncing && !empty));
        Ok(if syncing { Action::RequeueAfter(RECHECK_INTERVAL) } else { Action::AwaitChange })
    }
}

/// Hub namespaces by the project that their labels name.
fn by_project() -> Index {
    Index::label(labels::UPSTREAM_CLUSTER_NAME)
}

/// Maps a project to the hub namespaces that name it.
fn keys_of_project(hub: &Plane, project: &Plane) -> Result<Vec<Key>, Unresolved> {
    let Ok(label) = names::cluster_label(project.name().as_str()) else { return Ok(Vec::new()) };
    let namespaces = hub.find::<Namespace>(&by_project(), &label)?;
    Ok(namespaces.iter().map(|namespace| Key::of(hub, namespace)).collect())
}
