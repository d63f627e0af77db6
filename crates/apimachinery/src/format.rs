//! String formats that kube-apiserver enforces in custom resources.
//!
//! The list is closed. Numeric formats (`int32`, `int64`, `float`, `double`) and unknown names are
//! documentation only and are never checked. Names are compared without dashes, so `date-time` equals
//! `datetime`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use regex::Regex;

macro_rules! pattern {
    ($text:expr) => {{
        static PATTERN: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new($text).ok());
        &*PATTERN
    }};
}

fn fits(pattern: &Option<Regex>, text: &str) -> bool {
    pattern.as_ref().is_some_and(|p| p.is_match(text))
}

/// A string format that kube-apiserver enforces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StringFormat {
    /// 24 hex digits.
    BsonObjectId,
    /// An absolute URI or an absolute path.
    Uri,
    /// A mail address, with or without a display name.
    Email,
    /// A DNS host name; symbols and letters of all scripts are accepted.
    Hostname,
    /// An IPv4 address; leading zeros are accepted.
    Ipv4,
    /// An IPv6 address.
    Ipv6,
    /// An address and a prefix length.
    Cidr,
    /// A MAC address of 6, 8 or 20 bytes.
    Mac,
    /// Any UUID, dashes optional.
    Uuid,
    /// A UUID of version 3.
    Uuid3,
    /// A UUID of version 4.
    Uuid4,
    /// A UUID of version 5.
    Uuid5,
    /// An ISBN of either length.
    Isbn,
    /// An ISBN of ten digits.
    Isbn10,
    /// An ISBN of thirteen digits.
    Isbn13,
    /// A card number with a valid check digit.
    CreditCard,
    /// A U.S. social security number.
    Ssn,
    /// `#ffffff` or `#fff`.
    HexColor,
    /// `rgb(0,0,0)`.
    RgbColor,
    /// Base64 with padding; the empty string is invalid.
    Byte,
    /// Any string; a hint for user interfaces.
    Password,
    /// `2006-01-02`.
    Date,
    /// `5m`, `1h30m`, `22 ns`, `3 days`.
    Duration,
    /// RFC 3339.
    DateTime,
    /// A DNS label in lower case.
    ShortName,
    /// DNS labels in lower case with dots.
    LongName,
}

impl StringFormat {
    /// The format of this name, if it is enforced.
    pub fn named(name: &str) -> Option<Self> {
        let plain: String = name.chars().filter(|c| *c != '-').collect();
        Some(match plain.as_str() {
            "bsonobjectid" => Self::BsonObjectId,
            "uri" => Self::Uri,
            "email" => Self::Email,
            "hostname" => Self::Hostname,
            "ipv4" => Self::Ipv4,
            "ipv6" => Self::Ipv6,
            "cidr" => Self::Cidr,
            "mac" => Self::Mac,
            "uuid" => Self::Uuid,
            "uuid3" => Self::Uuid3,
            "uuid4" => Self::Uuid4,
            "uuid5" => Self::Uuid5,
            "isbn" => Self::Isbn,
            "isbn10" => Self::Isbn10,
            "isbn13" => Self::Isbn13,
            "creditcard" => Self::CreditCard,
            "ssn" => Self::Ssn,
            "hexcolor" => Self::HexColor,
            "rgbcolor" => Self::RgbColor,
            "byte" => Self::Byte,
            "password" => Self::Password,
            "date" => Self::Date,
            "duration" => Self::Duration,
            "datetime" => Self::DateTime,
            "k8sshortname" => Self::ShortName,
            "k8slongname" => Self::LongName,
            _ => return None,
        })
    }

