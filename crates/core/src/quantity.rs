//! Kubernetes quantities such as `500m` and `10Gi`, converted to whole units.

use polis_apimachinery::quantity::{Quantity, SuffixFamily};

/// The unit to count in.
#[derive(Clone, Copy, Debug)]
pub enum Unit {
    /// Thousandths of one.
    Thousandth,
    /// 2²⁰.
    Mebi,
}

/// A Kubernetes quantity in whole units, rounded up; `None` if the text is not a quantity, is negative or
/// exceeds an `i64`.
pub fn in_units(quantity: &str, unit: Unit) -> Option<i64> {
    let size = match unit {
        Unit::Thousandth => Quantity::from_milli(1),
        Unit::Mebi => Quantity::from_units(1 << 20, SuffixFamily::Binary),
    };
    Quantity::parse(quantity).ok()?.multiples_of(size).filter(|count| *count >= 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_counted_in_units_and_rounded_up() {
        for (quantity, millicores) in [
            ("1", 1000),
            ("250m", 250),
            ("0.1", 100),
            ("1.5", 1500),
            ("1500u", 2),
            ("1n", 1),
            ("2e1", 20_000),
            ("+1", 1000),
            (".5", 500),
            ("1k", 1_000_000),
        ] {
            assert_eq!(in_units(quantity, Unit::Thousandth), Some(millicores), "{quantity}");
        }
        for (quantity, mebibytes) in [
            ("1Gi", 1024),
            ("512Mi", 512),
            ("1", 1),
            ("1048577", 2),
            ("1G", 954),
            ("1.5Gi", 1536),
            ("1e9", 954),
            ("128Ki", 1),
        ] {
            assert_eq!(in_units(quantity, Unit::Mebi), Some(mebibytes), "{quantity}");
        }
    }

    #[test]
    fn invalid_quantities_are_rejected() {
        for quantity in ["", "-1", "1 Gi", "Gi", "1x", "1.2.3", ".", "1e99", "1e", "999999999999999Ei", "--1"]
        {
            assert_eq!(in_units(quantity, Unit::Mebi), None, "{quantity}");
        }
    }
}
