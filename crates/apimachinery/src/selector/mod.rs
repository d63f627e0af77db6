//! Label and field selectors of a query string.
//!
//! A selector is parsed once per request and matched against every object, so matching borrows the labels and
//! allocates nothing. Errors have the messages of kube-apiserver.

mod fields;
mod labels;
mod parser;

pub use fields::{FieldSelector, field_text};
pub use labels::{LabelSelector, Operator, Requirement};

use std::fmt;

/// Maximum number of terms of one selector.
const TERMS_MAX: usize = 4096;

/// An invalid selector, with the message of kube-apiserver.
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
        fn a_selector_round_trips(text in "[a-c!=<>(), ]{0,24}") {
            if let Ok(selector) = LabelSelector::parse(&text) {
                prop_assert_eq!(LabelSelector::parse(&selector.to_string()).unwrap(), selector);
            }
        }

        #[test]
        fn any_text_is_parsed_or_rejected(text in "\\PC{0,64}") {
            let _ = LabelSelector::parse(&text);
            if let Ok(selector) = FieldSelector::parse(&text) {
                prop_assert_eq!(FieldSelector::parse(&selector.to_string()).unwrap().terms().len(), selector.terms().len());
            }
        }
    }
}
