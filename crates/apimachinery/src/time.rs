//! Times as the API writes them: `Time` in whole seconds, `MicroTime` with microseconds, and ages.
//!
//! ```
//! use polis_apimachinery::time;
//!
//! assert_eq!(time::timestamp("2026-01-01T00:00:00.5Z".parse().unwrap()), "2026-01-01T00:00:00Z");
//! assert_eq!(time::human_duration(3 * 3600 + 20 * 60), "3h20m");
//! assert!(time::micro_time_error("yesterday").is_some());
//! ```

use jiff::Timestamp;
use serde_json::Value;

/// The layout as Go prints it.
const LAYOUT: &str = "2006-01-02T15:04:05.000000Z07:00";
/// The parts of the layout before the fraction and the zone: digits or a separator.
const PARTS: [&str; 11] = ["2006", "-", "01", "-", "02", "T", "15", ":", "04", ":", "05"];

/// Formats a time as the API does: whole seconds, UTC.
pub fn timestamp(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Whole seconds from `then` to `now`, truncated towards zero.
pub fn seconds_between(then: Timestamp, now: Timestamp) -> i64 {
    ((now.as_nanosecond() - then.as_nanosecond()) / 1_000_000_000) as i64
}

/// The age of a timestamp: `5m`, `3d4h`; `<unknown>` if absent.
pub fn age(time: &Value, now: Timestamp) -> String {
    match time.as_str().filter(|t| !t.is_empty()).map(str::parse::<Timestamp>) {
        Some(Ok(then)) => human_duration(seconds_between(then, now)),
        Some(Err(_)) => "<invalid>".to_owned(),
        None => "<unknown>".to_owned(),
    }
}

/// Formats a duration in at most two units, as kubectl does. A clock skew of less than two seconds shows
/// `0s`.
pub fn human_duration(seconds: i64) -> String {
    let pair = |big: i64, unit: &str, small: i64, small_unit: &str| {
        if small == 0 { format!("{big}{unit}") } else { format!("{big}{unit}{small}{small_unit}") }
    };
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let days = hours / 24;
    match seconds {
        i64::MIN..=-2 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        _ if minutes < 10 => pair(minutes, "m", seconds % 60, "s"),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => pair(hours, "h", minutes % 60, "m"),
        _ if hours < 48 => format!("{hours}h"),
        _ if hours < 192 => pair(days, "d", hours % 24, "h"),
        _ if days < 730 => format!("{days}d"),
        _ if days < 2920 => pair(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

/// The error of Go's decoder for a text that is not a MicroTime.
pub fn micro_time_error(text: &str) -> Option<String> {
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
    fn durations_are_formatted_as_in_kubectl() {
        let (m, h, d) = (60, 3600, 86400);
        for (seconds, shown) in [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (2 * m, "2m"),
            (2 * m + 5, "2m5s"),
            (10 * m + 5, "10m"),
            (179 * m, "179m"),
            (3 * h, "3h"),
            (7 * h + 5 * m, "7h5m"),
            (8 * h + 5 * m, "8h"),
            (47 * h, "47h"),
            (2 * d, "2d"),
            (3 * d + 4 * h, "3d4h"),
            (8 * d + h, "8d"),
            (729 * d, "729d"),
            (730 * d, "2y"),
            (800 * d, "2y70d"),
            (3000 * d, "8y"),
        ] {
            assert_eq!(human_duration(seconds), shown);
        }
        assert_eq!(age(&Value::Null, Timestamp::UNIX_EPOCH), "<unknown>");
        assert_eq!(age(&"soon".into(), Timestamp::UNIX_EPOCH), "<invalid>");
    }

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
