//! The controllers inside the server: garbage collection, the end of namespaces and CRDs, tokens, expiry.
//!
//! One task follows every write, in order, and keeps a list of what is to be looked at. Looking is level-triggered:
//! whatever the event was, the present state decides. So a restart only has to look at everything once.

mod crds;
mod expiry;
mod gc;
mod namespaces;
mod tokens;

use std::{
    collections::BTreeSet,
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::future::join_all;
use serde_json::Value;
use tokio::{sync::mpsc, task::JoinHandle, time::MissedTickBehavior};

use crate::{
    http::{Content, Options},
    json,
    plane::Plane,
    route::Verb,
    server::Core,
    status::Failure,
    store::{Change, Collection, Event, Next, Watch},
    verbs::{Call, DeleteOptions, Propagation},
};

/// Which controllers run. Those of a kube-controller-manager can take the place of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switches {
    /// Deletes what lost its owner.
    pub garbage_collector: bool,
    /// Empties namespaces that are being deleted.
    pub namespaces: bool,
    /// Fills secrets of service accounts with tokens.
    pub tokens: bool,
    /// Removes events after an hour.
    pub expiry: bool,
}

impl Default for Switches {
    fn default() -> Self {
        Self { garbage_collector: true, namespaces: true, tokens: true, expiry: true }
    }
}

/// Looks at work done at the same time.
const ABREAST: usize = 32;
/// Pause after a failure of the store.
const AGAIN: Duration = Duration::from_millis(100);
/// Pause between sweeps of history and expired events.
const SWEEP: Duration = Duration::from_secs(30);

/// An object, wherever it is.
pub(crate) type Place = (Collection, Arc<str>);

/// Starts the task that runs all controllers.
pub(crate) fn start(
    core: &Arc<Core>,
    tap: mpsc::UnboundedReceiver<(Collection, Event)>,
    switches: Switches,
) -> Vec<JoinHandle<()>> {
    let controllers = Controllers {
        core: core.clone(),
        switches,
        graph: gc::Graph::default(),
        expiry: expiry::Expiry::default(),
        work: BTreeSet::new(),
    };
    vec![tokio::spawn(controllers.run(tap))]
}

/// Something to look at. The order is that of importance: what others wait for comes first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Work {
    Dependent(Place),
    Owner(Place),
    Token(Place),
    Namespace(Arc<str>, Arc<str>),
    Crd(Arc<str>, Arc<str>),
}

struct Controllers {
    core: Arc<Core>,
    switches: Switches,
    graph: gc::Graph,
    expiry: expiry::Expiry,
    work: BTreeSet<Work>,
}

impl Controllers {
    async fn run(mut self, mut tap: mpsc::UnboundedReceiver<(Collection, Event)>) {
        self.look_at_everything();
        let mut sweep = tokio::time::interval(SWEEP);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut events = Vec::new();
        loop {
            while !self.work.is_empty() {
                let batch: Vec<Work> = std::iter::from_fn(|| self.work.pop_first()).take(ABREAST).collect();
                let this = &self;
                let again: Vec<Option<Work>> =
                    join_all(batch.into_iter().map(|work| async move { this.look(work).await })).await;
                // What failed comes back with the next write or sweep, not in a circle.
                let failed: Vec<Work> = again.into_iter().flatten().collect();
                while let Ok((collection, event)) = tap.try_recv() {
                    self.note(&collection, &event);
                }
                if !failed.is_empty() {
                    tokio::time::sleep(AGAIN).await;
                    self.work.extend(failed);
                }
            }
            tokio::select! {
                biased;
                count = tap.recv_many(&mut events, 1024) => {
                    if count == 0 {
                        return;
                    }
                    for (collection, event) in events.drain(..) {
                        self.note(&collection, &event);
                    }
                }
                _ = sweep.tick() => {
                    self.core.store.view().compact(self.core.clock.now());
                    if self.switches.expiry {
                        self.expiry.sweep(&self.core).await;
                    }
                }
            }
        }
    }

    /// After a start: every object that any controller cares for.
    fn look_at_everything(&mut self) {
        for plane in self.core.all_planes() {
            for collection in self.core.store.view().collections(&plane.name) {
                for (path, stored) in self.core.store.view().all(&collection) {
                    let event = Event::seen(path, stored);
                    self.note(&collection, &event);
                }
            }
        }
    }

