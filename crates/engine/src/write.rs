//! Writes to a plane: create, update, status update, finalizers, delete and server-side apply.
//!
//! An update first compares, and sends nothing if nothing changes. It carries the resource version of the
//! object that the decision was based on. If the object has changed, the server returns a conflict, the
//! reconcile fails and the key is queued again. No write re-reads the object and retries: a decision is valid
//! only for the state that it was made on. Where several controllers of a process write one object, they use
//! [`Plane::modify`], which decides on the latest cached state.
//!
//! The response of each write enters the cache of the plane, so that the next read returns it (see
//! [`crate::cache`]).

use bytes::Bytes;
use http::Method;
use polis_api::ObjectExt as _;
use polis_api::kube::core::object::HasStatus;
use serde::Serialize;
use serde_json::{Value, json};

use crate::cache::{decode, delete_options};
use crate::kind::{describe, name_of};
use crate::plane::{Call, JSON};
use crate::{Error, Kind, NamespacedName, Object, Plane};

const MERGE_PATCH: &str = "application/merge-patch+json";
const APPLY_PATCH: &str = "application/apply-patch+yaml";

/// The result of a write, like controller-runtime's `OperationResult`.
#[derive(Clone, Debug, PartialEq)]
pub enum OperationResult<K> {
    /// The object already had the desired state. No request was sent.
    Unchanged,
    /// The object did not exist and was created.
    Created(K),
    /// The object differed and was updated.
    Updated(K),
}

impl<K> OperationResult<K> {
    /// True if the write was sent to the server.
    pub fn changed(&self) -> bool {
        !matches!(self, Self::Unchanged)
    }

    /// The object that the server returned for the write.
    pub fn into_object(self) -> Option<K> {
        match self {
            Self::Unchanged => None,
            Self::Created(object) | Self::Updated(object) => Some(object),
        }
    }
}

/// The preconditions of a delete. The UID is always one of them, so that a new object of the same name is
/// never deleted by mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preconditions {
    /// The UID: the object may have changed since it was read.
    Uid,
    /// The UID and the resource version: the object has not changed since it was read.
    UidAndResourceVersion,
}

impl Plane {
    /// Creates an object. Fails with [`crate::ErrorClass::AlreadyExists`] if an object of that name exists.
    pub async fn create<K: Object>(&self, object: &K) -> Result<K, Error> {
        let kind = Kind::of::<K>();
        let path = kind.path(object.meta().namespace.as_deref());
        let value = value_of(object)?;
        self.send("create", Method::POST, path, JSON, value, false, object).await
    }

    /// Creates the object if `current` is none. Otherwise merges `desired` into `current` and updates the
    /// object if that changes it.
    ///
    /// Fields that `desired` does not set keep their values: server defaults and fields of other writers. To
    /// remove a field, use [`Plane::update`]. The status is not written.
    pub async fn create_or_update<K: Object>(
        &self,
        current: Option<&K>,
        desired: &K,
    ) -> Result<OperationResult<K>, Error> {
        let Some(current) = current else {
            return self.create(desired).await.map(OperationResult::Created);
        };
        let existing = value_of(current)?;
        let mut layer = value_of(desired)?;
        if let Some(layer) = layer.as_object_mut() {
            layer.remove("status");
        }
        strip_server_fields(&mut layer);
        let mut merged = existing.clone();
        overlay(&mut merged, &layer);
        let _writing = self.lock::<K>(name_of(current)).await;
        self.replace(current, existing, merged).await
    }

    /// Replaces `current` by `desired` if they differ outside the status. `desired` is usually a changed copy
    /// of `current`.
    pub async fn update<K: Object>(&self, current: &K, desired: &K) -> Result<OperationResult<K>, Error> {
        if same(current, desired)? {
            return Ok(OperationResult::Unchanged);
        }
        let _writing = self.lock::<K>(name_of(current)).await;
        self.update_locked(current, desired).await
    }

    /// Like [`Plane::update`], for a caller that holds the lock of the object.
    pub(crate) async fn update_locked<K: Object>(
        &self,
        current: &K,
        desired: &K,
    ) -> Result<OperationResult<K>, Error> {
        self.replace(current, value_of(current)?, value_of(desired)?).await
    }

    /// Writes a new status of an object through the status subresource, if it differs.
    pub async fn write_status<K: Object + HasStatus>(
        &self,
        current: &K,
        status: K::Status,
    ) -> Result<OperationResult<K>, Error> {
        let mut desired = current.clone();
        *desired.status_mut() = Some(status);
        self.update_status(current, &desired).await
    }

