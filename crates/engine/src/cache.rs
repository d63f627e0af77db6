//! The informer cache of a plane: objects as compact JSON bytes, decoded on each read.
//!
//! A typed object in memory is five to six times as large as its JSON, and most objects are never read
//! between two changes. The cache therefore stores bytes: without `managedFields` (a third of an object, and
//! no controller reads them) and without `apiVersion` and `kind` (the same for all objects of a store, and
//! absent in the lists of some servers).
//!
//! Reads include own writes: the response of a write enters the cache at once ([`write_through`]), and the
//! watch, which shows the write later, never replaces it by an older state ([`own_writes`]).

mod added;
mod change;
mod informer_store;
mod own_writes;
mod untyped;
mod write_through;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use serde_json::Value;

use crate::error::field_at;
use crate::hold::Hold;
use crate::index::{Index, for_each_field, walk};
use crate::resource_version::ResourceVersion;
use crate::{Error, Kind, NamespacedName, Object, Plane};
use own_writes::OwnWrites;

pub use change::Change;
pub(crate) use informer_store::InformerStore;
pub(crate) use untyped::delete_options;
pub use untyped::{Deletion, Untyped};

/// Why the watch of a kind fails at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WatchError {
    /// The reason, as a metric label.
    pub(crate) reason: &'static str,
    /// The full error message.
    pub(crate) message: String,
}

/// The objects of one kind on one plane.
#[derive(Debug, Default)]
pub(crate) struct Store {
    objects: BTreeMap<Arc<str>, Arc<[u8]>>,
    /// Decoded objects, if the watch keeps them.
    decoded: BTreeMap<Arc<str>, Arc<Value>>,
    /// (index number, value, object id). A flat set, so that an empty store allocates nothing.
    entries: BTreeSet<(u8, Box<str>, Arc<str>)>,
    /// A complete list has been received at least once.
    synced: bool,
    /// The plane does not serve the kind, or does not allow the watch.
    absent: bool,
    error: Option<Box<WatchError>>,
    own_writes: OwnWrites,
}

/// A cached object: its id (`namespace/name`) and its bytes.
pub(crate) type StoredObject = (Arc<str>, Arc<[u8]>);

/// A change of one object: its bytes before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectChange {
    /// `namespace/name`, or `/name`.
    pub(crate) id: Arc<str>,
    pub(crate) before: Option<Arc<[u8]>>,
    pub(crate) after: Option<Arc<[u8]>>,
    /// The decoded object before, if the cache had it.
    pub(crate) decoded_before: Option<Arc<Value>>,
}

impl ObjectChange {
    pub(crate) fn name(&self) -> NamespacedName<'_> {
        name_of_id(&self.id)
    }
}

/// An object from a list, a watch or the response of a write: its bytes for the cache, and the metadata that
/// decides whether they enter it.
#[derive(Debug)]
pub(crate) struct ParsedObject {
    pub(crate) id: Arc<str>,
    pub(crate) uid: String,
    pub(crate) version: String,
    pub(crate) created: Option<String>,
    pub(crate) bytes: Arc<[u8]>,
}

pub(crate) fn id_of(object: NamespacedName<'_>) -> String {
    format!("{}/{}", object.namespace.unwrap_or_default(), object.name)
}

pub(crate) fn name_of_id(id: &str) -> NamespacedName<'_> {
    match id.split_once('/') {
        Some(("", name)) => NamespacedName { namespace: None, name },
        Some((namespace, name)) => NamespacedName { namespace: Some(namespace), name },
        None => NamespacedName { namespace: None, name: id },
    }
}

