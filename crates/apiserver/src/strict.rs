//! Decoding of untrusted JSON and YAML request bodies.

use serde_json::Value;

use crate::{schema::decode, status::StatusError};

/// Decodes JSON. The second part of the result are the messages of duplicate fields (the last one wins).
pub(crate) fn json(bytes: &[u8]) -> Result<(Value, Vec<String>), StatusError> {
    let decoded = decode::decode(bytes).map_err(|error| {
        StatusError::bad_request(format!("couldn't get version/kind; json parse error: {error}"))
    })?;
    Ok((decoded.value, decoded.duplicates))
}

/// Decodes YAML (a superset of JSON). A duplicate key in YAML is an error.
pub(crate) fn yaml(bytes: &[u8]) -> Result<(Value, Vec<String>), StatusError> {
    // Most applies are JSON; the JSON decoder is faster and reports duplicate keys.
    if bytes.first() == Some(&b'{')
        && let Ok(read) = json(bytes)
    {
        return Ok(read);
    }
    let unreadable =
        |error: &dyn std::fmt::Display| StatusError::bad_request(format!("error decoding YAML: {error}"));
    let text = std::str::from_utf8(bytes).map_err(|error| unreadable(&error))?;
    let value: Value = serde_saphyr::from_str(text).map_err(|error| unreadable(&error))?;
    if !decode::shallow(&value) {
        return Err(unreadable(&"it is nested too deeply"));
    }
    Ok((value, Vec::new()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nesting_is_bounded_in_json_and_yaml() {
        let deep = [b"[".repeat(5000), b"]".repeat(5000)].concat();
        assert_eq!(json(&deep).expect_err("too deep").code, 400);
        assert_eq!(yaml(&deep).expect_err("too deep").code, 400);
        assert_eq!(json(b"{} {}").expect_err("trailing").code, 400);
    }

    #[test]
    fn yaml_decodes_to_the_same_value_as_json() {
        assert_eq!(
            yaml(b"a: 1\nb: [x, 'y']\n").expect("decodes").0,
            serde_json::json!({"a": 1, "b": ["x", "y"]})
        );
    }
}
