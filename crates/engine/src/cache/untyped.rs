//! [`Untyped`]: reads and writes of objects whose kind is known only at run time, as JSON trees.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use super::{StoredObject, decode_any, id_of, parse_object};
use crate::plane::{Call, JSON, about};
use crate::{Error, Index, Kind, ListOptions, NamespacedName, Plane};

const MERGE_PATCH: &str = "application/merge-patch+json";

/// The objects of one kind on a plane, as JSON trees. Made by [`Plane::untyped`].
///
/// Cached reads share one tree per version, if the watch keeps decoded objects
/// ([`crate::Watch::keep_decoded`]). The trees have `apiVersion` and `kind`, and no managed fields. The
/// response of a write enters the cache at once, as with typed objects.
#[derive(Clone, Copy)]
pub struct Untyped<'p> {
    plane: &'p Plane,
    kind: &'p Kind,
}

/// How a delete ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// The object no longer exists.
    Complete,
    /// The object exists until its finalizers are removed or its grace period is over.
    Pending,
}

impl Plane {
    /// The objects of a kind that is known only at run time.
    pub fn untyped<'p>(&'p self, kind: &'p Kind) -> Untyped<'p> {
        Untyped { plane: self, kind }
    }
}

/// Cached reads. They fail if the kind is not watched.
impl Untyped<'_> {
    /// The cached object; none if the cache does not contain it.
    pub fn get<'n>(&self, name: impl Into<NamespacedName<'n>>) -> Result<Option<Arc<Value>>, Error> {
        let (informers, watch) = self.plane.watch_of(self.kind)?;
        let store = informers.store(watch).lock();
        let Some((id, bytes)) = store.objects.get_key_value(id_of(name.into()).as_str()) else {
            return Ok(None);
        };
        if let Some(decoded) = store.decoded(id) {
            return Ok(Some(decoded));
        }
        let (id, bytes) = (id.clone(), bytes.clone());
        drop(store);
        informers.decode_kept(self.plane, watch, &id, &bytes).map(Some)
    }

    /// Whether the cache contains the object.
    pub fn contains<'n>(&self, name: impl Into<NamespacedName<'n>>) -> Result<bool, Error> {
        let id = id_of(name.into());
        self.plane.with_store(self.kind, |store| store.objects.contains_key(id.as_str()))
    }

    /// Every object, ordered by namespace and name.
    pub fn list(&self) -> Result<Vec<Arc<Value>>, Error> {
        self.decode_all(self.plane.with_store(self.kind, super::Store::all)?)
    }

    /// The objects in one namespace, ordered by name.
    pub fn list_within(&self, namespace: &str) -> Result<Vec<Arc<Value>>, Error> {
        self.decode_all(self.plane.with_store(self.kind, |store| store.within(namespace).collect())?)
    }

    /// The names of all objects, as (namespace, name), without decoding them.
    pub fn names(&self) -> Result<Vec<(Option<String>, String)>, Error> {
        let all = self.plane.with_store(self.kind, super::Store::all)?;
        let name = |(id, _): &StoredObject| {
            let name = super::name_of_id(id);
            (name.namespace.map(str::to_owned), name.name.to_owned())
        };
        Ok(all.iter().map(name).collect())
    }

    /// The objects with this value of an index. The watch must declare the index.
    pub fn find(&self, index: &Index, value: &str) -> Result<Vec<Arc<Value>>, Error> {
        self.decode_all(self.plane.find_bytes(self.kind, index, value)?)
    }

    /// The number of objects with this value of an index, without decoding them.
    pub fn count(&self, index: &Index, value: &str) -> Result<usize, Error> {
        self.plane.find_bytes(self.kind, index, value).map(|found| found.len())
    }

    /// The names of the objects in one namespace with this value of an index. The namespace is `""` for
    /// cluster-scoped kinds.
    pub fn names_within(&self, namespace: &str, index: &Index, value: &str) -> Result<Vec<String>, Error> {
        self.plane
            .with_index(self.kind, index, |store, number| store.names_by_index(number, value, namespace))
    }

    fn decode_all(&self, found: Vec<StoredObject>) -> Result<Vec<Arc<Value>>, Error> {
        let (informers, watch) = self.plane.watch_of(self.kind)?;
        found.iter().map(|(id, bytes)| informers.decode_kept(self.plane, watch, id, bytes)).collect()
    }
}

