//! Kubernetes quantities: parsing, addition and formatting.
//!
//! A quantity is stored exactly, in nano units. A sum has the suffix family of the first operand that is not
//! zero, as in apimachinery: `100m` + `1` is `1100m`, and `1Gi` + `1Gi` is `2Gi`.
//!
//! ```
//! use polis_apimachinery::quantity::Quantity;
//!
//! let half = Quantity::parse("512Mi").unwrap();
//! assert_eq!(half.plus(half).unwrap().to_string(), "1Gi");
//! assert_eq!(Quantity::parse("1500m").unwrap().units(), 2);
//! ```

use std::fmt;

const NANO: i128 = 1_000_000_000;

/// The suffix family of a quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SuffixFamily {
    /// `m`, `k`, `M`, …
    Decimal,
    /// `Ki`, `Mi`, `Gi`, …
    Binary,
    /// `e3`
    Exponent,
}

/// An exact amount with its suffix family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quantity {
    nano: i128,
    format: SuffixFamily,
}

/// A string that is not a quantity.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("failed to parse quantity {0:?}: expected a number with an optional suffix such as m, k, Mi or e3")]
pub struct QuantityError(String);

const DECIMAL: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
const BINARY: [(&str, u32); 6] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];

impl Quantity {
    /// No amount.
    pub const ZERO: Quantity = Quantity { nano: 0, format: SuffixFamily::Decimal };

    /// Thousandths.
    pub fn from_milli(milli: i64) -> Self {
        Quantity { nano: i128::from(milli) * (NANO / 1000), format: SuffixFamily::Decimal }
    }

    /// Whole units, written in `format`.
    pub fn from_units(units: i64, format: SuffixFamily) -> Self {
        Quantity { nano: i128::from(units) * NANO, format }
    }

    /// Parses a number with an optional suffix.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        Self::read(text).ok_or_else(|| QuantityError(text.to_owned()))
    }

    fn read(text: &str) -> Option<Self> {
        let digits_end = text
            .char_indices()
            .find(|(at, c)| !(c.is_ascii_digit() || *c == '.' || (*at == 0 && matches!(c, '+' | '-'))))
            .map_or(text.len(), |(at, _)| at);
        let (number, suffix) = text.split_at(digits_end);
        if let Some((_, shift)) = BINARY.iter().find(|(name, _)| *name == suffix) {
            return Some(Quantity {
                nano: scaled(number, 1_i128 << shift, 0)?,
                format: SuffixFamily::Binary,
            });
        }
        if let Some((_, power)) = DECIMAL.iter().find(|(name, _)| *name == suffix) {
            return Some(Quantity { nano: scaled(number, 1, *power)?, format: SuffixFamily::Decimal });
        }
        let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
        Some(Quantity { nano: scaled(number, 1, exponent)?, format: SuffixFamily::Exponent })
    }

    /// The sum; `None` if it is too large.
    pub fn plus(self, other: Quantity) -> Option<Quantity> {
        let format = if self.nano == 0 { other.format } else { self.format };
        Some(Quantity { nano: self.nano.checked_add(other.nano)?, format })
    }

    /// The nearest float.
    pub fn as_f64(self) -> f64 {
        self.nano as f64 / NANO as f64
    }

    /// Whole units, rounded away from zero; the nearest `i64` if there are more.
    pub fn units(self) -> i64 {
        nearest(round_up(self.nano, NANO))
    }

    /// Thousandths, rounded away from zero; the nearest `i64` if there are more.
    pub fn milli(self) -> i64 {
        nearest(round_up(self.nano, NANO / 1000))
    }

    /// How many times `size` is needed to reach this amount, rounded away from zero; `None` if the number
    /// exceeds an `i64` or `size` is zero.
    pub fn multiples_of(self, size: Quantity) -> Option<i64> {
        (size.nano != 0).then(|| round_up(self.nano, size.nano)).and_then(|count| i64::try_from(count).ok())
    }
}

fn round_up(nano: i128, unit: i128) -> i128 {
    nano / unit + (nano % unit).signum() * unit.signum()
}

fn nearest(count: i128) -> i64 {
    count.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}

