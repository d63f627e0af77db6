//! Translates regular expressions from Go's RE2 dialect to Rust's `regex`.
//!
//! `pattern` in a CRD is written for Go. The dialects differ: `\d`, `\w`, `\s` and `\b` are Unicode-aware in
//! Rust and ASCII in Go; `&&`, `--`, `~~` and nested brackets are set operations in Rust's classes and plain
//! characters in Go's; `\<` is a word boundary in Rust and a `<` in Go; `\Q…\E` and lone braces exist only in
//! Go. A pattern that Go rejects is rejected here too.

use regex::{Regex, RegexBuilder};

/// Maximum compiled size in bytes. A larger pattern is rejected when the CRD is written.
const SIZE_MAX: usize = 4 << 20;

/// Compiles the pattern of a schema. The error is one line.
pub(crate) fn compile(pattern: &str) -> Result<Regex, String> {
    build(pattern, SIZE_MAX)
}

/// Compiles a pattern of a CEL expression: tenants may compute many of them, and a search may need as much
/// memory again.
pub(crate) fn compile_bounded(pattern: &str) -> Result<Regex, String> {
    const SIZE_MAX: usize = 1 << 20;
    build(pattern, SIZE_MAX)
}

fn build(pattern: &str, size: usize) -> Result<Regex, String> {
    let translated = translate(pattern)?;
    let mut builder = RegexBuilder::new(&translated);
    builder.size_limit(size).dfa_size_limit(size).nest_limit(100).build().map_err(|e| match e {
        regex::Error::CompiledTooBig(_) => "expression nests or repeats too much".to_owned(),
        other => {
            let text = other.to_string();
            match text.lines().last().unwrap_or_default().trim_start_matches("error: ") {
                "unclosed group" => format!("missing closing ): `{pattern}`"),
                "unopened group" => format!("unexpected ): `{pattern}`"),
                why => why.to_owned(),
            }
        }
    })
}

fn translate(pattern: &str) -> Result<String, String> {
    let chars: Vec<char> = pattern.chars().collect();
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut i = 0;
    let mut repeated = false;
    while i < chars.len() {
        let repeats =
            matches!(chars[i], '*' | '+' | '?') || (chars[i] == '{' && repetition(&chars[i..]).is_some());
        if repeats && repeated {
            return Err("invalid nested repetition operator".to_owned());
        }
        match chars[i] {
            // A question mark after a repetition makes it lazy.
            '*' | '+' | '?' => {
                out.push(chars[i]);
                i += 1;
                if chars.get(i) == Some(&'?') {
                    out.push('?');
                    i += 1;
                }
            }
            '\\' => i = escape(&chars, i, false, &mut out)?,
            '[' => i = class(&chars, i, &mut out)?,
            '{' => match repetition(&chars[i..]) {
                Some(length) => {
                    out.extend(&chars[i..i + length]);
                    i += length;
                    if chars.get(i) == Some(&'?') {
                        out.push('?');
                        i += 1;
                    }
                }
                None => {
                    out.push_str("\\{");
                    i += 1;
                }
            },
            '}' => {
                out.push_str("\\}");
                i += 1;
            }
            // Go has only the flags i, m, s and U; extended mode exists only in Rust.
            '(' if chars.get(i + 1) == Some(&'?') => {
                if let Some(look) = ["=", "!", "<=", "<!"]
                    .into_iter()
                    .find(|l| chars[i + 2..].starts_with(&l.chars().collect::<Vec<_>>()))
                {
                    return Err(format!("invalid or unsupported Perl syntax: `(?{}`", &look[..1]));
                }
                let flags: String =
                    chars[i + 2..].iter().take_while(|c| c.is_ascii_alphabetic() || **c == '-').collect();
                let ends = chars.get(i + 2 + flags.chars().count());
                if matches!(ends, Some(')' | ':')) && flags.chars().any(|c| !"imsU-".contains(c)) {
                    return Err(format!("invalid or unsupported Perl syntax: `(?{flags}`"));
                }
                // The question mark belongs to the group and is not a repetition.
                out.push_str("(?");
                i += 2;
            }
            c => {
                out.push(c);
                i += 1;
            }
        }
        repeated = repeats;
    }
    Ok(out)
}

/// The length of `{n}`, `{n,}` or `{n,m}` at the start. Any other brace is a plain character in Go.
fn repetition(chars: &[char]) -> Option<usize> {
    let close = chars.iter().take(12).position(|c| *c == '}')?;
    let body: String = chars[1..close].iter().collect();
    let number = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    let formed = match body.split_once(',') {
        Some((low, high)) => number(low) && (high.is_empty() || number(high)),
        None => number(&body),
    };
    formed.then_some(close + 1)
}

