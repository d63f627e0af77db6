//! Projects: a plane for each, from its first day to its last.
//!
//! Reads   platform: Project · project: Namespace `default`
//! Writes  platform: Project (finalizer, status) · project: LocationBinding (the first ones, where asked for)
//! Order   finalizer → plane, with its `default` namespace → bindings → Ready. Deletion: everything on the plane, while it still
//!         serves and the controllers of Polis are still engaged; then the plane; then its homes on the hub, where
//!         asked for; then the finalizer.
//!
//! A project stays `Ready` while it is being emptied, because whoever holds a finalizer there must be able to do its
//! work. How long that takes is up to them; nothing is forced. The emptying itself is done by whoever has the planes
//! ([`PlaneMaker`]) and is waited for in a task of its own, so that a project that cannot end holds up no worker.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use polis_api::conditions::{READY, RESOURCE_CLEANUP};
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::milo::Project;
use polis_api::{finalizers, names, reasons};
use polis_core::conditions::{self, Verdict};
use polis_core::{Time, metadata, owner};
use polis_engine::{Clock, Engine, Key, Outcome, Plane, Reconciler, Watch};
use tokio::task::AbortHandle;

use crate::Error;
pub use crate::error::BoxError;
use crate::homes::Homes;
use crate::locations::Opening;

/// The first pause after a plane could not be ended, and the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// Whoever has the planes. Both calls may be repeated.
pub trait PlaneMaker: Send + Sync + 'static {
    /// Makes the plane of a project with its `default` namespace. One that is there already is fine.
    fn create<'a>(&'a self, project: &'a str) -> BoxFuture<'a, Result<(), BoxError>>;

    /// Deletes everything on the plane of a project while it still serves, waits until every finalizer is released,
    /// and then ends the plane. One that is gone already is fine.
    fn delete<'a>(&'a self, project: &'a str) -> BoxFuture<'a, Result<(), BoxError>>;
}

/// What a project has beside its plane, on its first day and on its last. Each may be left to somebody else.
#[derive(Clone, Debug, Default)]
pub struct Beside {
    /// The bindings that it has before it is Ready.
    pub opening: Option<Opening>,
    /// The namespaces of the hub that go with it.
    pub homes: Option<Homes>,
}

/// Declares the stand-in on an engine. `root` is the plane of the platform, which serves `Project`.
pub fn declare(engine: &mut Engine, clock: Clock, root: Plane, maker: impl PlaneMaker, beside: Beside) {
    let root = engine.plane("platform", root, [Watch::of::<Project>()]);
    let inner = Arc::new(Inner { root: root.clone(), maker: Box::new(maker), beside, clock });
    let projects = Projects { inner, leaving: Mutex::default() };
    engine.controller("projects", &root, projects).on::<Project>();
}

/// See the head of this file.
struct Projects {
    inner: Arc<Inner>,
    /// The tasks that empty planes, by project.
    leaving: Mutex<BTreeMap<String, AbortHandle>>,
}

struct Inner {
    root: Plane,
    maker: Box<dyn PlaneMaker>,
    beside: Beside,
    clock: Clock,
}

impl Drop for Projects {
    fn drop(&mut self) {
        self.leaving.lock().values().for_each(AbortHandle::abort);
    }
}

impl Reconciler for Projects {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Outcome, Error> {
        let Some(project) = self.inner.root.get::<Project>(key)? else {
            self.leaving.lock().remove(&*key.name);
            return Ok(Outcome::Settled);
        };
        if owner::is_deleting(&project.metadata) {
            if metadata::has_finalizer(&project.metadata, finalizers::PROJECT) {
                self.leave(project);
            }
            return Ok(Outcome::Settled); // the task ends it, and the last event of the project brings the key back
        }
        self.inner.serve(project).await?;
        Ok(Outcome::Settled)
    }
}

impl Projects {
    /// Sees to it that a task empties the plane, for as long and as often as it takes.
    fn leave(&self, project: Project) {
        let name = owner::name(&project.metadata).to_owned();
        let mut leaving = self.leaving.lock();
        if leaving.get(&name).is_some_and(|task| !task.is_finished()) {
            return;
        }
        let inner = self.inner.clone();
        let task = tokio::spawn(async move {
            let mut pause = FIRST_PAUSE;
            while let Err(error) = inner.end(&project).await {
                let project = owner::name(&project.metadata);
                tracing::error!(project, %error, "failed to end the project; will be tried again");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        });
        leaving.insert(name, task.abort_handle());
    }
}

impl Inner {
    /// The plane is there and the project says so.
    async fn serve(&self, project: Project) -> Result<(), Error> {
        let name = owner::name(&project.metadata).to_owned();
        if let Err(error) = names::cluster_label(&name) {
            let verdict = Verdict::no(READY, "InvalidName", error.to_string());
            return self.say(&project, verdict).await;
        }
        let project =
            self.root.add_finalizer(&project, finalizers::PROJECT).await?.into_object().unwrap_or(project);
        let ready = project.status.as_ref().is_some_and(|s| conditions::is_true(&s.conditions, READY));
        if !ready {
            let made = self.maker.create(&name).await;
            made.map_err(|source| Error::Make { project: name.clone(), source })?;
            if self.root.of_project(&name).live().get::<Namespace>("default").await?.is_none() {
                return Err(Error::Bare { project: name });
            }
            if let Some(opening) = &self.beside.opening {
                opening.bind(&name).await?;
            }
        }
        let verdict = Verdict::yes(READY, reasons::READY, "the plane of the project serves");
        self.say(&project, verdict).await
    }

    /// Empties the plane, ends it and releases the project.
    async fn end(&self, project: &Project) -> Result<(), Error> {
        let name = owner::name(&project.metadata);
        let Some(current) = self.current(project).await? else { return Ok(()) };
        let words = "everything on the plane has been told to go; finalizers are waited for";
        self.say(&current, Verdict::no(RESOURCE_CLEANUP, reasons::CLEANUP_STARTED, words)).await?;
        tracing::info!(project = name, "emptying the plane");
        self.maker.delete(name).await.map_err(|source| Error::End { project: name.into(), source })?;
        tracing::info!(project = name, "the plane is empty and gone");
        if let Some(homes) = &self.beside.homes {
            homes.leave(name).await?;
        }
        if let Some(current) = self.current(project).await? {
            self.root.remove_finalizer(&current, finalizers::PROJECT).await?;
        }
        Ok(())
    }

    /// The project as it is now; none if it is gone, and another of its name is not it.
    async fn current(&self, project: &Project) -> Result<Option<Project>, Error> {
        let current = self.root.live().get::<Project>(owner::name(&project.metadata)).await?;
        Ok(current.filter(|current| current.metadata.uid == project.metadata.uid))
    }

    async fn say(&self, project: &Project, verdict: Verdict) -> Result<(), Error> {
        let mut said = project.clone();
        let conditions = &mut said.status.get_or_insert_default().conditions;
        conditions::set(conditions, &verdict, project.metadata.generation, &Time(self.clock.now()));
        self.root.update_status(project, &said).await?;
        Ok(())
    }
}