    /// Whether the text is valid in this format.
    pub fn accepts(self, text: &str) -> bool {
        match self {
            Self::BsonObjectId => text.len() == 24 && text.bytes().all(|b| b.is_ascii_hexdigit()),
            Self::Uri => is_request_uri(text),
            Self::Email => is_email(text),
            Self::Hostname => is_hostname(text),
            Self::Ipv4 => text.contains('.') && parse_ip(text).is_some(),
            Self::Ipv6 => text.contains(':') && text.parse::<Ipv6Addr>().is_ok(),
            Self::Cidr => is_cidr(text),
            Self::Mac => is_mac(text),
            Self::Uuid => {
                fits(pattern!("(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$"), text)
            }
            Self::Uuid3 => fits(
                pattern!("(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?3[0-9a-f]{3}-?[0-9a-f]{4}-?[0-9a-f]{12}$"),
                text,
            ),
            Self::Uuid4 => fits(
                pattern!("(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$"),
                text,
            ),
            Self::Uuid5 => fits(
                pattern!("(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?5[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$"),
                text,
            ),
            Self::Isbn => is_isbn10(text) || is_isbn13(text),
            Self::Isbn10 => is_isbn10(text),
            Self::Isbn13 => is_isbn13(text),
            Self::CreditCard => is_credit_card(text),
            Self::Ssn => fits(pattern!(r"^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$"), text),
            Self::HexColor => fits(pattern!("^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$"), text),
            Self::RgbColor => is_rgb_color(text),
            Self::Byte => is_base64(text),
            Self::Password => true,
            Self::Date => is_date(text),
            Self::Duration => is_duration(text),
            Self::DateTime => is_date_time(text),
            Self::ShortName => text.len() <= 63 && fits(pattern!("^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"), text),
            Self::LongName => {
                text.len() <= 253
                    && fits(
                        pattern!("^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"),
                        text,
                    )
            }
        }
    }
}

/// Parses an IP address. Unlike Rust's parser, Go's older parser accepts leading zeros in decimal parts.
fn parse_ip(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        return text.parse().ok().map(IpAddr::V6);
    }
    let mut bytes = [0u8; 4];
    let mut parts = text.split('.');
    for byte in &mut bytes {
        let part = parts.next()?;
        if part.is_empty() || part.len() > 64 || !part.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let digits = part.trim_start_matches('0');
        *byte = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    }
    parts.next().is_none().then(|| IpAddr::V4(Ipv4Addr::from(bytes)))
}

fn is_cidr(text: &str) -> bool {
    let Some((address, length)) = text.split_once('/') else { return false };
    let bits = match parse_ip(address) {
        Some(IpAddr::V4(_)) => 32,
        Some(IpAddr::V6(_)) => 128,
        None => return false,
    };
    !length.is_empty()
        && length.bytes().all(|b| b.is_ascii_digit())
        && length.parse::<u32>().is_ok_and(|n| n <= bits)
}

fn is_mac(text: &str) -> bool {
    let hex = |s: &str, n: usize| s.len() == n && s.bytes().all(|b| b.is_ascii_hexdigit());
    let separator = match text.as_bytes().get(2) {
        Some(b':') => ':',
        Some(b'-') => '-',
        _ => {
            let groups: Vec<&str> = text.split('.').collect();
            return matches!(groups.len(), 3 | 4 | 10) && groups.iter().all(|g| hex(g, 4));
        }
    };
    let groups: Vec<&str> = text.split(separator).collect();
    matches!(groups.len(), 6 | 8 | 20) && groups.iter().all(|g| hex(g, 2))
}

fn is_hostname(text: &str) -> bool {
    let form = pattern!(
        r"^([a-zA-Z0-9\p{S}\p{L}]((-?[a-zA-Z0-9\p{S}\p{L}]{0,62})?)|([a-zA-Z0-9\p{S}\p{L}](([a-zA-Z0-9\-\p{S}\p{L}]{0,61}[a-zA-Z0-9\p{S}\p{L}])?)(\.)){1,}([a-zA-Z\p{L}]){2,63})$"
    );
    text.len() <= 255 && text.split('.').all(|label| label.len() <= 63) && fits(form, text)
}

