//! Kinds of objects: what the engine must know to find them on a plane.

use std::any::TypeId;
use std::borrow::Cow;
use std::fmt;

use polis_api::k8s_openapi::NamespaceResourceScope;
use polis_api::kube::Resource;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Whether objects of a kind live in namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// In a namespace.
    Namespaced,
    /// On the plane as a whole.
    Cluster,
}

/// A kind, by the names that an API server knows it by.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind {
    /// API group; empty for the core group.
    pub group: Cow<'static, str>,
    /// Version within the group.
    pub version: Cow<'static, str>,
    /// Plural, lower-case name used in paths.
    pub plural: Cow<'static, str>,
    /// Name of the kind, as in `kind:`.
    pub kind: Cow<'static, str>,
    /// Where its objects live.
    pub scope: Scope,
}

impl Kind {
    /// The kind of a typed object.
    pub fn of<K: Object>() -> Self {
        let scope = if TypeId::of::<K::Scope>() == TypeId::of::<NamespaceResourceScope>() {
            Scope::Namespaced
        } else {
            Scope::Cluster
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

    /// The path of the group and version: where discovery answers.
    pub(crate) fn root(&self) -> String {
        if self.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.group, self.version)
        }
    }

    /// The path of the collection; of one namespace if one is given.
    pub(crate) fn path(&self, namespace: Option<&str>) -> String {
        match namespace {
            Some(namespace) => format!("{}/namespaces/{namespace}/{}", self.root(), self.plural),
            None => format!("{}/{}", self.root(), self.plural),
        }
    }

    /// The path of one object.
    pub(crate) fn path_of(&self, place: crate::Place<'_>) -> String {
        format!("{}/{}", self.path(place.namespace), place.name)
    }
}

/// `workloads.compute.example/v1`: short, and unique on a plane.
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

/// What the engine asks of a typed object. Every `CustomResource` and every top-level type of `k8s-openapi` is one.
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

/// Where a typed object is on its plane.
pub(crate) fn place_of<K: Object>(object: &K) -> crate::Place<'_> {
    let meta = object.meta();
    crate::Place { namespace: meta.namespace.as_deref(), name: meta.name.as_deref().unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polis_api::k8s_openapi::api::coordination::v1::Lease;
    use polis_api::k8s_openapi::api::core::v1::{ConfigMap, Namespace};

    #[test]
    fn a_typed_object_knows_its_paths() {
        assert_eq!(
            Kind::of::<Lease>().path_of(("kube-system", "a").into()),
            "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/a"
        );
        assert_eq!(Kind::of::<Namespace>().path_of("a".into()), "/api/v1/namespaces/a");
        assert_eq!(Kind::of::<ConfigMap>().path(None), "/api/v1/configmaps");
    }

    #[test]
    fn scope_follows_the_type() {
        assert_eq!(Kind::of::<Namespace>().scope, Scope::Cluster);
        assert_eq!(Kind::of::<ConfigMap>().scope, Scope::Namespaced);
    }
}
