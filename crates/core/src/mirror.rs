//! A copy of an Instance on another plane: what differs.
//!
//! Metadata and spec are one write, status is another (it has a subresource of its own). Each is made only when it
//! changes a meaning; finalizers and annotations of the original stay where they are.

use polis_api::compute::{Instance, InstanceStatus};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::metadata::{self, Map};
use crate::{canonical, owner};

/// What to write to bring a copy up to date. Nothing of both means nothing to do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    /// Labels, owner and spec, over the standing copy of the same resource version.
    pub object: Option<Box<Instance>>,
    /// The whole status.
    pub status: Option<Box<InstanceStatus>>,
}

impl Changes {
    /// Whether there is nothing to write.
    pub fn is_nothing(&self) -> bool {
        self.object.is_none() && self.status.is_none()
    }
}

/// A copy that does not exist yet. Its status is written once it does.
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

/// What differs between a standing copy and its source. Of the copy's labels those in `labels` and `owned` are ours.
pub(crate) fn changes(
    source: &Instance,
    standing: &Instance,
    labels: &Map,
    owned: &[&str],
    owner: OwnerReference,
) -> Changes {
    let mut new = standing.clone();
    let mut changed = !canonical::same(&source.spec, &standing.spec);
    if changed {
        new.spec = source.spec.clone();
    }
    changed |= metadata::merge_labels(&mut new.metadata, labels, owned);
    changed |= owner::add(&mut new.metadata, owner);
    let status = source.status.as_ref().filter(|status| {
        !standing.status.as_ref().is_some_and(|standing| canonical::same(standing, *status))
    });
    Changes { object: changed.then(|| Box::new(new)), status: status.cloned().map(Box::new) }
}
