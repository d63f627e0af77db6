//! A kind with the fields that its API paths need.

use std::borrow::Cow;

use crate::interpreter::TypeMeta;

/// A kind: `apiVersion`, `kind`, plural and scope.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceKind {
    /// Group and version; only the version in the core group.
    pub api_version: Cow<'static, str>,
    /// Name of the kind.
    pub kind: Cow<'static, str>,
    /// Plural name in paths.
    pub plural: Cow<'static, str>,
    /// Whether its objects are namespaced.
    pub namespaced: bool,
}

impl ResourceKind {
    /// A kind that is known at compile time.
    pub const fn known(
        api_version: &'static str,
        kind: &'static str,
        plural: &'static str,
        namespaced: bool,
    ) -> Self {
        ResourceKind {
            api_version: Cow::Borrowed(api_version),
            kind: Cow::Borrowed(kind),
            plural: Cow::Borrowed(plural),
            namespaced,
        }
    }

    /// Its `apiVersion` and `kind`.
    pub fn type_meta(&self) -> TypeMeta {
        TypeMeta { api_version: self.api_version.to_string(), kind: self.kind.to_string() }
    }

    /// The discovery path of a group and version.
    pub fn root(api_version: &str) -> String {
        if api_version.contains('/') { format!("/apis/{api_version}") } else { format!("/api/{api_version}") }
    }

    /// The path of all objects, or of the objects of one namespace.
    pub fn path(&self, namespace: Option<&str>) -> String {
        let root = Self::root(&self.api_version);
        match namespace.filter(|_| self.namespaced) {
            Some(namespace) => format!("{root}/namespaces/{namespace}/{}", self.plural),
            None => format!("{root}/{}", self.plural),
        }
    }

    /// The path of one object.
    pub fn path_of(&self, namespace: &str, name: &str) -> String {
        format!("{}/{name}", self.path(Some(namespace)))
    }
}

impl std::fmt::Display for ResourceKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.api_version, self.kind)
    }
}