    /// Like [`Plane::write_status`], for a kind without a typed status: the status of `desired` replaces that
    /// of `current`.
    pub async fn update_status<K: Object>(
        &self,
        current: &K,
        desired: &K,
    ) -> Result<OperationResult<K>, Error> {
        if same(current, desired)? {
            return Ok(OperationResult::Unchanged);
        }
        let _writing = self.lock::<K>(name_of(current)).await;
        self.update_status_locked(current, desired).await
    }

    /// Like [`Plane::update_status`], for a caller that holds the lock of the object.
    pub(crate) async fn update_status_locked<K: Object>(
        &self,
        current: &K,
        desired: &K,
    ) -> Result<OperationResult<K>, Error> {
        let mut value = value_of(current)?;
        let mut wanted = value_of(desired)?;
        let status = wanted.get_mut("status").map_or(Value::Null, Value::take);
        if value.get("status").unwrap_or(&Value::Null) == &status {
            return Ok(OperationResult::Unchanged);
        }
        self.identified(current, "update the status of")?;
        value["status"] = status;
        without_managed_fields(&mut value);
        let path = format!("{}/status", Kind::of::<K>().path_of(name_of(current)));
        self.send("update", Method::PUT, path, JSON, value, true, current).await.map(OperationResult::Updated)
    }

    /// Adds a finalizer if the object does not have it. Other finalizers stay as they are in the cache, which
    /// may be newer than `current`.
    pub async fn add_finalizer<K: Object>(
        &self,
        current: &K,
        finalizer: &str,
    ) -> Result<OperationResult<K>, Error> {
        if current.has_finalizer(finalizer) {
            return Ok(OperationResult::Unchanged);
        }
        let _writing = self.lock::<K>(name_of(current)).await;
        let latest = self.latest(current).filter(|latest| !latest.is_deleting());
        let current = latest.as_ref().unwrap_or(current);
        let mut finalizers = current.meta().finalizers.clone().unwrap_or_default();
        if finalizers.iter().any(|present| present == finalizer) {
            return Ok(OperationResult::Unchanged);
        }
        finalizers.push(finalizer.to_owned());
        self.set_finalizers(current, finalizers, "add a finalizer to").await
    }

    /// Removes a finalizer if the object has it. An object that no longer exists counts as unchanged.
    pub async fn remove_finalizer<K: Object>(
        &self,
        current: &K,
        finalizer: &str,
    ) -> Result<OperationResult<K>, Error> {
        if !current.has_finalizer(finalizer) {
            return Ok(OperationResult::Unchanged);
        }
        let _writing = self.lock::<K>(name_of(current)).await;
        let latest = self.latest(current);
        let current = latest.as_ref().unwrap_or(current);
        let mut finalizers = current.meta().finalizers.clone().unwrap_or_default();
        let before = finalizers.len();
        finalizers.retain(|present| present != finalizer);
        if finalizers.len() == before {
            return Ok(OperationResult::Unchanged);
        }
        match self.set_finalizers(current, finalizers, "remove a finalizer from").await {
            Err(error) if error.is_not_found() => Ok(OperationResult::Unchanged),
            result => result,
        }
    }

    async fn set_finalizers<K: Object>(
        &self,
        current: &K,
        finalizers: Vec<String>,
        action: &str,
    ) -> Result<OperationResult<K>, Error> {
        let (uid, version) = self.identified(current, action)?;
        let patch = json!({"metadata": {"uid": uid, "resourceVersion": version, "finalizers": finalizers}});
        let path = Kind::of::<K>().path_of(name_of(current));
        self.send("patch", Method::PATCH, path, MERGE_PATCH, patch, true, current)
            .await
            .map(OperationResult::Updated)
    }

    /// Deletes this object. Returns false if it no longer exists. Fails with a conflict if the preconditions
    /// do not hold: another object has the name, or the resource version has changed.
    pub async fn delete<K: Object>(&self, object: &K, preconditions: Preconditions) -> Result<bool, Error> {
        let version = object
            .meta()
            .resource_version
            .clone()
            .filter(|_| preconditions == Preconditions::UidAndResourceVersion);
        if preconditions == Preconditions::UidAndResourceVersion && version.is_none() {
            return Err(self.unidentified(object, "delete", "resourceVersion"));
        }
        let Some(uid) = object.meta().uid.clone() else {
            return Err(self.unidentified(object, "delete", "uid"));
        };
        self.delete_at::<K>(name_of(object), &uid, version.as_deref()).await
    }

