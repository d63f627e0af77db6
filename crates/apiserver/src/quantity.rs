//! Quantities such as `100m`, `1.5Gi` and `2e3`: parsed exactly, compared, and written in canonical form.
//!
//! A quantity is a whole number of nano-units; smaller fractions are rounded up, as Kubernetes does. The canonical form
//! has no fraction and the largest suffix of its family that allows that: `1500m`, `1536Mi`, `2k`.

use std::cmp::Ordering;
use std::fmt;

/// The family of suffixes that a quantity is written with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notation {
    /// `Ki`, `Mi`, …: powers of 1024.
    Binary,
    /// `m`, `k`, `M`, …: powers of 1000.
    Decimal,
    /// `e3`, `e6`, …
    Exponent,
}

/// An amount with nano precision and about ±1.7·10²⁹ of range; what lies beyond is capped, as Kubernetes caps it.
#[derive(Debug, Clone, Copy)]
pub struct Quantity {
    nanos: i128,
    notation: Notation,
}

/// Text that is no quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// The number is malformed or missing.
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Form,
    /// The number is fine and the suffix is not one.
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

const NANO: i128 = 1_000_000_000;
/// Larger amounts are capped here; Kubernetes caps at 2⁶³−1 units.
const UNITS_MAX: i128 = i64::MAX as i128;
/// Digits beyond this cannot change a capped or rounded result.
const DIGITS_MAX: usize = 200;

impl Quantity {
    /// Reads a quantity.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        if text.is_empty() {
            return Err(QuantityError::Form);
        }
        let (negative, rest) = match text.as_bytes()[0] {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(number_end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') || number.len() > DIGITS_MAX {
            return Err(QuantityError::Form);
        }
        let (factor, notation) = suffix_factor(suffix)?;
        let magnitude = scale(whole, fraction, factor).min(UNITS_MAX * NANO);
        Ok(Self { nanos: if negative { -magnitude } else { magnitude }, notation })
    }

    /// The amount in nano-units.
    pub fn nanos(&self) -> i128 {
        self.nanos
    }

    /// The amount in whole units, rounded up.
    pub fn value(&self) -> i64 {
        self.rounded_up(NANO)
    }

    /// The amount in thousandths, rounded up.
    pub fn milli_value(&self) -> i64 {
        self.rounded_up(NANO / 1000)
    }

    fn rounded_up(&self, unit: i128) -> i64 {
        // Up means away from zero, for debts as for assets.
        let (magnitude, negative) = (self.nanos.unsigned_abs() as i128, self.nanos < 0);
        let units = i64::try_from((magnitude + unit - 1) / unit).unwrap_or(i64::MAX);
        if negative { -units } else { units }
    }

    /// The family it was written with.
    pub fn notation(&self) -> Notation {
        self.notation
    }
}

/// The multiplier of a suffix as `number × 2^binary × 10^decimal`.
#[derive(Clone, Copy)]
struct Factor {
    binary: u32,
    decimal: i32,
}

fn suffix_factor(suffix: &str) -> Result<(Factor, Notation), QuantityError> {
    let decimal = |power: i32| Ok((Factor { binary: 0, decimal: power }, Notation::Decimal));
    let binary = |power: u32| Ok((Factor { binary: power, decimal: 0 }, Notation::Binary));
    match suffix {
        "" => decimal(0),
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => {
            let power = suffix.strip_prefix(['e', 'E']).ok_or(QuantityError::Suffix)?;
            let power: i32 = power.parse().map_err(|_| QuantityError::Suffix)?;
            Ok((Factor { binary: 0, decimal: power.clamp(-1000, 1000) }, Notation::Exponent))
        }
    }
}