/// Parses an object from a server and removes the fields that the cache does not store.
pub(crate) fn parse_object(json: &[u8]) -> Result<ParsedObject, serde_json::Error> {
    let mut bytes = Vec::with_capacity(json.len());
    let (mut namespace, mut name, mut uid, mut version, mut created) = (None, None, None, None, None);
    let mut metadata_error = None;
    bytes.push(b'{');
    for_each_field(json, |field, value| match &*field {
        "apiVersion" | "kind" => {}
        "metadata" => {
            put_name(&mut bytes, &field);
            bytes.push(b'{');
            let result = for_each_field(value.get().as_bytes(), |field, value| {
                let text = || serde_json::from_str::<String>(value.get()).ok();
                match &*field {
                    "managedFields" => return,
                    "namespace" => namespace = text(),
                    "name" => name = text(),
                    "uid" => uid = text(),
                    "resourceVersion" => version = text(),
                    "creationTimestamp" => created = text(),
                    _ => {}
                }
                put_name(&mut bytes, &field);
                bytes.extend_from_slice(value.get().as_bytes());
            });
            metadata_error = result.err();
            bytes.push(b'}');
        }
        _ => {
            put_name(&mut bytes, &field);
            bytes.extend_from_slice(value.get().as_bytes());
        }
    })?;
    bytes.push(b'}');
    if let Some(error) = metadata_error {
        return Err(error);
    }
    let Some(name) = name else {
        return Err(serde::de::Error::missing_field("metadata.name"));
    };
    let id = id_of(NamespacedName { namespace: namespace.as_deref(), name: &name });
    let (uid, version) = (uid.unwrap_or_default(), version.unwrap_or_default());
    Ok(ParsedObject { id: id.into(), uid, version, created, bytes: bytes.into() })
}

fn put_name(bytes: &mut Vec<u8>, name: &str) {
    if bytes.last() != Some(&b'{') {
        bytes.push(b',');
    }
    // Writing a string as JSON into memory cannot fail.
    let _ = serde_json::to_writer(&mut *bytes, name);
    bytes.push(b':');
}

/// The text at `metadata.<field>` of cached bytes; empty if it is missing.
fn metadata_field(bytes: &[u8], field: &str) -> String {
    let mut values = Vec::new();
    walk(bytes, &["metadata", field], &mut values);
    values.pop().unwrap_or_default()
}

impl Store {
    /// Stores an object that the watch shows or a list contains, unless the cache is ahead of it. None if
    /// nothing changes.
    pub(crate) fn observe(&mut self, indexes: &[Index], object: &ParsedObject) -> Option<ObjectChange> {
        if self.own_writes.admit(object) { self.apply(indexes, &object.id, &object.bytes) } else { None }
    }

    /// Removes an object whose deletion the watch shows, unless the cache is ahead of it. None if nothing
    /// changes.
    pub(crate) fn observe_deletion(
        &mut self,
        indexes: &[Index],
        object: &ParsedObject,
    ) -> Option<ObjectChange> {
        if self.own_writes.admit_deletion(object) { self.remove(indexes, &object.id) } else { None }
    }

    /// Records that the watch has shown every change up to a version.
    pub(crate) fn set_shown(&mut self, version: &str) {
        self.own_writes.set_shown(version);
    }

    /// The newest version that the watch has shown or an own write has created; none if it is not known.
    pub(crate) fn newest(&self) -> Option<ResourceVersion> {
        self.own_writes.newest()
    }

    /// The server was restored from a backup: the next list replaces every object, also newer ones. Own
    /// writes that the server has lost are forgotten.
    pub(crate) fn restored(&mut self) {
        self.own_writes = OwnWrites::default();
    }

    /// Completes a list at a version: removes the objects that it does not contain, because they were deleted
    /// while the watch was interrupted.
    pub(crate) fn complete_list(
        &mut self,
        indexes: &[Index],
        listed: &BTreeSet<Arc<str>>,
        version: &str,
    ) -> Vec<ObjectChange> {
        let newer = self.own_writes.complete_list(listed, version);
        let deleted = self.objects.keys().filter(|id| !listed.contains(*id) && !newer.contains(*id));
        let deleted: Vec<Arc<str>> = deleted.cloned().collect();
        self.synced = true;
        self.absent = false;
        self.error = None;
        deleted.iter().filter_map(|id| self.remove(indexes, id)).collect()
    }

