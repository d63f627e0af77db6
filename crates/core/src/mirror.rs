//! The copy of an Instance on another plane: what to write, and which deployment owns it.
//!
//! Write-back (cell to hub) and projection (hub to project) follow the same rules. The owner of a copy is the
//! deployment of the copy's plane that the label `workload-deployment-name` of the source names; without it
//! there is no copy. A terminating copy is never written: its successor is created when it is gone. Metadata
//! and spec are one write, status is another, because status is a subresource. Each is written only if it
//! changes something; spec and status are compared in canonical form. Finalizers and annotations of the
//! source are not copied.

use polis_api::ObjectExt;
use polis_api::compute::{Instance, InstanceStatus, WorkloadDeployment};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::metadata::{self, Map};
use crate::{canonical, owner, significant_change};

/// What to do about the copy of an instance.
#[derive(Clone, Debug, PartialEq)]
pub enum CopyAction {
    /// The copy is up to date.
    None,
    /// Write these changes. Without an existing copy, its object is the copy to create.
    Write(InstanceChanges),
    /// An earlier copy is terminating: retry when it is gone.
    AwaitDeletion,
}

/// The writes that bring a copy up to date.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InstanceChanges {
    /// The copy with corrected labels, owner reference and spec; it carries the existing resource version.
    pub object: Option<Box<Instance>>,
    /// The whole status.
    pub status: Option<Box<InstanceStatus>>,
    /// Whether to write without delay, instead of together with later changes.
    pub significant: bool,
}

/// The deployment that owns a copy: it has the name that the source's label gives, and is not being deleted.
pub(crate) fn owner_of<'a>(
    name: Option<&str>,
    deployment: Option<&'a WorkloadDeployment>,
) -> Option<&'a WorkloadDeployment> {
    deployment.filter(|found| name == Some(found.name()) && !found.uid().is_empty() && !found.is_deleting())
}

/// The desired copy of an instance.
pub(crate) struct DesiredCopy<'a> {
    pub source: &'a Instance,
    /// The namespace of the copy.
    pub namespace: &'a str,
    pub labels: Map,
    /// Labels that are removed from the copy if they are not desired. All others are kept.
    pub owned_labels: &'a [&'a str],
    pub owner: OwnerReference,
}

impl DesiredCopy<'_> {
    /// Plans the copy. An existing object must be a copy of the source.
    pub(crate) fn plan(self, existing: Option<&Instance>) -> CopyAction {
        match existing {
            None => CopyAction::Write(self.creation()),
            Some(existing) if existing.is_deleting() => CopyAction::AwaitDeletion,
            Some(existing) => self.changes(existing).map_or(CopyAction::None, CopyAction::Write),
        }
    }

    /// A new copy. An insignificant status is left for the reconcile that follows the creation, because it
    /// changes soon after: the start of an instance then costs one write of the status instead of two.
    fn creation(self) -> InstanceChanges {
        let metadata = ObjectMeta {
            name: self.source.metadata.name.clone(),
            namespace: Some(self.namespace.to_owned()),
            labels: Some(self.labels),
            owner_references: Some(vec![self.owner]),
            ..Default::default()
        };
        let object = Instance { metadata, spec: self.source.spec.clone(), status: None };
        let status = self.source.status.as_ref();
        let status = status.filter(|status| significant_change::of_instance(None, status));
        let status = status.cloned().map(Box::new);
        InstanceChanges { object: Some(Box::new(object)), status, significant: true }
    }

    /// The changes that bring an existing copy up to date; none if it is.
    fn changes(self, existing: &Instance) -> Option<InstanceChanges> {
        let mut new = existing.clone();
        let mut changed = !canonical::same(&self.source.spec, &existing.spec);
        if changed {
            new.spec = self.source.spec.clone();
        }
        changed |= metadata::merge_labels(&mut new.metadata, &self.labels, self.owned_labels);
        changed |= owner::add(&mut new.metadata, self.owner);
        let before = existing.status.as_ref();
        let status = self.source.status.as_ref();
        let status = status.filter(|status| !before.is_some_and(|before| canonical::same(before, *status)));
        (changed || status.is_some()).then(|| InstanceChanges {
            object: changed.then(|| Box::new(new)),
            significant: status.is_some_and(|status| significant_change::of_instance(before, status)),
            status: status.cloned().map(Box::new),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{deleting, mk_deployment, mk_instance, ready};

    fn plan(source: &Instance, existing: Option<&Instance>) -> CopyAction {
        let owner = owner::controller_reference(&mk_deployment("web"));
        let labels = metadata::map([("a", "1")]);
        DesiredCopy { source, namespace: "shop", labels, owned_labels: &[], owner }.plan(existing)
    }

    #[test]
    fn a_copy_is_created_without_delay_and_with_its_status_only_if_that_is_significant() {
        let starting = mk_instance(&mk_deployment("web"), 0);
        for (source, has_status) in [(starting.clone(), false), (ready(starting), true)] {
            let CopyAction::Write(InstanceChanges { object: Some(object), status, significant: true }) =
                plan(&source, None)
            else {
                panic!()
            };
            assert_eq!((object.namespace(), status.is_some()), ("shop", has_status));
        }
    }

    #[test]
    fn a_status_that_makes_the_copy_ready_is_significant_and_a_changed_label_is_not() {
        let starting = mk_instance(&mk_deployment("web"), 0);
        let CopyAction::Write(InstanceChanges { object: Some(copy), .. }) = plan(&starting, None) else {
            panic!()
        };
        assert_eq!(plan(&starting, Some(&copy)), CopyAction::None);
        let CopyAction::Write(changes) = plan(&ready(starting.clone()), Some(&copy)) else { panic!() };
        assert!(changes.significant && changes.status.is_some());
        let mut relabelled = *copy;
        relabelled.metadata.labels = None;
        let CopyAction::Write(changes) = plan(&starting, Some(&relabelled)) else { panic!() };
        assert!(!changes.significant && changes.object.is_some());
    }

    #[test]
    fn a_terminating_copy_is_awaited() {
        let source = mk_instance(&mk_deployment("web"), 0);
        assert_eq!(plan(&source, Some(&deleting(source.clone()))), CopyAction::AwaitDeletion);
    }
}