/// `whole.fraction × factor` in nano-units, rounded up, capped well above the limit.
fn scale(whole: &str, fraction: &str, factor: Factor) -> i128 {
    const CAP: i128 = UNITS_MAX * NANO * 4;
    let mut digits: i128 = 0;
    let mut exponent = factor.decimal + 9 - fraction.len() as i32;
    let mut rest = false;
    for (i, digit) in whole.bytes().chain(fraction.bytes()).enumerate() {
        let value = i128::from(digit - b'0');
        if digits > i128::MAX / 1000 {
            // Too many digits to hold: the rest only matters for rounding.
            exponent += (whole.len() + fraction.len() - i) as i32;
            rest |= whole.bytes().chain(fraction.bytes()).skip(i).any(|b| b != b'0');
            break;
        }
        digits = digits * 10 + value;
    }
    if digits == 0 {
        return i128::from(rest);
    }
    if exponent < 0 {
        // Multiply by the binary factor first, so that 0.5Ki is exact.
        let shifted =
            digits.checked_shl(factor.binary).filter(|s| s >> factor.binary == digits).unwrap_or(i128::MAX);
        let divisor = 10i128.checked_pow(exponent.unsigned_abs());
        return match divisor {
            Some(divisor) => (shifted / divisor).saturating_add(i128::from(shifted % divisor != 0 || rest)),
            None => 1,
        };
    }
    let grown =
        10i128.checked_pow(exponent as u32).and_then(|p| digits.checked_mul(p)).unwrap_or(CAP).min(CAP);
    grown.checked_mul(1i128 << factor.binary).unwrap_or(CAP).min(CAP)
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl fmt::Display for Quantity {
    /// The canonical form.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        // Binary suffixes are for whole amounts of at least a Ki; anything else is written in decimal.
        if self.notation == Notation::Binary && self.nanos % NANO == 0 && self.nanos.abs() >= 1024 * NANO {
            let mut amount = self.nanos / NANO;
            let mut power = 0;
            while amount % 1024 == 0 && power < 6 {
                amount /= 1024;
                power += 1;
            }
            return write!(f, "{amount}{}", ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][power]);
        }
        let mut amount = self.nanos;
        let mut power = 0;
        while amount % 1000 == 0 && power < 9 {
            amount /= 1000;
            power += 1;
        }
        if self.notation == Notation::Exponent {
            return match power as i32 * 3 - 9 {
                0 => write!(f, "{amount}"),
                exponent => write!(f, "{amount}e{exponent}"),
            };
        }
        write!(f, "{amount}{}", ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"][power])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn canonical(text: &str) -> String {
        Quantity::parse(text).unwrap().to_string()
    }

    #[test]
    fn quantities_are_written_in_canonical_form() {
        for (text, form) in [
            ("0", "0"),
            ("0m", "0"),
            ("1", "1"),
            ("1.5", "1500m"),
            ("0.1", "100m"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("1000", "1k"),
            ("1024", "1024"),
            ("2000000", "2M"),
            ("1Ki", "1Ki"),
            ("1024Ki", "1Mi"),
            ("1.5Gi", "1536Mi"),
            ("0.5Ki", "512"),
            ("100Mi", "100Mi"),
            ("1e3", "1e3"),
            ("12e6", "12e6"),
            ("1E2", "100"),
            ("1e-3", "1e-3"),
            ("-1", "-1"),
            ("+5k", "5k"),
            ("0.0000000001", "1n"),
            (".5", "500m"),
            ("5.", "5"),
            ("0.001Ki", "1024m"),
            ("1E", "1E"),
            ("100000000000000000000", "9223372036854775807"),
        ] {
            assert_eq!(canonical(text), form, "{text}");
        }
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for (text, error) in [
            ("", QuantityError::Form),
            ("a", QuantityError::Form),
            ("1.2.3", QuantityError::Form),
            ("-", QuantityError::Form),
            (".", QuantityError::Form),
            ("1x", QuantityError::Suffix),
            ("1kb", QuantityError::Suffix),
            ("1 Gi", QuantityError::Suffix),
            ("1e", QuantityError::Suffix),
            ("1K", QuantityError::Suffix),
        ] {
            assert_eq!(Quantity::parse(text).unwrap_err(), error, "{text}");
        }
    }

    #[test]
    fn quantities_are_compared_by_amount() {
        let q = |t: &str| Quantity::parse(t).unwrap();
        assert_eq!(q("1"), q("1000m"));
        assert_eq!(q("1Ki"), q("1024"));
        assert!(q("999m") < q("1") && q("-1") < q("0") && q("1Gi") > q("1G"));
        assert_eq!((q("1.2").value(), q("-1.2").value(), q("1500u").milli_value()), (2, -2, 2));
    }

    proptest! {
        #[test]
        fn the_canonical_form_is_stable_and_means_the_same(text in "-?[0-9]{1,9}(\\.[0-9]{0,6})?(m|u|n|k|M|G|Ki|Mi|Gi|e3|e-2|E)?") {
            let quantity = Quantity::parse(&text).unwrap();
            let form = quantity.to_string();
            let again = Quantity::parse(&form).unwrap();
            prop_assert_eq!(quantity, again, "{} became {}", &text, &form);
            prop_assert_eq!(again.to_string(), form);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[-+0-9.a-zA-Z ]{0,24}") {
            if let Ok(quantity) = Quantity::parse(&text) {
                let _ = (quantity.to_string(), quantity.value(), quantity.milli_value());
            }
        }
    }
}
