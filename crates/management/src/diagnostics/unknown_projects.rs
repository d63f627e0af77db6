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
use polis_engine::{Action, Error as EngineError, Index, Key, Plane, PlaneSet, Reconciler, Unresolved};

use crate::unresolved_objects::UnresolvedObjects;

/// Requeue delay while a project is being synced, or the list of projects is not complete.
const RECHECK_INTERVAL: Duration = Duration::from_secs(30);

/// Reports hub namespaces of unknown projects.
pub struct UnknownProjectDiagnostics {
    pub(crate) projects: PlaneSet,
    pub(crate) hub: Plane,
    pub(crate) unresolved: UnresolvedObjects,
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
pub(crate) fn by_project() -> Index {
    Index::label(labels::UPSTREAM_CLUSTER_NAME)
}

/// Maps a project to the hub namespaces that name it.
pub(crate) fn keys_of_project(hub: &Plane, project: &Plane) -> Result<Vec<Key>, Unresolved> {
    let Ok(label) = names::cluster_label(project.name().as_str()) else { return Ok(Vec::new()) };
    let namespaces = hub.find::<Namespace>(&by_project(), &label)?;
    Ok(namespaces.iter().map(|namespace| Key::of(hub, namespace)).collect())
}

/// Maps a hub copy to its namespace.
pub(crate) fn key_of_copy(hub: &Plane, copy: &WorkloadDeployment) -> Vec<Key> {
    vec![Key::cluster(hub.name().clone(), copy.namespace())]
}