    /// Takes notice of a write.
    fn note(&mut self, collection: &Collection, event: &Event) {
        let place = (collection.clone(), event.path.clone());
        if self.switches.garbage_collector {
            self.graph.note(&place, event, &mut |work| {
                self.work.insert(work);
            });
        }
        match &*collection.resource {
            "namespaces" if self.switches.namespaces && event.change == Change::Put && is_marked(event) => {
                self.work.insert(Work::Namespace(collection.plane.clone(), event.path.clone()));
            }
            "customresourcedefinitions.apiextensions.k8s.io"
                if event.change == Change::Put && is_marked(event) =>
            {
                self.work.insert(Work::Crd(collection.plane.clone(), event.path.clone()));
            }
            "secrets" if self.switches.tokens && event.change == Change::Put && tokens::concerns(event) => {
                self.work.insert(Work::Token(place.clone()));
            }
            "events" if self.switches.expiry && event.change == Change::Put => {
                self.expiry.note(&place, event, self.core.clock.now())
            }
            _ => {}
        }
        // Something went: a namespace or CRD may be waiting for it.
        if event.change == Change::Delete {
            if self.switches.namespaces
                && let Some((namespace, _)) = event.path.split_once('/')
                && namespaces::is_leaving(&self.core, &collection.plane, namespace)
            {
                self.work.insert(Work::Namespace(collection.plane.clone(), namespace.into()));
            }
            if let Some((home, name)) = crds::leaving(&self.core, collection) {
                self.work.insert(Work::Crd(home, name));
            }
        }
    }

    /// Looks at one thing; answers it again if it has to be looked at once more.
    async fn look(&self, work: Work) -> Option<Work> {
        let outcome = match &work {
            Work::Dependent(place) => gc::look_at_dependent(&self.core, place).await,
            Work::Owner(place) => gc::look_at_owner(&self.core, &self.graph, place).await,
            Work::Token(place) => tokens::fill(&self.core, place).await,
            Work::Namespace(plane, name) => namespaces::terminate(&self.core, plane, name).await,
            Work::Crd(home, name) => crds::clean_up(&self.core, home, name).await,
        };
        match outcome {
            Ok(()) => None,
            Err(failure) => {
                tracing::warn!(?work, %failure, "failed to bring an object to its end; trying again");
                Some(work)
            }
        }
    }
}

/// Being deleted, judged without parsing where that is possible.
fn is_marked(event: &Event) -> bool {
    event.object.contains(b"\"deletionTimestamp\"") && event.object.head().is_deleting()
}

/// Deletes every object under a prefix of a collection. Objects that hold on through finalizers are marked.
async fn delete_under(
    core: &Arc<Core>,
    plane: &Arc<Plane>,
    collection: &Collection,
    prefix: &str,
) -> Result<(), Failure> {
    let kinds = plane.catalogue.kinds();
    let Some(kind) = kinds.find_resource(&collection.resource) else { return Ok(()) };
    let range = crate::store::Range { prefix, ..crate::store::Range::default() };
    let page =
        core.store.view().range(collection, &range).map_err(|gone| Failure::expired(gone.to_string()))?;
    for batch in page.items.chunks(ABREAST) {
        let deletes = batch.iter().map(|(path, stored)| async move {
            let object = stored.value();
            if json::is_deleting(&object) {
                return Ok(());
            }
            let (namespace, name) =
                path.split_once('/').map_or((None, &**path), |(namespace, name)| (Some(namespace), name));
            let call = Call::internal(core, plane, kind, Verb::Delete, namespace, Some(name));
            let options = DeleteOptions {
                uid: Some(json::meta(&object, "uid").to_owned()),
                resource_version: None,
                propagation: Some(Propagation::Background),
            };
            match call.delete_object(name, &options).await {
                Err(failure) if !matches!(failure.code, 404 | 409) => Err(failure),
                _ => Ok(()),
            }
        });
        for outcome in join_all(deletes).await {
            outcome?;
        }
    }
    Ok(())
}

