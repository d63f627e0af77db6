//! Kubernetes quantities such as `500m` and `10Gi`, converted to whole units.

/// The unit to count in.
#[derive(Clone, Copy, Debug)]
pub enum Unit {
    /// Thousandths of one.
    Thousandth,
    /// 2²⁰.
    Mebi,
}

/// A Kubernetes quantity in whole units, rounded up; `None` if the text is not a quantity or exceeds an
/// `i64`.
pub fn in_units(quantity: &str, unit: Unit) -> Option<i64> {
    let digits_end = quantity
        .find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-')))
        .unwrap_or(quantity.len());
    let (number, suffix) = quantity.split_at(digits_end);
    let number = number.strip_prefix('+').unwrap_or(number);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    // At most 27 digits fit into 128 bits; the multiplications below are checked.
    if !(whole.bytes().chain(fraction.bytes())).all(|byte| byte.is_ascii_digit())
        || whole.len() > 18
        || fraction.len() > 9
    {
        return None;
    }
    let mantissa: i128 = format!("0{whole}{fraction}").parse().ok()?;
    let (numerator, mut denominator) = scale(suffix)?;
    denominator *= 10i128.checked_pow(fraction.len() as u32)?;
    let (numerator, denominator) = match unit {
        Unit::Thousandth => (numerator.checked_mul(1000)?, denominator),
        Unit::Mebi => (numerator, denominator.checked_mul(1 << 20)?),
    };
    let product = mantissa.checked_mul(numerator)?;
    i64::try_from(product / denominator + i128::from(product % denominator != 0)).ok()
}

/// The factor of a suffix, as numerator and denominator.
fn scale(suffix: &str) -> Option<(i128, i128)> {
    let decimal = |power: u32| Some((10i128.pow(power), 1));
    let binary = |power: u32| Some((1i128 << power, 1));
    match suffix {
        "" => Some((1, 1)),
        "n" => Some((1, 1_000_000_000)),
        "u" => Some((1, 1_000_000)),
        "m" => Some((1, 1_000)),
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
        exponent => {
            let power: i32 = exponent.strip_prefix(['e', 'E'])?.parse().ok()?;
            match power {
                0..=18 => decimal(power as u32),
                -9..0 => Some((1, 10i128.pow(power.unsigned_abs()))),
                _ => None,
            }
        }
    }
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
        for quantity in [
            "",
            "-1",
            "1 Gi",
            "Gi",
            "1x",
            "1.2.3",
            ".",
            "1e99",
            "1e",
            "9999999999999999999",
            "999999999999999Ei",
            "--1",
        ] {
            assert_eq!(in_units(quantity, Unit::Mebi), None, "{quantity}");
        }
    }
}
