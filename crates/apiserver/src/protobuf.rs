//! Protobuf bodies of the built-in kinds that Go clients write.
//!
//! kubectl and controller-runtime send built-in kinds as protobuf and do not fall back when refused, so those kinds are
//! decoded: envelope, then a walk along tables of field numbers. Answers are always JSON, which all clients accept.
//! A kind without a table is answered with 415.

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::status::Failure;

/// What a field holds and how JSON says it.
#[derive(Clone, Copy)]
enum Holds {
    /// Text, not said when empty.
    Text,
    /// Text that may be empty on purpose.
    MaybeText,
    /// A number, not said when zero.
    Int,
    /// A number that may be zero on purpose.
    MaybeInt,
    /// A truth, said when given.
    Bool,
    /// A moment in whole seconds.
    Time,
    /// A moment in microseconds.
    MicroTime,
    /// Texts.
    Texts,
    /// Text to text.
    TextMap,
    /// Text to bytes.
    BytesMap,
    /// Text to texts.
    TextsMap,
    /// A message.
    Message(Table),
    /// Messages.
    Messages(Table),
    /// JSON in bytes.
    Json,
}

/// Field number, name, content.
type Table = &'static [(u32, &'static str, Holds)];

use Holds::{
    Bool, BytesMap, Int, Json, MaybeInt, MaybeText, Message, Messages, MicroTime, Text, TextMap, Texts,
    TextsMap, Time,
};

