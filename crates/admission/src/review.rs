//! Reviews as they come over the wire: `admission.k8s.io/v1`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use json_patch::Patch;
use polis_api::k8s_openapi::api::authentication::v1::UserInfo;
use polis_engine::field_at;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::verdict::Refusal;

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";

/// What an API server wants to know.
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

/// A kind, by its plural.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Resource {
    #[serde(default)]
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) resource: String,
}

/// A review that cannot be read, and the question that it was, as far as that can be told.
#[derive(Debug)]
pub(crate) struct Unreadable {
    pub(crate) uid: Option<String>,
    pub(crate) refusal: Refusal,
}

impl Request {
    /// Reads a review.
    pub(crate) fn read(body: &[u8]) -> Result<Self, Unreadable> {
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
        let unreadable = |why: String| Unreadable {
            uid: uid(body),
            refusal: Refusal::bad_request(format!("the review cannot be read: {why}")),
        };
        let head: Head = decode(body).map_err(unreadable)?;
        if head.api_version != API_VERSION || head.kind != KIND {
            return Err(unreadable(format!(
                "it is a {:?} of {:?}; only {KIND} of {API_VERSION} is understood",
                head.kind, head.api_version
            )));
        }
        decode::<Review>(body).map(|review| review.request).map_err(unreadable)
    }
}

/// The question that a review is, when the rest of it makes no sense.
fn uid(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Review {
        request: Question,
    }
    #[derive(Deserialize)]
    struct Question {
        uid: String,
    }
    serde_json::from_slice::<Review>(body).ok().map(|review| review.request.uid)
}

/// Bytes to a value; what does not fit is named by its field.
pub(crate) fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| match error.line() {
        1 if error.is_data() => format!("{}: {}", field_at(body, error.column()), plain(&error)),
        _ => error.to_string(),
    })
}

/// An error without the column, which means nothing to somebody who wrote YAML.
pub(crate) fn plain(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or(&text).to_owned()
}

/// The answer: taken, perhaps changed.
pub(crate) fn allowed(uid: &str, patch: &Patch) -> Bytes {
    let mut response = json!({"uid": uid, "allowed": true});
    if !patch.0.is_empty() {
        response["patchType"] = "JSONPatch".into();
        response["patch"] = STANDARD.encode(json!(patch).to_string()).into();
    }
    review(response)
}

/// The answer: refused.
pub(crate) fn refused(uid: &str, refusal: &Refusal) -> Bytes {
    review(json!({"uid": uid, "allowed": false, "status": refusal.status()}))
}

fn review(response: Value) -> Bytes {
    json!({"apiVersion": API_VERSION, "kind": KIND, "response": response}).to_string().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(body: &str) -> (Option<String>, String) {
        let unreadable = Request::read(body.as_bytes()).unwrap_err();
        (unreadable.uid, unreadable.refusal.message)
    }

    fn mk_review(request: &str) -> String {
        format!("{{\"apiVersion\":\"{API_VERSION}\",\"kind\":\"{KIND}\",\"request\":{request}}}")
    }

    #[test]
    fn a_review_is_read() {
        let body = mk_review(
            r#"{"uid":"7","kind":{"group":"g","version":"v","kind":"K"},"resource":{"group":"g","version":"v","resource":"ks"},"operation":"CREATE","userInfo":{"username":"ada","extra":{"a":["b","c"]}},"object":{"x":1},"oldObject":null}"#,
        );
        let request = Request::read(body.as_bytes()).unwrap();
        assert_eq!((request.uid.as_str(), request.operation.as_str()), ("7", "CREATE"));
        assert_eq!(request.user_info.extra.unwrap()["a"], ["b", "c"]);
        assert_eq!((request.object["x"].as_i64(), request.old_object), (Some(1), Value::Null));
    }

    #[test]
    fn malformed_extras_are_named_and_the_question_is_kept() {
        let body = mk_review(
            r#"{"uid":"7","resource":{"version":"v","resource":"ks"},"operation":"CREATE","userInfo":{"extra":{"iam.miloapis.com/parent-name":"shop"}}}"#,
        );
        let (uid, message) = refusal(&body);
        assert_eq!(uid.as_deref(), Some("7"));
        assert!(
            message.contains("request.userInfo.extra") && message.contains("invalid type: string"),
            "{message}"
        );
        assert!(!message.contains("column"), "{message}");
    }

    #[test]
    fn other_versions_and_other_kinds_are_refused() {
        let (uid, message) = refusal(
            r#"{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","request":{"uid":"7"}}"#,
        );
        assert_eq!(uid.as_deref(), Some("7"));
        assert!(message.contains("v1beta1"), "{message}");
        for body in ["", "[]", "{}", "null", "{\"kind\":7}", "no json"] {
            assert_eq!(refusal(body).0, None, "{body}");
        }
        assert!(refusal(&mk_review("{}")).1.contains("uid"));
    }
}
