//! MicroTime: times with microseconds. Kubernetes accepts exactly one layout.

/// The layout as Go prints it.
const LAYOUT: &str = "2006-01-02T15:04:05.000000Z07:00";
/// The parts of the layout before the fraction and the zone: digits or a separator.
const PARTS: [&str; 11] = ["2006", "-", "01", "-", "02", "T", "15", ":", "04", ":", "05"];

/// The error of Go's decoder for a text that is not a MicroTime.
pub(super) fn micro_time_error(text: &str) -> Option<String> {
    let refuse = |rest: &str, part: &str| {
        Some(format!("parsing time {text:?} as \"{LAYOUT}\": cannot parse {rest:?} as {part:?}"))
    };
    let mut rest = text;
    for part in PARTS {
        let fits = rest.get(..part.len()).is_some_and(|head| match part.as_bytes()[0].is_ascii_digit() {
            true => head.bytes().all(|byte| byte.is_ascii_digit()),
            false => head == part,
        });
        if !fits {
            return refuse(rest, part);
        }
        rest = &rest[part.len()..];
    }
    let digits = rest.strip_prefix('.').map_or(0, |rest| rest.bytes().take_while(u8::is_ascii_digit).count());
    if digits != 6 {
        return refuse(rest, ".000000");
    }
    let zone = &rest[7..];
    let signed = |zone: &str| {
        let bytes = zone.as_bytes();
        bytes.len() == 6
            && matches!(bytes[0], b'+' | b'-')
            && bytes[3] == b':'
            && [1, 2, 4, 5].iter().all(|at| bytes[*at].is_ascii_digit())
    };
    if zone != "Z" && !signed(zone) {
        return refuse(zone, "Z07:00");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_fraction_digits_and_a_zone_are_required() {
        for good in ["2026-01-01T00:00:00.123456Z", "2026-01-01T00:00:00.123456+02:00"] {
            assert_eq!(micro_time_error(good), None);
        }
        for (bad, part) in [
            ("yesterday", "2006"),
            ("2026-01-01T00:00:00Z", ".000000"),
            ("2026-01-01T00:00:00.123Z", ".000000"),
            ("2026-01-01", "T"),
            ("2026-01-01T00:00:00.123456", "Z07:00"),
            ("äöüß", "2006"),
        ] {
            let message = micro_time_error(bad).expect(bad);
            assert!(message.ends_with(&format!("as {part:?}")), "{message}");
        }
    }
}
