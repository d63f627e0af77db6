//! [`Shared`]: what the controllers share besides the objects on the planes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use polis_engine::{ControllerBuilder, Key, Kind, PlaneSet, Unresolved, Watch};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::clusters::{Clusters, Policies};
use crate::controllers::BindingResults;
use crate::dependents::Dependents;
use crate::error::Error;
use crate::hub::Hub;
use crate::interpreter::{Interpreter, RuleSet, TypeMeta};
use crate::kinds;
use crate::members::Members;
use crate::object::{self, ObjectKey};

/// What the controllers share. All of it is rebuilt from the hub and the members.
pub(crate) struct Shared {
    pub(crate) hub: Arc<Hub>,
    pub(crate) members: Arc<Members>,
    /// The planes of the members.
    pub(crate) planes: PlaneSet,
    pub(crate) clusters: Clusters,
    pub(crate) policies: Policies,
    pub(crate) kinds: TemplateKinds,
    pub(crate) scripts: Scripts,
    pub(crate) results: BindingResults,
    pub(crate) dependents: Dependents,
    pub(crate) triggers: Triggers,
    pub(crate) probe_every: Duration,
    pub(crate) failure_threshold: Duration,
}

/// Queues keys of a controller.
pub(crate) struct Trigger {
    sender: mpsc::UnboundedSender<Key>,
    receiver: parking_lot::Mutex<Option<mpsc::UnboundedReceiver<Key>>>,
}

impl Trigger {
    /// Queues a key.
    pub(crate) fn add(&self, key: Key) {
        // Fails only when the engine has stopped.
        let _ = self.sender.send(key);
    }

    /// Makes the trigger a source of the controller.
    pub(crate) fn declare<'e>(&self, controller: ControllerBuilder<'e>) -> ControllerBuilder<'e> {
        match self.receiver.lock().take() {
            Some(keys) => controller.external_source(keys),
            None => controller,
        }
    }
}

impl Default for Trigger {
    fn default() -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        Self { sender, receiver: parking_lot::Mutex::new(Some(receiver)) }
    }
}

/// Sources of keys that a reconcile of another controller queues.
#[derive(Default)]
pub(crate) struct Triggers {
    pub(crate) cluster: Trigger,
    pub(crate) kind: Trigger,
    pub(crate) template: Trigger,
    pub(crate) binding: Trigger,
    pub(crate) status: Trigger,
    pub(crate) work: Trigger,
}

/// The watched kinds of resource templates.
pub(crate) struct TemplateKinds {
    hub: Arc<Hub>,
    watched: RwLock<BTreeMap<TypeMeta, Arc<Kind>>>,
    /// Kinds that only dependencies of propagated objects name.
    needed: RwLock<BTreeSet<TypeMeta>>,
}

impl TemplateKinds {
    pub(crate) fn new(hub: Arc<Hub>) -> Self {
        Self { hub, watched: RwLock::default(), needed: RwLock::default() }
    }

    /// The kind, if the hub serves it and it is watched.
    pub(crate) fn get(&self, type_meta: &TypeMeta) -> Option<Arc<Kind>> {
        self.watched.read().get(type_meta).cloned()
    }

    /// Whether objects of a kind are resource templates.
    pub(crate) fn is_watched(&self, kind: &Kind) -> bool {
        self.watched.read().values().any(|watched| **watched == *kind)
    }

    /// All watched kinds.
    pub(crate) fn all(&self) -> Vec<Arc<Kind>> {
        self.watched.read().values().cloned().collect()
    }

    /// Starts the watch of a kind.
    pub(crate) fn watch(&self, kind: Kind) -> Result<(), Error> {
        let type_meta = kinds::type_meta(&kind);
        let watch = Watch::kind(kind.clone()).keep_decoded();
        // Before the watch starts: its first events are of templates too.
        self.watched.write().insert(type_meta.clone(), Arc::new(kind));
        self.hub.plane.add_watch(watch).inspect_err(|_| drop(self.watched.write().remove(&type_meta)))?;
        Ok(())
    }

    /// Stops the watch of a kind.
    pub(crate) fn unwatch(&self, type_meta: &TypeMeta) {
        let removed = self.watched.write().remove(type_meta);
        if let Some(kind) = removed {
            self.hub.plane.remove_watch(&kind);
        }
    }

    /// Records that a dependency is of this kind.
    pub(crate) fn set_needed(&self, type_meta: TypeMeta) {
        self.needed.write().insert(type_meta);
    }

    /// Whether a dependency is of this kind.
    pub(crate) fn is_needed(&self, type_meta: &TypeMeta) -> bool {
        self.needed.read().contains(type_meta)
    }

    /// A resource template: from the cache, or by a request while its kind is not synced.
    pub(crate) async fn template(&self, key: &ObjectKey) -> Result<Option<Arc<Value>>, Error> {
        let type_meta = TypeMeta { api_version: key.api_version.clone(), kind: key.kind.clone() };
        let Some(kind) = self.get(&type_meta) else { return Err(Error::UnknownKind(type_meta)) };
        if self.hub.plane.is_synced(&kind) {
            return self.hub.get(&kind, &key.namespace, &key.name);
        }
        let name = (key.namespace.as_str(), key.name.as_str());
        Ok(self.hub.of(&kind).read(name).await?.map(Arc::new))
    }
}

/// The active interpreter scripts.
pub(crate) struct Scripts {
    hub: Arc<Hub>,
    /// Without scripts until they are first used: an object must not be reconciled without the scripts of its
    /// kind.
    loaded: RwLock<Option<Interpreter>>,
    bare: Interpreter,
}

impl Scripts {
    pub(crate) fn new(hub: Arc<Hub>, bare: Interpreter) -> Self {
        Self { hub, loaded: RwLock::default(), bare }
    }

    /// The interpreter with the active scripts.
    pub(crate) fn current(&self) -> Interpreter {
        if let Some(interpreter) = &*self.loaded.read() {
            return interpreter.clone();
        }
        let mut loaded = self.loaded.write();
        loaded.get_or_insert_with(|| self.load()).clone()
    }

    pub(crate) fn set(&self, interpreter: Interpreter) {
        *self.loaded.write() = Some(interpreter);
    }

    fn load(&self) -> Interpreter {
        let objects = self.hub.of(&kinds::INTERPRETER).list().unwrap_or_default();
        // Malformed ones are reported by the controller of the scripts.
        let all: Vec<_> = objects.iter().filter_map(|object| object::typed(object).ok()).collect();
        let (rules, _) = RuleSet::collect(all.iter());
        self.bare.with_rules(rules)
    }
}

impl From<Error> for Unresolved {
    fn from(error: Error) -> Self {
        Self(error.to_string())
    }
}
