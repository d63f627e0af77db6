//! A store in a redb file, with one writer thread.
//!
//! A commit assigns the revision, updates the view and queues the write. The thread takes all queued writes
//! (at most [`BATCH_MAX`]), writes them in one transaction, syncs, and wakes the waiters. Writes that arrive
//! during a sync form the next batch, so concurrent writers share the cost of a sync. Batches are written in
//! order: a power failure loses only the tail of the log.
//!
//! Tables: `about` (format, revision), `objects` (`plane NUL resource NUL path` → a [row](RowCodec)),
//! `removed` (`plane NUL resource` → revision of the latest deletion, from which watchers can resume
//! after a restart).
//!
//! Pages that are no longer used keep their bytes. So a file with Secrets that are not encrypted, or with an
//! older key, is copied into a new file, which replaces it ([`rewrite`]).

use std::{
    collections::{BTreeMap, HashMap},
    os::unix::fs::OpenOptionsExt as _,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{Arc, OnceLock, mpsc},
    thread::JoinHandle,
};

use futures::future::BoxFuture;
use polis_apimachinery::{clock::Clock, storage_quota::StorageQuota};
use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition, TableError};
use tokio::sync::watch;

use super::{
    Collection, CommitError, HistoryLimits, OpenError, Revision, RowCodec, Store, Stored, View, Write,
    reserve::DiskReserve, row::RowError, sequencer::Sequencer,
};

/// The newest file format that this program reads: that of a file with encrypted Secrets.
const FORMAT: u64 = 2;
/// The format of a file without encrypted Secrets, which earlier programs read.
const PLAIN_FORMAT: u64 = 1;
/// Most writes in one transaction.
const BATCH_MAX: usize = 1024;
/// Most writes that are visible and not durable. A commit beyond it waits for the disk.
const UNSYNCED_MAX: u64 = 4096;
/// Bytes of redb's page cache. Reads come from the view, so the cache serves only the inner B-tree pages of
/// writes.
const CACHE: usize = 16 << 20;

const ABOUT: TableDefinition<'_, &str, u64> = TableDefinition::new("about");
const OBJECTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("objects");
const REMOVED: TableDefinition<'_, &str, u64> = TableDefinition::new("removed");

/// A write in the queue of the writer thread.
struct PendingWrite {
    collection: Collection,
    path: String,
    revision: Revision,
    object: Option<Stored>,
}

/// The progress of the writer thread.
#[derive(Clone, Debug)]
struct SyncState {
    revision: Revision,
    /// Why the thread stopped.
    failed: Option<Arc<str>>,
}

/// A store in one redb file.
pub(crate) struct RedbStore {
    sequencer: Sequencer,
    queue: Option<mpsc::Sender<PendingWrite>>,
    synced: watch::Receiver<SyncState>,
    writer: Option<JoinHandle<()>>,
    /// Whether the file had Secrets that were not encrypted with the first key when it was opened.
    outdated: bool,
    /// Empty without a file, in tests.
    reserve: Arc<OnceLock<DiskReserve>>,
}

impl RedbStore {
    /// Opens the store at `path`, or creates it.
    pub(crate) fn open(
        path: &Path,
        limits: HistoryLimits,
        clock: Clock,
        codec: RowCodec,
    ) -> Result<Self, OpenError> {
        let name = path.display().to_string();
        let io = |source: std::io::Error| OpenError::Io { path: name.clone(), source: source.into() };
        let created = !path.try_exists().map_err(io)?;
        let database = if created {
            replace(path, |_| Ok(()))?
        } else {
            if std::fs::metadata(path).map_err(io)?.len() == 0 {
                return Err(OpenError::Damaged { path: name, source: "the file is empty".into() });
            }
            open_guarded(&name, || redb::Builder::new().set_cache_size(CACHE).open(path))?
        };
        if created || !codec.encrypts() {
            return Self::start(&name, database, created, limits, clock, codec)
                .map(|store| store.with_reserve(path));
        }
        // Decrypts every object first: with a wrong key nothing is written.
        let store = Self::start(&name, database, false, limits, clock.clone(), codec.clone())?;
        if !store.outdated {
            return Ok(store.with_reserve(path));
        }
        drop(store);
        let old = open_guarded(&name, || redb::Builder::new().set_cache_size(CACHE).open(path))?;
        let database = replace(path, |new| rewrite(&old, new, &codec).map_err(|error| error.open(&name)))?;
        tracing::info!(
            store = name,
            "encrypted every Secret of the store with the first key of the key file"
        );
        Self::start(&name, database, false, limits, clock, codec).map(|store| store.with_reserve(path))
    }

