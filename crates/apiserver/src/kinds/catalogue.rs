//! The set of kinds that one or many planes share.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use parking_lot::RwLock;

use super::{Kind, builtin::builtins};
use crate::{
    docs::{Discovery, OpenApi},
    extension::Extensions,
};

/// A set of kinds at one moment. Replaced as a whole when a CRD changes; requests under way keep theirs.
#[derive(Default)]
pub(crate) struct Kinds {
    custom: BTreeMap<(String, String), Arc<Kind>>,
    /// Subresources of the embedding program.
    pub(crate) extensions: Arc<Extensions>,
    openapi: OnceLock<OpenApi>,
}

impl Kinds {
    /// The kind behind `group` and `plural`.
    pub(crate) fn find(&self, group: &str, plural: &str) -> Option<&Arc<Kind>> {
        builtins().iter().find(|kind| kind.is(group, plural)).or_else(|| {
            self.custom
                .range((group.to_owned(), plural.to_owned())..)
                .next()
                .filter(|((g, p), _)| g == group && p == plural)
                .map(|(_, kind)| kind)
        })
    }

    /// The kind named `kind` in `group`.
    pub(crate) fn find_kind(&self, group: &str, kind: &str) -> Option<&Arc<Kind>> {
        self.iter().find(|known| known.group == group && known.kind == kind)
    }

    /// The kind whose objects live in a collection; for events the core one.
    pub(crate) fn find_resource(&self, resource: &str) -> Option<&Arc<Kind>> {
        self.iter().find(|known| &*known.resource == resource)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Kind>> {
        builtins().iter().chain(self.custom.values())
    }

    /// What there is.
    pub(crate) fn discovery(&self) -> Discovery<'_> {
        Discovery::of(self)
    }

    /// How it looks, made when first asked for.
    pub(crate) fn openapi(&self) -> &OpenApi {
        self.openapi.get_or_init(|| OpenApi::of(self))
    }
}

/// A named set of kinds and where its CRDs are kept.
pub(crate) struct Catalogue {
    pub(crate) name: Arc<str>,
    /// The plane in whose collection the CRDs are: the plane's own, or one apart for a shared catalogue.
    pub(crate) home: Arc<str>,
    kinds: RwLock<Arc<Kinds>>,
    /// Held over a change of CRDs, so that names are accepted one CRD at a time.
    pub(crate) changing: tokio::sync::Mutex<()>,
}

impl Catalogue {
    pub(crate) fn new(name: Arc<str>, home: Arc<str>, extensions: Arc<Extensions>) -> Self {
        let kinds = RwLock::new(Arc::new(Kinds { extensions, ..Kinds::default() }));
        Self { name, home, kinds, changing: tokio::sync::Mutex::default() }
    }

    pub(crate) fn kinds(&self) -> Arc<Kinds> {
        self.kinds.read().clone()
    }

    /// Adds or replaces a kind.
    pub(crate) fn install(&self, kind: Kind) {
        let mut kinds = self.kinds.write();
        let mut custom = kinds.custom.clone();
        custom.insert((kind.group.clone(), kind.plural.clone()), Arc::new(kind));
        *kinds = Arc::new(Kinds { custom, extensions: kinds.extensions.clone(), openapi: OnceLock::new() });
    }

    /// Takes the kind defined by the CRD `name` out, and returns it.
    pub(crate) fn remove(&self, crd: &str) -> Option<Arc<Kind>> {
        let mut kinds = self.kinds.write();
        let key = kinds
            .custom
            .iter()
            .find(|(_, kind)| matches!(&kind.origin, super::Origin::Custom { crd: name } if name == crd))
            .map(|(key, _)| key.clone())?;
        let mut custom = kinds.custom.clone();
        let removed = custom.remove(&key);
        *kinds = Arc::new(Kinds { custom, extensions: kinds.extensions.clone(), openapi: OnceLock::new() });
        removed
    }
}
