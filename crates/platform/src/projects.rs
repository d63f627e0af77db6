//! Project controller: creates a plane for each Project, and empties and deletes it with the Project.
//!
//! Reads   platform: Project · project: Namespace `default`
//! Writes  platform: Project (finalizer, status) · project: LocationBinding (initial bindings, optional)
//!         hub: Namespace (delete, optional)
//! Order   finalizer → plane with its `default` namespace → initial bindings → Ready.
//!         Deletion: all objects on the plane, while it still serves and controllers are engaged; then the
//!         plane; then its hub namespaces; then the finalizer.
//!
//! A project stays `Ready` while its plane is emptied, because controllers with finalizers there must finish
//! their work. There is no timeout, and nothing is forced. The [`PlaneProvisioner`] empties the plane; a task
//! per project waits for it, so that a project that cannot be deleted does not hold a worker.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use polis_api::conditions::{READY, RESOURCE_CLEANUP};
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::milo::Project;
use polis_api::{ObjectExt, finalizers, names, reasons};
use polis_core::Time;
use polis_core::conditions::{self, DesiredCondition};
use polis_engine::{Action, Clock, Engine, Key, Plane, Reconciler, Watch};
use tokio::task::AbortHandle;

use crate::Error;
pub use crate::error::BoxError;
use crate::hub_namespaces::HubNamespaceCleanup;
use crate::locations::InitialBindings;

/// Initial and maximum back-off after a failed deletion.
const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(300);

/// Creates and deletes the planes of projects. Both calls are idempotent.
pub trait PlaneProvisioner: Send + Sync + 'static {
    /// Creates the plane of a project with its `default` namespace. Succeeds if the plane exists.
    fn create<'a>(&'a self, project: &'a str) -> BoxFuture<'a, Result<(), BoxError>>;

    /// Deletes all objects on the plane of a project while it still serves, waits until every finalizer is
    /// removed, and then deletes the plane. Succeeds if the plane does not exist.
    fn delete<'a>(&'a self, project: &'a str) -> BoxFuture<'a, Result<(), BoxError>>;
}

/// Optional work at the creation and deletion of a project.
#[derive(Clone, Debug, Default)]
pub struct ProjectOptions {
    /// Creates LocationBindings before the project is Ready.
    pub initial_bindings: Option<InitialBindings>,
    /// Deletes the hub namespaces of the deleted project.
    pub hub_namespaces: Option<HubNamespaceCleanup>,
}

/// Registers the controller with an engine. `root` is the plane of the platform, which serves `Project`.
pub fn declare(
    engine: &mut Engine,
    clock: Clock,
    root: Plane,
    provisioner: impl PlaneProvisioner,
    options: ProjectOptions,
) {
    let root = engine.plane("platform", root, [Watch::of::<Project>()]);
    let inner = Arc::new(Inner { root: root.clone(), provisioner: Box::new(provisioner), options, clock });
    let projects = ProjectController { inner, deletions: Mutex::default() };
    engine.controller("projects", &root, projects).for_kind::<Project>();
}

/// Reconciles the Projects of the platform.
struct ProjectController {
    inner: Arc<Inner>,
    /// The tasks that delete planes, by project.
    deletions: Mutex<BTreeMap<String, AbortHandle>>,
}

struct Inner {
    root: Plane,
    provisioner: Box<dyn PlaneProvisioner>,
    options: ProjectOptions,
    clock: Clock,
}

impl Drop for ProjectController {
    fn drop(&mut self) {
        self.deletions.lock().values().for_each(AbortHandle::abort);
    }
}

impl Reconciler for ProjectController {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(project) = self.inner.root.get::<Project>(key)? else {
            self.deletions.lock().remove(&*key.name);
            return Ok(Action::AwaitChange);
        };
        if project.is_deleting() {
            if project.has_finalizer(finalizers::PROJECT) {
                self.start_deletion(project);
            }
            return Ok(Action::AwaitChange); // the task continues the deletion
        }
        self.inner.ensure_plane(project).await?;
        Ok(Action::AwaitChange)
    }
}

impl ProjectController {
    /// Starts a task that deletes the plane and retries with back-off, unless one is running.
    fn start_deletion(&self, project: Project) {
        let name = project.name().to_owned();
        let mut deletions = self.deletions.lock();
        if deletions.get(&name).is_some_and(|task| !task.is_finished()) {
            return;
        }
        let inner = self.inner.clone();
        let task = tokio::spawn(async move {
            let mut backoff = INITIAL_BACKOFF;
            while let Err(error) = inner.finalize(&project).await {
                let project = project.name();
                tracing::error!(project, %error, "failed to delete the project; retrying");
                tokio::time::sleep(backoff).await;
                backoff = (backoff * 2).min(MAX_BACKOFF);
            }
        });
        deletions.insert(name, task.abort_handle());
    }
}

impl Inner {
    /// Creates the plane and sets the project Ready.
    async fn ensure_plane(&self, project: Project) -> Result<(), Error> {
        let name = project.name().to_owned();
        if let Err(error) = names::cluster_label(&name) {
            let condition = DesiredCondition::new_false(READY, "InvalidName", error.to_string());
            return self.set_condition(&project, condition).await;
        }
        let project =
            self.root.add_finalizer(&project, finalizers::PROJECT).await?.into_object().unwrap_or(project);
        let ready = project.status.as_ref().is_some_and(|s| conditions::is_true(&s.conditions, READY));
        if !ready {
            let created = self.provisioner.create(&name).await;
            created.map_err(|source| Error::CreatePlane { project: name.clone(), source })?;
            if self.root.of_project(&name).uncached().get::<Namespace>("default").await?.is_none() {
                return Err(Error::NoDefaultNamespace { project: name });
            }
            if let Some(initial_bindings) = &self.options.initial_bindings {
                initial_bindings.create(&name).await?;
            }
        }
        let condition =
            DesiredCondition::new_true(READY, reasons::READY, "the plane of the project is ready");
        self.set_condition(&project, condition).await
    }

    /// Deletes the plane and the hub namespaces, then removes the finalizer.
    async fn finalize(&self, project: &Project) -> Result<(), Error> {
        let name = project.name();
        let Some(current) = self.current(project).await? else { return Ok(()) };
        let message = "all objects on the plane are being deleted; waiting for their finalizers";
        self.set_condition(
            &current,
            DesiredCondition::new_false(RESOURCE_CLEANUP, reasons::CLEANUP_STARTED, message),
        )
        .await?;
        tracing::info!(project = name, "deleting all objects on the plane");
        self.provisioner
            .delete(name)
            .await
            .map_err(|source| Error::DeletePlane { project: name.into(), source })?;
        tracing::info!(project = name, "deleted the plane");
        if let Some(hub_namespaces) = &self.options.hub_namespaces {
            hub_namespaces.delete_namespaces_of(name).await?;
        }
        if let Some(current) = self.current(project).await? {
            self.root.remove_finalizer(&current, finalizers::PROJECT).await?;
        }
        Ok(())
    }

    /// Reads the project uncached; none if it is gone or was replaced by another of the same name.
    async fn current(&self, project: &Project) -> Result<Option<Project>, Error> {
        let current = self.root.uncached().get::<Project>(project.name()).await?;
        Ok(current.filter(|current| current.metadata.uid == project.metadata.uid))
    }

    async fn set_condition(&self, project: &Project, condition: DesiredCondition) -> Result<(), Error> {
        let mut status = project.status.clone().unwrap_or_default();
        let now = Time(self.clock.now());
        conditions::set(&mut status.conditions, &condition, project.metadata.generation, &now);
        self.root.write_status(project, status).await?;
        Ok(())
    }
}