    /// Opens a store on a custom backend, for crash tests. `name` appears in errors.
    #[cfg(test)]
    pub(crate) fn with_backend(
        name: &str,
        backend: impl redb::StorageBackend,
        limits: HistoryLimits,
        clock: Clock,
    ) -> Result<Self, OpenError> {
        let io = |source: std::io::Error| OpenError::Io { path: name.to_owned(), source: source.into() };
        let created = backend.len().map_err(io)? == 0;
        let database =
            open_guarded(name, || redb::Builder::new().set_cache_size(CACHE).create_with_backend(backend))?;
        Self::start(name, database, created, limits, clock, RowCodec::default())
    }

    fn start(
        name: &str,
        database: Database,
        created: bool,
        limits: HistoryLimits,
        clock: Clock,
        codec: RowCodec,
    ) -> Result<Self, OpenError> {
        let loaded = catch_unwind(AssertUnwindSafe(|| load(&database, created, limits, &codec)))
            .unwrap_or_else(|_| Err(LoadError::Damaged("its pages contradict each other".into())));
        let Loaded { view, revision, outdated } = match loaded {
            Ok(loaded) => loaded,
            // A new store cannot be damaged: its first write failed, for example on a full disk.
            Err(LoadError::Damaged(source)) if created => {
                return Err(OpenError::Io { path: name.to_owned(), source });
            }
            Err(error) => return Err(error.open(name)),
        };
        let (queue, pending) = mpsc::channel();
        let (sync_sender, synced) = watch::channel(SyncState { revision, failed: None });
        let reserve = Arc::<OnceLock<DiskReserve>>::default();
        let writer = Writer { database, synced: sync_sender, codec, reserve: reserve.clone() };
        let thread = std::thread::Builder::new()
            .name("polis-store".into())
            .spawn(move || writer.run(&pending))
            .map_err(|source| OpenError::Io { path: name.to_owned(), source: source.into() })?;
        Ok(Self {
            sequencer: Sequencer::after(view, clock),
            queue: Some(queue),
            synced,
            writer: Some(thread),
            outdated,
            reserve,
        })
    }

    /// Keeps disk space in reserve, if the file system can.
    fn with_reserve(self, path: &Path) -> Self {
        match DiskReserve::of(path) {
            Ok(reserve) => _ = self.reserve.set(reserve),
            Err(error) => tracing::warn!(%error, "failed to keep disk space in reserve for the store"),
        }
        self
    }
}

impl Drop for RedbStore {
    /// Waits for the queued writes, so that the file is closed when the store is dropped.
    fn drop(&mut self) {
        self.queue = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

impl Store for RedbStore {
    fn view(&self) -> &View {
        &self.sequencer.view
    }

    fn commit_within(
        &self,
        write: Write,
        quota: Option<StorageQuota>,
    ) -> BoxFuture<'static, Result<Stored, CommitError>> {
        let failed = self.synced.borrow().failed.clone();
        let written = match failed {
            Some(why) => Err(CommitError::Failed(why)),
            None => self.sequencer.write(write, quota, |write, revision, object| {
                let Write { collection, path, .. } = write;
                // The thread ends only after a failure, which `durable` reports.
                let _ = self
                    .queue
                    .as_ref()
                    .map(|queue| queue.send(PendingWrite { collection, path, revision, object }));
            }),
        };
        let backpressure = match &written {
            Ok(stored) => self.durable(stored.revision().saturating_sub(UNSYNCED_MAX)),
            Err(_) => None,
        };
        Box::pin(async move {
            if let Some(backpressure) = backpressure {
                backpressure.await?;
            }
            written
        })
    }

    fn durable(&self, revision: Revision) -> Option<BoxFuture<'static, Result<(), CommitError>>> {
        if self.synced.borrow().revision >= revision {
            return None;
        }
        let mut synced = self.synced.clone();
        Some(Box::pin(async move {
            let reached =
                synced.wait_for(|synced| synced.revision >= revision || synced.failed.is_some()).await;
            match reached.as_deref() {
                Ok(SyncState { revision: reached, .. }) if *reached >= revision => Ok(()),
                Ok(SyncState { failed: Some(why), .. }) => Err(CommitError::Failed(why.clone())),
                _ => Err(CommitError::Failed("the store was closed".into())),
            }
        }))
    }

