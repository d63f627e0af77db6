//! Reading JSON and YAML bodies without trust.

use serde_json::Value;

use crate::{schema::decode, status::Failure};

/// Reads JSON; the second part complains about fields that occur twice (the last one counts).
pub(crate) fn json(bytes: &[u8]) -> Result<(Value, Vec<String>), Failure> {
    let decoded = decode::decode(bytes).map_err(|error| {
        Failure::bad_request(format!("couldn't get version/kind; json parse error: {error}"))
    })?;
    Ok((decoded.value, decoded.duplicates))
}

/// Reads YAML, of which JSON is a part. A key that occurs twice is refused.
pub(crate) fn yaml(bytes: &[u8]) -> Result<(Value, Vec<String>), Failure> {
    // Most applies come as JSON; a JSON reader is faster and says which keys are repeated.
    if bytes.first() == Some(&b'{')
        && let Ok(read) = json(bytes)
    {
        return Ok(read);
    }
    let unreadable =
        |error: &dyn std::fmt::Display| Failure::bad_request(format!("error decoding YAML: {error}"));
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
    fn depth_is_bounded_in_both_languages() {
        let deep = [b"[".repeat(5000), b"]".repeat(5000)].concat();
        assert_eq!(json(&deep).expect_err("too deep").code, 400);
        assert_eq!(yaml(&deep).expect_err("too deep").code, 400);
        assert_eq!(json(b"{} {}").expect_err("trailing").code, 400);
    }

    #[test]
    fn yaml_reads_as_json_does() {
        assert_eq!(
            yaml(b"a: 1\nb: [x, 'y']\n").expect("reads").0,
            serde_json::json!({"a": 1, "b": ["x", "y"]})
        );
    }
}
