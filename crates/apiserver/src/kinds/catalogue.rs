//! Catalogues: the set of kinds that one or many planes serve.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use parking_lot::RwLock;

use super::{Kind, builtin::builtins};
use crate::{
    docs::{Discovery, OpenApi},
    subresource::SubresourceHandlers,
};

/// An immutable snapshot of the kinds of a catalogue. A CRD change replaces it; requests in flight keep
/// theirs.
#[derive(Default)]
pub(crate) struct Kinds {
    custom: BTreeMap<(String, String), Arc<Kind>>,
    /// Subresource handlers of the embedding program.
    pub(crate) subresources: Arc<SubresourceHandlers>,
    openapi: OnceLock<OpenApi>,
}

impl Kinds {
    /// The kind with this group and plural name.
    pub(crate) fn find(&self, group: &str, plural: &str) -> Option<&Arc<Kind>> {
        builtins().iter().find(|kind| kind.is(group, plural) && !self.is_replaced(kind)).or_else(|| {
            self.custom
                .range((group.to_owned(), plural.to_owned())..)
                .next()
                .filter(|((g, p), _)| g == group && p == plural)
                .map(|(_, kind)| kind)
        })
    }

    /// The kind with this group and kind name.
    pub(crate) fn find_kind(&self, group: &str, kind: &str) -> Option<&Arc<Kind>> {
        self.iter().find(|known| known.group == group && known.kind == kind)
    }

    /// The kind of the objects in a store collection; for events that of the core group.
    pub(crate) fn find_resource(&self, resource: &str) -> Option<&Arc<Kind>> {
        self.iter().find(|known| &*known.resource == resource)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Kind>> {
        builtins().iter().filter(|kind| !self.is_replaced(kind)).chain(self.custom.values())
    }

    /// Whether a kind of this plane replaces a built-in kind without objects.
    fn is_replaced(&self, kind: &Kind) -> bool {
        kind.rules().is_some_and(|rules| rules.empty)
            && !self.custom.is_empty()
            && self.custom.contains_key(&(kind.group.clone(), kind.plural.clone()))
    }

    /// The discovery documents.
    pub(crate) fn discovery(&self) -> Discovery<'_> {
        Discovery::of(self)
    }

    /// The OpenAPI documents, computed on the first call.
    pub(crate) fn openapi(&self) -> &OpenApi {
        self.openapi.get_or_init(|| OpenApi::of(self))
    }
}

/// A named set of kinds and the plane that stores its CRDs.
pub(crate) struct Catalogue {
    pub(crate) name: Arc<str>,
    /// The plane that stores the CRDs: the owning plane, or `@name` for a shared catalogue.
    pub(crate) plane: Arc<str>,
    kinds: RwLock<Arc<Kinds>>,
    /// Held during a CRD change, so that the names of one CRD at a time are checked and accepted.
    pub(crate) changing: tokio::sync::Mutex<()>,
}

impl Catalogue {
    pub(crate) fn new(name: Arc<str>, plane: Arc<str>, subresources: Arc<SubresourceHandlers>) -> Self {
        let kinds = RwLock::new(Arc::new(Kinds { subresources, ..Kinds::default() }));
        Self { name, plane, kinds, changing: tokio::sync::Mutex::default() }
    }

    pub(crate) fn kinds(&self) -> Arc<Kinds> {
        self.kinds.read().clone()
    }

    /// Adds or replaces a kind.
    pub(crate) fn install(&self, kind: Kind) {
        let mut kinds = self.kinds.write();
        let mut custom = kinds.custom.clone();
        custom.insert((kind.group.clone(), kind.plural.clone()), Arc::new(kind));
        *kinds =
            Arc::new(Kinds { custom, subresources: kinds.subresources.clone(), openapi: OnceLock::new() });
    }

    /// Removes and returns the kind of the CRD named `crd`.
    pub(crate) fn remove(&self, crd: &str) -> Option<Arc<Kind>> {
        let mut kinds = self.kinds.write();
        let key = kinds
            .custom
            .iter()
            .find(|(_, kind)| matches!(&kind.origin, super::Origin::Custom { crd: name } if name == crd))
            .map(|(key, _)| key.clone())?;
        let mut custom = kinds.custom.clone();
        let removed = custom.remove(&key);
        *kinds =
            Arc::new(Kinds { custom, subresources: kinds.subresources.clone(), openapi: OnceLock::new() });
        removed
    }
}