    /// Stores the response of an own write if it is newer than what the watch has shown. `selected` is
    /// whether the watch selects the object, if known. Where the response cannot enter the cache and the
    /// watch has not shown it, takes a hold that ends when it does. None if nothing changes.
    pub(crate) fn write(
        &mut self,
        indexes: &[Index],
        response: &ParsedObject,
        selected: Option<bool>,
        hold: impl FnOnce() -> Option<Hold>,
    ) -> Option<ObjectChange> {
        let cached = self.objects.get(&response.id).map(|bytes| metadata_field(bytes, "resourceVersion"));
        let is_watched = !self.absent && (selected != Some(false) || cached.is_some());
        let version = ResourceVersion::parse(&response.version);
        let is_shown = match version {
            Some(version) => {
                let cached = cached.and_then(|cached| ResourceVersion::parse(&cached));
                cached >= Some(version) || self.own_writes.includes(response, version)
            }
            None => cached.as_ref() == Some(&response.version),
        };
        if !is_watched || is_shown {
            return None;
        }
        match version {
            Some(version) if selected == Some(true) => {
                self.own_writes.set_written(response.id.clone(), version);
                self.apply(indexes, &response.id, &response.bytes)
            }
            _ => {
                if let Some(hold) = hold() {
                    self.own_writes.hold(response, hold);
                }
                None
            }
        }
    }

    /// Removes an object that an own write has deleted. Late events do not bring it back. None if the cache
    /// does not contain it.
    pub(crate) fn delete(&mut self, indexes: &[Index], id: &str, uid: &str) -> Option<ObjectChange> {
        let cached = self.objects.get(id).filter(|bytes| metadata_field(bytes, "uid") == uid)?;
        let last = ResourceVersion::parse(&metadata_field(cached, "resourceVersion"));
        let change = self.remove(indexes, id)?;
        self.own_writes.set_deleted(change.id.clone(), uid, last);
        Some(change)
    }

    fn apply(&mut self, indexes: &[Index], id: &Arc<str>, bytes: &Arc<[u8]>) -> Option<ObjectChange> {
        let (id, before) = match self.objects.get_key_value(id) {
            Some((_, before)) if before == bytes => return None,
            Some((id, before)) => (id.clone(), Some(before.clone())),
            None => (id.clone(), None),
        };
        if let Some(before) = &before {
            self.remove_from_indexes(indexes, &id, before);
        }
        for (index, number) in indexes.iter().zip(0u8..) {
            for value in index.values(bytes) {
                self.entries.insert((number, value.into(), id.clone()));
            }
        }
        self.objects.insert(id.clone(), bytes.clone());
        let decoded_before = self.decoded.remove(&id);
        Some(ObjectChange { id, before, after: Some(bytes.clone()), decoded_before })
    }

    fn remove(&mut self, indexes: &[Index], id: &str) -> Option<ObjectChange> {
        let (id, before) = self.objects.remove_entry(id)?;
        self.remove_from_indexes(indexes, &id, &before);
        let decoded_before = self.decoded.remove(&id);
        Some(ObjectChange { id, before: Some(before), after: None, decoded_before })
    }

    fn remove_from_indexes(&mut self, indexes: &[Index], id: &Arc<str>, bytes: &[u8]) {
        for (index, number) in indexes.iter().zip(0u8..) {
            for value in index.values(bytes) {
                self.entries.remove(&(number, value.into(), id.clone()));
            }
        }
    }

    pub(crate) fn get(&self, id: &str) -> Option<Arc<[u8]>> {
        self.objects.get(id).cloned()
    }

    /// The decoded object, if the cache has it.
    fn decoded(&self, id: &str) -> Option<Arc<Value>> {
        self.decoded.get(id).cloned()
    }

    /// Keeps the decoded form of these bytes, unless the object has changed since.
    fn keep_decoded(&mut self, id: &Arc<str>, bytes: &Arc<[u8]>, value: &Arc<Value>) {
        if self.objects.get(id).is_some_and(|stored| Arc::ptr_eq(stored, bytes)) {
            self.decoded.insert(id.clone(), value.clone());
        }
    }

    pub(crate) fn all(&self) -> Vec<StoredObject> {
        self.objects.iter().map(|(id, bytes)| (id.clone(), bytes.clone())).collect()
    }