const OWNER: Table = &[
    (1, "kind", Text),
    (3, "name", Text),
    (4, "uid", Text),
    (5, "apiVersion", Text),
    (6, "controller", Bool),
    (7, "blockOwnerDeletion", Bool),
];
const FIELDS: Table = &[(1, "", Json)];
const MANAGED: Table = &[
    (1, "manager", Text),
    (2, "operation", Text),
    (3, "apiVersion", Text),
    (4, "time", Time),
    (6, "fieldsType", Text),
    (7, "fieldsV1", Message(FIELDS)),
    (8, "subresource", Text),
];
const META: Table = &[
    (1, "name", Text),
    (2, "generateName", Text),
    (3, "namespace", Text),
    (4, "selfLink", Text),
    (5, "uid", Text),
    (6, "resourceVersion", Text),
    (7, "generation", Int),
    (8, "creationTimestamp", Time),
    (9, "deletionTimestamp", Time),
    (10, "deletionGracePeriodSeconds", MaybeInt),
    (11, "labels", TextMap),
    (12, "annotations", TextMap),
    (13, "ownerReferences", Messages(OWNER)),
    (14, "finalizers", Texts),
    (17, "managedFields", Messages(MANAGED)),
];
const REFERENCE: Table = &[
    (1, "kind", Text),
    (2, "namespace", Text),
    (3, "name", Text),
    (4, "uid", Text),
    (5, "apiVersion", Text),
    (6, "resourceVersion", Text),
    (7, "fieldPath", Text),
];
const SOURCE: Table = &[(1, "component", Text), (2, "host", Text)];
const SERIES: Table = &[(1, "count", Int), (2, "lastObservedTime", MicroTime)];
const CONFIG_MAP: Table = &[
    (1, "metadata", Message(META)),
    (2, "data", TextMap),
    (3, "binaryData", BytesMap),
    (4, "immutable", Bool),
];
const SECRET: Table = &[
    (1, "metadata", Message(META)),
    (2, "data", BytesMap),
    (3, "type", Text),
    (4, "stringData", TextMap),
    (5, "immutable", Bool),
];
const CONDITION: Table = &[
    (1, "type", Text),
    (2, "status", Text),
    (4, "lastTransitionTime", Time),
    (5, "reason", Text),
    (6, "message", Text),
];
const NAMESPACE: Table = &[
    (1, "metadata", Message(META)),
    (2, "spec", Message(&[(1, "finalizers", Texts)])),
    (3, "status", Message(&[(1, "phase", Text), (2, "conditions", Messages(CONDITION))])),
];
const ACCOUNT: Table = &[
    (1, "metadata", Message(META)),
    (2, "secrets", Messages(REFERENCE)),
    (3, "imagePullSecrets", Messages(&[(1, "name", Text)])),
    (4, "automountServiceAccountToken", Bool),
];
const EVENT: Table = &[
    (1, "metadata", Message(META)),
    (2, "involvedObject", Message(REFERENCE)),
    (3, "reason", Text),
    (4, "message", Text),
    (5, "source", Message(SOURCE)),
    (6, "firstTimestamp", Time),
    (7, "lastTimestamp", Time),
    (8, "count", Int),
    (9, "type", Text),
    (10, "eventTime", MicroTime),
    (11, "series", Message(SERIES)),
    (12, "action", Text),
    (13, "related", Message(REFERENCE)),
    (14, "reportingComponent", Text),
    (15, "reportingInstance", Text),
];
const NEW_EVENT: Table = &[
    (1, "metadata", Message(META)),
    (2, "eventTime", MicroTime),
    (3, "series", Message(SERIES)),
    (4, "reportingController", Text),
    (5, "reportingInstance", Text),
    (6, "action", Text),
    (7, "reason", Text),
    (8, "regarding", Message(REFERENCE)),
    (9, "related", Message(REFERENCE)),
    (10, "note", Text),
    (11, "type", Text),
    (12, "deprecatedSource", Message(SOURCE)),
    (13, "deprecatedFirstTimestamp", Time),
    (14, "deprecatedLastTimestamp", Time),
    (15, "deprecatedCount", Int),
];
const LEASE: Table = &[
    (1, "metadata", Message(META)),
    (
        2,
        "spec",
        Message(&[
            (1, "holderIdentity", MaybeText),
            (2, "leaseDurationSeconds", MaybeInt),
            (3, "acquireTime", MicroTime),
            (4, "renewTime", MicroTime),
            (5, "leaseTransitions", MaybeInt),
            (6, "strategy", MaybeText),
            (7, "preferredHolder", MaybeText),
        ]),
    ),
];
const DELETE_OPTIONS: Table = &[
    (1, "gracePeriodSeconds", MaybeInt),
    (2, "preconditions", Message(&[(1, "uid", MaybeText), (2, "resourceVersion", MaybeText)])),
    (3, "orphanDependents", Bool),
    (4, "propagationPolicy", MaybeText),
    (5, "dryRun", Texts),
];
const RULE: Table = &[
    (1, "verbs", Texts),
    (2, "apiGroups", Texts),
    (3, "resources", Texts),
    (4, "resourceNames", Texts),
    (5, "nonResourceURLs", Texts),
];
const ROLE: Table = &[(1, "metadata", Message(META)), (2, "rules", Messages(RULE))];
const SUBJECT: Table = &[(1, "kind", Text), (2, "apiGroup", Text), (3, "name", Text), (4, "namespace", Text)];
const BINDING: Table = &[
    (1, "metadata", Message(META)),
    (2, "subjects", Messages(SUBJECT)),
    (3, "roleRef", Message(&[(1, "apiGroup", Text), (2, "kind", Text), (3, "name", Text)])),
];
const RESOURCE_ACCESS: Table = &[
    (1, "namespace", Text),
    (2, "verb", Text),
    (3, "group", Text),
    (4, "version", Text),
    (5, "resource", Text),
    (6, "subresource", Text),
    (7, "name", Text),
];
const PATH_ACCESS: Table = &[(1, "path", Text), (2, "verb", Text)];
const SELF_REVIEW: Table = &[
    (1, "metadata", Message(META)),
    (
        2,
        "spec",
        Message(&[
            (1, "resourceAttributes", Message(RESOURCE_ACCESS)),
            (2, "nonResourceAttributes", Message(PATH_ACCESS)),
        ]),
    ),
];
const REVIEW: Table = &[
    (1, "metadata", Message(META)),
    (
        2,
        "spec",
        Message(&[
            (1, "resourceAttributes", Message(RESOURCE_ACCESS)),
            (2, "nonResourceAttributes", Message(PATH_ACCESS)),
            (3, "user", Text),
            (4, "groups", Texts),
            (5, "extra", TextsMap),
            (6, "uid", Text),
        ]),
    ),
];
const RULES_REVIEW: Table =
    &[(1, "metadata", Message(META)), (2, "spec", Message(&[(1, "namespace", Text)]))];
const TOKEN_REVIEW: Table =
    &[(1, "metadata", Message(META)), (2, "spec", Message(&[(1, "token", Text), (2, "audiences", Texts)]))];
const TOKEN_REQUEST: Table = &[
    (1, "metadata", Message(META)),
    (2, "spec", Message(&[(1, "audiences", Texts), (4, "expirationSeconds", MaybeInt)])),
];
const WHO_AM_I: Table = &[(1, "metadata", Message(META))];

