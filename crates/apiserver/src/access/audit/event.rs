//! One audit event, and its JSON form (`audit.k8s.io/v1`).

use std::net::IpAddr;

use bytes::Bytes;
use jiff::Timestamp;
use polis_apimachinery::{
    audit::{AuditLevel, AuditStage},
    decode, protobuf,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    access::user_info,
    http::{Content, ResponseBody},
    user::UserInfo,
};

/// Largest body in an event, in bytes; a larger one is left out.
const BODY_MAX: usize = 512 << 10;
/// The annotation of an event without its bodies, as in kube-apiserver.
const TRUNCATED: &str = "audit.k8s.io/truncated";

/// The object that a request is about.
#[derive(Clone, Debug, Default)]
pub(super) struct ObjectReference {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) resource: String,
    pub(super) subresource: String,
    pub(super) namespace: String,
    pub(super) name: String,
}

/// How a request ended.
#[derive(Debug)]
pub(super) enum RequestEnd {
    /// The server sent this status.
    Responded(u16),
    /// The client left before the response. A write may have been done.
    Aborted,
    /// The handler panicked.
    Panicked,
}

/// An event, with bodies as bytes: the thread of the log decodes them.
pub(super) struct Event {
    pub(super) level: AuditLevel,
    pub(super) stage: AuditStage,
    pub(super) id: String,
    pub(super) plane: String,
    pub(super) uri: String,
    pub(super) verb: String,
    pub(super) user: Option<UserInfo>,
    pub(super) impersonated: Option<UserInfo>,
    pub(super) source: Option<IpAddr>,
    pub(super) agent: String,
    /// `None` for a path that is no resource.
    pub(super) object: Option<ObjectReference>,
    /// Whether bodies contain credentials, so that error messages may quote them.
    pub(super) sensitive: bool,
    /// `None` before the response.
    pub(super) end: Option<RequestEnd>,
    /// Whether the request was authorized; `None` if that was not asked.
    pub(super) authorized: Option<bool>,
    pub(super) omit_managed_fields: bool,
    pub(super) received: Timestamp,
    pub(super) at: Timestamp,
    /// The body of the request, for the levels with it.
    pub(super) request: Option<(Option<Content>, Bytes)>,
    /// The response: its error or the identity of its object, and for the level with it the body.
    pub(super) response: Option<ResponseBody>,
    pub(super) truncated: bool,
}

/// What the log reads of an object or a Status in a response.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ResponseHead {
    kind: String,
    metadata: Identity,
    details: Option<Identity>,
    reason: String,
    message: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Identity {
    name: String,
    namespace: String,
    uid: String,
}

impl Event {
    /// Bytes that the event holds in the queue.
    pub(super) fn weight(&self) -> usize {
        let request = self.request.as_ref().map_or(0, |(_, bytes)| bytes.len());
        self.uri.len() + self.agent.len() + request + self.response.as_ref().map_or(0, ResponseBody::held)
    }

    /// Leaves out the bodies, and says so.
    pub(super) fn drop_bodies(&mut self) {
        self.truncated |= self.level >= AuditLevel::Request;
        self.request = None;
        self.response = None;
    }

    /// Appends the event as one line.
    pub(super) fn append_to(mut self, lines: &mut Vec<u8>) {
        let response = self.response.take().map(|body| body.collect(BODY_MAX));
        let bytes = response.as_ref().and_then(Option::as_ref);
        let head: ResponseHead =
            bytes.and_then(|bytes| serde_json::from_slice(bytes).ok()).unwrap_or_default();
        let mut bodies = Map::new();
        if self.level >= AuditLevel::Request
            && let Some((content, bytes)) = self.request.take()
            && !bytes.is_empty()
        {
            let body = (bytes.len() <= BODY_MAX).then(|| decoded(content, &bytes)).flatten();
            self.truncated |= body.is_none();
            bodies.extend(body.map(|body| ("requestObject".to_owned(), self.shown(body))));
        }
        if self.level >= AuditLevel::RequestResponse && self.object.is_some() {
            let body = bytes.and_then(|bytes| serde_json::from_slice(bytes).ok());
            self.truncated |= matches!(response, Some(None));
            bodies.extend(body.map(|body| ("responseObject".to_owned(), self.shown(body))));
        }
        let mut event = self.metadata(&head);
        event.extend(bodies);
        // A Value always serialises: its keys are strings.
        let _ = serde_json::to_writer(&mut *lines, &Value::Object(event));
        lines.push(b'\n');
    }