fn escape(chars: &[char], at: usize, in_class: bool, out: &mut String) -> Result<usize, String> {
    let Some(c) = chars.get(at + 1) else {
        return Err("trailing backslash at end of expression: ``".to_owned());
    };
    let (open, close) = if in_class { ("", "") } else { ("[", "]") };
    match c {
        'd' => out.push_str(&format!("{open}0-9{close}")),
        'w' => out.push_str(&format!("{open}0-9A-Za-z_{close}")),
        's' => out.push_str(&format!("{open}\\t\\n\\x0C\\r {close}")),
        'D' => out.push_str("[^0-9]"),
        'W' => out.push_str("[^0-9A-Za-z_]"),
        'S' => out.push_str("[^\\t\\n\\x0C\\r ]"),
        'b' | 'B' if !in_class => out.push_str(&format!("(?-u:\\{c})")),
        'Q' if !in_class => {
            let mut i = at + 2;
            while i < chars.len() && !(chars[i] == '\\' && chars.get(i + 1) == Some(&'E')) {
                out.push_str(&regex::escape(&chars[i].to_string()));
                i += 1;
            }
            return Ok((i + 2).min(chars.len()).max(i));
        }
        'E' if !in_class => {}
        // Octal: up to three digits in Go, none in Rust.
        '0'..='7' if *c == '0' || chars.get(at + 2).is_some_and(|d| ('0'..='7').contains(d)) => {
            let digits: String =
                chars[at + 1..].iter().take(3).take_while(|d| ('0'..='7').contains(*d)).collect();
            let value = u32::from_str_radix(&digits, 8).unwrap_or_default();
            out.push_str(&format!("\\x{{{value:x}}}"));
            return Ok(at + 1 + digits.len());
        }
        c if c.is_ascii_punctuation() => {
            out.push('\\');
            if matches!(c, '<' | '>') {
                out.pop();
            }
            out.push(*c);
        }
        'x' | 'p' | 'P' if chars.get(at + 2) == Some(&'{') => {
            let Some(end) = chars[at..].iter().position(|c| *c == '}') else {
                return Err("missing closing }".to_owned());
            };
            out.extend(&chars[at..=at + end]);
            return Ok(at + end + 1);
        }
        'a' | 'f' | 't' | 'n' | 'r' | 'v' | 'x' | 'p' | 'P' | 'A' | 'z' => {
            out.push('\\');
            out.push(*c);
        }
        c => return Err(format!("invalid escape sequence: `\\{c}`")),
    }
    Ok(at + 2)
}

fn class(chars: &[char], at: usize, out: &mut String) -> Result<usize, String> {
    let mut i = at + 1;
    out.push('[');
    if chars.get(i) == Some(&'^') {
        out.push('^');
        i += 1;
    }
    let mut first = true;
    while i < chars.len() {
        match chars[i] {
            ']' if !first => {
                out.push(']');
                return Ok(i + 1);
            }
            ']' => out.push_str("\\]"),
            '\\' => {
                i = escape(chars, i, true, out)?;
                first = false;
                continue;
            }
            '[' if chars.get(i + 1) == Some(&':') => {
                let end = chars[i..].windows(2).position(|w| w == [':', ']']);
                let Some(end) = end else { return Err("missing closing ]".to_owned()) };
                out.extend(&chars[i..i + end + 2]);
                i += end + 2;
                first = false;
                continue;
            }
            c @ ('[' | '&' | '~') => {
                out.push('\\');
                out.push(c);
            }
            // A dash is a range only between two characters. Rust reads a double dash as set difference.
            '-' if chars.get(i + 1) == Some(&'-') || first || chars.get(i + 1) == Some(&']') => {
                out.push_str("\\-")
            }
            c => out.push(c),
        }
        first = false;
        i += 1;
    }
    Err(format!("missing closing ]: `{}`", chars[at..].iter().collect::<String>()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn patterns_match_as_in_go() {
        let cases = [
            ("^\\d+$", "12", true),
            ("^\\d+$", "\u{0661}", false),
            ("^\\w+$", "é", false),
            ("^[\\w-]+$", "a-b", true),
            ("^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "a-1", true),
            ("^[^\\s]+$", "a b", false),
            ("^[[:alpha:]]+$", "ab", true),
            ("^[[]$", "[", true),
            ("^[]a]+$", "]a", true),
            ("^[a&&b]+$", "&", true),
            ("^a{2}$", "aa", true),
            ("^a{,2}$", "a{,2}", true),
            ("^{$", "{", true),
            ("^\\<a\\>$", "<a>", true),
            ("^\\Qa.b\\E$", "a.b", true),
            ("^\\Qa.b\\E$", "axb", false),
            ("(?i)^ab$", "AB", true),
            ("^\\p{L}+$", "éa", true),
            ("\\bfoo\\b", "a foo b", true),
            ("^[\\D]$", "a", true),
            ("^\\/a\\-b$", "/a-b", true),
            ("^[--z]$", "a", true),
        ];
        for (pattern, text, expected) in cases {
            assert_eq!(compile(pattern).unwrap().is_match(text), expected, "{pattern} on {text}");
        }
    }

    #[test]
    fn patterns_that_go_rejects_are_rejected() {
        for pattern in ["a(", "[a", "\\", "\\y", "(?x)a", "(?=a)", "a**", "(?<!a)b", "\\1"] {
            assert!(compile(pattern).is_err(), "{pattern}");
        }
    }

    proptest! {
        #[test]
        fn any_pattern_is_compiled_or_rejected(pattern in "[a-c\\\\\\[\\]{}()^$.*+?|&~,:0-9QEdwsb-]{0,32}") {
            if let Ok(regex) = compile(&pattern) {
                let _ = regex.is_match("abc");
            }
        }
    }
}