    pub(crate) fn within(&self, namespace: &str) -> impl Iterator<Item = StoredObject> {
        // '0' follows '/', so this is every id that starts with "namespace/".
        let (from, to) = (format!("{namespace}/"), format!("{namespace}0"));
        let range = (Bound::Included(from.as_str()), Bound::Excluded(to.as_str()));
        self.objects.range::<str, _>(range).map(|(id, bytes)| (id.clone(), bytes.clone()))
    }

    pub(crate) fn by_index(&self, number: u8, value: &str) -> Vec<StoredObject> {
        let from: (u8, Box<str>, Arc<str>) = (number, value.into(), Arc::from(""));
        let entries = self.entries.range(from..).take_while(|(n, v, _)| *n == number && **v == *value);
        entries
            .filter_map(|(_, _, id)| self.objects.get_key_value(id))
            .map(|(id, bytes)| (id.clone(), bytes.clone()))
            .collect()
    }

    /// The names of the objects in a namespace with this value of an index, in order.
    pub(crate) fn names_by_index(&self, number: u8, value: &str, namespace: &str) -> Vec<String> {
        let from: (u8, Box<str>, Arc<str>) = (number, value.into(), format!("{namespace}/").into());
        let entries = self.entries.range(from..).take_while(|(n, v, _)| *n == number && **v == *value);
        let names = entries.map_while(|(_, _, id)| id.strip_prefix(namespace)?.strip_prefix('/'));
        names.map(str::to_owned).collect()
    }

    pub(crate) fn has_index(&self, number: u8, value: &str) -> bool {
        let from: (u8, Box<str>, Arc<str>) = (number, value.into(), Arc::from(""));
        self.entries.range(from..).next().is_some_and(|(n, v, _)| *n == number && **v == *value)
    }

    #[cfg(test)]
    pub(crate) fn entries(&self) -> &BTreeSet<(u8, Box<str>, Arc<str>)> {
        &self.entries
    }

    pub(crate) fn is_synced(&self) -> bool {
        self.synced || self.absent
    }

    pub(crate) fn is_absent(&self) -> bool {
        self.absent
    }

    pub(crate) fn set_absent(&mut self) {
        self.absent = true;
        self.error = None;
    }

    pub(crate) fn set_error(&mut self, error: Option<WatchError>) {
        self.error = error.map(Box::new);
    }

    pub(crate) fn error(&self) -> Option<&WatchError> {
        self.error.as_deref()
    }
}

