//! Decoder for protobuf request bodies of built-in kinds.
//!
//! kubectl and controller-runtime send built-in kinds as protobuf and do not fall back to JSON on an error.
//! The decoder reads the envelope (`runtime.Unknown`) and decodes the object with tables of field numbers.
//! Responses are always JSON, which all clients accept. A kind without a table is an error.

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

/// A body that is not an object in Kubernetes' protobuf encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProtobufError {
    /// The envelope or a message is malformed.
    #[error("the body of the request is not protobuf as Kubernetes writes it")]
    Malformed,
    /// The decoder has no table for the kind.
    #[error("the kind has no protobuf decoder")]
    UnknownKind,
}

/// The type of a field and its JSON encoding.
#[derive(Clone, Copy)]
enum FieldType {
    /// A string, omitted if empty.
    Text,
    /// An optional string (`*string` in Go), kept if empty.
    MaybeText,
    /// An integer, omitted if zero.
    Int,
    /// An optional integer (`*int64` in Go), kept if zero.
    MaybeInt,
    /// A boolean.
    Bool,
    /// A time in whole seconds.
    Time,
    /// A time in microseconds.
    MicroTime,
    /// A list of strings.
    Texts,
    /// A map from string to string.
    TextMap,
    /// A map from string to bytes.
    BytesMap,
    /// A map from string to list of strings.
    TextsMap,
    /// A message.
    Message(FieldTable),
    /// A list of messages.
    Messages(FieldTable),
    /// JSON encoded as bytes.
    Json,
}

/// The fields of a message: number, JSON name, type.
type FieldTable = &'static [(u32, &'static str, FieldType)];

use FieldType::{
    Bool, BytesMap, Int, Json, MaybeInt, MaybeText, Message, Messages, MicroTime, Text, TextMap, Texts,
    TextsMap, Time,
};

