//! Objects as canonical JSON bytes.
//!
//! The store assigns the revision when it commits. An [`EncodedObject`] is therefore JSON with an empty
//! `metadata.resourceVersion` at a known offset; inserting the revision copies bytes and encodes nothing.

use bytes::Bytes;
use serde::{Deserialize, Deserializer, de::IgnoredAny};
use serde_json::{Map, Value};

use super::Revision;

/// An encoded object without its revision.
#[derive(Clone, Debug)]
pub(crate) struct EncodedObject {
    json: Vec<u8>,
    revision_offset: usize,
}

impl EncodedObject {
    /// Encodes `object`. Any `metadata.resourceVersion` in it is ignored.
    pub(crate) fn encode(object: &Value) -> Self {
        let mut json = Vec::with_capacity(1024);
        let mut revision_offset = 0;
        json.push(b'{');
        let empty = Map::new();
        let fields = object.as_object().unwrap_or(&empty);
        // apiVersion and kind come first, so that a reader finds them without parsing.
        for lead in ["apiVersion", "kind"] {
            if let Some(value) = fields.get(lead) {
                field(&mut json, lead, value);
            }
        }
        if json.len() > 1 {
            json.push(b',');
        }
        json.extend_from_slice(b"\"metadata\":{");
        if let Some(Value::Object(metadata)) = fields.get("metadata") {
            for (name, value) in metadata.iter().filter(|(name, _)| *name != "resourceVersion") {
                field(&mut json, name, value);
            }
        }
        if json.last() != Some(&b'{') {
            json.push(b',');
        }
        json.extend_from_slice(b"\"resourceVersion\":\"");
        revision_offset += json.len();
        json.extend_from_slice(b"\"}");
        for (name, value) in
            fields.iter().filter(|(name, _)| !matches!(name.as_str(), "apiVersion" | "kind" | "metadata"))
        {
            json.push(b',');
            let mut part = Vec::new();
            field(&mut part, name, value);
            json.append(&mut part);
        }
        json.push(b'}');
        Self { json, revision_offset }
    }

    /// Length of the JSON without the revision.
    pub(crate) fn len(&self) -> usize {
        self.json.len()
    }

    /// The object with `revision` as its resourceVersion.
    pub(crate) fn with_revision(&self, revision: Revision) -> Stored {
        Stored::splice(&self.json[..self.revision_offset], &self.json[self.revision_offset..], revision)
    }
}

/// Appends `"name":value`, with a comma if it is not the first field.
fn field(json: &mut Vec<u8>, name: &str, value: &Value) {
    if !matches!(json.last(), None | Some(b'{')) {
        json.push(b',');
    }
    // Writing a string or a Value to memory cannot fail.
    let _ = serde_json::to_writer(&mut *json, name);
    json.push(b':');
    let _ = serde_json::to_writer(&mut *json, value);
}

/// The part of an object's metadata that the controllers of the server read.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PartialMeta {
    #[serde(deserialize_with = "or_default")]
    pub(crate) uid: String,
    #[serde(deserialize_with = "or_default")]
    finalizers: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) owner_references: Vec<OwnerReference>,
    deletion_timestamp: Option<IgnoredAny>,
}

/// A reference to an owner.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct OwnerReference {
    api_version: String,
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) block_owner_deletion: bool,
}

/// Decodes null as the default.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
}

impl PartialMeta {
    /// Whether the object is being deleted.
    pub(crate) fn is_deleting(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    pub(crate) fn has_finalizer(&self, name: &str) -> bool {
        self.finalizers.iter().any(|finalizer| finalizer == name)
    }
}

impl OwnerReference {
    /// The API group of the owner; empty for the core group.
    pub(crate) fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }
}

/// A stored object: its JSON and the revision of its last write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    json: Bytes,
    revision: Revision,
    revision_offset: u32,
}

impl Stored {
    fn splice(head: &[u8], tail: &[u8], revision: Revision) -> Self {
        let mut digits = [0u8; 20];
        let digits = decimal(revision, &mut digits);
        let mut json = Vec::with_capacity(head.len() + digits.len() + tail.len());
        json.extend_from_slice(head);
        json.extend_from_slice(digits);
        json.extend_from_slice(tail);
        // The server refuses objects larger than a few MiB, so the offset fits.
        Self { json: json.into(), revision, revision_offset: u32::try_from(head.len()).unwrap_or(u32::MAX) }
    }

