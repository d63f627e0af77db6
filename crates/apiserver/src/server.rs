//! The API server: its builder, and the management of planes and their catalogues.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::PathBuf,
    sync::Arc,
};

use parking_lot::{Mutex, RwLock};
use polis_apimachinery::{
    clock::Clock, fair_queue::FlowKey, object, random::Random, storage_quota::StorageQuota,
};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::{
    access::{Access, Credential, Credentials, Revocation, certificates::ClientCertificate},
    admission::{Configurations, Policies, Quarantine, TlsWebhooks, WebhookTransport},
    builtins,
    controllers::{self, EnabledControllers},
    flow::{Caller, Flows, PriorityLevel},
    kinds::Catalogue,
    metrics::{AuditCollector, Metrics, StorageCollector},
    plane::{Plane, PlaneSpec},
    route::Verb,
    service::Service,
    status::StatusError,
    store::{
        Collection, CommitError, EncodedObject, EncryptionKeys, HistoryLimits, MemoryStore, OpenError,
        Precondition, RedbStore, RowCodec, Store, Stored, Write,
    },
    subresource::{SubresourceHandler, SubresourceHandlers},
    verbs::Call,
};

/// Most concurrent watches of one user on one plane; members of `system:masters` have no limit.
const WATCHES_MAX: usize = 10_000;
/// Plane and resource of the collection that records the planes.
const RECORDS: (&str, &str) = ("@server", "planes");
/// Attempts of an internal write that loses to concurrent writes.
const ATTEMPTS: usize = 64;

/// Where the server stores objects.
#[derive(Clone, Debug, Default)]
pub enum Storage {
    /// In memory: lost when the process ends.
    #[default]
    Memory,
    /// In a redb file. Clients outside the process see only durable writes.
    Redb(PathBuf),
}

/// Why the server could not create or change a plane, or could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store cannot be opened.
    #[error(transparent)]
    Store(Box<dyn std::error::Error + Send + Sync>),
    /// A plane of that name exists.
    #[error("failed to create plane {0}: it exists already")]
    PlaneExists(String),
    /// No plane of that name.
    #[error("failed to find plane {0}: there is none of that name")]
    NoPlane(String),
    /// The name does not fit into a URL path.
    #[error("failed to create plane {0:?}: a name has 1 to 128 letters, digits or one of -._:@")]
    BadName(String),
    /// The store can no longer write, for example because the disk is full.
    #[error("{0}")]
    StoreFailed(String),
    /// The store refused a write.
    #[error("failed to write {what}: {source}")]
    Write {
        /// The object of the write.
        what: String,
        /// Why the write failed.
        source: StatusError,
    },
}

impl From<OpenError> for Error {
    fn from(error: OpenError) -> Self {
        Self::Store(error.into())
    }
}

/// Builds a [`Server`].
pub struct Builder {
    storage: Storage,
    encryption: Option<EncryptionKeys>,
    store: Option<Arc<dyn Store>>,
    clock: Clock,
    random: Random,
    enabled: EnabledControllers,
    access: Access,
    webhooks: Arc<dyn WebhookTransport>,
    subresources: SubresourceHandlers,
    project_quota: Option<StorageQuota>,
    suspended: Vec<String>,
}

impl Builder {
    /// Where objects are stored; in memory by default.
    pub fn storage(mut self, storage: Storage) -> Self {
        self.storage = storage;
        self
    }

    /// Encrypts Secrets in durable storage. Opening the store encrypts those that are not, or not with the
    /// first key.
    pub fn encryption(mut self, keys: EncryptionKeys) -> Self {
        self.encryption = Some(keys);
        self
    }

    /// Uses an existing store, for example one whose backend injects faults.
    #[cfg(test)]
    pub(crate) fn store(mut self, store: Arc<dyn Store>) -> Self {
        self.store = Some(store);
        self
    }

    /// The clock of timestamps in objects.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// The source of uids and generated names.
    pub fn random(mut self, random: Random) -> Self {
        self.random = random;
        self
    }

    /// Which controllers run in the server.
    pub fn controllers(mut self, enabled: EnabledControllers) -> Self {
        self.enabled = enabled;
        self
    }

    /// Authentication and audit of requests from the network.
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// How the server calls webhooks; over TLS by default.
    pub fn webhooks(mut self, transport: impl WebhookTransport) -> Self {
        self.webhooks = Arc::new(transport);
        self
    }

    /// Serves a subresource of a kind from the embedding program, on every plane that has the kind: `log` of
    /// `instances`, for example. Callers need the verb `get` on `<plural>/<name>`.
    pub fn subresource(
        mut self,
        group: &str,
        plural: &str,
        name: &str,
        handler: impl SubresourceHandler,
    ) -> Self {
        self.subresources.add(group, plural, name, handler);
        self
    }

