//! The server: a store, planes, and the catalogues they share.

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    sync::Arc,
};

use parking_lot::{Mutex, RwLock};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::{
    access::Access,
    admission::{Configurations, Policies, TlsWebhooks, WebhookTransport},
    builtins,
    controllers::{self, Switches},
    extension::{Extension, Extensions},
    identity::Identity,
    json,
    kinds::Catalogue,
    plane::{Plane, PlaneSpec},
    route::Verb,
    seams::{Chance, Clock, SystemClock},
    service::Service,
    status::Failure,
    store::{
        Collection, CommitError, Draft, Expect, HistoryLimits, MemoryStore, OpenError, RedbStore, Store,
        Stored, Write,
    },
    verbs::Call,
};

/// Watches one identity may hold, the administrator apart.
const WATCHES_MAX: usize = 10_000;
/// Where planes are written down.
const RECORDS: (&str, &str) = ("@server", "planes");
/// Lost races before a write of the server's own gives up.
const ATTEMPTS: usize = 64;

/// Where objects are kept.
#[derive(Clone, Debug, Default)]
pub enum Storage {
    /// In memory: gone with the process.
    #[default]
    Memory,
    /// In a redb file. What anybody outside sees is durable.
    Redb(PathBuf),
}

/// Why a server or a plane could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// A plane of that name is there.
    #[error("failed to create plane {0}: it exists already")]
    PlaneExists(String),
    /// No plane of that name.
    #[error("failed to find plane {0}: there is none of that name")]
    NoPlane(String),
    /// A name no path can hold.
    #[error("failed to create plane {0:?}: a name has 1 to 128 letters, digits or one of -._:@")]
    BadName(String),
    /// The store refused a write.
    #[error("failed to write {what}: {source}")]
    Write {
        /// What was written.
        what: String,
        /// Why it was not.
        source: Failure,
    },
}

/// Makes a [`Server`].
pub struct Builder {
    storage: Storage,
    store: Option<Arc<dyn Store>>,
    history: HistoryLimits,
    clock: Arc<dyn Clock>,
    chance: Chance,
    switches: Switches,
    access: Access,
    webhooks: Arc<dyn WebhookTransport>,
    extensions: Extensions,
    root: PlaneSpec,
}

impl Builder {
    /// Where objects are kept; in memory unless said otherwise.
    pub fn storage(mut self, storage: Storage) -> Self {
        self.storage = storage;
        self
    }

    /// A store made elsewhere, for example on a backend that fails on purpose.
    pub fn store(mut self, store: Arc<dyn Store>) -> Self {
        self.store = Some(store);
        self
    }

    /// How much history is kept.
    pub fn history(mut self, limits: HistoryLimits) -> Self {
        self.history = limits;
        self
    }

    /// The clock that dates objects.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// The source of uids and generated names.
    pub fn chance(mut self, chance: Chance) -> Self {
        self.chance = chance;
        self
    }

    /// Which controllers run inside.
    pub fn controllers(mut self, switches: Switches) -> Self {
        self.switches = switches;
        self
    }

    /// Who may come in over the network.
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// How webhooks are reached; over TLS unless told otherwise.
    pub fn webhooks(mut self, transport: impl WebhookTransport) -> Self {
        self.webhooks = Arc::new(transport);
        self
    }

    /// Serves a subresource of a kind from the embedding program, on every plane that has the kind: `log` of
    /// `instances`, for example. Callers need the verb `get` on `<plural>/<name>`.
    pub fn subresource(mut self, group: &str, plural: &str, name: &str, extension: impl Extension) -> Self {
        self.extensions.add(group, plural, name, extension);
        self
    }

    /// Makes the root plane serve the kinds of a shared catalogue; it has its own unless told so.
    pub fn root_catalogue(mut self, catalogue: impl Into<String>) -> Self {
        self.root.catalogue = Some(catalogue.into());
        self
    }