    /// An object read back from a durable store.
    pub(super) fn restore(json: Bytes, revision: Revision, revision_offset: u32) -> Self {
        Self { json, revision, revision_offset }
    }

    /// The JSON of the object.
    pub(crate) fn json(&self) -> &Bytes {
        &self.json
    }

    /// The revision of the last write.
    pub(crate) fn revision(&self) -> Revision {
        self.revision
    }

    pub(super) fn revision_offset(&self) -> u32 {
        self.revision_offset
    }

    /// The same object with another revision, for DELETED events.
    pub(crate) fn with_revision(&self, revision: Revision) -> Self {
        let mut digits = [0u8; 20];
        let old = decimal(self.revision, &mut digits).len();
        let revision_offset = self.revision_offset as usize;
        Self::splice(&self.json[..revision_offset], &self.json[revision_offset + old..], revision)
    }

    /// Decodes only the metadata that the controllers of the server read.
    pub(crate) fn partial_meta(&self) -> PartialMeta {
        #[derive(Deserialize)]
        struct Object {
            metadata: PartialMeta,
        }
        // Valid JSON, as in `value`.
        serde_json::from_slice(&self.json)
            .map_or_else(|_| PartialMeta::default(), |Object { metadata }| metadata)
    }

    /// Whether the JSON contains a byte string. The encoding is canonical, so a key always has the same
    /// bytes.
    pub(crate) fn contains(&self, text: &[u8]) -> bool {
        memchr::memmem::find(&self.json, text).is_some()
    }

    /// The object as JSON values.
    pub(crate) fn value(&self) -> Value {
        // Encoded by `EncodedObject::encode`, in this process or by the writer of the file.
        serde_json::from_slice(&self.json).unwrap_or(Value::Null)
    }
}

fn decimal(mut number: u64, buffer: &mut [u8; 20]) -> &[u8] {
    let mut at = buffer.len();
    loop {
        at -= 1;
        // A remainder of ten is one digit.
        buffer[at] = b'0' + u8::try_from(number % 10).unwrap_or(0);
        number /= 10;
        if number == 0 {
            return &buffer[at..];
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mk_object() -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "resourceVersion": "3"}, "data": {"k": "v"}})
    }

    #[test]
    fn the_revision_is_inserted_at_its_offset() {
        let stored = EncodedObject::encode(&mk_object()).with_revision(1234);
        let mut wanted = mk_object();
        wanted["metadata"]["resourceVersion"] = json!("1234");
        assert_eq!(stored.value(), wanted);
        assert!(stored.json().starts_with(b"{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{"));
    }

    #[test]
    fn partial_metadata_has_the_deletion_finalizers_and_owners_of_an_object() {
        let head = |metadata: Value| {
            EncodedObject::encode(&json!({"metadata": metadata, "spec": [1]})).with_revision(1).partial_meta()
        };
        let owned = head(json!({
            "uid": "u", "name": "a", "finalizers": ["f"], "deletionTimestamp": "2026-01-01T00:00:00Z",
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": "d-1", "blockOwnerDeletion": true},
                {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p-1"},
            ],
        }));
        assert!(owned.is_deleting() && owned.has_finalizer("f") && !owned.has_finalizer("g"));
        assert_eq!(owned.uid, "u");
        let owners = owned.owner_references.iter().map(|owner| (owner.group(), owner.block_owner_deletion));
        assert_eq!(owners.collect::<Vec<_>>(), [("apps", true), ("", false)]);
        let bare =
            head(json!({"uid": "u", "finalizers": null, "ownerReferences": null, "deletionTimestamp": null}));
        assert_eq!((bare.uid.as_str(), bare.is_deleting(), bare.owner_references.len()), ("u", false, 0));
    }

    #[test]
    fn another_revision_changes_only_the_resource_version() {
        let stored = EncodedObject::encode(&mk_object()).with_revision(99);
        let later = stored.with_revision(100_000);
        assert_eq!(later.value()["metadata"]["resourceVersion"], json!("100000"));
        assert_eq!(later.with_revision(99), stored);
    }

    #[test]
    fn an_object_without_metadata_gets_a_revision() {
        let stored = EncodedObject::encode(&json!({"kind": "X"})).with_revision(0);
        assert_eq!(stored.value(), json!({"kind": "X", "metadata": {"resourceVersion": "0"}}));
        assert_eq!(
            EncodedObject::encode(&json!({})).with_revision(7).value(),
            json!({"metadata": {"resourceVersion": "7"}})
        );
    }
}
