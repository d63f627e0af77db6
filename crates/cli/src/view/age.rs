//! Formats ages and parses durations: `42s`, `7m`, `3h20m`, `12d`.

use std::time::Duration;

use jiff::Timestamp;
use polis_apimachinery::time::{human_duration, seconds_between};

/// Times before 2001-09-09 count as absent: the default conditions of the schema have the year 1970.
const EPOCH: i64 = 1_000_000_000;

/// The time between `then` and `now`, in the form that `kubectl get` uses for AGE.
pub fn since(then: Timestamp, now: Timestamp) -> String {
    human_duration(seconds_between(then, now).max(0))
}

/// The time between `then` and `now`; a dash if `then` is absent.
pub fn since_or_dash(then: Option<Timestamp>, now: Timestamp) -> String {
    then.filter(|then| then.as_second() >= EPOCH).map_or_else(|| "-".to_owned(), |then| since(then, now))
}

/// Parses a duration: `90`, `90s`, `5m`, `1h30m`, `2d`. A number without a unit is seconds.
pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration; use a form such as 30s, 5m or 1h30m");
    if let Ok(seconds) = text.parse::<u64>() {
        return Ok(Duration::from_secs(seconds));
    }
    let (mut total, mut digits) = (0u64, String::new());
    for letter in text.chars() {
        if letter.is_ascii_digit() {
            digits.push(letter);
            continue;
        }
        let unit = match letter {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86400,
            _ => return Err(wrong()),
        };
        let count: u64 = digits.parse().map_err(|_| wrong())?;
        total = count.checked_mul(unit).and_then(|part| total.checked_add(part)).ok_or_else(wrong)?;
        digits.clear();
    }
    if digits.is_empty() && !text.is_empty() { Ok(Duration::from_secs(total)) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_future_time_is_zero_and_the_year_1970_is_a_dash() {
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(since(at(2_000_000_010), at(2_000_000_000)), "0s");
        assert_eq!(since_or_dash(Some(at(0)), at(2_000_000_000)), "-");
        assert_eq!(since_or_dash(None, at(2_000_000_000)), "-");
    }

    #[test]
    fn durations_are_parsed() {
        for (text, seconds) in [("90", 90), ("90s", 90), ("5m", 300), ("1h30m", 5400), ("2d", 172_800)] {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "m", "5x", "5m3", "-1s", "99999999999999999999d"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