    /// Deletes the object with this name and UID and, if given, this resource version. Returns false if no
    /// object of that name exists.
    pub async fn delete_at<'p, K: Object>(
        &self,
        target: impl Into<NamespacedName<'p>>,
        uid: &str,
        resource_version: Option<&str>,
    ) -> Result<bool, Error> {
        self.delete_value(&Kind::of::<K>(), target, uid, resource_version).await
    }

    /// Like [`Plane::delete_at`], for a kind that is only known at run time.
    pub async fn delete_value<'p>(
        &self,
        kind: &Kind,
        target: impl Into<NamespacedName<'p>>,
        uid: &str,
        resource_version: Option<&str>,
    ) -> Result<bool, Error> {
        let response = self.send_delete(kind, target.into(), uid, resource_version).await?;
        Ok(response.is_some())
    }

    /// Sends a delete and updates the cache. Returns the response; none if no object of that name exists.
    pub(crate) async fn send_delete(
        &self,
        kind: &Kind,
        target: NamespacedName<'_>,
        uid: &str,
        resource_version: Option<&str>,
    ) -> Result<Option<Vec<u8>>, Error> {
        let options = delete_options(uid, resource_version);
        let about = crate::plane::about(kind, target);
        let call = Call {
            verb: "delete",
            method: Method::DELETE,
            path: kind.path_of(target),
            accept: JSON,
            content_type: Some(JSON),
            content: Bytes::from(options.to_string()),
            idempotent: true,
            about: &about,
        };
        match self.call(call).await {
            Ok(response) => {
                tracing::info!(plane = %self.name(), object = %about, "deleted");
                if let Some(informers) = self.informers() {
                    informers.deleted(self, kind, target, uid, &response);
                }
                Ok(Some(response))
            }
            Err(error) if error.code() == Some(404) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Server-side apply with the field manager `manager`. With `force`, takes over fields of other managers.
    ///
    /// `fields` contains the object's name and every field that `manager` owns. The server removes fields
    /// that `manager` applied before and that are now missing. Each call sends a request, even if nothing
    /// changes.
    pub async fn apply<K: Object>(&self, fields: &K, manager: &str, force: bool) -> Result<K, Error> {
        self.apply_value(&Kind::of::<K>(), value_of(fields)?, manager, force)
            .await
            .and_then(|content| decode(self, &Kind::of::<K>(), &name_of(fields).to_string(), &content))
    }

    async fn apply_value(
        &self,
        kind: &Kind,
        mut fields: Value,
        manager: &str,
        force: bool,
    ) -> Result<Vec<u8>, Error> {
        strip_server_fields(&mut fields);
        fields["apiVersion"] = kind.api_version().into();
        fields["kind"] = kind.kind.as_ref().into();
        let meta = &fields["metadata"];
        let namespace = meta["namespace"].as_str().map(str::to_owned);
        let name = meta["name"].as_str().unwrap_or_default().to_owned();
        let target = NamespacedName { namespace: namespace.as_deref(), name: &name };
        let mut path = format!("{}?force={force}&fieldManager=", kind.path_of(target));
        crate::uncached::escape(manager, &mut path);
        let about = crate::plane::about(kind, target);
        let call = Call {
            verb: "apply",
            method: Method::PATCH,
            path,
            accept: JSON,
            content_type: Some(APPLY_PATCH),
            content: Bytes::from(fields.to_string()),
            // A second apply of the same fields has no effect.
            idempotent: true,
            about: &about,
        };
        self.write(kind, call).await
    }

    /// Sends a call whose response is the written object, and puts the response into the cache.
    async fn write(&self, kind: &Kind, call: Call<'_>) -> Result<Vec<u8>, Error> {
        let response = self.call(call).await?;
        if let Some(informers) = self.informers() {
            informers.written(self, kind, &response);
        }
        Ok(response)
    }

    async fn replace<K: Object>(
        &self,
        current: &K,
        mut existing: Value,
        mut desired: Value,
    ) -> Result<OperationResult<K>, Error> {
        for value in [&mut existing, &mut desired] {
            without_managed_fields(value);
            if let Some(value) = value.as_object_mut() {
                value.remove("status");
            }
        }
        let (_, version) = self.identified(current, "update")?;
        desired["metadata"]["resourceVersion"] = version.into();
        if existing == desired {
            return Ok(OperationResult::Unchanged);
        }
        let path = Kind::of::<K>().path_of(name_of(current));
        self.send("update", Method::PUT, path, JSON, desired, true, current)
            .await
            .map(OperationResult::Updated)
    }

    #[allow(clippy::too_many_arguments)] // the parts of one HTTP request
    async fn send<K: Object>(
        &self,
        verb: &'static str,
        method: Method,
        path: String,
        content_type: &'static str,
        content: Value,
        idempotent: bool,
        object: &K,
    ) -> Result<K, Error> {
        let (kind, about) = (Kind::of::<K>(), describe(object));
        let content = Bytes::from(content.to_string());
        let call = Call {
            verb,
            method,
            path,
            accept: JSON,
            content_type: Some(content_type),
            content,
            idempotent,
            about: &about,
        };
        let response = self.write(&kind, call).await?;
        // An object without a name, such as an access review, is a query: the server does not store it.
        match object.meta().name.is_some() || object.meta().generate_name.is_some() {
            true => tracing::info!(plane = %self.name(), object = %about, verb, "wrote"),
            false => tracing::debug!(plane = %self.name(), object = %about, verb, "sent a review"),
        }
        decode(self, &kind, &name_of(object).to_string(), &response)
    }

    /// The UID and resource version of an object; an error if it was not read from a server.
    fn identified<K: Object>(&self, object: &K, action: &str) -> Result<(String, String), Error> {
        let meta = object.meta();
        match (&meta.uid, &meta.resource_version) {
            (Some(uid), Some(version)) => Ok((uid.clone(), version.clone())),
            (None, _) => Err(self.unidentified(object, action, "uid")),
            (_, None) => Err(self.unidentified(object, action, "resourceVersion")),
        }
    }

    fn unidentified<K: Object>(&self, object: &K, action: &str, missing: &'static str) -> Error {
        Error::Unidentified {
            plane: self.name().clone(),
            action: format!("{action} {}", describe(object)),
            missing,
        }
    }
}

pub(crate) fn value_of<K: Object + Serialize>(object: &K) -> Result<Value, Error> {
    let mut value =
        serde_json::to_value(object).map_err(|source| Error::Encode { object: describe(object), source })?;
    let kind = Kind::of::<K>();
    value["apiVersion"] = kind.api_version().into();
    value["kind"] = kind.kind.as_ref().into();
    Ok(value)
}

/// Whether two objects serialise to the same bytes. This is the usual case, and cheaper than comparing JSON
/// trees.
pub(crate) fn same<K: Object + Serialize>(current: &K, desired: &K) -> Result<bool, Error> {
    let bytes = |object: &K| {
        serde_json::to_vec(object).map_err(|source| Error::Encode { object: describe(object), source })
    };
    Ok(bytes(current)? == bytes(desired)?)
}

fn without_managed_fields(value: &mut Value) {
    if let Some(meta) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        meta.remove("managedFields");
    }
}