    /// A body without what the policy omits.
    fn shown(&self, mut body: Value) -> Value {
        if self.omit_managed_fields {
            let omit = |object: &mut Value| {
                if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
                    metadata.remove("managedFields");
                }
            };
            omit(&mut body);
            body.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten().for_each(omit);
        }
        body
    }

    /// The event without bodies.
    fn metadata(&self, head: &ResponseHead) -> Map<String, Value> {
        let mut event = Map::new();
        let mut set = |field: &str, value: Value| drop(event.insert(field.to_owned(), value));
        set("kind", "Event".into());
        set("apiVersion", "audit.k8s.io/v1".into());
        set("level", self.level.as_str().into());
        set("auditID", self.id.clone().into());
        set("stage", self.stage.as_str().into());
        set("requestURI", self.uri.clone().into());
        set("verb", self.verb.clone().into());
        set("user", self.user.as_ref().map_or_else(|| json!({}), user_info));
        if let Some(user) = &self.impersonated {
            set("impersonatedUser", user_info(user));
        }
        if let Some(address) = self.source {
            set("sourceIPs", json!([address.to_canonical().to_string()]));
        }
        if !self.agent.is_empty() {
            set("userAgent", self.agent.clone().into());
        }
        if let Some(object) = &self.object {
            set("objectRef", object.value(&self.plane, head));
        }
        if let Some(end) = &self.end {
            set("responseStatus", self.status(end, head));
        }
        set("requestReceivedTimestamp", micro_time(self.received));
        set("stageTimestamp", micro_time(self.at));
        set("annotations", self.annotations());
        event
    }

    fn status(&self, end: &RequestEnd, head: &ResponseHead) -> Value {
        let mut status = json!({"metadata": {}});
        let (code, message) = match end {
            RequestEnd::Responded(code) if *code < 400 => (Some(*code), ""),
            RequestEnd::Responded(code) => (Some(*code), head.message.as_str()),
            RequestEnd::Aborted => (None, "the client left before the response; a write may have been done"),
            RequestEnd::Panicked => (Some(500), "the handler panicked; a write may have been done"),
        };
        if let Some(code) = code {
            status["code"] = code.into();
        }
        if code.is_none_or(|code| code >= 400) {
            status["status"] = "Failure".into();
        }
        if !head.reason.is_empty() && head.kind == "Status" {
            status["reason"] = head.reason.clone().into();
        }
        // A validation or decoding error can quote the value that it is about.
        let quotes = self.sensitive && matches!(end, RequestEnd::Responded(400 | 415 | 422 | 500));
        if !message.is_empty() && !quotes {
            status["message"] = message.into();
        }
        status
    }

    fn annotations(&self) -> Value {
        let mut annotations = Map::new();
        // The root plane has no name.
        annotations.insert("polis.datumapis.com/plane".into(), self.plane.clone().into());
        if let Some(authorized) = self.authorized {
            let decision = if authorized { "allow" } else { "forbid" };
            annotations.insert("authorization.k8s.io/decision".into(), decision.into());
        }
        if self.truncated {
            annotations.insert(TRUNCATED.into(), "true".into());
        }
        Value::Object(annotations)
    }
}

impl ObjectReference {
    /// The reference, with what only the response knows: the name of a created object, and the uid.
    fn value(&self, plane: &str, head: &ResponseHead) -> Value {
        let unknown = Identity::default();
        let found = match (head.kind.as_str(), &head.details) {
            ("Status", Some(details)) => details,
            ("Status", None) => &unknown,
            _ => &head.metadata,
        };
        let or =
            |known: &str, other: &str| if known.is_empty() { other.to_owned() } else { known.to_owned() };
        let mut reference = Map::new();
        for (field, text) in [
            ("plane", plane.to_owned()),
            ("resource", self.resource.clone()),
            ("namespace", or(&self.namespace, &found.namespace)),
            ("name", or(&self.name, &found.name)),
            ("uid", found.uid.clone()),
            ("apiGroup", self.group.clone()),
            ("apiVersion", self.version.clone()),
            ("subresource", self.subresource.clone()),
        ] {
            if !text.is_empty() {
                reference.insert(field.to_owned(), text.into());
            }
        }
        Value::Object(reference)
    }
}

/// A body of a request as JSON.
fn decoded(content: Option<Content>, bytes: &[u8]) -> Option<Value> {
    match content? {
        Content::Json | Content::JsonPatch | Content::MergePatch | Content::StrategicPatch => {
            decode::json(bytes).ok().map(|decoded| decoded.value)
        }
        Content::Yaml | Content::ApplyPatch => decode::yaml(bytes).ok().map(|decoded| decoded.value),
        Content::Protobuf => protobuf::decode(bytes).ok(),
        Content::ApplyPatchCbor => None,
    }
}