    /// Opens the store, serves the planes that are in it, and makes the root plane if it is new.
    pub async fn build(self) -> Result<Server, Error> {
        let store: Arc<dyn Store> = match (self.store, self.storage) {
            (Some(store), _) => store,
            (None, Storage::Memory) => Arc::new(MemoryStore::new(self.history, self.clock.clone())),
            (None, Storage::Redb(path)) => {
                Arc::new(RedbStore::open(&path, self.history, self.clock.clone())?)
            }
        };
        let tap = store.view().tap();
        let core = Arc::new(Core {
            store,
            clock: self.clock,
            chance: self.chance,
            planes: RwLock::default(),
            catalogues: RwLock::default(),
            watches: Mutex::default(),
            access: self.access,
            webhooks: self.webhooks,
            policies: Policies::default(),
            configurations: Configurations::default(),
            extensions: Arc::new(self.extensions),
        });
        for (_, stored) in core.store.view().all(&records()) {
            core.serve_plane(&PlaneSpec::from_record(&stored.value()));
        }
        for catalogue in core.catalogues.read().values() {
            builtins::load_crds(&core, catalogue);
        }
        let controllers = controllers::start(&core, tap, self.switches);
        let server = Server { core, _controllers: Arc::new(Tasks(controllers)) };
        if server.core.plane("").is_none() {
            server.create_plane(self.root).await?;
        }
        Ok(server)
    }
}

fn records() -> Collection {
    Collection::new(RECORDS.0, RECORDS.1)
}

/// Tasks that end with their owner.
struct Tasks(Vec<JoinHandle<()>>);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// The embedded API server. Cheap to clone; it stops with its last clone.
#[derive(Clone)]
pub struct Server {
    pub(crate) core: Arc<Core>,
    _controllers: Arc<Tasks>,
}

impl Server {
    /// Begins a server: in memory, with the machine's clock, all controllers on.
    pub fn builder() -> Builder {
        Builder {
            storage: Storage::Memory,
            store: None,
            history: HistoryLimits::default(),
            clock: Arc::new(SystemClock),
            chance: Chance::default(),
            switches: Switches::default(),
            access: Access::default(),
            webhooks: Arc::new(TlsWebhooks::default()),
            extensions: Extensions::default(),
            root: PlaneSpec::default(),
        }
    }

    /// The service of all planes, routed by path.
    pub fn service(&self) -> Service {
        Service::new(self.core.clone(), None)
    }

    /// The service of one plane: paths are those of an ordinary Kubernetes API server.
    pub fn plane_service(&self, name: &str) -> Service {
        Service::new(self.core.clone(), Some(name.into()))
    }

    /// The service of a project's plane.
    pub fn project_service(&self, project: &str) -> Service {
        self.plane_service(&crate::route::project_plane(project))
    }

    /// Whether there is a plane of that name.
    pub fn has_plane(&self, name: &str) -> bool {
        self.core.plane(name).is_some()
    }

    /// The names of all planes; the root plane's is empty.
    pub fn planes(&self) -> Vec<String> {
        self.core.planes.read().keys().map(|name| name.to_string()).collect()
    }

    /// Makes a plane with its `default` namespace.
    pub async fn create_plane(&self, spec: PlaneSpec) -> Result<(), Error> {
        let fits = |c: char| c.is_ascii_alphanumeric() || "-._:@".contains(c);
        let is_root = spec.name.is_empty() && self.core.plane("").is_none();
        if !is_root && (spec.name.is_empty() || spec.name.len() > 128 || !spec.name.chars().all(fits)) {
            return Err(Error::BadName(spec.name));
        }
        if self.has_plane(&spec.name) {
            return Err(Error::PlaneExists(spec.name));
        }
        if let Some(catalogue) = &spec.catalogue {
            self.ensure_catalogue(catalogue).await?;
        }
        self.found(&spec).await
    }