    fn is_short_of_space(&self) -> bool {
        self.reserve.get().is_some_and(DiskReserve::is_short)
    }

    fn failed(&self) -> BoxFuture<'static, Arc<str>> {
        let mut synced = self.synced.clone();
        Box::pin(async move {
            match synced.wait_for(|synced| synced.failed.is_some()).await.as_deref() {
                Ok(SyncState { failed: Some(why), .. }) => return why.clone(),
                _closed_in_good_order => {}
            }
            futures::future::pending().await
        })
    }
}

/// Opens a redb file. redb can panic when it repairs an inconsistent file.
fn open_guarded(
    name: &str,
    open: impl FnOnce() -> Result<Database, DatabaseError>,
) -> Result<Database, OpenError> {
    let path = name.to_owned();
    match catch_unwind(AssertUnwindSafe(open)) {
        Ok(Ok(database)) => Ok(database),
        Ok(Err(DatabaseError::DatabaseAlreadyOpen)) => Err(OpenError::InUse { path }),
        Ok(Err(DatabaseError::Storage(redb::StorageError::Io(source))))
            if source.kind() != std::io::ErrorKind::InvalidData
                && source.kind() != std::io::ErrorKind::UnexpectedEof =>
        {
            Err(OpenError::Io { path, source: source.into() })
        }
        Ok(Err(source)) => Err(OpenError::Damaged { path, source: source.into() }),
        Err(_) => Err(OpenError::Damaged { path, source: "its pages contradict each other".into() }),
    }
}

/// Creates a file under a temporary name, fills it, and gives it the name `path`: a crash leaves the old file
/// or the new one, never an incomplete one.
fn replace(
    path: &Path,
    fill: impl FnOnce(&Database) -> Result<(), OpenError>,
) -> Result<Database, OpenError> {
    let name = path.display().to_string();
    let io = |source: std::io::Error| OpenError::Io { path: name.clone(), source: source.into() };
    let temporary = path.with_extension("new");
    match std::fs::remove_file(&temporary) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(io(error)),
        _ => {}
    }
    // Only for this user: the store holds the objects of all planes, and redb would create the file for all
    // users.
    std::fs::File::options().write(true).create_new(true).mode(0o600).open(&temporary).map_err(io)?;
    let database = open_guarded(&name, || redb::Builder::new().set_cache_size(CACHE).create(&temporary))?;
    fill(&database)?;
    std::fs::rename(&temporary, path).map_err(io)?;
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::File::open(folder).and_then(|folder| folder.sync_all()).map_err(io)?;
    }
    Ok(database)
}

/// Copies a store, and encodes the rows again that are not encrypted as they should be.
fn rewrite(old: &Database, new: &Database, codec: &RowCodec) -> Result<(), LoadError> {
    let from = old.begin_read()?;
    let to = new.begin_write()?;
    {
        let mut objects = to.open_table(OBJECTS)?;
        for row in from.open_table(OBJECTS)?.iter()? {
            let (key, value) = row?;
            let (key, value) = (key.value(), value.value());
            if codec.is_current(key, value) {
                objects.insert(key, value)?;
                continue;
            }
            let object = codec.decode(key, value).map_err(|error| LoadError::of_row(key, error))?;
            objects.insert(key, codec.encode(key, &object)?.as_slice())?;
        }
        let mut removed = to.open_table(REMOVED)?;
        for row in from.open_table(REMOVED)?.iter()? {
            let (key, revision) = row?;
            removed.insert(key.value(), revision.value())?;
        }
        let mut about = to.open_table(ABOUT)?;
        for row in from.open_table(ABOUT)?.iter()? {
            let (name, number) = row?;
            about.insert(name.value(), number.value())?;
        }
        about.insert("format", FORMAT)?;
    }
    to.commit()?;
    Ok(())
}

