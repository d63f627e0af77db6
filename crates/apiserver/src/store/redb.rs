//! A store on disk: redb under one writing thread.
//!
//! Writes are numbered and shown in the call and queue to the thread; it takes all that wait (at most [`GROUP`]), puts
//! them into one transaction, syncs, and tells who waits for it. While it syncs the next group gathers, so the cost of a
//! sync is shared by as many writers as there are. Groups are written in order: what a power cut takes is the end.
//!
//! Tables: `about` (format, revision), `objects` (`plane NUL resource NUL path` → revision, hole, JSON),
//! `removed` (`plane NUL resource` → revision of the latest removal, from which watchers may resume after a restart).

use std::{
    collections::{BTreeMap, HashMap},
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{Arc, mpsc},
    thread::JoinHandle,
};

use bytes::Bytes;
use futures::future::BoxFuture;
use redb::{
    Database, DatabaseError, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition, TableError,
};
use tokio::sync::watch;

use super::{
    Collection, CommitError, HistoryLimits, OpenError, Revision, Store, Stored, View, Write, order::Order,
};
use crate::seams::Clock;

/// The format written by this program.
const FORMAT: u64 = 1;
/// Most writes in one transaction.
const GROUP: usize = 1024;
/// Most writes that are shown and not yet durable: a writer who is further ahead waits for the disk.
const AHEAD: u64 = 4096;
/// redb's page cache. All state is in the view, so the cache serves only the B-tree's inner pages on writes.
const CACHE: usize = 16 << 20;

const ABOUT: TableDefinition<'_, &str, u64> = TableDefinition::new("about");
const OBJECTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("objects");
const REMOVED: TableDefinition<'_, &str, u64> = TableDefinition::new("removed");

/// A write on its way to the disk.
struct Pending {
    collection: Collection,
    path: String,
    revision: Revision,
    object: Option<Stored>,
}

/// How far the disk is.
#[derive(Clone, Debug)]
struct Synced {
    revision: Revision,
    /// Why it will get no further.
    failed: Option<Arc<str>>,
}

/// A store in one redb file.
pub struct RedbStore {
    order: Order,
    queue: Option<mpsc::Sender<Pending>>,
    synced: watch::Receiver<Synced>,
    writer: Option<JoinHandle<()>>,
}

impl RedbStore {
    /// Opens the store at `path`, or makes it if nothing is there.
    pub fn open(path: &Path, limits: HistoryLimits, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        let name = path.display().to_string();
        let io = |source: std::io::Error| OpenError::Io { path: name.clone(), source: source.into() };
        let fresh = !path.try_exists().map_err(io)?;
        let database = if fresh {
            // Made beside and moved into place: a crash during creation leaves no half store under the real name.
            let draft = path.with_extension("new");
            match std::fs::remove_file(&draft) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(io(error)),
                _ => {}
            }
            let database = guarded(&name, || redb::Builder::new().set_cache_size(CACHE).create(&draft))?;
            std::fs::rename(&draft, path).map_err(io)?;
            if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
                std::fs::File::open(folder).and_then(|folder| folder.sync_all()).map_err(io)?;
            }
            database
        } else {
            if std::fs::metadata(path).map_err(io)?.len() == 0 {
                return Err(OpenError::Damaged { path: name, source: "the file is empty".into() });
            }
            guarded(&name, || redb::Builder::new().set_cache_size(CACHE).open(path))?
        };
        Self::start(&name, database, fresh, limits, clock)
    }

    /// Opens a store on another backend than a file: for crash tests. `name` appears in errors.
    pub fn with_backend(
        name: &str,
        backend: impl StorageBackend,
        limits: HistoryLimits,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        let io = |source: std::io::Error| OpenError::Io { path: name.to_owned(), source: source.into() };
        let fresh = backend.len().map_err(io)? == 0;
        let database =
            guarded(name, || redb::Builder::new().set_cache_size(CACHE).create_with_backend(backend))?;
        Self::start(name, database, fresh, limits, clock)
    }

    fn start(
        name: &str,
        database: Database,
        fresh: bool,
        limits: HistoryLimits,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        let damaged = |source: Box<dyn std::error::Error + Send + Sync>| OpenError::Damaged {
            path: name.to_owned(),
            source,
        };
        let loaded = catch_unwind(AssertUnwindSafe(|| load(&database, fresh, limits)))
            .unwrap_or_else(|_| Err(LoadError::Damaged("its pages contradict each other".into())));
        let (view, revision) = match loaded {
            Ok(loaded) => loaded,
            Err(LoadError::Newer(found)) => {
                return Err(OpenError::Newer { path: name.to_owned(), found, known: FORMAT });
            }
            // A store that was just made cannot be damaged: its first write found no room.
            Err(LoadError::Damaged(source)) if fresh => {
                return Err(OpenError::Io { path: name.to_owned(), source });
            }
            Err(LoadError::Damaged(source)) => return Err(damaged(source)),
        };
        let (queue, pending) = mpsc::channel();
        let (tell, synced) = watch::channel(Synced { revision, failed: None });
        let writer = Writer { database, synced: tell };
        let thread = std::thread::Builder::new()
            .name("polis-store".into())
            .spawn(move || writer.run(&pending))
            .map_err(|source| OpenError::Io { path: name.to_owned(), source: source.into() })?;
        Ok(Self { order: Order::after(view, clock), queue: Some(queue), synced, writer: Some(thread) })
    }
}

