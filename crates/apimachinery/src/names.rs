//! Validation of names, labels and annotation keys, with the messages of Kubernetes.
//!
//! Every function returns the messages of the violated rules; an empty list means valid. The functions scan
//! by hand instead of using regular expressions, because they run on every write.

const LABEL_PATTERN: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const LABEL_KEY_RULE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
const LABEL_VALUE_RULE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
const DNS_LABEL_PATTERN: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const DNS_LABEL_RULE: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character";
const DNS_SUBDOMAIN_RULE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character";
const DNS_1035_RULE: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character";
const CONFIG_KEY_RULE: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'";

/// Maximum length of a label value and of the name part of a label key.
pub const LABEL_MAX: usize = 63;
/// Maximum length of a DNS subdomain, and so of most object names.
pub const SUBDOMAIN_MAX: usize = 253;

fn too_long(max: usize) -> String {
    format!("must be no more than {max} characters")
}

/// Kubernetes counts labels in bytes and names in characters. Both are ASCII, so only the message differs.
fn label_too_long() -> String {
    format!("must be no more than {LABEL_MAX} bytes")
}

fn rule_message(rule: &str, pattern: &str, examples: &[&str]) -> String {
    let mut out = String::from(rule);
    out.push_str(" (");
    for (i, example) in examples.iter().enumerate() {
        out.push_str(if i == 0 { "e.g. '" } else { " or '" });
        out.push_str(example);
        out.push_str("', ");
    }
    out.push_str("regex used for validation is '");
    out.push_str(pattern);
    out.push_str("')");
    out
}