/// Cached reads: synchronous, without a request, as of the last received watch event and the last own write.
impl Plane {
    /// The cached object; none if the cache does not contain it.
    pub fn get<'p, K: Object>(&self, name: impl Into<NamespacedName<'p>>) -> Result<Option<K>, Error> {
        let (kind, name) = (Kind::of::<K>(), name.into());
        let found = self.with_store(&kind, |store| store.get(&id_of(name)))?;
        found.map(|bytes| decode(self, &kind, &name.to_string(), &bytes)).transpose()
    }

    /// Every object of the kind, ordered by namespace and name.
    pub fn list<K: Object>(&self) -> Result<Vec<K>, Error> {
        let kind = Kind::of::<K>();
        self.decode_all(&kind, self.with_store(&kind, Store::all)?)
    }

    /// The objects in one namespace, ordered by name.
    pub fn list_within<K: Object>(&self, namespace: &str) -> Result<Vec<K>, Error> {
        let kind = Kind::of::<K>();
        self.decode_all(&kind, self.with_store(&kind, |store| store.within(namespace).collect())?)
    }

    /// The objects with this value of an index. The watch must declare the index.
    ///
    /// ```
    /// # use polis_engine::{Error, Index, Plane};
    /// # use polis_api::k8s_openapi::api::core::v1::Pod;
    /// # fn read(plane: &Plane) -> Result<(), Error> {
    /// let pods: Vec<Pod> = plane.find(&Index::field("spec.nodeName"), "node-a")?;
    /// # Ok(()) }
    /// ```
    pub fn find<K: Object>(&self, index: &Index, value: &str) -> Result<Vec<K>, Error> {
        let kind = Kind::of::<K>();
        let found = self.find_bytes(&kind, index, value)?;
        self.decode_all(&kind, found)
    }

    /// The names of the objects in one namespace with this value of an index, without decoding them. The
    /// namespace is `""` for cluster-scoped kinds.
    pub fn names_within<K: Object>(
        &self,
        namespace: &str,
        index: &Index,
        value: &str,
    ) -> Result<Vec<String>, Error> {
        let kind = Kind::of::<K>();
        self.with_index(&kind, index, |store, number| store.names_by_index(number, value, namespace))
    }

    /// Whether the namespace contains an object of the kind.
    pub fn any_within<K: Object>(&self, namespace: &str) -> Result<bool, Error> {
        self.with_store(&Kind::of::<K>(), |store| store.within(namespace).next().is_some())
    }

    /// Whether any object has this value of an index, without decoding objects.
    pub fn any_with<K: Object>(&self, index: &Index, value: &str) -> Result<bool, Error> {
        self.with_index(&Kind::of::<K>(), index, |store, number| store.has_index(number, value))
    }

    /// The objects with an owner reference to `uid`. The watch must declare [`Index::Owner`].
    pub fn owned_by<K: Object>(&self, uid: &str) -> Result<Vec<K>, Error> {
        self.find(&Index::Owner, uid)
    }

    /// True if the kind has been listed completely or is not served.
    pub fn synced<K: Object>(&self) -> Result<bool, Error> {
        self.with_store(&Kind::of::<K>(), |store| store.is_synced())
    }

    /// False if the plane does not serve the kind. Cached reads of the kind are then empty.
    pub fn serves<K: Object>(&self) -> Result<bool, Error> {
        self.with_store(&Kind::of::<K>(), |store| !store.is_absent())
    }

    /// Like [`Plane::list`], for a kind that is only known at run time.
    pub fn list_values(&self, kind: &Kind) -> Result<Vec<Value>, Error> {
        let found = self.with_store(kind, Store::all)?;
        found.iter().map(|(id, bytes)| decode_any(self, kind, &name_of_id(id).to_string(), bytes)).collect()
    }

    fn find_bytes(&self, kind: &Kind, index: &Index, value: &str) -> Result<Vec<StoredObject>, Error> {
        self.with_index(kind, index, |store, number| store.by_index(number, value))
    }

    fn with_index<T>(
        &self,
        kind: &Kind,
        index: &Index,
        read: impl FnOnce(&Store, u8) -> T,
    ) -> Result<T, Error> {
        let (informers, watch) = self.watch_of(kind)?;
        let number = informers.watches[watch].indexes.iter().position(|declared| declared == index);
        match number.and_then(|number| u8::try_from(number).ok()) {
            Some(number) => Ok(read(&informers.store(watch).lock(), number)),
            None => Err(Error::NoIndex { kind: kind.to_string(), index: index.to_string() }),
        }
    }

    fn with_store<T>(&self, kind: &Kind, read: impl FnOnce(&Store) -> T) -> Result<T, Error> {
        let (informers, watch) = self.watch_of(kind)?;
        let store = informers.store(watch).lock();
        Ok(read(&store))
    }

    /// The cache of a kind: of a declared watch, or of a watch that was added at run time.
    fn watch_of(&self, kind: &Kind) -> Result<(Arc<InformerStore>, usize), Error> {
        let found = self.informers().and_then(|informers| match informers.position(kind) {
            Some(watch) => Some((informers.clone(), watch)),
            None => informers.added.of(kind).map(|added| (added, 0)),
        });
        found.ok_or_else(|| Error::NotWatched { plane: self.name().clone(), kind: kind.to_string() })
    }

    fn decode_all<K: Object>(&self, kind: &Kind, found: Vec<StoredObject>) -> Result<Vec<K>, Error> {
        found.iter().map(|(id, bytes)| decode(self, kind, &name_of_id(id).to_string(), bytes)).collect()
    }
}

