//! What was seen of a plane: compact JSON bytes, decoded when someone asks.
//!
//! A typed object in memory is five to six times as large as its JSON, and most objects are never looked at between two
//! changes. So the cache keeps bytes: without `managedFields` (nobody here reads them, and they are a third of an object) and
//! without `apiVersion` and `kind` (the same for every object of a store, and absent in the lists of some servers).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use serde_json::Value;

use crate::error::field_at;
use crate::index::{Index, for_each_field};
use crate::watch::Watch;
use crate::{Error, Kind, Object, Place, Plane};

/// What is kept of one plane: a store for each declared watch.
#[derive(Debug)]
pub(crate) struct Seen {
    /// The set that the plane belongs to.
    pub(crate) set: usize,
    pub(crate) watches: Arc<[Watch]>,
    stores: Box<[Mutex<Store>]>,
    /// Every kind was listed (or found absent) at least once.
    engaged: AtomicBool,
}

/// Why a kind is not up to date at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trouble {
    /// One word, for metrics.
    pub(crate) reason: &'static str,
    /// The whole story, for people.
    pub(crate) message: String,
}

/// The objects of one kind on one plane.
#[derive(Debug, Default)]
pub(crate) struct Store {
    objects: BTreeMap<Arc<str>, Arc<[u8]>>,
    /// (which index, value, object). A set of flat entries: no allocation at all while there are no objects.
    entries: BTreeSet<(u8, Box<str>, Arc<str>)>,
    /// Listed completely at least once.
    synced: bool,
    /// The plane is known not to serve the kind.
    absent: bool,
    trouble: Option<Box<Trouble>>,
}

/// An object as it is kept: `namespace/name` and its bytes.
pub(crate) type Kept = (Arc<str>, Arc<[u8]>);

/// A change of one object, by its bytes before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// `namespace/name`, or `/name`.
    pub(crate) id: Arc<str>,
    pub(crate) before: Option<Arc<[u8]>>,
    pub(crate) after: Option<Arc<[u8]>>,
}

impl Change {
    pub(crate) fn place(&self) -> Place<'_> {
        place_of_id(&self.id)
    }
}

/// An object as it is kept, and what the watch must know about it.
#[derive(Debug)]
pub(crate) struct Intake {
    pub(crate) id: Arc<str>,
    pub(crate) version: String,
    pub(crate) created: Option<String>,
    pub(crate) bytes: Arc<[u8]>,
}

pub(crate) fn id_of(place: Place<'_>) -> String {
    format!("{}/{}", place.namespace.unwrap_or_default(), place.name)
}

pub(crate) fn place_of_id(id: &str) -> Place<'_> {
    match id.split_once('/') {
        Some(("", name)) => Place { namespace: None, name },
        Some((namespace, name)) => Place { namespace: Some(namespace), name },
        None => Place { namespace: None, name: id },
    }
}

/// Takes an object in: strips it down to what is kept and finds out what it is called.
pub(crate) fn intake(json: &[u8]) -> Result<Intake, serde_json::Error> {
    let mut bytes = Vec::with_capacity(json.len());
    let (mut namespace, mut name, mut version, mut created) = (None, None, None, None);
    let mut meta_fault = None;
    bytes.push(b'{');
    for_each_field(json, |field, value| match &*field {
        "apiVersion" | "kind" => {}
        "metadata" => {
            put_name(&mut bytes, &field);
            bytes.push(b'{');
            let outcome = for_each_field(value.get().as_bytes(), |field, value| {
                let text = || serde_json::from_str::<String>(value.get()).ok();
                match &*field {
                    "managedFields" => return,
                    "namespace" => namespace = text(),
                    "name" => name = text(),
                    "resourceVersion" => version = text(),
                    "creationTimestamp" => created = text(),
                    _ => {}
                }
                put_name(&mut bytes, &field);
                bytes.extend_from_slice(value.get().as_bytes());
            });
            meta_fault = outcome.err();
            bytes.push(b'}');
        }
        _ => {
            put_name(&mut bytes, &field);
            bytes.extend_from_slice(value.get().as_bytes());
        }
    })?;
    bytes.push(b'}');
    if let Some(fault) = meta_fault {
        return Err(fault);
    }
    let Some(name) = name else {
        return Err(serde::de::Error::missing_field("metadata.name"));
    };
    let id = id_of(Place { namespace: namespace.as_deref(), name: &name });
    Ok(Intake { id: id.into(), version: version.unwrap_or_default(), created, bytes: bytes.into() })
}