/// Empties a plane that is to go, and waits until it is empty.
///
/// Everything is told to go once. From then on each write to the plane says what is left to do: who holds a finalizer may
/// take hours, and hundreds of planes may leave at once, so nobody looks at them meanwhile.
pub(crate) async fn empty_plane(core: &Arc<Core>, plane: &Arc<Plane>) {
    while let Some(mut leaving) = Leaving::of(core, plane) {
        if let Err(failure) = leaving.tell().await {
            tracing::warn!(plane = %plane.name, %failure, "failed to empty a plane; trying again");
            tokio::time::sleep(AGAIN).await;
            continue;
        }
        leaving.follow().await;
    }
}

/// What is on a plane that is to go.
struct Leaving<'a> {
    core: &'a Arc<Core>,
    plane: &'a Arc<Plane>,
    /// The collections that hold something, and what is written to them from before they were looked at.
    collections: Vec<(Collection, Watch)>,
}

impl<'a> Leaving<'a> {
    /// None if the plane is empty.
    fn of(core: &'a Arc<Core>, plane: &'a Arc<Plane>) -> Option<Self> {
        let view = core.store.view();
        let watched = |collection: Collection| {
            // What was compacted meanwhile was written meanwhile: the latest write is as good a beginning.
            let watch = view.watch(&collection, view.changed_at(&collection)).ok()?;
            Some((collection, watch))
        };
        let found = view.collections(&plane.name);
        (!found.is_empty()).then(|| Self {
            core,
            plane,
            collections: found.into_iter().filter_map(watched).collect(),
        })
    }

    /// Tells everything to go: namespaced content first, then what it may depend on.
    async fn tell(&self) -> Result<(), Failure> {
        for last in [false, true] {
            for (collection, _) in self.collections.iter().filter(|(of, _)| is_late(&of.resource) == last) {
                delete_under(self.core, self.plane, collection, "").await?;
            }
        }
        Ok(())
    }

    /// Waits until nothing is left of what was told to go, or until there is something else on the plane.
    async fn follow(&mut self) {
        loop {
            let left = self.core.store.view().collections(&self.plane.name);
            if left.iter().all(|left| !self.collections.iter().any(|(known, _)| known == left)) {
                return;
            }
            let (collection, next) = poll_fn(|context| self.poll_next(context)).await;
            let Next::Event(event) = next else { return };
            if event.change == Change::Put && !is_marked(&event) {
                // It was being written while everything was told to go.
                if let Err(failure) = delete_under(self.core, self.plane, &collection, &event.path).await {
                    tracing::warn!(plane = %self.plane.name, %failure, "failed to delete what came late");
                    tokio::time::sleep(AGAIN).await;
                    return;
                }
            }
        }
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<(Collection, Next)> {
        for (collection, watch) in &mut self.collections {
            if let Poll::Ready(next) = watch.poll_next(context) {
                return Poll::Ready((collection.clone(), next));
            }
        }
        Poll::Pending
    }
}

/// Kinds that others need until they are gone.
fn is_late(resource: &str) -> bool {
    resource == "namespaces"
        || resource.ends_with(".rbac.authorization.k8s.io")
        || resource.ends_with(".apiextensions.k8s.io")
}

/// Creates a CRD in a plane or brings the one there to the given spec.
pub(crate) async fn install(core: &Arc<Core>, plane: &Arc<Plane>, crd: &Value) -> Result<(), Failure> {
    let kinds = plane.catalogue.kinds();
    let kind =
        kinds.find("apiextensions.k8s.io", "customresourcedefinitions").ok_or_else(Failure::no_such_path)?;
    let name = json::meta(crd, "name");
    let mut call = Call::internal(core, plane, kind, Verb::Patch, None, Some(name));
    call.options = Options { field_manager: "polis".into(), force: Some(true), ..Options::default() };
    let mut wanted = crd.clone();
    if let Some(fields) = wanted.as_object_mut() {
        fields.remove("status");
    }
    for field in ["resourceVersion", "uid", "creationTimestamp", "generation", "managedFields"] {
        json::set_meta(&mut wanted, field, None);
    }
    let bytes = serde_json::to_vec(&wanted).unwrap_or_default();
    let response = call
        .patch(&crate::verbs::Payload { content: Some(Content::ApplyPatch), bytes: bytes.into() })
        .await?;
    debug_assert!(response.status().is_success());
    Ok(())
}
