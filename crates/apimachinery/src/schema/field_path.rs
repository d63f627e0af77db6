//! Paths that a CRD uses to name one of its own fields: `.spec.size`, `.spec.map['a.b']`.
//!
//! `fieldPath` of rules and `selectableFields` use them. A path is valid only if the schema has the field.
//! The path of a value inside an object is a [`super::value_path::ValuePath`].

use super::node::Node;

/// A path of a CRD, resolved against its schema.
#[derive(Debug)]
pub(crate) struct SchemaFieldPath<'s> {
    /// The path as appended to the `field` of an error: `.size`, `[key]`.
    pub text: String,
    /// The first field, e.g. `metadata`.
    pub root: String,
    /// The schema of the field.
    pub node: &'s Node,
}

/// Resolves a path against the schema. The error is the detail of a validation error.
pub(crate) fn parse<'s>(path: &str, node: &'s Node) -> Result<SchemaFieldPath<'s>, String> {
    follow(path, node, true)
}

/// Like [`parse`], for `selectableFields`, where brackets are not allowed.
pub(crate) fn parse_dotted<'s>(path: &str, node: &'s Node) -> Result<SchemaFieldPath<'s>, String> {
    follow(path, node, false)
}

fn follow<'s>(path: &str, node: &'s Node, brackets: bool) -> Result<SchemaFieldPath<'s>, String> {
    let mut found = SchemaFieldPath { text: String::new(), root: String::new(), node };
    let mut rest = path;
    let step = |name: &str, found: &mut SchemaFieldPath<'s>| {
        let node = found.node;
        if !node.properties.is_empty() {
            found.text.push('.');
            found.text.push_str(name);
            found.node = node.property(name).ok_or("does not refer to a valid field")?;
        } else {
            found.text.push_str(&format!("[{name}]"));
            found.node = node.additional_schema().ok_or("does not refer to a valid field")?;
        }
        if found.root.is_empty() {
            found.root = name.to_owned();
        }
        Ok::<(), String>(())
    };
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(['.', '[', ']']).unwrap_or(after.len());
            // A delimiter directly after the dot becomes the name; no field has such a name.
            let end = if end == 0 { after.chars().next().map_or(0, char::len_utf8) } else { end };
            if end == 0 {
                return Err("unexpected end of JSON path".to_owned());
            }
            step(&after[..end], &mut found)?;
            rest = &after[end..];
        } else if let Some(after) = rest.strip_prefix('[') {
            if !brackets {
                return Err("array notation is not allowed".to_owned());
            }
            let Some(quoted) = after.strip_prefix('\'') else {
                let end = after.find(['.', '[', ']']).unwrap_or(after.len());
                return Err(if after.is_empty() {
                    "unexpected end of JSON path".to_owned()
                } else {
                    format!("expected single quoted string but got {}", &after[..end.max(1).min(after.len())])
                });
            };
            let close = quoted
                .char_indices()
                .find(|(i, c)| *c == '\'' && !quoted[..*i].ends_with('\\'))
                .map(|(i, _)| i);
            let Some(close) = close else {
                return Err(format!("expected single quoted string but got '{quoted}"));
            };
            step(&unescape(&quoted[..close])?, &mut found)?;
            rest = quoted[close + 1..].strip_prefix(']').ok_or("expected ]")?;
        } else {
            let end = rest.find(['.', '[', ']']).unwrap_or(rest.len());
            return Err(format!("expected [ or . but got: {}", &rest[..end.max(1).min(rest.len())]));
        }
    }
    Ok(found)
}

fn unescape(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('a') => out.push('\u{7}'),
            Some('b') => out.push('\u{8}'),
            Some('f') => out.push('\u{c}'),
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('t') => out.push('\t'),
            Some('v') => out.push('\u{b}'),
            Some(c @ ('\'' | '\\')) => out.push(c),
            Some(c) => return Err(format!("invalid string literal: invalid escape char \\{c}")),
            None => out.push('\\'),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_is_valid_when_the_schema_has_the_field() {
        let node = Node::parse(&json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "size": {"type": "integer"}, "a.b": {"type": "string"}, "map": {"type": "object", "additionalProperties": {"type": "string"}}}}}}))
        .unwrap();
        assert_eq!(parse(".spec.size", &node).unwrap().text, ".spec.size");
        assert_eq!(parse(".spec.map['x']", &node).unwrap().text, ".spec.map[x]");
        assert_eq!(parse(".spec['a.b']", &node).unwrap().text, ".spec.a.b");
        for (path, why) in [
            (".spec.none", "does not refer to a valid field"),
            (".spec.size.deep", "does not refer to a valid field"),
            ("spec", "expected [ or . but got: spec"),
            (".", "unexpected end of JSON path"),
            (".spec[", "unexpected end of JSON path"),
            (".spec[0]", "expected single quoted string but got 0"),
        ] {
            assert_eq!(parse(path, &node).unwrap_err(), why, "{path}");
        }
        assert_eq!(parse_dotted(".spec['a.b']", &node).unwrap_err(), "array notation is not allowed");
    }
}