enum LoadError {
    Newer(u64),
    Damaged(Box<dyn std::error::Error + Send + Sync>),
    /// The object cannot be decrypted.
    Encrypted {
        object: String,
        why: String,
    },
}

impl LoadError {
    /// The error of the row with this key.
    fn of_row(key: &str, error: RowError) -> Self {
        match error {
            RowError::TooShort => Self::Damaged(format!("the value of {key:?} is too short").into()),
            RowError::Seal(error) => {
                let mut parts = key.splitn(3, '\0');
                let mut part = || parts.next().unwrap_or_default();
                let (plane, resource, path) = (part(), part(), part());
                let plane =
                    if plane.is_empty() { "the root plane".to_owned() } else { format!("plane {plane}") };
                Self::Encrypted { object: format!("{resource} {path} of {plane}"), why: error.to_string() }
            }
        }
    }

    fn open(self, name: &str) -> OpenError {
        let path = name.to_owned();
        match self {
            Self::Newer(found) => OpenError::Newer { path, found, known: FORMAT },
            Self::Damaged(source) => OpenError::Damaged { path, source },
            Self::Encrypted { object, why } => OpenError::Encrypted { path, object, why },
        }
    }
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for LoadError {
    fn from(error: E) -> Self {
        Self::Damaged(error.into())
    }
}

/// What a file contains.
struct Loaded {
    view: View,
    revision: Revision,
    /// Whether Secrets are not encrypted with the first key.
    outdated: bool,
}

/// Loads all objects into a view.
fn load(
    database: &Database,
    created: bool,
    limits: HistoryLimits,
    codec: &RowCodec,
) -> Result<Loaded, LoadError> {
    if created {
        let transaction = database.begin_write()?;
        {
            let mut about = transaction.open_table(ABOUT)?;
            about.insert("format", if codec.encrypts() { FORMAT } else { PLAIN_FORMAT })?;
            about.insert("revision", 1)?;
            transaction.open_table(OBJECTS)?;
            transaction.open_table(REMOVED)?;
        }
        transaction.commit()?;
        return Ok(Loaded { view: View::new(limits, 1), revision: 1, outdated: false });
    }
    let transaction = database.begin_read()?;
    let about = match transaction.open_table(ABOUT) {
        Err(TableError::TableDoesNotExist(_)) => {
            drop(transaction);
            // The process crashed between the creation of the file and its first commit: no write was
            // acknowledged.
            if database.begin_read()?.list_tables()?.count() == 0 {
                return load(database, true, limits, codec);
            }
            return Err(LoadError::Damaged("it is a redb file, but not a store".into()));
        }
        other => other?,
    };
    let format = about.get("format")?.map_or(0, |value| value.value());
    if format > FORMAT {
        return Err(LoadError::Newer(format));
    }
    let revision = about.get("revision")?.map_or(1, |value| value.value());
    let mut collections: BTreeMap<Collection, (BTreeMap<Arc<str>, Stored>, Revision)> = BTreeMap::new();
    // The objects of a collection share its name in memory.
    let mut interned: HashMap<String, Collection> = HashMap::new();
    let mut outdated = codec.encrypts() && format < FORMAT;
    for row in transaction.open_table(OBJECTS)?.iter()? {
        let (key, value) = row?;
        let (prefix, path) = key
            .value()
            .rsplit_once('\0')
            .ok_or_else(|| LoadError::Damaged(format!("key {:?} has no collection", key.value()).into()))?;
        let collection = intern(&mut interned, prefix)?;
        let decoded = codec.decode(key.value(), value.value());
        let object = decoded.map_err(|error| LoadError::of_row(key.value(), error))?;
        outdated |= !codec.is_current(key.value(), value.value());
        let (objects, compact_revision) = collections.entry(collection).or_default();
        *compact_revision = (*compact_revision).max(object.revision());
        objects.insert(path.into(), object);
    }
    for row in transaction.open_table(REMOVED)?.iter()? {
        let (key, removed) = row?;
        let collection = intern(&mut interned, key.value())?;
        let (_, compact_revision) = collections.entry(collection).or_default();
        *compact_revision = (*compact_revision).max(removed.value());
    }
    let view = View::new(limits, revision);
    for (collection, (objects, compact_revision)) in collections {
        view.restore(collection, objects, compact_revision);
    }
    Ok(Loaded { view, revision, outdated })
}

fn intern(known: &mut HashMap<String, Collection>, prefix: &str) -> Result<Collection, LoadError> {
    if let Some(collection) = known.get(prefix) {
        return Ok(collection.clone());
    }
    let (plane, resource) = prefix
        .split_once('\0')
        .ok_or_else(|| LoadError::Damaged(format!("key {prefix:?} names no plane").into()))?;
    let collection = Collection::new(plane, resource);
    known.insert(prefix.to_owned(), collection.clone());
    Ok(collection)
}

/// The writer thread.
struct Writer {
    database: Database,
    synced: watch::Sender<SyncState>,
    codec: RowCodec,
    reserve: Arc<OnceLock<DiskReserve>>,
}

impl Writer {
    fn run(self, pending: &mpsc::Receiver<PendingWrite>) {
        while let Ok(first) = pending.recv() {
            let batch: Vec<PendingWrite> =
                std::iter::once(first).chain(pending.try_iter().take(BATCH_MAX - 1)).collect();
            let persisted = catch_unwind(AssertUnwindSafe(|| self.persist(&batch)))
                .unwrap_or_else(|_| Err("the database file is damaged".into()));
            match persisted {
                Ok(revision) => {
                    // After the write: the next growth of the file finds its blocks allocated.
                    if let Some(reserve) = self.reserve.get() {
                        reserve.ensure();
                    }
                    self.synced.send_modify(|synced| synced.revision = revision);
                }
                Err(error) => {
                    // Unknown how much reached the disk: write nothing more; a restart continues from the
                    // file.
                    tracing::error!(%error, "failed to write to the store; restart to continue from the last durable write");
                    let why = format!(
                        "{error}; the store accepts no more writes, restart to continue from the last durable write"
                    );
                    return self.synced.send_modify(|synced| synced.failed = Some(why.into()));
                }
            }
        }
    }