/// The table of a kind.
fn table(version: &str, kind: &str) -> Option<Table> {
    Some(match (version, kind) {
        ("v1", "ConfigMap") => CONFIG_MAP,
        ("v1", "Secret") => SECRET,
        ("v1", "Namespace") => NAMESPACE,
        ("v1", "ServiceAccount") => ACCOUNT,
        ("v1", "Event") => EVENT,
        ("events.k8s.io/v1", "Event") => NEW_EVENT,
        ("coordination.k8s.io/v1", "Lease") => LEASE,
        ("rbac.authorization.k8s.io/v1", "Role" | "ClusterRole") => ROLE,
        ("rbac.authorization.k8s.io/v1", "RoleBinding" | "ClusterRoleBinding") => BINDING,
        ("authorization.k8s.io/v1", "SelfSubjectAccessReview") => SELF_REVIEW,
        ("authorization.k8s.io/v1", "SubjectAccessReview" | "LocalSubjectAccessReview") => REVIEW,
        ("authorization.k8s.io/v1", "SelfSubjectRulesReview") => RULES_REVIEW,
        ("authentication.k8s.io/v1", "TokenReview") => TOKEN_REVIEW,
        ("authentication.k8s.io/v1", "TokenRequest") => TOKEN_REQUEST,
        ("authentication.k8s.io/v1", "SelfSubjectReview") => WHO_AM_I,
        (_, "DeleteOptions") => DELETE_OPTIONS,
        _ => return None,
    })
}

/// What every message of Kubernetes begins with.
const MAGIC: &[u8] = b"k8s\0";

/// An object from Kubernetes' protobuf envelope.
pub(crate) fn decode(bytes: &[u8]) -> Result<Value, Failure> {
    let broken = || Failure::bad_request("the body of the request is not protobuf as Kubernetes writes it");
    let envelope = bytes.strip_prefix(MAGIC).ok_or_else(broken)?;
    let (mut version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    for field in fields(envelope) {
        match field.ok_or_else(broken)? {
            (1, Wire::Bytes(named)) => {
                for field in fields(named) {
                    match field.ok_or_else(broken)? {
                        (1, Wire::Bytes(text)) => version = String::from_utf8_lossy(text).into_owned(),
                        (2, Wire::Bytes(text)) => kind = String::from_utf8_lossy(text).into_owned(),
                        _ => {}
                    }
                }
            }
            (2, Wire::Bytes(content)) => raw = content,
            _ => {}
        }
    }
    let table = table(&version, &kind)
        .ok_or_else(|| Failure::unsupported_media_type("application/json, application/yaml"))?;
    let mut object = message(raw, table).ok_or_else(broken)?;
    object["apiVersion"] = version.into();
    object["kind"] = kind.into();
    Ok(object)
}

/// A field as it stands on the wire.
enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Fixed,
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// The fields of a message; `None` once where it breaks off.
fn fields(mut bytes: &[u8]) -> impl Iterator<Item = Option<(u32, Wire<'_>)>> {
    let mut broken = false;
    std::iter::from_fn(move || {
        if bytes.is_empty() || broken {
            return None;
        }
        let field = next(&mut bytes);
        broken = field.is_none();
        Some(field)
    })
}

fn next<'a>(bytes: &mut &'a [u8]) -> Option<(u32, Wire<'a>)> {
    let tag = varint(bytes)?;
    let number = u32::try_from(tag >> 3).ok()?;
    let wire = match tag & 7 {
        0 => Wire::Number(varint(bytes)?),
        1 => {
            *bytes = bytes.get(8..)?;
            Wire::Fixed
        }
        2 => {
            let length = usize::try_from(varint(bytes)?).ok()?;
            let content = bytes.get(..length)?;
            *bytes = bytes.get(length..)?;
            Wire::Bytes(content)
        }
        5 => {
            *bytes = bytes.get(4..)?;
            Wire::Fixed
        }
        _ => return None,
    };
    Some((number, wire))
}

fn text(bytes: &[u8]) -> Option<String> {
    String::from_utf8(bytes.to_vec()).ok()
}

/// A message as an object. Fields that the table does not know are passed over, as protobuf asks.
fn message(bytes: &[u8], table: Table) -> Option<Value> {
    let mut object = Map::new();
    for field in fields(bytes) {
        let (number, wire) = field?;
        let Some((_, name, holds)) = table.iter().find(|(known, ..)| *known == number) else { continue };
        let put =
            |object: &mut Map<String, Value>, value: Value| drop(object.insert((*name).to_owned(), value));
        match (holds, wire) {
            (Text, Wire::Bytes([])) => {}
            (Text | MaybeText, Wire::Bytes(bytes)) => put(&mut object, text(bytes)?.into()),
            (Int, Wire::Number(0)) => {}
            // Negative numbers are sent as their two's complement.
            (Int | MaybeInt, Wire::Number(value)) => put(&mut object, value.cast_signed().into()),
            (Bool, Wire::Number(value)) => put(&mut object, (value != 0).into()),
            (Time | MicroTime, Wire::Bytes(bytes)) => {
                if let Some(moment) = time(bytes, matches!(holds, MicroTime))? {
                    put(&mut object, moment.into());
                }
            }
            (Texts, Wire::Bytes(bytes)) => push(&mut object, name, text(bytes)?.into()),
            (Messages(table), Wire::Bytes(bytes)) => push(&mut object, name, message(bytes, table)?),
            (Message(table), Wire::Bytes(bytes)) => {
                let value = message(bytes, table)?;
                // The one field of a wrapper stands for the whole.
                put(&mut object, value.get("").cloned().unwrap_or(value));
            }
            (Json, Wire::Bytes(bytes)) => put(&mut object, serde_json::from_slice(bytes).ok()?),
            (TextMap | BytesMap | TextsMap, Wire::Bytes(bytes)) => {
                let (key, value) = entry(bytes, *holds)?;
                if let Value::Object(map) = object.entry(*name).or_insert_with(|| json!({})) {
                    map.insert(key, value);
                }
            }
            _ => return None,
        }
    }
    Some(Value::Object(object))
}