const OWNER: FieldTable = &[
    (1, "kind", Text),
    (3, "name", Text),
    (4, "uid", Text),
    (5, "apiVersion", Text),
    (6, "controller", Bool),
    (7, "blockOwnerDeletion", Bool),
];
const FIELDS: FieldTable = &[(1, "", Json)];
const MANAGED: FieldTable = &[
    (1, "manager", Text),
    (2, "operation", Text),
    (3, "apiVersion", Text),
    (4, "time", Time),
    (6, "fieldsType", Text),
    (7, "fieldsV1", Message(FIELDS)),
    (8, "subresource", Text),
];
const META: FieldTable = &[
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
const REFERENCE: FieldTable = &[
    (1, "kind", Text),
    (2, "namespace", Text),
    (3, "name", Text),
    (4, "uid", Text),
    (5, "apiVersion", Text),
    (6, "resourceVersion", Text),
    (7, "fieldPath", Text),
];
const SOURCE: FieldTable = &[(1, "component", Text), (2, "host", Text)];
const SERIES: FieldTable = &[(1, "count", Int), (2, "lastObservedTime", MicroTime)];
const CONFIG_MAP: FieldTable = &[
    (1, "metadata", Message(META)),
    (2, "data", TextMap),
    (3, "binaryData", BytesMap),
    (4, "immutable", Bool),
];
const SECRET: FieldTable = &[
    (1, "metadata", Message(META)),
    (2, "data", BytesMap),
    (3, "type", Text),
    (4, "stringData", TextMap),
    (5, "immutable", Bool),
];
const CONDITION: FieldTable = &[
    (1, "type", Text),
    (2, "status", Text),
    (4, "lastTransitionTime", Time),
    (5, "reason", Text),
    (6, "message", Text),
];
const NAMESPACE: FieldTable = &[
    (1, "metadata", Message(META)),
    (2, "spec", Message(&[(1, "finalizers", Texts)])),
    (3, "status", Message(&[(1, "phase", Text), (2, "conditions", Messages(CONDITION))])),
];
const ACCOUNT: FieldTable = &[
    (1, "metadata", Message(META)),
    (2, "secrets", Messages(REFERENCE)),
    (3, "imagePullSecrets", Messages(&[(1, "name", Text)])),
    (4, "automountServiceAccountToken", Bool),
];
const EVENT: FieldTable = &[
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
const NEW_EVENT: FieldTable = &[
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
const LEASE: FieldTable = &[
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
const DELETE_OPTIONS: FieldTable = &[
    (1, "gracePeriodSeconds", MaybeInt),
    (2, "preconditions", Message(&[(1, "uid", MaybeText), (2, "resourceVersion", MaybeText)])),
    (3, "orphanDependents", Bool),
    (4, "propagationPolicy", MaybeText),
    (5, "dryRun", Texts),
];
const RULE: FieldTable = &[
    (1, "verbs", Texts),
    (2, "apiGroups", Texts),
    (3, "resources", Texts),
    (4, "resourceNames", Texts),
    (5, "nonResourceURLs", Texts),
];
const ROLE: FieldTable = &[(1, "metadata", Message(META)), (2, "rules", Messages(RULE))];
const SUBJECT: FieldTable =
    &[(1, "kind", Text), (2, "apiGroup", Text), (3, "name", Text), (4, "namespace", Text)];
const BINDING: FieldTable = &[
    (1, "metadata", Message(META)),
    (2, "subjects", Messages(SUBJECT)),
    (3, "roleRef", Message(&[(1, "apiGroup", Text), (2, "kind", Text), (3, "name", Text)])),
];
const RESOURCE_ACCESS: FieldTable = &[
    (1, "namespace", Text),
    (2, "verb", Text),
    (3, "group", Text),
    (4, "version", Text),
    (5, "resource", Text),
    (6, "subresource", Text),
    (7, "name", Text),
];
const PATH_ACCESS: FieldTable = &[(1, "path", Text), (2, "verb", Text)];
const SELF_REVIEW: FieldTable = &[
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
const REVIEW: FieldTable = &[
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
const RULES_REVIEW: FieldTable =
    &[(1, "metadata", Message(META)), (2, "spec", Message(&[(1, "namespace", Text)]))];
const TOKEN_REVIEW: FieldTable =
    &[(1, "metadata", Message(META)), (2, "spec", Message(&[(1, "token", Text), (2, "audiences", Texts)]))];
const TOKEN_REQUEST: FieldTable = &[
    (1, "metadata", Message(META)),
    (2, "spec", Message(&[(1, "audiences", Texts), (4, "expirationSeconds", MaybeInt)])),
];
const WHO_AM_I: FieldTable = &[(1, "metadata", Message(META))];

/// The field table of a kind.
fn table(version: &str, kind: &str) -> Option<FieldTable> {
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

/// Prefix of every protobuf message of Kubernetes.
const MAGIC: &[u8] = b"k8s\0";

/// Decodes an object from Kubernetes' protobuf envelope.
pub fn decode(bytes: &[u8]) -> Result<Value, ProtobufError> {
    let broken = ProtobufError::Malformed;
    let envelope = bytes.strip_prefix(MAGIC).ok_or(broken)?;
    let (mut version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    for field in fields(envelope) {
        match field.ok_or(broken)? {
            (1, WireValue::Bytes(named)) => {
                for field in fields(named) {
                    match field.ok_or(broken)? {
                        (1, WireValue::Bytes(text)) => version = String::from_utf8_lossy(text).into_owned(),
                        (2, WireValue::Bytes(text)) => kind = String::from_utf8_lossy(text).into_owned(),
                        _ => {}
                    }
                }
            }
            (2, WireValue::Bytes(content)) => raw = content,
            _ => {}
        }
    }
    let table = table(&version, &kind).ok_or(ProtobufError::UnknownKind)?;
    let mut object = message(raw, table).ok_or(broken)?;
    object["apiVersion"] = version.into();
    object["kind"] = kind.into();
    Ok(object)
}

/// The encoded value of a field, by wire type.
enum WireValue<'a> {
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

/// The fields of a message; ends with `None` if the message is malformed.
fn fields(mut bytes: &[u8]) -> impl Iterator<Item = Option<(u32, WireValue<'_>)>> {
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

fn next<'a>(bytes: &mut &'a [u8]) -> Option<(u32, WireValue<'a>)> {
    let tag = varint(bytes)?;
    let number = u32::try_from(tag >> 3).ok()?;
    let value = match tag & 7 {
        0 => WireValue::Number(varint(bytes)?),
        1 => {
            *bytes = bytes.get(8..)?;
            WireValue::Fixed
        }
        2 => {
            let length = usize::try_from(varint(bytes)?).ok()?;
            let content = bytes.get(..length)?;
            *bytes = bytes.get(length..)?;
            WireValue::Bytes(content)
        }
        5 => {
            *bytes = bytes.get(4..)?;
            WireValue::Fixed
        }
        _ => return None,
    };
    Some((number, value))
}

fn text(bytes: &[u8]) -> Option<String> {
    String::from_utf8(bytes.to_vec()).ok()
}

/// Decodes a message to a JSON object. Unknown fields are skipped, as protobuf requires.
fn message(bytes: &[u8], table: FieldTable) -> Option<Value> {
    let mut object = Map::new();
    for field in fields(bytes) {
        let (number, wire) = field?;
        let Some((_, name, field_type)) = table.iter().find(|(known, ..)| *known == number) else { continue };
        let put =
            |object: &mut Map<String, Value>, value: Value| drop(object.insert((*name).to_owned(), value));
        match (field_type, wire) {
            (Text, WireValue::Bytes([])) => {}
            (Text | MaybeText, WireValue::Bytes(bytes)) => put(&mut object, text(bytes)?.into()),
            (Int, WireValue::Number(0)) => {}
            // Negative integers are encoded as two's complement.
            (Int | MaybeInt, WireValue::Number(value)) => put(&mut object, value.cast_signed().into()),
            (Bool, WireValue::Number(value)) => put(&mut object, (value != 0).into()),
            (Time | MicroTime, WireValue::Bytes(bytes)) => {
                if let Some(moment) = time(bytes, matches!(field_type, MicroTime))? {
                    put(&mut object, moment.into());
                }
            }
            (Texts, WireValue::Bytes(bytes)) => push(&mut object, name, text(bytes)?.into()),
            (Messages(table), WireValue::Bytes(bytes)) => push(&mut object, name, message(bytes, table)?),
            (Message(table), WireValue::Bytes(bytes)) => {
                let value = message(bytes, table)?;
                // A wrapper message (field name "") is replaced by its only field.
                put(&mut object, value.get("").cloned().unwrap_or(value));
            }
            (Json, WireValue::Bytes(bytes)) => put(&mut object, serde_json::from_slice(bytes).ok()?),
            (TextMap | BytesMap | TextsMap, WireValue::Bytes(bytes)) => {
                let (key, value) = entry(bytes, *field_type)?;
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

fn entry(bytes: &[u8], field_type: FieldType) -> Option<(String, Value)> {
    let (mut key, mut value) = (String::new(), &[][..]);
    for field in fields(bytes) {
        match field? {
            (1, WireValue::Bytes(bytes)) => key = text(bytes)?,
            (2, WireValue::Bytes(bytes)) => value = bytes,
            _ => {}
        }
    }
    let value = match field_type {
        BytesMap => STANDARD.encode(value).into(),
        TextsMap => {
            message(value, &[(1, "items", Texts)])?.get("items").cloned().unwrap_or_else(|| json!([]))
        }
        _ => text(value)?.into(),
    };
    Some((key, value))
}

/// Decodes a time; Go's zero time is `None`.
fn time(bytes: &[u8], micro: bool) -> Option<Option<String>> {
    let (mut seconds, mut nanos) = (0i64, 0i32);
    for field in fields(bytes) {
        match field? {
            (1, WireValue::Number(value)) => seconds = value.cast_signed(),
            (2, WireValue::Number(value)) => nanos = i32::try_from(value.cast_signed()).ok()?,
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
    fn a_config_map_decodes_to_its_json() {
        let metadata =
            [field(1, b"a"), field(2, b""), field(11, &[field(1, b"k"), field(2, b"v")].concat())].concat();
        let raw = [
            field(1, &metadata),
            field(2, &[field(1, b"x"), field(2, b"y")].concat()),
            field(3, &[field(1, b"b"), field(2, &[1, 2])].concat()),
        ]
        .concat();
        let object = decode(&envelope("v1", "ConfigMap", &raw)).expect("decodes");
        assert_eq!(
            object,
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "labels": {"k": "v"}}, "data": {"x": "y"}, "binaryData": {"b": "AQI="}})
        );
    }

    #[test]
    fn optional_zero_values_are_kept() {
        let moment = [&[8][..], &[128, 148, 235, 220, 3]].concat();
        let spec = [field(1, b"me"), vec![5 << 3, 0], field(4, &moment)].concat();
        let object = decode(&envelope("coordination.k8s.io/v1", "Lease", &field(2, &spec))).expect("decodes");
        assert_eq!(
            object["spec"],
            json!({"holderIdentity": "me", "leaseTransitions": 0, "renewTime": "2001-09-09T01:46:40.000000Z"})
        );
    }

    #[test]
    fn a_kind_without_a_table_is_rejected() {
        assert_eq!(decode(&envelope("apps/v1", "Deployment", b"")), Err(ProtobufError::UnknownKind));
        assert_eq!(decode(b"{}"), Err(ProtobufError::Malformed));
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_rejected(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = decode(&[MAGIC, &bytes].concat());
            let _ = decode(&envelope("v1", "Secret", &bytes[..bytes.len().min(100)]));
        }
    }
}
