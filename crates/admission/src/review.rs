//! Encoding and decoding of AdmissionReviews, `admission.k8s.io/v1`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use json_patch::Patch;
use polis_api::k8s_openapi::api::authentication::v1::UserInfo;
use polis_engine::field_at;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::error::AdmissionError;

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";

/// The request of an AdmissionReview.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Request {
    pub(crate) uid: String,
    pub(crate) resource: Resource,
    #[serde(default)]
    pub(crate) sub_resource: String,
    #[serde(default)]
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) namespace: String,
    pub(crate) operation: String,
    #[serde(default)]
    pub(crate) user_info: UserInfo,
    #[serde(default)]
    pub(crate) object: Value,
    #[serde(default)]
    pub(crate) old_object: Value,
}

/// The resource of a request, by its plural name.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Resource {
    #[serde(default)]
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) resource: String,
}

/// A review that cannot be decoded, with its UID if that can be.
#[derive(Debug)]
pub(crate) struct ReviewError {
    pub(crate) uid: Option<String>,
    pub(crate) error: AdmissionError,
}

impl Request {
    /// Decodes a review.
    pub(crate) fn decode(body: &[u8]) -> Result<Self, ReviewError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Head {
            #[serde(default)]
            api_version: String,
            #[serde(default)]
            kind: String,
        }
        #[derive(Deserialize)]
        struct Review {
            request: Request,
        }
        let review_error = |why: String| ReviewError {
            uid: uid(body),
            error: AdmissionError::bad_request(format!("failed to decode the AdmissionReview: {why}")),
        };
        let head: Head = decode(body).map_err(review_error)?;
        if head.api_version != API_VERSION || head.kind != KIND {
            return Err(review_error(format!(
                "it is a {:?} of {:?}; only {KIND} of {API_VERSION} is understood",
                head.kind, head.api_version
            )));
        }
        decode::<Review>(body).map(|review| review.request).map_err(review_error)
    }
}

/// The UID of a review whose other fields cannot be decoded.
fn uid(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Review {
        request: Identified,
    }
    #[derive(Deserialize)]
    struct Identified {
        uid: String,
    }
    serde_json::from_slice::<Review>(body).ok().map(|review| review.request.uid)
}

/// Decodes JSON. An error names the field.
pub(crate) fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| match error.line() {
        1 if error.is_data() => format!("{}: {}", field_at(body, error.column()), plain(&error)),
        _ => error.to_string(),
    })
}

/// The error without line and column, which mean nothing to the author of a YAML manifest.
pub(crate) fn plain(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or(&text).to_owned()
}

/// The response that allows a request, with a patch if it is not empty.
pub(crate) fn allowed(uid: &str, patch: &Patch) -> Bytes {
    let mut response = json!({"uid": uid, "allowed": true});
    if !patch.0.is_empty() {
        response["patchType"] = "JSONPatch".into();
        response["patch"] = STANDARD.encode(json!(patch).to_string()).into();
    }
    review(response)
}

/// The response that denies a request.
pub(crate) fn denied(uid: &str, error: &AdmissionError) -> Bytes {
    review(json!({"uid": uid, "allowed": false, "status": error.status()}))
}

fn review(response: Value) -> Bytes {
    json!({"apiVersion": API_VERSION, "kind": KIND, "response": response}).to_string().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode_error(body: &str) -> (Option<String>, String) {
        let failed = Request::decode(body.as_bytes()).unwrap_err();
        (failed.uid, failed.error.message)
    }

    fn mk_review(request: &str) -> String {
        format!("{{\"apiVersion\":\"{API_VERSION}\",\"kind\":\"{KIND}\",\"request\":{request}}}")
    }

    #[test]
    fn a_review_is_decoded() {
        let body = mk_review(
            r#"{"uid":"7","kind":{"group":"g","version":"v","kind":"K"},"resource":{"group":"g","version":"v","resource":"ks"},"operation":"CREATE","userInfo":{"username":"ada","extra":{"a":["b","c"]}},"object":{"x":1},"oldObject":null}"#,
        );
        let request = Request::decode(body.as_bytes()).unwrap();
        assert_eq!((request.uid.as_str(), request.operation.as_str()), ("7", "CREATE"));
        assert_eq!(request.user_info.extra.unwrap()["a"], ["b", "c"]);
        assert_eq!((request.object["x"].as_i64(), request.old_object), (Some(1), Value::Null));
    }

    #[test]
    fn malformed_extras_are_named_and_the_uid_is_kept() {
        let body = mk_review(
            r#"{"uid":"7","resource":{"version":"v","resource":"ks"},"operation":"CREATE","userInfo":{"extra":{"iam.miloapis.com/parent-name":"shop"}}}"#,
        );
        let (uid, message) = decode_error(&body);
        assert_eq!(uid.as_deref(), Some("7"));
        assert!(
            message.contains("request.userInfo.extra") && message.contains("invalid type: string"),
            "{message}"
        );
        assert!(!message.contains("column"), "{message}");
    }

    #[test]
    fn other_versions_and_other_kinds_are_rejected() {
        let (uid, message) = decode_error(
            r#"{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","request":{"uid":"7"}}"#,
        );
        assert_eq!(uid.as_deref(), Some("7"));
        assert!(message.contains("v1beta1"), "{message}");
        for body in ["", "[]", "{}", "null", "{\"kind\":7}", "no json"] {
            assert_eq!(decode_error(body).0, None, "{body}");
        }
        assert!(decode_error(&mk_review("{}")).1.contains("uid"));
    }
}