fn push(object: &mut Map<String, Value>, name: &str, value: Value) {
    if let Value::Array(list) = object.entry(name).or_insert_with(|| json!([])) {
        list.push(value);
    }
}

fn entry(bytes: &[u8], holds: Holds) -> Option<(String, Value)> {
    let (mut key, mut value) = (String::new(), &[][..]);
    for field in fields(bytes) {
        match field? {
            (1, Wire::Bytes(bytes)) => key = text(bytes)?,
            (2, Wire::Bytes(bytes)) => value = bytes,
            _ => {}
        }
    }
    let value = match holds {
        BytesMap => STANDARD.encode(value).into(),
        TextsMap => {
            message(value, &[(1, "items", Texts)])?.get("items").cloned().unwrap_or_else(|| json!([]))
        }
        _ => text(value)?.into(),
    };
    Some((key, value))
}

/// A moment; the zero of Go is none.
fn time(bytes: &[u8], micro: bool) -> Option<Option<String>> {
    let (mut seconds, mut nanos) = (0i64, 0i32);
    for field in fields(bytes) {
        match field? {
            (1, Wire::Number(value)) => seconds = value.cast_signed(),
            (2, Wire::Number(value)) => nanos = i32::try_from(value.cast_signed()).ok()?,
            _ => {}
        }
    }
    if bytes.is_empty() || seconds == -62_135_596_800 {
        return Some(None);
    }
    let moment = Timestamp::new(seconds, nanos).ok()?;
    let form = if micro { "%Y-%m-%dT%H:%M:%S%.6fZ" } else { "%Y-%m-%dT%H:%M:%SZ" };
    Some(Some(moment.strftime(form).to_string()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, u8::try_from(content.len()).expect("short")][..], content].concat()
    }

    fn envelope(version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let named = [field(1, version.as_bytes()), field(2, kind.as_bytes())].concat();
        [MAGIC, &field(1, &named), &field(2, raw)].concat()
    }

    #[test]
    fn a_config_map_reads_as_its_json() {
        let metadata =
            [field(1, b"a"), field(2, b""), field(11, &[field(1, b"k"), field(2, b"v")].concat())].concat();
        let raw = [
            field(1, &metadata),
            field(2, &[field(1, b"x"), field(2, b"y")].concat()),
            field(3, &[field(1, b"b"), field(2, &[1, 2])].concat()),
        ]
        .concat();
        let object = decode(&envelope("v1", "ConfigMap", &raw)).expect("reads");
        assert_eq!(
            object,
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "labels": {"k": "v"}}, "data": {"x": "y"}, "binaryData": {"b": "AQI="}})
        );
    }

    #[test]
    fn a_lease_keeps_what_is_zero_on_purpose() {
        let moment = [&[8][..], &[128, 148, 235, 220, 3]].concat();
        let spec = [field(1, b"me"), vec![5 << 3, 0], field(4, &moment)].concat();
        let object = decode(&envelope("coordination.k8s.io/v1", "Lease", &field(2, &spec))).expect("reads");
        assert_eq!(
            object["spec"],
            json!({"holderIdentity": "me", "leaseTransitions": 0, "renewTime": "2001-09-09T01:46:40.000000Z"})
        );
    }

    #[test]
    fn a_kind_without_a_table_is_refused_as_a_media_type() {
        assert_eq!(decode(&envelope("apps/v1", "Deployment", b"")).expect_err("no table").code, 415);
        assert_eq!(decode(b"{}").expect_err("no envelope").code, 400);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = decode(&[MAGIC, &bytes].concat());
            let _ = decode(&envelope("v1", "Secret", &bytes[..bytes.len().min(100)]));
        }
    }
}