    /// Limits the objects and bytes of each plane of a project; by default they have no limit. The platform's
    /// own writes count, but are not refused.
    pub fn project_quota(mut self, quota: StorageQuota) -> Self {
        self.project_quota = Some(quota);
        self
    }

    /// Switches off the admission policies and webhooks that these planes hold, so that a plane that refuses
    /// every request can be repaired. Those of a shared catalogue stay in force.
    pub fn suspend_admission(mut self, planes: impl IntoIterator<Item = String>) -> Self {
        self.suspended.extend(planes);
        self
    }

    /// Opens the store, serves the planes recorded in it, and creates the root plane if the store is new.
    pub async fn build(self) -> Result<Server, Error> {
        let store: Arc<dyn Store> = match (self.store, self.storage) {
            (Some(store), _) => store,
            (None, Storage::Memory) => {
                Arc::new(MemoryStore::new(HistoryLimits::default(), self.clock.clone()))
            }
            (None, Storage::Redb(path)) => {
                let codec = RowCodec::new(self.encryption);
                Arc::new(RedbStore::open(&path, HistoryLimits::default(), self.clock.clone(), codec)?)
            }
        };
        let writes = store.view().subscribe();
        let audit = AuditCollector::new(self.access.audit.clone());
        let metrics = Metrics::new(StorageCollector::new(store.clone()), audit);
        let core = Arc::new(Core {
            store,
            clock: self.clock,
            random: self.random,
            planes: RwLock::default(),
            catalogues: RwLock::default(),
            watches: Mutex::default(),
            flows: Arc::new(Flows::new(metrics.clone())),
            metrics,
            access: self.access,
            credentials: Credentials::default(),
            webhooks: self.webhooks,
            policies: Policies::default(),
            configurations: Configurations::default(),
            subresources: Arc::new(self.subresources),
            project_quota: self.project_quota,
            suspended: self.suspended.into_iter().collect(),
            quarantine: Quarantine::default(),
        });
        for (_, stored) in core.store.view().all(&records()) {
            core.serve_plane(&PlaneSpec::from_record(&stored.value()));
        }
        for catalogue in core.catalogues.read().values() {
            builtins::load_crds(&core, catalogue);
        }
        let controllers = controllers::start(&core, writes, self.enabled);
        let server = Server { core, _controllers: Arc::new(Tasks(controllers)) };
        if server.core.plane("").is_none() {
            server.create_plane(PlaneSpec::default()).await?;
        }
        Ok(server)
    }
}

fn records() -> Collection {
    Collection::new(RECORDS.0, RECORDS.1)
}

/// Tasks that are aborted on drop.
struct Tasks(Vec<JoinHandle<()>>);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// The embedded API server. Cheap to clone; the server stops when the last clone is dropped.
#[derive(Clone)]
pub struct Server {
    pub(crate) core: Arc<Core>,
    _controllers: Arc<Tasks>,
}

