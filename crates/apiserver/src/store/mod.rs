//! Object storage with the semantics of etcd: one revision counter, compare-and-set on a key, ordered ranges,
//! and watches from a revision.
//!
//! Writes go through [`Store::commit`]. Reads come from a [`View`] in memory, which shows a write as soon as
//! it has a revision. The write is durable a moment later; [`Store::durable`] waits for that.
//!
//! ```text
//!   commit ──► check precondition ──► next revision ──► view: objects, history, wake watchers ──► result
//!                                          └──► batch, disk, fsync ──► durable
//! ```
//!
//! The writes of all planes form one log, and a crash loses only its tail. So a controller that writes only
//! to this store may act on writes before they are durable: a crash loses both what it read and what it
//! wrote, or neither. Responses to clients outside the process wait for durability.

#[cfg(test)]
mod durability_tests;
mod encryption;
#[cfg(test)]
mod encryption_tests;
mod histories;
mod memory;
#[cfg(test)]
mod model_tests;
mod object;
mod redb;
mod reserve;
mod row;
mod sequencer;
mod shard;
mod view;
mod watch;

pub use encryption::{EncryptionKeyError, EncryptionKeys};
pub(crate) use memory::MemoryStore;
pub(crate) use object::{EncodedObject, Stored};
pub(crate) use object::{OwnerReference, PartialMeta};
pub(crate) use redb::RedbStore;
pub(crate) use row::RowCodec;
pub(crate) use shard::{ChangeType, Event};
pub(crate) use view::{HistoryLimits, Page, RangeOptions, View};
pub(crate) use watch::{StoreWatch, WatchItem};

use std::sync::Arc;

use futures::future::BoxFuture;
use polis_apimachinery::storage_quota::{QuotaExceeded, StorageQuota};

/// The position of a write in the log of the store, as in etcd.
pub(crate) type Revision = u64;

/// All objects of one resource in one plane: the unit of listing and watching.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Collection {
    /// The plane's name; empty for the root plane.
    pub plane: Arc<str>,
    /// `plural.group`, or `plural` alone for the core group.
    pub resource: Arc<str>,
}

impl Collection {
    /// The collection of `resource` in `plane`.
    pub(crate) fn new(plane: impl Into<Arc<str>>, resource: impl Into<Arc<str>>) -> Self {
        Self { plane: plane.into(), resource: resource.into() }
    }
}

/// The state of the key that a write requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Precondition {
    /// There is no object.
    Absent,
    /// The object was last written at this revision.
    AtRevision(Revision),
}

/// One write of one object.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    /// The collection written to.
    pub collection: Collection,
    /// `namespace/name`, or `name` for a cluster-scoped object.
    pub path: String,
    /// The required current state.
    pub precondition: Precondition,
    /// The new object; `None` deletes it.
    pub object: Option<EncodedObject>,
}

/// Why a write failed.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum CommitError {
    /// The precondition does not hold. Carries the current object.
    #[error("the object was modified concurrently")]
    Conflict(Option<Stored>),
    /// The plane is at its storage quota.
    #[error(transparent)]
    OverQuota(#[from] QuotaExceeded),
    /// The store can no longer write; the write is lost.
    #[error("failed to write to the store: {0}")]
    Failed(Arc<str>),
}

/// The requested revision is older than the history of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("revision {requested} is older than the oldest kept revision {oldest}")]
pub(crate) struct Compacted {
    /// The requested revision.
    pub requested: Revision,
    /// The oldest revision from which a watch may start.
    pub oldest: Revision,
}

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    /// The file exists but is not a valid store. It is not modified.
    #[error(
        "failed to open the store {path}: the file is damaged or not a store ({source}); restore it from a copy, it has not been changed"
    )]
    Damaged {
        /// The file.
        path: String,
        /// The error of the database.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// An object cannot be decrypted. No object is modified.
    #[error("failed to open the store {path}: {object} {why}")]
    Encrypted {
        /// The file.
        path: String,
        /// Resource, plane and path of the object.
        object: String,
        /// What is missing, and what to do.
        why: String,
    },
    /// A newer version of this program wrote the file.
    #[error(
        "failed to open the store {path}: it has format {found}, this program reads up to format {known}; use the newer program that wrote it"
    )]
    Newer {
        /// The file.
        path: String,
        /// The format in the file.
        found: u64,
        /// The newest format that this program reads.
        known: u64,
    },
    /// Another process has it open.
    #[error("failed to open the store {path}: another process is using it")]
    InUse {
        /// The file.
        path: String,
    },
    /// A file system error.
    #[error(
        "failed to open the store {path}: {source}; check the free disk space and the permissions of the file"
    )]
    Io {
        /// The file.
        path: String,
        /// The error of the file system.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// An object store: a view for reads, and commits.
pub(crate) trait Store: Send + Sync + 'static {
    /// The current state, including writes that are not durable yet.
    fn view(&self) -> &View;

    /// Writes or deletes one object. The write is visible in the view when the call returns; the future only
    /// adds backpressure for callers that write faster than the disk.
    fn commit(&self, write: Write) -> BoxFuture<'static, Result<Stored, CommitError>> {
        self.commit_within(write, None)
    }

    /// [`Self::commit`] within the storage quota of the plane. It is checked together with the write, so
    /// concurrent writes cannot exceed it.
    fn commit_within(
        &self,
        write: Write,
        quota: Option<StorageQuota>,
    ) -> BoxFuture<'static, Result<Stored, CommitError>>;

    /// Waits until every write up to `revision` is durable; `None` if it is already.
    fn durable(&self, revision: Revision) -> Option<BoxFuture<'static, Result<(), CommitError>>>;

    /// Whether the disk has no space for more objects. Writes that free space, and those of the platform,
    /// have a reserve.
    fn is_short_of_space(&self) -> bool {
        false
    }

    /// Completes with the reason when the store fails for good, for example because the disk is full.
    fn failed(&self) -> BoxFuture<'static, Arc<str>> {
        Box::pin(futures::future::pending())
    }
}
