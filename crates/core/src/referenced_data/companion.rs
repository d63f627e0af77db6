//! Sources and companions: what is known of a source, and its copy on the hub.

use std::collections::{BTreeMap, BTreeSet};

use polis_api::k8s_openapi::ByteString;
use polis_api::k8s_openapi::api::core::v1::{ConfigMap, Secret};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polis_api::kube::Resource;
use polis_api::{ObjectExt, annotations, labels, names};
use sha2::{Digest, Sha256};

use super::DataKind;
use crate::metadata;
use crate::owner::ObjectRef;

/// Hex digits of a content hash.
const DIGITS: usize = 16;
/// The types of secrets whose companions have the same type; a kubelet needs it for the credentials of a
/// registry. All others are `Opaque`: control planes act on secrets of some types, such as tokens.
const KEPT_TYPES: [&str; 2] = ["kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg"];
const OPAQUE: &str = "Opaque";

/// A ConfigMap or a Secret.
pub trait DataObject: Resource<DynamicType = ()> + Clone + Default + PartialEq {
    /// Its kind.
    const KIND: DataKind;

    /// Its keys and values.
    fn entries(&self) -> Vec<(&str, &[u8])>;

    /// An object with the content of this one and no metadata.
    fn content(&self) -> Self;

    /// The type of a secret; empty for a config map.
    fn type_(&self) -> &str;
}

impl DataObject for ConfigMap {
    const KIND: DataKind = DataKind::ConfigMap;

    fn entries(&self) -> Vec<(&str, &[u8])> {
        let text = self.data.iter().flatten().map(|(key, value)| (key.as_str(), value.as_bytes()));
        let binary = self.binary_data.iter().flatten().map(|(key, value)| (key.as_str(), &*value.0));
        text.chain(binary).collect()
    }

    fn content(&self) -> Self {
        ConfigMap {
            data: non_empty(&self.data),
            binary_data: non_empty(&self.binary_data),
            ..ConfigMap::default()
        }
    }

    fn type_(&self) -> &str {
        ""
    }
}

impl DataObject for Secret {
    const KIND: DataKind = DataKind::Secret;

    fn entries(&self) -> Vec<(&str, &[u8])> {
        self.data.iter().flatten().map(|(key, value)| (key.as_str(), &*value.0)).collect()
    }

    fn content(&self) -> Self {
        let type_ = Some(self.type_().to_owned());
        Secret { data: non_empty::<ByteString>(&self.data), type_, ..Secret::default() }
    }

    fn type_(&self) -> &str {
        let own = self.type_.as_deref().unwrap_or_default();
        KEPT_TYPES.iter().find(|kept| **kept == own).copied().unwrap_or(OPAQUE)
    }
}

fn non_empty<V: Clone>(map: &Option<BTreeMap<String, V>>) -> Option<BTreeMap<String, V>> {
    map.clone().filter(|map| !map.is_empty())
}

/// What is known of a source, without its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFacts {
    /// UID of the source.
    pub uid: String,
    /// Its keys.
    pub keys: BTreeSet<String>,
    /// Bytes of its keys and values.
    pub size: usize,
    /// Hash of its UID and content.
    pub hash: String,
}

impl SourceFacts {
    /// The facts of a source.
    pub fn of<K: DataObject>(source: &K) -> Self {
        let entries = source.entries();
        SourceFacts {
            uid: source.uid().to_owned(),
            keys: entries.iter().map(|(key, _)| (*key).to_owned()).collect(),
            size: entries.iter().map(|(key, value)| key.len() + value.len()).sum(),
            hash: content_hash(source.uid(), source),
        }
    }
}

/// Hash of the content of an object, with the UID of its source.
fn content_hash<K: DataObject>(source_uid: &str, object: &K) -> String {
    let mut entries = object.entries();
    entries.sort();
    let mut digest = Sha256::new();
    let mut part = |bytes: &[u8]| {
        digest.update((bytes.len() as u64).to_be_bytes());
        digest.update(bytes);
    };
    for text in [source_uid, K::KIND.as_str(), object.type_()] {
        part(text.as_bytes());
    }
    for (key, value) in entries {
        part(key.as_bytes());
        part(value);
    }
    let hex: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    hex[..DIGITS].to_owned()
}

/// What to do about the companion of a source.
#[derive(Clone, Debug, PartialEq)]
pub enum CompanionAction<K> {
    /// The companion is up to date.
    None,
    /// Create the companion.
    Create(Box<K>),
    /// Replace the existing companion; the object has its resource version.
    Update(Box<K>),
    /// Delete this version; then a new one is created. The type of a Secret is immutable.
    Replace(ObjectRef),
    /// The companion is terminating: retry when it is gone.
    AwaitDeletion,
}

/// Plans the companion of a source in a hub namespace.
pub fn plan_companion<K: DataObject>(
    source: &K,
    namespace: &str,
    existing: Option<&K>,
) -> CompanionAction<K> {
    let facts = SourceFacts::of(source);
    let own_labels = metadata::map([(labels::REFERENCED_DATA, "true")]);
    let own_annotations = metadata::map([
        (annotations::SOURCE_NAME, source.name()),
        (annotations::CONTENT_HASH, facts.hash.as_str()),
    ]);
    let mut desired = source.content();
    let Some(existing) = existing else {
        *desired.meta_mut() = ObjectMeta {
            name: Some(names::companion(K::KIND.as_str(), source.name())),
            namespace: Some(namespace.to_owned()),
            labels: Some(own_labels),
            annotations: Some(own_annotations),
            ..ObjectMeta::default()
        };
        return CompanionAction::Create(Box::new(desired));
    };
    if existing.is_deleting() {
        return CompanionAction::AwaitDeletion;
    }
    if existing.type_() != desired.type_() {
        return CompanionAction::Replace(ObjectRef::of(existing));
    }
    let same_content = existing.content() == desired;
    *desired.meta_mut() = existing.meta().clone();
    let mut changed = metadata::merge_labels(desired.meta_mut(), &own_labels, &[]);
    changed |= metadata::merge_annotations(desired.meta_mut(), &own_annotations, &[]);
    match changed || !same_content {
        true => CompanionAction::Update(Box::new(desired)),
        false => CompanionAction::None,
    }
}

/// The content hash that a companion has, if its content is the one that the hash was made of.
pub fn hash_of<K: DataObject>(companion: &K, source_uid: &str) -> Option<String> {
    let hash = content_hash(source_uid, companion);
    (companion.annotation(annotations::CONTENT_HASH) == Some(hash.as_str())).then_some(hash)
}

/// Whether an object is a companion: it has the label, and the name that follows from its source.
pub fn is_companion<K: DataObject>(object: &K) -> bool {
    let source = object.annotation(annotations::SOURCE_NAME).unwrap_or_default();
    object.label(labels::REFERENCED_DATA) == Some("true")
        && names::companion(K::KIND.as_str(), source) == object.name()
}
