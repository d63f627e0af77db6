//! Names: of a plane, of an object on a plane, and of a piece of work.

use std::fmt;
use std::sync::Arc;

/// The name of a plane within its set: a project, the hub, a cell. Cheap to clone.
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

/// A piece of work: an object on a plane, which may no longer (or not yet) exist.
///
/// The kind is not part of it: a controller is about one kind and knows which.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The plane, within the set of planes that the controller works on.
    pub plane: PlaneName,
    /// The namespace; none for an object of the whole plane.
    pub namespace: Option<Arc<str>>,
    /// The name.
    pub name: Arc<str>,
}

impl Key {
    /// The key of an object in a namespace.
    pub fn new(plane: impl Into<PlaneName>, namespace: &str, name: &str) -> Self {
        Self { plane: plane.into(), namespace: Some(Arc::from(namespace)), name: Arc::from(name) }
    }

    /// The key of an object that has no namespace.
    pub fn cluster(plane: impl Into<PlaneName>, name: &str) -> Self {
        Self { plane: plane.into(), namespace: None, name: Arc::from(name) }
    }

    /// The namespace, or the empty text for an object that has none.
    pub fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or_default()
    }

    /// Where the object is on its plane.
    pub fn place(&self) -> Place<'_> {
        Place { namespace: self.namespace.as_deref(), name: &self.name }
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

/// Where an object is on its plane: `("namespace", "name")`, a bare `"name"`, or a [`Key`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    /// The namespace; none for an object of the whole plane.
    pub namespace: Option<&'a str>,
    /// The name.
    pub name: &'a str,
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(self.name),
        }
    }
}

impl<'a> From<&'a Key> for Place<'a> {
    fn from(key: &'a Key) -> Self {
        key.place()
    }
}

impl<'a> From<&'a str> for Place<'a> {
    fn from(name: &'a str) -> Self {
        Self { namespace: None, name }
    }
}

impl<'a> From<&'a String> for Place<'a> {
    fn from(name: &'a String) -> Self {
        Self { namespace: None, name }
    }
}

impl<'a> From<(&'a str, &'a str)> for Place<'a> {
    fn from((namespace, name): (&'a str, &'a str)) -> Self {
        Self { namespace: Some(namespace), name }
    }
}

impl<'a> From<(&'a String, &'a String)> for Place<'a> {
    fn from((namespace, name): (&'a String, &'a String)) -> Self {
        Self { namespace: Some(namespace), name }
    }
}
