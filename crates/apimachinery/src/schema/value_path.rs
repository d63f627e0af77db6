//! The path of a value inside an object, as in Go's `field.Path`. Built on the stack during a walk and
//! formatted only for an error. A path that a CRD gives as text is a [`super::field_path::SchemaFieldPath`].

use std::fmt::{self, Write};

/// The path of a value inside an object. Elements borrow their parents, so a walk without errors allocates
/// nothing.
#[derive(Debug, Clone, Copy)]
pub enum ValuePath<'a> {
    /// The object itself.
    Root,
    /// A formatted path: the start of a walk that does not begin at the object.
    At(&'a str),
    /// `.name`
    Child(&'a ValuePath<'a>, &'a str),
    /// `[key]`
    Key(&'a ValuePath<'a>, &'a str),
    /// `[3]`
    Index(&'a ValuePath<'a>, usize),
}

impl<'a> ValuePath<'a> {
    /// The field `name` of this value.
    pub fn child(&'a self, name: &'a str) -> ValuePath<'a> {
        ValuePath::Child(self, name)
    }

    /// The entry `key` of this map.
    pub fn key(&'a self, key: &'a str) -> ValuePath<'a> {
        ValuePath::Key(self, key)
    }

    /// The element at `index` of this list.
    pub fn index(&'a self, index: usize) -> ValuePath<'a> {
        ValuePath::Index(self, index)
    }

    /// True at the root of the walk.
    pub fn is_root(&self) -> bool {
        matches!(self, ValuePath::Root)
    }

    /// The path as the `field` of an error; `<nil>` for the object itself.
    pub fn field(&self) -> String {
        if self.is_root() { "<nil>".to_owned() } else { self.to_string() }
    }
}

impl fmt::Display for ValuePath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValuePath::Root => Ok(()),
            ValuePath::At(text) => f.write_str(text),
            ValuePath::Child(parent, name) => {
                if !parent.is_root() {
                    write!(f, "{parent}")?;
                    f.write_char('.')?;
                }
                f.write_str(name)
            }
            ValuePath::Key(parent, key) => write!(f, "{parent}[{key}]"),
            ValuePath::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_formatted_with_dots_and_brackets() {
        let root = ValuePath::Root;
        let spec = root.child("spec");
        let ports = spec.child("ports");
        let first = ports.index(0);
        assert_eq!(first.child("name").to_string(), "spec.ports[0].name");
        assert_eq!(spec.key("a").to_string(), "spec[a]");
        assert_eq!(root.field(), "<nil>");
        assert_eq!(ValuePath::At("status").child("x").to_string(), "status.x");
    }
}