impl Server {
    /// A builder with the defaults: storage in memory, the system clock, all controllers enabled.
    pub fn builder() -> Builder {
        Builder {
            storage: Storage::Memory,
            encryption: None,
            store: None,
            clock: Clock::system(),
            random: Random::from_entropy(),
            enabled: EnabledControllers::default(),
            access: Access::default(),
            webhooks: Arc::new(TlsWebhooks::default()),
            subresources: SubresourceHandlers::default(),
            project_quota: None,
            suspended: Vec::new(),
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

    /// Whether there is a plane of that name.
    pub fn has_plane(&self, name: &str) -> bool {
        self.core.plane(name).is_some()
    }

    /// The names of all planes; the root plane's is empty.
    pub fn planes(&self) -> Vec<String> {
        self.core.planes.read().keys().map(|name| name.to_string()).collect()
    }

    /// Creates a plane with its `default` namespace.
    pub async fn create_plane(&self, spec: PlaneSpec) -> Result<(), Error> {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-._:@".contains(c);
        let is_root = spec.name.is_empty() && self.core.plane("").is_none();
        if !is_root && (spec.name.is_empty() || spec.name.len() > 128 || !spec.name.chars().all(is_allowed)) {
            return Err(Error::BadName(spec.name));
        }
        if self.has_plane(&spec.name) {
            return Err(Error::PlaneExists(spec.name));
        }
        if let Some(catalogue) = &spec.catalogue {
            self.ensure_catalogue(catalogue).await?;
        }
        self.initialize_plane(&spec).await
    }

    /// Writes the namespaces before the record, so that a recorded plane is complete.
    async fn initialize_plane(&self, spec: &PlaneSpec) -> Result<(), Error> {
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
            precondition: Precondition::Absent,
            object: Some(EncodedObject::encode(&spec.record())),
        };
        match self.core.store.commit(write).await {
            Ok(_) => {
                self.core.serve_plane(spec);
                Ok(())
            }
            Err(CommitError::Conflict(_)) => Err(Error::PlaneExists(spec.name.clone())),
            Err(error) => Err(Error::Write {
                what: format!("plane {}", spec.name),
                source: StatusError::internal(&error.to_string()),
            }),
        }
    }

    /// Creates the plane `@name` of a shared catalogue, which holds the catalogue's CRDs and policies.
    async fn ensure_catalogue(&self, name: &str) -> Result<(), Error> {
        let plane = format!("@{name}");
        if self.has_plane(&plane) {
            return Ok(());
        }
        match self.initialize_plane(&PlaneSpec::standalone(plane)).await {
            Err(Error::PlaneExists(_)) => Ok(()),
            other => other,
        }
    }

    /// Deletes all objects of a plane, waits for their finalizers, then removes the plane. The plane serves
    /// requests until it is empty, so that controllers can release their finalizers.
    pub async fn delete_plane(&self, name: &str) -> Result<(), Error> {
        let plane = self.core.plane(name).ok_or_else(|| Error::NoPlane(name.to_owned()))?;
        plane.mark_deleting();
        controllers::empty_plane(&self.core, &plane).await;
        let _ = self
            .core
            .rewrite_or_remove(&records(), name, |_| None)
            .await
            .map_err(|source| Error::Write { what: format!("plane {name}"), source })?;
        plane.mark_deleted();
        self.core.planes.write().remove(name);
        for collection in self.core.store.view().collections(name) {
            self.core.store.view().wake(&collection);
        }
        Ok(())
    }

    /// Creates or updates a CRD in a shared catalogue. The kind is served when this returns.
    pub async fn install_crd(&self, catalogue: &str, crd: &Value) -> Result<(), Error> {
        self.ensure_catalogue(catalogue).await?;
        self.install_crd_in(&format!("@{catalogue}"), crd).await
    }

    /// Creates or updates a CRD in a plane with its own catalogue. The kind is served when this returns.
    pub async fn install_crd_in(&self, plane: &str, crd: &Value) -> Result<(), Error> {
        let what = || format!("CRD {} of plane {plane}", object::meta(crd, "name"));
        let found = self.core.plane(plane).ok_or_else(|| Error::NoPlane(plane.to_owned()))?;
        controllers::apply_crd(&self.core, &found, crd)
            .await
            .map_err(|source| Error::Write { what: what(), source })
    }

    /// Makes a plane with its own catalogue store Pods, for tests of controllers that create Pods. The plane
    /// validates only their metadata, and runs nothing.
    pub async fn store_pods(&self, plane: &str) -> Result<(), Error> {
        let found = self.core.plane(plane).ok_or_else(|| Error::NoPlane(plane.to_owned()))?;
        if let Some(kind) = crate::kinds::stored_pods() {
            found.catalogue.install(kind);
        }
        Ok(())
    }

    /// Waits until every write visible now is durable. A caller that acts outside of the store on what it
    /// read (starts a process, for example) waits for this first.
    pub async fn durable(&self) -> Result<(), Error> {
        match self.core.store.durable(self.core.store.view().revision()) {
            Some(durable) => durable.await.map_err(|error| Error::StoreFailed(error.to_string())),
            None => Ok(()),
        }
    }

    /// Records a client certificate (PEM) that this program issued, so that [`Server::credentials`] lists it.
    pub async fn record_certificate(&self, pem: &str) -> Result<(), Error> {
        let what = "the record of a client certificate".to_owned();
        let Some(certificate) = ClientCertificate::from_pem(pem) else {
            let source = StatusError::bad_request("it is not a certificate with a common name");
            return Err(Error::Write { what, source });
        };
        let written = self.core.credentials.record_certificate(&self.core, &certificate).await;
        written.map_err(|source| Error::Write { what, source })
    }

    /// The valid credentials that the server and the embedding program issued, by subject.
    pub fn credentials(&self) -> Vec<Credential> {
        self.core.credentials.list(&self.core)
    }

    /// Revokes credentials: their next request is refused. Returns those that were valid.
    pub async fn revoke(&self, revocation: &Revocation) -> Result<Vec<Credential>, Error> {
        let ended = self.core.credentials.revoke(&self.core, revocation).await;
        ended.map_err(|source| Error::Write { what: format!("the revocation {revocation:?}"), source })
    }

    /// Whether a client certificate (PEM) still authenticates its user.
    pub fn accepts_certificate(&self, pem: &str) -> bool {
        ClientCertificate::from_pem(pem).is_some_and(|found| found.authenticate(&self.core).is_some())
    }

    /// Changes with every revocation.
    pub fn revocations(&self) -> tokio::sync::watch::Receiver<()> {
        self.core.credentials.subscribe()
    }

    /// Completes with the reason when the store fails for good. Every write acknowledged before is durable.
    pub fn failed(&self) -> impl Future<Output = Arc<str>> + Send + use<> {
        self.core.store.failed()
    }
}

/// State shared by all parts of the server.
pub(crate) struct Core {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Clock,
    pub(crate) random: Random,
    planes: RwLock<BTreeMap<Arc<str>, Arc<Plane>>>,
    /// By the plane that holds the catalogue's CRDs.
    catalogues: RwLock<BTreeMap<Arc<str>, Arc<Catalogue>>>,
    /// Open watches per plane and user.
    watches: Mutex<HashMap<FlowKey, usize>>,
    pub(crate) flows: Arc<Flows>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) access: Access,
    pub(crate) credentials: Credentials,
    pub(crate) webhooks: Arc<dyn WebhookTransport>,
    pub(crate) policies: Policies,
    pub(crate) configurations: Configurations,
    subresources: Arc<SubresourceHandlers>,
    /// The storage quota of each project.
    pub(crate) project_quota: Option<StorageQuota>,
    /// Planes whose own admission configurations are switched off.
    pub(crate) suspended: BTreeSet<String>,
    pub(crate) quarantine: Quarantine,
}