/// Implements Go's `url.ParseRequestURI`: an absolute URI or an absolute path, without control characters.
fn is_request_uri(text: &str) -> bool {
    if text.is_empty() || text.bytes().any(|b| b < 0x20 || b == 0x7f) {
        return false;
    }
    if text == "*" {
        return true;
    }
    let escapes_fine = |s: &str| {
        let bytes = s.as_bytes();
        let pair = |i: usize| bytes.get(i + 1..i + 3).is_some_and(|p| p.iter().all(u8::is_ascii_hexdigit));
        (0..bytes.len()).all(|i| bytes[i] != b'%' || pair(i))
    };
    let scheme_end = text.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.')));
    let rest = match scheme_end {
        Some(0) if text.starts_with(':') => return false,
        Some(end) if text[end..].starts_with(':') => {
            if !text.as_bytes()[0].is_ascii_alphabetic() {
                return false;
            }
            let rest = &text[end + 1..];
            if !rest.starts_with('/') {
                return true; // opaque, e.g. mailto:
            }
            rest
        }
        _ if text.starts_with('/') => text,
        _ => return false,
    };
    let before_query = rest.split('?').next().unwrap_or_default();
    let (authority, path) = match before_query.strip_prefix("//") {
        Some(after) if scheme_end.is_some_and(|e| e > 0) => {
            after.split_at(after.find('/').unwrap_or(after.len()))
        }
        _ => ("", before_query),
    };
    let host = authority.rsplit('@').next().unwrap_or_default();
    let port_fine =
        match host.rfind(']').map_or_else(|| host.rfind(':'), |b| host[b..].find(':').map(|i| b + i)) {
            Some(colon) => host[colon + 1..].bytes().all(|b| b.is_ascii_digit()),
            None => true,
        };
    let host_fine =
        !host.bytes().any(|b| matches!(b, b' ' | b'"' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}' | b'%'));
    port_fine && host_fine && escapes_fine(path)
}

fn is_email(text: &str) -> bool {
    let address = match text.trim().strip_suffix('>') {
        Some(head) => match head.rsplit_once('<') {
            Some((_, address)) => address,
            None => return false,
        },
        None => text.trim(),
    };
    let Some((local, domain)) = address.rsplit_once('@') else { return false };
    let atom = |s: &str| {
        !s.is_empty()
            && s.chars().all(|c| {
                c.is_ascii_alphanumeric()
                    || "!#$%&'*+-/=?^_`{|}~".contains(c)
                    || (!c.is_ascii() && !c.is_control())
            })
    };
    let dotted = |s: &str| s.split('.').all(atom);
    let quoted = local.len() >= 2 && local.starts_with('"') && local.ends_with('"');
    let literal = domain
        .strip_prefix('[')
        .and_then(|d| d.strip_suffix(']'))
        .is_some_and(|d| d.parse::<IpAddr>().is_ok());
    (quoted || dotted(local)) && (literal || dotted(domain))
}

fn is_isbn10(text: &str) -> bool {
    let digits: Vec<char> = text.chars().filter(|c| !c.is_whitespace() && *c != '-').collect();
    if digits.len() != 10
        || !digits[..9].iter().all(char::is_ascii_digit)
        || !(digits[9].is_ascii_digit() || digits[9] == 'X')
    {
        return false;
    }
    let weight = |(i, c): (usize, &char)| (i as u32 + 1) * c.to_digit(10).unwrap_or(10);
    digits.iter().enumerate().map(weight).sum::<u32>() % 11 == 0
}

fn is_isbn13(text: &str) -> bool {
    let digits: Vec<u32> =
        text.chars().filter(|c| !c.is_whitespace() && *c != '-').map_while(|c| c.to_digit(10)).collect();
    let length = text.chars().filter(|c| !c.is_whitespace() && *c != '-').count();
    if digits.len() != 13 || length != 13 {
        return false;
    }
    let sum: u32 = digits[..12].iter().enumerate().map(|(i, d)| d * if i % 2 == 0 { 1 } else { 3 }).sum();
    (10 - sum % 10) % 10 == digits[12]
}

fn is_credit_card(text: &str) -> bool {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    let form = pattern!(
        "^(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}|3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35[0-9]{3})[0-9]{11})$"
    );
    if !fits(form, &digits) {
        return false;
    }
    let luhn: u32 = digits
        .bytes()
        .rev()
        .enumerate()
        .map(|(i, b)| match (u32::from(b - b'0'), i % 2) {
            (d, 0) => d,
            (d, _) if d > 4 => d * 2 - 9,
            (d, _) => d * 2,
        })
        .sum();
    luhn.is_multiple_of(10)
}

fn is_rgb_color(text: &str) -> bool {
    static FORM: LazyLock<Option<Regex>> = LazyLock::new(|| {
        let part = "[\\t\\n\\x0C\\r ]*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])[\\t\\n\\x0C\\r ]*";
        Regex::new(&format!("^rgb\\({part},{part},{part}\\)$")).ok()
    });
    fits(&FORM, text)
}

fn is_base64(text: &str) -> bool {
    let body = text.trim_end_matches('=');
    let padding = text.len() - body.len();
    !text.is_empty()
        && text.len().is_multiple_of(4)
        && padding <= 2
        && body.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/'))
}

fn is_date(text: &str) -> bool {
    let bytes = text.as_bytes();
    let digits = |r: std::ops::Range<usize>| {
        bytes
            .get(r)
            .filter(|p| p.iter().all(u8::is_ascii_digit))
            .map(|p| p.iter().fold(0u32, |n, b| n * 10 + u32::from(b - b'0')))
    };
    let (Some(year), Some(month), Some(day)) = (digits(0..4), digits(5..7), digits(8..10)) else {
        return false;
    };
    if bytes.len() != 10 || bytes[4] != b'-' || bytes[7] != b'-' {
        return false;
    }
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        _ => return false,
    };
    (1..=days).contains(&day)
}

