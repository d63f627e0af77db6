//! [`PlaneName`], [`NamespacedName`] (an object on a plane) and [`Key`] (an item of the work queue).

use std::fmt;
use std::sync::Arc;

use polis_api::ObjectExt;
use polis_api::kube::Resource;

use crate::Plane;

/// The name of a plane within its set, such as the name of a project. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlaneName(Arc<str>);

impl PlaneName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<T: AsRef<str> + ?Sized> From<&T> for PlaneName {
    fn from(name: &T) -> Self {
        Self(Arc::from(name.as_ref()))
    }
}

impl From<String> for PlaneName {
    fn from(name: String) -> Self {
        Self(Arc::from(name))
    }
}

impl AsRef<str> for PlaneName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl std::borrow::Borrow<str> for PlaneName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PlaneName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for PlaneName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An item of the work queue: an object on a plane. The object may not exist.
///
/// The key has no kind: all keys of a controller are of the same kind.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The plane, within the controller's primary set of planes.
    pub plane: PlaneName,
    /// The namespace; none for a cluster-scoped object.
    pub namespace: Option<Arc<str>>,
    /// The name.
    pub name: Arc<str>,
}

impl Key {
    /// The key of a namespaced object.
    pub fn new(plane: impl Into<PlaneName>, namespace: &str, name: &str) -> Self {
        Self { plane: plane.into(), namespace: Some(Arc::from(namespace)), name: Arc::from(name) }
    }

    /// The key of a cluster-scoped object.
    pub fn cluster(plane: impl Into<PlaneName>, name: &str) -> Self {
        Self { plane: plane.into(), namespace: None, name: Arc::from(name) }
    }

    /// The key of an object on its plane.
    pub fn of(plane: &Plane, object: &impl Resource) -> Self {
        Self {
            plane: plane.name().clone(),
            namespace: object.meta().namespace.as_deref().map(Arc::from),
            name: Arc::from(object.name()),
        }
    }

    /// The namespace, or an empty string for a cluster-scoped object.
    pub fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or_default()
    }

    /// The namespace and name, without the plane.
    pub fn namespaced_name(&self) -> NamespacedName<'_> {
        NamespacedName { namespace: self.namespace.as_deref(), name: &self.name }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{}/{namespace}/{}", self.plane, self.name),
            None => write!(f, "{}/{}", self.plane, self.name),
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The namespace and name of an object on a plane. Converts from `("namespace", "name")`, from a `"name"`
/// (cluster scope) and from a [`Key`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespacedName<'a> {
    /// The namespace; none for a cluster-scoped object.
    pub namespace: Option<&'a str>,
    /// The name.
    pub name: &'a str,
}

impl fmt::Display for NamespacedName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(self.name),
        }
    }
}

impl<'a> From<&'a Key> for NamespacedName<'a> {
    fn from(key: &'a Key) -> Self {
        key.namespaced_name()
    }
}

impl<'a> From<&'a str> for NamespacedName<'a> {
    fn from(name: &'a str) -> Self {
        Self { namespace: None, name }
    }
}

impl<'a> From<&'a String> for NamespacedName<'a> {
    fn from(name: &'a String) -> Self {
        Self { namespace: None, name }
    }
}

/// An empty namespace is that of a cluster-scoped object.
impl<'a> From<(&'a str, &'a str)> for NamespacedName<'a> {
    fn from((namespace, name): (&'a str, &'a str)) -> Self {
        Self { namespace: Some(namespace).filter(|namespace| !namespace.is_empty()), name }
    }
}

impl<'a> From<(&'a String, &'a String)> for NamespacedName<'a> {
    fn from((namespace, name): (&'a String, &'a String)) -> Self {
        Self { namespace: Some(namespace), name }
    }
}