fn put_name(bytes: &mut Vec<u8>, name: &str) {
    if bytes.last() != Some(&b'{') {
        bytes.push(b',');
    }
    // Writing text as JSON into memory cannot fail.
    let _ = serde_json::to_writer(&mut *bytes, name);
    bytes.push(b':');
}

impl Store {
    /// Keeps an object. None if that changes nothing.
    pub(crate) fn apply(&mut self, indexes: &[Index], id: &Arc<str>, bytes: Arc<[u8]>) -> Option<Change> {
        let (id, before) = match self.objects.get_key_value(id) {
            Some((_, before)) if *before == bytes => return None,
            Some((id, before)) => (id.clone(), Some(before.clone())),
            None => (id.clone(), None),
        };
        if let Some(before) = &before {
            self.unlist(indexes, &id, before);
        }
        for (index, number) in indexes.iter().zip(0u8..) {
            for value in index.values(&bytes) {
                self.entries.insert((number, value.into(), id.clone()));
            }
        }
        self.objects.insert(id.clone(), bytes.clone());
        Some(Change { id, before, after: Some(bytes) })
    }

    /// Forgets an object. None if it was not there.
    pub(crate) fn remove(&mut self, indexes: &[Index], id: &str) -> Option<Change> {
        let (id, before) = self.objects.remove_entry(id)?;
        self.unlist(indexes, &id, &before);
        Some(Change { id, before: Some(before), after: None })
    }

    fn unlist(&mut self, indexes: &[Index], id: &Arc<str>, bytes: &[u8]) {
        for (index, number) in indexes.iter().zip(0u8..) {
            for value in index.values(bytes) {
                self.entries.remove(&(number, value.into(), id.clone()));
            }
        }
    }

    /// The names that are kept but not in `listed`: what was deleted while nobody looked.
    pub(crate) fn missing_from(&self, listed: &BTreeSet<Arc<str>>) -> Vec<Arc<str>> {
        self.objects.keys().filter(|id| !listed.contains(*id)).cloned().collect()
    }

