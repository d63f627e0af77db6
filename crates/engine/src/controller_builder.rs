//! [`ControllerBuilder`]: the watches and other key sources of a controller.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::cache::{Change, decode, name_of_id};
use crate::router::{Controller, MapError, Mapper, Source, SourceWatch, Unresolved};
use crate::{Engine, Key, Kind, Object, Plane, PlaneSet};

/// Timeout of the probe of a plane that may be unreachable.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// Adds watches and other key sources to a controller. Made by [`Engine::controller`].
pub struct ControllerBuilder<'e> {
    pub(crate) engine: &'e mut Engine,
}

impl ControllerBuilder<'_> {
    /// Watches this kind on the primary planes. Each object is a key, as with controller-runtime's `For`.
    pub fn for_kind<K: Object>(self) -> Self {
        let set = self.controller().primary;
        let watch = self.watch::<K>(set);
        self.source(Source { set, watch, mapper: Mapper::Same })
    }

    /// Watches this kind on any declared planes and maps each object to keys, as with controller-runtime's
    /// `Watches`. The mapper receives the object's plane and the object: its new state, its old state, or its
    /// last state before the deletion.
    ///
    /// A key of a plane that is not engaged is dropped and counted. It is queued when the plane becomes
    /// engaged.
    pub fn watches<K: Object>(
        self,
        planes: &impl WatchedPlanes,
        mapper: impl Fn(&Plane, &K) -> Result<Vec<Key>, Unresolved> + Send + Sync + 'static,
    ) -> Self {
        let set = self.engine.position(planes);
        let watch = self.watch::<K>(set);
        let mapper = move |plane: &Plane, kind: &Kind, id: &str, bytes: &[u8]| {
            let object =
                decode::<K>(plane, kind, &name_of_id(id).to_string(), bytes).map_err(MapError::Unreadable)?;
            mapper(plane, &object).map_err(MapError::Unresolved)
        };
        self.source(Source { set, watch, mapper: Mapper::Object(Arc::new(mapper)) }).requires_sync(planes)
    }

    /// Like [`ControllerBuilder::watches`], for a kind without a type. The mapper receives the change: the
    /// object before and after.
    pub fn watches_untyped(
        self,
        planes: &impl WatchedPlanes,
        kind: &Kind,
        mapper: impl Fn(&Plane, &Change<'_>) -> Result<Vec<Key>, Unresolved> + Send + Sync + 'static,
    ) -> Self {
        let set = self.engine.position(planes);
        let watch = self.watch_of(set, kind);
        self.source(Source { set, watch, mapper: Mapper::Change(Arc::new(mapper)) }).requires_sync(planes)
    }

    /// Receives the changes of every watch that is added to these planes at run time ([`Plane::add_watch`]).
    /// When such a watch is synced, each of its objects is mapped once.
    pub fn watches_added(
        self,
        planes: &impl WatchedPlanes,
        mapper: impl Fn(&Plane, &Change<'_>) -> Result<Vec<Key>, Unresolved> + Send + Sync + 'static,
    ) -> Self {
        let set = self.engine.position(planes);
        let watch = SourceWatch::Added;
        self.source(Source { set, watch, mapper: Mapper::Change(Arc::new(mapper)) }).requires_sync(planes)
    }

    /// Does not queue a key because of what its own reconcile has written: the reconcile continues with the
    /// responses of its writes, which the cache has too. Other keys are queued as usual. If the watch shows
    /// the write before its response arrives, the key is queued all the same.
    pub fn skips_own_writes(mut self) -> Self {
        self.controller_mut().skips_own_writes = true;
        self
    }

    /// Delays the controller until the caches of these planes are synced, for planes that it reads without a
    /// watch. Planes of a set that changes at run time are not waited for.
    pub fn requires_sync(mut self, planes: &impl WatchedPlanes) -> Self {
        let set = self.engine.position(planes);
        if self.engine.sets[set].required {
            self.controller_mut().requires.insert(set);
        }
        self
    }

    /// Adds a channel as a source of keys, like controller-runtime's `source.Channel`. Keys that are sent
    /// before the controller has started are queued when it starts.
    pub fn external_source(self, keys: mpsc::UnboundedReceiver<Key>) -> Self {
        self.engine.external_sources.push((self.engine.controllers.len() - 1, keys));
        self
    }

    /// Queues the keys of the mapper when the plane becomes unreachable, and when it is reachable again.
    pub fn watches_reachability(
        self,
        plane: &Plane,
        mapper: impl Fn() -> Result<Vec<Key>, Unresolved> + Send + Sync + 'static,
    ) -> Self {
        let (sender, keys) = mpsc::unbounded_channel();
        let plane = plane.clone();
        self.engine.background.push(Box::pin(async move {
            let mut changes = plane.health().outages();
            let queue = |reachable: bool| {
                tracing::info!(plane = %plane.name(), reachable, "the reachability of the plane has changed");
                match mapper() {
                    // The receiver is gone once the engine stops.
                    Ok(keys) => keys.into_iter().for_each(|key| drop(sender.send(key))),
                    Err(why) => tracing::warn!(plane = %plane.name(), %why, "failed to queue the keys of a plane that has changed its reachability"),
                }
            };
            loop {
                plane.health().wait_for_outage(&mut changes).await;
                // The answer, or that there is none, is recorded.
                drop(timeout(PROBE_TIMEOUT, plane.uncached().raw("/version")).await);
                if plane.health().confirm_outage() {
                    queue(false);
                    plane.health().wait_for_answer(&mut changes).await;
                    queue(true);
                }
            }
        }));
        self.external_source(keys)
    }

    fn source(mut self, source: Source) -> Self {
        self.controller_mut().sources.push(source);
        self
    }

    fn watch<K: Object>(&self, set: usize) -> SourceWatch {
        self.watch_of(set, &Kind::of::<K>())
    }

    fn watch_of(&self, set: usize, kind: &Kind) -> SourceWatch {
        let set = &self.engine.sets[set];
        let found = set.watches.iter().position(|watch| watch.kind == *kind);
        SourceWatch::Declared(found.unwrap_or_else(|| {
            panic!(
                "controller {}: no watch of {kind} is declared for planes {}",
                self.controller().name,
                set.name
            )
        }))
    }

    fn controller(&self) -> &Controller {
        self.engine.controllers.last().expect("the builder is made after its controller")
    }

    fn controller_mut(&mut self) -> &mut Controller {
        self.engine.controllers.last_mut().expect("the builder is made after its controller")
    }
}

/// Planes that an engine watches: a [`Plane`] from [`Engine::plane`] or a [`PlaneSet`] from
/// [`Engine::planes`].
pub trait WatchedPlanes {
    #[doc(hidden)]
    fn set(&self) -> Option<usize>;
}

impl WatchedPlanes for Plane {
    fn set(&self) -> Option<usize> {
        self.informers().map(|informers| informers.set)
    }
}

impl WatchedPlanes for PlaneSet {
    fn set(&self) -> Option<usize> {
        Some(self.0.id)
    }
}
