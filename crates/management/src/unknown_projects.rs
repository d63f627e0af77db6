//! Unknown projects: tells of a hub namespace that names a project which nobody knows.
//!
//! Reads   hub: Namespace, WorkloadDeployment
//! Writes  hub: Event
//!
//! The project may be gone, or the label may be wrong. Either way what is in there runs for nobody: it is left as it is,
//! and counted among the strangers. A project that comes late is known then, and the count goes back.

use std::time::Duration;

use polis_api::compute::WorkloadDeployment;
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::{labels, names};
use polis_core::identity::Identity;
use polis_core::owner;
use polis_engine::{Error as EngineError, Index, Key, Outcome, Plane, PlaneSet, Reconciler, Unresolved};

use crate::strangers::Strangers;

/// After this time it is looked again whether a project that is on its way has come, or will not come after all.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// See the head of this file.
pub struct UnknownProjects {
    pub(crate) projects: PlaneSet,
    pub(crate) hub: Plane,
    pub(crate) strangers: Strangers,
}

impl Reconciler for UnknownProjects {
    type Error = EngineError;

    async fn reconcile(&self, key: &Key) -> Result<Outcome, EngineError> {
        let Some(home) = self.hub.get::<Namespace>(key)? else {
            let mut gone = Namespace::default();
            gone.metadata.name = Some(key.name.to_string());
            self.strangers.tell(&self.hub, &gone, None);
            return Ok(Outcome::Settled);
        };
        // One that names no project at all is told of with each object that is in it.
        let project = Identity::of(&home).ok().map(|identity| identity.project);
        let Some(project) = project.filter(|project| self.projects.named(project).is_err()) else {
            self.strangers.tell(&self.hub, &home, None);
            return Ok(Outcome::Settled);
        };
        let known = self.projects.readiness();
        let coming = !known.listed || known.engaging.iter().any(|plane| plane.as_str() == project);
        // One that is engaged later is an event; see `keys_of_project`.
        let empty = !self.hub.any_within::<WorkloadDeployment>(&key.name)?;
        let why = Unresolved(format!("project {project}, which its labels name, is not known"));
        self.strangers.tell(&self.hub, &home, Some(&why).filter(|_| !coming && !empty));
        Ok(if coming { Outcome::After(LOOK_AGAIN) } else { Outcome::Settled })
    }
}

/// The project that a namespace of the hub names.
pub(crate) fn by_project() -> Index {
    Index::label(labels::UPSTREAM_CLUSTER_NAME)
}

/// The namespaces of the hub that name a project.
pub(crate) fn keys_of_project(hub: &Plane, project: &Plane) -> Result<Vec<Key>, Unresolved> {
    let Ok(label) = names::cluster_label(project.name().as_str()) else { return Ok(Vec::new()) };
    let homes = hub.find::<Namespace>(&by_project(), &label)?;
    Ok(homes.iter().map(|home| Key::cluster(hub.name().clone(), owner::name(&home.metadata))).collect())
}

/// The namespace that a copy is in.
pub(crate) fn key_of_copy(hub: &Plane, copy: &WorkloadDeployment) -> Vec<Key> {
    let home = copy.metadata.namespace.as_deref().unwrap_or_default();
    vec![Key::cluster(hub.name().clone(), home)]
}