    /// The namespaces first, then the record: a plane that is on record is complete.
    async fn found(&self, spec: &PlaneSpec) -> Result<(), Error> {
        let plane = Arc::new(Plane::new(spec.name.as_str().into(), self.core.catalogue_of(spec)));
        let Some(kind) = plane.catalogue.kinds().find("", "namespaces").cloned() else { return Ok(()) };
        for namespace in std::iter::once("default").chain(spec.namespaces.iter().map(String::as_str)) {
            let call = Call::internal(&self.core, &plane, &kind, Verb::Create, None, None);
            match call.create_object(builtins::mk_namespace(namespace), false).await {
                Ok(_) => {}
                Err(failure) if failure.code == 409 => {}
                Err(source) => {
                    return Err(Error::Write {
                        what: format!("namespace {namespace} of plane {}", spec.name),
                        source,
                    });
                }
            }
        }
        let write = Write {
            collection: records(),
            path: spec.name.clone(),
            expect: Expect::Absent,
            draft: Some(Draft::encode(&spec.record())),
        };
        match self.core.store.commit(write).await {
            Ok(_) => {
                self.core.serve_plane(spec);
                Ok(())
            }
            Err(CommitError::Conflict(_)) => Err(Error::PlaneExists(spec.name.clone())),
            Err(error) => Err(Error::Write {
                what: format!("plane {}", spec.name),
                source: Failure::internal(&error.to_string()),
            }),
        }
    }

    /// A shared catalogue is at home in a plane of its own, `@name`, where its CRDs and policies are written.
    async fn ensure_catalogue(&self, name: &str) -> Result<(), Error> {
        let home = format!("@{name}");
        if self.has_plane(&home) {
            return Ok(());
        }
        match self.found(&PlaneSpec::own(home)).await {
            Err(Error::PlaneExists(_)) => Ok(()),
            other => other,
        }
    }

    /// Deletes a plane: everything in it is deleted while it still serves, so that finalizers can do their work; then
    /// it is gone. Waits for that.
    pub async fn delete_plane(&self, name: &str) -> Result<(), Error> {
        let plane = self.core.plane(name).ok_or_else(|| Error::NoPlane(name.to_owned()))?;
        plane.leave();
        controllers::empty_plane(&self.core, &plane).await;
        let _ = self
            .core
            .rewrite_or_remove(&records(), name, |_| None)
            .await
            .map_err(|source| Error::Write { what: format!("plane {name}"), source })?;
        plane.go();
        self.core.planes.write().remove(name);
        for collection in self.core.store.view().collections(name) {
            self.core.store.view().wake(&collection);
        }
        Ok(())
    }

    /// Installs a CRD in a shared catalogue (or updates it there) and serves it when this returns.
    pub async fn install_crd(&self, catalogue: &str, crd: &Value) -> Result<(), Error> {
        self.ensure_catalogue(catalogue).await?;
        self.install_crd_in(&format!("@{catalogue}"), crd).await
    }

    /// Installs a CRD in a plane that has kinds of its own, and serves it when this returns.
    pub async fn install_crd_in(&self, plane: &str, crd: &Value) -> Result<(), Error> {
        let what = || format!("definition {} of plane {plane}", json::meta(crd, "name"));
        let found = self.core.plane(plane).ok_or_else(|| Error::NoPlane(plane.to_owned()))?;
        controllers::install(&self.core, &found, crd)
            .await
            .map_err(|source| Error::Write { what: what(), source })
    }

    /// Waits until everything that can be seen now is durable: for whoever is about to do something outside of the store
    /// because of it.
    pub async fn durable(&self) -> Result<(), CommitError> {
        match self.core.store.durable(self.core.store.view().revision()) {
            Some(durable) => durable.await,
            None => Ok(()),
        }
    }

    /// Ends when the store has stopped for good, and says why. What was answered before is durable.
    pub fn failed(&self) -> impl Future<Output = Arc<str>> + Send + use<> {
        self.core.store.failed()
    }

    /// The store, for reading and for tests.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.core.store
    }
}

/// What all parts of the server share.
pub(crate) struct Core {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) chance: Chance,
    planes: RwLock<BTreeMap<Arc<str>, Arc<Plane>>>,
    /// By home plane.
    catalogues: RwLock<BTreeMap<Arc<str>, Arc<Catalogue>>>,
    watches: Mutex<HashMap<String, usize>>,
    pub(crate) access: Access,
    pub(crate) webhooks: Arc<dyn WebhookTransport>,
    pub(crate) policies: Policies,
    pub(crate) configurations: Configurations,
    extensions: Arc<Extensions>,
}