    pub(crate) fn get(&self, id: &str) -> Option<Arc<[u8]>> {
        self.objects.get(id).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Kept> {
        self.objects.iter().map(|(id, bytes)| (id.clone(), bytes.clone())).collect()
    }

    pub(crate) fn within(&self, namespace: &str) -> impl Iterator<Item = Kept> {
        // '0' follows '/', so this is every id that starts with "namespace/".
        let (from, to) = (format!("{namespace}/"), format!("{namespace}0"));
        let range = (Bound::Included(from.as_str()), Bound::Excluded(to.as_str()));
        self.objects.range::<str, _>(range).map(|(id, bytes)| (id.clone(), bytes.clone()))
    }

    pub(crate) fn by_index(&self, number: u8, value: &str) -> Vec<Kept> {
        let from: (u8, Box<str>, Arc<str>) = (number, value.into(), Arc::from(""));
        let entries = self.entries.range(from..).take_while(|(n, v, _)| *n == number && **v == *value);
        entries
            .filter_map(|(_, _, id)| self.objects.get_key_value(id))
            .map(|(id, bytes)| (id.clone(), bytes.clone()))
            .collect()
    }

    /// The names of the objects of a namespace that have a value under an index, in their order.
    pub(crate) fn names_by_index(&self, number: u8, value: &str, namespace: &str) -> Vec<String> {
        let from: (u8, Box<str>, Arc<str>) = (number, value.into(), format!("{namespace}/").into());
        let entries = self.entries.range(from..).take_while(|(n, v, _)| *n == number && **v == *value);
        let names = entries.map_while(|(_, _, id)| id.strip_prefix(namespace)?.strip_prefix('/'));
        names.map(str::to_owned).collect()
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

    pub(crate) fn set_synced(&mut self) {
        self.synced = true;
        self.absent = false;
        self.trouble = None;
    }

    pub(crate) fn set_absent(&mut self) {
        self.absent = true;
        self.trouble = None;
    }

    pub(crate) fn set_trouble(&mut self, trouble: Option<Trouble>) {
        self.trouble = trouble.map(Box::new);
    }

    pub(crate) fn trouble(&self) -> Option<&Trouble> {
        self.trouble.as_deref()
    }
}

impl Seen {
    pub(crate) fn new(set: usize, watches: Arc<[Watch]>) -> Self {
        let stores = watches.iter().map(|_| Mutex::default()).collect();
        Self { set, watches, stores, engaged: AtomicBool::new(false) }
    }

    pub(crate) fn is_engaged(&self) -> bool {
        self.engaged.load(Ordering::Acquire)
    }

    /// Notes that the plane is engaged. True the first time.
    pub(crate) fn set_engaged(&self) -> bool {
        !self.engaged.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn store(&self, watch: usize) -> &Mutex<Store> {
        &self.stores[watch]
    }

    /// Every kind is listed, or known not to be served.
    pub(crate) fn is_synced(&self) -> bool {
        self.stores.iter().all(|store| store.lock().is_synced())
    }

    /// The first trouble, with the kind it is about.
    pub(crate) fn trouble(&self) -> Option<(Kind, Trouble)> {
        self.watches.iter().zip(&self.stores).find_map(|(watch, store)| {
            store.lock().trouble().map(|trouble| (watch.kind.clone(), trouble.clone()))
        })
    }

    fn position(&self, plane: &Plane, kind: &Kind) -> Result<usize, Error> {
        self.watches
            .iter()
            .position(|watch| watch.kind == *kind)
            .ok_or_else(|| Error::NotWatched { plane: plane.name().clone(), kind: kind.to_string() })
    }
}

/// Reads from the cache: plain calls, no request, as of the last event that arrived.
impl Plane {
    /// The object, if the cache has it.
    pub fn get<'p, K: Object>(&self, place: impl Into<Place<'p>>) -> Result<Option<K>, Error> {
        let (kind, place) = (Kind::of::<K>(), place.into());
        let found = self.with_store(&kind, |store| store.get(&id_of(place)))?;
        found.map(|bytes| decode(self, &kind, &place.to_string(), &bytes)).transpose()
    }

    /// Every object of the kind, in the order of namespace and name.
    pub fn list<K: Object>(&self) -> Result<Vec<K>, Error> {
        let kind = Kind::of::<K>();
        self.decode_all(&kind, self.with_store(&kind, Store::all)?)
    }

    /// The objects of one namespace, in the order of their names.
    pub fn list_within<K: Object>(&self, namespace: &str) -> Result<Vec<K>, Error> {
        let kind = Kind::of::<K>();
        self.decode_all(&kind, self.with_store(&kind, |store| store.within(namespace).collect())?)
    }

    /// The objects that have a value under an index which the watch declares.
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

    /// The names of those of one namespace (`""` for kinds without one). Nothing is decoded, and nothing else is looked at.
    pub fn names_within<K: Object>(
        &self,
        namespace: &str,
        index: &Index,
        value: &str,
    ) -> Result<Vec<String>, Error> {
        let kind = Kind::of::<K>();
        self.with_index(&kind, index, |store, number| store.names_by_index(number, value, namespace))
    }

    /// Whether the namespace has any object of the kind.
    pub fn any_within<K: Object>(&self, namespace: &str) -> Result<bool, Error> {
        self.with_store(&Kind::of::<K>(), |store| store.within(namespace).next().is_some())
    }

    /// The objects that name `uid` as an owner. The watch must declare [`Index::Owner`].
    pub fn owned_by<K: Object>(&self, uid: &str) -> Result<Vec<K>, Error> {
        self.find(&Index::Owner, uid)
    }

    /// True once the kind was listed completely, or is known not to be served.
    pub fn synced<K: Object>(&self) -> Result<bool, Error> {
        self.with_store(&Kind::of::<K>(), |store| store.is_synced())
    }

    /// False if the plane is known not to serve the kind; its reads are empty then.
    pub fn serves<K: Object>(&self) -> Result<bool, Error> {
        self.with_store(&Kind::of::<K>(), |store| !store.is_absent())
    }

    /// An object of a kind that is only known at run time.
    pub fn get_value<'p>(&self, kind: &Kind, place: impl Into<Place<'p>>) -> Result<Option<Value>, Error> {
        let place = place.into();
        let found = self.with_store(kind, |store| store.get(&id_of(place)))?;
        found.map(|bytes| decode_any(self, kind, &place.to_string(), &bytes)).transpose()
    }

    /// Every object of a kind that is only known at run time.
    pub fn list_values(&self, kind: &Kind) -> Result<Vec<Value>, Error> {
        let found = self.with_store(kind, Store::all)?;
        found.iter().map(|(id, bytes)| decode_any(self, kind, &place_of_id(id).to_string(), bytes)).collect()
    }

    fn find_bytes(&self, kind: &Kind, index: &Index, value: &str) -> Result<Vec<Kept>, Error> {
        self.with_index(kind, index, |store, number| store.by_index(number, value))
    }

    fn with_index<T>(
        &self,
        kind: &Kind,
        index: &Index,
        read: impl FnOnce(&Store, u8) -> T,
    ) -> Result<T, Error> {
        let (seen, watch) = self.watch_of(kind)?;
        let number = seen.watches[watch].indexes.iter().position(|declared| declared == index);
        match number.and_then(|number| u8::try_from(number).ok()) {
            Some(number) => Ok(read(&seen.store(watch).lock(), number)),
            None => Err(Error::NoIndex { kind: kind.to_string(), index: index.to_string() }),
        }
    }

    fn with_store<T>(&self, kind: &Kind, read: impl FnOnce(&Store) -> T) -> Result<T, Error> {
        let (seen, watch) = self.watch_of(kind)?;
        let store = seen.store(watch).lock();
        Ok(read(&store))
    }

    fn watch_of(&self, kind: &Kind) -> Result<(&Arc<Seen>, usize), Error> {
        let Some(seen) = self.seen() else {
            return Err(Error::NotWatched { plane: self.name().clone(), kind: kind.to_string() });
        };
        Ok((seen, seen.position(self, kind)?))
    }

    fn decode_all<K: Object>(&self, kind: &Kind, found: Vec<Kept>) -> Result<Vec<K>, Error> {
        found.iter().map(|(id, bytes)| decode(self, kind, &place_of_id(id).to_string(), bytes)).collect()
    }
}

/// Bytes to an object; a failure names the object and the field, and is counted.
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

/// Bytes to a tree that says what it is, whether or not the bytes did.
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
    fn intake_drops_what_nobody_reads_and_keeps_the_rest_byte_for_byte() {
        let taken = intake(
            br#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","managedFields":[{"x":"}"}],"namespace":"n","resourceVersion":"7","labels":{"q\"":"1"}},"data":{"k":"v\u00e9"}}"#,
        )
        .unwrap();
        assert_eq!(&*taken.id, "n/a");
        assert_eq!(taken.version, "7");
        assert_eq!(
            std::str::from_utf8(&taken.bytes).unwrap(),
            r#"{"metadata":{"name":"a","namespace":"n","resourceVersion":"7","labels":{"q\"":"1"}},"data":{"k":"v\u00e9"}}"#
        );
    }

