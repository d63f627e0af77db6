//! A store on disk: redb under one writing thread.
//!
//! Writes queue to the thread; it takes all that wait (at most [`GROUP`]), checks and numbers each, writes them in one
//! transaction, syncs, shows them to readers and answers. While it syncs the next group gathers, so the cost of a sync
//! is shared by as many writers as there are. A write is visible only after it is durable.
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
use tokio::sync::oneshot;

use super::{
    Collection, CommitError, HistoryLimits, OpenError, Revision, Store, Stored, View, Write, memory::check,
};
use crate::seams::Clock;

/// The format written by this program.
const FORMAT: u64 = 1;
/// Most writes in one transaction.
const GROUP: usize = 256;
/// redb's page cache. All state is in the view, so the cache serves only the B-tree's inner pages on writes.
const CACHE: usize = 16 << 20;

const ABOUT: TableDefinition<'_, &str, u64> = TableDefinition::new("about");
const OBJECTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("objects");
const REMOVED: TableDefinition<'_, &str, u64> = TableDefinition::new("removed");

struct Request {
    write: Write,
    answer: oneshot::Sender<Result<Stored, CommitError>>,
}

/// A store in one redb file.
pub struct RedbStore {
    view: Arc<View>,
    queue: Option<mpsc::Sender<Request>>,
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
            Err(LoadError::Damaged(source)) => return Err(damaged(source)),
        };
        let view = Arc::new(view);
        let (queue, requests) = mpsc::channel();
        let writer = Writer { database, view: view.clone(), revision, clock };
        let thread = std::thread::Builder::new()
            .name("polis-store".into())
            .spawn(move || writer.run(&requests))
            .map_err(|source| OpenError::Io { path: name.to_owned(), source: source.into() })?;
        Ok(Self { view, queue: Some(queue), writer: Some(thread) })
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
        &self.view
    }

    fn commit(&self, write: Write) -> BoxFuture<'static, Result<Stored, CommitError>> {
        let (answer, answered) = oneshot::channel();
        let sent = self.queue.as_ref().is_some_and(|queue| queue.send(Request { write, answer }).is_ok());
        Box::pin(async move {
            let stopped = || {
                CommitError::Failed(
                    "the store has stopped after an earlier failure; its log says which".into(),
                )
            };
            if !sent {
                return Err(stopped());
            }
            answered.await.unwrap_or_else(|_| Err(stopped()))
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
    view: Arc<View>,
    revision: Revision,
    clock: Arc<dyn Clock>,
}

/// A write that passed its check and waits for the sync.
struct Accepted {
    write: Write,
    revision: Revision,
    object: Option<Stored>,
    shown: Stored,
    answer: oneshot::Sender<Result<Stored, CommitError>>,
}

impl Writer {
    fn run(mut self, requests: &mpsc::Receiver<Request>) {
        while let Ok(first) = requests.recv() {
            let mut group = vec![first];
            while group.len() < GROUP {
                match requests.try_recv() {
                    Ok(request) => group.push(request),
                    Err(_) => break,
                }
            }
            let accepted = self.accept(group);
            if accepted.is_empty() {
                continue;
            }
            let persisted = catch_unwind(AssertUnwindSafe(|| self.persist(&accepted)))
                .unwrap_or_else(|_| Err("the engine found the file damaged".into()));
            match persisted {
                Ok(()) => self.publish(accepted),
                Err(error) => {
                    // What reached the disk is unknown. Nothing more is written: after a restart the file decides.
                    tracing::error!(%error, "failed to write to the store; it stops here, restart to continue from the last durable write");
                    let why: Arc<str> = error.to_string().into();
                    for write in accepted {
                        let _ = write.answer.send(Err(CommitError::Failed(why.clone())));
                    }
                    return;
                }
            }
        }
    }

    /// Checks and numbers the writes of a group, each over the outcome of those before it.
    fn accept(&mut self, group: Vec<Request>) -> Vec<Accepted> {
        let mut pending: HashMap<(Collection, String), Option<Stored>> = HashMap::new();
        let mut accepted = Vec::with_capacity(group.len());
        for Request { write, answer } in group {
            let key = (write.collection.clone(), write.path.clone());
            let current = match pending.get(&key) {
                Some(state) => state.clone(),
                None => self.view.get(&write.collection, &write.path),
            };
            if let Err(error) = check(write.expect, current.as_ref()) {
                let _ = answer.send(Err(error));
                continue;
            }
            let revision = self.revision + 1;
            let object = write.draft.as_ref().map(|draft| draft.finish(revision));
            let shown = match (&object, current) {
                (Some(object), _) => object.clone(),
                (None, Some(current)) => current.at(revision),
                (None, None) => {
                    let _ = answer.send(Err(CommitError::Conflict(None)));
                    continue;
                }
            };
            self.revision = revision;
            pending.insert(key, object.clone());
            accepted.push(Accepted { write, revision, object, shown, answer });
        }
        accepted
    }

    fn persist(&self, accepted: &[Accepted]) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let transaction = self.database.begin_write()?;
        {
            let mut objects = transaction.open_table(OBJECTS)?;
            let mut removed = transaction.open_table(REMOVED)?;
            for Accepted { write, revision, object, .. } in accepted {
                let Collection { plane, resource } = &write.collection;
                let key = format!("{plane}\0{resource}\0{}", write.path);
                match object {
                    Some(object) => drop(objects.insert(key.as_str(), encode(object).as_slice())?),
                    None => {
                        objects.remove(key.as_str())?;
                        removed.insert(format!("{plane}\0{resource}").as_str(), *revision)?;
                    }
                }
            }
            transaction.open_table(ABOUT)?.insert("revision", self.revision)?;
        }
        transaction.commit()?;
        Ok(())
    }

    fn publish(&self, accepted: Vec<Accepted>) {
        let now = self.clock.now();
        for write in accepted {
            self.view.apply(&write.write.collection, &write.write.path, write.revision, write.object, now);
            let _ = write.answer.send(Ok(write.shown));
        }
    }
}
