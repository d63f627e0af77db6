//! A place inside an object, built on the stack while walking and written out only when something is wrong there.

use std::fmt::{self, Write};

/// One step from the root. Steps borrow their parents, so a walk that finds nothing allocates nothing.
#[derive(Debug, Clone, Copy)]
pub enum Path<'a> {
    /// The object itself.
    Root,
    /// A place that is already written out; the start of a walk that does not begin at the object.
    At(&'a str),
    /// `.name`
    Child(&'a Path<'a>, &'a str),
    /// `[key]`
    Key(&'a Path<'a>, &'a str),
    /// `[3]`
    Index(&'a Path<'a>, usize),
}

impl<'a> Path<'a> {
    /// The member `name` of this place.
    pub fn child(&'a self, name: &'a str) -> Path<'a> {
        Path::Child(self, name)
    }

    /// The entry `key` of the map at this place.
    pub fn key(&'a self, key: &'a str) -> Path<'a> {
        Path::Key(self, key)
    }

    /// The element at `index` of the list at this place.
    pub fn index(&'a self, index: usize) -> Path<'a> {
        Path::Index(self, index)
    }

    /// True at the root of the walk.
    pub fn is_root(&self) -> bool {
        matches!(self, Path::Root)
    }

    /// The written form as a field of an error: the object as a whole is `<nil>`.
    pub fn field(&self) -> String {
        if self.is_root() { "<nil>".to_owned() } else { self.to_string() }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Root => Ok(()),
            Path::At(text) => f.write_str(text),
            Path::Child(parent, name) => {
                if !parent.is_root() {
                    write!(f, "{parent}")?;
                    f.write_char('.')?;
                }
                f.write_str(name)
            }
            Path::Key(parent, key) => write!(f, "{parent}[{key}]"),
            Path::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_written_with_dots_and_brackets() {
        let root = Path::Root;
        let spec = root.child("spec");
        let ports = spec.child("ports");
        let first = ports.index(0);
        assert_eq!(first.child("name").to_string(), "spec.ports[0].name");
        assert_eq!(spec.key("a").to_string(), "spec[a]");
        assert_eq!(root.field(), "<nil>");
        assert_eq!(Path::At("status").child("x").to_string(), "status.x");
    }
}
