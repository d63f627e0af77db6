//! Watches: [`Watch`] declares what to watch, and a [`reflector`] lists and watches it.
//!
//! There is one reflector for each plane and kind, and one task polls all reflectors of a plane. A reflector
//! lists once (as a streaming list if the server supports it, in pages otherwise), then watches until the
//! server ends the stream, and resumes from the last resource version. If that version has expired (410), it
//! lists again and compares with the cache, so that deletions in between are found. An idle reflector holds a
//! stream, a resource version and a timer, but no buffer.

mod line_reader;
mod reflector;
mod selection;

use std::borrow::Cow;
use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::cache::{InformerStore, ObjectChange};
use crate::kind::ResourceScope;
use crate::plane::JSON;
use crate::uncached::with_selectors;
use crate::{Index, Kind, Object, Plane};

pub(crate) use reflector::Reflector;

/// The declaration of a watch on every plane of a set: a kind, optional selectors, and indexes.
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
    pub(crate) metadata_only: bool,
    pub(crate) keep_decoded: bool,
}

impl Watch {
    /// Watches every object of a typed kind.
    pub fn of<K: Object>() -> Self {
        Self::kind(Kind::of::<K>())
    }

    /// Watches every object of a kind that is only known at run time.
    pub fn kind(kind: Kind) -> Self {
        Self {
            kind,
            namespace: None,
            labels: None,
            fields: None,
            indexes: Vec::new(),
            if_allowed: false,
            metadata_only: false,
            keep_decoded: false,
        }
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

    /// Makes the watch optional: a plane that forbids it (403) is treated as one that does not serve the
    /// kind. The watch is retried with back-off.
    pub fn if_allowed(mut self) -> Self {
        self.if_allowed = true;
        self
    }

    /// Watches only the metadata, for a kind whose objects are large and whose changes are all that counts,
    /// such as CustomResourceDefinition. Its events have objects without spec and status. Its objects cannot
    /// be read from the cache.
    pub fn metadata_only(mut self) -> Self {
        self.metadata_only = true;
        self
    }

    /// Keeps the decoded form of each object that was read as untyped ([`Plane::untyped`]), so that a version
    /// is decoded once. It costs about five times the memory of the bytes.
    pub fn keep_decoded(mut self) -> Self {
        self.keep_decoded = true;
        self
    }

    /// Adds an index for [`Plane::find`].
    pub fn index(mut self, index: Index) -> Self {
        if !self.indexes.contains(&index) {
            self.indexes.push(index);
        }
        self
    }

    /// Merges the watches of each kind, so that each controller can declare what it needs: the result has one
    /// watch per kind, with the indexes of all.
    ///
    /// Panics if two watches of one kind select different objects: one cache cannot serve both.
    pub(crate) fn merged(watches: impl IntoIterator<Item = Watch>) -> Arc<[Watch]> {
        let mut merged: Vec<Watch> = Vec::new();
        for watch in watches {
            match merged.iter_mut().find(|other| other.is_of(&watch)) {
                Some(other) => other.merge(watch),
                None => merged.push(watch),
            }
        }
        merged.into()
    }

    /// Whether this watch has the objects and indexes of another.
    pub(crate) fn includes(&self, other: &Watch) -> bool {
        self.is_of(other)
            && self.selection() == other.selection()
            && other.indexes.iter().all(|index| self.indexes.contains(index))
    }

    fn selection(&self) -> [&Option<Cow<'static, str>>; 3] {
        [&self.namespace, &self.labels, &self.fields]
    }

    /// Whether both watches are of the same kind and see the same parts of its objects.
    pub(crate) fn is_of(&self, other: &Watch) -> bool {
        self.kind == other.kind && self.metadata_only == other.metadata_only
    }

    /// The media types of a list and of an object.
    pub(crate) fn accept(&self) -> (&'static str, &'static str) {
        if self.metadata_only {
            (
                "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
                "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
            )
        } else {
            (JSON, JSON)
        }
    }

    fn merge(&mut self, other: Watch) {
        let (ours, theirs) = (self.selection(), other.selection());
        assert!(
            ours == theirs,
            "two watches of {} on the same planes have different selectors (namespace, labels, fields): {ours:?} and {theirs:?}",
            self.kind
        );
        // A watch that one controller requires is not optional.
        self.if_allowed &= other.if_allowed;
        self.keep_decoded |= other.keep_decoded;
        for index in other.indexes {
            if !self.indexes.contains(&index) {
                self.indexes.push(index);
            }
        }
    }

    /// The path of the collection on a plane with the selectors, to which further parameters can be appended.
    fn path(&self, plane: &Plane) -> String {
        let of_plane = plane.namespace().filter(|_| self.kind.scope == ResourceScope::Namespaced);
        with_selectors(
            self.kind.path(self.namespace.as_deref().or(of_plane)),
            self.labels.as_deref(),
            self.fields.as_deref(),
        )
    }
}

/// Receives the events of the reflectors of a plane. The plane's task calls it in the order of the events.
pub(crate) trait Observer: Send + Sync {
    /// An object has changed in the cache.
    fn changed(&self, plane: &Plane, watch: usize, change: ObjectChange);
    /// The kind has been listed, or is not served.
    fn synced(&self, plane: &Plane, watch: usize);
    /// The watch of the kind has begun to fail, fails for another reason, or works again.
    fn error_changed(&self, plane: &Plane, watch: usize);
    /// An object of a watch that was added at run time has changed in its cache.
    fn added_changed(&self, _: &Plane, _: &Arc<InformerStore>, _: ObjectChange) {}
    /// A watch that was added at run time has been listed for the first time.
    fn added_synced(&self, _: &Plane, _: &Arc<InformerStore>) {}
}

/// Limits the number of concurrent lists.
///
/// Retries after a failure have a separate limit, so that failing planes never delay healthy ones.
pub(crate) struct ListLimiter {
    first_attempts: Semaphore,
    retries: Semaphore,
}

impl ListLimiter {
    pub(crate) fn new(limit: usize) -> Self {
        Self { first_attempts: Semaphore::new(limit), retries: Semaphore::new((limit / 4).max(1)) }
    }
}

#[cfg(test)]
mod tests {
    use polis_api::k8s_openapi::api::core::v1::{ConfigMap, Namespace};

    use super::*;

    #[test]
    fn watches_of_one_kind_are_merged_with_the_indexes_of_all() {
        let by_app = || Index::label("app");
        let merged = Watch::merged([
            Watch::of::<Namespace>().labels("tenant").index(by_app()),
            Watch::of::<ConfigMap>().if_allowed(),
            Watch::of::<Namespace>().labels("tenant").index(Index::Owner).index(by_app()),
            Watch::of::<ConfigMap>(),
        ]);
        let [namespaces, maps] = &*merged else { panic!("{merged:?}") };
        assert_eq!((&namespaces.kind, &maps.kind), (&Kind::of::<Namespace>(), &Kind::of::<ConfigMap>()));
        assert_eq!(namespaces.indexes, [by_app(), Index::Owner]);
        assert_eq!(namespaces.labels.as_deref(), Some("tenant"));
        assert!(!maps.if_allowed, "one of the two is not optional");
    }

    #[test]
    #[should_panic(expected = "two watches of namespaces/v1 on the same planes have different selectors")]
    fn watches_of_one_kind_must_select_the_same_objects() {
        Watch::merged([Watch::of::<Namespace>(), Watch::of::<Namespace>().labels("tenant")]);
    }
}