impl Drop for RedbStore {
    /// Waits for the writes under way, so that the file is closed when the store is gone.
    fn drop(&mut self) {
        self.queue = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

impl Store for RedbStore {
    fn view(&self) -> &View {
        &self.order.view
    }

    fn commit(&self, write: Write) -> BoxFuture<'static, Result<Stored, CommitError>> {
        let failed = self.synced.borrow().failed.clone();
        let written = match failed {
            Some(why) => Err(CommitError::Failed(why)),
            None => self.order.write(write, |write, revision, object| {
                let Write { collection, path, .. } = write;
                // The thread ends only after a failure, which the wait below reports.
                let _ = self
                    .queue
                    .as_ref()
                    .map(|queue| queue.send(Pending { collection, path, revision, object }));
            }),
        };
        let room = match &written {
            Ok(stored) => self.durable(stored.revision().saturating_sub(AHEAD)),
            Err(_) => None,
        };
        Box::pin(async move {
            if let Some(room) = room {
                room.await?;
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
                Ok(Synced { revision: reached, .. }) if *reached >= revision => Ok(()),
                Ok(Synced { failed: Some(why), .. }) => Err(CommitError::Failed(why.clone())),
                _ => Err(CommitError::Failed("the store was closed".into())),
            }
        }))
    }

    fn failed(&self) -> BoxFuture<'static, Arc<str>> {
        let mut synced = self.synced.clone();
        Box::pin(async move {
            match synced.wait_for(|synced| synced.failed.is_some()).await.as_deref() {
                Ok(Synced { failed: Some(why), .. }) => return why.clone(),
                _closed_in_good_order => {}
            }
            futures::future::pending().await
        })
    }
}