/// Removes the metadata that only the server writes. An object built from one that was read contains it.
fn strip_server_fields(value: &mut Value) {
    if let Some(meta) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in
            ["managedFields", "resourceVersion", "uid", "generation", "creationTimestamp", "selfLink"]
        {
            meta.remove(field);
        }
    }
}

/// Merges `layer` into `value`: objects field by field, other values as a whole. Fields that `layer` lacks
/// stay.
fn overlay(value: &mut Value, layer: &Value) {
    match (value, layer) {
        (Value::Object(value), Value::Object(layer)) => {
            for (name, part) in layer {
                match value.get_mut(name) {
                    Some(present) => overlay(present, part),
                    None if part.is_null() => {}
                    None => {
                        value.insert(name.clone(), part.clone());
                    }
                }
            }
        }
        (_, Value::Null) => {}
        (value, layer) => *value = layer.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overlay_keeps_fields_that_it_does_not_set() {
        let mut value = json!({"spec": {"a": 1, "b": {"c": 2}, "list": [1, 2]}, "x": 1});
        overlay(&mut value, &json!({"spec": {"a": 3, "b": {"d": 4}, "list": [9]}, "y": null}));
        assert_eq!(value, json!({"spec": {"a": 3, "b": {"c": 2, "d": 4}, "list": [9]}, "x": 1}));
    }

    #[test]
    fn an_overlay_of_equal_fields_changes_nothing() {
        let value = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"n": [1, {"x": null}]}});
        let mut merged = value.clone();
        overlay(&mut merged, &value);
        assert_eq!(merged, value);
    }
}
