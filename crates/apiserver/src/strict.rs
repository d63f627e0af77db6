//! Decoding of JSON and YAML request bodies, with the errors of Kubernetes.

use polis_apimachinery::decode::{self, Decoded};

use crate::status::StatusError;

/// Decodes JSON.
pub(crate) fn json(bytes: &[u8]) -> Result<Decoded, StatusError> {
    decode::json(bytes).map_err(|error| {
        StatusError::bad_request(format!("couldn't get version/kind; json parse error: {error}"))
    })
}

/// Decodes YAML, and so also JSON.
pub(crate) fn yaml(bytes: &[u8]) -> Result<Decoded, StatusError> {
    decode::yaml(bytes).map_err(|error| StatusError::bad_request(format!("error decoding YAML: {error}")))
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
}
