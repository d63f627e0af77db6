//! Watches: the declaration of what to see, and the loop that sees it.
//!
//! One loop per plane and kind ([`follow`]); all loops of a plane are polled by one task. A loop lists once (as a stream where
//! the server can, in pages otherwise), then follows events for as long as the server allows and resumes where it stopped. When
//! the server has forgotten that point (410), it lists again and compares, so that deletions which happened meanwhile are seen.
//! An idle loop holds a stream, a resource version and a timer; no buffer.

mod follow;
mod lines;

use std::borrow::Cow;

use tokio::sync::Semaphore;

use crate::cache::Change;
use crate::live::with_selectors;
use crate::{Index, Kind, Object, Plane};

pub(crate) use follow::Follow;

/// What to watch on every plane of a set: a kind, perhaps only some of its objects, and the indexes to keep.
///
/// ```
/// # use polis_engine::{Index, Watch};
/// # use polis_api::k8s_openapi::api::core::v1::{Namespace, Pod};
/// let watches = [
///     Watch::of::<Namespace>(),
///     Watch::of::<Pod>().labels("app=web").index(Index::Owner).index(Index::field("spec.nodeName")),
/// ];
/// ```
#[derive(Clone, Debug)]
pub struct Watch {
    pub(crate) kind: Kind,
    pub(crate) namespace: Option<Cow<'static, str>>,
    pub(crate) labels: Option<Cow<'static, str>>,
    pub(crate) fields: Option<Cow<'static, str>>,
    pub(crate) indexes: Vec<Index>,
    pub(crate) if_allowed: bool,
}

impl Watch {
    /// Every object of a typed kind.
    pub fn of<K: Object>() -> Self {
        Self::kind(Kind::of::<K>())
    }

    /// Every object of a kind that is only known at run time.
    pub fn kind(kind: Kind) -> Self {
        Self { kind, namespace: None, labels: None, fields: None, indexes: Vec::new(), if_allowed: false }
    }

    /// Only the objects of one namespace.
    pub fn within(mut self, namespace: impl Into<Cow<'static, str>>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Only the objects whose labels match the selector.
    pub fn labels(mut self, selector: impl Into<Cow<'static, str>>) -> Self {
        self.labels = Some(selector.into());
        self
    }

    /// Only the objects whose fields match the selector.
    pub fn fields(mut self, selector: impl Into<Cow<'static, str>>) -> Self {
        self.fields = Some(selector.into());
        self
    }

    /// The watch is good to have and not needed: a plane that forbids it counts as one that does not serve the kind. It is
    /// asked again now and then.
    pub fn if_allowed(mut self) -> Self {
        self.if_allowed = true;
        self
    }

    /// Lets objects be found by something other than their name.
    pub fn index(mut self, index: Index) -> Self {
        if !self.indexes.contains(&index) {
            self.indexes.push(index);
        }
        self
    }

    /// The path of the collection with the selectors, ready for more parameters.
    fn path(&self) -> String {
        with_selectors(
            self.kind.path(self.namespace.as_deref()),
            self.labels.as_deref(),
            self.fields.as_deref(),
        )
    }
}

/// Who hears what a plane's loops see. Called in the order of events, by the plane's task.
pub(crate) trait Observer: Send + Sync {
    /// An object changed.
    fn changed(&self, plane: &Plane, watch: usize, change: Change);
    /// The kind is listed, or found not to be served.
    fn synced(&self, plane: &Plane, watch: usize);
    /// The kind is in trouble, or out of it.
    fn troubled(&self, plane: &Plane, watch: usize);
}

/// Places for lists that are under way.
///
/// Planes that failed before stand in a line of their own: however many they are, they cannot hold up one that works.
pub(crate) struct Gate {
    first: Semaphore,
    again: Semaphore,
}

impl Gate {
    pub(crate) fn new(places: usize) -> Self {
        Self { first: Semaphore::new(places), again: Semaphore::new((places / 4).max(1)) }
    }
}