/// `number` × `factor` × 10^`power` in nano units, rounded away from zero below one nano.
fn scaled(number: &str, factor: i128, power: i32) -> Option<i128> {
    let (negative, digits) = match number.as_bytes().first()? {
        b'-' => (true, &number[1..]),
        b'+' => (false, &number[1..]),
        _ => (false, number),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let mantissa = format!("{whole}{fraction}");
    // An i128 holds at most 38 digits.
    if mantissa.len() > 38 {
        return None;
    }
    let mantissa: i128 = mantissa.parse().ok()?;
    let power = power.checked_add(9)?.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    let value = mantissa.checked_mul(factor)?;
    let value = if power >= 0 {
        value.checked_mul(10_i128.checked_pow(power.unsigned_abs())?)?
    } else {
        let divisor = 10_i128.checked_pow(power.unsigned_abs())?;
        value / divisor + i128::from(value % divisor != 0)
    };
    Some(if negative { -value } else { value })
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nano == 0 {
            return f.write_str("0");
        }
        match self.format {
            // Binary suffixes hold whole bytes only; a fraction is written with decimal ones.
            SuffixFamily::Binary if self.nano % NANO == 0 && (self.nano / NANO).abs() >= 1024 => {
                let units = self.nano / NANO;
                let (suffix, shift) = BINARY
                    .iter()
                    .rev()
                    .find(|(_, shift)| units % (1_i128 << shift) == 0)
                    .copied()
                    .unwrap_or(("", 0));
                write!(f, "{}{suffix}", units >> shift)
            }
            SuffixFamily::Exponent => {
                let (mantissa, power) = largest_thousand(self.nano);
                if power == 0 { write!(f, "{mantissa}") } else { write!(f, "{mantissa}e{power}") }
            }
            SuffixFamily::Binary | SuffixFamily::Decimal => {
                let (mantissa, power) = largest_thousand(self.nano);
                let suffix = DECIMAL.iter().find(|(_, p)| *p == power).map_or("", |(name, _)| name);
                write!(f, "{mantissa}{suffix}")
            }
        }
    }
}

/// The largest power of a thousand that leaves a whole mantissa, capped at 10^18.
fn largest_thousand(nano: i128) -> (i128, i32) {
    let (mut mantissa, mut power) = (nano, -9);
    while mantissa % 1000 == 0 && power < 18 {
        mantissa /= 1000;
        power += 3;
    }
    (mantissa, power)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(texts: &[&str]) -> String {
        texts
            .iter()
            .fold(Quantity::ZERO, |total, text| {
                total.plus(Quantity::parse(text).expect("quantity")).expect("no overflow")
            })
            .to_string()
    }

    #[test]
    fn sums_are_written_as_kubernetes_writes_them() {
        for (texts, expected) in [
            (&["100m", "1"][..], "1100m"),
            (&["1Gi", "1Gi"], "2Gi"),
            (&["512Mi", "512Mi"], "1Gi"),
            (&["1.5Gi"], "1536Mi"),
            (&["1000m"], "1"),
            (&["1e3"], "1e3"),
            (&["2k", "500"], "2500"),
            (&["0", "5Ki"], "5Ki"),
            (&[], "0"),
            (&["-1"], "-1"),
            (&["12E"], "12E"),
            (&["0.5"], "500m"),
            (&["1023Ki", "1Ki"], "1Mi"),
        ] {
            assert_eq!(sum(texts), expected, "{texts:?}");
        }
    }

    #[test]
    fn an_invalid_quantity_is_rejected() {
        for text in ["", "m", "1x", "1.2.3", "1 Gi", "--1", "1e", "e3"] {
            assert!(Quantity::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn fractions_of_a_unit_are_rounded_up() {
        let half = Quantity::parse("1500u").expect("quantity");
        assert_eq!((half.milli(), half.units()), (2, 1));
    }

    #[test]
    fn multiples_are_rounded_up_and_bounded() {
        let count = |text: &str, size: &str| {
            Quantity::parse(text).expect("quantity").multiples_of(Quantity::parse(size).expect("quantity"))
        };
        assert_eq!(count("1G", "1Mi"), Some(954));
        assert_eq!(count("-1", "1k"), Some(-1));
        assert_eq!(count("1", "0"), None);
        assert_eq!(count("10E", "1m"), None);
    }
}