/// Uncached reads.
impl Untyped<'_> {
    /// The object on the server; none if the server returns 404.
    pub async fn read<'n>(&self, name: impl Into<NamespacedName<'n>>) -> Result<Option<Value>, Error> {
        let name = name.into();
        let mut object = self.read_all_fields(name).await?;
        if let Some(metadata) = object.as_mut().and_then(|object| object["metadata"].as_object_mut()) {
            metadata.remove("managedFields");
        }
        Ok(object)
    }

    /// The names of the writers in the managed fields of an object, in order.
    pub async fn field_managers<'n>(
        &self,
        name: impl Into<NamespacedName<'n>>,
    ) -> Result<Vec<String>, Error> {
        let object = self.read_all_fields(name.into()).await?.unwrap_or_default();
        let fields = object["metadata"]["managedFields"].as_array().into_iter().flatten();
        let managers = fields.filter_map(|entry| Some(entry["manager"].as_str()?.to_owned()));
        Ok(managers.collect::<BTreeSet<String>>().into_iter().collect())
    }

    async fn read_all_fields(&self, name: NamespacedName<'_>) -> Result<Option<Value>, Error> {
        let Some(content) = self.plane.uncached().get_bytes(self.kind, name).await? else { return Ok(None) };
        decode_any(self.plane, self.kind, &name.to_string(), &content).map(Some)
    }

    /// The objects on the server that match, read in pages of 500.
    pub async fn read_all(&self, options: &ListOptions) -> Result<Vec<Value>, Error> {
        let mut objects = Vec::new();
        let each = |item: &serde_json::value::RawValue| {
            objects.push(decode_any(self.plane, self.kind, "(in a list)", item.get().as_bytes())?);
            Ok(())
        };
        self.plane.uncached().pages(self.kind, options, each).await?;
        Ok(objects)
    }
}

/// Writes. None compares first: the caller sends only what differs.
impl Untyped<'_> {
    /// Creates an object. Fails with [`crate::ErrorClass::AlreadyExists`] if an object of that name exists.
    pub async fn create(&self, object: &Value) -> Result<Arc<Value>, Error> {
        let path = self.kind.path(object["metadata"]["namespace"].as_str());
        self.send("create", Method::POST, path, JSON, object, name_of(object)).await
    }

    /// Replaces an object. Its resource version must be the current one.
    pub async fn update(&self, object: &Value) -> Result<Arc<Value>, Error> {
        let name = name_of(object);
        self.send("update", Method::PUT, self.kind.path_of(name), JSON, object, name).await
    }

    /// Replaces the status of an object. Its resource version must be the current one.
    pub async fn update_status(&self, object: &Value) -> Result<Arc<Value>, Error> {
        let name = name_of(object);
        let path = format!("{}/status", self.kind.path_of(name));
        self.send("update", Method::PUT, path, JSON, object, name).await
    }

    /// Applies a JSON merge patch. A patch with `metadata.uid` and `metadata.resourceVersion` fails with a
    /// conflict if the object has changed.
    pub async fn patch<'n>(
        &self,
        name: impl Into<NamespacedName<'n>>,
        patch: &Value,
    ) -> Result<Arc<Value>, Error> {
        let name = name.into();
        self.send("patch", Method::PATCH, self.kind.path_of(name), MERGE_PATCH, patch, name).await
    }

    /// Deletes the object with this name and UID, with background propagation. Fails with a conflict if
    /// another object has the name.
    pub async fn delete<'n>(
        &self,
        name: impl Into<NamespacedName<'n>>,
        uid: &str,
    ) -> Result<Deletion, Error> {
        let Some(response) = self.plane.send_delete(self.kind, name.into(), uid, None).await? else {
            return Ok(Deletion::Complete);
        };
        #[derive(serde::Deserialize)]
        struct Response {
            #[serde(default)]
            kind: String,
        }
        let is_status = serde_json::from_slice(&response).is_ok_and(|Response { kind }| kind == "Status");
        Ok(if is_status { Deletion::Complete } else { Deletion::Pending })
    }

    async fn send(
        &self,
        verb: &'static str,
        method: Method,
        path: String,
        content_type: &'static str,
        content: &Value,
        name: NamespacedName<'_>,
    ) -> Result<Arc<Value>, Error> {
        let about = about(self.kind, name);
        // A second execution of a write with a resource version has no effect.
        let idempotent = content["metadata"]["resourceVersion"].is_string();
        let content = Bytes::from(content.to_string());
        let content_type = Some(content_type);
        let call =
            Call { verb, method, path, accept: JSON, content_type, content, idempotent, about: &about };
        let response = self.plane.call(call).await?;
        tracing::info!(plane = %self.plane.name(), object = %about, verb, "wrote");
        let parsed = match parse_object(&response) {
            Ok(parsed) => parsed,
            Err(source) => {
                let (plane, field) = (self.plane.name().clone(), "its root".to_owned());
                return Err(Error::Decode { plane, object: about, field, source });
            }
        };
        let value = Arc::new(decode_any(self.plane, self.kind, &name.to_string(), &parsed.bytes)?);
        if let Some(informers) = self.plane.informers() {
            informers.written_untyped(self.plane, self.kind, &parsed, &value);
        }
        Ok(value)
    }
}

fn name_of(object: &Value) -> NamespacedName<'_> {
    let metadata = &object["metadata"];
    NamespacedName {
        namespace: metadata["namespace"].as_str(),
        name: metadata["name"].as_str().unwrap_or_default(),
    }
}

/// The options of a delete with background propagation.
pub(crate) fn delete_options(uid: &str, resource_version: Option<&str>) -> Value {
    let mut preconditions = json!({"uid": uid});
    if let Some(version) = resource_version {
        preconditions["resourceVersion"] = version.into();
    }
    json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background", "preconditions": preconditions})
}
