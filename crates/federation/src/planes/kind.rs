//! A kind, by the names that an API server knows it by.

use std::borrow::Cow;

use crate::interpreter::Target;

/// What must be known to find the objects of a kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind {
    /// Group and version; only the version in the core group.
    pub api_version: Cow<'static, str>,
    /// Name of the kind.
    pub kind: Cow<'static, str>,
    /// Name in paths.
    pub plural: Cow<'static, str>,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
}

impl Kind {
    /// A kind that is known when the program is written.
    pub const fn known(
        api_version: &'static str,
        kind: &'static str,
        plural: &'static str,
        namespaced: bool,
    ) -> Self {
        Kind {
            api_version: Cow::Borrowed(api_version),
            kind: Cow::Borrowed(kind),
            plural: Cow::Borrowed(plural),
            namespaced,
        }
    }

    /// The kind without what only paths need.
    pub fn target(&self) -> Target {
        Target { api_version: self.api_version.to_string(), kind: self.kind.to_string() }
    }

    /// Where discovery answers for a group and version.
    pub fn root(api_version: &str) -> String {
        if api_version.contains('/') { format!("/apis/{api_version}") } else { format!("/api/{api_version}") }
    }

    /// Path of all objects, or of those of one namespace.
    pub fn path(&self, namespace: Option<&str>) -> String {
        let root = Self::root(&self.api_version);
        match namespace.filter(|_| self.namespaced) {
            Some(namespace) => format!("{root}/namespaces/{namespace}/{}", self.plural),
            None => format!("{root}/{}", self.plural),
        }
    }

    /// Path of one object.
    pub fn path_of(&self, namespace: &str, name: &str) -> String {
        format!("{}/{name}", self.path(Some(namespace)))
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.api_version, self.kind)
    }
}
