//! [`ResourceVersion`]: a resource version that can be compared with others of the same kind.

use std::num::NonZeroU64;

/// A resource version as a number. Kubernetes defines that versions of one resource are decimal integers and
/// grow with each change (KEP-5504).
///
/// The definition has no upper limit; a version beyond 64 bits counts as one that cannot be compared, like
/// any other text. Kubernetes itself uses etcd revisions, which have 63 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ResourceVersion(NonZeroU64);

impl ResourceVersion {
    /// The version; none if the text cannot be compared.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_canonical = !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit());
        if is_canonical { text.parse().ok().map(Self) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_integers_are_compared_as_numbers() {
        let parse = |text| ResourceVersion::parse(text).unwrap();
        assert!(parse("9") < parse("10"));
        assert!(parse("99") < parse("18446744073709551615"));
        assert_eq!(parse("7"), parse("7"));
    }

    #[test]
    fn other_texts_cannot_be_compared() {
        for text in ["", "0", "07", "+7", "-7", "7a", "a7", " 7", "7.0", "18446744073709551616"] {
            assert_eq!(ResourceVersion::parse(text), None, "{text:?}");
        }
    }
}