/// A watch that is counted; leaves the count when dropped.
pub(crate) struct WatchSeat(Option<(Arc<Core>, String)>);

impl Drop for WatchSeat {
    fn drop(&mut self) {
        if let Some((core, user)) = &self.0 {
            let mut watches = core.watches.lock();
            if let Some(count) = watches.get_mut(user) {
                *count -= 1;
                if *count == 0 {
                    watches.remove(user);
                }
            }
        }
    }
}

impl Core {
    pub(crate) fn plane(&self, name: &str) -> Option<Arc<Plane>> {
        self.planes.read().get(name).cloned()
    }

    pub(crate) fn all_planes(&self) -> Vec<Arc<Plane>> {
        self.planes.read().values().cloned().collect()
    }

    /// The planes that serve the kinds of a catalogue.
    pub(crate) fn planes_of(&self, catalogue: &Catalogue) -> Vec<Arc<Plane>> {
        self.planes.read().values().filter(|plane| plane.catalogue.home == catalogue.home).cloned().collect()
    }

    fn catalogue_of(&self, spec: &PlaneSpec) -> Arc<Catalogue> {
        let (name, home): (Arc<str>, Arc<str>) = match &spec.catalogue {
            Some(name) => (name.as_str().into(), format!("@{name}").into()),
            None => (spec.name.as_str().into(), spec.name.as_str().into()),
        };
        self.catalogues
            .write()
            .entry(home.clone())
            .or_insert_with(|| Arc::new(Catalogue::new(name, home, self.extensions.clone())))
            .clone()
    }

    fn serve_plane(&self, spec: &PlaneSpec) {
        let catalogue = self.catalogue_of(spec);
        let name: Arc<str> = if catalogue.home.as_ref() == spec.name {
            catalogue.home.clone()
        } else {
            spec.name.as_str().into()
        };
        self.planes.write().entry(name.clone()).or_insert_with(|| Arc::new(Plane::new(name, catalogue)));
    }

    /// Counts a watch of an identity, or refuses it.
    pub(crate) fn seat(self: &Arc<Self>, identity: &Identity) -> Result<WatchSeat, Failure> {
        if identity.is_master() {
            return Ok(WatchSeat(None));
        }
        let mut watches = self.watches.lock();
        let count = watches.entry(identity.user.clone()).or_default();
        if *count >= WATCHES_MAX {
            return Err(Failure::too_many(format!(
                "{} holds {WATCHES_MAX} watches already; end some first",
                identity.user
            )));
        }
        *count += 1;
        Ok(WatchSeat(Some((self.clone(), identity.user.clone()))))
    }

    /// Changes an object of the server's own accord. `None` if it is not there.
    pub(crate) async fn rewrite(
        &self,
        collection: &Collection,
        path: &str,
        edit: impl Fn(&mut Value),
    ) -> Result<Option<Stored>, Failure> {
        self.rewrite_or_remove(collection, path, |object| {
            let mut object = object.clone();
            edit(&mut object);
            Some(object)
        })
        .await
    }

    /// Changes an object, or removes it where the edit answers `None`. `Ok(None)` if it is not there.
    pub(crate) async fn rewrite_or_remove(
        &self,
        collection: &Collection,
        path: &str,
        edit: impl Fn(&Value) -> Option<Value>,
    ) -> Result<Option<Stored>, Failure> {
        for _ in 0..ATTEMPTS {
            let Some(stored) = self.store.view().get(collection, path) else { return Ok(None) };
            let old = stored.value();
            let new = edit(&old);
            if new.as_ref() == Some(&old) {
                return Ok(Some(stored));
            }
            let write = Write {
                collection: collection.clone(),
                path: path.to_owned(),
                expect: Expect::At(stored.revision()),
                draft: new.as_ref().map(Draft::encode),
            };
            match self.store.commit(write).await {
                Ok(written) => return Ok(Some(written)),
                Err(CommitError::Conflict(_)) => {}
                Err(error) => return Err(Failure::internal(&error.to_string())),
            }
        }
        Err(Failure::internal(&format!("{path} changes faster than it can be written")))
    }
}
