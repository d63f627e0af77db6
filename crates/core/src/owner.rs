//! Owner references, and references to one version of an object.
//!
//! An owner reference is built only from an object that was read on the same plane: UIDs differ between
//! planes, and the garbage collector deletes objects whose owner UID does not exist. A delete has UID and
//! resource version as preconditions, so it deletes the object in the version that the decision is based on,
//! or fails.

use polis_api::ObjectExt;
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use polis_api::kube::Resource;

/// One version of one object: the preconditions of a delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectRef {
    /// Name of the object.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The resource version that was read.
    pub resource_version: String,
}

impl ObjectRef {
    /// A reference to the object.
    pub fn of(object: &impl Resource) -> Self {
        ObjectRef {
            name: object.name().to_owned(),
            uid: object.uid().to_owned(),
            resource_version: object.meta().resource_version.clone().unwrap_or_default(),
        }
    }
}

/// The children to delete before the finalizer of a deleted parent can be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeletionPlan {
    /// No child is left: remove the finalizer.
    Done,
    /// Delete these children and wait until every child is gone. Empty when all of them are terminating
    /// already.
    Delete(Vec<ObjectRef>),
}

/// An owner reference without `controller`: the garbage collector deletes the object with its owner.
pub fn reference<K: Resource<DynamicType = ()>>(owner: &K) -> OwnerReference {
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: owner.name().to_owned(),
        uid: owner.uid().to_owned(),
        controller: None,
        block_owner_deletion: None,
    }
}

/// A controller reference: as [`reference`], and the owner is the only controller of the object.
pub fn controller_reference<K: Resource<DynamicType = ()>>(owner: &K) -> OwnerReference {
    OwnerReference { controller: Some(true), block_owner_deletion: Some(true), ..reference(owner) }
}

/// The owner reference to the controller of an object.
pub fn controller(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|reference| reference.controller == Some(true))
}

/// Whether the controller of an object has this UID. An empty UID controls nothing.
pub fn is_controlled_by(meta: &ObjectMeta, uid: &str) -> bool {
    !uid.is_empty() && controller(meta).is_some_and(|reference| reference.uid == uid)
}

/// Whether an owner reference has this UID. An empty UID owns nothing.
pub fn is_owned_by(meta: &ObjectMeta, uid: &str) -> bool {
    !uid.is_empty() && meta.owner_references.iter().flatten().any(|reference| reference.uid == uid)
}

/// Adds an owner reference, or replaces the one with the same UID; returns whether anything changed.
pub fn add(meta: &mut ObjectMeta, desired: OwnerReference) -> bool {
    let owners = meta.owner_references.get_or_insert_default();
    match owners.iter_mut().find(|reference| reference.uid == desired.uid) {
        Some(existing) if *existing == desired => false,
        Some(existing) => {
            *existing = desired;
            true
        }
        None => {
            owners.push(desired);
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{mk_deployment, mk_instance};

    #[test]
    fn a_controller_reference_names_its_owner_and_blocks_its_deletion() {
        let deployment = mk_deployment("web");
        let reference = controller_reference(&deployment);
        assert_eq!(
            (
                reference.api_version.as_str(),
                reference.kind.as_str(),
                reference.name.as_str(),
                reference.uid.as_str()
            ),
            ("compute.datumapis.com/v1alpha", "WorkloadDeployment", "web", "uid-web")
        );
        assert_eq!((reference.controller, reference.block_owner_deletion), (Some(true), Some(true)));
    }

    #[test]
    fn an_empty_uid_owns_nothing() {
        let mut instance = mk_instance(&mk_deployment("web"), 0);
        instance.metadata.owner_references.as_mut().unwrap()[0].uid = String::new();
        assert!(!is_controlled_by(&instance.metadata, ""));
        assert!(!is_owned_by(&instance.metadata, ""));
    }

    #[test]
    fn adding_an_owner_twice_changes_nothing() {
        let mut meta = ObjectMeta::default();
        assert!(add(&mut meta, reference(&mk_deployment("web"))));
        assert!(!add(&mut meta, reference(&mk_deployment("web"))));
        assert!(add(&mut meta, controller_reference(&mk_deployment("web"))));
        assert_eq!(meta.owner_references.unwrap().len(), 1);
    }
}