/// Counts one watch against the user's limit until it is dropped.
pub(crate) struct WatchQuotaGuard {
    core: Arc<Core>,
    /// `None` without a limit.
    key: Option<FlowKey>,
}

impl Drop for WatchQuotaGuard {
    fn drop(&mut self) {
        self.core.metrics.watches.dec();
        let Some(key) = &self.key else { return };
        let mut watches = self.core.watches.lock();
        if let Some(count) = watches.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                watches.remove(key);
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
        self.planes
            .read()
            .values()
            .filter(|plane| plane.catalogue.plane == catalogue.plane)
            .cloned()
            .collect()
    }

    fn catalogue_of(&self, spec: &PlaneSpec) -> Arc<Catalogue> {
        let (name, plane): (Arc<str>, Arc<str>) = match &spec.catalogue {
            Some(name) => (name.as_str().into(), format!("@{name}").into()),
            None => (spec.name.as_str().into(), spec.name.as_str().into()),
        };
        self.catalogues
            .write()
            .entry(plane.clone())
            .or_insert_with(|| Arc::new(Catalogue::new(name, plane, self.subresources.clone())))
            .clone()
    }

    fn serve_plane(&self, spec: &PlaneSpec) {
        let catalogue = self.catalogue_of(spec);
        let name: Arc<str> = if catalogue.plane.as_ref() == spec.name {
            catalogue.plane.clone()
        } else {
            spec.name.as_str().into()
        };
        self.planes.write().entry(name.clone()).or_insert_with(|| Arc::new(Plane::new(name, catalogue)));
    }

    /// Counts a watch of the caller on a plane, or refuses it with 429.
    pub(crate) fn acquire_watch(
        self: &Arc<Self>,
        caller: &Caller,
        plane: &Arc<str>,
    ) -> Result<WatchQuotaGuard, StatusError> {
        let key = (caller.level != PriorityLevel::Exempt).then(|| caller.key(plane));
        if let Some(key) = &key {
            let mut watches = self.watches.lock();
            let count = watches.entry(key.clone()).or_default();
            if *count >= WATCHES_MAX {
                self.metrics.watches_refused.inc();
                return Err(StatusError::too_many(format!(
                    "{} holds {WATCHES_MAX} watches already; end some first",
                    caller.identity()
                )));
            }
            *count += 1;
        }
        self.metrics.watches.inc();
        Ok(WatchQuotaGuard { core: self.clone(), key })
    }

    /// Updates an object without admission. Returns `None` if it does not exist.
    pub(crate) async fn rewrite(
        &self,
        collection: &Collection,
        path: &str,
        edit: impl Fn(&mut Value),
    ) -> Result<Option<Stored>, StatusError> {
        self.rewrite_or_remove(collection, path, |object| {
            let mut object = object.clone();
            edit(&mut object);
            Some(object)
        })
        .await
    }

    /// Updates an object without admission, or deletes it if `edit` returns `None`. Returns `Ok(None)` if it
    /// does not exist.
    pub(crate) async fn rewrite_or_remove(
        &self,
        collection: &Collection,
        path: &str,
        edit: impl Fn(&Value) -> Option<Value>,
    ) -> Result<Option<Stored>, StatusError> {
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
                precondition: Precondition::AtRevision(stored.revision()),
                object: new.as_ref().map(EncodedObject::encode),
            };
            match self.store.commit(write).await {
                Ok(written) => return Ok(Some(written)),
                Err(CommitError::Conflict(_)) => {}
                Err(error) => return Err(StatusError::internal(&error.to_string())),
            }
        }
        Err(StatusError::internal(&format!("{path} changes faster than it can be written")))
    }
}
