//! Values as Go formats them: in messages (`%v`, `%q`) and in canonical JSON.
//!
//! Clients compare messages and `fieldsV1` byte by byte, so numbers, strings and objects are written as
//! kube-apiserver writes them.
//!
//! ```
//! use polis_apimachinery::go_format;
//! use serde_json::json;
//!
//! assert_eq!(go_format::quote("a\"b"), r#""a\"b""#);
//! assert_eq!(go_format::float(1e21), "1e+21");
//! assert_eq!(go_format::json(&json!({"b": 1, "a": "<"})), r#"{"a":"\u003c","b":1}"#);
//! ```

use std::fmt::Write;

use serde_json::{Number, Value};

/// The JSON type of a value, as Go's decoder names it.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Formats a value for a message: strings quoted, lists and maps as JSON.
pub fn render(value: &Value) -> String {
    match value {
        Value::String(s) => quote(s),
        Value::Number(n) => number(n),
        other => json(other),
    }
}

/// A number as Go prints it with `%v`.
pub fn number(n: &Number) -> String {
    match n.as_i64() {
        Some(i) => i.to_string(),
        None => float(n.as_f64().unwrap_or(f64::NAN)),
    }
}

/// A float as Go prints it with `%v`: shortest digits, exponent from 1e21 up and below 1e-4.
pub fn float(f: f64) -> String {
    if !f.is_finite() {
        return if f.is_nan() {
            "NaN".into()
        } else if f > 0.0 {
            "+Inf".into()
        } else {
            "-Inf".into()
        };
    }
    let magnitude = f.abs();
    if magnitude != 0.0 && !(1e-4..1e21).contains(&magnitude) { exponent(f) } else { format!("{f}") }
}

/// A float as Go's JSON encoder writes it: exponent from 1e21 up and below 1e-6.
fn json_float(f: f64) -> String {
    let magnitude = f.abs();
    if magnitude != 0.0 && !(1e-6..1e21).contains(&magnitude) {
        // The encoder shortens e-09 to e-9, `%v` does not.
        let text = exponent(f);
        match text.rsplit_once("e-0") {
            Some((mantissa, digit)) => format!("{mantissa}e-{digit}"),
            None => text,
        }
    } else {
        format!("{f}")
    }
}

fn exponent(f: f64) -> String {
    let text = format!("{f:e}");
    let (mantissa, power) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, digits) = match power.strip_prefix('-') {
        Some(digits) => ('-', digits),
        None => ('+', power),
    };
    format!("{mantissa}e{sign}{digits:0>2}")
}

/// A string in double quotes with Go's escapes.
pub fn quote(s: &str) -> String {
    let mut out = String::with_capacity(s.len() + 2);
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            c if (c as u32) < 0x20 || c == '\u{7f}' => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c if c.is_control()
                || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{200b}'..='\u{200f}') =>
            {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// JSON as Go's encoder writes it: keys sorted, `<`, `>` and `&` escaped.
pub fn json(value: &Value) -> String {
    let mut out = String::new();
    write_json(value, &mut out);
    out
}

fn write_json(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Number(n) => match n.as_i64() {
            Some(i) => out.push_str(&i.to_string()),
            None => out.push_str(&json_float(n.as_f64().unwrap_or(0.0))),
        },
        Value::String(s) => write_json_string(s, out),
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_json(item, out);
            }
            out.push(']');
        }
        Value::Object(map) => {
            out.push('{');
            for (i, (key, item)) in map.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_json_string(key, out);
                out.push(':');
                write_json(item, out);
            }
            out.push('}');
        }
    }
}

fn write_json_string(s: &str, out: &mut String) {
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c if (c as u32) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn floats_are_formatted_as_in_go() {
        for (f, text) in [
            (1e21, "1e+21"),
            (1e20, "100000000000000000000"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.0, "1"),
            (-2.5e30, "-2.5e+30"),
        ] {
            assert_eq!(float(f), text);
        }
        assert_eq!(json(&json!(1e-9)), "1e-9");
    }
}