/// Decodes an object. A failure is counted, and its error names the object and the field.
pub(crate) fn decode<T: serde::de::DeserializeOwned>(
    plane: &Plane,
    kind: &Kind,
    name: &str,
    bytes: &[u8],
) -> Result<T, Error> {
    serde_json::from_slice(bytes).map_err(|source| {
        plane.env().metrics.decode_failed(kind);
        let field =
            if source.line() == 1 { field_at(bytes, source.column()) } else { "an unknown field".to_owned() };
        Error::Decode { plane: plane.name().clone(), object: format!("{} {name}", kind.kind), field, source }
    })
}

/// Decodes an object to a JSON tree and sets its `apiVersion` and `kind`, which cached bytes do not contain.
pub(crate) fn decode_any(plane: &Plane, kind: &Kind, name: &str, bytes: &[u8]) -> Result<Value, Error> {
    let mut value: Value = decode(plane, kind, name, bytes)?;
    if let Some(object) = value.as_object_mut() {
        object.insert("apiVersion".to_owned(), kind.api_version().into());
        object.insert("kind".to_owned(), kind.kind.as_ref().into());
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsing_removes_unused_fields_and_keeps_the_others_byte_for_byte() {
        let parsed = parse_object(
            br#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","managedFields":[{"x":"}"}],"namespace":"n","resourceVersion":"7","labels":{"q\"":"1"}},"data":{"k":"v\u00e9"}}"#,
        )
        .unwrap();
        assert_eq!(&*parsed.id, "n/a");
        assert_eq!(parsed.version, "7");
        assert_eq!(
            std::str::from_utf8(&parsed.bytes).unwrap(),
            r#"{"metadata":{"name":"a","namespace":"n","resourceVersion":"7","labels":{"q\"":"1"}},"data":{"k":"v\u00e9"}}"#
        );
    }

    #[test]
    fn an_object_without_a_name_is_rejected() {
        assert!(parse_object(br#"{"metadata":{}}"#).is_err());
        assert!(parse_object(br#"{"metadata":[]}"#).is_err());
        assert!(parse_object(b"[]").is_err());
        assert!(parse_object(br#"{"metadata":{"name":"a"}"#).is_err());
    }

    #[test]
    fn storing_the_same_bytes_again_is_no_change() {
        let mut store = Store::default();
        let parsed = parse_object(br#"{"metadata":{"name":"a","namespace":"n"}}"#).unwrap();
        assert!(store.observe(&[], &parsed).is_some());
        assert_eq!(store.observe(&[], &parsed), None);
        assert!(store.remove(&[], "n/a").is_some());
        assert_eq!(store.remove(&[], "n/a"), None);
    }

    #[test]
    fn names_by_index_match_exactly_one_namespace_and_value() {
        let indexes = [Index::label("city"), Index::label("else")];
        let mut store = Store::default();
        for (id, city) in
            [("a/x", "dfw"), ("a-b/x", "dfw"), ("a/y", "dfw"), ("a/z", "ord"), ("ab/x", "dfw"), ("/w", "dfw")]
        {
            let bytes = format!(r#"{{"metadata":{{"labels":{{"city":"{city}","else":"dfw"}}}}}}"#);
            store.apply(&indexes, &Arc::from(id), &Arc::from(bytes.as_bytes()));
        }
        assert_eq!(store.names_by_index(0, "dfw", "a"), ["x", "y"]);
        assert_eq!(store.names_by_index(0, "ord", "a"), ["z"]);
        assert_eq!(store.names_by_index(0, "df", "a"), [""; 0]);
        assert_eq!(store.names_by_index(0, "dfw", ""), ["w"]);
        assert_eq!(
            ["dfw", "ord", "df", "lhr"].map(|city| store.has_index(0, city)),
            [true, true, false, false]
        );
    }

    #[test]
    fn a_namespace_is_not_confused_with_one_that_shares_its_prefix() {
        let mut store = Store::default();
        for id in ["a/x", "a-b/x", "a/y", "ab/x", "/a"] {
            store.apply(&[], &Arc::from(id), &Arc::from(&b"{}"[..]));
        }
        let names: Vec<_> = store.within("a").map(|(id, _)| id.to_string()).collect();
        assert_eq!(names, ["a/x", "a/y"]);
    }
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod own_writes_model;