fn matches_label_pattern(s: &str) -> bool {
    let bytes = s.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else { return false };
    first.is_ascii_alphanumeric()
        && last.is_ascii_alphanumeric()
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

fn matches_dns_label_pattern(s: &str) -> bool {
    let plain = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = s.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else { return false };
    plain(first) && plain(last) && bytes.iter().all(|b| plain(b) || *b == b'-')
}

/// Validates a qualified name (`name` or `prefix/name`): label keys, annotation keys, finalizers.
pub fn label_key(key: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let mut parts = key.split('/');
    let name = match (parts.next(), parts.next(), parts.next()) {
        (Some(name), None, _) => name,
        (Some(prefix), Some(name), None) => {
            if prefix.is_empty() {
                errors.push("prefix part must be non-empty".to_owned());
            } else {
                errors.extend(dns_subdomain(prefix).into_iter().map(|w| format!("prefix part {w}")));
            }
            name
        }
        _ => {
            errors.push(format!(
                "a valid label key {} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
                rule_message(LABEL_KEY_RULE, LABEL_PATTERN, &["MyName", "my.name", "123-abc"])
            ));
            return errors;
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if name.len() > LABEL_MAX {
        errors.push(format!("name part {}", label_too_long()));
    }
    if !matches_label_pattern(name) {
        errors.push(format!(
            "name part {}",
            rule_message(LABEL_KEY_RULE, LABEL_PATTERN, &["MyName", "my.name", "123-abc"])
        ));
    }
    errors
}

/// Validates a label value.
pub fn label_value(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > LABEL_MAX {
        errors.push(label_too_long());
    }
    if !value.is_empty() && !matches_label_pattern(value) {
        errors.push(rule_message(
            LABEL_VALUE_RULE,
            &format!("({LABEL_PATTERN})?"),
            &["MyValue", "my_value", "12345"],
        ));
    }
    errors
}

/// Validates an RFC 1123 label: namespaces.
pub fn dns_label(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > LABEL_MAX {
        errors.push(too_long(LABEL_MAX));
    }
    if !matches_dns_label_pattern(value) {
        if dns_subdomain(value).is_empty() {
            // Kubernetes has a shorter message for a subdomain, the most frequent mistake.
            errors.push("must not contain dots".to_owned());
        } else {
            errors.push(rule_message(DNS_LABEL_RULE, DNS_LABEL_PATTERN, &["my-name", "123-abc"]));
        }
    }
    errors
}

/// Validates an RFC 1123 subdomain: most object names.
pub fn dns_subdomain(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > SUBDOMAIN_MAX {
        errors.push(too_long(SUBDOMAIN_MAX));
    }
    if !value.split('.').all(matches_dns_label_pattern) {
        errors.push(rule_message(
            DNS_SUBDOMAIN_RULE,
            &format!("{DNS_LABEL_PATTERN}(\\.{DNS_LABEL_PATTERN})*"),
            &["example.com"],
        ));
    }
    errors
}

/// Validates an RFC 1035 label: kinds (in lower case), short names, categories.
pub fn dns_1035_label(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > LABEL_MAX {
        errors.push(too_long(LABEL_MAX));
    }
    if !matches_dns_label_pattern(value) || !value.as_bytes()[0].is_ascii_lowercase() {
        errors.push(rule_message(DNS_1035_RULE, "[a-z]([-a-z0-9]*[a-z0-9])?", &["my-name", "abc-123"]));
    }
    errors
}

/// Validates a key of a ConfigMap or Secret.
pub fn config_key(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > SUBDOMAIN_MAX {
        errors.push(too_long(SUBDOMAIN_MAX));
    }
    let valid_characters = !value.is_empty()
        && value.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    if !valid_characters {
        errors.push(rule_message(CONFIG_KEY_RULE, "[-._a-zA-Z0-9]+", &["key.name", "KEY_NAME", "key-name"]));
    } else if value == "." {
        errors.push("must not be '.'".to_owned());
    } else if value == ".." {
        errors.push("must not be '..'".to_owned());
    } else if value.starts_with("..") {
        errors.push("must not start with '..'".to_owned());
    }
    errors
}

/// Validates a URL path segment: names of RBAC objects.
pub fn path_segment(value: &str) -> Vec<String> {
    match value {
        "." | ".." => vec![format!("may not be '{value}'")],
        _ => ["/", "%"]
            .iter()
            .filter(|c| value.contains(**c))
            .map(|c| format!("may not contain '{c}'"))
            .collect(),
    }
}

/// Validates `generateName` with `check`. A trailing dash is allowed, because a suffix follows it.
///
/// Kubernetes replaces the dash *and* the character before it with `a` before the check; so does this
/// function.
pub fn generated(prefix: &str, check: fn(&str) -> Vec<String>) -> Vec<String> {
    match prefix.strip_suffix('-').and_then(|stem| stem.get(..stem.len().checked_sub(1)?)) {
        Some(stem) => check(&format!("{stem}a")),
        None => check(prefix),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_keys_are_validated_by_prefix_and_name() {
        for key in ["a", "a/b", "example.com/My_name.x", "1"] {
            assert!(label_key(key).is_empty(), "{key}");
        }
        assert_eq!(
            label_key("a/"),
            [
                "name part must be non-empty",
                "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
            ]
        );
        assert_eq!(label_key("/a"), ["prefix part must be non-empty"]);
        assert_eq!(label_key("a/b/c").len(), 1);
        assert_eq!(label_key(&"a".repeat(64)), ["name part must be no more than 63 bytes"]);
    }

    #[test]
    fn names_are_validated() {
        assert!(dns_label("a-1").is_empty());
        assert_eq!(dns_label("a.b"), ["must not contain dots"]);
        assert!(dns_label("A")[0].starts_with("a lowercase RFC 1123 label must consist of"));
        assert!(dns_subdomain("a.b-c.1").is_empty());
        for bad in ["", ".", "a..b", "-a", "a-", "A"] {
            assert_eq!(dns_subdomain(bad).len(), 1, "{bad}");
        }
        assert!(dns_1035_label("1a")[0].starts_with("a DNS-1035 label"));
        assert_eq!(dns_1035_label("").len(), 1);
        assert_eq!(config_key(".."), ["must not be '..'"]);
        assert_eq!(path_segment("a/b%"), ["may not contain '/'", "may not contain '%'"]);
        assert!(generated("my-", dns_label).is_empty());
        assert_eq!(generated("-", dns_label).len(), 1);
    }
}