/// Opens through redb, whose repair may panic on a file that contradicts itself.
fn guarded(
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

enum LoadError {
    Newer(u64),
    Damaged(Box<dyn std::error::Error + Send + Sync>),
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for LoadError {
    fn from(error: E) -> Self {
        Self::Damaged(error.into())
    }
}

/// Reads everything into a view.
fn load(database: &Database, fresh: bool, limits: HistoryLimits) -> Result<(View, Revision), LoadError> {
    if fresh {
        let transaction = database.begin_write()?;
        {
            let mut about = transaction.open_table(ABOUT)?;
            about.insert("format", FORMAT)?;
            about.insert("revision", 1)?;
            transaction.open_table(OBJECTS)?;
            transaction.open_table(REMOVED)?;
        }
        transaction.commit()?;
        return Ok((View::new(limits, 1), 1));
    }
    let transaction = database.begin_read()?;
    let about = match transaction.open_table(ABOUT) {
        Err(TableError::TableDoesNotExist(_)) => {
            drop(transaction);
            // A crash between making the file and its first commit: nothing was ever acknowledged from it.
            if database.begin_read()?.list_tables()?.count() == 0 {
                return load(database, true, limits);
            }
            return Err(LoadError::Damaged("it is a redb file, but not one of ours".into()));
        }
        other => other?,
    };
    let format = about.get("format")?.map_or(0, |value| value.value());
    if format > FORMAT {
        return Err(LoadError::Newer(format));
    }
    let revision = about.get("revision")?.map_or(1, |value| value.value());
    let mut collections: BTreeMap<Collection, (BTreeMap<Arc<str>, Stored>, Revision)> = BTreeMap::new();
    // Names are shared between the objects of a collection: a plane with thirty objects holds its name once.
    let mut interned: HashMap<String, Collection> = HashMap::new();
    for row in transaction.open_table(OBJECTS)?.iter()? {
        let (key, value) = row?;
        let (prefix, path) = key
            .value()
            .rsplit_once('\0')
            .ok_or_else(|| LoadError::Damaged(format!("key {:?} has no collection", key.value()).into()))?;
        let collection = intern(&mut interned, prefix)?;
        let object = decode(value.value()).ok_or_else(|| {
            LoadError::Damaged(format!("the value of {:?} is too short", key.value()).into())
        })?;
        let (objects, floor) = collections.entry(collection).or_default();
        *floor = (*floor).max(object.revision());
        objects.insert(path.into(), object);
    }
    for row in transaction.open_table(REMOVED)?.iter()? {
        let (key, removed) = row?;
        let collection = intern(&mut interned, key.value())?;
        let (_, floor) = collections.entry(collection).or_default();
        *floor = (*floor).max(removed.value());
    }
    let view = View::new(limits, revision);
    for (collection, (objects, floor)) in collections {
        view.restore(collection, objects, floor);
    }
    Ok((view, revision))
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

fn encode(object: &Stored) -> Vec<u8> {
    let mut value = Vec::with_capacity(12 + object.json().len());
    value.extend_from_slice(&object.revision().to_le_bytes());
    value.extend_from_slice(&object.hole().to_le_bytes());
    value.extend_from_slice(object.json());
    value
}

fn decode(value: &[u8]) -> Option<Stored> {
    let (revision, rest) = value.split_first_chunk::<8>()?;
    let (hole, json) = rest.split_first_chunk::<4>()?;
    let hole = u32::from_le_bytes(*hole);
    (json.len() > hole as usize)
        .then(|| Stored::restore(Bytes::copy_from_slice(json), u64::from_le_bytes(*revision), hole))
}

/// The thread that writes.
struct Writer {
    database: Database,
    synced: watch::Sender<Synced>,
}

impl Writer {
    fn run(self, pending: &mpsc::Receiver<Pending>) {
        while let Ok(first) = pending.recv() {
            let group: Vec<Pending> =
                std::iter::once(first).chain(pending.try_iter().take(GROUP - 1)).collect();
            let persisted = catch_unwind(AssertUnwindSafe(|| self.persist(&group)))
                .unwrap_or_else(|_| Err("the engine found the file damaged".into()));
            match persisted {
                Ok(revision) => self.synced.send_modify(|synced| synced.revision = revision),
                Err(error) => {
                    // What reached the disk is unknown. Nothing more is written: after a restart the file decides.
                    tracing::error!(%error, "failed to write to the store; it stops here, restart to continue from the last durable write");
                    let why = format!(
                        "{error}; the store stops here, restart to continue from the last durable write"
                    );
                    return self.synced.send_modify(|synced| synced.failed = Some(why.into()));
                }
            }
        }
    }

    /// Writes a group, of each object only its last state, and answers the last revision in it.
    fn persist(&self, group: &[Pending]) -> Result<Revision, Box<dyn std::error::Error + Send + Sync>> {
        let mut last = 0;
        let (mut latest, mut removals) = (BTreeMap::new(), BTreeMap::new());
        for Pending { collection: Collection { plane, resource }, path, revision, object } in group {
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
                    Some(object) => drop(objects.insert(key.as_str(), encode(object).as_slice())?),
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
