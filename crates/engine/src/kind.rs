//! [`Kind`]: group, version, resource and scope, and the API paths made of them.

use std::any::TypeId;
use std::borrow::Cow;
use std::fmt;

use polis_api::k8s_openapi::NamespaceResourceScope;
use polis_api::kube::Resource;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Whether a kind is namespaced or cluster-scoped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceScope {
    /// Objects are in a namespace.
    Namespaced,
    /// Objects have no namespace.
    Cluster,
}

/// A kind of an API server: its GVK, its plural resource name and its scope.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind {
    /// API group; empty for the core group.
    pub group: Cow<'static, str>,
    /// Version within the group.
    pub version: Cow<'static, str>,
    /// Plural resource name, as in API paths.
    pub plural: Cow<'static, str>,
    /// Name of the kind, as in the field `kind`.
    pub kind: Cow<'static, str>,
    /// Namespaced or cluster-scoped.
    pub scope: ResourceScope,
}

impl Kind {
    /// A kind by its names.
    pub const fn known(
        group: &'static str,
        version: &'static str,
        kind: &'static str,
        plural: &'static str,
        scope: ResourceScope,
    ) -> Self {
        Self {
            group: Cow::Borrowed(group),
            version: Cow::Borrowed(version),
            plural: Cow::Borrowed(plural),
            kind: Cow::Borrowed(kind),
            scope,
        }
    }

    /// The kind of a typed object.
    pub fn of<K: Object>() -> Self {
        let scope = if TypeId::of::<K::Scope>() == TypeId::of::<NamespaceResourceScope>() {
            ResourceScope::Namespaced
        } else {
            ResourceScope::Cluster
        };
        Self {
            group: K::group(&()),
            version: K::version(&()),
            plural: K::plural(&()),
            kind: K::kind(&()),
            scope,
        }
    }

    /// `group/version`, or just the version in the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_string()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// The path of the group and version, which is also the discovery path.
    pub(crate) fn root(&self) -> String {
        if self.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.group, self.version)
        }
    }

    /// The path of the collection: in one namespace if given, across all namespaces otherwise.
    pub(crate) fn path(&self, namespace: Option<&str>) -> String {
        match namespace {
            Some(namespace) => format!("{}/namespaces/{namespace}/{}", self.root(), self.plural),
            None => format!("{}/{}", self.root(), self.plural),
        }
    }

    /// The path of one object.
    pub(crate) fn path_of(&self, object: crate::NamespacedName<'_>) -> String {
        format!("{}/{}", self.path(object.namespace), object.name)
    }
}

/// Displayed as `workloads.compute.example/v1`, which is unique on a plane.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() {
            write!(f, "{}/{}", self.plural, self.version)
        } else {
            write!(f, "{}.{}/{}", self.plural, self.group, self.version)
        }
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A typed object that the engine can read and write. Every `CustomResource` and every top-level type of
/// `k8s-openapi` implements it.
pub trait Object:
    Resource<DynamicType = (), Scope: 'static>
    + Serialize
    + DeserializeOwned
    + Clone
    + fmt::Debug
    + Send
    + Sync
    + 'static
{
}

impl<K> Object for K where
    K: Resource<DynamicType = (), Scope: 'static>
        + Serialize
        + DeserializeOwned
        + Clone
        + fmt::Debug
        + Send
        + Sync
        + 'static
{
}

/// `kind namespace/name`, for messages.
pub(crate) fn describe<K: Object>(object: &K) -> String {
    let meta = object.meta();
    let name = meta.name.as_deref().or(meta.generate_name.as_deref()).unwrap_or("(no name)");
    match &meta.namespace {
        Some(namespace) => format!("{} {namespace}/{name}", K::kind(&())),
        None => format!("{} {name}", K::kind(&())),
    }
}

/// The namespace and name of a typed object.
pub(crate) fn name_of<K: Object>(object: &K) -> crate::NamespacedName<'_> {
    let meta = object.meta();
    crate::NamespacedName {
        namespace: meta.namespace.as_deref(),
        name: meta.name.as_deref().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polis_api::k8s_openapi::api::coordination::v1::Lease;
    use polis_api::k8s_openapi::api::core::v1::{ConfigMap, Namespace};

    #[test]
    fn the_api_path_follows_from_the_type() {
        assert_eq!(
            Kind::of::<Lease>().path_of(("kube-system", "a").into()),
            "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/a"
        );
        assert_eq!(Kind::of::<Namespace>().path_of("a".into()), "/api/v1/namespaces/a");
        assert_eq!(Kind::of::<ConfigMap>().path(None), "/api/v1/configmaps");
    }

    #[test]
    fn scope_follows_the_type() {
        assert_eq!(Kind::of::<Namespace>().scope, ResourceScope::Cluster);
        assert_eq!(Kind::of::<ConfigMap>().scope, ResourceScope::Namespaced);
    }
}