/// A time with microseconds (`metav1.MicroTime`).
fn micro_time(at: Timestamp) -> Value {
    at.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string().into()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::access::audit) fn mk_event(uri: &str) -> Event {
        Event {
            level: AuditLevel::RequestResponse,
            stage: AuditStage::ResponseComplete,
            id: "id-1".into(),
            plane: "cell".into(),
            uri: uri.to_owned(),
            verb: "update".into(),
            user: Some(UserInfo::new("dora", ["devs"])),
            impersonated: None,
            source: Some([127, 0, 0, 1].into()),
            agent: "kubectl/v1.35".into(),
            object: Some(ObjectReference {
                version: "v1".into(),
                resource: "configmaps".into(),
                namespace: "n".into(),
                ..ObjectReference::default()
            }),
            sensitive: false,
            end: Some(RequestEnd::Responded(200)),
            authorized: Some(true),
            omit_managed_fields: true,
            received: Timestamp::UNIX_EPOCH,
            at: Timestamp::from_microsecond(1_500_000).unwrap(),
            request: None,
            response: None,
            truncated: false,
        }
    }

    impl Event {
        pub(in crate::access::audit) fn with_request_body(mut self, body: String) -> Self {
            self.request = Some((Some(Content::Json), body.into()));
            self
        }
    }

    fn line(event: Event) -> Value {
        let mut lines = Vec::new();
        event.append_to(&mut lines);
        assert_eq!(lines.iter().filter(|byte| **byte == b'\n').count(), 1);
        serde_json::from_slice(&lines).unwrap()
    }

    #[test]
    fn an_event_has_the_json_form_of_kubernetes() {
        let object = json!({"kind": "ConfigMap", "metadata": {"name": "a", "namespace": "n", "uid": "u-1", "managedFields": [{}]}});
        let event = Event {
            response: Some(ResponseBody::full(object.to_string())),
            ..mk_event("/api/v1/namespaces/n/configmaps")
                .with_request_body("{\"data\": {\"k\": \"v\"}}".into())
        };
        assert_eq!(
            line(event),
            json!({
                "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "RequestResponse", "auditID": "id-1",
                "stage": "ResponseComplete", "requestURI": "/api/v1/namespaces/n/configmaps", "verb": "update",
                "user": {"username": "dora", "groups": ["devs", "system:authenticated"]},
                "sourceIPs": ["127.0.0.1"], "userAgent": "kubectl/v1.35",
                "objectRef": {"plane": "cell", "resource": "configmaps", "namespace": "n", "name": "a", "uid": "u-1", "apiVersion": "v1"},
                "responseStatus": {"metadata": {}, "code": 200},
                "requestObject": {"data": {"k": "v"}},
                "responseObject": {"kind": "ConfigMap", "metadata": {"name": "a", "namespace": "n", "uid": "u-1"}},
                "requestReceivedTimestamp": "1970-01-01T00:00:00.000000Z", "stageTimestamp": "1970-01-01T00:00:01.500000Z",
                "annotations": {"polis.datumapis.com/plane": "cell", "authorization.k8s.io/decision": "allow"},
            })
        );
    }

    #[test]
    fn an_error_is_recorded_with_reason_and_message_but_not_if_it_may_quote_a_secret() {
        let refused = json!({"kind": "Status", "message": "no: top secret", "reason": "Invalid", "details": {"name": "a", "uid": "u-2"}});
        let status = |code, sensitive| {
            let response = Some(ResponseBody::full(refused.to_string()));
            let event =
                Event { end: Some(RequestEnd::Responded(code)), sensitive, response, ..mk_event("/api/v1") };
            let event = line(Event { level: AuditLevel::Metadata, ..event });
            assert_eq!(event["objectRef"]["uid"], "u-2");
            event["responseStatus"].clone()
        };
        let whole = json!({"metadata": {}, "code": 422, "status": "Failure", "reason": "Invalid", "message": "no: top secret"});
        assert_eq!(status(422, false), whole);
        assert_eq!(
            status(422, true),
            json!({"metadata": {}, "code": 422, "status": "Failure", "reason": "Invalid"})
        );
        assert_eq!(status(403, true)["message"], "no: top secret");
    }

    #[test]
    fn a_request_without_a_response_says_that_its_write_may_have_been_done() {
        for (end, code, message) in [
            (RequestEnd::Aborted, Value::Null, "client left"),
            (RequestEnd::Panicked, json!(500), "panicked"),
        ] {
            let status = line(Event { end: Some(end), ..mk_event("/api/v1") })["responseStatus"].clone();
            assert_eq!(status["code"], code);
            assert!(status["message"].as_str().unwrap().contains(message), "{status}");
        }
    }

    #[test]
    fn bodies_above_the_limit_are_left_out_and_the_event_says_so() {
        let large = format!("\"{}\"", "x".repeat(BODY_MAX));
        let event = line(mk_event("/api/v1").with_request_body(large.clone()));
        assert_eq!(
            (&event["requestObject"], &event["annotations"][TRUNCATED]),
            (&Value::Null, &json!("true"))
        );
        let event = line(Event { response: Some(ResponseBody::full(large)), ..mk_event("/api/v1") });
        assert_eq!(event["annotations"][TRUNCATED], "true");
    }

    #[test]
    fn lines_of_hostile_text_stay_one_line() {
        let mut event = mk_event("/api/v1?x=\n{\"kind\":\"Event\"}");
        event.agent = "a\n\u{1b}[2J".into();
        assert_eq!(line(event)["userAgent"], "a\n\u{1b}[2J");
    }
}