    /// Writes a batch in one transaction, only the last state of each object. Returns the last revision.
    fn persist(&self, batch: &[PendingWrite]) -> Result<Revision, Box<dyn std::error::Error + Send + Sync>> {
        let mut last = 0;
        let (mut latest, mut removals) = (BTreeMap::new(), BTreeMap::new());
        for PendingWrite { collection: Collection { plane, resource }, path, revision, object } in batch {
            if object.is_none() {
                removals.insert(format!("{plane}\0{resource}"), *revision);
            }
            latest.insert(format!("{plane}\0{resource}\0{path}"), object);
            last = *revision;
        }
        let transaction = self.database.begin_write()?;
        {
            let mut objects = transaction.open_table(OBJECTS)?;
            for (key, object) in latest {
                match object {
                    Some(object) => {
                        let row = self.codec.encode(&key, object)?;
                        drop(objects.insert(key.as_str(), row.as_slice())?);
                    }
                    None => drop(objects.remove(key.as_str())?),
                }
            }
            let mut removed = transaction.open_table(REMOVED)?;
            for (collection, revision) in removals {
                removed.insert(collection.as_str(), revision)?;
            }
            transaction.open_table(ABOUT)?.insert("revision", last)?;
        }
        transaction.commit()?;
        Ok(last)
    }
}
