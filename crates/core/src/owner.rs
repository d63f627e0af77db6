//! Who owns an object, and which object exactly is meant.
//!
//! An owner reference is made only from an object read on the same plane: UIDs differ from plane to plane, and the
//! garbage collector removes what an unknown UID owns. A delete names UID and resource version, so that it meets
//! the very object that was looked at, in the very state that was looked at, or fails.

use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use polis_api::kube::Resource;

/// One object in one state: the precondition of a delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exact {
    /// Name of the object.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The resource version that was looked at.
    pub resource_version: String,
}

impl Exact {
    /// The object that this metadata was read from.
    pub fn of(meta: &ObjectMeta) -> Self {
        Exact {
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            resource_version: meta.resource_version.clone().unwrap_or_default(),
        }
    }
}

/// The name of an object; empty when it has none yet.
pub fn name(meta: &ObjectMeta) -> &str {
    meta.name.as_deref().unwrap_or_default()
}

/// The UID of an object; empty when it has none yet.
pub fn uid(meta: &ObjectMeta) -> &str {
    meta.uid.as_deref().unwrap_or_default()
}

/// Whether an object is on its way out.
pub fn is_deleting(meta: &ObjectMeta) -> bool {
    meta.deletion_timestamp.is_some()
}

/// A plain reference: goes with its owner.
pub fn reference<K: Resource<DynamicType = ()>>(owner: &K) -> OwnerReference {
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: name(owner.meta()).to_owned(),
        uid: uid(owner.meta()).to_owned(),
        controller: None,
        block_owner_deletion: None,
    }
}

/// A controller reference: goes with its owner, and nobody else controls it.
pub fn controller_reference<K: Resource<DynamicType = ()>>(owner: &K) -> OwnerReference {
    OwnerReference { controller: Some(true), block_owner_deletion: Some(true), ..reference(owner) }
}

/// The reference of the object's controller.
pub fn controller(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|reference| reference.controller == Some(true))
}

/// Whether the object's controller is the one with this UID. An empty UID controls nothing.
pub fn is_controlled_by(meta: &ObjectMeta, uid: &str) -> bool {
    !uid.is_empty() && controller(meta).is_some_and(|reference| reference.uid == uid)
}

/// Whether any reference points to this UID. An empty UID owns nothing.
pub fn is_owned_by(meta: &ObjectMeta, uid: &str) -> bool {
    !uid.is_empty() && meta.owner_references.iter().flatten().any(|reference| reference.uid == uid)
}

/// Puts a reference among the owners, in the place of an older one to the same UID; says whether anything changed.
pub fn add(meta: &mut ObjectMeta, wanted: OwnerReference) -> bool {
    let owners = meta.owner_references.get_or_insert_default();
    match owners.iter_mut().find(|reference| reference.uid == wanted.uid) {
        Some(standing) if *standing == wanted => false,
        Some(standing) => {
            *standing = wanted;
            true
        }
        None => {
            owners.push(wanted);
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{mk_deployment, mk_instance};

    #[test]
    fn a_controller_reference_blocks_and_controls() {
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