    #[test]
    fn an_object_without_a_name_is_turned_away() {
        assert!(intake(br#"{"metadata":{}}"#).is_err());
        assert!(intake(br#"{"metadata":[]}"#).is_err());
        assert!(intake(b"[]").is_err());
        assert!(intake(br#"{"metadata":{"name":"a"}"#).is_err());
    }

    #[test]
    fn the_same_bytes_again_are_no_change() {
        let mut store = Store::default();
        let taken = intake(br#"{"metadata":{"name":"a","namespace":"n"}}"#).unwrap();
        assert!(store.apply(&[], &taken.id, taken.bytes.clone()).is_some());
        assert_eq!(store.apply(&[], &taken.id, taken.bytes.clone()), None);
        assert!(store.remove(&[], "n/a").is_some());
        assert_eq!(store.remove(&[], "n/a"), None);
    }

    #[test]
    fn names_by_a_value_are_those_of_the_namespace_and_the_value_alone() {
        let indexes = [Index::label("city"), Index::label("else")];
        let mut store = Store::default();
        for (id, city) in
            [("a/x", "dfw"), ("a-b/x", "dfw"), ("a/y", "dfw"), ("a/z", "ord"), ("ab/x", "dfw"), ("/w", "dfw")]
        {
            let bytes = format!(r#"{{"metadata":{{"labels":{{"city":"{city}","else":"dfw"}}}}}}"#);
            store.apply(&indexes, &Arc::from(id), Arc::from(bytes.as_bytes()));
        }
        assert_eq!(store.names_by_index(0, "dfw", "a"), ["x", "y"]);
        assert_eq!(store.names_by_index(0, "ord", "a"), ["z"]);
        assert_eq!(store.names_by_index(0, "df", "a"), [""; 0]);
        assert_eq!(store.names_by_index(0, "dfw", ""), ["w"]);
    }

    #[test]
    fn a_namespace_is_not_confused_with_one_that_starts_alike() {
        let mut store = Store::default();
        for id in ["a/x", "a-b/x", "a/y", "ab/x", "/a"] {
            store.apply(&[], &Arc::from(id), Arc::from(&b"{}"[..]));
        }
        let names: Vec<_> = store.within("a").map(|(id, _)| id.to_string()).collect();
        assert_eq!(names, ["a/x", "a/y"]);
    }
}

#[cfg(test)]
mod model;
