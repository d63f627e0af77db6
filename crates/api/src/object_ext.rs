//! [`ObjectExt`]: short access to the metadata of every object.

use kube::Resource;

/// Reads the metadata of an object. Implemented for every kind.
///
/// Unlike `kube::ResourceExt`, it borrows, and a missing name, namespace or UID is an empty text: an object
/// that was read from a server has all that its kind has.
pub trait ObjectExt: Resource {
    /// The name; empty if it has none yet.
    fn name(&self) -> &str {
        self.meta().name.as_deref().unwrap_or_default()
    }

    /// The namespace; empty if the kind is cluster-scoped.
    fn namespace(&self) -> &str {
        self.meta().namespace.as_deref().unwrap_or_default()
    }

    /// The UID; empty if the object was not read from a server.
    fn uid(&self) -> &str {
        self.meta().uid.as_deref().unwrap_or_default()
    }

    /// Whether the object is being deleted.
    fn is_deleting(&self) -> bool {
        self.meta().deletion_timestamp.is_some()
    }

    /// The value of a label, or `None` if it is missing or empty: an empty value identifies nothing.
    fn label(&self, key: &str) -> Option<&str> {
        self.meta().labels.as_ref()?.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The value of an annotation.
    fn annotation(&self, key: &str) -> Option<&str> {
        self.meta().annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// Whether the object has a finalizer.
    fn has_finalizer(&self, finalizer: &str) -> bool {
        self.meta().finalizers.iter().flatten().any(|present| present == finalizer)
    }
}

impl<K: Resource> ObjectExt for K {}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    #[test]
    fn a_new_object_has_empty_metadata() {
        let object = ConfigMap::default();
        assert_eq!((object.name(), object.namespace(), object.uid()), ("", "", ""));
        assert!(!object.is_deleting() && !object.has_finalizer("a"));
        assert_eq!((object.label("a"), object.annotation("a")), (None, None));
    }

    #[test]
    fn an_empty_label_counts_as_missing_and_an_empty_annotation_does_not() {
        let mut object = ConfigMap::default();
        object.metadata.labels = Some([("a".into(), "".into()), ("b".into(), "1".into())].into());
        object.metadata.annotations = object.metadata.labels.clone();
        assert_eq!((object.label("a"), object.label("b")), (None, Some("1")));
        assert_eq!((object.annotation("a"), object.annotation("b")), (Some(""), Some("1")));
    }
}
