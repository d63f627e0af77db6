//! Label and field selectors, as they stand in a query string.
//!
//! A selector is parsed once per request and then asked for every object, so matching looks at borrowed labels and
//! allocates nothing. Errors carry the words of kube-apiserver: clients show them to people as they are.

mod fields;
mod labels;
mod reader;

pub use fields::{FieldSelector, FieldTerm, field_text};
pub use labels::{LabelSelector, Operator, Requirement};

use std::fmt;

/// More terms than this in one selector are refused; a query string of the usual size cannot hold more useful ones.
const TERMS_MAX: usize = 4096;

/// A selector that could not be understood. The text is what kube-apiserver would say.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectorError(pub String);

fn write_joined<T: fmt::Display>(f: &mut fmt::Formatter<'_>, terms: &[T]) -> fmt::Result {
    for (i, term) in terms.iter().enumerate() {
        if i > 0 {
            f.write_str(",")?;
        }
        write!(f, "{term}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_selector_reads_back_as_written(text in "[a-c!=<>(), ]{0,24}") {
            if let Ok(selector) = LabelSelector::parse(&text) {
                prop_assert_eq!(LabelSelector::parse(&selector.to_string()).unwrap(), selector);
            }
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,64}") {
            let _ = LabelSelector::parse(&text);
            if let Ok(selector) = FieldSelector::parse(&text) {
                prop_assert_eq!(FieldSelector::parse(&selector.to_string()).unwrap().terms().len(), selector.terms().len());
            }
        }
    }
}
