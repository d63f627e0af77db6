//! Where objects live.
//!
//! A store asks for no more than etcd can give: one revision counter, compare-and-set on a key, ordered ranges, and a
//! watch from a revision. Writes go through [`Store::commit`]; reads come from a [`View`] held in memory, which shows a
//! write as soon as it has its number. It lasts a moment later: [`Store::durable`] says when.
//!
//! ```text
//!   commit ──► check expectation ──► next revision ──► view: objects, history, wake watchers ──► answer
//!                                         └──► disk, fsync, many writes at a time ──► durable
//! ```
//!
//! Since all writes of all planes are one order and are lost, if at all, from its end, whoever keeps all that he does in
//! the same store may go on at once: if what he saw is lost, so is what he made of it. Whoever shows it to others waits.

mod memory;
mod object;
mod order;
mod redb;
mod shard;
mod view;
mod watch;

pub use memory::MemoryStore;
pub use object::{Draft, Stored};
pub(crate) use object::{Head, OwnerReference};
pub use redb::RedbStore;
pub use shard::{Change, Event};
pub use view::{HistoryLimits, Page, Range, View};
pub use watch::{Next, Watch};

use std::sync::Arc;

use futures::future::BoxFuture;

/// A point in the one order of all writes of a store.
pub type Revision = u64;

/// All objects of one resource in one plane: the unit of listing and watching.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Collection {
    /// The plane's name; empty for the root plane.
    pub plane: Arc<str>,
    /// `plural.group`, or `plural` alone for the core group.
    pub resource: Arc<str>,
}

impl Collection {
    /// The collection of `resource` in `plane`.
    pub fn new(plane: impl Into<Arc<str>>, resource: impl Into<Arc<str>>) -> Self {
        Self { plane: plane.into(), resource: resource.into() }
    }
}

/// What must hold for a write to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// No object under the key.
    Absent,
    /// The object under the key was last written at this revision.
    At(Revision),
}

/// One write of one object.
#[derive(Clone, Debug)]
pub struct Write {
    /// The collection written to.
    pub collection: Collection,
    /// `namespace/name`, or `name` for a cluster-scoped object.
    pub path: String,
    /// The state that the writer saw.
    pub expect: Expect,
    /// The new object; `None` removes it.
    pub draft: Option<Draft>,
}

/// Why a write did not happen.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CommitError {
    /// The expectation did not hold; carries what is there now.
    #[error("the object was changed by somebody else")]
    Conflict(Option<Stored>),
    /// The store can no longer write, and the write does not last.
    #[error("failed to write to the store: {0}")]
    Failed(Arc<str>),
}

/// The revision asked for lies before the history that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("revision {asked} is older than the history kept (from {kept})")]
pub struct Compacted {
    /// The revision asked for.
    pub asked: Revision,
    /// The oldest revision from which a watch may start.
    pub kept: Revision,
}

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file is there but is not a sound store. It is left untouched.
    #[error(
        "failed to open the store {path}: the file is damaged or not a store ({source}); restore it from a copy, it has not been changed"
    )]
    Damaged {
        /// The file.
        path: String,
        /// What the engine found.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The file was written by a later version of this program.
    #[error(
        "failed to open the store {path}: it has format {found}, this program reads up to format {known}; use the newer program that wrote it"
    )]
    Newer {
        /// The file.
        path: String,
        /// The format in the file.
        found: u64,
        /// The newest format known here.
        known: u64,
    },
    /// Another process has it open.
    #[error("failed to open the store {path}: another process is using it")]
    InUse {
        /// The file.
        path: String,
    },
    /// The file system refused.
    #[error(
        "failed to open the store {path}: {source}; see that there is room, and that this user may write there"
    )]
    Io {
        /// The file.
        path: String,
        /// What the file system said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// A store: a view to read from and a way to write.
pub trait Store: Send + Sync + 'static {
    /// What can be read, as new as every write.
    fn view(&self) -> &View;

    /// Writes one object, and answers once it has its number and is seen in the view. It happens in the call; the future
    /// only holds back a writer who is faster than the disk.
    fn commit(&self, write: Write) -> BoxFuture<'static, Result<Stored, CommitError>>;

    /// Waits until every write up to `revision` is as durable as this store makes it; `None` if it is.
    fn durable(&self, revision: Revision) -> Option<BoxFuture<'static, Result<(), CommitError>>>;

    /// Ends when the store has stopped for good, and says why: a full disk, for example.
    fn failed(&self) -> BoxFuture<'static, Arc<str>> {
        Box::pin(futures::future::pending())
    }
}