fn is_date_time(text: &str) -> bool {
    let lower = text.to_lowercase();
    let mut parts = lower.split('t');
    let (Some(date), Some(time)) = (parts.next(), parts.next()) else { return false };
    let form = pattern!("^([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))$");
    is_date(date) && fits(form, time) && &time[0..2] <= "23" && &time[3..5] <= "59" && &time[6..8] <= "59"
}

fn is_duration(text: &str) -> bool {
    if is_go_duration(text) {
        return true;
    }
    let form = pattern!("([0-9]+)[\\t\\n\\x0C\\r ]*([A-Za-zµ]+)");
    let Some(form) = form else { return false };
    let mut found = false;
    for capture in form.captures_iter(text) {
        if capture[1].parse::<i64>().is_err() {
            return false;
        }
        let unit = capture[2].to_lowercase();
        let exact = ["ns", "us", "µs", "ms", "s", "m", "h", "hr", "d", "w", "wk"].contains(&unit.as_str());
        let prefixed = ["nano", "micro", "milli", "sec", "min", "hour", "day", "week"]
            .iter()
            .any(|p| unit.starts_with(p));
        found |= exact || prefixed;
    }
    found
}

/// Whether Go's `time.ParseDuration` accepts the text: `1h30m`, `-1.5s`, `0`.
pub(crate) fn is_go_duration(text: &str) -> bool {
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return true;
    }
    if rest.is_empty() {
        return false;
    }
    while !rest.is_empty() {
        let whole = rest.bytes().take_while(u8::is_ascii_digit).count();
        rest = &rest[whole..];
        let mut fraction = 0;
        if let Some(after) = rest.strip_prefix('.') {
            fraction = after.bytes().take_while(u8::is_ascii_digit).count();
            rest = &after[fraction..];
        }
        if whole + fraction == 0 {
            return false;
        }
        let unit = rest.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(rest.len());
        if !["ns", "us", "µs", "μs", "ms", "s", "m", "h"].contains(&&rest[..unit]) {
            return false;
        }
        rest = &rest[unit..];
    }
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [&str; 26] = [
        "bsonobjectid",
        "uri",
        "email",
        "hostname",
        "ipv4",
        "ipv6",
        "cidr",
        "mac",
        "uuid",
        "uuid3",
        "uuid4",
        "uuid5",
        "isbn",
        "isbn10",
        "isbn13",
        "creditcard",
        "ssn",
        "hexcolor",
        "rgbcolor",
        "byte",
        "password",
        "date",
        "duration",
        "date-time",
        "k8s-short-name",
        "k8s-long-name",
    ];

    #[test]
    fn formats_accept_and_reject_as_in_kubernetes() {
        let cases: &[(&str, &[&str], &[&str])] = &[
            (
                "uri",
                &["http://a.b/c?d", "/a/b", "mailto:x", "https://user@h:80"],
                &["", "a b", "a/b", "http://h:x/", "http://a b/", "/%zz"],
            ),
            ("email", &["a@b.c", "Jo <a@b>"], &["a", "@b", "a@", "a b@c"]),
            ("hostname", &["a", "example.com", "a-b.example.com"], &["", "-a", "a_b.example.com", "1.2.3.4"]),
            ("ipv4", &["1.2.3.4", "01.2.3.4"], &["1.2.3", "::1", "256.1.1.1", "a"]),
            ("ipv6", &["::1", "fe80::1"], &["1.2.3.4", "::g"]),
            ("cidr", &["10.0.0.0/8", "fd00::/64"], &["10.0.0.0", "10.0.0.0/33", "x/8"]),
            (
                "mac",
                &["01:02:03:04:ab:cd", "01-02-03-04-AB-CD", "0102.0304.abcd"],
                &["01:02", "g1:02:03:04:05:06"],
            ),
            (
                "uuid",
                &["6ba7b810-9dad-11d1-80b4-00c04fd430c8", "6BA7B8109DAD11D180B400C04FD430C8"],
                &["6ba7b810"],
            ),
            ("isbn", &["0321751043", "978-0321751041"], &["0321751044", "x"]),
            ("creditcard", &["4111-1111-1111-1111"], &["4111-1111-1111-1112"]),
            ("hexcolor", &["#fff", "abcdef"], &["#ff"]),
            ("rgbcolor", &["rgb(1,2,3)", "rgb(0, 255, 9)"], &["rgb(1,2)", "rgb(1,2,256)"]),
            ("byte", &["YQ==", "YWJj"], &["", "YQ", "Y==="]),
            ("date", &["2024-02-29"], &["2023-02-29", "2023-1-1", "2023-13-01"]),
            (
                "date-time",
                &["2024-01-02T03:04:05Z", "2024-01-02t03:04:05.123+01:00"],
                &["2024-01-02", "2024-01-02T24:04:05Z", "2024-01-02T03:04:05"],
            ),
            (
                "duration",
                &["5m", "1h30m", "1.5h", "22 ns", "3 days", "0", "2w"],
                &["", "5", "m", "5 parsecs"],
            ),
            ("k8s-short-name", &["a-b"], &["A", "a.b", "-a"]),
            ("k8s-long-name", &["a.b-c"], &["a..b", "A"]),
        ];
        for (name, good, bad) in cases {
            let format = StringFormat::named(name).unwrap();
            for text in *good {
                assert!(format.accepts(text), "{name} should accept {text:?}");
            }
            for text in *bad {
                assert!(!format.accepts(text), "{name} should refuse {text:?}");
            }
        }
    }

    #[test]
    fn numeric_and_unknown_formats_are_not_enforced() {
        for name in ["int32", "int64", "float", "double", "made-up", ""] {
            assert_eq!(StringFormat::named(name), None);
        }
    }

    proptest! {
        #[test]
        fn no_format_panics_on_any_text(text in "\\PC{0,40}") {
            for name in ALL {
                let _ = StringFormat::named(name).unwrap().accepts(&text);
            }
        }
    }
}
