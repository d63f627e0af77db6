//! The copy of an Instance on another plane, and the changes that bring it up to date.
//!
//! Metadata and spec are one write, status is another, because status is a subresource. Each is written only
//! if it changes something; spec and status are compared in canonical form. Finalizers and annotations of the
//! source are not copied.

use polis_api::compute::{Instance, InstanceStatus};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::metadata::{self, Map};
use crate::{canonical, owner};

/// The writes that bring a copy up to date.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InstanceChanges {
    /// The copy with corrected labels, owner reference and spec; it carries the existing resource version.
    pub object: Option<Box<Instance>>,
    /// The whole status.
    pub status: Option<Box<InstanceStatus>>,
}

impl InstanceChanges {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.object.is_none() && self.status.is_none()
    }
}

/// A new copy. Its status is written after it is created.
pub(crate) fn new(source: &Instance, namespace: &str, labels: Map, owner: OwnerReference) -> Instance {
    let metadata = ObjectMeta {
        name: source.metadata.name.clone(),
        namespace: Some(namespace.to_owned()),
        labels: Some(labels),
        owner_references: Some(vec![owner]),
        ..Default::default()
    };
    Instance { metadata, spec: source.spec.clone(), status: None }
}

/// The changes that bring an existing copy up to date. Labels outside `labels` and `owned` are kept.
pub(crate) fn changes(
    source: &Instance,
    existing: &Instance,
    labels: &Map,
    owned: &[&str],
    owner: OwnerReference,
) -> InstanceChanges {
    let mut new = existing.clone();
    let mut changed = !canonical::same(&source.spec, &existing.spec);
    if changed {
        new.spec = source.spec.clone();
    }
    changed |= metadata::merge_labels(&mut new.metadata, labels, owned);
    changed |= owner::add(&mut new.metadata, owner);
    let status = source.status.as_ref().filter(|status| {
        !existing.status.as_ref().is_some_and(|existing| canonical::same(existing, *status))
    });
    InstanceChanges { object: changed.then(|| Box::new(new)), status: status.cloned().map(Box::new) }
}
