//! Objects as bytes: canonical JSON, kept once, with the revision in its place.
//!
//! The revision of a write is known only to the store, at the last moment. A [`Draft`] is therefore JSON with a hole
//! where `metadata.resourceVersion` goes; filling it is a copy of bytes, not an encoding.

use bytes::Bytes;
use serde::{Deserialize, Deserializer, de::IgnoredAny};
use serde_json::{Map, Value};

use super::Revision;

/// An object ready to be written: JSON with a hole for the revision.
#[derive(Clone, Debug)]
pub struct Draft {
    json: Vec<u8>,
    hole: usize,
}

impl Draft {
    /// Encodes `object`. Any `metadata.resourceVersion` in it is ignored.
    pub fn encode(object: &Value) -> Self {
        let mut json = Vec::with_capacity(1024);
        let mut hole = 0;
        json.push(b'{');
        let empty = Map::new();
        let fields = object.as_object().unwrap_or(&empty);
        // apiVersion and kind lead, so that a reader (and `Stored::with_api_version`) finds them without parsing.
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
        hole += json.len();
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
        Self { json, hole }
    }

    /// Length of the JSON without the revision.
    pub fn len(&self) -> usize {
        self.json.len()
    }

    /// Never: a draft holds at least its braces.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The object as it is at `revision`.
    pub fn finish(&self, revision: Revision) -> Stored {
        Stored::splice(&self.json[..self.hole], &self.json[self.hole..], revision)
    }
}

/// Appends `"name":value`, with a comma if something stands before it.
fn field(json: &mut Vec<u8>, name: &str, value: &Value) {
    if !matches!(json.last(), None | Some(b'{')) {
        json.push(b',');
    }
    // Writing a string or a Value to memory cannot fail.
    let _ = serde_json::to_writer(&mut *json, name);
    json.push(b':');
    let _ = serde_json::to_writer(&mut *json, value);
}

/// The part of an object's metadata that decides about its life.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Head {
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

/// A null says as much as nothing.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
}

impl Head {
    /// Being deleted.
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

/// An object as stored: its bytes and the revision that wrote them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    json: Bytes,
    revision: Revision,
    hole: u32,
}

impl Stored {
    fn splice(head: &[u8], tail: &[u8], revision: Revision) -> Self {
        let mut digits = [0u8; 20];
        let digits = decimal(revision, &mut digits);
        let mut json = Vec::with_capacity(head.len() + digits.len() + tail.len());
        json.extend_from_slice(head);
        json.extend_from_slice(digits);
        json.extend_from_slice(tail);
        // An object is at most a few MiB (the server refuses larger ones), so the hole fits.
        Self { json: json.into(), revision, hole: u32::try_from(head.len()).unwrap_or(u32::MAX) }
    }

    /// An object read back from a durable store.
    pub(super) fn restore(json: Bytes, revision: Revision, hole: u32) -> Self {
        Self { json, revision, hole }
    }

    /// The JSON of the object.
    pub fn json(&self) -> &Bytes {
        &self.json
    }

    /// The revision that wrote it.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    pub(super) fn hole(&self) -> u32 {
        self.hole
    }

    /// The same object as of another revision: what a DELETED event carries.
    pub fn at(&self, revision: Revision) -> Self {
        let mut digits = [0u8; 20];
        let old = decimal(self.revision, &mut digits).len();
        let hole = self.hole as usize;
        Self::splice(&self.json[..hole], &self.json[hole + old..], revision)
    }

    /// What the server itself wants to know of an object, read without building the rest of it.
    pub(crate) fn head(&self) -> Head {
        #[derive(Deserialize)]
        struct Object {
            metadata: Head,
        }
        // As for `value`: the bytes are sound.
        serde_json::from_slice(&self.json).map_or_else(|_| Head::default(), |Object { metadata }| metadata)
    }

    /// Whether the bytes hold a text. Objects are canonical, so that keys always look the same.
    pub(crate) fn contains(&self, text: &[u8]) -> bool {
        memchr::memmem::find(&self.json, text).is_some()
    }

    /// The object as JSON values.
    pub fn value(&self) -> Value {
        // The bytes were encoded by `Draft::encode` or checked when the store was opened.
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
    fn the_revision_fills_the_hole() {
        let stored = Draft::encode(&mk_object()).finish(1234);
        let mut wanted = mk_object();
        wanted["metadata"]["resourceVersion"] = json!("1234");
        assert_eq!(stored.value(), wanted);
        assert!(stored.json().starts_with(b"{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{"));
    }

    #[test]
    fn the_head_says_what_decides_about_the_life_of_an_object() {
        let head =
            |metadata: Value| Draft::encode(&json!({"metadata": metadata, "spec": [1]})).finish(1).head();
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
    fn a_tombstone_differs_in_its_revision_only() {
        let stored = Draft::encode(&mk_object()).finish(99);
        let later = stored.at(100_000);
        assert_eq!(later.value()["metadata"]["resourceVersion"], json!("100000"));
        assert_eq!(later.at(99), stored);
    }

    #[test]
    fn an_object_without_metadata_still_gets_a_revision() {
        let stored = Draft::encode(&json!({"kind": "X"})).finish(0);
        assert_eq!(stored.value(), json!({"kind": "X", "metadata": {"resourceVersion": "0"}}));
        assert_eq!(
            Draft::encode(&json!({})).finish(7).value(),
            json!({"metadata": {"resourceVersion": "7"}})
        );
    }
}
